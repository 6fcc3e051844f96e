//! Which writes a webhook or a policy is for: its rules, selectors and conditions; and how it sees the write.
//!
//! ```text
//! rules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments, deployments/scale]}]
//! ```

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use crate::{
    admission::Admission,
    kinds::{
        Kind,
        field_checks::{each, text},
    },
    schema::{expressions::Activation, prune_object},
    status::{StatusError, aggregate},
    storage::{Place, Storage},
};

/// The write that webhooks and policies are about. Its operation follows from its objects.
#[derive(Clone, Copy)]
pub(crate) struct Write<'w> {
    pub(crate) kind: &'w Kind,
    /// Null for a delete.
    pub(crate) object: &'w Value,
    /// Null for a create.
    pub(crate) before: &'w Value,
}

impl<'w> Write<'w> {
    pub(super) fn operation(&self) -> &'static str {
        match (self.object, self.before) {
            (Value::Null, _) => "DELETE",
            (_, Value::Null) => "CREATE",
            (_, _) => "UPDATE",
        }
    }

    /// The object that has the name.
    pub(super) fn some_object(self) -> &'w Value {
        if self.object.is_null() { self.before } else { self.object }
    }

    /// Checks an object that a webhook or a policy has changed, and converts it to the version of the write. The fields that are
    /// unknown.
    pub(super) fn take(self, object: &mut Value) -> Result<Vec<String>, StatusError> {
        if !object.is_object() {
            // The words of the Go library.
            return Err(StatusError::went_wrong(
                "replace operation value must be object or array: %!w(<nil>)",
            ));
        }
        self.kind.check_types(object).map_err(|why| StatusError::went_wrong(&why))?;
        if self.kind.is_custom() {
            // Defaults are set in the version that the webhook has sent. Unknown fields stay until the object is stored.
            self.kind.set_defaults(object);
            self.kind.convert(object)?;
            return Ok(Vec::new());
        }
        self.kind.convert(object)?;
        let unknown = prune_object(object, self.kind.schema());
        self.kind.normalize(object);
        self.kind.set_defaults(object);
        Ok(unknown)
    }
}

/// Which policies, or which webhooks, are invoked again in the second round. One that was not invoked in the first round is not.
#[derive(Default)]
pub(super) struct Reinvocation {
    /// Whether the object has changed in any round.
    pub(super) changed: bool,
    /// The object after the first round.
    output: Option<Value>,
    /// Invoked since the last change, and asking to be invoked again.
    invoked: BTreeSet<String>,
    again: BTreeSet<String>,
}

impl Reinvocation {
    pub(super) fn begin(&mut self, object: &Value) {
        if self.output.as_ref().is_some_and(|output| output != object) {
            self.again.append(&mut self.invoked);
        }
    }

    pub(super) fn skips(&self, id: &str) -> bool {
        self.output.is_some() && !self.again.contains(id)
    }

    pub(super) fn change(&mut self) {
        self.changed = true;
        self.again.append(&mut self.invoked);
    }

    pub(super) fn invoked(&mut self, id: String, policy: &Value) {
        if policy == "IfNeeded" {
            self.invoked.insert(id);
        }
    }

    pub(super) fn end(&mut self, object: &Value) {
        self.output = Some(object.clone());
    }
}

impl Admission {
    /// Whether the selectors of a webhook or a policy select a write.
    pub(super) fn selects(&self, storage: &Storage, criteria: &Value, write: Write<'_>) -> bool {
        let Write { object, before, .. } = write;
        let selects = |selector: &Selector, object: &Value| {
            selector.is_empty() || !object.is_null() && selector.matches(&object["metadata"]["labels"])
        };
        let selector = Selector::from_object(&criteria["objectSelector"]);
        if !selects(&selector, object) && !selects(&selector, before) {
            return false;
        }
        let (selector, namespace) =
            (Selector::from_object(&criteria["namespaceSelector"]), self.namespace(write));
        if selector.is_empty() || namespace.is_empty() {
            return true;
        }
        if (&*self.path.plural, self.subresource()) == ("namespaces", "") && !object.is_null() {
            return selects(&selector, object);
        }
        let stored = storage.get(&Place::new("namespaces", None, &namespace));
        stored.map_or_else(|| selects(&selector, &json!({})), |namespace| selects(&selector, namespace))
    }

    /// The kind of the version of a write that rules match.
    pub(super) fn matching(
        &self,
        storage: &Storage,
        rules: &Value,
        policy: &Value,
        write: Write<'_>,
    ) -> Option<Arc<Kind>> {
        let mut versions: Vec<Arc<Kind>> = self.requested(storage).into_iter().collect();
        if policy != "Exact" {
            let stored_in = versions.first().map(|kind| kind.stored_in());
            let groups: Vec<&str> = storage.kinds.groups().iter().map(String::as_str).collect();
            let all = groups.into_iter().flat_map(|group| storage.kinds.in_group(group));
            versions.extend(all.filter(|kind| Some(kind.stored_in()) == stored_in).cloned());
        }
        let matches = |version: &Arc<Kind>| each(rules).any(|rule| self.rule_matches(rule, version, write));
        versions.into_iter().find(matches)
    }

