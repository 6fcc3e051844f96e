//! Compares the lists of owned fields on the pages for users with the desired children.

use std::{collections::BTreeSet, sync::Arc};

use listwatch::resource::{
    Resource,
    diff::{self, Merge},
    kinds::{CLUSTER_IP_ONLY, ConfigMap, Secret},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    copyrator::{CopyratorRule, copy::Original},
    database, memcached, mywebserver,
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
        &[
            owned("Deployment", &children.deployment, &[]),
            owned("Service", &children.service, CLUSTER_IP_ONLY),
        ],
    );

    let cache = json!({"metadata": metadata, "spec": {"size": 3}});
    let children = memcached::desired(&serde_json::from_value(cache).expect("a Memcached"), "memcached:1.6");
    check(
        include_str!("../../docs/operator-sdk.md"),
        &[
            owned("Deployment", &children.deployment, memcached::OWNED),
            owned("Service", &children.service, &[]),
        ],
    );

    let backup = json!({"schedule": "@daily"});
    let spec = json!({"size": 2, "version": "15", "backup": backup});
    let database = json!({"metadata": metadata, "spec": spec});
    let children =
        database::desired(&serde_json::from_value(database).expect("a Database"), "postgres:15", &[]);
    check(
        include_str!("../../docs/database.md"),
        &[
            owned("StatefulSet", &children.set, database::SET_OWNED),
            owned("Service", &children.primary, CLUSTER_IP_ONLY),
            owned("ConfigMap", &children.scripts, &[]),
            owned("PodDisruptionBudget", &children.budget, &[]),
            owned("CronJob", &children.backup.expect("a CronJob"), database::CRON_JOB_OWNED),
        ],
    );

    let rule = json!({"metadata": metadata, "ruleType": "configmap", "selector": {"copyrator": "true"}});
    let rule: CopyratorRule = serde_json::from_value(rule).expect("a CopyratorRule");
    let spec = &Arc::new(rule.spec.clone().expect("the fields"));
    let source = json!({"metadata": metadata, "type": "Opaque", "data": {"color": "cmVk"}});
    let config_map: ConfigMap = serde_json::from_value(source.clone()).expect("a ConfigMap");
    let secret: Secret = serde_json::from_value(source).expect("a Secret");
    check(
        include_str!("../../docs/copyrator.md"),
        &[
            owned("ConfigMap", &Original::new(&rule, spec, Arc::new(config_map)).copy_for("team-a"), &[]),
            owned("Secret", &Original::new(&rule, spec, Arc::new(secret)).copy_for("team-a"), &[]),
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

/// The kind, and the fields that are ours, one per line: those that the desired child sets, and those that must be absent.
fn owned<K: Resource + Serialize>(kind: &str, desired: &K, owning: &[&str]) -> String {
    let schemas =
        serde_json::from_str(include_str!("../../apiserver/src/schema/openapi.json")).expect("JSON");
    let owning = owning.iter().map(|path| ((*path).to_owned(), Merge::Owned));
    let mut list = List { rules: owning.chain(diff::rules::<K>()).collect(), lines: String::new() };
    list.add("", "", &full(&schemas, kind), &serde_json::to_value(desired).expect("JSON"));
    format!("{kind}\n{}", list.lines)
}

struct List {
    rules: Vec<(String, Merge)>,
    lines: String,
}

impl List {
    /// Adds the fields below one field. `pattern` is its path in a rule, and `full` has every field of the schema.
    fn add(&mut self, path: &str, pattern: &str, full: &Value, desired: &Value) {
        let rule = self.rules.iter().find(|(at, _)| at == pattern).map(|(_, merge)| *merge);
        match (rule, desired) {
            (Some(Merge::NotOurs), _) => {}
            (Some(Merge::Owned | Merge::Whole), _) => self.line(path),
            (Some(Merge::SharedBy(_)), Value::Array(_)) if path == "metadata.ownerReferences" => {
                self.line(&format!("{path}[ours]"));
            }
            (Some(Merge::SharedBy(keys)), Value::Array(items)) => {
                for item in items {
                    let path = format!("{path}[{}]", item[keys[0]].as_str().expect("a name"));
                    self.add(&path, &format!("{pattern}/*"), &full[0], item);
                }
            }
            (_, Value::Object(fields)) if !is_whole(full, desired) => {
                self.add_fields(path, pattern, full, &json!(fields));
            }
            (_, Value::Null) => self.add_fields(path, pattern, full, &json!({})),
            _ => self.line(path),
        }
    }

    fn add_fields(&mut self, path: &str, pattern: &str, full: &Value, desired: &Value) {
        let wanted = desired.as_object().into_iter().flatten().map(|(field, _)| field.clone());
        let absent = self.rules.iter().filter(|(_, merge)| *merge == Merge::Owned).filter_map(|(at, _)| {
            let (parent, field) = at.rsplit_once('/')?;
            // An object without annotations has an empty map of them.
            match parent.strip_prefix(pattern)? {
                "" => Some(field.replace("~1", "/")),
                "/annotations" => Some("annotations".to_owned()),
                _ => None,
            }
        });
        for field in wanted.chain(absent).collect::<BTreeSet<_>>() {
            let path = match path {
                "" => field.clone(),
                map if map.ends_with(".labels") || map.ends_with(".annotations") => format!("{map}[{field}]"),
                path => format!("{path}.{field}"),
            };
            // The key of the object, or of the item of a list.
            if !["name", "namespace"].contains(&&*field) {
                let pattern = format!("{pattern}/{}", field.replace('/', "~1"));
                self.add(&path, &pattern, &full[&field], &desired[&field]);
            }
        }
    }

    fn line(&mut self, path: &str) {
        self.lines += &format!("  {path}\n");
    }
}

/// Whether every field is desired.
fn is_whole(full: &Value, desired: &Value) -> bool {
    let (Some(full), Some(desired)) = (full.as_object(), desired.as_object()) else {
        return desired != &Value::Null;
    };
    full.iter().all(|(field, full)| desired.get(field).is_some_and(|desired| is_whole(full, desired)))
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
    value(schemas, &schemas[name])
}
