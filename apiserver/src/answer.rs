//! From a request to an answer: who may ask, what the path means, which verb does what.
//!
//! ```text
//! HTTP/1.1 200 OK
//! Audit-Id: 2a54e3f6-41d0-4fdd-aab7-f32a48c326b6
//! Cache-Control: no-cache, private
//! Content-Type: application/json
//! ```

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use serde_json::{Value, json};

use super::{
    ADMIN, Server,
    apply::{Force, MANAGER_BYTES_MAX, Manager},
    delete::{self, Deleted, Deletion, Propagation},
    discovery,
    encode::{self, AnswerBody, Stream},
    faults,
    form::{Form, Include},
    kinds::{Kind, Kinds},
    patch::{self, Patch},
    read::{List, Version},
    refusal::{Cause, Refusal, RefusalBody, details},
    request::{Accept, Path, Request},
    scale,
    storage::{Place, Storage},
    types::{self, Words},
    watch::{self, Watch},
    write::{self, Applied, Part, UnknownFields},
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html";

/// Subresources that the real one has and we have not, with which kubectl does its `logs`, `exec`, `attach`,
/// `port-forward`, `debug`, `drain`, `create token` and `proxy`.
const NOT_SERVED: [&str; 12] = [
    "nodes/proxy",
    "pods/proxy",
    "services/proxy",
    "pods/binding",
    "pods/log",
    "pods/exec",
    "pods/attach",
    "pods/portforward",
    "pods/ephemeralcontainers",
    "pods/eviction",
    "pods/resize",
    "serviceaccounts/token",
];

/// What goes back, before it is bytes.
pub(super) struct Answer {
    status: u16,
    content: Content,
    warnings: Vec<String>,
    retry_after_secs: Option<u64>,
}

enum Content {
    Json(Value),
    Yaml(Value),
    /// JSON with a content type of its own.
    Typed(Value, &'static str),
    Text(String),
    /// What a test put in.
    Raw(String),
    Watch(Box<Watch>),
}

impl Answer {
    fn json(status: u16, value: Value) -> Answer {
        Answer { status, content: Content::Json(value), warnings: Vec::new(), retry_after_secs: None }
    }

    fn text(status: u16, text: impl Into<String>) -> Answer {
        Answer { status, content: Content::Text(text.into()), warnings: Vec::new(), retry_after_secs: None }
    }

    /// As a [`Fault`](super::Fault) wants it.
    pub(super) fn planned(status: u16, body: String, retry_after_secs: Option<u64>) -> Answer {
        Answer { status, content: Content::Raw(body), warnings: Vec::new(), retry_after_secs }
    }

    pub(super) fn refused(refusal: Refusal) -> Answer {
        let retry_after_secs = refusal.retry_after_secs();
        let mut answer = match refusal.body {
            RefusalBody::Status(status) => Answer::json(refusal.code, *status),
            RefusalBody::Text(text) => Answer::text(refusal.code, text),
        };
        answer.retry_after_secs = retry_after_secs;
        answer
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn into_response(self, pretty: bool) -> Response<AnswerBody> {
        let mut response = Response::new(AnswerBody::Whole(None));
        *response.status_mut() = http::StatusCode::from_u16(self.status).unwrap_or_default();
        let whole = |bytes: Bytes| AnswerBody::Whole(Some(bytes));
        let written = |value: &Value| if pretty { encode::pretty(value) } else { encode::line(value) };
        let (content_type, body) = match self.content {
            Content::Json(value) => (JSON, whole(written(&value))),
            Content::Yaml(value) => {
                let yaml = yaml_serde::to_string(&value).unwrap_or_default();
                ("application/yaml", whole(yaml.into()))
            }
            Content::Typed(value, content_type) => (content_type, whole(written(&value))),
            Content::Text(text) => (TEXT, whole(text.into())),
            Content::Raw(text) => (media_type(&text), whole(text.into())),
            Content::Watch(watch) => (JSON, AnswerBody::Stream(Stream::new(*watch))),
        };
        *response.body_mut() = body;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if let Ok(id) = HeaderValue::from_str(&write::uid()) {
            headers.insert("audit-id", id);
        }
        if content_type == TEXT {
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        if let Some(secs) = self.retry_after_secs {
            headers.insert(header::RETRY_AFTER, secs.into());
        }
        for warning in told(self.warnings) {
            // 299 is "miscellaneous persistent warning"; the dash stands for no agent.
            if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
                headers.append(header::WARNING, value);
            }
        }
        response
    }
}

/// Letters of all warnings of an answer, beyond which each is cut: apiserver/pkg/endpoints/filters/warning.go.
const WARNINGS_CHARS_MAX: usize = 4096;

/// Letters of one of them that are left then.
const CUT_WARNING_CHARS: usize = 256;

/// Each warning once, and no more than a header can hold.
fn told(mut warnings: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    warnings.retain(|warning| known.insert(warning.clone()));
    if warnings.iter().map(|warning| warning.chars().count()).sum::<usize>() <= WARNINGS_CHARS_MAX {
        return warnings;
    }
    let mut chars = 0;
    let mut told = Vec::new();
    for warning in warnings {
        if chars >= WARNINGS_CHARS_MAX {
            break;
        }
        told.push(warning.chars().take(CUT_WARNING_CHARS).collect::<String>());
        chars += warning.chars().count().min(CUT_WARNING_CHARS);
    }
    told
}

/// What a text looks like.
fn media_type(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'{') => JSON,
        Some(b'<') => HTML,
        Some(_) | None => TEXT,
    }
}

/// Faults on demand, for an administrator: a POST plans some, or asks for help; a GET lists them, a DELETE ends them.
pub(super) fn faults(server: &Server, request: &Request, user: &str) -> Answer {
    if user != ADMIN {
        let method = request.method.as_str().to_lowercase();
        let message = format!("forbidden: User {user:?} cannot {method} path {:?}", request.path);
        return Answer::refused(Refusal::not_allowed(message, json!({})));
    }
    match request.method {
        Method::POST if request.body.trim_ascii() == b"help" => Answer::text(200, faults::names()),
        Method::POST => match faults::parse_lines(&request.body) {
            Ok(planned) => {
                let done = planned.iter().filter(|planned| planned.is_momentary()).count();
                let counts = [(done, "done"), (planned.len() - done, "planned")];
                let said = counts.iter().filter(|(count, _)| *count > 0);
                let said: Vec<String> = said.map(|(count, what)| format!("{count} {what}")).collect();
                planned.into_iter().for_each(|planned| server.fault(planned));
                Answer::text(201, format!("{}\n", said.join(", ")))
            }
            Err(error) => Answer::refused(Refusal::bad_request(error)),
        },
        Method::GET => Answer::text(200, server.faults.list()),
        Method::DELETE => {
            server.faults.end();
            Answer::text(200, "all ended\n")
        }
        _ => Answer::refused(Refusal::method_not_allowed()),
    }
}

/// Answer one request that comes from somebody we know.
pub(super) async fn answer(server: &Arc<Server>, request: &Request) -> Answer {
    let Some(path) = Path::parse(&request.path) else {
        return fixed(server, request).unwrap_or_else(Answer::refused);
    };
    let mut answer = resource(server, request, &path).await.unwrap_or_else(Answer::refused);
    if let (Content::Json(status), 400.., Ok(Accept::Yaml)) =
        (&answer.content, answer.status, request.accept())
    {
        answer.content = Content::Yaml(status.clone());
    }
    let storage = server.storage();
    let kind = storage.kinds.get(&path.group, &path.version, &path.plural);
    answer.warnings.extend(kind.and_then(|kind| kind.deprecation()).map(str::to_owned));
    answer
}

/// Paths that are no objects: health, version, discovery.
fn fixed(server: &Server, request: &Request) -> Result<Answer, Refusal> {
    let path = request.path.trim_end_matches('/');
    match request.path.as_str() {
        "/healthz" | "/livez" | "/readyz" => return Ok(health(request)),
        // The one check that there is, asked for alone.
        "/healthz/ping" | "/livez/ping" | "/readyz/ping" => return Ok(Answer::text(200, "ok")),
        _ => {}
    }
    if request.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let storage = server.storage();
    let kinds = &storage.kinds;
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let found = match parts[..] {
        ["version"] => Some(discovery::version()),
        ["api" | "apis"] if request.accepts("as=APIGroupDiscoveryList") && request.accepts("v=v2;") => {
            let value = discovery::aggregated(kinds, path == "/api");
            let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            let content = Content::Typed(value, content_type);
            return Ok(Answer { status: 200, content, warnings: Vec::new(), retry_after_secs: None });
        }
        ["api"] => Some(discovery::api_versions()),
        ["apis"] => Some(discovery::groups(kinds)),
        ["api", version] => discovery::resources(kinds, "", version),
        ["apis", group] => discovery::group(kinds, group),
        ["apis", group, version] => discovery::resources(kinds, group, version),
        ["openapi", "v3"] => Some(discovery::openapi_index(kinds, storage.revision())),
        ["openapi", "v3", "api", version] => discovery::openapi(kinds, "", version),
        ["openapi", "v3", "apis", group, version] => discovery::openapi(kinds, group, version),
        // kubectl asks here for kinds that v3 does not have, and goes on to "no matches for kind" only if there is an
        // answer. An empty one is a document without paths, in protobuf.
        ["openapi", "v2"] if request.accepts("proto-openapi.spec.v2") => return Ok(Answer::text(200, "")),
        _ => None,
    };
    found.map(|value| Answer::json(200, value)).ok_or_else(|| match parts[..] {
        ["api", _] => nowhere(kinds, ""),
        ["apis", group, _] => nowhere(kinds, group),
        _ => Refusal::no_such_path(),
    })
}

/// We are healthy if we can answer, and list our checks to who asks for them.
fn health(request: &Request) -> Answer {
    if request.query.get("verbose").is_none() {
        return Answer::text(200, "ok");
    }
    let name = request.path.trim_start_matches('/');
    Answer::text(200, format!("[+]ping ok\n{name} check passed\n"))
}

/// A path of a resource.
async fn resource(server: &Arc<Server>, request: &Request, path: &Path) -> Result<Answer, Refusal> {
    let kind = find_kind(&server.storage(), path)?;
    let (query, method) = (&request.query, &request.method);
    let limit = if query.flag("watch") == Some(true) { None } else { query.timeout()? };
    if *method == Method::HEAD && !kind.is_custom() {
        return Err(Refusal::method_not_allowed());
    }
    let in_namespace = path.namespace.is_some();
    if in_namespace && !kind.namespaced || path.name.is_some() && kind.namespaced && !in_namespace {
        return Err(if kind.is_custom() { Refusal::no_such_path() } else { Refusal::no_such_resource() });
    }
    let Some(name) = &path.name else {
        return collection(server, request, path, &kind, limit).await;
    };
    let may_not = match name.as_str() {
        "." | ".." => Some(format!("be '{name}'")),
        _ => name.contains('%').then(|| "contain '%'".to_owned()),
    };
    if let Some(what) = may_not {
        return Err(Refusal::bad_request(format!("Name parameter invalid: {name:?}: may not {what}")));
    }
    let place = Place::new(kind.stored_in(), path.namespace.as_deref(), name);
    if let Some(subresource) = &path.subresource {
        let known = kind.subresources().into_iter().any(|one| one == subresource);
        if !known {
            let whole = format!("{}/{subresource}", path.plural);
            return Err(if kind.is_custom() {
                // What is not there is said to be the object, though it may be.
                Refusal::not_found(&kind, name)
            } else if NOT_SERVED.iter().any(|one| whole == *one || whole.starts_with(&format!("{one}/"))) {
                Refusal::not_served(&whole)
            } else {
                Refusal::no_such_resource()
            });
        }
    }
    let target = match path.subresource.as_deref() {
        Some("scale") => Target::Scale,
        Some("status") => Target::Object(Part::Status),
        Some("finalize") => Target::Object(Part::Finalize),
        Some(_) | None => Target::Object(Part::Main),
    };
    match *method {
        Method::GET | Method::HEAD => {
            let version = Version::parse(query.text("resourceVersion")).map_err(Refusal::internal)?;
            wait_for(server, version, limit).await?;
            let storage = server.storage();
            let object = storage.get(&place).ok_or_else(|| Refusal::not_found(&kind, name))?;
            shown(request, &storage, &kind, target, 200, object)
        }
        Method::PUT => put(server, request, &kind, &place, target),
        Method::PATCH => patch(server, request, &kind, &place, target),
        Method::DELETE if path.subresource.is_none() => delete(server, request, &kind, &place),
        Method::POST if kind.is_custom() && path.subresource.is_none() => {
            // An accident of the real one's routing: a POST to the path of an object creates it.
            create(server, request, path, &kind)
        }
        Method::DELETE if kind.is_custom() => Err(Refusal::verb_not_supported(&kind, "delete")),
        Method::POST if kind.is_custom() => Err(Refusal::verb_not_supported(&kind, "create")),
        _ => Err(Refusal::method_not_allowed()),
    }
}

/// What a path means of the object that it names.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Object(Part),
    /// A [`scale`] in its place.
    Scale,
}

