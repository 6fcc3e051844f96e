//! YAML that readers of YAML 1.1, such as PyYAML, take for the same value. [`yaml_serde`] quotes only what readers of YAML 1.2
//! would take for something else than text.

use serde_json::Value;

/// Stands for a quote until the value is written. Values that contain this private character are left as they are.
const QUOTE: &str = "\u{e000}";

/// The words of YAML 1.1 that are not text, in lower case: <https://yaml.org/type/bool.html>, `merge`, `value`.
const WORDS: [&str; 8] = ["y", "yes", "n", "no", "on", "off", "<<", "="];

pub(super) fn yaml(value: &Value) -> String {
    let mut value = value.clone();
    if value.to_string().contains(QUOTE) {
        return yaml_serde::to_string(&value).unwrap_or_default();
    }
    quote(&mut value);
    yaml_serde::to_string(&value).unwrap_or_default().replace(QUOTE, "'")
}

/// Quotes each text and key that YAML 1.1 has another meaning for.
fn quote(value: &mut Value) {
    match value {
        Value::String(text) => *text = quoted(text),
        Value::Array(items) => items.iter_mut().for_each(quote),
        Value::Object(fields) => {
            fields.values_mut().for_each(quote);
            *fields = std::mem::take(fields).into_iter().map(|(key, value)| (quoted(&key), value)).collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn quoted(text: &str) -> String {
    // `1:30` and `1_000` are numbers, and `2024-01-01` is a date.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && text.chars().all(|c| c.is_ascii_digit() || "+-_.:bxABCDEFetTzZ ".contains(c))
        && text.contains(|c: char| c.is_ascii_digit())
        && !text.contains(": ");
    let is_special = is_number || WORDS.contains(&&*text.to_ascii_lowercase());
    if is_special { format!("{QUOTE}{text}{QUOTE}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_yaml_1_1_reads_as_other_types_are_quoted() {
        for text in [
            "2024-01-01",
            "2024-01-01T00:00:00Z",
            "2001-12-14 21:59:43.10 -5",
            "1:30",
            "190:20:30",
            "1_000",
            "012",
            "1e3",
            "0x1_F",
            "+1",
            ".5",
            "yes",
            "No",
            "ON",
            "off",
            "y",
            "N",
            "=",
            "<<",
            "true",
            "null",
            "~",
            ".inf",
        ] {
            let value = serde_json::json!({text: text});
            let yaml = yaml(&value);
            assert_eq!(yaml, format!("'{text}': '{text}'\n"));
            assert_eq!(yaml_serde::from_str::<Value>(&yaml).expect("YAML"), value);
        }
    }

    #[test]
    fn any_other_value_is_written_as_it_is() {
        let texts = [
            "web",
            "v1",
            "",
            "1: 2",
            "a: b # c",
            "two\nlines\nyes\n",
            "it's",
            "\u{e000}yes",
            "nginx:1.27",
            " 1",
        ];
        let value = serde_json::json!({"texts": texts, "others": [1, 1.5, true, null, {}, []]});
        let yaml = yaml(&value);
        assert_eq!(yaml_serde::from_str::<Value>(&yaml).expect("YAML"), value, "{yaml}");
        assert!(super::yaml(&serde_json::json!(["web", true, 12])) == "- web\n- true\n- 12\n");
    }
}
