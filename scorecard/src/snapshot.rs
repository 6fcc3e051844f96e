//! The state of a server, in a form that two runs of a correct operator have in common, and the differences between two.
//!
//! Removed are the fields that the server sets, and times. References to uids become names. Names with a random suffix become
//! `web-*`; objects with the same name are compared as a set. Of the built-in kinds, the status is not compared. The values of
//! Secrets become hashes, so that no report shows them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

use listwatch_apiserver::{ApiServer, Checkpoint, WriteRecord, differences};
use regex::Regex;
use serde_json::{Map, Value};

/// Collections that are not compared: their objects say what happened, or follow from other objects.
const NOT_COMPARED: [&str; 6] = [
    "events.events.k8s.io",
    "events",
    "controllerrevisions.apps",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "leases.coordination.k8s.io",
];

/// The annotation that makes an operator look at an object again. It is not compared.
pub(super) const POKE: &str = "scorecard.listwatch/poke";

/// Annotations that count the changes of a template, of Deployments and of Argo's Rollouts.
const REVISIONS: [&str; 4] = [
    "deployment.kubernetes.io/revision",
    "deployment.kubernetes.io/revision-history",
    "rollout.argoproj.io/revision",
    "rollout.argoproj.io/revision-history",
];

/// Fields of metadata that the server sets.
const SERVER_FIELDS: [&str; 8] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
];

/// Fields at any depth that the server, its scheduler or the counting of generations sets.
const MACHINE_FIELDS: [&str; 14] = [
    "clusterIP",
    "clusterIPs",
    "nodePort",
    "healthCheckNodePort",
    "nodeName",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "volumeName",
    "observedGeneration",
    "lastTransitionTime",
    "pod-template-hash",
    "controller-revision-hash",
];

/// The name of the volume that the server adds to each Pod for its token, and five random characters.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// The shortest part of a name that may be random. `generateName` adds five.
const RANDOM_CHARS_MIN: usize = 5;

/// Length of a uid.
const UID_BYTES: usize = 36;

/// Numbers within a day of now are times.
const DAY_SECS: u64 = 24 * 60 * 60;

/// Whether the writes of an object are an operator's work, and not its records, its lock, or writes of the Deployment controller.
pub(super) fn is_compared(collection: &str, object: &Value) -> bool {
    let is_of_deployment = || {
        let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.any(|owner| owner["kind"] == "Deployment")
    };
    !(NOT_COMPARED.contains(&collection) || collection == "replicasets.apps" && is_of_deployment())
}

/// A ReplicaSet of an earlier spec, which stays for a rollback.
fn is_history(collection: &str, object: &Value) -> bool {
    collection == "replicasets.apps" && object["spec"]["replicas"] == 0
}

/// `statefulsets.apps/default/web`, with `*` for what is random.
pub(super) fn name_of(collection: &str, key: &str, object: &Value) -> String {
    let metadata = &object["metadata"];
    let mut key = key.to_owned();
    if let (Some(prefix), Some(name)) = (metadata["generateName"].as_str(), metadata["name"].as_str())
        && !prefix.is_empty()
        && name.starts_with(prefix)
    {
        key = format!("{}{prefix}*", key.strip_suffix(name).unwrap_or_default());
    }
    if let Some(hash) = metadata["labels"]["pod-template-hash"].as_str() {
        key = key.replace(hash, "*");
    }
    let claim = &object["spec"]["claimRef"];
    if let (Some(uid), Some(name)) = (claim["uid"].as_str(), claim["name"].as_str()) {
        // The name of a volume has the uid of its claim.
        key = key.replace(uid, name);
    }
    format!("{collection}/{}", without_uids(&key))
}

fn without_uids(text: &str) -> Cow<'_, str> {
    static UID: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").ok());
    UID.as_ref().map_or(Cow::Borrowed(text), |uid| uid.replace_all(text, "*"))
}

/// A difference between the reference and a run with a fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// `services/default/web`
    pub object: String,
    /// `.spec.replicas`. Empty for the whole object.
    pub path: String,
    /// The value in the reference. Null: it has none.
    pub expected: Value,
    /// The value in this run. Null: it has none.
    pub found: Value,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { object, path, expected, found } = self;
        match (&**path, expected, found) {
            ("", _, Value::Null) => write!(f, "{object} is missing"),
            ("", Value::Null, _) => write!(f, "{object} should not exist"),
            _ => write!(f, "{object} {path} is {found}, expected {expected}"),
        }
    }
}

