//! MutatingAdmissionPolicies: how they change an object.
//!
//! ```text
//! {patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}
//! {patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/labels/a', value: 'b'}]"}}
//! ```
//!
//! As in apiserver/pkg/admission/plugin/policy/mutating. The fields that a policy sets have no manager of their own.

use serde_json::Value;

use crate::{
    admission::{
        Admission,
        matching::{Reinvocation, Write},
        policies::{BoundPolicy, MUTATING},
    },
    apply::{
        json_patch::{self, PatchFailure},
        typed_value::TypeRef,
    },
    kinds::{
        Kind,
        field_checks::{each, text},
    },
    status::StatusError,
    storage::Storage,
};

/// Why a mutation has no result.
enum MutationFailure {
    /// Counts as the `failurePolicy` says.
    Why(String),
    Status(StatusError),
}

impl From<String> for MutationFailure {
    fn from(why: String) -> MutationFailure {
        MutationFailure::Why(why)
    }
}

impl From<StatusError> for MutationFailure {
    fn from(error: StatusError) -> MutationFailure {
        MutationFailure::Status(error)
    }
}

impl Admission {
    /// Lets the policies that match a write change its object, one after the other.
    pub(super) fn apply_policies(
        &mut self,
        storage: &Storage,
        kind: &Kind,
        object: &mut Value,
        before: &Value,
        reinvocation: &mut Reinvocation,
    ) -> Result<(), StatusError> {
        // A delete changes no object.
        if object.is_null() {
            return Ok(());
        }
        let (mut errors, mut is_applied) = (Vec::new(), false);
        for bound in self.bound(storage, MUTATING, Write { kind, object, before }) {
            let spec = &bound.policy["spec"];
            let mut fail = |why: &str, reason| {
                if spec["failurePolicy"] != "Ignore" {
                    errors.push((denied_by(&bound, why), reason));
                }
            };
            let params = match &bound.params {
                Ok(params) => params,
                Err(why) => {
                    fail(why, "Forbidden");
                    continue;
                }
            };
            for param in params {
                let inputs = self.inputs(storage, &bound.version, Write { kind, object, before })?;
                match inputs.match_conditions(spec, param) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(why) => {
                        fail(&why, "Invalid");
                        continue;
                    }
                }
                let id = id(&bound, param);
                if reinvocation.skips(&id) {
                    continue;
                }
                for mutation in each(&spec["mutations"]) {
                    match self.mutated(storage, &bound, param, mutation, Write { kind, object, before }) {
                        Ok(mutated) => (*object, is_applied) = (mutated, true),
                        Err(MutationFailure::Why(why)) => fail(&why, "Invalid"),
                        Err(MutationFailure::Status(error)) => return Err(error),
                    }
                }
                reinvocation.invoked(id, &spec["reinvocationPolicy"]);
            }
        }
        // As in kube-apiserver, a mutation counts as a change even if the object is the same.
        if is_applied {
            reinvocation.change();
        }
        let Some((message, reason)) = errors.first() else { return Ok(()) };
        let messages = errors.iter().map(|(message, _)| &**message);
        let details = self.details(Write { kind, object, before }, messages);
        Err(StatusError::new(403, reason, message, Some(details)))
    }

    /// The object after one mutation.
    fn mutated(
        &self,
        storage: &Storage,
        bound: &BoundPolicy<'_>,
        param: &Value,
        mutation: &Value,
        write: Write<'_>,
    ) -> Result<Value, MutationFailure> {
        let inputs = self.inputs(storage, &bound.version, write)?;
        let activation = inputs.activation(&bound.policy["spec"], param);
        let mut object;
        if mutation["patchType"] == "JSONPatch" {
            let patch = activation.construct(text(&mutation["jsonPatch"]["expression"]))?;
            let Value::Array(patch) = patch else {
                let why = "type mismatch: JSONPatchType.expression should evaluate to array";
                return Err(why.to_owned().into());
            };
            let operations = json_patch::decode(patch);
            let operations = operations.map_err(|error| format!("JSON Patch: {error}"))?;
            object = Value::clone(&inputs.object);
            match json_patch::apply(&operations, &mut object) {
                Ok(()) => {}
                Err(PatchFailure::Test(_)) => return Ok(write.object.clone()),
                Err(PatchFailure::Other(why)) => return Err(format!("JSON Patch: {why}").into()),
            }
        } else {
            let mut applied = activation.construct(text(&mutation["applyConfiguration"]["expression"]))?;
            if !applied.is_object() {
                return Err("unsupported return type from ApplyConfiguration expression".to_owned().into());
            }
            for field in ["apiVersion", "kind"] {
                applied[field] = inputs.object[field].clone();
            }
            let type_ref = TypeRef::of(self.shown_kind(&bound.version, write.kind));
            if let Some(why) = type_ref.unfit(&applied) {
                let why = format!("failed to convert patch object to typed object: {why}");
                return Err(format!("error applying patch: {why}").into());
            }
            let atomics = type_ref.atomics(&applied).join(", ");
            if !atomics.is_empty() {
                let why = format!("may not mutate atomic arrays, maps or structs: {atomics}");
                return Err(format!("error applying patch: invalid ApplyConfiguration: {why}").into());
            }
            object = type_ref.merge(&inputs.object, &applied);
        }
        let unknown = write.take(&mut object)?;
        if !unknown.is_empty() {
            let unknown: Vec<String> =
                unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
            let why = format!("strict decoding error: {}", unknown.join(", "));
            return Err(StatusError::went_wrong(&why).into());
        }
        Ok(object)
    }
}

fn denied_by(bound: &BoundPolicy<'_>, why: &str) -> String {
    let name = text(&bound.policy["metadata"]["name"]);
    match bound.binding {
        Some(binding) => {
            let binding = text(&binding["metadata"]["name"]);
            format!("policy '{name}' with binding '{binding}' denied request: {why}")
        }
        None => format!("policy {name:?} denied request: {why}"),
    }
}

/// The id of a policy with a binding and a param.
fn id(bound: &BoundPolicy<'_>, param: &Value) -> String {
    let names = [bound.policy, bound.binding.unwrap_or(&Value::Null), param];
    let names = names.map(|object| text(&object["metadata"]["name"]));
    format!("{}/{}", names.join("/"), text(&param["metadata"]["namespace"]))
}
