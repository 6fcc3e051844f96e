//! Validation of names and labels: DNS labels and subdomains, qualified names, label values.
//!
//! The rules and messages are those of apimachinery/pkg/util/validation.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
    is '[a-z]([-a-z0-9]*[a-z0-9])?')";
/// Each use puts a subject in front, such as "name part".
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

/// Whether a text consists of allowed characters, and starts and ends with a letter or a digit.
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

/// Validates a DNS subdomain, the name of most objects.
pub fn subdomain_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > SUBDOMAIN_MAX {
        errors.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !name.split('.').all(|part| is_word(part, is_lower, &['-'])) {
        errors.push(SUBDOMAIN.to_owned());
    }
    errors
}

/// The names of namespaces, without duplicates. Fails, and names the source, if one of them is invalid.
pub fn namespaces(mut names: Vec<String>, source: &str) -> Result<Vec<String>, String> {
    for name in &mut names {
        *name = name.trim().to_owned();
        if !label_errors(name).is_empty() {
            return Err(format!(
                "{source}: {name:?} is not the name of a namespace; for all of them, give none"
            ));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Validates a part of a path, the name of a Role.
pub fn path_segment_errors(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|one| name.contains(one))
        .map(|one| format!("may not contain '{one}'"))
        .collect()
}

/// Validates a DNS label, the name of containers and ports.
pub fn label_errors(name: &str) -> Vec<String> {
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

/// Validates a DNS label that starts with a letter: the names in a CRD, which become parts of a path.
pub fn dns_1035_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > LABEL_MAX {
        errors.push(format!("must be no more than {LABEL_MAX} characters"));
    }
    if !is_word(name, is_lower, &['-']) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(DNS_1035.to_owned());
    }
    errors
}

/// Validates a qualified name such as `example.com/Name`: a label key or a finalizer.
pub fn qualified_name_errors(text: &str) -> Vec<String> {
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

/// Validates the value of a label.
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !value.is_empty() && !is_word(value, is_alphanumeric, &['-', '_', '.']) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}
