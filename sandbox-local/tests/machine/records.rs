//! What becomes of sandboxes whose records this program did not write, or not to the end.

use std::fs;
use std::path::PathBuf;

use sandbox::{Death, Effect, ErrorKind, ExecRequest, FileWrite, Limit, OwnedState, Provider};
use sandbox_local::LocalProvider;

use crate::bed::{Bed, Needs, Trial, ok, owned, path, spec};
use crate::ends::assert_nothing_left;

pub(crate) const TRIALS: &[Trial] = &[
    ("records::illegible_ones_are_replaced", Needs::Nothing, illegible_ones_are_replaced),
    ("records::what_another_program_made_is_left_alone", Needs::Nothing, what_another_program_made_is_left_alone),
    ("records::what_another_program_made_is_listed_and_reaped", Needs::Nothing, listed_and_reaped),
    ("records::groups_without_a_record_go", Needs::Root, groups_without_a_record_go),
    ("records::a_list_hides_nothing_behind_an_error", Needs::Nothing, a_list_hides_nothing_behind_an_error),
    ("records::a_sandbox_keeps_its_user", Needs::Root, a_sandbox_keeps_its_user),
];

fn illegible_ones_are_replaced(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        for torn in [&b""[..], b"{", b"\0\0\0\0", br#"{"version":1,"nonce":"#] {
            let s = provider.provision(&spec("a")).await.unwrap();
            ok(&s, "true").await;
            fs::write(bed.state.join("a/record"), torn).unwrap();
            assert_eq!(provider.attach(s.id()).await.unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(owned(&provider).await.len(), 1);
            let s = provider.provision(&spec("a")).await.unwrap();
            assert_eq!(s.recreated().unwrap().reason, Death::NodeLost);
            fs::write(bed.state.join("a/record"), torn).unwrap();
            provider.reap(s.id()).await.unwrap();
            assert_nothing_left(bed);
        }
    });
}

/// What a newer program may have written for a running sandbox, each with what is said of it.
fn strange_records(whole: &str) -> Vec<(String, &'static str)> {
    let bent = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut record: serde_json::Value = serde_json::from_str(whole).unwrap();
        change(&mut record);
        record.to_string()
    };
    vec![
        (bent(&|r| r["spec"]["colour"] = "red".into()), "spec: unknown field `colour`"),
        (bent(&|r| r["colour"] = "red".into()), "colour is a field that this program does not know"),
        (bent(&|r| r["version"] = 2.into()), "version is 2, and this program knows version 1"),
        (bent(&|r| r["spec"]["session"] = "b".into()), "spec: its session is b"),
        (r#"{"version":1}"#.to_owned(), "nonce: "),
    ]
}

fn what_another_program_made_is_left_alone(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "echo kept > f").await;
        let file = bed.state.join("a/record");
        let whole = fs::read_to_string(&file).unwrap();
        for (strange, says) in strange_records(&whole) {
            fs::write(&file, &strange).unwrap();
            for error in [
                provider.attach(s.id()).await.unwrap_err(),
                provider.provision(&spec("a")).await.unwrap_err(),
                bed.provider().provision(&spec("a")).await.unwrap_err(),
            ] {
                let text = error.to_string();
                assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{text}");
                assert!(text.contains(says) && text.contains(&file.display().to_string()), "{says}: {text}");
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), strange);
            fs::write(&file, &whole).unwrap();
            for handle in [provider.attach(s.id()).await.unwrap(), provider.provision(&spec("a")).await.unwrap()] {
                assert_eq!((handle.recreated(), ok(&handle, "cat f").await.as_str()), (None, "kept\n"), "{says}");
            }
        }
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn listed_and_reaped(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let first = provider.provision(&spec("a")).await.unwrap();
        let whole = fs::read_to_string(bed.state.join("a/record")).unwrap();
        first.destroy().await.unwrap();
        for (_, says) in strange_records(&whole) {
            for destroy in [false, true] {
                let (s, other) =
                    (provider.provision(&spec("a")).await.unwrap(), provider.provision(&spec("b")).await.unwrap());
                ok(&s, "(sleep 1000 &)").await;
                let file = bed.state.join("a/record");
                let own = fs::read_to_string(&file).unwrap();
                let strange = strange_records(&own).into_iter().find(|(_, of)| *of == says).unwrap().0;
                fs::write(&file, strange).unwrap();
                let mut listed: Vec<_> =
                    owned(&provider).await.into_iter().map(|o| (o.session.to_string(), o.state)).collect();
                listed.sort_by(|a, b| a.0.cmp(&b.0));
                let want = [("a".to_owned(), OwnedState::Unknown), ("b".to_owned(), OwnedState::Running)];
                assert_eq!(listed, want, "{says}");
                // Neither touches what is not its own.
                first.destroy().await.unwrap();
                assert_eq!(owned(&provider).await.len(), 2, "{says}");
                if destroy {
                    s.destroy().await.unwrap()
                } else {
                    bed.provider().reap(s.id()).await.unwrap()
                }
                let error = s.exec(ExecRequest::shell("true")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "{says}");
                provider.reap(other.id()).await.unwrap();
                assert_nothing_left(bed);
            }
        }
    });
}

