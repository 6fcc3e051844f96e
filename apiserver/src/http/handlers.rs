//! The handlers: each takes a request, runs a verb, and turns its result into an [`Answer`].

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    admission::Admission,
    apply::managed_fields::Force,
    authorization::ADMIN,
    controllers::evict as evict_pod,
    faults,
    http::{
        options::{delete_options, deletion, write_options},
        response::{Answer, Content, Stream},
        target::Target,
        websocket,
    },
    kinds::{Kind, Part, field_checks::text, scale_of},
    records::{self, RequestRecord, WriteRecord},
    request::{Accept, Request, ResourcePath},
    schema::decode,
    state::Server,
    status::{Cause, StatusError, details},
    storage::{Place, Storage, lock},
    verbs::{
        bind::bind as bind_pod,
        delete::{self, Deleted},
        patch::{self, Patch},
        read::{List, Page, Version},
        scale,
        table::{Include, Representation},
        watch::{self, Watch, WatchOptions},
        write::{self, Applied, WriteOptions},
    },
};

/// The beginning of the paths of [`own`].
pub(crate) const OWN_PATHS: &str = "/listwatch/";

/// The path at which administrators read all objects, for a server that starts from them.
const CHECKPOINT_PATH: &str = "/listwatch/checkpoint";

/// Opens a watch of a collection.
pub(crate) fn watch(
    server: &Arc<Server>,
    request: &Request,
    kind: &Arc<Kind>,
    namespace: Option<&str>,
) -> Result<Answer, StatusError> {
    let representation = representation(request, &server.storage())?;
    if representation.accept == Accept::Yaml {
        let text = "only the following media types are accepted: application/json;stream=watch";
        return Err(StatusError::not_acceptable(text));
    }
    let course = server.faults.of_watch(&request.target, request.user.as_deref());
    let options = WatchOptions::parse(&request.query, kind, namespace, course)?;
    let mut watch = Watch::open(server, kind, options, representation)?;
    watch.request = request.id;
    if request.wants_websocket() {
        let response = websocket::handshake(request, Stream::new(watch));
        return Ok(Answer::new(response.status().as_u16(), Content::WebSocket(Box::new(response))));
    }
    Ok(Answer::new(200, Content::Watch(Box::new(watch))))
}

/// Reads a collection, for at most `limit`.
pub(crate) async fn list(
    server: &Server,
    request: &Request,
    kind: &Kind,
    namespace: Option<&str>,
    limit: Option<Duration>,
) -> Result<Answer, StatusError> {
    let list = List::parse(&request.query, kind, namespace)?;
    wait_for(server, list.version, limit).await?;
    let storage = server.storage();
    let page = list.answer(&storage, kind)?;
    listed(request, &storage, kind, &page)
}

/// Reads an object or a subresource, for at most `limit`.
pub(crate) async fn get(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
    target: Target,
    limit: Option<Duration>,
) -> Result<Answer, StatusError> {
    let version = Version::parse(request.query.text("resourceVersion")).map_err(StatusError::internal)?;
    wait_for(server, version, limit).await?;
    let storage = server.storage();
    let object = storage.get(place).ok_or_else(|| StatusError::not_found(kind, place.name()))?;
    shown(request, &storage, kind, target, 200, object)
}

/// Waits until the storage reaches a version, for at most [`watch::FUTURE_WAIT`] or the client's shorter `timeout`.
async fn wait_for(server: &Server, version: Version, limit: Option<Duration>) -> Result<(), StatusError> {
    let wanted = version.at_least();
    let mut written = server.storage().written();
    let reached = async { written.wait_for(|&revision| revision >= wanted).await.is_ok() };
    let limit = limit.filter(|limit| *limit < watch::FUTURE_WAIT);
    match tokio::time::timeout(limit.unwrap_or(watch::FUTURE_WAIT), reached).await {
        Ok(_) => Ok(()),
        Err(_) if limit.is_some() => Err(StatusError::out_of_time()),
        Err(_) => Err(StatusError::version_too_large(wanted, server.storage().revision())),
    }
}

