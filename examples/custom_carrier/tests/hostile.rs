//! What a hostile tenant can do to the agent, and a hostile far side to a connection: nothing but to end itself.

use std::time::Duration;

use custom_carrier::channels::{PIECE, bounds, carry};
use futures::{SinkExt, StreamExt};
use sandbox::{ExecRequest, Hardening, SandboxExt, SandboxPath, SessionId, Spec};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

/// Each line is tried, and its outcome does not matter; what runs on is killed at the end of the command.
const ATTACKS: &str = "
kill -KILL 1; kill -STOP 1; kill -TERM 1; kill -SEGV 1
for n in {1..400}; do kill -STOP -1; kill -CONT -1; done
for p in /proc/[0-9]*; do : <$p/fd/0; : >>$p/oom_score_adj; done
touch /tmp/tried";

/// Whatever the tenant sees: its own shells and what they started, and the first process.
const SIGHTS: &str = "
cat /proc/[0-9]*/comm | sort -u | tr '\\n' ' '
grep -h CapEff /proc/self/status
find / -xdev -type s 2>/dev/null
cat /proc/1/environ /proc/1/maps 2>/dev/null
(echo x >/proc/sys/kernel/core_pattern) 2>/dev/null && echo written
for n in {3..64}; do [[ -e /proc/$PPID/fd/$n ]] && readlink /proc/$PPID/fd/$n; done
true";

#[tokio::test]
async fn a_tenant_and_the_agent() -> Result<(), sandbox::Error> {
    let dir = tempfile::tempdir().expect("a directory for the cells");
    let agent = std::env::var_os("CARGO_BIN_EXE_custom-carrier-agent");
    let cells = custom_carrier::cells(dir.path(), agent.unwrap_or(env!("CARGO_BIN_EXE_custom-carrier-agent").into()));
    let spec = Spec::new(SessionId::generate(), "host").with_hardening(Hardening::none());
    let sandbox = cells.provision(&spec).await?;
    let limited = |script: &'static str| ExecRequest::shell(script).with_limit(Duration::from_secs(20));
    let seen = sandbox.exec(limited(SIGHTS)).await?.stdout.to_string_lossy().into_owned();
    let (names, rest) = seen.split_once("CapEff").expect("a line of capabilities");
    assert!(!names.contains("agent") && names.contains("sleep"), "{seen}");
    let rest = rest
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with("pipe:") && !line.starts_with("/dev/null"))
        .collect::<Vec<_>>();
    assert!(seen.contains("CapEff:\t0000000000000000") && rest.is_empty(), "{seen}");
    // The streams that are open can suffer from it; new ones cannot.
    let _ = sandbox.exec(limited(ATTACKS)).await;
    let fresh = cells.attach(&spec.session).await?;
    fresh.write_bytes(&SandboxPath::new("/workspace/a")?, "still there").await?;
    assert_eq!(fresh.exec(limited("cat a /tmp/tried")).await?.stdout.bytes, "still there");
    cells.reap(&spec.session).await
}

#[tokio::test]
async fn what_the_far_side_may_not_send() {
    let stranger = Message::Binary(vec![7, 0].into());
    let long = Message::Binary(vec![1; 3 * PIECE].into());
    for message in [stranger, long, Message::Binary(vec![].into()), Message::Text("1".into())] {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let near = WebSocketStream::from_raw_socket(near, Role::Client, bounds()).await;
        let mut far = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
        let (to, mut output) = tokio::io::duplex(PIECE);
        let end = tokio::spawn(carry(near, vec![], vec![(1, Box::pin(to))], std::future::pending::<()>()));
        far.send(Message::Binary(vec![1, b'a'].into())).await.expect("a message that is in order");
        far.send(message).await.expect("one that is not");
        let mut read = Vec::new();
        output.read_to_end(&mut read).await.expect("what came before");
        assert!(read == b"a" && end.await.expect("an end").is_err());
        assert!(!matches!(far.next().await, Some(Ok(Message::Binary(_)))));
    }
}
