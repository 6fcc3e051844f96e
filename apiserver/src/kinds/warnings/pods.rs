//! The warnings about Pods and their templates: pkg/api/pod/warnings.go.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
};

use serde_json::Value;

use super::{
    paths,
    rules::{
        COMPARISON, WARNING, WORK_MAX, follow, found, fraction, node_label, node_labels, selector, spend,
    },
};
use crate::{
    kinds::{
        field_checks::{each, text},
        pods::{APP_ARMOR, NO_APP_ARMOR, app_armor_profile},
    },
    names::label_value_errors,
};

/// Volumes that are deprecated: the field, and the text. PersistentVolumes have the same texts.
pub(super) const VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo: deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO: deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker: deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS: deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte: deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs: deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs: deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd: deprecated in v1.28, non-functional in v1.31+"),
];

const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const CONTAINER_SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const NO_SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";

/// The warnings about a Pod, or about a template at a path.
pub(super) fn of(pod: &Value, template: &str) -> Vec<String> {
    let at = if template.is_empty() { String::new() } else { format!("{template}.") };
    let (spec, annotations) = (&pod["spec"], &pod["metadata"]["annotations"]);
    let selected = node_labels(&spec["nodeSelector"]);
    let mut all: Vec<String> =
        selected.map(|(label, text)| format!("{at}spec.nodeSelector[{label}]: {text}")).collect();
    affinities(&mut all, pod, &at);
    all.extend(follow("Pod", pod, &at));
    for (at, volume) in found(pod, "spec.volumes[]", &at) {
        let deprecated = VOLUMES.iter().filter(|(field, _)| !volume[field].is_null());
        all.extend(deprecated.map(|(_, text)| format!("{at}.{text}")));
        for part in ["requests", "limits"] {
            let path = format!(".ephemeral.volumeClaimTemplate.spec.resources.{part}[storage]");
            all.extend(fractions(volume, &path, &at));
        }
    }
    let work = Cell::new(WORK_MAX);
    all.extend(each(&spec["volumes"]).flat_map(|volume| paths::overlaps(volume, &work)));
    for (path, field) in [("spec.hostAliases[].ip", "ip"), ("spec.imagePullSecrets[].name", "name")] {
        let mut known = HashSet::new();
        for (at, name) in found(pod, path, &at) {
            let name = text(name);
            if !known.insert(name) {
                all.push(format!("{at}: duplicate {field} {name:?}"));
            }
            if field == "name" && name.is_empty() {
                all.push(format!("{at}: invalid empty name {name:?}"));
            }
        }
    }
    if spec["securityContext"]["seccompProfile"].is_null() && !annotations[SECCOMP].is_null() {
        all.push(format!("{at}metadata.annotations[{SECCOMP}]: {NO_SECCOMP}"));
    }
    let lists = ["spec.initContainers[]", "spec.containers[]", "spec.ephemeralContainers[]"];
    let containers: Vec<_> = lists.iter().flat_map(|path| found(pod, path, &at)).collect();
    for (path, one) in &containers {
        profiles(&mut all, pod, one, &at);
        for resource in
            ["limits[memory]", "requests[memory]", "limits[ephemeral-storage]", "requests[ephemeral-storage]"]
        {
            all.extend(fractions(one, &format!(".resources.{resource}"), path));
        }
        variables(&mut all, one, path);
    }
    let of_all = containers.iter().flat_map(|(at, one)| found(one, ".ports[]", at));
    ports(&mut all, &of_all.collect::<Vec<_>>(), &work);
    all
}

fn fractions(value: &Value, path: &str, at: &str) -> Vec<String> {
    let texts = found(value, path, at).into_iter();
    texts.filter_map(|(at, amount)| Some(format!("{at}: {}", fraction(amount)?))).collect()
}

fn affinities(all: &mut Vec<String>, pod: &Value, at: &str) {
    let terms = [
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]",
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference",
    ];
    for path in terms {
        for (at, expression) in found(pod, &format!("{path}.matchExpressions[]"), at) {
            all.extend(node_label(&expression["key"]).map(|text| format!("{at}.key: {text}")));
            for (at, value) in found(expression, ".values[]", &at) {
                let errors = if path == terms[1] { label_value_errors(text(value)) } else { Vec::new() };
                all.extend(errors.iter().map(|error| format!("{at}: {} is invalid, {error}", text(value))));
            }
        }
    }
    for affinity in ["podAffinity", "podAntiAffinity"] {
        for path in [
            "requiredDuringSchedulingIgnoredDuringExecution[].labelSelector",
            "preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector",
        ] {
            for (at, value) in found(pod, &format!("spec.affinity.{affinity}.{path}"), at) {
                all.extend(selector(value).map(|text| format!("{at}: {text}")));
            }
        }
    }
}

