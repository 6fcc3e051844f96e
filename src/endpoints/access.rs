//! Who may scrape: the API server says whose token it is, and whether that user may GET the path.
//!
//! ```text
//! Authorization: Bearer eyJhbGciOi…
//!   POST /apis/authentication.k8s.io/v1/tokenreviews           ─► system:serviceaccount:monitoring:prometheus
//!   POST /apis/authorization.k8s.io/v1/subjectaccessreviews    ─► {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}: allowed
//! ```
//!
//! The operator needs `create` for both. A scraper needs `get` for the nonResourceURL `/metrics`.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use hyper::{Method, Request, StatusCode, header::AUTHORIZATION};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::{HttpAnswer, TEXT, answer};
use crate::{
    client::{self, Client},
    locked,
};

/// How long an answer counts: a minute after a yes, as in controller-runtime; less after a no, so that a new permission counts soon.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Most answers that are kept. When there are more, all are forgotten.
const KNOWN_MAX: usize = 100;
/// Longest token. That of a service account has some 1,000 bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Asks who may GET a path.
pub(super) struct Access {
    client: Client,
    /// By the hashes of tokens and paths.
    known: Mutex<HashMap<Vec<u8>, (Permission, Instant)>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Permission {
    Allowed,
    Unauthenticated,
    Forbidden,
}

impl Access {
    pub(super) fn new(client: Client) -> Access {
        Access { client, known: Mutex::default() }
    }

    /// Whether the sender of a request may have the answer. If not: the answer that says so.
    pub(super) async fn check<B>(&self, request: &Request<B>) -> Result<(), HttpAnswer> {
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        let token = token.filter(|token| !token.is_empty() && token.len() <= TOKEN_BYTES_MAX);
        let (verb, path) = (request.method().as_str().to_lowercase(), request.uri().path());
        let verdict = match token {
            Some(token) => self.verdict(token, &verb, path).await,
            None => Ok(Permission::Unauthenticated),
        };
        let (status, text) = match verdict {
            Ok(Permission::Allowed) => return Ok(()),
            Ok(Permission::Unauthenticated) => (
                StatusCode::UNAUTHORIZED,
                "a token of this cluster is needed: Authorization: Bearer …\n".to_owned(),
            ),
            Ok(Permission::Forbidden) => {
                (StatusCode::FORBIDDEN, format!("needs the verb {verb} for the nonResourceURL {path}\n"))
            }
            Err(error) => {
                warn!(%error, "cannot check who asks for the metrics");
                (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the API server cannot be asked who may do this\n".to_owned(),
                )
            }
        };
        Err(answer(status, TEXT, text))
    }

    async fn verdict(&self, token: &str, verb: &str, path: &str) -> Result<Permission, client::Error> {
        let question = digest(&SHA256, format!("{verb} {path}\n{token}").as_bytes()).as_ref().to_vec();
        if let Some((verdict, until)) = locked(&self.known).get(&question)
            && Instant::now() < *until
        {
            return Ok(*verdict);
        }
        let verdict = self.ask(token, verb, path).await?;
        let time = if verdict == Permission::Allowed { ALLOWED_FOR } else { REFUSED_FOR };
        let mut known = locked(&self.known);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(question, (verdict, Instant::now() + time));
        Ok(verdict)
    }

    async fn ask(&self, token: &str, verb: &str, path: &str) -> Result<Permission, client::Error> {
        let review = self.create("authentication", "TokenReview", json!({"token": token})).await?;
        if review["authenticated"] != true {
            return Ok(Permission::Unauthenticated);
        }
        let user = &review["user"];
        let spec = json!({
            "user": user["username"], "uid": user["uid"], "groups": user["groups"], "extra": user["extra"],
            "nonResourceAttributes": {"path": path, "verb": verb},
        });
        let review = self.create("authorization", "SubjectAccessReview", spec).await?;
        Ok(if review["allowed"] == true { Permission::Allowed } else { Permission::Forbidden })
    }

    /// The status of a review.
    async fn create(&self, group: &str, kind: &str, spec: Value) -> Result<Value, client::Error> {
        let api_version = format!("{group}.k8s.io/v1");
        let path = format!("/apis/{api_version}/{}s", kind.to_lowercase());
        let body = json!({"apiVersion": api_version, "kind": kind, "spec": spec}).to_string().into_bytes();
        let request = client::Request::get(&*path).sends(Method::POST, "application/json", body);
        let answer = self.client.send(request).await?;
        let mut review: Value = serde_json::from_slice(&answer.body)
            .map_err(|error| client::Error::new("create", path, error.to_string()))?;
        Ok(review["status"].take())
    }
}
