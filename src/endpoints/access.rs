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

use hyper::{
    Request, StatusCode,
    header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE},
};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tracing::warn;

use super::{HttpAnswer, TEXT, answer};
use crate::{
    client::{self, Client},
    locked,
};

/// How long an answer counts: a minute after a yes, as in controller-runtime; less after a no, so that a new permission counts soon.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Most answers that are kept.
const KNOWN_MAX: usize = 100;
/// Questions to the API server at a time.
const REVIEWS_MAX: usize = 4;
/// How long the API server may take for both answers. Prometheus gives up after 10 s.
const REVIEW_LIMIT: Duration = Duration::from_secs(8);
/// Longest token. A service account's token has some 1,000 bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Asks who may GET a path.
pub(super) struct Access {
    client: Client,
    /// By the hashes of tokens and paths.
    known: Mutex<HashMap<Vec<u8>, (Grant, Instant)>>,
    /// Reviews at a time: even clients without a valid token cause them.
    reviews: Semaphore,
    /// The last problem, so that each is one warning.
    problem: Mutex<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Grant {
    Allowed,
    Unauthenticated,
    Forbidden,
}

impl Access {
    pub(super) fn new(client: Client) -> Access {
        Access {
            client,
            known: Mutex::default(),
            reviews: Semaphore::new(REVIEWS_MAX),
            problem: Mutex::default(),
        }
    }

    /// Whether the sender of a request may have the answer. If not: the answer that says so.
    pub(super) async fn check<B>(&self, request: &Request<B>) -> Result<(), HttpAnswer> {
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.split_once(' '));
        let token =
            token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        let token = token.filter(|token| !token.is_empty() && token.len() <= TOKEN_BYTES_MAX);
        let (verb, path) = (request.method().as_str().to_lowercase(), request.uri().path());
        let permission = match token {
            Some(token) => self.permission(token, &verb, path).await,
            None => Ok(Grant::Unauthenticated),
        };
        let (status, text) = match permission {
            Ok(Grant::Allowed) => return Ok(()),
            Ok(Grant::Unauthenticated) => (
                StatusCode::UNAUTHORIZED,
                "needs a token of this cluster: Authorization: Bearer …\n".to_owned(),
            ),
            Ok(Grant::Forbidden) => {
                (StatusCode::FORBIDDEN, format!("needs the verb {verb} for the nonResourceURL {path}\n"))
            }
            Err(error) => {
                let mut last = locked(&self.problem);
                if *last != error {
                    warn!(error, "cannot check who asks for the metrics");
                }
                *last = error;
                let text = "cannot ask the API server whether this token has the permission\n";
                (StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
            }
        };
        let mut refusal = answer(status, TEXT, text);
        if status == StatusCode::UNAUTHORIZED {
            refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Err(refusal)
    }

    async fn permission(&self, token: &str, verb: &str, path: &str) -> Result<Grant, String> {
        let question = digest(&SHA256, format!("{verb} {path}\n{token}").as_bytes()).as_ref().to_vec();
        if let Some((permission, until)) = locked(&self.known).get(&question)
            && Instant::now() < *until
        {
            return Ok(*permission);
        }
        let ask = async {
            let _permit = self.reviews.acquire().await;
            self.ask(token, verb, path).await.map_err(|error| error.to_string())
        };
        let permission = timeout(REVIEW_LIMIT, ask)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", REVIEW_LIMIT.as_secs())))?;
        let time = if permission == Grant::Allowed { ALLOWED_FOR } else { REFUSED_FOR };
        let now = Instant::now();
        let mut known = locked(&self.known);
        if known.len() >= KNOWN_MAX {
            // Refused tokens cost nothing to their sender.
            known.retain(|_, (permission, until)| *permission == Grant::Allowed && now < *until);
        }
        if known.len() < KNOWN_MAX {
            known.insert(question, (permission, now + time));
        }
        Ok(permission)
    }

    async fn ask(&self, token: &str, verb: &str, path: &str) -> Result<Grant, client::Error> {
        let review = self.create("authentication", "TokenReview", json!({"token": token})).await?;
        if review["authenticated"] != true {
            return Ok(Grant::Unauthenticated);
        }
        let user = &review["user"];
        let spec = json!({
            "user": user["username"], "uid": user["uid"], "groups": user["groups"], "extra": user["extra"],
            "nonResourceAttributes": {"path": path, "verb": verb},
        });
        let review = self.create("authorization", "SubjectAccessReview", spec).await?;
        Ok(if review["allowed"] == true { Grant::Allowed } else { Grant::Forbidden })
    }

    /// The status of a review.
    async fn create(&self, group: &str, kind: &str, spec: Value) -> Result<Value, client::Error> {
        let api_version = format!("{group}.k8s.io/v1");
        let path = format!("/apis/{api_version}/{}s", kind.to_lowercase());
        let body = json!({"apiVersion": api_version, "kind": kind, "spec": spec});
        let answer = self.client.send(client::Request::post(&*path, &body)).await?;
        let mut review: Value = serde_json::from_slice(&answer.body)
            .map_err(|error| client::Error::new("create", path, error.to_string()))?;
        Ok(review["status"].take())
    }
}
