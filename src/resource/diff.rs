//! Compares a live object with the desired one, and computes the JSON patch between them.
//!
//! Our Rust types have the fields that we own, and all of these are compared: a field that `desired` does not have is
//! removed from the live object. Maps and lists are owned as a whole, unless the kind declares at their path that other
//! writers have keys or items there, which stay ([`Resource::MERGE`], in `kinds.rs` for built-in kinds):
//!
//! ```text
//!   /metadata/labels                    Shared                 every kind: labels of other writers stay
//!   /spec/template/spec/containers      SharedBy(["name"])     Deployment: containers of other names stay
//!   /metadata/finalizers                SharedSet              of a kind of yours: finalizers of other controllers stay
//!   /spec/ports/*/protocol              Defaulted              Service: the API server sets TCP if `desired` has no protocol
//! ```
//!
//! Few lists are shared. A shared list keeps each added item: with server-side apply, a port that another writer has added to
//! a Service stays, and every later apply fails because of its duplicate name.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Resource;

/// How one field is merged. Its path is a JSON pointer, with `*` for each item of a list.
pub type MergeRule = (&'static str, Merge);

/// How the desired state of a field is merged into the live one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// A map: keys that `desired` does not have belong to other writers, and stay.
    Shared,
    /// A list: items that `desired` does not have belong to other writers, and stay. Two items are the same if these fields
    /// of them are equal.
    SharedBy(&'static [&'static str]),
    /// A list of texts or numbers: items that `desired` does not have belong to other writers, and stay.
    SharedSet,
    /// A key of a shared map that is ours: it is removed if `desired` does not have it.
    Owned,
    /// Not ours: neither compared nor removed.
    NotOurs,
    /// The API server sets this field if it is absent, such as the `protocol` of a port. It is ours only if `desired` has it:
    /// otherwise, it is neither compared nor removed.
    Defaulted,
    /// Replaced as a whole at each difference, with the fields that the type does not have. For a field that has one of
    /// many forms, such as the source of a volume: a patch that adds one form beside another is invalid.
    Whole,
    /// An object that has only one of these fields, such as the handler of a probe. If none of those that the type has is
    /// there, another one is, so the object is replaced as a whole.
    OneOf(&'static [&'static str]),
}

/// The metadata of every kind. The API server sets the fields that are not ours; finalizers belong to other controllers.
static METADATA: [MergeRule; 9] = [
    ("/metadata/uid", Merge::NotOurs),
    ("/metadata/resourceVersion", Merge::NotOurs),
    ("/metadata/generation", Merge::NotOurs),
    ("/metadata/creationTimestamp", Merge::NotOurs),
    ("/metadata/deletionTimestamp", Merge::NotOurs),
    ("/metadata/finalizers", Merge::NotOurs),
    ("/metadata/labels", Merge::Shared),
    ("/metadata/annotations", Merge::Shared),
    // One owner can have several references; one of them may be the controller.
    ("/metadata/ownerReferences", Merge::SharedBy(&["uid", "controller"])),
];

/// The operations of a JSON patch ([RFC 6902](https://www.rfc-editor.org/rfc/rfc6902)) that make `live` like `desired`.
/// Empty if there is no difference.
///
/// Fields that the type does not have are on neither side, and so never differ.
#[must_use]
pub fn between<K: Resource + Serialize>(live: &K, desired: &K) -> Vec<Value> {
    let patch = || {
        let value =
            |object| serde_json::to_value(object).expect("our types have string keys and no failing impls");
        json_patch(&value(live), &value(desired), K::MERGE)
    };
    if live.is_like(desired) {
        debug_assert_eq!(patch(), Vec::<Value>::new());
        return Vec::new();
    }
    patch()
}

fn json_patch(live: &Value, desired: &Value, rules: &'static [MergeRule]) -> Vec<Value> {
    let mut comparison = Comparison { rules, path: String::new(), operations: Vec::new() };
    comparison.compare(live, desired);
    comparison.operations
}

/// The rules of a kind, and the rules that every kind has.
pub fn rules<K: Resource>() -> impl Iterator<Item = &'static MergeRule> {
    all_rules(K::MERGE)
}

