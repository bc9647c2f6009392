//! What leaves a sandbox, on the wire: each way out is taken by one with a network first, so that a way that is not there proves nothing.
//!
//! A sandbox with a network listens, answers names, and writes down what it hears. The others are its neighbours on the Pods' own network,
//! which need neither a route nor a name server of the cluster to reach it.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use sandbox::{Hardening, Networking, Provider, Sandbox, SandboxExt, SandboxPath, SpawnRequest, Spec};

use crate::bed::{Bed, equal, holds, reap, says};
use crate::{Any, Outcome, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("wire::ways_out", ways_out)]
}

/// Answers each question for a name with one address, by UDP over IPv4 and IPv6, and writes down what was asked.
const SERVER: &str = r#"
use strict; use Socket qw(:DEFAULT IPPROTO_IPV6 IPV6_V6ONLY);
my @all;
for my $family (AF_INET, AF_INET6) {
    socket(my $socket, $family, SOCK_DGRAM, 0) or die "socket: $!";
    setsockopt($socket, IPPROTO_IPV6, IPV6_V6ONLY, 1) if $family == AF_INET6;
    my $at = $family == AF_INET ? pack_sockaddr_in(53, INADDR_ANY) : pack_sockaddr_in6(53, Socket::IN6ADDR_ANY);
    bind($socket, $at) or die "bind: $!";
    push @all, [$socket, $family == AF_INET ? 4 : 6];
}
open(my $log, '>>', '/tmp/heard') or die; select($log); $| = 1; print "listens\n";
while (1) {
    my $ready = ''; vec($ready, fileno($_->[0]), 1) = 1 for @all;
    select($ready, undef, undef, undef);
    for my $each (@all) {
        my ($socket, $version) = @$each;
        next unless vec($ready, fileno($socket), 1);
        my $from = recv($socket, my $question, 512, 0) // next;
        my ($at, @name) = (12);
        while (my $length = ord(substr($question, $at, 1))) { push @name, substr($question, $at + 1, $length); $at += $length + 1 }
        print join('.', @name), " $version\n";
        my $type = unpack('n', substr($question, $at + 1, 2));
        my $answer = $type == 1 ? pack('nnnNnC4', 0xc00c, 1, 1, 60, 4, 192, 0, 2, 7) : '';
        my $head = substr($question, 0, 2) . pack('nnnnn', 0x8180, 1, $answer ? 1 : 0, 0, 0);
        send($socket, $head . substr($question, 12, $at + 5 - 12) . $answer, 0, $from);
    }
}
"#;

/// Takes each way out, and says of each whether anybody answered.
const PROBE: &str = r#"
use strict; use Socket qw(:DEFAULT inet_pton);
my ($name, $v4, $v6) = @ARGV;
sub heard { my $socket = shift; my $ready = ''; vec($ready, fileno($socket), 1) = 1; select($ready, undef, undef, shift) }
sub asked {
    my ($what, $family, $to) = @_;
    my $question = pack('nnnnnn', 7, 0x0100, 1, 0, 0, 0) . join('', map { chr(length) . $_ } split /\./, "$what.$name.test") . pack('xnn', 1, 1);
    socket(my $socket, $family, SOCK_DGRAM, 0) or return "no socket";
    for (1 .. 3) { defined send($socket, $question, 0, $to) or return "not sent"; return "answered" if heard($socket, 2) }
    return "silent";
}
sub echoed {
    socket(my $socket, AF_INET, SOCK_RAW, 1) or return "no socket";
    defined send($socket, pack('CCnnn', 8, 0, 0xf7fe, 0, 1), 0, pack_sockaddr_in(0, inet_aton($v4))) or return "not sent";
    return heard($socket, 5) ? "answered" : "silent";
}
my $scope = 0;
if (open(my $all, '<', '/proc/net/if_inet6')) { while (<$all>) { my @f = split; $scope = hex $f[1] if $f[0] =~ /^fe80/ } }
print "ipv4: ", asked('ipv4', AF_INET, pack_sockaddr_in(53, inet_aton($v4))), "\n";
print "ipv6: ", asked('ipv6', AF_INET6, pack_sockaddr_in6(53, inet_pton(AF_INET6, $v6), $scope)), "\n";
print "name: ", (gethostbyname("dns.$name.test") ? "found" : "unknown"), "\n";
print "raw: ", echoed(), "\n";
# Every packet of the link, whatever its protocol.
print "packet: ", (socket(my $packet, 17, SOCK_RAW, unpack('S', pack('n', 3))) ? "socket" : "no socket"), "\n";
"#;

