//! Admission webhooks: which of them a write calls, what they are asked, and what follows from their answers.
//!
//! ```text
//! webhooks: [{name: v.example.com, rules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}], …}]
//! ```
//!
//! As in apiserver/pkg/admission/plugin/webhook.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    admission::{Admission, call::Call, waits},
    apply::json_patch,
    kinds::{
        Kind,
        field_checks::{each, text},
    },
    schema::{Nulls, cel, decode::must_be_map, prune_object},
    selector::Labels,
    status::StatusError,
    storage::{Place, Storage},
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

/// The write that webhooks are asked about. Its operation follows from its objects.
#[derive(Clone, Copy)]
pub(crate) struct Write<'w> {
    pub(crate) kind: &'w Kind,
    /// Null for a delete.
    pub(crate) object: &'w Value,
    /// Null for a create.
    pub(crate) before: &'w Value,
}

impl Write<'_> {
    fn operation(&self) -> &'static str {
        match (self.object, self.before) {
            (Value::Null, _) => "DELETE",
            (_, Value::Null) => "CREATE",
            (_, _) => "UPDATE",
        }
    }

    /// The object that has the name.
    fn some_object(&self) -> &Value {
        if self.object.is_null() { self.before } else { self.object }
    }
}

impl Admission {
    /// Calls the webhooks that may change an object, one after the other. True if one has changed it.
    pub(crate) fn mutate(
        &mut self,
        storage: &Storage,
        kind: &Kind,
        object: &mut Value,
        before: &Value,
    ) -> Result<bool, StatusError> {
        let (mut changed, mut called, mut again) = (false, BTreeSet::new(), BTreeSet::new());
        for round in 0..2 {
            for (id, webhook) in configured(storage, MUTATING) {
                let write = Write { kind, object, before };
                let Some(version) = self.version_for(storage, &webhook, write)? else { continue };
                // A webhook that was not called in the first round is not called in the second.
                if round == 1 && !again.contains(&id) {
                    continue;
                }
                let patched = self.patched(storage, &webhook, &version, write)?;
                if let Some(patched) = patched.filter(|patched| *patched != *object) {
                    *object = patched;
                    changed = true;
                    again.append(&mut called);
                }
                if webhook["reinvocationPolicy"] == "IfNeeded" {
                    called.insert(id);
                }
            }
            if !changed {
                break;
            }
        }
        Ok(changed)
    }

    /// Calls the webhooks that accept or refuse an object, all at the same time.
    pub(crate) fn validate(&mut self, storage: &Storage, write: Write<'_>) -> Result<(), StatusError> {
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

    /// The kind in whose version a webhook gets the objects of a write. `None` if its rules and selectors do not match.
    fn version_for(
        &self,
        storage: &Storage,
        webhook: &Value,
        write: Write<'_>,
    ) -> Result<Option<Arc<Kind>>, StatusError> {
        let Write { kind, object, before } = write;
        let exempt = kind.group == "admissionregistration.k8s.io";
        let selects = |selector: &Value, object: &Value| {
            let selector = Labels::from_object(selector);
            selector.is_empty() || !object.is_null() && selector.matches(&object["metadata"]["labels"])
        };
        let selector = &webhook["objectSelector"];
        let namespace = self.namespace(write);
        let labels_of: Cow<'_, Value> = match (&*self.path.plural, self.path.subresource.as_deref()) {
            ("namespaces", None) if !object.is_null() => Cow::Borrowed(object),
            _ => Cow::Owned(match storage.get(&Place::new("namespaces", None, &namespace)) {
                Some(namespace) => json!({"metadata": {"labels": namespace["metadata"]["labels"]}}),
                None => json!({"metadata": {}}),
            }),
        };
        if exempt
            || !namespace.is_empty() && !selects(&webhook["namespaceSelector"], &labels_of)
            || !selects(selector, object) && !selects(selector, before)
        {
            return Ok(None);
        }
        let mut versions: Vec<Arc<Kind>> = Vec::new();
        versions.extend(storage.kinds.get(&self.path.group, &self.path.version, &self.path.plural).cloned());
        if webhook["matchPolicy"] != "Exact" {
            let stored_in = versions.first().map(|kind| kind.stored_in());
            let groups: Vec<&str> = storage.kinds.groups().iter().map(String::as_str).collect();
            let all = groups.into_iter().flat_map(|group| storage.kinds.in_group(group));
            versions.extend(all.filter(|kind| Some(kind.stored_in()) == stored_in).cloned());
        }
        let matched = versions.into_iter().find(|version| {
            each(&webhook["rules"])
                .any(|rule| self.rule_matches(rule, version, &namespace, write.operation()))
        });
        let Some(version) = matched else { return Ok(None) };
        let is_met = self.conditions_hold(webhook, &version, write)?;
        Ok(is_met.then_some(version))
    }

