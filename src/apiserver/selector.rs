//! Which objects a list or a watch is about: `labelSelector=app=web,tier in (a,b),!old` and `fieldSelector=metadata.name=w1`.

use serde_json::Value;

use super::{
    kinds::{Kind, Rules},
    metadata::{label_value_errors, qualified_name_errors},
    refusal::Refusal,
};

/// A parsed label selector. All requirements must hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels(Vec<Requirement>);

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl Labels {
    /// Parse what stands in a URL.
    pub(super) fn parse(text: &str) -> Result<Labels, Refusal> {
        let mut requirements = Vec::new();
        for part in split_outside_brackets(text) {
            if !part.is_empty() {
                requirements.push(Requirement::parse(part)?);
            }
        }
        Ok(Labels(requirements))
    }

    /// The selector of a Deployment: `{"matchLabels": {…}, "matchExpressions": […]}`.
    pub(super) fn from_object(selector: &Value) -> Labels {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut requirements = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            requirements.push(Requirement {
                key: key.clone(),
                operator: Operator::In,
                values: vec![text(value)],
            });
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let operator = match expression["operator"].as_str() {
                Some("NotIn") => Operator::NotIn,
                Some("Exists") => Operator::Exists,
                Some("DoesNotExist") => Operator::DoesNotExist,
                _ => Operator::In,
            };
            let values = expression["values"].as_array().into_iter().flatten().map(text).collect();
            requirements.push(Requirement { key: text(&expression["key"]), operator, values });
        }
        Labels(requirements)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches(&self, labels: &Value) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels.get(&requirement.key)))
    }
}

