//! Children without an ownerReference: an ownerReference cannot name an owner in another namespace, so annotations do. Nothing in
//! this file does I/O.
//!
//! ```yaml
//! annotations:
//!   example.com/owner: default/main          # the owner
//!   example.com/owner-uid: 00e4f4f5-…        # a new object of that name has another uid, and is another owner
//!   example.com/place: team-a/settings       # the child: a copy of it with another name or namespace is not ours
//! ```
//!
//! `Builder::marked_children` has such children. No object that has other marks, or none, is changed or deleted. The garbage
//! collector does not know the owner, so the operator needs a `FINALIZER`, and deletes the children in `deleting`:
//! [`Reconcile::delete_all`](super::Reconcile::delete_all).

use crate::resource::{Key, Labels, ObjectMeta, Resource, Uid};

/// The keys of the annotations. The owners of each kind have keys of their own.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Its value is the namespace and name of the owner, or the name of one without a namespace.
    pub owner: &'static str,
    /// Its value is the uid of the owner.
    pub owner_uid: &'static str,
    /// Its value is the namespace and name of the child, or the name of one without a namespace.
    pub place: &'static str,
}

/// The owner of a child, according to its marks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MarkedOwner {
    /// Namespace and name.
    pub key: Key,
    /// The uid.
    pub uid: Uid,
}

impl MarkedOwner {
    /// An object as an owner.
    #[must_use]
    pub fn of<O: Resource>(owner: &O) -> MarkedOwner {
        MarkedOwner { key: owner.key(), uid: owner.metadata().uid.clone() }
    }
}

impl Marks {
    /// The metadata of a child, in any namespace or in none.
    #[must_use]
    pub fn child<O: Resource>(&self, owner: &O, place: &Key, labels: Labels) -> ObjectMeta {
        let marks = self.annotations(&MarkedOwner::of(owner), place);
        ObjectMeta {
            name: place.name.clone(),
            namespace: place.namespace.clone(),
            labels,
            annotations: marks.iter().map(|(key, value)| (*key, &**value)).collect(),
            ..ObjectMeta::default()
        }
    }

