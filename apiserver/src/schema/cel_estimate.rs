//! The estimated cost of a CEL rule. kube-apiserver refuses a CRD whose rules could cost too much, and names a factor:
//!
//! ```text
//! estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, …)
//! ```
//!
//! As cel-go's `checker/cost.go`, with the functions of `library/cost.go` and the sizes of `SchemaDeclType` in k8s.io/apiserver/pkg/cel.
//! Only upper limits count. Of an expression whose type is unknown here, the size is 0, and functions of the extensions for lists and
//! sets cost 1: the estimate is not higher than the one of kube-apiserver.

use std::collections::HashMap;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators::*};
use serde_json::Value;

use crate::{
    schema::{
        cel_cost::{LIST_COST, MAP_COST, STRUCT_COST},
        cel_types::{TWO_VARIABLES, Type, is_namespace, property},
    },
    status::Cause,
};

/// Highest cost of one rule, and of all rules of a schema: apiextensions-apiserver, `StaticEstimatedCostLimit` and
/// `StaticEstimatedCRDCostLimit`.
const RULE_COST_MAX: u64 = 10_000_000;
const SCHEMA_COST_MAX: u64 = 100_000_000;

/// Most rules that the error of the whole schema names.
const NAMED_MAX: usize = 4;

/// The largest request, which limits the sizes of values without a limit: `MaxRequestSizeBytes`.
const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// The costs of a byte that is read, and of a byte of a regular expression.
const PER_BYTE: f64 = 0.1;
const PER_PATTERN_BYTE: f64 = 0.25;

/// Functions that read one value: whether it is the target, the cost of each byte, and whether the result has the same size.
const LINEAR: [(&str, bool, f64, bool); 5] = [
    ("lowerAscii upperAscii substring trim", true, PER_BYTE, true),
    ("format", true, PER_BYTE, false),
    ("url", false, PER_BYTE, true),
    ("cidr isIP isCIDR quantity isQuantity semver isSemver startsWith endsWith", false, PER_BYTE, false),
    ("ip.isCanonical", false, 2.0 * PER_BYTE, false),
];

fn is_in(names: &str, name: &str) -> bool {
    names.split(' ').any(|one| one == name)
}

/// The estimated cost of an expression in a schema.
#[derive(Debug)]
pub(crate) struct Estimated {
    /// The place in the schema: `.properties[spec].x-kubernetes-validations[0].rule`.
    pub(crate) at: String,
    pub(crate) cost: u64,
}

/// Adds the errors of rules that cost too much.
pub(crate) fn errors(all: &mut Vec<Cause>, estimated: &[Estimated], at: &str) {
    let exceeds = |what: &str, cost: u64, limit: u64| {
        let factor = cost as f64 / limit as f64;
        let factor = match factor {
            _ if factor > 100.0 => "more than 100x".to_owned(),
            _ if factor < 1.5 => format!("{factor:.6}x"),
            _ => format!("{factor:.1}x"),
        };
        format!(
            "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
            maxLength where arrays, maps, and strings are declared)"
        )
    };
    for Estimated { at: below, cost } in estimated.iter().filter(|one| one.cost > RULE_COST_MAX) {
        let what = if below.ends_with(".rule") { "rule" } else { "messageExpression" };
        let why = exceeds(&format!("estimated {what} cost"), *cost, RULE_COST_MAX);
        all.push(Cause::forbidden(format!("{at}{below}"), &why));
    }
    let total = estimated.iter().fold(0_u64, |total, one| total.saturating_add(one.cost));
    if total <= SCHEMA_COST_MAX {
        return;
    }
    let mut expensive: Vec<_> = estimated.iter().filter(|one| one.cost >= SCHEMA_COST_MAX / 100).collect();
    expensive.sort_by_key(|one| std::cmp::Reverse(one.cost));
    for one in expensive.into_iter().take(NAMED_MAX) {
        let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        all.push(Cause::forbidden(format!("{at}{}", one.at), why));
    }
    let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    all.push(Cause::forbidden(at, &exceeds(what, total, SCHEMA_COST_MAX)));
}

/// How often a value of a schema can be in an object.
#[derive(Clone, Copy)]
pub(crate) enum Cardinality {
    AtMost(u64),
    /// As often as the smallest value has space in a request.
    Unbounded,
}

