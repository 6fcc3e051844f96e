//! Structural schemas: what a CRD says about its objects, and what the API server does with it.
//!
//! ```yaml
//! openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [image], properties: {
//!   image: {type: string}, port: {type: integer, minimum: 1, default: 80}}}}}
//! ```
//!
//! Three passes over an object, in this order: unknown fields are pruned, missing ones get their defaults, then it is
//! validated, by the crate `jsonschema` for the schema and by the crate `cel` for `x-kubernetes-validations`.

use std::{
    fmt::{self, Write as _},
    ops::ControlFlow,
};

use jsonschema::{PatternOptions, ValidationError, error::ValidationErrorKind};
use serde_json::{Map, Value, json};

use super::{
    cost::{Budget, Counted},
    refusal::Cause,
    shape::twins,
    types,
};

/// A schema ready for use.
#[derive(Debug)]
pub(super) struct Schema {
    source: Value,
    validator: jsonschema::Validator,
    errors: Errors,
    rules: Vec<Rules>,
}

/// What `jsonschema` makes when an object is wrong: all errors there are, before we see the first, each with its path and
/// some text of the schema.
#[derive(Debug)]
struct Errors {
    /// Of one value, at most.
    number: usize,
    /// Of the longest text in the schema.
    bytes: usize,
    /// Those of each alternative are made too, even where the first error is asked for alone.
    has_alternatives: bool,
}

/// The `x-kubernetes-validations` of one place in the schema.
#[derive(Debug)]
struct Rules {
    /// Property names; `[]` goes into each item, `{}` into each value of a map.
    path: Vec<String>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    program: Counted,
    /// A transition rule: it holds between an object and what was there before.
    needs_old: bool,
    rule: String,
    message: Option<String>,
    message_expression: Option<Counted>,
    reason: Option<String>,
}

