//! What a test does to a cluster: our own client with an administrator's token, by short names.
//!
//! `deployments/mws-web` is an object of the test's namespace; [`Hands::raw`] takes whole paths.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt::Display,
    time::{Duration, Instant},
};

use http::Method;
use listwatch::client::{Client, Error, Request};
use serde_json::{Value, json};

use crate::plane::PATIENCE;

/// The hands of one test, in one namespace.
#[derive(Clone)]
pub struct Hands {
    pub client: Client,
    pub namespace: String,
}

/// Asks until there is an answer. Panics when it does not come in time, and says what came instead.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    within(PATIENCE, what, ask).await
}

/// The same with a time of its own.
pub async fn within<T>(limit: Duration, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            if begun.elapsed() >= limit {
                let seen: Vec<_> = SEEN.with(|seen| seen.borrow().iter().cloned().collect());
                let seen = if seen.is_empty() { "nothing".to_owned() } else { seen.join("\n  ") };
                panic!("waited {limit:?} for {what}; last seen:\n  {seen}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    SEEN.scope(RefCell::default(), asking).await
}

tokio::task_local! {
    /// What was asked for last, and what the answers were: for a wait that is in vain.
    static SEEN: RefCell<VecDeque<String>>;
}

/// Different answers that a wait in vain shows.
const SEEN_MAX: usize = 4;
/// Bytes that it shows of each.
const SEEN_BYTES_MAX: usize = 1500;

/// Notes an answer, in case that it is not the one waited for.
pub fn saw(what: &str, answer: impl Display) {
    // Whoever does not wait need not know.
    let _ = SEEN.try_with(|seen| {
        let mut text = format!("{what}: {answer}");
        text.truncate(text.floor_char_boundary(SEEN_BYTES_MAX));
        let mut seen = seen.borrow_mut();
        let label = format!("{what}: ");
        seen.retain(|other| !other.starts_with(&label));
        seen.push_back(text);
        if seen.len() > SEEN_MAX {
            seen.pop_front();
        }
    });
}

/// An object without what nobody reads.
fn shown(text: &str) -> String {
    let Ok(mut object) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object.to_string()
}

impl Hands {
    pub fn new(client: Client) -> Hands {
        Hands { client, namespace: "default".to_owned() }
    }

    /// The path of `deployments/mws-web`, `deployments` or `mywebservers/web/status`.
    pub fn path(&self, what: &str) -> String {
        let resource = what.split(['/', '?']).next().unwrap();
        let api = match resource {
            "deployments" | "replicasets" => "apis/apps/v1",
            "mywebservers" => "apis/k8sobjects.gsa.com/v2",
            "events" => "apis/events.k8s.io/v1",
            "rolebindings" | "roles" => "apis/rbac.authorization.k8s.io/v1",
            "leases" => "apis/coordination.k8s.io/v1",
            "services" | "configmaps" | "secrets" | "serviceaccounts" | "resourcequotas" | "pods" => "api/v1",
            other => panic!("{other}: no path is known"),
        };
        format!("/{api}/namespaces/{}/{what}", self.namespace)
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &Value,
    ) -> Result<Value, Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let what = format!("{method} {path}");
        let answer = self.client.send(Request::get(path).sends(method, content_type, body)).await;
        let answer = answer.inspect_err(|error| saw(&what, error))?;
        saw(&what, answer.status);
        Ok(serde_json::from_slice(&answer.body).unwrap())
    }

    /// The text of an answer.
    pub async fn raw(&self, path: &str) -> Result<String, Error> {
        let what = format!("GET {path}");
        let answer = self.client.send(Request::get(path)).await.inspect_err(|error| saw(&what, error))?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        saw(&what, shown(&text));
        Ok(text)
    }

    /// An object, if it is there.
    pub async fn find(&self, what: &str) -> Option<Value> {
        match self.raw(&self.path(what)).await {
            Ok(text) => Some(serde_json::from_str(&text).unwrap()),
            Err(error) if error.code() == Some(404) => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn get(&self, what: &str) -> Value {
        self.find(what).await.unwrap_or_else(|| panic!("{what} is not there"))
    }

    /// Creates an object, or says why not.
    pub async fn try_create(&self, path: &str, object: &Value) -> Result<Value, Error> {
        self.send(Method::POST, path, "application/json", object).await
    }

    pub async fn create(&self, resource: &str, object: &Value) -> Value {
        self.try_create(&self.path(resource), object).await.unwrap()
    }

    /// A MyWebserver, in version v2.
    pub async fn create_web(&self, name: &str, spec: Value) -> Value {
        self.create("mywebservers", &web(name, spec)).await
    }

    /// A merge patch.
    pub async fn patch(&self, what: &str, patch: Value) -> Value {
        self.send(Method::PATCH, &self.path(what), "application/merge-patch+json", &patch).await.unwrap()
    }

    /// A JSON patch.
    pub async fn edit(&self, what: &str, operations: Value) -> Value {
        self.send(Method::PATCH, &self.path(what), "application/json-patch+json", &operations).await.unwrap()
    }

    pub async fn delete(&self, what: &str) {
        self.delete_how(what, json!(null)).await;
    }

    /// `how` is DeleteOptions, such as `{"propagationPolicy": "Orphan"}`.
    pub async fn delete_how(&self, what: &str, how: Value) {
        self.send(Method::DELETE, &self.path(what), "application/json", &how).await.unwrap();
    }

    /// Waits until an object is as it should be, and returns it.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{what} to be as it should"), async || self.find(what).await.filter(&is_so)).await
    }

    pub async fn until_gone(&self, what: &str) {
        eventually(&format!("{what} to go"), async || self.find(what).await.is_none().then_some(())).await;
    }

    /// Waits for a condition of a MyWebserver: `Ready=False`, and its reason.
    pub async fn until_condition(&self, web: &str, name: &str, status: &str, reason: &str) -> Value {
        let what = format!("mywebservers/{web} to be {name}={status} because of {reason}");
        eventually(&what, async || {
            let web = self.find(&format!("mywebservers/{web}")).await?;
            let condition = condition(&web, name)?.clone();
            (condition["status"] == status && condition["reason"] == reason).then_some(condition)
        })
        .await
    }

    /// Creates what has no namespace or names its own, and waits until a CRD is served.
    pub async fn install(&self, object: &Value) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let path = match object["kind"].as_str().unwrap() {
            "CustomResourceDefinition" => {
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned()
            }
            "Namespace" => "/api/v1/namespaces".to_owned(),
            "ServiceAccount" => format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            kind @ ("ClusterRole" | "ClusterRoleBinding") => {
                format!("/apis/rbac.authorization.k8s.io/v1/{}s", kind.to_lowercase())
            }
            kind => panic!("{kind}: no path is known"),
        };
        self.try_create(&path, object).await.unwrap();
        if object["kind"] == "CustomResourceDefinition" {
            eventually("the CRD to be served", async || {
                let [v1, v2] = ["v1", "v2"].map(|v| format!("/apis/k8sobjects.gsa.com/{v}/mywebservers"));
                self.raw(&v1).await.ok()?;
                self.raw(&v2).await.ok()
            })
            .await;
        }
    }
}

/// A MyWebserver, in version v2.
pub fn web(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "metadata": {"name": name}, "spec": spec})
}

pub fn condition<'a>(web: &'a Value, name: &str) -> Option<&'a Value> {
    web["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It said what was waited for, and nothing of what was there.
    #[tokio::test]
    #[should_panic(expected = "waited 0ns for a pod; last seen:\n  GET /pods: 404 NotFound")]
    async fn a_wait_in_vain_says_what_was_seen_last() {
        within(Duration::ZERO, "a pod", async || {
            saw("GET /pods", "500");
            saw("GET /pods", "404 NotFound");
            None::<()>
        })
        .await;
    }
}
