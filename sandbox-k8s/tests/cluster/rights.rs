//! With just the rights of `deploy/rbac.yaml`, and with fewer.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use kube::api::{Api, PostParams};
use libtest_mimic::Trial;
use sandbox::{ErrorKind, Networking, Provider, SandboxPath, SessionId};
use sandbox_k8s::{FindingKind, K8sProvider};
use serde_json::json;

use crate::bed::{Bed, equal, fails, holds, reap, says};
use crate::{Outcome, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("rights::of_the_manifest", of_the_manifest),
        trial("rights::without_watch", without_watch),
        trial("rights::none", none),
        trial("rights::no_exec", no_exec),
    ]
}

/// The rules of the manifest that users apply, with `verbs` taken out.
fn rules(without: &[(&str, &str)]) -> serde_json::Value {
    let text = include_str!("../../deploy/rbac.yaml");
    let verbs_of = |resource: &str| -> Vec<String> {
        let start = text.find(&format!("resources: [{resource}]")).expect("the manifest has the resource");
        let list = text[start..].split_once("verbs: [").expect("it has verbs").1.split_once(']').expect("a list").0;
        list.split(", ").filter(|verb| !without.contains(&(resource, *verb))).map(str::to_owned).collect()
    };
    let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": verbs_of(resource)});
    let rules: Vec<_> = ["pods", "pods/exec"].into_iter().filter(|r| !verbs_of(r).is_empty()).map(rule).collect();
    json!(rules)
}

/// A provider that may do what `rules` say, as a ServiceAccount of its own, which goes with the bed.
struct Account {
    provider: K8sProvider,
}

impl Account {
    async fn with(bed: &Bed, rules: serde_json::Value) -> Result<Self, crate::Any> {
        let name = SessionId::generate().as_str().replace('_', "-");
        let namespace = bed.client.default_namespace().to_owned();
        let client = bed.client.clone();
        let post = PostParams::default();
        bed.will_make_account(&name);
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        accounts.create(&post, &serde_json::from_value(json!({"metadata": {"name": name}}))?).await?;
        let roles: Api<Role> = Api::default_namespaced(client.clone());
        roles.create(&post, &serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules}))?).await?;
        let bindings: Api<RoleBinding> = Api::default_namespaced(client.clone());
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
        });
        bindings.create(&post, &serde_json::from_value(binding)?).await?;
        let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
        let token = accounts.create_token_request(&name, &post, &request).await?;
        let token = token.status.map(|status| status.token).unwrap_or_default();
        let mut config = crate::bed::kube_config().await?;
        config.auth_info = kube::config::AuthInfo { token: Some(token.into()), ..Default::default() };
        let provider = K8sProvider::new(Client::try_from(config)?, bed.config.clone())?;
        Ok(Self { provider })
    }
}

async fn whole_life(bed: &Bed, provider: &K8sProvider) -> Outcome {
    let spec = bed.spec().with_networking(Networking::None);
    let sandbox = provider.provision(&spec).await?;
    equal("a command", says(&sandbox, "echo hello").await?, "hello".to_owned())?;
    let attached = provider.attach(&spec.session).await?;
    equal("attached", says(&attached, "echo hello").await?, "hello".to_owned())?;
    let mut owned = provider.owned().await?;
    let mut found = false;
    while let Some(entry) = owned.next().await {
        found |= entry?.session == spec.session;
    }
    holds("owned", found, ())?;
    let export = provider.export(&spec.session, &SandboxPath::new("/workspace")?).await?;
    drop(export);
    reap(provider, &spec.session).await
}

async fn of_the_manifest(bed: Bed) -> Outcome {
    let account = Account::with(&bed, rules(&[])).await?;
    let found = account.provider.preflight(&bed.spec()).await?;
    holds("nothing is found", found.findings.is_empty() && found.server.starts_with('v'), &found)?;
    whole_life(&bed, &account.provider).await
}

async fn without_watch(bed: Bed) -> Outcome {
    let account = Account::with(&bed, rules(&[("pods", "watch")])).await?;
    let found = account.provider.preflight(&bed.spec()).await?;
    let kinds: Vec<_> = found.findings.iter().map(|f| f.kind).collect();
    holds("watch is found missing", found.is_ready() && kinds == [FindingKind::MayNotWatchPods], &found)?;
    whole_life(&bed, &account.provider).await
}

async fn no_exec(bed: Bed) -> Outcome {
    let account = Account::with(&bed, rules(&[("pods/exec", "get"), ("pods/exec", "create")])).await?;
    let spec = bed.spec();
    let begun = std::time::Instant::now();
    let error = fails("a provision", account.provider.provision(&spec).await)?;
    equal(&format!("{error:?}"), error.kind(), ErrorKind::Forbidden)?;
    holds("the resource is named", error.to_string().contains("pods/exec"), &error)?;
    holds("in time", begun.elapsed() < Duration::from_secs(30), begun.elapsed())?;
    equal("what is left", bed.uid(&spec.session).await?, None)
}

async fn none(bed: Bed) -> Outcome {
    let account = Account::with(&bed, json!([])).await?;
    let found = account.provider.preflight(&bed.spec()).await?;
    for kind in [
        FindingKind::MayNotGetPods,
        FindingKind::MayNotListPods,
        FindingKind::MayNotCreatePods,
        FindingKind::MayNotDeletePods,
        FindingKind::MayNotWatchPods,
        FindingKind::MayNotPatchPods,
        FindingKind::MayNotGetExec,
        FindingKind::MayNotCreateExec,
    ] {
        holds(&format!("{kind:?}"), found.findings.iter().any(|f| f.kind == kind), &found)?;
    }
    holds("it is not ready", !found.is_ready(), ())?;
    let spec = bed.spec();
    for (what, error) in [
        ("provision", fails("it", account.provider.provision(&spec).await)?),
        ("attach", fails("it", account.provider.attach(&spec.session).await)?),
        ("reap", fails("it", account.provider.reap(&spec.session).await)?),
    ] {
        equal(what, error.kind(), ErrorKind::Forbidden)?;
    }
    Ok(())
}
