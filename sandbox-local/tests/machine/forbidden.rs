//! Machines, and places on them, where no sandbox can be made: by what, is told.

use sandbox::{Error, ErrorKind, Provider};
use sandbox_local::{Forbidden, LocalConfig, LocalProvider};

use crate::bed::{Bed, Needs, Part, Trial, spec};

pub(crate) const TRIALS: &[Trial] = &[
    ("forbidden::by_a_limit", Needs::Nothing, by_a_limit),
    ("forbidden::who_is_nobody", Needs::Nothing, who_is_nobody),
    ("forbidden::before_what_the_configuration_lacks", Needs::Nothing, before_what_the_configuration_lacks),
];

pub(crate) const PARTS: &[Part] =
    &[("forbidden_part", forbidden_part), ("forbidden_at_once_part", forbidden_at_once_part)];

/// Where a part finds what it must be told.
const CAUSE: &str = "FORBIDDEN_BY";
const TEXT: &str = "FORBIDDEN_TEXT";

fn assert_cause(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let cause = std::error::Error::source(error).unwrap().downcast_ref::<Forbidden>().unwrap();
    assert_eq!(format!("{cause:?}"), std::env::var(CAUSE).unwrap(), "{error}");
    assert!(error.to_string().contains(&std::env::var(TEXT).unwrap()), "{error}");
}

/// The provider can be had: it lists and removes what is there.
fn forbidden_part(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        // Over and over: what an earlier attempt made counts for a moment after its end.
        for _ in 0..3 {
            assert_cause(&provider.probe().await.unwrap_err());
            assert_cause(&provider.provision(&spec("a")).await.unwrap_err());
        }
        assert!(!bed.state.join("a").exists());
    });
}

fn forbidden_at_once_part(_: &Bed) {
    assert_cause(&LocalProvider::new(LocalConfig::default()).unwrap_err());
}

/// Plays a part as an ordinary user, or as whoever runs this, behind `unshare` with those options and a shell text.
fn play(bed: &Bed, part: &str, ordinary: bool, options: &[&str], text: &str, cause: &Forbidden, says: &str) {
    let text = format!("{text} exec \"$@\"");
    let mut wrap = Vec::new();
    if ordinary && rustix::process::geteuid().is_root() {
        wrap.extend(["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]);
    }
    wrap.push("unshare");
    wrap.extend(options);
    wrap.extend(["bash", "-c", &text, "sh"]);
    let status = bed.again(part, &wrap).env(CAUSE, format!("{cause:?}")).env(TEXT, says).status().unwrap();
    assert!(status.success(), "{part} {options:?} {text}");
}

fn limit(kind: &str, limit: u64) -> (Forbidden, String, String) {
    let sysctl = format!("user.max_{kind}_namespaces");
    let says = format!("the sysctl {sysctl} is {limit}: set it higher");
    let text = format!("echo {limit} > /proc/sys/user/max_{kind}_namespaces &&");
    (Forbidden::NamespaceLimit { sysctl, limit }, says, text)
}

fn by_a_limit(bed: &Bed) {
    for (kind, most) in [("user", 0), ("user", 1), ("pid", 0), ("net", 0)] {
        let (cause, says, text) = limit(kind, most);
        play(bed, "forbidden_part", true, &["--user", "--map-root-user"], &text, &cause, &says);
    }
}

fn who_is_nobody(bed: &Bed) {
    let user = Forbidden::UnmappedUser { uid: 65_534 };
    play(
        bed,
        "forbidden_part",
        true,
        &["--user"],
        "",
        &user,
        "user 65534 does not exist in this user namespace: map it",
    );
    let group = Forbidden::UnmappedGroup { gid: 65_534 };
    let says = "the caller's group (shown as 65534) does not exist in this user namespace: map it";
    play(bed, "forbidden_part", true, &["--user", "--map-user=7"], "", &group, says);
}

/// A limit comes before a state directory or users that are not there either.
fn before_what_the_configuration_lacks(bed: &Bed) {
    let (cause, says, text) = limit("user", 0);
    for ordinary in [true, false] {
        play(bed, "forbidden_at_once_part", ordinary, &["--user", "--map-root-user"], &text, &cause, &says);
    }
}
