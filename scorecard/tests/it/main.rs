//! The checks of the scorecard: each finds the bug of a broken operator, and nothing in the correct one.
//!
//! The operators are this test program, started again as a process. The variable `BUG` names the bug.

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
#![allow(unreachable_pub, reason = "no crate uses a test binary")]

mod operator;
mod sieve;
mod static_checks;
mod webhooks;

use std::{env, fs, time::Duration};

use futures_util::{StreamExt, stream};
use listwatch_scorecard::{self as scorecard, CannotJudge, CheckResult, Extent, Outcome, Report, Scorecard};
use serde_json::{Value, json};

/// The bugs, the check that finds each, and what it says.
const BUGS: [(&str, &str, &str); 77] = [
    ("panics", "converges", "panicked at"),
    ("polls", "quiet", " requests in "),
    ("spins", "quiet", " s of CPU time in "),
    (
        "takes-a-500-for-done",
        "refused-writes",
        "create/secrets/default/a#1 got a 500: secrets/default/a is missing",
    ),
    ("lists-without-a-pause", "api-server-outage", "in an outage: "),
    ("retries-without-a-pause", "one-bad-object", ", which all got a 403"),
    ("counts-for-ever", "quiet", "writes pages.example.com/default/a for ever: .status.checks"),
    ("writes-at-each-start", "restart-is-silent", "update configmaps/default/a .data.process"),
    (
        "renders-without-an-order",
        "restart-is-silent",
        "restarts write; the last one 1 times, the first: update services/default/a .spec.ports",
    ),
    ("ready-is-for-ever", "repairs-drift", "configmaps/default/a deleted: configmaps/default/a is missing"),
    ("does-not-watch-services", "repairs-drift", " (repaired after another change)"),
    ("trusts-secrets", "repairs-drift", "secrets/default/a .data.password is \"<hash "),
    (
        "repairs-in-vain",
        "repairs-drift",
        "configmaps/default/a .data.image changed: configmaps/default/a .data.image is \"drift\"",
    ),
    (
        "forgets-texts",
        "repairs-drift",
        "configmaps/default/a deleted: configmaps/default/a .data.text is null",
    ),
    ("notes-repairs", "repairs-drift", "deleted: pages.example.com/default/a .status.checks is 1"),
    ("no-owner", "deletes-cleanly", "deleted when settled (Background): still there: secrets/default/a"),
    (
        "needs-what-it-deletes",
        "deletes-cleanly",
        "deleted with its children while the operator was down: still there: pages.example.com/default/a",
    ),
    (
        "deletes-after-its-finalizer",
        "deletes-cleanly",
        "deleted, and killed after delete/pages.example.com/default/a#1: still there: secrets/default/a",
    ),
    (
        "creating-is-somebody-else",
        "crash-between-writes",
        "killed after status/pages.example.com/default/a#1: ",
    ),
    (
        "first-text-is-for-ever",
        "applies-spec-changes",
        ".spec.text changed from \"hello\" to \"hello-x\": configmaps/default/a .data.text is \"hello\"",
    ),
    (
        "changes-images-once",
        "applies-spec-changes",
        ".spec.image changed from \"web:1\" to \"web:scorecard\" and back: configmaps/default/a .data.image is \"web:scorecard\"",
    ),
    ("skips-generations", "changes-in-a-row", ": configmaps/default/a .data."),
    (
        "failed-is-for-ever",
        "comes-back",
        ".spec.image changed from \"web:1\" to \"does-not-exist:scorecard\" and back: configmaps/default/a .data.image",
    ),
    (
        "ready-before-the-children",
        "honest-status",
        "pages.example.com/default/a is Ready before configmaps/default/a: ",
    ),
    (
        "observes-the-future",
        "honest-status",
        "pages.example.com/default/a has the observedGeneration 2, but only the generation 1",
    ),
    (
        "claims-the-newest-generation",
        "honest-status",
        "pages.example.com/default/a has the observedGeneration ",
    ),
    (
        "deletes-similar-names",
        "foreign-writers",
        "secrets/a-scorecard, which the operator did not create, was deleted",
    ),
    (
        "reads-sources-once",
        "follows-inputs",
        "configmaps/default/colours .data.colour changed: configmaps/default/a .data.colour is \"red\"",
    ),
    ("reads-one-page", "long-lists", "beside 600 other objects of each kind, .spec.image changed from "),
    ("keeps-the-first-shards", "applies-spec-changes", "configmaps/default/a-shard-x should not exist"),
    ("first-title-is-for-ever", "applies-spec-changes", "configmaps/default/b .data.title is "),
    ("moves-the-time", "honest-status", ".status.conditions[Ready].lastTransitionTime changes, although"),
    (
        "does-not-wait-for-pods",
        "honest-status",
        "pages.example.com/default/a is Ready, but its Pods are pending: no replica of deployments.apps/default/a is ready",
    ),
    (
        "waits-for-an-image",
        "accepts-valid-objects",
        "Page with the required fields alone: it gets nothing: no child, no status, no Event",
    ),
    ("needs-an-image", "accepts-valid-objects", "Page with the required fields alone: "),
    (
        "other-secrets-after-no-answer",
        "lost-answers",
        "create/secrets/default/a#1 was lost: secrets/default/a-2 should not exist",
    ),
    (
        "other-services-after-no-answer",
        "lost-answers",
        "create/services/default/a#1 was lost: services/default/a-2 should not exist",
    ),
    ("remembers-the-first-uid", "recreated", "deleted and created again: "),
    (
        "waits-for-deleted",
        "missed-events",
        "configmaps/default/a was deleted, and its watch got a 410: configmaps/default/a is missing",
    ),
    (
        "clears-before-it-lists",
        "half-list",
        "while half of a list of the custom resources had come, it deleted secrets/default/a",
    ),
    ("creates-another-one", "lagging-watch", "configmaps/default/a-2 should not exist"),
    ("does-not-know-gone", "watches-come-back", "children deleted after the watches got a 410 Gone: "),
    ("gives-up", "api-server-outage", "children deleted after an outage: "),
    (
        "forbidden-is-for-ever",
        "permission-lost",
        "configmaps/default/a deleted after its kind was forbidden: ",
    ),
    ("does-not-wait", "throttled", "in spite of Retry-After: 1"),
    (
        "notes-the-second",
        "slow-answers",
        "only while each answer takes 1100 ms: writes pages.example.com/default/a for ever: .status.checks",
    ),
    (
        "reads-and-notes-the-second",
        "slow-answers",
        "only while each answer takes 300 ms: writes pages.example.com/default/a for ever: .status.checks",
    ),
    (
        "forgot-the-patches",
        "shipped-role",
        "the Roles do not allow: PATCH /api/v1/namespaces/default/configmaps/a",
    ),
    (
        "puts-old-bodies",
        "conflicts",
        "repaired: the annotation of another writer, which came just before, is lost",
    ),
    (
        "no-other-labels",
        "foreign-writers",
        "written by another client, and lost: labels of /api/v1/namespaces/default/",
    ),
    ("insists-on-its-labels", "mutated-writes", "a webhook adds a label to its children: "),
    ("overwrites", "name-taken", " without an owner was overwritten: .data."),
    ("adopts-the-ownerless", "name-taken", " without an owner was overwritten: .data."),
    ("looks-for-a-controller", "name-taken", " of another owner was overwritten: .data."),
    (
        "looks-in-any-namespace",
        "two-namespaces",
        "the same in the namespace a-scorecard: configmaps/default/a is missing",
    ),
    (
        "one-for-all-namespaces",
        "shared-children",
        "beside the same in another namespace: writes clusterroles.rbac.authorization.k8s.io/a for ever: .metadata.annotations.namespace",
    ),
    (
        "saves-before-it-goes",
        "namespace-deleted",
        "the namespace does not go away: still there: namespaces/a-scorecard, pages.example.com/a-scorecard/a",
    ),
    (
        "stops-at-an-error",
        "one-bad-object",
        "was not created again beside an object whose children are refused",
    ),
    ("forgot-a-rule", "shipped-role", "the Roles do not allow: GET /api/v1/services"),
    (
        "always-resumes",
        "restored-backup",
        "children deleted after a backup was restored: configmaps/default/a is missing, and 2 more (repaired by a restart)",
    ),
    // The previous version gave the Secret a random name.
    ("renames-its-secret", "upgrade", "after the previous version has stopped: secrets/default/a-"),
    (
        "recreates-what-it-upgrades",
        "upgrade",
        "after the previous version has stopped: configmaps/default/a was deleted and created again",
    ),
    (
        "empties-what-it-upgrades",
        "upgrade",
        "configmaps/default/a .data.text was written, although it was right",
    ),
    (
        "is-version-2",
        "upgrade",
        "while the previous version still runs: writes configmaps/default/a for ever: .data.version",
    ),
    // Beside it, a version 2.
    (
        "is-version-1",
        "two-operators",
        "COMMAND and the operator of --and write configmaps/default/a .data.version in turn",
    ),
    // Beside the correct operator.
    (
        "paints-what-is-new",
        "two-operators",
        "the operator of --and was killed before update/configmaps/default/a#1: configmaps/default/a .data.paint is null, expected \"red\"",
    ),
    (
        "loses-titles",
        "webhook-conversion",
        "/apis/example.com/v1/namespaces/default/pages/a, written in example.com/v2: .spec.title does not come back",
    ),
    (
        "loses-labels",
        "webhook-conversion",
        "/apis/example.com/v1/namespaces/default/pages/a, written in example.com/v2: .metadata.labels",
    ),
    (
        "judges-what-goes",
        "webhook-old-objects",
        "deleted Page with .spec null: no finalizer can be removed: ",
    ),
    ("validates-deletions", "webhook-down", "/pages/a cannot be deleted: "),
    (
        "counts-its-calls",
        "webhook-twice",
        "changes pages.example.com/default/a .metadata.annotations.calls again",
    ),
    ("counts-dry-runs", "webhook-twice", "a dry run of a creation has an effect: update namespaces/default "),
    ("reads-its-certificate-once", "webhook-certificate", "its certificate was replaced, and 15 s later: "),
    ("asks-one-by-one", "webhook-slow", "context deadline exceeded"),
    ("trusts-silence", "stalled-watch", "was not created again within 4 s, while its watch was silent"),
    ("deletes-by-name", "time-travel", "it deleted secrets/default/a of the new object"),
    ("deletes-by-name-at-times", "time-travel", "it deleted secrets/default/a of the new object"),
];

