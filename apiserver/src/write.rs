//! Create and update: what happens to an object between a request and the storage.
//!
//! The order is the real one's: names and versions are checked, the server's own fields restored, unknown fields
//! pruned, defaults set, the whole validated, and only if something differs it is written. A write that changes
//! nothing makes no new version and no event.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    addresses,
    apply::{self, Force, Manager},
    crd, delete,
    kinds::{Kind, Rules},
    metadata,
    refusal::{Cause, Refusal},
    schema::{Nulls, prune_object},
    storage::{Place, Storage},
    types::{self, Words},
};

/// How a write was asked for.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// Say what would happen and let nothing happen.
    pub(super) dry_run: bool,
    pub(super) unknown_fields: UnknownFields,
    /// Strict validation of a patch is answered with another code than that of a whole object.
    pub(super) is_patch: bool,
    /// Whose the changed fields are.
    pub(super) manager: Manager,
    /// `Warning` headers for the answer.
    pub(super) warnings: Vec<String>,
}

/// `fieldValidation`: what to do about fields that the schema does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum UnknownFields {
    #[default]
    Warn,
    Ignore,
    Strict,
}

/// Which part of an object an update is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    /// Everything but the status, if that is a subresource.
    Main,
    /// The status alone.
    Status,
    /// `spec.finalizers` of a Namespace.
    Finalize,
    /// `spec.nodeName` of a Pod, which the scheduler sets.
    Binding,
}

/// `metadata` that the server alone writes.
const SERVER_FIELDS: [&str; 6] =
    ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

/// Of the unknown fields of a built-in kind, those that are told. See sigs.k8s.io/json, `saveStrictError`.
const UNKNOWN_FIELDS_MAX: usize = 100;

/// Longest name that the server makes of a `generateName`, before its five letters.
const GENERATED_BASE_MAX: usize = 58;

/// Store a new object, and answer it as stored.
pub(super) fn create(
    storage: &mut Storage,
    kind: &Kind,
    namespace: Option<&str>,
    mut object: Value,
    options: &mut Options,
) -> Result<Arc<Value>, Refusal> {
    check_type(kind, &mut object)?;
    take_namespace(kind, namespace, &mut object)?;
    if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
        return Err(Refusal::internal("resourceVersion should not be set on objects to be created"));
    }
    let name = name_for(storage, kind, namespace, &mut object);
    check_home(storage, kind, namespace, &name)?;

    let now = storage.clock.time();
    let managed = object["metadata"]["managedFields"].take();
    let metadata = &mut object["metadata"];
    let fields = metadata.as_object_mut().map(std::mem::take).unwrap_or_default();
    *metadata = fields.into_iter().filter(|(field, _)| keeps(kind, field)).collect();
    metadata["uid"] = uid().into();
    metadata["creationTimestamp"] = now.into();
    if kind.has_generation() {
        metadata["generation"] = 1.into();
    }
    if kind.has_status
        && kind.built_in() != "Node"
        && let Some(object) = object.as_object_mut()
    {
        // A kubelet says all there is to say of its Node at once.
        object.remove("status");
    }
    prune(kind, &mut object, options)?;
    finish(storage, kind, None, &mut object, managed, options)?;
    if kind.built_in() == "Node" {
        super::builtin::taint_until_ready(&mut object);
    }
    let mut causes = metadata::errors(kind, &object);
    kind.validate(&object, None, &mut causes);
    if !causes.is_empty() {
        return Err(Refusal::invalid(kind, &name, causes));
    }
    options.warnings.extend(metadata::warnings(kind, &object));
    let place = Place::new(kind.stored_in(), namespace, &name);
    if storage.get(&place).is_some() {
        return Err(Refusal::already_exists(kind, &name));
    }
    if options.dry_run {
        return Ok(Arc::new(object));
    }
    Ok(store(storage, kind, &place, object))
}

/// Where nobody counts the generation, it is what its author says.
fn keeps(kind: &Kind, field: &str) -> bool {
    match field {
        "generation" => !kind.has_generation(),
        field => !SERVER_FIELDS.contains(&field) && field != "resourceVersion",
    }
}