/// Where a value is. Text is made of it when something is told, and not before: with a key of a megabyte it would be a
/// megabyte for each item.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    /// `spec.size`
    Field(&'a Path<'a>, &'a str),
    /// `labels[app]`
    Key(&'a Path<'a>, &'a str),
    /// `ports[0]`
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => write!(f, "{name}"),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Key(parent, name) => write!(f, "{parent}[{name}]"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// What is told to be wrong with one object.
struct Told<'a> {
    causes: &'a mut Vec<Cause>,
    /// Of ours. There may be others.
    number: usize,
    bytes: usize,
}

impl Told<'_> {
    /// Breaks when that was enough.
    fn tell(&mut self, cause: Cause) -> ControlFlow<()> {
        self.number += 1;
        self.bytes += cause.bytes();
        self.causes.push(cause);
        if self.number >= CAUSES_MAX || self.bytes >= TOLD_BYTES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// What cannot be compiled of a schema: `.properties[spec].pattern`.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) at: String,
    pub(super) value: Value,
    pub(super) why: String,
}

impl Wrong {
    fn new(error: &ValidationError<'_>) -> Wrong {
        let pointer = error.instance_path().as_str();
        let is_pattern = pointer.ends_with("/pattern");
        let why = if is_pattern { "must be a valid regular expression, but isn't: " } else { "" };
        let mut at = String::new();
        let mut names = false;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            names = if names {
                at.push_str(&format!("[{part}]"));
                false
            } else {
                at.push_str(&format!(".{part}"));
                ["properties", "allOf", "anyOf", "oneOf"].contains(&part.as_str())
            };
        }
        Wrong { at, value: error.instance().clone().into_owned(), why: format!("{why}{error}") }
    }
}

impl Schema {
    /// Fails if the schema or one of its rules cannot be compiled.
    pub(super) fn compile(source: &Value) -> Result<Schema, Wrong> {
        let mut standard = json!({"type": "object"});
        if !source.is_null() {
            standard = as_json_schema(source);
        }
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft4)
            .should_validate_formats(true)
            // As Go's: without what cannot be found in one pass.
            .with_pattern_options(PatternOptions::regex())
            .build(&standard)
            .map_err(|error| Wrong::new(&error))?;
        let mut rules = Vec::new();
        on_large_stack(|| collect_rules(source, "", &mut Vec::new(), &mut rules))?;
        Ok(Schema { source: source.clone(), validator, errors: Errors::of(&standard), rules })
    }

    /// As the CRD has it, for OpenAPI.
    pub(super) fn source(&self) -> &Value {
        &self.source
    }

    /// Drop what the schema does not name, and say what it was: `spec.bogus`.
    pub(super) fn prune(&self, object: &mut Value) -> Vec<String> {
        prune_object(object, &self.source)
    }

    /// Fill in the defaults of what is missing; 1.0 is 1.
    pub(super) fn set_defaults(&self, object: &mut Value) {
        make_whole(object);
        set_defaults(object, &self.source);
    }

    /// What is wrong with an object, beside what was found already.
    pub(super) fn validate(&self, object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
        // Broken off or not, something was told or nothing is wrong.
        let _ = self.tell(object, before, &mut Told { causes, number: 0, bytes: 0 });
    }

    fn tell(&self, object: &Value, before: Option<&Value>, told: &mut Told<'_>) -> ControlFlow<()> {
        self.tell_errors(object, told)?;
        let mut ends = |_: &Path<'_>, _: &Value| ControlFlow::Break(());
        // What was wrong already may stay so.
        if find_twice(before.unwrap_or(&Value::Null), &self.source, &Path::Root, &mut ends).is_continue() {
            let mut tell =
                |path: &Path<'_>, value: &Value| told.tell(Cause::duplicate(path.to_string(), value));
            find_twice(object, &self.source, &Path::Root, &mut tell)?;
        }
        if self.rules.is_empty() {
            return ControlFlow::Continue(());
        }
        // Rules are only tried on objects of the right shape.
        if told.causes.iter().any(Cause::blocks_rules) {
            return told.tell(Cause::rules_not_checked());
        }
        let mut check = || {
            let budget = Budget::new();
            self.rules
                .iter()
                .try_for_each(|rules| rules.check(object, before, &rules.path, &Path::Root, &budget, told))
        };
        let depth = self.rules.iter().flat_map(|rules| &rules.rules).map(Rule::depth).max();
        match depth {
            Some(..=DEPTH_MAX) | None => check(),
            Some(_) => on_large_stack(check),
        }
    }

    fn tell_errors(&self, object: &Value, told: &mut Told<'_>) -> ControlFlow<()> {
        if self.validator.is_valid(object) {
            return ControlFlow::Continue(());
        }
        if self.errors.bytes_max(object) <= ERRORS_BYTES_MAX {
            return self.validator.iter_errors(object).try_for_each(|error| told.tell(as_cause(&error)));
        }
        if self.errors.has_alternatives {
            let text = "in body is too large for what is wrong with it to be told";
            return told.tell(Cause::wrong_type("", &json_type(object).into(), text));
        }
        self.validator
            .validate(object)
            .err()
            .map_or(ControlFlow::Continue(()), |error| told.tell(as_cause(&error)))
    }
}

/// What is told to be wrong with one object. The real server was seen to take 14 seconds for so many, and to time out over
/// four times as many.
const CAUSES_MAX: usize = 5_000;

/// Text of all that is told of one object, but for the last of it. Each cause has its path twice, and the answer each cause.
const TOLD_BYTES_MAX: usize = 1024 * 1024;

/// Most that the errors of `jsonschema` may take together. Of an object whose errors could take more, the first is told: one
/// with a quarter of a million values, or with a long key around many.
const ERRORS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One error, without its text.
const ERROR_BYTES: usize = 250;

/// An index or the like in a path.
const STEP_BYTES: usize = 8;

impl Errors {
    fn of(standard: &Value) -> Errors {
        let mut errors = Errors { number: 0, bytes: 0, has_alternatives: false };
        errors.number = errors.look_at(standard);
        errors
    }

    /// How many schemas look at the same value, at most.
    fn look_at(&mut self, schema: &Value) -> usize {
        let (mut number, mut below) = (1, 0);
        for (word, value) in schema.as_object().into_iter().flatten() {
            self.has_alternatives |= word == "anyOf" || word == "oneOf";
            match word.as_str() {
                "properties" => {
                    let each = value.as_object().into_iter().flatten();
                    below = each.map(|(_, schema)| self.look_at(schema)).fold(below, usize::max);
                }
                "items" | "additionalProperties" => below = below.max(self.look_at(value)),
                "not" => number += self.look_at(value),
                "allOf" | "anyOf" | "oneOf" => {
                    let each = value.as_array().into_iter().flatten();
                    number += each.map(|schema| self.look_at(schema)).sum::<usize>();
                }
                // The library shares the options of an enum.
                "enum" => {}
                _ => self.bytes = self.bytes.max(longest_text(value)),
            }
        }
        number.max(number - 1 + below)
    }

