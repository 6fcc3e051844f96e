//! Validation of the built-in kinds, after the check of their types: a small function for each kind.
//!
//! ```text
//! Deployment.apps "web" is invalid: spec.template.metadata.labels: Invalid value: {"app":"x"}: `selector` does not match …
//! ```
//!
//! The rules, their order and their messages are as in pkg/apis/*/validation, as far as authors of operators need
//! them. Pods are in `pods.rs`.

use std::net::IpAddr;

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use crate::{
    kinds::{
        addresses::{not_address, not_routable},
        cluster_ip, defaults, events,
        field_checks::{
            IMMUTABLE, NOT_NEGATIVE, PORT_RANGE, each, is_empty, is_port, not_negative, not_one_of,
            port_name_errors, text,
        },
        pods::pod_spec,
    },
    names::{
        causes, label_errors, label_value_errors, labels_errors, qualified_name_errors, subdomain_errors,
    },
    status::Cause,
};

/// Validates the keys of a ConfigMap or a Secret: they become names of files.
fn data_keys(all: &mut Vec<Cause>, object: &Value, field: &str) {
    for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let error = if key.len() > 253 {
            "must be no more than 253 characters"
        } else if key.is_empty() || !key.chars().all(plain) {
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
                'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        } else if key == "." {
            "must not be '.'"
        } else if key == ".." {
            "must not be '..'"
        } else if key.starts_with("..") {
            "must not start with '..'"
        } else {
            continue;
        };
        all.push(Cause::invalid(format!("{field}[{key}]"), &key.into(), error));
    }
}

fn immutable_data(all: &mut Vec<Cause>, object: &Value, before: Option<&Value>, fields: &[&str]) {
    let Some(before) = before.filter(|before| before["immutable"] == true) else { return };
    let changed = ["immutable"].iter().chain(fields).filter(|field| object[**field] != before[**field]);
    all.extend(changed.map(|field| Cause::forbidden(*field, "field is immutable when `immutable` is set")));
}

pub(crate) fn config_map(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    data_keys(&mut all, object, "data");
    data_keys(&mut all, object, "binaryData");
    for (key, _) in object["data"].as_object().into_iter().flatten() {
        if !object["binaryData"][key].is_null() {
            let text = "duplicate of key present in binaryData";
            all.push(Cause::invalid(format!("data[{key}]"), &key.as_str().into(), text));
        }
    }
    // A cause without a field has the path `[]` in Go.
    all.extend(too_large("[]", &object["data"], &object["binaryData"]));
    immutable_data(&mut all, object, before, &["data", "binaryData"]);
    all
}

/// Most bytes of all values of a ConfigMap or a Secret: MaxSecretSize in pkg/apis/core/types.go. etcd refuses objects
/// above 1.5 MiB.
const DATA_BYTES_MAX: usize = 1024 * 1024;

fn too_large(field: &str, texts: &Value, base64: &Value) -> Option<Cause> {
    let mut bytes = 0;
    for value in texts.as_object().into_iter().flatten().map(|(_, value)| text(value)) {
        bytes += value.len();
    }
    for value in base64.as_object().into_iter().flatten().map(|(_, value)| text(value)) {
        bytes += value.trim_end_matches('=').len() * 3 / 4;
    }
    let text = format!("may not be more than {DATA_BYTES_MAX} bytes");
    (bytes > DATA_BYTES_MAX).then(|| Cause::too_long(field, &text))
}

/// The keys that each type of Secret must have.
const SECRET_KEYS: [(&str, &[&str]); 4] = [
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
];