/// Replace an object, or one part of it, and answer it as stored.
pub(super) fn update(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    mut object: Value,
    part: Part,
    options: &mut Options,
) -> Result<Arc<Value>, Refusal> {
    let name = place.name();
    check_identity(kind, place, &mut object)?;
    let Some(before) = storage.get(place).cloned() else { return Err(Refusal::not_found(kind, name)) };
    check_version(kind, place, &object, &before)?;
    let before_view = kind.view(&before);
    let managed = object["metadata"]["managedFields"].take();
    options.manager.writes(part);

    let mut after = merged(kind, part, object, &before_view);
    restore_metadata(&mut after["metadata"], &before_view["metadata"]);
    prune(kind, &mut after, options)?;
    if part == Part::Main {
        restore_spec(kind, &mut after, &before_view);
    }
    match part {
        Part::Main | Part::Status => {
            finish(storage, kind, Some(&before_view), &mut after, managed, options)?;
        }
        // Who binds or finalizes owns nothing.
        Part::Finalize | Part::Binding => {}
    }
    let mut causes = metadata::errors(kind, &after);
    causes.extend(new_finalizers(&before, &after));
    kind.validate(&after, Some(&before_view), &mut causes);
    if !causes.is_empty() {
        return Err(Refusal::invalid(kind, name, causes));
    }
    options.warnings.extend(metadata::warnings(kind, &after));
    to_storage(kind, &mut after);
    if kind.has_generation() && part == Part::Main && differs_beyond_metadata(kind, &before, &after) {
        let generation = before["metadata"]["generation"].as_u64().unwrap_or(0) + 1;
        after["metadata"]["generation"] = generation.into();
    }
    if apply::is_same(&before, &after) {
        return Ok(before);
    }
    if options.dry_run {
        return Ok(Arc::new(after));
    }
    // The write that takes away the last finalizer of an object that is being deleted is its end. No version is made
    // of it: watchers see one DELETED, with the finalizer still listed, and the writer sees the old version.
    if is_terminating(&after) && holds_nothing(kind, &after) {
        remove(storage, kind, place);
        return Ok(Arc::new(after));
    }
    Ok(store(storage, kind, place, after))
}

/// What an object becomes when one part of it is written: the other parts stay as they were.
fn merged(kind: &Kind, part: Part, mut written: Value, before: &Value) -> Value {
    match part {
        Part::Main => {
            if kind.has_status {
                restore(&mut written, before, "status");
            }
            written
        }
        // Of a built-in kind a write to the status can also carry annotations: so the Deployment controller
        // writes its revision.
        Part::Status if !kind.is_custom() => {
            for field in ["spec", "data"] {
                restore(&mut written, before, field);
            }
            restore(&mut written["metadata"], &before["metadata"], "labels");
            written
        }
        Part::Status => {
            let mut after = before.clone();
            after["status"] = written["status"].take();
            after
        }
        Part::Finalize => {
            let mut after = before.clone();
            after["spec"]["finalizers"] = written["spec"]["finalizers"].take();
            after
        }
        Part::Binding => {
            let mut after = before.clone();
            after["spec"]["nodeName"] = written["spec"]["nodeName"].take();
            after
        }
    }
}

