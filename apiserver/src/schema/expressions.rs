//! The CEL expressions of admission: the `matchConditions` of webhooks, and all that admission policies contain.
//!
//! ```text
//! variables: [{name: limit, expression: "has(params.data) ? int(params.data.limit) : 3"}]
//! validations: [{expression: "object.spec.replicas <= variables.limit"}]
//! ```
//!
//! Their variables have no schemas. kube-apiserver also checks the types in an expression, and the functions; here, only unknown names
//! are refused, and a result that obviously has another type.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};

use cel::{
    Context, Env, ExecutionError, Program, StructType,
    common::{
        ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, MapExpr, StructExpr, operators},
        types::{CelOptional, CelString, CelStruct, STRING_TYPE, Type},
        value::{CowVal, Val},
    },
    context::VariableResolver,
};
use serde_json::Value;

use crate::schema::{
    cel::{ENV, in_cel, new_env, on_large_stack, program, short, unsupported},
    cel_authorizer,
    cel_cost::{self, NAMESPACES},
    cel_library,
};

/// The variables that each expression of admission has.
pub(crate) const ALWAYS: [&str; 4] = ["object", "oldObject", "request", "namespaceObject"];

/// Compiled expressions, by their text: a policy evaluates the same ones for each write.
static COMPILED: LazyLock<Mutex<HashMap<String, Arc<Compiled>>>> = LazyLock::new(Mutex::default);

struct Compiled {
    program: Program,
    metered: IdedExpr,
}

/// Most of them. Above that, all are compiled again.
const COMPILED_MAX: usize = 2000;

fn compiled(expression: &str) -> Result<Arc<Compiled>, String> {
    let known = || COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = known().get(expression) {
        return Ok(Arc::clone(program));
    }
    let program = program(expression)?;
    let program = Arc::new(Compiled { metered: cel_cost::metered(program.expression()), program });
    let mut known = known();
    if known.len() >= COMPILED_MAX {
        known.clear();
    }
    known.insert(expression.to_owned(), Arc::clone(&program));
    Ok(program)
}

/// The variables of the expressions of one policy or webhook, for one write.
pub(crate) struct Activation<'v> {
    values: Vec<(&'static str, Converted<'v>)>,
    /// The variables of a policy: `variables.limit`. Each is evaluated once.
    composed: Vec<Composed<'v>>,
    /// Their places, by their names.
    places: HashMap<&'v str, usize>,
    /// The values of `authorizer` and `authorizer.requestResource`.
    authorizer: [Box<dyn Val>; 2],
}

/// A value that is converted to CEL when it is first used.
struct Converted<'v> {
    value: &'v Value,
    in_cel: OnceLock<Box<dyn Val + 'v>>,
}

struct Composed<'v> {
    name: &'v str,
    expression: &'v str,
    result: OnceLock<Result<Box<dyn Val>, String>>,
}