/// All bugs, or the one that the variable `BUG` names.
fn bugs() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let only = env::var("BUG").ok();
    BUGS.into_iter().filter(move |(bug, ..)| only.as_deref().is_none_or(|only| only == *bug))
}

/// How often a check is asked to find a bug.
const ATTEMPTS: usize = 6;

fn crd() -> Value {
    let text = json!({"type": "string", "description": "A text."});
    let number = json!({"type": "integer", "description": "A number."});
    let condition = json!({"type": "object", "description": "A condition.", "required": ["type"], "properties": {
        "type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text,
        "observedGeneration": number}});
    let conditions = json!({"type": "array", "description": "All conditions.", "items": condition,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "description": "The page.", "properties": {
            "text": text, "image": text, "title": text, "source": text,
            "shards": {"type": "array", "description": "All shards.", "items": text}}},
        "status": {"type": "object", "description": "Its state.", "properties": {
            "phase": text, "checks": number, "observedGeneration": number, "conditions": conditions}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pages.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "pages", "kind": "Page"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}],
                "schema": {"openAPIV3Schema": schema}}]}})
}

fn page() -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Page", "metadata": {"name": "a"}, "spec": {"text": "hello", "image": "web:1"}})
}

fn command(bug: &str) -> Vec<String> {
    command_of("operator_process", bug)
}

