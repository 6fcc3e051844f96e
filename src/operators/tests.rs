//! Compares the lists of owned fields on the pages for users with the types of the desired children.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    copyrator::{CopyratorRule, copy::Original},
    database, memcached, mywebserver,
};
use crate::resource::{
    Resource,
    diff::{self, Merge, MergeRule},
    kinds::{ConfigMap, SOURCE_RANGES, Secret},
};

/// All of these fields are compared, and no others. `tests/it/drift_fuzz` edits children at random, and expects that exactly
/// these fields are restored.
#[test]
fn each_page_lists_exactly_the_fields_that_are_ours() {
    let metadata = json!({"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7"});
    let web = json!({"metadata": metadata, "spec": {"image": "nginx"}});
    let children = mywebserver::desired(&serde_json::from_value(web).expect("a MyWebserver"));
    check(
        include_str!("../../docs/mywebserver.md"),
        &[owned("Deployment", &children.deployment), owned("Service", &children.service)],
    );

    let cache = json!({"metadata": metadata, "spec": {"size": 3}});
    let children = memcached::desired(&serde_json::from_value(cache).expect("a Memcached"), "memcached:1.6");
    check(
        include_str!("../../docs/operator-sdk.md"),
        &[owned("Deployment", &children.deployment), owned("Service", &children.service)],
    );

    let backup = json!({"schedule": "@daily"});
    let spec = json!({"size": 2, "version": "15", "backup": backup});
    let database = json!({"metadata": metadata, "spec": spec});
    let children =
        database::desired(&serde_json::from_value(database).expect("a Database"), "postgres:15", &[]);
    check(
        include_str!("../../docs/database.md"),
        &[
            owned("StatefulSet", &children.set),
            owned("Service", &children.primary),
            owned("ConfigMap", &children.scripts),
            owned("PodDisruptionBudget", &children.budget),
            owned("CronJob", &children.backup.expect("a CronJob")),
        ],
    );

    let rule = json!({"metadata": metadata, "ruleType": "configmap", "selector": {"copyrator": "true"}});
    let rule: CopyratorRule = serde_json::from_value(rule).expect("a CopyratorRule");
    let source = json!({"metadata": metadata, "data": {"color": "cmVk"}});
    let config_map: ConfigMap = serde_json::from_value(source.clone()).expect("a ConfigMap");
    let secret: Secret = serde_json::from_value(source).expect("a Secret");
    check(
        include_str!("../../docs/copyrator.md"),
        &[
            owned("ConfigMap", &Original::new(&rule, Arc::new(config_map), |_| false).copy_for("team-a")),
            owned("Secret", &Original::new(&rule, Arc::new(secret), |_| false).copy_for("team-a")),
        ],
    );
}

/// The list is the first block after its heading.
fn check(page: &str, lists: &[String]) {
    let list = format!("\n{}", lists.concat());
    println!("{list}");
    let (_, section) = page.split_once("## Fields of the operator").expect("a heading");
    let documented = section.split("```").nth(1);
    assert!(documented == Some(&*list), "the page has another list than this:\n{list}");
}

/// The kind, and the fields that our type keeps, one per line, of an object that has every field of the API server's schema.
fn owned<K: Resource + Serialize>(kind: &str, desired: &K) -> String {
    let schemas =
        serde_json::from_str(include_str!("../../apiserver/src/schema/openapi.json")).expect("JSON");
    let full = full(&schemas, kind);
    let kept = serde_json::to_value(K::deserialize(&full).expect(kind)).expect("JSON");
    let mut list = List { rules: diff::rules::<K>().collect(), lines: String::new() };
    list.add("", "", &full, &kept, &serde_json::to_value(desired).expect("JSON"));
    format!("{kind}\n{}", list.lines)
}

struct List {
    rules: Vec<&'static MergeRule>,
    lines: String,
}

