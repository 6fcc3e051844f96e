//! List, remember the version, watch from it: every change after the list, once, and nothing else.
//!
//! ```sh
//! kubectl proxy &
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! kubectl create configmap example && kubectl delete configmap example      # not on the embedded server: protobuf
//! curl -N "$URL?watch=1&resourceVersion=$VERSION&timeoutSeconds=2"
//! ```
//!
//! `cargo run --example list_then_watch`; with `-- --context NAME` it writes a ConfigMap in a cluster of yours

use std::process::ExitCode;

use http::Method;
use listwatch::client::{Client, Request};
use serde_json::{Value, json};
use stage::say;

#[path = "support/stage.rs"]
mod stage;

fn main() -> ExitCode {
    stage::main(list_then_watch)
}

async fn list_then_watch(client: Client) -> stage::Told {
    let path = format!("/api/v1/namespaces/{}/configmaps", client.namespace());
    let list: Value = serde_json::from_slice(&client.send(Request::get(&*path)).await?.body)?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    say!("GET {path}\n  the list is of version {version}\n");

    let object = format!("{path}/example-{:08x}", fastrand::u32(..));
    let (merge, name) = ("application/merge-patch+json", object.rsplit('/').next());
    let mut sent = String::new();
    for (method, path, media_type, body) in [
        (Method::POST, &path, "application/json", json!({"metadata": {"name": name}})),
        (Method::PATCH, &object, merge, json!({"data": {"colour": "blue"}})),
        (Method::DELETE, &object, "application/json", json!({})),
    ] {
        sent += &format!("{method} {path}\n");
        client.send(Request::get(path).sends(method, media_type, body.to_string().into_bytes())).await?;
    }
    let watch = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=2");
    say!("{sent}\nGET {watch}");
    stage::show(client.stream(Request::get(watch)).await?.1).await?;
    say!("\nNotice: all three happened before the watch, and none is lost. DELETED has its own version.");
    Ok(())
}
