//! The types in a CEL expression, checked before it is ever evaluated, as cel-go does: fields, functions, operators and the result.
//!
//! ```text
//! self.sizes.all(s, s.name == 3)
//! ERROR: <input>:1:25: found no matching overload for '_==_' applied to '(string, int)'
//! ```
//!
//! The crate `cel` has no such check. This one reports only what it is certain of: the arguments of functions are not checked, and
//! the results of many are [`Type::Unknown`].

use std::{collections::HashMap, fmt, sync::LazyLock};

use cel::{
    Program,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, operators::*,
    },
};
use serde_json::{Value, json};

use crate::schema::{
    cel::{ENV, is_named},
    cel_cost::NAMESPACES,
    openapi,
};

/// A type, of which objects have a schema.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type<'s> {
    /// Not known here: it may be any.
    Unknown,
    /// `bool`, `dyn`, `Object.spec`
    Named(&'s str),
    List(Box<Type<'s>>),
    Map(Box<Type<'s>>, Box<Type<'s>>),
    /// With its schema, and whether it also has apiVersion, kind and metadata.
    Object(&'s Value, bool),
    Optional(Box<Type<'s>>),
}

use Type::{Named, Unknown};

/// The `metadata` of an object, of which rules see only the names.
static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    json!({"type": "object", "properties": {"name": text, "generateName": text}})
});

/// The schema of a property of an object, by its name in CEL, and whether it is a resource.
pub(super) fn property<'s>(schema: &'s Value, is_resource: bool, name: &str) -> Option<(&'s Value, bool)> {
    match (is_resource, name) {
        (true, "apiVersion" | "kind") => return Some((&METADATA["properties"]["name"], false)),
        (true, "metadata") => return Some((&METADATA, false)),
        (true | false, _) => {}
    }
    let mut properties = schema["properties"].as_object().into_iter().flatten();
    let (_, property) = properties.find(|(property, _)| is_named(property, name))?;
    Some((property, property["x-kubernetes-embedded-resource"] == true))
}

impl<'s> Type<'s> {
    /// The type of the values of a schema: `SchemaDeclType` of kube-apiserver. `None` if rules cannot use them.
    pub(super) fn of(schema: &'s Value, is_resource: bool) -> Option<Type<'s>> {
        let schema = openapi::resolved(schema);
        if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" {
            return Some(Named("dyn"));
        }
        let inside = |schema: &'s Value| {
            Type::of(schema, schema["x-kubernetes-embedded-resource"] == true).map(Box::new)
        };
        let of_type = match schema["type"].as_str() {
            None if is_resource => "object",
            of_type => of_type?,
        };
        Some(match (of_type, schema["format"].as_str()) {
            ("array", _) => Type::List(inside(&schema["items"])?),
            ("object", _) if schema["additionalProperties"].is_object() => {
                Type::Map(Box::new(Named("string")), inside(&schema["additionalProperties"])?)
            }
            ("object", _) => Type::Object(schema, is_resource),
            ("string", Some("byte")) => Named("bytes"),
            ("string", Some("duration")) => Named("duration"),
            ("string", Some("date" | "date-time")) => Named("timestamp"),
            ("string", _) => Named("string"),
            ("boolean", _) => Named("bool"),
            ("number", _) => Named("double"),
            ("integer", _) => Named("int"),
            _ => return None,
        })
    }

    /// The type of a field. `None` if there is none of this name.
    fn field(&self, name: &str) -> Option<Type<'s>> {
        match self {
            Unknown => Some(Unknown),
            Named("dyn") => Some(Named("dyn")),
            Named(_) => Some(Unknown),
            Type::Map(_, value) => Some((**value).clone()),
            Type::Optional(of) => of.field(name).map(|field| Type::Optional(Box::new(field))),
            Type::List(_) => Some(Unknown),
            Type::Object(schema, is_resource) => {
                let (property, is_resource) = property(schema, *is_resource, name)?;
                Type::of(property, is_resource)
            }
        }
    }

    /// Whether all values of this type have the same size.
    pub(super) fn has_fixed_size(&self) -> bool {
        match self {
            Named("string" | "bytes") | Unknown | Type::List(_) | Type::Map(..) | Type::Object(..) => false,
            Named(_) => self.is_scalar(),
            Type::Optional(of) => of.has_fixed_size(),
        }
    }

    fn is_certain(&self) -> bool {
        match self {
            Unknown => false,
            Named(_) | Type::Object(..) => true,
            Type::List(of) | Type::Optional(of) => of.is_certain(),
            Type::Map(key, value) => key.is_certain() && value.is_certain(),
        }
    }

    /// Whether an expression of this type cannot be of one of the wanted types.
    pub(super) fn is_none_of(&self, wanted: &[&str]) -> bool {
        self.is_certain() && !wanted.contains(&&*self.to_string())
    }

    /// The type of values that have either type.
    fn or(self, other: Type<'s>) -> Type<'s> {
        if self == other { self } else { Unknown }
    }

    fn is_scalar(&self) -> bool {
        matches!(self, Named(name) if SCALARS.contains(name))
    }
}

