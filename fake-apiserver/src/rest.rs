//! Objects: create, get, list, patch, delete, and the few odd paths beside them.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::call::{Call, Verb};
use crate::kubelet;
use crate::patch;
use crate::refusal::Refusal;
use crate::selector::Selector;
use crate::shared::Shared;
use crate::store::{Key, Preconditions, metadata_only, new_uid};
use crate::time;

/// Kinds of objects that are kept: their names, and whether they stand in a namespace.
const KINDS: &[(&str, &str, bool)] =
    &[("pods", "Pod", true), ("events", "Event", true), ("nodes", "Node", false), ("namespaces", "Namespace", false)];

pub(crate) type Reply = Result<(StatusCode, Value), Refusal>;

/// The key of the object that is asked for, if it is one that is kept.
pub(crate) fn key_of(call: &Call) -> Option<Key> {
    let (_, _, namespaced) = KINDS.iter().find(|(resource, ..)| *resource == call.resource)?;
    let namespace = if *namespaced { call.namespace.as_deref()? } else { "" };
    Some(Key::new(&call.resource, namespace, call.name.as_deref()?))
}

pub(crate) async fn serve(shared: &Arc<Shared>, call: &Call, accept: &str, kind: &str, body: &Bytes) -> Reply {
    match (call.resource.as_str(), call.verb) {
        ("version", Verb::Get) => return Ok((StatusCode::OK, version(shared))),
        ("healthz" | "livez" | "readyz", Verb::Get) => return Ok((StatusCode::OK, json!("ok"))),
        ("selfsubjectaccessreviews", Verb::Create) => return review(shared, body),
        _ => {}
    }
    let Some((_, kind_name, _)) = KINDS.iter().find(|(resource, ..)| *resource == call.resource) else {
        return Err(Refusal::no_such_path());
    };
    let partial = accept.contains("as=PartialObjectMetadata");
    let one = |object: &Value| if partial { metadata_only(object) } else { object.clone() };
    match call.verb {
        Verb::List => list(shared, call, kind_name, partial),
        Verb::Create if call.subresource.is_none() => {
            let (status, object) = create(shared, call, kind_name, body)?;
            Ok((status, one(&object)))
        }
        Verb::Get | Verb::Patch | Verb::Delete => {
            let key = key_of(call).ok_or_else(Refusal::no_such_path)?;
            match (call.verb, call.subresource.as_deref()) {
                (Verb::Get, None | Some("status")) => {
                    let object = shared.store(|store| store.get(&key).cloned());
                    let object = object.ok_or_else(|| Refusal::not_found(&key.resource, &key.name))?;
                    Ok((StatusCode::OK, one(&object)))
                }
                (Verb::Patch, None | Some("status")) => {
                    let object = patch_object(shared, &key, kind, body)?;
                    Ok((StatusCode::OK, one(&object)))
                }
                (Verb::Delete, None) => delete(shared, call, &key, body).await,
                _ => Err(Refusal::no_such_path()),
            }
        }
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn version(shared: &Arc<Shared>) -> Value {
    let (major, minor) = shared.options.version;
    json!({
        "major": major.to_string(),
        "minor": minor.to_string(),
        "gitVersion": format!("v{major}.{minor}.0"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    })
}

fn parse(body: &Bytes) -> Result<Value, Refusal> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the body of the request is not JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(Refusal::bad_request("the body of the request is no object")) }
}

fn review(shared: &Arc<Shared>, body: &Bytes) -> Reply {
    let mut review = parse(body)?;
    let attributes = &review["spec"]["resourceAttributes"];
    let text = |field: &str| attributes[field].as_str().unwrap_or("").to_owned();
    let resource = match text("subresource") {
        sub if sub.is_empty() => text("resource"),
        sub => format!("{}/{sub}", text("resource")),
    };
    let allowed = shared.access.allows(&text("verb"), &resource);
    review["kind"] = "SelfSubjectAccessReview".into();
    review["apiVersion"] = "authorization.k8s.io/v1".into();
    review["status"] = json!({"allowed": allowed});
    Ok((StatusCode::CREATED, review))
}

fn list(shared: &Arc<Shared>, call: &Call, kind: &str, partial: bool) -> Reply {
    let query = &call.query;
    let selector = Selector::parse(query.get("labelSelector"), query.get("fieldSelector"))?;
    let limit = match query.get("limit") {
        None => 0,
        Some(text) => text.parse::<usize>().map_err(|_| Refusal::bad_request(format!("limit: {text:?}")))?,
    };
    let page = shared.store(|store| match query.get("continue") {
        Some(token) => store.list_on(token, limit),
        None => {
            let asked = query.get("resourceVersion").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            if asked > store.revision() {
                return Err(Refusal::too_large_version(asked, store.revision()));
            }
            let exactly = query.get("resourceVersionMatch").is_some_and(|how| how == "Exact");
            let at = exactly.then_some(asked);
            store.list(&call.resource, call.namespace.as_deref(), &selector, limit, at)
        }
    })?;
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = page.next {
        metadata["continue"] = next.into();
        if selector.is_empty() {
            metadata["remainingItemCount"] = page.remaining.into();
        }
    }
    let items: Vec<Value> = page
        .objects
        .iter()
        .map(|object| match partial {
            true => metadata_only(object),
            false => {
                // The items of a list do not repeat what they are.
                let mut object = (**object).clone();
                if let Some(fields) = object.as_object_mut() {
                    fields.remove("kind");
                    fields.remove("apiVersion");
                }
                object
            }
        })
        .collect();
    let (kind, version) = match partial {
        true => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1"),
        false => (format!("{kind}List"), "v1"),
    };
    Ok((StatusCode::OK, json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items})))
}

