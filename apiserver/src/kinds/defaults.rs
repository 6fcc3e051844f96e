//! The defaults of each built-in kind: kube-apiserver's defaults.go, and admission plugins that set fields. The
//! addresses of a Service are in `cluster_ip.rs`.
//!
//! Only fields that authors of operators need have defaults: affinities and rarer volumes are stored as sent.

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch_formats::quantity::quantity;
use serde_json::{Value, json};

use crate::kinds::{
    cluster_ip,
    field_checks::{each, text},
    pods::{is_gated, set_app_armor},
};

pub(crate) fn namespace(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    set_default(object, "/spec/finalizers", json!(["kubernetes"]));
    set_default(object, "/status/phase", "Active".into());
}

pub(crate) fn endpoints(object: &mut Value) {
    for subset in object.get_mut("subsets").and_then(Value::as_array_mut).into_iter().flatten() {
        for port in subset.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            set_default(port, "/protocol", "TCP".into());
        }
    }
}

/// Removes the fields of coordinated leader election, a feature that is off by default.
pub(crate) fn lease(object: &mut Value) {
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.retain(|field, _| !matches!(field.as_str(), "strategy" | "preferredHolder"));
    }
}

pub(crate) fn node(object: &mut Value) {
    let range = &object["spec"]["podCIDR"];
    if range.is_string() {
        let ranges = json!([range]);
        set_default(object, "/spec/podCIDRs", ranges);
    }
    // The feature is removed. kube-apiserver keeps this field only if the stored Node has it.
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("configSource");
    }
    let capacity = object["status"]["capacity"].clone();
    if !capacity.is_null() {
        set_default(object, "/status/allocatable", capacity);
    }
}

/// Sets what admission plugins add to a new object, after its managers are recorded.
pub(crate) fn admit(kind: &str, object: &mut Value) {
    match kind {
        "Node" => taint_until_ready(object),
        "PersistentVolumeClaim" => protect(object, CLAIM_FINALIZER),
        "PersistentVolume" => protect(object, "kubernetes.io/pv-protection"),
        "VolumeAttributesClass" => protect(object, "kubernetes.io/vac-protection"),
        _ => {}
    }
}

/// Sets what registry strategies add to a new object after its admission, `PrepareForCreate`, and returns their warnings.
pub(crate) fn prepare(kind: &str, object: &mut Value) -> Vec<String> {
    match kind {
        "PersistentVolume" => {
            object["status"]["lastPhaseTransitionTime"] = object["metadata"]["creationTimestamp"].clone();
        }
        "Pod" => {
            report_gates(object);
            select_own_labels(object);
            return set_app_armor(object);
        }
        "Job" => {
            generate_selector(object);
            label_as_template(object);
        }
        _ => {}
    }
    Vec::new()
}

/// The PriorityClasses that exist in every cluster, and their values.
pub(crate) const PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// The condition of a Pod that is not scheduled yet.
fn report_gates(pod: &mut Value) {
    if is_gated(&pod["spec"]) {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        }]);
    }
}

/// Pods with the same values of these labels: `matchLabelKeys` of spread constraints and affinities go into the selectors, and `mismatchLabelKeys`.
fn select_own_labels(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    let spec = &mut pod["spec"];
    items(spec, "topologySpreadConstraints").for_each(|constraint| select_labels(constraint, &labels));
    for path in ["/affinity/podAffinity", "/affinity/podAntiAffinity"] {
        let Some(affinity) = spec.pointer_mut(path) else { continue };
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        items(affinity, required).for_each(|term| select_labels(term, &labels));
        let preferred = items(affinity, "preferredDuringSchedulingIgnoredDuringExecution");
        preferred
            .filter_map(|preferred| preferred.get_mut("podAffinityTerm"))
            .for_each(|term| select_labels(term, &labels));
    }
}

fn select_labels(term: &mut Value, labels: &Value) {
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        let values = keys.filter_map(|key| Some((key.to_owned(), labels.get(key)?)));
        let requirements =
            values.map(|(key, value)| json!({"key": key, "operator": operator, "values": [value]}));
        let requirements: Vec<Value> = requirements.collect();
        // Without a selector, no Pod is meant.
        let Some(selector) = term.get_mut("labelSelector").filter(|_| !requirements.is_empty()) else {
            continue;
        };
        let expressions = &mut selector["matchExpressions"];
        let all = expressions.as_array().into_iter().flatten().cloned().chain(requirements).collect();
        *expressions = Value::Array(all);
    }
}

/// The admission plugin StorageObjectInUseProtection: a claim stays until no Pod uses it, and a volume until no claim does.
fn protect(object: &mut Value, finalizer: &str) {
    let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|one| one == finalizer) {
        finalizers.push(finalizer.into());
        object["metadata"]["finalizers"] = finalizers.into();
    }
}