/// What differs between two runs without a fault, and so is not compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Mask {
    /// Fields of objects, with all below them.
    pub(super) fields: BTreeSet<(String, String)>,
    /// Collections of which the runs have different objects.
    pub(super) collections: BTreeSet<String>,
    /// Forms of names with a random part, as [`random_form`] has them.
    pub(super) random_names: BTreeSet<String>,
    /// Names of such a form that both runs have: `web-proxy` beside `web-x7k2p`.
    pub(super) fixed_names: BTreeSet<String>,
}

impl Mask {
    /// The random parts at the ends of the names of a run.
    pub(super) fn random_parts<'n>(&self, names: impl Iterator<Item = &'n String>) -> BTreeSet<&'n str> {
        let part = |name: &'n String| {
            let (form, part) = random_form(name).filter(|_| !self.fixed_names.contains(name))?;
            self.random_names.contains(&form).then_some(part)
        };
        names.filter_map(part).collect()
    }

    fn hides(&self, object: &str, path: &str) -> bool {
        let is_below = |field: &String| {
            path.strip_prefix(field.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let collection = object.split('/').next().unwrap_or_default();
        self.collections.contains(collection)
            || (!path.is_empty() && self.fields.iter().any(|(of, field)| of == object && is_below(field)))
    }
}

/// A name with `*` for the random parts of all names of its run: beside a Deployment `web-x7k2p`, `web-x7k2p-svc` is `web-*-svc`.
pub(super) fn without_parts(name: &str, parts: &BTreeSet<&str>) -> String {
    parts.iter().fold(name.to_owned(), |name, part| name.replace(part, "*"))
}

/// What a name has in common with names of other runs if its last part is random, and this part: `deployments.apps/web-??????` and
/// `x7k2p9` for `deployments.apps/default/web-x7k2p9`.
fn random_form(name: &str) -> Option<(String, &str)> {
    let (collection, key) = name.split_once('/')?;
    let (stem, part) = key.rsplit_once('/').map_or(key, |(_, name)| name).rsplit_once('-')?;
    let is_random = part.len() >= RANDOM_CHARS_MIN && part.chars().all(|char| char.is_ascii_alphanumeric());
    is_random.then(|| (format!("{collection}/{stem}-{}", "?".repeat(part.len())), part))
}

/// The objects by their normalised names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot(BTreeMap<String, Vec<Value>>);

impl Snapshot {
    /// The objects whose uids are not in `before`.
    pub(super) fn of(server: &ApiServer, before: &HashSet<String>, ignored: &[String]) -> Snapshot {
        let now = server.checkpoint();
        let names = names_by_uid(&now);
        let mut objects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (resource, key, object) in now.objects() {
            if !is_compared(resource, object)
                || is_history(resource, object)
                || object["metadata"]["uid"].as_str().is_some_and(|uid| before.contains(uid))
            {
                continue;
            }
            let Some(served) = server.resource(resource) else { continue };
            let kind = object["kind"].as_str().unwrap_or(served.kind());
            if ignored.iter().any(|ignored| ignored == kind) {
                continue;
            }
            let mut value = normalised(object, &names, served.is_custom());
            if resource == "secrets" {
                hide(&mut value);
            }
            remove_ignored(&mut value, kind, ignored);
            objects.entry(name_of(resource, key, object)).or_default().push(value);
        }
        for values in objects.values_mut() {
            values.sort_by_cached_key(Value::to_string);
        }
        Snapshot(objects)
    }

    /// The forms of the names that have another random part in each of two runs.
    pub(super) fn random_names(&self, other: &Snapshot) -> BTreeSet<String> {
        let forms = |one: &Snapshot, other: &Snapshot| -> BTreeSet<String> {
            let own = one.0.keys().filter(|name| !other.0.contains_key(*name));
            own.filter_map(|name| random_form(name)).map(|(form, _)| form).collect()
        };
        &forms(self, other) & &forms(other, self)
    }

    /// Whether an object is of a kind, or has a field of it: `ConfigMap:.data.time`.
    pub(super) fn has(&self, ignored: &String, kind_of: impl Fn(&str) -> String) -> bool {
        self.0.iter().any(|(name, values)| {
            let kind = kind_of(name.split('/').next().unwrap_or_default());
            let has =
                |value: &Value| remove_ignored(&mut value.clone(), &kind, std::slice::from_ref(ignored));
            kind == *ignored || values.iter().any(has)
        })
    }

    pub(super) fn common_names(&self, other: &Snapshot) -> BTreeSet<String> {
        self.0.keys().filter(|name| other.0.contains_key(*name)).cloned().collect()
    }

    /// This state with `*` for the random parts of names, wherever they are.
    fn without_random_parts(&self, mask: &Mask) -> Cow<'_, Snapshot> {
        let parts = mask.random_parts(self.0.keys());
        if parts.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut objects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (name, values) in &self.0 {
            let mut values = values.clone();
            for part in &parts {
                values.iter_mut().for_each(|value| replace_text(value, part, "*"));
            }
            objects.entry(without_parts(name, &parts)).or_default().extend(values);
        }
        for values in objects.values_mut() {
            values.sort_by_cached_key(Value::to_string);
        }
        Cow::Owned(Snapshot(objects))
    }

    /// What the copy of this state in another namespace lacks.
    pub(super) fn differences_in(&self, found: &Snapshot, mask: &Mask, namespace: &str) -> Vec<Mismatch> {
        let (own, found) = (self.without_random_parts(mask), found.without_random_parts(mask));
        let mut copies = BTreeMap::new();
        for (name, values) in &found.0 {
            let parts: Vec<&str> = name.splitn(3, '/').collect();
            if let [collection, of, name] = parts[..]
                && of == namespace
            {
                copies.insert((collection, name), values);
            }
        }
        let mut copy = BTreeMap::new();
        for name in own.0.keys() {
            let parts: Vec<&str> = name.splitn(3, '/').collect();
            if let [collection, _, of] = parts[..]
                && let Some(values) = copies.get(&(collection, of))
            {
                copy.insert(name.clone(), Vec::clone(values));
            }
        }
        let mut differences = self.differences(&Snapshot(copy), mask);
        differences.retain(|difference| {
            let object = difference.object.splitn(3, '/').collect::<Vec<_>>();
            let [_, own, _] = object[..] else { return false };
            // A value may have the name of the namespace in it. The other way round, names that contain `default` would change.
            let (expected, found) = (difference.expected.to_string(), difference.found.to_string());
            expected != found.replace(namespace, own)
        });
        differences
    }

    /// A field that a write changes although it had the value of this state. No status is compared.
    pub(super) fn needless_change(&self, write: &WriteRecord, mask: &Mask) -> Option<String> {
        let (before, after) = (write.before.as_ref()?, write.after.as_ref()?);
        let name = name_of(&write.resource, &write.object, before);
        let [expected] = &self.0.get(&name)?[..] else { return None };
        let [before, after] = [before, after].map(|object| {
            let mut value = normalised(object, &HashMap::new(), false);
            if write.resource == "secrets" {
                hide(&mut value);
            }
            value
        });
        let (mut wrong, mut changed) = (Vec::new(), Vec::new());
        differences(expected, &before, "", &mut wrong);
        differences(&before, &after, "", &mut changed);
        let was_right = |path: &String| {
            !wrong.iter().any(|wrong| path.starts_with(wrong) || wrong.starts_with(path.as_str()))
        };
        let path = changed.into_iter().find(|path| was_right(path) && !mask.hides(&name, path))?;
        Some(format!("{name} {path}"))
    }

    /// What is only in this state, or different.
    pub(super) fn missing(&self, found: &Snapshot, mask: &Mask) -> Vec<Mismatch> {
        let mut differences = self.differences(found, mask);
        differences.retain(|difference| !difference.expected.is_null());
        differences
    }

    /// What is in one and not in the other, or different.
    pub(super) fn differences(&self, found: &Snapshot, mask: &Mask) -> Vec<Mismatch> {
        let mut all = Vec::new();
        let (own, found) = (self.without_random_parts(mask), found.without_random_parts(mask));
        let names: BTreeSet<&String> = own.0.keys().chain(found.0.keys()).collect();
        for name in names.into_iter().filter(|name| !mask.hides(name, "")) {
            let none = Vec::new();
            let (expected, found) = (own.0.get(name).unwrap_or(&none), found.0.get(name).unwrap_or(&none));
            for index in 0..expected.len().max(found.len()) {
                let (one, other) = (expected.get(index), found.get(index));
                let difference = |path: &str, expected: &Value, found: &Value| Mismatch {
                    object: name.clone(),
                    path: path.to_owned(),
                    expected: expected.clone(),
                    found: found.clone(),
                };
                let (Some(one), Some(other)) = (one, other) else {
                    let value = |side: Option<&Value>| side.map_or(Value::Null, |_| "an object".into());
                    all.push(difference("", &value(one), &value(other)));
                    continue;
                };
                let mut paths = Vec::new();
                differences(one, other, "", &mut paths);
                for path in paths.iter().filter(|path| !mask.hides(name, path)) {
                    all.push(difference(path, at(one, path), at(other, path)));
                }
            }
        }
        all
    }
}

