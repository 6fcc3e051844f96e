//! What the examples stand on: a cluster, and a way to show objects and events in one line each.

use std::error::Error;

use listwatch::{
    apiserver::{self, ApiServer},
    client::{Body, Client, Config, Env, Options},
    watch::decode::Lines,
};
use serde_json::Value;

/// The cluster that kubectl would take. Where there is none, an API server in this process, which lives as long as the
/// second value.
pub(crate) async fn connect() -> Result<(Client, Option<ApiServer>), Box<dyn Error>> {
    let (config, server) = match Config::load(&Options::default(), &Env::from_process()) {
        Ok(config) => (config, None),
        Err(reason) => {
            println!("# {reason}");
            println!("# Until then, here is an API server in this process.");
            let server = ApiServer::start(apiserver::Options::default()).await?;
            let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?;
            (config, Some(server))
        }
    };
    let client = Client::new(config)?;
    println!("# {} as {}\n", client.server(), client.user());
    Ok((client, server))
}

/// Shows the events of a watch until the server ends it.
#[allow(dead_code, reason = "not every example watches")]
pub(crate) async fn show(mut body: Body) -> Result<(), Box<dyn Error>> {
    let mut lines = Lines::default();
    while let Some(chunk) = body.chunk().await? {
        lines.push(&chunk);
        while let Ok(Some(line)) = lines.next_line() {
            let event: Value = serde_json::from_slice(line)?;
            println!(r#"  {{"type":{},"object":{{{},…}}}}"#, event["type"], shorten(&event["object"]));
        }
    }
    Ok(())
}

/// `"metadata":{"name":"web","resourceVersion":"7",…}`: what the examples are about.
pub(crate) fn shorten(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        r#""metadata":{{"name":{},"resourceVersion":{},…}}"#,
        metadata["name"], metadata["resourceVersion"]
    )
}
