//! Conversion: the API server stores one version of an object, and asks the operator for the others.
//!
//! ```text
//! POST /convert
//! {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {"uid": "705ab4f5-…",
//!  "desiredAPIVersion": "example.com/v2", "objects": [{"apiVersion": "example.com/v1", "kind": "Site", …}, …]}}
//!
//! {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {"uid": "705ab4f5-…",
//!  "result": {"status": "Success"}, "convertedObjects": [{"apiVersion": "example.com/v2", "kind": "Site", …}, …]}}
//! ```
//!
//! A version that cannot say everything loses nothing: the annotation `GROUP/converted` has what the stored object says besides, also in fields
//! that its type does not have. Each field, or whole list, returns from it unless a user of the other version has changed what it was made
//! into. What the stored version cannot say is lost.
//!
//! See <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-conversion>.
//! Nothing in this file does I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{review, server};
use crate::resource::{Resource, diff::pointer_step, remove_nulls};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// The versions of one kind.
pub(super) struct Conversion {
    /// `sites.example.com`, the name of the CustomResourceDefinition.
    pub(super) definition: String,
    group: &'static str,
    kind: &'static str,
    /// The version that is stored, to and from which the others are converted.
    stored: &'static str,
    others: BTreeMap<&'static str, Converters>,
}

struct Converters {
    to_stored: Convert,
    from_stored: Convert,
}

type Convert = fn(&Value) -> Result<Value, String>;

/// The `request` of a ConversionReview.
#[derive(Deserialize)]
struct ConversionRequest {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired: String,
    objects: Vec<Value>,
}

/// Answers a ConversionReview. `Err`: it is not one.
pub(super) fn answer(conversions: &[Conversion], body: &[u8]) -> Result<Value, String> {
    let ConversionRequest { uid, desired, objects } = server::read(body, API_VERSION, KIND)?;
    let converted: Result<Vec<Value>, String> =
        objects.into_iter().map(|object| convert(conversions, object, &desired)).collect();
    let response = match converted {
        Ok(objects) => json!({"uid": uid, "result": {"status": "Success"}, "convertedObjects": objects}),
        Err(message) => json!({"uid": uid, "result": {"status": "Failure", "message": message}}),
    };
    Ok(json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}))
}

fn convert(conversions: &[Conversion], object: Value, desired: &str) -> Result<Value, String> {
    let (version, kind) = (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str());
    let split = |api_version: &str| {
        api_version.split_once('/').map(|(group, version)| (group.to_owned(), version.to_owned()))
    };
    let (Some((group, from)), Some((_, to))) = (split(version), split(desired)) else {
        return Err(format!(
            "cannot convert {version} to {desired}: a custom resource has a group and a version"
        ));
    };
    let known = conversions.iter().find(|one| one.group == group && Some(one.kind) == kind);
    let known = known.ok_or_else(|| format!("{} of {version} is not converted here", object["kind"]))?;
    known.convert(object, &from, &to)
}

impl Conversion {
    /// Of a kind whose stored version is this type.
    pub(super) fn of<Stored: Resource>() -> Conversion {
        Conversion {
            definition: format!("{}.{}", Stored::PLURAL, Stored::GROUP),
            group: Stored::GROUP,
            kind: Stored::KIND,
            stored: Stored::VERSION,
            others: BTreeMap::new(),
        }
    }

    pub(super) fn is_of<Stored: Resource>(&self) -> bool {
        (self.group, self.kind, self.stored) == (Stored::GROUP, Stored::KIND, Stored::VERSION)
    }

    pub(super) fn add<Other, Stored>(&mut self)
    where
        Other: Resource + Serialize + From<Stored>,
        Stored: Resource + Serialize + From<Other>,
    {
        let (to_stored, from_stored) = (to_stored::<Other, Stored>, from_stored::<Other, Stored>);
        self.others.insert(Other::VERSION, Converters { to_stored, from_stored });
    }

    fn convert(&self, object: Value, from: &str, to: &str) -> Result<Value, String> {
        let other = |version: &str| {
            let unknown = || format!("{} has no version {version}, only {}", self.kind, self.versions());
            self.others.get(version).ok_or_else(unknown)
        };
        let mut object = object;
        if from == to {
            return Ok(object);
        }
        if from != self.stored {
            object = (other(from)?.to_stored)(&object)?;
        }
        if to != self.stored {
            object = (other(to)?.from_stored)(&object)?;
        }
        Ok(object)
    }

    fn versions(&self) -> String {
        let all: Vec<&str> = self.others.keys().copied().chain([self.stored]).collect();
        all.join(", ")
    }
}

