//! The JSON paths of printer columns, in the dialect of kubectl (client-go/util/jsonpath), without `range`.
//!
//! ```text
//! .status.conditions[?(@.type=="Ready")].status    .spec.ports[-1:].port    .metadata.labels['a\.b/c']    ..image
//! ```
//!
//! The dialect is not RFC 9535, which the crates implement: there, a path begins with `$`, and a dot is not escaped.

use std::cmp::Ordering;

use serde_json::Value;

use crate::kinds::field_checks::each;

/// A JSON path as kubectl reads it: `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Clone, Debug)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    /// `*` after a dot: the values of a map or a list.
    Wildcard,
    /// `..`: the value with all maps, lists and texts in it.
    Recursive,
    Slice(Slice),
    Union(Vec<Vec<Step>>),
    /// `[?(@.size>1)]`
    Compare(Vec<Step>, String, Vec<Step>),
    /// `[?(@.size)]`
    Exists(Vec<Step>),
    /// A text, a number or a boolean in a filter.
    Constant(Value),
    /// A name such as `range`: no column can have it.
    Name,
}

/// `[2]`, `[-1]`, `[0:2]`, `[*]`
#[derive(Clone, Debug)]
struct Slice {
    start: i64,
    end: Option<i64>,
    /// Whether the end follows from the start: `[-1]` ends at 0, which is the length.
    is_index: bool,
    step: Option<i64>,
}

impl JsonPath {
    /// `None` if it has a syntax error.
    #[must_use]
    pub fn parse(text: &str) -> Option<JsonPath> {
        steps(text).map(JsonPath)
    }

    /// The first result. An error, such as an index that is out of bounds, gives none.
    #[must_use]
    pub fn first<'a>(&'a self, object: &'a Value) -> Option<&'a Value> {
        walk(&self.0, vec![object])?.first().copied()
    }
}

fn steps(text: &str) -> Option<Vec<Step>> {
    let (mut steps, mut rest) = (Vec::new(), text);
    loop {
        if let Some(inside) = rest.strip_prefix("[?(") {
            let end = filter_end(inside)?;
            steps.push(filter(&inside[..end])?);
            rest = inside[end..].strip_prefix(")]")?;
            continue;
        }
        if let Some(after) = rest.strip_prefix("..") {
            if matches!(steps.last(), Some(Step::Recursive)) {
                return None;
            }
            steps.push(Step::Recursive);
            rest = after;
            if rest.starts_with(is_alphanumeric) {
                rest = field(rest, &mut steps);
            }
            continue;
        }
        let Some(first) = rest.chars().next() else { return Some(steps) };
        let after = &rest[first.len_utf8()..];
        rest = match first {
            ' ' | '@' | '$' => after,
            '.' => field(after, &mut steps),
            '[' => {
                let (inside, after) = after.split_once(']')?;
                array(inside, &mut steps)?;
                after
            }
            '"' | '\'' => {
                let is_end = |(at, _): &(usize, &str)| !after[..*at].ends_with('\\');
                let (end, _) = after.match_indices(first).find(is_end)?;
                steps.push(Step::Constant(after[..end].replace('\\', "").into()));
                &after[end + 1..]
            }
            '+' | '-' | '0'..='9' => {
                let end = after.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(after.len());
                let number = rest[..1 + end].trim_start_matches('+');
                let whole = number.parse::<i64>().map(Value::from);
                steps.push(Step::Constant(whole.or_else(|_| number.parse::<f64>().map(Value::from)).ok()?));
                &after[end..]
            }
            c if is_alphanumeric(c) => {
                let end = rest.find(is_terminator).unwrap_or(rest.len());
                steps
                    .push(rest[..end].parse::<bool>().map_or(Step::Name, |flag| Step::Constant(flag.into())));
                &rest[end..]
            }
            _ => return None,
        };
    }
}

/// Reads a name up to the next terminator that is not escaped.
fn field<'a>(text: &'a str, steps: &mut Vec<Step>) -> &'a str {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let ends = !is_escaped && is_terminator(c);
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    steps.push(if name == "*" { Step::Wildcard } else { Step::Field(name.replace('\\', "")) });
    rest
}

