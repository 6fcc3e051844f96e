//! 23. Webhooks: what the API server asks before it stores an object, and for another version of it.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations
//! curl -s $URL | jq -c '.kind, [.items[].webhooks[] | {name, failurePolicy, rules}]'
//! ```
//!
//! Predict: A webhook denies each ConfigMap of a namespace. Does it see the object as the client has sent it?
//! Run: cargo run --example course 23
//! Notice: The review has the whole object as it would be stored, with the uid, the time of creation and the managedFields.
//! Why: The API server asks after authentication, authorization and defaults, with the user, and the answer has the uid of the question.
//! It trusts the certificate by the caBundle alone. It keeps a watch cache for each version, so it converts each change once for each version,
//! also if nobody reads it, and a list needs no conversion. While nobody answers, failurePolicy Fail denies each write, and a GET of the other
//! version fails.
//! Break it: cargo run --example course -- 23 --fault deny,path=validatingwebhook,method=POST
//! Source: `answer` in examples/webhook.rs; `review` in src/webhook/server.rs
//! Embedded server: It converts an object when it is read, and the objects of a list in one review.

use listwatch::client::Error;
use serde_json::json;

use crate::{
    stage::{Outcome, Stage, ensure, say},
    webhook::Webhook,
};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let mut webhook = Webhook::start().await?;
    if !webhook.validate_config_maps(stage).await? {
        say!("  not on this server: a webhook in this process, which it cannot reach");
        return Ok(());
    }
    let list = stage.get("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations").await?;
    say!("  {}", list["kind"]);
    let web = json!({"metadata": {"name": "web"}, "data": {"colour": "red"}});
    let denied = stage.create_in(&format!("{}?fieldManager=lesson", stage.configmaps), &web).await;
    let denied = denied.err().ok_or("the ConfigMap was not denied")?;
    webhook.show().await?;
    say!("  {}", denied.to_string().split_once(": ").unwrap_or_default().1);
    ensure!(denied.downcast_ref().is_some_and(Error::is_forbidden), "the error is no 403");
    let (pages, namespace) = (webhook.convert_pages(stage).await?, stage.namespace.replace("/api/v1/", ""));
    let page = json!({"apiVersion": format!("{}/v1", &pages["/apis/".len()..]), "kind": "Page", "metadata": {"name": "a"}, "spec": {"size": 3}});
    stage.create_in(&format!("{pages}/v1/{namespace}/pages?fieldManager=lesson"), &page).await?;
    webhook.show().await?;
    let page = stage.get(&format!("{pages}/v2/{namespace}/pages/a")).await?;
    say!("  as v2: {}", page["spec"]);
    ensure!(page["spec"] == json!({"length": 3}), "not converted: {page}");
    Ok(())
}
