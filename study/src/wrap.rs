//! Breaks long lines at the width of a terminal, which would cut words. Nothing in this file does I/O.

/// The characters after which a word that is longer than a line may end, in a path, a query, JSON or the name of a test.
const ENDS: [char; 6] = ['/', '?', '&', ',', '_', '-'];

/// Breaks a line between words. Later lines are indented, less so in a narrow terminal. Colors have no width. A word that is
/// longer than a line, such as a URL, is broken after one of [`ENDS`].
#[must_use]
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let indent = if width < 60 { indent.min(4) } else { indent };
    let new_line = format!("\n{:indent$}", "");
    let (mut column, mut is_color) = (0, false);
    let mut lines = String::new();
    for word in text.split_inclusive(' ') {
        let is_long = indent + shown_chars(word.trim_end()) > width;
        let parts: Vec<_> = if is_long { word.split_inclusive(ENDS).collect() } else { vec![word] };
        for part in parts {
            if column + shown_chars(part.trim_end()) > width && column > indent {
                lines.truncate(lines.trim_end().len());
                lines += &new_line;
                column = indent;
            }
            for c in part.chars() {
                is_color |= c == '\x1b';
                if column >= width && c != ' ' && !is_color {
                    lines += &new_line;
                    column = indent;
                }
                lines.push(c);
                column += usize::from(!is_color);
                is_color &= c != 'm';
            }
        }
    }
    lines
}

/// The number of characters without `\x1b[31m` and its like.
fn shown_chars(text: &str) -> usize {
    let rest = text.split('\x1b').skip(1).map(|part| part.split_once('m').unwrap_or_default().1);
    let first = text.split('\x1b').next().unwrap_or_default();
    first.chars().count() + rest.map(|part| part.chars().count()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_between_words_and_a_longer_word_after_its_parts() {
        for (text, width, lines) in [
            ("  one two three", 12, "  one two\n    three"),
            ("one two", 7, "one two"),
            (
                "$ curl 'http://127.0.0.1:8001/api/v1/pods?watch=1&limit=1'",
                32,
                "$ curl 'http://127.0.0.1:8001/\n    api/v1/pods?watch=1&limit=1'",
            ),
            (r#"  {"type":"ADDED","object":{}}"#, 20, "  {\"type\":\"ADDED\",\n    \"object\":{}}"),
            ("no_word abcdefghijkl", 8, "no_word\n    abcd\n    efgh\n    ijkl"),
            ("\x1b[31mone two\x1b[0m three", 9, "\x1b[31mone two\x1b[0m\n    three"),
        ] {
            assert_eq!(wrap(text, width, 4), lines, "{text}");
        }
    }
}
