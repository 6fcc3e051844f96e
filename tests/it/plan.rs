//! Tests `listwatch plan`: what it shows, and that it writes nothing.

use std::{fs, path::Path, process::Output, thread};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::{
    client::web,
    fixture::{Fixture, Kind, on},
    operator::listwatch,
};

const SERVERS: [Kind; 2] = [Kind::Embedded, Kind::Real];

/// Output, errors and exit code of a plan.
async fn plan(account: &Path, fixture: &Fixture, args: &[&str]) -> (String, String, Option<i32>) {
    let url = fixture.url();
    let (host, port) = url.strip_prefix("https://").unwrap().rsplit_once(':').unwrap();
    let mut command = listwatch();
    command
        .args(["plan", "--namespace", &fixture.namespace, "--service-account-dir"])
        .arg(account)
        .args(args);
    command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || sender.send(command.output().unwrap()));
    let Output { status, stdout, stderr } = receiver.await.unwrap();
    let text =
        |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&format!("{}/", fixture.namespace), "");
    (text(stdout), text(stderr), status.code())
}

/// A directory with the credentials of an administrator, who may also create a MyWebserver.
fn administrator(fixture: &Fixture) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in
        [("token", fixture.admin_token()), ("ca.crt", &fixture.ca_pem()), ("namespace", &fixture.namespace)]
    {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// The versions of all objects that an operator could have written.
async fn versions(fixture: &Fixture) -> Vec<Value> {
    let mut all = Vec::new();
    for resource in ["mywebservers", "deployments", "services", "events"] {
        let list = fixture.get(resource).await;
        all.extend(list["items"].as_array().unwrap().iter().map(|item| item["metadata"].clone()));
    }
    all
}

/// Plans with the rights of the operator, and checks that nothing was written.
async fn planned(fixture: &Fixture, args: &[&str]) -> (String, Option<i32>) {
    let before = versions(fixture).await;
    let args = [&["mywebserver"], args].concat();
    let (text, errors, code) = plan(fixture.dir.path(), fixture, &args).await;
    assert_eq!((errors, versions(fixture).await), (String::new(), before), "{text}");
    (text, code)
}

/// The lines of a diff that differ, and those between the diffs.
fn changes(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with([' ', '@'])).collect()
}

#[tokio::test]
async fn a_plan_shows_what_the_operator_would_write_and_writes_nothing() {
    on(&SERVERS, async |fixture| {
        fixture.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        let (text, code) = planned(fixture, &[]).await;
        assert_eq!(code, Some(1), "{text}");
        for line in [
            "--- /dev/null",
            "+++ deployments.apps/mws-web (planned)",
            "+  replicas: 2",
            "+++ services/mws-web (planned)",
            "+++ mywebservers.k8sobjects.gsa.com/web/status (planned)",
            "+  observedGeneration: 1",
            "2 to create, 1 to change, 0 to delete",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let tried = fixture.transcript().await;
        assert_eq!(tried.len(), 3, "{tried:?}");
        assert!(tried.iter().all(|line| line.contains("?dryRun=All")), "{tried:?}");

        fixture.start_operator(&[]).await;
        fixture.until_reconciled("web").await;
        fixture.stop_operator().await;
        let nothing = ("0 to create, 0 to change, 0 to delete\n".to_owned(), Some(0));
        assert_eq!(planned(fixture, &[]).await, nothing);

        fixture.patch("deployments/mws-web", json!({"spec": {"replicas": 5}})).await;
        let (text, code) = planned(fixture, &[]).await;
        let expected = [
            "--- deployments.apps/mws-web (now)",
            "+++ deployments.apps/mws-web (planned)",
            "-  replicas: 5",
            "+  replicas: 2",
            "0 to create, 1 to change, 0 to delete",
        ];
        assert_eq!((changes(&text), code), (expected.to_vec(), Some(1)));

        // The log named the change as if it was written.
        let args = ["mywebserver", "--log-level", "info", "--log-format", "text"];
        let (_, log, _) = plan(fixture.dir.path(), fixture, &args).await;
        let updated = log.lines().find(|line| line.contains("child updated")).expect(&log);
        assert!(updated.contains(" planned: "), "{updated}");
    })
    .await;
}

#[tokio::test]
async fn a_child_that_must_be_created_again_is_one_change_and_a_refused_one_says_why() {
    on(&SERVERS, async |fixture| {
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until_reconciled("web").await;
        fixture.stop_operator().await;
        let mut deployment = fixture.get("deployments/mws-web").await;
        fixture.delete("deployments/mws-web").await;
        fixture.until_gone("deployments/mws-web").await;
        deployment["metadata"]["resourceVersion"] = Value::Null;
        let labels = deployment["spec"]["selector"]["matchLabels"].as_object_mut().unwrap();
        labels.insert("other".to_owned(), "label".into());
        deployment["spec"]["template"]["metadata"]["labels"]["other"] = "label".into();
        fixture.create("deployments", &deployment).await;
        let (text, code) = planned(fixture, &[]).await;
        assert!(
            text.contains("+++ deployments.apps/mws-web (planned, deleted and created again)\n"),
            "{text}"
        );
        assert!(text.contains("\n-      other: label\n") && !text.contains("generateName"), "{text}");
        assert_eq!(code, Some(1));

        let spec = json!({"image": "nginx", "nodeSelector": {"a": "no value!"}});
        fixture.create_web("odd", spec).await;
        let (text, code) = planned(fixture, &[]).await;
        let refused = "deployments.apps/mws-odd: refused: 422 Invalid: ";
        let line = text.lines().find(|line| line.starts_with(refused)).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("nodeSelector") && line.contains("no value!"), "{line}");
        assert_eq!(code, Some(2), "{text}");
    })
    .await;
}

