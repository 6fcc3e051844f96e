//! What admission plugins add to a new object, or refuse, by looking at other objects: LimitRanger, ServiceAccount, Priority,
//! RuntimeClass, DefaultStorageClass, PodSecurity. The last plugin is in `quotas.rs`.

use listwatch_formats::quantity::Quantity;
use serde_json::{Value, json};

use crate::{
    admission::{limit_ranges, pod_security, service_account},
    kinds::{
        Kind, defaults,
        field_checks::text,
        metadata::is_terminating,
        pods::resources::{Bound, of_pod},
    },
    status::StatusError,
    storage::{Place, Storage},
};

/// Sets fields of a new object. The error is why it is forbidden. The letters are for generated names.
pub(crate) fn admit(storage: &Storage, kind: &Kind, object: &mut Value, letters: &str) -> Result<(), String> {
    defaults::admit(kind.built_in(), object);
    match kind.built_in() {
        "Pod" => {
            limit_ranges::set_defaults(storage, object);
            if storage.has_service_accounts {
                service_account::admit(storage, object, letters)?;
            }
            prioritize(storage, &mut object["spec"])?;
            run_as_class(storage, &mut object["spec"])?;
        }
        "PersistentVolumeClaim" => choose_class(storage, &mut object["spec"]),
        _ => {}
    }
    Ok(())
}

/// Checks a valid object, and returns the warnings. `before` is its state before an update.
pub(crate) fn validate(
    storage: &Storage,
    kind: &Kind,
    object: &Value,
    before: Option<&Value>,
) -> Result<Vec<String>, StatusError> {
    // Only a resize changes the resources of a Pod, and what is being deleted only ends.
    if before.is_none_or(|before| kind.built_in() != "Pod" && !is_terminating(before)) {
        limit_ranges::check(storage, kind.built_in(), object)
            .map_err(|why| StatusError::forbidden(kind, text(&object["metadata"]["name"]), &why))?;
    }
    pod_security::validate(storage, kind, object, before)
}

/// Sets fields in the resize of a Pod.
pub(crate) fn admit_resize(storage: &Storage, pod: &mut Value) {
    limit_ranges::set_defaults(storage, pod);
}

/// Checks the resize of a Pod, which must fit on its node.
pub(crate) fn resize(storage: &Storage, kind: &Kind, pod: &Value, before: &Value) -> Result<(), StatusError> {
    let name = text(&pod["metadata"]["name"]);
    let forbidden = |why: &str| StatusError::forbidden(kind, name, why);
    if !is_terminating(before) {
        limit_ranges::check(storage, kind.built_in(), pod).map_err(|why| forbidden(&why))?;
    }
    let (spec, node) = (&pod["spec"], text(&pod["spec"]["nodeName"]));
    if node.is_empty() || pod["metadata"]["generation"] == before["metadata"]["generation"] {
        return Ok(());
    }
    let Some(object) = storage.get(&Place::new("nodes", None, node)) else {
        return Err(forbidden(&format!("node {node:?} not found")));
    };
    let system = text(&object["metadata"]["labels"]["kubernetes.io/os"]);
    if !["", "linux"].contains(&system) {
        let why = format!("pod resize is only supported on linux nodes, node {node:?} is {system:?}");
        return Err(forbidden(&why).with_reason("UnsupportedPlatform"));
    }
    let mut exceeded = Vec::new();
    for (resource, unit) in [("cpu", 1000.0), ("memory", 1.0)] {
        let allocatable = Quantity::read(&object["status"]["allocatable"][resource]);
        let allocatable = allocatable.unwrap_or_else(|| Quantity::from_int(0));
        let requested = of_pod(spec, Bound::Requests, resource).unwrap_or_else(|| Quantity::from_int(0));
        if requested.compare(&allocatable).is_gt() {
            let [requested, allocatable] = [requested, allocatable].map(|one| (one.float() * unit).ceil());
            exceeded.push(format!("{resource}, requested: {requested}, allocatable: {allocatable}"));
        }
    }
    if exceeded.is_empty() {
        return Ok(());
    }
    let why = format!("node didn't have enough allocatable resources: {}", exceeded.join("; "));
    Err(forbidden(&why).with_reason("NodeCapacity"))
}

fn all<'a>(storage: &'a Storage, collection: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let collection = storage.collection(collection).into_iter();
    collection.flat_map(|collection| collection.objects.values().map(|object| &**object))
}

/// The objects of a collection in one namespace.
pub(super) fn in_namespace<'a>(
    storage: &'a Storage,
    collection: &str,
    namespace: &Value,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    let namespace = text(namespace).to_owned();
    let collection = storage.collection(collection).into_iter();
    collection.flat_map(move |all| all.in_namespace(&namespace)).map(|(_, object)| &**object)
}

/// A Pod has the priority of its class, or of the default class.
fn prioritize(storage: &Storage, spec: &mut Value) -> Result<(), String> {
    let classes = || all(storage, "priorityclasses.scheduling.k8s.io");
    let name = text(&spec["priorityClassName"]).to_owned();
    let class = match name.as_str() {
        "" => classes().find(|class| class["globalDefault"] == true),
        name => {
            let class = classes().find(|class| class["metadata"]["name"] == name);
            Some(class.ok_or_else(|| format!("no PriorityClass with name {name} was found"))?)
        }
    };
    let none = json!({"value": 0, "preemptionPolicy": "PreemptLowerPriority"});
    let class = class.unwrap_or(&none);
    let (priority, policy) = (class["value"].as_i64().unwrap_or(0), text(&class["preemptionPolicy"]));
    let computed = "priority admission controller computed";
    let given = spec["priority"].as_i64().unwrap_or_default();
    if given != 0 && given != priority {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; {computed} {priority} from the given \
             PriorityClass name"
        ));
    }
    // Without a policy in the request, the defaults have set the first one.
    let given = text(&spec["preemptionPolicy"]);
    if given != "PreemptLowerPriority" && given != policy {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; {computed} {policy} from the given \
             PriorityClass name"
        ));
    }
    if name.is_empty() && class["metadata"]["name"].is_string() {
        spec["priorityClassName"] = class["metadata"]["name"].clone();
    }
    (spec["priority"], spec["preemptionPolicy"]) = (priority.into(), policy.into());
    Ok(())
}

/// A Pod has the overhead of its runtime class.
fn run_as_class(storage: &Storage, spec: &mut Value) -> Result<(), String> {
    let Some(name) = spec["runtimeClassName"].as_str() else { return Ok(()) };
    let place = Place::new("runtimeclasses.node.k8s.io", None, name);
    let class =
        storage.get(&place).ok_or_else(|| format!("pod rejected: RuntimeClass {name:?} not found"))?;
    if !class["overhead"]["podFixed"].is_null() {
        spec["overhead"] = class["overhead"]["podFixed"].clone();
    }
    Ok(())
}

/// A claim without a class has the default class, of which the newest counts.
fn choose_class(storage: &Storage, spec: &mut Value) {
    if !spec["storageClassName"].is_null() {
        return;
    }
    let key = "storageclass.kubernetes.io/is-default-class";
    let is_default = |class: &&Value| class["metadata"]["annotations"][key] == "true";
    let classes = all(storage, "storageclasses.storage.k8s.io").filter(is_default);
    if let Some(class) = classes.max_by_key(|class| text(&class["metadata"]["creationTimestamp"])) {
        spec["storageClassName"] = class["metadata"]["name"].clone();
    }
}
