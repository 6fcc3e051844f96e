//! Create, update (PUT, and PATCH after `patch.rs`) and apply: the steps between a request and the storage, with the 409s for
//! an old resourceVersion and for a name that exists.
//!
//! The order is as in kube-apiserver: check names and versions, restore the fields that only the server writes, prune
//! unknown fields, set defaults, validate. Then the object is stored, but only if it differs from the stored one: a
//! write without a change makes no new version and no event.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    admission::{Admission, matching::Write, plugins, quotas},
    apply::managed_fields::{self, Force, Manager},
    kinds::{
        Kind, Part, Source, cluster_ip,
        conversion::take_missing,
        crd, defaults,
        field_checks::text,
        metadata::{self, finalizers, holds_nothing, is_terminating},
        pods::resize,
        scale_of, warnings,
    },
    names::{random_letters, uid},
    schema::{openapi, prune_object},
    status::{Cause, StatusError},
    storage::{Place, Storage},
    verbs::{
        put_status::put_status,
        store::{remove, store, to_storage},
    },
};

/// The options of a write.
#[derive(Default)]
pub(crate) struct WriteOptions<'a> {
    /// Return the result without storing it.
    pub(crate) dry_run: bool,
    pub(crate) unknown_fields: UnknownFields,
    /// A patch: its strict validation errors have a code of their own.
    pub(crate) is_patch: bool,
    /// The error of an apply or a PUT that may only change an object, and creates one. Errors of validation come first.
    pub(crate) create_forbidden: Option<StatusError>,
    /// The manager that owns the changed fields.
    pub(crate) manager: Manager,
    /// Filled during the write, and sent as `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// The webhooks to ask, if there are any. Writes of controllers do not ask them.
    pub(crate) admission: Option<&'a mut Admission>,
}

impl WriteOptions<'_> {
    /// The time of the write, which is the same in each attempt.
    fn now(&self, storage: &Storage) -> String {
        self.admission.as_ref().map_or_else(|| storage.clock.time(), |admission| admission.now.clone())
    }

    /// The seed of the random numbers of the write, which are the same in each attempt.
    fn seed(&self) -> u64 {
        self.admission.as_ref().map_or_else(|| fastrand::u64(..), |admission| admission.seed)
    }

    /// Random letters for a name, which are the same in each attempt.
    fn letters(&self) -> String {
        self.admission.as_ref().map_or_else(random_letters, |admission| admission.letters.clone())
    }

    fn writes_scale(&self) -> bool {
        self.manager.subresource == "scale"
    }

    /// Asks the webhooks that may change an object.
    fn mutate(
        &mut self,
        storage: &Storage,
        kind: &Kind,
        object: &mut Value,
        before: &Value,
    ) -> Result<bool, StatusError> {
        match &mut self.admission {
            Some(admission) => admission.mutate(storage, kind, object, before),
            None => Ok(false),
        }
    }

    /// Asks the webhooks that accept or refuse an object.
    fn validate(
        &mut self,
        storage: &Storage,
        kind: &Kind,
        object: &Value,
        before: &Value,
    ) -> Result<(), StatusError> {
        match &mut self.admission {
            Some(admission) => admission.validate(storage, Write { kind, object, before }),
            None => Ok(()),
        }
    }
}

/// `fieldValidation`: how to handle fields that are not in the schema.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum UnknownFields {
    #[default]
    Warn,
    Ignore,
    Strict,
}

/// Fields of `metadata` that only the server writes.
const SERVER_FIELDS: [&str; 6] =
    ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

/// Most unknown fields of a built-in kind that are reported. See sigs.k8s.io/json, `saveStrictError`.
const UNKNOWN_FIELDS_MAX: usize = 100;

/// Longest prefix of a generated name, before the five random letters.
const GENERATED_BASE_MAX: usize = 58;