fn command_of(process: &str, bug: &str) -> Vec<String> {
    let program = env::current_exe().unwrap().to_string_lossy().into_owned();
    let words = ["env", &format!("BUG={bug}"), &program, "--exact", process, "--ignored", "--nocapture"];
    words.map(str::to_owned).into()
}

fn settings(command: Vec<String>) -> Scorecard {
    let mut scorecard = Scorecard::new(vec![crd()], vec![page()], command);
    scorecard.rbac = vec![role("")];
    scorecard.settle = Duration::from_millis(200);
    scorecard.extent = Extent::Faults;
    scorecard
}

/// With a fixed port, for example: a run that waited for the next check was in the way of new ones.
#[tokio::test]
async fn an_operator_that_cannot_run_twice_runs_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command("");
    command.insert(1, format!("LOCK={}", dir.path().join("lock").display()));
    let only = [
        "converges",
        "quiet",
        "deletes-cleanly",
        "crash-between-writes",
        "accepts-valid-objects",
        "honest-status",
        "refused-writes",
        "changes-in-a-row",
        "follows-inputs",
        "upgrade",
    ];
    let (only, previous) = (only.map(str::to_owned).into(), command.clone());
    let scorecard =
        Scorecard { only, previous, samples: larger_samples(), extent: Extent::Checks, ..settings(command) };
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
    let reason = &report.checks[0].verdict.reason;
    assert!(
        reason.contains("one check runs at a time, because two operators disturb each other: "),
        "{reason}"
    );
}

/// The rules for all that the operator does, but one resource.
fn role(missing: &str) -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| {
        let resources: Vec<&&str> = resources.iter().filter(|resource| **resource != missing).collect();
        json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
    };
    let verbs = ["list", "watch", "create", "update", "patch", "delete"];
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pages"}, "rules": [
        rule("example.com", &["pages", "pages/status"], &verbs),
        rule("", &["configmaps", "secrets", "services"], &verbs), rule("apps", &["deployments"], &verbs),
        rule("rbac.authorization.k8s.io", &["clusterroles"], &verbs)]})
}

/// `converges FAIL`, for each check that found something. One warns of the Secrets in the ClusterRole. Without a bundle, without other objects than Pages,
/// without pages of lists, without a previous version, and without a second operator, one each is skipped, and those of webhooks without any.
fn found(report: &Report) -> Vec<String> {
    let found = report.checks.iter().filter(|check| check.verdict.result != Outcome::Pass);
    let found = found.filter(|check| match check.verdict.result {
        Outcome::Skip => {
            let skipped = ["bundle-valid", "follows-inputs", "long-lists", "upgrade", "two-operators"];
            !skipped.contains(&check.name) && !check.name.starts_with("webhook-")
        }
        Outcome::Warn => check.name != "least-privilege",
        Outcome::Pass | Outcome::Fail => true,
    });
    found.map(ToString::to_string).collect()
}

async fn finds_nothing(scorecard: &Scorecard) {
    let report = scorecard::run(scorecard, |_| {}).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
}

#[tokio::test]
async fn a_correct_operator_passes_all_checks() {
    let report = scorecard::run(&settings(command("")), |check| println!("{check}")).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
    assert_eq!(report.checks.len(), scorecard::names().len());
}

