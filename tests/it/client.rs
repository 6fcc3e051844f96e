//! Sends the requests of a user in tests: the client of `listwatch` with an administrator's token, and short paths.
//!
//! `deployments/mws-web` is an object in the namespace of the test; [`UserClient::raw`] takes a whole path.

use http::Method;
use listwatch::client::{Client, Config, Error, Request};
use listwatch_apiserver::{ApiServer, Options};
use listwatch_control_plane::{PATIENCE, eventually, saw};
use serde_json::{Value, json};

/// An administrator's client of an embedded server.
pub fn admin(server: &ApiServer) -> Client {
    patient(&server.url(), server.ca_pem(), server.token())
}

/// A client of a test, which waits for an answer as long as the test waits for anything: the machine may be busy.
pub fn patient(url: &str, ca_pem: &str, token: &str) -> Client {
    let config = Config::new(url, ca_pem.as_bytes(), token).unwrap();
    Client::new(config.with_request_timeout(PATIENCE)).unwrap()
}

/// An embedded server without controllers, and an administrator's client.
pub async fn server() -> (ApiServer, UserClient) {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let user = UserClient::new(admin(&server));
    (server, user)
}

/// A client with the token of an administrator, for one namespace.
#[derive(Clone)]
pub struct UserClient {
    pub client: Client,
    pub namespace: String,
}

/// An object without `managedFields`, which are only noise in the message of a failure.
fn shown(text: &str) -> String {
    let Ok(mut object) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object.to_string()
}

impl UserClient {
    pub fn new(client: Client) -> UserClient {
        UserClient { client, namespace: "default".to_owned() }
    }

    /// The path of `deployments/mws-web`, `deployments` or `mywebservers/web/status`.
    pub fn path(&self, what: &str) -> String {
        let resource = what.split(['/', '?']).next().unwrap();
        let api = match resource {
            "deployments" | "replicasets" | "statefulsets" => "apis/apps/v1",
            "mywebservers" => "apis/k8sobjects.gsa.com/v2",
            "copyrators" => "apis/flant.com/v1",
            "memcacheds" => "apis/cache.example.com/v1alpha1",
            "databases" => "apis/app.example.com/v1",
            "events" => "apis/events.k8s.io/v1",
            "rolebindings" | "roles" => "apis/rbac.authorization.k8s.io/v1",
            "poddisruptionbudgets" => "apis/policy/v1",
            "cronjobs" | "jobs" => "apis/batch/v1",
            "leases" => "apis/coordination.k8s.io/v1",
            "services"
            | "configmaps"
            | "secrets"
            | "serviceaccounts"
            | "resourcequotas"
            | "pods"
            | "persistentvolumeclaims" => "api/v1",
            unknown => panic!("{unknown}: unknown resource"),
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

    /// GETs a path, and returns the body of the answer.
    pub async fn raw(&self, path: &str) -> Result<String, Error> {
        let what = format!("GET {path}");
        let answer = self.client.send(Request::get(path)).await.inspect_err(|error| saw(&what, error))?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        saw(&what, shown(&text));
        Ok(text)
    }

    /// GETs an object. `None` after a 404.
    pub async fn find(&self, what: &str) -> Option<Value> {
        match self.raw(&self.path(what)).await {
            Ok(text) => Some(serde_json::from_str(&text).unwrap()),
            Err(error) if error.code() == Some(404) => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn get(&self, what: &str) -> Value {
        self.find(what).await.unwrap_or_else(|| panic!("{what} does not exist"))
    }

    /// Creates an object, or returns the error.
    pub async fn try_create(&self, path: &str, object: &Value) -> Result<Value, Error> {
        self.send(Method::POST, path, "application/json", object).await
    }

    /// Creates an object. On a busy machine, etcd may not say in time whether it did.
    pub async fn create(&self, resource: &str, object: &Value) -> Value {
        let mut is_unknown = false;
        loop {
            match self.try_create(&self.path(resource), object).await {
                Ok(created) => return created,
                Err(error) if error.to_string().contains("etcdserver: request timed out") => {
                    is_unknown = true;
                }
                Err(error) if is_unknown && error.is_already_exists() => {
                    return self
                        .get(&format!("{resource}/{}", object["metadata"]["name"].as_str().unwrap()))
                        .await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A MyWebserver, in version v2.
    pub async fn create_web(&self, name: &str, spec: Value) -> Value {
        self.create("mywebservers", &web(name, spec)).await
    }

    /// A Service with one port and no selector.
    pub async fn create_service(&self, name: &str) -> Value {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 7}]}});
        self.create("services", &service).await
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
        self.delete_with(what, json!(null)).await;
    }

    /// Deletes an object with DeleteOptions, such as `{"propagationPolicy": "Orphan"}`.
    pub async fn delete_with(&self, what: &str, options: Value) {
        self.send(Method::DELETE, &self.path(what), "application/json", &options).await.unwrap();
    }

    /// Waits until an object satisfies `is_so`, and returns it.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{what} to change as expected"), async || self.find(what).await.filter(&is_so))
            .await
    }

    pub async fn until_gone(&self, what: &str) {
        eventually(&format!("{what} to be deleted"), async || self.find(what).await.is_none().then_some(()))
            .await;
    }

    /// Waits until a condition of a MyWebserver, such as `Ready`, has this status and reason. Returns its message.
    pub async fn until_condition(&self, web: &str, name: &str, status: &str, reason: &str) -> String {
        let what = format!("mywebservers/{web} to be {name}={status} because of {reason}");
        eventually(&what, async || {
            let web = self.find(&format!("mywebservers/{web}")).await?;
            let condition = condition(&web, name)?;
            let message = condition["message"].as_str().unwrap_or_default();
            (condition["status"] == status && condition["reason"] == reason).then(|| message.to_owned())
        })
        .await
    }

    /// Creates an object that is cluster-scoped or names its namespace. Waits until a CRD is served.
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
            kind => panic!("{kind}: unknown kind"),
        };
        self.try_create(&path, object).await.unwrap();
        if object["kind"] == "CustomResourceDefinition" {
            let (group, plural) = (&object["spec"]["group"], &object["spec"]["names"]["plural"]);
            for version in object["spec"]["versions"].as_array().unwrap() {
                let [group, version, plural] =
                    [group, &version["name"], plural].map(|name| name.as_str().unwrap());
                let path = format!("/apis/{group}/{version}/{plural}");
                eventually("the CRD to be served", async || self.raw(&path).await.ok()).await;
            }
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
