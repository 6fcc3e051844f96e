//! List, remember the version, watch from it: every change after the list, once, and nothing else.
//!
//! ```sh
//! kubectl proxy &
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! kubectl create configmap example && kubectl delete configmap example      # of a real cluster: ours takes no protobuf
//! curl -N "$URL?watch=1&resourceVersion=$VERSION&timeoutSeconds=2"
//! ```
//!
//! `cargo run --example list_then_watch`

use std::error::Error;

use http::Method;
use listwatch::client::Request;
use serde_json::{Value, json};

#[path = "support/stage.rs"]
mod stage;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, _server) = stage::connect().await?;
    let path = format!("/api/v1/namespaces/{}/configmaps", client.namespace());
    let list: Value = serde_json::from_slice(&client.send(Request::get(&*path)).await?.body)?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    println!("GET {path}\n  the list is of version {version}\n");

    let object = format!("{path}/example-{:08x}", fastrand::u32(..));
    let name = object.rsplit('/').next();
    for (method, path, media_type, body) in [
        (Method::POST, &path, "application/json", json!({"metadata": {"name": name}})),
        (Method::PATCH, &object, "application/merge-patch+json", json!({"data": {"colour": "blue"}})),
        (Method::DELETE, &object, "application/json", json!({})),
    ] {
        println!("{method} {path}");
        client.send(Request::get(path).sends(method, media_type, body.to_string().into_bytes())).await?;
    }

    let watch = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=2");
    println!("\nGET {watch}");
    let (_head, body) = client.stream(Request::get(watch)).await?;
    stage::show(body).await?;

    println!(
        "\nNotice: all three happened before we watched, and none is lost. DELETED has a version of its own."
    );
    Ok(())
}