/// The labels of a Job's Pods: their keys, and the field of the Job's metadata. The first two are the older form.
pub(crate) const POD_LABELS: [(&str, &str); 4] = [
    ("controller-uid", "uid"),
    ("job-name", "name"),
    ("batch.kubernetes.io/controller-uid", "uid"),
    ("batch.kubernetes.io/job-name", "name"),
];

/// Selects the Pods of a Job by the uid of the Job, unless the Job has a selector of its own.
fn generate_selector(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let metadata = job["metadata"].clone();
    for (key, field) in POD_LABELS {
        set_default_at(&mut job["spec"]["template"]["metadata"]["labels"], key, &metadata[field]);
    }
    let key = "batch.kubernetes.io/controller-uid";
    set_default_at(&mut job["spec"]["selector"]["matchLabels"], key, &metadata["uid"]);
}

/// A Job without labels gets its template's. In kube-apiserver, both share one map, so the Job also gets the [`POD_LABELS`],
/// unless admission has changed the Job before.
pub(crate) fn label_as_template(job: &mut Value) {
    let labels = job["spec"]["template"]["metadata"]["labels"].clone();
    let is_empty = job["metadata"]["labels"].as_object().is_none_or(serde_json::Map::is_empty);
    if labels.is_object() && is_empty {
        job["metadata"]["labels"] = labels;
    }
}

/// Sets a missing key, which may contain slashes.
fn set_default_at(map: &mut Value, key: &str, value: &Value) {
    if map[key].is_null() {
        map[key] = value.clone();
    }
}

/// Holds a claim that a Pod uses.
pub(crate) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";

/// The admission plugin TaintNodesByCondition: no Pod is scheduled on a new Node before it is ready.
fn taint_until_ready(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = &mut node["spec"]["taints"];
    if !each(taints).any(|one| one["key"] == taint["key"] && one["effect"] == taint["effect"]) {
        let all: Vec<Value> = each(taints).cloned().chain([taint]).collect();
        *taints = all.into();
    }
}

/// Moves the write-only `stringData` into `data`.
pub(crate) fn secret(object: &mut Value) {
    set_default(object, "/type", "Opaque".into());
    let Some(strings) = object.as_object_mut().and_then(|object| object.remove("stringData")) else { return };
    for (key, value) in strings.as_object().into_iter().flatten() {
        object["data"][key] = BASE64_STANDARD.encode(value.as_str().unwrap_or_default()).into();
    }
}