pub(crate) fn secret(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    data_keys(&mut all, object, "data");
    all.extend(too_large("data", &Value::Null, &object["data"]));
    let has = |key: &str| !object["data"][key].is_null();
    for (kind, keys) in SECRET_KEYS {
        let missing = keys.iter().filter(|key| object["type"] == kind && !has(key));
        all.extend(missing.map(|key| Cause::required(format!("data[{key}]"), "")));
    }
    if object["type"] == "kubernetes.io/basic-auth" && !has("username") && !has("password") {
        all.extend(["data[username]", "data[password]"].map(|field| Cause::required(field, "")));
    }
    let account = "kubernetes.io/service-account.name";
    if object["type"] == "kubernetes.io/service-account-token"
        && text(&object["metadata"]["annotations"][account]).is_empty()
    {
        all.push(Cause::required(format!("metadata.annotations[{account}]"), ""));
    }
    if before.is_some_and(|before| before["type"] != object["type"]) {
        all.push(Cause::invalid("type", &object["type"], IMMUTABLE));
    }
    immutable_data(&mut all, object, before, &["data"]);
    all
}

/// `validateService`. `cluster_ip.rs` has validated the addresses before.
pub(crate) fn service(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let old = before.map_or(&Value::Null, |before| &before["spec"]);
    let mut all = Vec::new();
    let is_alias = spec["type"] == "ExternalName";
    if !is_alias && !old["clusterIP"].is_null() && old["clusterIP"] != spec["clusterIP"] {
        let addresses = json!([spec["clusterIP"]]);
        all.push(Cause::invalid("spec.clusterIPs[0]", &addresses, "may not change once set"));
    }
    let is_load_balancer = cluster_ip::is_load_balancer(spec);
    let class = &spec["loadBalancerClass"];
    if is_load_balancer && cluster_ip::is_load_balancer(old) && old["loadBalancerClass"] != *class {
        all.push(Cause::invalid("spec.loadBalancerClass", class, "may not change once set"));
    }
    if each(&spec["ports"]).next().is_none() && spec["clusterIP"] != "None" && !is_alias {
        all.push(Cause::required("spec.ports", ""));
    }
    if spec["clusterIP"] == "None" && cluster_ip::needs_node_ports(spec) {
        let text = format!("may not be set to 'None' for {} services", text(&spec["type"]));
        all.push(Cause::invalid("spec.clusterIPs[0]", &spec["clusterIP"], &text));
    }
    if is_alias {
        let there =
            ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].into_iter().filter(|field| !spec[field].is_null());
        let why = "may not be set for ExternalName services";
        all.extend(there.map(|field| Cause::forbidden(format!("spec.{field}"), why)));
        match text(&spec["externalName"]).trim_end_matches('.') {
            "" => all.push(Cause::required("spec.externalName", "")),
            name => all.extend(causes("spec.externalName", name, subdomain_errors(name))),
        }
    }
    service_ports(&mut all, spec);
    all.extend(labels_errors("spec.selector", &spec["selector"]));
    not_one_of(&mut all, "spec.sessionAffinity".to_owned(), &spec["sessionAffinity"], &["ClientIP", "None"]);
    let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    if seconds.as_i64().is_some_and(|seconds| !(1..=86_400).contains(&seconds)) {
        let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        all.push(Cause::invalid(field, seconds, "must be greater than 0 and less than 86400"));
    }
    all.extend(cluster_ip::address_errors(spec));
    for (index, address) in each(&spec["externalIPs"]).enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        not_routable(&mut all, &field, address);
        not_address(&mut all, field, address);
    }
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    not_one_of(&mut all, "spec.type".to_owned(), &spec["type"], &types);
    node_ports(&mut all, spec);
    source_ranges(&mut all, object);
    let text = "may only be used when `type` is 'LoadBalancer'";
    if !is_load_balancer && !spec["allocateLoadBalancerNodePorts"].is_null() {
        all.push(Cause::forbidden("spec.allocateLoadBalancerNodePorts", text));
    }
    match class.as_str() {
        Some(class) if is_load_balancer => {
            all.extend(causes("spec.loadBalancerClass", class, qualified_name_errors(class)));
        }
        Some(_) => all.push(Cause::forbidden("spec.loadBalancerClass", text)),
        None => {}
    }
    traffic(&mut all, spec, old);
    load_balancer_status(&mut all, object);
    all
}

