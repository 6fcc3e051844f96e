//! HorizontalPodAutoscalers: their defaults and validation, and the conversion between `v1` and `v2`, the stored version.
//!
//! In `v1`, only the target of the CPU is shown: kube-apiserver also has annotations with the other metrics and the behavior.

use std::ops::RangeInclusive;

use listwatch_formats::quantity::quantity;
use serde_json::{Value, json};

use crate::{
    kinds::{
        defaults::set_default,
        field_checks::{NOT_NEGATIVE, each, not_one_of, text},
    },
    names::{causes, label_errors, path_segment_errors},
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

/// As `validateHorizontalPodAutoscalerSpec` of pkg/apis/autoscaling/validation.
pub(crate) fn errors(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (spec, mut all) = (&object["spec"], Vec::new());
    let (least, most) = (&spec["minReplicas"], &spec["maxReplicas"]);
    if least.as_i64().is_some_and(|least| least < 1) {
        all.push(Cause::invalid("spec.minReplicas", least, "must be greater than or equal to 1"));
    }
    if most.as_i64() < least.as_i64() {
        all.push(Cause::invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`"));
    }
    match most.as_i64().unwrap_or(0) {
        0 => all.push(Cause::required("spec.maxReplicas", "must be set and greater than 0")),
        ..0 => all.push(Cause::invalid("spec.maxReplicas", most, "must be greater than or equal to 1")),
        _ => {}
    }
    let target = &spec["scaleTargetRef"];
    reference_errors(&mut all, target, "spec.scaleTargetRef");
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
    let is_of_pods = |metric: &Value| !["Object", "External"].contains(&text(&metric["type"]));
    if *least == 0 && each(&spec["metrics"]).all(is_of_pods) {
        let text = "must specify at least one Object or External metric to support scaling to zero replicas";
        all.push(Cause::forbidden("spec.metrics", text));
    }
    for (index, metric) in each(&spec["metrics"]).enumerate() {
        metric_errors(&mut all, metric, &format!("spec.metrics[{index}]"));
    }
    for direction in ["scaleUp", "scaleDown"] {
        rules_errors(&mut all, &spec["behavior"][direction], &format!("spec.behavior.{direction}"));
    }
    all
}

fn reference_errors(all: &mut Vec<Cause>, target: &Value, at: &str) {
    for field in ["kind", "name"] {
        segment_errors(all, &target[field], &format!("{at}.{field}"), "");
    }
}

/// A name that must be there, and can be a part of a path.
fn segment_errors(all: &mut Vec<Cause>, name: &Value, at: &str, why_required: &str) {
    match text(name) {
        "" => all.push(Cause::required(at, why_required)),
        name => all.extend(causes(at, name, path_segment_errors(name))),
    }
}

/// The types of metrics with their fields, in the order in which the fields are checked.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn metric_errors(all: &mut Vec<Cause>, metric: &Value, at: &str) {
    let (kind, at_type) = (&Value::from(text(&metric["type"])), format!("{at}.type"));
    let types = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    if text(kind).is_empty() {
        all.push(Cause::required(&*at_type, "must specify a metric source type"));
    }
    not_one_of(all, at_type.clone(), kind, &types);
    let mut present = SOURCES.map(|(_, field)| field).to_vec();
    present.retain(|field| !metric[*field].is_null());
    if let Some(field) = present.first() {
        source_errors(all, &metric[*field], field, &format!("{at}.{field}"));
    }
    let expected = SOURCES.iter().find(|(one, _)| kind == one).map(|(_, field)| *field);
    match expected {
        Some(field) if metric[field].is_null() => all.push(Cause::required(
            format!("{at}.{field}"),
            "must populate information for the given metric source",
        )),
        Some(_) => {}
        None => not_one_of(all, at_type, kind, &types),
    }
    for field in present.iter().filter(|field| present.len() > 1 && Some(**field) != expected) {
        let text = "must populate the given metric source only";
        all.push(Cause::forbidden(format!("{at}.{field}"), text));
    }
}

fn source_errors(all: &mut Vec<Cause>, source: &Value, field: &str, at: &str) {
    let is_resource = field == "resource" || field == "containerResource";
    if field == "object" {
        reference_errors(all, &source["describedObject"], &format!("{at}.describedObject"));
    }
    if is_resource && text(&source["name"]).is_empty() {
        all.push(Cause::required(format!("{at}.name"), "must specify a resource name"));
    }
    if !is_resource {
        let why = "must specify a metric name";
        segment_errors(all, &source["metric"]["name"], &format!("{at}.metric.name"), why);
    }
    if field == "containerResource" {
        let at = format!("{at}.container");
        match text(&source["container"]) {
            "" => all.push(Cause::required(at, "must specify a container")),
            name => all.extend(causes(&at, name, label_errors(name))),
        }
    }
    let (target, at) = (&source["target"], format!("{at}.target"));
    target_errors(all, target, &at);
    let has = |field: &str| !target[field].is_null();
    let (one, other, why) = match field {
        "object" => ("averageValue", "value", "must set either a target value or averageValue"),
        "external" => {
            ("averageValue", "value", "must set either a target value for metric or a per-pod target")
        }
        "pods" => ("averageValue", "averageValue", "must specify a positive target averageValue"),
        _ => (
            "averageUtilization",
            "averageValue",
            "must set either a target raw value or a target utilization",
        ),
    };
    if !has(one) && !has(other) {
        all.push(Cause::required(format!("{at}.{one}"), why));
    }
    if has(one) && has(other) && (is_resource || field == "external") {
        let why = why.replace("must set either", "may not set both").replace(" or ", " and ");
        all.push(Cause::forbidden(format!("{at}.{other}"), &why));
    }
}

fn target_errors(all: &mut Vec<Cause>, target: &Value, at: &str) {
    let (kind, at_type) = (&target["type"], format!("{at}.type"));
    if text(kind).is_empty() {
        all.push(Cause::required(&*at_type, "must specify a metric target type"));
    }
    if !["Utilization", "Value", "AverageValue"].contains(&text(kind)) {
        let value = text(kind).into();
        all.push(Cause::invalid(at_type, &value, "must be either Utilization, Value, or AverageValue"));
    }
    for field in ["value", "averageValue"] {
        if quantity(&target[field]).is_some_and(|value| value <= 0.0) {
            all.push(Cause::invalid(format!("{at}.{field}"), &target[field], "must be positive"));
        }
    }
    let percent = &target["averageUtilization"];
    if percent.as_i64().is_some_and(|percent| percent < 1) {
        all.push(Cause::invalid(format!("{at}.averageUtilization"), percent, "must be greater than 0"));
    }
}

/// Longest stabilization window, and longest period of a policy.
const WINDOW_SECS_MAX: i64 = 3600;
const PERIOD_SECS_MAX: i64 = 1800;

fn rules_errors(all: &mut Vec<Cause>, rules: &Value, at: &str) {
    if rules.is_null() {
        return;
    }
    let window = &rules["stabilizationWindowSeconds"];
    range_errors(all, window, format!("{at}.stabilizationWindowSeconds"), 0..=WINDOW_SECS_MAX);
    not_one_of(all, format!("{at}.selectPolicy"), &rules["selectPolicy"], &["Disabled", "Max", "Min"]);
    for (index, policy) in each(&rules["policies"]).enumerate() {
        let at = format!("{at}.policies[{index}]");
        not_one_of(all, format!("{at}.type"), &text(&policy["type"]).into(), &["Percent", "Pods"]);
        range_errors(all, &policy["value"], format!("{at}.value"), 1..=i64::MAX);
        range_errors(all, &policy["periodSeconds"], format!("{at}.periodSeconds"), 1..=PERIOD_SECS_MAX);
    }
    let tolerance = &rules["tolerance"];
    if quantity(tolerance).is_some_and(|tolerance| tolerance < 0.0) {
        all.push(Cause::invalid(format!("{at}.tolerance"), tolerance, NOT_NEGATIVE));
    }
}

fn range_errors(all: &mut Vec<Cause>, value: &Value, at: String, range: RangeInclusive<i64>) {
    let (least, most) = range.into_inner();
    match value.as_i64() {
        Some(number) if number < least && least == 0 => {
            all.push(Cause::invalid(at, value, "must be greater than or equal to zero"));
        }
        Some(number) if number < least => all.push(Cause::invalid(at, value, "must be greater than zero")),
        Some(number) if number > most => {
            all.push(Cause::invalid(at, value, &format!("must be less than or equal to {most}")));
        }
        Some(_) | None => {}
    }
}