pub(crate) fn service(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/type", "ClusterIP".into());
    set_default(spec, "/sessionAffinity", "None".into());
    if spec["type"] != "ExternalName" {
        set_default(spec, "/internalTrafficPolicy", "Cluster".into());
    }
    if cluster_ip::is_reachable(spec) {
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
    if spec["type"] == "LoadBalancer" && !object["status"]["loadBalancer"]["ingress"].is_null() {
        for point in items(&mut object["status"]["loadBalancer"], "ingress") {
            if !text(&point["ip"]).is_empty() {
                set_default(point, "/ipMode", "VIP".into());
            }
        }
    }
}

pub(crate) fn deployment(object: &mut Value) {
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
}

pub(crate) fn replica_set(object: &mut Value) {
    set_default(object, "/spec/replicas", json!(1));
    template_defaults(&mut object["spec"]["template"]);
}

pub(crate) fn replication_controller(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    set_default(object, "/spec/selector", labels);
    label_as_template(object);
    replica_set(object);
}

pub(crate) fn daemon_set(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/updateStrategy/type", "RollingUpdate".into());
    if spec["updateStrategy"]["type"] == "RollingUpdate" {
        set_default(spec, "/updateStrategy/rollingUpdate/maxUnavailable", 1.into());
        set_default(spec, "/updateStrategy/rollingUpdate/maxSurge", 0.into());
    }
    set_default(spec, "/revisionHistoryLimit", 10.into());
    template_defaults(&mut spec["template"]);
    set_default_at(
        &mut object["metadata"]["annotations"],
        "deprecated.daemonset.template.generation",
        &"1".into(),
    );
    for field in ["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"] {
        set_default(object, &format!("/status/{field}"), 0.into());
    }
}

/// Without types, a policy is one of ingress, and also of egress if it has such rules.
pub(crate) fn network_policy(object: &mut Value) {
    let spec = &mut object["spec"];
    let types = if each(&spec["egress"]).next().is_some() {
        json!(["Ingress", "Egress"])
    } else {
        json!(["Ingress"])
    };
    set_default(spec, "/policyTypes", types);
}

/// The groups of the subjects and of the role.
pub(crate) fn role_binding(object: &mut Value) {
    for reference in items(object, "subjects") {
        if reference["kind"] == "User" || reference["kind"] == "Group" {
            set_default(reference, "/apiGroup", "rbac.authorization.k8s.io".into());
        }
    }
    // Clients in Go send an empty group.
    if object["roleRef"].is_object() && text(&object["roleRef"]["apiGroup"]).is_empty() {
        object["roleRef"]["apiGroup"] = "rbac.authorization.k8s.io".into();
    }
}

/// A request for devices asks for one device.
pub(crate) fn device_requests(spec: &mut Value) {
    let Some(devices) = spec.get_mut("devices") else { return };
    for request in items(devices, "requests") {
        let mut one = |request: &mut Value| {
            set_default(request, "/allocationMode", "ExactCount".into());
            if request["allocationMode"] == "ExactCount" {
                set_default(request, "/count", 1.into());
            }
        };
        request.get_mut("exactly").into_iter().for_each(&mut one);
        items(request, "firstAvailable").for_each(&mut one);
    }
}

pub(crate) fn claim(object: &mut Value) {
    set_default(object, "/spec/volumeMode", "Filesystem".into());
    set_default(object, "/status/phase", "Pending".into());
}

pub(crate) fn stateful_set(object: &mut Value) {
    let spec = &mut object["spec"];
    set_default(spec, "/podManagementPolicy", "OrderedReady".into());
    if spec["updateStrategy"]["type"].is_null() {
        set_default(spec, "/updateStrategy/type", "RollingUpdate".into());
        set_default(spec, "/updateStrategy/rollingUpdate", json!({}));
    }
    if let Some(Value::Object(rolling)) = spec.pointer_mut("/updateStrategy/rollingUpdate") {
        // The feature gate MaxUnavailableStatefulSet is off by default.
        rolling.remove("maxUnavailable");
        if spec["updateStrategy"]["type"] == "RollingUpdate" {
            set_default(spec, "/updateStrategy/rollingUpdate/partition", 0.into());
        }
    }
    for when in ["whenDeleted", "whenScaled"] {
        set_default(spec, &format!("/persistentVolumeClaimRetentionPolicy/{when}"), "Retain".into());
    }
    set_default(spec, "/replicas", 1.into());
    set_default(spec, "/revisionHistoryLimit", 10.into());
    set_default(spec, "/serviceName", "".into());
    if spec["ordinals"].is_object() {
        set_default(spec, "/ordinals/start", 0.into());
    }
    for template in items(spec, "volumeClaimTemplates") {
        template["apiVersion"] = "v1".into();
        template["kind"] = "PersistentVolumeClaim".into();
        claim(template);
    }
    template_defaults(&mut spec["template"]);
    set_default(object, "/status/availableReplicas", 0.into());
}

pub(crate) fn job(object: &mut Value) {
    job_spec_defaults(&mut object["spec"]);
    let spec = &mut object["spec"];
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        set_default(spec, "/completions", 1.into());
    }
    let limit = if spec["backoffLimitPerIndex"].is_null() { 6 } else { i32::MAX };
    let replacement = if spec["podFailurePolicy"].is_null() { "TerminatingOrFailed" } else { "Failed" };
    for (field, value) in [
        ("/parallelism", 1.into()),
        ("/backoffLimit", limit.into()),
        ("/completionMode", "NonIndexed".into()),
        ("/suspend", false.into()),
        ("/podReplacementPolicy", replacement.into()),
        ("/manualSelector", false.into()),
    ] {
        set_default(spec, field, value);
    }
    // A new Job gets its labels later, with those that the server generates.
    if !object["metadata"]["resourceVersion"].is_null() {
        label_as_template(object);
    }
}

/// The defaults of the template and the policies. The template of a CronJob has no other defaults of a Job.
fn job_spec_defaults(spec: &mut Value) {
    template_defaults(&mut spec["template"]);
    let Some(policy) = spec.get_mut("podFailurePolicy") else { return };
    for rule in items(policy, "rules") {
        for pattern in items(rule, "onPodConditions") {
            set_default(pattern, "/status", "True".into());
        }
    }
}

pub(crate) fn cron_job(object: &mut Value) {
    let spec = &mut object["spec"];
    for (field, value) in [
        ("/concurrencyPolicy", "Allow".into()),
        ("/suspend", false.into()),
        ("/successfulJobsHistoryLimit", 3.into()),
        ("/failedJobsHistoryLimit", 1.into()),
    ] {
        set_default(spec, field, value);
    }
    job_spec_defaults(&mut spec["jobTemplate"]["spec"]);
}

pub(crate) fn disruption_budget(object: &mut Value) {
    for field in ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"] {
        set_default(object, &format!("/status/{field}"), 0.into());
    }
}

