//! From the schema of a kind to Rust types. Nothing in this file does I/O.
//!
//! A structural schema of a CRD has no names for the parts of an object: the type of `spec.privateKey` of a Certificate is
//! `CertificatePrivateKey`; if that name is taken, the field before it in the path joins the name. In an OpenAPI document of the
//! API server, `$ref` has the name. Equal schemas of fields of one name share a type.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::declaration::{Declaration, Field, Presence, Shape, Type, pascal_case, unique};

/// The types that the code imports or that Rust knows.
const TAKEN: &str = "BTreeMap Box Clone Debug Default Deserialize Eq IntOrString None ObjectMeta Ok Option PartialEq Rest Self Serialize \
    Some String Value Vec";

/// A kind and its schema.
pub(super) struct Definition<'a> {
    pub(super) kind: &'a str,
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) plural: &'a str,
    pub(super) schema: &'a Value,
    /// What `$ref` refers to, by name.
    pub(super) definitions: &'a Value,
}

/// The paths of wanted fields, below the same object. Empty: all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FieldPaths<'a>(Vec<&'a str>);

impl<'a> FieldPaths<'a> {
    pub(super) fn of(paths: &'a [String]) -> FieldPaths<'a> {
        FieldPaths(paths.iter().map(String::as_str).collect())
    }

    /// The wanted fields below one; `None` if it is not wanted.
    fn below(&self, name: &str) -> Option<FieldPaths<'a>> {
        let mut below = Vec::new();
        for path in &self.0 {
            match path.strip_prefix(name) {
                Some("") => return Some(FieldPaths::default()),
                Some(rest) => below.extend(rest.strip_prefix('.')),
                None => {}
            }
        }
        (self.0.is_empty() || !below.is_empty()).then_some(FieldPaths(below))
    }
}

/// A declaration whose shape is to be found.
struct Todo<'a> {
    schema: &'a Value,
    /// The names of the fields on the way to it, in the singular.
    path: Vec<String>,
    fields: FieldPaths<'a>,
}

struct Generator<'a> {
    definition: &'a Definition<'a>,
    declarations: Vec<Declaration>,
    todo: Vec<Todo<'a>>,
    /// Declarations by name or path, schema and wanted fields.
    known: HashMap<(String, String, FieldPaths<'a>), usize>,
    taken: HashSet<String>,
}

/// Rust code with the types of a kind, and its `kind!`. The error names a field that is not there.
pub(super) fn types<'a>(definition: &'a Definition<'a>, fields: &FieldPaths<'a>) -> Result<String, String> {
    let Definition { kind, group, version, plural, schema, .. } = *definition;
    let mut taken: HashSet<String> = TAKEN.split_whitespace().map(str::to_owned).collect();
    if !taken.insert(kind.to_owned()) {
        return Err(format!("{kind} is the name of a type that its fields use: declare it with any_kind!"));
    }
    let mut generator =
        Generator { definition, declarations: Vec::new(), todo: Vec::new(), known: HashMap::new(), taken };
    generator.declare(kind.to_owned(), Todo { schema, path: Vec::new(), fields: fields.clone() });
    for index in 0.. {
        let Some(Todo { schema, path, fields }) = generator.todo.get(index) else { break };
        let (schema, path, fields) = (*schema, path.clone(), fields.clone());
        generator.declarations[index].shape = generator.shape(schema, &path, &fields)?;
    }
    box_cycles(&mut generator.declarations);
    drop_repeated_descriptions(&mut generator.declarations);
    let mut code = String::new();
    for (index, declaration) in generator.declarations.iter().enumerate() {
        code += "\n";
        declaration
            .write(&generator.declarations, index == 0, &mut code)
            .map_err(|error| error.to_string())?;
        if index == 0 {
            code += &format!("\nlistwatch::kind!({kind}, {group:?}, {version:?}, {plural:?});\n");
        }
    }
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(format!(
        "//! {kind} of `{api_version}`, as printed by `listwatch types`.\n\n{}{code}",
        imports(&generator.declarations)
    ))
}

