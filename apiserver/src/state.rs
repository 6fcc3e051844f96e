//! The state that connections and controllers share: storage, tokens, planned faults and the records of requests.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicU64},
    time::Duration,
};

use serde_json::Value;

use crate::{
    authorization::{self, Granted, Permissions, Rule, Subject, Verb},
    exec::ExecRule,
    faults::{Fault, Faults, Planned},
    records::{EventRecord, Latest, RequestRecord, WriteRecord},
    request::Request,
    status::StatusError,
    storage::{Checkpoint, Storage, Writer, lock},
    tokens::{self, ISSUER, SigningKey},
};

/// Most records of requests: [`ApiServer::requests`](crate::ApiServer::requests). A test that counts writes makes some thousands.
pub const REQUESTS_MAX: usize = 100_000;

/// The shared state. It has no Debug, because it contains tokens and Secrets.
pub(crate) struct Server {
    pub(crate) storage: Mutex<Storage>,
    /// The users of tokens that are not JWTs.
    pub(crate) tokens: Mutex<HashMap<String, String>>,
    pub(crate) key: Arc<SigningKey>,
    pub(crate) port: u16,
    /// Rules by user, besides Roles.
    pub(crate) rules: Mutex<HashMap<String, Vec<Rule>>>,
    /// Whether users without an entry in `rules` need Roles. If not, they have full access.
    pub(crate) rbac: bool,
    /// The id of the latest request.
    pub(crate) request_ids: AtomicU64,
    pub(crate) requests: Mutex<Latest<RequestRecord>>,
    /// `None`: they are not recorded.
    pub(crate) events: Option<Mutex<Latest<EventRecord>>>,
    /// How many requests were answered, by the labels of a metric.
    pub(crate) counts: Mutex<BTreeMap<String, u64>>,
    pub(crate) faults: Faults,
    /// The state that [`Fault::Restore`] restores.
    pub(crate) backup: Mutex<Checkpoint>,
    pub(crate) restarts: tokio::sync::watch::Sender<u64>,
    /// The port on 127.0.0.1 of webhooks that are a Service.
    pub(crate) webhook_port: Option<u16>,
    pub(crate) exec: Vec<ExecRule>,
    pub(crate) pod_start: Duration,
    pub(crate) heartbeat: Duration,
}

