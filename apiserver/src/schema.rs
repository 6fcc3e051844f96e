//! Pruning, defaults and validation of custom resources, by the schemas of their CRDs.
//!
//! ```yaml
//! openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [image], properties: {
//!   image: {type: string}, port: {type: integer, minimum: 1, default: 80}}}}}
//! ```
//!
//! An object passes through three steps: pruning of unknown fields, then defaults, then validation. The crate
//! `jsonschema` checks types and limits (see `field_errors.rs`; for patterns, `re2.rs`), the crate `cel` checks `x-kubernetes-validations` (see
//! `cel.rs`). Built-in kinds have no structural schema, but OpenAPI definitions: see `openapi.rs`, `decode.rs` and
//! `encode.rs`.

pub(crate) mod structural;
pub(crate) mod re2;
pub(crate) mod field_errors;
pub(crate) mod go_url;
pub(crate) mod cel_library;
mod cel_types;
pub(crate) mod cel_authorizer;
mod cel_cost;
pub(crate) mod cel_estimate;
pub(crate) mod cel;
pub(crate) mod expressions;
pub(crate) mod formats;
pub(crate) mod openapi;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod protobuf;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
};

use jsonschema::{Keyword, ValidationError};
use serde_json::{Map, Value, json};

use crate::{
    json::make_whole,
    names,
    schema::{
        cel::Rules,
        field_errors::{ErrorList, FieldPath},
    },
    status::Cause,
};

const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// A compiled schema.
#[derive(Debug)]
pub(crate) struct Schema {
    source: Value,
    validator: jsonschema::Validator,
    pub(crate) rules: Rules,
    /// Whether there are embedded resources in it.
    embeds: bool,
}

/// A part of a schema that cannot be compiled: `.properties[spec].pattern`.
#[derive(Debug)]
pub(crate) struct SchemaError {
    pub(crate) at: String,
    pub(crate) value: Value,
    pub(crate) why: String,
}

impl SchemaError {
    fn new(error: &ValidationError<'_>) -> SchemaError {
        let mut pointer = error.instance_path().as_str().to_owned();
        let mut why = error.to_string();
        if let Some(parent) = error.schema_path().as_str().strip_suffix(GO_PATTERN) {
            pointer = format!("{parent}pattern");
            why = format!("must be a valid regular expression, but isn't: {why}");
        }
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
        SchemaError { at, value: error.instance().clone().into_owned(), why }
    }
}

/// What [`as_json_schema`] makes of `pattern`. `jsonschema` checks that keyword by the rules of JavaScript.
const GO_PATTERN: &str = "x-go-pattern";

struct Pattern {
    pattern: String,
    regex: regex::bytes::Regex,
}

impl<'i> Keyword<'i> for Pattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match self.is_valid(instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("should match '{}'", self.pattern))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        instance.as_str().is_none_or(|text| self.regex.is_match(text.as_bytes()))
    }
}

impl Schema {
    /// Fails if the schema or one of its rules cannot be compiled.
    pub(crate) fn compile(source: &Value) -> Result<Schema, Vec<SchemaError>> {
        let mut standard = json!({"type": "object"});
        if !source.is_null() {
            standard = as_json_schema(source);
        }
        let mut options = jsonschema::options();
        for (format, check) in formats::FORMATS {
            options = options.with_format(format, check);
        }
        let validator = options
            .with_draft(jsonschema::Draft::Draft4)
            .should_validate_formats(true)
            .with_keyword(GO_PATTERN, |_, pattern, _| {
                let pattern = pattern.as_str().unwrap_or_default();
                let regex = re2::compile(pattern).map_err(ValidationError::schema)?;
                Ok(Box::new(Pattern { pattern: pattern.to_owned(), regex }))
            })
            .build(&standard)
            .map_err(|error| vec![SchemaError::new(&error)])?;
        let rules = cel::compile(source)?;
        let embeds = embeds(source);
        Ok(Schema { source: source.clone(), validator, rules, embeds })
    }

    /// The schema in the CRD, for OpenAPI.
    pub(crate) fn source(&self) -> &Value {
        &self.source
    }