/// Stores a new object, and returns it as stored.
pub(crate) fn create(
    storage: &mut Storage,
    kind: &Kind,
    namespace: Option<&str>,
    mut object: Value,
    options: &mut WriteOptions<'_>,
) -> Result<Arc<Value>, StatusError> {
    check_type(kind, &mut object)?;
    take_namespace(kind, namespace, &mut object)?;
    let version = object["metadata"]["resourceVersion"].take();
    let is_generated = text(&object["metadata"]["name"]).is_empty();
    let mut name = name_for(storage, kind, namespace, &mut object, options);
    check_home(storage, kind, namespace, &name)?;

    // A create drops the status. A Node keeps it, because the kubelet sends it with the Node.
    let drops_status = kind.has_status && kind.built_in() != "Node";
    // The status of a built-in kind is reset, so it has defaults. That of a custom resource is dropped together with its defaults.
    if drops_status && !kind.is_custom() {
        restore(&mut object, &Value::Null, "status");
    }
    decode(kind, &mut object, options)?;
    if drops_status && kind.is_custom() {
        restore(&mut object, &Value::Null, "status");
    }
    let now = options.now(storage);
    let managed = object["metadata"]["managedFields"].take();
    let metadata = &mut object["metadata"];
    let fields = metadata.as_object_mut().map(std::mem::take).unwrap_or_default();
    *metadata = fields.into_iter().filter(|(field, _)| keeps(kind, field)).collect();
    metadata["uid"] = options.admission.as_ref().map_or_else(uid, |admission| admission.uid.clone()).into();
    metadata["creationTimestamp"] = now.into();
    if kind.has_generation() {
        metadata["generation"] = 1.into();
    }
    finish(storage, kind, None, &mut object, managed, options)?;
    let forbidden = |name: &str, why: String| StatusError::forbidden(kind, name, &why);
    let letters = options.letters();
    plugins::admit(storage, kind, &mut object, &letters).map_err(|why| forbidden(&name, why))?;
    if mutate_new(storage, kind, &mut object, is_generated, options)? {
        take_namespace(kind, namespace, &mut object)?;
        text(&object["metadata"]["name"]).clone_into(&mut name);
        plugins::admit(storage, kind, &mut object, &letters).map_err(|why| forbidden(&name, why))?;
    }
    options.warnings.extend(defaults::prepare(kind.built_in(), &mut object));
    settle_cluster_ip(storage, kind, None, &mut object, options)?;
    let mut causes = metadata::errors(kind, &object);
    kind.validate(&object, None, &mut causes);
    if !causes.is_empty() {
        return Err(StatusError::invalid(kind, &name, causes));
    }
    options.warnings.extend(warnings(kind, &object, None));
    if let Some(error) = options.create_forbidden.take() {
        return Err(error);
    }
    options.warnings.extend(plugins::validate(storage, kind, &object, None)?);
    options.validate(storage, kind, &object, &Value::Null)?;
    let charged = quotas::admit(storage, kind, &object, None).map_err(|why| forbidden(&name, why))?;
    let place = Place::new(kind.stored_in(), namespace, &name);
    // Of a dry run, the version that the client sent is neither checked nor dropped.
    let is_version =
        version.as_str().and_then(|text| text.parse().ok()).is_some_and(|version: u64| version > 0);
    if is_version && !options.dry_run {
        return Err(StatusError::internal("resourceVersion should not be set on objects to be created"));
    }
    if storage.get(&place).is_some() {
        return Err(StatusError::already_exists(kind, &name));
    }
    to_storage(kind, &mut object)?;
    if options.dry_run {
        if is_version {
            object["metadata"]["resourceVersion"] = version;
        }
        return Ok(Arc::new(object));
    }
    put_quotas(storage, charged);
    Ok(store(storage, kind, &place, object))
}

/// Stores the quotas that a write has charged.
fn put_quotas(storage: &mut Storage, charged: Vec<Value>) {
    for quota in charged {
        let (kind, metadata) = (storage.kinds.built_in("", "resourcequotas"), &quota["metadata"]);
        let place = Place::new(kind.stored_in(), metadata["namespace"].as_str(), text(&metadata["name"]));
        put_status(storage, &kind, &place, quota);
    }
}

