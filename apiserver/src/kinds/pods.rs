//! Validation of Pods and pod templates: the mistakes that authors of manifests are likely to make.
//!
//! ```text
//! Pod "web" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "data"
//! ```
//!
//! Affinities, topology spread constraints, resource claims and the rarer volumes are checked for their types only.

pub(crate) mod resize;
pub(crate) mod resources;
mod security;

pub(crate) use security::{APP_ARMOR, NO_APP_ARMOR, app_armor_profile, set_app_armor};

use listwatch_formats::quantity::quantity;
use serde_json::{Value, json};

use crate::{
    kinds::{
        addresses::not_address,
        field_checks::{
            NOT_NEGATIVE, PORT_RANGE, each, is_port, not_negative, not_one_of, port_name_errors, text,
        },
    },
    names::{
        causes, label_errors, label_value_errors, labels_errors, qualified_name_errors, subdomain_errors,
    },
    status::Cause,
};

const POD_FIXED: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
    additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously \
    negative)";

pub(crate) fn pod(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    let spec = &object["spec"];
    pod_spec(&mut all, spec, "spec");
    if let Some(before) = before {
        changes(&mut all, spec, &before["spec"]);
    } else if is_gated(spec) && !text(&spec["nodeName"]).is_empty() {
        let text = "cannot be set until all schedulingGates have been cleared";
        all.push(Cause::forbidden("spec.nodeName", text));
    }
    all
}

/// The Pod itself, or the template of the Pods that a controller makes; and its path.
pub(crate) fn template<'a>(kind: &str, object: &'a Value) -> Option<(&'static str, &'a Value)> {
    let spec = &object["spec"];
    let (at, template) = match kind {
        "Pod" => ("", object),
        "PodTemplate" => ("template", &object["template"]),
        "CronJob" => ("spec.jobTemplate.spec.template", &spec["jobTemplate"]["spec"]["template"]),
        "ReplicationController" | "ReplicaSet" | "Deployment" | "StatefulSet" | "DaemonSet" | "Job" => {
            ("spec.template", &spec["template"])
        }
        _ => return None,
    };
    (!template.is_null()).then_some((at, template))
}

/// Whether a Pod must not be scheduled yet. See
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/>.
pub(crate) fn is_gated(spec: &Value) -> bool {
    each(&spec["schedulingGates"]).next().is_some()
}

/// Whether all containers of a Pod have ended for good.
pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Refuses changes of immutable fields of a Pod's spec.
fn changes(all: &mut Vec<Cause>, spec: &Value, before: &Value) {
    let (deadline, was) = (&spec["activeDeadlineSeconds"], before["activeDeadlineSeconds"].as_i64());
    let text = match (deadline.as_i64(), was) {
        (Some(secs), Some(was)) if secs > was => "must be less than or equal to previous value",
        (None, Some(_)) => "must not update from a positive integer to nil value",
        _ => "",
    };
    if !text.is_empty() {
        all.push(Cause::invalid("spec.activeDeadlineSeconds", deadline, text));
    }
    let is_kept = |was: &Value| each(&spec["tolerations"]).any(|one| without_time(one) == without_time(was));
    if !each(&before["tolerations"]).all(is_kept) {
        let text = "existing toleration can not be modified except its tolerationSeconds";
        all.push(Cause::forbidden("spec.tolerations", text));
    }
    for (index, gate) in each(&spec["schedulingGates"]).enumerate() {
        if !each(&before["schedulingGates"]).any(|was| was["name"] == gate["name"]) {
            let name = gate["name"].as_str().unwrap_or_default();
            let text = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            all.push(Cause::forbidden(format!("spec.schedulingGates[{index}].name"), &text));
        }
    }
    let mut selected = before["nodeSelector"].as_object().into_iter().flatten();
    if is_gated(before) && selected.any(|(key, value)| spec["nodeSelector"].get(key) != Some(value)) {
        let text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        all.push(Cause::invalid("spec.nodeSelector", &spec["nodeSelector"], text));
    }
    if fixed_part(spec, before) != fixed_part(before, before) {
        all.push(Cause::forbidden("spec", POD_FIXED));
    }
}

fn without_time(toleration: &Value) -> Value {
    let mut toleration = toleration.clone();
    if let Some(fields) = toleration.as_object_mut() {
        fields.remove("tolerationSeconds");
    }
    toleration
}

