//! Drops from messages what only Go programs have: names of structs and Go types, positions in Go's source, and the
//! texts of Go's parsers. The embedded server does not imitate them.
//!
//! ```text
//! json: cannot unmarshal number 1.5 into Go struct field ScaleSpec.spec.replicas of type int32
//! cannot decode number into spec.replicas
//! ```
//!
//! The field and the JSON type of its value stay, so that they are compared.

use std::sync::LazyLock;

use regex::Regex;

static TERMS: LazyLock<[(Regex, &str); 20]> = LazyLock::new(|| {
    let json = r"json: cannot unmarshal (\w+)(?: \S+)? into Go";
    [
        (format!(r"{json} struct field \w*\.(\S+) of type .+"), "cannot decode $1 into $2"),
        (format!(r"{json} value of type \[\].+"), "cannot decode $1 into a list"),
        (format!(r"{json} value of type .+"), "cannot decode $1 into an object"),
        (r"(?:invalid JSON|invalid character '|unexpected end of JSON input).*".to_owned(), "invalid JSON"),
        (
            r"(error decoding YAML: )error (?:converting YAML to|unmarshaling JSON: while decoding) JSON: "
                .to_owned(),
            "$1",
        ),
        (r"(?s)yaml: (?:[^u]|u[^n]|un[^m]).*".to_owned(), "yaml: <error>"),
        (r#"(Object 'Kind' is missing|parsing time "[^"]*"|illegal base64 data).*"#.to_owned(), "$1"),
        (r#" in scheme "[^"]*""#.to_owned(), ""),
        // Go converts a strategic merge patch with another decoder, whose errors do not name the field.
        (r#"Invalid value: "(?:map\[|strategic patch).+"#.to_owned(), "Invalid value: <patch>: <error>"),
        // The struct of a CEL rule.
        (
            r#"Invalid value: \{.*?"[Rr]ule":.*?\}: (compilation failed|cel expression|messageExpression)"#
                .to_owned(),
            "Invalid value: <rule>: $1",
        ),
        // Other values in Go's format, and a character as its number.
        (r":\s\[*map\[.*\]\n?".to_owned(), ""),
        (r"(unescaped character in value): .+".to_owned(), "$1"),
        (
            r#"strconv\.Parse\w+: parsing ("[^"]*"): (?:invalid syntax|value out of range)"#.to_owned(),
            "invalid number $1",
        ),
        (r#": strconv\.Atoi: parsing "[^"]*": (?:invalid syntax|value out of range)"#.to_owned(), ""),
        (
            r#"time: (?:invalid|missing unit in|unknown unit "[^"]*" in) duration"#.to_owned(),
            "invalid duration",
        ),
        (r"(invalid schedule format): runtime error: [\w ]+\[:-1\]".to_owned(), "$1"),
        (r" accessor error: .+, expected int64".to_owned(), " is not an integer"),
        (r" accessor error: .+, expected map.+".to_owned(), " is not an object"),
        (r"\[\]string\{([^}]*)\}".to_owned(), "[$1]"),
        // The types of structured-merge-diff, in server-side apply.
        (
            r"(?m)((?:failed to create typed patch object|^  \.).*: expected [^,\n]+), got .+$".to_owned(),
            "$1",
        ),
    ]
    .map(|(terms, instead)| (Regex::new(&terms).unwrap(), instead))
});

/// The message without terms of Go.
pub fn without_go_terms(message: &str) -> String {
    TERMS
        .iter()
        .fold(message.to_owned(), |text, (term, instead)| term.replace_all(&text, *instead).into_owned())
}
