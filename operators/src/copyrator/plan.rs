//! Computes which copies there should be, and what to do to get them. Nothing in this file does I/O.
//!
//! ```text
//! sources × target namespaces − present copies = Create, Check
//! present copies of the rule − wanted copies   = Delete
//! ```
//!
//! [`plan`] knows the metadata of copies alone. So it checks each copy that may differ: the operator reads the object, and
//! [`decide`] compares the whole.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::Arc,
};

use listwatch::resource::{
    Key, MANAGED_BY, ObjectMeta, Resource,
    diff::{self, Difference},
    kinds::Namespace,
    list::Found,
};
use serde_json::Value;
use smol_str::SmolStr;

use super::{
    Glob,
    copy::{Copied, Copyable, LABEL, Mark, Original, owned},
    outcome::{NAME_CONFLICT, OLDER_WINS, Pass, Pause, SOURCE_TOO_LARGE, failure, terminating},
    types::{ConflictPolicy, CopyratorRule, CopyratorSpec, SyncPolicy},
};

/// The domains of labels and annotations that programs set: the copyrator, Kubernetes (applysets of kubectl, for example), Helm, Argo CD, Flux.
const MARKING: [&str; 6] = ["flant.com", "kubernetes.io", "k8s.io", "helm.sh", "argoproj.io", "fluxcd.io"];
/// Those in these domains that ask a program for something, and do not say whose the object is.
const ASKING: [(&str, &str); 3] = [
    ("argocd.argoproj.io", "secret-type"),
    ("argocd.argoproj.io", "sync-options"),
    ("argocd.argoproj.io", "compare-options"),
];

/// The rule that made a copy, as seen by another rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Maker {
    /// This rule.
    Us,
    /// A younger rule, which gives way. It is in our namespace: the author of a rule in another one may have more rights than ours.
    Younger,
    /// A rule that keeps its copies: an older one, or one of another namespace.
    Older(Key),
    /// A rule that no longer exists.
    Gone,
}

impl Maker {
    /// The rule that made a copy with these marks. `present` is the present rule of that name.
    pub(super) fn of(mark: &Mark, us: &CopyratorRule, present: Option<&CopyratorRule>) -> Maker {
        let age = |rule: &CopyratorRule| (rule.metadata.creation_timestamp, rule.key());
        match present {
            _ if mark.rule_uid == us.metadata.uid => Maker::Us,
            Some(other) if other.metadata.uid != mark.rule_uid => Maker::Gone,
            Some(other) if other.metadata.namespace != us.metadata.namespace || age(other) < age(us) => {
                Maker::Older(other.key())
            }
            Some(_) => Maker::Younger,
            None => Maker::Gone,
        }
    }
}

/// Something to do for one copy.
pub(super) enum CopyStep<K> {
    /// No copy of any rule is there.
    Create(Arc<Original<K>>, SmolStr),
    /// The copy may differ, or belongs to a rule that gives way.
    Check(Arc<Original<K>>, SmolStr),
    /// According to its digest the copy is up to date, but its content was not seen since it has changed, or since we started.
    Verify(Arc<Original<K>>, SmolStr),
    /// The copy of this rule is no longer wanted.
    Delete(Arc<Copied<K>>),
}

impl<K: Copyable> CopyStep<K> {
    /// The copy.
    pub(super) fn key(&self) -> Key {
        match self {
            CopyStep::Create(original, namespace)
            | CopyStep::Check(original, namespace)
            | CopyStep::Verify(original, namespace) => {
                Key { namespace: Some(namespace.clone()), name: original.name().clone() }
            }
            CopyStep::Delete(copied) => copied.key(),
        }
    }

    fn original(&self) -> Option<&Original<K>> {
        match self {
            CopyStep::Create(original, _) | CopyStep::Check(original, _) | CopyStep::Verify(original, _) => {
                Some(original)
            }
            CopyStep::Delete(_) => None,
        }
    }

    /// The bytes of its source.
    pub(super) fn bytes(&self) -> usize {
        self.original().map_or(0, Original::bytes)
    }

    /// The digest of the copy, empty for none.
    pub(super) fn digest(&self) -> SmolStr {
        self.original().map(Original::digest).cloned().unwrap_or_default()
    }

    /// In which order the kinds of steps are done.
    fn order(&self) -> usize {
        match self {
            CopyStep::Create(..) => 0,
            CopyStep::Check(..) => 1,
            CopyStep::Delete(_) => 2,
            CopyStep::Verify(..) => 3,
        }
    }

    /// Whether the step will probably write.
    pub(super) fn writes(&self) -> bool {
        match self {
            CopyStep::Create(..) | CopyStep::Check(..) | CopyStep::Delete(_) => true,
            CopyStep::Verify(..) => false,
        }
    }
}