/// Lets webhooks change a new object, which does not have its generated parts yet. True if one has changed it, perhaps its name.
fn mutate_new(
    storage: &Storage,
    kind: &Kind,
    object: &mut Value,
    is_generated: bool,
    options: &mut WriteOptions<'_>,
) -> Result<bool, StatusError> {
    if options.admission.is_none() {
        return Ok(false);
    }
    let mut shown = object.clone();
    if kind.built_in() == "Job" {
        defaults::label_as_template(&mut shown);
    }
    let metadata = &object["metadata"];
    let hidden = [
        ("uid", true),
        ("creationTimestamp", true),
        ("generation", kind.has_generation()),
        ("name", is_generated),
    ];
    let hidden: Vec<&str> =
        hidden.iter().filter(|(_, is_hidden)| *is_hidden).map(|(field, _)| *field).collect();
    for field in &hidden {
        restore(&mut shown["metadata"], &Value::Null, field);
    }
    if !options.mutate(storage, kind, &mut shown, &Value::Null)? {
        return Ok(false);
    }
    let is_named = !text(&shown["metadata"]["name"]).is_empty();
    for field in hidden.into_iter().filter(|field| *field != "name" || !is_named) {
        restore(&mut shown["metadata"], metadata, field);
    }
    if let Some(object) = shown.as_object_mut().filter(|_| object["status"].is_null()) {
        object.remove("status");
    }
    *object = shown;
    complete(kind, object);
    Ok(true)
}

/// Completes an object that webhooks have changed.
fn complete(kind: &Kind, object: &mut Value) {
    prune_object(object, kind.schema());
    if let Source::BuiltIn(entry) = &kind.source {
        (entry.to_stored)(object);
    }
}

/// Lets webhooks change an updated object, or its Scale.
fn mutate_updated(
    storage: &Storage,
    kind: &Kind,
    after: &mut Value,
    before: &Value,
    part: Part,
    options: &mut WriteOptions<'_>,
) -> Result<(), StatusError> {
    let (of, [mut shown, was]) = sent(kind, [after, before], options);
    if !options.mutate(storage, of, &mut shown, &was)? {
        return Ok(());
    }
    match kind.scale.as_ref().filter(|_| options.writes_scale()) {
        Some(paths) => {
            let replicas = shown["spec"]["replicas"].as_i64().unwrap_or(0);
            after.pointer_mut(&paths.spec).into_iter().for_each(|place| *place = replicas.into());
        }
        None => {
            *after = merged(kind, part, shown, after);
            check_fixed(kind, text(&before["metadata"]["name"]), after, before)?;
            for field in SERVER_FIELDS.iter().chain(&["name", "namespace"]) {
                restore(&mut after["metadata"], &before["metadata"], field);
            }
            complete(kind, after);
        }
    }
    Ok(())
}

/// The objects of a write as its client sees them: each object, or its Scale; and their kind.
fn sent<'k>(kind: &'k Kind, objects: [&Value; 2], options: &WriteOptions<'_>) -> (&'k Kind, [Value; 2]) {
    if options.writes_scale() {
        return (&scale_of::KIND, objects.map(|object| scale_of::of(kind, object)));
    }
    (kind, objects.map(Value::clone))
}

/// Whether a create keeps the client's value. Kinds without a generation counter keep the client's `generation`.
fn keeps(kind: &Kind, field: &str) -> bool {
    match field {
        "generation" => !kind.has_generation(),
        field => !SERVER_FIELDS.contains(&field) && field != "resourceVersion",
    }
}

