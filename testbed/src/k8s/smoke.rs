//! Smoke tests of a cluster: each piece does what its name says, and each fault happens and passes.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::Misbehaviour;

use super::components::Component;
use super::fault::{Fault, Want};
use super::{Cluster, RESTRICTED, config, proxied};
use crate::error::{Error, Result};
use crate::images::{self, BUSYBOX, DEBIAN};
use crate::place::Place;
use crate::process::{Captured, Task};
use crate::process_id::wait_for;
use crate::tally::Checks;

const QUICK: Duration = Duration::from_secs(20);

/// Runs the smoke tests; with `slow` also those that take long.
pub(crate) fn run(place: &Place, cluster: &Cluster, slow: bool, checks: &mut Checks<'_>) -> Result<()> {
    let smoke = Smoke { place, cluster };
    checks.run("a pod of every image answers an exec", || smoke.every_image())?;
    checks.run("exit codes, stdout and stderr of an exec come through", || smoke.exec())?;
    checks.run("each image lacks what its name says", || smoke.odd_images())?;
    checks.run("the restricted namespace refuses a pod that runs as root", || smoke.restricted())?;
    checks.run("a frozen API server answers nobody, and goes on", || smoke.frozen(Component::Apiserver))?;
    checks.run("a frozen etcd stops writes, and goes on", || smoke.frozen(Component::Etcd))?;
    for component in [Component::Apiserver, Component::Kubelet, Component::Containerd] {
        let name = format!("pods outlive a restart of {}", component.name());
        checks.run(&name, || smoke.restart(component))?;
    }
    checks.run("the proxy delays, cuts and mends", || smoke.proxy())?;
    checks.run("a node cut off becomes NotReady, and Ready when joined", || smoke.cut())?;
    if slow {
        checks.run("want of memory evicts one pod", || smoke.evict(Want::Memory))?;
        checks.run("want of disk evicts one pod", || smoke.evict(Want::Disk))?;
    }
    checks.run("pods are deleted", || smoke.delete())
}

struct Smoke<'a> {
    place: &'a Place,
    cluster: &'a Cluster,
}

/// A pod that sleeps.
pub(crate) fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"],
            }],
        },
    })
}

