//! What the server knows: objects, their versions, and what changed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::refusal::Refusal;
use crate::selector::Selector;
use crate::time;

/// Changes that a watch can still be told; older ones are 410.
const HISTORY: usize = 8192;
/// Lists that are being paged through.
const SNAPSHOTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: String,
    /// Empty for what stands outside of namespaces.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// What a deletion insists on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

#[derive(Debug)]
struct Snapshot {
    id: u64,
    revision: u64,
    objects: Vec<Arc<Value>>,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Value>>,
    pub(crate) next: Option<String>,
    pub(crate) remaining: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    revision: u64,
    history: VecDeque<Change>,
    /// Changes up to here are forgotten.
    forgotten: u64,
    snapshots: VecDeque<Snapshot>,
    next_snapshot: u64,
    /// Counts the requests of tests for bookmarks.
    pub(crate) bookmarks: u64,
}

impl Store {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    pub(crate) fn keys(&self, resource: &str) -> Vec<Key> {
        self.objects.keys().filter(|key| key.resource == resource).cloned().collect()
    }

    /// An earlier state of an object: how it was before its last `back` changes.
    pub(crate) fn earlier(&self, key: &Key, back: usize) -> Option<Arc<Value>> {
        let changes = self.history.iter().rev().filter(|change| change.key == *key);
        changes.filter_map(|change| change.before.clone()).take(back.max(1)).last()
    }

    fn record(&mut self, key: Key, after: Option<Value>) -> Arc<Value> {
        self.revision += 1;
        let before = self.objects.get(&key).cloned();
        let mut object = match &after {
            Some(object) => object.clone(),
            None => before.as_deref().cloned().unwrap_or(Value::Null),
        };
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let object = Arc::new(object);
        match after {
            Some(_) => self.objects.insert(key.clone(), Arc::clone(&object)),
            None => self.objects.remove(&key),
        };
        let after = after.map(|_| Arc::clone(&object));
        self.history.push_back(Change { revision: self.revision, key, before, after });
        if self.history.len() > HISTORY {
            self.forgotten = self.history.pop_front().map_or(self.forgotten, |change| change.revision);
        }
        object
    }

    /// Adds an object as the server does: with a uid, a time and a version of its own.
    pub(crate) fn create(&mut self, key: Key, mut object: Value) -> Result<Arc<Value>, Refusal> {
        if self.objects.contains_key(&key) {
            return Err(Refusal::already_exists(&key.resource, &key.name));
        }
        stamp(&key, &mut object);
        Ok(self.record(key, Some(object)))
    }

    /// Changes an object; `None` if it is not there. Nothing is recorded when nothing changed.
    pub(crate) fn edit(&mut self, key: &Key, edit: impl FnOnce(&mut Value)) -> Option<Arc<Value>> {
        let old = self.objects.get(key)?;
        let mut object = (**old).clone();
        edit(&mut object);
        if object == **old {
            return Some(Arc::clone(old));
        }
        Some(self.record(key.clone(), Some(object)))
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        self.objects.contains_key(key).then(|| self.record(key.clone(), None))
    }

