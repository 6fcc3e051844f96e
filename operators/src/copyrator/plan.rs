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
    sync::Arc,
};

use listwatch::resource::{
    Key, MANAGED_BY, ObjectMeta, Resource, Timestamp, diff, kinds::Namespace, list::Broken,
};
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::{
    Glob,
    copy::{Copied, Copyable, LABEL, Mark, Original, stale},
    types::{ConflictPolicy, CopyFailure, CopyratorRule, CopyratorSpec, SyncPolicy},
};

/// The reason of a failure if another object has the name of a copy.
pub const NAME_CONFLICT: &str = "NameConflict";
/// The reason of a failure if there is no room for the content of an object to copy.
pub const SOURCE_TOO_LARGE: &str = "SourceTooLarge";
/// The reason of a failure if another rule or source has precedence.
pub const OLDER_WINS: &str = "OlderWins";

/// The domains of labels and annotations that programs set: the copyrator, Kubernetes (applysets of kubectl, for example), Helm, Argo CD, Flux.
const MARKING: [&str; 6] = ["flant.com", "kubernetes.io", "k8s.io", "helm.sh", "argoproj.io", "fluxcd.io"];
/// Those in these domains that ask a program for something, and do not say whose the object is.
const ASKING: [(&str, &str); 3] = [
    ("argocd.argoproj.io", "secret-type"),
    ("argocd.argoproj.io", "sync-options"),
    ("argocd.argoproj.io", "compare-options"),
];

/// The reason of a failure while another client keeps undoing our corrections of a copy.
pub const DISPUTED: &str = "Disputed";
/// The reason of a failure if a deleted object still has the name of a copy.
const TERMINATING: &str = "Terminating";

/// The rule that made a copy, as seen by another rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Maker {
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
    #[must_use]
    pub fn of(mark: &Mark, us: &CopyratorRule, present: Option<&CopyratorRule>) -> Maker {
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
pub enum CopyStep<K> {
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
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            CopyStep::Create(original, namespace)
            | CopyStep::Check(original, namespace)
            | CopyStep::Verify(original, namespace) => {
                Key { namespace: Some(namespace.clone()), name: original.name().clone() }
            }
            CopyStep::Delete(copied) => copied.key(),
        }
    }

    /// The bytes of its source.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            CopyStep::Create(original, _) | CopyStep::Check(original, _) | CopyStep::Verify(original, _) => {
                original.bytes()
            }
            CopyStep::Delete(_) => 0,
        }
    }

    /// Whether the step will probably write.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            CopyStep::Create(..) | CopyStep::Check(..) | CopyStep::Delete(_) => true,
            CopyStep::Verify(..) => false,
        }
    }

    /// The digest of the copy, empty for none.
    #[must_use]
    pub fn digest(&self) -> SmolStr {
        match self {
            CopyStep::Create(original, _) | CopyStep::Check(original, _) | CopyStep::Verify(original, _) => {
                original.digest().clone()
            }
            CopyStep::Delete(_) => SmolStr::default(),
        }
    }
}

/// The steps for the copies of one rule and kind.
pub struct CopyPlan<K> {
    /// Copies to create first, then to check, to delete and to verify. At most [`View::steps_max`] of each.
    pub steps: Vec<CopyStep<K>>,
    /// Number of other steps.
    pub left: usize,
    /// Whether some of them will probably write.
    pub has_writes_left: bool,
    /// The versions of the copied objects.
    pub versions: Vec<String>,
    /// Copies that cannot be there.
    pub failures: Vec<CopyFailure>,
    /// Number of copied objects.
    pub sources: usize,
    /// Number of copies that there should be.
    pub wanted: usize,
    /// Number of copies that are up to date according to their digests, and whose content is not about to be verified after a
    /// pause.
    pub copies: usize,
}

/// The objects that match the selector of a rule, at one moment.
pub struct Sources<K> {
    /// Those to copy.
    pub readable: Vec<Arc<K>>,
    /// Those for whose content there is no room. Their copies stay as they are.
    pub left_out: Vec<Arc<Broken>>,
}

impl<K> Default for Sources<K> {
    fn default() -> Sources<K> {
        Sources { readable: Vec::new(), left_out: Vec::new() }
    }
}

/// The state of the cluster for a [`plan`].
pub struct View<'a, K> {
    /// The objects that match the selector.
    pub sources: Sources<K>,
    /// The namespaces that get copies.
    pub targets: &'a [SmolStr],
    /// The copies of this rule.
    pub ours: Vec<Arc<Copied<K>>>,
    /// The copy of any rule at a place.
    pub find: &'a dyn Fn(&Key) -> Option<Arc<Copied<K>>>,
    /// Whether the copy in this namespace was created once, and is not created again.
    pub was_created: &'a dyn Fn(&Original<K>, &SmolStr) -> bool,
    /// The maker of a copy.
    pub maker: &'a dyn Fn(&Mark) -> Maker,
    /// Whether a step is due, or waits for the end of a pause.
    pub is_due: &'a mut dyn FnMut(&CopyStep<K>) -> bool,
    /// Most steps of each kind. All steps of many copies would take as much memory as a tenth of the copies.
    pub steps_max: usize,
    /// Whether a namespace exists and is not being deleted. In other namespaces, nothing is deleted: all copies go with
    /// their namespace.
    pub is_active: &'a dyn Fn(&str) -> bool,
}

