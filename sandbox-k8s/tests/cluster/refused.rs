//! Sandboxes that cannot be made: said soon, said why, and nothing left.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sandbox::{Env, ErrorKind, Hardening, Networking, Provider, Spec};
use sandbox_k8s::{ImagePullPolicy, K8sProvider};

use crate::bed::{Bed, equal, fails, holds};
use crate::{Outcome, bed_trial, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("refused::image_name", image_name),
        trial("refused::image_never_pulled", image_never_pulled),
        trial("refused::image_pull", image_pull),
        bed_trial("refused::image_without_bash", image_without_bash),
        bed_trial("refused::image_without_tar", image_without_tar),
        trial("refused::net_setup_without_ip", net_setup_without_ip),
        trial("refused::runtime_class", runtime_class),
        trial("refused::namespace", namespace),
        trial("refused::too_large", too_large),
        trial("refused::removed_while_it_starts", removed_while_it_starts),
        trial("refused::no_server", no_server),
    ]
}

/// Provisions what cannot be; answers the error's reason.
async fn refuses(
    bed: &Bed,
    provider: &K8sProvider,
    spec: &Spec,
    kind: ErrorKind,
    soon: u64,
) -> Result<String, crate::Any> {
    let begun = Instant::now();
    let error = fails("the provision", provider.provision(spec).await)?;
    holds("in time", begun.elapsed() < Duration::from_secs(soon), begun.elapsed())?;
    equal(&format!("the kind of {error:?}"), error.kind(), kind)?;
    equal("what is left", bed.uid(&spec.session).await?, None)?;
    Ok(error.reason().unwrap_or_default().to_owned())
}

fn with_image(bed: &Bed, image: &str) -> Spec {
    Spec::new(bed.spec().session, image)
}

async fn image_name(bed: Bed) -> Outcome {
    let why = refuses(&bed, &bed.provider()?, &with_image(&bed, "UPPER::x"), ErrorKind::ImagePull, 15).await?;
    holds("the reason", why.contains("InvalidImageName"), why)
}

async fn image_never_pulled(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.image_pull_policy = ImagePullPolicy::Never)?;
    let why = refuses(&bed, &provider, &with_image(&bed, "absent:1"), ErrorKind::ImagePull, 15).await?;
    holds("the reason", why.contains("ErrImageNeverPull"), why)
}

async fn image_pull(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.image_pull_grace = Duration::from_secs(3))?;
    let why = refuses(&bed, &provider, &with_image(&bed, "registry.invalid/x:y"), ErrorKind::ImagePull, 38).await?;
    holds("the reason", why.contains("ErrImagePull") || why.contains("ImagePullBackOff"), why)
}

async fn image_without_bash(bed: Bed) -> Outcome {
    let image = with_image(&bed, "testbed.local/no-bash:1");
    let why = refuses(&bed, &bed.provider()?, &image, ErrorKind::Unavailable, 30).await?;
    holds("the reason", why.contains("/bin/bash"), why)
}

async fn image_without_tar(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let report = provider.probe_image("testbed.local/no-tar:1", &Hardening::default()).await?;
    equal("what it lacks", report.missing_for_files.clone(), vec!["tar".to_owned()])?;
    holds("commands work", report.missing.is_empty() && !report.is_complete(), &report)?;
    let report = provider.probe_image(crate::bed::IMAGE, &Hardening::default()).await?;
    holds("an image that has it all", report.is_complete() && report.user == 0 && !report.bash.is_empty(), &report)
}

async fn net_setup_without_ip(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.net_setup_image = crate::bed::IMAGE.to_owned())?;
    let spec = bed.spec().with_networking(Networking::None);
    let why = refuses(&bed, &provider, &spec, ErrorKind::Unavailable, 30).await?;
    holds("the reason", why.contains("this image has no ip"), why)
}

async fn runtime_class(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.runtime_class = Some("no-such-class".to_owned()))?;
    let why = refuses(&bed, &provider, &bed.spec(), ErrorKind::Forbidden, 15).await?;
    holds("the reason", why.contains("no-such-class"), why)
}

async fn namespace(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.namespace = Some("no-such-namespace".to_owned()))?;
    let why = refuses(&bed, &provider, &bed.spec(), ErrorKind::Unavailable, 15).await?;
    holds("the reason", why.contains("no-such-namespace"), why)
}

async fn too_large(bed: Bed) -> Outcome {
    // Legal as variables, but each `$` is two bytes in a Pod, and together they are more than the cluster stores.
    let mut env = Env::new();
    for at in 0..8 {
        env.set(format!("V{at}"), "$".repeat(130_000))?;
    }
    let spec = bed.spec().with_env(env);
    let error = fails("the provision", bed.provider()?.provision(&spec).await)?;
    equal("its kind", error.kind(), ErrorKind::InvalidSpec)?;
    let why = error.reason().unwrap_or_default();
    holds("the reason", why.contains("a cluster stores at most"), why)?;
    equal("what is left", bed.uid(&spec.session).await?, None)
}

async fn removed_while_it_starts(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| {
        config.node_selector.insert("sandbox-k8s/no-such-node".to_owned(), "yes".to_owned());
        config.unschedulable_grace = Duration::from_secs(10);
    })?;
    let spec = bed.spec();
    let (session, other) = (spec.session.clone(), bed.provider()?);
    let provision = tokio::spawn(async move { provider.provision(&spec).await.map(drop) });
    let other_than = async |uid: Option<String>| -> Result<Option<String>, crate::Any> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let now = bed.uid(&session).await?;
            if now.is_some() && now != uid {
                return Ok(now);
            }
            holds("there is a Pod", Instant::now() < until, &now)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let first = other_than(None).await?;
    other.reap(&session).await?;
    // It begins again, and says what became of that.
    other_than(first).await?;
    let error = fails("the provision", provision.await?)?;
    equal("its kind", error.kind(), ErrorKind::Unschedulable)?;
    equal("what is left", bed.uid(&session).await?, None)
}

async fn no_server(bed: Bed) -> Outcome {
    // Nobody listens there.
    let mut config = kube::Config::new("http://127.0.0.1:9".parse()?);
    config.connect_timeout = Some(Duration::from_secs(2));
    let client = kube::Client::try_from(config)?;
    let limit = Duration::from_secs(3);
    let provider = K8sProvider::new(client, bed.config.clone().with_ready_timeout(limit))?;
    let begun = Instant::now();
    let error = fails("the provision", provider.provision(&bed.spec()).await)?;
    holds("its kind", matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), &error)?;
    holds("in time", begun.elapsed() < limit + Duration::from_secs(2), begun.elapsed())
}