/// The second kind is cluster-wide, so it has no copy in another namespace. Its objects are in the children of the first kind. A claim that a Pod
/// uses cannot come back before the Pod is gone.
#[tokio::test]
async fn a_correct_operator_of_two_kinds_passes_all_checks() {
    let mut scorecard = settings(command("of-two-kinds"));
    let mut sites = crd();
    sites["metadata"]["name"] = "sites.example.com".into();
    sites["spec"]["scope"] = "Cluster".into();
    sites["spec"]["names"] = json!({"plural": "sites", "kind": "Site"});
    scorecard.crds.push(sites);
    scorecard.samples.push(json!({"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "s"}, "spec": {"text": "all"}}));
    let rules = scorecard.rbac[0]["rules"].as_array_mut().unwrap();
    rules[0]["resources"].as_array_mut().unwrap().push("sites".into());
    rules[1]["resources"].as_array_mut().unwrap().push("persistentvolumeclaims".into());
    let report = scorecard::run(&scorecard, |check| println!("{check}")).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
}

/// On a busy machine, a later start took longer than the limit, and each check of a restart failed.
#[tokio::test]
async fn a_start_that_waits_for_a_cpu_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command("");
    command.insert(1, format!("STARTS={}", dir.path().join("starts").display()));
    let only = ["restart-is-silent", "recreated"].map(str::to_owned).into();
    let scorecard = Scorecard { only, start: operator::START, ..settings(command) };
    finds_nothing(&scorecard).await;
}

/// Each of the checks deletes the children, and all together did so more often than any client.
#[tokio::test]
async fn an_operator_that_backs_off_from_repeated_deletions_passes() {
    let mut scorecard = settings(command("backs-off-from-deletions"));
    scorecard.only =
        ["missed-events", "watches-come-back", "api-server-outage", "throttled"].map(str::to_owned).into();
    (scorecard.jobs, scorecard.patience) = (1, Duration::from_secs(2));
    finds_nothing(&scorecard).await;
}

/// With a Deployment: most correct operators of these tests have no workload.
#[tokio::test]
async fn an_operator_that_waits_for_its_pods_passes() {
    let mut scorecard = settings(command("waits-for-pods"));
    scorecard.only = ["honest-status", "mutated-writes"].map(str::to_owned).into();
    finds_nothing(&scorecard).await;
}

/// The annotation that wakes an operator changes what it makes of all annotations, such as a hash. That is not a bug.
#[tokio::test]
async fn what_follows_from_an_annotation_is_not_compared() {
    let mut scorecard = settings(command("copies-annotations"));
    scorecard.only = vec!["lagging-watch".to_owned()];
    scorecard.patience = Duration::from_secs(2);
    finds_nothing(&scorecard).await;
}

/// A further object that the labels of the sample select, as a Prometheus selects ServiceMonitors, changed the sample's children.
#[tokio::test]
async fn further_objects_have_no_labels_by_which_the_operator_selects() {
    let mut scorecard = settings(command("lists-labelled-pages"));
    scorecard.samples[0]["metadata"]["labels"] = json!({"site": "a"});
    scorecard.only = vec!["accepts-valid-objects".to_owned()];
    scorecard.patience = Duration::from_secs(2);
    finds_nothing(&scorecard).await;
}

/// kopf logs it for each exception of a handler.
#[tokio::test]
async fn a_traceback_of_an_operator_that_goes_on_is_no_panic() {
    let mut scorecard = settings(command("logs-a-traceback"));
    scorecard.only = vec!["converges".to_owned()];
    finds_nothing(&scorecard).await;
}

/// Not with a `generateName`, but with random letters of its own: the two runs without a fault had no object in common.
#[tokio::test]
async fn an_operator_whose_children_have_random_names_passes() {
    let mut scorecard = settings(command("random-names"));
    scorecard.only = [
        "converges",
        "repairs-drift",
        "deletes-cleanly",
        "crash-between-writes",
        "recreated",
        "two-namespaces",
    ]
    .map(str::to_owned)
    .into();
    scorecard.patience = Duration::from_secs(2);
    finds_nothing(&scorecard).await;
}

/// The previous version has not the field, and so does not fight for it.
#[tokio::test]
async fn an_upgrade_that_adds_a_field_passes() {
    for bug in ["", "is-version-2"] {
        let (only, previous) = (vec!["upgrade".to_owned()], command(""));
        let scorecard = Scorecard { only, previous, ..settings(command(bug)) };
        finds_nothing(&scorecard).await;
    }
}

/// One that adds a field to what the operator creates, and a second replica without leader election.
#[tokio::test]
async fn an_operator_beside_one_that_leaves_its_fields_alone_passes() {
    for other in ["paints", ""] {
        let (only, and) = (vec!["two-operators".to_owned()], command(other));
        let report = scorecard::run(&Scorecard { only, and, ..settings(command("")) }, |_| {}).await.unwrap();
        assert_eq!(report.checks[0].verdict.result, Outcome::Pass, "{other}: {}", report.checks[0]);
    }
}

/// What was ignored was not compared, but counted as a write of an operator that has settled.
#[tokio::test]
async fn an_operator_that_acts_by_time_settles_without_what_is_ignored() {
    let mut scorecard = settings(command("acts-by-time"));
    scorecard.ignore = vec!["Page:.status.checks".to_owned()];
    scorecard.only =
        ["converges", "quiet", "restart-is-silent", "crash-between-writes"].map(str::to_owned).into();
    scorecard.patience = Duration::from_secs(2);
    finds_nothing(&scorecard).await;
}

/// A wrong path was ignored without a word.
#[tokio::test]
async fn what_is_kept_or_ignored_and_does_not_exist_is_named() {
    let mut scorecard = settings(command(""));
    scorecard.only = vec!["converges".to_owned()];
    scorecard.keep = vec!["Secret".to_owned(), "PersistentVolumeClaim".to_owned()];
    scorecard.ignore =
        ["ConfigMap:.data.txt", "ConfigMap:.data.text", "Service", "Job"].map(str::to_owned).into();
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let why = "; no object has what these name: --keep PersistentVolumeClaim, --ignore ConfigMap:.data.txt, --ignore Job";
    let reason = &report.checks[0].verdict.reason;
    assert!(reason.ends_with(why), "{reason}");
}

/// It was missing in the second namespace.
#[tokio::test]
async fn a_child_in_a_namespace_of_its_own_has_no_copy() {
    let mut scorecard = settings(command("keeps-one-elsewhere"));
    scorecard.only = vec!["two-namespaces".to_owned()];
    scorecard.patience = Duration::from_secs(2);
    finds_nothing(&scorecard).await;
}

/// The change back was refused, and the state before was expected nevertheless.
#[tokio::test]
async fn a_field_that_only_grows_is_not_expected_to_shrink() {
    let mut scorecard = settings(command(""));
    let schema = &mut scorecard.crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["text"]["x-kubernetes-validations"] =
        json!([{"rule": "size(self) >= size(oldSelf)"}]);
    scorecard.only = vec!["applies-spec-changes:.spec.text#1".to_owned()];
    scorecard.patience = Duration::from_secs(2);
    finds_nothing(&scorecard).await;
}

/// One change after which a Secret stays, as with a `deletionPolicy`, ended the check without a judgement of the others.
#[tokio::test]
async fn a_change_after_which_objects_stay_is_left_out_alone() {
    let mut scorecard = settings(command("retains-changed-texts"));
    scorecard.only = vec!["applies-spec-changes".to_owned()];
    scorecard.patience = Duration::from_secs(2);
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let verdict = &report.checks[0].verdict;
    assert_eq!(verdict.result, Outcome::Pass, "{verdict:?}");
    let left_out = "; objects stay when the samples are deleted after a change of .spec.text";
    assert!(
        verdict.reason.starts_with("1 of 3 changes, ") && verdict.reason.ends_with(left_out),
        "{verdict:?}"
    );
    scorecard.only = vec!["applies-spec-changes:.spec.text#1".to_owned()];
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    assert_eq!(report.checks[0].verdict.result, Outcome::Skip);
}

/// The condition is true. Only those that are false, and a few with a name such as Failed, counted as a refusal.
#[tokio::test]
async fn a_change_that_the_operator_calls_invalid_is_not_expected_to_be_applied() {
    let report = checked("refuses-texts", &["applies-spec-changes:.spec.text#1"]).await;
    assert_eq!(report.failed().count(), 0, "{report:?}");
}

/// A Page that names a ConfigMap, and has shards.
fn larger_samples() -> Vec<Value> {
    let colours = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "colours"}, "data": {"colour": "red"}});
    let mut page = page();
    page["spec"]["source"] = "colours".into();
    page["spec"]["shards"] = json!(["x", "y"]);
    vec![colours, page]
}

