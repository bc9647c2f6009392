//! What becomes of sandboxes whose records this program did not write, or not to the end.

use std::fs;

use sandbox::{Death, Effect, ErrorKind, Provider};

use crate::bed::{Bed, Needs, Trial, ok, owned, spec};
use crate::ends::assert_nothing_left;

pub(crate) const TRIALS: &[Trial] = &[
    ("records::illegible_ones_are_replaced", Needs::Nothing, illegible_ones_are_replaced),
    ("records::what_another_program_made_is_left_alone", Needs::Nothing, what_another_program_made_is_left_alone),
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