    /// What the errors take if all is wrong.
    fn bytes_max(&self, object: &Value) -> usize {
        self.number.saturating_mul(text_bytes(object, ERROR_BYTES + self.bytes))
    }
}

fn longest_text(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(longest_text).max().unwrap_or(0),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Of a text for each value of an object, if one takes so much here.
fn text_bytes(value: &Value, here: usize) -> usize {
    here + match value {
        Value::Array(items) => items.iter().map(|item| text_bytes(item, here + STEP_BYTES)).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| text_bytes(value, here + 1 + name.len())).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0_usize,
    }
}

/// See apiextensions-apiserver, `supportedVersionedFormats`.
const FORMATS: [&str; 6] = ["date-time", "email", "hostname", "ipv4", "ipv6", "uri"];

/// Kubernetes' dialect in the words of JSON Schema draft 4: `nullable` and int-or-string become lists of types.
/// Of the formats only those are kept that the real server checks, and the library too.
fn as_json_schema(schema: &Value) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let mut standard = Map::new();
    for (word, value) in schema {
        let value = match word.as_str() {
            "properties" => {
                let each = value.as_object().into_iter().flatten();
                each.map(|(name, schema)| (name.clone(), as_json_schema(schema))).collect()
            }
            "items" | "not" | "additionalProperties" => as_json_schema(value),
            "allOf" | "anyOf" | "oneOf" => {
                value.as_array().into_iter().flatten().map(as_json_schema).collect()
            }
            "format" if !FORMATS.iter().any(|format| value == format) => continue,
            "required" if value.as_array().is_none_or(Vec::is_empty) => continue,
            "type" | "format" | "required" | "enum" | "minimum" | "maximum" | "exclusiveMinimum"
            | "exclusiveMaximum" | "minLength" | "maxLength" | "pattern" | "minItems" | "maxItems"
            | "uniqueItems" | "multipleOf" | "minProperties" | "maxProperties" => value.clone(),
            _ => continue,
        };
        standard.insert(word.clone(), value);
    }
    if schema.get("x-kubernetes-int-or-string") == Some(&true.into()) {
        standard.insert("type".to_owned(), json!(["integer", "string"]));
    }
    if schema.get("nullable") == Some(&true.into()) {
        if let Some(Value::String(one)) = standard.get("type").cloned() {
            standard.insert("type".to_owned(), json!([one, "null"]));
        }
        if let Some(Value::Array(options)) = standard.get_mut("enum") {
            options.push(Value::Null);
        }
    }
    standard.into()
}