    /// Removes fields that are not in the schema, and returns their paths: `spec.bogus`.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        prune_object(object, &self.source)
    }

    /// Checks the types of the embedded resources: of apiVersion, kind and metadata.
    pub(crate) fn check_embedded_types(&self, object: &Value) -> Result<(), String> {
        if self.embeds { check_embedded_types(object, &self.source, &FieldPath::Root) } else { Ok(()) }
    }

    /// Omits the empty fields of the metadata of embedded resources, as Go's encoder does.
    pub(crate) fn normalize_embedded(&self, object: &mut Value) {
        if self.embeds {
            normalize_embedded(object, &self.source);
        }
    }

    /// Removes the nulls that stand for missing fields without a default, as kube-apiserver does when it decodes or
    /// converts an object. After an apply it does neither, so validation rejects them.
    pub(crate) fn drop_nulls(&self, object: &mut Value) {
        drop_nulls(object, &self.source);
    }

    /// Sets the defaults of missing fields, and changes 1.0 to 1.
    pub(crate) fn set_defaults(&self, object: &mut Value) {
        make_whole(object);
        set_defaults(object, &self.source);
    }

    /// Validates an object, and adds the errors to `causes`.
    pub(crate) fn validate(&self, object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
        // A break means only that the number or size of the errors has reached its limit.
        let _ = self.check(object, before, &mut ErrorList::new(causes));
    }

    fn check(&self, object: &Value, before: Option<&Value>, errors: &mut ErrorList<'_>) -> ControlFlow<()> {
        field_errors::check(self, object, before, errors)?;
        let mut ends = |_: &FieldPath<'_>, _: &Value| ControlFlow::Break(());
        // If the old object has any duplicates, kube-apiserver accepts all duplicates in the new one.
        if find_twice(before.unwrap_or(&Value::Null), &self.source, &FieldPath::Root, &mut ends).is_continue()
        {
            let mut add =
                |path: &FieldPath<'_>, value: &Value| errors.add(Cause::duplicate(path.to_string(), value));
            find_twice(object, &self.source, &FieldPath::Root, &mut add)?;
        }
        check_embedded(object, &self.source, &FieldPath::Root, errors)?;
        if self.rules.estimated.is_empty() {
            return ControlFlow::Continue(());
        }
        // Rules are checked only if the object has the right types and sizes.
        if errors.causes.iter().any(Cause::blocks_rules) {
            return errors.add(Cause::rules_not_checked());
        }
        cel::check(&self.rules, &self.source, object, before, errors)
    }
}

/// Formats that kube-apiserver and `jsonschema` both check: apiextensions-apiserver, `supportedVersionedFormats`.
const FORMATS: [&str; 6] = ["date-time", "email", "hostname", "ipv4", "ipv6", "uri"];

/// Translates a schema into JSON Schema draft 4: `nullable` and int-or-string become lists of types. Keeps only the
/// formats in [`FORMATS`] and [`formats::FORMATS`].
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
            "format" => {
                let ours = formats::FORMATS.iter().map(|(format, _)| format);
                if !FORMATS.iter().chain(ours).any(|format| value == format) {
                    continue;
                }
                value.clone()
            }
            "required" if value.as_array().is_none_or(Vec::is_empty) => continue,
            // kube-apiserver accepts duplicate names and a negative minLength; `jsonschema` rejects them.
            "required" => {
                let each: BTreeSet<&str> =
                    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                each.into_iter().collect()
            }
            "multipleOf" if value.as_f64().is_none_or(|of| of <= 0.0) => continue,
            "minLength" | "minItems" | "minProperties" if value.as_i64().is_none_or(|least| least < 0) => {
                continue;
            }
            "pattern" => {
                standard.insert(GO_PATTERN.to_owned(), value.clone());
                continue;
            }
            "type" | "enum" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
            | "minLength" | "maxLength" | "minItems" | "maxItems" | "uniqueItems" | "multipleOf"
            | "minProperties" | "maxProperties" => value.clone(),
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

/// Removes all fields that are not in the schema, and returns their paths, such as `spec.ports[0].bogus`.
pub(crate) fn prune_object(object: &mut Value, schema: &Value) -> Vec<String> {
    let mut pruned = Vec::new();
    prune(object, schema, Unknown::Removed, &FieldPath::Root, &mut pruned);
    pruned
}

/// What happens to the fields of a value that are not in its schema.
#[derive(Clone, Copy, PartialEq)]
enum Unknown {
    Removed,
    Kept,
}