impl Target {
    /// What is written of the object.
    fn part(self) -> Part {
        match self {
            Target::Object(part) => part,
            Target::Scale => Part::Main,
        }
    }

    /// The kind of what is sent and answered.
    fn sent(self, kind: &Kind) -> &Kind {
        match self {
            Target::Object(_) => kind,
            Target::Scale => &scale::KIND,
        }
    }
}

/// Replace an object, or a part of it.
fn put(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
    target: Target,
) -> Result<Answer, Refusal> {
    let mut object = request.object_of(target.sent(kind))?;
    let mut options = write_options(request, "UpdateOptions", target)?;
    let storage = &mut server.storage();
    let creates =
        storage.get(place).is_none() && kind.creates_on_put() && target == Target::Object(Part::Main);
    let put = if creates {
        write::create(storage, kind, place.namespace(), object, &mut options).map(|created| (201, created))
    } else {
        if target == Target::Scale {
            let before = current(storage, kind, place)?;
            object = scale::put(kind, place, &before, object, &mut options)?;
        }
        write::update(storage, kind, place, object, target.part(), &mut options).map(|updated| (200, updated))
    };
    written(request, storage, kind, target, put, options)
}

/// Change an object, or a part of it.
fn patch(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
    target: Target,
) -> Result<Answer, Refusal> {
    let mut options = write_options(request, "PatchOptions", target)?;
    options.is_patch = true;
    let applies = request.content_type() == patch::APPLY_PATCH;
    let force = request.query.flag("force");
    let invalid = |cause| Err(Refusal::invalid_options("PatchOptions", vec![cause]));
    if applies && request.query.text("fieldManager").is_empty() {
        return invalid(Cause::required("fieldManager", "is required for apply patch"));
    }
    if !applies && force.is_some() {
        return invalid(Cause::forbidden("force", "may not be specified for non-apply patch"));
    }
    if applies {
        options.manager.applies = true;
        let mut applied = patch::applied(&request.body)?;
        let force = if force == Some(true) { Force::Yes } else { Force::No };
        let storage = &mut server.storage();
        let is_scale = target == Target::Scale;
        if is_scale {
            current(storage, kind, place)?;
            applied = scale::applied(kind, &applied)?;
        }
        // The real one finds conflicts there, and then cannot convert what it made.
        let is_unconvertible = is_scale && kind.is_custom();
        options.dry_run |= is_unconvertible;
        let mut applied = write::apply(storage, kind, place, applied, target.part(), force, &mut options);
        if is_unconvertible && applied.is_ok() {
            applied = Err(scale::unconvertible(place.name()));
        }
        let applied =
            applied.map(|(what, object)| (if what == Applied::Created { 201 } else { 200 }, object));
        return written(request, storage, kind, target, applied, options);
    }
    let patch = Patch::parse(kind, request.content_type(), &request.body)?;
    let storage = &mut server.storage();
    let before = current(storage, kind, place)?;
    let object = patched(kind, place, &before, target, &patch, &mut options)?;
    let updated = write::update(storage, kind, place, object, target.part(), &mut options);
    written(request, storage, kind, target, updated.map(|updated| (200, updated)), options)
}