/// One error of `jsonschema` in the words of kube-openapi.
fn as_cause(error: &ValidationError<'_>) -> Cause {
    let field = field_path(error.instance_path().as_str());
    let value = error.instance();
    let says = |text: String| format!("{} in body {text}", if field.is_empty() { "body" } else { &field });
    let invalid = |text: String| Cause::invalid(field.clone(), value, &says(text));
    let too_many = |what: &str, limit: u64| {
        let length = value.as_array().map_or(0, Vec::len);
        let length = value.as_object().map_or(length, Map::len);
        let unit = if what.is_empty() { "items" } else { what };
        Cause::too_many(field.clone(), length, &format!("must have at most {limit} {unit}"))
    };
    match error.kind() {
        ValidationErrorKind::Type { kind } => {
            let wanted = match kind {
                jsonschema::error::TypeKind::Single(one) => one.to_string(),
                jsonschema::error::TypeKind::Multiple(set) => {
                    let names: Vec<String> = set.iter().map(|one| one.to_string()).collect();
                    if names.contains(&"string".to_owned()) && names.contains(&"integer".to_owned()) {
                        "integer,string".to_owned()
                    } else {
                        names.into_iter().find(|name| name != "null").unwrap_or_default()
                    }
                }
            };
            let is = json_type(value);
            Cause::wrong_type(field.clone(), &is.into(), &says(format!("must be of type {wanted}: {is:?}")))
        }
        ValidationErrorKind::Format { format } => {
            let text = says(format!("must be of type {format}: {value}"));
            Cause::wrong_type(field.clone(), value, &text)
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            let field = if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
            Cause::required(field, "")
        }
        ValidationErrorKind::Enum { options } => {
            let options = options.as_array().into_iter().flatten().filter(|one| !one.is_null());
            let options: Vec<String> =
                options.map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
            Cause::not_supported(field.clone(), value, &options)
        }
        ValidationErrorKind::Minimum { limit } => {
            invalid(format!("should be greater than or equal to {limit}"))
        }
        ValidationErrorKind::Maximum { limit } => invalid(format!("should be less than or equal to {limit}")),
        ValidationErrorKind::ExclusiveMinimum { limit } => invalid(format!("should be greater than {limit}")),
        ValidationErrorKind::ExclusiveMaximum { limit } => invalid(format!("should be less than {limit}")),
        ValidationErrorKind::MinLength { limit } => invalid(format!("should be at least {limit} chars long")),
        ValidationErrorKind::MaxLength { limit } => {
            Cause::too_long(field.clone(), &format!("may not be more than {limit} bytes"))
        }
        ValidationErrorKind::Pattern { pattern } => invalid(format!("should match '{pattern}'")),
        ValidationErrorKind::MinItems { limit } => invalid(format!("should have at least {limit} items")),
        ValidationErrorKind::MaxItems { limit } => too_many("", *limit),
        ValidationErrorKind::MinProperties { limit } => {
            invalid(format!("should have at least {limit} properties"))
        }
        ValidationErrorKind::MaxProperties { limit } => too_many("items", *limit),
        ValidationErrorKind::MultipleOf { multiple_of } => {
            invalid(format!("should be a multiple of {multiple_of}"))
        }
        ValidationErrorKind::UniqueItems => invalid("shouldn't contain duplicates".to_owned()),
        ValidationErrorKind::OneOfNotValid { .. } | ValidationErrorKind::OneOfMultipleValid { .. } => {
            invalid("must validate one and only one schema (oneOf)".to_owned())
        }
        ValidationErrorKind::AnyOf { .. } => invalid("must validate at least one schema (anyOf)".to_owned()),
        ValidationErrorKind::Not { .. } => invalid("must not validate the schema (not)".to_owned()),
        // The library's enum is open, and its keywords beyond OpenAPI v3 were filtered out above.
        _ => Cause::invalid(field.clone(), value, &error.to_string()),
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `/spec/ports/0/name` as `spec.ports[0].name`.
fn field_path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            path.push_str(&format!("[{part}]"));
            continue;
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(&part);
    }
    path
}

fn preserves_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Drop what a schema does not name, and say what it was: `spec.ports[0].bogus`. All of it goes, the first
/// [`TOLD_BYTES_MAX`] are told.
pub(super) fn prune_object(object: &mut Value, schema: &Value) -> Vec<String> {
    let mut pruned = Pruned { fields: Vec::new(), bytes: 0 };
    prune(object, schema, &Path::Root, &mut pruned);
    pruned.fields
}

struct Pruned {
    fields: Vec<String>,
    bytes: usize,
}

impl Pruned {
    fn tell(&mut self, path: &Path<'_>) {
        if self.bytes < TOLD_BYTES_MAX {
            let field = path.to_string();
            self.bytes += field.len();
            self.fields.push(field);
        }
    }
}

fn prune(value: &mut Value, schema: &Value, path: &Path<'_>, pruned: &mut Pruned) {
    let schema = types::resolved(schema);
    // apiVersion, kind and metadata belong to every object, whether the schema names them or not.
    let whole_object = matches!(path, Path::Root) || schema["x-kubernetes-embedded-resource"] == true;
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let known = match name.as_str() {
                "apiVersion" | "kind" if whole_object => return true,
                "metadata" if whole_object => types::definition(types::OBJECT_META),
                name => &schema["properties"][name],
            };
            let path = Path::Field(path, name);
            if known.is_object() {
                prune(value, known, &path, pruned);
            } else if schema["additionalProperties"].is_object() {
                prune(value, &schema["additionalProperties"], &path, pruned);
            } else if schema["additionalProperties"] != true && !preserves_unknown(schema) {
                pruned.tell(&path);
                return false;
            }
            true
        }),
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                prune(value, &schema["items"], &Path::Index(path, index), pruned);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A null where null is not allowed counts as missing.
fn drop_null(map: &mut Map<String, Value>, name: &str, schema: &Value) {
    if map.get(name).is_some_and(Value::is_null) && schema["nullable"] != true {
        map.remove(name);
    }
}