/// `ValidateLoadBalancerStatus`.
fn load_balancer_status(all: &mut Vec<Cause>, service: &Value) {
    let (ingress, field) = (&service["status"]["loadBalancer"]["ingress"], "status.loadBalancer.ingress");
    if !cluster_ip::is_load_balancer(&service["spec"]) && each(ingress).next().is_some() {
        all.push(Cause::forbidden(field, "may only be used when `spec.type` is 'LoadBalancer'"));
        return;
    }
    for (index, point) in each(ingress).enumerate() {
        let (address, mode, host) = (text(&point["ip"]), &point["ipMode"], text(&point["hostname"]));
        let at = |name: &str| format!("{field}[{index}].{name}");
        if !address.is_empty() {
            not_address(all, at("ip"), &point["ip"]);
        }
        if address.is_empty() && !mode.is_null() {
            all.push(Cause::forbidden(at("ipMode"), "may not be specified when `ip` is not set"));
        } else if !mode.is_null() {
            not_one_of(all, at("ipMode"), mode, &["Proxy", "VIP"]);
        }
        if !host.is_empty() {
            all.extend(causes(&at("hostname"), host, subdomain_errors(host)));
        }
        if host.parse::<IpAddr>().is_ok() {
            let text = "must be a DNS name, not an IP address";
            all.push(Cause::invalid(at("hostname"), &point["hostname"], text));
        }
    }
}

/// Validates the traffic policies and the health check port.
fn traffic(all: &mut Vec<Cause>, spec: &Value, old: &Value) {
    let policy = &spec["externalTrafficPolicy"];
    if cluster_ip::is_reachable(spec) {
        not_one_of(all, "spec.externalTrafficPolicy".to_owned(), policy, &["Cluster", "Local"]);
    } else if !policy.is_null() {
        let text = "may only be set for externally-accessible services";
        all.push(Cause::invalid("spec.externalTrafficPolicy", policy, text));
    }
    let (field, port) = ("spec.healthCheckNodePort", &spec["healthCheckNodePort"]);
    if !port.is_null() && !cluster_ip::needs_health_check(spec) {
        let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        all.push(Cause::invalid(field, port, text));
    } else if cluster_ip::needs_health_check(spec)
        && cluster_ip::needs_health_check(old)
        && *port != old["healthCheckNodePort"]
    {
        all.push(Cause::forbidden(field, IMMUTABLE));
    }
    for (field, supported) in [
        ("internalTrafficPolicy", ["Cluster", "Local"].as_slice()),
        ("trafficDistribution", &["PreferClose", "PreferSameZone", "PreferSameNode"]),
    ] {
        if !spec[field].is_null() {
            not_one_of(all, format!("spec.{field}"), &spec[field], supported);
        }
    }
}

/// Validates `loadBalancerSourceRanges`: the clients that may use a load balancer.
fn source_ranges(all: &mut Vec<Cause>, service: &Value) {
    let spec = &service["spec"];
    let annotation = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let (field, ranges): (_, Vec<&str>) = match service["metadata"]["annotations"][annotation].as_str() {
        _ if each(&spec["loadBalancerSourceRanges"]).next().is_some() => (
            "spec.LoadBalancerSourceRanges".to_owned(),
            each(&spec["loadBalancerSourceRanges"]).map(text).collect(),
        ),
        Some(ranges) => (
            format!("metadata.annotations[{annotation}]"),
            ranges.split(',').filter(|_| !ranges.trim().is_empty()).collect(),
        ),
        None => return,
    };
    if !cluster_ip::is_load_balancer(spec) {
        all.push(Cause::forbidden(&field, "may only be used when `type` is 'LoadBalancer'"));
    }
    for (index, range) in ranges.into_iter().map(str::trim).enumerate() {
        let parts =
            range.split_once('/').map(|(address, bits)| (address.parse::<IpAddr>(), bits.parse::<u8>()));
        let is_range = match parts {
            Some((Ok(IpAddr::V4(_)), Ok(bits))) => bits <= 32,
            Some((Ok(IpAddr::V6(_)), Ok(bits))) => bits <= 128,
            Some(_) | None => false,
        };
        if !is_range {
            let field = if field.starts_with("spec") { format!("{field}[{index}]") } else { field.clone() };
            let text = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            all.push(Cause::invalid(field, &range.into(), text));
        }
    }
}

