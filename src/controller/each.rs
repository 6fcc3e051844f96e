//! Watches that objects name in their specs: each is open while an object names its scope.
//!
//! ```text
//!   CopyratorRule a ──┐
//!                     ├─► watch of ConfigMaps in default, labels copyrator=true
//!   CopyratorRule b ──┘
//!   CopyratorRule c ────► watch of ConfigMaps in staging, labels team=web
//! ```

use std::{
    collections::{BTreeSet, HashMap},
    marker::PhantomData,
    sync::{Arc, Mutex},
};

use super::{
    Builder,
    builder::{WATCHES, WHY_WATCHED},
};
use crate::{
    cluster::{Cluster, Readiness, Watch},
    locked,
    queue::Urgency,
    resource::{Key, Resource, Scope},
    store::{Kept, Listening},
};

/// Opens the watches that an object names now, and closes those that it named before. Without the object, closes all of them.
pub(super) type NamedBy<K> = dyn Fn(&Key, Option<&K>) -> Readiness + Send + Sync;

/// Objects that each of our objects names. [`Builder::named`] makes it.
pub struct Named<C> {
    cluster: Cluster,
    kind: PhantomData<fn() -> C>,
}

impl<C: Resource> Named<C> {
    /// The object with this key, one that the reconciled object names. `None`: there is none. Not in
    /// [`Operator::deleting`](super::Operator::deleting), where the object names none: use [`Cluster::get_live`].
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<C>> {
        self.cluster.watch::<C>([Scope::one(key)]).get(key)
    }
}

impl<K: Resource> Builder<K> {
    /// The objects that each of our objects names by their keys, such as the Secret in its spec. Each is watched alone, as long as an
    /// object names it: see [`Builder::watches_each`].
    pub fn named<C: Resource, I: IntoIterator<Item = Key>>(
        &mut self,
        keys_of: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Named<C> {
        self.watches_each::<C>(move |object| {
            keys_of(object).into_iter().map(|key| Scope::one(&key)).collect()
        });
        Named { cluster: self.shared.cluster.clone(), kind: PhantomData }
    }

    /// Also watches, for each object, the scopes that `scopes` returns for it. Watches of the same scope are shared,
    /// and end with the last object that needs them. The object is reconciled after these watches have synced, and
    /// again after each change in them. While one of them is forbidden, or fails before its first sync, its status says so.
    ///
    /// In [`Operator::reconcile`](super::Operator::reconcile), [`Cluster::watch`] with the same scopes returns the same, synced Stores.
    /// An object that is being deleted names no scopes: [`Operator::deleting`](super::Operator::deleting) waits for none.
    pub fn watches_each<C: Resource>(&mut self, scopes: impl Fn(&K) -> Vec<Scope> + Send + Sync + 'static) {
        self.watches_each_keeping::<C>(self.shared.cluster.kept(), scopes);
    }

    /// [`Builder::watches_each`], with a limit of its own for what the Stores keep. [`Cluster::watch_keeping`] returns the
    /// same Stores.
    pub fn watches_each_keeping<C: Resource>(
        &mut self,
        kept: Kept<C>,
        scopes: impl Fn(&K) -> Vec<Scope> + Send + Sync + 'static,
    ) {
        // The scopes may be in any namespace.
        self.needs_everywhere::<C>(WATCHES, WHY_WATCHED);
        let shared = Arc::clone(&self.shared);
        let each = Each::<C>::new(&self.shared.cluster, kept, move |key| {
            shared.queue.add(key, Urgency::Change);
        });
        self.named.push(Box::new(move |key, object| match object {
            Some(object) => each.name(key, scopes(object)),
            None => {
                each.forget(key);
                Readiness::Ready
            }
        }));
    }
}

/// The watches of kind `K` that objects name.
struct Each<K> {
    cluster: Cluster,
    kept: Kept<K>,
    /// Reconciles a key again.
    wake: Arc<dyn Fn(&Key) + Send + Sync>,
    open: Mutex<Open<K>>,
}

struct Open<K> {
    /// The scopes that each object names.
    named: HashMap<Key, Vec<Scope>>,
    watches: HashMap<Scope, Opened<K>>,
}

/// An open watch, and the objects that name it.
struct Opened<K> {
    watch: Watch<K>,
    by: Arc<Mutex<BTreeSet<Key>>>,
    _listening: Listening,
}

impl<K: Resource> Each<K> {
    fn new(cluster: &Cluster, kept: Kept<K>, wake: impl Fn(&Key) + Send + Sync + 'static) -> Each<K> {
        let open = Mutex::new(Open { named: HashMap::new(), watches: HashMap::new() });
        Each { cluster: cluster.clone(), kept, wake: Arc::new(wake), open }
    }

    /// Opens the watches that an object names now, and closes those that it named before, unless another object names them.
    /// Returns whether all of them have synced.
    fn name(&self, key: &Key, scopes: Vec<Scope>) -> Readiness {
        let mut open = locked(&self.open);
        let Open { named, watches } = &mut *open;
        if named.get(key).is_none_or(|before| *before != scopes) {
            for scope in &scopes {
                let watch = watches.entry(scope.clone()).or_insert_with(|| self.open(scope));
                locked(&watch.by).insert(key.clone());
            }
            let before = named.insert(key.clone(), scopes.clone()).unwrap_or_default();
            close(key, before.iter().filter(|scope| !scopes.contains(scope)), watches);
        }
        let of = |scope: &Scope| watches[scope].watch.readiness();
        scopes.iter().map(of).max().unwrap_or(Readiness::Ready)
    }

    /// Closes the watches of a deleted object.
    fn forget(&self, key: &Key) {
        let mut open = locked(&self.open);
        let before = open.named.remove(key).unwrap_or_default();
        close(key, before.iter(), &mut open.watches);
    }

    fn open(&self, scope: &Scope) -> Opened<K> {
        let watch = self.cluster.watch_keeping([scope.clone()], &self.kept);
        let by = Arc::<Mutex<BTreeSet<Key>>>::default();
        let (keys, wake, store) = (Arc::clone(&by), Arc::clone(&self.wake), watch.clone());
        let _listening = watch.listen(move |_, _| {
            // Before, the keys wait for the sync, not for each object of the list.
            if store.is_synced() {
                locked(&keys).iter().for_each(|key| wake(key));
            }
        });
        Opened { watch, by, _listening }
    }
}

fn close<'a, K>(key: &Key, scopes: impl Iterator<Item = &'a Scope>, watches: &mut HashMap<Scope, Opened<K>>) {
    for scope in scopes {
        let Some(watch) = watches.get(scope) else { continue };
        locked(&watch.by).remove(key);
        if locked(&watch.by).is_empty() {
            watches.remove(scope);
        }
    }
}