/// Replaces the values of a Secret by hashes. Their key is random in each process, so nobody can try values.
fn hide(secret: &mut Value) {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    // An annotation may be the object that was last applied.
    for field in ["/data", "/stringData", "/metadata/annotations"] {
        let values = secret.pointer_mut(field).and_then(Value::as_object_mut);
        for value in values.into_iter().flat_map(Map::values_mut) {
            *value = format!("<hash {:016x}>", KEY.hash_one(value.to_string())).into();
        }
    }
}

fn names_by_uid(checkpoint: &Checkpoint) -> HashMap<String, String> {
    let name = |(resource, key, object): (&str, &str, &Arc<Value>)| {
        Some((object["metadata"]["uid"].as_str()?.to_owned(), name_of(resource, key, object)))
    };
    checkpoint.objects().filter_map(name).collect()
}

/// What a user would write to create an object.
pub(super) fn manifest(object: &Value) -> Value {
    let mut manifest = object.clone();
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("status");
    }
    if let Some(Value::Object(metadata)) = manifest.get_mut("metadata") {
        SERVER_FIELDS.iter().for_each(|field| drop(metadata.remove(*field)));
    }
    manifest
}

/// An object without what differs between runs.
pub(super) fn normalised(object: &Value, names: &HashMap<String, String>, with_status: bool) -> Value {
    let mut value = normalised_in_order(object, names, with_status);
    by_name(&mut value);
    value
}

