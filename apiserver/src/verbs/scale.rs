//! The scale subresource: reads and writes the replicas of an object as an `autoscaling/v1 Scale`.
//!
//! ```json
//! {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "web", "resourceVersion": "23"},
//!  "spec": {"replicas": 5}, "status": {"replicas": 3, "selector": "app=web"}}
//! ```

use serde_json::{Value, json};

use crate::{
    apply::managed_fields,
    kinds::{
        Kind,
        scale_of::{KIND, NO_REPLICAS, of},
    },
    status::{Cause, StatusError},
    storage::Place,
    verbs::write::{self, WriteOptions},
};

/// The Scale of an object, for a client.
pub(crate) fn read(kind: &Kind, object: &Value) -> Result<Value, StatusError> {
    let scale = of(kind, object);
    match &kind.scale {
        Some(paths) if scale["spec"]["replicas"] == NO_REPLICAS => {
            let path = paths.spec.replace('/', ".");
            Err(StatusError::went_wrong(&format!("the spec replicas field {path:?} does not exist")))
        }
        Some(_) | None => Ok(scale),
    }
}

/// The part of the object that an applied Scale stands for.
pub(crate) fn applied(kind: &Kind, scale: &Value) -> Result<Value, StatusError> {
    managed_fields::check(&KIND, scale)?;
    check_replicas(kind, scale)?;
    let mut applied =
        json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": scale["metadata"]});
    if let Some(replicas) = scale["spec"].get("replicas")
        && let Some(place) = kind.scale.as_ref().and_then(|paths| place(&mut applied, &paths.spec))
    {
        *place = replicas.clone();
    }
    Ok(applied)
}

/// The error for a Scale that is applied to a custom resource.
pub(crate) fn unconvertible(name: &str) -> StatusError {
    StatusError::internal(format!(
        "failed to convert new object (/{name}; autoscaling/v1, Kind=Scale) to proper version: request to convert CR to an \
        invalid group/version: autoscaling/v1"
    ))
}

/// The value at a JSON pointer. Missing parents are created; `None` if a parent exists and is not a map.
fn place<'a>(mut object: &'a mut Value, pointer: &str) -> Option<&'a mut Value> {
    for part in pointer.split('/').skip(1) {
        if !object.is_object() && !object.is_null() {
            return None;
        }
        object = &mut object[part];
    }
    Some(object)
}

/// Checks the replicas. Only for built-in kinds: a custom resource is validated as a whole.
fn check_replicas(kind: &Kind, scale: &Value) -> Result<(), StatusError> {
    let replicas = &scale["spec"]["replicas"];
    if kind.is_custom() || replicas.as_i64().is_none_or(|replicas| replicas >= 0) {
        return Ok(());
    }
    let name = scale["metadata"]["name"].as_str().unwrap_or_default();
    let cause = Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
    Err(StatusError::invalid_as("autoscaling", "Scale", name, vec![cause]))
}

/// The object with the replicas of a Scale, and with the Scale's version and uid if it has them.
pub(crate) fn put(
    kind: &Kind,
    at: &Place,
    object: &Value,
    mut scale: Value,
    options: &mut WriteOptions<'_>,
) -> Result<Value, StatusError> {
    write::check_identity(&KIND, at, &mut scale)?;
    write::prune(&KIND, &mut scale, options)?;
    check_replicas(kind, &scale)?;
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    let mut object = object.clone();
    if let Some(paths) = &kind.scale {
        let path = paths.spec.replace('/', ".");
        if replicas == NO_REPLICAS {
            let text = format!("the spec replicas field {path:?} cannot be empty");
            return Err(StatusError::bad_request(text));
        }
        let Some(place) = place(&mut object, &paths.spec) else {
            let text = "accessor error: a parent of the field is not a map";
            let cause = Cause::invalid(path, &replicas.into(), text);
            return Err(StatusError::invalid_as("autoscaling", "Scale", at.name(), vec![cause]));
        };
        *place = replicas.into();
    }
    for field in ["resourceVersion", "uid"] {
        if let Some(text) = scale["metadata"][field].as_str().filter(|text| !text.is_empty()) {
            object["metadata"][field] = text.into();
        }
    }
    Ok(object)
}
