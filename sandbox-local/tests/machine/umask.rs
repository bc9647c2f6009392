//! A umask that takes from the owner, too, and what somebody who was killed has left closed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sandbox::{FileWrite, OwnedState, Provider};

use crate::bed::{Bed, Needs, Part, Trial, ok, owned, path, spec};
use crate::ends::{alive_file, assert_nothing_left};

pub(crate) const TRIALS: &[Trial] = &[
    ("umask::whatever_it_is", Needs::Nothing, whatever_it_is),
    ("umask::what_was_left_closed_is_opened", Needs::Nothing, what_was_left_closed_is_opened),
];

pub(crate) const PARTS: &[Part] = &[("umask_part", umask_part)];

const UMASKS: [&str; 6] = ["077", "177", "277", "477", "700", "777"];

/// Makes `a`, which stays, and `b`, which goes.
fn umask_part(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let mut bounded = spec("b");
        bounded.hardening.memory_bytes = sandbox::Limit::Preferred(256 << 20);
        let (a, b) = (provider.provision(&spec("a")).await.unwrap(), provider.provision(&bounded).await.unwrap());
        for s in [&a, &b] {
            let shown =
                ok(s, "umask; touch f; mkdir d; stat -c %a f d / /tmp; ls -ld /etc/passwd; echo kept > kept").await;
            assert!(shown.starts_with("0022\n644\n755\n755\n1777\n-rw-r--r-- "), "{shown}");
            s.write(FileWrite::bytes(path("/workspace/of_a_call"), "x")).await.unwrap();
            assert_eq!(ok(s, "stat -c %a of_a_call").await, "644\n");
        }
        assert_eq!(owned(&provider).await.len(), 2);
        provider.reap(b.id()).await.unwrap();
        assert_eq!(owned(&provider).await.len(), 1);
    });
}

fn whatever_it_is(bed: &Bed) {
    for umask in UMASKS {
        let state = bed.state.parent().unwrap().join(format!("deep{umask}/er/state"));
        let there = Bed { state: state.clone() };
        let text = format!("umask {umask}; exec \"$@\"");
        let part = || there.again("umask_part", &["bash", "-c", &text, "sh"]).status().unwrap();
        assert!(part().success(), "{umask}");
        // For everybody else of the same user it is as if they had made it; and for who has that umask, too.
        there.block(async {
            let provider = there.provider();
            let list = owned(&provider).await;
            assert_eq!((list.len(), list[0].state), (1, OwnedState::Running), "{umask}");
            let a = provider.provision(&spec("a")).await.unwrap();
            assert_eq!((a.recreated(), ok(&a, "cat kept").await.as_str()), (None, "kept\n"), "{umask}");
            provider.reap(a.id()).await.unwrap();
            assert!(owned(&provider).await.is_empty(), "{umask}");
        });
        assert!(part().success(), "{umask}");
        there.block(async { there.provider().reap(&spec("a").session).await.unwrap() });
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "{umask}");
        fs::remove_dir_all(bed.state.parent().unwrap().join(format!("deep{umask}"))).unwrap();
    }
}

fn close(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Somebody was killed between making something and giving it its mode, at every place where that can be.
fn what_was_left_closed_is_opened(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        for mode in [0o000, 0o200, 0o400, 0o600, 0o500, 0o300] {
            let healthy = provider.provision(&spec("healthy")).await.unwrap();
            let is_all = |list: Vec<sandbox::Owned>| list.iter().map(|o| o.session.to_string()).collect::<Vec<_>>();
            // A session of which nothing is there yet.
            for session in ["made", "reaped"] {
                fs::create_dir(bed.state.join(session)).unwrap();
                close(&bed.state.join(session), mode);
            }
            assert_eq!(is_all(owned(&provider).await), ["healthy"], "{mode:o}");
            for session in ["made", "reaped"] {
                close(&bed.state.join(session), mode);
            }
            ok(&provider.provision(&spec("made")).await.unwrap(), "true").await;
            provider.reap(&spec("made").session).await.unwrap();
            provider.reap(&spec("reaped").session).await.unwrap();
            // Its lock, and a record that is being written.
            fs::create_dir(bed.state.join("made")).unwrap();
            for name in ["lock", "record.new"] {
                fs::write(bed.state.join("made").join(name), "").unwrap();
                close(&bed.state.join("made").join(name), mode & 0o666);
            }
            ok(&provider.provision(&spec("made")).await.unwrap(), "true").await;
            provider.reap(&spec("made").session).await.unwrap();
            // The box, what it holds, and the place for what is put away.
            provider.provision(&spec("a")).await.unwrap();
            let alive = alive_file(bed);
            close(&alive, mode & 0o666);
            if rustix::process::geteuid().is_root() {
                // Otherwise its own processes would be shut out of it as well.
                close(alive.parent().unwrap(), mode);
            }
            close(&bed.state.join("a"), mode);
            fs::create_dir_all(bed.state.join(".trash")).unwrap();
            close(&bed.state.join(".trash"), mode);
            let mut all = is_all(owned(&provider).await);
            all.sort();
            assert_eq!(all, ["a", "healthy"], "{mode:o}");
            provider.reap(&spec("a").session).await.unwrap();
            provider.reap(healthy.id()).await.unwrap();
            assert_eq!(is_all(owned(&provider).await), Vec::<String>::new());
        }
    });
    assert_nothing_left(bed);
}