impl Requirement {
    fn parse(part: &str) -> Result<Requirement, Refusal> {
        let refuse = |text: &str| Err(Refusal::bad_request(format!("unable to parse requirement: {text}")));
        if let Some(key) = part.strip_prefix('!') {
            return Requirement::checked(key, Operator::DoesNotExist, Vec::new());
        }
        for (sign, operator) in [("!=", Operator::NotIn), ("==", Operator::In), ("=", Operator::In)] {
            if let Some((key, value)) = part.split_once(sign) {
                if key.trim().is_empty() {
                    let text = format!("found '{sign}', expected: !, identifier, or 'end of string'");
                    return Err(Refusal::bad_request(text));
                }
                return Requirement::checked(key, operator, vec![exact_value(value.trim())?.to_owned()]);
            }
        }
        for (sign, operator) in [('>', Operator::GreaterThan), ('<', Operator::LessThan)] {
            if let Some((key, value)) = part.split_once(sign) {
                let value = exact_value(value.trim())?;
                if value.parse::<i64>().is_err() {
                    let text = format!(
                        "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                    );
                    return refuse(&text);
                }
                return Requirement::checked(key, operator, vec![value.to_owned()]);
            }
        }
        let mut words = part.splitn(3, char::is_whitespace);
        let (key, word, rest) =
            (words.next().unwrap_or_default(), words.next(), words.next().unwrap_or_default());
        let operator = match word.map(|word| word.split('(').next().unwrap_or_default()) {
            None | Some("") => return Requirement::checked(key, Operator::Exists, Vec::new()),
            Some("in") => Operator::In,
            Some("notin") => Operator::NotIn,
            Some(other) => {
                return refuse(&format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        // `in(a,b)` without a space is as good as `in (a,b)`.
        let glued = word.and_then(|word| word.find('(').map(|at| &word[at..])).unwrap_or_default();
        let list = format!("{glued}{rest}");
        let Some(list) = list.trim().strip_prefix('(') else {
            return refuse(&format!("found '{}' expected: '('", list.trim()));
        };
        let Some(list) = list.strip_suffix(')') else { return refuse("found '', expected: ',' or ')'") };
        Requirement::checked(key, operator, list.split(',').map(|value| value.trim().to_owned()).collect())
    }

    fn checked(key: &str, operator: Operator, values: Vec<String>) -> Result<Requirement, Refusal> {
        let key = key.trim();
        let wrong_key =
            qualified_name_errors(key).first().map(|error| ("<nil>".to_owned(), key, error.clone()));
        let wrong_value = || {
            values.iter().enumerate().find_map(|(index, value)| {
                let error = label_value_errors(value).first()?.clone();
                Some((format!("values[{index}][{key}]"), value.as_str(), error))
            })
        };
        if let Some((field, value, error)) = wrong_key.or_else(wrong_value) {
            let text = format!("unable to parse requirement: {field}: Invalid value: {value:?}: {error}");
            return Err(Refusal::bad_request(text));
        }
        Ok(Requirement { key: key.to_owned(), operator, values })
    }

    fn matches(&self, label: Option<&Value>) -> bool {
        let label = label.and_then(Value::as_str);
        let listed = || label.is_some_and(|label| self.values.iter().any(|value| value == label));
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self.compares(label, |label, value| label > value),
            Operator::LessThan => self.compares(label, |label, value| label < value),
        }
    }
}

impl Requirement {
    /// A label that is no number is neither more nor less.
    fn compares(&self, label: Option<&str>, compare: fn(i64, i64) -> bool) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let (label, value) = (label.and_then(number), self.values.first().and_then(|value| number(value)));
        matches!((label, value), (Some(label), Some(value)) if compare(label, value))
    }
}

/// The value behind `=`, which may be empty, and behind which nothing else may stand.
fn exact_value(text: &str) -> Result<&str, Refusal> {
    let (value, rest) = text.split_at(word_end(text));
    let rest = rest.trim_start();
    if rest.is_empty() {
        return Ok(value);
    }
    let found = match rest.get(..2) {
        Some(sign @ ("==" | "!=")) => sign,
        Some(_) | None => rest.get(..word_end(rest).max(1)).unwrap_or(rest),
    };
    Err(Refusal::bad_request(if value.is_empty() {
        format!("unable to parse requirement: found '{found}', expected: identifier")
    } else {
        format!("found '{found}', expected: ',' or 'end of string'")
    }))
}

/// Where the lexer of apimachinery/pkg/labels ends a word.
fn word_end(text: &str) -> usize {
    let ends = |c: char| c.is_ascii_whitespace() || "=!()<>,".contains(c);
    text.find(ends).unwrap_or(text.len())
}

/// The commas inside `in (a,b)` do not separate requirements.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// `app=web,tier=a`: a map of labels as `kubectl get -o wide` and `status.selector` show it.
pub(super) fn shown(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let pairs: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// A parsed field selector: path, value, and whether they are to be equal.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String, bool)>);

impl Fields {
    pub(super) fn parse(text: &str, kind: &Kind) -> Result<Fields, Refusal> {
        let mut terms = Vec::new();
        for term in text.split(',').filter(|term| !term.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = term.split_once("==").or(term.split_once('=')) {
                (path, value, true)
            } else {
                let message = format!("invalid selector: '{text}'; can't understand '{term}'");
                return Err(Refusal::bad_request(message));
            };
            check_field(path, kind)?;
            terms.push((path.to_owned(), value.to_owned(), equal));
        }
        Ok(Fields(terms))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(path, value, equal)| (field(object, path) == *value) == *equal)
    }
}

fn check_field(path: &str, kind: &Kind) -> Result<(), Refusal> {
    let known = path == "metadata.name"
        || (path == "metadata.namespace" && (kind.namespaced || !kind.is_custom()))
        || kind.fields.iter().any(|field| field == path);
    if known {
        return Ok(());
    }
    let message = match kind.rules {
        Rules::BuiltIn(_) if kind.fields.is_empty() => {
            format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        }
        Rules::BuiltIn(_) | Rules::Custom(_) => format!("field label not supported: {path}"),
    };
    Err(Refusal::bad_request(message))
}

/// A field as the text that it is compared with; one that is missing is empty.
fn field(object: &Value, path: &str) -> String {
    // The two field selectors that are not simply paths.
    let path = if path == "source" { "source.component" } else { path };
    let value = path.split('.').fold(object, |value, part| &value[part]);
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(selector: &str, labels: Value) -> bool {
        Labels::parse(selector).is_ok_and(|selector| selector.matches(&labels))
    }

    #[test]
    fn requirements_are_as_in_the_api_concepts() {
        assert!(selects("", json!(null)));
        assert!(selects("app=web", json!({"app": "web"})));
        assert!(!selects("app=web", json!({"app": "db"})));
        assert!(selects("app!=web", json!({})));
        assert!(selects("app in (web,db),!old", json!({"app": "db"})));
        assert!(selects("app in(web, db)", json!({"app": "db"})));
        assert!(!selects("app notin (web,db)", json!({"app": "db"})));
        assert!(selects("app", json!({"app": ""})));
        assert!(!selects("!app", json!({"app": ""})));
        assert!(selects("size>9,size<11", json!({"size": "10"})));
        assert!(!selects("size>10", json!({"size": "10"})));
        assert!(!selects("size<10", json!({"size": "small"})));
        assert!(!selects("size<10", json!({})));
    }

    #[test]
    fn a_selector_that_is_none_is_refused() {
        for text in ["app in", "==", "app in (a", "a b c", "a>b", "a>=1", "-app", "app=a/b"] {
            assert!(Labels::parse(text).is_err(), "{text}");
        }
    }

    /// `a====` was taken for a label of the value `==`, which nothing can have: an empty list instead of a refusal.
    #[test]
    fn an_operator_is_no_value() {
        let refusal = |text| Labels::parse(text).expect_err(text).message().to_owned();
        let no_identifier =
            |sign| format!("unable to parse requirement: found '{sign}', expected: identifier");
        for (text, sign) in [("a====", "=="), ("a===", "="), ("a= !b", "!"), ("a!=(b)", "(")] {
            assert_eq!(refusal(text), no_identifier(sign), "{text}");
        }
        let no_end = |found| format!("found '{found}', expected: ',' or 'end of string'");
        for (text, found) in [("a=b=c", "="), ("a=b c", "c"), ("a==b==", "==")] {
            assert_eq!(refusal(text), no_end(found), "{text}");
        }
        assert!(selects("a=,b==", json!({"a": "", "b": ""})));
    }
}
