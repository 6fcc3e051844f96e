//! ValidatingAdmissionPolicies: which of them a write has to follow, and what follows from their expressions.
//!
//! ```text
//! configmaps "a" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: has(object.data)
//! ```
//!
//! As in apiserver/pkg/admission/plugin/policy. kube-apiserver notices a change of a policy within a second; here, each write reads them.

use std::{borrow::Cow, sync::Arc};

use cel::common::value::Val;
use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use crate::{
    admission::{
        Admission,
        matching::{Write, conditions_hold},
    },
    kinds::{
        Kind,
        field_checks::{each, text},
    },
    schema::{
        cel_authorizer::{Authorize, authorizer},
        expressions::Activation,
    },
    status::{StatusError, details, qualified},
    storage::{Place, Storage},
};

const VALIDATING: [&str; 2] = [
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
];

/// Longest result of a `messageExpression` that is shown.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

pub(super) const MUTATING: [&str; 2] = [
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
];

/// Whether there is any binding of a policy.
pub(crate) fn are_bound(storage: &Storage) -> bool {
    let mut bindings = [VALIDATING[1], MUTATING[1]].into_iter().filter_map(|name| storage.collection(name));
    bindings.any(|bindings| !bindings.objects.is_empty())
}

/// A policy that a write has to follow.
pub(super) struct BoundPolicy<'s> {
    pub(super) policy: &'s Value,
    /// `None` if the policy has a wrong configuration.
    pub(super) binding: Option<&'s Value>,
    /// In whose version the policy gets the objects of the write.
    pub(super) version: Arc<Kind>,
    /// The params to evaluate it with, one after the other; null stands for none. Or why there are none.
    pub(super) params: Result<Vec<Cow<'s, Value>>, String>,
}

/// Why a policy denies a write.
struct Denial {
    message: String,
    reason: String,
}

impl Admission {
    /// Evaluates the policies that accept or refuse a write.
    pub(super) fn follow_policies(&mut self, storage: &Storage, write: Write<'_>) -> Result<(), StatusError> {
        let mut denied = None;
        for bound in self.bound(storage, VALIDATING, write) {
            let name = text(&bound.policy["metadata"]["name"]);
            let binding = bound.binding.map(|binding| text(&binding["metadata"]["name"]));
            let by = match binding {
                Some(binding) => format!("ValidatingAdmissionPolicy '{name}' with binding '{binding}'"),
                None => format!("ValidatingAdmissionPolicy '{name}'"),
            };
            let denials = self.denials(storage, &bound, write)?;
            let actions = bound.binding.filter(|_| bound.params.is_ok());
            for Denial { message, reason } in denials {
                let has = |action: &str| {
                    actions.is_none_or(|of| each(&of["spec"]["validationActions"]).any(|one| one == action))
                };
                if actions.is_some() && has("Warn") {
                    self.warnings.push(format!("Validation failed for {by}: {message}"));
                }
                if has("Deny") && denied.is_none() {
                    let why = format!("{by} denied request: {message}");
                    denied = Some(self.denied(write, &why, &reason));
                }
            }
        }
        denied.map_or(Ok(()), Err)
    }

