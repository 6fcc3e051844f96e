//! The validation of admission policies and their bindings: pkg/apis/admissionregistration/validation of Kubernetes.
//!
//! ```text
//! spec.validations[0].expression: Invalid value: "object.a": must evaluate to bool but got dyn
//! ```

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    kinds::{
        field_checks::{each, not_one_of, text},
        validation,
        webhook_configurations::{conditions_errors, rule_errors},
    },
    names::{causes, dns_1035_errors, path_segment_errors, qualified_name_errors, subdomain_errors},
    schema::{
        cel::RESERVED,
        expressions::{self, ALWAYS, Names, Wanted},
    },
    status::Cause,
};

/// Most audit annotations of a policy.
const ANNOTATIONS_MAX: usize = 20;

/// Longest `valueExpression` of an audit annotation.
const VALUE_BYTES_MAX: usize = 5 * 1024;

/// The errors of a ValidatingAdmissionPolicy.
pub(crate) fn validating(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (mut all, spec) = (Vec::new(), &object["spec"]);
    policy_errors(&mut all, spec);
    let values = values(spec);
    let composed = variables_errors(&mut all, spec, &values);
    let composed = Some(&*composed).filter(|composed| !composed.is_empty());
    let names = Names { values: &values, composed, constructs: false };
    let annotations = "auditAnnotations";
    if [&spec["validations"], &spec[annotations]].iter().all(|list| each(list).next().is_none()) {
        for field in ["validations", annotations] {
            let why = "validations or auditAnnotations must contain at least one item";
            all.push(Cause::required(format!("spec.{field}"), why));
        }
    }
    for (index, validation) in each(&spec["validations"]).enumerate() {
        validation_errors(&mut all, validation, names, &format!("spec.validations[{index}]"));
    }
    if each(&spec[annotations]).count() > ANNOTATIONS_MAX {
        let why = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        all.push(Cause::invalid(format!("spec.{annotations}"), &spec[annotations], &why));
    }
    let mut keys = HashSet::new();
    for (index, annotation) in each(&spec[annotations]).enumerate() {
        let at = format!("spec.{annotations}[{index}]");
        annotation_errors(&mut all, annotation, text(&object["metadata"]["name"]), names, &at);
        if !keys.insert(text(&annotation["key"])) {
            all.push(Cause::duplicate(format!("{at}.key"), &annotation["key"]));
        }
    }
    all
}

/// The errors of a MutatingAdmissionPolicy.
pub(crate) fn mutating(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (mut all, spec) = (Vec::new(), &object["spec"]);
    policy_errors(&mut all, spec);
    for rule in each(&spec["matchConstraints"]["resourceRules"]) {
        for operation in each(&rule["operations"]) {
            let field = "spec.matchConstraints.resourceRules.operations".to_owned();
            not_one_of(&mut all, field, operation, &["*", "CONNECT", "CREATE", "UPDATE"]);
        }
    }
    let values = values(spec);
    let composed = variables_errors(&mut all, spec, &values);
    let names = Names { values: &values, composed: Some(&composed), constructs: true };
    if each(&spec["mutations"]).next().is_none() {
        all.push(Cause::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (index, mutation) in each(&spec["mutations"]).enumerate() {
        mutation_errors(&mut all, mutation, names, &format!("spec.mutations[{index}]"));
    }
    let policy = &spec["reinvocationPolicy"];
    if text(policy).is_empty() {
        all.push(Cause::required("spec.reinvocationPolicy", ""));
    } else {
        not_one_of(&mut all, "spec.reinvocationPolicy".to_owned(), policy, &["IfNeeded", "Never"]);
    }
    all
}

fn mutation_errors(all: &mut Vec<Cause>, mutation: &Value, names: Names<'_>, at: &str) {
    let (patch, configuration) = ("jsonPatch", "applyConfiguration");
    let (wanted, is, other) = match text(&mutation["patchType"]) {
        "" => return all.push(Cause::required(format!("{at}.patchType"), "")),
        "JSONPatch" => (Wanted::Patches, patch, configuration),
        "ApplyConfiguration" => (Wanted::Object, configuration, patch),
        _ => {
            let known = ["ApplyConfiguration", "JSONPatch"];
            return not_one_of(all, format!("{at}.patchType"), &mutation["patchType"], &known);
        }
    };
    let when = format!("when patchType is {}", text(&mutation["patchType"]));
    let (field, expression) = (format!("{at}.{is}.expression"), text(&mutation[is]["expression"]).trim());
    if mutation[is].is_null() {
        all.push(Cause::required(format!("{at}.{is}"), &format!("must be specified {when}")));
    } else if expression.is_empty() {
        all.push(Cause::required(field, ""));
    } else {
        expression_errors(all, expression, names, wanted, &field);
    }
    if !mutation[other].is_null() {
        let (field, shown) = (format!("{at}.{other}"), format!("{{{other}}}"));
        all.push(Cause::invalid(field, &shown.into(), &format!("must not be specified {when}")));
    }
}

/// The errors that both kinds of policies can have.
fn policy_errors(all: &mut Vec<Cause>, spec: &Value) {
    not_one_of(all, "spec.failurePolicy".to_owned(), &spec["failurePolicy"], &["Fail", "Ignore"]);
    if !spec["paramKind"].is_null() {
        param_kind_errors(all, &spec["paramKind"]);
    }
    let at = "spec.matchConstraints";
    if spec["matchConstraints"].is_null() {
        all.push(Cause::required(at, ""));
    } else {
        resources_errors(all, &spec["matchConstraints"], at);
        if each(&spec["matchConstraints"]["resourceRules"]).next().is_none() {
            all.push(Cause::required(format!("{at}.resourceRules"), ""));
        }
    }
    let names = Names { values: &values(spec), composed: None, constructs: false };
    conditions_errors(all, &spec["matchConditions"], names, "spec.matchConditions");
}

/// The variables of the expressions of a policy, but for those it declares.
fn values(spec: &Value) -> Vec<&'static str> {
    let params = if spec["paramKind"].is_null() { None } else { Some("params") };
    ALWAYS.into_iter().chain(["authorizer"]).chain(params).collect()
}

fn param_kind_errors(all: &mut Vec<Cause>, kind: &Value) {
    let (at, version) = ("spec.paramKind.apiVersion", text(&kind["apiVersion"]));
    let mut invalid = |value: &str, why: &str| all.push(Cause::invalid(at, &value.into(), why));
    match version.split('/').collect::<Vec<_>>()[..] {
        [""] => all.push(Cause::required(at, "")),
        [one] => subdomain_or_version(&mut invalid, "", one, version),
        [group, one] => subdomain_or_version(&mut invalid, group, one, version),
        _ => invalid(version, &format!("unexpected GroupVersion string: {version}")),
    }
    let name = text(&kind["kind"]);
    if name.is_empty() {
        all.push(Cause::required("spec.paramKind.kind", ""));
    } else {
        let errors = dns_1035_errors(&name.to_lowercase());
        if !errors.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", errors.join(","));
            all.push(Cause::invalid("spec.paramKind.kind", &name.into(), &why));
        }
    }
}

