//! Warnings about valid objects of built-in kinds, sent as `Warning` headers: fields that are deprecated, that have no effect, or that
//! are probably mistakes.
//!
//! ```text
//! warning: 299 - "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
//! ```
//!
//! The rules and texts are as in pkg/api and pkg/registry of Kubernetes. `warnings/pods.rs` warns about Pods and their templates.

mod pods;
mod paths;
mod rules;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use listwatch_formats::quantity::Quantity;
use rustls::{
    Error, InconsistentKeys,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use serde_json::Value;

use crate::{
    kinds::{
        Kind,
        field_checks::{each, text},
        pods::template,
    },
    names::label_errors,
};
use rules::{fraction, node_label_text, node_labels};

/// The warnings about an object. `before` is its state before an update.
pub(crate) fn of(kind: &Kind, object: &Value, before: Option<&Value>) -> Vec<String> {
    let (name, is_new) = (kind.built_in(), before.is_none());
    let changes =
        |pointer: &str| before.is_none_or(|before| before.pointer(pointer) != object.pointer(pointer));
    let mut all: Vec<String> = names(kind, object, is_new).collect();
    let looks_at_pods = match name {
        // Programs update Pods, not people.
        "Pod" => is_new,
        "DaemonSet" => changes("/spec/template"),
        _ => changes("/metadata/generation"),
    };
    if let Some((at, template)) = template(name, object).filter(|_| looks_at_pods) {
        all.extend(indexes(name, object));
        // kube-apiserver looks at the old template of a ReplicationController, by mistake.
        let old = before.filter(|_| name == "ReplicationController");
        all.extend(pods::of(old.map_or(template, |before| &before["spec"]["template"]), at));
    }
    if name != "Pod" {
        all.extend(rules::follow(name, object, ""));
    }
    let more = match name {
        "CSIDriver" if changes("/spec/tokenRequests") => tokens(&object["spec"]),
        "CSIStorageCapacity" | "RuntimeClass" | "StorageClass" => topology(object),
        "EndpointSlice" if is_new && object["addressType"] == "FQDN" => {
            vec!["spec.addressType: FQDN endpoints are deprecated".to_owned()]
        }
        "Ingress" if is_new => ingress_class(object),
        "PersistentVolume" => volume(&object["spec"]),
        "ResourceQuota" if is_new => limits(&object["spec"]["hard"]),
        "Secret" if object["type"] == "kubernetes.io/tls" => {
            key_pair(&object["data"]).err().into_iter().collect()
        }
        "Service" => service(object),
        "ServiceAccount" => secrets(object, before),
        "StatefulSet" => claims(object, is_new),
        _ => Vec::new(),
    };
    all.extend(more);
    all
}

/// The warnings about a written status.
pub(crate) fn of_status(kind: &Kind, object: &Value) -> Vec<String> {
    rules::follow_status(kind.built_in(), object)
}

/// Names that are valid, and that do not work well.
fn names(kind: &Kind, object: &Value, is_new: bool) -> impl Iterator<Item = String> {
    let name = text(&object["metadata"]["name"]);
    let used_in = match kind.built_in() {
        "Pod" => "the Pod's hostname",
        "CronJob" | "Deployment" | "Job" | "ReplicaSet" | "ReplicationController" => {
            "Pod names and hostnames"
        }
        _ => "",
    };
    let errors = if is_new && !used_in.is_empty() { label_errors(name) } else { Vec::new() };
    let label = (!errors.is_empty()).then(|| {
        let text = "which can result in surprising behavior; a DNS label is recommended";
        format!("metadata.name: this is used in {used_in}, {text}: [{}]", errors.join(" "))
    });
    let is_reserved = kind.group == "admissionregistration.k8s.io" && name.ends_with(".static.k8s.io");
    let text = "are reserved for static manifest-based configurations and cannot be managed via the API";
    let reserved = is_reserved.then(|| format!("metadata.name: names ending with \".static.k8s.io\" {text}"));
    label.into_iter().chain(reserved)
}

/// Indexed Jobs with very many Pods: pkg/api/job/warnings.go.
fn indexes(kind: &str, object: &Value) -> Option<String> {
    let (at, job) = match kind {
        "Job" => ("spec", &object["spec"]),
        "CronJob" => ("spec.jobTemplate.spec", &object["spec"]["jobTemplate"]["spec"]),
        _ => return None,
    };
    let above = |field: &str, limit: i64| job[field].as_i64().is_some_and(|number| number > limit);
    let is_large = above("completions", 100_000) && above("parallelism", 10_000);
    (job["completionMode"] == "Indexed" && is_large).then(|| {
        format!(
            "{at}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
            Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        )
    })
}

fn tokens(spec: &Value) -> Vec<String> {
    let text = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
        possible logging of tokens in volume attributes";
    let is_unset =
        each(&spec["tokenRequests"]).next().is_some() && spec["serviceAccountTokenInSecrets"].is_null();
    is_unset.then(|| text.to_owned()).into_iter().collect()
}

/// Deprecated labels of Nodes.
fn topology(object: &Value) -> Vec<String> {
    let selected = node_labels(&object["scheduling"]["nodeSelector"]);
    let mut all: Vec<String> = selected.map(|(_, text)| format!("scheduling.nodeSelector: {text}")).collect();
    let matched = node_labels(&object["nodeTopology"]["matchLabels"]);
    all.extend(matched.map(|(label, text)| format!("nodeTopology.matchLabels.{label}: {text}")));
    let keys = rules::found(object, "allowedTopologies[].matchLabelExpressions[].key", "").into_iter();
    all.extend(keys.filter_map(|(at, key)| Some(format!("{at}: {}", node_label_text(key)?))));
    all
}

fn ingress_class(ingress: &Value) -> Vec<String> {
    let key = "kubernetes.io/ingress.class";
    let is_old =
        !ingress["metadata"]["annotations"][key].is_null() && ingress["spec"]["ingressClassName"].is_null();
    let text = format!("annotation {key:?} is deprecated, please use 'spec.ingressClassName' instead");
    is_old.then_some(text).into_iter().collect()
}

fn volume(spec: &Value) -> Vec<String> {
    let old = pods::VOLUMES.iter().filter(|(field, _)| !["flocker", "quobyte"].contains(field));
    old.filter(|(field, _)| !spec[field].is_null()).map(|(_, text)| format!("spec.{text}")).collect()
}

/// A ResourceQuota that allows more requests of a resource than limits of it.
fn limits(hard: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let mut requests = vec![format!("requests.{name}")];
        requests.extend(["cpu", "memory"].contains(&name).then(|| name.to_owned()));
        let requests = requests.into_iter().find(|name| !hard[name].is_null()).unwrap_or_default();
        let limits = format!("limits.{name}");
        if let (Some(request), Some(limit)) =
            (Quantity::read(&hard[&requests]), Quantity::read(&hard[&limits]))
            && request.compare(&limit).is_gt()
        {
            let (request, limit) = (text(&hard[&requests]), text(&hard[&limits]));
            all.push(format!("ResourceQuota {requests} ({request}) should be less than {limits} ({limit})"));
        }
    }
    all
}

