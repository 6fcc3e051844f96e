//! HorizontalPodAutoscalers: their defaults and validation, and the conversion between `v1` and `v2`, the stored version.
//!
//! In `v1`, only the target of the CPU is shown: kube-apiserver also has annotations with the other metrics and the behavior.

use serde_json::{Value, json};

use crate::{
    kinds::{
        defaults::set_default,
        field_checks::{each, text},
    },
    status::Cause,
};

/// Converts a `v1` object to `v2`.
pub(crate) fn to_v2(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v2".into();
    if let Some(spec) = object["spec"].as_object_mut()
        && let Some(percent) = spec.remove("targetCPUUtilizationPercentage")
    {
        spec.insert("metrics".to_owned(), json!([cpu("target", &percent)]));
    }
    if let Some(status) = object["status"].as_object_mut() {
        if status.get("currentReplicas") == Some(&0.into()) {
            status.remove("currentReplicas");
        }
        if let Some(percent) = status.remove("currentCPUUtilizationPercentage") {
            status.insert("currentMetrics".to_owned(), json!([cpu("current", &percent)]));
        }
    }
    defaults(object);
}

fn cpu(field: &str, percent: &Value) -> Value {
    let mut value = json!({"averageUtilization": percent});
    if field == "target" {
        value["type"] = "Utilization".into();
    }
    json!({"type": "Resource", "resource": {"name": "cpu", field: value}})
}

/// Converts a `v2` object to `v1`.
pub(crate) fn to_v1(object: &mut Value) {
    let percent = |metrics: &Value, field: &str| {
        let of_cpu = each(metrics).find(|metric| metric["resource"]["name"] == "cpu");
        of_cpu
            .map(|metric| metric["resource"][field]["averageUtilization"].clone())
            .filter(|one| !one.is_null())
    };
    let target = percent(&object["spec"]["metrics"], "target");
    let current = percent(&object["status"]["currentMetrics"], "current");
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.retain(|field, _| !matches!(field.as_str(), "metrics" | "behavior"));
        spec.extend(target.map(|target| ("targetCPUUtilizationPercentage".to_owned(), target)));
    }
    if let Some(status) = object["status"].as_object_mut() {
        status.retain(|field, _| !matches!(field.as_str(), "currentMetrics" | "conditions"));
        status.extend(current.map(|current| ("currentCPUUtilizationPercentage".to_owned(), current)));
        for field in ["currentReplicas", "desiredReplicas"] {
            status.entry(field).or_insert_with(|| 0.into());
        }
    }
}

pub(crate) fn defaults(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/minReplicas", 1.into());
    if each(&spec["metrics"]).next().is_none() {
        spec["metrics"] = json!([cpu("target", &80.into())]);
    }
    if spec["behavior"].is_object() {
        let policy = |kind: &str, value: u32| json!({"type": kind, "value": value, "periodSeconds": 15});
        let up = json!([policy("Pods", 4), policy("Percent", 100)]);
        set_default(spec, "/behavior/scaleUp/stabilizationWindowSeconds", 0.into());
        set_default(spec, "/behavior/scaleUp/selectPolicy", "Max".into());
        set_default(spec, "/behavior/scaleUp/policies", up);
        set_default(spec, "/behavior/scaleDown/selectPolicy", "Max".into());
        set_default(spec, "/behavior/scaleDown/policies", json!([policy("Percent", 100)]));
    }
    set_default(object, "/status/desiredReplicas", 0.into());
    set_default(object, "/status/currentMetrics", Value::Null);
}

pub(crate) fn errors(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (spec, mut all) = (&object["spec"], Vec::new());
    let (least, most) = (&spec["minReplicas"], &spec["maxReplicas"]);
    if least.as_i64().is_some_and(|least| least < 1) {
        all.push(Cause::invalid("spec.minReplicas", least, "must be greater than or equal to 1"));
    }
    if most.as_i64() < least.as_i64() {
        all.push(Cause::invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`"));
    }
    if most.as_i64().unwrap_or(0) < 1 {
        all.push(Cause::required("spec.maxReplicas", "must be set and greater than 0"));
    }
    let target = &spec["scaleTargetRef"];
    for field in ["kind", "name"] {
        if text(&target[field]).is_empty() {
            all.push(Cause::required(format!("spec.scaleTargetRef.{field}"), ""));
        }
    }
    let version = text(&target["apiVersion"]);
    let is_core = version == "v1" && target["kind"] == "ReplicationController";
    if !is_core && !version.contains('/') {
        let value = version.into();
        all.push(Cause::invalid(
            "spec.scaleTargetRef.apiVersion",
            &value,
            "apiVersion must specify API group",
        ));
    }
    all
}
