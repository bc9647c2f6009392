use std::path::PathBuf;

use proptest::prelude::*;
use sandbox::{CapDrop, Death, Limit, SandboxPath, SessionId};

use super::*;
use crate::Toleration;

fn spec() -> Spec {
    Spec::new(SessionId::new("sesn_7").unwrap(), "debian:stable-slim")
}

fn making() -> Making {
    Making { nonce: "0123456789abcdef0123456789abcdef".to_owned(), recreated: None, token: None }
}

fn config() -> K8sConfig {
    K8sConfig::default().with_net_setup_image("busybox@sha256:0")
}

fn placed() -> K8sConfig {
    let mut config = config().with_deployment("team-a").with_runtime_class("gvisor");
    config.domain = "sandboxes.example.org".to_owned();
    config.image_pull_secrets = vec!["regcred".to_owned()];
    config.node_selector = BTreeMap::from([("role".to_owned(), "sandbox".to_owned())]);
    config.tolerations = vec![Toleration { key: Some("sandbox".to_owned()), ..Toleration::default() }];
    config.service_account = Some("sandbox".to_owned());
    config.priority_class = Some("low".to_owned());
    config.user_namespaces = Some(true);
    config.max_lifetime = Some(std::time::Duration::from_secs(3600));
    config
}

/// Compares with the file, which `UPDATE_GOLDEN=1` writes anew.
fn golden(name: &str, spec: &Spec, config: &K8sConfig, making: &Making) {
    let made = serde_json::to_string_pretty(&pod(spec, config, making).unwrap()).unwrap() + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.json"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(made == wanted, "{} differs; look at what UPDATE_GOLDEN=1 changes\n{made}", path.display());
}

#[test]
fn golden_files() {
    golden("default", &spec(), &config(), &making());
    golden("restricted", &spec().with_hardening(Hardening::restricted()), &config(), &making());
    golden("unhardened", &spec().with_hardening(Hardening::none()), &config(), &making());
    golden("limited", &spec().with_networking(Networking::limited([])), &config(), &making());
    let cut_off = spec().with_networking(Networking::None).with_hardening(Hardening::none());
    golden("none_unhardened", &cut_off, &config(), &making());
    golden("placed", &spec(), &placed(), &making());

    let mut gate = sandbox::GateSpec::new("gate:1", "https://plane.example/$x");
    gate.telemetry = Some(sandbox::GateTelemetry::new("http://otel:4317"));
    let mut hardening = Hardening::none();
    hardening.run_as_user = Some(1000);
    hardening.cap_drop = CapDrop::only([Capability::SETUID, Capability::CHOWN]);
    let proxied = Env::new().with("NO_PROXY", "*").and_then(|env| env.with("A", "1")).unwrap();
    let gated = spec()
        .with_gate(gate)
        .with_hardening(hardening)
        .with_env(proxied)
        .with_networking(Networking::limited([sandbox::AllowedHost::new("example.org").unwrap()]));
    let token = Some(GateToken::new("gtk_0123456789abcdef").unwrap());
    golden("gated", &gated, &config(), &Making { token, ..making() });

    let env = Env::new()
        .with("Z", "last")
        .and_then(|env| env.with("A", "$HOME $(Z) $$"))
        .and_then(|env| env.with("RAW", vec![0xff, b'$', b'\n']))
        .unwrap();
    let mut hardening = Hardening::default();
    hardening.cpu_millis = Limit::Required(50);
    hardening.memory_bytes = Limit::Required(512 << 20);
    hardening.disk_bytes = Limit::Required(1 << 30);
    hardening.read_only_root = true;
    hardening.run_as_user = Some(1000);
    let workdir = SandboxPath::new("/srv/a b'c").unwrap();
    let full = spec().with_env(env).with_hardening(hardening).with_workdir(workdir);
    let again = Making { recreated: Some(Recreated::new(Death::Evicted, "Evicted: the node had no room")), ..making() };
    golden("full", &full, &config(), &again);
}

fn container(spec: &Spec, config: &K8sConfig) -> Container {
    pod(spec, config, &making()).unwrap().spec.unwrap().containers.remove(0)
}

#[test]
fn bounds_are_independent_and_requests_never_exceed_limits() {
    let resources = |hardening: &Hardening| container(&spec().with_hardening(hardening.clone()), &config()).resources;
    assert_eq!(resources(&Hardening::none()), None);
    let mut hardening = Hardening::none();
    hardening.disk_bytes = Limit::Preferred(5);
    let disk = resources(&hardening).unwrap();
    assert_eq!(disk.limits, disk.requests);
    assert_eq!(disk.limits.unwrap().keys().collect::<Vec<_>>(), ["ephemeral-storage"]);
    hardening.disk_bytes = Limit::Off;
    for (millis, request) in [(50, "50m"), (100, "100m"), (4000, "100m")] {
        hardening.cpu_millis = Limit::Required(millis);
        let cpu = resources(&hardening).unwrap();
        assert_eq!(cpu.requests.unwrap()["cpu"].0, request);
        assert_eq!(cpu.limits.unwrap()["cpu"].0, format!("{millis}m"));
    }
    hardening.cpu_millis = Limit::Off;
    hardening.pids = Limit::Preferred(64);
    assert_eq!(resources(&hardening), None, "a Pod cannot bound processes");
}