/// What a patch makes of an object.
fn patched(
    kind: &Kind,
    place: &Place,
    before: &Value,
    target: Target,
    patch: &Patch,
    options: &mut write::Options,
) -> Result<Value, Refusal> {
    let sent = target.sent(kind);
    let was = if target == Target::Scale { &scale::of(kind, before) } else { before };
    let mut after = was.clone();
    patch.apply(sent, &mut after)?;
    patch.decoded(sent, &mut after).map_err(|why| patch.refused(&after, &why))?;
    write::check_still(sent, place.name(), &after)?;
    write::check_named(place.name(), &after["metadata"])?;
    if target == Target::Scale {
        after = scale::put(kind, place, before, after, options)?;
    }
    write::check_fixed(kind, place.name(), &after, before)?;
    Ok(after)
}

fn delete(server: &Server, request: &Request, kind: &Kind, place: &Place) -> Result<Answer, Refusal> {
    let deletion = deletion(request)?;
    let mut storage = server.storage();
    match delete::delete(&mut storage, kind, place, &deletion)? {
        Deleted::Gone(object) if !kind.delete_answers_object() => {
            Ok(Answer::json(200, success(kind, place.name(), &object)))
        }
        Deleted::Gone(object) => shown(request, &storage, kind, Target::Object(Part::Main), 200, &object),
        Deleted::Terminating(object) => {
            let status = if deletion.is_old_cascade { 202 } else { 200 };
            shown(request, &storage, kind, Target::Object(Part::Main), status, &object)
        }
    }
}

