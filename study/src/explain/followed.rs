//! A collection that is listed and watched, as the operator does it: by its [`Machine`] and [`Store`].

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use listwatch::{
    client::Collection,
    locked,
    store::{Change, Listening, Store},
    watch::{self, EndReason, Lists, Machine, NextRequest, Pause},
};

use crate::object::Object;

/// The `timeoutSeconds` of a watch that is only predicted.
pub(super) const TIMEOUT_SECS: u32 = 300;

/// A collection that is listed and watched.
pub(super) struct Followed {
    pub(super) collection: Collection,
    pub(super) machine: Machine,
    pub(super) store: Store<Object>,
    /// The changes of the Store that have not been explained yet.
    pub(super) changes: Arc<Mutex<Vec<Change<Object>>>>,
    _listening: Listening,
    /// A request that was refused with 401. The client sends it once more if it has new credentials.
    pub(super) unauthorized: Option<Unauthorized>,
    /// The keys that all changes so far lead to.
    pub(super) reconciled: BTreeSet<String>,
}

/// A request that was refused with 401.
pub(super) struct Unauthorized {
    pub(super) target: String,
    pub(super) lasted: Duration,
    pub(super) ended: f64,
}

/// What has changed a Store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    FirstList,
    List,
    Event,
    /// MODIFIED, of an object that the Store does not have, because no list came before.
    EventBeforeList,
    /// The answer to a GET or a write of one object.
    Answer,
}

impl Followed {
    pub(super) fn new(collection: Collection, machine: Machine) -> Followed {
        let store = Store::default();
        let changes = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&changes);
        let _listening = store.listen(move |change| locked(&seen).push(change.clone()));
        let reconciled = BTreeSet::new();
        Followed { collection, machine, store, changes, _listening, unauthorized: None, reconciled }
    }

    /// Whether the present watch began without a version, and no BOOKMARK has come. Its events may be initial ones, in no
    /// order, so no watch can resume from their versions.
    pub(super) fn is_unversioned(&self) -> bool {
        !self.machine.is_listing() && !self.machine.is_streaming() && self.store.version().is_empty()
    }

    pub(super) fn by_list(&self) -> By {
        if self.store.is_synced() { By::List } else { By::FirstList }
    }

    pub(super) fn has_selector(&self) -> bool {
        self.collection.scope.is_filtered()
    }

    /// Ends a request. Returns a text about the pause after it, if there is one.
    pub(super) fn failed(&mut self, how: EndReason, lasted: Duration) -> String {
        let Pause::Backoff { failures, at_least } = self.machine.end(how, lasted) else {
            return String::new();
        };
        let longest = watch::BACKOFF.longest(failures);
        let [from, to] = [longest / 2, longest].map(|pause| (at_least + pause).as_secs_f64());
        let text = format!("; failure {failures} in a row, so a pause of {from:.1} to {to:.1} s");
        match at_least.as_secs() {
            0 => text,
            secs => format!("{text}, {secs} s of it for Retry-After"),
        }
    }

    /// The path and query of the request that the operator would send next. The `timeoutSeconds` are random.
    pub(super) fn next_target(&mut self) -> String {
        if self.is_unversioned() {
            self.machine = Machine::new(Lists::Paged);
        }
        let version = self.store.version();
        let request = match self.machine.request(&version, TIMEOUT_SECS) {
            NextRequest::List(page) => self.collection.list_request(&page),
            NextRequest::Watch(from) => self.collection.watch_request(&from),
            NextRequest::Check => self.collection.check_request(),
        };
        let timeout = |secs: &str| format!("timeoutSeconds={secs}");
        let target = request.target().replace(&timeout(&TIMEOUT_SECS.to_string()), &timeout("…"));
        // Of what curl wrote, the path is not known.
        if target.starts_with('/') { target } else { format!("…{target}") }
    }
}
