//! Scenarios of CopyratorRules: the actions of users, and exactly the copies that must be there after them.

use std::collections::BTreeSet;

use listwatch_operators::copyrator::copy::LABEL;
use serde_json::{Value, json};

use crate::{
    expect::{condition, field_differences, name},
    scenario::Scenario,
};

const RULES: &str = "/apis/flant.com/v1/namespaces/default/copyrators";
const SOURCES: &str = "/api/v1/namespaces/default/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";
const TARGETS: [&str; 2] = ["shop", "team"];

#[derive(Clone, Copy, Debug)]
enum Action {
    CreateRule,
    ChangeRule,
    DeleteRule,
    CreateSource,
    ChangeSource,
    RelabelSource,
    DeleteSource,
    EditCopy,
    UnlabelCopy,
    DeleteCopy,
    TakeName,
    FreeName,
    RelabelNamespace,
    EmptyNamespace,
    HoldCopy,
    ReleaseCopy,
}

/// Each kind with its weight in the random choice.
const ACTIONS: [(Action, usize); 16] = [
    (Action::CreateRule, 4),
    (Action::ChangeRule, 2),
    (Action::DeleteRule, 1),
    (Action::CreateSource, 4),
    (Action::ChangeSource, 3),
    (Action::RelabelSource, 1),
    (Action::DeleteSource, 1),
    (Action::EditCopy, 2),
    (Action::UnlabelCopy, 1),
    (Action::DeleteCopy, 2),
    (Action::TakeName, 1),
    (Action::FreeName, 1),
    (Action::RelabelNamespace, 2),
    (Action::EmptyNamespace, 2),
    (Action::HoldCopy, 1),
    (Action::ReleaseCopy, 1),
];

impl Scenario {
    pub async fn act_on_copies(&mut self) {
        let action = self.one_of(&ACTIONS);
        let random = &mut self.random;
        let rule_name = random.choice(["main-rule", "other-rule"]).unwrap();
        let source_name = random.choice(["motd", "settings"]).unwrap();
        let target = random.choice(TARGETS).unwrap();
        let data = json!({"data": {"number": random.u32(..1000).to_string()}});
        let targets = [
            json!({"include": [], "exclude": [], "selector": {}}),
            json!({"include": ["t*"]}),
            json!({"exclude": ["shop"]}),
            json!({"selector": {"copies": "yes"}}),
        ];
        let targets = random.choice(targets).unwrap();
        let label = json!({"metadata": {"labels": {"copies": random.choice(["yes", "no"]).unwrap()}}});
        let is_source = json!({"copyrator": if random.bool() { "true" } else { "false" }});
        let (rule, source) = (format!("{RULES}/{rule_name}"), format!("{SOURCES}/{source_name}"));
        let copies = format!("{NAMESPACES}/{target}/configmaps");
        let copy = format!("{copies}/{source_name}");
        match action {
            Action::CreateRule => {
                let rule = json!({"apiVersion": "flant.com/v1", "kind": "CopyratorRule",
                    "metadata": {"name": rule_name}, "ruleType": "configmap",
                    "selector": {"copyrator": "true"}, "targetNamespaces": targets});
                self.post(RULES, &rule).await;
            }
            Action::ChangeRule => drop(self.patch(&rule, &json!({"targetNamespaces": targets})).await),
            Action::DeleteRule => drop(self.delete(&rule, "Background").await),
            Action::CreateSource => {
                let metadata = json!({"name": source_name, "labels": {"copyrator": "true"}});
                self.post(SOURCES, &json!({"metadata": metadata, "data": data["data"]})).await;
            }
            Action::ChangeSource => drop(self.patch(&source, &data).await),
            Action::RelabelSource => {
                self.patch(&source, &json!({"metadata": {"labels": is_source}})).await;
            }
            Action::DeleteSource => drop(self.delete(&source, "Background").await),
            Action::EditCopy => drop(self.patch(&copy, &data).await),
            Action::UnlabelCopy => {
                self.patch(&copy, &json!({"metadata": {"labels": {LABEL: null}}})).await;
            }
            Action::DeleteCopy => drop(self.delete(&copy, "Background").await),
            Action::TakeName => {
                self.post(&copies, &json!({"metadata": {"name": source_name}, "data": data["data"]})).await;
            }
            Action::FreeName => {
                if self.network.get(&copy).await.is_some_and(|object| !is_copy(&object)) {
                    self.delete(&copy, "Background").await;
                }
            }
            Action::RelabelNamespace => {
                self.patch(&format!("{NAMESPACES}/{target}"), &label).await;
            }
            Action::EmptyNamespace => {
                if self.delete(&format!("{NAMESPACES}/{target}"), "Background").await >= 300 {
                    self.post(NAMESPACES, &json!({"metadata": {"name": target}})).await;
                }
            }
            Action::HoldCopy => self.add_finalizer(&copy).await,
            Action::ReleaseCopy => self.remove_finalizer(&copy).await,
        }
    }
}