/// The immutable fields of a spec. A scheduler may still set an empty `nodeName`.
fn fixed_part(spec: &Value, before: &Value) -> Value {
    let mut spec = spec.clone();
    let Some(fields) = spec.as_object_mut() else { return spec };
    fields.retain(|field, _| match field.as_str() {
        "nodeName" => !before["nodeName"].is_null(),
        "nodeSelector" => !is_gated(before),
        field => !matches!(field, "activeDeadlineSeconds" | "schedulingGates" | "tolerations"),
    });
    for list in ["containers", "initContainers"] {
        for container in fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container["image"] = Value::Null;
        }
    }
    spec
}

/// Validates a PodSpec, of a Pod or of a template.
pub(crate) fn pod_spec(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    names(all, &spec["volumes"], &format!("{at}.volumes"));
    if each(&spec["containers"]).next().is_none() {
        all.push(Cause::required(format!("{at}.containers"), ""));
    }
    for list in ["containers", "initContainers"] {
        let at = format!("{at}.{list}");
        for (index, one) in each(&spec[list]).enumerate() {
            let (at, mut earlier) = (format!("{at}[{index}]"), each(&spec[list]).take(index));
            container(all, one, spec, &at);
            if list == "containers" || one["restartPolicy"] == "Always" {
                checks_and_hooks(all, one, spec, &at);
            } else {
                let text = "may not be set for init containers without restartPolicy=Always";
                let fields = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
                let there = fields.into_iter().filter(|field| !one[field].is_null());
                all.extend(there.map(|field| Cause::forbidden(format!("{at}.{field}"), text)));
            }
            let other = each(&spec["containers"])
                .find(|other| list == "initContainers" && other["name"] == one["name"]);
            if other.is_some() || earlier.any(|other| !one["name"].is_null() && other["name"] == one["name"])
            {
                all.push(Cause::duplicate(format!("{at}.name"), &one["name"]));
            }
        }
    }
    for (field, supported) in [
        ("restartPolicy", ["Always", "OnFailure", "Never"].as_slice()),
        ("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    ] {
        // A template without a spec has no defaults.
        if !spec[field].is_null() {
            not_one_of(all, format!("{at}.{field}"), &spec[field], supported);
        }
    }
    if spec["dnsPolicy"] == "None" && spec["dnsConfig"].is_null() {
        let text = "must provide `dnsConfig` when `dnsPolicy` is None";
        all.push(Cause::required(format!("{at}.dnsConfig"), text));
    }
    let deadline = &spec["activeDeadlineSeconds"];
    if deadline.as_i64().is_some_and(|secs| !(1..=i64::from(i32::MAX)).contains(&secs)) {
        let text = "must be between 1 and 2147483647, inclusive";
        all.push(Cause::invalid(format!("{at}.activeDeadlineSeconds"), deadline, text));
    }
    for (field, errors) in [
        ("serviceAccountName", subdomain_errors as fn(&str) -> Vec<String>),
        ("hostname", label_errors),
        ("subdomain", label_errors),
    ] {
        let name = text(&spec[field]);
        if !name.is_empty() {
            all.extend(causes(&format!("{at}.{field}"), name, errors(name)));
        }
    }
    all.extend(labels_errors(&format!("{at}.nodeSelector"), &spec["nodeSelector"]));
    resources(all, &json!({"limits": spec["overhead"]}), &format!("{at}.overhead"));
    hostname_override(all, spec, at);
    security::pod(all, spec, at);
    security::system(all, spec, at);
    dns(all, &spec["dnsConfig"], &format!("{at}.dnsConfig"));
    volumes(all, &spec["volumes"], &format!("{at}.volumes"));
    tolerations(all, &spec["tolerations"], &format!("{at}.tolerations"));
    for (index, gate) in each(&spec["schedulingGates"]).enumerate() {
        let (at, name) = (format!("{at}.schedulingGates[{index}]"), text(&gate["name"]));
        all.extend(causes(&at, name, qualified_name_errors(name)));
        if each(&spec["schedulingGates"]).take(index).any(|other| other["name"] == gate["name"]) {
            all.push(Cause::duplicate(at, &gate["name"]));
        }
    }
    for (index, alias) in each(&spec["hostAliases"]).enumerate() {
        not_address(all, format!("{at}.hostAliases[{index}].ip"), &alias["ip"]);
    }
    let node = text(&spec["nodeName"]);
    if !node.is_empty() {
        all.extend(causes(&format!("{at}.nodeName"), node, subdomain_errors(node)));
    }
}

fn dns(all: &mut Vec<Cause>, config: &Value, at: &str) {
    for (index, server) in each(&config["nameservers"]).enumerate() {
        not_address(all, format!("{at}.nameservers[{index}]"), server);
    }
    for (index, option) in each(&config["options"]).enumerate() {
        if text(&option["name"]).is_empty() {
            all.push(Cause::required(format!("{at}.options[{index}]"), "must not be empty"));
        }
    }
}

fn hostname_override(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    let Some(name) = spec["hostnameOverride"].as_str() else { return };
    let at = format!("{at}.hostnameOverride");
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        let text = format!("may not be specified when {field} is true");
        all.extend((spec[field] == true).then(|| Cause::forbidden(&*at, &text)));
    }
    if name.len() > 64 {
        all.push(Cause::too_long(&*at, "may not be more than 64 bytes"));
    }
    all.extend(causes(&at, name, subdomain_errors(name)));
}