#[tokio::test]
async fn an_operator_with_webhooks_that_needs_other_objects_and_shrinks_passes_all_checks() {
    let mut scorecard = Scorecard { samples: larger_samples(), ..settings(command("")) };
    webhooks::add(&mut scorecard, "");
    let report = scorecard::run(&scorecard, |check| println!("{check}")).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
    let also =
        report.checks.iter().filter(|one| one.name == "follows-inputs" || one.name.starts_with("webhook-"));
    let passed = also.filter(|check| check.verdict.result == Outcome::Pass).count();
    assert_eq!(passed, 7);
}

#[tokio::test]
async fn an_operator_that_reads_all_pages_passes() {
    let mut scorecard = settings(command("reads-pages"));
    scorecard.only = vec!["long-lists".to_owned(), "half-list".to_owned()];
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
    assert!(report.checks.iter().all(|check| check.verdict.result == Outcome::Pass), "{report:?}");
}

/// The check said that the other objects were the cause. It goes on with the next change.
#[tokio::test]
async fn a_change_that_is_never_applied_is_not_a_matter_of_long_lists() {
    let mut scorecard = impatient("first-text-is-for-ever");
    scorecard.samples[0]["spec"] = json!({"text": "hello", "title": "first"});
    scorecard.only = vec!["long-lists".to_owned()];
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let verdict = &report.checks[0].verdict;
    assert_eq!(verdict.result, Outcome::Pass, "{verdict:?}");
    assert!(verdict.reason.contains(".spec.title changed from "), "{verdict:?}");
}

/// Each of its repairs is refused, also without a fault. The checks said that their fault was the cause.
#[tokio::test]
async fn a_child_that_is_never_repaired_is_a_matter_of_repairs_drift_alone() {
    let report = checked("repairs-in-vain", &["conflicts", "refused-writes"]).await;
    assert!(report.checks.iter().all(|check| check.verdict.result == Outcome::Pass), "{report:?}");
}

/// A right value does not come back either. The check said that the mistake was the cause.
#[tokio::test]
async fn a_field_that_is_never_changed_back_is_not_a_matter_of_mistakes() {
    let report = checked("changes-images-once", &["comes-back"]).await;
    let verdict = &report.checks[0].verdict;
    assert_eq!(verdict.result, Outcome::Skip, "{verdict:?}");
    assert!(verdict.reason.ends_with("see applies-spec-changes"), "{verdict:?}");
}

/// It comes back with less in it, also without a fault. Each check that deletes children failed.
#[tokio::test]
async fn a_child_that_comes_back_otherwise_is_a_matter_of_repairs_drift_alone() {
    let report = checked("forgets-texts", &["missed-events", "throttled"]).await;
    assert!(report.checks.iter().all(|check| check.verdict.result == Outcome::Pass), "{report:?}");
}

/// Its status changes after a deletion, also without a fault. Each check that deletes children failed.
#[tokio::test]
async fn a_status_that_changes_after_a_deletion_is_a_matter_of_repairs_drift_alone() {
    let report = checked("notes-repairs", &["missed-events", "throttled"]).await;
    assert!(report.checks.iter().all(|check| check.verdict.result == Outcome::Skip), "{report:?}");
}

/// It comes back together with other children, which wake the operator, and not alone. The checks said that their fault was the cause.
#[tokio::test]
async fn a_child_that_is_not_watched_is_a_matter_of_repairs_drift_alone() {
    let report = checked("lists-services", &["refused-writes", "missed-events", "permission-lost"]).await;
    assert_eq!(report.failed().count(), 0, "{report:?}");
}

/// The report of these checks alone, on an operator with a bug.
async fn checked(bug: &str, only: &[&str]) -> Report {
    let only = only.iter().map(ToString::to_string).collect();
    scorecard::run(&Scorecard { only, ..impatient(bug) }, |_| {}).await.unwrap()
}

