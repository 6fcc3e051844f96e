//! What the server serves and stores, for programs that look at it without requests.

use std::{fmt, sync::Arc};

use serde_json::Value;

use crate::{ApiServer, kinds::Kind, storage::Place};

/// A kind of objects that a server serves, in one version.
#[derive(Clone)]
pub struct Resource(Arc<Kind>);

impl Resource {
    /// `deployments.apps`, as in a [`WriteRecord`](crate::WriteRecord).
    #[must_use]
    pub fn name(&self) -> String {
        self.0.stored_in()
    }

    /// `Deployment`
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// Whether the objects are in namespaces.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.0.namespaced
    }

    /// Whether a CRD defines the kind.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.0.is_custom()
    }

    /// `/apis/apps/v1/namespaces/default/deployments/web`; with an empty name the path of the collection, and of all namespaces without one.
    #[must_use]
    pub fn path(&self, namespace: Option<&str>, name: &str) -> String {
        let mut path = if self.0.group.is_empty() { "/api/".to_owned() } else { "/apis/".to_owned() };
        path += &self.0.api_version();
        if let Some(namespace) = namespace.filter(|_| self.is_namespaced()) {
            path += &format!("/namespaces/{namespace}");
        }
        path += &format!("/{}", self.0.plural);
        if name.is_empty() { path } else { format!("{path}/{name}") }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resource").field(&self.path(None, "")).finish()
    }
}

impl ApiServer {
    /// The resource of objects with this `apiVersion` and `kind`.
    #[must_use]
    pub fn resource_of(&self, object: &Value) -> Option<Resource> {
        let (version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        let storage = self.server.storage();
        let found = storage.kinds.by_kind(version, kind).filter(|one| one.api_version() == version);
        found.map(|kind| Resource(Arc::clone(kind)))
    }

    /// The resource with a [name](Resource::name), in one of its versions.
    #[must_use]
    pub fn resource(&self, name: &str) -> Option<Resource> {
        self.server.storage().kinds.of_collection(name).map(|kind| Resource(Arc::clone(kind)))
    }

    /// An object, by the name of its resource and its key: `default/web`, or `web` without a namespace.
    #[must_use]
    pub fn object(&self, resource: &str, key: &str) -> Option<Arc<Value>> {
        let place = Place { collection: resource.to_owned(), key: key.to_owned() };
        self.server.storage().get(&place).cloned()
    }
}