/// Replaces an object or one part of it, and returns it as stored.
pub(crate) fn update(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    mut object: Value,
    part: Part,
    options: &mut WriteOptions<'_>,
) -> Result<Arc<Value>, StatusError> {
    let name = place.name();
    check_identity(kind, place, &mut object)?;
    let Some(before) = storage.get(place).cloned() else { return Err(StatusError::not_found(kind, name)) };
    check_version(kind, place, &object, &before)?;
    let before_view = kind.view(&before)?;
    let grace = fixed_grace(&object, &before_view);
    let mut after = changed(storage, kind, object, &before_view, part, options)?;
    let mut causes = metadata::errors(kind, &after);
    causes.extend(new_finalizers(&before, &after));
    causes.extend(grace);
    match part {
        Part::Resize => causes.extend(resize::errors(&after, &before_view)),
        Part::Main | Part::Status | Part::Finalize => {
            kind.validate(&after, Some(&before_view), &mut causes);
        }
    }
    if !causes.is_empty() {
        return Err(StatusError::invalid(kind, name, causes));
    }
    let may_use_more = matches!(part, Part::Main | Part::Resize);
    if kind.has_generation() && may_use_more && differs_beyond_metadata(kind, &before_view, &after) {
        let generation = before["metadata"]["generation"].as_u64().unwrap_or(0) + 1;
        after["metadata"]["generation"] = generation.into();
    }
    match part {
        Part::Main => {
            options.warnings.extend(warnings(kind, &after, Some(&before_view)));
            options.warnings.extend(plugins::validate(storage, kind, &after, Some(&before_view))?);
        }
        Part::Status => options.warnings.extend(warnings::of_status(kind, &after)),
        Part::Resize => plugins::resize(storage, kind, &after, &before_view)?,
        Part::Finalize => {}
    }
    if options.admission.is_some() {
        let (of, [shown, was]) = sent(kind, [&after, &before_view], options);
        options.validate(storage, of, &shown, &was)?;
    }
    let mut charged = Vec::new();
    if may_use_more {
        let result = quotas::admit(storage, kind, &after, Some(&before_view));
        charged = result.map_err(|why| StatusError::forbidden(kind, name, &why))?;
    }
    to_storage(kind, &mut after)?;
    if managed_fields::is_same(&before, &after) {
        return Ok(before);
    }
    if options.dry_run {
        return Ok(Arc::new(after));
    }
    // A write that removes the last finalizer of a terminating object deletes it, without storing a new version.
    // Watchers get one DELETED event that still lists the finalizer; the answer has the old resourceVersion.
    if is_terminating(&after) && holds_nothing(kind, &after) {
        remove(storage, kind, place);
        return Ok(Arc::new(after));
    }
    put_quotas(storage, charged);
    Ok(store(storage, kind, place, after))
}

/// The object after an update of one part, before its validation.
fn changed(
    storage: &Storage,
    kind: &Kind,
    mut object: Value,
    before: &Value,
    part: Part,
    options: &mut WriteOptions<'_>,
) -> Result<Value, StatusError> {
    // An empty list clears the managedFields, except in the unstructured objects of custom resources.
    if !kind.is_custom() && object["metadata"]["managedFields"] == json!([]) {
        object["metadata"]["managedFields"] = json!([{}]);
    }
    // A Scale was decoded already, and the other fields of its object stay as they are.
    if part != Part::Finalize && !options.writes_scale() {
        decode(kind, &mut object, options)?;
    }
    let managed = object["metadata"]["managedFields"].take();
    options.manager.writes(part);

    let mut after = merged(kind, part, object, before);
    restore_metadata(&mut after["metadata"], &before["metadata"]);
    if part == Part::Main && kind.built_in() == "Namespace" {
        restore(&mut after["spec"], &before["spec"], "finalizers");
    }
    // A write to `finalize` does not change managedFields.
    if part != Part::Finalize {
        finish(storage, kind, Some(before), &mut after, managed, options)?;
    }
    if options.admission.is_some() {
        mutate_updated(storage, kind, &mut after, before, part, options)?;
    }
    match part {
        Part::Main => settle_cluster_ip(storage, kind, Some(before), &mut after, options)?,
        // The managers of the other fields in the request have changed, as in kube-apiserver.
        Part::Resize => {
            plugins::admit_resize(storage, &mut after);
            after = resize::resized(after, before);
        }
        Part::Status | Part::Finalize => {}
    }
    Ok(after)
}