/// Validates the names of a list: each is required, a DNS label, and unique.
fn names(all: &mut Vec<Cause>, list: &Value, at: &str) {
    for (index, item) in each(list).enumerate() {
        let field = format!("{at}[{index}].name");
        match text(&item["name"]) {
            "" => all.push(Cause::required(field, "")),
            name => {
                all.extend(causes(&field, name, label_errors(name)));
                if each(list).take(index).any(|other| other["name"] == name) {
                    all.push(Cause::duplicate(field, &item["name"]));
                }
            }
        }
    }
}

fn container(all: &mut Vec<Cause>, one: &Value, spec: &Value, at: &str) {
    let name = text(&one["name"]);
    match name {
        "" => all.push(Cause::required(format!("{at}.name"), "")),
        name => all.extend(causes(&format!("{at}.name"), name, label_errors(name))),
    }
    match text(&one["image"]) {
        "" => all.push(Cause::required(format!("{at}.image"), "")),
        image if image.trim() != image => {
            let text = "must not have leading or trailing whitespace";
            all.push(Cause::invalid(format!("{at}.image"), &image.into(), text));
        }
        _ => {}
    }
    container_ports(all, &one["ports"], &format!("{at}.ports"));
    variables(all, one, at);
    for (index, mount) in each(&one["volumeMounts"]).enumerate() {
        let at = format!("{at}.volumeMounts[{index}]");
        if text(&mount["name"]).is_empty() {
            all.push(Cause::required(format!("{at}.name"), ""));
        } else if !each(&spec["volumes"]).any(|volume| volume["name"] == mount["name"]) {
            all.push(Cause::not_found(format!("{at}.name"), &mount["name"]));
        }
        let path = &mount["mountPath"];
        if text(path).is_empty() {
            all.push(Cause::required(format!("{at}.mountPath"), ""));
        } else if each(&one["volumeMounts"]).take(index).any(|other| other["mountPath"] == *path) {
            all.push(Cause::invalid(format!("{at}.mountPath"), path, "must be unique"));
        }
    }
    let policies = ["Always", "IfNotPresent", "Never"];
    not_one_of(all, format!("{at}.imagePullPolicy"), &one["imagePullPolicy"], &policies);
    let policy = &one["terminationMessagePolicy"];
    if !policy.is_null() {
        let field = format!("{at}.terminationMessagePolicy");
        not_one_of(all, field, policy, &["File", "FallbackToLogsOnError"]);
    }
    resources(all, &one["resources"], &format!("{at}.resources"));
    security::container(all, &one["securityContext"], spec, &format!("{at}.securityContext"));
    devices(all, one, spec, &format!("{at}.volumeDevices"));
    restarts(all, one, at);
}

/// Validates the probes and hooks of a container or a sidecar.
fn checks_and_hooks(all: &mut Vec<Cause>, one: &Value, spec: &Value, at: &str) {
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        self::probe(all, &one[probe], probe, &format!("{at}.{probe}"));
    }
    for hook in ["postStart", "preStop"] {
        let (hook, at) = (&one["lifecycle"][hook], format!("{at}.lifecycle.{hook}"));
        handler(all, hook, &at);
        let (secs, grace) = (&hook["sleep"]["seconds"], &spec["terminationGracePeriodSeconds"]);
        if let Some(grace) = grace.as_i64()
            && secs.as_i64().is_some_and(|secs| !(0..=grace).contains(&secs))
        {
            let text = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
            all.push(Cause::invalid(format!("{at}.sleep"), secs, &text));
        }
    }
    let grace = &one["readinessProbe"]["terminationGracePeriodSeconds"];
    if !grace.is_null() {
        let field = format!("{at}.readinessProbe.terminationGracePeriodSeconds");
        all.push(Cause::invalid(field, grace, "must not be set for readinessProbes"));
    }
}

