//! Known differences between the embedded API server and kube-apiserver, with their reasons.

use serde_json::Value;

use super::Answer;

/// The table of all known differences. Fewer are better. A line with `#` is the reason for the lines below it: story,
/// part of the answer, and title of the request.
const TABLE: &str = include_str!("../../../contract/differences.txt");

/// The story of the random edits of the operator's test `drift_fuzz`. It has no file. Its parts are parts of the paths of fields.
pub const EDITS: &str = "edits";

/// A part of an answer in which the embedded server differs from kube-apiserver.
pub struct Difference {
    pub story: &'static str,
    /// A JSON pointer, where `*` stands for any index or key; `message`, for the messages of a Status and its causes;
    /// the name of a header; or `all`, for the whole answer.
    pub part: &'static str,
    /// The title of the request. `*` stands for all requests of the story.
    pub request: &'static str,
    pub reason: &'static str,
}

/// All known differences.
pub fn known() -> Vec<Difference> {
    let mut reason = "";
    let mut known = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            reason = comment;
            continue;
        }
        let [story, part, request] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        known.push(Difference { story, part, request, reason });
    }
    known
}

impl Difference {
    /// Removes this part from both answers. Returns whether the parts differ.
    pub fn remove(&self, expected: &mut Answer, actual: &mut Answer) -> bool {
        let [expected, actual] = [expected, actual].map(|answer| self.extract(answer));
        expected != actual
    }

    fn extract(&self, answer: &mut Answer) -> Answer {
        if self.part == "all" {
            return std::mem::take(answer);
        }
        let mut extracted = Answer::default();
        let is_header = |line: &mut String| line.starts_with(&format!("{}: ", self.part));
        extracted.head = answer.head.extract_if(.., is_header).collect();
        let pointers = match self.part {
            "message" => &["/message", "/details/causes/*/message"][..],
            pointer => &[pointer],
        };
        for pointer in pointers.iter().filter_map(|pointer| pointer.strip_prefix('/')) {
            let path: Vec<&str> = pointer.split('/').collect();
            for document in &mut answer.body {
                extract(document, &path, &mut extracted.body);
            }
        }
        extracted
    }
}

fn extract(value: &mut Value, path: &[&str], extracted: &mut Vec<Value>) {
    let [key, rest @ ..] = path else { return };
    let children: Vec<&mut Value> = match value {
        Value::Object(map) if rest.is_empty() => {
            extracted.extend(map.remove(*key));
            return;
        }
        Value::Object(map) => {
            map.iter_mut().filter(|(name, _)| *key == "*" || name == key).map(|(_, child)| child).collect()
        }
        Value::Array(list) if rest.is_empty() && *key == "*" => {
            extracted.append(list);
            return;
        }
        Value::Array(list) => {
            let items = list.iter_mut().enumerate();
            items
                .filter(|(index, _)| *key == "*" || index.to_string() == *key)
                .map(|(_, child)| child)
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
    };
    for child in children {
        extract(child, rest, extracted);
    }
}
