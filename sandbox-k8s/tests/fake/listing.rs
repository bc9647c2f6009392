//! Many sandboxes, page by page.

use std::collections::BTreeMap;

use fake_apiserver::{On, Rule, Step, Verb};
use sandbox::{ErrorKind, OwnedState, Provider};
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, fails, within};

const PODS: usize = 3000;
const PAGE: usize = 500;

/// Sandboxes of which one third is starting, one runs and one has ended.
async fn filled(count: usize) -> Bed {
    let bed = Bed::new().await;
    bed.api.hold(Step::Schedule);
    for at in 0..count {
        let pod = format!("sbx-s{at:04}");
        let labels = json!({"sandbox-k8s/session": format!("s{at:04}"), "sandbox-k8s/deployment": "default"});
        let containers = json!([{"name": "sandbox", "image": "any"}]);
        let body = json!({"metadata": {"name": pod, "labels": labels}, "spec": {"containers": containers}});
        bed.api.add_pod(NAMESPACE, &body).unwrap();
        let phase = ["Pending", "Running", "Failed"][at % 3];
        if phase != "Pending" {
            bed.api.edit_pod(NAMESPACE, &pod, |pod| pod["status"]["phase"] = phase.into());
        }
    }
    // Another deployment's, and nobody's.
    let theirs = json!({"sandbox-k8s/session": "s0000", "sandbox-k8s/deployment": "other"});
    for (name, labels) in [("other", theirs), ("nobody", json!({}))] {
        let spec = json!({"containers": [{"name": "sandbox", "image": "any"}]});
        bed.api.add_pod(NAMESPACE, &json!({"metadata": {"name": name, "labels": labels}, "spec": spec})).unwrap();
    }
    bed
}

fn lists(bed: &Bed) -> usize {
    bed.api.count(&On::pods(Verb::List))
}

/// What is told, and after which entry something happens.
async fn told(bed: &Bed, at: usize, what: impl Fn()) -> BTreeMap<String, OwnedState> {
    let mut owned = bed.provider().owned().await.unwrap();
    let mut told = BTreeMap::new();
    while let Some(entry) = within("an entry", owned.next()).await {
        let entry = entry.unwrap();
        let session = entry.session.as_str().to_owned();
        assert!(told.insert(session, entry.state).is_none(), "told twice: {entry:?}");
        if told.len() == at {
            what();
        }
    }
    told
}

fn all(count: usize) -> BTreeMap<String, OwnedState> {
    let states = [OwnedState::Starting, OwnedState::Running, OwnedState::Ended];
    (0..count).map(|at| (format!("s{at:04}"), states[at % 3])).collect()
}

#[tokio::test]
async fn each_of_three_thousand_is_told_once_and_no_page_is_asked_for_early() {
    let bed = filled(PODS).await;
    let first = std::cell::Cell::new(0);
    let told = told(&bed, PAGE, || first.set(lists(&bed))).await;
    assert_eq!(told, all(PODS));
    assert_eq!(first.get(), 1, "the first page is told before the second is asked for");
    // Three lists of a thousand, and the one of those of which nobody knows.
    assert_eq!(lists(&bed), 3 * (PODS / 3).div_ceil(PAGE) + 1);
    for request in bed.api.requests().iter().filter(|request| request.is(&On::pods(Verb::List))) {
        assert!(request.target.contains(&format!("limit={PAGE}")), "{}", request.target);
    }
}

#[tokio::test]
async fn a_state_that_the_server_forgets_is_listed_anew_and_nothing_is_told_twice() {
    let bed = filled(1800).await;
    let told = told(&bed, PAGE, || bed.api.compact()).await;
    assert_eq!(told, all(1800));
}

#[tokio::test]
async fn all_lists_show_one_state_of_the_cluster() {
    let bed = filled(1800).await;
    let told = told(&bed, PAGE, || {
        // What left a list that is still to come for one that was told would be missed, and the other way round told twice.
        bed.api.edit_pod(NAMESPACE, "sbx-s0000", |pod| pod["status"]["phase"] = "Running".into());
        bed.api.edit_pod(NAMESPACE, "sbx-s0001", |pod| pod["status"]["phase"] = "Failed".into());
        bed.api.edit_pod(NAMESPACE, "sbx-s0003", |pod| pod["status"]["phase"] = "Failed".into());
    })
    .await;
    assert_eq!(told, all(1800));
}

#[tokio::test]
async fn a_sandbox_that_changes_while_the_state_is_forgotten_is_told_once() {
    let bed = filled(1800).await;
    let told = told(&bed, PAGE, || {
        // From a list that is told to one that is not, and the other way round.
        bed.api.edit_pod(NAMESPACE, "sbx-s0001", |pod| pod["status"]["phase"] = "Failed".into());
        bed.api.edit_pod(NAMESPACE, "sbx-s0000", |pod| pod["status"]["phase"] = "Running".into());
        bed.api.compact();
    })
    .await;
    let mut wanted = all(1800);
    wanted.insert("s0000".to_owned(), OwnedState::Running);
    assert_eq!(told, wanted);
}

#[tokio::test]
async fn a_server_that_forgets_every_state_at_once_fails_the_list() {
    let bed = filled(6).await;
    bed.api.rule(Rule::when(On::pods(Verb::List)).after(1).answer(410));
    let mut owned = bed.provider().owned().await.unwrap();
    let mut outcome = Ok(());
    while let (Ok(()), Some(entry)) = (&outcome, within("an entry", owned.next()).await) {
        outcome = entry.map(drop);
    }
    fails(outcome, ErrorKind::Unavailable);
    assert!(lists(&bed) < 10, "{}", lists(&bed));
}

#[tokio::test]
async fn a_page_that_fails_for_now_is_asked_for_again() {
    for code in [429, 500, 503] {
        let bed = filled(1800).await;
        let rule = bed.api.rule(Rule::when(On::pods(Verb::List)).nth(2).answer(code));
        assert_eq!(told(&bed, 0, || {}).await, all(1800), "{code}");
        assert_eq!(rule.acted(), 1);
    }
}

#[tokio::test]
async fn a_list_that_is_forbidden_says_so() {
    let bed = filled(1).await;
    bed.api.forbid("list", "pods");
    let entry = bed.provider().owned().await.unwrap().next().await.unwrap();
    assert!(fails(entry, ErrorKind::Forbidden).reason().unwrap().contains("list pods"));
}
