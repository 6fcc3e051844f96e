//! The operator has only the permissions of the Roles that are shipped with it. These must also allow all that it asked for in the checks before,
//! which repair and delete.
//!
//! It would have found kubeswift-io/kubeswift#460: one kind without a rule, so nothing was reconciled, and the status stayed empty.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use listwatch_apiserver::Rule;
use serde_json::{Value, json};

use crate::{
    journal::{self, Asked},
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    static_checks::least_privilege,
};

pub(crate) const NAME: &str = "shipped-role";

/// The rules of all roles of ServiceAccounts together.
pub(crate) fn rules(rbac: &[Value]) -> Result<Vec<Rule>, CannotJudge> {
    let mut rules = Vec::new();
    for (role, _) in least_privilege::roles_of_accounts(rbac) {
        let Some(of_role) = role.get("rules").filter(|rules| !rules.is_null()) else { continue };
        let of_role: Result<Vec<Rule>, _> = serde_json::from_value(of_role.clone());
        let wrong = |error| CannotJudge(format!("--rbac: {}: {error}", role["metadata"]["name"]));
        rules.extend(of_role.map_err(wrong)?);
    }
    Ok(rules)
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let rbac = &reference.scorecard.rbac;
    if rbac.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "no --rbac is given"));
    }
    reference.end_given_back().await;
    let asked = journal::asked();
    let mut lab = reference.lab_with(Some(rules(rbac)?)).await?;
    let verdict = match lab.connected().await {
        Ok(()) => {
            lab.create_samples().await?;
            reference.judge(&mut lab, "with the shipped Roles").await?
        }
        Err(why) if refused(&lab).is_empty() => return Err(why),
        Err(CannotJudge(why)) => Verdict::fail(why),
    };
    let refused = refused(&lab);
    let missing = missing(&lab, &asked).await;
    lab.end().await;
    if let (Some(first), Outcome::Pass) = (missing.first(), verdict.result) {
        let count = missing.len();
        return Ok(Verdict::fail(format!(
            "in other checks, the Roles do not allow: {first}, {count} in all"
        )));
    }
    let Some(first) = refused.first() else { return Ok(verdict) };
    Ok(match verdict.result {
        Outcome::Pass => {
            Verdict::new(Outcome::Warn, format!("the Roles do not allow: {first}; it settles without"))
        }
        _ => Verdict::fail(format!("the Roles do not allow: {first}, {} in all", refused.len())),
    })
}

/// `PATCH /api/v1/namespaces/default/services/a`, for each resource and verb that the Roles do not allow. What this run did without is not missing.
async fn missing(lab: &Lab<'_>, asked: &BTreeSet<Asked>) -> Vec<String> {
    let own = lab.server.requests();
    let refused = own.iter().filter(|request| Lab::is_of_operator(&request.user) && request.status == 403);
    let refused: Vec<Value> = refused.map(Asked::of).flat_map(|asked| attributes(&asked)).collect();
    let without_name = |resource: &Value| {
        ["group", "resource", "subresource", "verb"].map(|field| resource[field].to_string())
    };
    let mut missing = BTreeMap::new();
    for asked in asked {
        for resource in attributes(asked) {
            let key = without_name(&resource);
            if missing.contains_key(&key) || refused.iter().any(|one| without_name(one) == key) {
                continue;
            }
            let spec = json!({"user": lab.user(), "resourceAttributes": resource});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let (_, review) = lab.request(Method::POST, path, json!({"spec": spec})).await;
            if review["status"]["allowed"] == false {
                missing.insert(key, format!("{} {}", asked.method, asked.path));
            }
        }
    }
    missing.into_values().collect()
}

/// The verbs that a request needs.
fn verbs(asked: &Asked) -> Vec<&'static str> {
    match (&*asked.method, asked.is_watch, asked.has_created) {
        ("GET", true, _) => vec!["watch"],
        ("GET", false, _) => vec!["get"],
        ("POST", ..) => vec!["create"],
        ("PUT", ..) => vec!["update"],
        ("PATCH", _, true) => vec!["patch", "create"],
        ("PATCH", _, false) => vec!["patch"],
        ("DELETE", ..) => vec!["delete"],
        _ => Vec::new(),
    }
}

/// The `resourceAttributes` of a request; none if it is not for a resource. Its namespace does not matter: the rules of all Roles count everywhere.
fn attributes(asked: &Asked) -> Vec<Value> {
    let parts: Vec<&str> = asked.path.trim_matches('/').split('/').collect();
    let (group, rest) = match &parts[..] {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return Vec::new(),
    };
    let (resource, name, subresource) = match rest {
        ["namespaces", _, resource, rest @ ..] if !["status", "finalize"].contains(resource) => {
            (*resource, rest.first(), rest.get(1))
        }
        [resource, rest @ ..] => (*resource, rest.first(), rest.get(1)),
        [] => return Vec::new(),
    };
    let of_verb = |verb: &str| {
        let verb = match (verb, name) {
            ("get", None) => "list",
            ("delete", None) => "deletecollection",
            (verb, _) => verb,
        };
        json!({"verb": verb, "group": group, "resource": resource, "name": name.copied().unwrap_or(&asked.selected),
            "subresource": subresource.unwrap_or(&"")})
    };
    verbs(asked).into_iter().map(of_verb).collect()
}

/// `GET /api/v1/services`, each once.
fn refused(lab: &Lab<'_>) -> Vec<String> {
    let mut refused = Vec::new();
    for request in lab.server.requests() {
        let text = format!("{} {}", request.method, request.path);
        if Lab::is_of_operator(&request.user) && request.status == 403 && !refused.contains(&text) {
            refused.push(text);
        }
    }
    refused
}
