//! Turns writes into dry runs, and notes them: for [`Runtime::plan`](crate::runtime::Runtime::plan).
//!
//! ```text
//!   PATCH …/deployments/web               becomes  GET …/deployments/web, then PATCH …/deployments/web?dryRun=All
//!   DELETE …/deployments/web, {…}         becomes  the same, with {…, "dryRun": ["All"]}
//! ```
//!
//! See <https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run>: the answer is that of a real write, after defaults, validation and
//! admission, and nothing is stored.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex},
};

use ::http::{HeaderMap, Method};
use serde_json::{Value, json};

use super::{Answer, JSON, OBJECT_BYTES_MAX, Request, error::Cause, http::Transport};
use crate::{locked, resource::from_json};

/// What a write would do with an object.
#[derive(Clone, Debug)]
pub struct PlannedWrite {
    /// The path of the object, with the subresource: `/apis/apps/v1/namespaces/default/deployments/web`.
    pub path: String,
    /// The object now. `None`: there is none.
    pub before: Option<Value>,
    /// The object afterwards. `None`: it is deleted. If an object is deleted only to be created again, the new one.
    pub after: Option<Value>,
    /// Why the API server refuses the write.
    pub refused: Option<String>,
}

/// The writes of a client that only tries them.
#[derive(Default)]
pub(crate) struct DryRun {
    writes: Mutex<Vec<PlannedWrite>>,
    /// Objects as they would be, by path: they are read so, and writes to them are not tried.
    assumed: Mutex<BTreeMap<String, Value>>,
    /// What [`Client::create_dry_run`](super::Client::create_dry_run) has tried, by the path of the object with that name.
    replacements: Mutex<BTreeMap<String, Value>>,
}

impl DryRun {
    /// How many writes there are so far.
    pub(crate) fn count(&self) -> usize {
        locked(&self.writes).len()
    }

    /// Forgets the writes after the first ones.
    pub(crate) fn go_back_to(&self, count: usize) {
        locked(&self.writes).truncate(count);
    }

    /// The writes so far, in their order.
    pub(crate) fn take(&self) -> Vec<PlannedWrite> {
        mem::take(&mut locked(&self.writes))
    }

    /// Whether this error is that of a refused write.
    pub(crate) fn has_noted(&self, error: &str) -> bool {
        locked(&self.writes)
            .iter()
            .filter_map(|write| write.refused.as_deref())
            .any(|why| error.contains(why))
    }

    /// From now on, the object at this path is this one.
    pub(crate) fn assume(&self, path: &str, object: &Value) {
        locked(&self.assumed).insert(path.to_owned(), object.clone());
    }

    /// An object that exists would be replaced by this one.
    pub(super) fn replaces(&self, path: String, object: &Value) {
        locked(&self.replacements).insert(path, object.clone());
    }

    /// Sends a read as it is, and a write as a dry run.
    pub(super) async fn call(
        &self,
        transport: &Arc<Transport>,
        request: &Request,
        bytes_max: usize,
    ) -> Result<Answer, Cause> {
        let path = request.path.strip_suffix("/status").unwrap_or(&request.path);
        if let Some(object) = locked(&self.assumed).get(path) {
            return Ok(answer_of(object));
        }
        let is_dry = request.query.iter().any(|(name, _)| *name == "dryRun");
        if request.method == Method::GET || is_dry {
            return transport.call(request, bytes_max).await;
        }
        let before = match request.method == Method::POST {
            true => None,
            false => whole(&transport.call(&Request::get(path), OBJECT_BYTES_MAX).await?),
        };
        let answer = transport.call(&dry(request), OBJECT_BYTES_MAX).await;
        let mut write = PlannedWrite { path: path_of(request), before, after: None, refused: None };
        let answer = match answer {
            Ok(answer) if request.method == Method::DELETE => {
                write.after = locked(&self.replacements).remove(path);
                answer
            }
            Ok(answer) => {
                let mut object = whole(&answer).unwrap_or_default();
                if request.method == Method::POST {
                    // Nothing is stored, so it has no version.
                    object["metadata"]["resourceVersion"] = "".into();
                }
                let answer = answer_of(&object);
                write.after = Some(object);
                answer
            }
            Err(cause) => {
                // 409: the object has changed meanwhile, or exists. The caller reads it, and may try something else.
                if cause.status().is_some_and(|status| status.code < 500 && status.code != 409) {
                    write.after = write.before.clone();
                    write.refused = Some(cause.to_string());
                    locked(&self.writes).push(write);
                }
                return Err(cause);
            }
        };
        locked(&self.writes).push(write);
        Ok(answer)
    }
}

/// The write, as a dry run that answers with the whole object.
fn dry(request: &Request) -> Request {
    let mut dry = request.clone();
    dry.accept = JSON.into();
    match (&request.method, from_json::<Value>(&request.body)) {
        // With a body, the API server does not look at the query: `DeleteResource` in k8s.io/apiserver/pkg/endpoints/handlers.
        (&Method::DELETE, Ok(mut options)) => {
            options["dryRun"] = json!(["All"]);
            dry.body = options.to_string().into();
        }
        _ => dry.query.push(("dryRun", "All".into())),
    }
    dry
}

/// The path of the object that a request writes.
fn path_of(request: &Request) -> String {
    if request.method != Method::POST {
        return request.path.clone();
    }
    let object: Value = from_json(&request.body).unwrap_or_default();
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}{}", request.path, text("name"), text("generateName"))
}

fn whole(answer: &Answer) -> Option<Value> {
    from_json(&answer.body).ok()
}

fn answer_of(object: &Value) -> Answer {
    Answer { status: 200, headers: HeaderMap::new(), body: object.to_string().into() }
}
