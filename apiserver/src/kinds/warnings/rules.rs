//! The tables of warnings about single fields. The rows of `Pod` also hold for the templates of Pods.

use std::{cell::Cell, net::Ipv6Addr};

use listwatch_formats::quantity::{Quantity, canonical};
use serde_json::Value;

use crate::kinds::field_checks::{each, text};

/// The fields that cause a warning if they are set, by kind.
const SET: &[(&str, &str, &str)] = &[
    ("Node", "spec.externalID", "this field is deprecated, and is unused by Kubernetes"),
    ("PersistentVolume", "metadata.annotations[volume.beta.kubernetes.io/storage-class]", STORAGE_CLASS),
    (
        "PersistentVolume",
        "metadata.annotations[volume.beta.kubernetes.io/mount-options]",
        "deprecated since v1.31; use \"mountOptions\" attribute instead",
    ),
    ("PersistentVolumeClaim", "metadata.annotations[volume.beta.kubernetes.io/storage-class]", STORAGE_CLASS),
    (
        "Pod",
        "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("Pod", "metadata.annotations[security.alpha.kubernetes.io/sysctls]", SYSCTLS),
    ("Pod", "metadata.annotations[security.alpha.kubernetes.io/unsafe-sysctls]", SYSCTLS),
];

const STORAGE_CLASS: &str = "deprecated since v1.8; use \"storageClassName\" attribute instead";
const SYSCTLS: &str = "non-functional in v1.11+; use the \"sysctls\" field instead";

/// The work that the comparisons of a Pod's ports and files may take: [`COMPARISON`]s of two of them and [`WARNING`]s. kube-apiserver has
/// no limit. A body of 3 MiB can have so many of them that it takes minutes.
pub(super) const WORK_MAX: usize = 1_000_000;
pub(super) const COMPARISON: usize = 1;
/// A response carries fewer than 200 different warnings about ports and paths.
pub(super) const WARNING: usize = WORK_MAX / 200;

/// Whether there is enough work left for another step.
pub(super) fn spend(work: &Cell<usize>, cost: usize) -> bool {
    let left = work.get().checked_sub(cost);
    work.set(left.unwrap_or_default());
    left.is_some()
}

type Check = fn(&Value) -> Option<String>;

/// The checks of fields, by kind.
const CHECKED: &[(&str, &str, Check)] = &[
    ("CSIStorageCapacity", "nodeTopology.matchExpressions[].key", node_label),
    ("Endpoints", "subsets[].addresses[].ip", address),
    ("Endpoints", "subsets[].notReadyAddresses[].ip", address),
    ("NetworkPolicy", "spec.egress[].to[].ipBlock.cidr", address),
    ("NetworkPolicy", "spec.egress[].to[].ipBlock.except[]", address),
    ("NetworkPolicy", "spec.ingress[].from[].ipBlock.cidr", address),
    ("NetworkPolicy", "spec.ingress[].from[].ipBlock.except[]", address),
    ("Node", "spec.podCIDRs[]", address),
    ("PersistentVolume", "spec.nodeAffinity.required.nodeSelectorTerms[].matchExpressions[].key", node_label),
    ("PersistentVolume", "spec.persistentVolumeReclaimPolicy", recycling),
    ("PersistentVolumeClaim", "spec.resources.limits[storage]", fraction),
    ("PersistentVolumeClaim", "spec.resources.requests[storage]", fraction),
    ("Pod", "spec.dnsConfig.nameservers[]", address),
    ("Pod", "spec.hostAliases[].ip", address),
    ("Pod", "spec.overhead[ephemeral-storage]", fraction),
    ("Pod", "spec.overhead[memory]", fraction),
    ("Pod", "spec.terminationGracePeriodSeconds", grace),
    ("Pod", "spec.topologySpreadConstraints[].labelSelector", selector),
    ("Pod", "spec.topologySpreadConstraints[].topologyKey", node_label),
    ("ResourceSlice", "spec.driver", driver),
    ("Service", "spec.clusterIPs[]", address),
    ("Service", "spec.externalIPs[]", address),
    ("Service", "spec.loadBalancerIP", address),
    ("Service", "spec.loadBalancerSourceRanges[]", address),
    ("Service", "spec.trafficDistribution", distribution),
    ("StatefulSet", "spec.revisionHistoryLimit", revisions),
];

/// The checks of fields in a written status, by kind.
const STATUS: &[(&str, &str, Check)] = &[
    ("Ingress", "status.loadBalancer.ingress[]", address),
    ("Pod", "status.hostIPs[].ip", address),
    ("Pod", "status.podIPs[].ip", address),
    ("Service", "status.loadBalancer.ingress[]", address),
];

/// The warnings of the tables about an object at a path.
pub(super) fn follow(kind: &str, object: &Value, at: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (_, path, text) in SET.iter().filter(|(of, ..)| *of == kind) {
        let set = found(object, path, at).into_iter().filter(|(_, value)| !value.is_null());
        all.extend(set.map(|(path, _)| format!("{path}: {text}")));
    }
    all.extend(check(CHECKED, kind, object, at));
    all
}

pub(super) fn follow_status(kind: &str, object: &Value) -> Vec<String> {
    check(STATUS, kind, object, "")
}

fn check(table: &[(&str, &str, Check)], kind: &str, object: &Value, at: &str) -> Vec<String> {
    let rows = table.iter().filter(|(of, ..)| *of == kind);
    let values =
        rows.flat_map(|(_, path, check)| found(object, path, at).into_iter().map(move |one| (one, check)));
    values.filter_map(|((path, value), check)| check(value).map(|text| format!("{path}: {text}"))).collect()
}

/// The values at a path, with their own paths. `[]` stands for each item of a list, and `[key]` for an entry of a map.
pub(super) fn found<'a>(value: &'a Value, path: &str, at: &str) -> Vec<(String, &'a Value)> {
    let (fields, rest) = path.split_once('[').unwrap_or((path, ""));
    let value = fields.split('.').filter(|field| !field.is_empty()).fold(value, |value, field| &value[field]);
    let at = format!("{at}{fields}");
    match rest.split_once(']') {
        None => vec![(at, value)],
        Some(("", rest)) => {
            let items = each(value).enumerate();
            items.flat_map(|(index, item)| found(item, rest, &format!("{at}[{index}]"))).collect()
        }
        Some((key, rest)) => found(&value[key], rest, &format!("{at}[{key}]")),
    }
}

