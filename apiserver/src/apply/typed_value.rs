//! Typed values (structured-merge-diff): merges objects by their schema. Lists have keys, are sets, or are atomic.
//!
//! ```yaml
//! ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [port, protocol], items: {…}}
//! ```
//!
//! The schema belongs to a CRD or to a built-in kind. Server-side apply needs four operations: the fields that a
//! value sets, the difference of two values, their merge, and the removal of fields. Structured-merge-diff calls them
//! ToFieldSet, Compare, Merge and RemoveItems.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use serde_json::{Map, Value};

use crate::{
    apply::field_set::{self, FieldSet},
    kinds::{Kind, Source},
    schema::{decode, openapi, places, twins},
};

/// The part of a schema that matters to a merge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeRef<'a> {
    /// Null if no schema describes the value.
    schema: &'a Value,
    /// Whether the value is an object with apiVersion, kind and metadata, even if its schema does not name them.
    is_object: bool,
    /// Whether the schema, or one around it, preserves unknown fields. In an apply, it does so for all values inside; those that
    /// [`prune_object`](crate::schema::prune_object) removes still have an owner.
    preserves: bool,
}

/// Most errors of an applied object, and most bytes that one part of their paths takes in all of them.
const MISFITS_MAX: usize = 1000;
const MISFITS_BYTES_MAX: usize = 1024 * 1024;

/// How a list is merged.
enum ListType<'a> {
    /// As one value, with one owner.
    Atomic,
    /// By the items themselves.
    Set,
    /// By these fields of the items.
    Keyed(Vec<&'a str>),
}

/// How a value takes part in a merge.
#[derive(Clone, Copy, PartialEq)]
enum Atom {
    /// As one value: a scalar, or an atomic list or map.
    Leaf,
    Map,
    List,
}

