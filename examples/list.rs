//! A list has a version of its own, and so has each object in it. Only the list's is where a watch can go on.
//!
//! ```sh
//! kubectl proxy &
//! curl http://127.0.0.1:8001/api/v1/namespaces
//! ```
//!
//! `cargo run --example list`, and of a cluster of yours: `cargo run --example list -- --context NAME`

use std::process::ExitCode;

use listwatch::client::{Client, Request};
use serde_json::Value;
use stage::say;

#[path = "support/stage.rs"]
mod stage;

fn main() -> ExitCode {
    stage::main(list)
}

async fn list(client: Client) -> stage::Told {
    let path = "/api/v1/namespaces";
    say!("GET {path}");
    let answer = client.send(Request::get(path)).await?;
    let list: Value = serde_json::from_slice(&answer.body)?;
    let version = &list["metadata"]["resourceVersion"];
    say!("HTTP {}, {} bytes, all at once", answer.status, answer.body.len());
    say!(r#"{{"kind":{},"metadata":{{"resourceVersion":{version}}},"items":["#, list["kind"]);
    for item in list["items"].as_array().into_iter().flatten() {
        say!("  {{{},…}}", stage::shorten(item));
    }
    say!("]}}");

    say!("\nNotice: {version} is the version of the list, the moment that it shows.");
    say!("An object's own version is that of its last change, which may be long ago.");
    say!("To watch from here, ask for {version}; from an object's you would hear old news, or 410 Expired.");
    Ok(())
}
