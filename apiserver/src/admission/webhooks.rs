//! Admission webhooks: which of them a write calls, what they are asked, and what follows from their answers.
//!
//! ```text
//! webhooks: [{name: v.example.com, rules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}], …}]
//! ```
//!
//! As in apiserver/pkg/admission/plugin/webhook.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    admission::{
        Admission,
        call::Call,
        matching::{Reinvocation, Write, conditions_hold},
        waits,
    },
    apply::json_patch,
    kinds::{
        Kind,
        field_checks::{each, text},
    },
    schema::{cel_authorizer::authorizer, decode::must_be_map, expressions::Activation},
    status::StatusError,
    storage::Storage,
    webhook_client::Address,
};

const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";

/// Whether there is any configuration of webhooks.
pub(crate) fn are_configured(storage: &Storage) -> bool {
    let mut collections = [MUTATING, VALIDATING].into_iter().filter_map(|name| storage.collection(name));
    collections.any(|collection| !collection.objects.is_empty())
}

/// All webhooks, in the order of their configurations' names, each with an id.
fn configured(storage: &Storage, collection: &str) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (name, configuration) in storage.collection(collection).into_iter().flat_map(|all| &all.objects) {
        for webhook in each(&configuration["webhooks"]) {
            all.push((format!("{name}/{}", text(&webhook["name"])), webhook.clone()));
        }
    }
    all
}

impl Admission {
    /// Lets policies change an object, and then the webhooks that may do so, one after the other. After a change, those that ask for it
    /// are invoked again. False if nothing has changed.
    pub(crate) fn mutate(
        &mut self,
        storage: &Storage,
        kind: &Kind,
        object: &mut Value,
        before: &Value,
    ) -> Result<bool, StatusError> {
        let (mut policies, mut webhooks) = (Reinvocation::default(), Reinvocation::default());
        for _ in 0..2 {
            policies.begin(object);
            self.apply_policies(storage, kind, object, before, &mut policies)?;
            policies.end(object);
            webhooks.begin(object);
            self.call_mutating(storage, kind, object, before, &mut webhooks)?;
            webhooks.end(object);
            if !policies.changed && !webhooks.changed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn call_mutating(
        &mut self,
        storage: &Storage,
        kind: &Kind,
        object: &mut Value,
        before: &Value,
        reinvocation: &mut Reinvocation,
    ) -> Result<(), StatusError> {
        for (id, webhook) in configured(storage, MUTATING) {
            let write = Write { kind, object, before };
            let Some(version) = self.version_for(storage, &webhook, write)? else { continue };
            if reinvocation.skips(&id) {
                continue;
            }
            let patched = self.patched(storage, &webhook, &version, write)?;
            if let Some(patched) = patched.filter(|patched| *patched != *object) {
                *object = patched;
                reinvocation.change();
            }
            reinvocation.invoked(id, &webhook["reinvocationPolicy"]);
        }
        Ok(())
    }

    /// Evaluates the policies that accept or refuse an object, and then calls the webhooks that do so, all at the same time.
    pub(crate) fn validate(&mut self, storage: &Storage, write: Write<'_>) -> Result<(), StatusError> {
        self.follow_policies(storage, write)?;
        let (mut denied, mut is_waiting) = (None, false);
        for (_, webhook) in configured(storage, VALIDATING) {
            let Some(version) = self.version_for(storage, &webhook, write)? else { continue };
            match self.response(storage, &webhook, &version, write) {
                Ok(Some(response)) if has_patch(&response) => {
                    let field = if response["patch"].is_null() { "patchType" } else { "patch" };
                    let why = format!(
                        "received invalid webhook response: validating webhook may not return response.{field}"
                    );
                    denied = denied.or(failed(&webhook, &why).err());
                }
                Ok(_) => {}
                Err(_) if self.is_waiting() => is_waiting = true,
                Err(error) => denied = denied.or(Some(error)),
            }
        }
        if is_waiting { Err(waits()) } else { denied.map_or(Ok(()), Err) }
    }

    /// The kind in whose version a webhook gets the objects of a write. `None` if its rules, selectors and conditions do not match.
    fn version_for(
        &self,
        storage: &Storage,
        webhook: &Value,
        write: Write<'_>,
    ) -> Result<Option<Arc<Kind>>, StatusError> {
        if write.kind.group == "admissionregistration.k8s.io" || !self.selects(storage, webhook, write) {
            return Ok(None);
        }
        let matched = self.matching(storage, &webhook["rules"], &webhook["matchPolicy"], write);
        let Some(version) = matched else { return Ok(None) };
        if webhook["matchConditions"].is_null() {
            return Ok(Some(version));
        }
        let [object, before] = self.shown(&version, write)?;
        let request = self.request(&version, write);
        let values = [("object", &*object), ("oldObject", &*before), ("request", &request)];
        let authorizer = authorizer(Arc::clone(&self.authorize), &request);
        match conditions_hold(webhook, &Activation::new(&values, authorizer, &Value::Null)) {
            Ok(hold) => Ok(hold.then_some(version)),
            Err(why) => {
                let name = text(&write.some_object()["metadata"]["name"]);
                Err(StatusError::forbidden(write.kind, name, &why))
            }
        }
    }

    /// The `response` of a webhook that allows a write. `None` if it could not be called, and that is ignored.
    fn response(
        &mut self,
        storage: &Storage,
        webhook: &Value,
        version: &Kind,
        write: Write<'_>,
    ) -> Result<Option<Value>, StatusError> {
        let name = text(&webhook["name"]);
        let known = |review_version: &&Value| *review_version == "v1" || *review_version == "v1beta1";
        let review_version =
            each(&webhook["admissionReviewVersions"]).find(known).map_or("v1", |found| text(found));
        let mut request = self.request(version, write);
        let [object, before] = self.shown(version, write)?;
        (request["object"], request["oldObject"]) = (object.into_owned(), before.into_owned());
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{review_version}"), "request": request,
        });
        let address = Address::of(storage, &webhook["clientConfig"], self.webhook_port);
        let timeout_secs = webhook["timeoutSeconds"].as_u64().unwrap_or(10);
        let response = match self.answer(Call { address, timeout_secs, review }) {
            None => return Err(waits()),
            Some(Err(why)) => return failed(webhook, &why).map(|()| None),
            Some(Ok(response)) => response,
        };
        self.warnings.extend(each(&response["warnings"]).map(|warning| text(warning).to_owned()));
        if response["allowed"] == true { Ok(Some(response)) } else { Err(denied(name, &response["status"])) }
    }