/// Server-side apply. Answers whether the object is new, and what it is now.
pub(super) fn apply(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    mut applied: Value,
    part: Part,
    force: Force,
    options: &mut Options,
) -> Result<(Applied, Arc<Value>), Refusal> {
    apply::check(kind, &applied)?;
    // Before it is merged, for which its lists may be too long.
    kind.check_types(&applied, Words::Json).map_err(|why| kind.undecodable(&why))?;
    options.manager.writes(part);
    leave_part(kind, part, &mut applied);
    let (name, now) = (place.name(), storage.clock.time());
    let live = storage.get(place).map(|live| kind.view(live).into_owned());
    let metadata = &applied["metadata"];
    let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
    let Some(live) = live else {
        if part != Part::Main {
            return Err(Refusal::not_found(kind, name));
        }
        if !uid.is_empty() {
            let text = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Refusal::cannot_fulfil(kind, name, &text));
        }
        let theirs = metadata["name"].as_str().unwrap_or_default();
        check_named(name, metadata)?;
        check_name(name, theirs)?;
        let mut object = apply::apply(kind, None, &applied, &options.manager, force, &now)?;
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        let object = create(storage, kind, place.namespace(), object, options)?;
        return Ok((Applied::Created, object));
    };
    let object = apply::apply(kind, Some(&live), &applied, &options.manager, force, &now)?;
    check_fixed(kind, name, &object, &live)?;
    Ok((Applied::Updated, update(storage, kind, place, object, part, options)?))
}

/// What an apply did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Applied {
    Created,
    Updated,
}

/// Of what is applied to one part of an object, the other parts do not count: `GetResetFields` of the real one.
fn leave_part(kind: &Kind, part: Part, applied: &mut Value) {
    let Some(applied) = applied.as_object_mut() else { return };
    let identity = ["name", "namespace", "uid", "resourceVersion"];
    match (part, applied.get_mut("metadata").and_then(Value::as_object_mut)) {
        (Part::Status, Some(metadata)) if kind.is_custom() => {
            metadata.retain(|field, _| identity.contains(&field.as_str()));
        }
        (Part::Status, Some(metadata)) => {
            metadata.remove("labels");
        }
        _ => {}
    }
    match part {
        Part::Main if kind.has_status => {
            applied.remove("status");
        }
        Part::Status if kind.is_custom() => {
            applied
                .retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
        }
        Part::Status => {
            applied.remove("spec");
        }
        Part::Main | Part::Finalize | Part::Binding => {}
    }
}

/// What is written must be what the path says.
pub(super) fn check_identity(kind: &Kind, place: &Place, object: &mut Value) -> Result<(), Refusal> {
    check_type(kind, object)?;
    take_namespace(kind, place.namespace(), object)?;
    let name = place.name();
    check_named(name, &object["metadata"])?;
    check_name(name, object["metadata"]["name"].as_str().unwrap_or_default())
}

/// An object must say itself who it is.
pub(super) fn check_named(name: &str, metadata: &Value) -> Result<(), Refusal> {
    if metadata["name"].as_str().is_some_and(|theirs| !theirs.is_empty()) {
        return Ok(());
    }
    let text =
        format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
    Err(Refusal::bad_request(text))
}

fn check_name(name: &str, theirs: &str) -> Result<(), Refusal> {
    if theirs == name {
        return Ok(());
    }
    let text = format!("the name of the object ({theirs}) does not match the name on the URL ({name})");
    Err(Refusal::bad_request(text))
}

/// No patch makes another version of a custom resource.
pub(super) fn check_still(kind: &Kind, name: &str, after: &Value) -> Result<(), Refusal> {
    let (theirs, ours) = (after["apiVersion"].as_str().unwrap_or_default(), kind.api_version());
    if !kind.is_custom() || theirs == ours {
        return Ok(());
    }
    if theirs.is_empty() {
        let why = "Object 'apiVersion' is missing in 'object has no apiVersion field'";
        return Err(Refusal::went_wrong(why));
    }
    let group = theirs.split_once('/').map_or("", |(group, _)| group);
    let cause = Cause::invalid("apiVersion", &theirs.into(), &format!("must be {ours}"));
    Err(Refusal::invalid_as(group, &kind.kind, name, vec![cause]))
}

/// What no patch can change. The real one finds it twice.
pub(super) fn check_fixed(kind: &Kind, name: &str, after: &Value, before: &Value) -> Result<(), Refusal> {
    for field in ["uid", "deletionTimestamp"] {
        let pointer = format!("/metadata/{field}");
        let value = after.pointer(&pointer).unwrap_or(&Value::Null);
        if !value.is_null() && Some(value) != before.pointer(&pointer) {
            let cause = Cause::invalid(format!("metadata.{field}"), value, "field is immutable");
            return Err(Refusal::invalid(kind, name, vec![cause.clone(), cause]));
        }
    }
    Ok(())
}