impl<'v> Activation<'v> {
    /// An activation of these values, of an authorizer, and of the `variables` of a policy.
    pub(crate) fn new(
        values: &[(&'static str, &'v Value)],
        authorizer: [Box<dyn Val>; 2],
        variables: &'v Value,
    ) -> Activation<'v> {
        let values = values.iter().map(|(name, value)| (*name, Converted { value, in_cel: OnceLock::new() }));
        let (mut composed, mut places) = (Vec::new(), HashMap::new());
        for variable in variables.as_array().into_iter().flatten() {
            let [name, expression] =
                ["name", "expression"].map(|field| variable[field].as_str().unwrap_or_default());
            places.insert(name, composed.len());
            composed.push(Composed { name, expression, result: OnceLock::new() });
        }
        Activation { values: values.collect(), composed, places, authorizer }
    }

    /// The result of an expression, in JSON.
    pub(crate) fn evaluate(&self, expression: &str) -> Result<Value, String> {
        on_large_stack(|| {
            let value = self.run(expression, &ENV)?;
            value.json().map_err(|error| error.to_string())
        })
    }

    /// The result of an expression of a mutation, in JSON: an `Object{…}`, or a list of `JSONPatch{…}`.
    pub(crate) fn construct(&self, expression: &str) -> Result<Value, String> {
        on_large_stack(|| {
            let mut env = new_env();
            declare_types(compiled(expression)?.program.expression(), &mut env);
            env.add_overload("jsonpatch.escapeKey", "jsonpatch_escape_key", vec![STRING_TYPE], |args| {
                let key = args[0].downcast_ref::<CelString<'_>>().map_or("", |key| key.inner());
                Ok(CowVal::owned(CelString::from(key.replace('~', "~0").replace('/', "~1"))))
            })
            .expect("a new function");
            let value = self.run(expression, &Arc::new(env))?;
            constructed(&value, Some("Object")).map_err(|why| format!("type mismatch: {why}"))
        })
    }

    fn run(&self, expression: &str, env: &Arc<Env>) -> Result<cel::Value, String> {
        let evaluation = Evaluation { activation: self, failure: Mutex::default() };
        for place in self.used(expression) {
            evaluation.composed(&self.composed[place]);
        }
        let value = evaluation.execute(expression, env);
        value
            .and_then(|value| cel::Value::try_from(&*value).map_err(|error| short(&error)))
            .map_err(|why| format!("expression '{expression}' resulted in error: {why}"))
    }

    /// The places of the variables that an expression uses, and those that they use. A variable can use only those before it: evaluated in
    /// this order, none is evaluated inside of another one, and a long chain of them needs no deep stack.
    fn used(&self, expression: &str) -> BTreeSet<usize> {
        let (mut used, mut left) = (BTreeSet::new(), vec![expression]);
        while let Some(expression) = left.pop() {
            let Ok(program) = compiled(expression) else { continue };
            let mut parts_left = vec![program.program.expression()];
            while let Some(at) = parts_left.pop() {
                let place = variable(at).and_then(|name| self.places.get(name));
                if let Some(place) = place.filter(|place| used.insert(**place)) {
                    left.push(self.composed[*place].expression);
                }
                parts_left.extend(parts(at));
            }
        }
        used
    }
}

/// The name in `variables.name`.
fn variable(at: &IdedExpr) -> Option<&str> {
    match &at.expr {
        Expr::Select(select) if matches!(&select.operand.expr, Expr::Ident(name) if name == "variables") => {
            Some(&select.field)
        }
        _ => None,
    }
}

/// The evaluation of an expression, and of the variables that it uses.
struct Evaluation<'s, 'v> {
    activation: &'s Activation<'v>,
    /// The error of the variable that failed last. The library only learns that there is none.
    failure: Mutex<String>,
}

impl Evaluation<'_, '_> {
    fn execute(&self, expression: &str, env: &Arc<Env>) -> Result<Box<dyn Val>, String> {
        let program = compiled(expression)?;
        let mut context = Context::with_env(Arc::clone(env));
        context.set_variable_resolver(self);
        let value = cel_cost::limited(|| cel::Value::resolve_val(&program.metered, &context));
        let value = value.map_err(|_| cel_cost::EXCEEDED.to_owned())?;
        let mut copies = cel_library::COPIES.iter().chain(&cel_authorizer::COPIES);
        let owned = value.and_then(|value| match copies.find_map(|copy| copy(&*value)) {
            Some(value) => Ok(value),
            None => Box::<dyn Val>::try_from(cel::Value::try_from(&*value)?),
        });
        owned.map_err(|error| match error {
            ExecutionError::UndeclaredReference(name) if *name == "variables" => {
                let why = std::mem::take(&mut *self.failure.lock().unwrap_or_else(PoisonError::into_inner));
                if why.is_empty() { unsupported("variables") } else { why }
            }
            ExecutionError::UndeclaredReference(name) => unsupported(&name),
            error => short(&error),
        })
    }

    fn composed<'b>(&self, composed: &'b Composed<'_>) -> Option<&'b dyn Val> {
        let name = composed.name;
        let result = composed.result.get_or_init(|| self.execute(composed.expression, &ENV));
        match result {
            Ok(value) => Some(&**value),
            Err(why) => {
                let why = format!("composited variable {name:?} fails to evaluate: {why}");
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
                None
            }
        }
    }
}