/// A broken operator never repairs its fault, so a short patience changes no result.
fn impatient(bug: &str) -> Scorecard {
    let mut rbac = vec![role(if bug == "forgot-a-rule" { "services" } else { "" })];
    if bug == "forgot-the-patches" {
        rbac[0]["rules"][1]["verbs"] = json!(["list", "watch", "create"]);
        rbac.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "services"},
            "rules": [{"apiGroups": [""], "resources": ["services"], "verbs": ["patch"]}]}));
    }
    let previous = match bug {
        "renames-its-secret" => command("random-names"),
        "is-version-2" => command("is-version-1"),
        "recreates-what-it-upgrades" | "empties-what-it-upgrades" => command(""),
        _ => Vec::new(),
    };
    let (mut samples, mut and, mut command) = (vec![page()], Vec::new(), command(bug));
    match bug {
        "is-version-1" => and = command_of("operator_process", "is-version-2"),
        "paints-what-is-new" => and = std::mem::replace(&mut command, command_of("operator_process", "")),
        // The other tests need the CPU.
        "spins" => drop(command.splice(..0, ["nice", "-n", "19"].map(str::to_owned))),
        "reads-sources-once" | "keeps-the-first-shards" => samples = larger_samples(),
        "loses-titles" => samples[0]["spec"]["title"] = "first".into(),
        "first-title-is-for-ever" => {
            let mut other = page();
            other["metadata"]["name"] = "b".into();
            other["spec"]["title"] = "other".into();
            samples.push(other);
        }
        _ => {}
    }
    let patience = Duration::from_secs(1);
    let mut scorecard = Scorecard { seed: 3, patience, rbac, samples, previous, and, ..settings(command) };
    if webhooks::BUGS.contains(&bug) {
        webhooks::add(&mut scorecard, bug);
    }
    scorecard
}

/// What is wrong with the report about an operator with a bug.
async fn missed((bug, name, words): (&str, &str, &str)) -> Option<String> {
    let mut only = vec![name.to_owned()];
    if bug == "forgot-the-patches" {
        // Only its repairs are patches.
        only.push("repairs-drift".to_owned());
    }
    let scorecard = Scorecard { only, ..impatient(bug) };
    let report = match scorecard::run(&scorecard, |_| {}).await {
        Ok(report) => report,
        Err(CannotJudge(why)) => return Some(format!("{bug}: {why}")),
    };
    let json = report.json(&[]).to_string();
    assert!(!json.contains("c2VjcmV0") && !json.contains("ZHJpZnQ="), "{bug}: {json}");
    let check = report.checks.iter().find(|check| check.name == name).unwrap();
    let has_found = [Outcome::Fail, Outcome::Warn].contains(&check.verdict.result);
    let is_found = has_found && check.to_string().contains(words);
    (!is_found).then(|| format!("{bug}: {check}"))
}

/// On a slow machine a check may look before the operator has done anything. Then it finds nothing, and is asked again.
async fn missed_again(bug: (&str, &str, &str)) -> Option<String> {
    for _ in 1..ATTEMPTS {
        missed(bug).await?;
    }
    missed(bug).await
}

#[tokio::test]
async fn each_bug_is_found_by_its_check() {
    let all = bugs().map(|bug| Box::pin(missed_again(bug)));
    let missed: Vec<_> =
        stream::iter(all).buffer_unordered(8).filter_map(async |missed| missed).collect().await;
    assert_eq!(missed, Vec::<String>::new());
}

/// Takes minutes: all checks for each broken operator. `.ci/nightly` runs it for webhooks.
#[tokio::test]
#[ignore = "slow; run by hand after a change of a check"]
async fn each_bug_is_found_by_its_check_alone() {
    let mut wrong = Vec::new();
    for (bug, name, _) in bugs() {
        let report = scorecard::run(&impatient(bug), |_| {}).await.unwrap();
        let is_warned = |check: &&CheckResult| check.name == name && check.verdict.result == Outcome::Warn;
        let warned = report.checks.iter().filter(is_warned);
        let names: Vec<&str> = report.failed().chain(warned).map(|check| check.name).collect();
        println!("{bug}: {:#?}", found(&report));
        if names != [name] {
            wrong.push(bug);
        }
    }
    assert_eq!(wrong, Vec::<&str>::new());
}

/// As [`a_correct_operator_passes_all_checks`], with other seeds.
#[tokio::test]
#[ignore = "slow; run by hand after a change of a check"]
async fn ten_runs_of_the_correct_operator_find_nothing() {
    for seed in 1..=10 {
        let report = scorecard::run(&Scorecard { seed, ..settings(command("")) }, |_| {}).await.unwrap();
        assert_eq!(found(&report), Vec::<String>::new(), "seed {seed}");
    }
}

#[tokio::test]
async fn a_failure_is_shown_again_by_its_replay_and_is_in_the_json() {
    let mut scorecard = impatient("creating-is-somebody-else");
    scorecard.only = vec!["crash-between-writes:status/pages.example.com/default/a#1".to_owned()];
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let check = report.failed().next().unwrap();
    assert_eq!(check.replay(3), format!("--only {} --seed 3", scorecard.only[0]));
    let json = report.json(&["my-operator".to_owned()]);
    assert_eq!(json["checks"][0]["result"], "fail");
    assert_eq!(json["checks"][0]["evidence"][0]["object"], "configmaps/default/a");
    let journal = check.journal.as_ref().unwrap();
    let has =
        |lines: &str, words: &[&str]| lines.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&journal.requests_jsonl(), &["\"GET\"", "v1/pages", "\"operator-2\"", "200"]));
    assert!(has(&journal.writes_jsonl(), &["\"MODIFIED\"", "\"phase\":\"Creating\"", "[\".status\"]"]));
    assert!(journal.log.contains("running 1 test"), "{}", journal.log);
}