/// The object after a write of one part: all other parts stay as they were.
fn merged(kind: &Kind, part: Part, mut written: Value, before: &Value) -> Value {
    match part {
        Part::Main | Part::Resize => {
            if kind.has_status {
                restore(&mut written, before, "status");
            }
            written
        }
        // For built-in kinds, a write to the status can also change metadata: the Deployment controller writes its revision
        // that way. Two kinds keep a field of it, as their strategies do in kube-apiserver.
        Part::Status if !kind.is_custom() => {
            for field in ["spec", "data"] {
                restore(&mut written, before, field);
            }
            match kind.built_in() {
                "Deployment" => restore(&mut written["metadata"], &before["metadata"], "labels"),
                "Pod" => restore(&mut written["metadata"], &before["metadata"], "ownerReferences"),
                _ => {}
            }
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
    }
}

/// Server-side apply. Returns the object, and whether it is new.
pub(crate) fn apply(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    mut applied: Value,
    part: Part,
    force: Force,
    options: &mut WriteOptions<'_>,
) -> Result<(Applied, Arc<Value>), StatusError> {
    managed_fields::check(kind, &applied)?;
    // Checks the types before the merge, because the merge of too long lists takes too long.
    kind.check_types(&applied).map_err(|why| kind.undecodable(&why))?;
    options.manager.writes(part);
    leave_part(kind, part, &mut applied);
    let (name, now) = (place.name(), options.now(storage));
    let live = match storage.get(place) {
        Some(live) => Some(kind.view(live)?.into_owned()),
        None => None,
    };
    let metadata = &applied["metadata"];
    let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
    let Some(live) = live else {
        if part != Part::Main {
            return Err(StatusError::not_found(kind, name));
        }
        if !uid.is_empty() {
            let text = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(StatusError::cannot_fulfil(kind, name, &text));
        }
        check_name(name, metadata)?;
        let mut object = managed_fields::apply(kind, None, &applied, &options.manager, force, &now)?;
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        let object = create(storage, kind, place.namespace(), object, options)?;
        return Ok((Applied::Created, object));
    };
    let object = managed_fields::apply(kind, Some(&live), &applied, &options.manager, force, &now)?;
    check_fixed(kind, name, &object, &live)?;
    Ok((Applied::Updated, update(storage, kind, place, object, part, options)?))
}

/// The effect of an apply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Applied {
    Created,
    Updated,
}

/// Removes the fields that this endpoint ignores in an applied object: `GetResetFields` of kube-apiserver.
fn leave_part(kind: &Kind, part: Part, applied: &mut Value) {
    let Some(applied) = applied.as_object_mut() else { return };
    match part {
        Part::Main if kind.has_status => {
            applied.remove("status");
        }
        Part::Status if kind.is_custom() => {
            applied.retain(|field, _| ["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()));
            if let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut) {
                let identity = ["name", "namespace", "uid", "resourceVersion"];
                metadata.retain(|field, _| identity.contains(&field.as_str()));
            }
        }
        Part::Status => {
            applied.remove("spec");
            if let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("labels");
            }
        }
        Part::Main | Part::Finalize | Part::Resize => {}
    }
}

/// Checks that the identity in the object matches the path.
pub(crate) fn check_identity(kind: &Kind, place: &Place, object: &mut Value) -> Result<(), StatusError> {
    check_type(kind, object)?;
    take_namespace(kind, place.namespace(), object)?;
    check_name(place.name(), &object["metadata"])
}

/// The object must contain its name.
pub(crate) fn check_named(name: &str, metadata: &Value) -> Result<(), StatusError> {
    if metadata["name"].as_str().is_some_and(|theirs| !theirs.is_empty()) {
        return Ok(());
    }
    let text =
        format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
    Err(StatusError::bad_request(text))
}

fn check_name(name: &str, metadata: &Value) -> Result<(), StatusError> {
    check_named(name, metadata)?;
    let theirs = metadata["name"].as_str().unwrap_or_default();
    if theirs == name {
        return Ok(());
    }
    let text = format!("the name of the object ({theirs}) does not match the name on the URL ({name})");
    Err(StatusError::bad_request(text))
}

/// A patch cannot change the apiVersion of a custom resource.
pub(crate) fn check_still(kind: &Kind, name: &str, after: &Value) -> Result<(), StatusError> {
    let (theirs, ours) = (after["apiVersion"].as_str().unwrap_or_default(), kind.api_version());
    if !kind.is_custom() || theirs == ours {
        return Ok(());
    }
    if theirs.is_empty() {
        let why = "Object 'apiVersion' is missing in 'object has no apiVersion field'";
        return Err(StatusError::went_wrong(why));
    }
    let group = theirs.split_once('/').map_or("", |(group, _)| group);
    let cause = Cause::invalid("apiVersion", &theirs.into(), &format!("must be {ours}"));
    Err(StatusError::invalid_as(group, &kind.kind, name, vec![cause]))
}

