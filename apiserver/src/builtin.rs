//! The built-in kinds: a table. What each fills in, refuses and shows in `kubectl get` is a small function.
//!
//! Only what the author of an operator meets is here: a Pod's volumes, probes and affinities are stored as they come.

use serde_json::{Value, json};

use super::{
    addresses,
    clock::Clock,
    pods,
    refusal::Cause,
    selector, types,
    validate::{self, each},
};

/// One built-in kind.
#[derive(Debug)]
pub(super) struct BuiltIn {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) short_names: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    pub(super) namespaced: bool,
    pub(super) status: bool,
    pub(super) scale: bool,
    pub(super) generation: bool,
    /// What field selectors can name beside name and namespace.
    pub(super) fields: &'static [&'static str],
    /// Name, type and priority of each column after Name. Priority 1 shows with `-o wide`.
    pub(super) columns: &'static [(&'static str, &'static str, u8)],
    pub(super) cells: fn(&Value, &Clock) -> Vec<Value>,
    pub(super) defaults: fn(&mut Value),
    pub(super) validate: fn(&Value, Option<&Value>) -> Vec<Cause>,
    /// From the stored form into the one of this version.
    pub(super) convert: fn(&mut Value),
}

pub(super) const NAME_AND_AGE: BuiltIn = BuiltIn {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    status: false,
    scale: false,
    generation: false,
    fields: &[],
    columns: &[("Age", "string", 0)],
    cells: |object, clock| vec![name(object), age(object, clock)],
    defaults: |_| {},
    validate: |_, _| Vec::new(),
    convert: |_| {},
};