/// Creates an object.
pub(crate) fn create(
    server: &Server,
    request: &Request,
    path: &ResourcePath,
    kind: &Kind,
    admission: Option<&mut Admission>,
) -> Result<Answer, StatusError> {
    let object = request.object_of(kind)?;
    let target = Target::Object(Part::Main);
    let mut options = write_options(request, "CreateOptions", target)?;
    options.admission = admission;
    let mut storage = server.storage_for(request);
    let created = write::create(&mut storage, kind, path.namespace.as_deref(), object, &mut options);
    written(request, &storage, kind, target, created.map(|created| (201, created)), options)
}

/// Replaces an object or a subresource.
pub(crate) fn put(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
    target: Target,
    admission: Option<&mut Admission>,
) -> Result<Answer, StatusError> {
    let mut object = request.object_of(target.sent(kind))?;
    let mut options = write_options(request, "UpdateOptions", target)?;
    options.admission = admission;
    let storage = &mut server.storage_for(request);
    let creates =
        storage.get(place).is_none() && kind.creates_on_put() && target == Target::Object(Part::Main);
    let put = if creates {
        options.create_forbidden = create_forbidden(server, storage, request, &options);
        // Unlike a POST, ignores a version.
        object["metadata"]["resourceVersion"].take();
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

/// The error of a write that creates an object, if its user may not do so; the same for each attempt.
fn create_forbidden(
    server: &Server,
    storage: &Storage,
    request: &Request,
    options: &WriteOptions<'_>,
) -> Option<StatusError> {
    let learn = || server.forbids_create(storage, request);
    match &options.admission {
        Some(admission) => admission.create_forbidden.get_or_init(learn).clone(),
        None => learn(),
    }
}

/// Patches an object or a subresource.
pub(crate) fn patch(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
    target: Target,
    admission: Option<&mut Admission>,
) -> Result<Answer, StatusError> {
    let mut options = write_options(request, "PatchOptions", target)?;
    options.admission = admission;
    options.is_patch = true;
    let applies = request.content_type() == patch::APPLY_PATCH;
    let force = request.query.flag("force");
    let invalid = |cause| Err(StatusError::invalid_options("PatchOptions", vec![cause]));
    if applies && request.query.text("fieldManager").is_empty() {
        return invalid(Cause::required("fieldManager", "is required for apply patch"));
    }
    if !applies && force.is_some() {
        return invalid(Cause::forbidden("force", "may not be specified for non-apply patch"));
    }
    if applies {
        options.manager.applies = true;
        let mut applied = patch::decode_applied(&request.body)?;
        let force = if force == Some(true) { Force::Yes } else { Force::No };
        let storage = &mut server.storage_for(request);
        if storage.get(place).is_none() {
            options.create_forbidden = create_forbidden(server, storage, request, &options);
        }
        let is_scale = target == Target::Scale;
        if is_scale {
            current(storage, kind, place)?;
            applied = scale::applied(kind, &applied)?;
        }
        // kube-apiserver checks for conflicts first, then fails to convert the merged object to a Scale.
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
    let storage = &mut server.storage_for(request);
    let before = current(storage, kind, place)?;
    let object = patched(kind, place, &before, target, &patch, &mut options)?;
    let updated = write::update(storage, kind, place, object, target.part(), &mut options);
    written(request, storage, kind, target, updated.map(|updated| (200, updated)), options)
}

/// Applies a patch to an object.
fn patched(
    kind: &Kind,
    place: &Place,
    before: &Value,
    target: Target,
    patch: &Patch,
    options: &mut WriteOptions<'_>,
) -> Result<Value, StatusError> {
    let sent = target.sent(kind);
    let was = if target == Target::Scale { &scale_of::of(kind, before) } else { before };
    let mut after = was.clone();
    patch.apply(sent, &mut after)?;
    patch.check_decodes(sent, &mut after).map_err(|why| patch.undecodable(&after, &why))?;
    write::check_still(sent, place.name(), &after)?;
    write::check_named(place.name(), &after["metadata"])?;
    if target == Target::Scale {
        after = scale::put(kind, place, before, after, options)?;
    }
    write::check_fixed(kind, place.name(), &after, before)?;
    Ok(after)
}

/// Deletes an object.
pub(crate) fn delete(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
    admission: Option<&mut Admission>,
) -> Result<Answer, StatusError> {
    let deletion = delete_options(request)?;
    let mut storage = server.storage_for(request);
    let mut answer = match delete::admit_and_delete(&mut storage, kind, place, &deletion, admission)? {
        Deleted::Gone(object) if !kind.delete_answers_object() => {
            Answer::json(200, success(kind, place.name(), &object))
        }
        Deleted::Gone(object) => shown(request, &storage, kind, Target::Object(Part::Main), 200, &object)?,
        Deleted::Terminating(object) => {
            let status = if deletion.is_old_cascade { 202 } else { 200 };
            shown(request, &storage, kind, Target::Object(Part::Main), status, &object)?
        }
    };
    answer.warnings.extend(delete::warning(kind, &deletion));
    Ok(answer)
}

/// Evicts a Pod.
pub(crate) fn evict(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
) -> Result<Answer, StatusError> {
    let eviction = request.object("Eviction", "")?;
    let mut deletion = deletion(&eviction["deleteOptions"])?;
    deletion.dry_run |= request.query.dry_run("CreateOptions")?;
    evict_pod(&mut server.storage_for(request), kind, place, &eviction, &deletion)?;
    Ok(created())
}

/// Assigns a Pod to a node.
pub(crate) fn bind(
    server: &Server,
    request: &Request,
    kind: &Kind,
    place: &Place,
) -> Result<Answer, StatusError> {
    let binding = request.object("Binding", "Binding")?;
    decode::check_types(&binding, "Binding").map_err(|why| StatusError::bad_request(&why))?;
    let dry_run = request.query.dry_run("CreateOptions")?;
    bind_pod(&mut server.storage_for(request), kind, place, &binding, dry_run)?;
    Ok(created())
}

/// The answer to a POST that has no object.
fn created() -> Answer {
    Answer::json(
        201,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    )
}

/// Deletes the objects of a list, and answers with the list.
pub(crate) fn delete_collection(
    server: &Server,
    request: &Request,
    kind: &Kind,
    namespace: Option<&str>,
    mut admission: Option<&mut Admission>,
) -> Result<Answer, StatusError> {
    let list = List::parse(&request.query, kind, namespace)?;
    let deletion = delete_options(request)?;
    let mut storage = server.storage_for(request);
    let page = list.answer(&storage, kind)?;
    let places = page.items.iter().map(|object| {
        let metadata = &object["metadata"];
        Place::new(kind.stored_in(), metadata["namespace"].as_str(), text(&metadata["name"]))
    });
    let places: Vec<Place> = places.collect();
    let mut answer = listed(request, &storage, kind, &page)?;
    // Before the first one is deleted, the webhooks have answered for all.
    let admit = |place| delete::admit(&storage, kind, place, &deletion, admission.as_deref_mut());
    let admitted: Vec<_> = places.iter().map(admit).collect();
    if admission.is_some_and(|admission| admission.is_waiting()) {
        return admitted.into_iter().collect::<Result<(), _>>().map(|()| Answer::text(500, ""));
    }
    for (place, admitted) in places.iter().zip(admitted) {
        admitted?;
        delete::delete(&mut storage, kind, place, &deletion)?;
    }
    answer.warnings.extend(delete::warning(kind, &deletion));
    Ok(answer)
}

/// The endpoints that kube-apiserver does not have, for administrators: faults, held requests, the records of requests
/// and writes, and a checkpoint.
pub(crate) async fn own(server: &Server, request: &Request, user: &str) -> Answer {
    let method = request.method.as_str();
    if user != ADMIN {
        let method = method.to_lowercase();
        let message = format!("forbidden: User {user:?} cannot {method} path {:?}", request.path);
        return Answer::refused(StatusError::not_allowed(message, json!({})));
    }
    match (method, &*request.path) {
        ("POST", faults::PATH) if request.body.trim_ascii() == b"help" => Answer::text(200, faults::help()),
        ("POST", faults::PATH) => plan(server, request),
        ("GET", faults::PATH) => Answer::text(200, server.faults.list()),
        ("DELETE", faults::PATH) => {
            server.faults.end();
            Answer::text(200, "all ended\n")
        }
        // Waits until a request is held.
        ("GET", faults::HELD_PATH) => {
            let held = server.faults.held(|requests| requests > 0).await;
            Answer::text(200, format!("{}\n", held.join("\n")))
        }
        ("DELETE", faults::HELD_PATH) => {
            server.faults.release();
            Answer::text(200, "all released\n")
        }
        ("GET", CHECKPOINT_PATH) => Answer::json(200, server.storage().checkpoint().to_json()),
        ("GET", records::REQUESTS_PATH) => {
            let requests = lock(&server.requests);
            let others = requests.iter().filter(|request| !request.path.starts_with(OWN_PATHS));
            Answer::text(200, others.map(RequestRecord::line).collect::<String>())
        }
        ("DELETE", records::REQUESTS_PATH) => {
            lock(&server.requests).clear();
            Answer::text(200, "all dropped\n")
        }
        ("GET", records::WRITES_PATH) => {
            let writes = match request.query.number("since") {
                Ok(Some(since)) => server.all_writes_since(u64::try_from(since).unwrap_or_default()),
                Ok(None) => Ok(server.writes_since(0)),
                Err(error) => Err(error),
            };
            match writes {
                Ok(writes) => Answer::text(200, writes.iter().map(WriteRecord::line).collect::<String>()),
                Err(error) => Answer::refused(error),
            }
        }
        (
            _,
            faults::PATH
            | faults::HELD_PATH
            | CHECKPOINT_PATH
            | records::REQUESTS_PATH
            | records::WRITES_PATH,
        ) => Answer::refused(StatusError::method_not_allowed()),
        _ => Answer::refused(StatusError::no_such_path()),
    }
}

/// Plans the faults in the body.
fn plan(server: &Server, request: &Request) -> Answer {
    let planned = match faults::parse_lines(&request.body) {
        Ok(planned) => planned,
        Err(error) => return Answer::refused(StatusError::bad_request(error)),
    };
    let done = planned.iter().filter(|planned| planned.is_momentary()).count();
    let counts = [(done, "done"), (planned.len() - done, "planned")];
    let counted = counts.iter().filter(|(count, _)| *count > 0);
    let counted: Vec<String> = counted.map(|(count, what)| format!("{count} {what}")).collect();
    planned.into_iter().for_each(|planned| server.fault(planned));
    Answer::text(201, format!("{}\n", counted.join(", ")))
}

/// The object that a patch starts from, in the version of the request.
fn current(storage: &Storage, kind: &Kind, place: &Place) -> Result<Value, StatusError> {
    let object = storage.get(place).ok_or_else(|| StatusError::not_found(kind, place.name()))?;
    Ok(kind.view(object)?.into_owned())
}

fn representation(request: &Request, storage: &Storage) -> Result<Representation, StatusError> {
    let accept = request.accept()?;
    Ok(Representation { accept, include: Include::parse(&request.query)?, clock: storage.clock })
}

fn shown(
    request: &Request,
    storage: &Storage,
    kind: &Kind,
    target: Target,
    status: u16,
    stored: &Value,
) -> Result<Answer, StatusError> {
    let representation = representation(request, storage)?;
    let view = kind.view(stored)?;
    let shown = match target {
        Target::Object(_) => representation.object(kind, view)?.into_owned(),
        Target::Scale => {
            representation.object(&scale_of::KIND, Cow::Owned(scale::read(kind, &view)?))?.into_owned()
        }
    };
    Ok(represented(representation, shown, status))
}

fn represented(representation: Representation, value: Value, status: u16) -> Answer {
    let is_yaml = representation.accept == Accept::Yaml;
    Answer::new(status, if is_yaml { Content::Yaml(value) } else { Content::Json(value) })
}

fn listed(request: &Request, storage: &Storage, kind: &Kind, page: &Page) -> Result<Answer, StatusError> {
    let representation = representation(request, storage)?;
    Ok(represented(representation, representation.list(kind, page)?, 200))
}

/// The answer to a write. An error carries the warnings as well.
fn written(
    request: &Request,
    storage: &Storage,
    kind: &Kind,
    target: Target,
    written: Result<(u16, Arc<Value>), StatusError>,
    options: WriteOptions<'_>,
) -> Result<Answer, StatusError> {
    let mut answer = match written {
        Ok((status, stored)) => shown(request, storage, kind, target, status, &stored)?,
        Err(error) => Answer::refused(error),
    };
    answer.warnings = options.warnings;
    Ok(answer)
}

/// The `Status` with which a delete answers when the object is gone.
fn success(kind: &Kind, name: &str, object: &Value) -> Value {
    let mut details = details(name, &kind.group, &kind.plural);
    details["uid"] = object["metadata"]["uid"].clone();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