const SCALARS: [&str; 8] = ["bool", "bytes", "double", "duration", "timestamp", "int", "string", "uint"];
const NUMBERS: [&str; 3] = ["double", "int", "uint"];
const TIMES: [&str; 2] = ["duration", "timestamp"];

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown => f.write_str("unknown"),
            Named(name) => f.write_str(name),
            Type::List(of) => write!(f, "list({of})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Object(..) => f.write_str("object"),
            Type::Optional(of) => write!(f, "optional_type({of})"),
        }
    }
}

/// The functions, by the types of their results.
const FUNCTIONS: [(&str, &str); 11] = [
    (
        "bool",
        "@not_strictly_false allowed bool contains containsCIDR containsIP endsWith errored hasValue isCIDR isCanonical \
        isGlobalUnicast isGreaterThan isIP isInteger isLessThan isLinkLocalMulticast isLinkLocalUnicast isLoopback  \
        isQuantity isSemver isSorted isURL isUnspecified matches equivalent intersects startsWith",
    ),
    (
        "string",
        "charAt encode error escapeKey find format getEscapedPath getHost getHostname getPort getScheme join lowerAscii quote \
        reason replace string substring trim upperAscii",
    ),
    (
        "int",
        "asInteger compareTo family getDate getDayOfMonth getDayOfWeek \
        getDayOfYear getFullYear getHours getMilliseconds getMinutes getMonth getSeconds indexOf int lastIndexOf major minor patch \
        prefixLength sign size",
    ),
    ("double", "asApproximateFloat double"),
    ("uint", "uint"),
    ("bytes", "bytes decode"),
    ("duration", "duration"),
    ("timestamp", "timestamp"),
    ("type", "type"),
    ("dyn", "dyn"),
    // Whose results depend on the arguments, or have a type that only functions know.
    (
        "",
        "add byte check cidr date datetime distinct dns1035Label dns1035LabelPrefix dns1123Label dns1123LabelPrefix \
        dns1123Subdomain dns1123SubdomainPrefix fieldSelector findAll first flatten getQuery group ip labelSelector \
        labelValue last masked max min name named namespace none of ofNonZeroValue or orValue path qualifiedName quantity \
        range resource reverse semver serviceAccount slice sort split sub subresource sum unwrap unwrapOpt uri url uuid validate value",
    ),
];

/// Macros with two variables, which the crate `cel` does not expand.
pub(super) const TWO_VARIABLES: [&str; 7] =
    ["all", "exists", "existsOne", "exists_one", "transformList", "transformMap", "transformMapEntry"];

/// The names that an expression may use.
pub(super) struct Scope<'s> {
    /// The variables, and their types.
    pub(super) variables: Vec<(&'s str, Type<'s>)>,
    /// The fields of `variables`, if they are known.
    pub(super) composed: Option<Vec<(&'s str, Type<'s>)>>,
    /// Whether objects of a type can be constructed.
    pub(super) constructs: fn(&str) -> bool,
}

