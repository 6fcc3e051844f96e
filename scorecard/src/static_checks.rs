//! Checks of files alone: CRDs, samples, Roles, a bundle. They need no COMMAND, and come before the checks that run it.
//!
//! What the field's linters refuse fails: the tests of operator-sdk's scorecard, operator-framework/api, kube-api-linter and
//! crd-schema-checker. Their suggestions are warnings.

mod bundle_valid;
mod crd_schema;
pub(super) mod least_privilege;
mod sample_valid;

use serde_json::Value;

use super::{
    report::{Outcome, Verdict},
    settings::{CannotJudge, Scorecard},
    snapshot::Mismatch,
};

/// The name of each check, and what it wants, in the order in which they run.
pub(super) const CHECKS: [(&str, &str); 4] = [
    ("crd-schema", "The schemas of the CRDs follow the conventions of Kubernetes."),
    ("sample-valid", "The API server accepts the samples."),
    ("least-privilege", "The Roles allow no more than the operator needs."),
    ("bundle-valid", "The bundle has what OLM and its catalogs require."),
];

pub(super) async fn run(name: &str, scorecard: &Scorecard) -> Result<Verdict, CannotJudge> {
    match name {
        "crd-schema" => Ok(crd_schema::check(&scorecard.crds)),
        "sample-valid" => sample_valid::check(scorecard).await,
        "least-privilege" => Ok(least_privilege::check(&scorecard.rbac, &scorecard.bundle)),
        "bundle-valid" => Ok(bundle_valid::check(&scorecard.bundle)),
        _ => Err(CannotJudge(format!("{name:?} is not a check of files"))),
    }
}

/// Something in a file that is wrong, or only looks so.
struct Finding {
    result: Outcome,
    fact: Mismatch,
}

impl Finding {
    fn fail(object: &str, path: impl Into<String>, expected: &str, found: &Value) -> Finding {
        Finding::new(Outcome::Fail, object, path, expected, found)
    }

    fn warn(object: &str, path: impl Into<String>, expected: &str, found: &Value) -> Finding {
        Finding::new(Outcome::Warn, object, path, expected, found)
    }

    fn new(result: Outcome, object: &str, path: impl Into<String>, expected: &str, found: &Value) -> Finding {
        let (object, expected, found) = (object.to_owned(), Value::from(expected), found.clone());
        Finding { result, fact: Mismatch { object, path: path.into(), expected, found } }
    }
}

/// The worst of the findings, and the first of them in the reason.
fn verdict(findings: Vec<Finding>, pass: impl Into<String>) -> Verdict {
    let (failures, warnings): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.result == Outcome::Fail);
    let findings: Vec<Finding> = failures.into_iter().chain(warnings).collect();
    let Some(first) = findings.first() else { return Verdict::pass(pass) };
    let more = match findings.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let (result, reason) = (first.result, format!("{}{more}", first.fact));
    let evidence = findings.into_iter().map(|finding| finding.fact).collect();
    Verdict { evidence, ..Verdict::new(result, reason) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
