//! Changes of a custom resource that its CRD suggests: a correct operator applies each. Nothing in this file does I/O.
//!
//! The idea, and most of the rules, come from Acto (SOSP 2023): <https://github.com/xlab-uiuc/acto>.

use std::cmp::Reverse;

use listwatch_formats::quantity::{canonical, quantity};
use serde_json::{Map, Value, json};

/// Deepest field: `.spec.a.b.c`.
const DEPTH_MAX: usize = 4;

/// Fields that are not the user's wish.
const NOT_CHANGED: [&str; 4] = [".apiVersion", ".kind", ".metadata", ".status"];

/// The simulated kubelet cannot pull it.
const MISSING_IMAGE: &str = "does-not-exist:scorecard";

/// Names of fields that count Pods.
const COUNTS: [&str; 5] = ["replicas", "size", "count", "instances", "nodes"];

/// A stop of the operator's work. The state then depends on the moment.
const PAUSES: [&str; 4] = ["paused", "pause", "suspend", "suspended"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// A user may want it.
    Change,
    /// A mistake that the schema allows, such as an image that does not exist.
    Mistake,
    /// An optional field is left out.
    Omission,
}

/// A change of one field, mostly of `.spec`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SpecChange {
    /// `.spec.size`
    pub(super) path: String,
    /// Its value before. Null: absent.
    pub(super) from: Value,
    /// Its value after. Null: removed.
    pub(super) to: Value,
    pub(super) intent: Intent,
    /// Small for what finds most.
    rank: (usize, usize),
}

impl SpecChange {
    /// A merge patch of the object.
    pub(super) fn patch(&self) -> Value {
        self.patch_to(&self.to)
    }

    /// A merge patch that takes the change back.
    pub(super) fn patch_back(&self) -> Value {
        self.patch_to(&taken_back(&self.to, &self.from))
    }

    fn patch_to(&self, value: &Value) -> Value {
        self.path
            .split('.')
            .skip(1)
            .collect::<Vec<_>>()
            .into_iter()
            .rfold(value.clone(), |value, name| json!({name: value}))
    }

    /// The object after the change.
    pub(super) fn applied(&self, object: &Value) -> Value {
        let mut changed = object.clone();
        json_patch::merge(&mut changed, &self.patch());
        changed
    }
}

/// A merge patch that gets from a merged value back to the one before: what was added becomes null.
fn taken_back(merged: &Value, before: &Value) -> Value {
    let (Value::Object(merged), Value::Object(fields)) = (merged, before) else { return before.clone() };
    let mut patch = fields.clone();
    for (key, value) in merged {
        patch.insert(key.clone(), taken_back(value, &before[key]));
    }
    patch.into()
}

/// All changes of a stored object, which has its defaults. Those that find most come first.
pub(super) fn changes(schema: &Value, object: &Value) -> Vec<SpecChange> {
    let mut walk = Walk { all: Vec::new() };
    walk.fields(schema, Some(object), "", 1);
    walk.all.sort_by_key(|change| change.rank);
    walk.all
}

struct Walk {
    all: Vec<SpecChange>,
}

/// A field with its schema and value.
struct Field<'a> {
    name: &'a str,
    path: String,
    schema: &'a Value,
    value: Option<&'a Value>,
    is_required: bool,
    depth: usize,
}

