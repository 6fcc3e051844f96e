//! The options of a write: CreateOptions, UpdateOptions and PatchOptions from the query, DeleteOptions also from the body.
//!
//! ```text
//! PATCH /api/v1/namespaces/default/services/web?fieldManager=me&fieldValidation=Strict&dryRun=All
//! ```

use serde_json::{Value, json};

use crate::{
    apply::managed_fields::{MANAGER_BYTES_MAX, Manager},
    http::target::Target,
    request::Request,
    schema::decode,
    status::{Cause, StatusError},
    verbs::{
        delete::{self, Deletion, Propagation},
        write::{self, UnknownFields, WriteOptions},
    },
};

pub(crate) fn write_options(
    request: &Request,
    name: &str,
    target: Target,
) -> Result<WriteOptions<'static>, StatusError> {
    let query = &request.query;
    let unknown_fields = match query.text("fieldValidation") {
        "" | "Warn" => UnknownFields::Warn,
        "Ignore" => UnknownFields::Ignore,
        "Strict" => UnknownFields::Strict,
        other => {
            let supported = ["", "Ignore", "Strict", "Warn"].map(str::to_owned);
            let cause = Cause::not_supported("fieldValidation", &other.into(), &supported);
            return Err(StatusError::invalid_options(name, vec![cause]));
        }
    };
    let dry_run = query.dry_run(name)?;
    let mut warnings = match unknown_fields {
        UnknownFields::Ignore => Vec::new(),
        UnknownFields::Warn | UnknownFields::Strict => request.duplicate_fields(),
    };
    let is_yaml = request.content_type().ends_with("yaml");
    if unknown_fields == UnknownFields::Strict && is_yaml && !warnings.is_empty() {
        warnings = vec![format!("yaml: unmarshal errors:\n  {}", warnings.join("\n  "))];
    }
    let mut manager = manager(request, name)?;
    if target == Target::Scale {
        manager.subresource = "scale";
    }
    Ok(WriteOptions { dry_run, unknown_fields, manager, warnings, ..WriteOptions::default() })
}

/// The manager of the written fields: `fieldManager`, or else the program in the User-Agent.
fn manager(request: &Request, options: &str) -> Result<Manager, StatusError> {
    let invalid = |cause| Err(StatusError::invalid_options(options, vec![cause]));
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
pub(crate) fn delete_options(request: &Request) -> Result<Deletion, StatusError> {
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
        let options = request.object("DeleteOptions", "DeleteOptions")?;
        decode::check_types(&options, "DeleteOptions").map_err(StatusError::bad_request)?;
        if let (Some(kind), version) = (options["kind"].as_str(), options["apiVersion"].as_str())
            && kind != "DeleteOptions"
        {
            return Err(StatusError::bad_request(write::unregistered(kind, version.unwrap_or_default())));
        }
        options
    };
    deletion(&options)
}

/// How to delete, by decoded options.
pub(crate) fn deletion(options: &Value) -> Result<Deletion, StatusError> {
    let invalid = |cause| Err(StatusError::invalid_options("DeleteOptions", vec![cause]));
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
