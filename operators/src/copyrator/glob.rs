//! Names of namespaces with wildcards: `team-*`.

use serde::Deserialize;
use smol_str::SmolStr;

/// A pattern for the whole name of a namespace: `*` stands for any characters, and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SmolStr")]
pub struct Glob(SmolStr);

impl Glob {
    /// Whether the pattern matches the whole name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut rest) = (0, 0);
        // The place to go on if a character does not match: after the last `*`, which then takes one character more.
        let mut retry = None;
        while rest < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    retry = Some((at, rest));
                    at += 1;
                }
                Some(byte) if matches!(byte, b'?') || *byte == name[rest] => (at, rest) = (at + 1, rest + 1),
                Some(_) | None => {
                    let Some((star, taken)) = retry else { return false };
                    retry = Some((star, taken + 1));
                    (at, rest) = (star + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }

    /// Whether this is the name itself, and not a pattern that matches it.
    #[must_use]
    pub fn is_name(&self, name: &str) -> bool {
        self.0 == name
    }
}

impl TryFrom<SmolStr> for Glob {
    type Error = String;

    fn try_from(text: SmolStr) -> Result<Glob, String> {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-*?".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_part) {
            return Err(format!(
                "{text:?} matches no namespace: use lower-case letters, digits, - and the wildcards * and ?"
            ));
        }
        Ok(Glob(text))
    }
}

impl std::str::FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Glob, String> {
        Glob::try_from(SmolStr::new(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, name: &str) -> bool {
        glob.parse::<Glob>().expect("a glob").matches(name)
    }

    #[test]
    fn a_glob_matches_the_whole_name() {
        for (glob, name) in [
            ("team-a", "team-a"),
            ("team-*", "team-"),
            ("team-*", "team-a-b"),
            ("*", "x"),
            ("*-prod", "a-prod-prod"),
            ("a*b*c", "a-b-b-c"),
            ("t?am", "team"),
            ("**a**", "bab"),
        ] {
            assert!(matches(glob, name), "{glob} {name}");
        }
        for (glob, name) in [
            ("team", "team-a"),
            ("eam-a", "team-a"),
            ("team-?", "team-"),
            ("*-prod", "a-prod-b"),
            ("a*b*c", "a-c-b"),
            ("?", "ab"),
        ] {
            assert!(!matches(glob, name), "{glob} {name}");
        }
    }

    #[test]
    fn a_glob_that_can_match_no_namespace_is_an_error() {
        for text in ["", "Team", "team-[ab]", "a b", "{a,b}", "a.b", "a/b"] {
            assert!(text.parse::<Glob>().is_err(), "{text}");
        }
    }
}