/// A field of a map.
pub(crate) enum Child<'a> {
    /// A property of the schema.
    Field(TypeRef<'a>),
    /// An entry of a map with arbitrary keys: `additionalProperties`.
    Entry(TypeRef<'a>),
    Unknown,
}

impl<'a> TypeRef<'a> {
    const UNTYPED: TypeRef<'static> = TypeRef { schema: &Value::Null, is_object: false, preserves: false };

    /// The type of the objects of a kind.
    pub(crate) fn of(kind: &'a Kind) -> TypeRef<'a> {
        TypeRef { is_object: true, ..TypeRef::UNTYPED.part(kind.schema()) }
    }

    /// The type of the objects of a kind in another version.
    pub(crate) fn in_version(kind: &'a Kind, api_version: &str) -> TypeRef<'a> {
        let schema = match &kind.source {
            Source::BuiltIn(entry) => {
                entry.in_version(api_version).map(|entry| openapi::definition(entry.definition()))
            }
            Source::Custom(custom) => custom.schemas.get(api_version).map(|schema| schema.source()),
        };
        let schema = schema.unwrap_or(kind.schema());
        TypeRef { is_object: true, ..TypeRef::UNTYPED.part(schema) }
    }

    fn metadata() -> TypeRef<'static> {
        TypeRef::UNTYPED.part(openapi::definition(openapi::OBJECT_META))
    }

    /// The type of a value inside.
    fn part(self, schema: &'a Value) -> TypeRef<'a> {
        let schema = openapi::resolved(schema);
        let is_object = schema["x-kubernetes-embedded-resource"] == true;
        let preserves = self.preserves || schema["x-kubernetes-preserve-unknown-fields"] == true;
        TypeRef { schema, is_object, preserves }
    }

    pub(crate) fn child(self, name: &str) -> Child<'a> {
        match (self.is_object, name) {
            (true, "metadata") => return Child::Field(TypeRef::metadata()),
            (true, "apiVersion" | "kind") => return Child::Field(TypeRef::UNTYPED),
            (true | false, _) => {}
        }
        if let Some(schema) = self.schema["properties"].get(name) {
            return Child::Field(self.part(schema));
        }
        match &self.schema["additionalProperties"] {
            schema @ Value::Object(_) => Child::Entry(self.part(schema)),
            Value::Bool(true) => Child::Entry(TypeRef::UNTYPED),
            _ if self.schema.is_null() || self.preserves => Child::Entry(TypeRef::UNTYPED),
            _ => Child::Unknown,
        }
    }

    /// The type of a field's value, known or not.
    pub(crate) fn field(self, name: &str) -> TypeRef<'a> {
        match self.child(name) {
            Child::Field(type_ref) | Child::Entry(type_ref) => type_ref,
            Child::Unknown => TypeRef::UNTYPED,
        }
    }

    pub(crate) fn item(self) -> TypeRef<'a> {
        self.part(&self.schema["items"])
    }

    /// The type of the value under a path element.
    fn at(self, element: &str) -> TypeRef<'a> {
        match element.strip_prefix("f:") {
            Some(name) => self.field(name),
            None => self.item(),
        }
    }

    fn is_atomic_map(self) -> bool {
        self.schema["x-kubernetes-map-type"] == "atomic"
    }

    fn list(self) -> ListType<'a> {
        match self.schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListType::Set,
            Some("map") => {
                let keys = self.schema["x-kubernetes-list-map-keys"].as_array();
                ListType::Keyed(keys.into_iter().flatten().filter_map(Value::as_str).collect())
            }
            Some(_) | None => ListType::Atomic,
        }
    }

    /// Whether a strategic merge patch merges the list instead of replacing it.
    pub(crate) fn is_merged(self) -> bool {
        self.schema["x-kubernetes-patch-strategy"].as_str().is_some_and(|how| how.contains("merge"))
    }

    /// Whether a strategic merge patch replaces the map in this field: the selector of a PodDisruptionBudget.
    pub(crate) fn is_replaced(self, name: &str) -> bool {
        self.schema["properties"][name]["x-kubernetes-patch-strategy"] == "replace"
    }

    /// The field of an item by which a strategic merge patch finds it. `None` for lists of scalars.
    pub(crate) fn merge_key(self) -> Option<&'a str> {
        self.schema["x-kubernetes-patch-merge-key"].as_str()
    }

    /// The default of a list key. `openapi.json` has no defaults, and built-in kinds have only one: `protocol: TCP`.
    fn key_default(self, key: &str) -> Option<Value> {
        let default = self.item().schema["properties"][key].get("default").cloned();
        default.or_else(|| (key == "protocol").then(|| "TCP".into()))
    }

    /// `None` for null, which has the structure of the other value.
    fn atom(self, value: &Value) -> Option<Atom> {
        match value {
            Value::Null => None,
            Value::Object(_) if self.is_atomic_map() => Some(Atom::Leaf),
            Value::Object(_) => Some(Atom::Map),
            Value::Array(items) if matches!(self.list(), ListType::Atomic) => Some(Atom::Leaf),
            Value::Array(_) => Some(Atom::List),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(Atom::Leaf),
        }
    }

    /// The path elements of the items of a list.
    fn elements(self, items: &[Value]) -> Vec<String> {
        let ListType::Keyed(keys) = self.list() else {
            return items.iter().map(|item| format!("v:{item}")).collect();
        };
        let of_item = |item: &Value| {
            let mut found = Map::new();
            for key in &keys {
                let value = item.get(key).filter(|value| !value.is_null()).cloned();
                if let Some(value) = value.or_else(|| self.key_default(key)) {
                    found.insert((*key).to_owned(), value);
                }
            }
            format!("k:{}", Value::from(found))
        };
        items.iter().map(of_item).collect()
    }

    /// The fields that a value sets.
    pub(crate) fn fields(self, value: &Value) -> FieldSet {
        let mut fields = FieldSet::default();
        match (self.atom(value), value) {
            (Some(Atom::Map), Value::Object(map)) => {
                for (name, value) in map {
                    let (type_ref, is_entry) = match self.child(name) {
                        Child::Field(type_ref) => (type_ref, false),
                        Child::Entry(type_ref) => (type_ref, true),
                        Child::Unknown => (TypeRef::UNTYPED, true),
                    };
                    let mut below = type_ref.fields(value);
                    below.is_member |= is_entry || value.as_object().is_some_and(Map::is_empty);
                    fields.put(format!("f:{name}"), below);
                }
            }
            (Some(Atom::List), Value::Array(items)) => {
                let elements = self.elements(items);
                let places = places(&elements);
                for (element, item) in iter::zip(&elements, items) {
                    // Of items with the same keys, only their path is in the set, and none of their fields.
                    let mut below =
                        if places[element].len() > 1 { FieldSet::leaf() } else { self.item().fields(item) };
                    below.is_member = true;
                    fields.put(element.clone(), below);
                }
            }
            _ => fields.is_member = true,
        }
        fields
    }

    /// The fields that a change adds or changes, and the fields that it removes.
    pub(crate) fn difference(self, old: Option<&Value>, new: Option<&Value>) -> Difference {
        let mut difference = Difference::default();
        if old == new {
            return difference;
        }
        let atom = match (old.and_then(|old| self.atom(old)), new.and_then(|new| self.atom(new))) {
            (Some(old), Some(new)) if old != new => Atom::Leaf,
            (Some(atom), _) | (None, Some(atom)) => atom,
            (None, None) => Atom::Leaf,
        };
        difference.changed.is_member = old.is_none();
        difference.removed.is_member = new.is_none();
        if atom == Atom::Leaf || (is_nothing(old) && is_nothing(new)) {
            difference.changed.is_member = new.is_some();
            return difference;
        }
        if atom == Atom::Map {
            for name in
                names(old).chain(names(new).filter(|name| old.is_none_or(|old| old.get(name).is_none())))
            {
                let below = self.field(name);
                let [old, new] = [old, new].map(|value| value.and_then(|value| value.get(name)));
                difference.put(format!("f:{name}"), below.difference(old, new));
            }
            return difference;
        }
        let mut items: BTreeMap<String, [Vec<&Value>; 2]> = BTreeMap::new();
        for (side, list) in [old, new].into_iter().enumerate() {
            let list = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for (element, item) in iter::zip(self.elements(list), list) {
                items.entry(element).or_default()[side].push(item);
            }
        }
        for (element, [old, new]) in items {
            // Items with the same keys are compared as one value.
            let below = match (&old[..], &new[..]) {
                ([] | [_], [] | [_]) => self.item().difference(old.first().copied(), new.first().copied()),
                (old, new) if old == new => Difference::default(),
                _ => Difference { changed: FieldSet::leaf(), removed: FieldSet::default() },
            };
            difference.put(element, below);
        }
        difference
    }

    /// The paths in a value of lists and maps that are only set as a whole: `.spec.containers[0].args`.
    pub(crate) fn atomics(self, value: &Value) -> Vec<String> {
        let mut all = Vec::new();
        let mut add =
            |at: String, below: Vec<String>| all.extend(below.iter().map(|path| format!("{at}{path}")));
        match value {
            Value::Object(map) => {
                if self.is_atomic_map() {
                    add(String::new(), vec![String::new()]);
                }
                for (name, value) in map {
                    if let Child::Field(field) = self.child(name) {
                        add(format!(".{name}"), field.atomics(value));
                    }
                }
            }
            Value::Array(items) => {
                if matches!(self.list(), ListType::Atomic) {
                    add(String::new(), vec![String::new()]);
                }
                for (index, item) in items.iter().enumerate() {
                    add(format!("[{index}]"), self.item().atomics(item));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        all
    }

    /// Merges an applied value into the live one.
    pub(crate) fn merge(self, live: &Value, applied: &Value) -> Value {
        match (self.atom(live), self.atom(applied)) {
            // A null does not remove the content of a map or a list.
            (Some(Atom::Map | Atom::List), None) => live.clone(),
            (Some(Atom::Map), Some(Atom::Map)) => {
                let mut merged = live.clone();
                for (name, applied) in applied.as_object().into_iter().flatten() {
                    let live = live.get(name).unwrap_or(&Value::Null);
                    merged[name] = self.field(name).merge(live, applied);
                }
                merged
            }
            (Some(Atom::List), Some(Atom::List)) => match (live, applied) {
                (Value::Array(live), Value::Array(applied)) => self.merge_lists(live, applied).into(),
                _ => applied.clone(),
            },
            _ => applied.clone(),
        }
    }

    /// Items in both lists have the order of the applied list. All other items keep their place.
    fn merge_lists(self, live: &[Value], applied: &[Value]) -> Vec<Value> {
        let (live_elements, applied_elements) = (self.elements(live), self.elements(applied));
        let (live_places, applied_places) = (places(&live_elements), places(&applied_elements));
        let find = |element: &String| live_places.get(element).map(|places| &live[places[0]]);
        let is_applied = |element: &String| applied_places.contains_key(element);
        let mut shared = applied_elements.iter().filter(|one| live_places.contains_key(one)).peekable();
        let (mut merged, mut done): (Vec<Value>, BTreeSet<&String>) = (Vec::new(), BTreeSet::new());
        let (mut l, mut r) = (0, 0);
        while l < live.len() || r < applied.len() {
            if let (Some(here), Some(there)) = (live_elements.get(l), applied_elements.get(r))
                && here != there
                && is_applied(here)
                && shared.peek().is_some_and(|next| *next != here)
            {
                l += 1;
                continue;
            }
            let same = live_elements.get(l).is_some() && live_elements.get(l) == applied_elements.get(r);
            if !same && let Some(here) = live_elements.get(l) {
                if !is_applied(here) {
                    merged.push(live[l].clone());
                    l += 1;
                    continue;
                }
                if done.contains(here) {
                    l += 1;
                    continue;
                }
            }
            let Some(there) = applied_elements.get(r) else { break };
            merged.push(self.item().merge(find(there).unwrap_or(&Value::Null), &applied[r]));
            done.insert(there);
            if shared.peek() == Some(&there) {
                shared.next();
            }
            l += usize::from(same);
            r += 1;
        }
        merged
    }

    /// Removes fields from a value. A value that becomes empty becomes null.
    pub(crate) fn remove(self, value: &mut Value, gone: &FieldSet) {
        if gone.is_empty() || is_nothing(Some(value)) {
            return;
        }
        match (self.atom(value), &mut *value) {
            (Some(Atom::Map), Value::Object(map)) => {
                map.retain(|name, value| match gone.get(&format!("f:{name}")) {
                    Some(gone) if gone.is_member => false,
                    Some(gone) => {
                        self.field(name).remove(value, gone);
                        true
                    }
                    None => true,
                });
            }
            (Some(Atom::List), Value::Array(items)) => {
                let mut elements = self.elements(items).into_iter();
                items.retain_mut(|item| match elements.next().and_then(|element| gone.get(&element)) {
                    Some(gone) if gone.is_member => false,
                    Some(gone) => {
                        self.item().remove(item, gone);
                        true
                    }
                    None => true,
                });
            }
            _ => {}
        }
        if is_nothing(Some(value)) {
            *value = Value::Null;
        }
    }

    /// Adds the parents of all fields: the owner of all fields in a list owns the list.
    pub(crate) fn with_parents(self, fields: &FieldSet) -> FieldSet {
        let mut fields = fields.clone();
        self.add_parents(&mut fields);
        fields
    }

    fn add_parents(self, fields: &mut FieldSet) {
        for (element, below) in fields.children_mut() {
            let is_field =
                element.strip_prefix("f:").is_some_and(|name| matches!(self.child(name), Child::Field(_)));
            below.is_member |= is_field && below.has_children();
            self.at(element).add_parents(below);
        }
    }

    /// The error of a value whose type is not the schema's.
    fn mistyped(self, value: &Value) -> Option<String> {
        let wanted = match (self.schema["type"].as_str()?, value) {
            (_, Value::Null)
            | ("object", Value::Object(_))
            | ("array", Value::Array(_))
            | ("integer" | "number", Value::Number(_))
            | ("string", Value::String(_))
            | ("boolean", Value::Bool(_)) => return None,
            ("object", _) => "map",
            ("array", _) => "list",
            ("integer" | "number", _) => "numeric (int or float)",
            (wanted, _) => wanted,
        };
        Some(format!("expected {wanted}, got {}", decode::json_type(value)))
    }

    /// The error of a list with an item that is null or has none of the keys.
    fn keyless(self, items: &[Value]) -> Option<String> {
        let ListType::Keyed(keys) = self.list() else {
            let index = items.iter().position(Value::is_null)?;
            let why = "without keys has an element that's an explicit null";
            return Some(format!(": element {index}: associative list {why}"));
        };
        // In kube-apiserver's OpenAPI, fields that Go always encodes have defaults: an empty name, a port of zero.
        let is_go = self.schema["items"].get("$ref").is_some();
        let has_key = |item: &Value| {
            is_go || keys.iter().any(|key| !item[key].is_null() || self.key_default(key).is_some())
        };
        let index = items.iter().position(|item| !item.is_object() || !has_key(item))?;
        let why = match &items[index] {
            Value::Object(_) => {
                let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
                format!(
                    "has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    keys.join(" ")
                )
            }
            Value::Null => "may not have a null element".to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                "may not have non-map elements".to_owned()
            }
        };
        Some(format!(": element {index}: associative list with keys {why}"))
    }

    /// Why a value cannot be applied, in the words of kube-apiserver: `.spec.bogus: field not declared in schema`.
    pub(crate) fn unfit(self, value: &Value) -> Option<String> {
        let mut errors = Vec::new();
        self.misfits(value, &mut errors);
        match errors.len() {
            0 | 1 => errors.pop(),
            _ => Some(format!("errors:\n  {}", errors.join("\n  "))),
        }
    }

    fn misfits(self, value: &Value, errors: &mut Vec<String>) {
        if let Some(why) = self.mistyped(value) {
            errors.push(format!(": {why}"));
            return;
        }
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    match self.child(name) {
                        Child::Field(below) | Child::Entry(below) => {
                            below.misfits_at(&format!(".{name}"), value, errors)
                        }
                        Child::Unknown => {
                            return errors.push(format!(".{name}: field not declared in schema"));
                        }
                    }
                }
            }
            Value::Array(items) if matches!(self.list(), ListType::Atomic) => {
                for (index, item) in items.iter().enumerate() {
                    self.item().misfits_at(&format!("[{index}]"), item, errors);
                }
            }
            Value::Array(items) => {
                if let Some(why) = self.keyless(items) {
                    return errors.push(why);
                }
                let elements = self.elements(items);
                let twins: BTreeSet<usize> = twins(&elements).collect();
                for (index, (element, item)) in iter::zip(&elements, items).enumerate() {
                    let element = field_set::shown(element);
                    if twins.contains(&index) {
                        errors.push(format!(": duplicate entries for key {element}"));
                    }
                    self.item().misfits_at(&element, item, errors);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn misfits_at(self, element: &str, value: &Value, errors: &mut Vec<String>) {
        let before = errors.len();
        self.misfits(value, errors);
        errors.truncate(MISFITS_MAX.min(before + 1 + MISFITS_BYTES_MAX / element.len().max(1)));
        errors.iter_mut().skip(before).for_each(|why| why.insert_str(0, element));
    }
}

/// A change, as two sets of fields.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Difference {
    /// Fields that were added or have another value.
    pub(crate) changed: FieldSet,
    pub(crate) removed: FieldSet,
}

impl Difference {
    fn put(&mut self, element: String, below: Difference) {
        self.changed.put(element.clone(), below.changed);
        self.removed.put(element, below.removed);
    }
}

fn names(value: Option<&Value>) -> impl Iterator<Item = &String> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::keys)
}

fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => false,
    }
}