/// The neighbour that listens.
struct Listener {
    sandbox: Arc<dyn Sandbox>,
    v4: String,
    v6: String,
}

impl Listener {
    async fn start(sandbox: Arc<dyn Sandbox>, v4: String) -> Result<(Self, sandbox::Process), Any> {
        sandbox.write_bytes(&SandboxPath::new("/tmp/server")?, SERVER).await?;
        let process = sandbox.spawn(SpawnRequest::args(["perl", "/tmp/server"])).await?;
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while says(&sandbox, "cat /tmp/heard 2>/dev/null").await? != "listens" {
            holds("it listens", tokio::time::Instant::now() < until, ())?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let v6 = says(&sandbox, "grep -m1 ^fe80 /proc/net/if_inet6 | cut -c1-32 | sed 's/..../&:/g; s/:$//'").await?;
        holds("its network has IPv6 on the link", v6.starts_with("fe80:"), &v6)?;
        Ok((Self { sandbox, v4, v6 }, process))
    }

    /// What it has heard of somebody: ways, sorted.
    async fn heard(&self, name: &str) -> Result<Vec<String>, Any> {
        let heard = says(&self.sandbox, "sort -u /tmp/heard").await?;
        Ok(heard.lines().filter(|line| line.contains(&format!(".{name}.test"))).map(str::to_owned).collect())
    }
}

/// Takes every way out of a sandbox.
async fn probe(sandbox: &Arc<dyn Sandbox>, name: &str, to: &Listener) -> Result<String, Any> {
    sandbox.write_bytes(&SandboxPath::new("/tmp/probe")?, PROBE).await?;
    // Root may say who answers names, whatever the cluster has put there.
    says(sandbox, &format!("echo 'nameserver {}\noptions timeout:2 attempts:2' > /etc/resolv.conf", to.v4)).await?;
    Ok(says(sandbox, &format!("perl /tmp/probe {name} {} {}", to.v4, to.v6)).await?)
}

async fn ways_out(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    // With every capability that a container has by default: it is not for lack of those that nothing goes out.
    let open = |spec: Spec| spec.with_hardening(Hardening::none());
    let (listens, control) = (open(bed.spec()), open(bed.spec()));
    let sandbox = provider.provision(&listens).await?;
    let pod = bed.pods.get(&listens.session.object_name("sbx")).await?;
    let v4 = pod.status.and_then(|status| status.pod_ip).ok_or("the Pod has no address")?;
    let (listener, process) = Listener::start(sandbox, v4).await?;

    let sandbox = provider.provision(&control).await?;
    let all = "ipv4: answered\nipv6: answered\nname: found\nraw: answered\npacket: socket";
    equal("with a network", &*probe(&sandbox, "control", &listener).await?, all)?;
    let heard = listener.heard("control").await?;
    equal(
        "of it",
        heard,
        ["dns.control.test 4", "ipv4.control.test 4", "ipv6.control.test 6"].map(str::to_owned).into(),
    )?;
    reap(&provider, &control.session).await?;

    for (name, networking) in [("limited", Networking::limited([])), ("none", Networking::None)] {
        let spec = open(bed.spec()).with_networking(networking);
        let sandbox = provider.provision(&spec).await?;
        let nothing = "ipv4: not sent\nipv6: not sent\nname: unknown\nraw: no socket\npacket: no socket";
        equal(name, &*probe(&sandbox, name, &listener).await?, nothing)?;
        reap(&provider, &spec.session).await?;
    }
    // It goes on listening, and has heard nobody else.
    let last = open(bed.spec());
    let sandbox = provider.provision(&last).await?;
    holds("it still answers", probe(&sandbox, "last", &listener).await?.starts_with("ipv4: answered"), ())?;
    for name in ["limited", "none"] {
        equal(name, listener.heard(name).await?, Vec::new())?;
    }
    drop(process);
    reap(&provider, &last.session).await?;
    reap(&provider, &listens.session).await
}