fn make_whole(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(make_whole),
        Value::Array(list) => list.iter_mut().for_each(make_whole),
        Value::Number(number) => {
            // Go prints a float that is whole without its point. Where a float is not exact any more, nothing is.
            const EXACT_MAX: f64 = (1_u64 << 53) as f64;
            let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            if let Some(float) = float.filter(|float| float.abs() <= EXACT_MAX) {
                *value = (float as i64).into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Where something stands that stands twice in a list that is a set, or a map by some of its items' fields.
fn find_twice(
    value: &Value,
    schema: &Value,
    path: &Path<'_>,
    tell: &mut impl FnMut(&Path<'_>, &Value) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let known = &schema["properties"][name];
                let schema = if known.is_null() { &schema["additionalProperties"] } else { known };
                find_twice(value, schema, &Path::Field(path, name), tell)?;
            }
        }
        Value::Array(list) => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let identities: Vec<Value> = match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => list.clone(),
                Some("map") => {
                    let names = || keys.into_iter().flatten().filter_map(Value::as_str);
                    let of = |item: &Value| {
                        names().filter_map(|key| Some((key.to_owned(), item.get(key)?.clone()))).collect()
                    };
                    list.iter().map(of).collect()
                }
                _ => Vec::new(),
            };
            let texts: Vec<String> = identities.iter().map(Value::to_string).collect();
            for index in twins(&texts) {
                tell(&Path::Index(path, index), &identities[index])?;
            }
            for (index, item) in list.iter().enumerate() {
                find_twice(item, &schema["items"], &Path::Index(path, index), tell)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    ControlFlow::Continue(())
}

fn set_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                drop_null(map, name, schema);
                if let (None, Some(default)) = (map.get(name), schema.get("default")) {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(value) = map.get_mut(name) {
                    set_defaults(value, schema);
                }
            }
            let other = &schema["additionalProperties"];
            if other.is_object() {
                map.retain(|_, value| !value.is_null() || other["nullable"] == true);
                map.values_mut().for_each(|value| set_defaults(value, other));
            }
        }
        Value::Array(list) => {
            for value in list {
                set_defaults(value, &schema["items"]);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Most tokens in a rule: the library goes one level deeper for each bracket and each operator, when it parses and when
/// it evaluates. The longest rules of well-known CRDs have some hundred.
const RULE_TOKENS_MAX: usize = 1000;

/// For [`RULE_TOKENS_MAX`] levels, of up to 40 KB each without optimization. What is not used is never allocated.
const RULE_STACK_BYTES: usize = 64 * 1024 * 1024;

/// Levels of a rule that are evaluated where we are. Each takes up to 36 KB without optimization, and the threads of tests
/// have 2 MiB.
const DEPTH_MAX: usize = 24;

/// The stack of a tokio thread would overflow, and with it the process would go.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(RULE_STACK_BYTES).spawn_scoped(scope, work);
        thread.expect("a thread, as the process has others").join().expect("the library returns its errors")
    })
}

/// The program of a rule. Text is counted as if it were code, which no bracket in a string can then get around.
fn program(rule: &str) -> Result<Counted, String> {
    let mut tokens = 0;
    let mut in_word = false;
    for c in rule.chars() {
        let is_word = c.is_alphanumeric() || c == '_';
        tokens += usize::from(!(c.is_whitespace() || is_word && in_word));
        in_word = is_word;
    }
    if tokens > RULE_TOKENS_MAX {
        return Err(format!("the rule has {tokens} tokens, at most {RULE_TOKENS_MAX} are evaluated here"));
    }
    Counted::compile(rule)
}