impl Cardinality {
    /// How often a value inside of this schema can be in an object.
    pub(crate) fn inside(self, schema: &Value) -> Cardinality {
        let limit = match schema["type"].as_str() {
            Some("array") => &schema["maxItems"],
            Some("object") if !schema["additionalProperties"].is_null() => &schema["maxProperties"],
            _ => return self,
        };
        match (self, limit.as_i64()) {
            (Cardinality::AtMost(count), Some(limit)) => {
                Cardinality::AtMost(count.saturating_mul(limit.try_into().unwrap_or(0)))
            }
            (Cardinality::AtMost(_) | Cardinality::Unbounded, _) => Cardinality::Unbounded,
        }
    }

    pub(crate) fn of(self, schema: &Value) -> u64 {
        match self {
            Cardinality::AtMost(count) => count,
            Cardinality::Unbounded => REQUEST_BYTES_MAX / (bytes_min(schema) + 1),
        }
    }
}

/// The least bytes of a value in JSON.
fn bytes_min(schema: &Value) -> u64 {
    match (schema["type"].as_str(), schema["format"].as_str()) {
        _ if schema["x-kubernetes-int-or-string"] == true => 1,
        (Some("number" | "integer"), _) => 1,
        (Some("boolean"), _) => 4,
        (Some("string"), Some("duration")) => 3,
        (Some("string"), Some("date")) => 12,
        (Some("string"), Some("date-time")) => 21,
        (Some("object"), _) if schema["additionalProperties"].is_null() => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let properties = required.map(|name| (name, &schema["properties"][name]));
            let sizes = properties
                .filter(|(_, of)| of["default"].is_null() && Type::of(of, false).is_some())
                .map(|(name, of)| name.len() as u64 + bytes_min(of) + 4);
            2 + sizes.sum::<u64>()
        }
        (_, _) => 2,
    }
}

/// The largest size of a value: of strings in bytes, of lists and maps in items.
fn size_max(schema: &Value) -> u64 {
    let limit = |word: &str| schema[word].as_i64().map(|limit| u64::try_from(limit).unwrap_or(0));
    let text = REQUEST_BYTES_MAX - 2;
    match (schema["type"].as_str(), schema["format"].as_str()) {
        _ if schema["x-kubernetes-int-or-string"] == true => {
            limit("maxLength").map_or(text, |max| max.saturating_mul(4))
        }
        (Some("array"), _) => limit("maxItems").unwrap_or_else(|| text / (bytes_min(&schema["items"]) + 1)),
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            limit("maxProperties").unwrap_or_else(|| text / (bytes_min(&schema["additionalProperties"]) + 6))
        }
        (Some("string"), Some("byte")) => limit("maxLength").unwrap_or(text),
        (Some("string"), Some("duration" | "date-time")) => 32,
        (Some("string"), Some("date")) => 12,
        (Some("string"), _) => match (limit("maxLength"), schema["enum"].as_array()) {
            (Some(max), _) => max.saturating_mul(4),
            (None, Some(values)) if !values.is_empty() => {
                values.iter().filter_map(Value::as_str).map(|value| value.len() as u64).max().unwrap_or(0)
            }
            (None, _) => text,
        },
        (_, _) => 0,
    }
}

/// Where a value is in the object: its schema, and whether it also has apiVersion, kind and metadata.
#[derive(Clone, Copy)]
enum Path<'s> {
    Of(&'s Value, bool),
    Key,
    Unknown,
}

enum PathElement<'s> {
    Field(&'s str),
    Key,
    Item,
}

#[derive(Clone, Default)]
struct AstNode<'s> {
    cost: u64,
    size: Option<u64>,
    /// The sizes of the keys and the values in a list or map.
    entries: Option<(u64, u64)>,
    path: Option<Path<'s>>,
}

impl AstNode<'_> {
    fn size(&self) -> u64 {
        self.size.unwrap_or(u64::MAX)
    }
}

/// The larger sizes of keys and of values, if both are known.
fn union(one: Option<(u64, u64)>, other: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let ((key, value), (other_key, other_value)) = (one?, other?);
    Some((key.max(other_key), value.max(other_value)))
}

fn times(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

fn sum(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}

/// The estimated cost of an expression about a value of this schema.
pub(super) fn cost<'s>(
    expression: &'s IdedExpr,
    schema: &'s Value,
    is_resource: bool,
    types: &'s HashMap<u64, Type<'s>>,
) -> u64 {
    let root = Path::Of(schema, is_resource);
    Estimator { root, types, bound: Vec::new() }.node(expression).cost
}

struct Estimator<'s> {
    root: Path<'s>,
    /// The types of expressions, by their ids.
    types: &'s HashMap<u64, Type<'s>>,
    /// The variables of macros.
    bound: Vec<(&'s str, AstNode<'s>)>,
}

