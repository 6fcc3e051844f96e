//! When a sample is settled, in the words of its author, as in `kubectl wait --for=jsonpath='{.status.phase}'=Ready`.

use std::{fmt, str::FromStr};

use listwatch_apiserver::JsonPath;
use serde_json::Value;

/// A field that each custom resource of the samples has when the operator has settled, in the syntax of `kubectl wait`:
/// `jsonpath={.status.phase}=Ready`, or any value with `jsonpath={.status.url}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleCondition {
    /// `.status.phase`
    path: String,
    /// `None`: any.
    value: Option<String>,
}

impl SampleCondition {
    /// What an object has in place of this, if it does not have this.
    pub(super) fn unmet(&self, object: &Value) -> Option<String> {
        let path = &self.path;
        let parsed = JsonPath::parse(path);
        let Some(found) = parsed.as_ref().and_then(|parsed| parsed.first(object)) else {
            return Some(format!("has no {path}"));
        };
        let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
        self.value.as_ref().is_some_and(|value| *value != text).then(|| format!("has {path} {found}"))
    }
}

impl FromStr for SampleCondition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SampleCondition, &'static str> {
        let text = text
            .strip_prefix("jsonpath=")
            .ok_or("must begin with jsonpath=, as in jsonpath={.status.phase}=Ready")?;
        // The first `=` that is not one of a `==`.
        let is_alone = |at: &usize| !text[..*at].ends_with('=') && !text[at + 1..].starts_with('=');
        let (path, value) = match text.match_indices('=').map(|(at, _)| at).find(is_alone) {
            Some(at) => (&text[..at], Some(text[at + 1..].trim_matches(['"', '\'']))),
            None => (text, None),
        };
        if value == Some("") {
            return Err("has no value after the =, as in jsonpath={.status.phase}=Ready");
        }
        let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
        let path = if path.starts_with(['.', '[']) { path.to_owned() } else { format!(".{path}") };
        if path == "." || JsonPath::parse(&path).is_none() {
            return Err(
                "is not a path, such as {.status.phase} or {.status.conditions[?(@.type==\"Ready\")].status}",
            );
        }
        Ok(SampleCondition { path, value: value.map(str::to_owned) })
    }
}

impl fmt::Display for SampleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        write!(f, "jsonpath={{{}}}{value}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_written_as_for_kubectl_wait() {
        let ready = json!({"type": "Ready", "status": "True"});
        let object = json!({"metadata": {"labels": {"a.b": "c"}}, "status": {"phase": "Up", "replicas": 3,
            "conditions": [{"type": "Stalled", "status": "False"}, ready]}});
        for (text, unmet) in [
            ("jsonpath={.status.phase}=Up", None),
            ("jsonpath='{.status.phase}'=Up", Some("is not a path")),
            ("jsonpath={.status.phase}='Up'", None),
            ("jsonpath=.status.phase=Up", None),
            ("jsonpath=status.phase", None),
            ("jsonpath={.status.phase}=Down", Some("has .status.phase \"Up\"")),
            ("jsonpath={.status.replicas}=3", None),
            ("jsonpath={.status.replicas}=2", Some("has .status.replicas 3")),
            ("jsonpath={.status.url}", Some("has no .status.url")),
            (r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}=True"#, None),
            (r#"jsonpath={.status.conditions[?(@.type=="Other")].status}=True"#, Some("has no ")),
            ("jsonpath={.status.conditions[0].status}=False", None),
            (r"jsonpath={.metadata.labels['a\.b']}=c", None),
            (r"jsonpath={.metadata.labels.a\.b}=c", None),
            ("jsonpath={.status.phase}=", Some("has no value after the =")),
            ("jsonpath={}", Some("is not a path")),
            ("jsonpath={..phase}=Up", None),
            ("jsonpath={.status.phase", Some("is not a path")),
            ("jsonpath={.status.conditions[?(@.n>1)].status}", Some("has no ")),
            ("condition=Ready", Some("must begin with jsonpath=")),
        ] {
            let found = match text.parse::<SampleCondition>() {
                Ok(condition) => condition.unmet(&object),
                Err(error) => Some(error.to_owned()),
            };
            let is_expected = match (&found, unmet) {
                (Some(found), Some(unmet)) => found.starts_with(unmet),
                (found, unmet) => found.is_none() && unmet.is_none(),
            };
            assert!(is_expected, "{text}: {found:?}");
        }
    }

    #[test]
    fn it_is_shown_as_it_can_be_read_again() {
        for text in ["jsonpath={.status.phase}=Up", r#"jsonpath={.status.conditions[?(@.type=="Ready")]}"#] {
            assert_eq!(
                text.parse::<SampleCondition>().map(|condition| condition.to_string()),
                Ok(text.to_owned())
            );
        }
    }
}
