//! The schemas of the CRDs: types, descriptions, the status subresource, conditions, printer columns.
//!
//! It would have found zalando-incubator/stackset-controller#242: `metadata: {type: object}` in a template, so the server drops all labels in it.

use serde_json::{Value, json};

use super::{Finding, list, text, verdict};
use crate::report::Verdict;

/// The fields of a metav1.Condition without `observedGeneration`, which is optional.
const CONDITION_FIELDS: [&str; 5] = ["type", "status", "reason", "message", "lastTransitionTime"];

const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";

pub(super) fn check(crds: &[Value]) -> Verdict {
    let (mut findings, mut count) = (Vec::new(), 0);
    for crd in crds.iter().filter(|crd| crd["kind"] == "CustomResourceDefinition") {
        for version in list(&crd["spec"]["versions"]).filter(|version| version["served"] == true) {
            let object = format!("{} {}", text(&crd["metadata"]["name"]), text(&version["name"]));
            let schema = &version["schema"]["openAPIV3Schema"];
            let mut walk = FieldWalk { object: &object, findings: &mut findings, fields: 0 };
            for (name, field) in properties(schema) {
                if !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                    walk.field(field, &format!(".{name}"));
                }
            }
            count += walk.fields;
            status(&object, version, &mut findings);
            columns(&object, version, &mut findings);
        }
    }
    verdict(findings, format!("{count} fields have types and descriptions"))
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

struct FieldWalk<'a> {
    object: &'a str,
    findings: &'a mut Vec<Finding>,
    fields: usize,
}

impl FieldWalk<'_> {
    fn field(&mut self, schema: &Value, at: &str) {
        self.fields += 1;
        // Items and values are often of a Kubernetes type, such as a toleration. The description of the list is enough.
        let is_below_list = at.contains("[]") || at.contains(".*");
        if !is_below_list && text(&schema["description"]).trim().is_empty() {
            let path = format!("{at}.description");
            self.findings.push(Finding::warn(self.object, path, "a text", &schema["description"]));
        }
        self.value(schema, at);
    }

    /// A field, an item of a list, or a value of a map.
    fn value(&mut self, schema: &Value, at: &str) {
        let is_open = schema[PRESERVES] == true;
        if text(&schema["type"]).is_empty() && schema["x-kubernetes-int-or-string"] != true && !is_open {
            self.findings.push(Finding::fail(self.object, format!("{at}.type"), "a type", &schema["type"]));
        }
        let has_fields = properties(schema).next().is_some() || !schema["additionalProperties"].is_null();
        if schema["type"] == "object" && !has_fields && !is_open {
            let expected = "fields, as the server drops all that are not in the schema";
            let path = format!("{at}.properties");
            self.findings.push(Finding::warn(self.object, path, expected, &schema["properties"]));
        }
        for (name, field) in properties(schema) {
            self.field(field, &format!("{at}.{name}"));
        }
        for (word, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
            if schema[word].is_object() {
                self.value(&schema[word], &format!("{at}{suffix}"));
            }
        }
    }
}

/// See api-conventions.md#spec-and-status and #typical-status-properties.
fn status(object: &str, version: &Value, findings: &mut Vec<Finding>) {
    let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"];
    if status.is_null() {
        return;
    }
    if version["subresources"]["status"].is_null() {
        let found = &version["subresources"]["status"];
        findings.push(Finding::fail(object, ".subresources.status", "{}, as there is a .status", found));
    }
    let conditions = &status["properties"]["conditions"];
    if conditions.is_null() {
        return;
    }
    for (word, expected) in [("type", json!("array")), ("x-kubernetes-list-type", json!("map"))] {
        if conditions[word] != expected {
            let path = format!(".status.conditions.{word}");
            findings.push(Finding::fail(object, path, text(&expected), &conditions[word]));
        }
    }
    if conditions["x-kubernetes-list-map-keys"] != json!(["type"]) {
        let path = ".status.conditions.x-kubernetes-list-map-keys";
        findings.push(Finding::fail(object, path, "type", &conditions["x-kubernetes-list-map-keys"]));
    }
    let fields = &conditions["items"]["properties"];
    for name in CONDITION_FIELDS.iter().filter(|name| fields[**name]["type"] != "string") {
        let path = format!(".status.conditions[].{name}");
        findings.push(Finding::fail(object, path, "a string, as in metav1.Condition", &fields[*name]));
    }
}

fn columns(object: &str, version: &Value, findings: &mut Vec<Finding>) {
    let columns = &version["additionalPrinterColumns"];
    if list(columns).next().is_none() {
        findings.push(Finding::warn(object, ".additionalPrinterColumns", "columns for kubectl get", columns));
    }
    for column in list(columns) {
        if !names_a_field(&version["schema"]["openAPIV3Schema"], text(&column["jsonPath"])) {
            let path = format!(".additionalPrinterColumns[{}].jsonPath", text(&column["name"]));
            findings.push(Finding::fail(object, path, "a field of the schema", &column["jsonPath"]));
        }
    }
}