/// The `use` lines for these declarations.
fn imports(declarations: &[Declaration]) -> String {
    let mut used = BTreeSet::new();
    for declaration in declarations {
        if let Shape::Struct { fields, is_open } = &declaration.shape {
            fields.iter().for_each(|field| field.add_names(&mut used));
            used.extend(is_open.then_some("Rest"));
        }
    }
    let kinds = ["IntOrString", "Rest", "or_default"].into_iter().filter(|name| used.contains(name));
    let kinds = match &kinds.collect::<Vec<_>>()[..] {
        [] => String::new(),
        [one] => format!("use listwatch::resource::kinds::{one};\n"),
        all => format!("use listwatch::resource::kinds::{{{}}};\n", all.join(", ")),
    };
    let map = if used.contains("BTreeMap") { "use std::collections::BTreeMap;\n\n" } else { "" };
    let value = if used.contains("Value") { "use serde_json::Value;\n" } else { "" };
    format!(
        "#![allow(clippy::all, rustdoc::all, reason = \"names and comments are from the definition\")]\n\n\
        {map}use listwatch::resource::ObjectMeta;\n{kinds}use serde::{{Deserialize, Serialize}};\n{value}"
    )
}

/// In a structural schema, a field and its type have the same description.
fn drop_repeated_descriptions(declarations: &mut [Declaration]) {
    let mut described = HashSet::new();
    for declaration in &*declarations {
        if let Shape::Struct { fields, .. } = &declaration.shape {
            described.extend(fields.iter().map(|field| field.description.clone()));
        }
    }
    for declaration in declarations {
        if described.contains(&declaration.description) {
            declaration.description.clear();
        }
    }
}

/// Puts fields in a box whose type contains the type that they are in.
fn box_cycles(declarations: &mut [Declaration]) {
    for index in 0..declarations.len() {
        let contained: BTreeSet<usize> = declarations[index].contained().collect();
        let cyclic: Vec<_> =
            contained.into_iter().filter(|from| contains(declarations, *from, index)).collect();
        if let Shape::Struct { fields, .. } = &mut declarations[index].shape {
            for field in fields {
                if let Type::Declared(of) = field.of
                    && cyclic.contains(&of)
                {
                    field.of = Type::Boxed(of);
                }
            }
        }
    }
}

/// Whether a value of the type at `from` has one of the type at `wanted` in it, or is one.
fn contains(declarations: &[Declaration], from: usize, wanted: usize) -> bool {
    let (mut seen, mut next) = (HashSet::new(), vec![from]);
    while let Some(index) = next.pop() {
        if index == wanted {
            return true;
        }
        if seen.insert(index) {
            next.extend(declarations[index].contained());
        }
    }
    false
}

impl<'a> Generator<'a> {
    fn declare(&mut self, name: String, todo: Todo<'a>) -> usize {
        let description = todo.schema["description"].as_str().unwrap_or_default().to_owned();
        let shape = Shape::Struct { fields: Vec::new(), is_open: false };
        self.declarations.push(Declaration { name, description, shape });
        self.todo.push(todo);
        self.declarations.len() - 1
    }

    fn shape(
        &mut self,
        schema: &'a Value,
        path: &[String],
        wanted: &FieldPaths<'a>,
    ) -> Result<Shape, String> {
        if let Some(values) = texts(schema) {
            return Ok(Shape::Enum(values));
        }
        let properties = || schema["properties"].as_object().into_iter().flatten();
        let is_own = |name: &str| !path.is_empty() || !["apiVersion", "kind", "metadata"].contains(&name);
        let mut fields = Vec::new();
        for (name, schema_of_field) in properties().filter(|(name, _)| is_own(name)) {
            let Some(wanted) = wanted.below(name) else { continue };
            let of = self.type_of(schema_of_field, name, path, &wanted)?;
            let is_required =
                schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
            let presence = match (is_required, &of) {
                _ if schema_of_field["nullable"] == true => Presence::Nullable,
                (true, _) => Presence::Required,
                (false, Type::Declared(_)) if path.is_empty() && name == "spec" => Presence::Defaulted,
                (false, _) => Presence::Optional,
            };
            let description = schema_of_field["description"].as_str().unwrap_or_default().to_owned();
            fields.push(Field { name: name.clone(), description, presence, of });
        }
        let known =
            |path: &&&str| properties().any(|(name, _)| name == path.split('.').next().unwrap_or_default());
        if let Some(absent) = wanted.0.iter().find(|path| !known(path)) {
            let place = if path.is_empty() { self.definition.kind.to_owned() } else { path.join(".") };
            let names: Vec<_> = properties().map(|(name, _)| name.as_str()).collect();
            return Err(format!("--fields: {place} has no field {absent:?}, only {}", names.join(", ")));
        }
        let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true && wanted.0.is_empty();
        Ok(Shape::Struct { fields, is_open })
    }

