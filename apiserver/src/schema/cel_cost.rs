//! The cost of CEL expressions, which is limited as in kube-apiserver: never by time, so a result does not depend on the machine.
//!
//! ```text
//! self.items.all(a, a.name in self.names)
//! self.items.all(a, @charge(4) ? a.name in @compared(self.names) : false)
//! ```
//!
//! The crate `cel` counts nothing, so [`metered`] adds calls that do. Each name, field and call costs 1, as in cel-go's `runtimecost.go`,
//! and what a call reads of strings, lists and maps costs about as much as there. [`cel_estimate`](super::cel_estimate) estimates
//! the cost of a rule when a CRD is written.

use std::cell::Cell;

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        ast::{
            CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue,
            MapExpr, SelectExpr, StructExpr, operators::*,
        },
        types::{CelBool, CelBytes, CelInt, CelList, CelMap, CelString, DYN_TYPE, INT_TYPE},
        value::{CowVal, Val},
    },
};

/// Highest cost of one expression: `PerCallLimit` in k8s.io/apiserver/pkg/apis/cel. A tenth of a second there.
const CALL_COST_MAX: u64 = 1_000_000;

/// Highest cost of all expressions of a thread: `RuntimeCELCostBudget`, for all rules of an object.
const COST_MAX: u64 = 10_000_000;

/// The costs of a new list, map and object.
pub(super) const LIST_COST: u64 = 10;
pub(super) const MAP_COST: u64 = 30;
pub(super) const STRUCT_COST: u64 = 40;

/// A unit for so many bytes of a string that is read.
const BYTES_PER_COST: usize = 10;

pub(super) const EXCEEDED: &str = "operation cancelled: actual cost limit exceeded";

/// Calls that read no strings, lists or maps, however large. `_?_:_`, `_&&_` and `_||_` cost nothing.
const CONSTANT: [&str; 16] = [
    LOGICAL_NOT,
    NOT_STRICTLY_FALSE,
    NEGATE,
    SUBSTRACT,
    MULTIPLY,
    DIVIDE,
    MODULO,
    INDEX,
    OPT_INDEX,
    OPT_SELECT,
    "size",
    "type",
    "dyn",
    "orValue",
    "value",
    "hasValue",
];

/// What stands before the name of a function: `optional.of`.
pub(super) const NAMESPACES: [&str; 10] =
    ["base64", "format", "ip", "jsonpatch", "lists", "math", "optional", "regex", "sets", "strings"];

/// Calls that compare values: only as much as the smaller one has.
const COMPARISONS: [&str; 7] = [EQUALS, NOT_EQUALS, LESS, LESS_EQUALS, GREATER, GREATER_EQUALS, IN];

thread_local! {
    /// What is left of [`CALL_COST_MAX`] and of [`COST_MAX`]. `None`: exceeded. Each object, and each expression of a policy, has a
    /// thread of its own, because its evaluation needs a large stack.
    static LEFT_OF_CALL: Cell<Option<u64>> = const { Cell::new(Some(CALL_COST_MAX)) };
    static LEFT_OF_THREAD: Cell<Option<u64>> = const { Cell::new(Some(COST_MAX)) };
}

/// Which limit was exceeded.
pub(super) enum Exceeded {
    OfCall,
    OfThread,
}

/// Evaluates an expression.
pub(super) fn limited<T>(evaluate: impl FnOnce() -> T) -> Result<T, Exceeded> {
    let outer = LEFT_OF_CALL.replace(Some(CALL_COST_MAX));
    let result = evaluate();
    let left = LEFT_OF_CALL.replace(outer);
    match (left, LEFT_OF_THREAD.get()) {
        (None, _) => Err(Exceeded::OfCall),
        (Some(_), None) => Err(Exceeded::OfThread),
        (Some(_), Some(_)) => Ok(result),
    }
}

