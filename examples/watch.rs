//! A watch is an answer that goes on: one line of JSON per change. Without a version, what exists comes first.
//!
//! ```sh
//! kubectl proxy &
//! curl -N 'http://127.0.0.1:8001/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=3'
//! ```
//!
//! `cargo run --example watch`; with `-- --context NAME` it writes a ConfigMap in a cluster of yours

use std::process::ExitCode;

use http::Method;
use listwatch::client::{Client, Request};
use serde_json::json;
use stage::say;

#[path = "support/stage.rs"]
mod stage;

fn main() -> ExitCode {
    stage::main(watch)
}

async fn watch(client: Client) -> stage::Told {
    let path = format!("/api/v1/namespaces/{}/configmaps", client.namespace());
    let watch = format!("{path}?watch=1&timeoutSeconds=3");
    say!("GET {watch}");
    let (head, body) = client.stream(Request::get(watch)).await?;
    say!("HTTP {}, and the answer has only begun", head.status);

    let name = format!("example-{:08x}", fastrand::u32(..));
    let object = json!({"metadata": {"name": name}}).to_string().into_bytes();
    client.send(Request::get(&*path).sends(Method::POST, "application/json", object)).await?;
    let delete = Request::get(format!("{path}/{name}")).sends(Method::DELETE, "application/json", vec![]);
    client.send(delete).await?;

    stage::show(body).await?;

    say!("\nNotice: what existed before is ADDED too, in no order; only {name} was added since.");
    say!("The answer ended because of timeoutSeconds=3. That is no failure: ask again.");
    Ok(())
}