/// What the other version cannot say.
#[derive(Serialize, Deserialize)]
struct Lost {
    /// A JSON pointer in the stored version.
    path: String,
    /// What the other version makes of the field. Absent: nothing.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    made: Value,
    /// What it was.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    was: Value,
}

fn from_stored<Other, Stored>(object: &Value) -> Result<Value, String>
where
    Other: Resource + Serialize + From<Stored>,
    Stored: Resource + Serialize + From<Other>,
{
    let converted = json_of(&Other::from(typed::<Stored>(object)?))?;
    let mut converted = with_metadata::<Other>(object, &converted);
    let returned = json_of(&Stored::from(typed::<Other>(&converted)?))?;
    let returned = with_metadata::<Stored>(&converted, &returned);
    let mut lost = Vec::new();
    // Of the object as it came: during an upgrade, its CRD may have fields that this type does not have.
    lose("", content(object), content(&returned), &mut lost);
    if !lost.is_empty() {
        let text = serde_json::to_string(&lost).map_err(|error| error.to_string())?;
        converted["metadata"]["annotations"][annotation::<Stored>()] = text.into();
    }
    Ok(converted)
}

fn to_stored<Other, Stored>(object: &Value) -> Result<Value, String>
where
    Other: Resource + Serialize,
    Stored: Resource + Serialize + From<Other>,
{
    let converted = json_of(&Stored::from(typed::<Other>(object)?))?;
    let mut converted = with_metadata::<Stored>(object, &converted);
    let annotations = converted["metadata"].get_mut("annotations").and_then(Value::as_object_mut);
    let Some(annotations) = annotations else { return Ok(converted) };
    let lost = annotations.remove(&annotation::<Stored>());
    if annotations.is_empty() {
        converted["metadata"].as_object_mut().map(|metadata| metadata.remove("annotations"));
    }
    // A user may have edited it.
    let lost =
        lost.as_ref().and_then(Value::as_str).and_then(|text| serde_json::from_str::<Vec<Lost>>(text).ok());
    let read = |object: &Value| typed::<Stored>(object).and_then(|object| json_of(&object));
    let mut whole = converted.clone();
    for Lost { path, made, was } in lost.into_iter().flatten() {
        // As the type reads it: a Pod whose type did not have the field made nothing of it, and this one makes its default.
        let is_as_made = || {
            let mut as_made = converted.clone();
            put(&mut as_made, &path, made.clone());
            read(&as_made).is_ok_and(|as_made| read(&converted).is_ok_and(|converted| as_made == converted))
        };
        let field = path.split('/').nth(1).unwrap_or_default();
        let is_unchanged = || *whole.pointer(&path).unwrap_or(&Value::Null) == made || is_as_made();
        if is_content(field) && is_unchanged() {
            put(&mut whole, &path, was);
        }
    }
    // The API server stores it without another look.
    Ok(if typed::<Stored>(&whole).is_ok() { whole } else { converted })
}

/// An object as its type reads it, and after a conversion to the other version and back.
#[cfg(feature = "testing")]
pub(crate) fn there_and_back<Other, Stored>(object: &Value) -> Result<(Value, Value), String>
where
    Other: Resource + Serialize + From<Stored>,
    Stored: Resource + Serialize + From<Other>,
{
    if object["apiVersion"] == *Stored::api_version() {
        let back = to_stored::<Other, Stored>(&from_stored::<Other, Stored>(object)?)?;
        return Ok((json_of(&typed::<Stored>(object)?)?, json_of(&typed::<Stored>(&back)?)?));
    }
    let back = from_stored::<Other, Stored>(&to_stored::<Other, Stored>(object)?)?;
    Ok((json_of(&typed::<Other>(object)?)?, json_of(&typed::<Other>(&back)?)?))
}

/// In which fields two objects differ.
fn lose(path: &str, was: Map<String, Value>, mut made: Map<String, Value>, lost: &mut Vec<Lost>) {
    let missing: Vec<String> = made.keys().filter(|field| !was.contains_key(*field)).cloned().collect();
    let fields = was.into_iter().chain(missing.into_iter().map(|field| (field, Value::Null)));
    for (field, was) in fields {
        let path = format!("{path}/{}", pointer_step(&field));
        match (was, made.remove(&field).unwrap_or_default()) {
            (Value::Object(was), Value::Object(made)) => lose(&path, was, made, lost),
            (was, made) if was != made => lost.push(Lost { path, made, was }),
            _ => {}
        }
    }
}

/// Sets a field whose parents are there, or removes it by null.
fn put(object: &mut Value, path: &str, value: Value) {
    let Some((parent, field)) = path.rsplit_once('/') else { return };
    let field = field.replace("~1", "/").replace("~0", "~");
    let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
    match value {
        Value::Null => drop(parent.remove(&field)),
        value => drop(parent.insert(field, value)),
    }
}