/// Every built-in kind that is served.
pub(super) const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        plural: "namespaces",
        kind: "Namespace",
        short_names: &["ns"],
        namespaced: false,
        status: true,
        fields: &["status.phase"],
        columns: &[("Status", "string", 0), ("Age", "string", 0)],
        cells: |object, clock| vec![name(object), object["status"]["phase"].clone(), age(object, clock)],
        defaults: namespace_defaults,
        ..NAME_AND_AGE
    },
    BuiltIn {
        plural: "configmaps",
        kind: "ConfigMap",
        short_names: &["cm"],
        columns: &[("Data", "string", 0), ("Age", "string", 0)],
        cells: |object, clock| {
            let count = entries(&object["data"]) + entries(&object["binaryData"]);
            vec![name(object), count.into(), age(object, clock)]
        },
        validate: validate::config_map,
        ..NAME_AND_AGE
    },
    BuiltIn {
        plural: "secrets",
        kind: "Secret",
        fields: &["type"],
        columns: &[("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)],
        cells: |object, clock| {
            let count = entries(&object["data"]);
            vec![name(object), object["type"].clone(), count.into(), age(object, clock)]
        },
        defaults: secret_defaults,
        validate: validate::secret,
        ..NAME_AND_AGE
    },
    BuiltIn {
        plural: "services",
        kind: "Service",
        short_names: &["svc"],
        categories: &["all"],
        status: true,
        fields: &["spec.clusterIP", "spec.type"],
        columns: &[
            ("Type", "string", 0),
            ("Cluster-IP", "string", 0),
            ("External-IP", "string", 0),
            ("Port(s)", "string", 0),
            ("Age", "string", 0),
            ("Selector", "string", 1),
        ],
        cells: service_cells,
        defaults: service_defaults,
        validate: validate::service,
        ..NAME_AND_AGE
    },
    BuiltIn { plural: "serviceaccounts", kind: "ServiceAccount", short_names: &["sa"], ..NAME_AND_AGE },
    BuiltIn {
        plural: "pods",
        kind: "Pod",
        short_names: &["po"],
        categories: &["all"],
        status: true,
        generation: true,
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        columns: &[
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            ("Age", "string", 0),
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ],
        cells: pod_cells,
        defaults: pod_defaults,
        validate: pods::pod,
        ..NAME_AND_AGE
    },
    BuiltIn {
        plural: "nodes",
        kind: "Node",
        short_names: &["no"],
        namespaced: false,
        status: true,
        fields: &["spec.unschedulable"],
        columns: &[
            ("Status", "string", 0),
            ("Roles", "string", 0),
            ("Age", "string", 0),
            ("Version", "string", 0),
            ("Internal-IP", "string", 1),
        ],
        cells: node_cells,
        defaults: node_defaults,
        validate: validate::node,
        ..NAME_AND_AGE
    },
    BuiltIn {
        plural: "events",
        kind: "Event",
        short_names: &["ev"],
        fields: &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        columns: EVENT_COLUMNS,
        cells: event_cells,
        defaults: event_as_core,
        validate: validate::core_event,
        convert: event_as_core,
        ..NAME_AND_AGE
    },
    BuiltIn {
        group: "events.k8s.io",
        plural: "events",
        kind: "Event",
        short_names: &["ev"],
        fields: &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        columns: EVENT_COLUMNS,
        cells: |object, clock| {
            let mut object = object.clone();
            event_as_core(&mut object);
            event_cells(&object, clock)
        },
        defaults: event_as_core,
        validate: validate::new_event,
        convert: event_as_new,
        ..NAME_AND_AGE
    },
    BuiltIn {
        group: "coordination.k8s.io",
        plural: "leases",
        kind: "Lease",
        columns: &[("Holder", "string", 0), ("Age", "string", 0)],
        cells: |object, clock| {
            vec![name(object), object["spec"]["holderIdentity"].clone(), age(object, clock)]
        },
        defaults: lease_defaults,
        validate: validate::lease,
        ..NAME_AND_AGE
    },
    BuiltIn {
        group: "apps",
        plural: "deployments",
        kind: "Deployment",
        short_names: &["deploy"],
        categories: &["all"],
        status: true,
        scale: true,
        generation: true,
        columns: &[
            ("Ready", "string", 0),
            ("Up-to-date", "string", 0),
            ("Available", "string", 0),
            ("Age", "string", 0),
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        cells: deployment_cells,
        defaults: deployment_defaults,
        validate: validate::deployment,
        ..NAME_AND_AGE
    },
    BuiltIn {
        group: "apps",
        plural: "replicasets",
        kind: "ReplicaSet",
        short_names: &["rs"],
        categories: &["all"],
        status: true,
        scale: true,
        generation: true,
        columns: &[
            ("Desired", "integer", 0),
            ("Current", "integer", 0),
            ("Ready", "integer", 0),
            ("Age", "string", 0),
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        cells: replica_set_cells,
        defaults: |object| {
            set_default(object, "/spec/replicas", json!(1));
            set_default(object, "/status/replicas", json!(0));
            template_defaults(&mut object["spec"]["template"]);
        },
        validate: validate::replica_set,
        ..NAME_AND_AGE
    },
    BuiltIn {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        kind: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        status: true,
        generation: true,
        columns: &[("Created At", "date", 0)],
        cells: |object, _| vec![name(object), object["metadata"]["creationTimestamp"].clone()],
        defaults: super::crd::set_defaults,
        validate: super::crd::errors,
        ..NAME_AND_AGE
    },
];

const EVENT_COLUMNS: &[(&str, &str, u8)] = &[
    ("Last Seen", "string", 0),
    ("Type", "string", 0),
    ("Reason", "string", 0),
    ("Object", "string", 0),
    ("Subobject", "string", 1),
    ("Source", "string", 1),
    ("Message", "string", 0),
    ("First Seen", "string", 1),
    ("Count", "string", 1),
    ("Name", "string", 1),
];

fn name(object: &Value) -> Value {
    object["metadata"]["name"].clone()
}

fn age(object: &Value, clock: &Clock) -> Value {
    clock.age(&object["metadata"]["creationTimestamp"]).into()
}

fn entries(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

/// Put a value where there is none yet. The parents are made on the way.
fn set_default(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for part in pointer.split('/').skip(1) {
        if !place.is_object() && !place.is_null() {
            return;
        }
        place = &mut place[part];
    }
    if place.is_null() {
        *place = value;
    }
}

/// The items of a list, if there is one. (Indexing would make it, as null.)
fn items<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

fn namespace_defaults(object: &mut Value) {
    let name = name(object);
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    set_default(object, "/spec/finalizers", json!(["kubernetes"]));
    set_default(object, "/status/phase", "Active".into());
}

/// Coordinated leader election is not on by default, and its fields are dropped.
fn lease_defaults(object: &mut Value) {
    set_default(object, "/spec", json!({}));
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.retain(|field, _| !matches!(field.as_str(), "strategy" | "preferredHolder"));
    }
}

/// What Go's structs always have.
fn node_defaults(object: &mut Value) {
    set_default(object, "/spec", json!({}));
    set_default(object, "/status/daemonEndpoints/kubeletEndpoint/Port", 0.into());
    for field in [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ] {
        set_default(object, &format!("/status/nodeInfo/{field}"), "".into());
    }
    let range = &object["spec"]["podCIDR"];
    if range.is_string() {
        let ranges = json!([range]);
        set_default(object, "/spec/podCIDRs", ranges);
    }
}

/// The admission plugin TaintNodesByCondition: until somebody has seen that it is ready, no Pod comes to a new Node.
pub(super) fn taint_until_ready(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = &mut node["spec"]["taints"];
    if !each(taints).any(|one| one["key"] == taint["key"] && one["effect"] == taint["effect"]) {
        let all: Vec<Value> = each(taints).cloned().chain([taint]).collect();
        *taints = all.into();
    }
}

/// `stringData` is written only: it ends up in `data`.
fn secret_defaults(object: &mut Value) {
    use base64::{Engine, prelude::BASE64_STANDARD};
    set_default(object, "/type", "Opaque".into());
    let Some(strings) = object.as_object_mut().and_then(|object| object.remove("stringData")) else { return };
    for (key, value) in strings.as_object().into_iter().flatten() {
        object["data"][key] = BASE64_STANDARD.encode(value.as_str().unwrap_or_default()).into();
    }
}

fn service_defaults(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/type", "ClusterIP".into());
    set_default(spec, "/sessionAffinity", "None".into());
    if spec["type"] != "ExternalName" {
        set_default(spec, "/internalTrafficPolicy", "Cluster".into());
    }
    if addresses::is_reachable(spec) {
        set_default(spec, "/externalTrafficPolicy", "Cluster".into());
    }
    if spec["type"] == "LoadBalancer" {
        set_default(spec, "/allocateLoadBalancerNodePorts", true.into());
    }
    if spec["sessionAffinity"] == "ClientIP" {
        set_default(spec, "/sessionAffinityConfig/clientIP/timeoutSeconds", 10_800.into());
    } else if spec["sessionAffinity"] == "None"
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("sessionAffinityConfig");
    }
    for port in items(spec, "ports") {
        set_default(port, "/protocol", "TCP".into());
        if port["targetPort"].is_null() || port["targetPort"] == 0 || port["targetPort"] == "" {
            port["targetPort"] = port["port"].clone();
        }
    }
    set_default(object, "/status/loadBalancer", json!({}));
}

fn service_cells(object: &Value, clock: &Clock) -> Vec<Value> {
    let spec = &object["spec"];
    let text = |value: &Value| value.as_str().unwrap_or("<none>").to_owned();
    let mut ports = Vec::new();
    for port in each(&spec["ports"]) {
        let node_port = port["nodePort"].as_i64().map(|port| format!(":{port}")).unwrap_or_default();
        ports.push(format!("{}{node_port}/{}", port["port"], text(&port["protocol"])));
    }
    let ports = if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") };
    let external = spec["externalName"].as_str().unwrap_or("<none>").to_owned();
    vec![
        name(object),
        spec["type"].clone(),
        text(&spec["clusterIP"]).into(),
        external.into(),
        ports.into(),
        age(object, clock),
        selector::shown(&spec["selector"]).into(),
    ]
}

fn pod_defaults(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/serviceAccountName", "default".into());
    pod_spec_defaults(spec);
    for list in ["initContainers", "containers"] {
        items(spec, list).for_each(requests_defaults);
    }
    set_default(spec, "/enableServiceLinks", true.into());
    set_default(spec, "/preemptionPolicy", "PreemptLowerPriority".into());
    set_default(spec, "/priority", 0.into());
    tolerate_outages(spec);
    let class = qos_class(spec);
    set_default(object, "/status/phase", "Pending".into());
    set_default(object, "/status/qosClass", class.into());
}

/// The admission plugin DefaultTolerationSeconds: what is not tolerated otherwise is for five minutes.
fn tolerate_outages(spec: &mut Value) {
    let mut all = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |toleration: &Value, field: &str, value: &str| {
            matches!(toleration[field].as_str(), None | Some("")) || toleration[field] == value
        };
        if !all.iter().any(|one| covers(one, "key", key) && covers(one, "effect", "NoExecute")) {
            all.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
    spec["tolerations"] = all.into();
}

/// Who says only what a container may have asks for all of it.
fn requests_defaults(container: &mut Value) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(mut requests) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    requests.extend(resources.get("requests").and_then(Value::as_object).cloned().unwrap_or_default());
    resources.insert("requests".to_owned(), requests.into());
}

/// By what the containers ask for: all that they may have, something, or nothing.
fn qos_class(spec: &Value) -> &'static str {
    let (mut asks, mut has_all) = (false, true);
    for container in each(&spec["initContainers"]).chain(each(&spec["containers"])) {
        for resource in ["cpu", "memory"] {
            let [request, limit] = ["requests", "limits"]
                .map(|of| types::quantity(&container["resources"][of][resource]).filter(|one| *one > 0.0));
            asks |= request.is_some() || limit.is_some();
            has_all &= limit.is_some() && request == limit;
        }
    }
    match (asks, has_all) {
        (false, _) => "BestEffort",
        (true, false) => "Burstable",
        (true, true) => "Guaranteed",
    }
}

/// What every pod template gets, whoever holds it.
fn template_defaults(template: &mut Value) {
    if template["spec"].is_object() {
        pod_spec_defaults(&mut template["spec"]);
    }
}

fn pod_spec_defaults(spec: &mut Value) {
    set_default(spec, "/restartPolicy", "Always".into());
    set_default(spec, "/dnsPolicy", "ClusterFirst".into());
    set_default(spec, "/schedulerName", "default-scheduler".into());
    set_default(spec, "/securityContext", json!({}));
    set_default(spec, "/terminationGracePeriodSeconds", 30.into());
    // Its old name is still shown, and read where the new one is missing.
    if let Some(account) = spec.get("serviceAccount").cloned() {
        set_default(spec, "/serviceAccountName", account);
    }
    // A feature that is off.
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("schedulingGroup");
    }
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        spec["serviceAccount"] = account;
    }
    for volume in items(spec, "volumes") {
        volume_defaults(volume);
    }
    for list in ["initContainers", "containers"] {
        for container in items(spec, list) {
            container_defaults(container);
        }
    }
}