/// Control groups are found by the name of the box, where no record names them.
fn groups_without_a_record_go(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let mut bounded = spec("a");
        bounded.hardening.memory_bytes = Limit::Preferred(256 << 20);
        for text in ["{", r#"{"version":2}"#] {
            let s = provider.provision(&bounded).await.unwrap();
            let file = bed.state.join("a/record");
            let record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let groups: Vec<PathBuf> = serde_json::from_value(record["cgroups"].clone()).unwrap();
            assert_eq!(groups.is_empty(), !provider.capabilities().memory_limit);
            assert!(groups.iter().all(|g| g.exists()), "{groups:?}");
            fs::write(&file, text).unwrap();
            provider.reap(s.id()).await.unwrap();
            assert!(!groups.iter().any(|g| g.exists()), "{groups:?}");
        }
    });
    assert_nothing_left(bed);
}

/// A session that cannot be looked at is told, after all others.
fn a_list_hides_nothing_behind_an_error(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        for session in ["d", "e"] {
            provider.provision(&spec(session)).await.unwrap();
        }
        for session in ["a", "b", "c"] {
            fs::create_dir_all(bed.state.join(session).join("record")).unwrap();
        }
        let mut list = provider.owned().await.unwrap();
        let mut healthy = Vec::new();
        for _ in 0..2 {
            healthy.push(list.next().await.unwrap().unwrap().session.to_string());
        }
        healthy.sort();
        assert_eq!(healthy, ["d", "e"]);
        assert_eq!(list.next().await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(list.next().await.is_none() && list.next().await.is_none());
        let error = provider.reap(&spec("a").session).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        for session in ["a", "b", "c"] {
            fs::remove_dir_all(bed.state.join(session)).unwrap();
        }
        for session in ["d", "e"] {
            provider.reap(&spec(session).session).await.unwrap();
        }
    });
}

/// Providers that choose their users differently reach each other's sandboxes.
fn a_sandbox_keeps_its_user(bed: &Bed) {
    let other = |first| LocalProvider::new(bed.config().with_first_uid(first)).unwrap();
    bed.block(async {
        let (one, two) = (other(0x7000_0000), other(0x7100_0000));
        let made = one.provision(&spec("a")).await.unwrap();
        ok(&made, "echo one > f").await;
        for handle in [two.attach(made.id()).await.unwrap(), two.provision(&spec("a")).await.unwrap()] {
            assert_eq!(ok(&handle, "cat f; echo two >> g; ls -l / >/dev/null").await, "one\n");
            handle.write(FileWrite::bytes(path("/workspace/h"), "three")).await.unwrap();
        }
        assert_eq!(ok(&made, "cat g h").await, "two\ntwo\nthree");
        two.reap(made.id()).await.unwrap();
        let file = bed.state.join("a/record");
        let made = one.provision(&spec("a")).await.unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        record["uid"] = 0.into();
        fs::write(&file, record.to_string()).unwrap();
        if rustix::process::geteuid().is_root() {
            let error = two.attach(made.id()).await.unwrap_err();
            assert!(error.to_string().contains("kernel user 0"), "{error}");
        }
        two.reap(made.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}