fn check_version(kind: &Kind, place: &Place, object: &Value, before: &Value) -> Result<(), Refusal> {
    let (name, metadata) = (place.name(), &object["metadata"]);
    match metadata["resourceVersion"].as_str().unwrap_or_default() {
        "" | "0" if kind.needs_version() => return Err(Refusal::version_required(kind, name)),
        "" | "0" => {}
        version => {
            if version.parse::<u64>().is_err() {
                let text = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
                return Err(Refusal::internal(text));
            }
            if before["metadata"]["resourceVersion"] != version {
                return Err(Refusal::conflict(kind, name));
            }
        }
    }
    let (uid, real) = (metadata["uid"].as_str().unwrap_or_default(), &before["metadata"]["uid"]);
    if !uid.is_empty() && real != uid {
        let real = real.as_str().unwrap_or_default();
        let group = if kind.is_custom() { format!("{}/", kind.group) } else { String::new() };
        let text = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
            Precondition failed: UID in precondition: {uid}, UID in object meta: {real}",
            kind.plural, place.key
        );
        return Err(Refusal::cannot_fulfil(kind, name, &text));
    }
    Ok(())
}

/// kind and apiVersion, which a built-in kind may leave out.
fn check_type(kind: &Kind, object: &mut Value) -> Result<(), Refusal> {
    if !object.is_object() {
        return Err(Refusal::bad_request("the object provided is unrecognized: it is not a JSON object"));
    }
    let (api_version, wanted) = (object["apiVersion"].as_str().unwrap_or_default(), kind.api_version());
    let (a_kind, name) = (object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"].as_str());
    match kind.is_custom() {
        true if api_version != wanted => {
            let text = format!(
                "the API version in the data ({api_version}) does not match the expected API version ({wanted})"
            );
            Err(Refusal::bad_request(text))
        }
        true if a_kind != kind.kind => Err(Refusal::wrong_kind(kind, a_kind, name.unwrap_or_default())),
        false if !types::definition(a_kind).is_object() && !a_kind.is_empty() => {
            let (version, kind) = (&kind.version, &kind.kind);
            let why = unregistered(a_kind, if api_version.is_empty() { &wanted } else { api_version });
            let text = format!("{a_kind} in version {version:?} cannot be handled as a {kind}: {why}");
            Err(Refusal::bad_request(text))
        }
        false if !a_kind.is_empty() && a_kind != kind.kind => {
            let internal = kind.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
            let (version, kind) = (&kind.version, &kind.kind);
            let text = format!(
                "{a_kind} in version \"{version}\" cannot be handled as a {kind}: converting ({version}.{a_kind}) to \
                ({internal}.{kind}): unknown conversion"
            );
            Err(Refusal::bad_request(text))
        }
        false if !api_version.is_empty() && api_version != wanted => {
            let (version, kind) = (api_version.rsplit('/').next().unwrap_or_default(), &kind.kind);
            let why = unregistered(kind, api_version);
            let text = format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}");
            Err(Refusal::bad_request(text))
        }
        true | false => {
            object["apiVersion"] = wanted.into();
            object["kind"] = kind.kind.as_str().into();
            kind.check_types(object, Words::Json).map_err(|why| kind.undecodable(&why))?;
            if object["metadata"].is_null() {
                object["metadata"] = json!({});
            }
            Ok(())
        }
    }
}

/// What the decoder of built-in kinds says of one that it does not know.
pub(super) fn unregistered(kind: &str, api_version: &str) -> String {
    format!(
        "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
    )
}

