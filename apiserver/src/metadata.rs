//! What holds for the metadata of every object: names, labels, annotations, finalizers, owners.
//!
//! The rules and their words are those of apimachinery/pkg/api/validation and pkg/util/validation.

use serde_json::Value;

use super::{kinds::Kind, refusal::Cause};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
    is '[a-z]([-a-z0-9]*[a-z0-9])?')";
/// Every use of it says first what the name is of.
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Longest DNS label, and longest part of a label key, in bytes.
const LABEL_MAX: usize = 63;
/// Longest DNS name, in bytes.
const SUBDOMAIN_MAX: usize = 253;
/// All annotations of an object together, in bytes: apimachinery/pkg/api/validation/objectmeta.go.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

/// The finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Whether a text is made of some characters, and starts and ends with a letter or a digit.
fn is_word(text: &str, alphanumeric: fn(char) -> bool, inside: &[char]) -> bool {
    text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || inside.contains(&c))
}

fn is_lower(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// What is wrong with a DNS name, as most objects have it.
pub(super) fn subdomain_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > SUBDOMAIN_MAX {
        errors.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !name.split('.').all(|part| is_word(part, is_lower, &['-'])) {
        errors.push(SUBDOMAIN.to_owned());
    }
    errors
}

/// What is wrong with one part of a DNS name, as containers and ports have it.
pub(super) fn label_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > LABEL_MAX {
        errors.push(format!("must be no more than {LABEL_MAX} characters"));
    }
    if name.contains('.') {
        errors.push("must not contain dots".to_owned());
    } else if !is_word(name, is_lower, &['-']) {
        errors.push(LABEL.to_owned());
    }
    errors
}

/// What is wrong with a name that becomes a part of a path, as those in a CRD do: it starts with a letter.
pub(super) fn dns_1035_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > LABEL_MAX {
        errors.push(format!("must be no more than {LABEL_MAX} characters"));
    }
    if !is_word(name, is_lower, &['-']) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(DNS_1035.to_owned());
    }
    errors
}

/// What is wrong with `example.com/Name`: the key of a label, the name of a finalizer.
pub(super) fn qualified_name_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        ["", name] => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        [prefix, name] => {
            errors.extend(subdomain_errors(prefix).into_iter().map(|error| format!("prefix part {error}")));
            name
        }
        _ => {
            let optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {NAME_PART} {optional}")];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", too_long(LABEL_MAX)));
    }
    if !is_word(name, is_alphanumeric, &['-', '_', '.']) {
        errors.push(format!("name part {NAME_PART}"));
    }
    errors
}

/// What is wrong with the value of a label.
pub(super) fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !value.is_empty() && !is_word(value, is_alphanumeric, &['-', '_', '.']) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}

/// Each of these errors as a cause.
pub(super) fn causes(field: &str, value: &str, errors: Vec<String>) -> impl Iterator<Item = Cause> {
    errors.into_iter().map(move |error| Cause::invalid(field, &value.into(), &error))
}

/// What is wrong with a map of labels: those of an object, or a selector.
pub(super) fn labels_errors(field: &str, labels: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        all.extend(causes(field, key, qualified_name_errors(key)));
        let value = value.as_str().unwrap_or_default();
        all.extend(causes(field, value, label_value_errors(value)));
    }
    all
}

/// What is wrong with the metadata of an object.
pub(super) fn errors(kind: &Kind, object: &Value) -> Vec<Cause> {
    let metadata = &object["metadata"];
    let mut all = Vec::new();
    let base = metadata["generateName"].as_str().unwrap_or_default();
    if !base.is_empty() {
        // A dash at its end will not be the last letter.
        let name = base.strip_suffix('-').map_or(base.to_owned(), |base| format!("{base}a"));
        let errors = if kind.has_label_name() { label_errors(&name) } else { subdomain_errors(&name) };
        all.extend(causes("metadata.generateName", base, errors));
    }
    match metadata["name"].as_str().unwrap_or_default() {
        "" => all.push(Cause::required("metadata.name", "name or generateName is required")),
        name if kind.has_label_name() => all.extend(causes("metadata.name", name, label_errors(name))),
        name => all.extend(causes("metadata.name", name, subdomain_errors(name))),
    }
    all.extend(labels_errors("metadata.labels", &metadata["labels"]));
    all.extend(annotations_errors(&metadata["annotations"]));
    all.extend(owners_errors(&metadata["ownerReferences"]));
    let finalizers = metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for (index, name) in finalizers.enumerate() {
        all.extend(causes("metadata.finalizers", name, qualified_name_errors(name)));
        if kind.has_qualified_finalizers() && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            all.push(Cause::invalid(format!("metadata.finalizers[{index}]"), &name.into(), text));
        }
    }
    all
}

/// What is taken, but not liked.
pub(super) fn warnings(kind: &Kind, object: &Value) -> Vec<String> {
    let finalizers =
        object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let plain = finalizers
        .filter(|name| kind.is_custom() && !name.contains('/') && !STANDARD_FINALIZERS.contains(name));
    let text =
        "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers";
    let mut all: Vec<String> = plain.map(|name| format!("metadata.finalizers: {name:?}: {text}")).collect();
    let spec = &object["spec"];
    let has_addresses = kind.built_in() == "Service" && !spec["externalIPs"].is_null();
    if has_addresses && spec["clusterIP"] != "None" && spec["type"] != "ExternalName" {
        all.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned(),
        );
    }
    all
}

fn annotations_errors(annotations: &Value) -> Vec<Cause> {
    let (field, mut all, mut bytes) = ("metadata.annotations", Vec::new(), 0);
    for (key, value) in annotations.as_object().into_iter().flatten() {
        // Unlike that of a label, the domain of an annotation can have capitals.
        all.extend(causes(field, key, qualified_name_errors(&key.to_lowercase())));
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATION_BYTES_MAX {
        all.push(Cause::too_long(field, &format!("may not be more than {ANNOTATION_BYTES_MAX} bytes")));
    }
    all
}

fn owners_errors(references: &Value) -> Vec<Cause> {
    let (field, mut all) = ("metadata.ownerReferences", Vec::new());
    let mut controllers = Vec::new();
    for owner in references.as_array().into_iter().flatten() {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let api_version = text("apiVersion");
        if api_version.is_empty() || api_version.matches('/').count() > 1 {
            let value = api_version.into();
            all.push(Cause::invalid(format!("{field}.apiVersion"), &value, "version must not be empty"));
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                all.push(Cause::invalid(format!("{field}.{name}"), &"".into(), "must not be empty"));
            }
        }
        // It would be gone within the hour.
        if api_version == "v1" && text("kind") == "Event" {
            let text = "/v1, Kind=Event is disallowed from being an owner";
            all.push(Cause::invalid(field, owner, text));
        }
        if owner["controller"] == true {
            controllers.push(format!("{}/{}", text("kind"), text("name")));
        }
    }
    if let [first, second, ..] = &controllers[..] {
        let text = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        all.push(Cause::invalid(field, references, &text));
    }
    all
}