impl Server {
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn storage(&self) -> MutexGuard<'_, Storage> {
        let mut storage = lock(&self.storage);
        storage.writer = None;
        storage
    }

    /// The storage, for the writes of a request.
    pub(crate) fn storage_for(&self, request: &Request) -> MutexGuard<'_, Storage> {
        let mut storage = self.storage();
        let user = request.user.clone().unwrap_or_default();
        let (method, path) = (request.method.to_string(), request.path.clone());
        storage.writer = Some(Arc::new(Writer { user, method, path, request: request.id }));
        storage
    }

    /// The user of a request: the user of its token, or the one whom this user impersonates.
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

    /// The user of a token for this server.
    pub(crate) fn user_of(&self, storage: &Storage, token: &str) -> Option<String> {
        let (user, audiences) = self.authenticate(storage, token)?;
        audiences.iter().any(|audience| audience == ISSUER).then_some(user)
    }

    /// The user of a valid token, and its audiences.
    pub(crate) fn authenticate(&self, storage: &Storage, token: &str) -> Option<(String, Vec<String>)> {
        let known = lock(&self.tokens).get(token).cloned();
        let known = known.map(|user| (user, vec![ISSUER.to_owned()]));
        known.or_else(|| tokens::authenticate(storage, &self.key, token))
    }

    /// The user of a request, with its groups.
    pub(crate) fn subject(&self, storage: &Storage, request: &Request) -> Subject {
        let (user, _) = self.user(storage, request);
        subject(request, user.as_deref())
    }

    /// The rules of a user, each with the binding that grants it. `None`: the user has full access.
    pub(crate) fn granted(&self, storage: &Storage, user: &Subject) -> Option<Vec<Granted>> {
        let given = lock(&self.rules).get(&user.name).cloned();
        authorization::granted(&|plural| authorization::stored(storage, plural), given, self.rbac, user)
    }

    /// The permissions of all users now.
    pub(crate) fn permissions(&self, storage: &Storage) -> Permissions {
        Permissions::new(storage, lock(&self.rules).clone(), self.rbac)
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

    pub(crate) fn record(&self, record: RequestRecord) {
        lock(&self.requests).push(record);
    }

    /// Records what a watch sends: an event as its line of JSON. Half a line is none.
    pub(crate) fn record_line(&self, watch: u64, line: &[u8]) {
        if self.events.is_none() {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return };
        let metadata = &event["object"]["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let object = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
        let version = text(&metadata["resourceVersion"]).parse().unwrap_or_default();
        self.record_event(watch, &text(&event["type"]), object, version);
    }

    pub(crate) fn record_event(&self, watch: u64, event: &str, object: String, version: u64) {
        let Some(events) = &self.events else { return };
        let time = self.storage().clock.now();
        lock(events).push(EventRecord { watch, time, event: event.to_owned(), object, version });
    }

    /// As [`Server::writes_since`]. Expired, if the history of a collection begins after the version.
    pub(crate) fn all_writes_since(&self, version: u64) -> Result<Vec<WriteRecord>, StatusError> {
        let storage = self.storage();
        let lost = storage.collections().map(|(_, collection)| collection.lost).max().unwrap_or(0);
        if version < lost {
            return Err(StatusError::expired(format!("too old resource version: {version} ({lost})")));
        }
        Ok(writes_since(&storage, version))
    }

    /// The writes after a version, oldest first, as far as the history of their collections goes.
    pub(crate) fn writes_since(&self, version: u64) -> Vec<WriteRecord> {
        writes_since(&self.storage(), version)
    }

    pub(crate) fn fault(&self, planned: Planned) {
        if !planned.is_for_server() {
            return self.faults.plan(planned);
        }
        if planned.fault == Fault::Backup {
            let now = self.storage().checkpoint();
            *lock(&self.backup) = now;
            return;
        }
        if planned.fault == Fault::Restore {
            let backup = lock(&self.backup).clone();
            return self.restore(&backup);
        }
        self.storage().forget_history();
        if planned.fault != Fault::ExpireHistory {
            self.restarts.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn restore(&self, checkpoint: &Checkpoint) {
        self.storage().restore(checkpoint);
        self.restarts.send_modify(|count| *count += 1);
    }
}

/// A user with its groups: the ones that the request impersonates, or the ones that follow from its name.
fn subject(request: &Request, user: Option<&str>) -> Subject {
    let mut subject = Subject::of(user);
    let groups = request.impersonated_groups();
    if !groups.is_empty() {
        let authenticated = ["system:authenticated".to_owned()];
        subject.groups = groups.into_iter().chain(authenticated).collect();
    }
    subject
}

fn writes_since(storage: &Storage, version: u64) -> Vec<WriteRecord> {
    let mut writes = Vec::new();
    for (name, collection) in storage.collections() {
        let from = version.max(collection.floor);
        for change in collection.since(from).into_iter().flatten() {
            let by = |field: fn(&Writer) -> &String| change.by.as_deref().map(field).cloned();
            writes.push(WriteRecord {
                version: change.revision,
                time: change.time,
                user: by(|writer| &writer.user).unwrap_or_default(),
                method: by(|writer| &writer.method).unwrap_or_default(),
                path: by(|writer| &writer.path).unwrap_or_default(),
                request: change.by.as_deref().map_or(0, |writer| writer.request),
                resource: name.clone(),
                object: change.key.clone(),
                before: change.before.clone(),
                after: change.after.clone(),
            });
        }
    }
    writes.sort_by_key(|write| write.version);
    writes
}