impl Walk {
    fn fields(&mut self, schema: &Value, value: Option<&Value>, path: &str, depth: usize) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            // A merge patch by path cannot name it.
            if depth > DEPTH_MAX || name.contains('.') {
                continue;
            }
            let required = schema["required"].as_array();
            let is_required = required.is_some_and(|required| required.contains(&json!(name)));
            let value = value.and_then(|value| value.get(name)).filter(|value| !value.is_null());
            let path = format!("{path}.{name}");
            if NOT_CHANGED.contains(&&*path) {
                continue;
            }
            self.field(&Field { name, path, schema: field, value, is_required, depth });
        }
    }

    fn add(&mut self, field: &Field, intent: Intent, to: Value) {
        let from = field.value.cloned().unwrap_or_default();
        if to == from || self.all.iter().any(|change| change.path == field.path && change.to == to) {
            return;
        }
        let earlier = self.all.iter().filter(|change| change.path == field.path && change.intent == intent);
        let is_special = special(field).is_some();
        let importance = [field.value.is_some(), is_special, field.depth <= 3].map(Reverse);
        let rank = importance.iter().position(|is| is.0).unwrap_or(importance.len());
        let rank = (earlier.count(), rank);
        self.all.push(SpecChange { path: field.path.clone(), from, to, intent, rank });
    }

    fn field(&mut self, field: &Field) {
        let Field { name, schema, value, depth, .. } = *field;
        if value.is_some() && !field.is_required && schema["default"].is_null() {
            self.add(field, Intent::Omission, Value::Null);
        }
        if let Some((change, mistake)) = special(field) {
            change.into_iter().for_each(|to| self.add(field, Intent::Change, to));
            mistake.into_iter().for_each(|to| self.add(field, Intent::Mistake, to));
            return;
        }
        if let Some(others) = schema["enum"].as_array() {
            let others = others.iter().filter(|other| Some(*other) != value && !other.is_null());
            others.for_each(|other| self.add(field, Intent::Change, other.clone()));
            return;
        }
        match schema["type"].as_str() {
            Some("boolean") if !PAUSES.contains(&name) => {
                self.add(field, Intent::Change, json!(value != Some(&Value::Bool(true))));
            }
            Some("integer") => {
                let least = schema["minimum"].as_i64().unwrap_or_default();
                let step = schema["multipleOf"].as_i64().unwrap_or(1);
                let now = value.and_then(Value::as_i64).unwrap_or(least);
                self.add(field, Intent::Change, json!(now.saturating_add(step)));
                // If it is the maximum.
                self.add(field, Intent::Change, json!(now.saturating_sub(step)));
                if is_count(name) {
                    self.add(field, Intent::Change, json!(0));
                }
            }
            Some("string") => {
                // Not all that the schema accepts is valid. What is a name may be one of another object.
                for to in value.and_then(Value::as_str).into_iter().flat_map(|text| texts(schema, text)) {
                    self.add(field, Intent::Change, to.into());
                }
            }
            Some("array") => {
                for to in value.and_then(Value::as_array).into_iter().flat_map(|list| lists(list)) {
                    self.add(field, Intent::Change, to);
                }
            }
            Some("object") if schema["properties"].is_object() => {
                if value.is_some() {
                    self.fields(schema, value, &field.path, depth + 1);
                }
            }
            Some("object") => {
                if let Some(Value::Object(map)) = value
                    && let Some((_, any)) = map.iter().next()
                {
                    let mut more = map.clone();
                    more.insert("scorecard".to_owned(), any.clone());
                    self.add(field, Intent::Change, more.into());
                    if map.len() > 1 {
                        // Null removes a key: this is a merge patch.
                        let first = map.keys().next().map(|key| (key.clone(), Value::Null));
                        self.add(field, Intent::Change, Value::Object(first.into_iter().collect()));
                    }
                }
            }
            _ => {
                let doubled = value.and_then(doubled);
                doubled.into_iter().for_each(|to| self.add(field, Intent::Change, to));
            }
        }
    }
}

fn is_count(name: &str) -> bool {
    COUNTS.contains(&name.to_lowercase().as_str())
}

