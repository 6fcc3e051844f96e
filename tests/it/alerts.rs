//! Tests the alerts with `promtool` of Prometheus: which of them fire for the series of data/alerts.yaml.

use std::{env, fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::manifests;

/// The alerts of an operator, as its kustomization and the chart install them.
pub fn alerts(operator: &str, namespace: &str) -> Value {
    let base = manifests::read("base/monitoring/alerts.yaml").remove(0)["spec"].take();
    let service = format!("{operator}-operator-metrics");
    let named = base.to_string().replace("NAMESPACE", namespace).replace("SERVICE", &service);
    serde_json::from_str(&named).unwrap()
}

/// The `promtool` of PATH, which CI needs.
pub fn promtool() -> Option<Command> {
    let found = Command::new("promtool").arg("--version").output().is_ok();
    assert!(found || env::var_os("CI").is_none(), "CI needs promtool");
    if !found {
        eprintln!("there is no promtool: nothing is tested with it");
    }
    found.then(|| Command::new("promtool"))
}

/// kustomize counts quotes to find the place of the names.
#[test]
fn each_alert_begins_with_the_series_of_its_operator() {
    let alerts = manifests::read("base/monitoring/alerts.yaml").remove(0);
    let rules = alerts["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let (_, selector) = expression.split_once('{').unwrap();
        let own = r#"job="listwatch", namespace="NAMESPACE", service="SERVICE""#;
        assert!(selector.starts_with(own), "not {{{own}: {expression}");
    }
}

/// An operator whose Pods crashed or were gone raised no alert while another one ran.
#[test]
fn the_alerts_of_an_operator_do_not_depend_on_other_operators() {
    let Some(mut promtool) = promtool() else { return };
    let dir = tempfile::tempdir().unwrap();
    for operator in ["memcached", "mywebserver"] {
        let rules = json!({"groups": alerts(operator, "system")["groups"]});
        fs::write(dir.path().join(format!("{operator}.yaml")), rules.to_string()).unwrap();
    }
    let tests = Path::new(crate::ROOT).join("tests/it/data/alerts.yaml");
    fs::copy(tests, dir.path().join("alerts.yaml")).unwrap();
    let output = promtool.args(["test", "rules", "alerts.yaml"]).current_dir(&dir).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", texts.concat());
}