/// The state of the cluster for a [`plan`].
pub(super) struct View<'a, K> {
    /// The namespaces that get copies.
    pub(super) targets: &'a [SmolStr],
    /// The copies of this rule.
    pub(super) ours: Vec<Arc<Copied<K>>>,
    /// The copy of any rule at a place.
    pub(super) find: &'a dyn Fn(&Key) -> Option<Arc<Copied<K>>>,
    /// Whether the copy in this namespace was created once, and is not created again.
    pub(super) was_created: &'a dyn Fn(&Original<K>, &SmolStr) -> bool,
    /// The maker of a copy.
    pub(super) maker: &'a dyn Fn(&Mark) -> Maker,
    /// The pause for whose end a step must wait.
    pub(super) pause: &'a mut dyn FnMut(&CopyStep<K>) -> Option<Pause>,
    /// Most steps of each kind. All steps of many copies would take as much memory as a tenth of the copies.
    pub(super) steps_max: usize,
    /// Whether a namespace exists and is not being deleted. In other namespaces, nothing is deleted: all copies go with
    /// their namespace.
    pub(super) is_active: &'a dyn Fn(&str) -> bool,
}

/// The steps that make the copies of `rule` complete: copies to create first, then to check, to delete and to verify. At most
/// [`View::steps_max`] of each; the others are left. Adds to the counts and the failures of the pass.
pub(super) fn plan<'a, K: Copyable>(
    rule: &CopyratorRule,
    spec: &Arc<CopyratorSpec>,
    sources: Vec<Found<K>>,
    view: View<'a, K>,
    pass: &'a mut Pass,
) -> Vec<CopyStep<K>> {
    let sources = choose(sources, pass);
    let mut planner = Planner { sync: spec.sync_policy, view, steps: Default::default(), pass };
    for source in sources.oldest.values().filter_map(Found::readable) {
        planner.pass.sources += 1;
        let original = Arc::new(Original::new(rule, spec, Arc::clone(source)));
        planner.pass.versions.push(original.version());
        for namespace in planner.view.targets {
            let place = Key { namespace: Some(namespace.clone()), name: original.name().clone() };
            if !sources.places.contains(&place) {
                planner.copy(&original, namespace, &place);
            }
        }
    }
    planner.delete_all_but(&sources);
    planner.steps.into_iter().flatten().collect()
}

/// The sources of a rule, by their names.
struct Chosen<K> {
    /// The oldest source of each name. If there is no room for its content, its copies stay as they are.
    oldest: BTreeMap<SmolStr, Found<K>>,
    /// Where the sources are. None of these places gets a copy.
    places: HashSet<Key>,
}

/// Of the sources of one name, the oldest one is copied. The others fail, and so do those without content.
fn choose<K: Copyable>(mut sources: Vec<Found<K>>, pass: &mut Pass) -> Chosen<K> {
    let mut chosen = Chosen { oldest: BTreeMap::new(), places: HashSet::new() };
    // A copy of any rule is never a source, whatever the selector selects.
    let is_source = |source: &Arc<K>| {
        !is_bound_to_its_namespace(&**source) && source.metadata().labels.get(LABEL).is_none()
    };
    sources.retain(|source| source.readable().is_none_or(is_source));
    // The oldest first.
    sources.sort_by_key(|source| (source.metadata().creation_timestamp, source.metadata().key()));
    for source in sources {
        let (key, oldest) = (source.metadata().key(), chosen.oldest.get(&source.metadata().name));
        match (&source, oldest) {
            (Found::Partial(partial), _) => {
                let message = format!("{}: its copies stay as they are", partial.message);
                pass.failures.push(failure(&key, SOURCE_TOO_LARGE, message));
            }
            (Found::Readable(_), Some(oldest)) => {
                let oldest = oldest.metadata().key();
                let message = format!("{oldest} is older and has the same name; rename one of them");
                pass.failures.push(failure(&key, OLDER_WINS, message));
            }
            (Found::Readable(_), None) => {}
        }
        chosen.oldest.entry(key.name.clone()).or_insert(source);
        chosen.places.insert(key);
    }
    chosen
}

/// A plan in the making.
struct Planner<'a, K> {
    sync: SyncPolicy,
    view: View<'a, K>,
    /// In the order of [`CopyStep::order`].
    steps: [Vec<CopyStep<K>>; 4],
    pass: &'a mut Pass,
}

