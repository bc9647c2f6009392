//! What the types promise by their shape: names on the wire, defaults, traits, absences.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use isolation::fake::FakeBackend;
use isolation::{
    Backend, DeviceClass, DirRoot, Effect, Error, ErrorKind, ExecSpec, Grant, GrantKind, HostPath, HostRunner,
    LogOptions, Mode, NodePath, NodeRoot, NodeSpec, OpCtx, Operation, PreparedSource, Purpose, Reason, RootfsSource,
    SlotName, SlotPair, SlotRef, SystemRunner, node_path,
};

fn slot() -> SlotName {
    SlotName::new("kube1").unwrap()
}

fn ctx() -> OpCtx {
    OpCtx::new(Duration::from_secs(10))
}

/// Every source file below a directory of this crate, with its path.
fn sources(dir: &Path, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn there_is_no_global_registry() {
    let mut all = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    let statics: Vec<_> = all
        .iter()
        .flat_map(|(file, text)| text.lines().map(move |line| (file, line.trim())))
        .filter(|(_, line)| {
            line.starts_with("static ") || line.starts_with("pub static ") || line.contains("thread_local!")
        })
        .collect();
    // Numbers that are given out are all this crate keeps.
    let counters = statics.iter().all(|(_, line)| line.starts_with("static NEXT: AtomicU64"));
    assert!(counters && statics.len() == 2, "{statics:?}");
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    for collector in ["inventory", "linkme", "ctor"] {
        assert!(!manifest.contains(collector));
    }
}

#[test]
fn the_container_mode_is_said_to_be_experimental() {
    for text in [include_str!("../src/mode.rs"), include_str!("../src/lib.rs")] {
        let text = text.to_lowercase();
        assert!(text.contains("experimental") && text.contains("opt-in"));
    }
    assert!(include_str!("../../examples/mode_table.rs").contains("Mode::Container, container).opt_in()"));
}

#[test]
fn a_mode_is_a_plain_value() {
    fn plain<T: Copy + Ord + Hash + Send + Sync + 'static>(_: T) {}
    plain(Mode::default());
    let all: BTreeSet<_> = Mode::ALL.into_iter().collect();
    assert_eq!(all.len(), 3);
    assert!(include_str!("../src/mode.rs").contains("#[non_exhaustive]\npub enum Mode"));
}

#[tokio::test]
async fn whatever_refers_to_a_slot_will_do_and_a_bare_name_is_enough() {
    let fake = FakeBackend::new();
    let root: Arc<dyn NodeRoot> = Arc::new(DirRoot::new(slot(), "/m/kube1").unwrap());
    let references: [&dyn SlotRef; 4] = [&slot(), &root, &NodeSpec::new(slot()), &Box::new(slot())];
    for reference in references {
        fake.start(&ctx(), reference).await.unwrap();
        fake.status(&ctx(), reference).await.unwrap();
        fake.logs(&ctx(), reference, &LogOptions::default()).await.unwrap().close().await.unwrap();
        fake.stop(&ctx(), reference).await.unwrap();
    }
    assert!(fake.calls().iter().all(|call| call.ends_with(" kube1")));
}

#[test]
fn a_root_is_a_value_without_handles() {
    fn value<T: Clone + Send + Sync + 'static>(value: &T) -> T {
        value.clone()
    }
    // Nothing is opened: a root of a directory that does not exist maps all the same.
    let root = value(&DirRoot::new(slot(), "/no/such/directory").unwrap());
    assert_eq!(root.path(&node_path!("/a")), Path::new("/no/such/directory/a"));
    assert_eq!(root.fs().unwrap_err().kind(), ErrorKind::Io);
}

#[tokio::test]
async fn the_version_decides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeBackend::stateful(dir.path(), SlotPair::default());
    let mut rendered = Vec::new();
    for version in ["", "1.29.0", "2.0.0-rc.1"] {
        fake.prepare(&ctx(), &NodeSpec::new(slot()).with_version(version)).await.unwrap();
        rendered.push(std::fs::read(dir.path().join("kube1.conf")).unwrap());
        fake.destroy(&ctx(), &slot()).await.unwrap();
    }
    assert!(rendered.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn a_prepared_source_leaves_the_directory_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    std::fs::write(dir.path().join("etc/x"), "x").unwrap();
    let root = DirRoot::new(slot(), dir.path()).unwrap();
    let source: Arc<dyn RootfsSource> = Arc::new(PreparedSource::default());
    source.unpack(&ctx(), &root.fs().unwrap()).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("etc/x")).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn kinds_and_purposes_on_the_wire() {
    let json = |value: &dyn erased::Json| value.json();
    for (kind, name) in
        [(GrantKind::Mount, "mount"), (GrantKind::Device, "device"), (GrantKind::LibraryPath, "library-path")]
    {
        assert_eq!((json(&kind), kind.to_string()), (format!("\"{name}\""), name.to_owned()));
    }
    for (purpose, name) in [
        (Purpose::HostDevice, "host-device"),
        (Purpose::HostMount, "host-mount"),
        (Purpose::NvidiaDevice, "nvidia-device"),
        (Purpose::NvidiaLibDir, "nvidia-lib-dir"),
        (Purpose::NvidiaI386LibDir, "nvidia-i386-lib-dir"),
        (Purpose::NvidiaHelperBin, "nvidia-helper-bin"),
        (Purpose::AmdDevice, "amd-device"),
        (Purpose::AmdSysfs, "amd-sysfs"),
    ] {
        assert_eq!((json(&purpose), purpose.to_string()), (format!("\"{name}\""), name.to_owned()));
    }
}

