//! The finalizer of an operator: added before the first [`Operator::applied`], removed after [`Operator::deleting`] is done.
//!
//! ```text
//!   {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/cleanup"}     before the first `applied`
//!   {"op": "remove", "path": "/metadata/finalizers/1"}                                  after `deleting` returned Done
//! ```
//!
//! Each patch names the resourceVersion, so it never hits the finalizer of another operator: after a change of the list,
//! the API server answers 409, and the next attempt reads the list again.
//! See <https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/>.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tracing::{debug, info};

use super::{Cleanup, Next, Operator, ReconcileError, Shared};
use crate::resource::{ObjectMeta, Resource};

/// The target of the lines of this file in the log.
const LOG: &str = "listwatch::controller";

impl<O: Operator> Shared<O> {
    /// Calls [`Operator::deleting`], and removes the finalizer after that is done.
    pub(super) async fn clean_up(&self, object: Arc<O::Kind>) -> Result<Next, ReconcileError> {
        debug!(target: LOG, kind = O::Kind::KIND, key = %object.key(), "deleting");
        match self.operator.deleting(Arc::clone(&object)).await? {
            Cleanup::Done => self.remove(object).await,
            Cleanup::Pending(next) => Ok(next),
        }
    }

    pub(super) async fn add_finalizer(
        &self,
        finalizer: &str,
        object: &O::Kind,
    ) -> Result<Next, ReconcileError> {
        let metadata = object.metadata();
        let addition = metadata.uid.to_string();
        if self.truces.is_on(&addition) {
            return Err(
                format!("another client keeps removing the finalizer {finalizer}; backing off").into()
            );
        }
        let operation = if metadata.finalizers.is_empty() {
            json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer]})
        } else {
            json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer})
        };
        self.cluster.patch(object, vec![operation]).await?;
        self.truces.corrected(addition);
        Ok(Next::After(Duration::ZERO))
    }

    async fn remove(&self, object: Arc<O::Kind>) -> Result<Next, ReconcileError> {
        // The newest object in the Store: `deleting` may have written the status. After a change of the spec, `deleting` decides
        // again: the old version is a conflict.
        let is_same = |found: &Arc<O::Kind>| {
            let (found, seen) = (found.metadata(), object.metadata());
            found.uid == seen.uid && found.generation == seen.generation
        };
        let object = self.objects.get(&object.key()).filter(is_same).unwrap_or(object);
        let Some(index) = finalizer_index::<O>(object.metadata()) else { return Ok(Next::OnChange) };
        let operation = json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")});
        self.cluster.patch(&*object, vec![operation]).await?;
        info!(target: LOG, kind = O::Kind::KIND, key = %object.key(), "cleaned up");
        Ok(Next::OnChange)
    }
}

/// The index of our finalizer in the list, if the list has it.
pub(super) fn finalizer_index<O: Operator>(metadata: &ObjectMeta) -> Option<usize> {
    metadata.finalizers.iter().position(|present| Some(&**present) == O::FINALIZER)
}
