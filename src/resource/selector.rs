//! Label selectors of objects, and their form in URLs, which [`listwatch_formats::selector`] parses.
//!
//! ```text
//!   {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}
//!   ?labelSelector=app=web,tier in (a,b)
//! ```
//!
//! See <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>.

use std::fmt;

use listwatch_formats::names::{label_value_errors, qualified_name_errors};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Labels;

/// A selector of objects by their labels. All requirements must be met; an empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// The required labels, each with its value.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub match_labels: Labels,
    /// The set-based requirements.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub match_expressions: Box<[LabelSelectorRequirement]>,
}

/// A requirement for the label with one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelSelectorRequirement {
    /// The key of the label.
    pub key: SmolStr,
    /// The condition for the label.
    pub operator: LabelSelectorOperator,
    /// The values of `In` and `NotIn`; the other operators have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<SmolStr>,
}

/// What a label must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelSelectorOperator {
    /// Present, with one of the values.
    In,
    /// Absent, or with none of the values.
    NotIn,
    /// Present, with any value.
    Exists,
    /// Absent.
    DoesNotExist,
}

/// Why a selector is invalid: `matchExpressions[0].values: In needs at least one`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSelector(String);

impl LabelSelector {
    /// Whether it matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether it selects an object with these labels.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }

    /// The keys of the labels that it looks at.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let expressions = self.match_expressions.iter().map(|requirement| &*requirement.key);
        self.match_labels.iter().map(|(key, _)| key).chain(expressions)
    }

    /// Whether the API server accepts it. If not, names the field.
    pub fn validate(&self) -> Result<(), InvalidSelector> {
        let invalid = |field: &str, cause: String| Err(InvalidSelector(format!("{field}: {cause}")));
        for (key, value) in self.match_labels.iter() {
            if let Err(cause) = valid_key(key).and_then(|()| valid_value(value)) {
                return invalid("matchLabels", cause);
            }
        }
        for (index, requirement) in self.match_expressions.iter().enumerate() {
            if let Err(cause) = requirement.validate() {
                return invalid(&format!("matchExpressions[{index}]"), cause);
            }
        }
        Ok(())
    }
}

impl LabelSelectorRequirement {
    fn matches(&self, labels: &Labels) -> bool {
        let label = labels.get(&self.key);
        let is_listed = label.is_some_and(|label| self.values.iter().any(|value| value == label));
        match self.operator {
            LabelSelectorOperator::In => is_listed,
            LabelSelectorOperator::NotIn => !is_listed,
            LabelSelectorOperator::Exists => label.is_some(),
            LabelSelectorOperator::DoesNotExist => label.is_none(),
        }
    }

    fn validate(&self) -> Result<(), String> {
        use LabelSelectorOperator::{DoesNotExist, Exists, In, NotIn};
        valid_key(&self.key)?;
        match self.operator {
            In | NotIn if self.values.is_empty() => {
                Err(format!("{:?} needs at least one value", self.operator))
            }
            In | NotIn => self.values.iter().try_for_each(|value| valid_value(value)),
            Exists | DoesNotExist if self.values.is_empty() => Ok(()),
            Exists | DoesNotExist => Err(format!("{:?} takes no values", self.operator)),
        }
    }
}