fn all_rules(rules: &'static [MergeRule]) -> impl Iterator<Item = &'static MergeRule> {
    rules.iter().chain(&METADATA)
}

/// How the field at a JSON pointer is merged, if a rule says so.
fn rule_at(rules: &'static [MergeRule], path: &str) -> Option<Merge> {
    let is_at = |pattern: &str| {
        let (mut fields, mut wanted) = (path.split('/'), pattern.split('/'));
        wanted.by_ref().all(|field| fields.next().is_some_and(|one| field == "*" || field == one))
            && fields.next().is_none()
    };
    all_rules(rules).find(|(pattern, _)| is_at(pattern)).map(|(_, merge)| *merge)
}

/// Most entries of a map of texts that are changed one by one. No object of our types has as many fields.
const MAP_ENTRIES_MAX: usize = 100;

/// A comparison of two objects, at one field.
struct Comparison {
    rules: &'static [MergeRule],
    /// The JSON pointer of the field.
    path: String,
    operations: Vec<Value>,
}

impl Comparison {
    fn compare(&mut self, live: &Value, desired: &Value) {
        if live == desired {
            return;
        }
        match (self.rule(), live, desired) {
            (Some(Merge::NotOurs), _, _) => {}
            (Some(Merge::SharedBy(keys)), Value::Array(live), Value::Array(desired)) => {
                self.set_wanted_items(live, desired, keys);
            }
            (Some(Merge::SharedSet), Value::Array(live), Value::Array(desired)) => {
                for wanted in desired.iter().filter(|wanted| !live.contains(wanted)) {
                    self.add(json!({"op": "add", "path": format!("{}/-", self.path), "value": wanted}));
                }
            }
            (None, Value::Object(fields), _) if is_large(fields) => {
                self.add(json!({"op": "replace", "path": &*self.path, "value": desired}));
            }
            (rule, Value::Object(live), Value::Object(desired)) if !is_replaced(rule, live, desired) => {
                self.set_wanted(live, desired);
                self.remove_unwanted(live, desired);
            }
            _ if self.is_same(live, desired) => {}
            _ => self.add(json!({"op": "replace", "path": &*self.path, "value": desired})),
        }
    }

    /// Whether two values that are replaced as a whole differ at most in what the API server sets.
    fn is_same(&mut self, live: &Value, desired: &Value) -> bool {
        match (live, desired) {
            (Value::Array(live), Value::Array(desired)) => {
                let mut items = live.iter().zip(desired).enumerate();
                live.len() == desired.len()
                    && items.all(|(index, (live, desired))| {
                        self.is_same_at(&index.to_string(), live, Some(desired))
                    })
            }
            (Value::Object(live), Value::Object(desired)) => {
                desired.keys().all(|field| live.contains_key(field))
                    && live.iter().all(|(field, live)| self.is_same_at(field, live, desired.get(field)))
            }
            _ => live == desired,
        }
    }

    fn is_same_at(&mut self, field: &str, live: &Value, desired: Option<&Value>) -> bool {
        let length = self.push(field);
        let is_same = match desired {
            Some(desired) => self.is_same(live, desired),
            None => self.rule() == Some(Merge::Defaulted),
        };
        self.path.truncate(length);
        is_same
    }

    fn set_wanted(&mut self, live: &Map<String, Value>, desired: &Map<String, Value>) {
        for (field, wanted) in desired {
            let length = self.push(field);
            match live.get(field) {
                None => self.add(json!({"op": "add", "path": &*self.path, "value": wanted})),
                Some(value) => self.compare(value, wanted),
            }
            self.path.truncate(length);
        }
    }

    /// Adds and corrects our items. Other items belong to other writers, and stay.
    fn set_wanted_items(&mut self, live: &[Value], desired: &[Value], keys: &[&str]) {
        for wanted in desired {
            let is_it = |item: &Value| keys.iter().all(|key| item[key] == wanted[key]);
            let Some(index) = live.iter().position(is_it) else {
                self.add(json!({"op": "add", "path": format!("{}/-", self.path), "value": wanted}));
                continue;
            };
            let length = self.push(&index.to_string());
            self.compare(&live[index], wanted);
            self.path.truncate(length);
        }
    }

    fn remove_unwanted(&mut self, live: &Map<String, Value>, desired: &Map<String, Value>) {
        let is_shared = self.rule() == Some(Merge::Shared);
        for (field, value) in live {
            if desired.contains_key(field) {
                continue;
            }
            let length = self.push(field);
            match (self.rule(), value) {
                (None, _) if is_shared => {}
                (Some(Merge::NotOurs | Merge::SharedBy(_) | Merge::SharedSet | Merge::Defaulted), _) => {}
                (None, Value::Object(fields)) if is_large(fields) => {
                    self.add(json!({"op": "remove", "path": &*self.path}));
                }
                // Field by field, because it may have fields that our type does not have.
                (None | Some(Merge::Owned | Merge::Shared), Value::Object(fields)) => {
                    self.remove_unwanted(fields, &Map::new());
                }
                _ => self.add(json!({"op": "remove", "path": &*self.path})),
            }
            self.path.truncate(length);
        }
    }

    fn rule(&self) -> Option<Merge> {
        rule_at(self.rules, &self.path)
    }

    fn add(&mut self, operation: Value) {
        self.operations.push(operation);
    }

    /// Appends a field to the JSON pointer. Returns the length that the pointer had before.
    fn push(&mut self, field: &str) -> usize {
        let length = self.path.len();
        self.path.push('/');
        self.path.push_str(&field.replace('~', "~0").replace('/', "~1"));
        length
    }
}

/// Whether this is a map of texts with so many entries that one operation for each would take much memory: another client can put
/// 100,000 keys into a ConfigMap.
fn is_large(map: &Map<String, Value>) -> bool {
    map.len() > MAP_ENTRIES_MAX && map.values().all(Value::is_string)
}

/// Whether an object is replaced as a whole.
fn is_replaced(rule: Option<Merge>, live: &Map<String, Value>, desired: &Map<String, Value>) -> bool {
    match rule {
        Some(Merge::Whole) => true,
        Some(Merge::OneOf(fields)) => {
            let has_one =
                |object: &Map<String, Value>| fields.iter().any(|field| object.contains_key(*field));
            has_one(desired) && !has_one(live)
        }
        None
        | Some(
            Merge::Shared
            | Merge::SharedBy(_)
            | Merge::SharedSet
            | Merge::Owned
            | Merge::NotOurs
            | Merge::Defaulted,
        ) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &[MergeRule] = &[
        ("/map", Merge::Shared),
        ("/map/ours~1key", Merge::Owned),
        ("/containers", Merge::SharedBy(&["name"])),
        ("/containers/*/probe", Merge::OneOf(&["exec", "tcpSocket"])),
        ("/set", Merge::SharedSet),
        ("/volumes", Merge::SharedBy(&["name"])),
        ("/volumes/*", Merge::Whole),
        ("/ports/*/protocol", Merge::Defaulted),
        ("/type", Merge::Defaulted),
    ];

    fn check(live: Value, desired: Value, expected: Value) {
        assert_eq!(Value::Array(json_patch(&live, &desired, RULES)), expected);
    }

    #[test]
    fn labels_annotations_and_other_metadata_of_others_are_left_alone() {
        let theirs = json!({
            "uid": "u", "labels": {"ours": "a", "theirs": "b"}, "annotations": {"note": "c"}, "finalizers": ["x"],
            "ownerReferences": [{"uid": "o", "controller": false}],
        });
        check(json!({"metadata": theirs}), json!({"metadata": {"labels": {"ours": "a"}}}), json!([]));
        check(json!({"metadata": theirs}), json!({"metadata": {}}), json!([]));
    }

    #[test]
    fn a_changed_or_missing_field_is_one_operation() {
        check(
            json!({"labels": {"app/x": "other"}, "replicas": 1}),
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
    fn unwanted_fields_are_removed_one_by_one() {
        check(
            // `generation` is the server's in metadata alone.
            json!({"selector": {"app": "web", "generation": "x"}, "data": {"labels": "x"}, "labels": {"a/b": "x"}}),
            json!({"selector": {"app": "web"}, "labels": {}}),
            json!([
                {"op": "remove", "path": "/labels/a~1b"},
                {"op": "remove", "path": "/selector/generation"},
                {"op": "remove", "path": "/data/labels"},
            ]),
        );
    }

    /// One operation for each of 100,000 keys took as much memory as the limit of a Pod.
    #[test]
    fn a_map_with_very_many_texts_is_replaced_or_removed_whole_unless_it_is_shared() {
        let many: Map<_, _> = (0..=MAP_ENTRIES_MAX).map(|key| (key.to_string(), json!(""))).collect();
        let replaced = json!([{"op": "replace", "path": "/data", "value": {"a": "b"}}]);
        check(json!({"data": many}), json!({"data": {"a": "b"}}), replaced);
        check(json!({"data": many}), json!({}), json!([{"op": "remove", "path": "/data"}]));
        check(json!({"map": many}), json!({"map": {}}), json!([]));
    }

    #[test]
    fn an_owned_key_of_a_shared_map_is_removed() {
        let removed = json!([{"op": "remove", "path": "/map/ours~1key"}]);
        check(json!({"map": {"ours/key": "x", "theirs": "y"}}), json!({"map": {}}), removed.clone());
        check(json!({"map": {"ours/key": "x", "theirs": "y"}}), json!({}), removed);
    }

    #[test]
    fn a_list_that_we_own_is_replaced_whole() {
        check(
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            json!({"ports": [{"port": 80}]}),
            json!([{"op": "replace", "path": "/ports", "value": [{"port": 80}]}]),
        );
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
        let mut longer = ports([json!("TCP"), json!("UDP")]);
        longer["ports"].as_array_mut().expect("ports").push(json!({"port": 81}));
        check(longer, desired.clone(), whole);
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

    #[test]
    fn a_shared_set_gets_our_items_and_keeps_all_others() {
        check(
            json!({"set": ["theirs", "ours"]}),
            json!({"set": ["ours", "new"]}),
            json!([{"op": "add", "path": "/set/-", "value": "new"}]),
        );
        check(json!({"set": ["theirs", "ours"]}), json!({"set": ["ours"]}), json!([]));
        check(json!({"set": ["theirs"]}), json!({}), json!([]));
        check(json!({}), json!({"set": ["ours"]}), json!([{"op": "add", "path": "/set", "value": ["ours"]}]));
    }

    /// The type of the live object has `tcpSocket` alone, so a handler that another writer has set is not seen.
    #[test]
    fn a_probe_of_another_form_is_replaced_and_one_of_this_form_corrected() {
        let probes = |live: Value, desired: Value, operations: Value| {
            let web = |probe: Value| json!({"containers": [{"name": "web", "probe": probe}]});
            check(web(live), web(desired), operations);
        };
        let path = "/containers/0/probe";
        let wanted = json!({"tcpSocket": {"port": 80}});
        let whole = json!([{"op": "replace", "path": path, "value": wanted}]);
        probes(json!({"period": 5}), wanted.clone(), whole);
        let port = json!([
            {"op": "replace", "path": format!("{path}/tcpSocket/port"), "value": 80},
            {"op": "remove", "path": format!("{path}/period")},
        ]);
        probes(json!({"period": 5, "tcpSocket": {"port": 81}}), wanted.clone(), port);
        let both = json!([
            {"op": "add", "path": format!("{path}/tcpSocket"), "value": {"port": 80}},
            {"op": "remove", "path": format!("{path}/exec")},
        ]);
        probes(json!({"exec": true}), wanted, both);
        let without = json!({"containers": [{"name": "web"}]});
        let with = json!({"containers": [{"name": "web", "probe": {"period": 5}}]});
        check(with, without, json!([{"op": "remove", "path": path}]));
    }

    #[test]
    fn a_volume_of_ours_is_replaced_whole() {
        check(
            json!({"volumes": [{"name": "theirs"}, {"name": "ours"}]}),
            json!({"volumes": [{"name": "ours", "emptyDir": {}}]}),
            json!([{"op": "replace", "path": "/volumes/1", "value": {"name": "ours", "emptyDir": {}}}]),
        );
    }

    /// Each patch was refused if the first of two references to our owner had become a controller, too.
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
}
