//! CEL: the rules of a CRD (`x-kubernetes-validations`), their compilation and their evaluation on an object.
//!
//! ```yaml
//! x-kubernetes-validations: [{rule: "self.min <= self.max", message: "min is more than max"}, {rule: "self.name == oldSelf.name"}]
//! ```
//!
//! The crate `cel` evaluates them. [`cel_cost`](super::cel_cost) limits their cost.

use std::{
    any::Any,
    cell::LazyCell,
    collections::HashMap,
    ops::ControlFlow,
    sync::{Arc, LazyLock},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use cel::{
    Context, Env, ExecutionError, Program,
    common::{
        ast::IdedExpr,
        traits::Indexer,
        types::{
            CelBool, CelBytes, CelDouble, CelDuration, CelInt, CelList, CelMap, CelMapKey, CelNull,
            CelOptional, CelString, CelTimestamp, CelUInt, NULL_TYPE,
        },
        value::{CowVal, Val},
    },
    context::VariableResolver,
    extensions,
};
use chrono::{DateTime, NaiveTime};
use serde_json::Value;

use crate::{
    schema::{
        SchemaError, cel_authorizer,
        cel_cost::{self, Exceeded},
        cel_estimate::{self, Cardinality, Estimated},
        cel_library,
        cel_types::{self, Scope, Type},
        field_errors::{ErrorList, FieldPath, json_type},
        formats, items_by_keys, keys,
    },
    status::Cause,
};

/// The functions of the crate `cel` and of Kubernetes. Created once, because that is slow.
pub(super) static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(new_env()));

pub(super) fn new_env() -> Env {
    let mut env = Env::stdlib();
    extensions::strings(&mut env)
        .and_then(|()| extensions::lists(&mut env))
        .and_then(|()| cel_library::declare(&mut env))
        .and_then(|()| cel_authorizer::declare(&mut env))
        .and_then(|()| cel_cost::declare(&mut env))
        .expect("no function is declared twice");
    env
}

/// The rules at one place of a schema.
#[derive(Debug)]
pub(crate) struct RulesAtPath {
    /// Property names. `[]` stands for each item of a list, `{}` for each value of a map.
    path: Vec<String>,
    rules: Vec<ValidationRule>,
}

#[derive(Debug)]
struct ValidationRule {
    program: IdedExpr,
    /// A transition rule: it compares an object with its previous state.
    uses_old: bool,
    /// With `optionalOldSelf`, `oldSelf` is an optional value, which is empty for a new value.
    old_is_optional: bool,
    /// The path of the field in errors, below the value: `.name`.
    field: Option<String>,
    rule: String,
    message: Option<String>,
    message_expression: Option<IdedExpr>,
    reason: Option<String>,
}

/// The rules of a schema, in the order of the schema.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    at_paths: Vec<RulesAtPath>,
    /// Their costs.
    pub(crate) estimated: Vec<Estimated>,
    errors: Vec<SchemaError>,
}

/// Compiles all rules of a schema.
pub(crate) fn compile(schema: &Value) -> Result<Rules, Vec<SchemaError>> {
    let mut rules = Rules::default();
    on_large_stack(|| collect_rules(schema, "", &mut Vec::new(), Cardinality::AtMost(1), &mut rules));
    if rules.errors.is_empty() { Ok(rules) } else { Err(rules.errors) }
}

/// Reports the rules that an object violates.
pub(crate) fn check(
    all: &Rules,
    schema: &Value,
    object: &Value,
    before: Option<&Value>,
    errors: &mut ErrorList<'_>,
) -> ControlFlow<()> {
    on_large_stack(|| {
        all.at_paths.iter().try_for_each(|rules| {
            let root = Checked { value: object, old: before, schema, path: &FieldPath::Root };
            rules.check(root, &rules.path, errors)
        })
    })
}

/// Most tokens in a rule. Each operator of CEL in a rule adds a level of recursion to its evaluation. The longest rules of well-known CRDs
/// have some hundred tokens.
const RULE_TOKENS_MAX: usize = 1000;

