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
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use cel::{
    Context, ExecutionError, Program,
    common::{
        ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators},
        value::{CowVal, Val},
    },
    context::VariableResolver,
};
use serde_json::Value;

pub(crate) use crate::schema::cel::RESERVED;
use crate::schema::cel::{ENV, TIME_MAX, cpu_time, in_cel, on_large_stack, program, short, unsupported};

/// The variables that each expression of admission has.
pub(crate) const ALWAYS: [&str; 4] = ["object", "oldObject", "request", "namespaceObject"];

/// What stands before the name of a function: `optional.of`.
const NAMESPACES: [&str; 9] =
    ["base64", "format", "ip", "jsonpatch", "math", "optional", "regex", "sets", "strings"];

/// The variables of the expressions of one policy or webhook, for one write.
pub(crate) struct Activation<'v> {
    values: Vec<(&'static str, Converted<'v>)>,
    /// By their names: `variables.limit`. Each is evaluated when it is first used.
    composed: HashMap<&'v str, Composed<'v>>,
}

/// A value that is converted to CEL when it is first used.
struct Converted<'v> {
    value: &'v Value,
    in_cel: OnceLock<Box<dyn Val + 'v>>,
}

struct Composed<'v> {
    expression: &'v str,
    result: OnceLock<Result<Box<dyn Val>, String>>,
}

impl<'v> Activation<'v> {
    /// An activation of these values, and of the `variables` of a policy.
    pub(crate) fn new(values: &[(&'static str, &'v Value)], variables: &'v Value) -> Activation<'v> {
        let values = values.iter().map(|(name, value)| (*name, Converted { value, in_cel: OnceLock::new() }));
        let mut composed = HashMap::new();
        for variable in variables.as_array().into_iter().flatten() {
            let [name, expression] =
                ["name", "expression"].map(|field| variable[field].as_str().unwrap_or_default());
            composed.insert(name, Composed { expression, result: OnceLock::new() });
        }
        Activation { values: values.collect(), composed }
    }

    /// The result of an expression, in JSON.
    pub(crate) fn evaluate(&self, expression: &str) -> Result<Value, String> {
        on_large_stack(|| {
            let run = Evaluation {
                activation: self,
                deadline: cpu_time() + TIME_MAX,
                failure: Mutex::new(String::new()),
            };
            let result = run.execute(expression);
            let result = result.and_then(|value| value.json().map_err(|error| error.to_string()));
            result.map_err(|why| format!("expression '{expression}' resulted in error: {why}"))
        })
    }
}

/// The evaluation of an expression, with those of the variables that it uses.
struct Evaluation<'s, 'v> {
    activation: &'s Activation<'v>,
    deadline: Duration,
    /// The error of the variable that failed last. The library only learns that there is none.
    failure: Mutex<String>,
}

impl Evaluation<'_, '_> {
    fn execute(&self, expression: &str) -> Result<cel::Value, String> {
        let program = program(expression)?;
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(self);
        program.execute(&context).map_err(|error| match error {
            _ if cpu_time() > self.deadline => "operation cancelled: actual cost limit exceeded".to_owned(),
            ExecutionError::UndeclaredReference(name) if *name == "variables" => {
                std::mem::take(&mut *self.failure.lock().unwrap_or_else(PoisonError::into_inner))
            }
            ExecutionError::UndeclaredReference(name) => unsupported(&name),
            error => short(&error),
        })
    }

    fn composed<'b>(&'b self, name: &str) -> Option<&'b dyn Val> {
        let composed = self.activation.composed.get(name)?;
        let result = composed.result.get_or_init(|| {
            let value = self.execute(composed.expression)?;
            Box::<dyn Val>::try_from(value).map_err(|error| short(&error))
        });
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
        if cpu_time() > self.deadline {
            return None;
        }
        if let Some(name) = variable.strip_prefix("variables.") {
            return self.composed(name).map(CowVal::Borrowed);
        }
        let (_, value) = self.activation.values.iter().find(|(name, _)| *name == variable)?;
        Some(CowVal::Borrowed(&**value.in_cel.get_or_init(|| in_cel(value.value, &Value::Null))))
    }
}

/// The names that an expression may use.
#[derive(Clone, Copy)]
pub(crate) struct Names<'n> {
    pub(crate) values: &'n [&'n str],
    /// The variables of the policy that come before the expression. `None` if it can use no `variables`.
    pub(crate) composed: Option<&'n [&'n str]>,
}

/// The type that the result of an expression must have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    Any,
    Bool,
    Text,
    TextOrNull,
}

/// Checks that an expression can be compiled.
pub(crate) fn check(expression: &str, names: Names<'_>, wanted: Wanted) -> Result<(), String> {
    on_large_stack(|| {
        let program = program(expression).map_err(|why| format!("compilation failed: {why}"))?;
        let mut unknown = Vec::new();
        find_unknown(program.expression(), names, &mut Vec::new(), &mut unknown);
        if !unknown.is_empty() {
            let errors: Vec<String> =
                unknown.iter().map(|(id, why)| at_source(&program, expression, *id, why)).collect();
            return Err(format!("compilation failed: {}", errors.join("\n")));
        }
        let is = output_type(&program.expression().expr);
        let (types, shown) = match wanted {
            Wanted::Any => return Ok(()),
            Wanted::Bool => (["bool"].as_slice(), "bool"),
            Wanted::Text => (["string"].as_slice(), "string"),
            Wanted::TextOrNull => (["string", "null_type"].as_slice(), "one of [string null_type]"),
        };
        match is {
            Some(is) if !types.contains(&is) => Err(format!("must evaluate to {shown} but got {is}")),
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
        Expr::List(list) => list.elements.iter().for_each(|item| find_unknown(item, names, bound, unknown)),
        Expr::Map(cel::common::ast::MapExpr { entries })
        | Expr::Struct(cel::common::ast::StructExpr { entries, .. }) => {
            for entry in entries {
                match &entry.expr {
                    EntryExpr::StructField(field) => find_unknown(&field.value, names, bound, unknown),
                    EntryExpr::MapEntry(entry) => {
                        find_unknown(&entry.key, names, bound, unknown);
                        find_unknown(&entry.value, names, bound, unknown);
                    }
                }
            }
        }
        Expr::Literal(_) | Expr::Unspecified => {}
    }
}

/// The type of the result of an expression, if it is obvious.
fn output_type(at: &Expr) -> Option<&'static str> {
    use operators::*;
    match at {
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
        Expr::Select(select) => output_type(&select.operand.expr).filter(|is| *is == "dyn"),
        Expr::Ident(name) => ["object", "oldObject", "params"].contains(&&**name).then_some("dyn"),
        _ => None,
    }
}
