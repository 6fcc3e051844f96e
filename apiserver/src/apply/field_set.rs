//! Sets of fields (fieldpath.Set): the `fieldsV1` of an entry in `metadata.managedFields`.
//!
//! ```json
//! {"f:spec": {"f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
//!             "f:tags": {"v:\"blue\"": {}}}}
//! ```
//!
//! A tree of path elements: `f:` a field, `k:` a list item by its keys, `v:` an item of a set, `i:` an item by its
//! index. A path is in the set if it ends at a leaf or has a `.`. All other nodes only lead to such paths. The rules
//! are as in sigs.k8s.io/structured-merge-diff. Nothing here knows about objects: see `typed_value.rs`.

use std::collections::{BTreeMap, btree_map::Entry};

use serde_json::{Map, Value};

/// A set of paths into an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldSet {
    /// Whether the path that ends here is in the set.
    pub(crate) is_member: bool,
    children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// A set with the path that ends here, and nothing below it.
    pub(crate) fn leaf() -> FieldSet {
        FieldSet { is_member: true, children: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_member && self.children.is_empty()
    }

    pub(crate) fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    pub(crate) fn get(&self, element: &str) -> Option<&FieldSet> {
        self.children.get(element)
    }

    pub(crate) fn children_mut(&mut self) -> impl Iterator<Item = (&String, &mut FieldSet)> {
        self.children.iter_mut()
    }

    /// Puts a set under a path element. An empty set adds nothing.
    pub(crate) fn put(&mut self, element: String, fields: FieldSet) {
        if !fields.is_empty() {
            self.children.entry(element).or_default().add(&fields);
        }
    }

    /// Removes an element and everything below it.
    pub(crate) fn cut(&mut self, element: &str) {
        self.children.remove(element);
    }

    /// Union.
    pub(crate) fn add(&mut self, other: &FieldSet) {
        self.is_member |= other.is_member;
        for (element, fields) in &other.children {
            match self.children.entry(element.clone()) {
                Entry::Occupied(mut here) => here.get_mut().add(fields),
                Entry::Vacant(free) => {
                    free.insert(fields.clone());
                }
            }
        }
    }

    /// Difference, path by path: paths below a removed path stay.
    pub(crate) fn subtract(&mut self, other: &FieldSet) {
        self.is_member &= !other.is_member;
        for (element, fields) in &other.children {
            if let Entry::Occupied(mut here) = self.children.entry(element.clone()) {
                here.get_mut().subtract(fields);
                if here.get().is_empty() {
                    here.remove();
                }
            }
        }
    }

    /// Intersection.
    pub(crate) fn intersection(&self, other: &FieldSet) -> FieldSet {
        let mut common = FieldSet { is_member: self.is_member && other.is_member, children: BTreeMap::new() };
        for (element, fields) in &self.children {
            if let Some(other) = other.children.get(element) {
                common.put(element.clone(), fields.intersection(other));
            }
        }
        common
    }

    /// The paths in the format of messages, ordered as by kube-apiserver: `.spec.ports[port=80,protocol="TCP"].name`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    /// Paths that end at a level come before those that go deeper.
    fn collect_paths(&self, before: &str, paths: &mut Vec<String>) {
        for (element, _) in self.children.iter().filter(|(_, fields)| fields.is_member) {
            paths.push(format!("{before}{}", shown(element)));
        }
        for (element, fields) in self.children.iter().filter(|(_, fields)| fields.has_children()) {
            fields.collect_paths(&format!("{before}{}", shown(element)), paths);
        }
    }

    /// Parses `fieldsV1`. `None` if it is invalid.
    pub(crate) fn from_json(value: &Value) -> Option<FieldSet> {
        let mut fields = FieldSet::default();
        for (element, below) in value.as_object()? {
            if element == "." {
                fields.is_member = true;
                continue;
            }
            if !["f:", "k:", "v:", "i:"].iter().any(|prefix| element.starts_with(prefix)) {
                return None;
            }
            let mut below = FieldSet::from_json(below)?;
            below.is_member |= below.children.is_empty();
            fields.children.insert(element.clone(), below);
        }
        Some(fields)
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        for (element, fields) in &self.children {
            let mut below = fields.to_json();
            if fields.is_member && fields.has_children() {
                below["."] = Value::Object(Map::new());
            }
            map.insert(element.clone(), below);
        }
        map.into()
    }
}

/// A path element in the format of messages: `.spec`, `[name="web"]`, `[="blue"]`.
pub(crate) fn shown(element: &str) -> String {
    let (prefix, rest) = element.split_at(2);
    match (prefix, serde_json::from_str(rest)) {
        ("k:", Ok(Value::Object(keys))) => {
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        ("v:", _) => format!("[={rest}]"),
        ("i:", _) => format!("[{rest}]"),
        _ => format!(".{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> FieldSet {
        FieldSet::from_json(value).expect("fieldsV1")
    }

    #[test]
    fn paths_are_formatted_as_in_kube_apiserver() {
        let set = fields(&json!({
            "f:spec": {
                "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
                "f:size": {}, "f:tags": {"v:\"a\"": {}},
            },
        }));
        let item = ".spec.ports[port=80,protocol=\"TCP\"]";
        assert_eq!(set.paths(), [".spec.size", item, &format!("{item}.name"), ".spec.tags[=\"a\"]"]);
    }

    #[test]
    fn invalid_fields_v1_is_refused() {
        for wrong in [json!(null), json!([]), json!({"spec": {}}), json!({"f:spec": 1}), json!({"": {}})] {
            assert_eq!(FieldSet::from_json(&wrong), None, "{wrong}");
        }
    }

    fn any_fields() -> impl Strategy<Value = FieldSet> {
        let element = prop_oneof![Just("f:a"), Just("f:b"), Just("k:{\"n\":1}"), Just("v:\"x\"")];
        let leaf = Just(FieldSet::leaf());
        let tree = leaf.prop_recursive(4, 40, 4, move |inner| {
            (any::<bool>(), prop::collection::btree_map(element.clone().prop_map(str::to_owned), inner, 1..4))
                .prop_map(|(is_member, children)| FieldSet { is_member, children })
        });
        // The root is not a path.
        tree.prop_map(|fields| FieldSet { is_member: false, ..fields })
    }

    proptest! {
        #[test]
        fn a_set_survives_the_wire(set in any_fields()) {
            prop_assert_eq!(fields(&set.to_json()), set);
        }

        #[test]
        fn the_three_operations_are_those_of_sets_of_paths(one in any_fields(), other in any_fields()) {
            let paths = |set: &FieldSet| -> std::collections::BTreeSet<String> { set.paths().into_iter().collect() };
            let (a, b) = (paths(&one), paths(&other));
            let (mut union, mut difference) = (one.clone(), one.clone());
            union.add(&other);
            difference.subtract(&other);
            prop_assert_eq!(paths(&union), a.union(&b).cloned().collect());
            prop_assert_eq!(paths(&difference), a.difference(&b).cloned().collect());
            prop_assert_eq!(paths(&one.intersection(&other)), a.intersection(&b).cloned().collect());
            // A set without paths has no branches either.
            difference.subtract(&union);
            prop_assert_eq!(difference, FieldSet::default());
        }
    }
}