/// The values of a field that its name and shape say more about than its type: changes, and mistakes.
fn special(field: &Field) -> Option<(Vec<Value>, Vec<Value>)> {
    let Field { name, schema, value, .. } = *field;
    let lower = name.to_lowercase();
    let has = |name: &str| schema["properties"][name].is_object();
    let with = |key: &str, text: &str| {
        let mut map = value.and_then(Value::as_object).cloned().unwrap_or_default();
        map.insert(key.to_owned(), text.into());
        Value::Object(map)
    };
    let is_map = schema["additionalProperties"].is_object();
    let text = value.and_then(Value::as_str);
    if let (true, Some(text)) = (lower.ends_with("image"), text) {
        // Without a tag, it keeps none: the tag decides about the default imagePullPolicy.
        let other = match text.rsplit_once(':').filter(|(_, tag)| !tag.contains(['/', '@'])) {
            Some((name, _)) if !name.contains('@') => format!("{name}:scorecard"),
            _ => format!("{}-scorecard", text.split('@').next().unwrap_or_default()),
        };
        return Some((vec![other.into()], vec![MISSING_IMAGE.into()]));
    }
    if lower == "nodeselector" && is_map {
        return Some((vec![with("kubernetes.io/os", "linux")], vec![with("scorecard", "no-such-node")]));
    }
    if (lower.ends_with("labels") || lower.ends_with("annotations")) && is_map {
        return Some((vec![with("scorecard", "1")], Vec::new()));
    }
    if has("requests") && has("limits") {
        let requests = json!({"requests": {"cpu": "11m"}});
        let mistake = json!({"requests": {"cpu": "1k"}, "limits": {"cpu": "1k"}});
        return Some((vec![requests], vec![mistake]));
    }
    if lower == "tolerations" {
        let mut list = value.and_then(Value::as_array).cloned().unwrap_or_default();
        list.push(json!({"key": "scorecard", "operator": "Exists"}));
        return Some((vec![list.into()], Vec::new()));
    }
    if ["serviceaccountname", "priorityclassname", "storageclassname"].contains(&&*lower) {
        return Some((Vec::new(), vec!["scorecard-missing".into()]));
    }
    if let (true, Some(_)) = (lower.ends_with("secretname") || lower.ends_with("configmapname"), text) {
        return Some((Vec::new(), vec!["scorecard-missing".into()]));
    }
    // Affinity, probes and security contexts: no value is surely valid.
    let opaque = ["affinity", "securitycontext", "podsecuritycontext", "topologyspreadconstraints"];
    (opaque.contains(&&*lower) || lower.ends_with("probe")).then(|| (Vec::new(), Vec::new()))
}

/// Other values of a text: of its kind, if it has one.
fn texts(schema: &Value, text: &str) -> Vec<String> {
    let is_quantity = text.starts_with(|c: char| c.is_ascii_digit()) && quantity(&text.into()).is_some();
    if is_quantity && let Some(Value::String(more)) = doubled(&text.into()) {
        return vec![more];
    }
    if text.len() > 1 && humantime::parse_duration(text).is_ok() {
        return doubled_number(text).into_iter().collect();
    }
    let words: Vec<&str> = text.split(' ').collect();
    if let [minute, rest @ ..] = &*words
        && rest.len() == 4
    {
        let other = if *minute == "7" { "8" } else { "7" };
        return vec![format!("{other} {}", rest.join(" "))];
    }
    if schema["format"].is_string() {
        return Vec::new();
    }
    vec![format!("{text}-x"), format!("{text}x")]
}

/// `2Gi` for `1Gi`.
fn doubled(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => {
            let more = doubled_number(text)?;
            canonical(&json!(more)).map(|_| json!(more))
        }
        Value::Number(number) => Some(json!(number.as_i64()?.checked_mul(2)?)),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn doubled_number(text: &str) -> Option<String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    Some(format!("{}{unit}", number.parse::<u64>().ok()?.checked_mul(2)?))
}

/// A longer list, and one without its first item: the last one was added a moment ago.
fn lists(list: &[Value]) -> Vec<Value> {
    let shorter = list.split_first().map(|(_, rest)| rest).filter(|rest| !rest.is_empty());
    longer(list).into_iter().chain(shorter.map(Value::from)).collect()
}

/// A list with a copy of its last item, under another name.
fn longer(list: &[Value]) -> Option<Value> {
    let mut item = list.last()?.clone();
    match &mut item {
        Value::String(text) => text.push_str("-x"),
        Value::Object(map) => rename(map)?,
        Value::Number(number) => item = json!(number.as_i64()? + 1),
        Value::Null | Value::Bool(_) | Value::Array(_) => return None,
    }
    Some(list.iter().cloned().chain([item]).collect())
}

