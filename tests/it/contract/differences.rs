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
    Difference { story: "crds", request: "A kind with two versions", at: "", reason: "being built" },
    Difference { story: "crds", request: "A list instead of a map", at: "", reason: "being built" },
    Difference {
        story: "crds",
        request: "A kind that is stored in two versions",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "crds",
        request: "A default that its own schema refuses",
        at: "",
        reason: "being built",
    },
    Difference { story: "crds", request: "A rule that does not compile", at: "", reason: "being built" },
    Difference { story: "crds", request: "A pattern that does not compile", at: "", reason: "being built" },
    Difference { story: "crds", request: "A group without a dot", at: "", reason: "being built" },
    Difference {
        story: "crds",
        request: "A version that is stored cannot go",
        at: "",
        reason: "being built",
    },
    Difference { story: "crds", request: "A schema may change", at: "", reason: "being built" },
    Difference { story: "crds", request: "And then the new field stays", at: "", reason: "being built" },
    Difference { story: "crds", request: "The kind is deleted", at: "", reason: "being built" },
    Difference {
        story: "creating",
        request: "A ConfigMap: it has no generation",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "creating",
        request: "A custom resource needs its kind",
        at: "",
        reason: "being built",
    },
    Difference { story: "creating", request: "Two controllers", at: "", reason: "being built" },
    Difference {
        story: "creating",
        request: "Another version than the widget's",
        at: "",
        reason: "being built",
    },
    Difference { story: "creating", request: "Text", at: "", reason: "being built" },
    Difference { story: "creating", request: "Text, for a widget", at: "", reason: "being built" },
    Difference { story: "creating", request: "Or refused", at: "", reason: "being built" },
    Difference {
        story: "creating",
        request: "Unknown and duplicate fields of a built-in kind are warned of",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "creating",
        request: "Unknown and duplicate fields of a built-in kind can be refused",
        at: "",
        reason: "being built",
    },
    Difference { story: "creating", request: "What the schema refuses", at: "", reason: "being built" },
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
        story: "patching",
        request: "A patch of a ConfigMap with what it cannot hold",
        at: "",
        reason: "being built",
    },
    Difference { story: "updating", request: "No name", at: "", reason: "being built" },
    Difference { story: "updating", request: "The uid of another", at: "", reason: "being built" },
    Difference {
        story: "updating",
        request: "A status that the schema refuses",
        at: "",
        reason: "being built",
    },
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
