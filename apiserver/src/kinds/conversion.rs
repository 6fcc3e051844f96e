//! Conversion webhooks of CRDs: the conversions that are known, and those that an attempt of a request still needs.
//!
//! ```text
//! {"kind": "ConversionReview", "request": {"desiredAPIVersion": "demo.example.com/v2", "objects": [{"apiVersion": "demo.example.com/v1", …}]}}
//! ```
//!
//! `conversions.rs` calls the webhooks. kube-apiserver also keeps the objects in each version, in its watch caches.

use std::{
    cell::RefCell,
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::{Value, json};

use crate::{
    kinds::field_checks::{each, text},
    status::StatusError,
};

thread_local! {
    /// An attempt runs on one thread, without a pause.
    static MISSING: RefCell<Vec<Missing>> = const { RefCell::new(Vec::new()) };
}

/// Most conversions that are kept.
const KNOWN_MAX: usize = 100_000;

/// The conversion webhook of a CRD.
#[derive(Debug)]
pub(crate) struct Conversion {
    pub(crate) client_config: Value,
    review_version: String,
    /// By version and object. An error is forgotten when it is read.
    known: Mutex<HashMap<String, Result<Value, String>>>,
}

/// A conversion that an attempt needs.
pub(crate) struct Missing {
    pub(crate) conversion: Arc<Conversion>,
    pub(crate) object: Value,
    pub(crate) api_version: String,
}

/// The conversions that the last attempt on this thread needed, and did not have.
pub(crate) fn take_missing() -> Vec<Missing> {
    MISSING.with_borrow_mut(mem::take)
}

/// Whether the attempt on this thread needs a conversion that is not known.
pub(crate) fn is_missing() -> bool {
    MISSING.with_borrow(|missing| !missing.is_empty())
}

/// Why Go cannot read the `caBundle` of a CRD.
pub(crate) fn bundle_error(crd: &Value) -> Option<String> {
    let encoded = &crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"];
    let bundle = BASE64_STANDARD.decode(text(encoded)).unwrap_or_default();
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&bundle).flatten().collect();
    let is_read = |one: &CertificateDer<'_>| RootCertStore::empty().add(one.clone()).is_ok();
    let why = match &certificates[..] {
        _ if bundle.is_empty() || certificates.iter().any(is_read) => return None,
        [_, ..] => "failed to parse certificate: x509: malformed certificate",
        [] if bundle.starts_with(b"-----BEGIN ") => "no valid certificate authority data seen",
        [] => "unable to parse bytes as PEM block",
    };
    Some(format!("unable to load root certificates: {why}"))
}

