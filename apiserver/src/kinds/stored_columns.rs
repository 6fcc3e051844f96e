//! The columns of the kinds that are only stored, and of a few others, in one line for each column.
//!
//! ```text
//! $ kubectl get ingressclasses
//! NAME    CONTROLLER                PARAMETERS   AGE
//! nginx   example.com/ingress       <none>       12s
//! ```

use serde_json::Value;

use crate::{
    clock::human_duration,
    kinds::{
        autoscalers,
        field_checks::{each, text},
        printer_columns::{
            PrinterColumns, access_modes, age, containers_and_images, count_of, labels_shown, name,
            selector_shown, shown, some,
        },
    },
};

/// `KIND(object, clock) { "Column" type priority = cell, … }`: the columns after Name.
macro_rules! columns {
    ($($kind:ident($object:ident, $clock:ident) { $($column:literal $type:ident $priority:literal = $cell:expr),* })*) => {
        $(pub(crate) const $kind: PrinterColumns = PrinterColumns {
            definitions: &[$(($column, stringify!($type), $priority)),*],
            cells: |$object, $clock| vec![name($object), $(Value::from($cell)),*],
        };)*
    };
}

columns! {
    CREATED_AT(o, _clock) {
        "Created At" date 0 = o["metadata"]["creationTimestamp"].clone()
    }
    API_SERVICE(o, clock) {
        "Service" string 0 = service(&o["spec"]["service"]),
        "Available" string 0 = available(o),
        "Age" string 0 = age(o, clock)
    }
    AUTOSCALER_OF_V2(o, clock) {
        "Reference" string 0 = of(&o["spec"]["scaleTargetRef"]),
        "Targets" string 0 = some(metrics(o), "<none>"),
        "MinPods" string 0 = shown(&o["spec"]["minReplicas"], "<unset>"),
        "MaxPods" string 0 = count_of(&o["spec"]["maxReplicas"]),
        "Replicas" string 0 = count_of(&o["status"]["currentReplicas"]),
        "Age" string 0 = age(o, clock)
    }
    CERTIFICATE_REQUEST(o, clock) {
        "Age" string 0 = age(o, clock),
        "SignerName" string 0 = shown(&o["spec"]["signerName"], "<none>"),
        "Requestor" string 0 = text(&o["spec"]["username"]),
        "RequestedDuration" string 0 = some(duration(&o["spec"]["expirationSeconds"]), "<none>"),
        "Condition" string 0 = request_state(o)
    }
    CSI_DRIVER(o, clock) {
        "AttachRequired" boolean 0 = o["spec"]["attachRequired"] != false,
        "PodInfoOnMount" boolean 0 = o["spec"]["podInfoOnMount"] == true,
        "StorageCapacity" boolean 0 = o["spec"]["storageCapacity"] == true,
        "TokenRequests" string 0 = audiences(&o["spec"]["tokenRequests"]),
        "RequiresRepublish" boolean 0 = o["spec"]["requiresRepublish"] == true,
        "Modes" string 0 = some(Some(joined(&o["spec"]["volumeLifecycleModes"], ",")), "<none>"),
        "Age" string 0 = age(o, clock)
    }
    CSI_NODE(o, clock) {
        "Drivers" integer 0 = each(&o["spec"]["drivers"]).count(),
        "Age" string 0 = age(o, clock)
    }
    DAEMON_SET(o, clock) {
        "Desired" integer 0 = count_of(&o["status"]["desiredNumberScheduled"]),
        "Current" integer 0 = count_of(&o["status"]["currentNumberScheduled"]),
        "Ready" integer 0 = count_of(&o["status"]["numberReady"]),
        "Up-to-date" integer 0 = count_of(&o["status"]["updatedNumberScheduled"]),
        "Available" integer 0 = count_of(&o["status"]["numberAvailable"]),
        "Node Selector" string 0 = labels_shown(&o["spec"]["template"]["spec"]["nodeSelector"]),
        "Age" string 0 = age(o, clock),
        "Containers" string 1 = containers_and_images(&o["spec"]["template"]["spec"])[0].clone(),
        "Images" string 1 = containers_and_images(&o["spec"]["template"]["spec"])[1].clone(),
        "Selector" string 1 = selector_shown(&o["spec"]["selector"])
    }
    ENDPOINT_SLICE(o, clock) {
        "AddressType" string 0 = text(&o["addressType"]),
        "Ports" string 0 = first_three(each(&o["ports"]).map(port).collect()),
        "Endpoints" string 0 = first_three(each(&o["endpoints"]).flat_map(|one| each(&one["addresses"])).map(|one| text(one).to_owned()).collect()),
        "Age" string 0 = age(o, clock)
    }
    FLOW_SCHEMA(o, clock) {
        "PriorityLevel" string 0 = text(&o["spec"]["priorityLevelConfiguration"]["name"]),
        "MatchingPrecedence" string 0 = count_of(&o["spec"]["matchingPrecedence"]),
        "DistinguisherMethod" string 0 = shown(&o["spec"]["distinguisherMethod"]["type"], "<none>"),
        "Age" string 0 = age(o, clock),
        "MissingPL" string 0 = each(&o["status"]["conditions"]).find(|one| one["type"] == "Dangling").map_or("?", |one| text(&one["status"]))
    }
    INGRESS(o, clock) {
        "Class" string 0 = shown(&o["spec"]["ingressClassName"], "<none>"),
        "Hosts" string 0 = hosts(&o["spec"]["rules"]),
        "Address" string 0 = addresses(&o["status"]["loadBalancer"]["ingress"]),
        "Ports" string 0 = if each(&o["spec"]["tls"]).next().is_some() { "80, 443" } else { "80" },
        "Age" string 0 = age(o, clock)
    }
    INGRESS_CLASS(o, clock) {
        "Controller" string 0 = text(&o["spec"]["controller"]),
        "Parameters" string 0 = some(parameters(&o["spec"]["parameters"]), "<none>"),
        "Age" string 0 = age(o, clock)
    }
    IP_ADDRESS(o, _clock) {
        "ParentRef" string 0 = some(parent(&o["spec"]["parentRef"]), "<none>")
    }
    NETWORK_POLICY(o, clock) {
        "Pod-Selector" string 0 = selector_shown(&o["spec"]["podSelector"]),
        "Age" string 0 = age(o, clock)
    }
    POD_TEMPLATE(o, _clock) {
        "Containers" string 0 = containers_and_images(&o["template"]["spec"])[0].clone(),
        "Images" string 0 = containers_and_images(&o["template"]["spec"])[1].clone(),
        "Pod Labels" string 0 = labels_shown(&o["template"]["metadata"]["labels"])
    }
    MUTATING_POLICY(o, clock) {
        "Mutations" integer 0 = each(&o["spec"]["mutations"]).count(),
        "ParamKind" string 0 = param_kind(&o["spec"]["paramKind"]),
        "Age" string 0 = age(o, clock)
    }
    VALIDATING_POLICY(o, clock) {
        "Validations" integer 0 = each(&o["spec"]["validations"]).count(),
        "ParamKind" string 0 = param_kind(&o["spec"]["paramKind"]),
        "Age" string 0 = age(o, clock)
    }
    POLICY_BINDING(o, clock) {
        "PolicyName" string 0 = text(&o["spec"]["policyName"]),
        "ParamRef" string 0 = param(&o["spec"]["paramRef"]),
        "Age" string 0 = age(o, clock)
    }
    PERSISTENT_VOLUME(o, clock) {
        "Capacity" string 0 = shown(&o["spec"]["capacity"]["storage"], "0"),
        "Access Modes" string 0 = access_modes(&o["spec"]["accessModes"]),
        "Reclaim Policy" string 0 = text(&o["spec"]["persistentVolumeReclaimPolicy"]),
        "Status" string 0 = if o["metadata"]["deletionTimestamp"].is_null() { text(&o["status"]["phase"]) } else { "Terminating" },
        "Claim" string 0 = some(in_namespace(&o["spec"]["claimRef"]), ""),
        "StorageClass" string 0 = text(&o["spec"]["storageClassName"]),
        "VolumeAttributesClass" string 0 = shown(&o["spec"]["volumeAttributesClassName"], "<unset>"),
        "Reason" string 0 = text(&o["status"]["reason"]),
        "Age" string 0 = age(o, clock),
        "VolumeMode" string 1 = shown(&o["spec"]["volumeMode"], "<unset>")
    }
    PRIORITY_CLASS(o, clock) {
        "Value" integer 0 = count_of(&o["value"]),
        "Global-Default" boolean 0 = o["globalDefault"] == true,
        "Age" string 0 = age(o, clock),
        "PreemptionPolicy" string 0 = text(&o["preemptionPolicy"])
    }
    PRIORITY_LEVEL(o, clock) {
        "Type" string 0 = text(&o["spec"]["type"]),
        "NominalConcurrencyShares" string 0 = number(&o["spec"]["limited"]["nominalConcurrencyShares"]),
        "Queues" string 0 = number(&o["spec"]["limited"]["limitResponse"]["queuing"]["queues"]),
        "HandSize" string 0 = number(&o["spec"]["limited"]["limitResponse"]["queuing"]["handSize"]),
        "QueueLengthLimit" string 0 = number(&o["spec"]["limited"]["limitResponse"]["queuing"]["queueLengthLimit"]),
        "Age" string 0 = age(o, clock)
    }
    RESOURCE_CLAIM(o, clock) {
        "State" string 0 = claim_state(o),
        "Age" string 0 = age(o, clock)
    }
    RESOURCE_QUOTA(o, clock) {
        "Request" string 0 = quotas(&o["status"], false),
        "Limit" string 0 = quotas(&o["status"], true),
        "Age" string 0 = age(o, clock)
    }
    RESOURCE_SLICE(o, clock) {
        "Node" string 0 = text(&o["spec"]["nodeName"]),
        "Driver" string 0 = text(&o["spec"]["driver"]),
        "Pool" string 0 = text(&o["spec"]["pool"]["name"]),
        "Age" string 0 = age(o, clock)
    }
    REPLICATION_CONTROLLER(o, clock) {
        "Desired" integer 0 = count_of(&o["spec"]["replicas"]),
        "Current" integer 0 = count_of(&o["status"]["replicas"]),
        "Ready" integer 0 = count_of(&o["status"]["readyReplicas"]),
        "Age" string 0 = age(o, clock),
        "Containers" string 1 = containers_and_images(&o["spec"]["template"]["spec"])[0].clone(),
        "Images" string 1 = containers_and_images(&o["spec"]["template"]["spec"])[1].clone(),
        "Selector" string 1 = labels_shown(&o["spec"]["selector"])
    }
    ROLE_BINDING(o, clock) {
        "Role" string 0 = of(&o["roleRef"]),
        "Age" string 0 = age(o, clock),
        "Users" string 1 = subjects(o, "User"),
        "Groups" string 1 = subjects(o, "Group"),
        "ServiceAccounts" string 1 = subjects(o, "ServiceAccount")
    }
    RUNTIME_CLASS(o, clock) {
        "Handler" string 0 = text(&o["handler"]),
        "Age" string 0 = age(o, clock)
    }
    SERVICE_CIDR(o, clock) {
        "CIDRs" string 0 = joined(&o["spec"]["cidrs"], ","),
        "Age" string 0 = age(o, clock)
    }
    STORAGE_CLASS(o, clock) {
        "Provisioner" string 0 = text(&o["provisioner"]),
        "ReclaimPolicy" string 0 = shown(&o["reclaimPolicy"], "Delete"),
        "VolumeBindingMode" string 0 = shown(&o["volumeBindingMode"], "Immediate"),
        "AllowVolumeExpansion" string 0 = o["allowVolumeExpansion"] == true,
        "Age" string 0 = age(o, clock)
    }
    VOLUME_ATTACHMENT(o, clock) {
        "Attacher" string 0 = text(&o["spec"]["attacher"]),
        "PV" string 0 = text(&o["spec"]["source"]["persistentVolumeName"]),
        "Node" string 0 = text(&o["spec"]["nodeName"]),
        "Attached" boolean 0 = o["status"]["attached"] == true,
        "Age" string 0 = age(o, clock)
    }
    VOLUME_ATTRIBUTES_CLASS(o, clock) {
        "DriverName" string 0 = text(&o["driverName"]),
        "Age" string 0 = age(o, clock)
    }
    WEBHOOKS(o, clock) {
        "Webhooks" integer 0 = each(&o["webhooks"]).count(),
        "Age" string 0 = age(o, clock)
    }
}

