//! Field selectors: `fieldSelector=metadata.name=w1`.

use serde_json::Value;

use crate::status::StatusError;

/// A parsed field selector: path, value, and whether the field must be equal or must differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldSelector(Vec<(String, String, bool)>);

impl FieldSelector {
    /// Parses the selector in a URL. `check` fails for fields that the kind does not support.
    pub(crate) fn parse(
        text: &str,
        check: impl Fn(&str) -> Result<(), StatusError>,
    ) -> Result<FieldSelector, StatusError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text).into_iter().filter(|term| !term.is_empty()) {
            let Some((path, value)) = term.split_once('=') else {
                let message = format!("invalid selector: '{text}'; can't understand '{term}'");
                return Err(StatusError::bad_request(message));
            };
            let (path, equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
            let value = if equal { value.strip_prefix('=').unwrap_or(value) } else { value };
            let value = unescaped(value)
                .map_err(|why| StatusError::bad_request(format!("invalid field selector: {why}")))?;
            check(path)?;
            terms.push((path.to_owned(), value, equal));
        }
        Ok(FieldSelector(terms))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(path, value, equal)| (field(object, path) == *value) == *equal)
    }
}

/// Splits at commas without a backslash before them.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut is_escaped = false;
    text.split(|c| {
        let is_end = c == ',' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })
    .collect()
}

/// Removes the backslashes before `\`, `,` and `=`.
fn unescaped(value: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some(escaped @ ('\\' | ',' | '='))) => text.push(escaped),
            ('\\', other) => {
                let other = other.map(String::from).unwrap_or_default();
                return Err(format!("invalid escape sequence: \\{other}"));
            }
            (',' | '=', _) => return Err(format!("unescaped character in value: {c}")),
            (c, _) => text.push(c),
        }
    }
    Ok(text)
}

/// The value of a field as text. A missing field has the zero value of its type in Go.
fn field(object: &Value, path: &str) -> String {
    let (path, missing) = match (object["apiVersion"].as_str().unwrap_or_default(), path) {
        ("v1", "spec.hostNetwork" | "spec.unschedulable") => (path, "false"),
        // These two selectors are not the paths of their fields.
        ("v1", "source") => ("source.component", ""),
        ("batch/v1", "status.successful") => ("status.succeeded", "0"),
        (_, _) => (path, ""),
    };
    let value = path.split('.').fold(object, |value, part| &value[part]);
    match value {
        Value::Null => missing.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
