//! Structural schemas: validates the schema in a CRD. Pruning, defaults and merging need a structural schema.
//!
//! ```text
//! spec.validation.openAPIV3Schema.properties[size].type: Unsupported value: "int": supported values: "array", "boolean", …
//! ```
//!
//! The rules and messages are as in apiextensions-apiserver; see
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    schema::{
        Schema,
        cel::{field_below, uses_old},
        field_errors::CAUSES_MAX,
    },
    status::Cause,
};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Keywords of JSON Schema that Kubernetes does not support.
const UNKNOWN: [&str; 6] =
    ["$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties"];

/// Keywords that are forbidden inside of `allOf`, `anyOf`, `oneOf` and `not`, and the value they must have there.
const STRUCTURE: [(&str, &str); 13] = [
    ("type", "empty"),
    ("title", "empty"),
    ("description", "empty"),
    ("x-kubernetes-validations", "empty"),
    ("x-kubernetes-list-map-keys", "empty"),
    ("default", "undefined"),
    ("additionalProperties", "undefined"),
    ("x-kubernetes-list-type", "undefined"),
    ("x-kubernetes-map-type", "undefined"),
    ("nullable", "false"),
    ("x-kubernetes-embedded-resource", "false"),
    ("x-kubernetes-int-or-string", "false"),
    ("x-kubernetes-preserve-unknown-fields", "false"),
];

const RULE_REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Validates the schema of a version.
pub(crate) fn errors(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    match text(schema, "type") {
        "object" => {}
        "" => all.push(Cause::required(format!("{at}.type"), "must not be empty at the root")),
        _ => {
            all.push(Cause::invalid(format!("{at}.type"), &schema["type"], "must be object at the root"));
        }
    }
    if !schema["additionalProperties"].is_null() {
        let text = "must not be used at the root";
        all.push(Cause::forbidden(format!("{at}.additionalProperties"), text));
    }
    if schema["nullable"] == true {
        all.push(Cause::forbidden(format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    if is_set(schema, "default") {
        for field in ["apiVersion", "kind"] {
            if text(&schema["default"], field).is_empty() {
                all.push(Cause::required(format!("{at}.default.{field}"), ""));
            }
        }
    }
    let name = format!("{at}.properties[metadata].properties[name].default");
    if !schema["properties"]["metadata"]["properties"]["name"]["default"].is_null() {
        all.push(Cause::forbidden(name, "must not be set in top-level metadata"));
    }
    let metadata = &schema["properties"]["metadata"];
    if restricts_more(metadata) {
        let text = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        all.push(Cause::forbidden(format!("{at}.properties[metadata]"), text));
    }
    object_fields(all, schema, at);
    each(all, schema, at);
}

/// Whether the schema of `metadata` restricts more than `name` and `generateName`.
fn restricts_more(metadata: &Value) -> bool {
    metadata.as_object().into_iter().flatten().any(|(word, value)| match word.as_str() {
        "type" | "default" => false,
        "properties" => value
            .as_object()
            .into_iter()
            .flatten()
            .any(|(name, _)| !matches!(name.as_str(), "name" | "generateName")),
        _ => true,
    })
}

fn text<'a>(schema: &'a Value, word: &str) -> &'a str {
    schema[word].as_str().unwrap_or_default()
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Go does not distinguish an empty value from a missing one.
fn is_set(schema: &Value, word: &str) -> bool {
    match &schema[word] {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => true,
    }
}

/// Validates a schema and all schemas inside of it.
fn each(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    if all.len() >= CAUSES_MAX {
        return;
    }
    words(all, schema, at);
    embedded(all, schema, at);
    list(all, schema, at);
    rules(all, schema, at);
    junctors(all, schema, schema["x-kubernetes-int-or-string"] == true, at);
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        typed(all, schema, &format!("{at}.properties[{name}]"), "object fields");
    }
    if schema["additionalProperties"].is_object() {
        let at = format!("{at}.additionalProperties");
        typed(all, &schema["additionalProperties"], &at, "object fields");
    }
    let items = format!("{at}.items");
    match &schema["items"] {
        Value::Array(_) => {
            all.push(Cause::forbidden(items, "items must be a schema object and not an array"));
        }
        Value::Object(_) => typed(all, &schema["items"], &items, "array items"),
        _ if schema["type"] == "array" => all.push(Cause::required(items, "must be specified")),
        _ => {}
    }
}

/// Every field and every list item needs a type. Pruning depends on it.
fn typed(all: &mut Vec<Cause>, schema: &Value, at: &str, of: &str) {
    let is_free = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "$ref"]
        .iter()
        .any(|word| is_set(schema, word));
    let is_embedded = schema["x-kubernetes-embedded-resource"] == true;
    if text(schema, "type").is_empty() && !is_free && !is_embedded {
        all.push(Cause::required(format!("{at}.type"), &format!("must not be empty for specified {of}")));
    }
    each(all, schema, at);
}