fn collect_rules(
    schema: &Value,
    at: &str,
    path: &mut Vec<String>,
    rules: &mut Vec<Rules>,
) -> Result<(), Wrong> {
    let mut here = Vec::new();
    for (index, source) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let text = |field: &str| source[field].as_str().map(str::to_owned);
        let rule = text("rule").unwrap_or_default();
        let compile = |field: &str, expression: &str| {
            program(expression).map_err(|why| Wrong {
                at: format!("{at}.x-kubernetes-validations[{index}].{field}"),
                value: source.clone(),
                why: format!("compilation failed: {why}"),
            })
        };
        here.push(Rule {
            program: compile("rule", &rule)?,
            needs_old: rule.contains("oldSelf"),
            message: text("message"),
            message_expression: text("messageExpression")
                .map(|source| compile("messageExpression", &source))
                .transpose()?,
            reason: text("reason"),
            rule,
        });
    }
    if !here.is_empty() {
        rules.push(Rules { path: path.clone(), rules: here });
    }
    let mut inside = |name: &str, at: String, schema: &Value| {
        path.push(name.to_owned());
        let result = collect_rules(schema, &at, path, rules);
        path.pop();
        result
    };
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        inside(name, format!("{at}.properties[{name}]"), schema)?;
    }
    if schema["items"].is_object() {
        inside("[]", format!("{at}.items"), &schema["items"])?;
    }
    if schema["additionalProperties"].is_object() {
        inside("{}", format!("{at}.additionalProperties"), &schema["additionalProperties"])?;
    }
    Ok(())
}

