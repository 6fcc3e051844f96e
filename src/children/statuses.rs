//! What a controller reports without a reconcile: objects that do not decode or must wait, if the kind has a status, else nothing.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use smol_str::SmolStr;
use tracing::info;

use super::{LOG, Stage, reconcile::Reconcile, refusal::Refusal, reported::Reported, reporter::Reporter};
use crate::{
    cluster::Watch,
    next::ReconcileError,
    resource::{
        Condition, Key, Resource,
        conditions::{self, Verdict},
        list::{Broken, BrokenCause, Found},
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

/// What a controller reports of objects that it does not pass to the operator.
pub(crate) trait Statuses<K>: Send + Sync {
    /// The subresource that the reports write.
    fn part(&self) -> Option<&'static str>;

    /// Whether the spec of an object was applied before.
    fn stage(&self, object: &K) -> Stage;

    /// Logs the number of objects at the start.
    fn overview(&self, objects: &Watch<K>);

    /// The number of objects by the name, the status and the reason of each condition.
    fn conditions(&self, objects: &Watch<K>) -> BTreeMap<[SmolStr; 3], i64>;

    /// Reports an object that does not decode.
    fn unreadable<'a>(&self, reporter: &'a Reporter, broken: &'a Broken) -> Reporting<'a>;

    /// Reports why an object is not reconciled, by one of the reasons above.
    fn unreconciled<'a>(&self, reporter: &Arc<Reporter>, object: &Arc<K>, ready: Verdict) -> Reporting<'a>
    where
        K: 'a;
}

type Reporting<'a> = Pin<Box<dyn Future<Output = Result<(), ReconcileError>> + Send + 'a>>;

/// For a kind with a status.
pub(crate) struct WithStatus;

impl<K: Reported> Statuses<K> for WithStatus {
    fn part(&self) -> Option<&'static str> {
        Some("status")
    }

    fn stage(&self, object: &K) -> Stage {
        Stage::of(object)
    }

    fn overview(&self, objects: &Watch<K>) {
        let (mut not_ready, mut examples) = (0, Vec::new());
        let keys = objects.keys();
        for key in &keys {
            let object = objects.get(key);
            let ready =
                object.as_ref().map(|object| conditions::find(K::observed(object.status()).1, "Ready"));
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

    fn conditions(&self, objects: &Watch<K>) -> BTreeMap<[SmolStr; 3], i64> {
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
            let reported = K::observed(object.status()).1;
            if conditions::find(reported, "Ready").is_none() {
                count([&ready, &unknown, &new]);
            }
            for Condition { r#type, status, reason, .. } in reported {
                count([r#type, status, reason]);
            }
        }
        all
    }

    fn unreadable<'a>(&self, reporter: &'a Reporter, broken: &'a Broken) -> Reporting<'a> {
        Box::pin(async { Ok(reporter.unreadable::<K>(broken).await?) })
    }

    fn unreconciled<'a>(&self, reporter: &Arc<Reporter>, object: &Arc<K>, ready: Verdict) -> Reporting<'a>
    where
        K: 'a,
    {
        let reconcile = Reconcile::new(reporter, object, Stage::of(&**object));
        Box::pin(async move { reconcile.unreconciled(ready).await })
    }
}

/// Whether an object has a status, which is not kept.
fn has_no_room<K: Resource>(objects: &Watch<K>, key: &Key) -> bool {
    let found = objects.find(key);
    matches!(found, Some(Found::Broken(broken)) if matches!(broken.cause, BrokenCause::NoRoom(_)))
}

/// For a kind without one.
pub(crate) struct WithoutStatus;

impl<K: Resource> Statuses<K> for WithoutStatus {
    fn part(&self) -> Option<&'static str> {
        None
    }

    /// Nothing says that it is new.
    fn stage(&self, _: &K) -> Stage {
        Stage::Settled
    }

    fn overview(&self, _: &Watch<K>) {}

    fn conditions(&self, _: &Watch<K>) -> BTreeMap<[SmolStr; 3], i64> {
        BTreeMap::new()
    }

    fn unreadable<'a>(&self, _: &'a Reporter, _: &'a Broken) -> Reporting<'a> {
        Box::pin(async { Ok(()) })
    }

    fn unreconciled<'a>(&self, _: &Arc<Reporter>, _: &Arc<K>, _: Verdict) -> Reporting<'a>
    where
        K: 'a,
    {
        Box::pin(async { Ok(()) })
    }
}
