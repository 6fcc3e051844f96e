//! The operator has only the permissions of the Roles that are shipped with it.
//!
//! It would have found kubeswift-io/kubeswift#460: one kind without a rule, so nothing was reconciled, and the status stayed empty.

use listwatch_apiserver::Rule;
use serde_json::Value;

use super::super::{
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    static_checks::least_privilege,
};

/// The rules of all roles of ServiceAccounts together.
pub(in super::super) fn rules(rbac: &[Value]) -> Result<Vec<Rule>, CannotJudge> {
    let mut rules = Vec::new();
    for (role, _) in least_privilege::roles_of_accounts(rbac) {
        let Some(of_role) = role.get("rules").filter(|rules| !rules.is_null()) else { continue };
        let of_role: Result<Vec<Rule>, _> = serde_json::from_value(of_role.clone());
        let wrong = |error| CannotJudge(format!("--rbac: {}: {error}", role["metadata"]["name"]));
        rules.extend(of_role.map_err(wrong)?);
    }
    Ok(rules)
}

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let rbac = &reference.scorecard.rbac;
    if rbac.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "no --rbac is given"));
    }
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
    lab.end().await;
    let Some(first) = refused.first() else { return Ok(verdict) };
    Ok(match verdict.result {
        Outcome::Pass => {
            Verdict::new(Outcome::Warn, format!("the Roles do not allow: {first}; it settles without"))
        }
        _ => Verdict::fail(format!("the Roles do not allow: {first}, {} in all", refused.len())),
    })
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