/// What is inside brackets: `1`, `-1:`, `*`, `'name'`, `0,2`.
fn array(inside: &str, all: &mut Vec<Step>) -> Option<()> {
    if inside.contains(',') {
        let mut union = Vec::new();
        for part in inside.split(',') {
            let mut part_steps = Vec::new();
            array(part.trim_matches(' '), &mut part_steps)?;
            union.push(part_steps);
        }
        all.push(Step::Union(union));
        return Some(());
    }
    let quoted = inside.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    if let Some(name) = quoted.filter(|name| !name.contains('\'')) {
        all.extend(steps(&format!(".{name}"))?);
        return Some(());
    }
    let inside = if inside == "*" { ":" } else { inside };
    let number = |text: &str| if text.is_empty() { Some(None) } else { text.parse::<i64>().ok().map(Some) };
    let mut parts = inside.split(':');
    let start = number(parts.next()?)?.unwrap_or(0);
    let (end, step) = (parts.next(), parts.next());
    if inside.contains('+') || parts.next().is_some() {
        return None;
    }
    all.push(Step::Slice(Slice {
        start,
        end: end.map_or(Some(Some(start.wrapping_add(1))), number)?,
        is_index: end.is_none(),
        step: number(step.unwrap_or_default())?,
    }));
    Some(())
}

/// Where the `)` of a filter is. A `)` in quotes does not count.
fn filter_end(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut before = '(';
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (')', None) => return Some(at),
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open && before != '\\' => quote = None,
            _ => {}
        }
        before = c;
    }
    None
}

fn filter(text: &str) -> Option<Step> {
    let is_operator = |c: char| "!<>=".contains(c);
    let Some(start) = text.find(is_operator).filter(|start| *start > 0) else {
        return steps(text).map(Step::Exists);
    };
    let length = text[start..].find(|c| !is_operator(c))?;
    let (operator, right) = text[start..].split_at(length);
    Some(Step::Compare(steps(&text[..start])?, operator.to_owned(), steps(right)?))
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn is_terminator(c: char) -> bool {
    " \t\r\n.,[]$@{}".contains(c)
}

/// All results of the steps; `None` for an error.
fn walk<'a>(steps: &'a [Step], from: Vec<&'a Value>) -> Option<Vec<&'a Value>> {
    let mut values = from;
    for step in steps {
        let mut results = Vec::new();
        if let Step::Union(all) = step {
            for steps in all {
                results.extend(walk(steps, values.clone())?);
            }
            values = results;
            continue;
        }
        // Nothing is below null, except that a filter needs a list.
        let is_filter = matches!(step, Step::Exists(_) | Step::Compare(..) | Step::Constant(_));
        for value in values.into_iter().filter(|value| is_filter || !value.is_null()) {
            match step {
                Step::Field(name) => results.extend(value.as_object().and_then(|map| map.get(name))),
                Step::Wildcard => results.extend(below(value)),
                Step::Recursive => descend(value, &mut results),
                Step::Slice(slice) => slice.of(value.as_array()?, &mut results)?,
                Step::Exists(steps) => {
                    let has =
                        |item: &&'a Value| walk(steps, vec![item]).is_some_and(|found| !found.is_empty());
                    results.extend(value.as_array()?.iter().filter(has));
                }
                Step::Compare(left, operator, right) => {
                    for item in value.as_array()? {
                        if matches(item, left, operator, right)? {
                            results.push(item);
                        }
                    }
                }
                Step::Constant(constant) => results.push(constant),
                Step::Union(_) => {}
                Step::Name => return None,
            }
        }
        values = results;
    }
    Some(values)
}

impl Slice {
    fn of<'a>(&self, items: &'a [Value], results: &mut Vec<&'a Value>) -> Option<()> {
        let length = i64::try_from(items.len()).ok()?;
        let from_end = |at: i64| if at < 0 { at + length } else { at };
        let (start, end) = (from_end(self.start), self.end.unwrap_or(length));
        let end = if end == 0 && self.is_index { length } else { from_end(end) };
        if start == end {
            return Some(());
        }
        let step = usize::try_from(self.step.unwrap_or(1)).ok().filter(|step| *step > 0)?;
        let slice = items.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?;
        results.extend(slice.iter().step_by(step));
        Some(())
    }
}