fn subdomain_or_version(invalid: &mut impl FnMut(&str, &str), group: &str, version: &str, whole: &str) {
    let errors = if group.is_empty() { Vec::new() } else { subdomain_errors(group) };
    if !errors.is_empty() {
        invalid(group, &errors.join(","));
    }
    let errors = dns_1035_errors(version);
    if version.is_empty() {
        invalid(whole, "version must be specified");
    } else if !errors.is_empty() {
        invalid(version, &errors.join(","));
    }
}

/// The errors of `matchConstraints` or `matchResources`.
fn resources_errors(all: &mut Vec<Cause>, resources: &Value, at: &str) {
    not_one_of(all, format!("{at}.matchPolicy"), &resources["matchPolicy"], &["Equivalent", "Exact"]);
    for selector in ["namespaceSelector", "objectSelector"] {
        all.extend(validation::selector(&resources[selector], &format!("{at}.{selector}")));
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in each(&resources[list]).enumerate() {
            let at = format!("{at}.{list}[{index}]");
            let mut seen = HashSet::new();
            for (index, name) in each(&rule["resourceNames"]).map(text).enumerate() {
                let field = format!("{at}.resourceNames[{index}]");
                all.extend(causes(&field, name, path_segment_errors(name)));
                if !seen.insert(name) {
                    all.push(Cause::duplicate(field, &name.into()));
                }
            }
            rule_errors(all, rule, &at);
        }
    }
}

/// The errors of the variables of a policy, and their names.
fn variables_errors<'s>(all: &mut Vec<Cause>, spec: &'s Value, values: &[&str]) -> Vec<&'s str> {
    let mut composed = Vec::new();
    for (index, variable) in each(&spec["variables"]).enumerate() {
        let at = format!("spec.variables[{index}]");
        let (name, expression) = (text(&variable["name"]), text(&variable["expression"]));
        let is_identifier = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
            && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
            && !RESERVED.split(' ').any(|word| word == name);
        if name.trim().is_empty() {
            all.push(Cause::required(format!("{at}.name"), "name is not specified"));
        } else if !is_identifier {
            all.push(Cause::invalid(format!("{at}.name"), &name.into(), "must be a valid CEL identifier"));
        }
        // kube-apiserver takes the last one.
        if composed.contains(&name) {
            all.push(Cause::duplicate(format!("{at}.name"), &name.into()));
        }
        if expression.trim().is_empty() {
            all.push(Cause::required(format!("{at}.expression"), "expression is not specified"));
            continue;
        }
        let names = Names { values, composed: Some(&composed), constructs: false };
        expression_errors(all, expression, names, Wanted::Any, &format!("{at}.expression"));
        composed.push(name);
    }
    composed
}

