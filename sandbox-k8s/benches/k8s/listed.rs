//! Listing many sandboxes, beside the bare lists of metadata.

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use sandbox::{Provider, SessionId};
use sandbox_k8s::{K8sConfig, K8sProvider};

use crate::DEPLOYMENT;
use crate::cost::peak_over;
use crate::table::{Table, times};

/// Makes `number` Pods that no scheduler looks at, lists them, and removes them.
pub(crate) async fn run(config: &K8sConfig, provider: &K8sProvider, number: usize, table: &mut Table) {
    let options = kube::config::KubeConfigOptions { context: config.context.clone(), ..Default::default() };
    let client = kube::Client::try_from(kube::Config::from_kubeconfig(&options).await.unwrap()).unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let selector = format!("sandbox-k8s/deployment={DEPLOYMENT}");
    let made = stream::iter(0..number).map(Ok::<_, kube::Error>).try_for_each_concurrent(32, |_| async {
        pods.create(&PostParams::default(), &pod(&SessionId::generate())).await.map(drop)
    });
    made.await.unwrap();

    let selected = ListParams::default().labels(&selector);
    let bare = times(5, |_| bare(&pods, &selected), |listed| assert_eq!(listed, number)).await;
    let mut over = 0;
    let count = |_| async { provider.owned().await.unwrap().map(|owned| owned.unwrap()).count().await };
    let ours = peak_over(&mut over, times(5, count, |listed| assert_eq!(listed, number))).await;
    println!("memory over idle while {number} sandboxes were listed: {over} KiB");
    let what = format!("owned() over {number} Pods");
    table.row(&what, ours.p(50), "lists of metadata", bare.p(50), Some(1.2));
    pods.delete_collection(&DeleteParams::default().grace_period(0), &selected).await.unwrap();
}

/// Reads all pages and keeps none.
async fn bare(pods: &Api<Pod>, selected: &ListParams) -> usize {
    let (mut number, mut from) = (0, None);
    loop {
        let mut page = selected.clone().limit(500);
        page.continue_token = from.take();
        let page = pods.list_metadata(&page).await.unwrap();
        number += page.items.len();
        from = page.metadata.continue_.filter(|token| !token.is_empty());
        if from.is_none() {
            return number;
        }
    }
}

fn pod(session: &SessionId) -> Pod {
    let labels = serde_json::json!({"sandbox-k8s/session": session.as_str(), "sandbox-k8s/deployment": DEPLOYMENT});
    let container = serde_json::json!({"name": "sandbox", "image": "none"});
    let spec = serde_json::json!({"schedulerName": "none", "containers": [container]});
    let metadata = serde_json::json!({"name": session.object_name("sbx"), "labels": labels});
    serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec})).unwrap()
}
