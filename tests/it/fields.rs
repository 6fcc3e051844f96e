//! docs/fields.md, which is made from the CRDs in `manifests/`.

use std::{env, fs, path::Path};

use serde_json::Value;

use crate::manifests;

const HEAD: &str = "\
# Fields

All fields of the four kinds. [A test](../tests/it/fields.rs) makes this page from the CRDs in [manifests](../manifests); `kubectl explain` shows the same. `[]` stands for each item of a list.
The pages of the operators, in [README](../README.md), say more about each.
";

/// `UPDATE_EXPECT=1` writes the page.
#[test]
fn fields_md_has_exactly_the_fields_of_the_crds() {
    let file = Path::new(crate::ROOT).join("docs/fields.md");
    let page = HEAD.to_owned() + &manifests::operators().iter().map(|name| section(name)).collect::<String>();
    if env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(file, page).unwrap();
    }
    assert!(fs::read_to_string(file).unwrap() == page, "UPDATE_EXPECT=1 cargo test --test it fields");
}

/// The fields of one kind, in the version that is stored: the others have the same or fewer.
fn section(operator: &str) -> String {
    let kustomization = manifests::read(&format!("{operator}/crd/kustomization.yaml")).remove(0);
    let file = kustomization["resources"][0].as_str().unwrap();
    let crd = manifests::read(&format!("{operator}/crd/{file}")).remove(0);
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let stored = versions.iter().find(|version| version["storage"] == true).unwrap();
    let names: Vec<&str> = versions.iter().map(|version| version["name"].as_str().unwrap()).collect();
    let schema = &stored["schema"]["openAPIV3Schema"];
    let (mut rows, mut rules) = (String::new(), String::new());
    add("", schema, false, &mut rows, &mut rules);
    if !rules.is_empty() {
        rules.insert_str(0, "\nRules:\n\n");
    }
    format!(
        "\n## {}\n\n`{}`, {}: {}\n\n| field | type | values | |\n|---|---|---|---|\n{rows}{rules}",
        crd["spec"]["names"]["kind"].as_str().unwrap(),
        crd["spec"]["group"].as_str().unwrap(),
        names.join(" and "),
        schema["description"].as_str().unwrap().replace('<', "\\<"),
    )
}

/// Adds a field and the fields in it.
fn add(path: &str, schema: &Value, is_required: bool, rows: &mut String, rules: &mut String) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let place = if path.is_empty() { String::new() } else { format!("`{path}`: ") };
        *rules += &format!("- {place}{}\n", rule["message"].as_str().unwrap());
    }
    // An item is described with its list.
    if !path.is_empty() && !path.ends_with(']') {
        let description = schema["description"].as_str().unwrap_or_default();
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        *rows += &format!(
            "| `{path}` | {} | {} | {description} |\n",
            type_of(schema),
            values(schema, is_required)
        );
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&&**name) {
            continue;
        }
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let required = schema["required"].as_array();
        add(&path, field, required.is_some_and(|names| names.contains(&Value::from(&**name))), rows, rules);
    }
    if schema["items"]["properties"].is_object() {
        add(&format!("{path}[]"), &schema["items"], false, rows, rules);
    }
}

/// `list of string`
fn type_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    match schema["type"].as_str().unwrap() {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", type_of(&schema["additionalProperties"]))
        }
        "object" if schema["x-kubernetes-preserve-unknown-fields"] == true => "any object".to_owned(),
        name => schema["format"].as_str().unwrap_or(name).to_owned(),
    }
}

/// What the API server accepts, and which value a field has that is not set.
fn values(schema: &Value, is_required: bool) -> String {
    let mut values: Vec<String> = Vec::new();
    if is_required {
        values.push("required".to_owned());
    }
    for (name, text) in [
        ("default", "default"),
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("minItems", "items at least"),
        ("maxItems", "items at most"),
        ("maxProperties", "entries at most"),
        ("minLength", "characters at least"),
        ("maxLength", "characters at most"),
    ] {
        if let Some(value) = schema.get(name) {
            values.push(format!("{text} `{value}`"));
        }
    }
    if let Some(texts) = schema["enum"].as_array() {
        let texts: Vec<String> = texts.iter().map(|text| format!("`{}`", text.as_str().unwrap())).collect();
        values.push(texts.join(" or "));
    }
    values.join(", ")
}