pub(crate) const AUTOSCALER: PrinterColumns = PrinterColumns {
    definitions: AUTOSCALER_OF_V2.definitions,
    cells: |object, clock| {
        let mut object = object.clone();
        if object["apiVersion"] == "autoscaling/v1" {
            autoscalers::to_v2(&mut object);
        }
        (AUTOSCALER_OF_V2.cells)(&object, clock)
    },
};

/// `Deployment/web`.
fn of(reference: &Value) -> String {
    format!("{}/{}", text(&reference["kind"]), text(&reference["name"]))
}

fn in_namespace(reference: &Value) -> Option<String> {
    reference.is_object().then(|| format!("{}/{}", text(&reference["namespace"]), text(&reference["name"])))
}

fn number(value: &Value) -> Value {
    if value.is_null() { "<none>".into() } else { value.clone() }
}

fn joined(list: &Value, separator: &str) -> String {
    each(list).map(text).collect::<Vec<_>>().join(separator)
}

fn service(reference: &Value) -> String {
    in_namespace(reference).unwrap_or_else(|| "Local".to_owned())
}

/// `True`, or `False (ServiceNotFound)`.
fn available(object: &Value) -> String {
    let Some(condition) = each(&object["status"]["conditions"]).find(|one| one["type"] == "Available") else {
        return "Unknown".to_owned();
    };
    match (text(&condition["status"]), text(&condition["reason"])) {
        ("True", _) => "True".to_owned(),
        (status, reason) => format!("{status} ({reason})"),
    }
}