/// Validates `volumeDevices`: volumes that a container has as block devices.
fn devices(all: &mut Vec<Cause>, one: &Value, spec: &Value, at: &str) {
    for (index, device) in each(&one["volumeDevices"]).enumerate() {
        let (at, name) = (format!("{at}[{index}]"), &device["name"]);
        let is_claim =
            |volume: &Value| !volume["persistentVolumeClaim"].is_null() || !volume["ephemeral"].is_null();
        match each(&spec["volumes"]).find(|volume| volume["name"] == *name) {
            None => all.push(Cause::not_found(format!("{at}.name"), name)),
            Some(volume) if !is_claim(volume) => {
                let text =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                all.push(Cause::invalid(format!("{at}.name"), name, text));
            }
            Some(_) => {}
        }
        let mut earlier = each(&one["volumeDevices"]).take(index);
        let mut mounts = each(&one["volumeMounts"]);
        let path = &device["devicePath"];
        if text(path).is_empty() {
            all.push(Cause::required(format!("{at}.devicePath"), ""));
        } else if earlier.any(|other| other["devicePath"] == *path) {
            all.push(Cause::invalid(format!("{at}.devicePath"), path, "must be unique"));
        }
        if mounts.any(|mount| mount["name"] == *name) {
            all.push(Cause::invalid(format!("{at}.name"), name, "must not already exist in volumeMounts"));
        }
    }
}

/// Validates `resizePolicy` and the restart rules of a container.
fn restarts(all: &mut Vec<Cause>, one: &Value, at: &str) {
    for (index, policy) in each(&one["resizePolicy"]).enumerate() {
        let (field, resource) = (format!("{at}.resizePolicy"), text_of(&policy["resourceName"]));
        if each(&one["resizePolicy"]).take(index).any(|other| text(&other["resourceName"]) == resource) {
            all.push(Cause::duplicate(format!("{field}[{index}]"), &resource));
        }
        for (name, supported) in
            [("resourceName", ["cpu", "memory"]), ("restartPolicy", ["NotRequired", "RestartContainer"])]
        {
            match text(&policy[name]) {
                "" => all.push(Cause::required(&*field, "")),
                _ => not_one_of(all, field.clone(), &policy[name], &supported),
            }
        }
    }
    let policy = &one["restartPolicy"];
    if !policy.is_null() {
        not_one_of(all, format!("{at}.restartPolicy"), policy, &["Always", "Never", "OnFailure"]);
    } else if each(&one["restartPolicyRules"]).next().is_some() {
        let text = "must specify restartPolicy when restart rules are used";
        all.push(Cause::required(format!("{at}.restartPolicy"), text));
    }
    for (index, rule) in each(&one["restartPolicyRules"]).enumerate() {
        let at = format!("{at}.restartPolicyRules[{index}]");
        let action = text_of(&rule["action"]);
        not_one_of(all, format!("{at}.action"), &action, &["Restart", "RestartAllContainers"]);
        if rule["exitCodes"].is_null() {
            all.push(Cause::required(format!("{at}.exitCodes"), "must be specified"));
        } else {
            let operator = text_of(&rule["exitCodes"]["operator"]);
            not_one_of(all, format!("{at}.exitCodes.operator"), &operator, &["In", "NotIn"]);
        }
    }
}

/// Validates `env` and `envFrom`.
fn variables(all: &mut Vec<Cause>, one: &Value, at: &str) {
    for (index, variable) in each(&one["env"]).enumerate() {
        let at = format!("{at}.env[{index}]");
        match text(&variable["name"]) {
            "" => all.push(Cause::required(format!("{at}.name"), "")),
            name if name.contains('=') || !name.chars().all(|c| matches!(c, ' '..='~')) => {
                let text = "a valid environment variable name must consist only of printable ASCII characters other \
                    than '='";
                all.push(Cause::invalid(format!("{at}.name"), &name.into(), text));
            }
            _ => {}
        }
        if !variable["valueFrom"].is_null() && !text(&variable["value"]).is_empty() {
            let text = "may not be specified when `value` is not empty";
            all.push(Cause::invalid(format!("{at}.valueFrom"), &"".into(), text));
        }
        variable_source(all, &variable["valueFrom"], &format!("{at}.valueFrom"));
    }
    for (index, from) in each(&one["envFrom"]).enumerate() {
        let sources: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|source| !from[source].is_null()).collect();
        if sources.is_empty() {
            let text = "must specify one of: `configMapRef` or `secretRef`";
            all.push(Cause::invalid(format!("{at}.envFrom"), &"".into(), text));
        }
        for source in sources.into_iter().filter(|source| text(&from[source]["name"]).is_empty()) {
            all.push(Cause::required(format!("{at}.envFrom[{index}].{source}.name"), ""));
        }
    }
}