pub(crate) fn create(
    shared: &Arc<Shared>,
    call: &Call,
    kind: &str,
    body: &Bytes,
) -> Result<(StatusCode, Arc<Value>), Refusal> {
    let mut object = parse(body)?;
    let resource = call.resource.as_str();
    if object["kind"].as_str().is_some_and(|found| found != kind) {
        return Err(Refusal::bad_request(format!("the object is no {kind}")));
    }
    object["kind"] = kind.into();
    object["apiVersion"] = "v1".into();
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if !legal_name(&name) {
        return Err(Refusal::invalid(resource, &name, "metadata.name", "a lowercase RFC 1123 subdomain is required"));
    }
    let namespaced = KINDS.iter().any(|(known, _, namespaced)| *known == resource && *namespaced);
    let namespace = match (namespaced, &call.namespace) {
        (true, Some(namespace)) => namespace.clone(),
        (true, None) => return Err(Refusal::method_not_allowed()),
        (false, _) => String::new(),
    };
    let stated = object["metadata"]["namespace"].as_str().unwrap_or("");
    if namespaced && !stated.is_empty() && stated != namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(message));
    }
    if resource == "pods" {
        if object["spec"]["containers"].as_array().is_none_or(|list| list.is_empty()) {
            return Err(Refusal::invalid(resource, &name, "spec.containers", "Required value"));
        }
        object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.entry("restartPolicy").or_insert_with(|| "Always".into());
            spec.entry("terminationGracePeriodSeconds").or_insert_with(|| 30.into());
        }
    }
    let key = Key::new(resource, &namespace, &name);
    let object = shared.store(|store| {
        if call.query.get("dryRun") == Some("All") {
            return match store.get(&key) {
                Some(_) => Err(Refusal::already_exists(resource, &name)),
                None => {
                    object["metadata"]["uid"] = new_uid().into();
                    Ok(Arc::new(object))
                }
            };
        }
        if namespaced {
            ensure_namespace(store, &namespace);
        }
        store.create(key, object)
    })?;
    Ok((StatusCode::CREATED, object))
}

/// Namespaces come into being when they are used.
pub(crate) fn ensure_namespace(store: &mut crate::store::Store, namespace: &str) {
    let object = json!({
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"labels": {"kubernetes.io/metadata.name": namespace}},
        "status": {"phase": "Active"},
    });
    // That it is there already is as good.
    let _ = store.create(Key::new("namespaces", "", namespace), object);
}

fn legal_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253 && name.chars().all(inner) && edge(name.chars().next()) && edge(name.chars().last())
}

fn patch_object(shared: &Arc<Shared>, key: &Key, kind: &str, body: &Bytes) -> Result<Arc<Value>, Refusal> {
    let kind = kind.split(';').next().unwrap_or("").trim();
    if !matches!(kind, "application/merge-patch+json" | "application/strategic-merge-patch+json") {
        return Err(Refusal::unsupported_media_type(kind));
    }
    let mut change = parse(body)?;
    let text = |field: &str| change["metadata"][field].as_str().map(str::to_owned);
    let wanted = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
    shared.store(|store| {
        store.check(key, &wanted)?;
        if let Some(metadata) = change["metadata"].as_object_mut() {
            for fixed in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"] {
                metadata.remove(fixed);
            }
        }
        let object = store.edit(key, |object| patch::merge(object, &change));
        object.ok_or_else(|| Refusal::not_found(&key.resource, &key.name))
    })
}

async fn delete(shared: &Arc<Shared>, call: &Call, key: &Key, body: &Bytes) -> Reply {
    let options = if body.is_empty() { json!({}) } else { parse(body)? };
    let wanted = &options["preconditions"];
    let text = |field: &str| wanted[field].as_str().map(str::to_owned);
    let wanted = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
    let grace = call.query.get("gracePeriodSeconds").and_then(|text| text.parse::<u64>().ok());
    let grace = options["gracePeriodSeconds"].as_u64().or(grace);
    let (object, gone) = shared.store(|store| {
        let object = store.check(key, &wanted)?;
        let grace = grace_of(&object, key, grace);
        if grace == 0 {
            return Ok((store.remove(key).unwrap_or(object), true));
        }
        let object = store.edit(key, |object| {
            let metadata = &mut object["metadata"];
            if !metadata["deletionTimestamp"].is_string() {
                metadata["deletionTimestamp"] = time::in_seconds(grace).into();
                metadata["deletionGracePeriodSeconds"] = grace.into();
            }
        });
        Ok((object.ok_or_else(|| Refusal::not_found(&key.resource, &key.name))?, false))
    })?;
    if gone {
        kubelet::end(shared, object["metadata"]["uid"].as_str().unwrap_or("")).await;
    }
    Ok((StatusCode::OK, (*object).clone()))
}

/// What nobody runs goes at once, whatever the client or the spec says.
fn grace_of(object: &Value, key: &Key, asked: Option<u64>) -> u64 {
    let done = matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    if key.resource != "pods" || done || !object["spec"]["nodeName"].is_string() {
        return 0;
    }
    asked.or_else(|| object["spec"]["terminationGracePeriodSeconds"].as_u64()).unwrap_or(30)
}
