//! What the embedded server answers is what the real one answers: scripts of requests, with the answers of the real one.
//!
//! ```text
//! > POST configmaps {"metadata": {"name": "A"}}
//! 422 ConfigMap "A" is invalid: metadata.name: Invalid value: "A": …
//! ```
//!
//! Each script is a file in `tests/it/data/kinds/`, which is played on both servers and must come out the same.
//! `UPDATE_EXPECT=1` plays it on the real one alone, and writes the answers down.

use std::{env, path::PathBuf};

use expect_test::expect_file;
use http::{HeaderMap, Method};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::{
    hands::eventually,
    world::{Kind, Server, World, on},
};

/// What is different each time; and what an admission plugin sets that the real plane of these tests does without.
const NOT_COMPARED: [&str; 6] =
    ["uid", "creationTimestamp", "resourceVersion", "managedFields", "serviceAccount", "serviceAccountName"];

struct Player<'a> {
    world: &'a World,
    http: reqwest::Client,
    token: String,
}

impl Player<'_> {
    fn new(world: &World) -> Player<'_> {
        // A second call fails, and does not matter.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let ca = reqwest::Certificate::from_pem(world.ca_pem().as_bytes()).unwrap();
        let token = match &world.server {
            Server::Embedded(server) => server.token().to_owned(),
            Server::Shared(_) | Server::Own(_) => "admin".to_owned(),
        };
        let http = reqwest::Client::builder().tls_certs_only([ca]).user_agent("kinds/1").build().unwrap();
        Player { world, http, token }
    }

    /// `POST configmaps?dryRun=All {…}`, with the content type in brackets for a patch: `PATCH[merge] services/a {…}`.
    async fn play(&self, request: &str) -> String {
        let (verb, rest) = request.split_once(' ').unwrap();
        // What takes a moment on the real server: to be served, to have a word in it, to be gone.
        let (wait, word) = verb.split_once('[').unwrap_or((verb, ""));
        if matches!(wait, "WAIT" | "UNTIL" | "GONE") {
            let word = word.trim_end_matches(']');
            return eventually(request, async || {
                let answer = Box::pin(self.play(&format!("GET {rest}"))).await;
                let comes =
                    if wait == "GONE" { answer.starts_with("404") } else { answer.starts_with("200") };
                (comes && answer.contains(word)).then_some(answer)
            })
            .await;
        }
        let (what, body) = rest.split_once(' ').unwrap_or((rest, ""));
        let (method, media) = verb.split_once('[').unwrap_or((verb, ""));
        let content_type = match media.trim_end_matches(']') {
            "" => "application/json".to_owned(),
            "json" | "merge" | "strategic-merge" => {
                format!("application/{}-patch+json", media.trim_end_matches(']'))
            }
            other => other.to_owned(),
        };
        let path = if what.starts_with('/') { what.to_owned() } else { self.world.path(what) };
        let url = format!("{}{}", self.world.url(), path.replace("NAMESPACE", &self.world.namespace));
        let mut builder = self
            .http
            .request(Method::from_bytes(method.as_bytes()).unwrap(), url)
            .bearer_auth(&self.token)
            .header("content-type", content_type);
        if !body.is_empty() {
            builder = builder.body(body.replace("NAMESPACE", &self.world.namespace));
        }
        let answer = builder.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.unwrap();
        self.told(status, &headers, &text)
    }

    fn told(&self, status: u16, headers: &HeaderMap, text: &str) -> String {
        let mut lines = Vec::new();
        match serde_json::from_str::<Value>(text) {
            Ok(body) if body["kind"] == "Status" => {
                // The rest, if there is any, is the difference between two Go structs.
                let message = body["message"].as_str().unwrap_or_default().lines().next().unwrap_or_default();
                lines.push(format!(
                    "{status} {} {}",
                    body["reason"].as_str().unwrap_or("-"),
                    told_alike(message)
                ));
                let mut details = body["details"].as_object().cloned().unwrap_or_default();
                let causes = details.remove("causes").unwrap_or_default();
                details.remove("uid");
                if !details.is_empty() {
                    lines.push(format!("    {}", Value::from(details)));
                }
                for cause in causes.as_array().into_iter().flatten() {
                    let [reason, field, text] =
                        ["reason", "field", "message"].map(|name| cause[name].as_str().unwrap_or_default());
                    let text = text.lines().next().unwrap_or_default();
                    let text = if message.contains(text) { "" } else { text };
                    let line = format!("    {reason} {field} {text}").trim_end().to_owned();
                    // What Go says, it sometimes says twice.
                    if lines.last() != Some(&line) {
                        lines.push(line);
                    }
                }
            }
            Ok(mut body) => {
                self.plain(&mut body);
                lines.push(format!("{status} {body}"));
            }
            Err(_) => lines.push(format!("{status} {}", text.trim_end())),
        }
        let mut warnings: Vec<&str> =
            headers.get_all("warning").iter().map(|warning| warning.to_str().unwrap()).collect();
        // The real one reads fields in the order in which they were sent.
        warnings.sort_unstable();
        lines.extend(warnings.iter().map(|warning| format!("    warning: {warning}")));
        lines.join("\n").replace(&self.world.namespace, "NAMESPACE")
    }

    /// Without what is different each time.
    fn plain(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                // Go writes down a list that there is not, where nobody thought of leaving it out.
                let is_nil = |field: &str, value: &Value| field == "conditions" && value.is_null();
                map.retain(|field, value| !NOT_COMPARED.contains(&&**field) && !is_nil(field, value));
                for (field, value) in map.iter_mut() {
                    match (field.as_str(), &*value) {
                        ("clusterIP", Value::String(ip)) if ip != "None" => *value = "IP".into(),
                        ("clusterIPs", Value::Array(ips)) if ips[0] != "None" => *value = json!(["IP"]),
                        ("nodePort" | "healthCheckNodePort", Value::Number(port))
                            if port.as_i64() > Some(0) =>
                        {
                            *value = "PORT".into();
                        }
                        ("deletionTimestamp" | "lastTransitionTime" | "lastUpdateTime", Value::String(_)) => {
                            *value = "TIME".into();
                        }
                        _ => self.plain(value),
                    }
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.plain(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// A message without what has another order in Go: the fields of an object that is shown, and those that are unknown.
fn told_alike(message: &str) -> String {
    let mut told = String::new();
    for (index, part) in message.split(" value: ").enumerate() {
        let mut values = serde_json::Deserializer::from_str(part).into_iter::<IgnoredAny>();
        let shows_fields = part.starts_with(['{', '[']) && values.next().is_some_and(|value| value.is_ok());
        if index > 0 {
            told.push_str(" value: ");
        }
        told.push_str(if shows_fields { "…" } else { "" });
        told.push_str(if shows_fields { &part[values.byte_offset()..] } else { part });
    }
    let Some((before, unknown)) = told.split_once("strict decoding error: ") else { return told };
    let mut unknown: Vec<&str> = unknown.split(", ").collect();
    unknown.sort_unstable();
    format!("{before}strict decoding error: {}", unknown.join(", "))
}

async fn check(world: &World, file: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/it/data/kinds", file].iter().collect();
    let script = std::fs::read_to_string(&path).unwrap();
    let player = Player::new(world);
    let mut transcript = String::new();
    for line in script.lines() {
        if let Some(request) = line.strip_prefix("> ") {
            let answer = player.play(request).await;
            transcript.push_str(&format!("{line}\n{answer}\n\n"));
        } else if line.starts_with('#') {
            transcript.push_str(&format!("{line}\n"));
        }
    }
    expect_file![path].assert_eq(&transcript);
}

/// Both servers, or the one that is right.
fn both() -> &'static [Kind] {
    if env::var_os("UPDATE_EXPECT").is_some() { &[Kind::Real] } else { &[Kind::Embedded, Kind::Real] }
}

/// One test for each script, all alike.
macro_rules! scripts {
    ($($name:ident: $file:literal,)*) => {$(
        #[tokio::test]
        async fn $name() {
            on(both(), async |world| check(world, $file).await).await;
        }
    )*};
}

scripts! {
    config_maps_and_secrets_are_as_on_the_real_server: "configmaps.txt",
    services_are_as_on_the_real_server: "services.txt",
    workloads_are_as_on_the_real_server: "workloads.txt",
    leases_and_events_are_as_on_the_real_server: "events.txt",
    custom_resources_are_as_on_the_real_server: "crds.txt",
    a_namespace_that_goes_is_as_on_the_real_server: "namespaces.txt",
}
