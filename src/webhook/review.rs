//! Admission reviews: what the API server asks before it stores an object, and the answer.
//!
//! ```text
//! POST /validate-example-com-v1-site?timeout=5s
//! {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "705ab4f5-…", "operation": "CREATE",
//!  "name": "web", "namespace": "default", "userInfo": {"username": "ada", "groups": […]}, "object": {…}, "dryRun": false, …}}
//!
//! {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "705ab4f5-…", "allowed": false,
//!  "status": {"code": 422, "reason": "Invalid", "message": "Site.example.com \"web\" is invalid: spec.host: …", …}}}
//! ```
//!
//! See <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#request>. Nothing in this file does I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::server;
use crate::{client::qualified, resource::Resource};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// What the API server asks about one object.
#[derive(Clone, Debug)]
pub struct Review<K> {
    /// The object that somebody wants to store.
    pub object: K,
    /// The stored object, if this is an update and the stored object decodes.
    pub old: Option<K>,
    /// Whether the object is new.
    pub operation: Operation,
    /// Who sent the request.
    pub user: User,
    /// Whether nothing will be stored: `dryRun=All`.
    pub is_dry_run: bool,
}

/// How somebody wants to change an object. No webhook of this library is asked about a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// POST, or an apply of an object that does not exist.
    Create,
    /// PUT or PATCH.
    Update,
}

/// The user of a request, as the API server has authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// `system:serviceaccount:default:web`
    pub username: String,
    /// `system:authenticated`, and others.
    pub groups: Vec<String>,
}

/// Whether an object may be stored: yes, unless a field is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    errors: Vec<FieldError>,
    warnings: Vec<String>,
    audit_annotations: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldError {
    reason: &'static str,
    field: String,
    message: String,
}

impl Decision {
    /// The object may be stored.
    #[must_use]
    pub fn allowed() -> Decision {
        Decision::default()
    }

    /// The object has a value that it must not have: `spec.host: Invalid value: "x": must be a host name`.
    #[must_use]
    pub fn invalid(self, field: &str, value: impl Serialize, why: &str) -> Decision {
        let value = serde_json::to_string(&value).unwrap_or_default();
        self.denied("FieldValueInvalid", field, format!("Invalid value: {value}: {why}"))
    }

    /// The object has a value that another object or item has: `spec.host: Duplicate value: "x"`.
    #[must_use]
    pub fn duplicate(self, field: &str, value: impl Serialize) -> Decision {
        let value = serde_json::to_string(&value).unwrap_or_default();
        self.denied("FieldValueDuplicate", field, format!("Duplicate value: {value}"))
    }

    /// The object lacks a value: `spec.host: Required value: …`.
    #[must_use]
    pub fn required(self, field: &str, why: &str) -> Decision {
        self.denied("FieldValueRequired", field, format!("Required value: {why}"))
    }

    /// The field must not be set, or not be changed: `spec.host: Forbidden: …`.
    #[must_use]
    pub fn forbidden(self, field: &str, why: &str) -> Decision {
        self.denied("FieldValueForbidden", field, format!("Forbidden: {why}"))
    }

    /// Tells the user something; kubectl prints it as `Warning: …`. The API server cuts it after 256 characters.
    #[must_use]
    pub fn warning(mut self, text: impl Into<String>) -> Decision {
        self.warnings.push(text.into());
        self
    }

    /// Adds an annotation to the audit log, under the name of the webhook and this key.
    #[must_use]
    pub fn audit_annotation(mut self, key: &'static str, value: impl Into<String>) -> Decision {
        self.audit_annotations.insert(key, value.into());
        self
    }

    fn denied(mut self, reason: &'static str, field: &str, message: String) -> Decision {
        self.errors.push(FieldError { reason, field: field.to_owned(), message });
        self
    }

