//! The CEL expressions of admission: the `matchConditions` of webhooks, and all that admission policies contain.
//!
//! ```text
//! variables: [{name: limit, expression: "has(params.data) ? int(params.data.limit) : 3"}]
//! validations: [{expression: "object.spec.replicas <= variables.limit"}]
//! ```
//!
//! Their variables have no schemas, so their fields have any type. [`cel_types`] checks names, functions, operators and results.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};

use cel::{
    Context, Env, ExecutionError, Program, StructType,
    common::{
        ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, MapExpr, StructExpr},
        types::{CelOptional, CelString, CelStruct, STRING_TYPE},
        value::{CowVal, Val},
    },
    context::VariableResolver,
};
use serde_json::Value;

use crate::schema::{
    cel::{ENV, in_cel, new_env, on_large_stack, program, short, unsupported},
    cel_authorizer, cel_cost, cel_library,
    cel_types::{self, Scope, Type},
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
struct Constructed(cel::common::types::Type);

impl StructType for Constructed {
    fn get_type(&self) -> &cel::common::types::Type {
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
        let _ = env.add_type(Constructed(cel::common::types::Type::new_struct(object.type_name.clone())));
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
        let is_typed = |name: &str| ["object", "oldObject", "params"].contains(&name);
        let mut variables: Vec<_> = names
            .values
            .iter()
            .map(|name| (*name, if is_typed(name) { Type::Named("dyn") } else { Type::Unknown }))
            .collect();
        variables.extend(names.composed.map(|_| ("variables", Type::Unknown)));
        let constructs = if names.constructs { is_constructed } else { |_: &str| false };
        let composed = names.composed.map(|all| all.iter().map(|name| (*name, Type::Unknown)).collect());
        let scope = Scope { variables, composed, constructs };
        let checked = cel_types::check(&compiled.program, expression, &scope)
            .map_err(|why| format!("compilation failed: {why}"))?;
        let is = &checked[&compiled.program.expression().id];
        let (types, shown) = match wanted {
            Wanted::Any => return Ok(()),
            Wanted::Bool => (["bool"].as_slice(), "bool"),
            Wanted::Text => (["string"].as_slice(), "string"),
            Wanted::TextOrNull => (["string", "null_type"].as_slice(), "one of [string null_type]"),
            Wanted::Object => (["Object"].as_slice(), "Object"),
            Wanted::Patches => (["list(JSONPatch)"].as_slice(), "list(JSONPatch)"),
        };
        if is.is_none_of(types) {
            return Err(format!("must evaluate to {shown} but got {is}"));
        }
        Ok(())
    })
}

/// The errors in the types of a policy's expressions: for each schema of an object, one result for each expression. The variables of
/// the policy have the types of their expressions.
pub(crate) fn type_errors(
    expressions: &[&str],
    variables: &Value,
    objects: &[Value],
    params: Option<&Value>,
) -> Vec<Vec<Option<String>>> {
    on_large_stack(|| {
        let list = variables.as_array().into_iter().flatten();
        let variables: Vec<_> = list
            .filter_map(|variable| {
                let (name, expression) = (variable["name"].as_str()?, variable["expression"].as_str()?);
                Some((name, expression, compiled(expression).ok()?))
            })
            .collect();
        let expressions: Vec<_> = expressions.iter().map(|one| (*one, compiled(one))).collect();
        let params = params.map_or(Some(Type::Named("dyn")), |params| Type::of(params, false));
        let params = params.unwrap_or(Type::Unknown);
        let mut all = Vec::new();
        for object in objects {
            let object = Type::of(object, false).unwrap_or(Type::Unknown);
            let mut names =
                vec![("object", object.clone()), ("oldObject", object), ("params", params.clone())];
            let others = ["request", "namespaceObject", "authorizer", "variables"];
            names.extend(others.map(|name| (name, Type::Unknown)));
            let mut scope = Scope { variables: names, composed: Some(Vec::new()), constructs: |_| false };
            for (name, expression, compiled) in &variables {
                let types = cel_types::check(&compiled.program, expression, &scope);
                let id = compiled.program.expression().id;
                let of = types.map_or(Type::Unknown, |types| types[&id].clone());
                scope.composed.get_or_insert_default().push((name, of));
            }
            let error = |(expression, compiled): &(&str, Result<Arc<Compiled>, String>)| match compiled {
                Ok(compiled) => cel_types::check(&compiled.program, expression, &scope).err(),
                Err(why) => Some(why.clone()),
            };
            all.push(expressions.iter().map(error).collect());
        }
        all
    })
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