impl Rules {
    /// Walk down to where the rules stand, then try them there. What costs too much ends it.
    fn check(
        &self,
        value: &Value,
        old: Option<&Value>,
        below: &[String],
        path: &Path<'_>,
        budget: &Budget,
        told: &mut Told<'_>,
    ) -> ControlFlow<()> {
        let Some((step, below)) = below.split_first() else {
            return self.check_here(value, old, path, budget, told);
        };
        match step.as_str() {
            "[]" => {
                // Items of a list have no identity across versions here, so transition rules see no old item.
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.check(item, None, below, &Path::Index(path, index), budget, told)?;
                }
            }
            "{}" => {
                for (name, item) in value.as_object().into_iter().flatten() {
                    let old = old.and_then(|old| old.get(name));
                    self.check(item, old, below, &Path::Key(path, name), budget, told)?;
                }
            }
            name => {
                let Some(inner) = value.get(name) else { return ControlFlow::Continue(()) };
                let old = old.and_then(|old| old.get(name));
                self.check(inner, old, below, &Path::Field(path, name), budget, told)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn check_here(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        budget: &Budget,
        told: &mut Told<'_>,
    ) -> ControlFlow<()> {
        if value.is_null() {
            return ControlFlow::Continue(());
        }
        let mut context = budget.context();
        for (name, value) in [("self", Some(value)), ("oldSelf", old)] {
            // What is too large is told with the first rule.
            if let Some(Ok(value)) = value.map(|value| budget.value(value)) {
                context.add_variable_as_val(name, value);
            }
        }
        for rule in self.rules.iter().filter(|rule| old.is_some() || !rule.needs_old) {
            if let Some(cause) = rule.check(&context, value, path, budget) {
                told.tell(cause)?;
            }
            if budget.is_spent() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Rule {
    fn depth(&self) -> usize {
        self.program.depth().max(self.message_expression.as_ref().map_or(0, Counted::depth))
    }

    /// What is wrong with a value, or that it costs too much to find out.
    fn check(
        &self,
        context: &cel::Context<'_, '_>,
        value: &Value,
        path: &Path<'_>,
        budget: &Budget,
    ) -> Option<Cause> {
        let result = self.program.run(context);
        let fails = |text: String| Cause::invalid(path.to_string(), &json_type(value).into(), &text);
        if budget.is_spent() {
            return Some(fails(format!(
                "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                call cost exceeds limit for rule: {}",
                self.rule
            )));
        }
        match result {
            Ok(cel::Value::Bool(true)) => return None,
            Ok(_) => {}
            // A rule that uses a function that the library lacks is refused, not passed over.
            Err(error) => {
                return Some(fails(format!("{} evaluating rule: {}", Short::of(&error), self.rule)));
            }
        }
        let computed = self.message_expression.as_ref().and_then(|program| match program.run(context) {
            Ok(cel::Value::String(text)) => Some(text.to_string()),
            Ok(_) | Err(_) => None,
        });
        let message = computed.or_else(|| self.message.clone());
        let message = message.unwrap_or_else(|| format!("failed rule: {}", self.rule));
        let field = path.to_string();
        Some(match self.reason.as_deref() {
            Some("FieldValueForbidden") => Cause::forbidden(field, &message),
            Some("FieldValueRequired") => Cause::required(field, &message),
            Some("FieldValueDuplicate") => Cause::duplicate(field, value),
            // FieldValueInvalid, the default.
            Some(_) | None => Cause::rule_failed(field, value, &message),
        })
    }
}

/// The beginning of what the library says, which can be all of the object.
struct Short(String);

/// Enough for names and numbers.
const SHORT_BYTES_MAX: usize = 500;

impl Short {
    fn of(error: &cel::ExecutionError) -> String {
        let mut short = Short(String::new());
        match write!(short, "{error}") {
            Ok(()) => short.0,
            Err(_) => short.0 + "…",
        }
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > SHORT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let source = json!({"type": "object", "properties": {"spec": {
        "type": "object", "required": ["size"],
        "x-kubernetes-validations": [{"rule": "self.size >= self.least", "message": "too small"}],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 100,
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]},
            "least": {"type": "integer", "default": 0},
            "color": {"type": "string", "enum": ["red", "blue"]},
            "note": {"type": "string", "nullable": true},
        }}}});
        Schema::compile(&source).expect("a good schema")
    }

    fn messages(object: Value, before: Option<Value>) -> Vec<String> {
        let schema = schema();
        let mut object = object;
        schema.prune(&mut object);
        schema.set_defaults(&mut object);
        let mut causes = Vec::new();
        schema.validate(&object, before.as_ref(), &mut causes);
        causes.iter().map(|cause| cause.to_string()).collect()
    }

    #[test]
    fn errors_read_as_those_of_the_real_server() {
        let object = json!({"spec": {"size": 1000, "color": "pink", "note": 1, "bogus": true}});
        expect_test::expect![[r#"
            [
                "spec.color: Unsupported value: \"pink\": supported values: \"red\", \"blue\"",
                "spec.note: Invalid value: \"integer\": spec.note in body must be of type string: \"integer\"",
                "spec.size: Invalid value: 1000: spec.size in body should be less than or equal to 100",
                "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
            ]
        "#]]
        .assert_debug_eq(&messages(object, None));
        let messages = messages(json!({"spec": {"note": null}}), None);
        assert_eq!(messages[0], "spec.size: Required value");
        assert!(messages[1].contains("some validation rules were not checked"), "{messages:?}");
    }

    #[test]
    fn rules_see_the_object_and_what_it_was() {
        let was = json!({"spec": {"size": 3, "least": 0}});
        assert!(messages(was.clone(), None).is_empty());
        assert_eq!(
            messages(json!({"spec": {"size": 3, "least": 5}}), None),
            ["spec: Invalid value: too small"]
        );
        let moved = json!({"spec": {"size": 4}});
        assert_eq!(messages(moved, Some(was)), ["spec.size: Invalid value: 4: immutable"]);
    }

    fn said(rules: Value, object: &Value) -> Vec<String> {
        let source = json!({"type": "object", "x-kubernetes-validations": rules});
        let mut causes = Vec::new();
        Schema::compile(&source).expect("a good schema").validate(object, None, &mut causes);
        causes.iter().map(|cause| cause.to_string()).collect()
    }

    /// Half a gigabyte was answered to three megabytes, and to 35 kilobytes with a long key in them.
    #[test]
    fn not_everything_that_is_wrong_is_told() {
        let told = |schema: Value, object: Value| {
            let source = json!({"type": "object", "additionalProperties": schema});
            let mut causes = Vec::new();
            Schema::compile(&source).expect("a good schema").validate(&object, None, &mut causes);
            (causes.len(), causes.iter().map(Cause::bytes).sum::<usize>())
        };
        let integers = || json!({"type": "array", "items": {"type": "integer"}});
        let set = || json!({"type": "array", "x-kubernetes-list-type": "set"});
        let rules = || json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "false"}]}});
        for (schema, count) in [(integers(), CAUSES_MAX + 1), (set(), 100_000), (rules(), CAUSES_MAX + 1)] {
            let item = if schema == rules() { json!(1) } else { json!("x") };
            let (number, bytes) = told(schema, json!({"l": vec![item; count]}));
            assert!(number == CAUSES_MAX && bytes < TOLD_BYTES_MAX, "{number} {bytes}");
        }
        let long = "k".repeat(10_000);
        for (schema, item) in [(integers(), json!("")), (set(), json!("")), (rules(), json!(1))] {
            let (number, bytes) = told(schema, json!({&long: vec![item; CAUSES_MAX]}));
            assert!(number > 10 && bytes < TOLD_BYTES_MAX + 100_000, "{number} {bytes}");
        }
        // These would take gigabytes before the first is told.
        let longer = "k".repeat(1_000_000);
        for schema in [integers(), json!({"type": "array", "items": {"anyOf": [{"type": "integer"}]}})] {
            assert_eq!(told(schema, json!({&longer: vec![""; CAUSES_MAX]})).0, 1);
        }
        let required = json!({"type": "array", "items": {"type": "object", "required": [longer]}});
        assert_eq!(told(required, json!({"l": vec![json!({}); CAUSES_MAX]})).0, 1);
    }

    /// A key of a megabyte was written for each item of its list, though nothing was wrong, and 150 gigabytes of them were told.
    #[test]
    fn long_keys_are_written_only_when_they_are_told() {
        let objects =
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}});
        let source = json!({"type": "object", "additionalProperties": objects});
        let schema = Schema::compile(&source).expect("a good schema");
        let long = "k".repeat(1_500_000);
        let mut object = json!({&long: (0..100_000).map(|_| json!({"a": 1})).collect::<Vec<_>>()});
        assert_eq!(schema.prune(&mut object), [""; 0]);
        let mut causes = Vec::new();
        schema.validate(&object, None, &mut causes);
        assert_eq!(causes, []);
        let mut object = json!({&long: (0..100_000).map(|_| json!({"b": 1})).collect::<Vec<_>>()});
        assert_eq!(schema.prune(&mut object), [format!("{long}[0].b")]);
        assert_eq!(object[&long][99_999], json!({}));
    }

    /// Nobody else was served for as long as that took.
    #[test]
    fn a_rule_that_costs_too_much_is_the_last_one() {
        let much = "self.items.all(a, self.items.all(b, self.items.all(c, a + b + c >= 0)))";
        let rules = json!([{"rule": "self.min > 1"}, {"rule": much}, {"rule": "false"}]);
        let object = json!({"min": 1, "items": (0..120).collect::<Vec<_>>()});
        let cut = format!(
            ": Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation rules will \
            be run due to call cost exceeds limit for rule: {much}"
        );
        assert_eq!(said(rules, &object), [": Invalid value: failed rule: self.min > 1", &cut]);
    }

    /// Whole numbers were unsigned, which can be added to no other; and an error showed all that there was, with each rule.
    #[test]
    fn rules_count_and_their_errors_are_short() {
        let object = json!({"min": 1, "max": 2, "text": "x".repeat(100_000)});
        assert_eq!(
            said(json!([{"rule": "self.min + 1 == self.max && self.?nope.orValue(-1) == -1"}]), &object),
            [""; 0]
        );
        let said = said(json!([{"rule": "self.text + 1 == ''"}]), &object);
        assert!(said[0].ends_with("… evaluating rule: self.text + 1 == ''"), "{said:?}");
    }

    /// Sixty brackets overflowed the stack, with which the whole process went.
    #[test]
    fn a_rule_is_as_long_as_the_stack_can_bear() {
        let rules = |times: usize| {
            let around = |open: &str, core: &str, close: &str| {
                format!("{}{core}{}", open.repeat(times), close.repeat(times))
            };
            [
                around("(", "true", ")"),
                around("(", "true", ""),
                around("[", "true", "]") + " == self",
                around("!", "true", ""),
                around("-", "1", "") + " == 1",
                around("1+", "1", "") + " > 0",
                around("1 in ", "[1]", ""),
                around("", "self", ".a") + " == 1",
                around("true ? true : ", "true", ""),
                around("size(", "self", ")") + " == 1",
            ]
        };
        let compile = |rule: &str| {
            Schema::compile(&json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]}))
        };
        for rule in rules(10_000) {
            let why = compile(&rule).map(drop).expect_err("too long").why;
            assert!(why.contains("at most 1000"), "{why}");
        }
        // Where we are, which is small, or on a stack of their own.
        let check = move || {
            for rule in (1..12)
                .flat_map(rules)
                .chain((1..12).map(|times| "self.?a[?".repeat(times) + "1" + &"]".repeat(times)))
            {
                let _ = compile(&rule).map(|schema| schema.validate(&json!({}), None, &mut Vec::new()));
            }
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(check).expect("a thread");
        thread.join().expect("a stack that is large enough");
        // Nobody says that they hold.
        for times in [60, 190, 480] {
            for rule in rules(times) {
                let _ = compile(&rule).map(|schema| schema.validate(&json!({}), None, &mut Vec::new()));
            }
        }
    }
}