    /// The `response`, without the uid.
    pub(super) fn into_response<K: Resource>(self, name: &str) -> Map<String, Value> {
        let Decision { errors, warnings, audit_annotations } = self;
        let mut response = Map::from_iter([("allowed".to_owned(), errors.is_empty().into())]);
        if !errors.is_empty() {
            response.insert("status".to_owned(), status::<K>(name, &errors));
        }
        if !warnings.is_empty() {
            response.insert("warnings".to_owned(), warnings.into());
        }
        if !audit_annotations.is_empty() {
            response.insert("auditAnnotations".to_owned(), json!(audit_annotations));
        }
        response
    }
}

/// As the API server reports invalid fields itself: `NewInvalid` of k8s.io/apimachinery/pkg/api/errors.
fn status<K: Resource>(name: &str, errors: &[FieldError]) -> Value {
    let texts: Vec<String> =
        errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
    let all = if let [one] = &texts[..] { one.clone() } else { format!("[{}]", texts.join(", ")) };
    let kind = qualified(K::GROUP, K::KIND);
    let cause = |FieldError { reason, field, message }: &FieldError| json!({"reason": reason, "field": field, "message": message});
    let causes: Vec<Value> = errors.iter().map(cause).collect();
    json!({
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": format!("{kind} {name:?} is invalid: {all}"),
        "details": {"name": name, "group": K::GROUP, "kind": K::KIND, "causes": causes},
    })
}

/// An object that may not be stored yet, and so lacks some metadata.
pub(super) fn typed<K: Resource>(object: &Value) -> Result<K, serde_json::Error> {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["name", "uid", "resourceVersion"] {
            metadata.entry(field).or_insert_with(|| "".into());
        }
    }
    K::deserialize(object)
}

/// `{"group": "example.com", "version": "v1", "resource": "sites"}`
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct GroupVersionResource {
    group: String,
    version: String,
    resource: String,
}

/// The `request` of an AdmissionReview.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AdmissionRequest {
    pub(super) uid: String,
    operation: Operation,
    resource: GroupVersionResource,
    #[serde(default)]
    sub_resource: String,
    /// Empty for an object with a `generateName`.
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    user_info: User,
    pub(super) object: Value,
    #[serde(default)]
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: bool,
}

impl AdmissionRequest {
    /// Reads the body of a request.
    pub(super) fn read(body: &[u8]) -> Result<AdmissionRequest, String> {
        server::read(body, API_VERSION, KIND)
    }

    /// Fails if it is about another resource or a subresource: somebody has written a configuration by hand.
    pub(super) fn check_resource(&self, group: &str, version: &str, plural: &str) -> Result<(), String> {
        let (asked, part) = (&self.resource, &self.sub_resource);
        if (&*asked.group, &*asked.version, &*asked.resource, &**part) == (group, version, plural, "") {
            return Ok(());
        }
        let slash = if part.is_empty() { "" } else { "/" };
        let (other, own) =
            (qualified(&asked.group, &format!("{}{slash}{part}", asked.resource)), qualified(group, plural));
        Err(format!("the {KIND} is about {other} {}, and this path about {own} {version}", asked.version))
    }

    /// Whether the object waits for finalizers, and keeps its spec: a cleanup may depend on it.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.old_object.as_ref().is_some_and(|old| {
            old["metadata"]["deletionTimestamp"].is_string() && old["spec"] == self.object["spec"]
        })
    }

    /// With typed objects. `Err`: the object does not decode, so it cannot be judged.
    pub(super) fn typed<K: Resource>(&self) -> Result<Review<K>, Decision> {
        Ok(Review {
            object: self.object()?,
            // An object that was stored before the CRD had its present schema can be repaired.
            old: self.old_object.as_ref().and_then(|old| typed(old).ok()),
            operation: self.operation,
            user: self.user_info.clone(),
            is_dry_run: self.dry_run,
        })
    }

    pub(super) fn object<T: Resource>(&self) -> Result<T, Decision> {
        typed(&self.object).map_err(|error| {
            let message = format!("Invalid value: the operator cannot read the object: {error}");
            Decision::allowed().denied("FieldValueInvalid", "<object>", message)
        })
    }

    /// The body of the answer.
    pub(super) fn answer(&self, mut response: Map<String, Value>) -> Value {
        response.insert("uid".to_owned(), self.uid.as_str().into());
        json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    }
}
