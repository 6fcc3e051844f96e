//! Draws random edits of an object from the OpenAPI document of an API server. Nothing in this file does I/O.
//!
//! ```text
//! kubectl patch deployment mws-web --type=json -p '[{"op":"replace","path":"/spec/replicas","value":7}]'
//! ```
//!
//! An edit is one to three [`Change`]s, each of which sets or removes one field, sent as one of four kinds of patch.
//! Values come from enums and types, and from [`VALUES`]. Not every drawn edit is valid: the server decides.

use std::{collections::HashMap, sync::LazyLock};

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Definitions of an OpenAPI document, by the last part of their names: `PodSpec`.
pub struct Schemas(HashMap<String, Value>);

impl Schemas {
    /// Reads the definitions of documents such as `/openapi/v3/api/v1`.
    pub fn of(documents: &[Value]) -> Schemas {
        let definitions = documents.iter().flat_map(|document| document["components"]["schemas"].as_object());
        Schemas(definitions.flatten().map(|(name, schema)| (last(name).to_owned(), schema.clone())).collect())
    }

    /// The name and the content of a definition that a schema refers to; otherwise the schema itself.
    fn resolve<'a>(&'a self, schema: &'a Value) -> (&'a str, &'a Value) {
        let mut found = ("", schema);
        loop {
            let schema = found.1;
            let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
            let Some(name) = reference.map(last) else { return found };
            found = (name, &self.0[name]);
        }
    }

    /// Whether a field of this schema holds a struct.
    fn is_struct(&self, schema: &Value) -> bool {
        self.resolve(schema).1["properties"].is_object()
    }
}

fn last(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap()
}

/// One field that is set, or removed.
#[derive(Clone, Debug)]
struct Change {
    /// The parts of a JSON pointer; `-` appends to a list.
    path: Vec<String>,
    value: Option<Value>,
}

impl Change {
    fn apply(&self, object: &mut Value) {
        json_patch::patch(object, &[serde_json::from_value(self.operation()).unwrap()]).unwrap();
    }

    fn operation(&self) -> Value {
        let parts = self.path.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")));
        let path: String = parts.collect();
        let is_item = self.path.last().unwrap().parse::<usize>().is_ok();
        match &self.value {
            Some(value) if is_item => json!({"op": "replace", "path": path, "value": value}),
            Some(value) => json!({"op": "add", "path": path, "value": value}),
            None => json!({"op": "remove", "path": path}),
        }
    }
}

/// How an edit is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// An edit of a child of ours.
#[derive(Clone, Debug)]
pub struct Edit {
    pub how: How,
    pub body: Value,
}

impl Edit {
    pub fn content_type(&self) -> &'static str {
        match self.how {
            How::Json => "application/json-patch+json",
            How::Merge => "application/merge-patch+json",
            How::Strategic => "application/strategic-merge-patch+json",
            How::Apply => "application/apply-patch+yaml",
        }
    }

    pub fn query(&self) -> &'static str {
        if self.how == How::Apply { "fieldManager=editor&force=true" } else { "fieldManager=editor" }
    }

    /// The edit of the object at this path, as a kubectl command.
    pub fn command(&self, path: &str) -> String {
        let body = self.body.to_string().replace('\'', r"'\''");
        if self.how == How::Apply {
            return format!(
                "echo '{body}' | kubectl apply --server-side --force-conflicts --field-manager=editor -f -"
            );
        }
        let parts: Vec<_> = path.rsplit('/').collect();
        let (namespace, child) = (parts[2], format!("{}/{}", parts[1], parts[0]));
        let how = format!("{:?}", self.how).to_lowercase();
        format!("kubectl -n {namespace} patch {child} --type={how} -p '{body}'")
    }
}

/// A position during a walk along a schema.
struct Place<'s, 'l> {
    path: Vec<String>,
    /// The definition that has the field, and the field's name; of a map, the key.
    holder: &'s str,
    field: String,
    schema: &'s Value,
    current: Option<&'l Value>,
    is_required: bool,
}

