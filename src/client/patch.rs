//! Changes objects: `PATCH …/deployments/web` with `[{"op": "replace", "path": "/spec/replicas", "value": 3}]`.

use ::http::Method;
use serde_json::Value;

use super::{
    Client, OBJECT_BYTES_MAX, Request, accept_object,
    error::{Cause, Error},
    name, path,
};
use crate::resource::{Key, Resource};

/// The part of an object that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object without its status.
    Object,
    /// The subresource `status`.
    Status,
}

/// A change to an object. It has no `Debug`: the object may be a Secret.
#[derive(Clone)]
pub enum Patch {
    /// `application/json-patch+json`: operations. The API server applies either all of them or none.
    Json(Vec<Value>),
    /// `application/merge-patch+json`: sets the fields of the patch, removes those that are `null`, replaces lists.
    Merge(Value),
}

impl Client {
    /// Changes an object. Returns the whole object.
    pub async fn patch<K: Resource>(&self, key: &Key, part: Part, patch: &Patch) -> Result<K, Error> {
        let subresource = match part {
            Part::Object => "",
            Part::Status => "/status",
        };
        let wrong = |cause: Cause| cause.about("patch", name::<K>(key) + subresource);
        let path = path::<K>(key).map_err(wrong)? + subresource;
        let request = Request::get(path).accept(accept_object(K::ACCEPT)).patches(patch);
        let patched = self.typed(request, OBJECT_BYTES_MAX, K::KIND).await.map_err(wrong);
        self.wrote::<K, _>("patch", &patched);
        patched
    }

    /// Asks whether the API server would accept a change, after admission. Nothing is changed. See
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run>.
    pub(crate) async fn patch_dry_run<K: Resource>(&self, key: &Key, patch: &Patch) -> Result<(), Error> {
        let wrong = |cause: Cause| cause.about("patch", name::<K>(key));
        let path = path::<K>(key).map_err(wrong)?;
        let mut request = Request::get(path).accept(accept_object(K::ACCEPT)).patches(patch);
        request.query.push(("dryRun", "All".into()));
        self.typed::<K>(request, OBJECT_BYTES_MAX, K::KIND).await.map(drop).map_err(wrong)
    }
}

impl Request {
    fn patches(self, patch: &Patch) -> Request {
        let (content_type, body) = match patch {
            Patch::Json(operations) => ("application/json-patch+json", serde_json::to_vec(operations)),
            Patch::Merge(object) => ("application/merge-patch+json", serde_json::to_vec(object)),
        };
        self.sends(Method::PATCH, content_type, body.expect("JSON values are JSON"))
    }
}
