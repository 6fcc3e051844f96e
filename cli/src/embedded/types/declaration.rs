//! Rust types, and how they are written: names, attributes and comments. Nothing in this file knows schemas.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::{self, Write},
};

use listwatch_study::wrap::wrap;

/// Longest line of a comment, without its indent.
const COMMENT_WIDTH: usize = 120;
/// <https://doc.rust-lang.org/reference/keywords.html>, without those that no `r#` helps.
const KEYWORDS: &str = "abstract as async await become box break const continue do dyn else enum extern false final fn for gen if impl in \
    let loop macro match mod move mut override priv pub ref return static struct trait true try type typeof unsafe unsized use virtual \
    where while yield";

/// The type of a field.
#[derive(Clone, Debug)]
pub(super) enum Type {
    Plain(&'static str),
    /// The index of its declaration.
    Declared(usize),
    /// The same, in a [`Box`]: the type contains itself.
    Boxed(usize),
    List(Box<Type>),
    Map(Box<Type>),
}

/// Whether a field may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    /// Written if it is not empty.
    Optional,
    /// `spec` of an object: an object with all its defaults.
    Defaulted,
    /// `null` is a value of its own.
    Nullable,
}

#[derive(Debug)]
pub(super) struct Field {
    /// The name in JSON.
    pub(super) name: String,
    pub(super) description: String,
    pub(super) presence: Presence,
    pub(super) of: Type,
}

#[derive(Debug)]
pub(super) enum Shape {
    Struct {
        fields: Vec<Field>,
        /// Whether there may be more fields.
        is_open: bool,
    },
    /// The texts that are known.
    Enum(Vec<String>),
}

#[derive(Debug)]
pub(super) struct Declaration {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) shape: Shape,
}

impl Declaration {
    /// The declarations that a value of this type contains, not on the heap.
    pub(super) fn contained(&self) -> impl Iterator<Item = usize> {
        let fields = match &self.shape {
            Shape::Struct { fields, .. } => &fields[..],
            Shape::Enum(_) => &[],
        };
        fields.iter().filter_map(|field| match field.of {
            Type::Declared(index) => Some(index),
            Type::Plain(_) | Type::Boxed(_) | Type::List(_) | Type::Map(_) => None,
        })
    }

    /// Its Rust code. The object itself has `metadata`.
    pub(super) fn write(&self, all: &[Declaration], is_object: bool, text: &mut String) -> fmt::Result {
        let name = &self.name;
        write_comment(text, "", &self.description)?;
        match &self.shape {
            Shape::Struct { fields, is_open } => {
                writeln!(text, "#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]")?;
                writeln!(text, "#[serde(rename_all = \"camelCase\")]\npub struct {name} {{")?;
                let mut taken = HashSet::new();
                if is_object {
                    taken.insert("metadata".to_owned());
                    writeln!(
                        text,
                        "    /// Name, labels, annotations, owners, versions.\n    pub metadata: ObjectMeta,"
                    )?;
                }
                if *is_open {
                    taken.insert("rest".to_owned());
                }
                for field in fields {
                    field.write(all, &mut taken, text)?;
                }
                if *is_open {
                    writeln!(text, "    /// All other fields.\n    #[serde(flatten)]\n    pub rest: Rest,")?;
                }
                writeln!(text, "}}")
            }
            Shape::Enum(values) => {
                writeln!(
                    text,
                    "#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]\npub enum {name} {{"
                )?;
                let mut taken = HashSet::from(["Other".to_owned()]);
                for value in values {
                    let variant = unique(variant(value), &mut taken);
                    if variant != *value {
                        writeln!(text, "    #[serde(rename = {value:?})]")?;
                    }
                    writeln!(text, "    {variant},")?;
                }
                writeln!(
                    text,
                    "    /// A value of another version of the API.\n    #[serde(untagged)]\n    Other(String),\n}}\n"
                )?;
                writeln!(text, "impl Default for {name} {{\n    fn default() -> {name} {{")?;
                writeln!(text, "        {name}::Other(String::new())\n    }}\n}}")
            }
        }
    }
}

impl Field {
    /// Adds the names that it imports, among others.
    pub(super) fn add_names(&self, names: &mut BTreeSet<&'static str>) {
        self.of.add_names(names);
        if matches!(self.of, Type::List(_) | Type::Map(_)) && self.presence != Presence::Nullable {
            names.insert("or_default");
        }
    }

    fn write(&self, all: &[Declaration], taken: &mut HashSet<String>, text: &mut String) -> fmt::Result {
        write_comment(text, "    ", &self.description)?;
        let name = unique(snake_case(&self.name), taken);
        if camel_case(&name) != self.name {
            writeln!(text, "    #[serde(rename = {:?})]", self.name)?;
        }
        let of = self.of.text(all);
        let (attribute, is_option) = match (self.presence, &self.of) {
            // Go writes `null` for a list without items.
            (Presence::Required, Type::List(_) | Type::Map(_)) => {
                ("deserialize_with = \"or_default\"", false)
            }
            (Presence::Required, _) => ("", false),
            (Presence::Defaulted, _) => ("default", false),
            (Presence::Nullable, _) => ("", true),
            (Presence::Optional, Type::List(_)) => {
                ("default, deserialize_with = \"or_default\", skip_serializing_if = \"Vec::is_empty\"", false)
            }
            (Presence::Optional, Type::Map(_)) => (
                "default, deserialize_with = \"or_default\", skip_serializing_if = \"BTreeMap::is_empty\"",
                false,
            ),
            (Presence::Optional, Type::Plain("Value")) => {
                ("default, skip_serializing_if = \"Value::is_null\"", false)
            }
            (Presence::Optional, _) => ("skip_serializing_if = \"Option::is_none\"", true),
        };
        if !attribute.is_empty() {
            writeln!(text, "    #[serde({attribute})]")?;
        }
        let of = if is_option { format!("Option<{of}>") } else { of };
        let raw = if KEYWORDS.split(' ').any(|word| word == name) { "r#" } else { "" };
        writeln!(text, "    pub {raw}{name}: {of},")
    }
}