/// The first two metrics: `cpu: <unknown>/80%`.
fn metrics(object: &Value) -> Option<String> {
    let statuses: Vec<&Value> = each(&object["status"]["currentMetrics"]).collect();
    // Only a utilization is a number.
    let value = |value: &Value, none: &str| match value {
        Value::Number(percent) => format!("{percent}%"),
        quantity => shown(quantity, none),
    };
    let metric = |(index, metric): (usize, &Value)| {
        let kind = text(&metric["type"]);
        let field = kind.replacen(|_: char| true, &kind[..kind.len().min(1)].to_lowercase(), 1);
        let target = &metric[&field]["target"];
        let current = statuses.get(index).map_or(&Value::Null, |status| &status[&field]["current"]);
        let (name, of, suffix) = match (metric[&field]["name"].as_str(), target["averageValue"].is_null()) {
            (Some(name), false) => (format!("{name}: "), "averageValue", ""),
            (Some(name), true) => (format!("{name}: "), "averageUtilization", ""),
            (None, false) => (String::new(), "averageValue", if kind == "Pods" { "" } else { " (avg)" }),
            (None, true) => (String::new(), "value", ""),
        };
        format!("{name}{}/{}{suffix}", value(&current[of], "<unknown>"), value(&target[of], "<auto>"))
    };
    let all: Vec<String> = each(&object["spec"]["metrics"]).enumerate().map(metric).collect();
    match all.len() {
        0 => None,
        1..=2 => Some(all.join(", ")),
        count => Some(format!("{} + {} more...", all[..2].join(", "), count - 2)),
    }
}

