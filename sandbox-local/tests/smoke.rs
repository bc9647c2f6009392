use sandbox::*;
use sandbox_local::*;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let p = LocalProvider::new(LocalConfig::default().with_state_dir(dir.path().join("s"))).unwrap();
    for net in [Networking::None, Networking::Unrestricted] {
        let spec = Spec::new(SessionId::new("a").unwrap(), "host").with_networking(net);
        let t = Instant::now();
        let s = p.provision(&spec).await.unwrap();
        println!("provision {:?}", t.elapsed());
        let t = Instant::now();
        let r = s.exec(ExecRequest::shell("true")).await.unwrap();
        println!("exec {:?} {r:?}", t.elapsed());
        let t = Instant::now();
        for _ in 0..20 {
            s.exec(ExecRequest::shell("true")).await.unwrap();
        }
        println!("20 exec {:?}", t.elapsed());
        let r = s.exec(ExecRequest::shell("id; pwd; ls -la / /etc /dev; cat /proc/self/mountinfo; env; ps -ef; ls -l /proc/1/fd /proc/1/cwd; cat /proc/net/route; cat /proc/net/dev; hostname; umask; cat /proc/keys").with_limit(Duration::from_secs(5))).await.unwrap();
        println!("{}\n{}", String::from_utf8_lossy(&r.stdout.bytes), String::from_utf8_lossy(&r.stderr.bytes));
        let t = Instant::now();
        p.reap(&spec.session).await.unwrap();
        println!("reap {:?}", t.elapsed());
        println!("{:?}", s.exec(ExecRequest::shell("true")).await);
    }
}