fn volume_defaults(volume: &mut Value) {
    if volume.as_object().is_some_and(|volume| volume.len() == 1) {
        volume["emptyDir"] = json!({});
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if volume[source].is_object() {
            // 0644
            set_default(&mut volume[source], "/defaultMode", 420.into());
        }
    }
    if volume["hostPath"].is_object() {
        set_default(&mut volume["hostPath"], "/type", "".into());
    }
}

fn container_defaults(container: &mut Value) {
    // No tag, or the tag `latest`, may mean another image tomorrow: it is pulled each time.
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    set_default(container, "/imagePullPolicy", if latest { "Always" } else { "IfNotPresent" }.into());
    set_default(container, "/resources", json!({}));
    set_default(container, "/terminationMessagePath", "/dev/termination-log".into());
    set_default(container, "/terminationMessagePolicy", "File".into());
    for port in items(container, "ports") {
        set_default(port, "/protocol", "TCP".into());
    }
    for variable in items(container, "env") {
        if variable["valueFrom"]["fieldRef"].is_object() {
            set_default(variable, "/valueFrom/fieldRef/apiVersion", "v1".into());
        }
        if variable["valueFrom"]["resourceFieldRef"].is_object() {
            set_default(variable, "/valueFrom/resourceFieldRef/divisor", "0".into());
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = match container.get_mut(probe) {
            Some(probe) if probe.is_object() => probe,
            _ => continue,
        };
        for (field, value) in [
            ("/timeoutSeconds", 1),
            ("/periodSeconds", 10),
            ("/successThreshold", 1),
            ("/failureThreshold", 3),
        ] {
            set_default(probe, field, value.into());
        }
        request_defaults(probe);
        if probe.get("grpc").is_some() {
            set_default(probe, "/grpc/service", "".into());
        }
    }
    lifecycle_defaults(container);
}

/// The request of a probe or a hook.
fn request_defaults(handler: &mut Value) {
    if handler["httpGet"].is_object() {
        set_default(handler, "/httpGet/scheme", "HTTP".into());
        set_default(handler, "/httpGet/path", "/".into());
    }
}

fn lifecycle_defaults(container: &mut Value) {
    let Some(container) = container.as_object_mut() else { return };
    let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") else { return };
    for hook in ["postStart", "preStop"] {
        lifecycle.get_mut(hook).map(request_defaults);
    }
    // The feature gate ContainerStopSignals is off by default: `dropContainerStopSignals`.
    if lifecycle.remove("stopSignal").is_some() && lifecycle.is_empty() {
        container.remove("lifecycle");
    }
}

fn deployment_defaults(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/replicas", 1.into());
    set_default(spec, "/strategy/type", "RollingUpdate".into());
    if spec["strategy"]["type"] == "RollingUpdate" {
        set_default(spec, "/strategy/rollingUpdate/maxSurge", "25%".into());
        set_default(spec, "/strategy/rollingUpdate/maxUnavailable", "25%".into());
    }
    set_default(spec, "/revisionHistoryLimit", 10.into());
    set_default(spec, "/progressDeadlineSeconds", 600.into());
    template_defaults(&mut spec["template"]);
    set_default(object, "/status", json!({}));
}

fn containers_and_images(spec: &Value) -> [Value; 2] {
    let joined = |field: &str| -> Value {
        let all: Vec<&str> = each(&spec["containers"]).filter_map(|one| one[field].as_str()).collect();
        all.join(",").into()
    };
    [joined("name"), joined("image")]
}

fn deployment_cells(object: &Value, clock: &Clock) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let [names, images] = containers_and_images(&spec["template"]["spec"]);
    vec![
        name(object),
        format!("{}/{}", count("readyReplicas"), spec["replicas"]).into(),
        count("updatedReplicas").into(),
        count("availableReplicas").into(),
        age(object, clock),
        names,
        images,
        selector::shown(&spec["selector"]["matchLabels"]).into(),
    ]
}