/// Annotations of a container that a field has replaced.
fn profiles(all: &mut Vec<String>, pod: &Value, container: &Value, at: &str) {
    let (name, context) = (text(&container["name"]), &container["securityContext"]);
    let annotation = |prefix: &str| &pod["metadata"]["annotations"][format!("{prefix}{name}")];
    if context["seccompProfile"].is_null() && !annotation(CONTAINER_SECCOMP).is_null() {
        all.push(format!("{at}metadata.annotations[{CONTAINER_SECCOMP}{name}]: {NO_SECCOMP}"));
    }
    // A Pod has got the field from the annotation.
    let of_pod = &pod["spec"]["securityContext"]["appArmorProfile"];
    let profile = annotation(APP_ARMOR).as_str().map(app_armor_profile);
    let is_other = profile.is_some_and(|profile| of_pod.is_null() || *of_pod != profile);
    if !at.is_empty() && context["appArmorProfile"].is_null() && is_other {
        all.push(format!("{at}metadata.annotations[{APP_ARMOR}{name}]: {NO_APP_ARMOR}"));
    }
}

fn variables(all: &mut Vec<String>, container: &Value, at: &str) {
    let mut known = HashSet::new();
    for (at, variable) in found(container, ".env[]", at) {
        let (name, value) = (text(&variable["name"]), text(&variable["value"]));
        let reference = format!("$({name})");
        let extends = variable["valueFrom"].is_null() && value != reference && value.contains(&reference);
        if !known.insert(name) && !extends {
            let text = "which may be dropped when using apply";
            all.push(format!("{at}: hides previous definition of {name:?}, {text}"));
        }
    }
}

/// Ports of all containers that have the same number or name.
fn ports(all: &mut Vec<String>, ports: &[(String, &Value)], work: &Cell<usize>) {
    let mut known = HashMap::new();
    let host = |port: &Value| port["hostPort"].as_i64().unwrap_or_default();
    for (index, (at, port)) in ports.iter().enumerate() {
        let (name, ip) = (text(&port["name"]), text(&port["hostIP"]));
        if !ip.is_empty() && host(port) == 0 {
            let (number, protocol) = (&port["containerPort"], text(&port["protocol"]));
            all.push(format!(
                "{at}: hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{ip}}}"
            ));
        }
        let same =
            |other: &Value| ["containerPort", "protocol"].iter().all(|field| other[field] == port[field]);
        let before = ports[..index].iter().take_while(|_| spend(work, COMPARISON));
        for (other_at, other) in before.filter(|(_, other)| same(other)) {
            let other_ip = text(&other["hostIP"]);
            let how = match (host(port), host(other)) {
                (one, two) if one == two && ip == other_ip => "duplicate",
                (0, _) | (_, 0) => "overlapping",
                (one, two) if one == two && ip.is_empty() != other_ip.is_empty() => "dangerously ambiguous",
                (_, _) => continue,
            };
            if spend(work, WARNING) {
                all.push(format!("{at}: {how} port definition with {other_at}"));
            }
        }
        if name.is_empty() {
            continue;
        }
        let other = known.entry(name).or_insert(at);
        if *other != at {
            all.push(format!(
                "{at}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Once, each volume had its own limit, and each two equal files or ports had a text of their own in memory.
    #[test]
    fn the_warnings_about_equal_files_and_ports_are_limited() {
        let items = vec![json!({"key": "k", "path": "x"}); 1000];
        let volume =
            |index: usize| json!({"name": index.to_string(), "configMap": {"name": "m", "items": items}});
        let volumes: Vec<Value> = (0..3).map(volume).collect();
        let files = of(&json!({"spec": {"volumes": volumes}}), "");
        assert!((100..=200).contains(&files.len()), "{}", files.len());
        let ports = vec![json!({"containerPort": 80, "protocol": "TCP"}); 1000];
        let ports = of(&json!({"spec": {"containers": [{"name": "c", "ports": ports}]}}), "");
        assert!((100..=200).contains(&ports.len()), "{}", ports.len());
    }
}
