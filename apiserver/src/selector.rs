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
        Parser { rest: text }.requirements().map_err(Refusal::bad_request)
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
    fn checked(key: &str, operator: Operator, mut values: Vec<String>) -> Result<Requirement, String> {
        values.sort();
        values.dedup();
        let is_compared = matches!(operator, Operator::GreaterThan | Operator::LessThan);
        for (index, value) in values.iter().enumerate() {
            if is_compared && value.parse::<i64>().is_err() {
                return Err(format!(
                    "values[{index}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
            invalid(&format!("values[{index}][{key}]"), value, &label_value_errors(value))?;
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

    /// A label that is no number is neither more nor less.
    fn compares(&self, label: Option<&str>, compare: fn(i64, i64) -> bool) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let (label, value) = (label.and_then(number), self.values.first().and_then(|value| number(value)));
        matches!((label, value), (Some(label), Some(value)) if compare(label, value))
    }
}

fn invalid(field: &str, value: &str, errors: &[String]) -> Result<(), String> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(format!("{field}: Invalid value: {value:?}: {}", errors.join("; ")))
}

/// Words and signs, as apimachinery/pkg/labels/selector.go takes them apart, whose complaints these are.
struct Parser<'a> {
    rest: &'a str,
}

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// One of `= == != ! ( ) < > ,`.
    Sign(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::Word(text) | Token::Sign(text) => text,
            Token::End => "",
        }
    }

    fn begins_requirement(self) -> bool {
        matches!(self, Token::Word(_) | Token::Sign("!"))
    }

    fn ends_requirement(self) -> bool {
        matches!(self, Token::End | Token::Sign(","))
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        Parser { rest: self.rest }.next()
    }

    fn next(&mut self) -> Token<'a> {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let is_end = |c: char| " \t\r\n=!()<>,".contains(c);
        let (token, rest) = text.split_at(match text.find(is_end).unwrap_or(text.len()) {
            0 if text.starts_with("==") || text.starts_with("!=") => 2,
            0 => text.len().min(1),
            end => end,
        });
        self.rest = rest;
        match token {
            "" => Token::End,
            sign if sign.starts_with(is_end) => Token::Sign(sign),
            word => Token::Word(word),
        }
    }

    fn requirements(mut self) -> Result<Labels, String> {
        let mut requirements = Vec::new();
        while self.peek() != Token::End {
            if !self.peek().begins_requirement() {
                let found = self.peek().text();
                return Err(format!("found '{found}', expected: !, identifier, or 'end of string'"));
            }
            let requirement = self.requirement();
            requirements.push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match self.next() {
                Token::End => break,
                Token::Sign(",") if self.peek().begins_requirement() => {}
                Token::Sign(",") => {
                    return Err(format!("found '{}', expected: identifier after ','", self.peek().text()));
                }
                other => {
                    return Err(format!("found '{}', expected: ',' or 'end of string'", other.text()));
                }
            }
        }
        Ok(Labels(requirements))
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.next();
        let is_unwanted = token == Token::Sign("!");
        if is_unwanted {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        invalid("<nil>", key, &qualified_name_errors(key))?;
        if is_unwanted {
            return Requirement::checked(key, Operator::DoesNotExist, Vec::new());
        }
        if self.peek().ends_requirement() {
            return Requirement::checked(key, Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            Token::Word("in") => return Requirement::checked(key, Operator::In, self.list()?),
            Token::Word("notin") => return Requirement::checked(key, Operator::NotIn, self.list()?),
            Token::Sign("=" | "==") => Operator::In,
            Token::Sign("!=") => Operator::NotIn,
            Token::Sign(">") => Operator::GreaterThan,
            Token::Sign("<") => Operator::LessThan,
            other => {
                let found = other.text();
                return Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        if self.peek().ends_requirement() {
            return Requirement::checked(key, operator, vec![String::new()]);
        }
        match self.next() {
            Token::Word(value) => Requirement::checked(key, operator, vec![value.to_owned()]),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// `(a,b)`, in which nothing is the empty value: `(,a)`.
    fn list(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != Token::Sign("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        if !matches!(self.peek(), Token::Word(_) | Token::Sign("," | ")")) {
            return Err(format!("found '{}', expected: ',', ')' or identifier", self.peek().text()));
        }
        let mut values = Vec::new();
        loop {
            let value = match self.peek() {
                Token::Word(_) => self.next().text(),
                Token::Sign(_) | Token::End => "",
            };
            values.push(value.to_owned());
            match self.next() {
                Token::Sign(",") if matches!(self.peek(), Token::Word(_) | Token::Sign("," | ")")) => {}
                Token::Sign(",") => {
                    return Err(format!("found '{}', expected: ',', or identifier", self.peek().text()));
                }
                Token::Sign(")") => return Ok(values),
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
    }
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
        for term in split_unescaped(text).into_iter().filter(|term| !term.is_empty()) {
            let Some((path, value)) = term.split_once('=') else {
                let message = format!("invalid selector: '{text}'; can't understand '{term}'");
                return Err(Refusal::bad_request(message));
            };
            let (path, equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
            let value = if equal { value.strip_prefix('=').unwrap_or(value) } else { value };
            let value = unescaped(value)
                .map_err(|why| Refusal::bad_request(format!("invalid field selector: {why}")))?;
            check_field(path, kind)?;
            terms.push((path.to_owned(), value, equal));
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

/// At the commas that have no backslash before them.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut is_escaped = false;
    text.split(|c| {
        let is_end = c == ',' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })
    .collect()
}

/// A value without the backslashes before `\`, `,` and `=`.
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
            // Go prints the number of the letter.
            (',' | '=', _) => return Err(format!("unescaped character in value: {}", u32::from(c))),
            (c, _) => text.push(c),
        }
    }
    Ok(text)
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