fn take_namespace(kind: &Kind, namespace: Option<&str>, object: &mut Value) -> Result<(), Refusal> {
    let metadata = &mut object["metadata"];
    let theirs = metadata["namespace"].as_str().unwrap_or_default();
    let ours = namespace.unwrap_or_default();
    if !theirs.is_empty() && theirs != ours {
        let text = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(text));
    }
    match (kind.namespaced, metadata.as_object_mut()) {
        (true, Some(metadata)) => metadata.insert("namespace".to_owned(), ours.into()),
        (false, Some(metadata)) => metadata.remove("namespace"),
        (_, None) => None,
    };
    Ok(())
}

/// The name of a new object: its own, or one made of `generateName`.
fn name_for(storage: &Storage, kind: &Kind, namespace: Option<&str>, object: &mut Value) -> String {
    let metadata = &mut object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let base = metadata["generateName"].as_str().unwrap_or_default().to_owned();
    if !name.is_empty() || base.is_empty() {
        return name;
    }
    let base: String = base.chars().take(GENERATED_BASE_MAX).collect();
    loop {
        let name = format!("{base}{}", random_letters());
        if storage.get(&Place::new(kind.stored_in(), namespace, &name)).is_none() {
            metadata["name"] = name.as_str().into();
            return name;
        }
    }
}

/// Those of which no words come about.
pub(super) const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Five characters as the real server appends them: no vowels, so that no words appear.
pub(super) fn random_letters() -> String {
    (0..5).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}

/// A random uid: RFC 9562, version 4.
pub(super) fn uid() -> String {
    let bits = fastrand::u128(..);
    let hex = format!("{:032x}", bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62));
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Whether the namespace is there and takes new objects; and whether the CRD does.
fn check_home(storage: &Storage, kind: &Kind, namespace: Option<&str>, name: &str) -> Result<(), Refusal> {
    if let Some(namespace) = namespace {
        let namespaces = storage.kinds.built_in("", "namespaces");
        let Some(home) = storage.get(&Place::new("namespaces", None, namespace)) else {
            return Err(Refusal::not_found(&namespaces, namespace));
        };
        if is_terminating(home) {
            return Err(Refusal::namespace_terminating(kind, name, namespace));
        }
    }
    if let Rules::Custom(custom) = &kind.rules {
        let place = Place::new("customresourcedefinitions.apiextensions.k8s.io", None, &custom.definition);
        if storage.get(&place).is_some_and(|crd| is_terminating(crd)) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Refusal::forbidden(kind, name, why));
        }
    }
    Ok(())
}

fn restore(after: &mut Value, before: &Value, field: &str) {
    let Some(after) = after.as_object_mut() else { return };
    match before.get(field) {
        Some(value) => after.insert(field.to_owned(), value.clone()),
        None => after.remove(field),
    };
}

fn restore_metadata(after: &mut Value, before: &Value) {
    for field in SERVER_FIELDS {
        restore(after, before, field);
    }
    for field in ["resourceVersion", "generateName", "name", "namespace", "managedFields"] {
        restore(after, before, field);
    }
}

/// What a main update cannot change, or keeps if it is not named.
fn restore_spec(kind: &Kind, after: &mut Value, before: &Value) {
    if kind.built_in() == "Namespace" {
        restore_in(after, before, "spec", &["finalizers"]);
    }
}

fn restore_in(after: &mut Value, before: &Value, part: &str, fields: &[&str]) {
    for field in fields {
        restore(&mut after[part], &before[part], field);
    }
}

/// Drop or refuse what the schema does not know.
pub(super) fn prune(kind: &Kind, object: &mut Value, options: &mut Options) -> Result<(), Refusal> {
    let mut unknown = prune_object(object, kind.schema());
    if !kind.is_custom() {
        unknown.truncate(UNKNOWN_FIELDS_MAX);
    }
    if options.unknown_fields == UnknownFields::Ignore {
        return Ok(());
    }
    options.warnings.extend(unknown.iter().map(|field| format!("unknown field \"{field}\"")));
    match options.unknown_fields {
        UnknownFields::Ignore | UnknownFields::Warn => {}
        UnknownFields::Strict if options.warnings.is_empty() => {}
        UnknownFields::Strict => {
            let errors = std::mem::take(&mut options.warnings).join(", ");
            let why = format!("strict decoding error: {errors}");
            return Err(if options.is_patch {
                Refusal::bad_patch(&object.to_string(), &why)
            } else {
                kind.undecodable(&why)
            });
        }
    }
    Ok(())
}

