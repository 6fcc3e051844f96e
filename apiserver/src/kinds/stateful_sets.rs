//! Validation of StatefulSets, their ControllerRevisions and PersistentVolumeClaims.
//!
//! ```text
//! PersistentVolumeClaim "data" is invalid: spec.resources.requests.storage: Forbidden: field can not be less than status.capacity
//! ```
//!
//! The rules, their order and their messages are as in pkg/apis/{apps,core}/validation.

use listwatch_formats::{quantity::quantity, selector::Selector};
use serde_json::{Value, json};

use crate::{
    kinds::{
        field_checks::{IMMUTABLE, NOT_NEGATIVE, each, is_empty, not_negative, not_one_of, text},
        validation::{pod_template, selector},
    },
    names::{causes, label_errors, labels_errors, subdomain_errors},
    status::Cause,
};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(crate) fn claim(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    claim_spec(&mut all, &object["spec"], "spec");
    if let Some(before) = before {
        claim_changes(&mut all, object, before);
    }
    all
}

/// Validates the spec of a claim, or of a template of claims.
fn claim_spec(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    if each(&spec["accessModes"]).next().is_none() {
        all.push(Cause::required(format!("{at}.accessModes"), "at least 1 access mode is required"));
    }
    if !spec["selector"].is_null() {
        all.extend(selector(&spec["selector"], &format!("{at}.selector")));
    }
    for mode in each(&spec["accessModes"]) {
        not_one_of(all, format!("{at}.accessModes"), mode, &ACCESS_MODES);
    }
    let is_single = |mode: &&Value| **mode == "ReadWriteOncePod";
    let known = || each(&spec["accessModes"]).filter(|mode| ACCESS_MODES.iter().any(|one| *mode == one));
    if known().any(|mode| is_single(&mode)) && !known().all(|mode| is_single(&mode)) {
        let text = "may not use ReadWriteOncePod with other access modes";
        all.push(Cause::forbidden(format!("{at}.accessModes"), text));
    }
    let (storage, field) = (&spec["resources"]["requests"]["storage"], format!("{at}.resources[storage]"));
    if storage.is_null() {
        all.push(Cause::required(field, ""));
    } else if quantity(storage).is_some_and(|bytes| bytes <= 0.0) {
        all.push(Cause::invalid(field, storage, "must be greater than zero"));
    }
    let class = text(&spec["storageClassName"]);
    if !class.is_empty() {
        all.extend(causes(&format!("{at}.storageClassName"), class, subdomain_errors(class)));
    }
    if !spec["volumeMode"].is_null() {
        not_one_of(all, format!("{at}.volumeMode"), &spec["volumeMode"], &["Block", "Filesystem"]);
    }
}

/// Only the size of a bound claim can change, and only grow.
fn claim_changes(all: &mut Vec<Cause>, object: &Value, before: &Value) {
    let (spec, was) = (&object["spec"], &before["spec"]);
    // These fields can be set once.
    let may_change = |field: &str| match field {
        "volumeName" | "storageClassName" => was[field].is_null(),
        "volumeAttributesClassName" => object["status"]["phase"] == "Bound",
        _ => false,
    };
    let fixed = |spec: &Value| {
        let mut spec = spec.clone();
        if object["status"]["phase"] == "Bound" && !spec["resources"]["requests"].is_null() {
            spec["resources"]["requests"]["storage"] = Value::Null;
        }
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|field, _| !may_change(field));
        }
        spec
    };
    if fixed(spec) != fixed(was) {
        let text = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        all.push(Cause::forbidden("spec", text));
    }
    let size = |spec: &Value| quantity(&spec["resources"]["requests"]["storage"]).unwrap_or_default();
    let capacity = quantity(&before["status"]["capacity"]["storage"]).unwrap_or_default();
    if size(spec) < size(was) && size(spec) <= capacity {
        let text = "field can not be less than status.capacity";
        all.push(Cause::forbidden("spec.resources.requests.storage", text));
    }
    if spec["volumeMode"] != was["volumeMode"] {
        all.push(Cause::invalid("volumeMode", &spec["volumeMode"], IMMUTABLE));
    }
}

