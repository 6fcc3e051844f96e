//! The checks of files alone: nothing is wrong with the manifests of our operators. Each fault is tested beside its check.

use std::{fs, path::Path};

use listwatch_scorecard::{self as scorecard, CannotJudge, Outcome, Scorecard};
use serde_json::Value;

/// The objects in the files of `manifests/OPERATOR/FOLDER`.
fn manifests(operator: &str, folder: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests").join(operator).join(folder);
    let mut objects = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let documents = yaml_serde::Deserializer::from_str(&text);
        objects.extend(documents.map(|document| serde::Deserialize::deserialize(document).unwrap()));
    }
    objects.retain(|object: &Value| object["kind"] != "Kustomization");
    objects
}

fn of(operator: &str) -> Scorecard {
    let mut scorecard =
        Scorecard::new(manifests(operator, "crd"), manifests(operator, "samples"), Vec::new());
    scorecard.rbac = manifests(operator, "operator");
    scorecard
}

async fn results(scorecard: &Scorecard) -> Vec<(String, Outcome)> {
    let report = scorecard::run(scorecard, |_| {}).await.unwrap();
    report.checks.iter().map(|check| (check.to_string(), check.verdict.result)).collect()
}

#[tokio::test]
async fn the_files_of_our_operators_are_correct() {
    for operator in ["copyrator", "database", "memcached", "mywebserver"] {
        let results = results(&of(operator)).await;
        let found: Vec<&Outcome> = results.iter().map(|(_, result)| result).collect();
        // Each Database has its password in a Secret, in all namespaces.
        let roles = if operator == "database" { Outcome::Warn } else { Outcome::Pass };
        assert_eq!(
            found,
            [&Outcome::Pass, &Outcome::Pass, &roles, &Outcome::Skip],
            "{operator}: {results:#?}"
        );
    }
}

#[tokio::test]
async fn a_sample_that_is_refused_is_found_and_a_crd_without_one() {
    let mut scorecard = of("memcached");
    scorecard.samples[0]["spec"]["sice"] = 3.into();
    scorecard.only = vec!["sample-valid".to_owned()];
    let found = results(&scorecard).await;
    assert_eq!(found[0].1, Outcome::Fail);
    assert!(found[0].0.contains("unknown field \\\"spec.sice\\\""), "{found:?}");
    let mut scorecard = of("memcached");
    scorecard.crds.extend(manifests("mywebserver", "crd"));
    scorecard.only = vec!["sample-valid".to_owned()];
    let found = results(&scorecard).await;
    assert_eq!(found[0].1, Outcome::Warn);
    assert!(found[0].0.contains("mywebservers.k8sobjects.gsa.com --sample is null"), "{found:?}");
}

#[tokio::test]
async fn a_check_that_needs_the_operator_says_so() {
    let scorecard = Scorecard { only: vec!["quiet".to_owned()], ..of("memcached") };
    let Err(CannotJudge(why)) = scorecard::run(&scorecard, |_| {}).await else { panic!("it has no COMMAND") };
    assert_eq!(why, "no COMMAND is given after --");
}