#[test]
fn raw_sockets_are_always_dropped_where_the_network_is_cut_off() {
    let drop = |hardening: Hardening, networking: Networking| {
        let spec = spec().with_hardening(hardening).with_networking(networking);
        container(&spec, &config()).security_context.and_then(|c| c.capabilities).and_then(|c| c.drop)
    };
    let mut chown = Hardening::none();
    chown.cap_drop = CapDrop::only([Capability::CHOWN]);
    assert_eq!(drop(Hardening::none(), Networking::Unrestricted), None);
    assert_eq!(drop(Hardening::none(), Networking::None), Some(vec!["NET_RAW".to_owned()]));
    assert_eq!(drop(chown, Networking::limited([])), Some(vec!["CHOWN".to_owned(), "NET_RAW".to_owned()]));
    assert_eq!(drop(Hardening::restricted(), Networking::None), Some(vec!["ALL".to_owned()]));
}

#[test]
fn what_no_pod_can_hold_is_refused() {
    let workdir = spec().with_workdir(SandboxPath::new(b"/w\xff".to_vec()).unwrap());
    let error = pod(&workdir, &config(), &making()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    assert!(error.to_string().contains(r"/w\xff"), "{error}");
    let mut env = Env::new();
    for at in 0..3 {
        env.set(format!("V{at}"), vec![0xff; 100_000]).unwrap();
    }
    assert_eq!(pod(&spec().with_env(env), &config(), &making()).unwrap_err().kind(), ErrorKind::InvalidSpec);
}

#[test]
fn a_gated_sandbox_never_has_the_gates_user_and_its_proxies_win() {
    let with = |user: Option<u32>| {
        let mut hardening = Hardening::default();
        hardening.run_as_user = user;
        spec().with_gate(sandbox::GateSpec::new("gate:1", "https://plane")).with_hardening(hardening)
    };
    for user in [None, Some(65532)] {
        let error = pod(&with(user), &config(), &making()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSpec);
        assert!(error.to_string().contains("gate"), "{error}");
    }
    // The same user without a gate is fine.
    let mut plain = with(Some(65532));
    plain.gate = None;
    pod(&plain, &config(), &making()).unwrap();
    // Not even a value that is no text gets past.
    let env = Env::new().with("HTTP_PROXY", vec![0xff]).and_then(|env| env.with("no_proxy", vec![0xfe])).unwrap();
    let made = pod(&with(Some(0)).with_env(env), &config(), &making()).unwrap();
    assert!(!made.metadata.annotations.as_ref().unwrap().contains_key("sandbox-k8s/env"));
    let vars = made.spec.unwrap().containers.remove(0).env.unwrap();
    let value = |name: &str| vars.iter().find(|v| v.name == name).and_then(|v| v.value.clone());
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        assert_eq!(value(name).as_deref(), Some("http://127.0.0.1:15080"), "{name}");
    }
    assert_eq!((value("NO_PROXY").as_deref(), value("no_proxy").as_deref()), (Some(""), Some("")));
}

#[test]
fn with_a_gate_the_networking_is_not_compared() {
    let gated = |networking| spec().with_networking(networking).with_gate(sandbox::GateSpec::new("g", "https://p"));
    assert_eq!(fingerprint(&gated(Networking::limited([]))), fingerprint(&gated(Networking::Unrestricted)));
    assert_ne!(fingerprint(&spec().with_networking(Networking::limited([]))), fingerprint(&spec()));
}

#[test]
fn volume_names_are_legal_and_the_paths_own() {
    let long = format!("/{}", "x".repeat(130));
    let paths = ["/w_1", "/w-1", "/W-1", "/", long.as_str(), "/tmp", "/a/-", "/ä"];
    let names: std::collections::HashSet<_> = paths.iter().map(|path| volume_name(path)).collect();
    assert_eq!(names.len(), paths.len());
    for name in names {
        assert!(crate::grammar::is_dns_label(&name), "{name}");
    }
}

proptest! {
    /// Whatever is asked for, these hold.
    #[test]
    fn never_privileged(
        user in proptest::option::of(0u32..=i32::MAX as u32),
        read_only in any::<bool>(),
        networking in 0..3,
        value in ".*",
    ) {
        let mut hardening = Hardening::default();
        hardening.run_as_user = user;
        hardening.read_only_root = read_only;
        let networking =
            [Networking::Unrestricted, Networking::limited([]), Networking::None][networking as usize].clone();
        let value = value.replace('\0', "");
        let env = Env::new().with("V", value.clone()).unwrap();
        let spec = spec().with_hardening(hardening).with_networking(networking.clone()).with_env(env);
        let made = pod(&spec, &config(), &making()).unwrap().spec.unwrap();
        prop_assert_eq!(made.automount_service_account_token, Some(false));
        prop_assert_eq!(made.enable_service_links, Some(false));
        prop_assert!(made.host_network.is_none() && made.host_pid.is_none() && made.host_ipc.is_none());
        let security = made.containers[0].security_context.clone().unwrap();
        prop_assert!(security.privileged.is_none());
        prop_assert_eq!(security.allow_privilege_escalation, Some(false));
        prop_assert!(security.capabilities.unwrap().add.is_none());
        prop_assert_eq!(made.init_containers.is_some(), networking != Networking::Unrestricted);
        prop_assert!(made.volumes.iter().flatten().all(|v| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some())));
        // Kubernetes reads `$$` as `$` and makes nothing of a lone one that no parenthesis follows.
        prop_assert_eq!(made.containers[0].env.as_ref().unwrap()[0].value.as_ref().unwrap().replace("$$", "$"), value);
    }
}
