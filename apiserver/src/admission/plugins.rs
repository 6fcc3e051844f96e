//! What admission plugins add to a new object, or refuse, by looking at other objects: Priority, RuntimeClass, DefaultStorageClass,
//! ResourceQuota, ServiceAccount.

use serde_json::{Value, json};

use crate::{
    admission::service_account,
    kinds::{
        Kind, defaults,
        field_checks::{each, text},
    },
    schema::quantity::quantity,
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

/// Refuses an object if a quota of its namespace has none left. Only numbers of objects count, not their resources.
pub(crate) fn check_quotas(storage: &Storage, kind: &Kind, object: &Value) -> Result<(), String> {
    let namespace = &object["metadata"]["namespace"];
    if namespace.is_null() {
        return Ok(());
    }
    for quota in all(storage, QUOTAS).filter(|quota| quota["metadata"]["namespace"] == *namespace) {
        // The quota controller copies the limits to the status.
        let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
        for (resource, hard) in quota["status"]["hard"].as_object().into_iter().flatten() {
            let requested = usage(kind, object, resource);
            let used = used(storage, text(namespace), resource).unwrap_or(0);
            if requested > 0 && quantity(hard).is_some_and(|hard| (used + requested) as f64 > hard) {
                let parts = [requested.to_string(), used.to_string(), text(hard).to_owned()];
                exceeded
                    .iter_mut()
                    .zip(parts)
                    .for_each(|(list, part)| list.push(format!("{resource}={part}")));
            }
        }
        let [requested, used, limited] = exceeded.map(|list| list.join(","));
        if !requested.is_empty() {
            let name = text(&quota["metadata"]["name"]);
            return Err(format!(
                "exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"
            ));
        }
    }
    Ok(())
}

/// Counts a new object in the quotas of its namespace.
pub(crate) fn charge(storage: &mut Storage, kind: &Kind, object: &Value) {
    let namespace = &object["metadata"]["namespace"];
    let quotas: Vec<Value> =
        all(storage, QUOTAS).filter(|quota| quota["metadata"]["namespace"] == *namespace).cloned().collect();
    for mut quota in quotas {
        let before = quota["status"]["used"].clone();
        for (resource, count) in quota["status"]["used"].as_object_mut().into_iter().flatten() {
            let requested = usage(kind, object, resource);
            let was = count.as_str().and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
            *count = (was + requested).to_string().into();
        }
        if quota["status"]["used"] != before {
            let place = Place::new(QUOTAS, namespace.as_str(), text(&quota["metadata"]["name"]));
            storage.put(&place, quota);
        }
    }
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

/// How much of a resource of a quota an object uses: `pods`, `services.nodeports`, `count/deployments.apps`.
fn usage(kind: &Kind, object: &Value, resource: &str) -> usize {
    let of_kind = kind.resource();
    let spec = &object["spec"];
    match resource {
        // A Pod that has ended does not count.
        "pods" if of_kind == "pods" => {
            usize::from(!["Succeeded", "Failed"].contains(&text(&object["status"]["phase"])))
        }
        "services.loadbalancers" => usize::from(of_kind == "services" && spec["type"] == "LoadBalancer"),
        "services.nodeports" if of_kind == "services" => {
            let has_ports = spec["type"] == "NodePort"
                || (spec["type"] == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != false);
            if has_ports { each(&spec["ports"]).count() } else { 0 }
        }
        counted if counted.strip_prefix("count/") == Some(&of_kind) => 1,
        counted => usize::from(COUNTED.contains(&counted) && counted == of_kind),
    }
}

/// How much of a resource of a quota a namespace uses. `None`: this server does not count it.
pub(crate) fn used(storage: &Storage, namespace: &str, resource: &str) -> Option<usize> {
    let collection = match resource {
        "services.loadbalancers" | "services.nodeports" => "services",
        counted => counted.strip_prefix("count/").or(COUNTED.contains(&counted).then_some(counted))?,
    };
    let kind = storage.kinds.of_collection(collection)?;
    let in_namespace = all(storage, collection).filter(|object| object["metadata"]["namespace"] == namespace);
    Some(in_namespace.map(|object| usage(kind, object, resource)).sum())
}
