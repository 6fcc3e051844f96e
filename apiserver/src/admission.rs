//! Admission: what may change or refuse an authorized write before it is stored. First the plugins of kube-apiserver, then
//! webhooks that change the object, and after its validation those that only accept or refuse it.
//!
//! A write is attempted while the storage is locked. If it needs the answer of a webhook, it stops there: the webhook is called
//! without the lock, and then the write is attempted again, with the answer. kube-apiserver repeats an update likewise when
//! another write came first.

mod call;
mod limit_ranges;
pub(crate) mod matching;
mod mutations;
pub(crate) mod plugins;
mod pod_security;
pub(crate) mod policies;
pub(crate) mod quotas;
mod service_account;
pub(crate) mod webhooks;

use std::{cell::OnceCell, sync::Arc};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    admission::call::Call,
    authorization::{Permissions, Subject},
    names::{random_letters, uid},
    request::ResourcePath,
    schema::cel_authorizer::Authorize,
    status::StatusError,
    storage::Storage,
};

/// The admission of one request, for all attempts.
pub(crate) struct Admission {
    /// The fields of the AdmissionRequest that do not depend on the object.
    request: Value,
    path: ResourcePath,
    /// Answers the `authorizer` in CEL.
    authorize: Arc<Authorize>,
    /// The port on 127.0.0.1 of webhooks that are a Service.
    webhook_port: Option<u16>,
    /// Parts of a new object, which all attempts share.
    pub(crate) uid: String,
    pub(crate) letters: String,
    /// Of its random numbers.
    pub(crate) seed: u64,
    pub(crate) now: String,
    /// The error of a write that may not create an object, once it is known. To learn it can use up a fault.
    pub(crate) create_forbidden: OnceCell<Option<StatusError>>,
    /// The warnings of policies and webhooks, for the client.
    pub(crate) warnings: Vec<String>,
    answers: Vec<(Call, Result<Value, String>)>,
    missing: Vec<Call>,
}

/// The error of an attempt that waits for the answer of a webhook. No client sees it.
fn waits() -> StatusError {
    StatusError::internal("waits for a webhook")
}

impl Admission {
    /// The admission of a request with these options of its write.
    pub(crate) fn new(
        storage: &Storage,
        user: Subject,
        permissions: Permissions,
        path: &ResourcePath,
        options: Value,
        webhook_port: Option<u16>,
    ) -> Admission {
        let request = json!({
            "userInfo": {"username": user.name, "groups": user.groups},
            "dryRun": !options["dryRun"].is_null(),
            "options": options,
        });
        let authorize = move |account: Option<&str>, spec: &Value| match account {
            Some(_) => {
                let mut account = Subject::of(account);
                // As in kube-apiserver, it is not in `system:authenticated`, the last group.
                account.groups.pop();
                permissions.review(&account, spec)
            }
            None => permissions.review(&user, spec),
        };
        Admission {
            request,
            path: path.clone(),
            authorize: Arc::new(authorize),
            webhook_port,
            uid: uid(),
            letters: random_letters(),
            seed: fastrand::u64(..),
            now: storage.clock.time(),
            create_forbidden: OnceCell::new(),
            warnings: Vec::new(),
            answers: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Begins the next attempt. Calls the webhooks that the last one waited for; false if there were none.
    pub(crate) async fn learn(&mut self) -> bool {
        let missing = std::mem::take(&mut self.missing);
        if missing.is_empty() {
            return false;
        }
        let answers = join_all(missing.iter().map(Call::send)).await;
        self.answers.extend(missing.into_iter().zip(answers));
        self.warnings.clear();
        true
    }

    /// Whether the attempt has to end, so that webhooks are called.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The answer to a call. Without one, the attempt has to end, so that the webhook is called.
    fn answer(&mut self, call: Call) -> Option<Result<Value, String>> {
        let known = self.answers.iter().find(|(known, _)| *known == call);
        if known.is_none() && !self.missing.contains(&call) {
            self.missing.push(call);
            return None;
        }
        known.map(|(_, answer)| answer.clone())
    }
}
