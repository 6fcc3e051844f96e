//! The defaults and the validation of kinds without functions of their own: from the table of built-in kinds, and from their OpenAPI
//! definitions.
//!
//! ```text
//! ("/webhooks/*/timeoutSeconds", "10")   the default of a field, in each webhook
//! ("/roleRef", "cannot change roleRef")  a field that no update changes, and the message of kube-apiserver
//! ```
//!
//! Of the definitions, only required texts and enumerations count: kube-apiserver accepts other required fields when they are empty.

use serde_json::Value;

use crate::{
    kinds::field_checks::text,
    schema::{
        field_errors::FieldPath,
        openapi::{referred, resolved},
    },
    status::Cause,
};

/// Sets the default of a missing field. The default is in JSON. Objects on the way to the field are not created.
pub(crate) fn fill(object: &mut Value, pointer: &str, default: &str) {
    let end = pointer[1..].find('/').map_or(pointer.len(), |end| end + 1);
    let (part, rest) = (&pointer[1..end], &pointer[end..]);
    if part == "*" {
        object.as_array_mut().into_iter().flatten().for_each(|item| fill(item, rest, default));
        return;
    }
    let Some(map) = object.as_object_mut() else { return };
    if !rest.is_empty() {
        map.get_mut(part).into_iter().for_each(|value| fill(value, rest, default));
    } else if map.get(part).is_none_or(Value::is_null) {
        map.insert(part.to_owned(), serde_json::from_str(default).unwrap_or_default());
    }
}

/// The errors of fields that were changed.
pub(crate) fn changed(fields: &[(&str, &str)], object: &Value, before: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    for (pointer, message) in fields {
        let [is, was] = [object, before].map(|one| one.pointer(pointer).unwrap_or(&Value::Null));
        if is != was {
            all.push(Cause::invalid(pointer[1..].replace('/', "."), is, message));
        }
    }
    all
}

/// The errors of the fields of an object, without its metadata and status.
pub(crate) fn errors(object: &Value, schema: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    check(object, schema, &FieldPath::Root, &mut all);
    all
}

fn check(value: &Value, schema: &Value, path: &FieldPath<'_>, all: &mut Vec<Cause>) {
    let (named, schema) = (referred(schema), resolved(schema));
    match value {
        // The Pods of a template have a validation of their own.
        Value::Object(_) if named == Some("PodTemplateSpec") => {}
        Value::Object(map) => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for name in required {
                let is_text = resolved(&schema["properties"][name])["type"] == "string";
                // An empty audience means kube-apiserver.
                if is_text && name != "audience" && text(&value[name]).is_empty() {
                    all.push(Cause::required(FieldPath::Field(path, name).to_string(), ""));
                }
            }
            for (name, value) in map {
                if !matches!((path, name.as_str()), (FieldPath::Root, "metadata" | "status")) {
                    check(value, &schema["properties"][name], &FieldPath::Field(path, name), all);
                }
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                check(value, &schema["items"], &FieldPath::Index(path, index), all);
            }
        }
        Value::String(one) if !one.is_empty() => {
            let Some(known) = schema["enum"].as_array() else { return };
            if !known.contains(value) {
                let known: Vec<String> = known.iter().map(|one| text(one).to_owned()).collect();
                all.push(Cause::not_supported(path.to_string(), value, &known));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_default_is_set_where_its_parent_is() {
        let mut object = json!({"webhooks": [{"a": {}}, {"a": {"b": 1}}, {}]});
        fill(&mut object, "/webhooks/*/a/b", "2");
        fill(&mut object, "/kind", "\"K\"");
        assert_eq!(object, json!({"kind": "K", "webhooks": [{"a": {"b": 2}}, {"a": {"b": 1}}, {}]}));
    }
}