/// Everything but the metadata, the kind and the version.
fn content(object: &Value) -> Map<String, Value> {
    let mut content = object.as_object().cloned().unwrap_or_default();
    content.retain(|field, _| is_content(field));
    content
}

fn is_content(field: &str) -> bool {
    !["", "metadata", "apiVersion", "kind"].contains(&field)
}

/// The content with the metadata of the object that came, of which a conversion may change labels and annotations alone. A field that the types
/// do not write, such as a status that only the operator patches, stays.
fn with_metadata<K: Resource>(object: &Value, converted: &Value) -> Value {
    let mut whole = content(object);
    whole.remove("spec");
    whole.extend(content(converted));
    whole.insert("apiVersion".to_owned(), K::api_version().into());
    whole.insert("kind".to_owned(), K::KIND.into());
    whole.insert("metadata".to_owned(), object["metadata"].clone());
    whole.into()
}

fn annotation<K: Resource>() -> String {
    format!("{}/converted", K::GROUP)
}

fn typed<T: Resource>(object: &Value) -> Result<T, String> {
    review::typed(object).map_err(|error| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name} of {}: {error}", T::KIND, T::api_version())
    })
}

/// The JSON of an object, without nulls: a field that is null counts as absent, and few schemas allow it.
pub(super) fn json_of<T: Serialize>(object: &T) -> Result<Value, String> {
    let mut json = serde_json::to_value(object).map_err(|error| error.to_string())?;
    remove_nulls(&mut json);
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ObjectMeta;

    #[derive(Serialize, Deserialize)]
    struct Site {
        metadata: ObjectMeta,
        spec: SiteSpec,
    }

    #[derive(Serialize, Deserialize)]
    struct SiteSpec {
        host: String,
        port: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        tls: Option<Tls>,
        #[serde(default)]
        aliases: Vec<String>,
    }

    #[derive(Serialize, Deserialize)]
    struct Tls {
        secret: String,
    }

    crate::kind!(Site, "example.com", "v2", "sites");

    mod v1 {
        use super::*;

        #[derive(Serialize, Deserialize)]
        pub(super) struct Site {
            pub(super) metadata: ObjectMeta,
            pub(super) spec: SiteSpec,
        }

        /// One alias at most, and no TLS.
        #[derive(Serialize, Deserialize)]
        pub(super) struct SiteSpec {
            pub(super) address: String,
            #[serde(default)]
            pub(super) alias: String,
        }

        crate::kind!(Site, "example.com", "v1", "sites");
    }

    impl From<Site> for v1::Site {
        fn from(Site { metadata, spec: SiteSpec { host, port, aliases, .. } }: Site) -> v1::Site {
            let alias = aliases.into_iter().next().unwrap_or_default();
            v1::Site { metadata, spec: v1::SiteSpec { address: format!("{host}:{port}"), alias } }
        }
    }

    impl From<v1::Site> for Site {
        fn from(v1::Site { metadata, spec: v1::SiteSpec { address, alias } }: v1::Site) -> Site {
            let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
            let aliases = if alias.is_empty() { Vec::new() } else { vec![alias] };
            let (host, port) = (host.to_owned(), port.parse().unwrap_or(80));
            Site { metadata, spec: SiteSpec { host, port, tls: None, aliases } }
        }
    }

    mod v3 {
        use super::*;

        #[derive(Serialize, Deserialize)]
        pub(super) struct Site {
            pub(super) metadata: ObjectMeta,
            pub(super) spec: SiteSpec,
        }

        /// No port, and all names in one list.
        #[derive(Serialize, Deserialize)]
        pub(super) struct SiteSpec {
            pub(super) names: Vec<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(super) tls: Option<Tls>,
        }

        crate::kind!(Site, "example.com", "v3", "sites");
    }

    impl From<Site> for v3::Site {
        fn from(Site { metadata, spec: SiteSpec { host, tls, aliases, .. } }: Site) -> v3::Site {
            let names = [host].into_iter().chain(aliases).collect();
            v3::Site { metadata, spec: v3::SiteSpec { names, tls } }
        }
    }

    impl From<v3::Site> for Site {
        fn from(v3::Site { metadata, spec: v3::SiteSpec { names, tls } }: v3::Site) -> Site {
            let mut names = names.into_iter();
            let host = names.next().unwrap_or_default();
            Site { metadata, spec: SiteSpec { host, port: 80, tls, aliases: names.collect() } }
        }
    }

    fn converted(object: &Value, to: &str) -> Value {
        let mut conversion = Conversion::of::<Site>();
        conversion.add::<v1::Site, Site>();
        conversion.add::<v3::Site, Site>();
        convert(&[conversion], object.clone(), to).expect("a conversion")
    }

    fn site() -> Value {
        json!({
            "apiVersion": "example.com/v2", "kind": "Site",
            "metadata": {"name": "a", "uid": "u", "labels": {"b": "c"}, "managedFields": [{"manager": "kubectl"}]},
            "spec": {"host": "web", "port": 443, "tls": {"secret": "s"}, "aliases": ["w", "x/y~z"]},
            "status": {"conditions": [{"type": "Ready"}]},
        })
    }

    #[test]
    fn what_the_older_version_cannot_say_comes_back() {
        let old = converted(&site(), "example.com/v1");
        assert_eq!(old["spec"], json!({"address": "web:443", "alias": "w"}));
        assert_eq!((&old["status"], &old["metadata"]["labels"]), (&site()["status"], &json!({"b": "c"})));
        assert_eq!(converted(&old, "example.com/v2"), site());
        assert_eq!(converted(&site(), "example.com/v2"), site());
    }

    #[test]
    fn no_way_through_three_versions_loses_anything() {
        let versions = ["example.com/v1", "example.com/v2", "example.com/v3"];
        let specs = [
            json!({"address": "web:443", "alias": "w"}),
            site()["spec"].clone(),
            json!({"names": ["web", "w", "x/y~z"], "tls": {"secret": "s"}}),
        ];
        for (version, spec) in versions.iter().zip(specs) {
            let mut object = site();
            (object["apiVersion"], object["spec"]) = ((*version).into(), spec);
            for (second, third) in versions.iter().flat_map(|second| versions.map(|third| (second, third))) {
                let there = converted(&converted(&object, second), third);
                assert_eq!(there["apiVersion"], third);
                assert_eq!(
                    converted(&there, version),
                    object,
                    "from {version} to {second}, {third} and back"
                );
            }
        }
    }

    /// During an upgrade, or after a rollback: a write in the older version removed them without a word.
    #[test]
    fn fields_of_a_newer_definition_come_back_although_the_type_does_not_have_them() {
        let mut object = site();
        object["spec"]["limit"] = json!({"rate": 5});
        object["spec"]["tls"]["mode"] = "strict".into();
        object["rest"] = json!([1]);
        object["spec"].as_object_mut().expect("a spec").remove("aliases");
        for version in ["example.com/v1", "example.com/v3"] {
            let old = converted(&object, version);
            assert_eq!(converted(&old, "example.com/v2"), object, "{version}");
        }
        let mut old = converted(&object, "example.com/v1");
        old["spec"]["address"] = "web:80".into();
        object["spec"]["port"] = 80.into();
        assert_eq!(converted(&old, "example.com/v2"), object);
    }

    /// The Pod that converted to the older version did not have the field, and this one does.
    #[test]
    fn a_field_that_another_pod_did_not_know_comes_back() {
        let mut old = converted(&site(), "example.com/v1");
        let lost = json!([{"path": "/spec/aliases", "was": ["w", "x"]}]).to_string();
        old["metadata"]["annotations"] = json!({"example.com/converted": lost});
        old["spec"]["alias"] = "".into();
        assert_eq!(converted(&old, "example.com/v2")["spec"]["aliases"], json!(["w", "x"]));
        old["spec"]["alias"] = "new".into();
        assert_eq!(converted(&old, "example.com/v2")["spec"]["aliases"], json!(["new"]));
    }

    #[test]
    fn a_field_that_a_user_of_the_older_version_changes_does_not_come_back() {
        let mut old = converted(&site(), "example.com/v1");
        old["spec"] = json!({"address": "web:80", "alias": "new"});
        let new = converted(&old, "example.com/v2");
        let expected = json!({"host": "web", "port": 80, "tls": {"secret": "s"}, "aliases": ["new"]});
        assert_eq!((&new["spec"], &new["metadata"]["annotations"]), (&expected, &Value::Null));
    }

    #[test]
    fn an_annotation_that_somebody_has_broken_changes_nothing() {
        let mut old = converted(&site(), "example.com/v1");
        for text in [
            json!("no list"),
            json!(
                r#"[{"path": "/spec/a/b", "was": 1}, {"path": "", "was": 1}, {"path": "/kind", "made": "Site", "was": "Page"}]"#
            ),
        ] {
            old["metadata"]["annotations"] = json!({"example.com/converted": text, "other": "stays"});
            let new = converted(&old, "example.com/v2");
            assert_eq!(new["spec"], json!({"host": "web", "port": 443, "aliases": ["w"]}));
            assert_eq!(new["metadata"]["annotations"], json!({"other": "stays"}));
            assert_eq!((&new["metadata"]["labels"], &new["kind"]), (&json!({"b": "c"}), &json!("Site")));
        }
    }
}