/// Checks the fields that no patch can change. kube-apiserver reports the error twice.
pub(crate) fn check_fixed(kind: &Kind, name: &str, after: &Value, before: &Value) -> Result<(), StatusError> {
    for field in ["uid", "deletionTimestamp"] {
        let pointer = format!("/metadata/{field}");
        let value = after.pointer(&pointer).unwrap_or(&Value::Null);
        if !value.is_null() && value != "" && Some(value) != before.pointer(&pointer) {
            let cause = Cause::invalid(format!("metadata.{field}"), value, "field is immutable");
            return Err(StatusError::invalid(kind, name, vec![cause.clone(), cause]));
        }
    }
    Ok(())
}

pub(crate) fn check_version(
    kind: &Kind,
    place: &Place,
    object: &Value,
    before: &Value,
) -> Result<(), StatusError> {
    let (name, metadata) = (place.name(), &object["metadata"]);
    match metadata["resourceVersion"].as_str().unwrap_or_default() {
        "" | "0" if kind.needs_version() => return Err(StatusError::version_required(kind, name)),
        "" | "0" => {}
        version => {
            if version.parse::<u64>().is_err() {
                return Err(StatusError::internal(format!("invalid number {version:?}")));
            }
            if before["metadata"]["resourceVersion"] != version {
                return Err(StatusError::conflict(kind, name));
            }
        }
    }
    let uid = |metadata: &Value| metadata["uid"].as_str().unwrap_or_default().to_owned();
    let (wanted, actual) = (uid(metadata), uid(&before["metadata"]));
    if !wanted.is_empty() && wanted != actual {
        let group = if kind.is_custom() { format!("{}/", kind.group) } else { String::new() };
        let text = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
            Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}",
            kind.plural, place.key
        );
        return Err(StatusError::cannot_fulfil(kind, name, &text));
    }
    Ok(())
}

/// Checks kind and apiVersion. In a built-in kind they may be missing.
fn check_type(kind: &Kind, object: &mut Value) -> Result<(), StatusError> {
    if !object.is_object() {
        return Err(StatusError::bad_request("the object provided is unrecognized: it is not a JSON object"));
    }
    let (api_version, wanted) = (object["apiVersion"].as_str().unwrap_or_default(), kind.api_version());
    let (a_kind, name) = (object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"].as_str());
    let text = match kind.is_custom() {
        true if api_version != wanted => format!(
            "the API version in the data ({api_version}) does not match the expected API version ({wanted})"
        ),
        true if a_kind != kind.kind => {
            return Err(StatusError::wrong_kind(kind, a_kind, name.unwrap_or_default()));
        }
        false if !openapi::definition(a_kind).is_object() && !a_kind.is_empty() => {
            let (version, kind) = (&kind.version, &kind.kind);
            let why = unregistered(a_kind, if api_version.is_empty() { &wanted } else { api_version });
            format!("{a_kind} in version {version:?} cannot be handled as a {kind}: {why}")
        }
        false if !a_kind.is_empty() && a_kind != kind.kind => {
            let internal = kind.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
            let (version, kind) = (&kind.version, &kind.kind);
            format!(
                "{a_kind} in version \"{version}\" cannot be handled as a {kind}: converting ({version}.{a_kind}) to \
                ({internal}.{kind}): unknown conversion"
            )
        }
        false if !api_version.is_empty() && api_version != wanted => {
            let (version, kind) = (api_version.rsplit('/').next().unwrap_or_default(), &kind.kind);
            let why = unregistered(kind, api_version);
            format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}")
        }
        true | false => {
            object["apiVersion"] = wanted.into();
            object["kind"] = kind.kind.as_str().into();
            kind.check_types(object).map_err(|why| kind.undecodable(&why))?;
            if object["metadata"].is_null() {
                object["metadata"] = json!({});
            }
            return Ok(());
        }
    };
    Err(StatusError::bad_request(text))
}