    fn rule_matches(&self, rule: &Value, version: &Kind, namespace: &str, operation: &str) -> bool {
        let has = |list: &Value, wanted: &str| each(list).any(|one| one == "*" || one == wanted);
        let is_namespace = version.group.is_empty() && version.plural == "namespaces";
        let is_clusterwide = is_namespace || namespace.is_empty();
        let is_in_scope = match text(&rule["scope"]) {
            "Namespaced" => !is_clusterwide,
            "Cluster" => is_clusterwide,
            _ => true,
        };
        let (plural, subresource) = (&*version.plural, self.subresource());
        is_in_scope
            && has(&rule["operations"], operation)
            && has(&rule["apiGroups"], &version.group)
            && has(&rule["apiVersions"], &version.version)
            && each(&rule["resources"]).any(|resource| {
                let (of, sub) = text(resource).split_once('/').unwrap_or((text(resource), ""));
                (of == "*" || of == plural) && (sub == "*" || sub == subresource)
            })
    }

    fn subresource(&self) -> &str {
        self.path.subresource.as_deref().unwrap_or_default()
    }

    /// The namespace of a write. A Namespace counts as inside itself.
    fn namespace(&self, write: Write<'_>) -> String {
        match (self.path.namespace.as_deref(), &*self.path.group, &*self.path.plural) {
            (Some(namespace), ..) => namespace.to_owned(),
            (None, "", "namespaces") => text(&write.some_object()["metadata"]["name"]).to_owned(),
            (None, ..) => String::new(),
        }
    }

    /// The `request` of the AdmissionReview.
    fn request(&self, version: &Kind, write: Write<'_>) -> Result<Value, StatusError> {
        let Write { kind, object, before } = write;
        let sub = self.subresource();
        let kind_of = |kind: &Kind| json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        let resource = |of: &Kind| json!({"group": of.group, "version": of.version, "resource": of.plural});
        let path = &self.path;
        // A Scale or an Eviction has one version.
        let is_sent_as_is = kind.plural != path.plural || kind.version == version.version;
        let shown = |object: &Value| match is_sent_as_is || object.is_null() {
            true => Ok(object.clone()),
            false => version.view(object).map(Cow::into_owned),
        };
        let mut request = self.request.clone();
        request["kind"] = kind_of(if is_sent_as_is { kind } else { version });
        request["requestKind"] = kind_of(kind);
        request["resource"] = resource(version);
        request["requestResource"] =
            json!({"group": path.group, "version": path.version, "resource": path.plural});
        request["operation"] = write.operation().into();
        request["options"]["kind"] = match write.operation() {
            "CREATE" => "CreateOptions".into(),
            "UPDATE" => "UpdateOptions".into(),
            _ => "DeleteOptions".into(),
        };
        (request["object"], request["oldObject"]) = (shown(object)?, shown(before)?);
        let name = path.name.as_deref().unwrap_or(text(&write.some_object()["metadata"]["name"]));
        let texts = [
            ("subResource", sub),
            ("requestSubResource", sub),
            ("name", name),
            ("namespace", &self.namespace(write)),
        ];
        for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            request[field] = text.into();
        }
        Ok(request)
    }

    /// Whether all `matchConditions` hold.
    fn conditions_hold(
        &self,
        webhook: &Value,
        version: &Kind,
        write: Write<'_>,
    ) -> Result<bool, StatusError> {
        if webhook["matchConditions"].is_null() {
            return Ok(true);
        }
        let request = self.request(version, write)?;
        let variables =
            [("object", &request["object"]), ("oldObject", &request["oldObject"]), ("request", &request)];
        let mut errors = Vec::new();
        for condition in each(&webhook["matchConditions"]) {
            let expression = text(&condition["expression"]);
            match cel::evaluate(expression, &variables) {
                Ok(Value::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(why) => errors.push(format!("expression '{expression}' resulted in error: {why}")),
            }
        }
        if errors.is_empty() || webhook["failurePolicy"] == "Ignore" {
            return Ok(errors.is_empty());
        }
        let name = text(&write.some_object()["metadata"]["name"]);
        let why = if let [one] = &errors[..] { one.clone() } else { format!("[{}]", errors.join(", ")) };
        Err(StatusError::forbidden(write.kind, name, &why))
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
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{review_version}"),
            "request": self.request(version, write)?,
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
        let mut object = self.request(version, write)?["object"].take();
        json_patch::apply(&operations, &mut object).map_err(|why| StatusError::went_wrong(&why))?;
        if !object.is_object() {
            // The words of the Go library.
            return Err(StatusError::went_wrong(
                "replace operation value must be object or array: %!w(<nil>)",
            ));
        }
        write.kind.check_types(&object).map_err(|why| StatusError::went_wrong(&why))?;
        if object["apiVersion"] != write.object["apiVersion"] {
            write.kind.convert(&mut object)?;
        }
        // Unknown fields of a custom resource stay until it is stored.
        if !write.kind.is_custom() {
            prune_object(&mut object, write.kind.schema());
            write.kind.normalize(&mut object);
        }
        write.kind.set_defaults(&mut object, Nulls::Dropped);
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