fn below(value: &Value) -> impl Iterator<Item = &Value> {
    each(value).chain(value.as_object().into_iter().flat_map(|map| map.values()))
}

fn descend<'a>(value: &'a Value, results: &mut Vec<&'a Value>) {
    if below(value).next().is_some() || value.as_str().is_some_and(|text| !text.is_empty()) {
        results.push(value);
    }
    for one in below(value) {
        descend(one, results);
    }
}

/// Whether an item passes a filter. `None` for values that cannot be compared, such as a number and a text.
fn matches(item: &Value, left: &[Step], operator: &str, right: &[Step]) -> Option<bool> {
    let one = |steps| match walk(steps, vec![item])?[..] {
        [] => Some(None),
        [value] => Some(Some(value.clone())),
        [..] => None,
    };
    let Some(left) = one(left)? else { return Some(false) };
    let Some(right) = one(right)? else { return Some(false) };
    let ordering = match (&left, &right) {
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Number(left), Value::Number(right)) if left.is_f64() == right.is_f64() => {
            match left.as_i64().zip(right.as_i64()) {
                Some((left, right)) => left.cmp(&right),
                None => left.as_f64()?.partial_cmp(&right.as_f64()?)?,
            }
        }
        (Value::Bool(left), Value::Bool(right)) if matches!(operator, "==" | "!=") => left.cmp(right),
        _ => return None,
    };
    Some(match operator {
        "==" => ordering == Ordering::Equal,
        "!=" => ordering != Ordering::Equal,
        "<" => ordering == Ordering::Less,
        "<=" => ordering != Ordering::Greater,
        ">" => ordering == Ordering::Greater,
        ">=" => ordering != Ordering::Less,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn printer_columns_find_their_value() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "label"}},
            "spec": {"ports": [{"port": 80}, {"name": "http"}], "sizes": [1, 2, 3], "fraction": [{"f": 1.5}], "no": null},
            "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        for (path, wanted) in [
            (".spec.ports[0].port", json!(80)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (r#".status.conditions[?(@.type != "Stalled")].status"#, json!("True")),
            (r#".spec.ports[?(@.name)].name"#, json!("http")),
            (".spec.ports[?(@.port>79)].port", json!(80)),
            (".spec.fraction[?(@.f<=1.5)].f", json!(1.5)),
            (r".metadata.labels.a\.b/c", json!("label")),
            (r".metadata.labels['a\.b/c']", json!("label")),
            (".spec.ports[*].name", json!("http")),
            (".spec.ports[*]", json!({"port": 80})),
            (".spec.sizes[-1]", json!(3)),
            (".spec.sizes[-2]", json!(2)),
            (".spec.sizes[-2:]", json!(2)),
            (".spec.sizes[1:3]", json!(2)),
            (".spec.sizes[::2]", json!(1)),
            (".spec.sizes[2,0]", json!(3)),
            (".spec['none','sizes'][0]", json!(1)),
            (".spec.no", json!(null)),
            ("..type", json!("Stalled")),
        ] {
            let parsed = JsonPath::parse(path).expect(path);
            assert_eq!(parsed.first(&object), Some(&wanted), "{path}");
        }
        for path in [
            ".spec.ports[*].host",
            ".status.phase",
            ".spec.sizes[3]",
            ".spec.sizes[9223372036854775807]",
            ".spec.sizes[-4]",
            ".spec.no.x",
            r#".spec.ports[?(@.port=="80")].port"#,
            ".spec[?(@.a)]",
            ".spec end",
        ] {
            assert_eq!(JsonPath::parse(path).expect(path).first(&object), None, "{path}");
        }
        for path in [".a[x]", r#".a["b"]"#, ".a[", "....a", ".a[?(@.b]", ".a]"] {
            assert!(JsonPath::parse(path).is_none(), "{path}");
        }
    }
}