/// As [`normalised`], with all lists in their order.
pub(super) fn normalised_in_order(
    object: &Value,
    names: &HashMap<String, String>,
    with_status: bool,
) -> Value {
    let mut value = object.clone();
    let hash = object["metadata"]["labels"]["pod-template-hash"].as_str().unwrap_or_default().to_owned();
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if let Some(object) = value.as_object_mut() {
        if !with_status {
            object.remove("status");
        }
        // Go writes `{}` for an empty struct, or nothing in a patch.
        object.get_mut("status").into_iter().for_each(prune);
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            SERVER_FIELDS.iter().for_each(|field| drop(metadata.remove(*field)));
            if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
                // In the order in which operators have come.
                finalizers.sort_by_cached_key(Value::to_string);
            }
            if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                annotations.retain(|key, _| {
                    key != POKE
                        && !REVISIONS.contains(&key.as_str())
                        && !key.starts_with("kubectl.kubernetes.io/")
                });
                annotations.values_mut().for_each(parse);
                if annotations.is_empty() {
                    metadata.remove("annotations");
                }
            }
        }
    }
    let is_random = |text: &str| !hash.is_empty() && text.contains(&hash);
    simplify(&mut value, names);
    let generated = name_of("", &name, object);
    if generated != format!("/{name}") {
        replace_text(&mut value, &name, &generated[1..]);
    }
    if is_random(&value.to_string()) {
        replace_text(&mut value, &hash, "*");
    }
    value
}

/// Reads an annotation that is JSON, which may be a copy of the object with [`POKE`]: kopf keeps one.
fn parse(annotation: &mut Value) {
    let text = annotation.as_str().filter(|text| text.starts_with('{'));
    if let Some(mut copy) = text.and_then(|text| serde_json::from_str(text).ok()) {
        prune(&mut copy);
        *annotation = copy;
    }
}

/// Removes [`POKE`], and objects without fields, which mean the same as absent ones.
fn prune(value: &mut Value) {
    let Value::Object(map) = value else { return };
    map.remove(POKE);
    map.values_mut().for_each(prune);
    map.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
}

fn replace_text(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) if text.contains(from) => *text = text.replace(from, to),
        Value::Array(list) => list.iter_mut().for_each(|item| replace_text(item, from, to)),
        Value::Object(map) => {
            *map =
                std::mem::take(map).into_iter().map(|(key, value)| (key.replace(from, to), value)).collect();
            map.values_mut().for_each(|item| replace_text(item, from, to));
        }
        _ => {}
    }
}