/// As `prune` and `skipPrune` of apiextensions-apiserver: a list hands on to its items that it preserves unknown fields, an
/// object does not hand it on to its properties.
fn prune(
    value: &mut Value,
    schema: &Value,
    unknown: Unknown,
    path: &FieldPath<'_>,
    pruned: &mut Vec<String>,
) {
    let ignored = &mut Vec::new();
    let pruned = if openapi::decodes_itself(schema) { ignored } else { pruned };
    let schema = openapi::resolved(schema);
    let unknown =
        if schema["x-kubernetes-preserve-unknown-fields"] == true { Unknown::Kept } else { unknown };
    // Every object can have apiVersion, kind and metadata, even if they are not in the schema.
    let whole_object = matches!(path, FieldPath::Root) || schema[EMBEDDED] == true;
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let known = match name.as_str() {
                "apiVersion" | "kind" if whole_object => return true,
                "metadata" if whole_object => openapi::definition(openapi::OBJECT_META),
                name => of_field(schema, name),
            };
            let path = FieldPath::Field(path, name);
            // `additionalProperties: true` keeps any field, and removes all fields in its value.
            if known.is_object() || *known == true {
                prune(value, known, Unknown::Removed, &path, pruned);
            } else if unknown == Unknown::Removed {
                pruned.push(path.to_string());
                return false;
            }
            true
        }),
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                prune(value, &schema["items"], unknown, &FieldPath::Index(path, index), pruned);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The schema of a field: its property, or `additionalProperties`.
fn of_field<'a>(schema: &'a Value, name: &str) -> &'a Value {
    schema["properties"].get(name).unwrap_or(&schema["additionalProperties"])
}

/// Finds duplicates in lists of type `set`, and in lists of type `map` by their keys.
fn find_twice(
    value: &Value,
    schema: &Value,
    path: &FieldPath<'_>,
    tell: &mut impl FnMut(&FieldPath<'_>, &Value) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                find_twice(value, of_field(schema, name), &FieldPath::Field(path, name), tell)?;
            }
        }
        Value::Array(list) => {
            let identities: Vec<Value> = match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => list.clone(),
                Some("map") => list.iter().map(|item| keys(item, schema)).collect(),
                _ => Vec::new(),
            };
            let texts: Vec<String> = identities.iter().map(Value::to_string).collect();
            for index in twins(&texts) {
                tell(&FieldPath::Index(path, index), &identities[index])?;
            }
            for (index, item) in list.iter().enumerate() {
                find_twice(item, &schema["items"], &FieldPath::Index(path, index), tell)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    ControlFlow::Continue(())
}

/// Whether a schema has an embedded resource.
fn embeds(schema: &Value) -> bool {
    let fields = schema["properties"].as_object().into_iter().flatten().map(|(_, field)| field);
    let others = ["items", "additionalProperties"].into_iter().filter_map(|word| schema.get(word));
    schema[EMBEDDED] == true || fields.chain(others).any(embeds)
}