impl<K: Copyable> Planner<'_, K> {
    /// Plans the copy in one namespace.
    fn copy(&mut self, original: &Arc<Original<K>>, namespace: &SmolStr, place: &Key) {
        let step = |step: fn(Arc<Original<K>>, SmolStr) -> CopyStep<K>| {
            step(Arc::clone(original), namespace.clone())
        };
        let Some(copied) = (self.view.find)(place) else {
            if !(self.view.was_created)(original, namespace) {
                self.pass.wanted += 1;
                self.add(step(CopyStep::Create));
            }
            return;
        };
        self.pass.wanted += 1;
        match copied.mark.as_ref().map(|mark| (mark, (self.view.maker)(mark))) {
            _ if copied.metadata().is_terminating() => {
                self.pass.failures.push(terminating(copied.metadata()));
            }
            Some((mark, Maker::Us)) if original.is_up_to_date(mark) => {
                // A pause means that somebody had changed the copy, and may have done so again.
                let is_so =
                    self.sync == SyncPolicy::Once || copied.is_verified() || self.add(step(CopyStep::Verify));
                self.pass.copies += usize::from(is_so);
            }
            Some((_, Maker::Older(other))) => {
                self.pass.failures.push(failure(place, OLDER_WINS, older(&other)));
            }
            Some((_, Maker::Us | Maker::Younger | Maker::Gone)) | None => {
                self.add(step(CopyStep::Check));
            }
        }
    }

    /// Plans the deletion of the copies that are no longer wanted.
    fn delete_all_but(&mut self, sources: &Chosen<K>) {
        let targets: HashSet<&SmolStr> = self.view.targets.iter().collect();
        for copied in mem::take(&mut self.view.ours) {
            let metadata = copied.metadata();
            let Some(namespace) = &metadata.namespace else { continue };
            let is_wanted = match sources.oldest.get(&metadata.name) {
                Some(Found::Readable(_)) => {
                    targets.contains(namespace) && !sources.places.contains(&copied.key())
                }
                Some(Found::Partial(_)) => true,
                None => false,
            };
            if !is_wanted && !metadata.is_terminating() && (self.view.is_active)(namespace) {
                self.add(CopyStep::Delete(copied));
            }
        }
    }

    /// Adds a step, if it is due. Returns whether it is.
    fn add(&mut self, step: CopyStep<K>) -> bool {
        if let Some(pause) = (self.view.pause)(&step) {
            self.pass.pauses(pause);
            return false;
        }
        let steps = &mut self.steps[step.order()];
        if steps.len() < self.view.steps_max {
            steps.push(step);
        } else {
            self.pass.left += 1;
            self.pass.has_writes_left |= step.writes();
        }
        true
    }
}

fn older(rule: &Key) -> String {
    format!(
        "the CopyratorRule {rule} has its copy there, and gives it up only to an older rule of its namespace"
    )
}

/// The step for an object that has the name of a copy.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// It is as desired.
    Keep,
    /// These operations make it as desired.
    Patch(Vec<Value>),
    /// Its content can never be changed, so it must be deleted and created again, after these operations have made it ours.
    Replace(Vec<Value>),
    /// It stays.
    Conflict(&'static str, String),
}

/// The step that turns `live` into the copy `desired` of `original`. `maker` is the maker of `live`, if it is a copy.
pub(super) fn decide<K: Copyable>(
    live: &K,
    desired: &K,
    maker: Option<Maker>,
    is_same_source: bool,
    policy: ConflictPolicy,
) -> Decision {
    let (mut metadata, content) = differences(live, desired);
    let is_other = !content.is_empty();
    let is_fixed = content.iter().any(|difference| live.is_immutable(&difference.path));
    let conflict = |message: &str| Decision::Conflict(NAME_CONFLICT, message.to_owned());
    match maker {
        Some(Maker::Us) if is_fixed => return Decision::Replace(Vec::new()),
        Some(Maker::Older(rule)) => return Decision::Conflict(OLDER_WINS, older(&rule)),
        Some(Maker::Younger) if is_fixed => return Decision::Replace(diff::operations(&metadata)),
        Some(Maker::Us | Maker::Younger) => {}
        // A copy that a deleted rule left behind has nothing of its own to lose.
        Some(Maker::Gone) if is_same_source && !is_fixed => {}
        Some(Maker::Gone) | None => {
            if let Some(keeper) = keeper(live.metadata()) {
                return conflict(&format!(
                    "{keeper}, so it stays whatever conflictPolicy says: rename one of the two, or exclude its namespace"
                ));
            }
            match policy {
                ConflictPolicy::Skip => {
                    return conflict(
                        "an object that is not a copy has this name: delete it, exclude its namespace, or set conflictPolicy",
                    );
                }
                ConflictPolicy::Adopt if is_other => {
                    return conflict(
                        "an object with other content has this name, so it is not adopted: delete it, or set conflictPolicy to Overwrite",
                    );
                }
                ConflictPolicy::Overwrite if is_fixed => {
                    return conflict(
                        "an object of another type, or with immutable: true, has this name: delete it",
                    );
                }
                ConflictPolicy::Adopt | ConflictPolicy::Overwrite => {}
            }
        }
    }
    metadata.extend(content);
    if metadata.is_empty() { Decision::Keep } else { Decision::Patch(diff::operations(&metadata)) }
}