/// As in a URL: `app=web,tier in (a,b),!old`.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.match_labels.as_selector())?;
        for (index, requirement) in self.match_expressions.iter().enumerate() {
            let comma = if index == 0 && self.match_labels.is_empty() { "" } else { "," };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LabelSelectorRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            LabelSelectorOperator::In if self.values.len() == 1 => write!(f, "{key}={values}"),
            LabelSelectorOperator::In => write!(f, "{key} in ({values})"),
            LabelSelectorOperator::NotIn => write!(f, "{key} notin ({values})"),
            LabelSelectorOperator::Exists => write!(f, "{key}"),
            LabelSelectorOperator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

fn valid_key(key: &str) -> Result<(), String> {
    let is_key = qualified_name_errors(key).is_empty();
    if is_key { Ok(()) } else { Err(format!("{key:?} is not a valid label key")) }
}

fn valid_value(value: &str) -> Result<(), String> {
    let is_value = label_value_errors(value).is_empty();
    if is_value { Ok(()) } else { Err(format!("{value:?} is not a valid label value")) }
}

#[cfg(test)]
mod tests {
    use listwatch_formats::selector::Selector;
    use serde_json::{Value, json};

    use super::*;

    fn read(selector: Value) -> LabelSelector {
        serde_json::from_value(selector).expect("a selector")
    }

    #[test]
    fn each_operator_selects_the_same_from_json_and_from_a_url() {
        let labels: Labels = [("tier", "a"), ("empty", "")].into_iter().collect();
        for (key, operator, values, text, is_selected) in [
            ("tier", "In", json!(["a", "b"]), "tier in (a,b)", true),
            ("tier", "In", json!(["b"]), "tier=b", false),
            ("tier", "NotIn", json!(["b", "c"]), "tier notin (b,c)", true),
            ("tier", "NotIn", json!(["a"]), "tier notin (a)", false),
            ("other", "NotIn", json!(["a"]), "other notin (a)", true),
            ("other", "In", json!([""]), "other=", false),
            ("empty", "In", json!([""]), "empty=", true),
            ("empty", "Exists", json!([]), "empty", true),
            ("other", "Exists", json!([]), "other", false),
            ("other", "DoesNotExist", json!([]), "!other", true),
            ("tier", "DoesNotExist", json!([]), "!tier", false),
        ] {
            let expression = json!({"key": key, "operator": operator, "values": values});
            let selector = read(json!({"matchExpressions": [expression]}));
            assert_eq!((selector.to_string().as_str(), selector.matches(&labels)), (text, is_selected));
            assert_eq!(Selector::parse(text).map(|parsed| parsed.matches(&json!(labels))), Ok(is_selected));
        }
    }

    #[test]
    fn all_requirements_of_a_selector_must_be_met() {
        let web = json!({"app": "web", "a/b": ""});
        let not_old = json!([{"key": "old", "operator": "DoesNotExist"}]);
        let selector = read(json!({"matchLabels": web, "matchExpressions": not_old}));
        assert_eq!(selector.to_string(), "a/b=,app=web,!old");
        assert_eq!(selector.keys().collect::<Vec<_>>(), ["a/b", "app", "old"]);
        assert_eq!(selector.validate(), Ok(()));
        let matches = |labels: Value| {
            let parsed = Selector::parse(&selector.to_string()).expect("a selector");
            let is_selected = parsed.matches(&labels);
            assert_eq!(selector.matches(&serde_json::from_value(labels).expect("labels")), is_selected);
            is_selected
        };
        assert!(matches(json!({"app": "web", "a/b": "", "tier": "x"})));
        assert!(!matches(json!({"app": "web"})));
        assert!(!matches(json!({"app": "web", "a/b": "", "old": "x"})));
        assert!(read(json!({})).is_empty());
    }

    #[test]
    fn an_invalid_selector_names_the_field_and_the_cause() {
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, expected) in [
            (json!({"matchLabels": {"a b": "c"}}), r#"matchLabels: "a b" is not a valid label key"#),
            (json!({"matchLabels": {"a": "-"}}), r#"matchLabels: "-" is not a valid label value"#),
            (expression("a", "In", json!([])), "matchExpressions[0]: In needs at least one value"),
            (expression("a", "Exists", json!(["b"])), "matchExpressions[0]: Exists takes no values"),
            (expression("/a", "Exists", json!([])), r#"matchExpressions[0]: "/a" is not a valid label key"#),
        ] {
            let error = read(selector).validate().expect_err("an error");
            assert_eq!(error.to_string(), expected);
        }
    }
}