/// Refuses keywords that are unsupported, invalid or in conflict with other keywords.
fn words(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    for word in UNKNOWN.into_iter().filter(|word| is_set(schema, word)) {
        all.push(Cause::forbidden(format!("{at}.{word}"), &format!("{word} is not supported")));
    }
    if is_set(schema, "$schema") {
        all.push(Cause::invalid(at, &"".into(), "OpenAPIV3Schema 'schema' is not supported"));
    }
    one_of(all, schema, "type", &TYPES, at);
    if schema["type"] == "null" {
        let text = "type cannot be set to null, use nullable as an alternative";
        all.push(Cause::forbidden(format!("{at}.type"), text));
    }
    if schema["uniqueItems"] == true {
        let text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        all.push(Cause::forbidden(format!("{at}.uniqueItems"), text));
    }
    let has_fields = schema["properties"].as_object().is_some_and(|fields| !fields.is_empty());
    if has_fields && (schema["additionalProperties"].is_object() || schema["additionalProperties"] == false) {
        let text = "additionalProperties and properties are mutual exclusive";
        all.push(Cause::forbidden(format!("{at}.additionalProperties"), text));
    }
    let preserve = "x-kubernetes-preserve-unknown-fields";
    if schema[preserve] == false {
        all.push(Cause::invalid(format!("{at}.{preserve}"), &schema[preserve], "must be true or undefined"));
    }
    if schema[preserve] == true && schema["x-kubernetes-int-or-string"] == true {
        let text = "must be false if x-kubernetes-int-or-string is true";
        all.push(Cause::invalid(format!("{at}.{preserve}"), &schema[preserve], text));
    }
    one_of(all, schema, "x-kubernetes-map-type", &["atomic", "granular"], at);
    if is_set(schema, "x-kubernetes-map-type") {
        must_be(all, schema, "object", "if x-kubernetes-map-type is specified", at);
    }
}

fn one_of(all: &mut Vec<Cause>, schema: &Value, word: &str, supported: &[&str], at: &str) {
    if is_set(schema, word) && !supported.contains(&text(schema, word)) {
        let supported: Vec<String> = supported.iter().map(|&one| one.to_owned()).collect();
        all.push(Cause::not_supported(format!("{at}.{word}"), &schema[word], &supported));
    }
}

fn must_be(all: &mut Vec<Cause>, schema: &Value, wanted: &str, why: &str, at: &str) {
    let (at, why) = (format!("{at}.type"), format!("must be {wanted} {why}"));
    match text(schema, "type") {
        "" => all.push(Cause::required(at, &why)),
        known if known == wanted => {}
        _ => all.push(Cause::invalid(at, &schema["type"], &why)),
    }
}

/// Checks the types of `apiVersion`, `kind` and `metadata`.
fn object_fields(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    let fields = &schema["properties"];
    for (name, wanted) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        let found = &fields[name]["type"];
        if found.is_string() && found != wanted {
            let at = format!("{at}.properties[{name}].type");
            all.push(Cause::invalid(at, found, &format!("must be {wanted}")));
        }
    }
}

/// Validates the schema of an embedded object: `x-kubernetes-embedded-resource`.
fn embedded(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    if schema["x-kubernetes-embedded-resource"] != true {
        return;
    }
    must_be(all, schema, "object", "if x-kubernetes-embedded-resource is true", at);
    if !schema["additionalProperties"].is_null() {
        let text = "must not be used if x-kubernetes-embedded-resource is set";
        all.push(Cause::forbidden(format!("{at}.additionalProperties"), text));
    }
    if !schema["properties"].is_object() && schema["x-kubernetes-preserve-unknown-fields"] != true {
        let text = "must not be empty if x-kubernetes-embedded-resource is true without \
            x-kubernetes-preserve-unknown-fields";
        all.push(Cause::required(format!("{at}.properties"), text));
    }
    object_fields(all, schema, at);
}

