//! The webhooks, called by the embedded API server.

use super::*;
use listwatch::{
    client::Request,
    rbac::Reach,
    testing::{TestServer, converts_without_loss, crd_fits},
};

async fn create(server: &TestServer, version: &str, name: &str, spec: Value) -> Result<Value, String> {
    let api_version = format!("example.com/{version}");
    let site = json!({"apiVersion": api_version, "kind": "Site", "metadata": {"name": name}, "spec": spec});
    let path = format!("/apis/{api_version}/namespaces/default/sites");
    let answer = server.client.send(Request::post(path, &site)).await.map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&answer.body).expect("JSON"))
}

#[tokio::test]
async fn a_site_gets_a_host_that_no_other_has() {
    let server = TestServer::start(&[&definition()]).await;
    let _serving = server.webhooks(webhooks()).await;
    let site = create(&server, "v2", "a", json!({"host": "Web.Example.com"})).await.expect("a site");
    assert_eq!(site["spec"], json!({"host": "web.example.com", "port": 443}));
    let error =
        create(&server, "v1", "b", json!({"address": "web.example.com"})).await.expect_err("a conflict");
    let expected = "Site.example.com \"b\" is invalid: spec.host: Duplicate value: \"web.example.com\"";
    assert!(error.contains(expected), "{error}");
}

/// And the defaults are idempotent: otherwise the webhook would panic.
#[tokio::test]
async fn the_samples_are_accepted() {
    let server = TestServer::start(&[&definition()]).await;
    let _serving = server.webhooks(webhooks()).await;
    for sample in listwatch_yaml::documents(include_str!("../sample.yaml")) {
        let mut sample = sample.expect("YAML");
        let [version, name] = [&sample["apiVersion"], &sample["metadata"]["name"]];
        let [version, name] = [version, name].map(|text| text.as_str().expect("a text").to_owned());
        let version = version.trim_start_matches("example.com/");
        create(&server, version, &name, sample["spec"].take()).await.expect("a site");
    }
}

#[test]
fn both_versions_say_the_same() {
    converts_without_loss::<v1::Site, Site>(&definition());
    crd_fits::<Site>(&definition());
}

/// Also those that the controller does not watch, with `manifests --watch-namespace web`.
#[test]
fn the_webhook_may_watch_all_sites() {
    let runtime = Runtime::offline().and_then(|runtime| runtime.namespaces(vec!["web".to_owned()]));
    let permissions = operator(runtime.expect("a runtime")).permissions().expect("permissions");
    let mut watches =
        permissions.iter().filter(|one| one.resource == "sites" && one.verbs.contains(&Verb::Watch));
    assert!(watches.any(|one| one.reach == Reach::AllNamespaces), "{permissions:#?}");
}
