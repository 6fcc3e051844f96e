//! Compares a live object with the desired one: their differences, and the JSON patch that mends them.
//!
//! Several writers share an object, so each field has an owner. Our fields are the ones that `desired` sets. Any other field of
//! the live object stays as it is, whether the API server has set its default there or another writer a value: so a field that `desired`
//! no longer sets stays. The items of a list that `desired` sets are ours, but not their other fields. The exceptions are declared by path, beside the kind ([`Resource::MERGE`]) or beside the
//! children of an operator (`Children::owning`):
//!
//! ```text
//!   /data                               Owned                  ConfigMap: keys that `desired` does not have are removed
//!   /spec/ports                         Whole                  Service: if `desired` has ports, each field of them is ours
//!   /spec/ports/*/protocol              Defaulted              but the API server sets TCP if `desired` has no protocol
//!   /spec/containers                    SharedBy(["name"])     Pod template: containers of other names stay
//!   /spec/template                      Rules(POD_TEMPLATE)    Deployment: the rules of a Pod template
//! ```
//!
//! Few lists are shared. A shared list keeps each added item: with server-side apply, a port that another writer has added to
//! a Service stays, and every later apply fails because of its duplicate name.

use std::{borrow::Cow, fmt};

use listwatch_formats::quantity::Quantity;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Resource;

/// How one field is merged. Its path is a JSON pointer, with `*` for each item of a list.
pub type MergeRule = (&'static str, Merge);

/// How the desired state of a field is merged into the live one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Ours with everything in it: what `desired` does not have is removed, also the field itself.
    Owned,
    /// The same, if `desired` has the field. If not, it stays.
    Whole,
    /// A field in an owned one that the API server sets if it is absent, such as the `protocol` of a port: it stays if
    /// `desired` does not have it.
    Defaulted,
    /// A list of which each writer has items of its own: items that `desired` does not have stay. Two items are the same if
    /// these fields of them are equal.
    SharedBy(&'static [&'static str]),
    /// Written when the object is created, and never compared.
    NotOurs,
    /// A [quantity](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/), such as `0.5` or `1024Mi`, which
    /// the API server writes as `500m` and `1Gi`.
    Quantity,
    /// The fields of this object have these rules.
    Rules(&'static [MergeRule]),
}

/// The metadata of every kind.
const METADATA: [MergeRule; 2] = [
    ("/metadata/finalizers", Merge::NotOurs),
    // One owner can have several references; one of them may be the controller.
    ("/metadata/ownerReferences", Merge::SharedBy(&["uid", "controller"])),
];

/// A field of a live object that is not as desired.
#[derive(Clone, PartialEq)]
pub struct Difference {
    /// What mends it, as in a JSON patch: `add`, `replace` or `remove`.
    pub(crate) op: &'static str,
    /// A JSON pointer.
    pub path: String,
    /// The desired value; `null` if it is absent.
    wanted: Value,
    /// The present value; `null` if it is absent.
    is: Value,
    /// Whether the values must not be shown: the object is a Secret.
    is_secret: bool,
}

impl Difference {
    fn new(op: &'static str, path: String, is: &Value, wanted: &Value) -> Difference {
        Difference { op, path, wanted: wanted.clone(), is: is.clone(), is_secret: false }
    }
}

impl fmt::Display for Difference {
    /// `/spec/replicas: 3 became 1`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_secret {
            return f.write_str(&self.path);
        }
        let text = |value: &Value| match value {
            Value::Null => "nothing".to_owned(),
            value => {
                let text = value.to_string();
                match text.char_indices().nth(VALUE_LENGTH_MAX) {
                    Some((end, _)) => format!("{}…", &text[..end]),
                    None => text,
                }
            }
        };
        write!(f, "{}: {} became {}", self.path, text(&self.wanted), text(&self.is))
    }
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The fields of `live` that are ours and not like `desired`. `owning`: more paths that are [`Merge::Owned`].
#[must_use]
pub fn between<K: Resource + Serialize>(live: &K, desired: &K, owning: &[&str]) -> Vec<Difference> {
    let value =
        |object| serde_json::to_value(object).expect("our types have string keys and no failing impls");
    let (live, mut desired) = (value(live), value(desired));
    // Annotations of the kind's own rules.
    for path in owning.iter().chain(&["/metadata/annotations/"]) {
        reach(&live, &mut desired, path);
    }
    let mut differences = differences(&live, &desired, K::MERGE, owning);
    let is_secret = (K::GROUP, K::KIND) == ("", "Secret");
    differences.iter_mut().for_each(|difference| difference.is_secret = is_secret);
    differences
}