fn replica_set_cells(object: &Value, clock: &Clock) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let [names, images] = containers_and_images(&spec["template"]["spec"]);
    vec![
        name(object),
        spec["replicas"].clone(),
        count("replicas").into(),
        count("readyReplicas").into(),
        age(object, clock),
        names,
        images,
        selector::shown(&spec["selector"]["matchLabels"]).into(),
    ]
}

fn pod_cells(object: &Value, clock: &Clock) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let containers = each(&status["containerStatuses"]);
    let ready = containers.filter(|one| one["ready"] == true).count();
    let restarts: i64 =
        each(&status["containerStatuses"]).filter_map(|one| one["restartCount"].as_i64()).sum();
    let waiting =
        each(&status["containerStatuses"]).find_map(|one| one["state"]["waiting"]["reason"].as_str());
    let phase = match object["metadata"]["deletionTimestamp"].is_null() {
        true => waiting.or(status["phase"].as_str()).unwrap_or("Unknown"),
        false => "Terminating",
    };
    let text = |value: &Value| Value::from(value.as_str().unwrap_or("<none>"));
    vec![
        name(object),
        format!("{ready}/{}", each(&spec["containers"]).count()).into(),
        phase.into(),
        restarts.to_string().into(),
        age(object, clock),
        text(&status["podIP"]),
        text(&spec["nodeName"]),
        "<none>".into(),
        "<none>".into(),
    ]
}