fn service_ports(all: &mut Vec<Cause>, spec: &Value) {
    let several = each(&spec["ports"]).count() > 1;
    for (index, port) in each(&spec["ports"]).enumerate() {
        let at = format!("spec.ports[{index}]");
        let earlier = || each(&spec["ports"]).take(index);
        match text(&port["name"]) {
            "" if several => all.push(Cause::required(format!("{at}.name"), "")),
            "" => {}
            name => {
                all.extend(causes(&format!("{at}.name"), name, label_errors(name)));
                if earlier().any(|other| other["name"] == name) {
                    all.push(Cause::duplicate(format!("{at}.name"), &port["name"]));
                }
            }
        }
        if !is_port(&port["port"]) {
            all.push(Cause::invalid(format!("{at}.port"), &port["port"], PORT_RANGE));
        }
        not_one_of(all, format!("{at}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"]);
        let (field, target) = (format!("{at}.targetPort"), &port["targetPort"]);
        match target.as_str() {
            Some(name) => all.extend(causes(&field, name, port_name_errors(name))),
            None if !is_port(target) => all.push(Cause::invalid(field, target, PORT_RANGE)),
            None => {}
        }
        if let Some(name) = port["appProtocol"].as_str() {
            all.extend(causes(&format!("{at}.appProtocol"), name, qualified_name_errors(name)));
        }
    }
}

/// Validates the node ports, and refuses duplicate ports.
fn node_ports(all: &mut Vec<Cause>, spec: &Value) {
    let ports = || each(&spec["ports"]).enumerate();
    let there = || ports().filter(|(_, port)| !port["nodePort"].is_null());
    let is_twin = |one: &Value, other: &Value, field: &str| {
        one[field] == other[field] && one["protocol"] == other["protocol"]
    };
    if spec["type"] == "ClusterIP" {
        for (index, _) in there() {
            let text = "may not be used when `type` is 'ClusterIP'";
            all.push(Cause::forbidden(format!("spec.ports[{index}].nodePort"), text));
        }
    }
    for (index, port) in there() {
        let (field, number) = (format!("spec.ports[{index}].nodePort"), &port["nodePort"]);
        if there()
            .take_while(|(earlier, _)| *earlier < index)
            .any(|(_, other)| is_twin(port, other, "nodePort"))
        {
            all.push(Cause::duplicate(field, number));
        }
    }
    for (index, port) in ports() {
        if ports().take(index).any(|(_, other)| is_twin(port, other, "port")) {
            let twin = json!({"Protocol": port["protocol"], "Port": port["port"]});
            all.push(Cause::duplicate(format!("spec.ports[{index}]"), &twin));
        }
    }
}