impl VariableResolver for Evaluation<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        if let Some(name) = variable.strip_prefix("variables.") {
            let place = self.activation.places.get(name)?;
            return self.composed(&self.activation.composed[*place]).map(CowVal::Borrowed);
        }
        let [authorizer, request_resource] = &self.activation.authorizer;
        match variable {
            "authorizer" => return Some(CowVal::Borrowed(&**authorizer)),
            "authorizer.requestResource" => return Some(CowVal::Borrowed(&**request_resource)),
            _ => {}
        }
        let (_, value) = self.activation.values.iter().find(|(name, _)| *name == variable)?;
        Some(CowVal::Borrowed(&**value.in_cel.get_or_init(|| in_cel(value.value, &Value::Null))))
    }
}

/// The type of the objects of a name, such as `Object.spec`, with any fields.
struct Constructed(Type);

impl StructType for Constructed {
    fn get_type(&self) -> &Type {
        &self.0
    }

    fn new_value<'v>(
        &self,
        fields: BTreeMap<String, CowVal<'_, 'v>>,
    ) -> Result<Box<dyn Val + 'v>, ExecutionError> {
        let mut object = CelStruct::new(self.0.name().to_owned());
        for (name, value) in fields {
            // `Object{?spec: …}` has an optional value.
            let given = match value.downcast_ref::<CelOptional<'_>>() {
                Some(optional) => optional.option().map(|value| CowVal::Owned(value.clone_as_boxed())),
                None => Some(value),
            };
            given.into_iter().for_each(|value| object.add_field_value(name.clone(), value));
        }
        Ok(Box::new(object))
    }
}

/// Declares the types of the objects that an expression constructs.
fn declare_types(at: &IdedExpr, env: &mut Env) {
    if let Expr::Struct(object) = &at.expr
        && is_constructed(&object.type_name)
    {
        // An error: it is declared already.
        let _ = env.add_type(Constructed(Type::new_struct(object.type_name.clone())));
    }
    parts(at).into_iter().for_each(|part| declare_types(part, env));
}

fn is_constructed(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

/// A value with constructed objects, in JSON. Below an object, the name of a type must be its field's path.
fn constructed(value: &cel::Value, at: Option<&str>) -> Result<Value, String> {
    match value {
        cel::Value::Struct(object) => {
            let name = object.name();
            let at = if name == "JSONPatch" { None } else { at };
            if let Some(at) = at.filter(|at| *at != name) {
                let why = "which matches field name path from root Object type";
                return Err(format!("unexpected type name {name:?}, expected {at:?}, {why}"));
            }
            let mut fields = serde_json::Map::new();
            for (field, value) in object.field_values() {
                let value = cel::Value::try_from(&*value).map_err(|error| short(&error))?;
                let at = at.map(|at| format!("{at}.{field}"));
                // The value of a JSONPatch begins a path.
                let at = match &value {
                    cel::Value::Struct(inner) => at.or_else(|| Some(inner.name().to_owned())),
                    _ => at,
                };
                fields.insert(field, constructed(&value, at.as_deref())?);
            }
            Ok(fields.into())
        }
        cel::Value::List(items) => items.iter().map(|item| constructed(item, at)).collect(),
        cel::Value::Map(map) => {
            map.map.iter().map(|(key, value)| Ok((key.to_string(), constructed(value, at)?))).collect()
        }
        other => other.json().map_err(|error| error.to_string()),
    }
}

/// The names that an expression may use.
#[derive(Clone, Copy)]
pub(crate) struct Names<'n> {
    pub(crate) values: &'n [&'n str],
    /// The variables of the policy that come before the expression. `None` if it can use no `variables`.
    pub(crate) composed: Option<&'n [&'n str]>,
    /// Whether it can construct objects.
    pub(crate) constructs: bool,
}

/// The type that the result of an expression must have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    Any,
    Bool,
    Text,
    TextOrNull,
    Object,
    Patches,
}