fn rename(map: &mut Map<String, Value>) -> Option<()> {
    let name = map.get_mut("name")?;
    *name = format!("{}-x", name.as_str()?).into();
    Some(())
}

/// The smallest object that a schema allows: its required fields alone, with the values of a sample.
pub(super) fn smallest(schema: &Value, sample: &Value) -> Value {
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|required| required.contains(&json!(name)));
    let fields = sample.as_object().into_iter().flatten().filter_map(|(name, value)| {
        let schema = &schema["properties"][name];
        let is_struct = schema["properties"].is_object() && value.is_object();
        let is_identity = ["apiVersion", "kind", "metadata"].contains(&&**name);
        match (is_identity, is_required(name), is_struct) {
            (true, ..) | (false, true, false) => Some((name.clone(), value.clone())),
            (false, true, true) => Some((name.clone(), smallest(schema, value))),
            (false, false, _) => None,
        }
    });
    Value::Object(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value, spec: Value) -> Vec<String> {
        let spec_schema = json!({"type": "object", "properties": schema});
        let schema =
            json!({"required": ["spec"], "properties": {"spec": spec_schema, "status": {}, "metadata": {}}});
        let all = changes(&schema, &json!({"kind": "Page", "metadata": {"name": "a"}, "spec": spec}));
        all.iter().map(|change| format!("{:?} {} {}", change.intent, change.path, change.to)).collect()
    }

    fn one(field: &str, schema: Value, value: Value) -> Vec<String> {
        let spec = if value.is_null() { json!({}) } else { json!({field: value}) };
        let mut all = of(json!({field: schema}), spec);
        all.retain(|change| !change.starts_with("Omission"));
        all
    }

    #[test]
    fn the_type_the_name_and_the_value_of_a_field_suggest_changes() {
        let (integer, string) = (json!({"type": "integer"}), json!({"type": "string"}));
        let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let list = json!({"type": "array", "items": {}});
        for (field, schema, value, expected) in [
            ("port", integer.clone(), json!(80), &["Change .spec.port 81", "Change .spec.port 79"][..]),
            (
                "replicas",
                integer,
                json!(3),
                &["Change .spec.replicas 4", "Change .spec.replicas 2", "Change .spec.replicas 0"],
            ),
            ("tls", json!({"type": "boolean"}), json!(null), &["Change .spec.tls true"]),
            ("paused", json!({"type": "boolean"}), json!(false), &[]),
            ("mode", json!({"type": "string", "enum": ["a", "b"]}), json!("a"), &["Change .spec.mode \"b\""]),
            (
                "image",
                string.clone(),
                json!("nginx:1"),
                &[
                    "Change .spec.image \"nginx:scorecard\"",
                    "Mistake .spec.image \"does-not-exist:scorecard\"",
                ],
            ),
            (
                "image",
                string.clone(),
                json!("host:5000/nginx"),
                &[
                    "Change .spec.image \"host:5000/nginx-scorecard\"",
                    "Mistake .spec.image \"does-not-exist:scorecard\"",
                ],
            ),
            ("storage", string.clone(), json!("10Gi"), &["Change .spec.storage \"20Gi\""]),
            ("interval", string.clone(), json!("90s"), &["Change .spec.interval \"180s\""]),
            ("schedule", string.clone(), json!("0 3 * * *"), &["Change .spec.schedule \"7 3 * * *\""]),
            ("text", string.clone(), json!("a"), &["Change .spec.text \"a-x\"", "Change .spec.text \"ax\""]),
            ("text", string.clone(), json!(null), &[]),
            ("at", json!({"type": "string", "format": "date"}), json!("2026-01-01"), &[]),
            (
                "priorityClassName",
                string,
                json!(null),
                &["Mistake .spec.priorityClassName \"scorecard-missing\""],
            ),
            ("podLabels", map.clone(), json!(null), &["Change .spec.podLabels {\"scorecard\":\"1\"}"]),
            (
                "config",
                map.clone(),
                json!({"a": "1"}),
                &["Change .spec.config {\"a\":\"1\",\"scorecard\":\"1\"}"],
            ),
            (
                "config",
                map,
                json!({"a": "1", "b": "2"}),
                &[
                    "Change .spec.config {\"a\":\"1\",\"b\":\"2\",\"scorecard\":\"1\"}",
                    "Change .spec.config {\"a\":null}",
                ],
            ),
            (
                "shards",
                list.clone(),
                json!(["a", "b"]),
                &["Change .spec.shards [\"a\",\"b\",\"b-x\"]", "Change .spec.shards [\"b\"]"],
            ),
            ("hosts", list.clone(), json!(["a"]), &["Change .spec.hosts [\"a\",\"a-x\"]"]),
            (
                "env",
                list,
                json!([{"name": "a", "value": "1"}]),
                &["Change .spec.env [{\"name\":\"a\",\"value\":\"1\"},{\"name\":\"a-x\",\"value\":\"1\"}]"],
            ),
        ] {
            assert_eq!(one(field, schema, value), expected, "{field}");
        }
    }

    #[test]
    fn fields_of_the_sample_come_first_and_optional_ones_can_be_left_out() {
        let schema = json!({
            "absent": {"type": "boolean"},
            "backup": {"type": "object", "required": ["keep"], "properties": {"keep": {"type": "integer"}}},
            "size": {"type": "integer", "default": 1}});
        assert_eq!(
            of(schema, json!({"backup": {"keep": 7}, "size": 1})),
            [
                "Omission .spec.backup null",
                "Change .spec.backup.keep 8",
                "Change .spec.size 2",
                "Change .spec.absent true",
                "Change .spec.backup.keep 6",
                "Change .spec.size 0",
            ]
        );
    }

    #[test]
    fn a_change_is_a_merge_patch() {
        let object = json!({"kind": "Page", "spec": {"a": {"b": 1}, "c": 2}});
        let schema = json!({"type": "object", "properties": {"b": {"type": "integer"}}});
        let schema = json!({"properties": {"spec": {"type": "object", "properties": {"a": schema}}}});
        let all = changes(&schema, &object);
        let change = all.iter().find(|change| change.intent == Intent::Change).expect("b is 1 more");
        assert_eq!(change.patch(), json!({"spec": {"a": {"b": 2}}}));
        assert_eq!(change.applied(&object), json!({"kind": "Page", "spec": {"a": {"b": 2}, "c": 2}}));
    }

    /// A merge patch with the old map left the new key in it.
    #[test]
    fn a_change_is_taken_back_with_what_it_added_to_a_map() {
        for (from, to) in [
            (json!({"app": "web"}), json!({"app": "web", "scorecard": "1"})),
            (
                json!({"requests": {"memory": "1Gi"}}),
                json!({"requests": {"cpu": "1k"}, "limits": {"cpu": "1k"}}),
            ),
            (json!(null), json!({"scorecard": "1"})),
            (json!([1]), json!([1, 2])),
            (json!({"a": "1", "b": "2"}), json!({"a": null})),
        ] {
            let object = if from.is_null() { json!({"spec": {}}) } else { json!({"spec": {"field": from}}) };
            let path = ".spec.field".to_owned();
            let change = SpecChange { path, from, to, intent: Intent::Change, rank: (0, 0) };
            let mut changed = change.applied(&object);
            assert_ne!(changed, object);
            json_patch::merge(&mut changed, &change.patch_back());
            assert_eq!(changed, object);
        }
    }

    #[test]
    fn the_smallest_object_has_the_required_fields() {
        let schema = json!({"required": ["spec"], "properties": {"spec": {"required": ["a"], "properties": {
            "a": {"required": ["b"], "properties": {"b": {}, "c": {}}}, "d": {}}}}});
        let object = json!({"kind": "Page", "spec": {"a": {"b": 1, "c": 2}, "d": 3}});
        assert_eq!(smallest(&schema, &object), json!({"kind": "Page", "spec": {"a": {"b": 1}}}));
    }
}
