//! Writes YAML that readers of YAML 1.1, such as PyYAML, take for the same value. [`yaml_serde`] quotes only what readers of YAML 1.2
//! would take for something else than text. And JSON: both have the numbers of characters that are not [printable](is_printable).

use serde_json::Value;

/// Stands for a quote until the value is written.
const QUOTE: char = '\u{e000}';
/// Before and after the number of a text that is put in when the value is written.
const LATER: char = '\u{e001}';

/// The words of YAML 1.1 that are not text, in lower case: <https://yaml.org/type/bool.html>, `merge`, `value`.
const WORDS: [&str; 8] = ["y", "yes", "n", "no", "on", "off", "<<", "="];

/// A value in JSON, indented.
#[must_use]
pub fn pretty(value: &Value) -> String {
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    escaped(&json, |c| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect())
}

/// Replaces what is not printable in JSON.
fn escaped(json: &str, number: impl Fn(char) -> String) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_printable(c) { escaped.push(c) } else { escaped += &number(c) }
    }
    escaped
}

/// A value in YAML.
#[must_use]
pub fn write(value: &Value) -> String {
    let (mut value, mut later) = (value.clone(), Vec::new());
    quote(&mut value, &mut later);
    let text = yaml_serde::to_string(&value).unwrap_or_default().replace(QUOTE, "'");
    let parts = text.split(LATER).enumerate();
    let put_in = |(index, part): (usize, &str)| match index % 2 {
        0 => part.to_owned(),
        _ => part.parse().ok().and_then(|index: usize| later.get(index).cloned()).unwrap_or_default(),
    };
    parts.map(put_in).collect()
}

/// Not a control character, nor one that only says how others are shown: from right to left, on another line, not at all. The two that join
/// and part letters are harmless, and words of Persian and many emoji need them.
#[must_use]
pub fn is_printable(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    c == '\n' || c == '\t' || !(c.is_control() || is_format)
}

/// Quotes each text and key that YAML 1.1 has another meaning for.
fn quote(value: &mut Value, later: &mut Vec<String>) {
    match value {
        Value::String(text) => *text = quoted(text, later),
        Value::Array(items) => items.iter_mut().for_each(|item| quote(item, later)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| quote(field, later));
            let all = std::mem::take(fields).into_iter();
            *fields = all.map(|(key, value)| (quoted(&key, later), value)).collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn quoted(text: &str, later: &mut Vec<String>) -> String {
    if text.chars().any(|c| c == QUOTE || c == LATER || !is_printable(c)) {
        // A text in JSON is one in YAML, but for the numbers of two units.
        later.push(escaped(&Value::from(text).to_string(), |c| format!("\\U{:08x}", u32::from(c))));
        return format!("{LATER}{}{LATER}", later.len() - 1);
    }
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
            let yaml = write(&value);
            assert_eq!(yaml, format!("'{text}': '{text}'\n"));
            assert_eq!(yaml_serde::from_str::<Value>(&yaml).expect("YAML"), value);
        }
    }

    /// They went to the terminal as they were, where U+009B begins a command, and U+202E turns the rest of the line round.
    #[test]
    fn what_is_not_printable_is_written_by_its_number_and_stays_the_same_value() {
        let harmful = [
            "\u{7f}",
            "\u{85}",
            "\u{9b}31m: a",
            "a\u{202e}b\nc",
            "\u{e0041}",
            "\u{feff}",
            "\u{e000}1\u{e001}\u{9b}",
        ];
        for text in harmful.into_iter().chain(["\u{1b}[2J", "a\rb"]) {
            let value = serde_json::json!({text: [text, {"a": text}, "yes"]});
            let (json, yaml) = (pretty(&value), write(&value));
            assert!(json.chars().chain(yaml.chars()).all(is_printable), "{json}{yaml}");
            assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), value);
            assert_eq!(yaml_serde::from_str::<Value>(&yaml).expect("YAML"), value, "{yaml}");
        }
        assert_eq!(pretty(&"a\u{202e}\u{e0041}".into()), r#""a\u202e\udb40\udc41""#);
        assert_eq!(write(&"a\u{9b}\u{e0041}\"".into()), r#""a\U0000009b\U000e0041\"""#.to_owned() + "\n");
        let harmless = serde_json::json!("\u{1f469}\u{200d}\u{1f4bb} \u{645}\u{6cc}\u{200c}\u{62e} é");
        assert_eq!(pretty(&harmless), harmless.to_string());
    }

    #[test]
    fn any_other_value_is_written_as_it_is() {
        let texts = ["web", "v1", "", "1: 2", "a: b # c", "two\nlines\nyes\n", "it's", "nginx:1.27", " 1"];
        let value = serde_json::json!({"texts": texts, "others": [1, 1.5, true, null, {}, []]});
        let yaml = write(&value);
        assert_eq!(yaml_serde::from_str::<Value>(&yaml).expect("YAML"), value, "{yaml}");
        assert!(write(&serde_json::json!(["web", true, 12])) == "- web\n- true\n- 12\n");
    }
}