/// Validates a LabelSelector.
pub(crate) fn selector(selector: &Value, at: &str) -> Vec<Cause> {
    let mut all = labels_errors(&format!("{at}.matchLabels"), &selector["matchLabels"]);
    for (index, expression) in each(&selector["matchExpressions"]).enumerate() {
        let at = format!("{at}.matchExpressions[{index}]");
        let values = each(&expression["values"]).count();
        match text(&expression["operator"]) {
            "In" | "NotIn" if values == 0 => {
                let text = "must be specified when `operator` is 'In' or 'NotIn'";
                all.push(Cause::required(format!("{at}.values"), text));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                all.push(Cause::forbidden(format!("{at}.values"), text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                let text = "not a valid selector operator";
                all.push(Cause::invalid(format!("{at}.operator"), &expression["operator"], text));
            }
        }
        let key = text(&expression["key"]);
        all.extend(causes(&format!("{at}.key"), key, qualified_name_errors(key)));
    }
    all
}

/// Validates the fields that Deployments and ReplicaSets share, such as a selector that must match the template.
fn workload(object: &Value) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = Vec::new();
    not_negative(&mut all, spec, "spec", &["replicas"]);
    let is_everything = is_empty(&spec["selector"]["matchLabels"])
        && each(&spec["selector"]["matchExpressions"]).next().is_none();
    if spec["selector"].is_null() {
        all.push(Cause::required("spec.selector", ""));
    } else {
        let wrong = selector(&spec["selector"], "spec.selector");
        if is_everything {
            let text = "empty selector is invalid for deployment";
            all.push(Cause::invalid("spec.selector", &spec["selector"], text));
        }
        if !wrong.is_empty() {
            all.extend(wrong);
            all.push(Cause::invalid("spec.selector", &spec["selector"], "invalid label selector"));
            return all;
        }
    }
    let (template, at) = (&spec["template"], "spec.template");
    let labels = &template["metadata"]["labels"];
    // A missing selector matches nothing, an empty one everything.
    if spec["selector"].is_null()
        || (!is_everything && !Selector::from_object(&spec["selector"]).matches(labels))
    {
        let text = "`selector` does not match template `labels`";
        all.push(Cause::invalid(format!("{at}.metadata.labels"), labels, text));
    }
    pod_template(&mut all, template, at);
    let restarts = &template["spec"]["restartPolicy"];
    if !restarts.is_null() {
        not_one_of(&mut all, format!("{at}.spec.restartPolicy"), restarts, &["Always"]);
    }
    if !template["spec"]["activeDeadlineSeconds"].is_null() {
        let text = "activeDeadlineSeconds in ReplicaSet is not Supported";
        all.push(Cause::forbidden(format!("{at}.spec.activeDeadlineSeconds"), text));
    }
    all
}

/// Validates a Pod template: `ValidatePodTemplateSpec`.
pub(crate) fn pod_template(all: &mut Vec<Cause>, template: &Value, at: &str) {
    all.extend(labels_errors(&format!("{at}.labels"), &template["metadata"]["labels"]));
    pod_spec(all, &template["spec"], &format!("{at}.spec"));
    if each(&template["spec"]["ephemeralContainers"]).next().is_some() {
        let text = "ephemeral containers not allowed in pod template";
        all.push(Cause::forbidden(format!("{at}.spec.ephemeralContainers"), text));
    }
}

fn fixed_selector(all: &mut Vec<Cause>, object: &Value, before: Option<&Value>) {
    if before.is_some_and(|before| before["spec"]["selector"] != object["spec"]["selector"]) {
        all.push(Cause::invalid("spec.selector", &object["spec"]["selector"], IMMUTABLE));
    }
}

pub(crate) fn replica_set(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = workload(object);
    fixed_selector(&mut all, object, before);
    all
}

pub(crate) fn deployment(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = workload(object);
    strategy(&mut all, &spec["strategy"]);
    not_negative(
        &mut all,
        spec,
        "spec",
        &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"],
    );
    let deadline = spec["progressDeadlineSeconds"].as_i64();
    if deadline.is_some_and(|deadline| deadline <= spec["minReadySeconds"].as_i64().unwrap_or(0)) {
        let text = "must be greater than minReadySeconds";
        all.push(Cause::invalid("spec.progressDeadlineSeconds", &spec["progressDeadlineSeconds"], text));
    }
    fixed_selector(&mut all, object, before);
    let status = &object["status"];
    for field in ["updatedReplicas", "readyReplicas", "availableReplicas"] {
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        if count(field) > count("replicas") {
            let text = "cannot be greater than status.replicas";
            all.push(Cause::invalid(format!("status.{field}"), &status[field], text));
        }
    }
    all
}

fn strategy(all: &mut Vec<Cause>, strategy: &Value) {
    let at = "spec.strategy";
    let rolling = &strategy["rollingUpdate"];
    match text(&strategy["type"]) {
        "Recreate" if !rolling.is_null() => {
            let text = "may not be specified when strategy `type` is 'Recreate'";
            all.push(Cause::forbidden(format!("{at}.rollingUpdate"), text));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            for name in ["maxUnavailable", "maxSurge"] {
                all.extend(int_or_percent(&format!("{at}.rollingUpdate.{name}"), &rolling[name]));
            }
            let is_zero = |value: &Value| *value == 0 || *value == "0%";
            let field = format!("{at}.rollingUpdate.maxUnavailable");
            if is_zero(&rolling["maxUnavailable"]) && is_zero(&rolling["maxSurge"]) {
                let text = "may not be 0 when `maxSurge` is 0";
                all.push(Cause::invalid(field, &rolling["maxUnavailable"], text));
            } else if percent(&rolling["maxUnavailable"]).is_some_and(|percent| percent > 100) {
                all.push(Cause::invalid(field, &rolling["maxUnavailable"], "must not be greater than 100%"));
            }
        }
        _ => not_one_of(all, at.to_owned(), strategy, &["Recreate", "RollingUpdate"]),
    }
}

fn percent(value: &Value) -> Option<u64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

fn int_or_percent(field: &str, value: &Value) -> Option<Cause> {
    if value.is_string() && percent(value).is_none() {
        let text = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
            regex used for validation is '[0-9]+%')";
        return Some(Cause::invalid(field, value, text));
    }
    value.as_i64().filter(|number| *number < 0).map(|_| Cause::invalid(field, value, NOT_NEGATIVE))
}