/// Defaults, who set what, and then what only the server can give: the address of a Service is no one's.
fn finish(
    storage: &Storage,
    kind: &Kind,
    before: Option<&Value>,
    object: &mut Value,
    managed: Value,
    options: &Options,
) -> Result<(), Refusal> {
    kind.normalize(object);
    let nulls = if options.manager.applies { Nulls::Kept } else { Nulls::Dropped };
    kind.set_defaults(object, nulls)?;
    // Go writes down a list that there is not, where nobody thought of leaving it out.
    if kind.built_in() == "CustomResourceDefinition" && object["status"]["conditions"].is_null() {
        object["status"]["conditions"] = Value::Null;
    }
    apply::track(kind, before, object, managed, &options.manager, &storage.clock.time());
    if kind.group == "events.k8s.io" {
        super::builtin::event_as_core(object);
    }
    if kind.built_in() == "Service" {
        let causes = addresses::settle(storage, before, object, options.dry_run)?;
        if !causes.is_empty() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(Refusal::invalid(kind, name, causes));
        }
    }
    Ok(())
}

fn to_storage(kind: &Kind, object: &mut Value) {
    match &kind.rules {
        Rules::Custom(custom) => custom.to_storage(object),
        Rules::BuiltIn(_) => {}
    }
}

pub(super) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Who is on the way out gets no new finalizer.
fn new_finalizers(before: &Value, after: &Value) -> Option<Cause> {
    if !is_terminating(before) {
        return None;
    }
    let old = finalizers(before);
    let new: Vec<&str> = finalizers(after).into_iter().filter(|one| !old.contains(one)).collect();
    if new.is_empty() {
        return None;
    }
    let list: Vec<String> = new.iter().map(|one| format!("{one:?}")).collect();
    let text = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        list.join(", ")
    );
    Some(Cause::forbidden("metadata.finalizers", &text))
}

/// Whether the generation moves: not for metadata, nor for a status that is a subresource.
fn differs_beyond_metadata(kind: &Kind, before: &Value, after: &Value) -> bool {
    let same = Map::new();
    let (before, after) = (before.as_object().unwrap_or(&same), after.as_object().unwrap_or(&same));
    let counts = |field: &str| field != "metadata" && !(field == "status" && kind.has_status);
    let part = |map: &Map<String, Value>| -> Map<String, Value> {
        map.iter()
            .filter(|(field, _)| counts(field))
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect()
    };
    // The Deployment controller reads annotations, so they count there.
    let annotations =
        |map: &Map<String, Value>| map.get("metadata").map(|metadata| metadata["annotations"].clone());
    part(before) != part(after)
        || (kind.built_in() == "Deployment" && annotations(before) != annotations(after))
}

pub(super) fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Nothing keeps a terminating object: no finalizer, no grace period that is still to pass.
pub(super) fn holds_nothing(kind: &Kind, object: &Value) -> bool {
    let spec_finalizers = kind.built_in() == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    finalizers(object).is_empty() && !spec_finalizers && grace == 0
}

pub(super) fn store(storage: &mut Storage, kind: &Kind, place: &Place, mut object: Value) -> Arc<Value> {
    to_storage(kind, &mut object);
    let before = storage.get(place).cloned();
    let stored = storage.put(place, object);
    if kind.built_in() == "CustomResourceDefinition" {
        crd::written(storage, place, before.as_deref());
    }
    stored
}

pub(super) fn remove(storage: &mut Storage, kind: &Kind, place: &Place) {
    let before = storage.get(place).cloned();
    storage.remove(place);
    if kind.built_in() == "CustomResourceDefinition" {
        crd::written(storage, place, before.as_deref());
    }
    if let Rules::Custom(custom) = &kind.rules {
        delete::finish_crd(storage, &custom.definition);
    }
}
