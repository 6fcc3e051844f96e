//! Writes that follow policies and ask webhooks: each is attempted again when another webhook has answered.

use http::Method;
use serde_json::{Value, json};

use crate::{
    admission::{Admission, policies, webhooks},
    conversions,
    http::response::Answer,
    request::{Request, ResourcePath},
    state::Server,
    status::StatusError,
};

/// Attempts a write until it needs no further answers of webhooks.
pub(crate) async fn admitted(
    server: &Server,
    request: &Request,
    path: &ResourcePath,
    mut attempt: impl FnMut(Option<&mut Admission>) -> Result<Answer, StatusError>,
) -> Result<Answer, StatusError> {
    let admission = {
        let storage = server.storage();
        let is_needed = conversions::forget(&storage, path)
            || webhooks::are_configured(&storage)
            || policies::are_bound(&storage);
        let new = |options| {
            let user = server.subject(&storage, request);
            let permissions = server.permissions(&storage);
            Admission::new(&storage, user, permissions, path, options, server.webhook_port)
        };
        is_needed.then(|| options(request).map(new)).transpose()?
    };
    let Some(mut admission) = admission else { return attempt(None) };
    loop {
        let answer = attempt(Some(&mut admission));
        if !conversions::learn(server).await && !admission.learn().await {
            let mut answer = answer.unwrap_or_else(Answer::refused);
            answer.warnings.append(&mut admission.warnings);
            return Ok(answer);
        }
    }
}

/// The options of a write, without their kind, as webhooks see them.
fn options(request: &Request) -> Result<Value, StatusError> {
    let query = &request.query;
    let dry_run = query.get("dryRun").map(|_| ["All"]);
    let mut options = match request.method {
        Method::DELETE if !request.body.is_empty() => request.object("DeleteOptions", "DeleteOptions")?,
        Method::DELETE => json!({
            "propagationPolicy": query.get("propagationPolicy"),
            "gracePeriodSeconds": query.number("gracePeriodSeconds")?,
            "orphanDependents": query.flag("orphanDependents"),
            "dryRun": dry_run,
        }),
        _ => json!({
            "fieldManager": query.get("fieldManager"),
            "fieldValidation": query.get("fieldValidation"),
            "dryRun": dry_run,
        }),
    };
    options["apiVersion"] = "meta.k8s.io/v1".into();
    if let Some(options) = options.as_object_mut() {
        options.retain(|_, value| !value.is_null());
    }
    Ok(options)
}