/// The fields of a StatefulSet that an update can change.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(crate) fn stateful_set(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = Vec::new();
    if !["OrderedReady", "Parallel"].iter().any(|policy| spec["podManagementPolicy"] == *policy) {
        let text = "must be 'OrderedReady' or 'Parallel'";
        all.push(Cause::invalid("spec.podManagementPolicy", &spec["podManagementPolicy"], text));
    }
    update_strategy(&mut all, &spec["updateStrategy"]);
    for when in ["whenDeleted", "whenScaled"] {
        let field = format!("spec.persistentVolumeClaimRetentionPolicy.{when}");
        let policy = &spec["persistentVolumeClaimRetentionPolicy"][when];
        not_one_of(&mut all, field, policy, &["Retain", "Delete"]);
    }
    if before.is_none() {
        for (index, template) in each(&spec["volumeClaimTemplates"]).enumerate() {
            claim_spec(&mut all, &template["spec"], &format!("spec.volumeClaimTemplates[{index}].spec"));
        }
    }
    not_negative(&mut all, spec, "spec", &["replicas", "minReadySeconds"]);
    not_negative(&mut all, &spec["ordinals"], "spec.ordinals", &["start"]);
    let service = text(&spec["serviceName"]);
    if before.is_none() && !service.is_empty() {
        // Here, a dot has the message of any other invalid character.
        all.extend(causes("spec.serviceName", service, label_errors(&service.replace('.', "_"))));
    }
    set_template(&mut all, spec);
    let restarts = &spec["template"]["spec"]["restartPolicy"];
    if !restarts.is_null() {
        not_one_of(&mut all, "spec.template.spec.restartPolicy".to_owned(), restarts, &["Always"]);
    }
    if !spec["template"]["spec"]["activeDeadlineSeconds"].is_null() {
        let text = "activeDeadlineSeconds in StatefulSet is not Supported";
        all.push(Cause::forbidden("spec.template.spec.activeDeadlineSeconds", text));
    }
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|field, _| !MUTABLE.contains(&field.as_str()));
        }
        spec
    };
    if before.is_some_and(|before| fixed(before) != fixed(object)) {
        let text = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
            'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' \
            are forbidden";
        all.push(Cause::forbidden("spec", text));
    }
    set_status(&mut all, &object["status"]);
    all
}

fn update_strategy(all: &mut Vec<Cause>, strategy: &Value) {
    let (at, rolling) = ("spec.updateStrategy", &strategy["rollingUpdate"]);
    match text(&strategy["type"]) {
        "OnDelete" if !rolling.is_null() => {
            let text = "only allowed for updateStrategy 'RollingUpdate'";
            all.push(Cause::invalid(format!("{at}.rollingUpdate"), rolling, text));
        }
        "OnDelete" => {}
        "RollingUpdate" => not_negative(all, rolling, &format!("{at}.rollingUpdate"), &["partition"]),
        _ => all.push(Cause::invalid(at, strategy, "must be 'RollingUpdate' or 'OnDelete'")),
    }
}

/// Validates the selector and the template. The controller adds a volume for each claim, and sets the hostname.
fn set_template(all: &mut Vec<Cause>, spec: &Value) {
    let at = "spec.selector";
    let is_everything = is_empty(&spec["selector"]["matchLabels"])
        && each(&spec["selector"]["matchExpressions"]).next().is_none();
    if spec["selector"].is_null() {
        all.push(Cause::required(at, ""));
    } else {
        let wrong = selector(&spec["selector"], at);
        let is_invalid = !wrong.is_empty();
        all.extend(wrong);
        if is_everything {
            let text = "empty selector is invalid for statefulset";
            all.push(Cause::invalid(at, &spec["selector"], text));
        }
        if is_invalid {
            all.push(Cause::invalid(at, &spec["selector"], ""));
            return;
        }
    }
    let mut template = spec["template"].clone();
    if let Some(fields) = template["spec"].as_object_mut() {
        fields.retain(|field, _| !matches!(field.as_str(), "hostname" | "subdomain"));
        let claims = || each(&spec["volumeClaimTemplates"]).map(|claim| &claim["metadata"]["name"]);
        let added = claims().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let own = each(&spec["template"]["spec"]["volumes"]);
        let kept = own.filter(|volume| !claims().any(|name| *name == volume["name"])).cloned();
        if claims().next().is_some() {
            fields.insert("volumes".to_owned(), added.chain(kept).collect());
        }
    }
    let labels = &template["metadata"]["labels"];
    // A missing selector matches nothing. An empty one is not compared.
    if spec["selector"].is_null()
        || (!is_everything && !Selector::from_object(&spec["selector"]).matches(labels))
    {
        let text = "`selector` does not match template `labels`";
        all.push(Cause::invalid("spec.template.metadata.labels", labels, text));
    }
    pod_template(all, &template, "spec.template");
    // kube-apiserver validates the labels twice.
    all.extend(labels_errors("spec.template.labels", labels));
}

fn set_status(all: &mut Vec<Cause>, status: &Value) {
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let counts = ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    not_negative(all, status, "status", &counts);
    for field in &counts[1..] {
        if count(field) > count("replicas") {
            let text = "cannot be greater than status.replicas";
            all.push(Cause::invalid(format!("status.{field}"), &status[field], text));
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        let text = "cannot be greater than status.readyReplicas";
        all.push(Cause::invalid("status.availableReplicas", &status["availableReplicas"], text));
    }
}

/// Validates a ControllerRevision. Its data is immutable.
pub(crate) fn revision(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    if object["data"].is_null() {
        all.push(Cause::required("data", "data is mandatory"));
    }
    if object["revision"].as_i64().is_some_and(|number| number < 0) {
        all.push(Cause::invalid("revision", &object["revision"], NOT_NEGATIVE));
    }
    if before.is_some_and(|before| before["data"] != object["data"]) {
        all.push(Cause::invalid("data", &object["data"], IMMUTABLE));
    }
    all
}
