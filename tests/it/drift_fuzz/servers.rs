//! Compares the embedded server with a real one: both get the same random edits of the same objects, and must accept,
//! refuse and store the same. No operator runs.
//!
//! The seeds are always the same, unless `LISTWATCH_SEEDS` is set. Other seeds may find a new difference: fix it in
//! apiserver/src, or add it to apiserver/contract/differences.txt with its reason.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use fastrand::Rng;
use listwatch::client::Error;
use listwatch_apiserver::{ApiServer, Options};
use listwatch_control_plane::{has_assets, minor_version, unique};
use serde_json::{Value, json};

use super::{
    ROUNDS, SEEDS_AT_ONCE, draw_object,
    edits::{Draw, Schemas},
    for_each, print, promises, schemas, seeds, send,
};
use crate::{
    client::{UserClient, admin},
    fixture,
};

const SEEDS: u64 = 200;

/// The known differences between the embedded server and kube-apiserver.
const KNOWN: &str = include_str!("../../../apiserver/contract/differences.txt");

/// The numbers of edits that the real server refused and accepted.
static COMPARED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// The differences found so far. Each is reported as soon as it is found.
static DIFFERENCES: AtomicUsize = AtomicUsize::new(0);

#[tokio::test]
async fn an_edit_has_the_same_result_on_kube_apiserver_and_on_the_embedded_server() {
    // The embedded server answers as this version does.
    if !has_assets() || minor_version() != 36 {
        return;
    }
    let control_plane = fixture::shared_control_plane().await;
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let namespace = format!("t-{}", unique());
    let servers = [fixture::admin_of(control_plane), admin(&server)]
        .map(|client| UserClient { client, namespace: namespace.clone() });
    for user in &servers {
        let metadata = json!({"name": namespace});
        user.install(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await;
    }
    let schemas = Arc::new(schemas(&servers[0]).await);
    let seeds: Vec<u64> = seeds().unwrap_or(0..SEEDS).collect();
    for chunk in seeds.chunks(SEEDS_AT_ONCE) {
        let (schemas, servers) = (Arc::clone(&schemas), servers.clone());
        for_each(&servers[0].clone(), chunk.to_vec(), move |_, seed| {
            let (schemas, servers) = (Arc::clone(&schemas), servers.clone());
            async move { compare(&servers, &schemas, seed).await }
        })
        .await;
    }
    let [refused, accepted] = COMPARED.each_ref().map(|count| count.load(Relaxed));
    print(&format!("drift_fuzz: compared {accepted} accepted and {refused} refused edits"));
    assert_eq!(DIFFERENCES.load(Relaxed), 0, "the servers differ; see above");
}

/// Sends edits of the children of an object, until the servers differ.
async fn compare(servers: &[UserClient; 2], schemas: &Schemas, seed: u64) {
    let namespace = &servers[0].namespace;
    let (operator, _, mut owner) = draw_object(seed, namespace);
    for (field, value) in [("uid", "u"), ("resourceVersion", "1"), ("namespace", namespace)] {
        owner["metadata"][field] = value.into();
    }
    let mut draw = Draw { schemas, random: Rng::with_seed(seed), owners: Vec::new() };
    for (child, mut wanted) in promises::wanted(operator, &owner) {
        let [kind, api_version, resource] = child;
        wanted["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        wanted["apiVersion"] = api_version.into();
        wanted["kind"] = kind.into();
        servers[1].create(resource, &wanted).await;
        let mut live = servers[0].create(resource, &wanted).await;
        for _ in 0..ROUNDS {
            let edit = draw.edit(child, &live, &wanted);
            let name = wanted["metadata"]["name"].as_str().unwrap();
            let path = servers[0].path(&format!("{resource}/{name}"));
            let (real, ours) = tokio::join!(send(&servers[0], &path, &edit), send(&servers[1], &path, &edit));
            COMPARED[usize::from(real.is_ok())].fetch_add(1, Relaxed);
            let differences = differences(&real, &ours);
            if differences.is_empty() {
                live = real.unwrap_or(live);
                continue;
            }
            // Each server allocates different node ports, and Services of other tests have some.
            let is_allocated = |path: &str| path.ends_with("odePort") && real.is_ok() != ours.is_ok();
            let is_known = |line: &String| {
                let path = line.split(": ").next().unwrap();
                is_allocated(path) || fields().any(|field| path.contains(field))
            };
            let unknown: Vec<_> = differences.into_iter().filter(|line| !is_known(line)).collect();
            if !unknown.is_empty() {
                print(&format!("seed {seed}: {}: {}", edit.command(&path), unknown.join("; ")));
                print(&format!("  LISTWATCH_SEED={seed} cargo test --locked --test it an_edit_has_the_same"));
                DIFFERENCES.fetch_add(1, Relaxed);
            }
            break;
        }
    }
}

/// Parts of the paths of the fields of Deployments and Services in which the servers differ.
fn fields() -> impl Iterator<Item = &'static str> {
    KNOWN.lines().filter_map(|line| line.strip_prefix("edits | ")?.strip_suffix(" | *"))
}

/// The differences of two answers, each after the path of its field.
fn differences(real: &Result<Value, Error>, ours: &Result<Value, Error>) -> Vec<String> {
    let mut all = Vec::new();
    match (real, ours) {
        (Ok(real), Ok(ours)) => collect(&comparable(real), &comparable(ours), "", &mut all),
        (Err(real), Err(ours)) if real.code() == ours.code() => {}
        (Err(real), Err(ours)) => all.push(format!("real {real}, ours {ours}")),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => {
            let server = if real.is_err() { "real" } else { "ours" };
            let causes = error.status().into_iter().flat_map(|status| &status.details.causes);
            all.extend(causes.map(|cause| format!("{}: {server} {}", cause.field, cause.message)));
            if all.is_empty() {
                all.push(format!("{server} {error}"));
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

/// An object without the values that each server chooses: uids, times, addresses and ports.
fn comparable(before: &Value) -> Value {
    let mut object = promises::without_counters(before);
    object["metadata"]["generation"] = before["metadata"]["generation"].clone();
    for field in ["creationTimestamp", "uid"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    let hide = |value: &mut Value| {
        if !value.is_null() && *value != "None" && *value != json!(["None"]) {
            *value = "allocated".into();
        }
    };
    let spec = &mut object["spec"];
    for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        hide(&mut spec[field]);
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        hide(&mut port["nodePort"]);
    }
    object
}