impl<'s> Place<'s, '_> {
    /// One step down: to a field, an entry of a map, or an item of a list.
    fn down(&mut self, schemas: &'s Schemas, part: String) {
        let (holder, schema) = schemas.resolve(self.schema);
        self.path.push(part.clone());
        self.is_required = false;
        if schema["type"] == "array" {
            let items = self.current.and_then(Value::as_array);
            self.current = part.parse::<usize>().ok().and_then(|index| items?.get(index));
            self.schema = &schema["items"];
            return;
        }
        self.current = self.current.and_then(|current| current.get(&part));
        if let Some(field) = schema["properties"].get(&part) {
            self.is_required = schema["required"].as_array().is_some_and(|all| all.contains(&json!(part)));
            (self.holder, self.schema) = (holder, field);
        } else {
            (self.holder, self.schema) = ("map", &schema["additionalProperties"]);
        }
        self.field = part;
    }
}

/// Draws edits.
pub struct Draw<'s> {
    pub schemas: &'s Schemas,
    pub random: Rng,
    /// Other objects in the namespace, as ownerReferences.
    pub owners: Vec<Value>,
}

impl<'s> Draw<'s> {
    /// An edit of a child of this kind and version, as it is now. `wanted` has the fields that we own.
    pub fn edit(&mut self, [kind, api_version, _]: [&str; 3], live: &Value, wanted: &Value) -> Edit {
        let root = &self.schemas.0[kind];
        let mut target = live.clone();
        let mut changes = Vec::new();
        for _ in 0..self.random.usize(1..=3) {
            for change in self.change(root, &target, wanted) {
                change.apply(&mut target);
                changes.push(change);
            }
        }
        let mut applied = Value::Null;
        for change in changes.iter().filter(|change| change.value.is_some()) {
            self.configure(&mut applied, root, &target, &change.path);
        }
        // An apply cannot remove a field that another manager owns.
        let is_applicable = !applied.is_null();
        let how = match self.random.u8(0..4) {
            0 => How::Json,
            1 => How::Merge,
            2 => How::Strategic,
            _ if is_applicable => How::Apply,
            _ => How::Strategic,
        };
        let body = match how {
            How::Json => changes.iter().map(Change::operation).collect(),
            // A patch type that knows no schema, and so merges no lists.
            How::Merge => self.patch(&Value::Null, live, &target),
            How::Strategic => self.patch(root, live, &target),
            How::Apply => {
                applied["apiVersion"] = api_version.into();
                applied["kind"] = kind.into();
                applied["metadata"]["name"] = live["metadata"]["name"].clone();
                applied
            }
        };
        Edit { how, body }
    }

