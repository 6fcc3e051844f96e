//! Structural schemas: what a CRD says about its objects, and what the API server does with it.
//!
//! ```yaml
//! openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [image], properties: {
//!   image: {type: string}, port: {type: integer, minimum: 1, default: 80}}}}}
//! ```
//!
//! Three passes over an object, in this order: unknown fields are pruned, missing ones get their defaults, then it is
//! validated, by the crate `jsonschema` (see `told.rs`) and, for `x-kubernetes-validations`, by the crate `cel` (see
//! `rules.rs`).

use std::{collections::BTreeSet, ops::ControlFlow};

use jsonschema::{PatternOptions, ValidationError};
use serde_json::{Map, Value, json};

use super::{
    refusal::Cause,
    rules::{self, Rules},
    shape::twins,
    storage::size,
    told::{Errors, Path, TOLD_BYTES_MAX, Told},
    types,
};

/// A schema ready for use.
#[derive(Debug)]
pub(super) struct Schema {
    source: Value,
    validator: jsonschema::Validator,
    errors: Errors,
    rules: Vec<Rules>,
}

/// What cannot be compiled of a schema: `.properties[spec].pattern`.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) at: String,
    pub(super) value: Value,
    pub(super) why: String,
}

impl Wrong {
    fn new(error: &ValidationError<'_>) -> Wrong {
        let pointer = error.instance_path().as_str();
        let is_pattern = pointer.ends_with("/pattern");
        let why = if is_pattern { "must be a valid regular expression, but isn't: " } else { "" };
        let mut at = String::new();
        let mut names = false;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            names = if names {
                at.push_str(&format!("[{part}]"));
                false
            } else {
                at.push_str(&format!(".{part}"));
                ["properties", "allOf", "anyOf", "oneOf"].contains(&part.as_str())
            };
        }
        Wrong { at, value: error.instance().clone().into_owned(), why: format!("{why}{error}") }
    }
}

impl Schema {
    /// Fails if the schema or one of its rules cannot be compiled.
    pub(super) fn compile(source: &Value) -> Result<Schema, Wrong> {
        let mut standard = json!({"type": "object"});
        if !source.is_null() {
            standard = as_json_schema(source);
        }
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft4)
            .should_validate_formats(true)
            // As Go's: without what cannot be found in one pass.
            .with_pattern_options(PatternOptions::regex())
            .build(&standard)
            .map_err(|error| Wrong::new(&error))?;
        let rules = rules::compile(source)?;
        Ok(Schema { source: source.clone(), validator, errors: Errors::of(&standard), rules })
    }

    /// As the CRD has it, for OpenAPI.
    pub(super) fn source(&self) -> &Value {
        &self.source
    }

    /// Drop what the schema does not name, and say what it was: `spec.bogus`.
    pub(super) fn prune(&self, object: &mut Value) -> Vec<String> {
        prune_object(object, &self.source)
    }

    /// Fill in the defaults of what is missing; 1.0 is 1. Breaks where there is more to fill in than [`DEFAULTS_BYTES_MAX`].
    pub(super) fn set_defaults(&self, object: &mut Value, nulls: Nulls) -> ControlFlow<()> {
        make_whole(object);
        set_defaults(object, &self.source, &mut Filling { left: DEFAULTS_BYTES_MAX, nulls })
    }

    /// What is wrong with an object, beside what was found already.
    pub(super) fn validate(&self, object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
        // Broken off or not, something was told or nothing is wrong.
        let _ = self.tell(object, before, &mut Told::new(causes));
    }

    fn tell(&self, object: &Value, before: Option<&Value>, told: &mut Told<'_>) -> ControlFlow<()> {
        self.errors.tell(&self.validator, object, before, told)?;
        let mut ends = |_: &Path<'_>, _: &Value| ControlFlow::Break(());
        // What was wrong already may stay so.
        if find_twice(before.unwrap_or(&Value::Null), &self.source, &Path::Root, &mut ends).is_continue() {
            let mut tell =
                |path: &Path<'_>, value: &Value| told.tell(Cause::duplicate(path.to_string(), value));
            find_twice(object, &self.source, &Path::Root, &mut tell)?;
        }
        if self.rules.is_empty() {
            return ControlFlow::Continue(());
        }
        // Rules are only tried on objects of the right shape.
        if told.causes.iter().any(Cause::blocks_rules) {
            return told.tell(Cause::rules_not_checked());
        }
        rules::check(&self.rules, object, before, told)
    }
}