/// Validates `x-kubernetes-list-type` and `x-kubernetes-list-map-keys`.
fn list(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    let (word, keys_word) = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys");
    let (how, keys, items) = (text(schema, word), &schema[keys_word], &schema["items"]);
    one_of(all, schema, word, &["atomic", "set", "map"], at);
    if !how.is_empty() {
        must_be(all, schema, "array", "if x-kubernetes-list-type is specified", at);
    }
    let names: Vec<&str> = strings(keys).collect();
    if !names.is_empty() && how != "map" {
        let text = "must be map if x-kubernetes-list-map-keys is non-empty";
        let at = format!("{at}.{word}");
        all.push(if how.is_empty() {
            Cause::required(at, text)
        } else {
            Cause::invalid(at, &how.into(), text)
        });
    }
    if how == "set" {
        set_items(all, items, &format!("{at}.items"));
    }
    if how != "map" {
        return;
    }
    let at_keys = format!("{at}.{keys_word}");
    if names.is_empty() {
        all.push(Cause::required(&*at_keys, "must not be empty if x-kubernetes-list-type is map"));
    }
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        all.push(Cause::invalid(&*at_keys, keys, "must not contain duplicate entries"));
    }
    if !items.is_object() {
        let text = "must have a schema if x-kubernetes-list-type is map";
        return all.push(Cause::required(format!("{at}.items"), text));
    }
    if items["type"] != "object" {
        let text = "must be object if parent array's x-kubernetes-list-type is map";
        return all.push(Cause::invalid(format!("{at}.items.type"), &items["type"], text));
    }
    if names.iter().any(|key| items["properties"].get(key).is_none()) {
        return all.push(Cause::invalid(at_keys, keys, "entries must all be names of item properties"));
    }
    let required: Vec<&str> = strings(&items["required"]).collect();
    for key in names.iter().collect::<BTreeSet<_>>() {
        let (schema, at) = (&items["properties"][key], format!("{at}.items.properties[{key}]"));
        if ["object", "array"].contains(&text(schema, "type")) {
            let text = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            all.push(Cause::invalid(format!("{at}.type"), &schema["type"], text));
        }
        let this = "this property is in x-kubernetes-list-map-keys, so it";
        if schema["default"].is_null() && !required.contains(key) {
            let text = format!("{this} must have a default or be a required property");
            all.push(Cause::required(format!("{at}.default"), &text));
        }
        if schema["nullable"] == true {
            all.push(Cause::forbidden(format!("{at}.nullable"), &format!("{this} cannot be nullable")));
        }
    }
}

fn set_items(all: &mut Vec<Cause>, items: &Value, at: &str) {
    if items["nullable"] == true {
        let text = "cannot be nullable when x-kubernetes-list-type is set";
        all.push(Cause::forbidden(format!("{at}.nullable"), text));
    }
    let word = match text(items, "type") {
        "object" => "x-kubernetes-map-type",
        "array" => "x-kubernetes-list-type",
        _ => return,
    };
    // A list without `x-kubernetes-list-type` is atomic.
    let is_atomic = items[word] == "atomic" || (text(items, "type") == "array" && items[word].is_null());
    if !is_atomic {
        let text = "must be atomic as item of a list with x-kubernetes-list-type=set";
        all.push(Cause::invalid(format!("{at}.{word}"), &items[word], text));
    }
}

/// Validates the fields of CEL rules. The rules themselves are compiled later.
fn rules(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        if text(rule, "rule").trim().is_empty() {
            all.push(Cause::required(format!("{at}.rule"), "rule is not specified"));
        }
        let message = text(rule, "message");
        if !message.is_empty() && message.trim().is_empty() {
            all.push(Cause::invalid(
                format!("{at}.message"),
                &message.into(),
                "must be non-empty if specified",
            ));
        } else if message.trim().contains(['\n', '\r']) {
            all.push(Cause::invalid(
                format!("{at}.message"),
                &message.into(),
                "must not contain line breaks",
            ));
        }
        one_of(all, rule, "reason", &RULE_REASONS, &at);
        let path = text(rule, "fieldPath");
        if field_below(path, schema).is_none() {
            all.push(Cause::invalid(format!("{at}.fieldPath"), &path.into(), "must be a valid path"));
        }
    }
}

