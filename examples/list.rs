//! A list has a version of its own, and so has each object in it. Only the list's is where a watch can go on.
//!
//! ```sh
//! kubectl proxy &
//! curl http://127.0.0.1:8001/api/v1/namespaces
//! ```
//!
//! `cargo run --example list`

use std::error::Error;

use listwatch::client::Request;
use serde_json::Value;

#[path = "support/stage.rs"]
mod stage;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, _server) = stage::connect().await?;
    let path = "/api/v1/namespaces";

    println!("GET {path}");
    let answer = client.send(Request::get(path)).await?;
    let list: Value = serde_json::from_slice(&answer.body)?;
    let version = &list["metadata"]["resourceVersion"];
    println!("HTTP {}, {} bytes, all at once", answer.status, answer.body.len());
    println!(r#"{{"kind":{},"metadata":{{"resourceVersion":{version}}},"items":["#, list["kind"]);
    for item in list["items"].as_array().into_iter().flatten() {
        println!("  {{{},…}}", stage::shorten(item));
    }
    println!("]}}");

    println!("\nNotice: {version} is the version of the list, the moment that it shows.");
    println!("An object's own version is that of its last change, which may be long ago.");
    println!(
        "To watch from here, ask for {version}; from an object's you would hear old news, or 410 Expired."
    );
    Ok(())
}
