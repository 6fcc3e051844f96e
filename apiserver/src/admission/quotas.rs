//! ResourceQuotas: what an object uses of the resources that a quota limits, and whether a write exceeds it. As the admission plugin
//! ResourceQuota; the controller of quotas counts with the same functions.
//!
//! ```text
//! pods "web" is forbidden: exceeded quota: small, requested: requests.cpu=1, used: requests.cpu=500m, limited: requests.cpu=1
//! ```

use std::collections::{BTreeMap, BTreeSet};

use listwatch_formats::{quantity::Quantity, selector::Selector};
use serde_json::{Value, json};

use crate::{
    admission::plugins::in_namespace,
    kinds::{
        Kind, defaults,
        field_checks::{each, text},
        limits::{AMOUNTS, NUMBERS},
        pods::{
            has_ended,
            resources::{Bound, has_own, of_pod},
        },
    },
    storage::Storage,
};

const QUOTAS: &str = "resourcequotas";

const CLAIMS: &str = "persistentvolumeclaims";

/// Stands between a StorageClass and a resource: `gold.storageclass.storage.k8s.io/requests.storage`.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

/// Stands behind a DeviceClass.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

/// The devices of a request for all devices: `AllocationResultsMaxSize`.
const DEVICES_MAX: i64 = 32;

/// The resources that each container of a Pod must set if a quota limits them: the `validationSet` of Kubernetes.
const REQUIRED: [&str; 6] =
    ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];

/// Charges the quotas of the namespace for a write. Returns the changed quotas; the error is why the write is forbidden. `before` is the
/// object before an update.
pub(crate) fn admit(
    storage: &Storage,
    kind: &Kind,
    object: &Value,
    before: Option<&Value>,
) -> Result<Vec<Value>, String> {
    let mut charged = Vec::new();
    if before.is_some_and(|before| !may_use_more(kind, object, before)) {
        return Ok(charged);
    }
    for quota in in_namespace(storage, QUOTAS, &object["metadata"]["namespace"]) {
        // The controller of quotas has copied the limits to the status.
        let hard = quota["status"]["hard"].as_object().into_iter().flatten().map(|(resource, _)| resource);
        let mine = kind.resource();
        let resources: Vec<&str> =
            hard.map(String::as_str).filter(|resource| counted(resource) == Some(mine.as_str())).collect();
        if resources.is_empty() || !is_in_scope(quota, kind, object) {
            continue;
        }
        let (name, used) = (text(&quota["metadata"]["name"]), &quota["status"]["used"]);
        if kind.built_in() == "Pod" {
            check_required(&object["spec"], &resources)
                .map_err(|why| format!("failed quota: {name}: {why}"))?;
        }
        if resources.iter().any(|resource| used[resource].is_null()) {
            return Err(format!("status unknown for quota: {name}, resources: {}", resources.join(",")));
        }
        let before = before.filter(|before| is_in_scope(quota, kind, before));
        let requested: Vec<(&str, Quantity)> = resources
            .iter()
            .filter_map(|resource| Some((*resource, requested(kind, object, before, resource)?)))
            .collect();
        charged.extend(charge(quota, &requested)?);
    }
    Ok(charged)
}

/// Whether an update may use more than its object did. A Pod does so by a resize, or in another scope.
fn may_use_more(kind: &Kind, object: &Value, before: &Value) -> bool {
    match kind.built_in() {
        "Pod" => has_deadline(object) != has_deadline(before) || resources(object) != resources(before),
        "PersistentVolumeClaim" | "ResourceClaim" | "Service" => true,
        _ => false,
    }
}

/// What a write uses more than before of a resource.
fn requested(kind: &Kind, object: &Value, before: Option<&Value>, resource: &str) -> Option<Quantity> {
    let after = usage(kind.built_in(), object, resource)?;
    let before = before.and_then(|before| usage(kind.built_in(), before, resource));
    let more = before.map_or_else(|| after.clone(), |before| after.add(&before, -1));
    (more.signum() > 0).then_some(more)
}

/// The quota with more used resources, if any.
fn charge(quota: &Value, requested: &[(&str, Quantity)]) -> Result<Option<Value>, String> {
    let mut charged = quota.clone();
    let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
    for (resource, requested) in requested {
        let [used, hard] = ["used", "hard"].map(|field| Quantity::read(&quota["status"][field][resource]));
        let (Some(used), Some(hard)) = (used, hard) else { continue };
        let sum = used.add(requested, 1);
        if sum.compare(&hard).is_gt() {
            let parts = [requested, &used, &hard];
            exceeded.iter_mut().zip(parts).for_each(|(list, part)| list.push(format!("{resource}={part}")));
        }
        charged["status"]["used"][resource] = sum.to_string().into();
    }
    let [of_request, used, limited] = exceeded.map(|list| list.join(","));
    if !of_request.is_empty() {
        let name = text(&quota["metadata"]["name"]);
        return Err(format!(
            "exceeded quota: {name}, requested: {of_request}, used: {used}, limited: {limited}"
        ));
    }
    Ok((!requested.is_empty()).then_some(charged))
}