/// The decoding error for a built-in kind that is not registered.
pub(crate) fn unregistered(kind: &str, api_version: &str) -> String {
    format!("no kind {kind:?} is registered for version {api_version:?}")
}

/// An error if an object is of another namespace than its path.
pub(crate) fn check_namespace(object: &Value, namespace: Option<&str>) -> Result<(), StatusError> {
    let theirs = text(&object["metadata"]["namespace"]);
    if !theirs.is_empty() && theirs != namespace.unwrap_or_default() {
        let text = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(StatusError::bad_request(text));
    }
    Ok(())
}

fn take_namespace(kind: &Kind, namespace: Option<&str>, object: &mut Value) -> Result<(), StatusError> {
    check_namespace(object, namespace)?;
    let metadata = &mut object["metadata"];
    let ours = namespace.unwrap_or_default();
    match (kind.namespaced, metadata.as_object_mut()) {
        (true, Some(metadata)) => metadata.insert("namespace".to_owned(), ours.into()),
        (false, Some(metadata)) => metadata.remove("namespace"),
        (_, None) => None,
    };
    Ok(())
}

/// The name of a new object: its own, or one generated from `generateName`.
fn name_for(
    storage: &Storage,
    kind: &Kind,
    namespace: Option<&str>,
    object: &mut Value,
    options: &WriteOptions<'_>,
) -> String {
    let metadata = &mut object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let base = metadata["generateName"].as_str().unwrap_or_default().to_owned();
    if !name.is_empty() || base.is_empty() {
        return name;
    }
    let base: String = base.chars().take(GENERATED_BASE_MAX).collect();
    let mut letters = options.letters();
    loop {
        let name = format!("{base}{letters}");
        if storage.get(&Place::new(kind.stored_in(), namespace, &name)).is_none() {
            metadata["name"] = name.as_str().into();
            return name;
        }
        letters = random_letters();
    }
}