/// The record was of the deletion that the faults are taken from, which ended last.
#[tokio::test]
async fn the_record_of_a_failed_deletion_is_of_this_deletion() {
    let only = vec!["deletes-cleanly:down-with-children".to_owned()];
    let scorecard = Scorecard { only, ..impatient("needs-what-it-deletes") };
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let journal = report.failed().next().unwrap().journal.as_ref().unwrap();
    // It was started again.
    assert!(journal.requests_jsonl().contains("\"operator-2\""));
}

/// An ignored child that stayed away moved the places of the others, and the next one was not tried.
#[tokio::test]
async fn a_child_beside_an_ignored_one_must_be_repaired() {
    let (only, ignore) = (vec!["repairs-drift".to_owned()], vec!["ConfigMap".to_owned()]);
    let scorecard = Scorecard { only, ignore, ..impatient("ready-is-for-ever") };
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let found = found(&report);
    assert!(found[0].contains("secrets/default/a deleted: secrets/default/a is missing"), "{found:?}");
}

/// It waits for the event of a new Page, which came before its start.
#[tokio::test]
async fn a_crash_before_the_first_write_is_found() {
    let scorecard =
        Scorecard { only: vec!["crash-between-writes".to_owned()], ..impatient("waits-for-new-pages") };
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let crash = "killed before status/pages.example.com/default/a#1: configmaps/default/a is missing";
    assert!(found(&report)[0].contains(crash), "{:?}", found(&report));
    let replay = report.checks[0].replay(3);
    assert_eq!(replay, "--only crash-between-writes:before:status/pages.example.com/default/a#1 --seed 3");
    let only = replay.split(' ').nth(1).map(str::to_owned);
    let again =
        scorecard::run(&Scorecard { only: only.into_iter().collect(), ..scorecard }, |_| {}).await.unwrap();
    assert!(found(&again)[0].contains(crash), "{:?}", found(&again));
}

#[tokio::test]
async fn what_cannot_be_judged_is_an_error_in_one_line() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let judged = async |scorecard: Scorecard| match scorecard::run(&scorecard, |_| {}).await {
        Err(CannotJudge(why)) => why,
        Ok(report) => panic!("{report:?}"),
    };
    let quick = |command: &str| Scorecard { start: Duration::from_millis(200), ..settings(words(command)) };
    assert_eq!(
        judged(quick("no-such-program")).await,
        "COMMAND no-such-program: No such file or directory (os error 2)"
    );
    let ended =
        judged(settings(vec!["sh".to_owned(), "-c".to_owned(), "echo no config; exit 3".to_owned()])).await;
    assert_eq!(ended, "COMMAND ended before its first request: exit status: 3: no config");
    let silent = judged(quick("sleep 1000")).await;
    assert!(silent.starts_with("COMMAND sent no request within 0 s: does it read KUBECONFIG?"), "{silent}");
    let mut wrong = quick("true");
    wrong.samples =
        vec![json!({"apiVersion": "example.com/v1", "kind": "Page", "metadata": {"name": "a"}, "spec": 1})];
    assert!(judged(wrong).await.starts_with("--sample: Page \"a\": "));
    let mut wrong = quick("true");
    wrong.samples =
        vec![page(), json!({"apiVersion": "example.com/v1", "kind": "Book", "metadata": {"name": "a"}})];
    assert_eq!(
        judged(wrong).await,
        "--sample: Book \"a\": the server has no such kind in \"example.com/v1\"; is its CRD given?"
    );
    for word in ["--config={kubeconfigg}", "{KUBECONFIG}", "{kubeConfig}/x"] {
        let name = word.split(['{', '}']).nth(1).unwrap();
        let error = format!("COMMAND {word}: {{{name}}} is not replaced; {{kubeconfig}} becomes the path");
        assert_eq!(judged(quick(&format!("true {word}"))).await, error);
    }
    let error = "COMMAND --port={webhook-port}: {webhook-port} is not replaced; with --webhooks, {webhook-port} and {webhook-cert-dir} are";
    assert_eq!(judged(quick("true --port={webhook-port}")).await, error);
    let mut wrong = quick("true");
    webhooks::add(&mut wrong, "");
    wrong.samples[0]["apiVersion"] = "example.com/v2".into();
    assert!(
        judged(wrong).await.starts_with("--sample: Page \"a\": must have the version that its CRD stores: ")
    );
    let mut wrong = quick("true");
    wrong.webhooks = vec![page()];
    assert!(judged(wrong).await.starts_with("--webhooks: holds no MutatingWebhookConfiguration or "));
    let no_words = judged(quick("false {kubeconfig} ${KUBECONFIG} {kube:1} {{.kube}} {")).await;
    assert!(no_words.starts_with("COMMAND ended before its first request: "), "{no_words}");
    let previous = vec!["false".to_owned()];
    let wrong =
        judged(Scorecard { previous, only: vec!["upgrade".to_owned()], ..settings(command("")) }).await;
    assert!(wrong.starts_with("--previous: COMMAND ended before its first request: "), "{wrong}");
    let and = vec!["false".to_owned()];
    let wrong =
        judged(Scorecard { and, only: vec!["two-operators".to_owned()], ..settings(command("")) }).await;
    let ended = "with --and: the operator of --and ended before its first request: ";
    assert!(wrong.starts_with(ended), "{wrong}");
    let wrong = Scorecard { keep: vec!["Secrets".to_owned()], ..settings(command("")) };
    assert_eq!(judged(wrong).await, "--keep Secrets: the server has no kind Secrets");
    for (ignored, error) in [
        ("ConfigMaps:.data.time", "the server has no kind ConfigMaps"),
        ("ConfigMap:data", "a path begins with a dot, and has the names of list items: "),
        ("Pod:.spec.containers[0]", "a path begins with a dot, and has the names of list items: "),
    ] {
        let wrong = Scorecard { ignore: vec![ignored.to_owned()], ..settings(command("")) };
        let why = judged(wrong).await;
        assert!(why.starts_with(&format!("--ignore {ignored}: {error}")), "{why}");
    }
    let mut wrong = quick("true");
    wrong.only = vec!["quite".to_owned()];
    assert!(
        judged(wrong).await.starts_with("--only quite: is not a check; there are crd-schema, sample-valid, ")
    );
}

