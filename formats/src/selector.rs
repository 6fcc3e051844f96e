//! Label selectors, as in URLs and as in objects, by the rules of apimachinery/pkg/labels/selector.go and with its errors.
//!
//! ```text
//! ?labelSelector=app=web,tier in (a,b),!old
//! {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}
//! ```

use std::fmt;

use serde_json::Value;

use crate::names::{label_value_errors, qualified_name_errors};

/// A parsed label selector. All requirements must hold.
#[derive(Clone, Debug, Default)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl Selector {
    /// Parses the selector in a URL.
    ///
    /// # Errors
    ///
    /// Where kube-apiserver answers 400 Bad Request, with its message.
    pub fn parse(text: &str) -> Result<Selector, String> {
        Parser { rest: text }.requirements()
    }

    /// Converts the selector of a Deployment: `{"matchLabels": {…}, "matchExpressions": […]}`.
    pub fn from_object(selector: &Value) -> Selector {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut requirements = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            requirements.push(Requirement {
                key: key.clone(),
                operator: Operator::Equals,
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
        Selector(requirements)
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &Value) -> bool {
        self.selects(|key| labels.get(key)?.as_str())
    }

    /// Whether it selects an object, of which `label` returns the value of a label.
    pub fn selects<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }
}

/// Formats the selector as `app=web,tier in (a,b),!old`, sorted by key.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_by(|one, other| one.key.cmp(&other.key));
        let texts = sorted.into_iter().map(|Requirement { key, operator, mut values }| {
            values.sort();
            let values = values.join(",");
            match operator {
                Operator::Equals => format!("{key}={values}"),
                Operator::In => format!("{key} in ({values})"),
                Operator::NotIn => format!("{key} notin ({values})"),
                Operator::Exists => key,
                Operator::DoesNotExist => format!("!{key}"),
                Operator::GreaterThan => format!("{key}>{values}"),
                Operator::LessThan => format!("{key}<{values}"),
            }
        });
        f.write_str(&texts.collect::<Vec<_>>().join(","))
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

    fn matches(&self, label: Option<&str>) -> bool {
        let listed = || label.is_some_and(|label| self.values.iter().any(|value| value == label));
        match self.operator {
            Operator::Equals | Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self.compares(label, |label, value| label > value),
            Operator::LessThan => self.compares(label, |label, value| label < value),
        }
    }

    /// Compares a label as a number. A label that is not a number never matches.
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

/// The parser of the selector in a URL.
struct Parser<'a> {
    rest: &'a str,
}

/// The characters that separate words. Most are tokens of their own; `==` and `!=` are one token.
fn is_separator(c: char) -> bool {
    " \t\r\n=!()<>,".contains(c)
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(is_separator)
}

fn begins_requirement(token: &str) -> bool {
    is_word(token) || token == "!"
}

fn begins_value(token: &str) -> bool {
    is_word(token) || matches!(token, "," | ")")
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        Parser { rest: self.rest }.next()
    }

    /// The next token. Empty at the end.
    fn next(&mut self) -> &'a str {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let (token, rest) = text.split_at(match text.find(is_separator).unwrap_or(text.len()) {
            0 if text.starts_with("==") || text.starts_with("!=") => 2,
            0 => text.len().min(1),
            end => end,
        });
        self.rest = rest;
        token
    }

    fn requirements(mut self) -> Result<Selector, String> {
        let mut requirements = Vec::new();
        while !self.peek().is_empty() {
            let first = self.peek();
            if !begins_requirement(first) {
                return Err(format!("found '{first}', expected: !, identifier, or 'end of string'"));
            }
            let requirement = self.requirement();
            requirements.push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match (self.next(), self.peek()) {
                ("", _) => break,
                (",", next) if begins_requirement(next) => {}
                (",", next) => return Err(format!("found '{next}', expected: identifier after ','")),
                (other, _) => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
        Ok(Selector(requirements))
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut key = self.next();
        let is_unwanted = key == "!";
        if is_unwanted {
            key = self.next();
        }
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        invalid("<nil>", key, &qualified_name_errors(key))?;
        if is_unwanted {
            return Requirement::checked(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), "" | ",") {
            return Requirement::checked(key, Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            "in" => return Requirement::checked(key, Operator::In, self.list()?),
            "notin" => return Requirement::checked(key, Operator::NotIn, self.list()?),
            "=" | "==" => Operator::Equals,
            "!=" => Operator::NotIn,
            ">" => Operator::GreaterThan,
            "<" => Operator::LessThan,
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        if matches!(self.peek(), "" | ",") {
            return Requirement::checked(key, operator, vec![String::new()]);
        }
        match self.next() {
            value if is_word(value) => Requirement::checked(key, operator, vec![value.to_owned()]),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// Parses `(a,b)`. A missing value is an empty one: `(,a)`.
    fn list(&mut self) -> Result<Vec<String>, String> {
        let (open, first) = (self.next(), self.peek());
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        if !begins_value(first) {
            return Err(format!("found '{first}', expected: ',', ')' or identifier"));
        }
        let mut values = Vec::new();
        loop {
            let value = if is_word(self.peek()) { self.next() } else { "" };
            values.push(value.to_owned());
            match (self.next(), self.peek()) {
                (",", next) if begins_value(next) => {}
                (",", next) => return Err(format!("found '{next}', expected: ',', or identifier")),
                (")", _) => return Ok(values),
                (other, _) => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(selector: &str, labels: Value) -> bool {
        Selector::parse(selector).is_ok_and(|selector| selector.matches(&labels))
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
    fn a_selector_is_printed_sorted_and_without_spaces() {
        let shown = |text| Selector::parse(text).map(|selector| selector.to_string());
        assert_eq!(
            shown(" ! h, e  in ( g , f ) , c!=d,a == b "),
            Ok("a=b,c notin (d),e in (f,g),!h".to_owned())
        );
        assert!(Selector::parse(" ").is_ok_and(|all| all.is_empty()));
    }

    #[test]
    fn an_invalid_selector_is_refused() {
        for text in
            ["app in", "==", "app in (a", "app on (a)", "a=b,,c", "a b c", "a>b", "a>=1", "-app", "app=a/b"]
        {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }

    /// `a====` was parsed as the label value `==`, which is invalid: the answer was an empty list instead of an error.
    #[test]
    fn an_operator_is_no_value() {
        let error = |text| Selector::parse(text).expect_err(text);
        let no_identifier =
            |sign| format!("unable to parse requirement: found '{sign}', expected: identifier");
        for (text, sign) in [("a====", "=="), ("a===", "="), ("a= !b", "!"), ("a!=(b)", "(")] {
            assert_eq!(error(text), no_identifier(sign), "{text}");
        }
        let no_end = |found| format!("found '{found}', expected: ',' or 'end of string'");
        for (text, found) in [("a=b=c", "="), ("a=b c", "c"), ("a==b==", "==")] {
            assert_eq!(error(text), no_end(found), "{text}");
        }
        assert!(selects("a=,b==", json!({"a": "", "b": ""})));
    }
}