/// Labels of Nodes that are deprecated: pkg/api/node/util.go.
const NODE_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// The deprecated labels in a map, and what to use instead.
pub(super) fn node_labels(map: &Value) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    NODE_LABELS.iter().filter(|(label, _)| !map[label].is_null())
}

pub(super) fn node_label_text(key: &Value) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(label, _)| key == label).map(|(_, text)| *text)
}

pub(super) fn node_label(key: &Value) -> Option<String> {
    Some(format!("{} is {}", text(key), node_label_text(key)?))
}

/// An IPv6 address or CIDR that has a shorter form. It can be in the field `ip`.
fn address(value: &Value) -> Option<String> {
    let given = text(if value.is_object() { &value["ip"] } else { value });
    let (address, length) = given.split_at(given.find('/').unwrap_or(given.len()));
    let canonical = format!("{}{length}", address.parse::<Ipv6Addr>().ok()?);
    let what = if length.is_empty() { "address" } else { "CIDR value" };
    (canonical != given)
        .then(|| format!("IPv6 {what} {given:?} should be in RFC 5952 canonical format ({canonical:?})"))
}

pub(super) fn fraction(amount: &Value) -> Option<String> {
    let quantity = Quantity::read(amount)?;
    let shown = canonical(amount)?;
    (quantity.ceil() != quantity)
        .then(|| format!("fractional byte value {shown:?} is invalid, must be an integer"))
}

pub(super) fn selector(selector: &Value) -> Option<String> {
    selector.is_null().then(|| "a null labelSelector results in matching no pod".to_owned())
}

fn grace(secs: &Value) -> Option<String> {
    let text = "must be >= 0; negative values are invalid and will be treated as 1";
    (secs.as_i64()? < 0).then(|| text.to_owned())
}

fn revisions(limit: &Value) -> Option<String> {
    let text = "a negative value retains all historical revisions; a value >= 0 is recommended";
    (limit.as_i64()? < 0).then(|| text.to_owned())
}

fn recycling(policy: &Value) -> Option<String> {
    let text = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic \
        provisioning.";
    (policy == "Recycle").then(|| text.to_owned())
}

fn distribution(traffic: &Value) -> Option<String> {
    (traffic == "PreferClose").then(|| "\"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned())
}

fn driver(name: &Value) -> Option<String> {
    let name = text(name);
    name.contains(char::is_uppercase)
        .then(|| format!("driver names should be lowercase; {name:?} contains uppercase characters"))
}