/// The types of an expression and its parts, by their ids, or the errors with their places, as cel-go prints them.
pub(super) fn check<'s>(program: &'s Program, source: &str, scope: &Scope<'s>) -> Result<Types<'s>, String> {
    let mut checker = Checker { scope, bound: Vec::new(), errors: Vec::new(), types: Types::new() };
    checker.type_of(program.expression());
    if checker.errors.is_empty() {
        return Ok(checker.types);
    }
    let errors = checker.errors.iter().map(|(id, why)| at_source(program, source, *id, why));
    Err(errors.collect::<Vec<_>>().join("\n"))
}

/// An error with its place, as cel-go prints it.
fn at_source(program: &Program, source: &str, id: u64, why: &str) -> String {
    let start = program.source_info().offset_for(id).map_or(0, |(start, _)| start as usize);
    let before = source.get(..start).unwrap_or_default();
    let (row, column) =
        (before.matches('\n').count(), before.chars().rev().take_while(|c| *c != '\n').count());
    let line = source.lines().nth(row).unwrap_or_default();
    format!("ERROR: <input>:{}:{}: {why}\n | {line}\n | {}^", row + 1, column + 1, ".".repeat(column))
}

/// The types of expressions, by their ids.
pub(super) type Types<'s> = HashMap<u64, Type<'s>>;

struct Checker<'c, 's> {
    scope: &'c Scope<'s>,
    /// The variables of macros.
    bound: Vec<(&'s str, Type<'s>)>,
    /// By the ids of expressions.
    errors: Vec<(u64, String)>,
    types: Types<'s>,
}

