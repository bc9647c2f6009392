//! What a request line holds: proxies and audit logs keep it.

use std::time::Duration;

use sandbox::{Env, ExecRequest, Provider, SandboxExt, SpawnRequest};

use crate::bed::{Bed, within};

const IN_ENV: &str = "secret-of-the-sandbox";
const IN_CALL: &str = "secret-of-the-call";
const IN_TEXT: &str = "secret-of-the-command";
const IN_PATH: &str = "secret-of-the-path";
const IN_FILE: &str = "secret-of-the-file";

#[tokio::test]
async fn no_request_line_holds_a_command_a_value_a_path_or_a_nonce() {
    let bed = Bed::new().await;
    let spec = bed.spec().with_env(Env::new().with("TOKEN", IN_ENV).unwrap());
    let provider = bed.provider();
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    let env = || Env::new().with("CALL", IN_CALL).unwrap();
    let limit = Duration::from_secs(20);

    // Long ones too, which must not be moved to where there is a bound.
    let long = format!("echo {IN_TEXT} $TOKEN $CALL; : {}", "x".repeat(50_000));
    let result =
        within("exec", sandbox.exec(ExecRequest::shell(long).with_env(env()).with_limit(limit))).await.unwrap();
    assert_eq!(result.stdout.to_string_lossy(), format!("{IN_TEXT} {IN_ENV} {IN_CALL}\n"));
    let path = bed.path(IN_PATH);
    within("write", sandbox.write_bytes(&path, IN_FILE)).await.unwrap();
    assert_eq!(within("read", sandbox.read_to_string(&path, 1000)).await.unwrap(), IN_FILE);
    let request = SpawnRequest::args(["cat", path.to_string_lossy().as_ref()]).with_env(env()).with_limit(limit);
    let mut process = within("spawn", sandbox.spawn(request)).await.unwrap();
    let stdout = std::mem::replace(&mut process.stdout, sandbox::ByteStream::new(futures::stream::empty()));
    assert_eq!(&within("output", stdout.collect(1000)).await.unwrap()[..], IN_FILE.as_bytes());
    assert!(within("wait", process.wait()).await.unwrap().success());
    let export = within("export", provider.export(&spec.session, &path)).await.unwrap();
    assert!(within("export", export.finish()).await.unwrap() > 0);

    let pod = bed.pod(&spec.session).unwrap();
    let nonce = pod["metadata"]["annotations"]["sandbox-k8s/nonce"].as_str().unwrap().to_owned();
    let dir = bed.path("").to_string_lossy().into_owned();
    within("reap", provider.reap(&spec.session)).await.unwrap();

    let requests = bed.api.requests();
    assert!(requests.iter().any(|request| request.subresource.as_deref() == Some("exec")));
    for request in &requests {
        for secret in [IN_ENV, IN_CALL, IN_TEXT, IN_PATH, IN_FILE, "TOKEN", "CALL", &nonce, &dir] {
            assert!(!request.mentions(secret), "{secret}: {}", request.target);
        }
        let line = request.method.len() + 1 + request.target.len() + " HTTP/1.1\r\n".len();
        assert!(line <= 4096, "{line} bytes: {}", request.target);
    }
    // Every shell is asked for in the same words, so that the line holds nothing of what it is for.
    let mut shells: Vec<_> =
        requests.iter().filter(|request| request.subresource.is_some()).map(|r| &r.target).collect();
    shells.dedup();
    assert_eq!(shells.len(), 1, "{shells:?}");
}