/// A path of a whole collection.
async fn collection(
    server: &Arc<Server>,
    request: &Request,
    path: &Path,
    kind: &Arc<Kind>,
    limit: Option<Duration>,
) -> Result<Answer, Refusal> {
    let (query, namespace) = (&request.query, path.namespace.as_deref());
    match request.method {
        Method::GET if query.flag("watch") == Some(true) => {
            let form = form(request, &server.storage())?;
            if form.accept == Accept::Yaml {
                let text = "only the following media types are accepted: application/json;stream=watch";
                return Err(Refusal::not_acceptable(text));
            }
            let course = server.faults.of_watch(&request.target);
            let options = watch::Options::parse(query, kind, namespace, course)?;
            let watch = Watch::open(server, kind, options, form)?;
            Ok(Answer {
                status: 200,
                content: Content::Watch(Box::new(watch)),
                warnings: Vec::new(),
                retry_after_secs: None,
            })
        }
        Method::GET | Method::HEAD => {
            let list = List::parse(query, kind, namespace)?;
            wait_for(server, list.version, limit).await?;
            let storage = server.storage();
            let page = list.answer(&storage, kind)?;
            let form = form(request, &storage)?;
            Ok(in_form(form, form.list(kind, &page)?, 200))
        }
        // Over all namespaces one can only read.
        _ if kind.namespaced && namespace.is_none() && kind.is_custom() => Err(Refusal::no_such_path()),
        _ if kind.namespaced && namespace.is_none() => Err(Refusal::method_not_allowed()),
        Method::POST => create(server, request, path, kind),
        Method::DELETE if kind.built_in() == "Namespace" => Err(Refusal::method_not_allowed()),
        Method::DELETE => {
            let list = List::parse(query, kind, namespace)?;
            let deletion = deletion(request)?;
            let mut storage = server.storage();
            let page = list.answer(&storage, kind)?;
            for object in &page.items {
                let metadata = &object["metadata"];
                let name = metadata["name"].as_str().unwrap_or_default();
                let place = Place::new(kind.stored_in(), metadata["namespace"].as_str(), name);
                delete::delete(&mut storage, kind, &place, &deletion)?;
            }
            let form = form(request, &storage)?;
            Ok(in_form(form, form.list(kind, &page)?, 200))
        }
        Method::PUT | Method::PATCH if kind.is_custom() => Err(Refusal::bad_request("name must be provided")),
        // A verb that it has no word for.
        _ if kind.is_custom() => Err(Refusal::verb_not_supported(kind, "")),
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn create(server: &Server, request: &Request, path: &Path, kind: &Kind) -> Result<Answer, Refusal> {
    let object = request.object_of(kind)?;
    let target = Target::Object(Part::Main);
    let mut options = write_options(request, "CreateOptions", target)?;
    let mut storage = server.storage();
    let created = write::create(&mut storage, kind, path.namespace.as_deref(), object, &mut options);
    written(request, &storage, kind, target, created.map(|created| (201, created)), options)
}

fn find_kind(storage: &Storage, path: &Path) -> Result<Arc<Kind>, Refusal> {
    if path.old_watch {
        return Err(Refusal::no_old_watch());
    }
    if let Some(kind) = storage.kinds.get(&path.group, &path.version, &path.plural) {
        return Ok(Arc::clone(kind));
    }
    // `kubectl auth can-i` and `whoami` ask here, and who has a token may do everything.
    if ["authorization.k8s.io", "authentication.k8s.io"].contains(&path.group.as_str()) {
        return Err(Refusal::not_served(&super::kinds::resource_name(&path.plural, &path.group)));
    }
    Err(nowhere(&storage.kinds, &path.group))
}

/// A built-in group answers for itself; what is under no group, or under one of CRDs, leads nowhere.
fn nowhere(kinds: &Kinds, group: &str) -> Refusal {
    let built_in = kinds.in_group(group).any(|kind| !kind.is_custom());
    if built_in { Refusal::no_such_resource() } else { Refusal::no_such_path() }
}

/// A version that is not reached yet is awaited, for a while, or as long as the client has time.
async fn wait_for(server: &Server, version: Version, limit: Option<Duration>) -> Result<(), Refusal> {
    let wanted = version.at_least();
    let mut written = server.storage().written();
    let reached = async { written.wait_for(|&revision| revision >= wanted).await.is_ok() };
    let limit = limit.filter(|limit| *limit < watch::FUTURE_WAIT);
    match tokio::time::timeout(limit.unwrap_or(watch::FUTURE_WAIT), reached).await {
        Ok(_) => Ok(()),
        Err(_) if limit.is_some() => Err(Refusal::out_of_time()),
        Err(_) => Err(Refusal::version_too_large(wanted, server.storage().revision())),
    }
}

/// The object that a patch starts from, in the version that the patch speaks.
fn current(storage: &Storage, kind: &Kind, place: &Place) -> Result<Value, Refusal> {
    let object = storage.get(place).ok_or_else(|| Refusal::not_found(kind, place.name()))?;
    Ok(kind.view(object).into_owned())
}

fn form(request: &Request, storage: &Storage) -> Result<Form, Refusal> {
    let accept = request.accept()?;
    Ok(Form { accept, include: Include::parse(&request.query)?, clock: storage.clock })
}

fn shown(
    request: &Request,
    storage: &Storage,
    kind: &Kind,
    target: Target,
    status: u16,
    stored: &Value,
) -> Result<Answer, Refusal> {
    let form = form(request, storage)?;
    let view = kind.view(stored);
    let shown = match target {
        Target::Object(_) => form.object(kind, view)?.into_owned(),
        Target::Scale => form.object(&scale::KIND, Cow::Owned(scale::of(kind, &view)))?.into_owned(),
    };
    Ok(in_form(form, shown, status))
}

fn in_form(form: Form, value: Value, status: u16) -> Answer {
    let content = if form.accept == Accept::Yaml { Content::Yaml(value) } else { Content::Json(value) };
    Answer { status, content, warnings: Vec::new(), retry_after_secs: None }
}

/// What became of a write. Who is refused is warned as well.
fn written(
    request: &Request,
    storage: &Storage,
    kind: &Kind,
    target: Target,
    written: Result<(u16, Arc<Value>), Refusal>,
    options: write::Options,
) -> Result<Answer, Refusal> {
    let mut answer = match written {
        Ok((status, stored)) => shown(request, storage, kind, target, status, &stored)?,
        Err(refusal) => Answer::refused(refusal),
    };
    answer.warnings = options.warnings;
    Ok(answer)
}

fn write_options(request: &Request, name: &str, target: Target) -> Result<write::Options, Refusal> {
    let query = &request.query;
    let unknown_fields = match query.text("fieldValidation") {
        "" | "Warn" => UnknownFields::Warn,
        "Ignore" => UnknownFields::Ignore,
        "Strict" => UnknownFields::Strict,
        other => {
            let supported = ["", "Ignore", "Strict", "Warn"].map(str::to_owned);
            let cause = Cause::not_supported("fieldValidation", &other.into(), &supported);
            return Err(Refusal::invalid_options(name, vec![cause]));
        }
    };
    let dry_run = query.dry_run(name)?;
    let mut warnings = Vec::new();
    if unknown_fields != UnknownFields::Ignore {
        warnings.extend(request.duplicate_fields().iter().map(|path| format!("duplicate field {path:?}")));
    }
    let mut manager = manager(request, name)?;
    if target == Target::Scale {
        manager.subresource = "scale";
    }
    Ok(write::Options { dry_run, unknown_fields, manager, warnings, ..write::Options::default() })
}

/// Who writes: as `fieldManager` says, or else the program in the User-Agent.
fn manager(request: &Request, options: &str) -> Result<Manager, Refusal> {
    let invalid = |cause| Err(Refusal::invalid_options(options, vec![cause]));
    let asked = request.query.text("fieldManager");
    if asked.len() > MANAGER_BYTES_MAX {
        let text = format!("may not be more than {MANAGER_BYTES_MAX} bytes");
        return invalid(Cause::too_long("fieldManager", &text));
    }
    if let Some((at, c)) = asked.chars().enumerate().find(|(_, c)| c.is_control()) {
        let text = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        return invalid(Cause::invalid("fieldManager", &asked.into(), &text));
    }
    let agent = request.user_agent().split('/').next().unwrap_or_default();
    let agent: String = agent.chars().filter(|c| !c.is_control()).take(MANAGER_BYTES_MAX).collect();
    let name = match (asked, &*agent) {
        ("", "") => "unknown",
        ("", agent) => agent,
        (asked, _) => asked,
    };
    Ok(Manager::named(name))
}

/// `DeleteOptions`, from the body if there is one, else from the query.
fn deletion(request: &Request) -> Result<Deletion, Refusal> {
    let options = if request.body.is_empty() {
        let query = &request.query;
        let mut options = json!({"propagationPolicy": query.get("propagationPolicy"),
            "gracePeriodSeconds": query.number("gracePeriodSeconds")?,
            "orphanDependents": query.flag("orphanDependents")});
        if query.dry_run("DeleteOptions")? {
            options["dryRun"] = json!(["All"]);
        }
        options
    } else {
        let options = request.object("DeleteOptions")?;
        types::check_types(&options, "DeleteOptions", Words::Json).map_err(Refusal::bad_request)?;
        if let (Some(kind), version) = (options["kind"].as_str(), options["apiVersion"].as_str())
            && kind != "DeleteOptions"
        {
            return Err(Refusal::bad_request(write::unregistered(kind, version.unwrap_or_default())));
        }
        options
    };
    let invalid = |cause| Err(Refusal::invalid_options("DeleteOptions", vec![cause]));
    let orphan = options["orphanDependents"].as_bool();
    let propagation = match (options["propagationPolicy"].as_str(), orphan) {
        (Some(_), Some(_)) => {
            let text = "orphanDependents and deletionPropagation cannot be both set";
            return invalid(Cause::invalid("propagationPolicy", &options["propagationPolicy"], text));
        }
        (None | Some(""), None) => None,
        (None, Some(true)) | (Some("Orphan"), None) => Some(Propagation::Orphan),
        (None, Some(false)) | (Some("Background"), None) => Some(Propagation::Background),
        (Some("Foreground"), None) => Some(Propagation::Foreground),
        (Some(other), None) => {
            let supported = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
            return invalid(Cause::not_supported("propagationPolicy", &other.into(), &supported));
        }
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(Deletion {
        propagation,
        is_old_cascade: orphan == Some(false),
        uid: text(&options["preconditions"]["uid"]),
        resource_version: text(&options["preconditions"]["resourceVersion"]),
        grace_secs: delete::grace_secs(&options["gracePeriodSeconds"]),
        dry_run: options["dryRun"] == json!(["All"]),
    })
}

/// What a delete says when the object is gone.
fn success(kind: &Kind, name: &str, object: &Value) -> Value {
    let mut details = details(kind, name, &kind.plural);
    details["uid"] = object["metadata"]["uid"].clone();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