    /// The object as a webhook changes it. `None` if it does not.
    fn patched(
        &mut self,
        storage: &Storage,
        webhook: &Value,
        version: &Kind,
        write: Write<'_>,
    ) -> Result<Option<Value>, StatusError> {
        let Some(response) = self.response(storage, webhook, version, write)? else { return Ok(None) };
        let invalid = |why: &str| failed(webhook, why).map(|()| None);
        let encoded = text(&response["patch"]);
        match response["patchType"].as_str() {
            None if encoded.is_empty() => return Ok(None),
            None => {
                return invalid(
                    "received invalid webhook response: webhook returned response.patch but not response.patchType",
                );
            }
            Some(_) if encoded.is_empty() => {
                return invalid(
                    "received invalid webhook response: webhook returned response.patchType but not response.patch",
                );
            }
            Some(_) => {}
        }
        let bytes = BASE64_STANDARD.decode(encoded).unwrap_or_default();
        let decoded = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
        let operations = decoded.and_then(|operations: Vec<Value>| {
            operations.iter().try_for_each(must_be_map)?;
            json_patch::decode(operations).map_err(|error| error.to_string())
        });
        let operations = match operations {
            Ok(operations) => operations,
            Err(error) => {
                return invalid(&format!("received undecodable patch in webhook response: {error}"));
            }
        };
        if operations.is_empty() {
            return Ok(None);
        }
        if write.object.is_null() {
            let why = format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                text(&webhook["name"])
            );
            return Err(StatusError::went_wrong(&why));
        }
        if response["patchType"] != "JSONPatch" {
            return invalid(&format!("unsupported patch type {}", response["patchType"]));
        }
        let [object, _] = self.shown(version, write)?;
        let mut object = object.into_owned();
        json_patch::apply(&operations, &mut object)
            .map_err(|why| StatusError::went_wrong(&why.to_string()))?;
        write.take(&mut object)?;
        Ok(Some(object))
    }
}

fn has_patch(response: &Value) -> bool {
    !text(&response["patch"]).is_empty() || !response["patchType"].is_null()
}

/// A webhook could not be called, or its answer is invalid: an error, unless the webhook says otherwise.
fn failed(webhook: &Value, why: &str) -> Result<(), StatusError> {
    let name = text(&webhook["name"]);
    if webhook["failurePolicy"] == "Ignore" {
        tracing::debug!(webhook = name, why, "a webhook failed, which is ignored");
        return Ok(());
    }
    Err(StatusError::went_wrong(&format!("failed calling webhook {name:?}: {why}")))
}

/// The error of a webhook that denies a write, with the status of its answer.
fn denied(name: &str, status: &Value) -> StatusError {
    let explained =
        [&status["message"], &status["reason"]].map(text).into_iter().find(|text| !text.is_empty());
    let message = match explained {
        Some(why) => format!("admission webhook {name:?} denied the request: {why}"),
        None => format!("admission webhook {name:?} denied the request without explanation"),
    };
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0).max(400);
    let details = Some(status["details"].clone()).filter(Value::is_object);
    StatusError::new(code, text(&status["reason"]), message, details)
}