/// Whether an object is a copy that was written to its place.
fn is_copy(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    metadata["annotations"]["flant.com/place"] == format!("{}/{}", text("namespace"), text("name"))
}

fn is_target(rule: &Value, namespace: &Value) -> bool {
    let (name, targets) = (namespace["metadata"]["name"].as_str().unwrap(), &rule["targetNamespaces"]);
    let has =
        |list: &str, item: &str| targets[list].as_array().is_some_and(|list| list.contains(&item.into()));
    let is_selected = targets["selector"]["copies"].is_null()
        || targets["selector"]["copies"] == namespace["metadata"]["labels"]["copies"];
    let is_included = !has("include", "t*") || name.starts_with('t');
    TARGETS.contains(&name)
        && namespace["status"]["phase"] == "Active"
        && is_selected
        && is_included
        && !has("exclude", name)
}

/// The differences from the copies that must be there. `may_have_orphans`: copies of rules that no longer exist may be
/// there.
pub fn problems(
    rules: &[Value],
    config_maps: &[Value],
    namespaces: &[Value],
    may_have_orphans: bool,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut rules: Vec<&Value> = rules.iter().collect();
    // Of two rules, the older has the copy.
    rules.sort_by_key(|rule| ["creationTimestamp", "name"].map(|field| rule["metadata"][field].to_string()));
    let mut places = BTreeSet::new();
    for rule in &rules {
        let (mut sources, mut copies, mut failed) = (0, 0, 0);
        let is_source = |object: &&Value| {
            let labels = &object["metadata"]["labels"];
            object["metadata"]["namespace"] == "default" && labels["copyrator"] == "true"
        };
        for source in config_maps.iter().filter(is_source) {
            sources += 1;
            for namespace in namespaces.iter().filter(|namespace| is_target(rule, namespace)) {
                let place = (&namespace["metadata"]["name"], &source["metadata"]["name"]);
                let found = config_maps
                    .iter()
                    .find(|object| (&object["metadata"]["namespace"], &object["metadata"]["name"]) == place);
                let Some(copy) = found else {
                    problems.push(format!("{} has no copy {}/{}", name(rule), place.0, place.1));
                    continue;
                };
                let is_of_older = places.contains(&name(copy));
                if is_of_older || !is_copy(copy) {
                    failed += 1;
                    continue;
                }
                copies += 1;
                places.insert(name(copy));
                problems.extend(field_differences(
                    copy,
                    &[
                        ("/data", &source["data"]),
                        ("/metadata/annotations/flant.com~1rule-uid", &rule["metadata"]["uid"]),
                        ("/metadata/labels", &json!({LABEL: "true"})),
                    ],
                ));
            }
        }
        let reason = match (failed, sources) {
            (0, 0) => "NoSources",
            (0, _) => "Synced",
            _ => "CopiesFailed",
        };
        if condition(rule, "Ready")["reason"] != reason {
            problems.push(format!("{}: {} should be {reason}", name(rule), condition(rule, "Ready")));
        }
        problems.extend(field_differences(
            rule,
            &[
                ("/metadata/deletionTimestamp", &Value::Null),
                ("/status/observedGeneration", &rule["metadata"]["generation"]),
                ("/status/sources", &json!(sources)),
                ("/status/copies", &json!(copies)),
                ("/status/failed", &json!(failed)),
            ],
        ));
    }
    let is_unwanted = |object: &&Value| {
        let metadata = &object["metadata"];
        let has_rule =
            rules.iter().any(|rule| rule["metadata"]["uid"] == metadata["annotations"]["flant.com/rule-uid"]);
        metadata["labels"][LABEL] == "true"
            && !places.contains(&name(object))
            && (has_rule || !may_have_orphans)
            && is_copy(object)
    };
    let unwanted = config_maps.iter().filter(is_unwanted);
    problems.extend(unwanted.map(|object| format!("{} should not be there", name(object))));
    problems
}