/// Validates `valueFrom` of a variable.
fn variable_source(all: &mut Vec<Cause>, from: &Value, at: &str) {
    let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    if !from.is_null() && sources.iter().all(|source| from[source].is_null()) {
        let [first @ .., last] = sources.map(|source| format!("`{source}`"));
        let text = format!("must specify one of: {} or {last}", first.join(", "));
        all.push(Cause::invalid(at, &"".into(), &text));
    }
    for source in ["configMapKeyRef", "secretKeyRef"] {
        if !from[source].is_null() && text(&from[source]["key"]).is_empty() {
            all.push(Cause::required(format!("{at}.{source}.key"), ""));
        }
    }
    let path = text(&from["fieldRef"]["fieldPath"]);
    let is_known = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.labels",
        "metadata.annotations",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.podIP",
    ]
    .iter()
    .any(|known| path.starts_with(known));
    if !path.is_empty() && !is_known {
        let text = format!("error converting fieldPath: field label not supported: {path}");
        all.push(Cause::invalid(format!("{at}.fieldRef.fieldPath"), &path.into(), &text));
    }
}

/// Compute resources that every node has.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Whether Kubernetes defines the resource: `IsNativeResource`. Extended resources are integers, without overcommit.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn resources(all: &mut Vec<Cause>, resources: &Value, at: &str) {
    for part in ["limits", "requests"] {
        for (name, amount) in resources[part].as_object().into_iter().flatten() {
            let field = format!("{at}.{part}[{name}]");
            let is_known = RESOURCES.contains(&&**name) || name.starts_with("hugepages-");
            if !is_known && !name.contains('/') {
                for text in [
                    "must be a standard resource type or fully qualified",
                    "must be a standard resource for containers",
                ] {
                    all.push(Cause::invalid(&*field, &name.as_str().into(), text));
                }
            }
            let number = quantity(amount).unwrap_or_default();
            if number < 0.0 {
                all.push(Cause::invalid(&*field, amount, NOT_NEGATIVE));
            }
            if !is_native(name) && (number * 1000.0).round() % 1000.0 != 0.0 {
                all.push(Cause::invalid(field, amount, "must be an integer"));
            }
        }
    }
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let limit = &resources["limits"][name];
        let may_overcommit = is_native(name) && !name.starts_with("hugepages-");
        if limit.is_null() && !may_overcommit {
            let text = "Limit must be set for non overcommitable resources";
            all.push(Cause::required(format!("{at}.limits"), text));
        }
        let amounts = (quantity(request), quantity(limit));
        let (is_over, most) = match amounts {
            (Some(request), Some(limit)) if !may_overcommit => (request != limit, "equal to"),
            (Some(request), Some(limit)) => (request > limit, "less than or equal to"),
            (None, _) | (_, None) => (false, ""),
        };
        if is_over {
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = format!("must be {most} {name} limit of {}", shown(limit));
            all.push(Cause::invalid(format!("{at}.requests"), &shown(request).into(), &text));
        }
    }
}

fn probe(all: &mut Vec<Cause>, probe: &Value, name: &str, at: &str) {
    handler(all, probe, at);
    let counts =
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    not_negative(all, probe, at, &counts);
    let grace = &probe["terminationGracePeriodSeconds"];
    if grace.as_i64().is_some_and(|secs| secs <= 0) {
        let field = format!("{at}.terminationGracePeriodSeconds");
        all.push(Cause::invalid(field, grace, "must be greater than 0"));
    }
    let successes = &probe["successThreshold"];
    if name != "readinessProbe" && successes.as_i64().is_some_and(|successes| successes > 1) {
        all.push(Cause::invalid(format!("{at}.successThreshold"), successes, "must be 1"));
    }
}