#[tokio::test]
async fn a_plan_for_a_file_is_as_if_the_file_was_applied() {
    on(&SERVERS, async |fixture| {
        fixture.start_operator(&[]).await;
        let mut first = web("web", json!({"image": "nginx", "replicas": 3}));
        // As `kubectl apply` notes it.
        let applied = json!({"metadata": {"name": "web"}, "spec": {"image": "nginx", "replicas": 3}});
        first["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
            applied.to_string().into();
        fixture.create("mywebservers", &first).await;
        fixture.until_reconciled("web").await;
        fixture.stop_operator().await;
        let before = versions(fixture).await;
        let administrator = administrator(fixture);
        let file = administrator.path().join("web.yaml");
        let file = file.to_str().unwrap();
        let plan_of = async |text: &str| {
            fs::write(file, text).unwrap();
            plan(administrator.path(), fixture, &["-f", file]).await
        };
        let changed = web("web", json!({"image": "nginx:next"})).to_string();
        let new = web("new", json!({"image": "nginx"})).to_string();
        let (text, errors, code) = plan_of(&format!("{changed}\n---\n{new}\n")).await;
        assert_eq!((&*errors, code), ("", Some(1)), "{text}");
        for line in ["-  replicas: 3", "-      - image: nginx", "+      - image: nginx:next"] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("+++ services/mws-new (planned)\n"), "{text}");
        assert!(text.ends_with("\n2 to create, 1 to change, 0 to delete\n"), "{text}");
        let same = web("web", json!({"image": "nginx", "replicas": 3})).to_string();
        let nothing = "0 to create, 0 to change, 0 to delete\n".to_owned();
        assert_eq!(plan_of(&same).await, (nothing.clone(), String::new(), Some(0)));

        for (text, problem) in [
            ("a: [", "document 1: not YAML"),
            ("- a", "document 1: is not an object"),
            ("", "holds no objects"),
            ("{apiVersion: v1, kind: Pod, metadata: a}", "document 1: has no metadata"),
            ("{apiVersion: v1, kind: Pod, metadata: {}}", "document 1: \"Pod\" of \"v1\" is not reconciled here, only "),
            (
                "{apiVersion: k8sobjects.gsa.com/v1, kind: MyWebserver, metadata: {}}",
                "document 1: has the version k8sobjects.gsa.com/v1: write it as k8sobjects.gsa.com/v2",
            ),
            (&*format!("{new}\n---\n{new}"), "document 2: an earlier document has the same object"),
            (&*new.replace("image", "imagee"), r#"unknown field "spec.imagee""#),
            ("{apiVersion: k8sobjects.gsa.com/v2, kind: MyWebserver, metadata: {}}", "document 1: it has no metadata.name"),
            (
                "{apiVersion: k8sobjects.gsa.com/v2, kind: MyWebserver, metadata: {name: web}, spec: {replicas: a}}",
                "document 1: patch ",
            ),
        ] {
            let (_, errors, code) = plan_of(text).await;
            assert!(errors.contains(problem) && errors.lines().count() == 1, "{text}: {errors}");
            assert_eq!(code, Some(2), "{text}");
        }
        assert_eq!(versions(fixture).await, before);
    })
    .await;
}

#[test]
fn a_plan_without_a_server_or_a_file_fails_with_one_line() {
    for (args, problem) in [
        (&["--filename", crate::ABSENT][..], "listwatch: --filename "),
        (&["--kubeconfig", crate::ABSENT], "listwatch: "),
    ] {
        let Output { status, stdout, stderr } = listwatch().arg("plan").args(args).output().unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        assert!(errors.starts_with(problem) && errors.lines().count() == 1, "{errors}");
        assert_eq!((status.code(), stdout), (Some(2), Vec::new()));
    }
}
