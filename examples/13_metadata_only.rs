//! 13. Metadata only, and a Table: other forms of the same objects, chosen by the header Accept.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! FORM='g=meta.k8s.io;v=v1'
//! curl -s -H "accept: application/json;as=PartialObjectMetadataList;$FORM" $URL | jq -c '.kind, .items[0].data'
//! curl -s -H "accept: application/json;as=Table;$FORM" $URL | jq -c '.kind, [.columnDefinitions[].name], .rows[0].cells'
//! ```
//!
//! Predict: A ConfigMap has 20 kB of data. How large is a list with only its metadata?
//! Run: cargo run --example course 13
//! Notice: Some hundred bytes for each object.
//! Why: Most of them are managedFields. kubectl prints a Table, whose columns the server defines. Both forms can be
//! watched.
//! Break it: cargo run --example course -- 13 --fault html,status=200,path=/configmaps,method=GET
//! Source: `accept` in src/client.rs; `latest_version` in src/client/list.rs
//! Embedded server: No difference.

use serde_json::{Value, json};

use crate::stage::{Outcome, Stage, accept, ensure, say};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create("large", json!({})).await?;
    stage.fill("large", 20_000).await?;
    let path = &*stage.configmaps;
    let whole = stage.get(path).await?.to_string().len();
    say!("  {whole} bytes");
    ensure!(whole > 20_000, "the data are missing");
    let list = stage.send(accept(path, "PartialObjectMetadataList")).await?;
    say!("  {}: {} bytes", list["kind"], list.to_string().len());
    ensure!(list["kind"] == "PartialObjectMetadataList", "the list is not a PartialObjectMetadataList");
    ensure!(list.to_string().len() < whole / 10, "the list has the data");

    let table = stage.send(accept(path, "Table")).await?;
    let columns =
        table["columnDefinitions"].as_array().into_iter().flatten().map(|column| column["name"].clone());
    say!("  {}: columns {}", table["kind"], columns.collect::<Value>());
    ensure!(table["kind"] == "Table", "the list is not a Table");
    let watch = accept(&format!("{path}?watch=1"), "PartialObjectMetadata");
    let event = stage.open(watch).await?.next().await?.unwrap_or_default();
    ensure!(event["object"]["kind"] == "PartialObjectMetadata", "the event has no PartialObjectMetadata");
    Ok(())
}