/// The operations of a JSON patch ([RFC 6902](https://www.rfc-editor.org/rfc/rfc6902)) that mend these differences.
#[must_use]
pub fn operations(differences: &[Difference]) -> Vec<Value> {
    let operation = |Difference { op, path, wanted, .. }: &Difference| match *op {
        "remove" => json!({"op": op, "path": path}),
        _ => json!({"op": op, "path": path, "value": wanted}),
    };
    differences.iter().map(operation).collect()
}

/// Adds the objects on the way to a field that the live object has, so that the field is removed although `desired` does not even have the
/// object around it.
fn reach(live: &Value, desired: &mut Value, path: &str) {
    let Some((parents, _)) = path.rsplit_once('/') else { return };
    let (mut live, mut desired) = (live, desired);
    for parent in parents.split('/').skip(1) {
        let parent = parent.replace("~1", "/").replace("~0", "~");
        let (Some(below), Some(fields)) = (live.get(&parent), desired.as_object_mut()) else { return };
        if !below.is_object() && !fields.contains_key(&parent) {
            return;
        }
        (live, desired) = (below, fields.entry(parent).or_insert_with(|| json!({})));
    }
}

fn differences(live: &Value, desired: &Value, kind: &[MergeRule], owning: &[&str]) -> Vec<Difference> {
    let owning = owning.iter().map(|path| (*path, Merge::Owned));
    let rules = owning.chain(kind.iter().chain(&METADATA).copied()).collect();
    compare("", &FieldRules { rules, is_owned: false }, live, desired)
}

/// The rules of a kind and of all kinds, each with its whole path.
#[must_use]
pub fn rules<K: Resource>() -> Vec<(String, Merge)> {
    fn add(all: &mut Vec<(String, Merge)>, parent: &str, rules: &[MergeRule]) {
        for (path, merge) in rules {
            let path = format!("{parent}{path}");
            match merge {
                Merge::Rules(rules) => add(all, &path, rules),
                merge => all.push((path, *merge)),
            }
        }
    }
    let mut all = Vec::new();
    add(&mut all, "", K::MERGE);
    add(&mut all, "", &METADATA);
    all
}

/// The rules at one field, each with the rest of its path.
#[derive(Default)]
struct FieldRules<'a> {
    rules: Vec<(&'a str, Merge)>,
    /// Whether the field is a part of one that is owned.
    is_owned: bool,
}

impl<'a> FieldRules<'a> {
    /// The rule of the field itself.
    fn here(&self) -> Option<Merge> {
        self.rules.iter().find(|(path, _)| path.is_empty()).map(|(_, merge)| *merge)
    }

    /// The rules at a field of this object, or at an item of this list.
    fn at(&self, field: &str) -> FieldRules<'a> {
        let mut below = FieldRules::default();
        for (path, merge) in &self.rules {
            let path = path.strip_prefix('/').unwrap_or_default();
            let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
            if first == field || first == "*" {
                match merge {
                    Merge::Rules(rules) if rest.is_empty() => below.rules.extend(*rules),
                    merge => below.rules.push((rest, *merge)),
                }
            }
        }
        below.is_owned = match below.here() {
            Some(Merge::Owned | Merge::Whole) => true,
            Some(Merge::Defaulted | Merge::SharedBy(_) | Merge::NotOurs) => false,
            Some(Merge::Rules(_) | Merge::Quantity) | None => self.is_owned,
        };
        below
    }
}

/// Most characters of a value in a message. A value may be a list.
const VALUE_LENGTH_MAX: usize = 200;
/// Most entries of a map of texts that are changed one by one. No object of our types has as many fields.
const MAP_ENTRIES_MAX: usize = 100;