/// Without optimization, the library's parser takes up to 170 KB for each of its 96 levels of brackets, and the evaluation up
/// to 40 KB for each of [`RULE_TOKENS_MAX`] tokens. Unused pages are never allocated.
const RULE_STACK_BYTES: usize = 64 * 1024 * 1024;

/// Runs deep recursion on a new thread. A dozen levels of brackets would overflow the stack of a tokio thread, and so abort
/// the process.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(RULE_STACK_BYTES).spawn_scoped(scope, work);
        thread.expect("a new thread").join().expect("no panic in the library")
    })
}

/// Compiles a rule of at most [`RULE_TOKENS_MAX`] tokens. Words inside string literals also count as tokens.
pub(super) fn program(rule: &str) -> Result<Program, String> {
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
    // As cel-go shows the place of an error.
    ENV.compile(rule).map_err(|error| error.to_string().replace("\n| ", "\n | "))
}

fn collect_rules(
    schema: &Value,
    at: &str,
    path: &mut Vec<String>,
    cardinality: Cardinality,
    rules: &mut Rules,
) {
    let mut here = Vec::new();
    for (index, source) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        match ValidationRule::compile(source, schema, path.is_empty()) {
            Ok((rule, cost, message_cost)) => {
                let cost = cost.saturating_mul(cardinality.of(schema));
                rules.estimated.push(Estimated { at: format!("{at}.rule"), cost });
                let message =
                    message_cost.map(|cost| Estimated { at: format!("{at}.messageExpression"), cost });
                rules.estimated.extend(message);
                here.push(rule);
            }
            Err((field, why)) => {
                rules.errors.push(SchemaError { at: format!("{at}.{field}"), value: source.clone(), why });
            }
        }
    }
    if !here.is_empty() {
        rules.at_paths.push(RulesAtPath { path: path.clone(), rules: here });
    }
    let cardinality = cardinality.inside(schema);
    let mut inside = |name: &str, at: String, schema: &Value| {
        path.push(name.to_owned());
        collect_rules(schema, &at, path, cardinality, rules);
        path.pop();
    };
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        inside(name, format!("{at}.properties[{name}]"), schema);
    }
    if schema["items"].is_object() {
        inside("[]", format!("{at}.items"), &schema["items"]);
    }
    if schema["additionalProperties"].is_object() {
        inside("{}", format!("{at}.additionalProperties"), &schema["additionalProperties"]);
    }
}

/// A value in an object, its value in the old object, and its schema.
#[derive(Clone, Copy)]
struct Checked<'a> {
    value: &'a Value,
    old: Option<&'a Value>,
    schema: &'a Value,
    path: &'a FieldPath<'a>,
}

/// Whether it is a transition rule.
pub(crate) fn uses_old(rule: &str) -> bool {
    rule.contains("oldSelf")
}

/// Parses a `fieldPath`, such as `.labels['a.b']`, and returns the path in errors: `labels[a.b]`. `None` if the schema has no such field.
pub(crate) fn field_below(path: &str, mut schema: &Value) -> Option<String> {
    let mut below = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let name;
        if let Some(quoted) = rest.strip_prefix("['") {
            (name, rest) = quoted.split_once("']")?;
        } else {
            let names = rest.strip_prefix('.')?;
            (name, rest) = names.split_at(names.find(['.', '[']).unwrap_or(names.len()));
        }
        if schema["properties"].is_object() {
            schema = schema["properties"].get(name)?;
            let dot = if below.is_empty() { "" } else { "." };
            below.push_str(&format!("{dot}{name}"));
        } else {
            schema = Some(&schema["additionalProperties"]).filter(|schema| schema.is_object())?;
            below.push_str(&format!("[{name}]"));
        }
    }
    Some(below)
}

