//! Label selectors, as in objects and as in URLs.
//!
//! ```text
//!   {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}
//!   ?labelSelector=app=web,tier in (a,b)
//! ```
//!
//! See <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>.

use std::{fmt, str::FromStr};

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

    /// Parses one requirement of a URL.
    fn parse(text: &str) -> Result<LabelSelectorRequirement, String> {
        use LabelSelectorOperator::{DoesNotExist, Exists, In, NotIn};
        let of = |key: &str, operator, values: Option<&str>| {
            let values = values.into_iter().flat_map(|values| values.split(','));
            let values = values.map(|value| value.trim().into()).collect();
            let requirement = LabelSelectorRequirement { key: key.trim().into(), operator, values };
            requirement.validate().map(|()| requirement)
        };
        if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
            return match *head.split_whitespace().collect::<Vec<_>>() {
                [key, "in"] => of(key, In, Some(values)),
                [key, "notin"] => of(key, NotIn, Some(values)),
                _ => Err("neither in nor notin stands before the parenthesis".to_owned()),
            };
        }
        if let Some(key) = text.strip_prefix('!') {
            return of(key, DoesNotExist, None);
        }
        if let Some((key, value)) = text.split_once("!=") {
            return of(key, NotIn, Some(value));
        }
        match text.split_once("==").or_else(|| text.split_once('=')) {
            Some((key, value)) => of(key, In, Some(value)),
            None => of(text, Exists, None),
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

/// From a URL. `Gt` and `Lt` (`a>5`), which objects cannot have, are errors.
impl FromStr for LabelSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<LabelSelector, InvalidSelector> {
        if text.trim().is_empty() {
            return Ok(LabelSelector::default());
        }
        let mut is_in_list = false;
        let terms = text.split(|c| {
            is_in_list = c == '(' || is_in_list && c != ')';
            c == ',' && !is_in_list
        });
        let requirements = terms.map(|term| {
            LabelSelectorRequirement::parse(term.trim())
                .map_err(|cause| InvalidSelector(format!("label selector {text:?}, at {term:?}: {cause}")))
        });
        let match_expressions = requirements.collect::<Result<_, _>>()?;
        Ok(LabelSelector { match_expressions, ..LabelSelector::default() })
    }
}

fn valid_key(key: &str) -> Result<(), String> {
    let (domain, name) = key.rsplit_once('/').unwrap_or(("a", key));
    let is_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_key = !name.is_empty() && is_label(name) && !domain.is_empty() && domain.bytes().all(is_domain);
    if is_key && domain.len() <= 253 { Ok(()) } else { Err(format!("{key:?} is not a valid label key")) }
}

fn valid_value(value: &str) -> Result<(), String> {
    if is_label(value) { Ok(()) } else { Err(format!("{value:?} is not a valid label value")) }
}

/// Whether this is the value of a label or, if not empty, the name in its key.
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
            assert_eq!(text.parse(), Ok(selector));
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
            let labels = serde_json::from_value(labels).expect("labels");
            let parsed: LabelSelector = selector.to_string().parse().expect("a selector");
            assert_eq!(parsed.matches(&labels), selector.matches(&labels));
            selector.matches(&labels)
        };
        assert!(matches(json!({"app": "web", "a/b": "", "tier": "x"})));
        assert!(!matches(json!({"app": "web"})));
        assert!(!matches(json!({"app": "web", "a/b": "", "old": "x"})));
        assert!(read(json!({})).is_empty() && "".parse::<LabelSelector>().is_ok_and(|all| all.is_empty()));
    }

    #[test]
    fn spaces_and_both_forms_of_equality_are_accepted_in_a_url() {
        let text =
            " a == b , c!=d,e  in ( f , g ) ,! h".parse::<LabelSelector>().map(|read| read.to_string());
        assert_eq!(text.as_deref(), Ok("a=b,c notin (d),e in (f,g),!h"));
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
        for (text, expected) in [
            ("a=b,,c", r#"label selector "a=b,,c", at "": "" is not a valid label key"#),
            ("a>5", r#"label selector "a>5", at "a>5": "a>5" is not a valid label key"#),
            (
                "a on (b)",
                r#"label selector "a on (b)", at "a on (b)": neither in nor notin stands before the parenthesis"#,
            ),
            ("a in (b", r#"label selector "a in (b", at "a in (b": "a in (b" is not a valid label key"#),
        ] {
            let error = text.parse::<LabelSelector>().expect_err("an error");
            assert_eq!(error.to_string(), expected);
        }
    }
}