fn check_embedded_types(value: &Value, schema: &Value, path: &FieldPath<'_>) -> Result<(), String> {
    match value {
        Value::Object(map) => {
            if schema[EMBEDDED] == true {
                check_embedded_type(value, path)?;
            }
            map.iter().try_for_each(|(name, value)| {
                check_embedded_types(value, of_field(schema, name), &FieldPath::Field(path, name))
            })
        }
        Value::Array(list) => list.iter().enumerate().try_for_each(|(index, value)| {
            check_embedded_types(value, &schema["items"], &FieldPath::Index(path, index))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn check_embedded_type(value: &Value, path: &FieldPath<'_>) -> Result<(), String> {
    let is_mistyped = |name: &&str| value.get(name).is_some_and(|one| !one.is_string());
    let (field, why) = match ["apiVersion", "kind"].into_iter().find(is_mistyped) {
        Some(name) => (name, "must be a string".to_owned()),
        None => match decode::check_types(&value["metadata"], openapi::OBJECT_META) {
            Ok(()) => return Ok(()),
            Err(why) => ("metadata", why),
        },
    };
    Err(Cause::invalid(FieldPath::Field(path, field).to_string(), &value[field], &why).to_string())
}

fn normalize_embedded(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            if schema[EMBEDDED] == true
                && let Some(metadata) = map.get_mut("metadata")
            {
                if metadata.is_null() {
                    *metadata = json!({});
                }
                encode::normalize(metadata, openapi::OBJECT_META);
            }
            map.iter_mut().for_each(|(name, value)| normalize_embedded(value, of_field(schema, name)));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| normalize_embedded(value, &schema["items"])),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Checks what the crate `jsonschema` does not: the identity and labels of embedded resources, and the format int32.
fn check_embedded(
    value: &Value,
    schema: &Value,
    path: &FieldPath<'_>,
    errors: &mut ErrorList<'_>,
) -> ControlFlow<()> {
    match value {
        Value::Object(map) => {
            if schema[EMBEDDED] == true {
                embedded_resource(value, path).into_iter().try_for_each(|cause| errors.add(cause))?;
            }
            for (name, value) in map {
                let known = &schema["properties"][name];
                if known.is_object() {
                    check_embedded(value, known, &FieldPath::Field(path, name), errors)?;
                } else if schema["additionalProperties"].is_object() {
                    check_embedded(
                        value,
                        &schema["additionalProperties"],
                        &FieldPath::Key(path, name),
                        errors,
                    )?;
                }
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                check_embedded(value, &schema["items"], &FieldPath::Index(path, index), errors)?;
            }
        }
        Value::Number(number) if schema["type"] == "integer" && schema["format"] == "int32" => {
            if number.as_i64().is_some_and(|int| i32::try_from(int).is_err()) {
                // This error of kube-apiserver has no field.
                let text = format!("Checked value must be of type integer with format int32 in {path}");
                errors.add(Cause::invalid("<nil>", &"".into(), &text))?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    ControlFlow::Continue(())
}

/// The errors of an embedded resource.
fn embedded_resource(value: &Value, path: &FieldPath<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for name in ["apiVersion", "kind"] {
        let field = FieldPath::Field(path, name).to_string();
        match &value[name] {
            Value::Null => causes.push(Cause::required(field, "")),
            Value::String(text) if text.is_empty() => {
                causes.push(Cause::invalid(field, &value[name], "must not be empty"))
            }
            Value::String(text) if name == "kind" => {
                let wrong = names::dns_1035_errors(&text.to_lowercase());
                let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                causes.extend((!wrong.is_empty()).then(|| Cause::invalid(field, &value[name], &why)));
            }
            Value::String(text) if text.matches('/').count() > 1 => {
                let why = format!("unexpected GroupVersion string: {text}");
                causes.push(Cause::invalid(field, &value[name], &why));
            }
            Value::String(_) => {}
            other => causes.push(Cause::invalid(field, other, "must be a string")),
        }
    }
    let labels = FieldPath::Field(&FieldPath::Field(path, "metadata"), "labels").to_string();
    causes.extend(names::labels_errors(&labels, &value["metadata"]["labels"]));
    causes
}

/// The keys of an item in a list of type `map`, with their values.
fn keys(item: &Value, schema: &Value) -> Value {
    let names =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|key| Some((key.to_owned(), item.get(key)?.clone()))).collect()
}

/// The items of a list of type `map` by their keys. Empty for any other list, because its items have no identity across versions.
fn items_by_keys<'a>(list: Option<&'a Value>, schema: &Value) -> HashMap<Value, &'a Value> {
    let list = list.filter(|_| schema["x-kubernetes-list-type"] == "map").and_then(Value::as_array);
    list.into_iter().flatten().map(|item| (keys(item, schema), item)).collect()
}

/// The indexes at which each element occurs. A map is fast even for lists with thousands of elements.
pub(crate) fn places<T: Ord>(elements: &[T]) -> BTreeMap<&T, Vec<usize>> {
    let mut places: BTreeMap<&T, Vec<usize>> = BTreeMap::new();
    for (at, element) in elements.iter().enumerate() {
        places.entry(element).or_default().push(at);
    }
    places
}

/// The indexes of the elements that equal an earlier element, in the order of the list.
pub(crate) fn twins<T: Ord>(elements: &[T]) -> impl Iterator<Item = usize> {
    let places = places(elements);
    (0..elements.len()).filter(move |at| places[&elements[*at]][0] < *at)
}

/// Whether a value is a null that stands for a missing field, because its schema allows no null.
fn is_missing(value: &Value, schema: &Value) -> bool {
    value.is_null() && schema.is_object() && schema["nullable"] != true
}

fn drop_nulls(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let schema = of_field(schema, name);
            drop_nulls(value, schema);
            !is_missing(value, schema) || !schema["default"].is_null()
        }),
        Value::Array(list) => list.iter_mut().for_each(|value| drop_nulls(value, &schema["items"])),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn set_defaults(value: &mut Value, schema: &Value) {
    if is_missing(value, schema) {
        *value = schema["default"].clone();
    }
    match value {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if !schema["default"].is_null() {
                    map.entry(name).or_insert_with(|| schema["default"].clone());
                }
            }
            map.iter_mut().for_each(|(name, value)| set_defaults(value, of_field(schema, name)));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| set_defaults(value, &schema["items"])),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
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
        schema.drop_nulls(&mut object);
        schema.set_defaults(&mut object);
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

    /// A key of 1.5 MB was copied for each of the 100,000 items in its list, even without errors.
    #[test]
    fn long_keys_are_written_only_when_they_are_reported() {
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
    }
}
