//! The FlowSchemas and PriorityLevelConfigurations of every cluster. This server does not limit requests by them.

use serde_json::Value;

use crate::{
    kinds::field_checks::text,
    names::uid,
    storage::{Place, Storage},
};

/// The default objects of kube-apiserver, with their status. One object in each line.
const DEFAULTS: &str = include_str!("default_flow_control.json");

pub(crate) fn bootstrap(storage: &mut Storage) {
    let now = storage.clock.time();
    for line in DEFAULTS.lines() {
        let mut object: Value = serde_json::from_str(line).expect("a test writes it");
        let plural =
            if object["kind"] == "FlowSchema" { "flowschemas" } else { "prioritylevelconfigurations" };
        object["metadata"]["uid"] = uid().into();
        object["metadata"]["creationTimestamp"] = now.as_str().into();
        object["metadata"]["generation"] = 1.into();
        for condition in
            object["status"].get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten()
        {
            condition["lastTransitionTime"] = now.as_str().into();
        }
        let kind = storage.kinds.built_in("flowcontrol.apiserver.k8s.io", plural);
        let place = Place::new(kind.stored_in(), None, text(&object["metadata"]["name"]));
        // They are complete: a create of each would make the start of the server slower.
        storage.put(&place, object);
    }
}
