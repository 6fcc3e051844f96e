//! The validation of webhook configurations: pkg/apis/admissionregistration/validation of Kubernetes.
//!
//! ```text
//! webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun
//! ```

use std::collections::HashSet;

use http::Uri;
use serde_json::Value;

use crate::{
    kinds::{
        field_checks::{each, is_port, not_one_of, text},
        validation,
    },
    names::{causes, dns_1035_errors, qualified_name_errors, subdomain_errors},
    schema::expressions::{self, ALWAYS, Names, Wanted},
    status::Cause,
};

/// Most conditions of a webhook.
const CONDITIONS_MAX: usize = 64;

/// The errors of a configuration of webhooks.
pub(crate) fn errors(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    let mut names = HashSet::new();
    for (index, webhook) in each(&object["webhooks"]).enumerate() {
        let at = format!("webhooks[{index}]");
        let name = text(&webhook["name"]);
        all.extend(name_error(&format!("{at}.name"), name));
        if !name.is_empty() && !names.insert(name) {
            all.push(Cause::duplicate(format!("{at}.name"), &name.into()));
        }
        webhook_errors(&mut all, webhook, &at);
        review_versions_errors(
            &mut all,
            &webhook["admissionReviewVersions"],
            &format!("{at}.admissionReviewVersions"),
        );
    }
    all
}

fn name_error(field: &str, name: &str) -> Option<Cause> {
    if name.is_empty() {
        return Some(Cause::required(field, ""));
    }
    let errors = subdomain_errors(name);
    if !errors.is_empty() {
        return Some(Cause::invalid(field, &name.into(), &errors.join(",")));
    }
    let why = "should be a domain with at least three segments separated by dots";
    (name.split('.').count() < 3).then(|| Cause::invalid(field, &name.into(), why))
}

fn webhook_errors(all: &mut Vec<Cause>, webhook: &Value, at: &str) {
    for (index, rule) in each(&webhook["rules"]).enumerate() {
        rule_errors(all, rule, &format!("{at}.rules[{index}]"));
    }
    not_one_of(all, format!("{at}.failurePolicy"), &webhook["failurePolicy"], &["Fail", "Ignore"]);
    not_one_of(all, format!("{at}.matchPolicy"), &webhook["matchPolicy"], &["Equivalent", "Exact"]);
    let field = format!("{at}.sideEffects");
    if webhook["sideEffects"].is_null() {
        all.push(Cause::required(field, "must specify one of None, NoneOnDryRun"));
    } else {
        not_one_of(all, field, &webhook["sideEffects"], &["None", "NoneOnDryRun"]);
    }
    let timeout = &webhook["timeoutSeconds"];
    if timeout.as_i64().is_some_and(|secs| !(1..=30).contains(&secs)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        all.push(Cause::invalid(format!("{at}.timeoutSeconds"), timeout, why));
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        all.extend(validation::selector(&webhook[selector], &format!("{at}.{selector}")));
    }
    let policy = &webhook["reinvocationPolicy"];
    if !policy.is_null() {
        not_one_of(all, format!("{at}.reinvocationPolicy"), policy, &["IfNeeded", "Never"]);
    }
    client_errors(all, &webhook["clientConfig"], &format!("{at}.clientConfig"));
    let names = Names { values: &[&ALWAYS[..], &["authorizer"]].concat(), composed: None, constructs: false };
    conditions_errors(all, &webhook["matchConditions"], names, &format!("{at}.matchConditions"));
}

/// The errors of the address of a webhook.
pub(crate) fn client_errors(all: &mut Vec<Cause>, config: &Value, at: &str) {
    let (url, service) = (&config["url"], &config["service"]);
    if url.is_null() == service.is_null() {
        all.push(Cause::required(at, "exactly one of url or service is required"));
    } else if service.is_null() {
        url_errors(all, text(url), &format!("{at}.url"));
    } else {
        service_errors(all, service, &format!("{at}.service"));
    }
}

fn url_errors(all: &mut Vec<Cause>, url: &str, at: &str) {
    let form = "; desired format: https://host[/path]";
    let mut invalid = |value: &str, why: &str| all.push(Cause::invalid(at, &value.into(), why));
    let (url, fragment) = url.split_once('#').unwrap_or((url, ""));
    let uri: Uri = url.parse().unwrap_or_default();
    let scheme = uri.scheme_str().unwrap_or_default();
    if scheme != "https" {
        invalid(scheme, &format!("'https' is the only allowed URL scheme{form}"));
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    // Without a scheme, the first part of a URL is not a host.
    if authority.is_empty() || scheme.is_empty() {
        invalid("", &format!("host must be specified{form}"));
    }
    if let Some((user, _)) = authority.rsplit_once('@') {
        invalid(user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        invalid(fragment, "fragments are not permitted in the URL");
    }
    if let Some(query) = uri.query().filter(|query| !query.is_empty()) {
        invalid(query, "query parameters are not permitted in the URL");
    }
}

fn service_errors(all: &mut Vec<Cause>, service: &Value, at: &str) {
    for field in ["name", "namespace"] {
        if text(&service[field]).is_empty() {
            all.push(Cause::required(format!("{at}.{field}"), ""));
        }
    }
    if !is_port(&service["port"]) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        all.push(Cause::invalid(format!("{at}.port"), &service["port"], why));
    }
    let path = text(&service["path"]);
    if matches!(path, "" | "/") {
        return;
    }
    let mut invalid = |why: &str| all.push(Cause::invalid(format!("{at}.path"), &path.into(), why));
    if path == "//" {
        return invalid("segment[0] may not be empty");
    }
    if !path.starts_with('/') {
        invalid("must start with a '/'");
    }
    let steps = path.get(1..).unwrap_or_default();
    for (index, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            invalid(&format!("segment[{index}] may not be empty"));
            continue;
        }
        for why in subdomain_errors(step) {
            invalid(&format!("segment[{index}]: {why}"));
        }
    }
}