/// Whether a JSONPath, such as `.status.conditions[?(@.type=="Ready")].status`, can find something.
fn names_a_field(schema: &Value, path: &str) -> bool {
    let (mut schema, mut rest) = (schema, path);
    if rest.starts_with(".metadata.") || rest == ".kind" || rest == ".apiVersion" {
        return true;
    }
    while !rest.is_empty() {
        // What is below is not known, or may be anywhere.
        if schema[PRESERVES] == true || rest.starts_with("..") {
            return true;
        }
        let (step, after) = step(rest);
        rest = after;
        schema = match step {
            Step::Field(name) if schema["properties"][name].is_object() => &schema["properties"][name],
            Step::Field(_) => &schema["additionalProperties"],
            Step::Items if schema["items"].is_object() => &schema["items"],
            Step::Items => &schema["additionalProperties"],
        };
        if schema.is_null() || schema == false {
            return false;
        }
    }
    !path.is_empty()
}

enum Step<'a> {
    Field(&'a str),
    Items,
}

/// The first step of a JSONPath, and the rest.
fn step(path: &str) -> (Step<'_>, &str) {
    let Some(bracket) = path.strip_prefix('[') else {
        let path = path.strip_prefix('.').unwrap_or(path);
        let (name, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
        return if name == "*" { (Step::Items, rest) } else { (Step::Field(name), rest) };
    };
    let end = if bracket.starts_with('?') { ")]" } else { "]" };
    let (inner, rest) = bracket.split_once(end).unwrap_or((bracket, ""));
    let unquoted = inner.strip_prefix(['\'', '"']).and_then(|inner| inner.strip_suffix(['\'', '"']));
    (unquoted.map_or(Step::Items, Step::Field), rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    fn crd() -> Value {
        let text = json!({"type": "string", "description": "A text."});
        let condition: Value = CONDITION_FIELDS.iter().map(|name| (*name, text.clone())).collect();
        let conditions = json!({"type": "array", "description": "Of the page.", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"], "items": {"type": "object", "properties": condition}});
        json!({"kind": "CustomResourceDefinition", "metadata": {"name": "pages.example.com"}, "spec": {"versions": [{
            "name": "v1", "served": true, "subresources": {"status": {}},
            "additionalPrinterColumns": [
                {"name": "Ready", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
                {"name": "Age", "jsonPath": ".metadata.creationTimestamp"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "metadata": {"type": "object"},
                "spec": {"type": "object", "description": "The page.", "properties": {
                    "text": text, "port": {"description": "A port.", "x-kubernetes-int-or-string": true},
                    "pod": {"description": "Any.", "type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "names": {"description": "Names.", "type": "object", "additionalProperties": {"type": "string"}}}},
                "status": {"type": "object", "description": "Now.", "properties": {"conditions": conditions}}}}}}]}})
    }

    #[test]
    fn each_fault_of_a_crd_is_found_and_nothing_in_a_good_one() {
        let good = check(&[crd()]);
        assert_eq!((good.result, &*good.reason), (Outcome::Pass, "12 fields have types and descriptions"));
        let schema = "schema/openAPIV3Schema/properties";
        let (spec, conditions) =
            (format!("{schema}/spec/properties"), format!("{schema}/status/properties/conditions"));
        for (at, value, result, expected) in [
            (
                &*format!("{spec}/text"),
                json!({"description": "A text."}),
                Outcome::Fail,
                "v1 .spec.text.type",
            ),
            (&*format!("{spec}/text/description"), json!(" "), Outcome::Warn, "v1 .spec.text.description"),
            (&*format!("{spec}/pod/{PRESERVES}"), json!(false), Outcome::Warn, "v1 .spec.pod.properties"),
            ("subresources", json!({}), Outcome::Fail, "v1 .subresources.status"),
            (
                &*format!("{conditions}/x-kubernetes-list-type"),
                json!("atomic"),
                Outcome::Fail,
                "v1 .status.conditions.x-kubernetes-list-type is \"atomic\", expected \"map\"",
            ),
            (
                &*format!("{conditions}/x-kubernetes-list-map-keys"),
                json!(["reason"]),
                Outcome::Fail,
                "v1 .status.conditions.x-kubernetes-list-map-keys",
            ),
            (
                &*format!("{conditions}/items/properties/reason/type"),
                json!("integer"),
                Outcome::Fail,
                "v1 .status.conditions[].reason",
            ),
            ("additionalPrinterColumns", json!([]), Outcome::Warn, "v1 .additionalPrinterColumns"),
            (
                "additionalPrinterColumns/1/jsonPath",
                json!(".spec.txt"),
                Outcome::Fail,
                "v1 .additionalPrinterColumns[Age].jsonPath is \".spec.txt\"",
            ),
        ] {
            let mut crd = crd();
            *crd.pointer_mut(&format!("/spec/versions/0/{at}")).expect("a field of the CRD") = value;
            let verdict = check(&[crd]);
            assert_eq!((verdict.result, verdict.evidence.len()), (result, 1), "{at}: {verdict:?}");
            assert!(verdict.reason.contains(expected), "{}", verdict.reason);
        }
    }

    #[test]
    fn a_json_path_names_a_field_of_the_schema() {
        let schema = &crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        for path in
            [".spec.text", ".spec['text']", ".spec.names.a", ".spec.pod.a[0].b", ".status.conditions[*].type"]
        {
            assert!(names_a_field(schema, path), "{path}");
        }
        for path in ["", ".spec.text.a", ".spec.conditions[0]", ".status.conditions[0].kind", ".spec.text[0]"]
        {
            assert!(!names_a_field(schema, path), "{path}");
        }
    }
}