    /// The policies that match a write, each with a binding that matches.
    pub(super) fn bound<'s>(
        &self,
        storage: &'s Storage,
        [policies, bindings]: [&str; 2],
        write: Write<'_>,
    ) -> Vec<BoundPolicy<'s>> {
        let mut all = Vec::new();
        let is_policy =
            write.kind.group == "admissionregistration.k8s.io" && write.kind.kind.contains("Policy");
        let bindings = storage.collection(bindings).filter(|_| !is_policy);
        let bindings: Vec<&Value> =
            bindings.into_iter().flat_map(|all| all.objects.values()).map(|one| &**one).collect();
        let policies = storage.collection(policies).into_iter().flat_map(|all| all.objects.values());
        for policy in policies {
            let (policy, spec) = (&**policy, &policy["spec"]);
            let mut its_bindings = bindings
                .iter()
                .filter(|binding| binding["spec"]["policyName"] == policy["metadata"]["name"])
                .peekable();
            if its_bindings.peek().is_none() {
                continue;
            }
            let Some(version) = self.matches(storage, &spec["matchConstraints"], write) else { continue };
            let kind = match param_kind(storage, &spec["paramKind"]) {
                Ok(kind) => kind,
                Err(why) => {
                    let params = Err(format!("failed to configure policy: {why}"));
                    all.push(BoundPolicy { policy, binding: None, version, params });
                    continue;
                }
            };
            for binding in its_bindings {
                let resources = &binding["spec"]["matchResources"];
                if !resources.is_null() && self.matches(storage, resources, write).is_none() {
                    continue;
                }
                let params = params(storage, kind, &binding["spec"]["paramRef"], &self.namespace(write));
                let params = params.map_err(|why| format!("failed to configure binding: {why}"));
                all.push(BoundPolicy {
                    policy,
                    binding: Some(binding),
                    version: Arc::clone(&version),
                    params,
                });
            }
        }
        all
    }

    /// The kind of the version of a write that `matchConstraints` or `matchResources` match.
    fn matches(&self, storage: &Storage, criteria: &Value, write: Write<'_>) -> Option<Arc<Kind>> {
        if !self.selects(storage, criteria, write) {
            return None;
        }
        let matching = |rules: &Value| self.matching(storage, rules, &criteria["matchPolicy"], write);
        if matching(&criteria["excludeResourceRules"]).is_some() {
            return None;
        }
        if each(&criteria["resourceRules"]).next().is_none() {
            return self.requested(storage);
        }
        matching(&criteria["resourceRules"])
    }

    /// What a policy has against a write.
    fn denials(
        &self,
        storage: &Storage,
        bound: &BoundPolicy<'_>,
        write: Write<'_>,
    ) -> Result<Vec<Denial>, StatusError> {
        let spec = &bound.policy["spec"];
        let mut all = Vec::new();
        let fail = |all: &mut Vec<Denial>, message: String| {
            if spec["failurePolicy"] != "Ignore" {
                all.push(Denial { message, reason: "Invalid".to_owned() });
            }
        };
        let params = match &bound.params {
            Ok(params) => params,
            Err(why) => {
                fail(&mut all, why.clone());
                return Ok(all);
            }
        };
        let inputs = self.inputs(storage, &bound.version, write)?;
        for param in params {
            match inputs.match_conditions(spec, param) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(why) => {
                    fail(&mut all, why);
                    continue;
                }
            }
            let activation = inputs.activation(spec, param);
            for validation in each(&spec["validations"]) {
                match activation.evaluate(text(&validation["expression"])) {
                    Ok(Value::Bool(true)) => {}
                    Ok(_) => all.push(Denial {
                        message: message(validation, &activation),
                        reason: validation["reason"].as_str().unwrap_or("Invalid").to_owned(),
                    }),
                    Err(why) => fail(&mut all, why),
                }
            }
        }
        Ok(all)
    }

    /// What the expressions of a policy get of a write.
    pub(super) fn inputs<'w>(
        &self,
        storage: &Storage,
        version: &Kind,
        write: Write<'w>,
    ) -> Result<Inputs<'w>, StatusError> {
        let [object, before] = self.shown(version, write)?;
        let (request, namespace) = (self.request(version, write), self.namespace_object(storage, write));
        Ok(Inputs { object, before, request, namespace, authorize: Arc::clone(&self.authorize) })
    }

    /// The Namespace of a write, as `namespaceObject`.
    fn namespace_object(&self, storage: &Storage, write: Write<'_>) -> Value {
        let name = self.namespace(write);
        if name.is_empty() || write.kind.stored_in() == "namespaces" {
            return Value::Null;
        }
        let stored = storage.get(&Place::new("namespaces", None, &name));
        let mut namespace = stored.map_or(Value::Null, |namespace| Value::clone(namespace));
        for (at, field) in [("", "apiVersion"), ("", "kind"), ("/metadata", "managedFields")] {
            namespace.pointer_mut(at).and_then(Value::as_object_mut).map(|map| map.remove(field));
        }
        namespace
    }

    /// The details of the error of a write that policies deny.
    pub(super) fn details<'m>(&self, write: Write<'_>, messages: impl Iterator<Item = &'m str>) -> Value {
        let metadata = &write.some_object()["metadata"];
        let mut names = [self.name(write), text(&metadata["generateName"]), "Unknown"].into_iter();
        let name = names.find(|name| !name.is_empty()).unwrap_or_default();
        let mut details = details(name, &self.path.group, &self.path.plural);
        details["causes"] = messages.map(|message| json!({"message": message})).collect();
        details
    }

    /// The error of a write that a policy denies.
    fn denied(&self, write: Write<'_>, why: &str, reason: &str) -> StatusError {
        let details = self.details(write, std::iter::once(why));
        let resource = qualified(&self.path.plural, &self.path.group);
        let message = format!("{resource} {} is forbidden: {why}", details["name"]);
        let code = match reason {
            "Unauthorized" => 401,
            "Forbidden" => 403,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        StatusError::new(code, reason, message, Some(details))
    }
}