    fn type_of(
        &mut self,
        schema: &'a Value,
        name: &str,
        path: &[String],
        wanted: &FieldPaths<'a>,
    ) -> Result<Type, String> {
        let (schema, reference) = self.resolved(schema);
        let is_int_or_string =
            schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string";
        let kind = schema["type"].as_str().unwrap_or_default();
        let has_parts = schema["properties"].is_object() || texts(schema).is_some();
        let plain = match (kind, schema["format"].as_str()) {
            _ if is_int_or_string => "IntOrString",
            _ if has_parts => return Ok(self.part(schema, reference, name, path, wanted)),
            ("array", _) if schema["items"].is_object() => {
                let of = self.type_of(&schema["items"], &singular(name), path, wanted)?;
                return Ok(Type::List(Box::new(of)));
            }
            ("object", _) if schema["additionalProperties"].is_object() => {
                let of = self.type_of(&schema["additionalProperties"], &singular(name), path, wanted)?;
                return Ok(Type::Map(Box::new(of)));
            }
            ("string", _) => "String",
            ("boolean", _) => "bool",
            ("integer", Some("int32")) => "i32",
            ("integer", _) => "i64",
            ("number", _) => "f64",
            // The server writes a text, also for a number.
            _ if reference.is_some_and(|name| name.ends_with("Quantity")) => "String",
            _ => "Value",
        };
        match wanted.0.first() {
            Some(field) => Err(format!(
                "--fields: {} has no field {field:?}",
                [path, &[name.to_owned()]].concat().join(".")
            )),
            None => Ok(Type::Plain(plain)),
        }
    }

    /// The schema that this one refers to, and its name.
    fn resolved(&self, schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        let Some(name) = reference.and_then(|reference| reference.rsplit('/').next()) else {
            return (schema, None);
        };
        let (schema, inner) = self.resolved(&self.definition.definitions[name]);
        (schema, inner.or(Some(name)))
    }

    /// A type with a declaration: the known one, or a new one.
    fn part(
        &mut self,
        schema: &'a Value,
        reference: Option<&str>,
        name: &str,
        path: &[String],
        wanted: &FieldPaths<'a>,
    ) -> Type {
        let mut path = path.to_vec();
        path.push(name.to_owned());
        let key =
            (reference.unwrap_or(name).to_owned(), without_descriptions(schema).to_string(), wanted.clone());
        if let Some(index) = self.known.get(&key) {
            return Type::Declared(*index);
        }
        let name = self.name(reference, &path, texts(schema).is_some());
        let index = self.declare(name, Todo { schema, path, fields: wanted.clone() });
        self.known.insert(key, index);
        Type::Declared(index)
    }

    /// A new name: the reference's, or the kind and as few parts of the path as possible. A value needs the name before it:
    /// `FilterType`.
    fn name(&mut self, reference: Option<&str>, path: &[String], is_enum: bool) -> String {
        let kind = self.definition.kind;
        let mut names = Vec::new();
        if let Some(name) = reference.and_then(|reference| reference.rsplit('.').next()) {
            names.extend([name.to_owned(), format!("{kind}{name}")]);
        } else {
            let parts = if path.len() > 1 && path[0] == "spec" { &path[1..] } else { path };
            let least = if is_enum { 2 } else { 1 }.min(parts.len());
            let last = |count: usize| {
                parts[parts.len() - count..].iter().map(|part| pascal_case(part)).collect::<String>()
            };
            names.extend((least..=parts.len()).map(|count| format!("{kind}{}", last(count))));
        }
        let free = names.iter().find(|name| !self.taken.contains(*name)).or(names.last()).cloned();
        unique(free.unwrap_or_default(), &mut self.taken)
    }
}

/// The values of an enum of texts.
fn texts(schema: &Value) -> Option<Vec<String>> {
    let values = schema["enum"].as_array().filter(|_| schema["type"] == "string")?;
    Some(values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn without_descriptions(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let is_kept = |name: &str, value: &Value| name != "description" || !value.is_string();
            let kept = fields.iter().filter(|(name, value)| is_kept(name, value));
            Value::Object(kept.map(|(name, value)| (name.clone(), without_descriptions(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_descriptions).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// `policies` is a list of `policy`.
fn singular(name: &str) -> String {
    match name {
        _ if name.ends_with("ies") => format!("{}y", &name[..name.len() - 3]),
        _ if ["sses", "xes", "ches", "shes"].iter().any(|end| name.ends_with(end)) => {
            name[..name.len() - 2].to_owned()
        }
        _ if name.ends_with('s') && !name.ends_with("ss") => name[..name.len() - 1].to_owned(),
        _ => name.to_owned(),
    }
}