/// Checks that the containers of a Pod set the resources of a quota that they must set.
fn check_required(spec: &Value, resources: &[&str]) -> Result<(), String> {
    let mut missing = BTreeMap::<&str, BTreeSet<&str>>::new();
    for container in each(&spec["containers"]).chain(each(&spec["initContainers"])) {
        for resource in resources.iter().filter(|resource| REQUIRED.contains(resource)) {
            let (bound, name) = bound_of(resource);
            if container["resources"][bound.field()][name].is_null() {
                missing.entry(resource).or_default().insert(text(&container["name"]));
            }
        }
    }
    if missing.is_empty() || has_own(spec) {
        return Ok(());
    }
    let missing = missing.into_iter().map(|(resource, containers)| {
        format!("{resource} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
    });
    Err(format!("must specify {}", missing.collect::<Vec<_>>().join("; ")))
}

/// The part of `resources` that a resource of a quota is about, and the name there.
fn bound_of(resource: &str) -> (Bound, &str) {
    match resource.strip_prefix("limits.") {
        Some(name) => (Bound::Limits, name),
        None => (Bound::Requests, resource.strip_prefix("requests.").unwrap_or(resource)),
    }
}

/// The collection whose objects use a resource of a quota. `None`: no object does.
fn counted(resource: &str) -> Option<&str> {
    let plain = resource.split_once(OF_CLASS).map_or(resource, |(_, plain)| plain);
    if let Some(collection) = resource.strip_prefix("count/") {
        return Some(collection);
    }
    match plain {
        "services.loadbalancers" | "services.nodeports" => Some("services"),
        "requests.storage" | CLAIMS => Some(CLAIMS),
        _ if plain != resource => None,
        _ if resource.ends_with(DEVICES) => Some("resourceclaims.resource.k8s.io"),
        _ if AMOUNTS.contains(&resource) => Some("pods"),
        _ if ["requests.", "hugepages-"].iter().any(|prefix| resource.starts_with(prefix)) => Some("pods"),
        _ => NUMBERS.contains(&resource).then_some(resource),
    }
}

/// How much of a resource of a quota an object uses: `pods`, `requests.cpu`, `count/deployments.apps`. Its kind is [`counted`] there.
fn usage(kind: &str, object: &Value, resource: &str) -> Option<Quantity> {
    let spec = &object["spec"];
    if resource.starts_with("count/") {
        return number(1);
    }
    match kind {
        // A Pod that has ended does not count.
        "Pod" if has_ended(object) => None,
        "Pod" if resource == "pods" => number(1),
        "Pod" => {
            let (bound, name) = bound_of(resource);
            of_pod(spec, bound, name)
        }
        "Service" => match resource {
            "services.loadbalancers" => number((spec["type"] == "LoadBalancer").into()),
            "services.nodeports" => number(node_ports(spec)),
            _ => number(1),
        },
        "PersistentVolumeClaim" => of_claim(object, resource),
        "ResourceClaim" => number(devices(spec, resource.strip_suffix(DEVICES)?)),
        _ => number(1),
    }
}

/// A number that is not 0.
fn number(number: i64) -> Option<Quantity> {
    Quantity::read(&number.into()).filter(|_| number != 0)
}

/// The node ports of a Service, before they are allocated.
fn node_ports(spec: &Value) -> i64 {
    let ports = each(&spec["ports"]);
    match text(&spec["type"]) {
        "LoadBalancer" if spec["allocateLoadBalancerNodePorts"] == false => {
            ports.filter(|port| port["nodePort"].as_i64().is_some_and(|port| port != 0)).count() as i64
        }
        "LoadBalancer" | "NodePort" => ports.count() as i64,
        _ => 0,
    }
}

/// What a claim uses of a resource, of all classes or of its own.
fn of_claim(claim: &Value, resource: &str) -> Option<Quantity> {
    let (spec, annotations) = (&claim["spec"], &claim["metadata"]["annotations"]);
    let of_annotation = annotations["volume.beta.kubernetes.io/storage-class"].as_str();
    let class = of_annotation.unwrap_or_else(|| text(&spec["storageClassName"]));
    let resource = match resource.split_once(OF_CLASS) {
        Some((of, _)) if of != class => return None,
        Some((_, resource)) => resource,
        None => resource,
    };
    if resource == CLAIMS {
        return number(1);
    }
    let request = Quantity::read(&spec["resources"]["requests"]["storage"])?;
    let allocated = Quantity::read(&claim["status"]["allocatedResources"]["storage"]);
    Some(allocated.filter(|allocated| allocated.compare(&request).is_gt()).unwrap_or(request).ceil())
}

/// How many devices of a class a ResourceClaim may get. Of alternatives, the largest counts.
fn devices(spec: &Value, class: &str) -> i64 {
    let of = |request: &Value| match text(&request["allocationMode"]) {
        _ if request["deviceClassName"] != class => 0,
        "ExactCount" => request["count"].as_i64().unwrap_or_default(),
        "All" => DEVICES_MAX,
        _ => 0,
    };
    let requests = each(&spec["devices"]["requests"]).map(|request| {
        let alternatives = each(&request["firstAvailable"]).map(of);
        alternatives.max().unwrap_or_else(|| of(&request["exactly"]))
    });
    requests.fold(0, i64::saturating_add)
}

/// Whether a quota counts an object, by its scopes.
fn is_in_scope(quota: &Value, kind: &Kind, object: &Value) -> bool {
    let (spec, kind) = (&quota["spec"], kind.built_in());
    each(&spec["scopes"]).all(|scope| matches(text(scope), "Exists", &Value::Null, kind, object))
        && each(&spec["scopeSelector"]["matchExpressions"])
            .all(|one| matches(text(&one["scopeName"]), text(&one["operator"]), &one["values"], kind, object))
}

/// Whether an object matches a requirement of a `scopeSelector`.
fn matches(scope: &str, operator: &str, values: &Value, kind: &str, object: &Value) -> bool {
    let spec = &object["spec"];
    let mut classes = match (kind, scope) {
        ("Pod", "Terminating") => return has_deadline(object),
        ("Pod", "NotTerminating") => return !has_deadline(object),
        ("Pod", "BestEffort") => return defaults::qos_class(spec) == "BestEffort",
        ("Pod", "NotBestEffort") => return defaults::qos_class(spec) != "BestEffort",
        ("Pod", "CrossNamespacePodAffinity") => return looks_into_other_namespaces(&spec["affinity"]),
        ("Pod", "PriorityClass") => vec![text(&spec["priorityClassName"])],
        ("PersistentVolumeClaim", "VolumeAttributesClass") => vec![
            text(&spec["volumeAttributesClassName"]),
            text(&object["status"]["currentVolumeAttributesClassName"]),
            text(&object["status"]["modifyVolumeStatus"]["targetVolumeAttributesClassName"]),
        ],
        _ => return false,
    };
    classes.retain(|class| !class.is_empty());
    let selector = Selector::from_object(&json!({"matchExpressions": [
        {"key": scope, "operator": operator, "values": values}]}));
    match classes.as_slice() {
        [] => selector.matches(&json!({})),
        classes => classes.iter().any(|class| selector.matches(&json!({scope: class}))),
    }
}

/// The resources of a Pod and of its containers.
fn resources(pod: &Value) -> Vec<&Value> {
    let spec = &pod["spec"];
    let containers = ["initContainers", "containers"].into_iter().flat_map(|list| each(&spec[list]));
    containers.chain([spec]).map(|one| &one["resources"]).collect()
}

/// Whether a Pod ends by itself: the scope `Terminating`.
fn has_deadline(pod: &Value) -> bool {
    pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|secs| secs >= 0)
}

