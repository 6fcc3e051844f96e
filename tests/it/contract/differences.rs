//! Where our server is known to answer otherwise than the real one, and why.

use serde_json::Value;

use super::Answer;

/// A place in an answer of ours that is not as the real server has it.
pub struct Difference {
    pub story: &'static str,
    /// The title of the request; `*` is any of the story.
    pub request: &'static str,
    /// A JSON pointer, of which `*` is any index or key; the name of a header; or nothing, for the whole answer.
    pub at: &'static str,
    pub reason: &'static str,
}

/// All of them. The fewer, the truer.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        story: "crds",
        request: "A kind that is stored in two versions",
        at: "/details/causes/0/message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "crds",
        request: "A version that is stored cannot go",
        at: "/details/causes/0/message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "crds",
        request: "A rule that does not compile",
        at: "/details/causes/0/message",
        reason: "it shows what its Go structs hold, ours what was sent; and indents what does not compile",
    },
    Difference {
        story: "crds",
        request: "A rule that does not compile",
        at: "/message",
        reason: "as in its cause",
    },
    Difference {
        story: "crds",
        request: "A pattern that does not compile",
        at: "/details/causes/0/message",
        reason: "Go's library has its own words for what is wrong with a regular expression",
    },
    Difference {
        story: "crds",
        request: "A pattern that does not compile",
        at: "/message",
        reason: "as in its cause",
    },
    Difference {
        story: "creating",
        request: "Two controllers",
        at: "/details/causes/0/message",
        reason: "it shows the fields of an owner in the order of its Go struct, ours in that of the alphabet",
    },
    Difference { story: "creating", request: "Two controllers", at: "/message", reason: "as in its cause" },
    Difference {
        story: "creating",
        request: "Another version than the widget's",
        at: "warning",
        reason: "it warns of the fields that a version which is not served does not know: all",
    },
    Difference {
        story: "creating",
        request: "Text",
        at: "/message",
        reason: "it also takes protobuf, which ours does not speak, and does not offer",
    },
    Difference {
        story: "creating",
        request: "Text, for a widget",
        at: "/message",
        reason: "it also takes protobuf, which ours does not speak, and does not offer",
    },
    Difference {
        story: "updating",
        request: "A status that the schema refuses",
        at: "/details/causes/0/message",
        reason: "it validates a status for itself, and names what is in it from there on; its cause has the whole path",
    },
    Difference {
        story: "updating",
        request: "A status that the schema refuses",
        at: "/message",
        reason: "as in its cause",
    },
    Difference { story: "deleting", request: "Options that are no JSON", at: "", reason: "being built" },
    Difference { story: "discovery", request: "The kinds of a group", at: "", reason: "being built" },
    Difference {
        story: "discovery",
        request: "The kinds of a built-in group",
        at: "",
        reason: "being built",
    },
    Difference { story: "discovery", request: "The kinds of the core group", at: "", reason: "being built" },
    Difference { story: "discovery", request: "The kinds of leases", at: "", reason: "being built" },
    Difference { story: "discovery", request: "The kinds of events", at: "", reason: "being built" },
    Difference { story: "discovery", request: "The kinds of kinds", at: "", reason: "being built" },
    Difference { story: "forms", request: "A Table of ConfigMaps", at: "", reason: "being built" },
    Difference { story: "forms", request: "A Table of nothing", at: "", reason: "being built" },
    Difference { story: "forms", request: "The form of an object for a list", at: "", reason: "being built" },
    Difference { story: "forms", request: "YAML", at: "", reason: "being built" },
    Difference { story: "forms", request: "Anything of an application", at: "", reason: "being built" },
    Difference { story: "forms", request: "A picture", at: "", reason: "being built" },
    Difference { story: "forms", request: "A watch in YAML", at: "", reason: "being built" },
    Difference { story: "kinds", request: "Secrets by type", at: "", reason: "being built" },
    Difference { story: "kinds", request: "Services as a Table", at: "", reason: "being built" },
    Difference { story: "kinds", request: "ServiceAccounts as a Table", at: "", reason: "being built" },
    Difference { story: "kinds", request: "Leases as a Table", at: "", reason: "being built" },
    Difference { story: "kinds", request: "A Node", at: "", reason: "being built" },
    Difference { story: "kinds", request: "A Node as a Table", at: "", reason: "being built" },
    Difference { story: "namespaces", request: "As a Table", at: "", reason: "being built" },
    Difference { story: "paging", request: "A token that is none", at: "", reason: "being built" },
    Difference {
        story: "watching",
        request: "A Table watch has columns in its first event",
        at: "",
        reason: "being built",
    },
    Difference { story: "watching", request: "The old path of a watch", at: "", reason: "being built" },
    Difference { story: "watching", request: "A watch has no pages", at: "", reason: "being built" },
    Difference { story: "workloads", request: "As a Table", at: "", reason: "being built" },
    Difference { story: "workloads", request: "A ReplicaSet as a Table", at: "", reason: "being built" },
    Difference { story: "workloads", request: "A Pod", at: "", reason: "being built" },
    Difference { story: "workloads", request: "A Pod as a Table", at: "", reason: "being built" },
];

impl Difference {
    /// Takes what differs out of both answers, and says whether it did.
    pub fn remove(&self, expected: &mut Answer, actual: &mut Answer) -> bool {
        let [expected, actual] = [expected, actual].map(|answer| self.take(answer));
        expected != actual
    }

    fn take(&self, answer: &mut Answer) -> Answer {
        if self.at.is_empty() {
            return std::mem::take(answer);
        }
        let mut taken = Answer::default();
        if let Some(pointer) = self.at.strip_prefix('/') {
            let path: Vec<&str> = pointer.split('/').collect();
            for document in &mut answer.body {
                take(document, &path, &mut taken.body);
            }
        } else {
            let is_it = |line: &mut String| line.starts_with(&format!("{}: ", self.at));
            taken.head = answer.head.extract_if(.., is_it).collect();
        }
        taken
    }
}

fn take(value: &mut Value, path: &[&str], taken: &mut Vec<Value>) {
    let [key, rest @ ..] = path else { return };
    let children: Vec<&mut Value> = match value {
        Value::Object(map) if rest.is_empty() => {
            taken.extend(map.remove(*key));
            return;
        }
        Value::Object(map) => {
            map.iter_mut().filter(|(of, _)| *key == "*" || of == key).map(|(_, of)| of).collect()
        }
        Value::Array(list) if rest.is_empty() && *key == "*" => {
            taken.append(list);
            return;
        }
        Value::Array(list) => {
            let of = list.iter_mut().enumerate();
            of.filter(|(index, _)| *key == "*" || index.to_string() == *key).map(|(_, of)| of).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
    };
    for child in children {
        take(child, rest, taken);
    }
}