impl Conversion {
    /// The webhook of a CRD, if it has one.
    pub(crate) fn of(crd: &Value) -> Option<Arc<Conversion>> {
        let conversion = &crd["spec"]["conversion"];
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &conversion["webhook"];
        let is_known = |version: &&Value| ["v1", "v1beta1"].contains(&text(version));
        let review_version = each(&webhook["conversionReviewVersions"]).find(is_known).map_or("v1", text);
        Some(Arc::new(Conversion {
            client_config: webhook["clientConfig"].clone(),
            review_version: review_version.to_owned(),
            known: Mutex::default(),
        }))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Result<Value, String>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all conversions: only lists and watches use earlier ones. While the storage is locked, no attempt is in progress.
    pub(crate) fn forget(&self) {
        self.known().clear();
    }

    /// The object in another version. If the conversion is not known, the attempt has to end.
    pub(crate) fn convert(self: &Arc<Self>, object: &Value, api_version: &str) -> Result<Value, StatusError> {
        let key = key(object, api_version);
        let mut known = self.known();
        match known.get(&key) {
            Some(Ok(converted)) => Ok(with_metadata_of(object, converted.clone())),
            Some(Err(why)) => {
                let error = StatusError::internal(why.clone());
                known.remove(&key);
                Err(error)
            }
            None => {
                let (conversion, object) = (Arc::clone(self), object.clone());
                let missing = Missing { conversion, object, api_version: api_version.to_owned() };
                MISSING.with_borrow_mut(|all| all.push(missing));
                Err(StatusError::internal("waits for a conversion"))
            }
        }
    }

    /// The review of objects.
    pub(crate) fn review(&self, objects: &[Value], api_version: &str, uid: &str) -> Value {
        json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{}", self.review_version),
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
        })
    }

    /// Remembers the conversion of objects, or why it failed.
    pub(crate) fn learn(
        &self,
        objects: &[Value],
        api_version: &str,
        answer: Result<Value, String>,
        uid: &str,
    ) {
        let converted = answer.and_then(|answer| self.converted(&answer, objects, uid));
        let mut known = self.known();
        if known.len() > KNOWN_MAX {
            known.clear();
        }
        for (index, object) in objects.iter().enumerate() {
            let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
            let of = format!("conversion webhook for {version}, Kind={kind}");
            let result = match &converted {
                Ok(converted) if converted.len() != objects.len() => {
                    Err(format!("{of} returned {} objects, expected {}", converted.len(), objects.len()))
                }
                Ok(converted) => match check(object, &converted[index], api_version) {
                    Ok(()) => Ok(converted[index].clone()),
                    Err(why) => Err(format!("{of} returned {why}")),
                },
                Err(why) => Err(format!("{of} failed: {why}")),
            };
            known.insert(key(object, api_version), result);
        }
    }

    /// The objects in an answer. v1beta1 had fewer checks.
    fn converted(&self, answer: &Value, objects: &[Value], uid: &str) -> Result<Vec<Value>, String> {
        let response = &answer["response"];
        let (version, kind) = (text(&answer["apiVersion"]), text(&answer["kind"]));
        let is_v1 = self.review_version == "v1";
        if is_v1 && (version, kind) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            let version = if version.is_empty() { "/" } else { version };
            return Err(format!(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {version}, Kind={kind}"
            ));
        }
        if response.is_null() {
            return Err("no response provided".to_owned());
        }
        if is_v1 && response["uid"] != uid {
            return Err(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"])));
        }
        let (status, message) = (text(&response["result"]["status"]), text(&response["result"]["message"]));
        match (status, message) {
            ("Success", _) => {
                Ok(each(&response["convertedObjects"]).take(objects.len() + 1).cloned().collect())
            }
            (_, "") => Err(format!("response.result.status was '{status}', not 'Success'")),
            (_, message) => Err(message.to_owned()),
        }
    }
}

/// What is converted: an object without the metadata that only the server writes.
fn key(object: &Value, api_version: &str) -> String {
    let mut shown = object.clone();
    let metadata = shown["metadata"].take();
    for field in ["name", "namespace", "uid", "labels", "annotations"] {
        shown["metadata"][field] = metadata[field].clone();
    }
    format!("{api_version} {shown}")
}

/// A converted object has the metadata of the original, except for labels and annotations.
fn with_metadata_of(original: &Value, mut converted: Value) -> Value {
    let was = mem::replace(&mut converted["metadata"], original["metadata"].clone());
    for field in ["labels", "annotations"] {
        match was.get(field) {
            Some(value) => converted["metadata"][field] = value.clone(),
            None => drop(converted["metadata"].as_object_mut().map(|metadata| metadata.remove(field))),
        }
    }
    converted
}

fn check(original: &Value, converted: &Value, api_version: &str) -> Result<(), String> {
    let received = text(&converted["apiVersion"]);
    if received != api_version {
        let why = format!("invalid groupVersion (expected {api_version}, received {received})");
        return Err(format!("invalid object at index 0: {why}"));
    }
    let (expected, received) = (text(&original["kind"]), text(&converted["kind"]));
    if expected != received {
        let why = format!("invalid kind (expected {expected}, received {received})");
        return Err(format!("invalid object at index 0: {why}"));
    }
    for (field, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let [was, is] = [original, converted].map(|object| text(&object["metadata"][field]));
        if was != is {
            return Err(format!("invalid object: must have the same {shown}: {was} != {is}"));
        }
    }
    if converted["metadata"].is_null() {
        return Err("invalid metadata: missing metadata in converted object".to_owned());
    }
    Ok(())
}
