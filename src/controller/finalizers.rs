//! The finalizer of an operator: added before the first [`Operator::reconcile`], removed after [`Operator::deleting`] is done, or when an
//! object no longer needs it.
//!
//! ```text
//!   {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/cleanup"}     before `reconcile`
//!   {"op": "remove", "path": "/metadata/finalizers/1"}                                  after `deleting` returned Done, or before `reconcile`
//! ```
//!
//! Each patch names the resourceVersion, so it never hits the finalizer of another operator: after a change of the list,
//! the API server answers 409, and the next attempt reads the list again.
//! See <https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/>.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tracing::{debug, info};

use super::{Cleanup, Controller, LOG, Next, Operator, ReconcileError};
use crate::{
    children::FINALIZER_REMOVED,
    correction_backoff::CORRECTIONS,
    resource::{ObjectMeta, Resource, conditions::Verdict, list::Found},
};

impl<O: Operator> Controller<O> {
    /// Calls [`Operator::deleting`], and removes the finalizer after that is done.
    pub(super) async fn clean_up(&self, object: Arc<O::Kind>) -> Result<Next, ReconcileError> {
        debug!(target: LOG, kind = O::Kind::KIND, key = %object.key(), "deleting");
        let reconcile = self.shared.reconcile_of(&object);
        let cleanup = match self.operator.deleting(reconcile.share()).await {
            Ok(cleanup) => cleanup,
            Err(error) => return error.early_end(),
        };
        let at_latest = reconcile.unreported()?;
        match cleanup {
            Cleanup::Done => self.remove(object).await,
            Cleanup::Pending(next) => Ok(next.or_sooner(at_latest)),
        }
    }

    /// Adds or removes the finalizer if [`Operator::needs_finalizer`] says so. `None`: there is nothing to do.
    pub(super) async fn keep_finalizer(&self, object: &Arc<O::Kind>) -> Result<Option<Next>, ReconcileError> {
        let Some(finalizer) = O::FINALIZER else { return Ok(None) };
        let metadata = object.metadata();
        let (index, is_needed) = (finalizer_index::<O>(metadata), self.operator.needs_finalizer(object));
        // With the generation, because a new spec may need another one.
        let correction = format!("{} at generation {}: {is_needed}", metadata.uid, metadata.generation);
        let operation = match index {
            Some(_) if is_needed => return Ok(None),
            // Another client keeps adding it, and it does no harm.
            Some(_) if self.corrections.must_wait(&correction) => return Ok(None),
            Some(index) => removal(index),
            None if !is_needed => return Ok(None),
            None if self.corrections.must_wait(&correction) => {
                let problem = format!("another client keeps removing the finalizer {finalizer}; backing off");
                // Until the end of the pause, nothing corrects the children, whatever the status said before.
                self.shared.try_to_report(object, Verdict::no(FINALIZER_REMOVED, problem.as_str())).await;
                return Err(problem.into());
            }
            None if metadata.finalizers.is_empty() => {
                json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer]})
            }
            None => json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer}),
        };
        self.shared.cluster.patch(&**object, vec![operation]).await?;
        self.corrections.count(correction, CORRECTIONS);
        Ok(Some(Next::After(Duration::ZERO)))
    }

    async fn remove(&self, object: Arc<O::Kind>) -> Result<Next, ReconcileError> {
        // The newest object in the Store: `deleting` may have written the status. After a change of the spec, `deleting` decides
        // again: the old version is a conflict.
        let is_same = |found: &Arc<O::Kind>| {
            let (found, seen) = (found.metadata(), object.metadata());
            found.uid == seen.uid && found.generation == seen.generation
        };
        let kept = self.shared.objects.get(&object.key());
        let is_kept = kept.is_some();
        let object = kept.filter(is_same).unwrap_or(object);
        let Some(index) = finalizer_index::<O>(object.metadata()) else { return Ok(Next::OnChange) };
        let answer = self.shared.cluster.patch(&*object, vec![removal(index)]).await?;
        // The version is the same if this was the last finalizer: the API server stores no new one, and deletes the object.
        if answer.metadata().resource_version == object.metadata().resource_version {
            self.shared.cluster.forget::<O::Kind>(answer.metadata());
            if !is_kept {
                // Its tombstone has the metadata alone.
                self.clean_up_after(Found::Readable(Arc::clone(&object))).await?;
            }
        }
        info!(target: LOG, kind = O::Kind::KIND, key = %object.key(), "cleaned up");
        Ok(Next::OnChange)
    }
}

/// The operation that removes the finalizer with this index.
fn removal(index: usize) -> Value {
    json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")})
}

/// The index of our finalizer in the list, if the list has it.
pub(super) fn finalizer_index<O: Operator>(metadata: &ObjectMeta) -> Option<usize> {
    metadata.finalizers.iter().position(|present| Some(&**present) == O::FINALIZER)
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::Mutex;

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{
        children::Children,
        client::DeleteOptions,
        cluster::Cluster,
        controller::{Controller, Reconcile},
        locked,
        resource::{MANAGED_BY, kinds::ConfigMap},
        runtime::Setup,
        testing::TestServer,
    };

    const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: disks.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Disk, plural: disks, singular: disk}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {keep: {type: boolean}, text: {type: string}}}}