/// See apiextensions-apiserver, `supportedVersionedFormats`.
const FORMATS: [&str; 6] = ["date-time", "email", "hostname", "ipv4", "ipv6", "uri"];

/// Kubernetes' dialect in the words of JSON Schema draft 4: `nullable` and int-or-string become lists of types.
/// Of the formats only those are kept that the real server checks, and the library too.
fn as_json_schema(schema: &Value) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let mut standard = Map::new();
    for (word, value) in schema {
        let value = match word.as_str() {
            "properties" => {
                let each = value.as_object().into_iter().flatten();
                each.map(|(name, schema)| (name.clone(), as_json_schema(schema))).collect()
            }
            "items" | "not" | "additionalProperties" => as_json_schema(value),
            "allOf" | "anyOf" | "oneOf" => {
                value.as_array().into_iter().flatten().map(as_json_schema).collect()
            }
            "format" if !FORMATS.iter().any(|format| value == format) => continue,
            "required" if value.as_array().is_none_or(Vec::is_empty) => continue,
            // The library wants each once, and no limit that is none. The real one does not mind.
            "required" => {
                let each: BTreeSet<&str> =
                    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                each.into_iter().collect()
            }
            "multipleOf" if value.as_f64().is_none_or(|of| of <= 0.0) => continue,
            "minLength" | "minItems" | "minProperties" if value.as_i64().is_none_or(|least| least < 0) => {
                continue;
            }
            "type" | "format" | "enum" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
            | "minLength" | "maxLength" | "pattern" | "minItems" | "maxItems" | "uniqueItems"
            | "multipleOf" | "minProperties" | "maxProperties" => value.clone(),
            _ => continue,
        };
        standard.insert(word.clone(), value);
    }
    if schema.get("x-kubernetes-int-or-string") == Some(&true.into()) {
        standard.insert("type".to_owned(), json!(["integer", "string"]));
    }
    if schema.get("nullable") == Some(&true.into()) {
        if let Some(Value::String(one)) = standard.get("type").cloned() {
            standard.insert("type".to_owned(), json!([one, "null"]));
        }
        if let Some(Value::Array(options)) = standard.get_mut("enum") {
            options.push(Value::Null);
        }
    }
    standard.into()
}

fn preserves_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Drop what a schema does not name, and say what it was: `spec.ports[0].bogus`. All of it goes, the first
/// [`TOLD_BYTES_MAX`] are told.
pub(super) fn prune_object(object: &mut Value, schema: &Value) -> Vec<String> {
    let mut pruned = Pruned::default();
    prune(object, schema, &Path::Root, &mut pruned);
    pruned.fields
}

#[derive(Default)]
struct Pruned {
    fields: Vec<String>,
    bytes: usize,
}

impl Pruned {
    fn tell(&mut self, path: &Path<'_>) {
        if self.bytes < TOLD_BYTES_MAX {
            let field = path.to_string();
            self.bytes += field.len();
            self.fields.push(field);
        }
    }
}

