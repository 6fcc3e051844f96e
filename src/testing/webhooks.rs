//! The webhooks of an operator in its tests: called by the embedded API server, and with random objects.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::TestServer;
use crate::{
    client::{Client, Error, Request},
    cluster::Cluster,
    resource::Resource,
    watch::Lists,
    webhook::{Listening, Webhooks, convert_there_and_back},
};

impl TestServer {
    /// Serves webhooks, which the API server calls until the result is dropped. Needs a test without `start_paused`: a paused clock does not wait
    /// for a network.
    ///
    /// # Panics
    ///
    /// If a definition whose objects they convert is not installed.
    pub async fn webhooks(&self, webhooks: Webhooks) -> JoinSet<()> {
        serve(&Arc::new(webhooks), &self.client).await.expect("definitions of the kinds that are converted")
    }
}

/// Serves webhooks on loopback, and installs them on an API server of this machine.
pub(crate) async fn serve(webhooks: &Arc<Webhooks>, user: &Client) -> Result<JoinSet<()>, Error> {
    let cluster = Cluster::new(user.clone(), Lists::Paged);
    let Listening { serving, address, bundle } = webhooks.listen_for_tests(&cluster).await;
    let mut task = JoinSet::new();
    task.spawn(serving);
    let call = |path: &Value| {
        let path = path.as_str().unwrap_or_default();
        json!({"url": format!("https://{address}{path}"), "caBundle": STANDARD.encode(&bundle)})
    };
    let write = async |method: Method, path: &str, media_type: &'static str, body: &Value| {
        user.send(Request::get(path).sends(method, media_type, body.to_string().into_bytes())).await
    };
    let installed = webhooks.installation();
    for (kind, mut hooks) in [
        ("MutatingWebhookConfiguration", installed.mutating),
        ("ValidatingWebhookConfiguration", installed.validating),
    ] {
        for hook in &mut hooks {
            hook["clientConfig"] = call(&hook["clientConfig"]["service"]["path"]);
        }
        let api_version = "admissionregistration.k8s.io/v1";
        let metadata = json!({"name": installed.name});
        let object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "webhooks": hooks});
        let path = format!("/apis/{api_version}/{}s", kind.to_lowercase());
        write(Method::POST, &path, "application/json", &object).await?;
    }
    for name in installed.converted {
        let webhook = json!({"clientConfig": call(&"/convert".into()), "conversionReviewVersions": ["v1"]});
        let patch = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        write(Method::PATCH, &path, "application/merge-patch+json", &patch).await?;
    }
    Ok(task)
}

/// Converts random objects of both versions to the other one and back, and fails if something is lost. `definition` is the
/// CustomResourceDefinition in YAML, whose schemas say what an object may have.
///
/// # Panics
///
/// With the first object that does not come back as it was.
pub fn converts_without_loss<Other, Stored>(definition: &str)
where
    Other: Resource + Serialize + From<Stored>,
    Stored: Resource + Serialize + From<Other>,
{
    let definition =
        listwatch_yaml::documents(definition).find_map(Result::ok).expect("a definition in YAML");
    let mut random = fastrand::Rng::with_seed(1);
    for (kind, version) in [(Stored::KIND, Stored::VERSION), (Other::KIND, Other::VERSION)] {
        let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let schema =
            versions.filter(|one| one["name"] == version).map(|one| &one["schema"]["openAPIV3Schema"]);
        let mut schema = schema;
        let schema = schema.next().unwrap_or_else(|| panic!("the definition has no version {version}"));
        for round in 0..1_000 {
            // The API server also converts objects of which an apply has removed fields, down to the metadata.
            let mut object = if round == 0 { json!({}) } else { any(schema, &mut random) };
            object["apiVersion"] = format!("{}/{version}", Stored::GROUP).into();
            object["kind"] = kind.into();
            object["metadata"] = json!({"name": "any", "uid": "u", "resourceVersion": "1"});
            let converted = convert_there_and_back::<Other, Stored>(&object);
            let (before, after) = converted.unwrap_or_else(|error| {
                panic!("{object} is not converted; give each field `#[serde(default)]`: {error}")
            });
            assert_eq!(before, after, "{object} does not come back");
        }
    }
}

/// A random value of a structural schema.
fn any(schema: &Value, random: &mut fastrand::Rng) -> Value {
    if let Some(values) = schema["enum"].as_array().filter(|values| !values.is_empty()) {
        return values[random.usize(..values.len())].clone();
    }
    match schema["type"].as_str().unwrap_or_default() {
        "object" => {
            let mut object = Map::new();
            let is_required = |field: &str| {
                schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == field))
            };
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                if is_required(field) || random.bool() {
                    object.insert(field.clone(), any(schema, random));
                }
            }
            if schema["additionalProperties"].is_object() {
                for _ in 0..random.usize(..3) {
                    object.insert(word(random), any(&schema["additionalProperties"], random));
                }
            }
            object.into()
        }
        "array" => (0..random.usize(..3)).map(|_| any(&schema["items"], random)).collect(),
        "integer" | "number" => {
            let least = schema["minimum"].as_i64().unwrap_or(0);
            random.i64(least..=schema["maximum"].as_i64().unwrap_or(least + 30_000)).into()
        }
        "boolean" => random.bool().into(),
        _ if schema["format"] == "date-time" => "2026-11-22T06:39:00Z".into(),
        _ => word(random).into(),
    }
}

fn word(random: &mut fastrand::Rng) -> String {
    (0..random.usize(1..8)).map(|_| random.lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{ObjectMeta, kinds::ConfigMap};

    #[tokio::test]
    async fn a_default_that_changes_what_it_has_changed_fails_each_test_that_calls_it() {
        let server = TestServer::start(&[]).await;
        let webhooks = Webhooks::new("example.com/map-webhook")
            .defaults(|map: &mut ConfigMap| drop(map.data.insert(map.data.len().to_string(), String::new())));
        let _serving = server.webhooks(webhooks).await;
        let metadata =
            ObjectMeta { name: "a".into(), namespace: Some("default".into()), ..ObjectMeta::default() };
        let created = server.client.create(&ConfigMap { metadata, ..ConfigMap::default() }).await;
        let error = created.map(drop).expect_err("a panic").to_string();
        assert!(error.contains("the webhook panicked"), "{error}");
    }
}