fn expression_errors(all: &mut Vec<Cause>, expression: &str, names: Names<'_>, wanted: Wanted, at: &str) {
    if let Err(why) = expressions::check(expression, names, wanted) {
        all.push(Cause::invalid(at, &expression.into(), &why));
    }
}

fn validation_errors(all: &mut Vec<Cause>, validation: &Value, names: Names<'_>, at: &str) {
    let [expression, message, computed] =
        ["expression", "message", "messageExpression"].map(|field| text(&validation[field]));
    if expression.trim().is_empty() {
        all.push(Cause::required(format!("{at}.expression"), "expression is not specified"));
    } else {
        expression_errors(all, expression, names, Wanted::Bool, &format!("{at}.expression"));
    }
    let empty = "must be non-empty if specified";
    if !computed.is_empty() {
        let field = format!("{at}.messageExpression");
        if computed.trim().is_empty() {
            all.push(Cause::invalid(&field, &computed.into(), empty));
        } else {
            let values: Vec<&str> =
                names.values.iter().copied().filter(|name| *name != "authorizer").collect();
            expression_errors(all, computed, Names { values: &values, ..names }, Wanted::Text, &field);
        }
    }
    if !message.is_empty() && message.trim().is_empty() {
        all.push(Cause::invalid(format!("{at}.message"), &message.into(), empty));
    } else if message.trim().contains(['\n', '\r']) {
        all.push(Cause::invalid(format!("{at}.message"), &message.into(), "must not contain line breaks"));
    }
    if !validation["reason"].is_null() {
        let known = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
        not_one_of(all, format!("{at}.reason"), &validation["reason"], &known);
    }
}

fn annotation_errors(all: &mut Vec<Cause>, annotation: &Value, name: &str, names: Names<'_>, at: &str) {
    let key = text(&annotation["key"]);
    if name.is_empty() {
        all.push(Cause::invalid(format!("{at}.key"), &key.into(), "requires metadata.name be non-empty"));
    } else {
        let key = format!("{name}/{key}");
        all.extend(causes(&format!("{at}.key"), &key, qualified_name_errors(&key)));
    }
    let (field, expression) = (format!("{at}.valueExpression"), text(&annotation["valueExpression"]));
    match expression.trim() {
        "" => all.push(Cause::required(field, "valueExpression is not specified")),
        long if long.len() > VALUE_BYTES_MAX => {
            let why = format!("must not exceed {VALUE_BYTES_MAX} bytes in length");
            all.push(Cause::required(field, &why));
        }
        _ => expression_errors(all, expression, names, Wanted::TextOrNull, &field),
    }
}

/// The errors of a ValidatingAdmissionPolicyBinding.
pub(crate) fn validating_binding(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = binding(object, before);
    let (at, actions) = ("spec.validationActions", &object["spec"]["validationActions"]);
    let mut seen = HashSet::new();
    for (index, action) in each(actions).enumerate() {
        not_one_of(&mut all, format!("{at}[{index}]"), action, &["Audit", "Deny", "Warn"]);
        if !seen.insert(text(action)) {
            all.push(Cause::duplicate(format!("{at}[{index}]"), action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
            response and headers serves no purpose)";
        all.push(Cause::invalid(at, actions, why));
    }
    if seen.is_empty() {
        all.push(Cause::required(at, "at least one validation action is required"));
    }
    all
}

/// The errors of a binding of a policy.
pub(crate) fn binding(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (mut all, spec) = (Vec::new(), &object["spec"]);
    let name = text(&spec["policyName"]);
    if name.is_empty() {
        all.push(Cause::required("spec.policyName", ""));
    } else {
        all.extend(causes("spec.policyName", name, subdomain_errors(name)));
    }
    if !spec["paramRef"].is_null() {
        param_errors(&mut all, &spec["paramRef"]);
    }
    if !spec["matchResources"].is_null() {
        resources_errors(&mut all, &spec["matchResources"], "spec.matchResources");
    }
    all
}

fn param_errors(all: &mut Vec<Cause>, param: &Value) {
    let (at, name, selector) = ("spec.paramRef", text(&param["name"]), &param["selector"]);
    let both = "name and selector are mutually exclusive";
    if !name.is_empty() {
        all.extend(causes(&format!("{at}.name"), name, path_segment_errors(name)));
        if !selector.is_null() {
            all.push(Cause::forbidden(format!("{at}.name"), both));
        }
    }
    if !selector.is_null() {
        all.extend(validation::selector(selector, &format!("{at}.selector")));
        if !name.is_empty() {
            all.push(Cause::forbidden(format!("{at}.selector"), both));
        }
    }
    if name.is_empty() && selector.is_null() {
        all.push(Cause::required(at, "one of name or selector must be specified"));
    }
    let (field, action) = (format!("{at}.parameterNotFoundAction"), &param["parameterNotFoundAction"]);
    if text(action).is_empty() {
        all.push(Cause::required(field, ""));
    } else {
        not_one_of(all, field, action, &["Deny", "Allow"]);
    }
}
