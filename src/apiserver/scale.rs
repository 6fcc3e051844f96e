//! The scale subresource: the replicas of anything, always in the shape of `autoscaling/v1 Scale`.
//!
//! ```json
//! {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "web", "resourceVersion": "23"},
//!  "spec": {"replicas": 5}, "status": {"replicas": 3, "selector": "app=web"}}
//! ```

use serde_json::{Value, json};

use super::{
    kinds::{Kind, Rules},
    refusal::{Cause, Refusal},
    selector,
};

/// The Scale of an object.
pub(super) fn of(kind: &Kind, object: &Value) -> Value {
    let Some(paths) = &kind.scale else { return Value::Null };
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !object["metadata"][field].is_null() {
            metadata[field] = object["metadata"][field].clone();
        }
    }
    let mut spec = json!({});
    // Go leaves out a zero.
    if number(&paths.spec) != 0 {
        spec["replicas"] = number(&paths.spec).into();
    }
    let mut status = json!({"replicas": number(&paths.status)});
    let selector = match (&kind.rules, &paths.selector) {
        (Rules::BuiltIn(_), _) => Some(selector::shown(&object["spec"]["selector"]["matchLabels"])),
        (Rules::Custom(_), Some(pointer)) => {
            object.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
        }
        (Rules::Custom(_), None) => None,
    };
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = selector.into();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}

/// What applying a Scale applies to its object.
pub(super) fn applied(kind: &Kind, scale: &Value) -> Value {
    let mut applied =
        json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": scale["metadata"]});
    if let Some(place) = kind.scale.as_ref().and_then(|paths| place(&mut applied, &paths.spec)) {
        *place = scale["spec"]["replicas"].clone();
    }
    applied
}

/// Where a JSON pointer leads. The parents are made on the way; `None` if one of them is there and no map.
fn place<'a>(mut object: &'a mut Value, pointer: &str) -> Option<&'a mut Value> {
    for part in pointer.split('/').skip(1) {
        if !object.is_object() && !object.is_null() {
            return None;
        }
        object = &mut object[part];
    }
    Some(object)
}

/// The object with the replicas of a Scale, and with its version if it names one.
pub(super) fn put(kind: &Kind, object: &Value, scale: &Value) -> Result<Value, Refusal> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    // A custom resource is validated as a whole.
    if replicas < 0 && !kind.is_custom() {
        let cause = Cause::invalid("spec.replicas", &replicas.into(), "must be greater than or equal to 0");
        return Err(Refusal::invalid_as("autoscaling", "Scale", name, vec![cause]));
    }
    let mut object = object.clone();
    if let Some(paths) = &kind.scale {
        let Some(place) = place(&mut object, &paths.spec) else {
            let path = paths.spec.replace('/', ".");
            let text = "accessor error: a parent of the field is no map";
            let cause = Cause::invalid(path, &replicas.into(), text);
            return Err(Refusal::invalid_as("autoscaling", "Scale", name, vec![cause]));
        };
        *place = replicas.into();
    }
    if let Some(version) = scale["metadata"]["resourceVersion"].as_str().filter(|version| !version.is_empty())
    {
        object["metadata"]["resourceVersion"] = version.into();
    }
    Ok(object)
}