mod erased {
    pub(super) trait Json {
        fn json(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> String {
            serde_json::to_string(self).unwrap()
        }
    }
}

#[test]
fn a_grant_without_a_target_is_seen_where_it_is_on_the_host() {
    let usr = HostPath::new("/usr/share").unwrap();
    let mount = Grant::mount(Purpose::HostMount, usr.clone());
    assert_eq!(mount.target(), Some(node_path!("/usr/share")));
    assert_eq!(mount.with_target(node_path!("/mnt")).target(), Some(node_path!("/mnt")));
    assert_eq!(Grant::library_path(Purpose::NvidiaLibDir, usr).target(), Some(node_path!("/usr/share")));
    let class = Grant::device_class(Purpose::HostDevice, DeviceClass::new("char-input").unwrap());
    assert_eq!((class.source(), class.target()), (None, None), "a class is rules alone");
    let empty = r#"{"Kind":"mount","Purpose":"host-mount","Source":"/usr/share","Target":""}"#;
    assert_eq!(serde_json::from_str::<Grant>(empty).unwrap().target(), Some(node_path!("/usr/share")));
}

#[test]
fn a_command_without_more_said() {
    let spec = ExecSpec::new(["true"]);
    assert_eq!((spec.max_output, spec.timeout, spec.cwd, spec.user), (16 << 20, None, None, None));
    assert!(spec.env.is_empty() && spec.stdin.is_empty());
}

#[test]
fn a_backend_can_be_a_trait_object() {
    fn shared<T: ?Sized + Send + Sync + 'static>() {}
    shared::<dyn Backend>();
    shared::<dyn HostRunner>();
    shared::<dyn RootfsSource>();
    let backends: Vec<Arc<dyn Backend>> =
        Mode::ALL.map(|mode| Arc::new(FakeBackend::new().with_mode(mode)) as _).into();
    assert_eq!(backends.iter().map(Backend::mode).collect::<Vec<_>>(), Mode::ALL);
}

#[test]
fn errors_have_a_kind_an_effect_and_one_level_of_text() {
    use ErrorKind::*;
    let kinds = [
        InvalidInput,
        InvalidSlot,
        InvalidPath,
        InvalidGrant,
        UnknownMode,
        ModeUnavailable,
        GrantUnsupported,
        UnknownSlot,
        NotPrepared,
        NotRunning,
        Conflict,
        Busy,
        Timeout,
        Command,
        Transport,
        CommandNotFound,
        Artifact,
        Io,
        Cancelled,
        Unsupported,
        Corrupt,
    ];
    let texts: BTreeSet<_> = kinds.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), kinds.len());
    for kind in kinds {
        let error = Error::new(kind, "try it");
        assert_eq!((error.kind(), error.effect(), error.operation()), (kind, Effect::None, "try it"));
        assert!(error.to_string().contains(&kind.to_string()), "{error}");
    }
    let cause = std::io::Error::other("a deeper cause");
    let error = Error::io("write a file", "/x", cause).with_effect(Effect::Partial);
    assert_eq!((error.effect(), error.path()), (Effect::Partial, Some(Path::new("/x"))));
    assert!(!error.to_string().contains("deeper"), "{error}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("deeper"));
    assert_eq!(Error::timeout("wait", Duration::from_secs(1)).effect(), Effect::Unknown);
    assert_eq!(NodePath::new("/../x").unwrap_err().reason(), Some(Reason::Traversal));
}

#[test]
fn programs_come_from_the_fixed_search_path_alone() {
    // `sh` is in the PATH of whoever runs this test.
    let empty = tempfile::tempdir().unwrap();
    let runner = SystemRunner::default().with_search(vec![empty.path().to_path_buf()]);
    assert_eq!(runner.resolve("sh"), None);
    assert!(SystemRunner::default().resolve("sh").is_some());
    std::fs::write(empty.path().join("sh"), "not executable").unwrap();
    assert_eq!(runner.resolve("sh"), None);
}

#[tokio::test]
async fn every_operation_can_be_made_to_fail_and_is_recorded_all_the_same() {
    let all = [
        Operation::Prepare,
        Operation::Start,
        Operation::Stop,
        Operation::Restart,
        Operation::Destroy,
        Operation::Status,
        Operation::Exec,
        Operation::Logs,
    ];
    for failing in all {
        let fake = FakeBackend::new().with_dir("/m").with_error(failing, ErrorKind::Transport);
        let (ctx, slot, command) = (ctx(), slot(), ExecSpec::new(["true"]));
        let outcomes = [
            fake.prepare(&ctx, &NodeSpec::new(slot.clone())).await.err(),
            fake.start(&ctx, &slot).await.err(),
            fake.stop(&ctx, &slot).await.err(),
            fake.restart(&ctx, &slot).await.err(),
            fake.destroy(&ctx, &slot).await.err(),
            fake.status(&ctx, &slot).await.err(),
            fake.exec(&ctx, &slot, &command).await.err(),
            fake.logs(&ctx, &slot, &LogOptions::default()).await.err(),
        ];
        for (operation, outcome) in all.into_iter().zip(outcomes) {
            let want = (operation == failing).then_some(ErrorKind::Transport);
            assert_eq!(outcome.map(|error| error.kind()), want, "{operation} while {failing} fails");
        }
        assert_eq!(fake.calls(), all.map(|operation| format!("{operation} kube1")));
        assert_eq!(fake.execs(), [command]);
    }
}