fn simplify(value: &mut Value, names: &HashMap<String, String>) {
    static TIME: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?").ok());
    match value {
        Value::String(text) => {
            if let Some(name) = names.get(text.as_str()) {
                text.clone_from(name);
            } else if let Some(time) = TIME.as_ref().filter(|time| time.is_match(text)) {
                *text = time.replace_all(text, "<time>").into_owned();
            } else if text.starts_with(TOKEN_VOLUME) {
                *text = format!("{TOKEN_VOLUME}*");
            } else if text.len() > UID_BYTES {
                // A uid alone that no object has is a difference.
                *text = without_uids(text).into_owned();
            }
        }
        Value::Number(number) => {
            if number.as_u64().is_some_and(is_near_now) {
                *value = "<time>".into();
            }
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|item| simplify(item, names));
        }
        Value::Object(map) => {
            MACHINE_FIELDS.iter().for_each(|field| drop(map.remove(*field)));
            // The annotations of an object may be copied to a template.
            map.remove(POKE);
            map.retain(|_, item| {
                item.as_object().is_none_or(|item| item.len() != 1 || !item.contains_key(POKE))
            });
            let is_condition = ["type", "status", "reason"].iter().all(|field| map.contains_key(*field));
            if is_condition {
                map.remove("message");
            }
            map.values_mut().for_each(|item| simplify(item, names));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Makes lists whose items have a name, or are conditions of different types, maps: their order does not matter.
fn by_name(value: &mut Value) {
    if let Value::Object(map) = value {
        map.values_mut().for_each(by_name);
    }
    let Value::Array(list) = value else { return };
    list.iter_mut().for_each(by_name);
    for key in ["name", "type"] {
        let named: Option<Map<String, Value>> =
            list.iter().map(|item| Some((item[key].as_str()?.to_owned(), item.clone()))).collect();
        if let Some(named) = named.filter(|named| !named.is_empty() && named.len() == list.len()) {
            *value = Value::Object(named);
            return;
        }
    }
}

fn is_near_now(number: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|now| now.as_secs()).unwrap_or_default();
    number.abs_diff(now) < DAY_SECS || (number / 1000).abs_diff(now) < DAY_SECS
}

/// The value at `.spec.ports[0]`.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    // A key may contain dots. Take the longest one that is there.
    if path.is_empty() {
        return value;
    }
    if let Some((index, rest)) = path.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return at(&value[index.parse::<usize>().unwrap_or(usize::MAX)], rest);
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let keys = value.as_object().into_iter().flat_map(Map::keys);
    let ends = |key: &String| {
        path.strip_prefix(key.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    match keys.filter(|key| ends(key)).max_by_key(|key| key.len()) {
        Some(key) => at(&value[key], &path[key.len()..]),
        None => &Value::Null,
    }
}

/// Whether a write changes nothing but fields that are ignored, and what the server sets.
pub(super) fn is_ignored(write: &WriteRecord, kind: &str, ignored: &[String]) -> bool {
    if !ignored.iter().any(|ignored| ignored.split(':').next() == Some(kind)) {
        return false;
    }
    if ignored.iter().any(|ignored| ignored == kind) {
        return true;
    }
    let (Some(before), Some(after)) = (&write.before, &write.after) else { return false };
    let [mut before, mut after] = [before, after].map(|object| normalised(object, &HashMap::new(), true));
    let has_any = remove_ignored(&mut before, kind, ignored) | remove_ignored(&mut after, kind, ignored);
    has_any && before == after
}

/// Removes the fields of a kind that `--ignore` has. Whether there was any.
fn remove_ignored(value: &mut Value, kind: &str, ignored: &[String]) -> bool {
    let paths = ignored.iter().filter_map(|ignored| ignored.strip_prefix(kind)?.strip_prefix(":."));
    paths.fold(false, |any, path| remove(value, path) | any)
}

/// Whether a field was there.
fn remove(value: &mut Value, path: &str) -> bool {
    let Some(map) = value.as_object_mut() else { return false };
    // A key may contain dots.
    let is_removed = map.remove(path).is_some();
    is_removed
        || map.iter_mut().any(|(key, value)| {
            let rest = path.strip_prefix(key.as_str()).and_then(|rest| rest.strip_prefix('.'));
            rest.is_some_and(|rest| remove(value, rest))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(object: &Value) -> Snapshot {
        Snapshot(BTreeMap::from([("widgets/a".to_owned(), vec![normalised(object, &HashMap::new(), true)])]))
    }

    #[test]
    fn what_differs_between_runs_of_a_correct_operator_is_not_compared() {
        let before = json!({
            "metadata": {"name": "a", "uid": "1", "resourceVersion": "7", "finalizers": ["x", "y"], "annotations": {
                POKE: "1", "rollout.argoproj.io/revision": "1"}},
            "spec": {"ports": [{"name": "x", "port": 1}, {"name": "y", "port": 2}]},
            "status": {"at": "2026-01-01T00:00:00Z", "canary": {"weights": {}}, "conditions": [
                {"type": "Ready", "status": "True", "reason": "Ok", "message": "after 2 s"}]}});
        let after = json!({
            "metadata": {"name": "a", "uid": "2", "resourceVersion": "9", "finalizers": ["y", "x"], "annotations": {
                "rollout.argoproj.io/revision": "3", "rollout.argoproj.io/revision-history": "1,2"}},
            "spec": {"ports": [{"name": "y", "port": 2}, {"name": "x", "port": 1}]},
            "status": {"at": "2026-01-02T00:00:00Z", "conditions": [
                {"type": "Ready", "status": "True", "reason": "Ok", "message": "after 3 s"}]}});
        assert_eq!(one(&before).differences(&one(&after), &Mask::default()), []);
    }

    /// An operator seemed to ignore a change that only such an annotation showed.
    #[test]
    fn an_annotation_of_the_operator_with_revision_in_its_name_is_compared() {
        let object = |revision: &str| json!({"metadata": {"annotations": {"example.com/revision-of-config": revision}}});
        assert_eq!(one(&object("1")).differences(&one(&object("2")), &Mask::default()).len(), 1);
    }

    /// An operator whose children are ReplicaSets seemed to have none.
    #[test]
    fn only_the_replicasets_of_deployments_are_not_compared() {
        let owned = |kind: &str| json!({"metadata": {"ownerReferences": [{"kind": kind}]}});
        assert!(is_compared("replicasets.apps", &owned("Rollout")));
        assert!(!is_compared("replicasets.apps", &owned("Deployment")));
        assert!(!is_compared("events", &json!({})));
        assert!(is_history("replicasets.apps", &json!({"spec": {"replicas": 0}})));
    }

    /// With kopf, everything that needed a poke had another state than without.
    #[test]
    fn a_copy_of_the_object_in_an_annotation_has_no_poke() {
        let object = |copy: &Value| json!({"metadata": {"annotations": {"kopf.zalando.org/last": format!("{copy}\n")}}});
        let before = object(&json!({"spec": {"size": 1}}));
        let after = object(&json!({"spec": {"size": 1}, "metadata": {"annotations": {POKE: "7"}}}));
        assert_eq!(one(&before).differences(&one(&after), &Mask::default()), []);
        let other = object(&json!({"spec": {"size": 2}}));
        assert_eq!(one(&before).differences(&one(&other), &Mask::default()).len(), 1);
    }

    /// Two runs without a fault do not hide it: each has other keys, and so has the third.
    #[test]
    fn the_volume_of_the_token_has_no_random_name() {
        let pod = |name: &str| {
            json!({"spec": {"containers": [{"name": "web", "volumeMounts": [{"name": name, "readOnly": true}]}],
                "volumes": [{"name": name, "projected": {}}]}})
        };
        let (before, after) = (one(&pod("kube-api-access-2x4bz")), one(&pod("kube-api-access-wqj7d")));
        assert_eq!(before.differences(&after, &Mask::default()), []);
    }

    #[test]
    fn a_difference_has_a_path_and_both_values_and_can_be_masked() {
        let (before, after) = (json!({"data": {"a.b": "1"}}), json!({"data": {"a.b": "2"}}));
        let found = one(&before).differences(&one(&after), &Mask::default());
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["widgets/a .data.a.b is \"2\", expected \"1\""]);
        let mask = Mask { fields: [("widgets/a".to_owned(), ".data".to_owned())].into(), ..Mask::default() };
        assert_eq!(one(&before).differences(&one(&after), &mask), []);
        let missing = one(&before).differences(&Snapshot::default(), &mask);
        assert_eq!(missing[0].to_string(), "widgets/a is missing");
    }

    /// In the two runs, another part of the name is random; it is also in the names of the children's children, and in fields.
    #[test]
    fn a_random_name_without_generate_name_is_compared_as_one() {
        let run = |part: &str, size: u32| {
            let pod = (format!("pods/default/web-{part}-*"), vec![json!({"of": format!("web-{part}")})]);
            let set = (format!("deployments.apps/default/web-{part}"), vec![json!({"size": size})]);
            Snapshot(BTreeMap::from([pod, set]))
        };
        let mask = Mask { random_names: run("a1b2c", 1).random_names(&run("d3e4f", 1)), ..Mask::default() };
        assert_eq!(run("a1b2c", 1).differences(&run("00000", 1), &mask), []);
        let other = run("a1b2c", 1).differences(&run("00000", 2), &mask);
        assert_eq!(other[0].to_string(), "deployments.apps/default/web-* .size is 2, expected 1");
        assert_eq!(other.len(), 1);
        let mask =
            Mask { fixed_names: BTreeSet::from(["deployments.apps/default/web-proxy".to_owned()]), ..mask };
        let names = ["other/web-ddddd", "default/web-dddd", "default/web-proxy"]
            .map(|name| format!("deployments.apps/{name}"));
        let parts = mask.random_parts(names.iter());
        assert_eq!(parts, BTreeSet::from(["ddddd"]));
        assert_eq!(without_parts("services/default/web-ddddd-svc", &parts), "services/default/web-*-svc");
    }

    /// Dask copies annotations when it creates a worker, so only workers that were created after a poke had it.
    #[test]
    fn an_annotation_that_was_copied_to_a_template_is_not_compared() {
        let of = |annotations: Value| json!({"template": {"metadata": {"labels": {}, "annotations": annotations}}});
        let (before, after) = (json!({"template": {"metadata": {"labels": {}}}}), of(json!({POKE: "1"})));
        assert_eq!(one(&before).differences(&one(&after), &Mask::default()), []);
        let (before, after) = (of(json!({"a": "b"})), of(json!({"a": "b", POKE: "1"})));
        assert_eq!(one(&before).differences(&one(&after), &Mask::default()), []);
    }

    /// The copy of `simple-default` was expected to be called `simple-copies`.
    #[test]
    fn the_copy_in_another_namespace_differs_by_its_namespace_alone() {
        let run = |namespace: &str, hash: &str| {
            let set = json!({"metadata": {"name": "simple-default", "labels": {"controller-revision-hash": hash}},
                "host": format!("simple-default.{namespace}.svc")});
            let set = normalised(&set, &HashMap::new(), false);
            Snapshot(BTreeMap::from([(format!("statefulsets.apps/{namespace}/simple-default"), vec![set])]))
        };
        let (own, copy) = (run("default", "1"), run("copies", "2"));
        assert_eq!(own.differences_in(&copy, &Mask::default(), "copies"), []);
    }

    #[test]
    fn a_field_whose_key_has_dots_is_ignored() {
        let mut value = json!({"data": {"nginx.conf": "a", "nginx": {"conf": "b"}}});
        remove(&mut value, "data.nginx.conf");
        assert_eq!(value, json!({"data": {"nginx": {"conf": "b"}}}));
    }

    #[test]
    fn a_generated_name_loses_its_random_part() {
        let pod = json!({"metadata": {"name": "web-6f7c9-x2v4z", "generateName": "web-6f7c9-",
            "labels": {"pod-template-hash": "6f7c9"}}});
        assert_eq!(name_of("pods", "default/web-6f7c9-x2v4z", &pod), "pods/default/web-*-*");
        let uid = "13b49a39-4a9f-4529-92e3-af5e345fd92f";
        let mut volume = json!({"metadata": {"name": format!("pvc-{uid}")}});
        assert_eq!(name_of("persistentvolumes", &format!("pvc-{uid}"), &volume), "persistentvolumes/pvc-*");
        // One more volume moves no other one.
        volume["spec"]["claimRef"] = json!({"uid": uid, "name": "data-db-0"});
        assert_eq!(
            name_of("persistentvolumes", &format!("pvc-{uid}"), &volume),
            "persistentvolumes/pvc-data-db-0"
        );
        // Lists become maps by name, so a name may be a key.
        let mut pod = pod;
        pod["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "web-6f7c9"}]);
        assert_eq!(
            normalised(&pod, &HashMap::new(), false)["metadata"]["ownerReferences"],
            json!({"web-*": {"kind": "ReplicaSet", "name": "web-*"}})
        );
    }
}