/// Checks a certificate and its key as `X509KeyPair` of Go does, except for errors inside of their encoding.
fn key_pair(data: &Value) -> Result<(), String> {
    let [certificate, key] =
        ["tls.crt", "tls.key"].map(|field| BASE64_STANDARD.decode(text(&data[field])).unwrap_or_default());
    let types = block_types(&certificate);
    if !types.iter().any(|kind| kind == "CERTIFICATE") {
        return Err(match types.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [kind] if kind.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs \
                may have been switched"
                    .to_owned()
            }
            types => format!(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
                following types: [{}]",
                types.join(" ")
            ),
        });
    }
    let types = block_types(&key);
    if !types.iter().any(|kind| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY")) {
        return Err(match types.as_slice() {
            [] => "tls: failed to find any PEM data in key input".to_owned(),
            [kind] if kind == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
            }
            types => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM \
                blocks of the following types: [{}]",
                types.join(" ")
            ),
        });
    }
    let (Ok(certificate), Ok(key)) =
        (CertificateDer::from_pem_slice(&certificate), PrivateKeyDer::from_pem_slice(&key))
    else {
        return Ok(());
    };
    let chain = vec![certificate];
    match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err("tls: private key does not match public key".to_owned())
        }
        _ => Ok(()),
    }
}

/// The types of the PEM blocks, such as `CERTIFICATE`.
fn block_types(pem: &[u8]) -> Vec<String> {
    let (mut types, mut open) = (Vec::new(), None);
    for line in String::from_utf8_lossy(pem).lines().map(str::trim_ascii_end) {
        let Some(line) = line.strip_prefix("-----").and_then(|line| line.strip_suffix("-----")) else {
            continue;
        };
        if let Some(kind) = line.strip_prefix("BEGIN ") {
            open = Some(kind.to_owned());
        } else if let Some(kind) = open.take_if(|kind| line.strip_prefix("END ") == Some(kind)) {
            types.push(kind);
        }
    }
    types
}

/// pkg/api/service/warnings.go
fn service(service: &Value) -> Vec<String> {
    let (spec, annotations) = (&service["spec"], &service["metadata"]["annotations"]);
    let is_external = spec["type"] == "ExternalName";
    let is_headless = spec["type"] == "ClusterIP" && spec["clusterIP"] == "None";
    let has = |field: &str| !spec[field].is_null();
    let warnings = [
        (
            !annotations["service.kubernetes.io/topology-aware-hints"].is_null(),
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use \
            service.kubernetes.io/topology-mode instead",
        ),
        (is_headless && has("loadBalancerIP"), "spec.loadBalancerIP is ignored for headless services"),
        (is_headless && has("externalIPs"), "spec.externalIPs is ignored for headless services"),
        (
            is_headless && spec["sessionAffinity"] != "None",
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            has("externalIPs") && !is_headless && !is_external,
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (has("externalIPs") && is_external, "spec.externalIPs is ignored when spec.type is \"ExternalName\""),
        (
            has("externalName") && !is_external,
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
    ];
    warnings.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_owned()).collect()
}

/// An annotation of a ServiceAccount that is new.
fn secrets(account: &Value, before: Option<&Value>) -> Vec<String> {
    let key = "kubernetes.io/enforce-mountable-secrets";
    let has = |account: &Value| !account["metadata"]["annotations"][key].is_null();
    let text = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
    let is_new = has(account) && !before.is_some_and(has);
    is_new.then(|| format!("metadata.annotations[{key}]: {text}")).into_iter().collect()
}

/// Parts of a byte in the claims of a StatefulSet.
fn claims(set: &Value, is_new: bool) -> Vec<String> {
    let mut all = Vec::new();
    for (at, claim) in rules::found(set, "spec.volumeClaimTemplates[]", "") {
        // These are the paths of kube-apiserver.
        let at = if is_new { at } else { format!("{at}.Spec") };
        for part in ["requests", "limits"] {
            let text = fraction(&claim["spec"]["resources"][part]["storage"]);
            all.extend(text.map(|text| format!("{at}.resources.{part}[storage]: {text}")));
        }
    }
    all
}