/// Who keeps an object with the name of a copy as it is, and would write it again: its controller, or the program that it names.
fn keeper(live: &ObjectMeta) -> Option<String> {
    let by = live.controller().map(|owner| format!("belongs to {} {}", owner.kind, owner.name));
    let manager = live.labels.get(MANAGED_BY).filter(|manager| !manager.is_empty());
    let keeper = by.or_else(|| manager.map(|manager| format!("has the label {MANAGED_BY}: {manager}")))?;
    Some(format!("an object that {keeper} has this name"))
}

/// What differs in the metadata and in the content of `live`.
fn differences<K: Copyable>(live: &K, desired: &K) -> (Vec<Difference>, Vec<Difference>) {
    let owned = owned(live.metadata());
    let differences = diff::between(live, desired, &owned.iter().map(String::as_str).collect::<Vec<_>>());
    differences.into_iter().partition(|difference| difference.path.starts_with("/metadata/"))
}

/// Whether objects like this one are made for their namespace alone, and are never copied.
pub(super) fn is_bound_to_its_namespace<K: Copyable>(object: &K) -> bool {
    let types =
        ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release.v1"];
    let name = &object.metadata().name;
    // Helm can also store its releases in ConfigMaps.
    types.contains(&object.secret_type())
        || name == "kube-root-ca.crt"
        || name.starts_with("sh.helm.release.v1.")
}

/// Whether the label or annotation with this key says which program has made an object. A copy with the mark of another program might be
/// deleted by it, because the copy is in none of its manifests.
pub(super) fn is_marker(key: &str) -> bool {
    let Some((domain, name)) = key.split_once('/') else { return false };
    let is_of =
        |owner: &str| domain.strip_suffix(owner).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    match domain {
        // Recommended for everybody, but Argo CD and Helm find their objects by these two.
        "app.kubernetes.io" => ["instance", "managed-by"].contains(&name),
        _ => !ASKING.contains(&(domain, name)) && MARKING.into_iter().any(is_of),
    }
}

/// Whether a namespace accepts new objects.
pub(super) fn is_active(namespace: &Namespace) -> bool {
    namespace.status.phase != "Terminating" && !namespace.metadata.is_terminating()
}

impl CopyratorSpec {
    /// Whether a namespace gets copies of the objects in other namespaces.
    #[must_use]
    pub fn is_target(&self, namespace: &Namespace) -> bool {
        let target = &self.target_namespaces;
        let name = &*namespace.metadata.name;
        let is_included =
            |is_included: fn(&Glob, &str) -> bool| target.include.iter().any(|glob| is_included(glob, name));
        is_active(namespace)
            && (target.include.is_empty() || is_included(Glob::matches))
            && (!name.starts_with("kube-") || is_included(Glob::is_name))
            && !target.exclude.iter().any(|glob| glob.matches(name))
            && target.selector.matches(&namespace.metadata.labels)
    }

    /// Whether a copy gets the label with this key: never a label of the selector, and no [`is_marker`].
    #[must_use]
    pub fn is_copied_label(&self, key: &str) -> bool {
        self.copy_labels.iter().any(|copied| copied == key)
            && !is_marker(key)
            && !self.selector.keys().any(|selected| selected == key)
    }

    /// Whether a copy gets the annotation with this key: no [`is_marker`].
    #[must_use]
    pub fn is_copied_annotation(&self, key: &str) -> bool {
        self.copy_annotations.iter().any(|copied| copied == key) && !is_marker(key)
    }

    /// Whether a copy has the data as it is.
    #[must_use]
    pub fn copies_all_keys(&self) -> bool {
        self.keys.is_empty() && self.rename.is_empty()
    }

    /// The keys that the rule names, and their names in the copies.
    #[must_use]
    pub fn named_keys(&self) -> BTreeMap<&SmolStr, &str> {
        let named = self.keys.iter().chain(self.rename.keys());
        named.filter_map(|key| Some((key, self.name_of_key(key)?))).collect()
    }

    /// The name of a key in the copies. `None`: they do not have it.
    #[must_use]
    pub fn name_of_key<'a>(&'a self, key: &'a str) -> Option<&'a str> {
        let is_copied = self.keys.is_empty() || self.keys.iter().any(|copied| copied == key);
        is_copied.then(|| self.rename.get(key).map_or(key, SmolStr::as_str))
    }
}