/// Most checks ignored the fault. The others were skipped, with exit code 0.
#[tokio::test]
async fn a_fault_that_does_not_exist_is_an_error_that_names_those_that_do() {
    for (only, expected) in [
        (
            "quiet:nosuch",
            "only these have faults to choose from: changes-in-a-row, deletes-cleanly, crash-between-writes, applies-spec-changes, comes-back, honest-status, ",
        ),
        (
            "crash-between-writes:nosuch",
            "there is no such fault; there are status/pages.example.com/default/a#1, before:status/pages.example.com/default/a#1, ",
        ),
        ("comes-back:nosuch", "there is no such fault; there are .spec.image#1"),
        ("lagging-watch:nosuch", "there is no such fault; there are configmaps, secrets, services"),
    ] {
        let scorecard = Scorecard { only: vec![only.to_owned()], ..settings(command("")) };
        let CannotJudge(why) = scorecard::run(&scorecard, |_| {}).await.unwrap_err();
        assert!(why.starts_with(&format!("--only {only}: {expected}")), "{why}");
    }
}

/// Without the condition, it counts as settled before its last write, and each check expects a state that is not the last one.
#[tokio::test]
async fn an_operator_with_a_long_pause_has_settled_when_its_status_says_so() {
    let mut scorecard = settings(command("is-ready-later"));
    scorecard.only = vec!["converges".to_owned()];
    scorecard.settled = Some("jsonpath={.status.phase}=Ready".parse().unwrap());
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    assert_eq!(found(&report), Vec::<String>::new());
    let journal = report.checks[0].journal.as_ref().unwrap();
    assert!(journal.writes_jsonl().contains(r#""phase":"Ready""#));
    scorecard.settled = Some("jsonpath={.status.phase}=Done".parse().unwrap());
    scorecard.patience = Duration::from_secs(2);
    let CannotJudge(why) = scorecard::run(&scorecard, |_| {}).await.unwrap_err();
    let has = "pages.example.com/default/a has .status.phase \"Ready\", 2 s after the last write";
    assert_eq!(why, format!("--settled jsonpath={{.status.phase}}=Done: {has}"));
}

/// Only the first was reported, which may be the consequence of the second.
#[tokio::test]
async fn two_runs_that_end_for_different_reasons_give_both() {
    let dir = tempfile::tempdir().unwrap();
    // Only one of two can create the directory.
    let script = format!(
        "mkdir {} && echo no rule for pages || echo the port is taken; exit 3",
        dir.path().join("port").display()
    );
    let CannotJudge(why) =
        scorecard::run(&settings(vec!["sh".to_owned(), "-c".to_owned(), script]), |_| {}).await.unwrap_err();
    assert!(why.contains("no rule for pages") && why.contains("the port is taken"), "{why}");
    assert!(why.contains("; of a second run: COMMAND ended before its first request: "), "{why}");
}

/// As on a busy machine, where its client gets no connection, or loses it. It was a failure of the check.
#[tokio::test]
async fn an_operator_that_ends_before_it_reads_the_samples_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    for end in ["exit 3", r#"shift; BUG=ends-after-a-request exec "$@""#] {
        let starts = dir.path().join(&end[..4]).display().to_string();
        // The two starts without a fault succeed.
        let script = format!(r#"echo >>{starts}; test $(wc -l <{starts}) != 3 && exec "$0" "$@"; {end}"#);
        let mut command = command("");
        command.splice(0..0, ["sh".to_owned(), "-c".to_owned(), script]);
        let only = vec!["restart-is-silent".to_owned()];
        let report = scorecard::run(&Scorecard { only, ..settings(command) }, |_| {}).await.unwrap();
        assert_eq!(found(&report), Vec::<String>::new(), "{end}");
    }
}

/// It was started again only after the next change, which then counted as what repaired the child.
#[tokio::test]
async fn an_operator_that_ends_when_it_has_settled_is_started_again() {
    let only = vec!["repairs-drift".to_owned()];
    let scorecard = Scorecard { only, ..settings(command("ends-after-a-deletion")) };
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    let verdict = &report.checks[0].verdict;
    assert_eq!(verdict.result, Outcome::Warn, "{verdict:?}");
    assert!(verdict.reason.contains(": it ended: exit status: 2"), "{verdict:?}");
    // The run goes on in another check, so the warning had the journal of a run without a fault.
    let journal = report.checks[0].journal.as_ref().unwrap();
    assert!(
        journal.requests.iter().any(|request| request.method == "DELETE"),
        "{}",
        journal.requests_jsonl()
    );
}

/// A worker pool whose first process crashes, for example.
#[tokio::test]
async fn what_a_process_has_started_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; exit 3", pid.display());
    let scorecard = settings(vec!["sh".to_owned(), "-c".to_owned(), script]);
    scorecard::run(&scorecard, |_| {}).await.unwrap_err();
    let pid = fs::read_to_string(pid).unwrap();
    // A killed process may still be a zombie for a moment.
    while fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The operators, as a process.
#[tokio::test]
#[ignore = "is started by the other tests"]
async fn operator_process() {
    if let Ok(bug) = env::var("BUG") {
        operator::run(bug).await;
    }
}