impl<'s> Estimator<'s> {
    fn type_of(&self, at: &IdedExpr) -> &'s Type<'s> {
        self.types.get(&at.id).unwrap_or(&Type::Unknown)
    }

    /// Whether a value is or may be of this type.
    fn is(&self, at: &IdedExpr, name: &str) -> bool {
        matches!(self.type_of(at), Type::Named(of) if *of == name || *of == "dyn")
    }

    fn is_text(&self, at: &IdedExpr) -> bool {
        self.is(at, "string") || self.is(at, "bytes")
    }

    fn is_list(&self, at: &IdedExpr) -> bool {
        matches!(self.type_of(at), Type::List(_) | Type::Named("dyn"))
    }

    /// The path of a value inside of another one. cel-go takes the first element of a value that has no path for the variable `self`.
    fn inside(&self, path: Option<Path<'s>>, step: PathElement<'s>) -> Path<'s> {
        match (path, step) {
            (None, _) => self.root,
            (Some(Path::Of(schema, is_resource)), PathElement::Field(name)) => {
                property(schema, is_resource, name).map_or(Path::Unknown, |(of, is)| Path::Of(of, is))
            }
            (Some(Path::Of(schema, _)), PathElement::Item) => {
                let word = if schema["type"] == "array" { "items" } else { "additionalProperties" };
                let inside = &schema[word];
                let is_resource = inside["x-kubernetes-embedded-resource"] == true;
                if inside.is_object() { Path::Of(inside, is_resource) } else { Path::Unknown }
            }
            (Some(Path::Of(schema, _)), PathElement::Key) if schema["additionalProperties"].is_object() => {
                Path::Key
            }
            (Some(Path::Of(..) | Path::Key | Path::Unknown), _) => Path::Unknown,
        }
    }

    /// The size of a value by its path, its type, or as it is known otherwise.
    fn size(&self, at: &IdedExpr, path: Option<Path<'s>>, otherwise: Option<u64>) -> Option<u64> {
        match (path, self.type_of(at)) {
            (Some(Path::Of(schema, _)), _) => Some(size_max(schema)),
            (Some(Path::Key), _) => Some(0),
            (_, of) if of.has_fixed_size() => Some(1),
            (_, Type::Unknown) => Some(otherwise.unwrap_or(0)),
            (_, _) => otherwise,
        }
    }

    fn node(&mut self, at: &'s IdedExpr) -> AstNode<'s> {
        match &at.expr {
            Expr::Unspecified => AstNode::default(),
            Expr::Literal(literal) => {
                let size = match literal {
                    LiteralValue::String(text) => text.inner().chars().count() as u64,
                    LiteralValue::Bytes(bytes) => bytes.inner().len() as u64,
                    _ => 1,
                };
                AstNode { size: Some(size), ..AstNode::default() }
            }
            Expr::Ident(name) => {
                let bound = self.bound.iter().rev().find(|(bound, _)| bound == name);
                let bound = bound.map(|(_, node)| node.clone());
                let AstNode { size, entries, path, .. } =
                    bound.unwrap_or(AstNode { path: Some(self.root), ..AstNode::default() });
                AstNode { cost: 1, size: self.size(at, path, size), entries, path }
            }
            // The name of a type: `net.IP`.
            Expr::Select(select) if !self.types.contains_key(&select.operand.id) => AstNode {
                cost: 1,
                size: self.size(at, Some(self.root), None),
                entries: None,
                path: Some(self.root),
            },
            Expr::Select(select) => {
                let AstNode { mut cost, path, .. } = self.node(&select.operand);
                let has_fields = matches!(self.type_of(&select.operand), Type::Map(..) | Type::Object(..));
                cost = cost.saturating_add(u64::from(has_fields && !select.test));
                let path =
                    Some(self.inside(path, PathElement::Field(&select.field))).filter(|_| !select.test);
                AstNode { cost, size: self.size(at, path, None), entries: None, path }
            }
            Expr::List(list) => {
                let items: Vec<_> = list.elements.iter().map(|item| self.node(item)).collect();
                AstNode {
                    cost: sum(items.iter().map(|item| item.cost)).saturating_add(LIST_COST),
                    size: Some(items.len() as u64),
                    entries: Some((1, items.iter().map(AstNode::size).max().unwrap_or(0))),
                    path: None,
                }
            }
            Expr::Map(map) => {
                let (mut cost, mut entries) = (MAP_COST, (0, 0));
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                    let (key, value) = (self.node(&entry.key), self.node(&entry.value));
                    cost = sum([cost, key.cost, value.cost]);
                    entries = (entries.0.max(key.size()), entries.1.max(value.size()));
                }
                AstNode { cost, size: Some(map.entries.len() as u64), entries: Some(entries), path: None }
            }
            Expr::Struct(_) => AstNode { cost: STRUCT_COST, ..AstNode::default() },
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Call(call) => self.call(at, call),
        }
    }

    fn comprehension(&mut self, at: &'s ComprehensionExpr) -> AstNode<'s> {
        let range = self.node(&at.iter_range);
        let first = self.node(&at.accu_init);
        let (step, size) = match (self.is_list(&at.iter_range), range.entries) {
            (true, entries) => (PathElement::Item, entries.map(|(_, value)| value)),
            (false, entries) => (PathElement::Key, entries.map(|(key, _)| key)),
        };
        let item = AstNode { size, path: Some(self.inside(range.path, step)), ..AstNode::default() };
        self.bound.push((&at.accu_var, first.clone()));
        self.bound.push((&at.iter_var, item));
        let (goes_on, step) = (self.node(&at.loop_cond), self.node(&at.loop_step));
        self.bound.pop();
        let result = self.node(&at.result);
        self.bound.pop();
        let loops = range.size().saturating_mul(goes_on.cost.saturating_add(step.cost));
        let cost = sum([range.cost, first.cost, result.cost, loops]);
        let (size, entries) = match (&at.iter_range.expr, &at.accu_init.expr) {
            // `cel.bind`, which a macro expands to.
            (Expr::List(list), _) if list.elements.is_empty() => (result.size, result.entries),
            (_, Expr::Literal(_)) => (first.size, None),
            (_, _) => (Some(range.size()), step.entries),
        };
        AstNode { cost, size, entries, path: None }
    }

    fn call(&mut self, at: &'s IdedExpr, call: &'s CallExpr) -> AstNode<'s> {
        if TWO_VARIABLES.contains(&&*call.func_name) {
            return AstNode { size: Some(0), ..AstNode::default() };
        }
        let args: Vec<_> = call.args.iter().map(|arg| self.node(arg)).collect();
        let is_bound = |name: &str| self.bound.iter().any(|(bound, _)| *bound == name);
        let namespace = call.target.as_deref().filter(|target| is_namespace(target, is_bound));
        let target = call.target.as_deref().filter(|_| namespace.is_none());
        let target = target.map(|target| (target, self.node(target)));
        let before = sum(args.iter().chain(target.iter().map(|(_, node)| node)).map(|node| node.cost));
        let name = match namespace.map(|namespace| &namespace.expr) {
            Some(Expr::Ident(namespace)) => format!("{namespace}.{}", call.func_name),
            _ => call.func_name.clone(),
        };
        let are = |is: fn(&Self, &IdedExpr) -> bool| call.args.iter().all(|arg| is(self, arg));
        let mut node = match (&*name, &args[..]) {
            ("dyn", [arg]) => return AstNode { cost: before.saturating_add(1), path: None, ..arg.clone() },
            (CONDITIONAL, [condition, yes, no]) => AstNode {
                cost: condition.cost.saturating_add(yes.cost.max(no.cost)),
                size: Some(yes.size().max(no.size())),
                entries: union(yes.entries, no.entries),
                path: None,
            },
            (LOGICAL_AND | LOGICAL_OR, _) => AstNode { cost: before, ..AstNode::default() },
            (INDEX, [of, _]) => AstNode {
                cost: before.saturating_add(1),
                size: of.entries.map(|(_, value)| value),
                entries: None,
                path: Some(self.inside(of.path, PathElement::Item)),
            },
            (ADD, [left, right]) if are(Self::is_text) || are(Self::is_list) => {
                let size = left.size().saturating_add(right.size());
                let own = if are(Self::is_text) { times(size, PER_BYTE) } else { 1 };
                let (cost, entries) = (before.saturating_add(own), union(left.entries, right.entries));
                AstNode { cost, size: Some(size), entries, path: None }
            }
            (name, _) => {
                let target = target.as_ref().map(|(target, node)| (*target, node));
                let (own, size) = self.function(name, target, &call.args, &args);
                AstNode { cost: before.saturating_add(own), size, entries: None, path: None }
            }
        };
        node.size = node.size.or_else(|| self.size(at, node.path, None));
        node
    }

    /// The cost of a function without its arguments, and the size of its result.
    fn function(
        &self,
        name: &str,
        target: Option<(&'s IdedExpr, &AstNode<'s>)>,
        exprs: &'s [IdedExpr],
        args: &[AstNode<'s>],
    ) -> (u64, Option<u64>) {
        let size = |index: usize| args.get(index).map_or(u64::MAX, AstNode::size);
        let (arg, of) = (size(0), target.map_or(u64::MAX, |(_, node)| node.size()));
        if let Some((_, is_of_target, factor, is_result)) =
            LINEAR.iter().find(|(names, ..)| is_in(names, name))
        {
            let read = if *is_of_target { of } else { arg };
            return (times(read, *factor), is_result.then_some(read));
        }
        let read = times(arg, PER_BYTE);
        let is_first = |name: &str| exprs.first().is_some_and(|arg| self.is(arg, name));
        let is_text = |index: usize| exprs.get(index).is_some_and(|arg| self.is_text(arg));
        match (name, target) {
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some((list, node))) => {
                match self.item(list, node) {
                    Some((true, size)) => (of.saturating_mul(times(size, PER_BYTE).saturating_add(1)), None),
                    Some((false, _)) => (of, None),
                    None => (times(of, PER_BYTE), None),
                }
            }
            ("replace", Some(_)) => {
                let is_literal = exprs.first().is_some_and(|of| matches!(of.expr, Expr::Literal(_)));
                let least = if is_literal { arg } else { 0 };
                let result = match least {
                    0 => of.saturating_add(1).saturating_mul(size(1)).saturating_add(of),
                    least if size(1) <= least => of,
                    least => of.div_ceil(least).saturating_mul(size(1)),
                };
                (times(of, 2.0 * PER_BYTE), Some(result))
            }
            ("split", Some(_)) => match exprs.get(1).map(|limit| &limit.expr) {
                Some(Expr::Literal(LiteralValue::Int(limit))) => {
                    (times(of, 2.0 * PER_BYTE), Some(limit.inner().cast_unsigned()))
                }
                Some(_) | None => (times(of, 2.0 * PER_BYTE), Some(of)),
            },
            ("join", Some((list, node))) => {
                let items = self.item(list, node).map_or(0, |(_, size)| of.saturating_mul(size));
                let between = args.first().map_or(0, |by| by.size().saturating_mul(of.saturating_sub(1)));
                let result = items.saturating_add(between);
                (times(result, PER_BYTE), Some(result))
            }
            ("matches" | "find" | "findAll", Some(_)) => {
                let characters = times(of.saturating_add(1), PER_BYTE);
                let result = (name != "matches").then_some(of);
                (characters.saturating_mul(times(arg, PER_PATTERN_BYTE)), result)
            }
            ("contains", Some(_)) => (times(of, PER_BYTE).saturating_mul(read), None),
            ("containsIP", _) => (if is_text(0) { read.saturating_add(4) } else { 4 }, None),
            ("containsCIDR", _) => (if is_text(0) { read.saturating_add(7) } else { 7 }, None),
            ("validate", _) => (times(read, 128.0 * PER_PATTERN_BYTE), None),
            ("ip", None) => (read, None),
            ("strings.quote", _) => (read, Some(arg.saturating_mul(2).saturating_add(2))),
            ("bytes", _) if is_first("string") => (read, Some(arg.saturating_mul(4))),
            ("string", _) if is_first("bytes") => (read, Some(arg)),
            (IN, _) if exprs.get(1).is_some_and(|list| self.is_list(list)) => (size(1), None),
            (EQUALS | NOT_EQUALS, _) => (times(arg.min(size(1)), PER_BYTE), None),
            (LESS | LESS_EQUALS | GREATER | GREATER_EQUALS, _) if is_text(0) && is_text(1) => {
                (times(arg.min(size(1)), PER_BYTE), None)
            }
            (_, _) => (1, None),
        }
    }

    /// Of the items of a list: whether they are strings, and their size.
    fn item(&self, list: &IdedExpr, node: &AstNode<'s>) -> Option<(bool, u64)> {
        let Type::List(of) = self.type_of(list) else { return None };
        let size = match node.path.map(|path| self.inside(Some(path), PathElement::Item)) {
            Some(Path::Of(schema, _)) => size_max(schema),
            Some(Path::Key) => 0,
            Some(Path::Unknown) | None => u64::MAX,
        };
        Some((matches!(**of, Type::Named("string" | "bytes")), size))
    }
}