fn prune(value: &mut Value, schema: &Value, path: &Path<'_>, pruned: &mut Pruned) {
    let untold = &mut Pruned::default();
    let pruned = if types::decodes_itself(schema) { untold } else { pruned };
    let schema = types::resolved(schema);
    // apiVersion, kind and metadata belong to every object, whether the schema names them or not.
    let whole_object = matches!(path, Path::Root) || schema["x-kubernetes-embedded-resource"] == true;
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let known = match name.as_str() {
                "apiVersion" | "kind" if whole_object => return true,
                "metadata" if whole_object => types::definition(types::OBJECT_META),
                name => &schema["properties"][name],
            };
            let path = Path::Field(path, name);
            if known.is_object() {
                prune(value, known, &path, pruned);
            } else if schema["additionalProperties"].is_object() {
                prune(value, &schema["additionalProperties"], &path, pruned);
            } else if schema["additionalProperties"] != true && !preserves_unknown(schema) {
                pruned.tell(&path);
                return false;
            }
            true
        }),
        // Nobody said what is in it, and all is kept.
        Value::Array(_) if preserves_unknown(schema) && schema["items"].is_null() => {}
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                prune(value, &schema["items"], &Path::Index(path, index), pruned);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A null where null is not allowed counts as missing.
fn drop_null(map: &mut Map<String, Value>, name: &str, schema: &Value) {
    if map.get(name).is_some_and(Value::is_null) && schema["nullable"] != true {
        map.remove(name);
    }
}