    /// One change, with the changes that it needs. Every second one changes a field that we own.
    fn change(&mut self, root: &'s Value, live: &Value, wanted: &Value) -> Vec<Change> {
        let schemas = self.schemas;
        let mut place = Place {
            path: Vec::new(),
            holder: "",
            field: String::new(),
            schema: root,
            current: Some(live),
            is_required: true,
        };
        if self.random.bool() {
            for part in self.path_in(wanted, live) {
                place.down(schemas, part);
            }
        } else {
            self.walk(&mut place);
        }
        let Place { path, holder, field, schema, current, is_required } = place;
        if current.is_some() && !is_required && self.random.u8(0..10) < 3 {
            return vec![Change { path, value: None }];
        }
        let mut changes = Vec::new();
        if UNIONS.contains(&holder) && schemas.is_struct(schema) {
            let parent = &path[..path.len() - 1];
            let siblings = parent.iter().try_fold(live, |value, part| match value {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?),
                value => value.get(part),
            });
            for (other, value) in siblings.and_then(Value::as_object).into_iter().flatten() {
                if *other != field && value.is_object() {
                    changes
                        .push(Change { path: [parent, std::slice::from_ref(other)].concat(), value: None });
                }
            }
        }
        let mut value = self.value(holder, &field, schema, 0);
        for _ in 0..3 {
            if current == Some(&value) {
                value = self.value(holder, &field, schema, 0);
            }
        }
        if let Some((other, value)) = needed(&field, &value) {
            changes
                .push(Change { path: vec!["spec".to_owned(), other.to_owned()], value: Some(value.into()) });
        }
        changes.push(Change { path, value: Some(value) });
        changes
    }

    /// The path to a random value in `wanted`, as far as that path exists in `live`.
    fn path_in(&mut self, wanted: &Value, live: &Value) -> Vec<String> {
        let (mut path, mut wanted, mut live) = (Vec::new(), wanted, live);
        loop {
            if path.len() > 1 && self.random.u8(0..8) == 0 {
                return path;
            }
            match (wanted, live) {
                (Value::Object(fields), Value::Object(_)) => {
                    // A key next to ours.
                    if let Some(map @ ("annotations" | "data" | "labels" | "matchLabels" | "selector")) =
                        path.last().map(String::as_str)
                        && fields.values().all(Value::is_string)
                        && self.random.u8(0..4) == 0
                    {
                        path.push(self.key(map));
                        return path;
                    }
                    let is_fixed = |name: &str| match path.len() {
                        0 => FIXED.contains(&name),
                        1 => ["name", "namespace"].contains(&name),
                        _ => false,
                    };
                    let fields: Vec<_> = fields.iter().filter(|(name, _)| !is_fixed(name)).collect();
                    let Some((name, value)) = self.random.choice(fields) else { return path };
                    path.push(name.clone());
                    let Some(now) = live.get(name) else { return path };
                    (wanted, live) = (value, now);
                }
                // A reference is replaced as a whole: with another uid, it would name a predecessor, whose children are
                // deleted.
                (Value::Array(items), Value::Array(now)) if path.last().unwrap() != "ownerReferences" => {
                    let Some(item) = self.random.choice(items) else { return path };
                    let same = |other: &Value| other["name"] == item["name"] && other["uid"] == item["uid"];
                    let Some(index) = now.iter().position(same) else { return path };
                    path.push(index.to_string());
                    (wanted, live) = (item, &now[index]);
                }
                _ => return path,
            }
        }
    }

    /// Descends at random.
    fn walk(&mut self, place: &mut Place<'s, '_>) {
        while let Some(current) = place.current {
            let (name, schema) = self.schemas.resolve(place.schema);
            let depth = place.path.len();
            if depth > 1 && self.random.u8(0..10) == 0 || WHOLE.contains(&name) {
                return;
            }
            let part = match current {
                Value::Object(fields) if schema["properties"].is_object() => {
                    let all = schema["properties"].as_object().unwrap();
                    let is_open = |field: &&String| match (depth, name) {
                        (0, _) => !FIXED.contains(&field.as_str()),
                        (_, "ObjectMeta") => METADATA.contains(&field.as_str()),
                        _ => true,
                    };
                    let there = fields.keys().filter(|field| all.contains_key(*field)).filter(is_open);
                    let all = all.keys().filter(is_open);
                    let some: Vec<_> = if self.random.bool() { there.collect() } else { all.collect() };
                    // Most fields are below these.
                    let deep = ["jobTemplate", "template", "spec", "containers"]
                        .into_iter()
                        .find(|deep| fields.contains_key(*deep));
                    match (deep, self.random.choice(some)) {
                        (Some(deep), _) if self.random.bool() => deep.to_owned(),
                        (_, Some(field)) => field.clone(),
                        (_, None) => return,
                    }
                }
                Value::Object(fields) => match self.random.choice(fields.keys()) {
                    Some(known) if self.random.bool() => known.clone(),
                    _ => self.key(&place.field),
                },
                Value::Array(items) => match self.random.usize(0..4) {
                    0 => "-".to_owned(),
                    _ if items.is_empty() => "-".to_owned(),
                    _ => self.random.usize(0..items.len()).to_string(),
                },
                _ => return,
            };
            place.down(self.schemas, part);
        }
    }

    /// A value for a field of `holder`.
    fn value(&mut self, holder: &str, field: &str, schema: &'s Value, depth: u8) -> Value {
        let (name, schema) = self.schemas.resolve(schema);
        let kind = schema["type"].as_str().unwrap_or_default();
        let examples = match name {
            "OwnerReference" if !self.owners.is_empty() => Some(&self.owners),
            name => VALUES.of(&format!("{holder}.{field}")).or_else(|| VALUES.of(name)),
        };
        if let Some(examples) = examples
            && (self.random.u8(0..10) > 0 || schema["properties"].is_null())
        {
            return self.random.choice(examples).unwrap().clone();
        }
        if let Some(values) = schema["enum"].as_array() {
            return self.random.choice(values).unwrap().clone();
        }
        match kind {
            "boolean" => self.random.bool().into(),
            "string" if schema["format"] == "byte" => self.random.choice(["", "YQ==", "Yg=="]).into(),
            "integer" if field.ends_with("odePort") => self.random.i32(31_000..32_000).into(),
            "integer" if self.random.u8(0..20) == 0 => self.random.choice([-1, 65_536, i32::MAX]).into(),
            "integer" | "string" => {
                self.random.choice(VALUES.of(field).or_else(|| VALUES.of(kind)).unwrap()).unwrap().clone()
            }
            "array" => {
                let mut items = Vec::new();
                for _ in 0..self.random.usize(0..=20).div_ceil(10) {
                    let item = self.value(holder, field, &schema["items"], depth);
                    if !items.contains(&item) {
                        items.push(item);
                    }
                }
                items.into()
            }
            "object" if schema["properties"].is_object() => self.object(name, schema, depth),
            "object" => {
                let mut entries = Map::new();
                for _ in 0..self.random.usize(0..=20).div_ceil(10) {
                    let key = self.key(field);
                    let value = self.value("map", &key, &schema["additionalProperties"], depth + 1);
                    entries.insert(key, value);
                }
                entries.into()
            }
            unknown => panic!("{holder}.{field} has type {unknown}: {schema}"),
        }
    }

    fn object(&mut self, name: &str, schema: &'s Value, depth: u8) -> Value {
        let properties = schema["properties"].as_object().unwrap();
        let is_union = UNIONS.contains(&name);
        let alternatives = properties.iter().filter(|(_, schema)| is_union && self.schemas.is_struct(schema));
        let alternatives: Vec<_> = alternatives.map(|(field, _)| field).collect();
        let chosen = self.random.choice(&alternatives);
        let required = schema["required"].as_array();
        let mut object = Map::new();
        for (field, schema) in properties {
            let is_in = if alternatives.contains(&field) {
                chosen == Some(&field)
            } else if name == "ObjectMeta" && !METADATA.contains(&field.as_str()) {
                false
            } else {
                let is_required = required.is_some_and(|all| all.contains(&json!(field)));
                is_required || field == "image" || depth < 4 && self.random.u8(0..100) < 20 >> depth
            };
            if is_in {
                object.insert(field.clone(), self.value(name, field, schema, depth + 1));
            }
        }
        object.into()
    }

    /// The key of an entry of a map.
    fn key(&mut self, map: &str) -> String {
        let keys = VALUES.of(map).or_else(|| VALUES.of("map")).unwrap();
        self.random.choice(keys).unwrap().as_str().unwrap().to_owned()
    }

    /// Puts the field at `path` into the configuration of an apply, with the parents and keys that identify it.
    fn configure(&self, body: &mut Value, schema: &Value, target: &Value, path: &[String]) {
        let (_, definition) = self.schemas.resolve(schema);
        let is_atomic = |schema: &Value| {
            schema["x-kubernetes-map-type"] == "atomic" || schema["x-kubernetes-list-type"] == "atomic"
        };
        let [part, path @ ..] = path else { return body.clone_from(target) };
        if is_atomic(schema) || is_atomic(definition) {
            return body.clone_from(target);
        }
        match target {
            Value::Object(fields) => {
                let Some(value) = fields.get(part) else { return };
                let schema =
                    definition["properties"].get(part).unwrap_or(&definition["additionalProperties"]);
                self.configure(&mut body[part], schema, value, path);
            }
            Value::Array(items) => {
                let index = part.parse().unwrap_or(items.len().saturating_sub(1));
                let Some(item) = items.get(index) else { return };
                let mut fresh = Value::Null;
                for key in definition["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
                    let key = key.as_str().unwrap();
                    if let Some(value) = item.get(key) {
                        fresh[key] = value.clone();
                    }
                }
                self.configure(&mut fresh, &definition["items"], item, path);
                match body {
                    Value::Array(others) => others.push(fresh),
                    _ => *body = json!([fresh]),
                }
            }
            _ => {}
        }
    }

    /// A patch, strategic if the schema has merge keys.
    fn patch(&self, schema: &Value, live: &Value, target: &Value) -> Value {
        self.difference(schema, live, target).unwrap_or_else(|| json!({}))
    }

    /// `None` if nothing differs.
    fn difference(&self, schema: &Value, live: &Value, target: &Value) -> Option<Value> {
        let (_, definition) = self.schemas.resolve(schema);
        let strategy = |schema: &Value, word: &str| {
            schema["x-kubernetes-patch-strategy"].as_str().is_some_and(|words| words.contains(word))
        };
        match (live, target) {
            _ if live == target => None,
            (Value::Object(before), Value::Object(after)) => {
                let gone = before.keys().filter(|field| !after.contains_key(*field));
                let mut patch: Map<_, _> = gone.map(|field| (field.clone(), Value::Null)).collect();
                for (field, value) in after {
                    let schema =
                        definition["properties"].get(field).unwrap_or(&definition["additionalProperties"]);
                    let Some(was) = before.get(field) else {
                        patch.insert(field.clone(), value.clone());
                        continue;
                    };
                    patch.extend(self.difference(schema, was, value).map(|patch| (field.clone(), patch)));
                    if let (Value::Array(was), Value::Array(is), true) =
                        (was, value, strategy(schema, "merge"))
                    {
                        let gone: Vec<_> =
                            was.iter().filter(|item| item.is_string() && !is.contains(item)).collect();
                        if !gone.is_empty() {
                            patch.insert(format!("$deleteFromPrimitiveList/{field}"), json!(gone));
                        }
                    }
                }
                if strategy(schema, "retainKeys") {
                    patch.insert("$retainKeys".to_owned(), after.keys().cloned().collect());
                }
                Some(patch.into())
            }
            (Value::Array(before), Value::Array(after)) if strategy(schema, "merge") => {
                let Some(key) = schema["x-kubernetes-patch-merge-key"].as_str() else {
                    return Some(after.iter().filter(|item| !before.contains(item)).cloned().collect());
                };
                let mut items = Vec::new();
                for item in before.iter().filter(|item| after.iter().all(|other| other[key] != item[key])) {
                    items.push(json!({"$patch": "delete", key: item[key]}));
                }
                for item in after {
                    let was = before.iter().find(|other| other[key] == item[key]);
                    let patch = was
                        .map_or(Some(item.clone()), |was| self.difference(&definition["items"], was, item));
                    let Some(mut patch) = patch else { continue };
                    patch[key] = item[key].clone();
                    items.push(patch);
                }
                Some(items.into())
            }
            _ => Some(target.clone()),
        }
    }
}

