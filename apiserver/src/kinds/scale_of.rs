//! The kind Scale, and the Scale of an object.
//!
//! ```json
//! {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "web", "resourceVersion": "23"},
//!  "spec": {"replicas": 5}, "status": {"replicas": 3, "selector": "app=web"}}
//! ```

use std::sync::LazyLock;

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use crate::kinds::{
    Kind, Source,
    built_in::{BuiltIn, PLAIN},
    printer_columns,
};

/// The kind Scale. It is served, but never stored.
pub(crate) static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::of_entry(&BUILT_IN));

static BUILT_IN: BuiltIn =
    BuiltIn { group: "autoscaling", kind: "Scale", columns: printer_columns::SCALE, ..PLAIN };

/// The replicas in the Scale of a custom resource without replicas: `invalidSpecReplicas` of kube-apiserver. Only a patch
/// sees them.
pub(crate) const NO_REPLICAS: i64 = -2_147_483_648;

/// The Scale of an object.
pub(crate) fn of(kind: &Kind, object: &Value) -> Value {
    let Some(paths) = &kind.scale else { return Value::Null };
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !object["metadata"][field].is_null() {
            metadata[field] = object["metadata"][field].clone();
        }
    }
    let mut spec = json!({});
    let is_missing = kind.is_custom() && object.pointer(&paths.spec).is_none();
    let replicas = if is_missing { NO_REPLICAS } else { number(&paths.spec) };
    // Go omits a zero.
    if replicas != 0 {
        spec["replicas"] = replicas.into();
    }
    let mut status = json!({"replicas": number(&paths.status)});
    let selector = match (&kind.source, &paths.selector) {
        (Source::BuiltIn(BuiltIn { kind: "ReplicationController", .. }), _) => {
            Some(Selector::from_object(&json!({"matchLabels": object["spec"]["selector"]})).to_string())
        }
        (Source::BuiltIn(_), _) => Some(Selector::from_object(&object["spec"]["selector"]).to_string()),
        (Source::Custom(_), Some(pointer)) => {
            object.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
        }
        (Source::Custom(_), None) => None,
    };
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = selector.into();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}
