//! Lists the sandboxes of a deployment.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PartialObjectMeta;
use sandbox::{Error, ErrorKind, Owned, OwnedState, OwnedStream};

use crate::names::Keys;
use crate::provider::Place;
use crate::stamp;

/// Metadata says nothing of the phase: it is what each list selects by. All of them see one state of the cluster, so that no session
/// is missed or told twice while its phase changes.
const LISTS: [(&str, OwnedState); 4] = [
    ("status.phase=Running", OwnedState::Running),
    ("status.phase=Pending", OwnedState::Starting),
    ("status.phase=Unknown", OwnedState::Unknown),
    ("status.phase!=Running,status.phase!=Pending,status.phase!=Unknown", OwnedState::Ended),
];
/// How often in a row the state that is being listed may be forgotten before anything new was told.
const RESTARTS: usize = 3;

/// How far the lists are.
#[derive(Default)]
struct At {
    list: usize,
    version: Option<String>,
    from: Option<String>,
}

/// A listing under way.
struct Listing {
    place: Arc<Place>,
    selector: String,
    at: At,
    /// Digests of the sessions that were told: the API server forgets states after some minutes, and a consumer that is slower begins
    /// anew without hearing of any session twice. Eight bytes for each.
    told: HashSet<u64>,
    digest: RandomState,
    restarts: usize,
}

/// The sandboxes of a place, page by page.
pub(crate) fn owned(place: &Arc<Place>) -> OwnedStream {
    let listing = Listing {
        place: Arc::clone(place),
        selector: Keys::of(&place.config).selector(&place.config.deployment, None),
        at: At::default(),
        told: HashSet::new(),
        digest: RandomState::new(),
        restarts: 0,
    };
    let pages = stream::try_unfold(listing, |mut listing| async move {
        let page = listing.page().await?;
        Ok::<_, Error>(page.map(|entries| (stream::iter(entries.into_iter().map(Ok)), listing)))
    });
    OwnedStream::new(pages.try_flatten())
}

impl Listing {
    /// The next page; `None` at the end.
    async fn page(&mut self) -> Result<Option<Vec<Owned>>, Error> {
        let Some((fields, phase)) = LISTS.get(self.at.list) else { return Ok(None) };
        let pods = &self.place.pods;
        let (version, from) = (self.at.version.as_deref(), self.at.from.as_deref());
        let Some(page) = pods.page(&self.selector, Some(fields), version, from, pods.soon()).await? else {
            if self.restarts == RESTARTS {
                return Err(Error::new(ErrorKind::Unavailable)
                    .because("the API server forgets the state of the cluster faster than it can be listed"));
            }
            self.restarts += 1;
            self.at = At::default();
            return Ok(Some(Vec::new()));
        };
        let at = &mut self.at;
        at.version = at.version.take().or(page.metadata.resource_version).filter(|version| !version.is_empty());
        at.from = page.metadata.continue_.filter(|token| !token.is_empty());
        at.list += usize::from(at.from.is_none());
        let entries: Vec<_> = page.items.into_iter().filter_map(|entry| self.entry(entry, *phase)).collect();
        if !entries.is_empty() {
            self.restarts = 0;
        }
        Ok(Some(entries))
    }

    fn entry(&mut self, entry: PartialObjectMeta<Pod>, phase: OwnedState) -> Option<Owned> {
        let metadata = entry.metadata;
        let session = stamp::session(&metadata, &self.place.config)?;
        if !self.told.insert(self.digest.hash_one(session.as_str())) {
            return None;
        }
        let ending = metadata.deletion_timestamp.is_some();
        let state = if ending { OwnedState::Ending } else { phase };
        let owned = Owned::new(session, state, metadata.uid.unwrap_or_default());
        let made = metadata.creation_timestamp.and_then(|time| system_time(time.0.as_second()));
        Some(match made {
            Some(made) => owned.created_at(made),
            None => owned,
        })
    }
}

fn system_time(seconds: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}
