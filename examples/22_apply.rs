//! 22. Server-side apply: what it owns, what force takes, and what a missing field means.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps/listwatch-course
//! apply() {
//!   curl -s -X PATCH -H 'content-type: application/apply-patch+yaml' "$URL?fieldManager=$1" \
//!     -d "{apiVersion: v1, kind: ConfigMap, metadata: {name: listwatch-course}, data: $2}" | jq -c '.data // .message'
//! }
//! apply ann '{colour: red, size: "1"}'
//! apply bob '{colour: blue}'
//! apply 'bob&force=true' '{colour: blue}'
//! apply ann '{}'
//! curl -s -o /dev/null -X DELETE $URL
//! ```
//!
//! Predict: Ann applies a colour and a size, Bob takes the colour by force, then Ann applies neither. What is left?
//! Run: cargo run --example course 22
//! Notice: The colour of Bob, because an apply removes only fields that its manager owned, and that nobody else owns.
//! Why: The server notes the fields that a manager applies in metadata.managedFields: the manager owns them. To apply another
//! value to a field that somebody else owns is a 409 with the name of the owner; force takes the field. A PUT or another PATCH
//! takes what it changes, without a conflict. Our operators do not apply: by force, they would take over any object of that name.
//! Break it: cargo run --example course -- 22 --fault deny,path=force,method=PATCH
//! Source: `apply` in apiserver/src/apply/managed_fields.rs; `correct` in src/children/keep.rs
//! Embedded server: No difference.

use listwatch::client::Error;
use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, say};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.apply("ann", json!({"colour": "red", "size": "1"})).await?;
    let blue = json!({"colour": "blue"});
    let error = stage.apply("bob", blue.clone()).await.err().ok_or("no conflict")?;
    say!("  {}", error.to_string().split_once(": ").unwrap_or_default().1);
    ensure!(error.downcast_ref().is_some_and(Error::is_conflict), "the error is no 409");
    let forced = stage.apply("bob&force=true", blue.clone()).await?;
    ensure!(forced["data"] == json!({"colour": "blue", "size": "1"}), "forced: {}", forced["data"]);
    let left = stage.apply("ann", json!({})).await?;
    ensure!(left["data"] == blue, "left: {}", left["data"]);
    Ok(())
}
