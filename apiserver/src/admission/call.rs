//! A call of an admission webhook, and the checks of its answer.

use serde_json::Value;

use crate::{kinds::field_checks::text, names::uid, webhook_client::Address};

/// A call of a webhook.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) address: Address,
    pub(crate) timeout_secs: u64,
    /// The review, whose uid is set when it is sent.
    pub(crate) review: Value,
}

impl Call {
    /// Calls the webhook once, and returns its `response`, or why there is none.
    pub(crate) async fn send(&self) -> Result<Value, String> {
        let uid = uid();
        let mut review = self.review.clone();
        review["request"]["uid"] = uid.as_str().into();
        let posted = self.address.post(&review, Some(self.timeout_secs)).await;
        let mut answer = posted.map_err(|why| format!("failed to call webhook: {why}"))?;
        self.verify(&answer, &uid).map_err(|why| format!("received invalid webhook response: {why}"))?;
        Ok(answer["response"].take())
    }

    /// Checks the parts of an answer that belong to its request. v1beta1 had no such checks.
    fn verify(&self, answer: &Value, uid: &str) -> Result<(), String> {
        let response = &answer["response"];
        if response.is_null() {
            return Err("webhook response was absent".to_owned());
        }
        let (version, kind) = (text(&answer["apiVersion"]), text(&answer["kind"]));
        if self.review["apiVersion"] != "admission.k8s.io/v1" {
            return Ok(());
        }
        if response["uid"] != uid {
            return Err(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"])));
        }
        if (version, kind) != ("admission.k8s.io/v1", "AdmissionReview") {
            let version = if version.is_empty() { "/" } else { version };
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {version}, Kind={kind}"
            ));
        }
        Ok(())
    }
}