    pub(crate) fn check(&self, key: &Key, wanted: &Preconditions) -> Result<Arc<Value>, Refusal> {
        let object = self.get(key).ok_or_else(|| Refusal::not_found(&key.resource, &key.name))?;
        let pairs = [("uid", "UID", &wanted.uid), ("resourceVersion", "ResourceVersion", &wanted.resource_version)];
        for (field, label, wanted) in pairs {
            let found = object["metadata"][field].as_str().unwrap_or("");
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why =
                    format!("Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}");
                return Err(Refusal::conflict(&key.resource, &key.name, &why));
            }
        }
        Ok(Arc::clone(object))
    }

    /// All objects of a kind, in the order of their names.
    pub(crate) fn select(&self, resource: &str, namespace: Option<&str>, selector: &Selector) -> Vec<Arc<Value>> {
        chosen(&self.objects, resource, namespace, selector)
    }

    /// What was there when `revision` was the newest, or `None` when that is forgotten.
    fn objects_at(&self, revision: u64) -> Option<BTreeMap<Key, Arc<Value>>> {
        if revision < self.forgotten {
            return None;
        }
        let mut objects = self.objects.clone();
        for change in self.history.iter().rev().take_while(|change| change.revision > revision) {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Some(objects)
    }

    /// A page of a list, of now or of exactly `at`; the pages that follow come from the same moment.
    pub(crate) fn list(
        &mut self,
        resource: &str,
        namespace: Option<&str>,
        selector: &Selector,
        limit: usize,
        at: Option<u64>,
    ) -> Result<Page, Refusal> {
        let revision = at.unwrap_or(self.revision);
        let mut objects = match at {
            None => self.select(resource, namespace, selector),
            Some(at) => {
                let there = self.objects_at(at).ok_or_else(|| {
                    Refusal::expired(format!("The resourceVersion for the provided list is too old: {at}"))
                })?;
                chosen(&there, resource, namespace, selector)
            }
        };
        if limit == 0 || objects.len() <= limit {
            return Ok(Page { revision, objects, next: None, remaining: 0 });
        }
        let rest = objects.split_off(limit);
        self.next_snapshot += 1;
        let id = self.next_snapshot;
        let remaining = rest.len();
        self.snapshots.push_back(Snapshot { id, revision, objects: rest });
        if self.snapshots.len() > SNAPSHOTS {
            self.snapshots.pop_front();
        }
        Ok(Page { revision, objects, next: Some(token(id, 0)), remaining })
    }

    pub(crate) fn list_on(&mut self, token_text: &str, limit: usize) -> Result<Page, Refusal> {
        let (id, from) = parse_token(token_text)
            .ok_or_else(|| Refusal::bad_request(format!("continue key is not valid: {token_text:?}")))?;
        let Some(snapshot) = self.snapshots.iter().find(|snapshot| snapshot.id == id) else {
            let message = "The provided continue parameter is too old to display a consistent list result. \
                           You can start a new list without the continue parameter.";
            return Err(Refusal::expired(message));
        };
        let rest = snapshot.objects.get(from..).unwrap_or(&[]);
        let count = if limit == 0 { rest.len() } else { limit.min(rest.len()) };
        let remaining = rest.len() - count;
        Ok(Page {
            revision: snapshot.revision,
            objects: rest[..count].to_vec(),
            next: (remaining > 0).then(|| token(id, from + count)),
            remaining,
        })
    }

    /// Forgets what happened: watches from an earlier version and pages of earlier lists are answered 410.
    pub(crate) fn compact(&mut self) {
        self.history.clear();
        self.snapshots.clear();
        self.forgotten = self.revision;
    }

    /// The changes after `revision`, or `None` when some of them are forgotten.
    pub(crate) fn changes_after(&self, revision: u64, limit: usize) -> Option<Vec<Change>> {
        if revision < self.forgotten {
            return None;
        }
        let start = self.history.partition_point(|change| change.revision <= revision);
        Some(self.history.iter().skip(start).take(limit).cloned().collect())
    }
}

fn chosen(
    objects: &BTreeMap<Key, Arc<Value>>,
    resource: &str,
    namespace: Option<&str>,
    selector: &Selector,
) -> Vec<Arc<Value>> {
    let wanted = |key: &&Key| key.resource == resource && namespace.is_none_or(|n| key.namespace == n);
    let objects = objects.iter().filter(|(key, _)| wanted(key)).map(|(_, object)| object);
    objects.filter(|object| selector.matches(object)).cloned().collect()
}

fn token(id: u64, from: usize) -> String {
    format!("page-{id}-{from}")
}

fn parse_token(text: &str) -> Option<(u64, usize)> {
    let (id, from) = text.strip_prefix("page-")?.split_once('-')?;
    Some((id.parse().ok()?, from.parse().ok()?))
}

fn stamp(key: &Key, object: &mut Value) {
    let metadata = &mut object["metadata"];
    metadata["name"] = key.name.clone().into();
    if !key.namespace.is_empty() {
        metadata["namespace"] = key.namespace.clone().into();
    }
    metadata["uid"] = new_uid().into();
    metadata["creationTimestamp"] = time::now().into();
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("deletionTimestamp");
        fields.remove("deletionGracePeriodSeconds");
    }
}

/// A random UUID.
pub(crate) fn new_uid() -> String {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// What remains of an object when only its metadata is asked for.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}
