//! Compares a CustomResourceDefinition with the Rust type that reads its objects.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Checks that a CustomResourceDefinition, in YAML, fits the type of its objects: group, names and version match the kind; an
/// object with all fields of the schema can be read, and one with only the required fields; and the schema has each field that the
/// type writes, because the API server drops all others.
///
/// ```
/// # use listwatch::resource::ObjectMeta;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Page { metadata: ObjectMeta, spec: PageSpec }
/// # #[derive(serde::Serialize, serde::Deserialize)] struct PageSpec { url: String }
/// # listwatch::kind!(Page, "example.com", "v1", "pages");
/// listwatch::testing::crd_fits::<Page>("
/// apiVersion: apiextensions.k8s.io/v1
/// kind: CustomResourceDefinition
/// metadata: {name: pages.example.com}
/// spec:
///   group: example.com
///   scope: Namespaced
///   names: {kind: Page, plural: pages, singular: page}
///   versions:
///   - name: v1
///     served: true
///     storage: true
///     schema:
///       openAPIV3Schema:
///         type: object
///         required: [spec]
///         properties: {spec: {type: object, required: [url], properties: {url: {type: string}}}}
/// ");
/// ```
///
/// # Panics
///
/// If it does not fit, with each difference.
pub fn crd_fits<K: Resource + Serialize>(definition: &str) {
    let definition = listwatch_yaml::read(definition).expect("a manifest in YAML");
    let problems = problems::<K>(&definition);
    assert!(problems.is_empty(), "the CRD of {} does not fit its type:\n{}", K::KIND, problems.join("\n"));
}

fn problems<K: Resource + Serialize>(definition: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, wanted) in [
        ("/spec/group", K::GROUP.to_owned()),
        ("/spec/names/kind", K::KIND.to_owned()),
        ("/spec/names/plural", K::PLURAL.to_owned()),
        ("/metadata/name", format!("{}.{}", K::PLURAL, K::GROUP)),
    ] {
        let found = definition.pointer(path).and_then(Value::as_str).unwrap_or_default();
        if found != wanted {
            problems.push(format!("{path} is {found}, and the type has {wanted}"));
        }
    }
    let mut versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let Some(version) = versions.find(|version| version["name"] == K::VERSION) else {
        problems.push(format!("there is no version {}", K::VERSION));
        return problems;
    };
    let schema = &version["schema"]["openAPIV3Schema"];
    for (which, fields) in [("all fields", Sample::All), ("the required fields alone", Sample::Required)] {
        let mut object = sample(schema, fields);
        object["metadata"] = json!({"name": "a", "namespace": "default", "resourceVersion": "1"});
        match serde_json::from_value::<K>(object) {
            Err(error) => problems.push(format!("an object with {which} cannot be read: {error}")),
            Ok(read) => {
                let mut written = serde_json::to_value(read).unwrap_or_default();
                written.as_object_mut().map(|fields| fields.remove("metadata"));
                add_dropped(&written, schema, "", &mut problems);
            }
        }
    }
    problems.dedup();
    problems
}

/// Which fields an object of the schema has.
#[derive(Clone, Copy, PartialEq)]
enum Sample {
    All,
    /// Those without which the API server refuses it, and those that it sets.
    Required,
}

/// A value that a schema allows, but for patterns.
fn sample(schema: &Value, fields: Sample) -> Value {
    let has_fields = fields == Sample::All && schema["properties"].is_object();
    if let Some(value) = schema.get("default").or_else(|| schema["enum"].get(0)).filter(|_| !has_fields) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("object") => {
            let is_required =
                |name: &String| schema["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
            let properties = schema["properties"].as_object().into_iter().flatten();
            let has = |(name, field): &(&String, &Value)| {
                fields == Sample::All || is_required(name) || field.get("default").is_some()
            };
            let mut object: Map<_, _> =
                properties.filter(has).map(|(name, field)| (name.clone(), sample(field, fields))).collect();
            if let Some(values @ Value::Object(_)) = schema.get("additionalProperties") {
                object.insert("key".to_owned(), sample(values, fields));
            }
            object.into()
        }
        Some("array") => json!([sample(&schema["items"], fields)]),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => true.into(),
        _ if schema["x-kubernetes-int-or-string"] == true => 1.into(),
        _ if schema["format"] == "date-time" => "2026-11-21T12:00:00Z".into(),
        _ => "text".into(),
    }
}

/// Adds the fields that the API server would drop.
fn add_dropped(written: &Value, schema: &Value, path: &str, problems: &mut Vec<String>) {
    match written {
        Value::Object(fields) if schema["properties"].is_object() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match schema["properties"].get(name) {
                    Some(field) => add_dropped(value, field, &path, problems),
                    None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                    None => {
                        problems.push(format!("the schema has no {path}, so the API server drops this field"))
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                add_dropped(item, &schema["items"], &format!("{path}[]"), problems);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::resource::ObjectMeta;

    #[derive(Serialize, Deserialize)]
    struct Page {
        metadata: ObjectMeta,
        spec: PageSpec,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PageSpec {
        url: String,
        #[serde(default)]
        every_seconds: u64,
    }

    crate::kind!(Page, "example.com", "v1", "pages");

    fn definition(properties: Value, required: &[&str]) -> Value {
        let spec = json!({"type": "object", "required": required, "properties": properties});
        let schema = json!({"type": "object", "required": ["spec"], "properties": {"spec": spec}});
        json!({
            "metadata": {"name": "pages.example.com"},
            "spec": {
                "group": "example.com", "names": {"kind": "Page", "plural": "pages"},
                "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}],
            },
        })
    }

    #[test]
    fn each_difference_between_a_definition_and_its_type_is_named() {
        let url = json!({"type": "string", "pattern": "^https?://"});
        let fits =
            definition(json!({"url": url, "everySeconds": {"type": "integer", "minimum": 1}}), &["url"]);
        assert_eq!(problems::<Page>(&fits), [""; 0]);
        let mut other = fits.clone();
        other["spec"]["group"] = "example.org".into();
        assert_eq!(problems::<Page>(&other), ["/spec/group is example.org, and the type has example.com"]);
        other = fits.clone();
        other["spec"]["versions"][0]["name"] = "v2".into();
        assert_eq!(problems::<Page>(&other), ["there is no version v1"]);
        let every = json!({"type": "integer"});
        assert_eq!(
            problems::<Page>(&definition(json!({"url": url, "everySecond": every}), &["url"])),
            ["the schema has no spec.everySeconds, so the API server drops this field"]
        );
        assert_eq!(
            problems::<Page>(&definition(json!({"url": url, "everySeconds": every}), &[])),
            ["an object with the required fields alone cannot be read: missing field `url`"]
        );
        assert_eq!(
            problems::<Page>(&definition(json!({"url": url, "everySeconds": {"type": "string"}}), &["url"])),
            ["an object with all fields cannot be read: invalid type: string \"text\", expected u64"]
        );
    }
}
