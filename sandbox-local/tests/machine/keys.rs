//! The caller's keys: none can be found inside, read, changed or cleared, by any of the three system calls.

use std::fs;
use std::sync::Arc;

use keyutils::{Keyring, SpecialKeyring, keytypes::User};
use sandbox::Sandbox;

use crate::bed::{Bed, Needs, Trial, ok, spec};

pub(crate) const TRIALS: &[Trial] = &[
    ("keys::keys_stay_outside", Needs::Nothing, keys_stay_outside),
    ("keys::numbers_of_keys", Needs::Nothing, numbers_of_keys),
];

/// The numbers of `add_key`, `request_key` and `keyctl`.
const CALLS: [u32; 3] = if cfg!(target_arch = "x86_64") { [248, 249, 250] } else { [217, 218, 219] };
const SESSION: &str = "-3";
const USER: &str = "-4";
const USER_SESSION: &str = "-5";

/// Makes a system call inside, by way of perl: what it answers, and the error's number.
async fn call(sandbox: &Arc<dyn Sandbox>, which: usize, arguments: &str) -> (i64, i64) {
    let text = format!("perl -e '$n = syscall({}, {arguments}); print $n, \" \", $n < 0 ? $! + 0 : 0'", CALLS[which]);
    let said = ok(sandbox, &text).await;
    let (answer, error) = said.split_once(' ').unwrap();
    (answer.parse().unwrap(), error.parse().unwrap())
}

const ADD: usize = 0;
const REQUEST: usize = 1;
const KEYCTL: usize = 2;

fn keys_stay_outside(bed: &Bed) {
    // In whatever session this runs, it gets a session keyring that holds something, and so does the user's own keyring.
    let mut session = Keyring::join_anonymous_session().unwrap();
    let key = session.add_key::<User, _, _>("sandbox-local-secret", &b"secret"[..]).unwrap();
    let mut own = Keyring::attach_or_create(SpecialKeyring::User).unwrap();
    // As a login does it.
    session.link_keyring(&own).unwrap();
    let kept = own.add_key::<User, _, _>("sandbox-local-kept", &b"kept"[..]).unwrap();
    assert!(fs::read_to_string("/proc/keys").unwrap().contains("sandbox-local-secret"));
    bed.with(&spec("a"), |s| async move {
        for name in ["sandbox-local-secret", "sandbox-local-kept"] {
            let found = call(&s, REQUEST, &format!("my $t = \"user\", my $d = \"{name}\", 0, 0")).await;
            assert_eq!(found.0, -1, "request_key {name}: {found:?}");
            for ring in [SESSION, USER, USER_SESSION] {
                let found = call(&s, KEYCTL, &format!("10, {ring}, my $t = \"user\", my $d = \"{name}\", 0")).await;
                assert_eq!(found.0, -1, "search {ring} for {name}: {found:?}");
            }
        }
        // Nothing can be read out of the session keyring, put into it, or taken from it: it is shared with other sandboxes.
        for (what, arguments) in [
            ("read", "11, -3, my $b = \" \" x 99, 99"),
            ("describe", "6, -3, my $b = \" \" x 99, 99"),
            ("clear", "7, -3"),
            ("set permissions", "5, -3, 0x3f3f3f3f"),
            ("set timeout", "15, -3, 1"),
            ("revoke", "3, -3"),
            ("invalidate", "21, -3"),
        ] {
            let said = call(&s, KEYCTL, arguments).await;
            assert_eq!(said.0, -1, "{what}: {said:?}");
        }
        let added = call(&s, ADD, "my $t = \"user\", my $d = \"x\", my $p = \"y\", 1, -3").await;
        assert_eq!(added.0, -1, "{added:?}");
        // A keyring of that user's, as it is called inside, is another one than outside: clearing it harms nobody.
        call(&s, KEYCTL, "7, -4").await;
        call(&s, KEYCTL, "7, -5").await;
        assert_eq!(ok(&s, "cat /proc/keys /proc/key-users").await, "");
    });
    assert_eq!(session.search_for_key::<User, _, _>("sandbox-local-secret", None).unwrap(), key);
    assert_eq!(key.read().unwrap(), b"secret");
    assert_eq!(kept.read().unwrap(), b"kept");
    let same = Keyring::attach(SpecialKeyring::Session).unwrap();
    assert_eq!(same, session, "the caller keeps its own");
    kept.invalidate().unwrap();
}

/// A key can also be named by its number, which is nowhere to be seen inside, but can be guessed. As root the tenant is a user whom
/// no key knows. Otherwise it is the caller's own user to them: it sees what the session keyring and its keys are called, no more.
fn numbers_of_keys(bed: &Bed) {
    let root = rustix::process::geteuid().is_root();
    let mut session = Keyring::join_anonymous_session().unwrap();
    let own = Keyring::attach_or_create(SpecialKeyring::User).unwrap();
    session.link_keyring(&own).unwrap();
    let secret = session.add_key::<User, _, _>("sandbox-local-number", &b"secret"[..]).unwrap();
    let listed = fs::read_to_string("/proc/keys").unwrap();
    let number = |name: &str| {
        let line = listed.lines().find(|line| line.contains(name)).unwrap();
        i64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let uid = rustix::process::geteuid().as_raw();
    let key = number("sandbox-local-number");
    let users = number(&format!("_uid.{uid}:"));
    // Which of the session keyrings is this one's tells only who may search it; the others are no less foreign.
    let sessions = listed.lines().filter(|line| line.contains(" _ses: ")).map(|line| line.split(' ').next().unwrap());
    let sessions: Vec<i64> = sessions.map(|digits| i64::from_str_radix(digits, 16).unwrap()).collect();
    assert!(!sessions.is_empty());
    bed.with(&spec("a"), |s| async move {
        let refused = |n: i64, what: &'static str, arguments: String| {
            let s = Arc::clone(&s);
            async move {
                let said = call(&s, KEYCTL, &arguments).await;
                assert_eq!(said.0, -1, "{what} of {n}: {said:?}");
            }
        };
        let others = if root { vec![users] } else { Vec::new() };
        for n in sessions.iter().copied().chain([key]).chain(others) {
            refused(n, "clear", format!("7, {n}")).await;
            refused(n, "link", format!("8, {n}, -2")).await;
            refused(n, "update", format!("2, {n}, my $p = \"x\", 1")).await;
            refused(n, "set permissions", format!("5, {n}, 0x3f3f3f3f")).await;
            refused(n, "revoke", format!("3, {n}")).await;
            refused(n, "invalidate", format!("21, {n}")).await;
            if root {
                refused(n, "describe", format!("6, {n}, my $b = \" \" x 99, 99")).await;
            }
        }
        refused(key, "read", format!("11, {key}, my $b = \" \" x 99, 99")).await;
    });
    assert_eq!(secret.read().unwrap(), b"secret");
}
