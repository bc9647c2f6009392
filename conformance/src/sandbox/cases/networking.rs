//! What a sandbox may reach.

use sandbox::Networking;

use super::super::Subject;
use super::{B, Case, secs};
use crate::{Failure, Outcome, ensure, equal};

const CLOSED: &str = "Without a gate nothing can honour a list, so that it means no way out at all.";
const NOTHING: &str = "A sandbox without a network reaches nothing: no route, no name service.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new(
            "networking::unrestricted_has_a_route",
            "An unrestricted sandbox reaches all that the place it runs in can reach.",
            unrestricted,
        )
        .needs("networking_unrestricted", |c| c.networking_unrestricted),
        Case::new("networking::limited_has_no_route", CLOSED, |bed| closed(bed, Networking::limited([])))
            .needs("networking_limited", |c| c.networking_limited),
        Case::new("networking::limited_reaches_nothing", CLOSED, |bed| reaches_nothing(bed, Networking::limited([])))
            .needs("networking_limited", |c| c.networking_limited),
        Case::new("networking::none_has_no_route", NOTHING, |bed| closed(bed, Networking::None))
            .needs("networking_none", |c| c.networking_none),
        Case::new("networking::none_reaches_nothing", NOTHING, |bed| reaches_nothing(bed, Networking::None))
            .needs("networking_none", |c| c.networking_none),
    ];
    all.into_iter().map(|case| case.profile("networking")).collect()
}

/// How many routes there are, besides those of the loopback device.
async fn routes(sandbox: &Subject) -> Outcome<usize> {
    let text = "n=0; while read -r dev rest; do [[ $dev == Iface || $dev == lo ]] || ((n++)); done < /proc/net/route; \
                while read -r _ _ _ _ _ _ _ _ flags dev; do [[ $dev == lo ]] || ((n++)); done < /proc/net/ipv6_route 2>/dev/null; echo $n";
    let printed = sandbox.ok(text).await?;
    printed.trim().parse().map_err(|_| Failure::new("counting routes", "a number", printed))
}

async fn unrestricted(bed: B) -> Outcome {
    let sandbox = bed.provision(&bed.spec().with_networking(Networking::Unrestricted)).await?;
    let found = routes(&sandbox).await?;
    ensure(found > 0, "routes", "at least one", || found.to_string())
}

async fn closed(bed: B, networking: Networking) -> Outcome {
    let sandbox = bed.provision(&bed.spec().with_networking(networking)).await?;
    equal("routes", routes(&sandbox).await?, 0)?;
    let again = bed.attach(&bed.session).await?;
    equal("routes through another handle", routes(&again).await?, 0)
}

async fn reaches_nothing(bed: B, networking: Networking) -> Outcome {
    let sandbox = bed.provision(&bed.spec().with_networking(networking)).await?;
    for address in [
        "169.254.169.254/80",
        "10.0.0.1/443",
        "1.1.1.1/53",
        "192.168.0.1/80",
        "172.17.0.1/80",
        "::ffff:1.1.1.1/53",
        "fd00:ec2::254/80",
        "fe80::1/10",
    ] {
        let text = format!("exec 3<>/dev/tcp/{address} && echo reached");
        let result = sandbox.timed(text, secs(3)).await?;
        ensure(result.stdout.total == 0 && !result.success(), address, "not reached", || {
            super::super::subject::told(&result)
        })?;
        let text = format!("(echo x > /dev/udp/{address}) 2>&1 && echo sent");
        let result = sandbox.timed(text, secs(3)).await?;
        ensure(!result.stdout.bytes.ends_with(b"sent\n"), address, "no way for a packet", || {
            super::super::subject::told(&result)
        })?;
    }
    let names = sandbox.timed("getent hosts example.com && echo resolved", secs(20)).await?;
    ensure(!names.stdout.bytes.ends_with(b"resolved\n"), "a name of the world", "not resolved", || {
        super::super::subject::told(&names)
    })?;
    let own = "exec 3<>/dev/tcp/127.0.0.1/9 && echo reached";
    let result = sandbox.timed(own, secs(3)).await?;
    ensure(result.stdout.total == 0, "a loopback port of the place it runs in", "not reached", || {
        super::super::subject::told(&result)
    })
}