impl RulesAtPath {
    /// Walks to the place of the rules and evaluates them there. Breaks when their cost exceeds a limit.
    fn check(&self, at: Checked<'_>, below: &[String], errors: &mut ErrorList<'_>) -> ControlFlow<()> {
        let Some((step, below)) = below.split_first() else { return self.check_here(at, errors) };
        let Checked { value, old, schema, path } = at;
        match step.as_str() {
            // An unchanged list is not validated again, unless its items can have transition rules.
            "[]" if old == Some(value) && schema["x-kubernetes-list-type"] != "map" => {}
            "[]" => {
                let old_items = items_by_keys(old, schema);
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    let (old, path) = (old_items.get(&keys(value, schema)), &FieldPath::Index(path, index));
                    let item = Checked { value, old: old.copied(), schema: &schema["items"], path };
                    self.check(item, below, errors)?;
                }
            }
            "{}" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    let (old, path) = (old.and_then(|old| old.get(name)), &FieldPath::Key(path, name));
                    let item = Checked { value, old, schema: &schema["additionalProperties"], path };
                    self.check(item, below, errors)?;
                }
            }
            name => {
                let Some(value) = value.get(name) else { return ControlFlow::Continue(()) };
                let (old, path) = (old.and_then(|old| old.get(name)), &FieldPath::Field(path, name));
                let field = Checked { value, old, schema: &schema["properties"][name], path };
                self.check(field, below, errors)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn check_here(&self, at: Checked<'_>, errors: &mut ErrorList<'_>) -> ControlFlow<()> {
        let Checked { value, old, schema, path } = at;
        if value.is_null() {
            return ControlFlow::Continue(());
        }
        let object = in_cel(value, schema);
        let old_in_cel = old.map(|old| in_cel(old, schema));
        let optional = LazyCell::new(|| CelOptional::from(old.map(|old| in_cel(old, schema))));
        // Ratcheting: only transition rules validate an unchanged value.
        let is_due = |rule: &&ValidationRule| match (rule.uses_old, old) {
            (true, None) => rule.old_is_optional,
            (true, Some(_)) => true,
            (false, old) => old != Some(value),
        };
        for rule in self.rules.iter().filter(is_due) {
            let old: Option<&dyn Val> =
                if rule.old_is_optional { Some(&*optional) } else { old_in_cel.as_deref() };
            let variables = Variables { object: &*object, old };
            let mut context = Context::with_env(Arc::clone(&ENV));
            context.set_variable_resolver(&variables);
            match rule.check(&context, value, path) {
                Ok(()) => {}
                Err(Violation::Rule(cause)) => errors.add(cause)?,
                Err(Violation::Cost(cause)) => {
                    errors.add(cause)?;
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl ValidationRule {
    /// Compiles a rule of a schema, checks its types, and estimates the costs of the rule and of its `messageExpression`. An error has its field.
    fn compile(
        source: &Value,
        schema: &Value,
        is_root: bool,
    ) -> Result<(ValidationRule, u64, Option<u64>), (&'static str, String)> {
        let text = |field: &str| source[field].as_str().map(str::to_owned);
        let is_resource = is_root || schema["x-kubernetes-embedded-resource"] == true;
        let of_self = Type::of(schema, is_resource).unwrap_or(Type::Unknown);
        let old_is_optional = source["optionalOldSelf"] == true;
        let of_old = match old_is_optional {
            true => Type::Optional(Box::new(of_self.clone())),
            false => of_self.clone(),
        };
        let variables = vec![("self", of_self), ("oldSelf", of_old)];
        let scope = Scope { variables, composed: None, constructs: |_| false };
        let compile = |expression: &str, wanted: &str, mistyped: &str| {
            let failed = |why| format!("compilation failed: {why}");
            let program = program(expression).map_err(failed)?;
            let types = cel_types::check(&program, expression, &scope).map_err(failed)?;
            if types[&program.expression().id].is_none_of(&[wanted]) {
                return Err(mistyped.to_owned());
            }
            let cost = cel_estimate::cost(program.expression(), schema, is_resource, &types);
            Ok((cel_cost::metered(program.expression()), cost))
        };
        let rule = text("rule").unwrap_or_default();
        let message = text("messageExpression").map(|expression| {
            let compiled = compile(&expression, "string", "must evaluate to a string");
            compiled.map_err(|why| ("messageExpression", format!("messageExpression {why}")))
        });
        let (program, cost) =
            compile(&rule, "bool", "cel expression must evaluate to a bool").map_err(|why| ("rule", why))?;
        let (message_expression, message_cost) = message.transpose()?.unzip();
        let compiled = ValidationRule {
            program,
            uses_old: uses_old(&rule),
            old_is_optional,
            field: text("fieldPath").and_then(|path| field_below(&path, schema)),
            message: text("message"),
            message_expression,
            reason: text("reason"),
            rule,
        };
        Ok((compiled, cost, message_cost))
    }

    fn check(&self, context: &Context<'_, '_>, value: &Value, path: &FieldPath<'_>) -> Result<(), Violation> {
        let fails = |text: String| Cause::invalid(path.to_string(), &json_type(value).into(), &text);
        let ends = "no further validation rules will be run";
        // As `ruleErrorString` of kube-apiserver.
        let rule = self.message.as_deref().unwrap_or(&self.rule).trim();
        let text = match cel_cost::limited(|| cel::Value::resolve(&self.program, context)) {
            Ok(result) => match result {
                Ok(cel::Value::Bool(true)) => return Ok(()),
                Ok(_) => None,
                // A rule with a function that the library lacks fails. Skipping it would accept invalid objects.
                Err(ExecutionError::UndeclaredReference(name)) => {
                    Some(format!("{}, evaluating rule: {rule}", unsupported(&name)))
                }
                Err(error) => Some(match short(&error) {
                    why if why == NO_OVERLOAD => {
                        let text =
                            "call arguments did not match a supported operator, function or macro signature";
                        format!("'{why}': {text} for rule: {rule}")
                    }
                    why => format!("{why} evaluating rule: {rule}"),
                }),
            },
            Err(Exceeded::OfCall) => {
                let why = format!("{ends} due to call cost exceeds limit for rule: {rule}");
                return Err(Violation::Cost(fails(format!("'{}': {why}", cel_cost::EXCEEDED))));
            }
            Err(Exceeded::OfThread) => {
                let why = format!("validation failed due to running out of cost budget, {ends}");
                return Err(Violation::Cost(fails(why)));
            }
        };
        if let Some(text) = text {
            return Err(Violation::Rule(fails(text)));
        }
        let computed = self.message_expression.as_ref().and_then(|program| {
            match cel_cost::limited(|| cel::Value::resolve(program, context)) {
                Ok(Ok(cel::Value::String(text))) => Some(text.to_string()),
                Ok(Ok(_) | Err(_)) | Err(Exceeded::OfCall | Exceeded::OfThread) => None,
            }
        });
        let message = computed.or_else(|| self.message.as_ref().map(|message| message.trim().to_owned()));
        let message = message.unwrap_or_else(|| format!("failed rule: {rule}"));
        let mut field = path.to_string();
        if let Some(below) = &self.field {
            field.push_str(if field.is_empty() || below.starts_with('[') { "" } else { "." });
            field.push_str(below);
        }
        Err(Violation::Rule(match self.reason.as_deref() {
            Some("FieldValueForbidden") => Cause::forbidden(field, &message),
            Some("FieldValueRequired") => Cause::required(field, &message),
            Some("FieldValueDuplicate") => Cause::duplicate(field, value),
            // FieldValueInvalid, the default.
            Some(_) | None => Cause::rule_failed(field, value, &message),
        }))
    }
}

/// The error of a value that violates a rule, or of rules that cost too much, which is the last one.
enum Violation {
    Rule(Cause),
    Cost(Cause),
}

/// The error of a name that the library lacks.
pub(super) fn unsupported(name: &str) -> String {
    format!("the embedded API server does not support `{name}` in CEL")
}

/// `self` and `oldSelf`.
struct Variables<'v> {
    object: &'v (dyn Val + 'v),
    old: Option<&'v (dyn Val + 'v)>,
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let value = match variable {
            "self" => Some(self.object),
            "oldSelf" => self.old,
            _ => None,
        };
        value.map(CowVal::Borrowed)
    }
}

/// Converts a value to CEL, as its schema says. Without a type, integers are `int`s if possible: `self.size + 1`.
pub(super) fn in_cel<'v>(value: &'v Value, schema: &Value) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(Absent),
        Value::Bool(one) => Box::new(CelBool::from(*one)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) if schema["type"] != "number" => Box::new(CelInt::from(int)),
            (None, Some(uint)) if schema["type"] != "number" => Box::new(CelUInt::from(uint)),
            (_, _) => Box::new(CelDouble::from(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => {
            let format = schema["format"].as_str().filter(|_| schema["type"] == "string");
            format
                .and_then(|format| formatted(text, format))
                .unwrap_or_else(|| Box::new(CelString::from(&**text)))
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| in_cel(item, &schema["items"]));
            Box::new(CelList::from(items.collect::<Vec<_>>()))
        }
        Value::Object(map) => {
            let mut entries = HashMap::new();
            for (name, value) in map {
                let property = &schema["properties"][name];
                if property.is_null() {
                    let value = in_cel(value, &schema["additionalProperties"]);
                    entries.insert(CelMapKey::from(&**name), value);
                    continue;
                }
                if is_reserved(name) {
                    // Such a property has both names: `self.namespace` and `self.__namespace__`.
                    entries.insert(CelMapKey::from(&**name), in_cel(value, property));
                }
                entries.insert(CelMapKey::from(escaped(name)), in_cel(value, property));
            }
            Box::new(CelMap::from(entries))
        }
    }
}

