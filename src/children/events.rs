//! What the reports of one operator share, whatever the object: the Events, and what it remembers of objects that are not as desired.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tracing::info;

use super::{
    LOG, UNSEEN_RECHECK, Write,
    pods::Looks,
    refused_writes::RefusedWrites,
    status::{Reported, Unreadable},
};
use crate::{
    client::Error,
    cluster::{Cluster, EventType, Events},
    locked,
    resource::{Resource, Uid, list::Partial},
};

/// From one look at an object with a NameConflict to the next look at any of them, on average: client-go's workqueues try again as
/// often, ten times a second. So 450 objects are looked at every [`UNSEEN_RECHECK`], and 10,000 in 17 minutes.
const CONFLICT_EACH: Duration = Duration::from_millis(100);
/// Most children that an Event names: its note may have 1024 bytes.
const NAMES_MAX: usize = 10;

/// What the reports of one operator share.
pub(crate) struct Reporter {
    pub(super) cluster: Cluster,
    /// `None`: no Events are recorded.
    events: Option<Events>,
    pub(super) pods: Looks,
    /// Objects of which a child was created or restored. Their status is written in the next reconcile.
    pub(super) unreported: Mutex<HashSet<Uid>>,
    /// Objects whose child has the name of an object of another owner.
    conflicting: Mutex<HashSet<Uid>>,
    /// The writes that the API server has refused, of the children and of the status.
    pub(super) refused: Arc<RefusedWrites>,
}

impl Reporter {
    pub(crate) fn new(cluster: &Cluster, events: Option<Events>) -> Reporter {
        let (pods, unreported, conflicting, refused) = Default::default();
        Reporter { cluster: cluster.clone(), events, pods, unreported, conflicting, refused }
    }

    /// Whether this operator records Events.
    pub(crate) fn records_events(&self) -> bool {
        self.events.is_some()
    }

    /// Records an Event, if this operator records any.
    pub(super) fn record<O: Resource>(
        &self,
        about: &O,
        r#type: EventType,
        reason: &'static str,
        note: String,
    ) {
        if let Some(events) = &self.events {
            events.record(about, r#type, reason, note);
        }
    }

    /// Records one Event for the created children of an object, one for the updated, one for the restored and one for the deleted ones.
    pub(super) fn record_writes<O: Resource>(&self, about: &O, writes: &[Write]) {
        let [mut created, mut updated, mut restored, mut deleted] = [const { Vec::new() }; 4];
        for write in writes {
            match write {
                Write::Created(what) => created.push(&**what),
                Write::Updated(what) => updated.push(&**what),
                Write::Restored(what) => restored.push(&**what),
                Write::Deleted(what) => deleted.push(&**what),
            }
        }
        if !created.is_empty() {
            info!(target: LOG, kind = O::KIND, key = %about.key(), children = named(&created), "created");
        }
        let news = [
            ("Created", "created", created),
            ("Updated", "changed", updated),
            ("DriftCorrected", "restored", restored),
            ("Deleted", "deleted", deleted),
        ];
        for (reason, verb, what) in news {
            if !what.is_empty() {
                self.record(about, EventType::Normal, reason, format!("{verb} {}", named(&what)));
            }
        }
    }

    /// Forgets an object that was deleted.
    pub(crate) fn forget(&self, owner: &Uid) {
        locked(&self.unreported).remove(owner);
        self.forget_conflict(owner);
        self.pods.forget(owner);
        self.refused.forget(owner);
    }

    /// Reports an object that does not decode as `InvalidSpec`. The earlier report on its children stays.
    pub(super) async fn unreadable<O: Reported>(&self, partial: &Partial) -> Result<(), Error> {
        self.forget(&partial.metadata.uid);
        let live = self.cluster.get_live::<Unreadable<O>>(&partial.metadata.key()).await?;
        let status = live.report(&partial.message, &self.now());
        if status != live.status {
            self.cluster.patch_status(&*live, &status).await?;
        }
        Ok(())
    }

    /// When to look again at an object whose child has a taken name. No watch need show that the name is free, and the looks at one
    /// object cost several requests.
    pub(super) fn conflict_pause(&self, owner: &Uid) -> Duration {
        let mut conflicting = locked(&self.conflicting);
        conflicting.insert(owner.clone());
        UNSEEN_RECHECK.max(CONFLICT_EACH * u32::try_from(conflicting.len()).unwrap_or(u32::MAX))
    }

    /// Forgets that a child of an object has a taken name.
    pub(super) fn forget_conflict(&self, owner: &Uid) {
        locked(&self.conflicting).remove(owner);
    }

    /// The time in RFC 3339, in whole seconds, for conditions.
    pub(super) fn now(&self) -> String {
        humantime::format_rfc3339_seconds(self.cluster.now()).to_string()
    }
}

/// `Deployment web, Service web`, and the number of all others.
fn named(children: &[&str]) -> String {
    let (named, others) = children.split_at(children.len().min(NAMES_MAX));
    let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    named.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_ten_children_and_counts_the_others() {
        let names: Vec<_> = (1..=12).map(|number| format!("Service {number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(named(&names[..2]), "Service 1, Service 2");
        assert_eq!(named(&names[..10]), names[..10].join(", "));
        assert_eq!(named(&names), format!("{} and 2 more", names[..10].join(", ")));
    }
}