/// Validates the action of a probe or a hook: exactly one.
fn handler(all: &mut Vec<Cause>, handler: &Value, at: &str) {
    if handler.is_null() {
        return;
    }
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut found = kinds.iter().filter(|kind| !handler[kind].is_null());
    if found.next().is_none() {
        all.push(Cause::required(at, "must specify a handler type"));
    }
    for kind in found {
        all.push(Cause::forbidden(format!("{at}.{kind}"), "may not specify more than 1 handler type"));
    }
    if !handler["exec"].is_null() && each(&handler["exec"]["command"]).next().is_none() {
        all.push(Cause::required(format!("{at}.exec.command"), ""));
    }
    for kind in ["httpGet", "tcpSocket", "grpc"] {
        let (port, field) = (&handler[kind]["port"], format!("{at}.{kind}.port"));
        match port {
            _ if handler[kind].is_null() => {}
            Value::String(name) => all.extend(causes(&field, name, port_name_errors(name))),
            Value::Null => all.push(Cause::invalid(field, &0.into(), PORT_RANGE)),
            port if !is_port(port) => all.push(Cause::invalid(field, port, PORT_RANGE)),
            _ => {}
        }
    }
}

/// The required field of some types of volumes.
const VOLUMES: [(&str, &str); 4] = [
    ("hostPath", "path"),
    ("secret", "secretName"),
    ("persistentVolumeClaim", "claimName"),
    ("configMap", "name"),
];

fn volumes(all: &mut Vec<Cause>, volumes: &Value, at: &str) {
    for (index, volume) in each(volumes).enumerate() {
        let at = format!("{at}[{index}]");
        let sources = [
            "hostPath",
            "emptyDir",
            "secret",
            "persistentVolumeClaim",
            "downwardAPI",
            "configMap",
            "projected",
        ];
        for source in sources.iter().filter(|source| !volume[source].is_null()).skip(1) {
            let text = "may not specify more than 1 volume type";
            all.push(Cause::forbidden(format!("{at}.{source}"), text));
        }
        for (source, field) in VOLUMES {
            if !volume[source].is_null() && text(&volume[source][field]).is_empty() {
                all.push(Cause::required(format!("{at}.{source}.{field}"), ""));
            }
        }
    }
}

fn tolerations(all: &mut Vec<Cause>, tolerations: &Value, at: &str) {
    for (index, toleration) in each(tolerations).enumerate() {
        let at = format!("{at}[{index}]");
        let (operator, key) = (text(&toleration["operator"]), text(&toleration["key"]));
        let field = format!("{at}.operator");
        if !key.is_empty() {
            all.extend(causes(&format!("{at}.key"), key, qualified_name_errors(key)));
        } else if operator != "Exists" {
            let text =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            all.push(Cause::invalid(&*field, &operator.into(), text));
        }
        if !toleration["tolerationSeconds"].is_null() && toleration["effect"] != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            all.push(Cause::invalid(format!("{at}.effect"), &text_of(&toleration["effect"]), text));
        }
        let value = text(&toleration["value"]);
        match operator {
            "Equal" | "" => all.extend(causes(&field, value, label_value_errors(value))),
            "Exists" if !value.is_empty() => {
                let text = "value must be empty when `operator` is 'Exists'";
                all.push(Cause::invalid(field, &value.into(), text));
            }
            _ => not_one_of(all, field, &operator.into(), &["Equal", "Exists"]),
        }
        let effect = &toleration["effect"];
        if !text(effect).is_empty() {
            not_one_of(all, format!("{at}.effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

fn text_of(value: &Value) -> Value {
    text(value).into()
}

fn container_ports(all: &mut Vec<Cause>, ports: &Value, at: &str) {
    for (index, port) in each(ports).enumerate() {
        let at = format!("{at}[{index}]");
        let name = text(&port["name"]);
        if !name.is_empty() {
            all.extend(causes(&format!("{at}.name"), name, port_name_errors(name)));
            if each(ports).take(index).any(|other| other["name"] == name) {
                all.push(Cause::duplicate(format!("{at}.name"), &port["name"]));
            }
        }
        let number = &port["containerPort"];
        if number.is_null() || *number == 0 {
            all.push(Cause::required(format!("{at}.containerPort"), ""));
        } else if !is_port(number) {
            all.push(Cause::invalid(format!("{at}.containerPort"), number, PORT_RANGE));
        }
        let host = &port["hostPort"];
        if !host.is_null() && *host != 0 && !is_port(host) {
            all.push(Cause::invalid(format!("{at}.hostPort"), host, PORT_RANGE));
        }
        not_one_of(all, format!("{at}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"]);
    }
}