/// A null, of which `has` finds no field. That of the library has no `has`.
#[derive(Clone, Copy, Debug)]
struct Absent;

impl Val for Absent {
    fn get_type(&self) -> &cel::common::types::Type {
        &NULL_TYPE
    }

    fn cel_type() -> &'static cel::common::types::Type {
        &NULL_TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        CelNull.equals(other)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(&CelNull)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(Absent)
    }
}

impl Indexer for Absent {
    fn get<'b, 'v>(&'b self, field: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let name = field.downcast_ref::<CelString<'_>>().map_or("", |name| name.inner());
        Err(ExecutionError::no_such_key(name))
    }

    fn steal<'v>(self: Box<Self>, field: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(field).map(CowVal::into_owned)
    }
}

/// A string with a format that has its own type in CEL. `None` for a string that does not have the format.
fn formatted(text: &str, format: &str) -> Option<Box<dyn Val>> {
    Some(match format {
        "date-time" => Box::new(CelTimestamp::from(DateTime::parse_from_rfc3339(text).ok()?)),
        "date" => {
            let midnight = formats::date(text)?.and_time(NaiveTime::MIN);
            Box::new(CelTimestamp::from(midnight.and_utc().fixed_offset()))
        }
        "duration" => Box::new(CelDuration::from(formats::duration(text)?)),
        "byte" => Box::new(CelBytes::from(BASE64_STANDARD.decode(text).ok()?)),
        _ => return None,
    })
}