fn duration(seconds: &Value) -> Option<String> {
    seconds.as_u64().map(|seconds| human_duration(std::time::Duration::from_secs(seconds)))
}

/// `Approved,Issued`.
fn request_state(object: &Value) -> String {
    let is = |kind: &str| each(&object["status"]["conditions"]).any(|one| one["type"] == kind);
    let mut state = match (is("Denied"), is("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if is("Failed") {
        state.push_str(",Failed");
    }
    if !text(&object["status"]["certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    state
}

fn audiences(requests: &Value) -> String {
    let all = || each(requests).map(|one| text(&one["audience"])).collect::<Vec<_>>().join(",");
    if requests.is_null() { "<unset>".to_owned() } else { all() }
}

fn port(port: &Value) -> String {
    match (&port["port"], &port["name"]) {
        (Value::Null, Value::String(name)) => name.clone(),
        (Value::Null, _) => "*".to_owned(),
        (number, _) => number.to_string(),
    }
}

fn first_three(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(3);
    all.truncate(3);
    match (all.join(","), more) {
        (shown, 0) if shown.is_empty() => "<unset>".to_owned(),
        (shown, 0) => shown,
        (shown, more) => format!("{shown} + {more} more..."),
    }
}

fn hosts(rules: &Value) -> String {
    let count = each(rules).count();
    let hosts: Vec<&str> =
        each(rules).map(|rule| text(&rule["host"])).filter(|host| !host.is_empty()).collect();
    match hosts.len() {
        0 => "*".to_owned(),
        1..=3 => hosts.join(","),
        _ => format!("{} + {} more...", hosts[..3].join(","), count - 3),
    }
}

/// The addresses of a load balancer.
fn addresses(points: &Value) -> String {
    let address = |point: &Value| shown(&point["ip"], text(&point["hostname"]));
    let mut all: Vec<String> = each(points).map(address).collect();
    all.sort();
    all.join(",")
}

fn parameters(parameters: &Value) -> Option<String> {
    let group = parameters["apiGroup"].as_str().map(|group| format!(".{group}")).unwrap_or_default();
    parameters
        .is_object()
        .then(|| format!("{}{group}/{}", text(&parameters["kind"]), text(&parameters["name"])))
}

fn parent(parent: &Value) -> Option<String> {
    let parts = [&parent["namespace"], &parent["name"]].map(text);
    let resource = crate::status::qualified(text(&parent["resource"]), text(&parent["group"]));
    let path = [resource.as_str()].into_iter().chain(parts).filter(|part| !part.is_empty());
    parent.is_object().then(|| path.collect::<Vec<_>>().join("/"))
}

fn param_kind(kind: &Value) -> String {
    if kind.is_null() {
        return "<unset>".to_owned();
    }
    format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"]))
}

fn param(param: &Value) -> String {
    match (text(&param["namespace"]), text(&param["name"])) {
        (_, "") if param["selector"].is_object() => selector_shown(&param["selector"]),
        (_, "") => "<unset>".to_owned(),
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn claim_state(claim: &Value) -> String {
    let is_deleted = !claim["metadata"]["deletionTimestamp"].is_null();
    let mut states = Vec::new();
    states.extend(is_deleted.then_some("deleted"));
    if claim["status"]["allocation"].is_null() {
        states.extend((!is_deleted).then_some("pending"));
    } else {
        states.push("allocated");
        states.extend(each(&claim["status"]["reservedFor"]).next().map(|_| "reserved"));
    }
    states.join(",")
}

/// `pods: 1/2, requests.cpu: 0/1`, or the limits alone.
fn quotas(status: &Value, limits: bool) -> String {
    let mut all = Vec::new();
    for (resource, hard) in status["hard"].as_object().into_iter().flatten() {
        if resource.starts_with("limits.") == limits {
            all.push(format!("{resource}: {}/{}", shown(&status["used"][resource], "0"), text(hard)));
        }
    }
    all.join(", ")
}

/// `jane, joe`; for ServiceAccounts `default/web`.
fn subjects(binding: &Value, kind: &str) -> String {
    let subject = |subject: &Value| match text(&subject["namespace"]) {
        "" => text(&subject["name"]).to_owned(),
        namespace => format!("{namespace}/{}", text(&subject["name"])),
    };
    let of_kind = each(&binding["subjects"]).filter(|subject| subject["kind"] == kind);
    of_kind.map(subject).collect::<Vec<_>>().join(", ")
}