    /// The kind of the resource of the request.
    pub(super) fn requested(&self, storage: &Storage) -> Option<Arc<Kind>> {
        storage.kinds.get(&self.path.group, &self.path.version, &self.path.plural).cloned()
    }

    fn rule_matches(&self, rule: &Value, version: &Kind, write: Write<'_>) -> bool {
        let has = |list: &Value, wanted: &str| each(list).any(|one| one == "*" || one == wanted);
        let is_namespace = version.group.is_empty() && version.plural == "namespaces";
        let is_clusterwide = is_namespace || self.namespace(write).is_empty();
        let is_in_scope = match text(&rule["scope"]) {
            "Namespaced" => !is_clusterwide,
            "Cluster" => is_clusterwide,
            _ => true,
        };
        let (plural, subresource) = (&*version.plural, self.subresource());
        is_in_scope
            && has(&rule["operations"], write.operation())
            && has(&rule["apiGroups"], &version.group)
            && has(&rule["apiVersions"], &version.version)
            && each(&rule["resources"]).any(|resource| {
                let (of, sub) = text(resource).split_once('/').unwrap_or((text(resource), ""));
                (of == "*" || of == plural) && (sub == "*" || sub == subresource)
            })
            && (rule["resourceNames"].is_null()
                || each(&rule["resourceNames"]).any(|name| name == self.name(write)))
    }

    fn subresource(&self) -> &str {
        self.path.subresource.as_deref().unwrap_or_default()
    }

    pub(super) fn name<'a>(&'a self, write: Write<'a>) -> &'a str {
        self.path.name.as_deref().unwrap_or(text(&write.some_object()["metadata"]["name"]))
    }

    /// The namespace of a write. A Namespace counts as inside itself.
    pub(super) fn namespace(&self, write: Write<'_>) -> String {
        match (self.path.namespace.as_deref(), &*self.path.group, &*self.path.plural) {
            (Some(namespace), ..) => namespace.to_owned(),
            (None, "", "namespaces") => text(&write.some_object()["metadata"]["name"]).to_owned(),
            (None, ..) => String::new(),
        }
    }

    /// A Scale or an Eviction has one version.
    fn is_sent_as_is(&self, version: &Kind, kind: &Kind) -> bool {
        kind.plural != self.path.plural || kind.version == version.version
    }

    /// The kind of the objects that are shown in a version.
    pub(super) fn shown_kind<'k>(&self, version: &'k Kind, kind: &'k Kind) -> &'k Kind {
        if self.is_sent_as_is(version, kind) { kind } else { version }
    }

    /// The object of a write and the object before it, in a version.
    pub(super) fn shown<'w>(
        &self,
        version: &Kind,
        write: Write<'w>,
    ) -> Result<[Cow<'w, Value>; 2], StatusError> {
        let shown = |object: &'w Value| match self.is_sent_as_is(version, write.kind) || object.is_null() {
            true => Ok(Cow::Borrowed(object)),
            false => version.view(object),
        };
        Ok([shown(write.object)?, shown(write.before)?])
    }

    /// The AdmissionRequest of a write, without its objects.
    pub(super) fn request(&self, version: &Kind, write: Write<'_>) -> Value {
        let (path, sub) = (&self.path, self.subresource());
        let kind_of = |kind: &Kind| json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        let mut request = self.request.clone();
        request["kind"] = kind_of(self.shown_kind(version, write.kind));
        request["requestKind"] = kind_of(write.kind);
        request["resource"] =
            json!({"group": version.group, "version": version.version, "resource": version.plural});
        request["requestResource"] =
            json!({"group": path.group, "version": path.version, "resource": path.plural});
        request["operation"] = write.operation().into();
        request["options"]["kind"] = match write.operation() {
            "CREATE" => "CreateOptions".into(),
            "UPDATE" => "UpdateOptions".into(),
            _ => "DeleteOptions".into(),
        };
        let texts = [
            ("subResource", sub),
            ("requestSubResource", sub),
            ("name", self.name(write)),
            ("namespace", &self.namespace(write)),
        ];
        for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            request[field] = text.into();
        }
        request
    }
}

/// Whether all `matchConditions` of a webhook or a policy hold. Errors count as its `failurePolicy` says.
pub(super) fn conditions_hold(of: &Value, activation: &Activation<'_>) -> Result<bool, String> {
    let mut errors = Vec::new();
    for condition in each(&of["matchConditions"]) {
        match activation.evaluate(text(&condition["expression"])) {
            Ok(Value::Bool(true)) => {}
            Ok(Value::Bool(false)) => return Ok(false),
            Ok(_) => errors.push("must evaluate to bool".to_owned()),
            Err(why) => errors.push(why),
        }
    }
    if !errors.is_empty() && of["failurePolicy"] == "Ignore" {
        return Ok(false);
    }
    aggregate(errors).map(|()| true)
}