pub(crate) fn pod(object: &mut Value) {
    let address = object["status"]["podIP"].clone();
    if !text(&address).is_empty() && object.pointer("/status/podIPs/0/ip") != Some(&address) {
        object["status"]["podIPs"] = json!([{"ip": address}]);
    }
    let spec = &mut object["spec"];
    pod_spec_defaults(spec);
    let has_host_network = spec["hostNetwork"] == true;
    for field in ["/serviceAccountName", "/serviceAccount"] {
        set_default(spec, field, "default".into());
    }
    for list in ["initContainers", "containers"] {
        items(spec, list).for_each(requests_defaults);
        if has_host_network {
            let ports = items(spec, list).flat_map(|container| items(container, "ports"));
            ports.for_each(|port| set_default(port, "/hostPort", port["containerPort"].clone()));
        }
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|secs| secs < 0) {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    set_default(spec, "/enableServiceLinks", true.into());
    set_default(spec, "/preemptionPolicy", "PreemptLowerPriority".into());
    set_default(spec, "/priority", 0.into());
    tolerate_outages(spec);
    let class = qos_class(spec);
    set_default(object, "/status/phase", "Pending".into());
    set_default(object, "/status/qosClass", class.into());
}

/// The admission plugin DefaultTolerationSeconds: a Pod tolerates an outage of its node for five minutes.
pub(crate) fn tolerate_outages(spec: &mut Value) {
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

/// A resource with a limit and no request gets its limit as its request.
fn requests_defaults(container: &mut Value) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(mut requests) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    requests.extend(resources.get("requests").and_then(Value::as_object).cloned().unwrap_or_default());
    resources.insert("requests".to_owned(), requests.into());
}

/// The QoS class: Guaranteed if all CPU and memory requests equal the limits, Burstable if any is set, or BestEffort.
pub(crate) fn qos_class(spec: &Value) -> &'static str {
    let (mut asks, mut has_all) = (false, true);
    for container in each(&spec["initContainers"]).chain(each(&spec["containers"])) {
        for resource in ["cpu", "memory"] {
            let [request, limit] = ["requests", "limits"]
                .map(|of| quantity(&container["resources"][of][resource]).filter(|one| *one > 0.0));
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

/// The defaults of every pod template, in a Deployment or a ReplicaSet.
pub(crate) fn template_defaults(template: &mut Value) {
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
    // `serviceAccount` is the deprecated name. It is read if `serviceAccountName` is missing, and always shown.
    if let Some(account) = spec.get("serviceAccount").cloned() {
        set_default(spec, "/serviceAccountName", account);
    }
    // Belongs to a feature gate that is off by default.
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
    downward_defaults(volume);
    for source in volume.get_mut("projected").into_iter().flat_map(|volume| items(volume, "sources")) {
        downward_defaults(source);
        // These belong to feature gates that are off by default.
        for certificates in ["clusterTrustBundle", "podCertificate"] {
            source.as_object_mut().map(|source| source.remove(certificates));
        }
        if source["serviceAccountToken"].is_object() {
            set_default(source, "/serviceAccountToken/expirationSeconds", 3600.into());
        }
    }
    if let Some(template) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
        set_default(template, "/volumeMode", "Filesystem".into());
    }
    host_path(volume);
}

/// The path of the node that a Pod's volume or a PersistentVolume is.
pub(crate) fn host_path(volume: &mut Value) {
    if volume["hostPath"].is_object() {
        set_default(&mut volume["hostPath"], "/type", "".into());
    }
}

/// The defaults of the downward API in a volume, or in a source of a projected volume.
fn downward_defaults(volume: &mut Value) {
    if let Some(source) = volume.get_mut("downwardAPI") {
        items(source, "items").for_each(reference_defaults);
    }
}

/// The defaults of a reference to a field of the Pod, or to a resource of a container.
fn reference_defaults(reference: &mut Value) {
    if reference["fieldRef"].is_object() {
        set_default(reference, "/fieldRef/apiVersion", "v1".into());
    }
    if reference["resourceFieldRef"].is_object() {
        set_default(reference, "/resourceFieldRef/divisor", "0".into());
    }
}

fn container_defaults(container: &mut Value) {
    // An image without a tag, or with the tag `latest`, can change: it is pulled each time.
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    set_default(container, "/imagePullPolicy", if latest { "Always" } else { "IfNotPresent" }.into());
    set_default(container, "/terminationMessagePath", "/dev/termination-log".into());
    set_default(container, "/terminationMessagePolicy", "File".into());
    for port in items(container, "ports") {
        set_default(port, "/protocol", "TCP".into());
    }
    for variable in items(container, "env") {
        if let Some(reference) = variable.get_mut("valueFrom") {
            reference_defaults(reference);
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

/// Sets the defaults of the HTTP request of a probe or a hook.
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

/// Sets a field that is missing or null, and creates its parents.
pub(crate) fn set_default(object: &mut Value, pointer: &str, value: Value) {
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

/// The items of a list, if it exists. Indexing would create the list, as null.
fn items<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}