impl<'s> Checker<'_, 's> {
    fn type_of(&mut self, at: &'s IdedExpr) -> Type<'s> {
        let of = self.type_of_new(at);
        self.types.insert(at.id, of.clone());
        of
    }

    fn type_of_new(&mut self, at: &'s IdedExpr) -> Type<'s> {
        match &at.expr {
            Expr::Unspecified => Unknown,
            Expr::Literal(literal) => Named(match literal {
                LiteralValue::Boolean(_) => "bool",
                LiteralValue::Bytes(_) => "bytes",
                LiteralValue::Double(_) => "double",
                LiteralValue::Int(_) => "int",
                LiteralValue::Null => "null_type",
                LiteralValue::String(_) => "string",
                LiteralValue::UInt(_) => "uint",
            }),
            Expr::Ident(name) => self.variable(at.id, name),
            // The name of a type: `net.IP`.
            Expr::Select(select)
                if matches!(&select.operand.expr, Expr::Ident(name)
                    if ENV.types().find_type(&format!("{name}.{}", select.field)).is_some()) =>
            {
                Named("type")
            }
            Expr::Select(select) => {
                let operand = self.type_of(&select.operand);
                let is_composed = matches!(&select.operand.expr, Expr::Ident(name) if name == "variables" && !self.is_bound(name));
                let composed = self.scope.composed.as_ref().filter(|_| is_composed);
                let known = composed.map(|all| all.iter().find(|(name, _)| *name == select.field));
                let field = match known {
                    Some(known) => known.map(|(_, of)| of.clone()),
                    None => operand.field(&select.field),
                };
                let field = self.defined(at.id, &select.field, field);
                if select.test { Named("bool") } else { field }
            }
            Expr::List(list) => {
                let types: Vec<_> = list.elements.iter().map(|one| self.type_of(one)).collect();
                if list.optional_indices.is_empty() { Type::List(common(types)) } else { Unknown }
            }
            Expr::Map(map) => {
                let (keys, values) = self.entries(&map.entries);
                Type::Map(common(keys), common(values))
            }
            Expr::Struct(object) => {
                self.entries(&object.entries);
                if !(self.scope.constructs)(&object.type_name) {
                    self.undeclared(at.id, &object.type_name);
                }
                Named(&object.type_name)
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Call(call) => self.call(at.id, call),
        }
    }

    fn undeclared(&mut self, id: u64, name: &str) -> Type<'s> {
        self.errors.push((id, format!("undeclared reference to '{name}' (in container '')")));
        Unknown
    }

    fn is_bound(&self, name: &str) -> bool {
        self.bound.iter().any(|(bound, _)| *bound == name)
    }

    fn variable(&mut self, id: u64, name: &'s str) -> Type<'s> {
        let mut known = self.bound.iter().rev().chain(&self.scope.variables);
        if let Some((_, of)) = known.find(|(known, _)| *known == name) {
            return of.clone();
        }
        if ENV.types().find_type(name).is_some() {
            return Named("type");
        }
        if name.starts_with('@') { Unknown } else { self.undeclared(id, name) }
    }

    fn defined(&mut self, id: u64, name: &str, field: Option<Type<'s>>) -> Type<'s> {
        field.unwrap_or_else(|| {
            self.errors.push((id, format!("undefined field '{name}'")));
            Unknown
        })
    }

    fn entries(&mut self, entries: &'s [IdedEntryExpr]) -> (Vec<Type<'s>>, Vec<Type<'s>>) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for entry in entries {
            match &entry.expr {
                EntryExpr::StructField(field) => values.push(self.type_of(&field.value)),
                EntryExpr::MapEntry(entry) => {
                    keys.push(self.type_of(&entry.key));
                    let value = self.type_of(&entry.value);
                    values.push(if entry.optional { Unknown } else { value });
                }
            }
        }
        (keys, values)
    }

    /// A macro: its variable has the type of the items, and its accumulator the type of the first step.
    fn comprehension(&mut self, at: &'s ComprehensionExpr) -> Type<'s> {
        let item = match self.type_of(&at.iter_range) {
            Type::List(item) => *item,
            Type::Map(key, _) => *key,
            Type::Object(..) | Unknown | Named(_) | Type::Optional(_) => Unknown,
        };
        let first = self.type_of(&at.accu_init);
        let before = self.bound.len();
        self.bound.push((&at.iter_var, item));
        self.bound.extend(at.iter_var2.as_deref().map(|name| (name, Unknown)));
        self.bound.push((&at.accu_var, first.clone()));
        self.type_of(&at.loop_cond);
        let step = self.type_of(&at.loop_step);
        let accumulated = if first.is_certain() { first } else { step };
        if let Some((_, of)) = self.bound.last_mut() {
            *of = accumulated;
        }
        let result = self.type_of(&at.result);
        self.bound.truncate(before);
        result
    }

    fn call(&mut self, id: u64, call: &'s CallExpr) -> Type<'s> {
        let name = &*call.func_name;
        if TWO_VARIABLES.contains(&name) {
            return Unknown;
        }
        let target = call.target.as_deref();
        let namespace = target.filter(|target| is_namespace(target, |name| self.is_bound(name)));
        let target = target.filter(|_| namespace.is_none()).map(|target| self.type_of(target));
        if name == OPT_SELECT
            && let [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }] =
                &call.args[..]
        {
            let operand = self.type_of(operand);
            return match self.defined(id, field.inner(), operand.field(field.inner())) {
                optional @ Type::Optional(_) => optional,
                field => Type::Optional(Box::new(field)),
            };
        }
        let args: Vec<Type<'s>> = call.args.iter().map(|arg| self.type_of(arg)).collect();
        if [LOGICAL_AND, LOGICAL_OR].contains(&name) {
            for (arg, is) in std::iter::zip(&call.args, &args) {
                if is.is_scalar() && *is != Named("bool") {
                    self.errors.push((arg.id, format!("expected type 'bool' but found '{is}'")));
                }
            }
            return Named("bool");
        }
        if let Some(result) = self.operator(id, name, &args) {
            return result;
        }
        match (name, target) {
            ("orValue" | "value", Some(Type::Optional(of))) => return *of,
            ("of" | "none" | "ofNonZeroValue", None) if namespace.is_some() => return Unknown,
            _ => {}
        }
        let is_named = |names: &&(&str, &str)| names.1.split(' ').any(|one| one == name);
        match FUNCTIONS.iter().find(is_named) {
            // `math.abs`, `sets.contains`, `ip.isCanonical`
            Some((result @ ("bool" | "string" | "int" | "bytes"), _)) if namespace.is_some() => Named(result),
            Some((result, _)) if namespace.is_none() && !result.is_empty() => Named(result),
            Some(_) => Unknown,
            // A macro of the library, such as `sortBy`.
            None if name.starts_with('@') => Unknown,
            None => self.undeclared(id, name),
        }
    }

    /// The result of an operator; `None` for the name of a function.
    fn operator(&mut self, id: u64, name: &str, args: &[Type<'s>]) -> Option<Type<'s>> {
        let is = |names: &[&str], of: &Type<'s>| matches!(of, Named(name) if names.contains(name));
        let same = args.len() == 2 && args[0] == args[1];
        let all = |names: &[&str]| args.iter().all(|arg| is(names, arg));
        let (result, fits) = match name {
            LOGICAL_NOT => (Named("bool"), all(&["bool"])),
            EQUALS | NOT_EQUALS => (Named("bool"), same),
            LESS | LESS_EQUALS | GREATER | GREATER_EQUALS => (Named("bool"), same || all(&NUMBERS)),
            NEGATE => (args[0].clone(), all(&["int", "double"])),
            ADD | SUBSTRACT if all(&TIMES) => (Unknown, true),
            ADD => (args[0].clone().or(args[1].clone()), same && !all(&["bool"])),
            SUBSTRACT | MULTIPLY | DIVIDE => (args[0].clone().or(args[1].clone()), same && all(&NUMBERS)),
            MODULO => (args[0].clone().or(args[1].clone()), same && all(&["int", "uint"])),
            IN => {
                let fits = match &args[1] {
                    Type::List(of) | Type::Map(of, _) if of.is_scalar() => {
                        **of == args[0] || !args[0].is_scalar()
                    }
                    Type::List(_)
                    | Type::Map(..)
                    | Unknown
                    | Named(_)
                    | Type::Object(..)
                    | Type::Optional(_) => true,
                };
                (Named("bool"), fits)
            }
            CONDITIONAL if is(&["bool"], &args[0]) || !args[0].is_scalar() => {
                return Some(args[1].clone().or(args[2].clone()));
            }
            CONDITIONAL => (Unknown, false),
            INDEX => {
                return Some(match &args[0] {
                    Type::List(of) | Type::Map(_, of) => (**of).clone(),
                    Unknown | Named(_) | Type::Object(..) | Type::Optional(_) => Unknown,
                });
            }
            OPT_INDEX | OPT_SELECT => return Some(Unknown),
            _ => return None,
        };
        // Only of scalars is it certain that nothing else fits.
        let scalars = if [CONDITIONAL, IN].contains(&name) { &args[..1] } else { args };
        if !fits && scalars.iter().all(Type::is_scalar) {
            let args: Vec<String> = args.iter().map(Type::to_string).collect();
            let why = format!("found no matching overload for '{name}' applied to '({})'", args.join(", "));
            self.errors.push((id, why));
            return Some(Unknown);
        }
        Some(result)
    }
}

/// Whether the target of a call is a part of the function's name, as in `ip.isCanonical`, and no variable of a macro.
pub(super) fn is_namespace(target: &IdedExpr, is_bound: impl Fn(&str) -> bool) -> bool {
    matches!(&target.expr, Expr::Ident(name) if name != "math" && NAMESPACES.contains(&&**name) && !is_bound(name))
}

/// The type of all values of a list or a map.
fn common<'s>(types: Vec<Type<'s>>) -> Box<Type<'s>> {
    Box::new(types.into_iter().reduce(Type::or).unwrap_or(Unknown))
}