/// The steps that make the copies of `rule` complete.
#[must_use]
pub fn plan<K: Copyable>(rule: &CopyratorRule, spec: &CopyratorSpec, view: View<'_, K>) -> CopyPlan<K> {
    let shared = Arc::new(spec.clone());
    let mut plan = CopyPlan {
        steps: Vec::new(),
        left: 0,
        has_writes_left: false,
        versions: Vec::new(),
        failures: Vec::new(),
        sources: 0,
        wanted: 0,
        copies: 0,
    };
    let [mut creates, mut checks, mut deletes, mut verifications] = [const { Vec::new() }; 4];
    // Returns whether the step is due.
    let mut add = |steps: &mut Vec<CopyStep<K>>, step: CopyStep<K>| {
        if !(view.is_due)(&step) {
            return false;
        }
        if steps.len() < view.steps_max {
            steps.push(step);
        } else {
            plan.left += 1;
            plan.has_writes_left |= step.writes();
        }
        true
    };
    let Sources { readable, left_out } = view.sources;
    let mut groups = by_name(readable);
    let mut stay = HashSet::new();
    for Broken { metadata, error, .. } in left_out.iter().map(|broken| &**broken) {
        let message = format!("{error}: its copies stay as they are");
        plan.failures.push(failure(&metadata.key(), SOURCE_TOO_LARGE, message));
        let oldest = groups.get(&metadata.name).and_then(|group| group.first());
        if oldest.is_none_or(|oldest| age(metadata) < age(oldest.metadata())) {
            stay.insert(metadata.name.clone());
        }
    }
    groups.retain(|name, _| !stay.contains(name));
    let has_source_in = |group: &[Arc<K>], namespace: &SmolStr| {
        let is_in = |source: &ObjectMeta| source.namespace.as_ref() == Some(namespace);
        let is_left_out = |name: &SmolStr| {
            left_out.iter().any(|broken| broken.metadata.name == *name && is_in(&broken.metadata))
        };
        group.iter().any(|source| is_in(source.metadata()))
            || group.first().is_some_and(|first| is_left_out(&first.metadata().name))
    };
    for group in groups.values() {
        let Some((winner, losers)) = group.split_first() else { continue };
        plan.sources += 1;
        let key = winner.key();
        for loser in losers {
            let message = format!("{key} is older and has the same name; rename one of them");
            plan.failures.push(failure(&loser.key(), OLDER_WINS, message));
        }
        let original = Arc::new(Original::new(rule, &shared, Arc::clone(winner)));
        plan.versions.push(original.version());
        for namespace in view.targets.iter().filter(|namespace| !has_source_in(group, namespace)) {
            let place = Key { namespace: Some(namespace.clone()), name: key.name.clone() };
            let Some(copied) = (view.find)(&place) else {
                if !(view.was_created)(&original, namespace) {
                    plan.wanted += 1;
                    add(&mut creates, CopyStep::Create(Arc::clone(&original), namespace.clone()));
                }
                continue;
            };
            match copied.mark.as_ref().map(|mark| (mark, (view.maker)(mark))) {
                _ if copied.metadata().is_terminating() => {
                    plan.failures.push(terminating(copied.metadata()));
                }
                Some((mark, Maker::Us)) if original.is_up_to_date(mark) => {
                    let verify = || CopyStep::Verify(Arc::clone(&original), namespace.clone());
                    // A pause means that somebody had changed the copy, and may have done so again.
                    let is_so = spec.sync_policy == SyncPolicy::Once
                        || copied.is_verified()
                        || add(&mut verifications, verify());
                    plan.copies += usize::from(is_so);
                }
                Some((_, Maker::Older(other))) => {
                    plan.failures.push(failure(&place, OLDER_WINS, older(&other)));
                }
                Some((_, Maker::Us | Maker::Younger | Maker::Gone)) | None => {
                    add(&mut checks, CopyStep::Check(Arc::clone(&original), namespace.clone()));
                }
            }
            plan.wanted += 1;
        }
    }
    let targets: HashSet<&SmolStr> = view.targets.iter().collect();
    let unwanted = view.ours.into_iter().filter(|copied| {
        let metadata = copied.metadata();
        let Some(namespace) = &metadata.namespace else { return false };
        let group = groups.get(&metadata.name).filter(|group| !has_source_in(group, namespace));
        let is_wanted = (group.is_some() && targets.contains(namespace)) || stay.contains(&metadata.name);
        !is_wanted && !metadata.is_terminating() && (view.is_active)(namespace)
    });
    for copied in unwanted {
        add(&mut deletes, CopyStep::Delete(copied));
    }
    plan.steps = [creates, checks, deletes, verifications].into_iter().flatten().collect();
    plan
}