";

    #[derive(Serialize, Deserialize)]
    struct Disk {
        metadata: ObjectMeta,
        #[serde(default)]
        text: String,
    }

    crate::kind!(Disk, "example.com", "v1", "disks");

    /// Writes to the Disk during its first cleanup.
    struct Disks {
        cluster: Cluster,
        operation: Mutex<Option<Value>>,
    }

    impl Operator for Disks {
        type Kind = Disk;
        const FINALIZER: Option<&'static str> = Some("example.com/disk");

        async fn reconcile(&self, _: Reconcile<Disk>) -> Result<Next, ReconcileError> {
            Ok(Next::OnChange)
        }

        async fn deleting(&self, disk: Reconcile<Disk>) -> Result<Cleanup, ReconcileError> {
            let operation = locked(&self.operation).take();
            if let Some(operation) = operation {
                self.cluster.patch(&*disk, vec![operation]).await?;
            }
            Ok(Cleanup::Done)
        }
    }

    /// Keeps a ConfigMap in its cleanup.
    struct Archives(Children<ConfigMap>);

    impl Operator for Archives {
        type Kind = Disk;
        const FINALIZER: Option<&'static str> = Some("example.com/disk");

        async fn reconcile(&self, _: Reconcile<Disk>) -> Result<Next, ReconcileError> {
            Ok(Next::OnChange)
        }

        async fn deleting(&self, disk: Reconcile<Disk>) -> Result<Cleanup, ReconcileError> {
            let labels = [(MANAGED_BY, "disks")].into_iter().collect();
            let metadata = ObjectMeta::of_child(&*disk, &disk.metadata.name, labels);
            let archive = disk.keep(&self.0, &ConfigMap { metadata, ..ConfigMap::default() }).await;
            Ok(if archive.kept().is_some() { Cleanup::Done } else { Cleanup::Pending(Next::OnChange) })
        }
    }

    /// Nothing was created, and the finalizer stayed for ever.
    #[tokio::test(start_paused = true)]
    async fn a_cleanup_can_keep_a_child() {
        let server = TestServer::start(&[CRD]).await;
        server.client.create(&disk()).await.expect("a Disk");
        server.client.delete::<Disk>(&disk().key(), &DeleteOptions::default()).await.expect("an answer");
        let controller = |setup: Setup| {
            let mut disks = setup.kind_without_status::<Disk>("disks");
            let operator = Archives(disks.children());
            disks.run_by(operator)
        };
        let writes = server.run(controller).await;
        assert_eq!(writes[..2], ["POST configmaps/a 201", "PATCH disks/a 200"]);
    }

    fn disk() -> Disk {
        Disk {
            metadata: ObjectMeta {
                name: "a".into(),
                namespace: Some("default".into()),
                finalizers: ["example.com/disk".into()].into(),
                ..ObjectMeta::default()
            },
            text: String::new(),
        }
    }

    /// The finalizer stayed for ever, and with it the namespace of the object.
    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_too_large_to_be_kept_is_cleaned_up() {
        let with_text = Disk { text: "a".repeat(300 * 1024), ..disk() };
        let mut with_finalizers = disk();
        let others = (0..100).map(|number| format!("example.com/{number:060}").into());
        with_finalizers.metadata.finalizers =
            with_finalizers.metadata.finalizers.iter().cloned().chain(others).collect();
        for large in [with_text, with_finalizers] {
            let server = TestServer::start(&[CRD]).await;
            server.client.create(&large).await.expect("a Disk");
            server.client.delete::<Disk>(&large.key(), &DeleteOptions::default()).await.expect("an answer");
            let controller = |setup: Setup| {
                let disks = setup.kind_without_status::<Disk>("disks");
                let operator = Disks { cluster: setup.cluster.clone(), operation: Mutex::default() };
                disks.run_by(operator)
            };
            assert_eq!(server.run(controller).await, ["PATCH disks/a 200"]);
        }
    }

    /// The watch sends nothing: each next step follows from the answer to the write before.
    #[tokio::test(start_paused = true)]
    async fn after_a_write_the_finalizer_is_removed_and_after_a_change_of_the_spec_cleaned_up_again() {
        let write = json!({"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}});
        let change = json!({"op": "add", "path": "/keep", "value": true});
        for (operation, expected) in [
            (write, &["PATCH disks/a 200", "PATCH disks/a 200"][..]),
            (change, &["PATCH disks/a 200", "PATCH disks/a 409", "PATCH disks/a 200"]),
        ] {
            let server = TestServer::start(&[CRD]).await;
            server.client.create(&disk()).await.expect("a Disk");
            server.client.delete::<Disk>(&disk().key(), &DeleteOptions::default()).await.expect("an answer");
            server.server.fault(listwatch_apiserver::Fault::StallWatches);
            let controller = |Setup { cluster, .. }: Setup| {
                let disks = cluster.watch::<Disk>([crate::resource::Scope::default()]);
                let operator = Disks { cluster: cluster.clone(), operation: Mutex::new(Some(operation)) };
                Controller::new(&cluster, &disks, operator)
            };
            assert_eq!(server.run(controller).await, expected);
        }
    }
}
