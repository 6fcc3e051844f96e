//! Deletes objects: `{"kind": "DeleteOptions", "preconditions": {"uid": "…", "resourceVersion": "1207"}}`.

use ::http::Method;
use serde::Deserialize;
use serde_json::json;
use smol_str::SmolStr;

use super::{
    Client, JSON, OBJECT_BYTES_MAX, Request,
    error::{Cause, Error},
    error_answer::not_json,
    name, path,
};
use crate::resource::{Key, Resource, Uid, from_json};

/// Preconditions of a delete. The default has none.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Another uid is a 409.
    pub uid: Option<Uid>,
    /// Another resourceVersion is a 409.
    pub version: Option<SmolStr>,
}

impl DeleteOptions {
    fn to_json<K: Resource>(&self) -> Vec<u8> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        // By default, the server orphans the dependents of a Job or a ReplicationController: `DefaultGarbageCollectionPolicy` in
        // kubernetes/pkg/registry. No operator here deletes a ReplicationController.
        if (K::GROUP, K::KIND) == ("batch", "Job") {
            options["propagationPolicy"] = "Background".into();
        }
        if let Some(uid) = &self.uid {
            options["preconditions"]["uid"] = json!(uid);
        }
        if let Some(version) = &self.version {
            options["preconditions"]["resourceVersion"] = version.as_str().into();
        }
        options.to_string().into_bytes()
    }
}

impl Client {
    /// Deletes an object. If it has finalizers, the server only sets its deletionTimestamp; then the object is returned.
    pub async fn delete<K: Resource>(&self, key: &Key, options: &DeleteOptions) -> Result<Option<K>, Error> {
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "kind")]
            _kind: String,
        }
        let wrong = |cause: Cause| cause.about("delete", name::<K>(key));
        let path = path::<K>(key).map_err(wrong)?;
        let request = Request::get(path).sends(Method::DELETE, JSON, options.to_json::<K>());
        let answer = self.call(&request, OBJECT_BYTES_MAX).await.map_err(wrong);
        self.wrote::<K, _>("delete", &answer);
        let answer = answer?;
        if let Ok(object) = from_json::<K>(&answer.body) {
            return Ok(Some(object).filter(|object| object.metadata().is_terminating()));
        }
        // Otherwise the answer must be a Status. An HTML page of a proxy does not mean that the object was deleted.
        match from_json::<Kind>(&answer.body) {
            Ok(_) => Ok(None),
            Err(error) => {
                Err(wrong(not_json(&request.path, &answer.headers, &answer.body, "a Status", &error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delete_options_name_only_what_is_asked_for() {
        let json = |options: DeleteOptions| {
            String::from_utf8(options.to_json::<crate::resource::kinds::Service>()).expect("text")
        };
        assert_eq!(json(DeleteOptions::default()), r#"{"apiVersion":"v1","kind":"DeleteOptions"}"#);
        let options = DeleteOptions { uid: Some("u".into()), version: Some("7".into()) };
        assert_eq!(
            json(options),
            r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"7","uid":"u"}}"#
        );
    }
}
