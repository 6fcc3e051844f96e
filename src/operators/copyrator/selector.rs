//! A label selector in the fields of a rule: `matchLabels` and `matchExpressions`, or the labels themselves.
//!
//! ```yaml
//! selector: {copyrator: "true"}                                            # copyrator=true
//! selector: {matchExpressions: [{key: tier, operator: In, values: [a, b]}]}  # tier in (a,b)
//! ```

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;
use serde_json::{Map, Value};
use smol_str::SmolStr;

use crate::resource::Labels;

/// Requirements for labels, which must all be met.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Selector(Vec<Requirement>);

/// A requirement for one label.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    key: SmolStr,
    operator: Operator,
    #[serde(default)]
    values: Vec<SmolStr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// The fields of a `metav1.LabelSelector`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct LabelSelector {
    match_labels: BTreeMap<SmolStr, SmolStr>,
    match_expressions: Vec<Requirement>,
}

impl Selector {
    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it looks at the label with this key.
    #[must_use]
    pub fn names(&self, key: &str) -> bool {
        self.0.iter().any(|requirement| requirement.key == key)
    }

    /// Whether it selects an object with these labels.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|Requirement { key, operator, values }| {
            let value = labels.get(key);
            let is_in = value.is_some_and(|value| values.iter().any(|one| one == value));
            match operator {
                Operator::In => is_in,
                Operator::NotIn => !is_in,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}

/// As in a URL.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, operator, values }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let values = values.join(",");
            match operator {
                Operator::In if !values.contains(',') => write!(f, "{comma}{key}={values}")?,
                Operator::In => write!(f, "{comma}{key} in ({values})")?,
                Operator::NotIn => write!(f, "{comma}{key} notin ({values})")?,
                Operator::Exists => write!(f, "{comma}{key}")?,
                Operator::DoesNotExist => write!(f, "{comma}!{key}")?,
            }
        }
        Ok(())
    }
}

impl TryFrom<Map<String, Value>> for Selector {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Selector, String> {
        if !fields.contains_key("matchLabels") && !fields.contains_key("matchExpressions") {
            fields = Map::from_iter([("matchLabels".to_owned(), Value::Object(fields))]);
        }
        let selector = LabelSelector::deserialize(Value::Object(fields));
        let selector = selector.map_err(|error| format!("selector: {error}"))?;
        let labels = selector.match_labels.into_iter().map(|(key, value)| Requirement {
            key,
            operator: Operator::In,
            values: vec![value],
        });
        let requirements: Vec<_> = labels.chain(selector.match_expressions).collect();
        requirements.iter().try_for_each(Requirement::check)?;
        Ok(Selector(requirements))
    }
}

impl Requirement {
    /// The API server would refuse a list with an invalid selector.
    fn check(&self) -> Result<(), String> {
        let key = &self.key;
        let (domain, name) = key.rsplit_once('/').unwrap_or(("a", key));
        let is_domain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        let is_key =
            is_label(name) && !name.is_empty() && !domain.is_empty() && domain.bytes().all(is_domain);
        if !is_key || domain.len() > 253 {
            return Err(format!("selector: {key:?} cannot be the key of a label"));
        }
        if let Some(value) = self.values.iter().find(|value| !is_label(value)) {
            return Err(format!("selector: {value:?} cannot be the value of a label"));
        }
        let needs_values = matches!(self.operator, Operator::In | Operator::NotIn);
        if needs_values == self.values.is_empty() {
            let must = if needs_values { "needs values" } else { "takes no values" };
            return Err(format!("selector: the operator {:?} of {key} {must}", self.operator));
        }
        Ok(())
    }
}

/// Whether this is the value of a label, or the name in its key, which cannot be empty.
fn is_label(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && is_edge(bytes.first())
        && is_edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(selector: Value) -> Result<Selector, String> {
        Selector::deserialize(selector).map_err(|error| error.to_string())
    }

    #[test]
    fn labels_alone_are_match_labels() {
        let labels = read(json!({"copyrator": "true", "a/b": ""})).expect("a selector");
        assert_eq!(
            labels,
            read(json!({"matchLabels": {"copyrator": "true", "a/b": ""}})).expect("a selector")
        );
        assert_eq!(labels.to_string(), "a/b=,copyrator=true");
        assert!(labels.names("copyrator") && !labels.names("a") && !labels.is_empty());
        for nothing in [json!({}), json!({"matchLabels": {}, "matchExpressions": []})] {
            assert!(read(nothing).expect("a selector").is_empty());
        }
    }

    #[test]
    fn each_operator_selects_what_its_text_selects() {
        let labels: Labels = [("tier", "a"), ("empty", "")].into_iter().collect();
        for (key, operator, values, text, is_selected) in [
            ("tier", "In", json!(["a", "b"]), "tier in (a,b)", true),
            ("tier", "In", json!(["b"]), "tier=b", false),
            ("tier", "NotIn", json!(["b", "c"]), "tier notin (b,c)", true),
            ("tier", "NotIn", json!(["a"]), "tier notin (a)", false),
            ("other", "NotIn", json!(["a"]), "other notin (a)", true),
            ("other", "In", json!([""]), "other=", false),
            ("empty", "Exists", json!([]), "empty", true),
            ("other", "Exists", json!([]), "other", false),
            ("other", "DoesNotExist", json!([]), "!other", true),
            ("tier", "DoesNotExist", json!([]), "!tier", false),
        ] {
            let expression = json!({"key": key, "operator": operator, "values": values});
            let selector = read(json!({"matchExpressions": [expression]})).expect("a selector");
            assert_eq!((selector.to_string().as_str(), selector.matches(&labels)), (text, is_selected));
        }
    }

    #[test]
    fn a_selector_that_the_api_server_would_refuse_is_an_error() {
        for (selector, problem) in [
            (json!({"copyrator": true}), "invalid type: boolean"),
            (json!({"matchLabels": {}, "a": "b"}), "unknown field `a`"),
            (json!({"a b": "c"}), "\"a b\" cannot be the key"),
            (json!({"/a": "c"}), "\"/a\" cannot be the key"),
            (json!({"": "c"}), "\"\" cannot be the key"),
            (json!({"a": "-"}), "\"-\" cannot be the value"),
            (json!({"a": "x".repeat(64)}), "cannot be the value"),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "the operator In of a needs values",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "the operator Exists of a takes no values",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
                "unknown variant `Gt`",
            ),
        ] {
            let error = read(selector).expect_err("an error");
            assert!(error.contains(problem), "{error}");
        }
    }
}
