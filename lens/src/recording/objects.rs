//! Finds the objects in the body of an answer, which comes in pieces, cut anywhere. Only the present object is kept.
//!
//! ```text
//! {"type":"ADDED","object":{…}}                     a watch, or one object: they begin at depth 0
//! {"kind":"PodList","metadata":{…},"items":[{…},…   the metadata of a list begins at depth 1, and its items at depth 2
//! ```

use std::ops::RangeInclusive;

/// Longest object that is read: the limit of the library for a line of a watch. A longer one is passed on, and not recorded.
const OBJECT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Finds the objects that begin at some depths, and are not inside of another one.
#[derive(Debug)]
pub(super) struct Objects {
    begin: RangeInclusive<usize>,
    /// How many braces and brackets are open.
    depth: usize,
    is_text: bool,
    is_escaped: bool,
    /// The present object, and its depth.
    object: Option<Vec<u8>>,
    object_depth: usize,
}

impl Objects {
    pub(super) fn at_depths(begin: RangeInclusive<usize>) -> Objects {
        Objects { begin, depth: 0, is_text: false, is_escaped: false, object: None, object_depth: 0 }
    }

    /// Reads a piece of the body.
    pub(super) fn read(&mut self, piece: &[u8], mut found: impl FnMut(&[u8])) {
        let mut from = 0;
        for (at, byte) in piece.iter().enumerate() {
            if self.is_text {
                self.is_text = self.is_escaped || *byte != b'"';
                self.is_escaped = !self.is_escaped && *byte == b'\\';
                continue;
            }
            match byte {
                b'"' => self.is_text = true,
                b'{' | b'[' => {
                    if *byte == b'{' && self.object.is_none() && self.begin.contains(&self.depth) {
                        (self.object, self.object_depth, from) = (Some(Vec::new()), self.depth, at);
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == self.object_depth
                        && let Some(mut object) = self.object.take()
                        && object.len() + (at - from) < OBJECT_BYTES_MAX
                    {
                        object.extend_from_slice(&piece[from..=at]);
                        found(&object);
                    }
                }
                _ => {}
            }
        }
        if let Some(object) = self.object.as_mut().filter(|object| object.len() <= OBJECT_BYTES_MAX) {
            object.extend_from_slice(&piece[from..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(begin: RangeInclusive<usize>, text: &str, piece: usize) -> Vec<String> {
        let (mut objects, mut found) = (Objects::at_depths(begin), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            objects.read(piece, |object| found.push(String::from_utf8_lossy(object).into_owned()));
        }
        found
    }

    #[test]
    fn objects_are_found_wherever_the_body_is_cut() {
        let events = [
            r#"{"type":"ADDED","object":{"a":"}\"{\\"}}"#,
            r#"{"type":"BOOKMARK","object":{"a":[{"b":1}]}}"#,
        ];
        let items = [r#"{"metadata":{"name":"é"}}"#, r#"{"data":{"a":["]"]}}"#];
        let metadata = r#"{"resourceVersion":"7"}"#;
        // That of a custom resource has the items first.
        let list = format!(r#"{{"items":[{}],"kind":"List","metadata":{metadata}}}"#, items.join(", "));
        for piece in 1..90 {
            assert_eq!(found(0..=0, &(events.join("\n") + "\n"), piece), events, "{piece}");
            assert_eq!(found(1..=2, &list, piece), [items[0], items[1], metadata], "{piece}");
        }
    }

    #[test]
    fn an_object_that_is_too_long_is_skipped() {
        let text = format!(r#"{{"a":"{}"}}{{}}"#, "x".repeat(OBJECT_BYTES_MAX + 1));
        assert_eq!(found(0..=0, &text, 1 << 20), ["{}"]);
    }
}