    /// The annotations of a child.
    #[must_use]
    pub fn annotations(&self, owner: &MarkedOwner, place: &Key) -> [(&'static str, String); 3] {
        [
            (self.owner, owner.key.to_string()),
            (self.owner_uid, owner.uid.to_string()),
            (self.place, place.to_string()),
        ]
    }

    /// The owner of an object, if it has all marks, and those of its own place.
    #[must_use]
    pub fn owner(&self, child: &ObjectMeta) -> Option<MarkedOwner> {
        let get = |key| child.annotations.get(key);
        let (owner, uid) = (get(self.owner)?, get(self.owner_uid)?.into());
        let key = Key::parse(owner).unwrap_or_else(|| Key::cluster(owner));
        (get(self.place)? == child.key().to_string()).then_some(MarkedOwner { key, uid })
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::Duration;

    use listwatch_apiserver::Fault;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;
    use crate::{
        children::Children,
        client::{DeleteOptions, Part, Patch},
        cluster::{Cluster, Events},
        controller::{Cleanup, Controller, Next, Operator, Reconcile, ReconcileError},
        resource::{MANAGED_BY, kinds::ConfigMap},
        runtime::Setup,
        testing::TestServer,
        watch::Lists,
    };

    const MARKS: Marks =
        Marks { owner: "example.com/owner", owner_uid: "example.com/owner-uid", place: "example.com/place" };

    #[derive(Serialize, Deserialize)]
    struct Banner {
        metadata: ObjectMeta,
    }

    crate::kind!(Banner, "example.com", "v1", "banners");

    const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: banners.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Banner, plural: banners, singular: banner}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
";

    /// Each Banner has a ConfigMap in the namespace `kube-public`.
    struct Banners {
        config_maps: Children<ConfigMap>,
    }

    impl Operator for Banners {
        type Kind = Banner;
        const FINALIZER: Option<&'static str> = Some("example.com/banner");

        async fn reconcile(&self, banner: Reconcile<Banner>) -> Result<Next, ReconcileError> {
            let place = Key::namespaced("kube-public", &banner.metadata.name);
            let data = [("text".to_owned(), "hello".to_owned())].into();
            let labels = [("kind", "banner"), (MANAGED_BY, "banners")].into_iter().collect();
            let metadata = MARKS.child(&*banner, &place, labels);
            let desired = ConfigMap { metadata, data, ..ConfigMap::default() };
            banner.keep(&self.config_maps, &desired).await;
            Ok(Next::OnChange)
        }

        async fn deleting(&self, banner: Reconcile<Banner>) -> Result<Cleanup, ReconcileError> {
            banner.delete_all(&self.config_maps).await?;
            Ok(Cleanup::Done)
        }
    }

    fn metadata(key: &Key) -> ObjectMeta {
        ObjectMeta { name: key.name.clone(), namespace: key.namespace.clone(), ..ObjectMeta::default() }
    }

    fn controller(setup: Setup) -> Controller<Banners> {
        let mut banners = setup.kind_without_status::<Banner>("banners");
        let operator = Banners { config_maps: banners.marked_children(MARKS) };
        banners.run_by(operator)
    }

    async fn run(server: &TestServer) -> Vec<String> {
        server.run(controller).await
    }

    /// Those without a namespace were none, so that an operator left its own child behind.
    #[test]
    fn the_marks_of_a_child_name_its_owner_and_its_place_with_and_without_namespaces() {
        let keys = [Key::namespaced("default", "one"), Key::cluster("one")];
        for (owner, place) in keys.iter().flat_map(|owner| keys.iter().map(move |place| (owner, place))) {
            let owner = Banner { metadata: ObjectMeta { uid: "1".into(), ..metadata(owner) } };
            let child = MARKS.child(&owner, place, Labels::default());
            assert_eq!(MARKS.owner(&child), Some(MarkedOwner::of(&owner)));
            let elsewhere = ObjectMeta { namespace: Some("elsewhere".into()), ..child };
            assert_eq!(MARKS.owner(&elsewhere), None);
        }
    }

    #[test]
    fn a_mark_of_another_place_is_none() {
        let owner = |owner: &str, place: &str| {
            let annotations = json!({MARKS.owner: owner, MARKS.owner_uid: "1", MARKS.place: place});
            let annotations = serde_json::from_value(annotations).expect("a map of strings");
            MARKS.owner(&ObjectMeta {
                name: "a".into(),
                namespace: Some("b".into()),
                annotations,
                ..ObjectMeta::default()
            })
        };
        let one = MarkedOwner { key: Key::namespaced("default", "one"), uid: "1".into() };
        assert_eq!(owner("default/one", "b/a"), Some(one));
        assert_eq!([owner("default/one", "a"), owner("default/one", "c/a")], [None, None]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_in_another_namespace_is_known_by_its_marks() {
        let server = TestServer::start(&[CRD]).await;
        let client = &server.client;
        let (owner, place) = (Key::namespaced("default", "one"), Key::namespaced("kube-public", "one"));
        let banner = Banner { metadata: metadata(&owner) };
        let none = [""; 0];
        client.create(&banner).await.expect("a Banner");
        assert_eq!(run(&server).await, ["PATCH banners/one 200", "POST configmaps/one 201"]);
        assert_eq!(run(&server).await, none);

        // An edit is corrected.
        let edit = Patch::Merge(json!({"data": {"text": "other", "more": "text"}}));
        client.patch::<ConfigMap>(&place, Part::Object, &edit).await.expect("a ConfigMap");
        assert_eq!(run(&server).await, ["PATCH configmaps/one 200"]);

        // A copy of the child has the marks of another place.
        let copy = Key::namespaced("default", "copy");
        let child: ConfigMap = client.get(&place).await.expect("a ConfigMap");
        assert_eq!(child.metadata.labels.get("kind"), Some("banner"));
        let annotations = child.metadata.annotations.clone();
        let marked = ObjectMeta { annotations, ..metadata(&copy) };
        client.create(&ConfigMap { metadata: marked, ..child }).await.expect("a ConfigMap");
        // So the deletion of the owner leaves it, and takes the child.
        client.delete::<Banner>(&owner, &DeleteOptions::default()).await.expect("an answer");
        assert_eq!(run(&server).await, ["DELETE configmaps/one 200", "PATCH banners/one 200"]);
        client.get::<ConfigMap>(&copy).await.expect("the copy");

        // The child of a former owner of this name is replaced: it has another uid.
        let former = Banner { metadata: ObjectMeta { uid: "former".into(), ..metadata(&owner) } };
        let labels = [(MANAGED_BY, "banners")].into_iter().collect();
        let metadata_of_child = MARKS.child(&former, &place, labels);
        client.create(&ConfigMap { metadata: metadata_of_child, ..ConfigMap::default() }).await.expect("one");
        client.create(&banner).await.expect("a Banner");
        let replaced = ["PATCH banners/one 200", "DELETE configmaps/one 200", "POST configmaps/one 201"];
        assert_eq!(run(&server).await, replaced);

        // With the marks of another owner, the object is foreign: neither changed nor deleted.
        let marks = json!({"example.com/owner": "default/other", "example.com/owner-uid": "another"});
        let edit = Patch::Merge(json!({"metadata": {"annotations": marks}, "data": null}));
        client.patch::<ConfigMap>(&place, Part::Object, &edit).await.expect("a ConfigMap");
        assert_eq!(run(&server).await, none);
        client.delete::<Banner>(&owner, &DeleteOptions::default()).await.expect("an answer");
        assert_eq!(run(&server).await, ["PATCH banners/one 200"]);
        client.get::<ConfigMap>(&place).await.expect("the foreign object");
    }

    /// A server with a child in another namespace than its owner, which is being deleted while no operator runs.
    async fn with_deleted_owner(namespaces: &[String]) -> TestServer {
        let server = TestServer::start(&[CRD]).await;
        let owner = Key::namespaced("default", "one");
        server.client.create(&Banner { metadata: metadata(&owner) }).await.expect("a Banner");
        server.run(|setup| controller(Setup { namespaces: namespaces.to_vec(), ..setup })).await;
        server.client.delete::<Banner>(&owner, &DeleteOptions::default()).await.expect("an answer");
        server
    }

    /// After a start, the finalizer was removed as soon as the namespace of the owner was listed, so the child in another
    /// namespace was left behind.
    #[tokio::test(start_paused = true)]
    async fn a_deleted_owner_waits_for_the_lists_of_other_namespaces() {
        let namespaces = ["default", "kube-public"].map(str::to_owned);
        let server = with_deleted_owner(&namespaces).await;
        server
            .server
            .fault(Fault::Delay(Duration::from_secs(1)).on("GET", "/namespaces/kube-public/configmaps"));
        let run = server.run(|setup| controller(Setup { namespaces: namespaces.to_vec(), ..setup }));
        assert_eq!(run.await, ["DELETE configmaps/one 200", "PATCH banners/one 200"]);
    }

    /// While an API server starts, it forbids what it allows a moment later.
    #[tokio::test(start_paused = true)]
    async fn a_deleted_owner_waits_a_minute_for_a_forbidden_namespace() {
        let namespaces = ["default", "kube-public"].map(str::to_owned);
        for forbidden in &namespaces {
            let server = with_deleted_owner(&namespaces).await;
            let path = format!("/namespaces/{forbidden}/configmaps");
            let run = async |secs| {
                server.server.fault(Fault::Forbidden(Vec::new()).on("GET", &path));
                let (events, _unsent) =
                    Events::new(server.client.clone(), "example.com/test", "test".to_owned());
                let cluster = Cluster::new(server.client.clone(), Lists::Paged);
                let setup = Setup { cluster, events, namespaces: namespaces.to_vec() };
                let run = controller(setup).run(std::future::pending());
                tokio::time::timeout(Duration::from_secs(secs), run).await.expect_err("it runs on");
                server.server.end_faults();
            };
            let exists = async || {
                let owner = server.client.get::<Banner>(&Key::namespaced("default", "one")).await;
                let child = server.client.get::<ConfigMap>(&Key::namespaced("kube-public", "one")).await;
                (owner.is_ok(), child.is_ok())
            };
            run(55).await;
            assert_eq!(exists().await, (true, true), "{forbidden}");
            run(120).await;
            assert_eq!(exists().await, (false, forbidden == "kube-public"), "{forbidden}");
        }
    }
}