/// The fields that the spec of a Service needs if a field has this value.
fn needed(field: &str, value: &Value) -> Option<(&'static str, &'static str)> {
    match field {
        "type" if value == "ExternalName" => Some(("externalName", "example.com")),
        "externalTrafficPolicy" | "nodePort" => Some(("type", "NodePort")),
        "allocateLoadBalancerNodePorts"
        | "healthCheckNodePort"
        | "loadBalancerClass"
        | "loadBalancerSourceRanges" => Some(("type", "LoadBalancer")),
        _ => None,
    }
}

/// The fields of an object that an edit does not change.
const FIXED: [&str; 3] = ["apiVersion", "kind", "status"];

/// The fields of metadata that an edit may change.
const METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// Definitions of unions: objects with exactly one of their fields that are objects.
const UNIONS: [&str; 6] =
    ["EnvFromSource", "EnvVarSource", "LifecycleHandler", "Probe", "Volume", "VolumeProjection"];

/// Objects whose fields depend on each other, so that an edit replaces them whole.
const WHOLE: [&str; 5] = ["AppArmorProfile", "DeploymentStrategy", "EnvVar", "OwnerReference", "Toleration"];

/// Values that a server accepts, by the name of a definition, by `Definition.field`, by the name or suffix of a field
/// (`*Seconds`), or by a type. The keys of a map are under its name, or else under `map`. Some keys are the names of
/// fields elsewhere, which may be treated specially: a Service once selected nothing with `uid` in its selector.
struct Values(HashMap<String, Vec<Value>>);

static VALUES: LazyLock<Values> =
    LazyLock::new(|| Values(serde_json::from_str(include_str!("values.json")).unwrap()));

impl Values {
    fn of(&self, name: &str) -> Option<&Vec<Value>> {
        let is_end = |known: &str| known.strip_prefix('*').is_some_and(|end| name.ends_with(end));
        let by_end = || self.0.iter().find_map(|(known, values)| is_end(known).then_some(values));
        self.0.get(name).or_else(by_end)
    }
}
