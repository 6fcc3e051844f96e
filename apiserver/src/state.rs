//! The state that connections and controllers share: storage, tokens, planned faults and the records of requests.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use serde_json::Value;

use crate::{
    authorization::{self, Granted, MASTERS, Rule, Subject, Verb},
    exec::ExecRule,
    faults::{Fault, Faults, Planned},
    request::Request,
    status::StatusError,
    storage::{Backup, Place, Storage, lock},
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

/// What a token stands for.
pub(crate) struct Credential {
    pub(crate) user: String,
    pub(crate) expires: Option<SystemTime>,
    /// The ServiceAccount, and its uid.
    pub(crate) account: Option<(Place, Value)>,
}

impl Credential {
    /// A token that is valid until it is revoked.
    pub(crate) fn of(user: &str) -> Credential {
        Credential { user: user.to_owned(), expires: None, account: None }
    }
}

/// The shared state. It has no Debug, because it contains tokens and Secrets.
pub(crate) struct Server {
    pub(crate) storage: Mutex<Storage>,
    pub(crate) tokens: Mutex<HashMap<String, Credential>>,
    /// Rules by user, besides those of Roles.
    pub(crate) rules: Mutex<HashMap<String, Vec<Rule>>>,
    /// Whether users without an entry in `rules` need Roles. If not, they have full access.
    pub(crate) rbac: bool,
    pub(crate) requests: Mutex<VecDeque<RequestRecord>>,
    pub(crate) faults: Faults,
    /// The state that [`Fault::Restore`] restores.
    pub(crate) backup: Mutex<Backup>,
    pub(crate) restarts: tokio::sync::watch::Sender<u64>,
    /// The port on 127.0.0.1 of webhooks that are a Service.
    pub(crate) webhook_port: Option<u16>,
    pub(crate) exec: Vec<ExecRule>,
    pub(crate) pod_start: Duration,
    pub(crate) heartbeat: Duration,
}

impl Server {
    pub(crate) fn storage(&self) -> MutexGuard<'_, Storage> {
        lock(&self.storage)
    }

    /// The user of a request: that of its token, or the one whom this user impersonates.
    pub(crate) fn user(
        &self,
        storage: &Storage,
        request: &Request,
    ) -> (Option<String>, Result<(), StatusError>) {
        let Some(token) = request.bearer_token() else {
            return (None, authorization::impersonated(request, None, None).map(drop));
        };
        let Some(user) = self.user_of(storage, &token) else {
            return (None, Err(StatusError::unauthorized()));
        };
        let rules = self.rules_of(storage, &Subject::of(Some(&user)));
        match authorization::impersonated(request, Some(&user), rules.as_deref()) {
            Ok(other) => (Some(other.unwrap_or(user)), Ok(())),
            Err(error) => (Some(user), Err(error)),
        }
    }

    /// The user of a token that is known, has not expired, and whose ServiceAccount still exists.
    pub(crate) fn user_of(&self, storage: &Storage, token: &str) -> Option<String> {
        let tokens = lock(&self.tokens);
        let Credential { user, expires, account } = tokens.get(token)?;
        let has_expired = expires.is_some_and(|expires| expires <= storage.clock.now());
        let is_gone = account.as_ref().is_some_and(|(place, uid)| {
            storage.get(place).is_none_or(|account| account["metadata"]["uid"] != *uid)
        });
        (!has_expired && !is_gone).then(|| user.clone())
    }

    /// The user of a request, with its groups.
    pub(crate) fn subject(&self, storage: &Storage, request: &Request) -> Subject {
        let (user, _) = self.user(storage, request);
        subject(request, user.as_deref())
    }

    /// The rules of a user, each with the binding that grants it. `None`: the user has full access.
    pub(crate) fn granted(&self, storage: &Storage, user: &Subject) -> Option<Vec<Granted>> {
        let given = lock(&self.rules).get(&user.name).cloned();
        let is_master = |group: &String| group == MASTERS;
        if given.is_none() && (!self.rbac || user.groups.iter().any(is_master)) {
            return None;
        }
        let mut user = user.clone();
        user.groups.retain(|group| given.is_none() || !is_master(group));
        let given = given.into_iter().flatten().map(|rule| Granted { rule, by: String::new() });
        Some(given.chain(authorization::granted(storage, &user)).collect())
    }

    fn rules_of(&self, storage: &Storage, user: &Subject) -> Option<Vec<Rule>> {
        let granted = self.granted(storage, user)?;
        Some(granted.into_iter().map(|granted| granted.rule).collect())
    }

    /// Checks the rules of the user. A request without a token is anonymous, and gets a 403 for almost everything.
    pub(crate) fn check(
        &self,
        storage: &Storage,
        request: &Request,
        user: Option<&str>,
        verb: Verb,
    ) -> Result<(), StatusError> {
        let is_unknown = user.is_none() && !self.rbac;
        let rules = if is_unknown { None } else { self.rules_of(storage, &subject(request, user)) };
        authorization::check(request, user, rules.as_deref(), verb)
    }

    /// The error of an apply or a PUT that creates its object, if its user may not create it.
    pub(crate) fn forbids_create(&self, storage: &Storage, request: &Request) -> Option<StatusError> {
        let (user, _) = self.user(storage, request);
        let forbidden = self.check(storage, request, user.as_deref(), Verb::Create).err();
        forbidden.or_else(|| self.faults.forbid_create(request, user.as_deref()))
    }

    pub(crate) fn add_credential(&self, token: &str, credential: Credential) {
        lock(&self.tokens).insert(token.to_owned(), credential);
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

/// A user with its groups: those that the request impersonates, or those of the name.
fn subject(request: &Request, user: Option<&str>) -> Subject {
    let mut subject = Subject::of(user);
    let groups = request.impersonated_groups();
    if !groups.is_empty() {
        let authenticated = ["system:authenticated".to_owned()];
        subject.groups = groups.into_iter().chain(authenticated).collect();
    }
    subject
}