fn looks_into_other_namespaces(affinity: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|of| {
        let required = each(&affinity[of]["requiredDuringSchedulingIgnoredDuringExecution"]);
        let preferred = each(&affinity[of]["preferredDuringSchedulingIgnoredDuringExecution"]);
        let mut terms = required.chain(preferred.map(|weighted| &weighted["podAffinityTerm"]));
        terms.any(|term| each(&term["namespaces"]).next().is_some() || !term["namespaceSelector"].is_null())
    })
}

/// How much of the resources of a quota its namespace uses. Without those that the server does not count.
pub(crate) fn used<'q>(storage: &Storage, quota: &'q Value) -> BTreeMap<&'q str, Quantity> {
    let (mut used, mut collections) = (BTreeMap::new(), BTreeMap::<&str, Vec<&str>>::new());
    for (resource, collection) in counted_by(quota) {
        used.extend(Quantity::read(&0.into()).map(|zero| (resource, zero)));
        collections.entry(collection).or_default().push(resource);
    }
    for (collection, resources) in collections {
        let Some(kind) = storage.kinds.of_collection(collection) else { continue };
        let objects = in_namespace(storage, collection, &quota["metadata"]["namespace"]);
        for object in objects.filter(|object| is_in_scope(quota, kind, object)) {
            for resource in &resources {
                let (amount, sum) = (usage(kind.built_in(), object, resource), used.get_mut(resource));
                if let (Some(amount), Some(sum)) = (amount, sum) {
                    *sum = sum.add(&amount, 1);
                }
            }
        }
    }
    used
}

/// The resources of a quota, each with the collection whose objects use it.
pub(crate) fn counted_by(quota: &Value) -> impl Iterator<Item = (&str, &str)> {
    let hard = quota["spec"]["hard"].as_object().into_iter().flatten();
    hard.filter_map(|(resource, _)| Some((resource.as_str(), counted(resource)?)))
}
