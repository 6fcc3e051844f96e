//! What a controller reports without a reconcile: objects that do not decode or must wait.

use std::{collections::BTreeMap, pin::Pin};

use smol_str::SmolStr;
use tracing::info;

use super::{LOG, Stage, events::Reporter, reconcile::Reconcile, refusal::Refusal, status::Reported};
use crate::{
    cluster::Watch,
    next::ReconcileError,
    resource::{
        Condition, Key, Resource,
        conditions::{self, Verdict},
        list::{Found, Partial, PartialCause},
    },
};

/// The reason of `Ready` while a watch fails.
pub(crate) const WATCH_FAILED: &str = "WatchFailed";
/// The reason of `Ready` while another client keeps removing the finalizer.
pub(crate) const FINALIZER_REMOVED: &str = "FinalizerRemoved";
/// The reason of `Ready` if the operator itself fails, and no request to the API server.
pub(crate) const OPERATOR_FAILED: &str = "OperatorFailed";
/// The reason of `Ready` while a user has paused the operator.
pub(crate) const PAUSED: &str = "Paused";

/// Instead of the reason of an object without a condition.
const NEW: &str = "New";
/// Most objects that are not ready and that the log names at the start.
const EXAMPLES_MAX: usize = 10;

/// Reads and writes the status of a kind. It has functions, because its controller does not know the type of the status: a kind may
/// have none.
pub(crate) struct Statuses<K> {
    /// Whether the spec of an object was applied before.
    pub(crate) stage: fn(&K) -> Stage,
    conditions: fn(&K) -> &[Condition],
    /// Reports an object that does not decode.
    pub(crate) unreadable: for<'a> fn(&'a Reporter, &'a Partial) -> Reporting<'a>,
    /// Reports why an object is not reconciled, by one of the reasons above.
    pub(crate) unreconciled: fn(Reconcile<K>, Verdict) -> Reporting<'static>,
}

type Reporting<'a> = Pin<Box<dyn Future<Output = Result<(), ReconcileError>> + Send + 'a>>;

impl<K: Reported> Statuses<K> {
    pub(crate) fn of_kind() -> Statuses<K> {
        Statuses {
            stage: Stage::of,
            conditions: |object| K::observed(object.status()).1,
            unreadable: |reporter, partial| Box::pin(async { Ok(reporter.unreadable::<K>(partial).await?) }),
            unreconciled: |reconcile, ready| Box::pin(async move { reconcile.unreconciled(ready).await }),
        }
    }
}

impl<K: Resource> Statuses<K> {
    /// Logs the number of objects at the start.
    pub(crate) fn overview(&self, objects: &Watch<K>) {
        let (mut not_ready, mut examples) = (0, Vec::new());
        let keys = objects.keys();
        for key in &keys {
            let object = objects.get(key);
            let ready = object.as_ref().map(|object| conditions::find((self.conditions)(object), "Ready"));
            let reason = match ready {
                Some(Some(ready)) if ready.status == "True" => continue,
                Some(ready) => ready.map_or(NEW.into(), |ready| ready.reason.clone()),
                None if has_no_room(objects, key) => continue,
                None => Refusal::InvalidSpec.reason().into(),
            };
            not_ready += 1;
            if examples.len() < EXAMPLES_MAX {
                examples.push(format!("{key} {reason}"));
            }
        }
        let examples = (not_ready > 0).then(|| examples.join(", "));
        info!(target: LOG, objects = keys.len(), not_ready, examples, "{}s at the start", K::KIND);
    }

    /// The number of objects by the name, the status and the reason of each condition.
    pub(crate) fn count_conditions(&self, objects: &Watch<K>) -> BTreeMap<[SmolStr; 3], i64> {
        let mut all = BTreeMap::new();
        let mut count =
            |condition: [&SmolStr; 3]| *all.entry(condition.map(SmolStr::clone)).or_default() += 1;
        let ready = SmolStr::new_static("Ready");
        let [no, unknown, new, not_kept] = ["False", "Unknown", NEW, "NotKept"].map(SmolStr::new_static);
        let invalid = Refusal::InvalidSpec.reason().into();
        for key in objects.keys() {
            let Some(object) = objects.get(&key) else {
                let (status, reason) =
                    if has_no_room(objects, &key) { (&unknown, &not_kept) } else { (&no, &invalid) };
                count([&ready, status, reason]);
                continue;
            };
            let reported = (self.conditions)(&object);
            if conditions::find(reported, "Ready").is_none() {
                count([&ready, &unknown, &new]);
            }
            for Condition { r#type, status, reason, .. } in reported {
                count([r#type, status, reason]);
            }
        }
        all
    }
}

/// Whether an object has a status, which is not kept.
fn has_no_room<K: Resource>(objects: &Watch<K>, key: &Key) -> bool {
    let found = objects.find(key);
    matches!(found, Some(Found::Partial(partial)) if matches!(partial.cause, PartialCause::NoRoom(_)))
}
