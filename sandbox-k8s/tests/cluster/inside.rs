//! What a tenant finds inside.

use libtest_mimic::Trial;
use sandbox::{Hardening, Networking, Provider, SandboxExt, SandboxPath};

use crate::bed::{Bed, equal, holds, reap, says};
use crate::{Outcome, bed_trial, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("inside::no_token_and_no_services", no_token_and_no_services),
        trial("inside::no_network", no_network),
        trial("inside::first_process", first_process),
        bed_trial("inside::restricted_namespace", restricted_namespace),
        bed_trial("inside::busybox", busybox),
        bed_trial("inside::startup_files", startup_files),
    ]
}

async fn no_token_and_no_services(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    equal(
        "a token",
        says(&sandbox, "ls /var/run/secrets /run/secrets 2>/dev/null; echo end").await?,
        "end".to_owned(),
    )?;
    // The API server's own address stands in every Pod; no other service's may.
    let others = says(&sandbox, "env | grep _SERVICE_ | grep -v ^KUBERNETES_; echo end").await?;
    equal("addresses of services", others, "end".to_owned())?;
    equal("seccomp", says(&sandbox, "grep ^Seccomp: /proc/self/status | tr -d '\\t'").await?, "Seccomp:2".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn no_network(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    for networking in [Networking::None, Networking::limited([])] {
        // Even with every capability that a container has by default.
        let spec = bed.spec().with_networking(networking).with_hardening(Hardening::none());
        let sandbox = provider.provision(&spec).await?;
        let look = "grep -cv ^Iface /proc/net/route; grep -cv ' lo$' /proc/net/ipv6_route; \
                    for i in /sys/class/net/*; do [ ${i##*/} = lo ] || echo $(($(cat $i/flags) & 1)); done | sort -u; \
                    getent hosts kubernetes.default; (exec 3<>/dev/tcp/$KUBERNETES_SERVICE_HOST/443) 2>&1 | grep -o unreachable | sort -u";
        equal("routes, interfaces, names, ways out", says(&sandbox, look).await?, "0\n0\n0\nunreachable".to_owned())?;
        let caps = says(&sandbox, "grep ^CapEff /proc/self/status | cut -f2").await?;
        let bits = u64::from_str_radix(&caps, 16)?;
        holds("NET_ADMIN and NET_RAW are not there", bits & (1 << 12 | 1 << 13) == 0, &caps)?;
        reap(&provider, &spec.session).await?;
    }
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let open = says(&sandbox, "grep -v ^Iface /proc/net/route").await?;
    holds("with a network there is a route", !open.is_empty(), &open)?;
    reap(&provider, &spec.session).await
}

async fn first_process(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    // All that a tenant may do to it.
    says(&sandbox, "kill -9 1; kill -STOP 1; kill -HUP 1; kill -CHLD 1; echo x > /proc/1/fd/3; true").await?;
    equal("a command afterwards", says(&sandbox, "echo alive").await?, "alive".to_owned())?;
    says(&sandbox, "for i in {1..200}; do (sleep 0.05 &); done; sleep 1.2").await?;
    let zombies = says(&sandbox, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '").await?;
    equal("zombies", zombies, "0".to_owned())?;
    let begun = std::time::Instant::now();
    reap(&provider, &spec.session).await?;
    holds("the end of a sandbox takes no grace period", begun.elapsed().as_secs() < 15, begun.elapsed())
}

async fn restricted_namespace(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.namespace = Some("restricted".to_owned()))?;
    let spec = bed.spec().with_hardening(Hardening::restricted());
    let found = provider.preflight(&spec).await?;
    holds("restricted hardening passes", found.is_ready(), &found)?;
    let sandbox = provider.provision(&spec).await?;
    equal("its user", says(&sandbox, "id -u; pwd").await?, "65534\n/workspace".to_owned())?;
    let path = SandboxPath::new("/workspace/a/b")?;
    sandbox.write_bytes(&path, "x").await?;
    equal("a file", sandbox.read_to_string(&path, 10).await?, "x".to_owned())?;
    let mut export = provider.export(&spec.session, &SandboxPath::new("/workspace")?).await?;
    let mut size = 0;
    while let Some(piece) = futures::StreamExt::next(&mut export).await {
        size += piece?.len();
    }
    holds("an export", size >= 1024, size)?;
    reap(&provider, &spec.session).await?;
    let report = provider.probe_image(crate::bed::IMAGE, &Hardening::restricted()).await?;
    holds("its image is probed there", report.is_complete() && report.user == 65534, &report)?;
    let cut_off = bed.spec().with_hardening(Hardening::restricted()).with_networking(Networking::None);
    for spec in [bed.spec(), cut_off] {
        let found = provider.preflight(&spec).await?;
        let says_why = found.findings.iter().any(|f| f.fatal && f.why.contains("PodSecurity"));
        holds("what the level forbids is found before", !found.is_ready() && says_why, &found)?;
        let error = crate::bed::fails("a provision that the level forbids", provider.provision(&spec).await)?;
        equal("its kind", error.kind(), sandbox::ErrorKind::Forbidden)?;
    }
    Ok(())
}

async fn busybox(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let mut spec = bed.spec();
    spec.image = "busybox".to_owned();
    let sandbox = provider.provision(&spec).await?;
    equal("a command", says(&sandbox, "echo $((6 * 7))").await?, "42".to_owned())?;
    let path = SandboxPath::new("/workspace/f")?;
    sandbox.write_bytes(&path, vec![7; 1 << 20]).await?;
    equal("a file", sandbox.read_bytes(&path, 1 << 20).await?.len(), 1 << 20)?;
    reap(&provider, &spec.session).await
}

async fn startup_files(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let mut spec = bed.spec();
    spec.image = "testbed.local/noisy:1".to_owned();
    let sandbox = provider.provision(&spec).await?;
    let path = SandboxPath::new("/workspace/f")?;
    sandbox.write_bytes(&path, "quiet").await?;
    equal("a file of a noisy image", sandbox.read_to_string(&path, 10).await?, "quiet".to_owned())?;
    let report = provider.probe_image(&spec.image, &spec.hardening).await?;
    holds("what it has is told from its noise", report.is_complete() && report.user == 0, &report)?;
    reap(&provider, &spec.session).await
}
