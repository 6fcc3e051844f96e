//! The state that connections and controllers share: storage, tokens, planned faults and the records of requests.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::{
    authorization::{self, Rule, Verb},
    faults::{Fault, Faults, Planned},
    request::Request,
    status::StatusError,
    storage::{Backup, Storage, lock},
};

/// The record of an answered request, as in an audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// `GET`, `POST`, …
    pub method: String,
    /// `/api/v1/namespaces`
    pub path: String,
    /// The name of the object in the body of a create. Empty for other requests.
    pub name: String,
    /// The query after the `?`, not decoded.
    pub query: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// The user, after impersonation. Empty without a known token.
    pub user: String,
    /// The HTTP status of the answer.
    pub status: u16,
}

/// Most records. One more drops the oldest. A test that counts writes makes some thousands.
const REQUESTS_MAX: usize = 100_000;

/// The user of [`ApiServer::token`](crate::ApiServer::token).
pub(crate) const ADMIN: &str = "admin";

/// The shared state. It has no Debug, because it contains tokens and Secrets.
pub(crate) struct Server {
    pub(crate) storage: Mutex<Storage>,
    /// User by token.
    pub(crate) tokens: Mutex<HashMap<String, String>>,
    /// Rules by user. A user without an entry has full access.
    pub(crate) rules: Mutex<HashMap<String, Vec<Rule>>>,
    pub(crate) requests: Mutex<VecDeque<RequestRecord>>,
    pub(crate) faults: Faults,
    /// The state that [`Fault::Restore`] restores.
    pub(crate) backup: Mutex<Backup>,
    pub(crate) restarts: tokio::sync::watch::Sender<u64>,
    pub(crate) pod_start: Duration,
    pub(crate) heartbeat: Duration,
}

impl Server {
    pub(crate) fn storage(&self) -> MutexGuard<'_, Storage> {
        lock(&self.storage)
    }

    /// The user of a request: that of its token, or the one whom this user impersonates.
    pub(crate) fn user(&self, request: &Request) -> (Option<String>, Result<(), StatusError>) {
        let Some(token) = request.bearer_token() else {
            return (None, authorization::impersonated(request, None, None).map(drop));
        };
        let Some(user) = lock(&self.tokens).get(&*token).cloned() else {
            return (None, Err(StatusError::unauthorized()));
        };
        let rules = lock(&self.rules);
        match authorization::impersonated(request, Some(&user), rules.get(&user).map(Vec::as_slice)) {
            Ok(other) => (Some(other.unwrap_or(user)), Ok(())),
            Err(error) => (Some(user), Err(error)),
        }
    }

    /// Checks the rules of the user. A request without a token is anonymous, and gets a 403 for almost everything.
    pub(crate) fn check(&self, request: &Request, user: Option<&str>, verb: Verb) -> Result<(), StatusError> {
        let rules = lock(&self.rules);
        authorization::check(request, user, user.and_then(|user| rules.get(user)).map(Vec::as_slice), verb)
    }

    /// The error of an apply or a PUT that creates its object, if its user may not create it.
    pub(crate) fn forbids_create(&self, request: &Request) -> Option<StatusError> {
        let (user, _) = self.user(request);
        let forbidden = self.check(request, user.as_deref(), Verb::Create).err();
        forbidden.or_else(|| self.faults.forbid_create(request, user.as_deref()))
    }

    pub(crate) fn record(&self, record: RequestRecord) {
        let mut requests = lock(&self.requests);
        if requests.len() == REQUESTS_MAX {
            requests.pop_front();
        }
        requests.push_back(record);
    }

    pub(crate) fn fault(&self, planned: Planned) {
        if !planned.is_for_server() {
            return self.faults.plan(planned);
        }
        let mut storage = self.storage();
        if planned.fault == Fault::Backup {
            *lock(&self.backup) = storage.backup();
            return;
        }
        if planned.fault == Fault::Restore {
            storage.restore(&lock(&self.backup));
        }
        storage.forget_history();
        if planned.fault != Fault::ExpireHistory {
            self.restarts.send_modify(|count| *count += 1);
        }
    }
}