/// The errors of a rule that matches writes.
pub(crate) fn rule_errors(all: &mut Vec<Cause>, rule: &Value, at: &str) {
    let lists = [
        ("operations", "operations"),
        ("apiGroups", "API groups"),
        ("apiVersions", "API versions"),
        ("resources", ""),
    ];
    for (list, plural) in lists {
        let field = format!("{at}.{list}");
        let values: Vec<&str> = each(&rule[list]).map(text).collect();
        if values.is_empty() {
            all.push(Cause::required(field, ""));
            continue;
        }
        if !plural.is_empty() && values.len() > 1 && values.contains(&"*") {
            let why = format!("if '*' is present, must not specify other {plural}");
            all.push(Cause::invalid(&field, &rule[list], &why));
        }
        for (index, value) in values.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match list {
                "operations" => {
                    let known = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
                    not_one_of(all, field, &(*value).into(), &known);
                }
                // The core group has no name.
                "apiGroups" => {}
                _ if value.is_empty() => all.push(Cause::required(field, "")),
                _ => {}
            }
        }
    }
    resources_errors(all, &rule["resources"], &format!("{at}.resources"));
    not_one_of(all, format!("{at}.scope"), &rule["scope"], &["*", "Cluster", "Namespaced"]);
}

/// The errors of resources that another one includes.
fn resources_errors(all: &mut Vec<Cause>, list: &Value, at: &str) {
    let resources: Vec<&str> = each(list).map(text).collect();
    let (mut whole, mut everywhere) = (HashSet::new(), HashSet::new());
    for (index, resource) in resources.iter().enumerate() {
        let Some((of, sub)) = resource.split_once('/') else { continue };
        let included =
            [(whole.contains(of), format!("{of}/*")), (everywhere.contains(sub), format!("*/{sub}"))];
        for (_, by) in included.into_iter().filter(|(is_included, _)| *is_included) {
            let why = format!("if '{by}' is present, must not specify {resource}");
            all.push(Cause::invalid(format!("{at}[{index}]"), &(*resource).into(), &why));
        }
        if sub == "*" {
            whole.insert(of);
        }
        if of == "*" {
            everywhere.insert(sub);
        }
    }
    if resources.len() > 1 && resources.contains(&"*/*") {
        all.push(Cause::invalid(at, list, "if '*/*' is present, must not specify other resources"));
    }
    // Only the last resource counts, as in kube-apiserver.
    let last = resources.iter().rev().find(|resource| !resource.contains('/'));
    if resources.contains(&"*") && last.is_some_and(|last| *last != "*") {
        let why = "if '*' is present, must not specify other resources without subresources";
        all.push(Cause::invalid(at, list, why));
    }
}

/// The errors of the versions of reviews. kube-apiserver knows two.
pub(crate) fn review_versions_errors(all: &mut Vec<Cause>, list: &Value, at: &str) {
    let versions: Vec<&str> = each(list).map(text).collect();
    if versions.is_empty() {
        return all.push(Cause::required(at, "must specify one of v1, v1beta1"));
    }
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let field = format!("{at}[{index}]");
        if seen.insert(version) {
            all.extend(causes(&field, version, dns_1035_errors(version)));
        } else {
            all.push(Cause::invalid(field, &(*version).into(), "duplicate version"));
        }
    }
    if !versions.iter().any(|version| ["v1", "v1beta1"].contains(version)) {
        all.push(Cause::invalid(at, list, "must include at least one of v1, v1beta1"));
    }
}

/// The errors of `matchConditions`.
pub(crate) fn conditions_errors(all: &mut Vec<Cause>, conditions: &Value, names: Names<'_>, at: &str) {
    let count = each(conditions).count();
    if count > CONDITIONS_MAX {
        let why = format!("must have at most {CONDITIONS_MAX} items");
        all.push(Cause::too_many(at, count, &why));
    }
    let mut seen = HashSet::new();
    for (index, condition) in each(conditions).enumerate() {
        let at = format!("{at}[{index}]");
        let (name, expression) = (text(&condition["name"]), text(&condition["expression"]).trim());
        if expression.is_empty() {
            all.push(Cause::required(format!("{at}.expression"), ""));
        } else if let Err(why) = expressions::check(expression, names, Wanted::Bool) {
            all.push(Cause::invalid(format!("{at}.expression"), &expression.into(), &why));
        }
        if name.is_empty() {
            all.push(Cause::required(format!("{at}.name"), ""));
        } else {
            all.extend(causes(&format!("{at}.name"), name, qualified_name_errors(name)));
            if !seen.insert(name) {
                all.push(Cause::duplicate(format!("{at}.name"), &name.into()));
            }
        }
    }
}
