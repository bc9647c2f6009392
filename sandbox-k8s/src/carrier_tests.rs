use fake_apiserver::{FakeApi, On};
use sandbox::{ExecRequest, SandboxPath};
use sandbox_guest::{Guest, GuestConfig};

use super::*;

const NAMESPACE: &str = "default";

struct Bed {
    api: FakeApi,
    carrier: K8sCarrier,
}

impl Bed {
    /// A Pod that is ready, and nobody in it.
    async fn new() -> Self {
        let api = FakeApi::start().await;
        let spec = serde_json::json!({"containers": [{"name": SANDBOX, "image": "any"}]});
        let pod = api.add_pod(NAMESPACE, &serde_json::json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        api.until_ready(NAMESPACE, "p").await;
        let id = PodId { name: "p".to_owned(), uid: pod["metadata"]["uid"].as_str().unwrap().to_owned() };
        let request_timeout = Duration::from_secs(15);
        let pods = Pods::new(api.client(), NAMESPACE.to_owned(), request_timeout);
        let carrier = K8sCarrier::new(pods, id, Arc::new(Semaphore::new(8)), request_timeout);
        Self { api, carrier }
    }

    fn guest(&self, idle_close: Duration) -> Guest {
        let mut config = GuestConfig::new(SandboxPath::new("/var/tmp").unwrap());
        config.idle_close = idle_close;
        Guest::new(Arc::new(self.carrier.clone()), config)
    }

    fn shells(&self) -> usize {
        self.api.processes(NAMESPACE, "p").len()
    }

    /// Waits until so many shells are left there, and as many streams here.
    async fn until_left(&self, count: usize) {
        let streams = || self.carrier.shared.cuts.receiver_count();
        let there = async {
            while (self.shells(), streams()) != (count, count) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let outcome = timeout(Duration::from_secs(60), there).await;
        assert!(outcome.is_ok(), "{} shells and {} streams are left, not {count}", self.shells(), streams());
    }
}

async fn works(guest: &Guest) {
    let result = guest.exec(ExecRequest::shell("echo x").with_limit(Duration::from_secs(20))).await.unwrap();
    assert_eq!(&result.stdout.bytes[..], b"x\n");
}

#[tokio::test]
async fn streams_are_opened_when_they_are_needed() {
    let bed = Bed::new().await;
    let guest = bed.guest(Duration::from_secs(60));
    assert_eq!((bed.api.count(&On::exec()), bed.shells()), (0, 0));
    works(&guest).await;
    let opened = bed.api.count(&On::exec());
    assert!(opened > 0 && bed.shells() > 0);
    works(&guest).await;
    assert_eq!(bed.api.count(&On::exec()), opened, "the next command goes down the same");
}

#[tokio::test]
async fn streams_that_are_idle_close() {
    let bed = Bed::new().await;
    let guest = bed.guest(Duration::from_millis(300));
    futures::future::join_all([works(&guest), works(&guest), works(&guest)]).await;
    assert!(bed.api.count(&On::exec()) >= 3);
    // The one that ends commands stays as long as somebody can begin any.
    bed.until_left(1).await;
    works(&guest).await;
}

#[tokio::test]
async fn all_streams_close_with_the_handle() {
    let bed = Bed::new().await;
    let guest = bed.guest(Duration::from_secs(600));
    futures::future::join_all([works(&guest), works(&guest), works(&guest)]).await;
    assert!(bed.shells() >= 2);
    drop(guest);
    bed.until_left(0).await;
}
