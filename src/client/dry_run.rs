//! Turns writes into dry runs, and notes them: for [`Runtime::plan`](crate::runtime::Runtime::plan).
//!
//! ```text
//!   PATCH …/deployments/web               becomes  GET …/deployments/web, then PATCH …/deployments/web?dryRun=All
//!   DELETE …/deployments/web, {…}         becomes  the same, with {…, "dryRun": ["All"]}
//! ```
//!
//! See <https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run>: the answer is the same as to a real write, after
//! defaults, validation and admission, but nothing is stored.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex},
};

use ::http::{HeaderMap, Method};
use listwatch_install::plan::PlannedWrite;
use serde_json::{Value, json};

use super::{Answer, JSON, OBJECT_BYTES_MAX, Request, error::Cause, http::Transport};
use crate::{locked, resource::from_json};

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

    /// Whether this error comes from a refused write. The first `after` writes do not count.
    pub(crate) fn has_noted(&self, after: usize, error: &str) -> bool {
        let writes = locked(&self.writes);
        let mut refused = writes.iter().skip(after).filter_map(|write| write.refused.as_deref());
        refused.any(|why| error.contains(why))
    }

    /// From now on, the object at this path is this one. Returns whether there was none before.
    pub(crate) fn assume(&self, path: &str, object: &Value) -> bool {
        locked(&self.assumed).insert(path.to_owned(), object.clone()).is_none()
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
        let is_dry = request.method != Method::DELETE
            && request.query.iter().any(|(name, value)| *name == "dryRun" && value == "All");
        if request.method == Method::GET || is_dry {
            return transport.call(request, bytes_max).await;
        }
        if has_no_dry_run(path) {
            return Err(Cause::Other("it has no dry run, so it is not planned".to_owned()));
        }
        let path_of_write = path_of(request);
        if request.method == Method::POST && self.is_deleted(&path_of_write) {
            return self.create_again(transport, request, path_of_write).await;
        }
        let before = if request.method == Method::POST {
            None
        } else {
            // Without the permission to read it, all of the planned object is shown.
            let live = transport.call(&Request::get(path), OBJECT_BYTES_MAX).await;
            live.ok().as_ref().and_then(whole)
        };
        let mut write = PlannedWrite { path: path_of_write, before, after: None, refused: None };
        let answer = match transport.call(&dry(request), OBJECT_BYTES_MAX).await {
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
        let mut writes = locked(&self.writes);
        // The caller has found another way.
        writes.retain(|earlier| earlier.path != write.path || earlier.refused.is_none());
        writes.push(write);
        Ok(answer)
    }

    fn is_deleted(&self, path: &str) -> bool {
        locked(&self.writes).iter().any(|write| write.path == path && is_deletion(write))
    }

    /// Tries to create an object whose name is taken until a planned deletion: under another name.
    async fn create_again(
        &self,
        transport: &Arc<Transport>,
        request: &Request,
        path: String,
    ) -> Result<Answer, Cause> {
        let mut body: Value = from_json(&request.body).unwrap_or_default();
        let name = body["metadata"]["name"].take();
        body["metadata"]["generateName"] = format!("{}-", name.as_str().unwrap_or_default()).into();
        let again = Request { body: body.to_string().into(), ..request.clone() };
        let answer = transport.call(&dry(&again), OBJECT_BYTES_MAX).await?;
        let mut object = whole(&answer).unwrap_or_default();
        named(&mut object, name);
        let mut writes = locked(&self.writes);
        if let Some(write) = writes.iter_mut().find(|write| write.path == path && is_deletion(write)) {
            write.after = Some(object.clone());
        }
        Ok(answer_of(&object))
    }
}

fn is_deletion(write: &PlannedWrite) -> bool {
    write.after.is_none() && write.refused.is_none()
}

/// Gives an object that was tried with a generated name its own.
pub(super) fn named(object: &mut Value, name: Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("generateName");
        metadata.insert("name".to_owned(), name);
        // Nothing is stored, so it has no version.
        metadata.insert("resourceVersion".to_owned(), "".into());
    }
}

/// Whether a request to this path reaches a process, and writes no object: `exec` of a Pod, `proxy` of a Service.
fn has_no_dry_run(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(3).collect();
    let part = match parts[..] {
        ["namespaces", _, "pods" | "services", _, part, ..] | ["nodes", _, part, ..] => part,
        _ => return false,
    };
    path.starts_with("/api/v1/") && ["exec", "attach", "portforward", "proxy"].contains(&part)
}

/// The write, as a dry run that answers with the whole object.
fn dry(request: &Request) -> Request {
    let mut dry = request.clone();
    dry.accept = JSON.into();
    match (&request.method, from_json::<Value>(&request.body)) {
        // With a body, the API server does not look at the query: `DeleteResource` in k8s.io/apiserver/pkg/endpoints/handlers.
        (&Method::DELETE, Ok(mut options)) if options.is_object() => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_to_a_process_have_no_dry_run() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/b/exec", true),
            ("/api/v1/namespaces/a/services/b/proxy/any/path", true),
            ("/api/v1/nodes/a/proxy", true),
            ("/api/v1/namespaces/a/pods/exec", false),
            ("/api/v1/namespaces/proxy/services", false),
            ("/apis/apps/v1/namespaces/exec/deployments/proxy", false),
        ] {
            assert_eq!(has_no_dry_run(path), expected, "{path}");
        }
    }
}