pub(crate) fn disruption_budget(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = Vec::new();
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        all.push(Cause::invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"));
    }
    for name in ["minAvailable", "maxUnavailable"] {
        let field = format!("spec.{name}");
        all.extend(int_or_percent(&field, &spec[name]));
        if percent(&spec[name]).is_some_and(|percent| percent > 100) {
            all.push(Cause::invalid(field, &spec[name], "must not be greater than 100%"));
        }
    }
    all.extend(selector(&spec["selector"], "spec.selector"));
    let policy = &spec["unhealthyPodEvictionPolicy"];
    if !policy.is_null() {
        let supported = ["AlwaysAllow", "IfHealthyBudget"];
        not_one_of(&mut all, "spec.unhealthyPodEvictionPolicy".to_owned(), policy, &supported);
    }
    if before.is_some() {
        let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
        not_negative(&mut all, &object["status"], "status", &counts);
    }
    all
}

/// Validates a Node. Like kube-apiserver, it reports taints under `metadata`.
pub(crate) fn node(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    let spec = &object["spec"];
    for (index, taint) in each(&spec["taints"]).enumerate() {
        let at = format!("metadata.taints[{index}]");
        let key = text(&taint["key"]);
        all.extend(causes(&format!("{at}.key"), key, qualified_name_errors(key)));
        all.extend(causes(
            &format!("{at}.value"),
            text(&taint["value"]),
            label_value_errors(text(&taint["value"])),
        ));
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        match text(&taint["effect"]) {
            "" => all.push(Cause::required(format!("{at}.effect"), "")),
            _ => not_one_of(&mut all, format!("{at}.effect"), &taint["effect"], &effects),
        }
        let is_same = |other: &&Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if each(&spec["taints"]).take(index).any(|other| is_same(&other)) {
            all.push(Cause::duplicate(at, taint));
        }
    }
    let Some(before) = before else { return all };
    // kube-apiserver validates the taints of an update twice.
    all.extend_from_within(..);
    for (field, at) in [("providerID", "providerID"), ("podCIDR", "podCIDRs")] {
        let was = text(&before["spec"][field]);
        if !was.is_empty() && was != text(&spec[field]) {
            let text = format!("node updates may not change {field} except from \"\" to valid");
            all.push(Cause::forbidden(format!("spec.{at}"), &text));
        }
    }
    all
}

pub(crate) fn lease(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = Vec::new();
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|secs| secs <= 0) {
        let text = "must be greater than 0";
        all.push(Cause::invalid("spec.leaseDurationSeconds", &spec["leaseDurationSeconds"], text));
    }
    not_negative(&mut all, spec, "spec", &["leaseTransitions"]);
    all
}

/// Validates an Event of the core group. Both versions are validated in their core form. The newer rules hold only
/// for an Event with an `eventTime`, which new recorders set.
pub(crate) fn core_event(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    event(object, "reportingComponent")
}