/// Checks that an expression can be compiled.
pub(crate) fn check(expression: &str, names: Names<'_>, wanted: Wanted) -> Result<(), String> {
    on_large_stack(|| {
        let compiled = compiled(expression).map_err(|why| format!("compilation failed: {why}"))?;
        let program = &compiled.program;
        let mut unknown = Vec::new();
        find_unknown(program.expression(), names, &mut Vec::new(), &mut unknown);
        if !unknown.is_empty() {
            let errors: Vec<String> =
                unknown.iter().map(|(id, why)| at_source(program, expression, *id, why)).collect();
            return Err(format!("compilation failed: {}", errors.join("\n")));
        }
        let is = output_type(&program.expression().expr);
        let (types, shown) = match wanted {
            Wanted::Any => return Ok(()),
            Wanted::Bool => (["bool"].as_slice(), "bool"),
            Wanted::Text => (["string"].as_slice(), "string"),
            Wanted::TextOrNull => (["string", "null_type"].as_slice(), "one of [string null_type]"),
            Wanted::Object => (["Object"].as_slice(), "Object"),
            Wanted::Patches => (["list(JSONPatch)"].as_slice(), "list(JSONPatch)"),
        };
        match is {
            Some(is) if !types.contains(&&*is) => Err(format!("must evaluate to {shown} but got {is}")),
            Some(_) | None => Ok(()),
        }
    })
}

/// An error with its place, as cel-go prints it.
fn at_source(program: &Program, expression: &str, id: u64, why: &str) -> String {
    let start = program.source_info().offset_for(id).map_or(0, |(start, _)| start as usize);
    let before = expression.get(..start).unwrap_or_default();
    let (row, column) =
        (before.matches('\n').count(), before.chars().rev().take_while(|c| *c != '\n').count());
    let line = expression.lines().nth(row).unwrap_or_default();
    format!("ERROR: <input>:{}:{}: {why}\n | {line}\n | {}^", row + 1, column + 1, ".".repeat(column))
}

/// Finds the names that are not declared, with the ids of their expressions.
fn find_unknown<'e>(
    at: &'e IdedExpr,
    names: Names<'_>,
    bound: &mut Vec<&'e str>,
    unknown: &mut Vec<(u64, String)>,
) {
    let undeclared = |name: &str| format!("undeclared reference to '{name}' (in container '')");
    match &at.expr {
        Expr::Ident(name) => {
            let is_known = name.starts_with('@')
                || bound.contains(&&**name)
                || names.values.contains(&&**name)
                || name == "variables" && names.composed.is_some()
                || ENV.types().find_type(name).is_some();
            if !is_known {
                unknown.push((at.id, undeclared(name)));
            }
        }
        // The name of a type: `net.IP`.
        Expr::Select(select)
            if matches!(&select.operand.expr, Expr::Ident(name)
                if ENV.types().find_type(&format!("{name}.{}", select.field)).is_some()) => {}
        Expr::Select(select) => {
            let is_variable = matches!(&select.operand.expr, Expr::Ident(name) if name == "variables" && !bound.contains(&"variables"));
            find_unknown(&select.operand, names, bound, unknown);
            if is_variable && names.composed.is_some_and(|known| !known.contains(&&*select.field)) {
                unknown.push((at.id, format!("undefined field '{}'", select.field)));
            }
        }
        Expr::Call(call) => {
            let is_namespace = |target: &&IdedExpr| matches!(&target.expr, Expr::Ident(name) if NAMESPACES.contains(&&**name));
            let target = call.target.as_deref().filter(|target| !is_namespace(target));
            let inside = target.into_iter().chain(&call.args);
            inside.for_each(|part| find_unknown(part, names, bound, unknown));
        }
        Expr::Comprehension(comprehension) => {
            find_unknown(&comprehension.iter_range, names, bound, unknown);
            find_unknown(&comprehension.accu_init, names, bound, unknown);
            let before = bound.len();
            bound.extend([&*comprehension.iter_var, &*comprehension.accu_var]);
            bound.extend(comprehension.iter_var2.as_deref());
            for part in [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result] {
                find_unknown(part, names, bound, unknown);
            }
            bound.truncate(before);
        }
        Expr::Struct(object) if !names.constructs || !is_constructed(&object.type_name) => {
            unknown.push((at.id, undeclared(&object.type_name)));
        }
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Literal(_) | Expr::Unspecified => {
            parts(at).into_iter().for_each(|part| find_unknown(part, names, bound, unknown));
        }
    }
}