/// Schemas inside of `allOf`, `anyOf`, `oneOf` and `not` may not contain the keywords of [`STRUCTURE`].
fn junctors(all: &mut Vec<Cause>, schema: &Value, is_int_or_string: bool, at: &str) {
    for word in ["allOf", "anyOf", "oneOf"] {
        for (index, nested) in schema[word].as_array().into_iter().flatten().enumerate() {
            // int-or-string allows `anyOf: [{type: integer}, {type: string}]`, alone or as the first of `allOf`.
            let is_type_pair = is_int_or_string
                && word == "anyOf"
                && schema["anyOf"].as_array().is_some_and(
                    |both| matches!(&both[..], [a, b] if a["type"] == "integer" && b["type"] == "string"),
                );
            let goes_on = is_int_or_string && word == "allOf" && index == 0;
            nested_schema(all, nested, is_type_pair, goes_on, &format!("{at}.{word}[{index}]"));
        }
    }
    if schema["not"].is_object() {
        nested_schema(all, &schema["not"], false, false, &format!("{at}.not"));
    }
}

fn nested_schema(
    all: &mut Vec<Cause>,
    schema: &Value,
    may_have_type: bool,
    is_int_or_string: bool,
    at: &str,
) {
    if all.len() >= CAUSES_MAX {
        return;
    }
    for (word, wanted) in STRUCTURE {
        if is_set(schema, word) && !(word == "type" && may_have_type) {
            all.push(Cause::forbidden(format!("{at}.{word}"), &format!("must be {wanted} to be structural")));
        }
    }
    words(all, schema, at);
    list(all, schema, at);
    junctors(all, schema, is_int_or_string, at);
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.properties[{name}]");
        if name == "metadata" {
            all.push(Cause::forbidden(&*at, "must not be specified in a nested context"));
        }
        nested_schema(all, schema, false, false, &at);
    }
    if schema["items"].is_object() {
        nested_schema(all, &schema["items"], false, false, &format!("{at}.items"));
    }
}

/// Refuses `oldSelf` in rules of values that have no old value: items of the list at `list`.
pub(crate) fn wrong_transition_rules(all: &mut Vec<Cause>, schema: &Value, at: &str, list: Option<&str>) {
    for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        match (uses_old(text(rule, "rule")), list) {
            (true, Some(list)) => {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                );
                all.push(Cause::invalid(format!("{at}.rule"), &rule["rule"], &why));
            }
            (false, _) if rule["optionalOldSelf"].is_boolean() => {
                let why = "may not be set if oldSelf is not used in rule";
                all.push(Cause::invalid(format!("{at}.optionalOldSelf"), &rule["optionalOldSelf"], why));
            }
            (true | false, _) => {}
        }
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        wrong_transition_rules(all, schema, &format!("{at}.properties[{name}]"), list);
    }
    if schema["additionalProperties"].is_object() {
        let at = format!("{at}.additionalProperties");
        wrong_transition_rules(all, &schema["additionalProperties"], &at, list);
    }
    if schema["items"].is_object() {
        let list = list.or((schema["x-kubernetes-list-type"] != "map").then_some(at));
        wrong_transition_rules(all, &schema["items"], &format!("{at}.items"), list);
    }
}

/// Validates each default against its own schema, up to [`CAUSES_MAX`] errors.
pub(crate) fn wrong_defaults(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    if all.len() >= CAUSES_MAX {
        return;
    }
    if is_set(schema, "default")
        && let Ok(own) = Schema::compile(schema)
    {
        let (default, at) = (&schema["default"], format!("{at}.default"));
        let mut causes = Vec::new();
        own.validate(default, None, &mut causes);
        all.extend(causes.into_iter().map(|cause| cause.under(&at)));
        if !own.prune(&mut default.clone()).is_empty() {
            all.push(Cause::invalid(at, default, "must not have unknown fields"));
        }
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        wrong_defaults(all, schema, &format!("{at}.properties[{name}]"));
    }
    for inside in ["items", "additionalProperties"].into_iter().filter(|inside| schema[inside].is_object()) {
        wrong_defaults(all, &schema[inside], &format!("{at}.{inside}"));
    }
}