pub(super) fn charge(cost: u64) -> Result<(), ExecutionError> {
    for limit in [&LEFT_OF_CALL, &LEFT_OF_THREAD] {
        limit.set(limit.get().and_then(|left| left.checked_sub(cost)));
        limit.get().ok_or_else(|| ExecutionError::function_error("", EXCEEDED))?;
    }
    Ok(())
}

/// How much of a value a call may read. `strings`: also the strings in lists and maps.
fn size(value: &dyn Val, strings: bool) -> u64 {
    let cost_of = |bytes: usize| bytes.div_ceil(BYTES_PER_COST) as u64;
    let inside = |value: &(dyn Val + '_)| match value.downcast_ref::<CelString<'_>>() {
        Some(_) if !strings => 1,
        Some(_) | None => size(value, strings).max(1),
    };
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        return cost_of(text.inner().len());
    }
    if let Some(bytes) = value.downcast_ref::<CelBytes<'_>>() {
        return cost_of(bytes.inner().len());
    }
    if let Some(list) = value.downcast_ref::<CelList<'_>>() {
        return list.inner().iter().map(|item| inside(&**item)).sum();
    }
    value
        .downcast_ref::<CelMap<'_>>()
        .map_or(0, |map| map.inner().values().map(|value| inside(&**value)).sum())
}

pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload("@charge", "@charge(int)", vec![INT_TYPE], |args| {
        let cost = args[0].downcast_ref::<CelInt>().map_or(0, |cost| *cost.inner());
        charge(cost.unsigned_abs())?;
        Ok(CowVal::owned(CelBool::from(true)))
    })?;
    env.add_overload("@read", "@read(dyn)", vec![DYN_TYPE], |args| charged(args, true))?;
    env.add_overload("@compared", "@compared(dyn)", vec![DYN_TYPE], |args| charged(args, false))
}

/// Charges for the value, and returns it.
fn charged<'b, 'v>(mut args: Vec<CowVal<'b, 'v>>, strings: bool) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let value = args.remove(0);
    charge(size(&*value, strings))?;
    Ok(value)
}

/// The expression, with calls that charge for it.
pub(super) fn metered(expression: &IdedExpr) -> IdedExpr {
    metered_beside(0, expression)
}

/// The same, with the cost of what is evaluated with it. The charge comes first: an error after an expensive loop would not end it.
fn metered_beside(mut cost: u64, expression: &IdedExpr) -> IdedExpr {
    let id = expression.id;
    let inner = walk(expression, &mut cost);
    let charge = call(id, "@charge", vec![literal(id, i64::try_from(cost).unwrap_or(i64::MAX))]);
    call(id, CONDITIONAL, vec![charge, inner, literal(id, 0)])
}

fn call(id: u64, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }) }
}

fn literal(id: u64, number: i64) -> IdedExpr {
    IdedExpr { id, expr: Expr::Literal(LiteralValue::Int(number.into())) }
}

/// Adds the cost of what is always evaluated, and meters the rest.
fn walk(at: &IdedExpr, cost: &mut u64) -> IdedExpr {
    let expr = match &at.expr {
        Expr::Ident(_) => {
            *cost += 1;
            at.expr.clone()
        }
        Expr::Select(select) => {
            *cost += 1;
            let operand = Box::new(walk(&select.operand, cost));
            Expr::Select(SelectExpr { operand, ..select.clone() })
        }
        Expr::Call(call) => Expr::Call(walk_call(call, cost)),
        Expr::Comprehension(comprehension) => {
            let ComprehensionExpr { iter_range, accu_init, loop_step, result, .. } = &**comprehension;
            Expr::Comprehension(Box::new(ComprehensionExpr {
                iter_range: walk(iter_range, cost),
                accu_init: walk(accu_init, cost),
                loop_step: step(loop_step),
                result: walk(result, cost),
                ..(**comprehension).clone()
            }))
        }
        Expr::List(list) => {
            *cost += LIST_COST;
            let elements = list.elements.iter().map(|element| walk(element, cost)).collect();
            Expr::List(ListExpr { elements, ..list.clone() })
        }
        Expr::Map(map) => {
            *cost += MAP_COST;
            Expr::Map(MapExpr { entries: entries(&map.entries, cost) })
        }
        Expr::Struct(object) => {
            *cost += STRUCT_COST;
            Expr::Struct(StructExpr { entries: entries(&object.entries, cost), ..object.clone() })
        }
        Expr::Literal(_) | Expr::Unspecified => at.expr.clone(),
    };
    IdedExpr { id: at.id, expr }
}