/// The expressions in an expression.
fn parts(at: &IdedExpr) -> Vec<&IdedExpr> {
    match &at.expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(comprehension) => {
            let ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, .. } =
                &**comprehension;
            vec![iter_range, accu_init, loop_cond, loop_step, result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(MapExpr { entries }) | Expr::Struct(StructExpr { entries, .. }) => {
            let mut all = Vec::new();
            for entry in entries {
                match &entry.expr {
                    EntryExpr::StructField(field) => all.push(&field.value),
                    EntryExpr::MapEntry(entry) => all.extend([&entry.key, &entry.value]),
                }
            }
            all
        }
        Expr::Select(select) => vec![&select.operand],
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

/// The type of all the results of some expressions.
fn common_type<'e>(mut all: impl Iterator<Item = &'e IdedExpr>) -> Option<Cow<'e, str>> {
    let first = output_type(&all.next()?.expr)?;
    all.all(|one| output_type(&one.expr).as_ref() == Some(&first)).then_some(first)
}

/// The type of the result of an expression, if it is obvious.
fn output_type(at: &Expr) -> Option<Cow<'_, str>> {
    use operators::*;
    let known = match at {
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::Boolean(_) => "bool",
            LiteralValue::Bytes(_) => "bytes",
            LiteralValue::Double(_) => "double",
            LiteralValue::Int(_) => "int",
            LiteralValue::Null => "null_type",
            LiteralValue::String(_) => "string",
            LiteralValue::UInt(_) => "uint",
        }),
        Expr::Call(call) => match &*call.func_name {
            LOGICAL_AND | LOGICAL_OR | LOGICAL_NOT | EQUALS | NOT_EQUALS | GREATER | GREATER_EQUALS
            | LESS | LESS_EQUALS | IN => Some("bool"),
            _ => None,
        },
        Expr::Select(select) if select.test => Some("bool"),
        Expr::Select(select) => return output_type(&select.operand.expr).filter(|is| *is == "dyn"),
        Expr::Ident(name) => ["object", "oldObject", "params"].contains(&&**name).then_some("dyn"),
        Expr::List(list) => {
            let of = common_type(list.elements.iter())?;
            return Some(Cow::Owned(format!("list({of})")));
        }
        Expr::Map(map) => {
            let entries = map.entries.iter().filter_map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => Some((&entry.key, &entry.value)),
                EntryExpr::StructField(_) => None,
            });
            let (keys, values): (Vec<_>, Vec<_>) = entries.unzip();
            let [keys, values] = [keys, values].map(|all| common_type(all.into_iter()));
            return Some(Cow::Owned(format!("map({}, {})", keys?, values?)));
        }
        Expr::Struct(object) => return Some(Cow::Borrowed(&object.type_name)),
        Expr::Comprehension(_) | Expr::Unspecified => None,
    };
    known.map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::cel_authorizer::authorizer;

    /// Once, each variable was evaluated inside the evaluation of the next one, which overflowed the stack.
    #[test]
    fn a_long_chain_of_variables_does_not_overflow_the_stack() {
        let chain = |first: &str, next: &dyn Fn(&str) -> String| {
            let mut all = vec![json!({"name": "v0", "expression": first})];
            for index in 1..1000 {
                let expression = next(&format!("variables.v{}", index - 1));
                all.push(json!({"name": format!("v{index}"), "expression": expression}));
            }
            let nobody = authorizer(Arc::new(|_, _| json!({})), &json!({}));
            Activation::new(&[], nobody, &all.into()).evaluate("variables.v999")
        };
        assert_eq!(chain("0", &|before| format!("{before} + 1")), Ok(json!(999)));
        assert_eq!(chain("0", &|before| format!("[[[{before}]]][0][0][0]")), Ok(json!(0)));
        assert!(chain("0", &|before| format!("[{before}]")).is_ok());
    }
}
