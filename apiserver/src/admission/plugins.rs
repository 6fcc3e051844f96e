//! What admission plugins add to a new object, or refuse, by looking at other objects: Priority, RuntimeClass, DefaultStorageClass,
//! ResourceQuota, ServiceAccount.

use listwatch_formats::quantity::{canonical, quantity};
use serde_json::{Value, json};

use crate::{
    admission::service_account,
    kinds::{
        Kind, defaults,
        field_checks::{each, text},
    },
    storage::{Place, Storage},
};

/// Sets fields of a new object. The error is why it is forbidden. The letters are for generated names.
pub(crate) fn admit(storage: &Storage, kind: &Kind, object: &mut Value, letters: &str) -> Result<(), String> {
    defaults::admit(kind.built_in(), object);
    match kind.built_in() {
        "Pod" => {
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

fn all<'a>(storage: &'a Storage, collection: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let collection = storage.collection(collection).into_iter();
    collection.flat_map(|collection| collection.objects.values().map(|object| &**object))
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

/// The quotas of the namespace of a new object. Their controller has copied the limits to the status.
fn quotas<'a>(storage: &'a Storage, object: &Value) -> impl Iterator<Item = &'a Value> + use<'a> {
    let namespace = text(&object["metadata"]["namespace"]).to_owned();
    all(storage, QUOTAS).filter(move |quota| quota["metadata"]["namespace"] == *namespace)
}

/// The resources that a quota limits and a kind uses, and how much of each an object uses.
fn usages<'q>(quota: &'q Value, kind: &Kind, object: &Value) -> Vec<(&'q str, usize)> {
    let limited = quota["status"]["hard"].as_object().into_iter().flatten();
    limited.filter_map(|(resource, _)| Some((resource.as_str(), usage(kind, object, resource)?))).collect()
}

/// A resource after a new object: its number in the status of a quota, and what the object uses.
fn after(quota: &Value, resource: &str, requested: usize) -> usize {
    quantity(&quota["status"]["used"][resource]).unwrap_or(0.0) as usize + requested
}

/// Refuses an object if a quota of its namespace has none left. Only numbers of objects count, not their resources.
pub(crate) fn check_quotas(storage: &Storage, kind: &Kind, object: &Value) -> Result<(), String> {
    for quota in quotas(storage, object) {
        let (name, status) = (text(&quota["metadata"]["name"]), &quota["status"]);
        let usages = usages(quota, kind, object);
        let resources: Vec<&str> = usages.iter().map(|(resource, _)| *resource).collect();
        if resources.iter().any(|resource| status["used"][resource].is_null()) {
            return Err(format!("status unknown for quota: {name}, resources: {}", resources.join(",")));
        }
        let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
        for (resource, requested) in usages.into_iter().filter(|(_, requested)| *requested > 0) {
            let (used, hard) = (&status["used"][resource], &status["hard"][resource]);
            if quantity(hard).is_some_and(|hard| after(quota, resource, requested) as f64 > hard) {
                let parts = [&requested.to_string(), text(used), text(hard)];
                exceeded
                    .iter_mut()
                    .zip(parts)
                    .for_each(|(list, part)| list.push(format!("{resource}={part}")));
            }
        }
        let [requested, used, limited] = exceeded.map(|list| list.join(","));
        if !requested.is_empty() {
            return Err(format!(
                "exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"
            ));
        }
    }
    Ok(())
}

/// The quotas of which a new object uses something, with its use in their status. What another controller counts stays.
pub(crate) fn charged(storage: &Storage, kind: &Kind, object: &Value) -> Vec<Value> {
    let mut charged = Vec::new();
    for quota in quotas(storage, object) {
        let mut usages = usages(quota, kind, object);
        usages.retain(|(_, requested)| *requested > 0);
        let mut changed = quota.clone();
        for (resource, requested) in &usages {
            changed["status"]["used"][resource] =
                canonical(&after(quota, resource, *requested).into()).into();
        }
        charged.extend((!usages.is_empty()).then_some(changed));
    }
    charged
}

const QUOTAS: &str = "resourcequotas";

/// The kinds that a quota counts by their plain name.
const COUNTED: [&str; 7] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// How much of a resource of a quota an object uses: `pods`, `services.nodeports`, `count/deployments.apps`. `None`: its kind
/// uses none of it, or this server does not count it.
fn usage(kind: &Kind, object: &Value, resource: &str) -> Option<usize> {
    let counted = counted(resource)?;
    let spec = &object["spec"];
    let count = match resource {
        // A Pod that has ended does not count.
        "pods" => usize::from(!["Succeeded", "Failed"].contains(&text(&object["status"]["phase"]))),
        "services.loadbalancers" => usize::from(spec["type"] == "LoadBalancer"),
        "services.nodeports" => {
            let has_ports = spec["type"] == "NodePort"
                || (spec["type"] == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != false);
            if has_ports { each(&spec["ports"]).count() } else { 0 }
        }
        _ => 1,
    };
    (kind.resource() == counted).then_some(count)
}

/// The collection whose objects use a resource of a quota. `None`: this server does not count it.
fn counted(resource: &str) -> Option<&str> {
    match resource {
        "services.loadbalancers" | "services.nodeports" => Some("services"),
        resource => resource.strip_prefix("count/").or(COUNTED.contains(&resource).then_some(resource)),
    }
}

/// How much of a resource of a quota a namespace uses. `None`: this server does not count it.
pub(crate) fn used(storage: &Storage, namespace: &str, resource: &str) -> Option<usize> {
    let collection = counted(resource)?;
    let Some(kind) = storage.kinds.of_collection(collection) else { return Some(0) };
    let in_namespace = all(storage, collection).filter(|object| object["metadata"]["namespace"] == namespace);
    Some(in_namespace.filter_map(|object| usage(kind, object, resource)).sum())
}