fn make_whole(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(make_whole),
        Value::Array(list) => list.iter_mut().for_each(make_whole),
        Value::Number(number) => {
            // Go prints a float that is whole without its point. Where a float is not exact any more, nothing is.
            const EXACT_MAX: f64 = (1_u64 << 53) as f64;
            let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            if let Some(float) = float.filter(|float| float.abs() <= EXACT_MAX) {
                *value = (float as i64).into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Where something stands that stands twice in a list that is a set, or a map by some of its items' fields.
fn find_twice(
    value: &Value,
    schema: &Value,
    path: &Path<'_>,
    tell: &mut impl FnMut(&Path<'_>, &Value) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let known = &schema["properties"][name];
                let schema = if known.is_null() { &schema["additionalProperties"] } else { known };
                find_twice(value, schema, &Path::Field(path, name), tell)?;
            }
        }
        Value::Array(list) => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let identities: Vec<Value> = match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => list.clone(),
                Some("map") => {
                    let names = || keys.into_iter().flatten().filter_map(Value::as_str);
                    let of = |item: &Value| {
                        names().filter_map(|key| Some((key.to_owned(), item.get(key)?.clone()))).collect()
                    };
                    list.iter().map(of).collect()
                }
                _ => Vec::new(),
            };
            let texts: Vec<String> = identities.iter().map(Value::to_string).collect();
            for index in twins(&texts) {
                tell(&Path::Index(path, index), &identities[index])?;
            }
            for (index, item) in list.iter().enumerate() {
                find_twice(item, &schema["items"], &Path::Index(path, index), tell)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    ControlFlow::Continue(())
}

/// Most bytes of defaults in one object, which no object that etcd takes can reach. A default can have lists of what has
/// defaults in its turn: ten levels of ten are ten thousand million.
const DEFAULTS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What becomes of a null that may not be one, and has no default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Nulls {
    /// It is taken for nothing: so wherever an object is decoded.
    Dropped,
    /// It is refused later. What is applied is not decoded.
    Kept,
}

struct Filling {
    /// Bytes that may still be filled in.
    left: usize,
    nulls: Nulls,
}

fn set_defaults(value: &mut Value, schema: &Value, filling: &mut Filling) -> ControlFlow<()> {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if filling.nulls == Nulls::Dropped || schema.get("default").is_some() {
                    drop_null(map, name, schema);
                }
                if let (None, Some(default)) = (map.get(name), schema.get("default")) {
                    let Some(rest) = filling.left.checked_sub(name.len() + size(default)) else {
                        return ControlFlow::Break(());
                    };
                    filling.left = rest;
                    map.insert(name.clone(), default.clone());
                }
                if let Some(value) = map.get_mut(name) {
                    set_defaults(value, schema, filling)?;
                }
            }
            let other = &schema["additionalProperties"];
            if other.is_object() {
                let may_be_null = filling.nulls == Nulls::Kept || other["nullable"] == true;
                map.retain(|_, value| !value.is_null() || may_be_null);
                map.values_mut().try_for_each(|value| set_defaults(value, other, filling))?;
            }
        }
        Value::Array(list) => {
            list.iter_mut().try_for_each(|value| set_defaults(value, &schema["items"], filling))?;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let source = json!({"type": "object", "properties": {"spec": {
        "type": "object", "required": ["size"],
        "x-kubernetes-validations": [{"rule": "self.size >= self.least", "message": "too small"}],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 100,
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]},
            "least": {"type": "integer", "default": 0},
            "color": {"type": "string", "enum": ["red", "blue"]},
            "note": {"type": "string", "nullable": true},
        }}}});
        Schema::compile(&source).expect("a good schema")
    }

    fn messages(object: Value, before: Option<Value>) -> Vec<String> {
        let schema = schema();
        let mut object = object;
        schema.prune(&mut object);
        assert!(schema.set_defaults(&mut object, Nulls::Dropped).is_continue());
        let mut causes = Vec::new();
        schema.validate(&object, before.as_ref(), &mut causes);
        causes.iter().map(|cause| cause.to_string()).collect()
    }

    #[test]
    fn errors_read_as_those_of_the_real_server() {
        let object = json!({"spec": {"size": 1000, "color": "pink", "note": 1, "bogus": true}});
        expect_test::expect![[r#"
            [
                "spec.color: Unsupported value: \"pink\": supported values: \"red\", \"blue\"",
                "spec.note: Invalid value: \"integer\": spec.note in body must be of type string: \"integer\"",
                "spec.size: Invalid value: 1000: spec.size in body should be less than or equal to 100",
                "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
            ]
        "#]]
        .assert_debug_eq(&messages(object, None));
        let messages = messages(json!({"spec": {"note": null}}), None);
        assert_eq!(messages[0], "spec.size: Required value");
        assert!(messages[1].contains("some validation rules were not checked"), "{messages:?}");
    }

    /// A kilobyte of them asked for all memory.
    #[test]
    fn defaults_of_defaults_have_an_end() {
        let mut source = json!({"type": "object"});
        for _ in 0..10 {
            source = json!({"type": "object", "properties": {"l": {
                "type": "array", "items": source, "default": vec![json!({}); 10]}}});
        }
        let schema = Schema::compile(&source).expect("a good schema");
        assert!(schema.set_defaults(&mut json!({}), Nulls::Dropped).is_break());
    }

    #[test]
    fn rules_see_the_object_and_what_it_was() {
        let was = json!({"spec": {"size": 3, "least": 0}});
        assert!(messages(was.clone(), None).is_empty());
        assert_eq!(
            messages(json!({"spec": {"size": 3, "least": 5}}), None),
            ["spec: Invalid value: too small"]
        );
        let moved = json!({"spec": {"size": 4}});
        assert_eq!(messages(moved, Some(was)), ["spec.size: Invalid value: 4: immutable"]);
    }

    /// A key of a megabyte was written for each item of its list, though nothing was wrong, and 150 gigabytes of them were told.
    #[test]
    fn long_keys_are_written_only_when_they_are_told() {
        let objects =
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}});
        let source = json!({"type": "object", "additionalProperties": objects});
        let schema = Schema::compile(&source).expect("a good schema");
        let long = "k".repeat(1_500_000);
        let mut object = json!({&long: (0..100_000).map(|_| json!({"a": 1})).collect::<Vec<_>>()});
        assert_eq!(schema.prune(&mut object), [""; 0]);
        let mut causes = Vec::new();
        schema.validate(&object, None, &mut causes);
        assert_eq!(causes, []);
        let mut object = json!({&long: (0..100_000).map(|_| json!({"b": 1})).collect::<Vec<_>>()});
        assert_eq!(schema.prune(&mut object), [format!("{long}[0].b")]);
        assert_eq!(object[&long][99_999], json!({}));
    }
}