/// Compares the field at a path. `rules`: its own.
fn compare(at: &str, rules: &FieldRules<'_>, live: &Value, desired: &Value) -> Vec<Difference> {
    let replaced = || vec![Difference::new("replace", at.to_owned(), live, desired)];
    match (rules.here(), live, desired) {
        (Some(Merge::NotOurs), _, _) => Vec::new(),
        // A default may also be a quantity: a `divisor`.
        (Some(Merge::Quantity | Merge::Defaulted), live, desired)
            if Quantity::read(live).is_some_and(|live| Quantity::read(desired) == Some(live)) =>
        {
            Vec::new()
        }
        (Some(Merge::SharedBy(keys)), Value::Array(live), Value::Array(desired)) => {
            compare_items(at, rules, live, desired, keys)
        }
        // A list that is ours is replaced if any of its items differs.
        (_, Value::Array(live), Value::Array(wanted)) => {
            let mut items = live.iter().zip(wanted).enumerate();
            let is_same = |(index, (live, wanted)): (usize, (&Value, &Value))| {
                compare_below(at, rules, &index.to_string(), live, wanted).is_empty()
            };
            if live.len() == wanted.len() && items.all(is_same) { Vec::new() } else { replaced() }
        }
        (_, Value::Object(live), Value::Object(wanted)) if !(rules.is_owned && is_large(live)) => {
            compare_fields(at, rules, live, wanted)
        }
        _ => replaced(),
    }
}

/// Compares a field of the object at a path, or an item of the list there. `above`: the rules of the object or list.
fn compare_below(
    at: &str,
    above: &FieldRules<'_>,
    field: &str,
    live: &Value,
    desired: &Value,
) -> Vec<Difference> {
    if live == desired {
        return Vec::new();
    }
    let name = pointer_step(field);
    compare(&format!("{at}/{name}"), &above.at(&name), live, desired)
}

/// The fields that `desired` has, and those of ours that it lacks.
fn compare_fields(
    at: &str,
    rules: &FieldRules<'_>,
    live: &Map<String, Value>,
    desired: &Map<String, Value>,
) -> Vec<Difference> {
    let wanted = desired.iter().flat_map(|(field, wanted)| match live.get(field) {
        None => vec![Difference::new("add", format!("{at}/{}", pointer_step(field)), &Value::Null, wanted)],
        Some(value) => compare_below(at, rules, field, value, wanted),
    });
    let mut differences: Vec<_> = wanted.collect();
    if rules.rules.is_empty() && !rules.is_owned {
        return differences;
    }
    for (field, value) in live.iter().filter(|(field, _)| !desired.contains_key(*field)) {
        let name = pointer_step(field);
        let below = rules.at(&name);
        if below.is_owned && (rules.is_owned || below.here() == Some(Merge::Owned)) {
            differences.push(Difference::new("remove", format!("{at}/{name}"), value, &Value::Null));
        }
    }
    differences
}

/// Our items of a shared list. If they are not in the order of `desired`, as init containers must be, they come first, and then the
/// items of other writers.
fn compare_items(
    at: &str,
    rules: &FieldRules<'_>,
    live: &[Value],
    desired: &[Value],
    keys: &[&str],
) -> Vec<Difference> {
    let is_same = |item: &Value, other: &Value| keys.iter().all(|key| item[key] == other[key]);
    let place = |wanted: &Value| live.iter().position(|item| is_same(item, wanted));
    let mut places: Vec<_> = desired.iter().map(place).collect();
    let mut differences = Vec::new();
    let ordered: Vec<Value>;
    let mut items = live;
    // A missing item is added at the end.
    if !places.is_sorted_by_key(|place| place.unwrap_or(usize::MAX)) {
        let ours = desired.iter().zip(&places);
        let ours = ours.map(|(wanted, place)| place.map_or(wanted, |index| &live[index]));
        let others = live.iter().filter(|item| !desired.iter().any(|wanted| is_same(item, wanted)));
        ordered = ours.chain(others).cloned().collect();
        differences.push(Difference::new("replace", at.to_owned(), &json!(live), &json!(ordered)));
        (items, places) = (&ordered, (0..desired.len()).map(Some).collect());
    }
    for (wanted, place) in desired.iter().zip(places) {
        match place {
            None => differences.push(Difference::new("add", format!("{at}/-"), &Value::Null, wanted)),
            Some(index) => {
                differences.extend(compare_below(at, rules, &index.to_string(), &items[index], wanted));
            }
        }
    }
    differences
}