fn entries(all: &[IdedEntryExpr], cost: &mut u64) -> Vec<IdedEntryExpr> {
    let mut all = all.to_vec();
    for entry in &mut all {
        match &mut entry.expr {
            EntryExpr::StructField(field) => field.value = walk(&field.value, cost),
            EntryExpr::MapEntry(entry) => {
                entry.key = walk(&entry.key, cost);
                entry.value = walk(&entry.value, cost);
            }
        }
    }
    all
}

fn walk_call(at: &CallExpr, cost: &mut u64) -> CallExpr {
    let name = &*at.func_name;
    if let (CONDITIONAL | LOGICAL_AND | LOGICAL_OR, Some((first, rest))) = (name, at.args.split_first()) {
        let mut args = vec![walk(first, cost)];
        args.extend(rest.iter().map(metered));
        return CallExpr { args, ..at.clone() };
    }
    *cost += 1;
    let reads = |arg: &IdedExpr, cost: &mut u64, charge: &str| match &arg.expr {
        Expr::Literal(_) => arg.clone(),
        _ => call(arg.id, charge, vec![walk(arg, cost)]),
    };
    let is_namespace =
        |target: &IdedExpr| matches!(&target.expr, Expr::Ident(name) if NAMESPACES.contains(&&**name));
    let target = at.target.as_deref().map(|target| {
        Box::new(match CONSTANT.contains(&name) || is_namespace(target) {
            true => walk(target, cost),
            false => reads(target, cost, "@read"),
        })
    });
    let is_literal = |arg: &IdedExpr| matches!(arg.expr, Expr::Literal(_));
    let is_free = CONSTANT.contains(&name)
        || COMPARISONS.contains(&name) && name != IN && at.args.iter().any(is_literal);
    let args = at.args.iter().enumerate().map(|(index, arg)| match (is_free, COMPARISONS.contains(&name)) {
        (true, _) => walk(arg, cost),
        (false, false) => reads(arg, cost, "@read"),
        // Of `a in list`, the list; of `a == b`, one of them.
        (false, true) if (index == 1) == (name == IN) => reads(arg, cost, "@compared"),
        (false, true) => walk(arg, cost),
    });
    CallExpr { args: args.collect(), target, ..at.clone() }
}

/// A step of a loop, such as `@result && condition`. The library knows the loops of its macros by their form, so only `condition` changes.
fn step(at: &IdedExpr) -> IdedExpr {
    let is_result = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if name.starts_with('@'));
    let expr = match &at.expr {
        Expr::Ident(_) if is_result(at) => at.expr.clone(),
        Expr::Call(call) if call.args.iter().any(is_result) => {
            let mut args = call.args.clone();
            match (&*call.func_name, args.as_mut_slice()) {
                // Beside the condition, there are `@not_strictly_false(@result)` and `@result`.
                (LOGICAL_AND | LOGICAL_OR, [_, condition]) => *condition = metered_beside(3, condition),
                (CONDITIONAL, [condition, then, _]) => {
                    *condition = metered(condition);
                    *then = step(then);
                }
                // `@result + [item]`
                (_, parts) => parts.iter_mut().for_each(|part| *part = step(part)),
            }
            Expr::Call(CallExpr { args, ..call.clone() })
        }
        Expr::List(list) => {
            let beside = LIST_COST + 2;
            let elements = list.elements.iter().map(|item| metered_beside(beside, item)).collect();
            Expr::List(ListExpr { elements, ..list.clone() })
        }
        _ => return metered_beside(1, at),
    };
    IdedExpr { id: at.id, expr }
}