fn node_cells(object: &Value, clock: &Clock) -> Vec<Value> {
    let status = &object["status"];
    let ready = each(&status["conditions"]).any(|one| one["type"] == "Ready" && one["status"] == "True");
    let address = each(&status["addresses"]).find(|one| one["type"] == "InternalIP");
    vec![
        name(object),
        if ready { "Ready" } else { "NotReady" }.into(),
        "<none>".into(),
        age(object, clock),
        status["nodeInfo"]["kubeletVersion"].clone(),
        address.map_or("<none>".into(), |one| one["address"].clone()),
    ]
}

fn event_cells(object: &Value, clock: &Clock) -> Vec<Value> {
    let involved = &object["involvedObject"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, of) = (text(&involved["kind"]).to_lowercase(), text(&involved["name"]));
    let first = [&object["firstTimestamp"], &object["eventTime"]];
    let last = [&object["series"]["lastObservedTime"], &object["lastTimestamp"], first[0], first[1]];
    let seen = |times: &[&Value]| times.iter().find(|time| !time.is_null()).map(|time| clock.age(time));
    let count = object["series"]["count"].as_i64().or(object["count"].as_i64()).unwrap_or(1);
    let source = object["source"]["component"].as_str().or(object["reportingComponent"].as_str());
    vec![
        seen(&last).unwrap_or_else(|| "<unknown>".to_owned()).into(),
        object["type"].clone(),
        object["reason"].clone(),
        format!("{kind}/{of}").into(),
        text(&involved["fieldPath"]).into(),
        source.unwrap_or_default().into(),
        text(&object["message"]).trim().into(),
        seen(&first).unwrap_or_else(|| "<unknown>".to_owned()).into(),
        count.to_string().into(),
        name(object),
    ]
}

/// The fields of an Event that are called differently in the core group and in events.k8s.io.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// From `events.k8s.io/v1` to the core `v1`, which is what is stored, with what is always there. Fields that are core
/// already stay.
pub(super) fn event_as_core(object: &mut Value) {
    object["apiVersion"] = "v1".into();
    rename(object, EVENT_FIELDS.iter().map(|&(core, new)| (new, core)));
    // Typed in Go: always there.
    set_default(object, "/source", json!({}));
    set_default(object, "/reportingComponent", "".into());
    set_default(object, "/reportingInstance", "".into());
    for time in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        set_default(object, &format!("/{time}"), Value::Null);
    }
}

fn event_as_new(object: &mut Value) {
    rename(object, EVENT_FIELDS.iter().copied());
    let Some(object) = object.as_object_mut() else { return };
    object.retain(|field, value| {
        !matches!(field.as_str(), "reportingController" | "reportingInstance") || *value != ""
    });
}

fn rename<'a>(object: &mut Value, fields: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(object) = object.as_object_mut() else { return };
    for (from, to) in fields {
        if let Some(value) = object.remove(from) {
            object.insert(to.to_owned(), value);
        }
    }
}