/// The words that CEL reserves.
pub(crate) const RESERVED: &str = "as break const continue else false for function if import in let loop namespace null package return true var void while";

fn is_reserved(name: &str) -> bool {
    RESERVED.split(' ').any(|word| word == name)
}

/// The name of a property in CEL: `__namespace__`, `a__dash__b`.
fn escaped(name: &str) -> String {
    if is_reserved(name) {
        return format!("__{name}__");
    }
    let name = name.replace("__", "__underscores__").replace('.', "__dot__");
    name.replace('-', "__dash__").replace('/', "__slash__")
}

/// Whether a property has this name in CEL.
pub(super) fn is_named(property: &str, name: &str) -> bool {
    escaped(property) == name || property == name && is_reserved(name)
}

/// Most bytes of an error of the crate `cel` that a message quotes: enough for names and numbers.
const SHORT_BYTES_MAX: usize = 500;

/// The error of arguments that have none of the types of a function.
const NO_OVERLOAD: &str = "no such overload";

/// The beginning of an error of the library, which may contain the whole object.
pub(super) fn short(error: &ExecutionError) -> String {
    // As in Go.
    let mut text = match error {
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(cel::Value::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::NoSuchOverload(_) | ExecutionError::UnsupportedBinaryOperator(..) => {
            NO_OVERLOAD.to_owned()
        }
        error => error.to_string().replacen("No such key", "no such key", 1),
    };
    if text.len() > SHORT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SHORT_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Schema;

    /// The schema of a value, of which lists have items of one type.
    fn schema_of(value: &Value) -> Value {
        match value {
            Value::Null => json!({"type": "string", "nullable": true}),
            Value::Bool(_) => json!({"type": "boolean"}),
            Value::Number(_) => json!({"type": "integer"}),
            Value::String(_) => json!({"type": "string"}),
            Value::Array(items) => json!({"type": "array", "items": schema_of(&items[0])}),
            Value::Object(map) => {
                let properties: serde_json::Map<_, _> =
                    map.iter().map(|(name, value)| (name.clone(), schema_of(value))).collect();
                json!({"type": "object", "properties": properties})
            }
        }
    }

    fn errors(rules: Value, object: &Value) -> Vec<String> {
        errors_with(schema_of(object), rules, object)
    }

    fn errors_with(mut source: Value, rules: Value, object: &Value) -> Vec<String> {
        source["x-kubernetes-validations"] = rules;
        let mut causes = Vec::new();
        Schema::compile(&source).expect("a good schema").validate(object, None, &mut causes);
        causes.iter().map(|cause| cause.to_string()).collect()
    }

    /// The estimate of their costs looked at the first argument, and its thread ended.
    #[test]
    fn a_function_without_its_arguments_is_an_error_of_the_evaluation() {
        for rule in ["string() == 'x'", "size(bytes()) == 1", "self.text.replace() == 'x'"] {
            assert_eq!(errors(json!([{"rule": rule}]), &json!({"text": "x"})).len(), 1, "{rule}");
        }
    }

    /// Without a limit, an evaluation blocked all other requests. A limit by time was exceeded on a busy machine, and did not end loops
    /// over literals.
    #[test]
    fn no_rule_is_evaluated_after_one_that_costs_too_much() {
        let literals = format!("[{}]", ["1"; 100].join(","));
        let object = json!({"min": 1, "items": (0..1_000).collect::<Vec<_>>(), "text": "x".repeat(200_000)});
        for (much, is_too_much) in [
            ("self.items.all(a, self.items.all(b, self.items.all(c, a + b + c >= 0)))".to_owned(), true),
            ("self.items.map(a, self.items.map(b, self.items.map(c, 0))) == []".to_owned(), true),
            (
                format!("{literals}.all(a, {literals}.all(b, {literals}.all(c, {literals}.all(d, d == 1))))"),
                true,
            ),
            ("self.items.exists(a, self.text.contains('y'))".to_owned(), true),
            ("self.items.exists(a, self.items == self.items.map(b, b))".to_owned(), false),
            ("self.items.all(a, self.text.size() > a && self.text != 'y')".to_owned(), false),
            ("self.items.all(a, self.items.all(b, true))".to_owned(), true),
            ("self.items.all(a, a < 300 ? self.items.all(b, true) : true)".to_owned(), false),
        ] {
            let rules = json!([{"rule": "self.min > 1"}, {"rule": much}, {"rule": "self.min > 2"}]);
            let cut = format!(
                ": Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation rules will \
                be run due to call cost exceeds limit for rule: {much}"
            );
            let last = if is_too_much { &*cut } else { ": Invalid value: failed rule: self.min > 2" };
            assert_eq!(errors(rules, &object), [": Invalid value: failed rule: self.min > 1", last]);
        }
    }

    #[test]
    fn all_rules_of_an_object_together_have_a_limit() {
        let object = json!({"items": (0..45).collect::<Vec<_>>(), "text": "x".repeat(200_000)});
        let mut rules = vec![json!({"rule": "self.items.all(a, !self.text.contains('y'))"}); 20];
        rules.push(json!({"rule": "false"}));
        let cut = ": Invalid value: \"object\": validation failed due to running out of cost budget, no further validation \
            rules will be run";
        assert_eq!(errors(rules.into(), &object), [cut]);
    }

    /// A name that CEL reserves was converted twice, and all below it: 2^40 times here.
    #[test]
    fn reserved_names_below_no_property_are_converted_once() {
        let object = (0..40).fold(json!({}), |inner, _| json!({ "if": inner }));
        let any = json!({"x-kubernetes-preserve-unknown-fields": true, "type": "object"});
        let source = json!({"type": "object", "additionalProperties": any});
        assert_eq!(errors_with(source, json!([{"rule": "has(self.if)"}]), &object), [""; 0]);
    }

    #[test]
    fn a_function_that_is_missing_here_is_named() {
        for (rule, name) in
            [("[1].all(index, value, true)", "index"), ("[1].transformList(index, value, true)", "index")]
        {
            let wanted = format!(
                ": Invalid value: \"object\": the embedded API server does not support `{name}` in CEL, evaluating rule: {rule}"
            );
            assert_eq!(errors(json!([{"rule": rule}]), &json!({})), [wanted]);
        }
    }

    /// From gateway-api, cert-manager, Karpenter and other projects.
    #[test]
    fn rules_of_well_known_crds_hold_and_take_little_time() {
        let listener = |n| json!({"name": format!("listener-{n}"), "port": n, "protocol": "HTTP", "hostname": "a.b.c", "tls": null});
        let listeners: Vec<Value> = (0..64).map(listener).collect();
        let object = json!({
            "items": (0..120).collect::<Vec<_>>(), "text": "x".repeat(1_000_000),
            "listeners": listeners, "labels": {"a": "b"}, "deep": {"a": {"b": {"c": 1}}}, "min": 1, "max": 2,
        });
        let rules = [
            "self.listeners.all(l, !(l.protocol in ['TCP', 'UDP']) || !has(l.tls))",
            "self.listeners.all(l1, self.listeners.exists_one(l2, l1.name == l2.name))",
            "self.listeners.all(l1, self.listeners.exists_one(l2, l1.port == l2.port && l1.protocol == l2.protocol \
                && (has(l1.hostname) && has(l2.hostname) ? l1.hostname == l2.hostname : !has(l1.hostname) && !has(l2.hostname))))",
            "self.listeners.all(l, l.hostname.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$'))",
            "self.min + 1 <= self.max && self.?min.orValue(3) == 1",
            "self.labels.all(k, k.startsWith('a') && self.labels[k].size() < 64)",
            "self.items.map(i, i * 2).filter(i, i > 10).size() == 114",
            "self.items.exists(i, i == 119) && self.items.all(i, i in self.items)",
            "type(self.min) == int && self.deep.a.b == {'c': 1} && [?self.?min] == [1] && duration('1h') > duration('1s')",
        ];
        for rule in rules {
            assert_eq!(errors(json!([{"rule": rule}]), &object), [""; 0], "{rule}");
        }
    }

    /// Once, integers were unsigned, could not be added to an `int`, and each error contained the whole object.
    #[test]
    fn integers_are_signed_and_error_messages_are_short() {
        let object = json!({"min": 1, "max": 2, "text": "x".repeat(100_000)});
        assert_eq!(
            errors(json!([{"rule": "self.min + 1 == self.max && self.?min.orValue(-1) == 1"}]), &object),
            [""; 0]
        );
        let errors = errors(json!([{"rule": "quantity(self.text).isInteger()"}]), &object);
        assert!(errors[0].len() < 1000, "{errors:?}");
    }

    /// On the stack of a tokio thread, a dozen brackets overflow it and abort the process.
    #[test]
    fn a_rule_within_the_token_limit_does_not_overflow_the_stack() {
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
                around("[1].all(a,", "true", ")"),
                around("[1].map(a,", "true", ")") + " == 1",
                around("{1:", "1", "}") + " == 1",
            ]
        };
        let compile = |rule: &str| {
            Schema::compile(&json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]}))
        };
        for rule in rules(10_000) {
            let why = &compile(&rule).map(drop).expect_err("too long")[0].why;
            assert!(why.contains("at most 1000"), "{why}");
        }
        // Their results do not matter here.
        for times in [12, 60, 90, 96, 190, 480] {
            for rule in rules(times) {
                let _ = compile(&rule).map(|schema| schema.validate(&json!({}), None, &mut Vec::new()));
            }
        }
    }
}