fn event(object: &Value, controller: &str) -> Vec<Cause> {
    let mut all = Vec::new();
    let namespace = &object["metadata"]["namespace"];
    let of = text(&object["involvedObject"]["namespace"]);
    let home = match of {
        "" => namespace == "default" || (namespace == "kube-system" && !object["eventTime"].is_null()),
        of => namespace == of,
    };
    if !home {
        let text = "does not match event.namespace";
        all.push(Cause::invalid("involvedObject.namespace", &of.into(), text));
    }
    if object["eventTime"].is_null() {
        return all;
    }
    let reporter = text(&object["reportingComponent"]);
    if reporter.is_empty() {
        all.push(Cause::required(controller, ""));
    }
    all.extend(causes(controller, reporter, qualified_name_errors(reporter)));
    for field in ["reportingInstance", "action", "reason"] {
        match text(&object[field]) {
            "" => all.push(Cause::required(field, "")),
            long if long.len() > 128 => {
                all.push(Cause::invalid(field, &"".into(), "can have at most 128 characters"));
            }
            _ => {}
        }
    }
    if text(&object["message"]).len() > 1024 {
        all.push(Cause::invalid("message", &"".into(), "can have at most 1024 characters"));
    }
    all
}

/// Validates an Event of events.k8s.io: eventTime and type are required, deprecated fields must be unset, and an
/// update may change only the series.
pub(crate) fn new_event(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = event(object, "reportingController");
    if let Some(before) = before {
        let mut before = before.clone();
        events::to_core(&mut before);
        // kube-apiserver compares the reason twice.
        for field in [
            "involvedObject",
            "reason",
            "message",
            "reason",
            "type",
            "reportingComponent",
            "action",
            "related",
        ] {
            if object[field] != before[field] {
                all.push(Cause::invalid(field, &object[field], IMMUTABLE));
            }
        }
        return all;
    }
    if object["eventTime"].is_null() {
        all.push(Cause::required("eventTime", ""));
    }
    if object["type"] != "Normal" && object["type"] != "Warning" {
        let text = format!("has invalid value: {}", text(&object["type"]));
        all.push(Cause::invalid("type", &"".into(), &text));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let is_set = match &object[field] {
            Value::Null => false,
            Value::Object(map) => !map.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => true,
        };
        if is_set {
            all.push(Cause::invalid(field, &"".into(), "needs to be unset"));
        }
    }
    let series = &object["series"];
    if !series.is_null() {
        if series["count"].as_i64().unwrap_or(0) < 2 {
            all.push(Cause::invalid("series.count", &"".into(), "should be at least 2"));
        }
        if series["lastObservedTime"].is_null() {
            all.push(Cause::required("series.lastObservedTime", ""));
        }
    }
    all
}

/// Highest priority of a class that is not of the system.
const USER_PRIORITY_MAX: i64 = 1_000_000_000;

pub(crate) fn priority_class(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    let (name, value) = (text(&object["metadata"]["name"]), object["value"].as_i64().unwrap_or(0));
    if name.starts_with("system-") && !defaults::PRIORITIES.iter().any(|(class, _)| *class == name) {
        let why = "priority class names with 'system-' prefix are reserved for system use only. error: name is not a system \
                   priority class";
        all.push(Cause::forbidden("metadata.name", why));
    } else if !name.starts_with("system-") && value > USER_PRIORITY_MAX {
        let why = format!("maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}");
        all.push(Cause::forbidden("value", &why));
    }
    if before.is_some_and(|before| before["value"].as_i64().unwrap_or(0) != value) {
        all.push(Cause::forbidden("value", "may not be changed in an update."));
    }
    all
}

pub(crate) fn template(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    pod_template(&mut all, &object["template"], "template");
    all
}

pub(crate) fn replication_controller(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (spec, mut all) = (&object["spec"], Vec::new());
    not_negative(&mut all, spec, "spec", &["replicas", "minReadySeconds"]);
    if is_empty(&spec["selector"]) {
        all.push(Cause::required("spec.selector", ""));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    if spec["selector"].as_object().into_iter().flatten().any(|(key, value)| labels[key] != *value) {
        let text = "`selector` does not match template `labels`";
        all.push(Cause::invalid("spec.template.metadata.labels", labels, text));
    }
    pod_template(&mut all, &spec["template"], "spec.template");
    all
}