/// The name of a field in a JSON pointer: RFC 6901.
pub(crate) fn pointer_step(field: &str) -> Cow<'_, str> {
    if field.contains(['~', '/']) {
        return Cow::Owned(field.replace('~', "~0").replace('/', "~1"));
    }
    Cow::Borrowed(field)
}

/// Whether this is a map of texts with so many entries that one operation for each would take much memory: another client can put
/// 100,000 keys into a ConfigMap.
fn is_large(map: &Map<String, Value>) -> bool {
    map.len() > MAP_ENTRIES_MAX && map.values().all(Value::is_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &[MergeRule] = &[
        ("/labels/ours~1key", Merge::Owned),
        ("/selector", Merge::Whole),
        ("/data", Merge::Owned),
        ("/containers", Merge::SharedBy(&["name"])),
        ("/containers/*", Merge::Rules(CONTAINER)),
        ("/volumes", Merge::SharedBy(&["name"])),
        ("/volumes/*", Merge::Whole),
        ("/ports", Merge::Whole),
        ("/ports/*/protocol", Merge::Defaulted),
        ("/claims", Merge::NotOurs),
        ("/cpu", Merge::Quantity),
    ];
    const CONTAINER: &[MergeRule] = &[("/probe/exec", Merge::Owned), ("/probe/tcpSocket", Merge::Owned)];

    fn check(live: Value, desired: Value, expected: Value) {
        let differences = differences(&live, &desired, RULES, &["/args"]);
        assert_eq!(Value::Array(operations(&differences)), expected);
    }

    #[test]
    fn what_desired_does_not_set_is_left_alone() {
        let theirs = json!({
            "uid": "u", "labels": {"ours": "a", "theirs": "b"}, "annotations": {"note": "c"}, "finalizers": ["x"],
            "ownerReferences": [{"uid": "o", "controller": false}],
        });
        check(json!({"metadata": theirs}), json!({"metadata": {"labels": {"ours": "a"}}}), json!([]));
        check(json!({"metadata": theirs}), json!({"metadata": {}}), json!([]));
        check(json!({"replicas": 3, "ports": [{"port": 80}]}), json!({}), json!([]));
        check(json!({"claims": [{"size": 1}]}), json!({"claims": [{"size": 2}]}), json!([]));
    }

    #[test]
    fn a_changed_or_missing_field_is_one_operation() {
        check(
            json!({"labels": {"app/x": "other", "theirs": "t"}, "replicas": 1}),
            json!({"labels": {"app/x": "web", "~": "t"}, "replicas": 1}),
            json!([
                {"op": "replace", "path": "/labels/app~1x", "value": "web"},
                {"op": "add", "path": "/labels/~0", "value": "t"},
            ]),
        );
    }

    /// A Service whose selector had another key selected nothing, and nobody noticed. A key of a ConfigMap called `labels`
    /// was never removed.
    #[test]
    fn in_an_owned_field_what_desired_does_not_have_is_removed() {
        check(
            json!({"selector": {"app": "web", "generation": "x"}, "data": {"labels": "x"}, "labels": {"a/b": "x"}}),
            json!({"selector": {"app": "web"}, "labels": {}}),
            json!([{"op": "remove", "path": "/selector/generation"}, {"op": "remove", "path": "/data"}]),
        );
        // Of the kind, only with `desired`; of the children, in any case.
        check(json!({"selector": {"app": "web"}}), json!({}), json!([]));
        check(json!({"args": ["a"]}), json!({}), json!([{"op": "remove", "path": "/args"}]));
    }

    #[test]
    fn a_field_that_is_ours_is_removed_although_desired_lacks_the_object_around_it() {
        let removed = |live: Value, mut desired: Value, path: &str| {
            reach(&live, &mut desired, path);
            let operations = operations(&differences(&live, &desired, RULES, &[path]));
            assert_eq!(operations, [json!({"op": "remove", "path": path})]);
        };
        removed(json!({"a": {"b~/": {"c": 1, "d": 1}}}), json!({}), "/a/b~0~1/c");
        removed(json!({"a": {"b": {"c": 1}}}), json!({"a": {"b": {}}}), "/a/b/c");
        for (live, path) in [
            (json!({"a": {"b": 1}}), "/a/c"),
            (json!({"a": "text"}), "/a/b"),
            (json!({"containers": [{"name": "theirs", "args": []}]}), "/containers/*/args"),
        ] {
            let mut desired = json!({});
            reach(&live, &mut desired, path);
            assert_eq!(differences(&live, &desired, RULES, &[path]), []);
        }
    }

    /// One operation for each of 100,000 keys took as much memory as the limit of a Pod.
    #[test]
    fn a_map_with_very_many_texts_is_replaced_whole_unless_it_is_shared() {
        let many: Map<_, _> = (0..=MAP_ENTRIES_MAX).map(|key| (key.to_string(), json!(""))).collect();
        let replaced = json!([{"op": "replace", "path": "/data", "value": {"a": "b"}}]);
        check(json!({"data": many}), json!({"data": {"a": "b"}}), replaced);
        check(json!({"labels": many}), json!({"labels": {}}), json!([]));
    }

    #[test]
    fn an_owned_key_of_a_shared_map_is_removed() {
        let removed = json!([{"op": "remove", "path": "/labels/ours~1key"}]);
        check(json!({"labels": {"ours/key": "x", "theirs": "y"}}), json!({"labels": {}}), removed);
    }

    #[test]
    fn the_items_of_a_list_that_desired_sets_are_ours() {
        for list in ["ports", "tolerations"] {
            let path = format!("/{list}");
            check(
                json!({list: [{"port": 80}, {"port": 81}]}),
                json!({list: [{"port": 80}]}),
                json!([{"op": "replace", "path": path, "value": [{"port": 80}]}]),
            );
        }
        let edited = json!([{"key": "a", "effect": "NoExecute"}]);
        check(json!({"tolerations": edited}), json!({"tolerations": [{"key": "a"}]}), json!([]));
        let replaced = json!([{"op": "replace", "path": "/ports", "value": [{"port": 80}]}]);
        check(json!({"ports": [{"port": 80, "hostPort": 80}]}), json!({"ports": [{"port": 80}]}), replaced);
    }

    /// An author who left `protocol` empty got the condition `Mutated`, and one patch at each start.
    #[test]
    fn what_the_api_server_sets_is_ours_only_if_it_is_desired() {
        let ports = |protocols: [Value; 2]| {
            let [one, other] = protocols.map(|protocol| match protocol {
                Value::Null => json!({"port": 80}),
                protocol => json!({"port": 80, "protocol": protocol}),
            });
            json!({"type": "ClusterIP", "ports": [one, other]})
        };
        let absent = || Value::Null;
        let mut desired = ports([absent(), json!("UDP")]);
        check(ports([json!("TCP"), json!("UDP")]), desired.clone(), json!([]));
        let whole = json!([{"op": "replace", "path": "/ports", "value": desired["ports"]}]);
        for live in [[json!("TCP"), json!("TCP")], [json!("TCP"), absent()]] {
            check(ports(live), desired.clone(), whole.clone());
        }
        let mut edited = ports([json!("TCP"), json!("UDP")]);
        edited["type"] = json!("NodePort");
        check(
            edited.clone(),
            desired.clone(),
            json!([{"op": "replace", "path": "/type", "value": "ClusterIP"}]),
        );
        desired.as_object_mut().expect("fields").remove("type");
        check(edited, desired, json!([]));
    }

    #[test]
    fn a_container_is_found_by_name_and_others_stay() {
        check(
            json!({"containers": [{"name": "sidecar", "image": "s"}, {"name": "web", "image": "old"}]}),
            json!({"containers": [{"name": "web", "image": "new"}]}),
            json!([{"op": "replace", "path": "/containers/1/image", "value": "new"}]),
        );
        check(
            json!({"containers": [{"name": "sidecar"}]}),
            json!({"containers": [{"name": "web"}]}),
            json!([{"op": "add", "path": "/containers/-", "value": {"name": "web"}}]),
        );
        check(json!({"containers": [{"name": "sidecar"}]}), json!({}), json!([]));
        // The rule is one of this path, not of each field of this name.
        check(
            json!({"spec": {"containers": [{"name": "sidecar"}]}}),
            json!({"spec": {"containers": []}}),
            json!([{"op": "replace", "path": "/spec/containers", "value": []}]),
        );
    }

    /// A script that must run first ran last.
    #[test]
    fn our_items_of_a_shared_list_have_our_order() {
        let list = |names: &[&str]| json!({"containers": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
        check(list(&["a", "theirs", "b"]), list(&["a", "b"]), json!([]));
        let added = json!([{"op": "add", "path": "/containers/-", "value": {"name": "b"}}]);
        check(list(&["a", "theirs"]), list(&["a", "b"]), added);
        let all = list(&["a", "b", "theirs"])["containers"].take();
        let whole = json!([{"op": "replace", "path": "/containers", "value": all}]);
        check(list(&["b", "theirs"]), list(&["a", "b"]), whole.clone());
        check(list(&["b", "theirs", "a"]), list(&["a", "b"]), whole);
    }

    #[test]
    fn quantities_are_compared_by_value() {
        let cpu = |cpu: Value| json!({"cpu": cpu});
        for (live, desired) in [
            (json!("500m"), json!("0.5")),
            (json!("1Gi"), json!("1024Mi")),
            (json!("1"), json!(1)),
            (json!("2k"), json!("2e3")),
            (json!("1"), json!("1.0")),
            (json!("334m"), json!("0.3333")),
            (json!("10m"), json!("1e-2")),
        ] {
            check(cpu(live), cpu(desired), json!([]));
        }
        for (live, desired) in [("1G", "1Gi"), ("1", "1m"), ("x", "1"), ("9e99", "9e98")] {
            let replaced = json!([{"op": "replace", "path": "/cpu", "value": desired}]);
            check(cpu(json!(live)), cpu(json!(desired)), replaced);
        }
    }

    #[test]
    fn another_handler_of_a_probe_is_removed_and_its_times_stay() {
        let web = |probe: Value| json!({"containers": [{"name": "web", "probe": probe}]});
        let path = "/containers/0/probe";
        let wanted = json!({"tcpSocket": {"port": 80}});
        let both = json!([
            {"op": "add", "path": format!("{path}/tcpSocket"), "value": {"port": 80}},
            {"op": "remove", "path": format!("{path}/exec")},
        ]);
        check(web(json!({"period": 5, "exec": {"command": []}})), web(wanted.clone()), both);
        let port = json!([
            {"op": "replace", "path": format!("{path}/tcpSocket/port"), "value": 80},
            {"op": "remove", "path": format!("{path}/tcpSocket/host")},
        ]);
        check(web(json!({"tcpSocket": {"host": "a", "port": 81}})), web(wanted), port);
        // Without a probe of ours, it is another writer's.
        check(web(json!({"exec": {}})), json!({"containers": [{"name": "web"}]}), json!([]));
    }

    #[test]
    fn another_source_of_a_volume_is_removed() {
        check(
            json!({"volumes": [{"name": "theirs"}, {"name": "ours", "secret": {"secretName": "a"}}]}),
            json!({"volumes": [{"name": "ours", "emptyDir": {}}]}),
            json!([
                {"op": "add", "path": "/volumes/1/emptyDir", "value": {}},
                {"op": "remove", "path": "/volumes/1/secret"},
            ]),
        );
    }

    /// Each patch was refused if it made the first of two references to our owner a second controller.
    #[test]
    fn our_owner_reference_is_the_one_that_is_the_controller() {
        let reference =
            |name: &str, controller: bool| json!({"uid": "u", "controller": controller, "name": name});
        let references = |references: Value| json!({"metadata": {"ownerReferences": references}});
        check(
            references(json!([reference("web", false), reference("wrong", true)])),
            references(json!([reference("web", true)])),
            json!([{"op": "replace", "path": "/metadata/ownerReferences/1/name", "value": "web"}]),
        );
    }

    #[test]
    fn no_value_of_a_secret_is_in_a_message() {
        use crate::resource::kinds::Secret;
        let secret = |password: &str| {
            let metadata = json!({"name": "s", "resourceVersion": "1"});
            let secret = json!({"metadata": metadata, "data": {"password": password}});
            serde_json::from_value::<Secret>(secret).expect("a Secret")
        };
        let differences = between(&secret("b3RoZXI="), &secret("aHVudGVyMg=="), &[]);
        assert_eq!(differences[0].to_string(), "/data/password");
        assert_eq!(format!("{differences:?}"), "[/data/password]");
    }
}
