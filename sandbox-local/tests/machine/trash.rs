//! Files of sandboxes that are gone.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sandbox::{Effect, ErrorKind, Provider, SessionId};

use crate::bed::{Bed, Needs, Trial, ok, owned, spec};
use crate::ends::{alive_file, assert_nothing_left};

pub(crate) const TRIALS: &[Trial] = &[
    ("trash::what_others_left_goes", Needs::Nothing, what_others_left_goes),
    ("trash::a_session_is_free_before_its_files_are_gone", Needs::Root, a_session_is_free_before_its_files_are_gone),
];

/// What a killed reaper had put away and not removed goes with the next provision, and with a reap of that session at once.
fn what_others_left_goes(bed: &Bed) {
    let plant = || {
        for i in 0..200 {
            fs::create_dir_all(bed.state.join(format!(".trash/gone.1/{i}/x"))).unwrap();
        }
    };
    bed.block(async {
        let provider = bed.provider();
        plant();
        assert!(owned(&provider).await.is_empty());
        provider.reap(&SessionId::new("gone").unwrap()).await.unwrap();
        assert!(!bed.state.join(".trash").exists());
        plant();
        let s = provider.provision(&spec("a")).await.unwrap();
        let begun = Instant::now();
        while bed.state.join(".trash").exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it is not removed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn a_session_is_free_before_its_files_are_gone(bed: &Bed) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "mkdir m").await;
        // Nothing that is mounted on is removed: not within any time.
        let point = alive_file(bed).parent().unwrap().join("fs/workspace/m");
        let mount = |program: &str, arguments: &[&str], at: &Path| {
            assert!(Command::new(program).args(arguments).arg(at).status().unwrap().success());
        };
        mount("mount", &["-t", "tmpfs", "none"], &point);
        let error = provider.reap(s.id()).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        assert!(owned(&provider).await.is_empty());
        assert_eq!(provider.attach(s.id()).await.unwrap_err().kind(), ErrorKind::NotFound);
        let again = provider.provision(&spec("a")).await.unwrap();
        assert_eq!(again.recreated(), None);
        ok(&again, "test ! -e m").await;
        let away = fs::read_dir(bed.state.join(".trash")).unwrap().next().unwrap().unwrap().path();
        mount("umount", &[], &away.join("fs/workspace/m"));
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}