/// Checks that the namespace exists, and that neither the namespace nor the CRD is terminating.
fn check_home(
    storage: &Storage,
    kind: &Kind,
    namespace: Option<&str>,
    name: &str,
) -> Result<(), StatusError> {
    if let Some(namespace) = namespace {
        let namespaces = storage.kinds.built_in("", "namespaces");
        let Some(home) = storage.get(&Place::new("namespaces", None, namespace)) else {
            return Err(StatusError::not_found(&namespaces, namespace));
        };
        if is_terminating(home) {
            return Err(StatusError::namespace_terminating(kind, name, namespace));
        }
    }
    if let Source::Custom(custom) = &kind.source {
        let place = Place::new("customresourcedefinitions.apiextensions.k8s.io", None, &custom.definition);
        if storage.get(&place).is_some_and(|crd| is_terminating(crd)) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(StatusError::forbidden(kind, name, why));
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
    let identity = ["resourceVersion", "name", "namespace", "managedFields"];
    for field in SERVER_FIELDS.iter().chain(&identity) {
        restore(after, before, field);
    }
}

/// Drops fields that are not in the schema, or refuses the object because of them.
pub(crate) fn prune(
    kind: &Kind,
    object: &mut Value,
    options: &mut WriteOptions<'_>,
) -> Result<(), StatusError> {
    let mut unknown = prune_object(object, kind.schema());
    if !kind.is_custom() {
        unknown.truncate(UNKNOWN_FIELDS_MAX);
    }
    if options.unknown_fields == UnknownFields::Ignore {
        return Ok(());
    }
    // The merge of an apply has refused unknown fields, except those below a field that preserves them.
    if options.manager.applies {
        if options.unknown_fields == UnknownFields::Strict
            && let Some(why) = options.warnings.pop()
        {
            let text = format!("error strict decoding YAML: error converting YAML to JSON: {why}");
            return Err(StatusError::bad_request(text));
        }
        return Ok(());
    }
    // The decoder of JSON finds both in the order of the body, mostly unknown fields first. The decoder of YAML runs before it.
    let is_json = options.warnings.first().is_some_and(|one| one.starts_with("duplicate field"));
    let at = if is_json { 0 } else { options.warnings.len() };
    options.warnings.splice(at..at, unknown.iter().map(|field| format!("unknown field \"{field}\"")));
    if options.unknown_fields == UnknownFields::Warn || options.warnings.is_empty() {
        return Ok(());
    }
    let why = format!("strict decoding error: {}", std::mem::take(&mut options.warnings).join(", "));
    let is_patch = options.is_patch;
    Err(if is_patch { StatusError::bad_patch(&object.to_string(), &why) } else { kind.undecodable(&why) })
}

/// The warnings about a valid object, and `before` is its state before an update.
fn warnings(kind: &Kind, object: &Value, before: Option<&Value>) -> Vec<String> {
    match kind.built_in() {
        "" => metadata::warnings(object),
        "CustomResourceDefinition" => crd::warnings(object, before),
        _ => warnings::of(kind, object, before),
    }
}

fn services(storage: &Storage) -> Vec<&Value> {
    let services = storage.collection("services").into_iter();
    services.flat_map(|services| services.objects.values()).map(|service| &**service).collect()
}

/// Prunes the object of a request, and sets its defaults.
fn decode(kind: &Kind, object: &mut Value, options: &mut WriteOptions<'_>) -> Result<(), StatusError> {
    prune(kind, object, options)?;
    kind.normalize(object);
    if !options.manager.applies {
        kind.drop_nulls(object);
    }
    kind.set_defaults(object);
    Ok(())
}

/// Sets managedFields.
fn finish(
    storage: &Storage,
    kind: &Kind,
    before: Option<&Value>,
    object: &mut Value,
    managed: Value,
    options: &WriteOptions<'_>,
) -> Result<(), StatusError> {
    let tracked =
        managed_fields::track(kind, before, object, managed, &options.manager, &options.now(storage));
    if options.admission.is_none() && tracked.is_err() {
        // A controller waits for no conversion, and leaves the entries as they are.
        drop(take_missing());
        object["metadata"]["managedFields"] =
            before.map_or(Value::Null, |before| before["metadata"]["managedFields"].clone());
    } else {
        tracked?;
    }
    if let Source::BuiltIn(entry) = &kind.source {
        (entry.to_stored)(object);
    }
    Ok(())
}

/// Sets the ClusterIP of a Service, which has no manager.
fn settle_cluster_ip(
    storage: &Storage,
    kind: &Kind,
    before: Option<&Value>,
    object: &mut Value,
    options: &WriteOptions<'_>,
) -> Result<(), StatusError> {
    if kind.built_in() == "Service" {
        let causes = cluster_ip::settle(&services(storage), before, object, options.dry_run, options.seed())?;
        if !causes.is_empty() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(StatusError::invalid(kind, name, causes));
        }
    }
    Ok(())
}

/// An update cannot set the grace period.
fn fixed_grace(object: &Value, before: &Value) -> Option<Cause> {
    let field = "deletionGracePeriodSeconds";
    let (wanted, actual) = (&object["metadata"][field], &before["metadata"][field]);
    let is_other = !wanted.is_null() && wanted != actual;
    is_other.then(|| Cause::invalid(format!("metadata.{field}"), wanted, "field is immutable"))
}

/// A terminating object cannot get new finalizers.
fn new_finalizers(before: &Value, after: &Value) -> Option<Cause> {
    if !is_terminating(before) {
        return None;
    }
    let old = finalizers(before);
    let new: Vec<&str> = finalizers(after).into_iter().filter(|one| !old.contains(one)).collect();
    if new.is_empty() {
        return None;
    }
    let text = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers {new:?}"
    );
    Some(Cause::forbidden("metadata.finalizers", &text))
}

/// Whether the generation increases. It does not for changes to metadata, or to a status that is a subresource.
fn differs_beyond_metadata(kind: &Kind, before: &Value, after: &Value) -> bool {
    let mut expected = before.clone();
    restore(&mut expected, after, "metadata");
    if kind.has_status {
        restore(&mut expected, after, "status");
    }
    let counted = match kind.built_in() {
        // The Deployment controller reads annotations.
        "Deployment" => "annotations",
        "EndpointSlice" => "labels",
        _ => return expected != *after,
    };
    expected != *after || before["metadata"][counted] != after["metadata"][counted]
}