/// What the expressions of a policy get of a write.
pub(super) struct Inputs<'w> {
    pub(super) object: Cow<'w, Value>,
    before: Cow<'w, Value>,
    request: Value,
    namespace: Value,
    authorize: Arc<Authorize>,
}

impl Inputs<'_> {
    fn values<'i>(&'i self, param: &'i Value, namespace: &'i Value) -> [(&'static str, &'i Value); 5] {
        [
            ("object", &*self.object),
            ("oldObject", &*self.before),
            ("request", &self.request),
            ("params", param),
            ("namespaceObject", namespace),
        ]
    }

    /// Whether the `matchConditions` of a policy hold. They get no Namespace.
    pub(super) fn match_conditions(&self, spec: &Value, param: &Value) -> Result<bool, String> {
        if spec["matchConditions"].is_null() {
            return Ok(true);
        }
        let values = self.values(param, &Value::Null);
        conditions_hold(spec, &Activation::new(&values, self.authorizer(), &Value::Null))
    }

    /// The variables of the other expressions of a policy.
    pub(super) fn activation<'i>(&'i self, spec: &'i Value, param: &'i Value) -> Activation<'i> {
        Activation::new(&self.values(param, &self.namespace), self.authorizer(), &spec["variables"])
    }

    fn authorizer(&self) -> [Box<dyn Val>; 2] {
        authorizer(Arc::clone(&self.authorize), &self.request)
    }
}

/// The message of a validation that does not hold.
fn message(validation: &Value, activation: &Activation<'_>) -> String {
    let computed =
        validation["messageExpression"].as_str().and_then(|source| activation.evaluate(source).ok());
    let computed = computed.as_ref().map(text).unwrap_or_default().trim();
    if !computed.is_empty() && computed.len() <= MESSAGE_BYTES_MAX && !computed.contains('\n') {
        return computed.to_owned();
    }
    match text(&validation["message"]).trim() {
        "" => format!("failed expression: {}", text(&validation["expression"]).trim()),
        message => message.to_owned(),
    }
}

/// The kind of the params of a policy, if it has any.
fn param_kind<'s>(storage: &'s Storage, param: &Value) -> Result<Option<&'s Arc<Kind>>, String> {
    if param.is_null() {
        return Ok(None);
    }
    let (api_version, kind) = (text(&param["apiVersion"]), text(&param["kind"]));
    match storage.kinds.by_kind(api_version, kind) {
        Some(kind) => Ok(Some(kind)),
        None => {
            let slash = if api_version.contains('/') { "" } else { "/" };
            let shown = format!("{slash}{api_version}, Kind={kind}");
            Err(format!("failed to find resource referenced by paramKind: '{shown}'"))
        }
    }
}

/// The params of a binding.
fn params<'s>(
    storage: &'s Storage,
    kind: Option<&Arc<Kind>>,
    param: &Value,
    namespace: &str,
) -> Result<Vec<Cow<'s, Value>>, String> {
    let Some(kind) = kind.filter(|_| !param.is_null()) else { return Ok(vec![Cow::Owned(Value::Null)]) };
    let mut home = param["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    if !kind.namespaced && home.is_some() {
        return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
    }
    if kind.namespaced {
        home = home.or(Some(namespace).filter(|namespace| !namespace.is_empty()));
        if home.is_none() {
            let why =
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(why.to_owned());
        }
    }
    let selector = Selector::from_object(&param["selector"]);
    let all = storage.collection(&kind.stored_in()).into_iter().flat_map(|all| all.objects.values());
    let found = all.filter(|object| {
        let metadata = &object["metadata"];
        metadata["namespace"].as_str() == home
            && match param["name"].as_str() {
                Some(name) => metadata["name"] == name,
                None => selector.matches(&metadata["labels"]),
            }
    });
    let views = found.map(|object| kind.view(object).map_err(|error| error.message().to_owned()));
    let found: Vec<Cow<'s, Value>> = views.collect::<Result<_, _>>()?;
    if found.is_empty() && param["parameterNotFoundAction"] == "Deny" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found)
}