impl Smoke<'_> {
    fn every_image(&self) -> Result<()> {
        let mut pods: Vec<_> = images::for_pods().map(|image| pod(image.file, image.reference)).collect();
        let mut second = pod("second", BUSYBOX);
        second["spec"]["runtimeClassName"] = config::SECOND_RUNTIME.into();
        pods.push(second);
        self.cluster.apply("smoke", &json!({ "apiVersion": "v1", "kind": "List", "items": pods }))?;
        self.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]).stdout()?;
        for image in images::for_pods() {
            self.exec_ok(image.file, "true")?;
        }
        self.exec_ok("second", "true").map(drop)
    }

    fn exec(&self) -> Result<()> {
        let got = self.sh("debian", "echo out; echo err >&2; exit 7")?;
        want("stdout", "out\n", &got.stdout)?;
        want("stderr", "err\ncommand terminated with exit code 7\n", &got.stderr)?;
        let end = got.ended.to_string();
        if end.ends_with("exit status: 7") { Ok(()) } else { Err(Error::new(end)) }
    }

    fn odd_images(&self) -> Result<()> {
        for (pod, script, answer) in [
            ("no-tar", "bash -c 'command -v tar' || echo none", "none\n"),
            ("no-bash", "ls /bin/bash 2>/dev/null || echo none", "none\n"),
            ("nobody", "id -u; touch /x /tmp/x 2>/dev/null || echo refused", "65534\nrefused\n"),
            ("noisy", "bash -c 'echo quiet' 2>/dev/null", "noise on stdout\nquiet\n"),
            ("busybox", "tar --help 2>&1 | head -n1 | cut -d' ' -f1; command -v bash", "BusyBox\n/bin/bash\n"),
            ("debian", "tar --version | head -n1 | cut -d' ' -f1,2", "tar (GNU\n"),
        ] {
            want(pod, answer, &self.exec_ok(pod, script)?)?;
        }
        Ok(())
    }

    fn restricted(&self) -> Result<()> {
        let refused = self.kubectl(&["-n", RESTRICTED, "run", "root", "--image", DEBIAN]).capture()?;
        if refused.ended.success() || !refused.stderr.contains("violates PodSecurity") {
            return Err(Error::new(format!("wanted a refusal, got {}: {}", refused.ended, refused.stderr)));
        }
        let mut good = pod("good", "testbed.local/nobody:1");
        good["metadata"]["namespace"] = RESTRICTED.into();
        good["spec"]["securityContext"] =
            json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
        good["spec"]["containers"][0]["securityContext"] =
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
        self.cluster.apply("smoke-restricted", &good)?;
        self.kubectl(&["-n", RESTRICTED, "wait", "--for=condition=Ready", "pod", "good", "--timeout=60s"])
            .stdout()
            .map(drop)
    }

    fn frozen(&self, component: Component) -> Result<()> {
        let write = || {
            let label = ["label", "--overwrite", "pod", "debian", "frozen=was", "--request-timeout=2s"];
            Ok(self.kubectl(&label).capture()?.ended.success())
        };
        wait_for("a write before the frost", Duration::from_secs(60), write)?;
        self.fault(Fault::Pause { component })?;
        let during = write();
        self.fault(Fault::Resume { component })?;
        if during? {
            return Err(Error::new(format!("a write succeeded while {} was frozen", component.name())));
        }
        wait_for("a write after the frost", Duration::from_secs(60), write)
    }

    fn restart(&self, component: Component) -> Result<()> {
        self.fault(Fault::Restart { component })?;
        // A restarted containerd is a moment ahead of the kubelet that has lost its connection.
        wait_for("an exec after the restart", Duration::from_secs(60), || {
            Ok(self.sh("debian", "true")?.ended.success())
        })?;
        let restarts = ["get", "pod", "debian", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"];
        want("container restarts", "0", self.kubectl(&restarts).stdout()?.trim())
    }

    fn proxy(&self) -> Result<()> {
        let (proxy, kubeconfig) = proxied::start(self.cluster, Misbehaviour::default())?;
        let get = |patience: &str| {
            let args = ["get", "--raw", "/readyz", patience];
            let task = self.cluster.kubectl(&args, QUICK).env("KUBECONFIG", &kubeconfig);
            Ok::<_, Error>(task.capture()?.ended.success())
        };
        let expect = |what: &str, misbehaviour: Misbehaviour, good: bool| {
            proxy.set(misbehaviour);
            // Long enough for a busy machine where an answer must come, short where none may.
            if get(if good { "--request-timeout=15s" } else { "--request-timeout=2s" })? == good {
                Ok(())
            } else {
                Err(Error::new(format!("through {what}: success is {}, wanted {good}", !good)))
            }
        };
        expect("a faithful proxy", Misbehaviour::default(), true)?;
        expect("a slow one", Misbehaviour { delay: Duration::from_millis(50), ..Misbehaviour::default() }, true)?;
        expect("one that cuts", Misbehaviour { cut_after: Some(700), ..Misbehaviour::default() }, false)?;
        expect("a black hole", Misbehaviour { black_hole: true, ..Misbehaviour::default() }, false)?;
        expect("a mended one", Misbehaviour::default(), true)
    }

    fn cut(&self) -> Result<()> {
        let waited = wait_for("Ready", Duration::from_secs(180), || Ok(self.ready()? == "True"));
        waited.map_err(|error| Error::new(format!("{error}; {}", self.conditions())))?;
        self.fault(Fault::CutNode)?;
        // "False" would be the kubelet's own word; "Unknown" is the verdict about a node that says nothing.
        let noticed = wait_for("NotReady", Duration::from_secs(90), || Ok(self.ready()? == "Unknown"));
        let during = self.cluster.kubectl(&["exec", "debian", "--", "true"], Duration::from_secs(2)).capture();
        self.fault(Fault::JoinNode)?;
        noticed?;
        if during?.ended.success() {
            return Err(Error::new("an exec succeeded on a node that was cut off"));
        }
        wait_for("an exec after the rejoin", Duration::from_secs(60), || Ok(self.sh("debian", "true")?.ended.success()))
    }

    fn evict(&self, want: Want) -> Result<()> {
        self.fault(Fault::Evict { want })
    }

    fn delete(&self) -> Result<()> {
        self.kubectl(&["delete", "pods", "--all", "--timeout=60s"]).stdout()?;
        self.kubectl(&["-n", RESTRICTED, "delete", "pods", "--all", "--timeout=60s"]).stdout().map(drop)
    }

    /// What the node says of itself, for a message.
    fn conditions(&self) -> String {
        let format = "jsonpath={range .status.conditions[*]}{.type}={.status} ({.message}) {end}";
        self.kubectl(&["get", "node", self.cluster.node(), "-o", format])
            .stdout()
            .unwrap_or_else(|error| error.to_string())
    }

    fn ready(&self) -> Result<String> {
        let format = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        let answer = self.kubectl(&["get", "node", self.cluster.node(), "-o", format]).stdout()?;
        Ok(answer.trim().to_owned())
    }

    fn fault(&self, fault: Fault) -> Result<()> {
        fault.cause(self.place, self.cluster)
    }

    fn kubectl(&self, args: &[&str]) -> Task {
        self.cluster.kubectl(args, Duration::from_secs(90))
    }

    fn sh(&self, pod: &str, script: &str) -> Result<Captured> {
        self.cluster.kubectl(&["exec", pod, "--", "sh", "-c", script], QUICK).capture()
    }

    fn exec_ok(&self, pod: &str, script: &str) -> Result<String> {
        self.cluster.kubectl(&["exec", pod, "--", "sh", "-c", script], QUICK).stdout()
    }
}

fn want(what: &str, want: &str, got: &str) -> Result<()> {
    if want == got { Ok(()) } else { Err(Error::new(format!("{what}: want {want:?}, got {got:?}"))) }
}