impl Type {
    fn add_names(&self, names: &mut BTreeSet<&'static str>) {
        match self {
            Type::Plain(name) => drop(names.insert(name)),
            Type::List(of) => of.add_names(names),
            Type::Map(of) => {
                names.insert("BTreeMap");
                of.add_names(names);
            }
            Type::Declared(_) | Type::Boxed(_) => {}
        }
    }

    fn text(&self, all: &[Declaration]) -> String {
        match self {
            Type::Plain(name) => (*name).to_owned(),
            Type::Declared(index) => all[*index].name.clone(),
            Type::Boxed(index) => format!("Box<{}>", all[*index].name),
            Type::List(of) => format!("Vec<{}>", of.text(all)),
            Type::Map(of) => format!("BTreeMap<String, {}>", of.text(all)),
        }
    }
}

/// A description as a comment. Indented or fenced text is not Rust code for `cargo test` to run.
fn write_comment(text: &mut String, indent: &str, description: &str) -> fmt::Result {
    let mut is_fenced = false;
    for line in description.trim().lines() {
        let mut line = line.trim();
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            line = if is_fenced { "```text" } else { "```" };
        }
        for line in wrap(line, COMMENT_WIDTH, 0).split('\n') {
            writeln!(text, "{indent}{}", format!("/// {line}").trim_end())?;
        }
    }
    if is_fenced { writeln!(text, "{indent}/// ```") } else { Ok(()) }
}

/// The name, or with a number if there is one already.
pub(super) fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let numbers = (2..).map(|number| format!("{name}{number}"));
    let found = [name.clone()].into_iter().chain(numbers).find(|name| !taken.contains(name));
    let found = found.unwrap_or(name);
    taken.insert(found.clone());
    found
}

/// The words of a name in JSON: `podCIDRs` is `pod`, `CIDRs`; `x-kubernetes-list` is `x`, `kubernetes`, `list`.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (index, c) in chars.iter().enumerate() {
        let next = |by: usize| chars.get(index + by).copied();
        let is_lower = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase());
        let is_plural = next(1) == Some('s') && !is_lower(next(2));
        let before = index.checked_sub(1).map(|index| chars[index]);
        let is_start = c.is_ascii_uppercase()
            && (before.is_some_and(|before| !before.is_ascii_uppercase()) || is_lower(next(1)) && !is_plural);
        if is_start || !c.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        words.last_mut().expect("there is a first word").extend(Some(*c).filter(char::is_ascii_alphanumeric));
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The name of a field.
fn snake_case(name: &str) -> String {
    let name = words(name).join("_").to_lowercase();
    let is_bare = name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit());
    // No `r#` helps these.
    let is_path = ["self", "super", "crate"].contains(&&*name);
    format!("{}{name}{}", if is_bare { "n" } else { "" }, if is_path { "_" } else { "" })
}

/// What serde makes of the name of a field.
fn camel_case(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| name + &capitalized(part))
}

/// A part of the name of a type: `backendRef` is `BackendRef`.
pub(super) fn pascal_case(name: &str) -> String {
    name.split(|c: char| !c.is_ascii_alphanumeric()).map(capitalized).collect()
}

/// The name of a value: `digital signature` is `DigitalSignature`, `HTTP` is `Http`.
fn variant(value: &str) -> String {
    let name: String = words(value).iter().map(|word| capitalized(&word.to_lowercase())).collect();
    let is_bare = name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || name == "Self";
    if is_bare { format!("Value{name}") } else { name }
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_json_becomes_one_in_rust() {
        for (json, rust, is_same) in [
            ("secretName", "secret_name", true),
            ("clusterIP", "cluster_ip", false),
            ("podCIDRs", "pod_cidrs", false),
            ("clusterIPsOfPods", "cluster_ips_of_pods", false),
            ("tlsTTLSeconds", "tls_ttl_seconds", false),
            ("ipv4Address", "ipv4_address", true),
            ("x-kubernetes-list-map-keys", "x_kubernetes_list_map_keys", false),
            ("$ref", "ref", false),
            ("2d", "n2d", false),
            ("self", "self_", true),
            ("-", "n", false),
            ("a_b", "a_b", false),
        ] {
            assert_eq!((snake_case(json), camel_case(rust) == json), (rust.to_owned(), is_same), "{json}");
        }
        let values = [
            "digital signature",
            "HTTP",
            "s/mime",
            "P-256",
            "",
            "self",
            "RSA",
            "ImplementationSpecific",
            "2",
        ];
        let variants = [
            "DigitalSignature",
            "Http",
            "SMime",
            "P256",
            "Value",
            "ValueSelf",
            "Rsa",
            "ImplementationSpecific",
            "Value2",
        ];
        assert_eq!(values.map(variant), variants);
    }

    #[test]
    fn no_part_of_a_description_is_a_test_of_rustdoc() {
        let mut text = String::new();
        write_comment(&mut text, "", "Such as:\n\n    let x;\n\n```\nlet y;\n```\n```yaml\na: b\n")
            .expect("text");
        assert_eq!(
            text,
            "/// Such as:\n///\n/// let x;\n///\n/// ```text\n/// let y;\n/// ```\n/// ```text\n/// a: b\n/// ```\n"
        );
    }
}