impl List {
    /// Adds the fields below one field. `pattern` is its path in a rule.
    fn add(&mut self, path: &str, pattern: &str, full: &Value, kept: &Value, desired: &Value) {
        let rule = |at: &str| self.rules.iter().find(|(pattern, _)| *pattern == at).map(|(_, merge)| *merge);
        match rule(pattern) {
            Some(Merge::NotOurs) => return,
            Some(Merge::Shared) => {
                let removed = |key: &&String| {
                    rule(&format!("{pattern}/{}", key.replace('/', "~1"))) == Some(Merge::Owned)
                };
                let wanted = desired.as_object().into_iter().flatten().map(|(key, _)| key);
                let kept = kept.as_object().into_iter().flatten().map(|(key, _)| key).filter(removed);
                for key in wanted.chain(kept).collect::<Vec<_>>() {
                    self.line(&format!("{path}[{key}]"));
                }
                return;
            }
            Some(Merge::SharedBy(_)) if path == "metadata.ownerReferences" => {
                if !desired.is_null() {
                    self.line(&format!("{path}[ours]"));
                }
                return;
            }
            Some(Merge::SharedBy(keys)) => {
                for item in desired.as_array().into_iter().flatten() {
                    let path = format!("{path}[{}]", item[keys[0]].as_str().expect("a name"));
                    self.add(&path, &format!("{pattern}/*"), &full[0], &kept[0], item);
                }
                return;
            }
            Some(Merge::Whole) => return self.line(path),
            Some(Merge::OneOf(_) | Merge::SharedSet | Merge::Owned | Merge::Defaulted) | None => {}
        }
        if is_whole(full, kept) {
            return self.line(path);
        }
        assert!(kept.is_object(), "{path} is a list whose items have fields of others");
        let fields = |of: &Value| -> BTreeSet<String> {
            of.as_object().into_iter().flatten().map(|(field, _)| field.clone()).collect()
        };
        for field in &fields(kept) | &fields(desired) {
            // The key of the object, or of the item of a list.
            if !["name", "namespace"].contains(&&*field) {
                let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                let pattern = format!("{pattern}/{field}");
                self.add(&path, &pattern, &full[&field], &kept[&field], &desired[&field]);
            }
        }
    }

    fn line(&mut self, path: &str) {
        self.lines += &format!("  {path}\n");
    }
}

/// Whether our type keeps every field; [`Present`](crate::resource::kinds::Present) keeps the whole value.
fn is_whole(full: &Value, kept: &Value) -> bool {
    match (full, kept) {
        (_, Value::Bool(true)) => true,
        (Value::Object(full), Value::Object(kept)) => {
            full.iter().all(|(field, full)| kept.get(field).is_some_and(|kept| is_whole(full, kept)))
        }
        (Value::Array(full), Value::Array(kept)) => is_whole(&full[0], &kept[0]),
        _ => true,
    }
}

/// An object with all fields of a schema.
fn full(schemas: &Value, name: &str) -> Value {
    fn value(schemas: &Value, schema: &Value) -> Value {
        if let Some(path) = schema["$ref"].as_str() {
            return full(schemas, path.rsplit('/').next().expect("a name"));
        }
        match schema["type"].as_str() {
            Some("object") if schema["properties"].is_null() => json!({"key": "value"}),
            Some("object") => {
                let fields = schema["properties"].as_object().expect("fields");
                fields.iter().map(|(name, field)| (name.clone(), value(schemas, field))).collect()
            }
            Some("array") => json!([value(schemas, &schema["items"])]),
            Some("integer" | "number") => 1.into(),
            Some("boolean") => true.into(),
            _ if schema["format"] == "date-time" => "2026-11-21T12:00:00Z".into(),
            _ => "text".into(),
        }
    }
    let mut value = value(schemas, &schemas[name]);
    if name == "ObjectMeta" {
        value["annotations"] = json!({SOURCE_RANGES: ""});
    }
    if name == "LabelSelectorRequirement" {
        value["operator"] = "In".into();
    }
    value
}
