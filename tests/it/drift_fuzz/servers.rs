//! The same random edits of the same objects on both servers: what the real one accepts, refuses and makes of them, the
//! embedded one does too. No operator is there.
//!
//! The seeds are always the same, unless `LISTWATCH_SEEDS` names others: other seeds may find another difference. It is
//! mended in apiserver, or added to [`FIELDS`] with its reason.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use fastrand::Rng;
use listwatch::{
    apiserver::{ApiServer, Options},
    client::{Client, Config, Error},
};
use serde_json::{Value, json};

use super::{
    CHILDREN, ROUNDS, SEEDS_AT_ONCE, each,
    edits::{Draw, Schemas},
    promises, say, schemas, seeds, send,
};
use crate::{
    hands::Hands,
    plane::{self, Plane},
    world::has_real,
};

const SEEDS: u64 = 200;

/// Parts of the paths of fields of Deployments and Services, of which our server is known to accept or make something else
/// than the real one, and why.
const FIELDS: &[(&str, &str)] = &[
    (".resources.claims", "claims are typed and not checked"),
    (".resourceClaims", "claims are typed and not checked"),
    ("template.spec.resources", "the resources of a whole Pod are typed and not checked"),
    (".topologySpreadConstraints", "typed and not checked"),
    (".volumes", "the rarer volumes are typed, have no defaults, and are not checked"),
    ("metadata.ownerReferences", "a strategic patch with one owner twice keeps both"),
    ("spec.internalTrafficPolicy", "the real server keeps what it does not show of an ExternalName"),
];

/// Edits that the real server refused, and that it accepted.
static COMPARED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// They are reported as they are found.
static DIFFERENCES: AtomicUsize = AtomicUsize::new(0);

#[tokio::test]
async fn both_servers_make_the_same_of_an_edit() {
    if !has_real() {
        return;
    }
    let plane = Plane::shared().await;
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap();
    let namespace = format!("t-{}", plane::unique());
    let servers = [plane.admin(), Client::new(config).unwrap()]
        .map(|client| Hands { client, namespace: namespace.clone() });
    for hands in &servers {
        let metadata = json!({"name": namespace});
        hands.install(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await;
    }
    let schemas = Arc::new(schemas(&servers[0]).await);
    let seeds: Vec<u64> = seeds().unwrap_or(0..SEEDS).collect();
    for some in seeds.chunks(SEEDS_AT_ONCE) {
        let (schemas, servers) = (Arc::clone(&schemas), servers.clone());
        each(&servers[0].clone(), some.to_vec(), move |_, seed| {
            let (schemas, servers) = (Arc::clone(&schemas), servers.clone());
            async move { compare(&servers, &schemas, seed).await }
        })
        .await;
    }
    let [refused, accepted] = COMPARED.each_ref().map(|count| count.load(Relaxed));
    say(&format!(
        "drift_fuzz: both servers were sent {accepted} edits that are valid and {refused} that are not"
    ));
    assert_eq!(DIFFERENCES.load(Relaxed), 0, "the servers differ; see above");
}

/// Some edits of a Deployment and of a Service, until the servers differ.
async fn compare(servers: &[Hands; 2], schemas: &Schemas, seed: u64) {
    let name = format!("seed-{seed}");
    let web =
        json!({"metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "spec": {"image": "nginx"}});
    let mut draw = Draw { schemas, random: Rng::with_seed(seed), owners: Vec::new() };
    for (child, mut wanted) in CHILDREN.into_iter().zip(promises::wanted(&web)) {
        let [kind, api_version, resource] = child;
        wanted["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        wanted["apiVersion"] = api_version.into();
        wanted["kind"] = kind.into();
        servers[1].create(resource, &wanted).await;
        let mut live = servers[0].create(resource, &wanted).await;
        for _ in 0..ROUNDS {
            let edit = draw.edit(child, &live, &wanted);
            let path = format!("{resource}/mws-{name}");
            let (real, ours) = tokio::join!(send(&servers[0], &path, &edit), send(&servers[1], &path, &edit));
            COMPARED[usize::from(real.is_ok())].fetch_add(1, Relaxed);
            let differences = differences(&real, &ours);
            if differences.is_empty() {
                live = real.unwrap_or(live);
                continue;
            }
            // Each server gives other node ports, and Services of other tests have some.
            let is_given = |path: &str| path.ends_with("odePort") && real.is_ok() != ours.is_ok();
            let is_known = |line: &String| {
                let path = line.split(": ").next().unwrap();
                is_given(path) || FIELDS.iter().any(|(field, _)| path.contains(field))
            };
            if !differences.iter().any(is_known) {
                say(&format!("seed {seed}: {}: {}", edit.command(&path), differences.join("; ")));
                say(&format!("  LISTWATCH_SEED={seed} cargo test --locked --test it both_servers_make"));
                DIFFERENCES.fetch_add(1, Relaxed);
            }
            break;
        }
    }
}

/// Where two answers differ, and how, each after the path of the field.
fn differences(real: &Result<Value, Error>, ours: &Result<Value, Error>) -> Vec<String> {
    let mut all = Vec::new();
    match (real, ours) {
        (Ok(real), Ok(ours)) => collect(&comparable(real), &comparable(ours), "", &mut all),
        (Err(real), Err(ours)) if real.code() == ours.code() => {}
        (Err(real), Err(ours)) => all.push(format!("real {real}, ours {ours}")),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => {
            let who = if real.is_err() { "real" } else { "ours" };
            let causes = error.status().into_iter().flat_map(|status| &status.details.causes);
            all.extend(causes.map(|cause| format!("{}: {who} {}", cause.field, cause.message)));
            if all.is_empty() {
                all.push(format!("{who} {error}"));
            }
        }
    }
    all
}

fn collect(real: &Value, ours: &Value, path: &str, all: &mut Vec<String>) {
    match (real, ours) {
        _ if real == ours => {}
        (Value::Object(a), Value::Object(b)) => {
            for field in a.keys().chain(b.keys().filter(|field| !a.contains_key(*field))) {
                let separator = if path.is_empty() { "" } else { "." };
                collect(&real[field], &ours[field], &format!("{path}{separator}{field}"), all);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (real, ours)) in a.iter().zip(b).enumerate() {
                collect(real, ours, &format!("{path}[{index}]"), all);
            }
        }
        _ => all.push(format!("{path}: real {real}, ours {ours}")),
    }
}

/// An object without what each server gives: uids, times, addresses and ports.
fn comparable(before: &Value) -> Value {
    let mut object = promises::without_counters(before);
    object["metadata"]["generation"] = before["metadata"]["generation"].clone();
    for field in ["creationTimestamp", "uid"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    let given = |value: &mut Value| {
        if !value.is_null() && *value != "None" && *value != json!(["None"]) {
            *value = "given".into();
        }
    };
    let spec = &mut object["spec"];
    for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        given(&mut spec[field]);
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        given(&mut port["nodePort"]);
    }
    object
}