/// Of two sources with one name, the one with the lower age is copied.
fn age(source: &ObjectMeta) -> (Option<Timestamp>, Key) {
    (source.creation_timestamp, source.key())
}

/// The sources of each name, the oldest first.
fn by_name<K: Copyable>(sources: Vec<Arc<K>>) -> BTreeMap<SmolStr, Vec<Arc<K>>> {
    let mut groups = BTreeMap::<SmolStr, Vec<Arc<K>>>::new();
    for source in sources {
        // A copy of any rule is never a source, whatever the selector selects.
        if !is_bound_to_its_namespace(&*source) && source.metadata().labels.get(LABEL).is_none() {
            groups.entry(source.metadata().name.clone()).or_default().push(source);
        }
    }
    for group in groups.values_mut() {
        group.sort_by_key(|source| age(source.metadata()));
    }
    groups
}

/// A failure of the copy `key`.
#[must_use]
pub fn failure(key: &Key, reason: &str, message: String) -> CopyFailure {
    let namespace = key.namespace.clone().unwrap_or_default();
    CopyFailure { namespace, name: key.name.clone(), reason: reason.into(), message }
}

/// The failure of a copy that is created again after a deleted object of its name is gone.
#[must_use]
pub fn terminating(deleted: &ObjectMeta) -> CopyFailure {
    let finalizers = deleted.finalizers.join(", ");
    let message = format!(
        "a deleted object of this name waits for its finalizers: {finalizers}; if nobody handles them, remove them from the object"
    );
    failure(&deleted.key(), TERMINATING, message)
}

/// The failure of a copy that is restored at the end of a pause.
#[must_use]
pub fn disputed(key: &Key) -> CopyFailure {
    let message = "another client keeps changing or deleting the copy, so the operator restores it after growing pauses; stop \
                   that client, exclude the namespace, or set syncPolicy to Once";
    failure(key, DISPUTED, message.to_owned())
}

fn older(rule: &Key) -> String {
    format!(
        "the CopyratorRule {rule} has its copy there, and gives it up only to an older rule of its namespace"
    )
}

/// The step for an object that has the name of a copy.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// It is as desired.
    Keep,
    /// These operations make it as desired.
    Patch(Vec<Value>),
    /// These operations make it ours. Its content can never be changed, so it is replaced after that.
    Take(Vec<Value>),
    /// It is ours, and must be deleted and created again.
    Replace,
    /// It stays.
    Conflict(&'static str, String),
}

/// The step that turns `live` into the copy `desired` of `original`. `maker` is the maker of `live`, if it is a copy.
#[must_use]
pub fn decide<K: Copyable>(
    live: &K,
    desired: &K,
    maker: Option<Maker>,
    is_same_source: bool,
    policy: ConflictPolicy,
) -> Decision {
    let (mut operations, content) = differences(live, desired);
    let is_other = !content.is_empty();
    let is_fixed = content.iter().any(|operation| live.is_immutable(path_of(operation)));
    let conflict = |message: &str| Decision::Conflict(NAME_CONFLICT, message.to_owned());
    match maker {
        Some(Maker::Us) if is_fixed => return Decision::Replace,
        Some(Maker::Older(rule)) => return Decision::Conflict(OLDER_WINS, older(&rule)),
        Some(Maker::Younger) if is_fixed => return Decision::Take(operations),
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
    operations.extend(content);
    if operations.is_empty() { Decision::Keep } else { Decision::Patch(operations) }
}

/// Who keeps an object with the name of a copy as it is, and would write it again: its controller, or the program that it names.
fn keeper(live: &ObjectMeta) -> Option<String> {
    let by = live.controller().map(|owner| format!("belongs to {} {}", owner.kind, owner.name));
    let manager = live.labels.get(MANAGED_BY).filter(|manager| !manager.is_empty());
    let keeper = by.or_else(|| manager.map(|manager| format!("has the label {MANAGED_BY}: {manager}")))?;
    Some(format!("an object that {keeper} has this name"))
}

/// The operations that make the metadata and the content of `live` as desired.
fn differences<K: Copyable>(live: &K, desired: &K) -> (Vec<Value>, Vec<Value>) {
    let mut operations = diff::between(live, desired, &[]);
    let stale = stale(live.metadata(), desired.metadata());
    operations.extend(stale.map(|path| json!({"op": "remove", "path": path})));
    operations.into_iter().partition(|operation| path_of(operation).starts_with("/metadata/"))
}

fn path_of(operation: &Value) -> &str {
    operation["path"].as_str().unwrap_or_default()
}

/// Whether objects like this one are made for their namespace alone, and are never copied.
#[must_use]
pub fn is_bound_to_its_namespace<K: Copyable>(object: &K) -> bool {
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
#[must_use]
pub fn is_marker(key: &str) -> bool {
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
#[must_use]
pub fn is_active(namespace: &Namespace) -> bool {
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
