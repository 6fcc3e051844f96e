//! Where our server is known to answer otherwise than the real one, and why.

use serde_json::Value;

use super::Answer;

/// A place in an answer of ours that is not as the real server has it.
pub struct Difference {
    pub story: &'static str,
    /// The title of the request.
    pub request: &'static str,
    /// A JSON pointer, of which `*` is any index or key; the name of a header; or nothing, for the whole answer.
    pub at: &'static str,
    pub reason: &'static str,
}

/// All of them. The fewer, the truer.
pub const DIFFERENCES: &[Difference] = &[
    Difference { story: "creating", request: "A widget", at: "", reason: "being built" },
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
    Difference { story: "creating", request: "Not JSON", at: "", reason: "being built" },
    Difference { story: "creating", request: "Not JSON, for a widget", at: "", reason: "being built" },
    Difference { story: "creating", request: "Nothing at all", at: "", reason: "being built" },
    Difference { story: "creating", request: "A list instead of an object", at: "", reason: "being built" },
    Difference { story: "creating", request: "Text", at: "", reason: "being built" },
    Difference { story: "creating", request: "Text, for a widget", at: "", reason: "being built" },
    Difference {
        story: "creating",
        request: "Unknown and duplicate fields are warned of",
        at: "",
        reason: "being built",
    },
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
    Difference {
        story: "creating",
        request: "A field manager whose name is too long",
        at: "",
        reason: "being built",
    },
    Difference { story: "creating", request: "What the schema refuses", at: "", reason: "being built" },
    Difference { story: "creating", request: "What the schema misses", at: "", reason: "being built" },
    Difference { story: "creating", request: "A null is no value", at: "", reason: "being built" },
    Difference {
        story: "creating",
        request: "A whole number may be written as a decimal",
        at: "",
        reason: "being built",
    },
    Difference { story: "deleting", request: "Options that are no JSON", at: "", reason: "being built" },
    Difference { story: "deleting", request: "Options of another kind", at: "", reason: "being built" },
    Difference {
        story: "deleting",
        request: "A negative grace period is one second",
        at: "",
        reason: "being built",
    },
    Difference { story: "deleting", request: "The right uid and version", at: "", reason: "being built" },
    Difference {
        story: "deleting",
        request: "No finalizer can be added any more",
        at: "",
        reason: "being built",
    },
    Difference { story: "deleting", request: "A DELETE of the status", at: "", reason: "being built" },
    Difference {
        story: "deleting",
        request: "What a deleted Service answers",
        at: "",
        reason: "being built",
    },
    Difference { story: "deleting", request: "A ServiceAccount", at: "", reason: "being built" },
    Difference {
        story: "deleting",
        request: "What a deleted ServiceAccount answers",
        at: "",
        reason: "being built",
    },
    Difference { story: "deleting", request: "A Pod without a node", at: "", reason: "being built" },
    Difference {
        story: "deleting",
        request: "It goes at once, as no kubelet has it",
        at: "",
        reason: "being built",
    },
    Difference { story: "deleting", request: "A Pod on a node", at: "", reason: "being built" },
    Difference { story: "deleting", request: "It has thirty seconds", at: "", reason: "being built" },
    Difference { story: "deleting", request: "Less", at: "", reason: "being built" },
    Difference { story: "deleting", request: "By force", at: "", reason: "being built" },
    Difference { story: "deleting", request: "A Deployment", at: "", reason: "being built" },
    Difference {
        story: "forms",
        request: "A Table, as kubectl get asks for it",
        at: "",
        reason: "being built",
    },
    Difference { story: "forms", request: "A Table of one object", at: "", reason: "being built" },
    Difference { story: "forms", request: "A Table with whole objects", at: "", reason: "being built" },
    Difference { story: "forms", request: "A Table without objects", at: "", reason: "being built" },
    Difference { story: "forms", request: "A Table of ConfigMaps", at: "", reason: "being built" },
    Difference { story: "forms", request: "A Table of nothing", at: "", reason: "being built" },
    Difference { story: "forms", request: "The form of an object for a list", at: "", reason: "being built" },
    Difference { story: "forms", request: "YAML", at: "", reason: "being built" },
    Difference { story: "forms", request: "Anything of an application", at: "", reason: "being built" },
    Difference { story: "forms", request: "A picture", at: "", reason: "being built" },
    Difference { story: "forms", request: "A watch in YAML", at: "", reason: "being built" },
    Difference {
        story: "forms",
        request: "What a write answers can be a Table, too",
        at: "",
        reason: "being built",
    },
    Difference { story: "paging", request: "A token that is none", at: "", reason: "being built" },
    Difference { story: "patching", request: "A merge patch that is none", at: "", reason: "being built" },
    Difference { story: "patching", request: "A merge patch that is a list", at: "", reason: "being built" },
    Difference {
        story: "patching",
        request: "A merge patch that is a number",
        at: "",
        reason: "being built",
    },
    Difference { story: "patching", request: "Another uid", at: "", reason: "being built" },
    Difference {
        story: "patching",
        request: "What the server alone decides is not changed",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A JSON patch of what is not there",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A JSON patch with an operation that nobody knows",
        at: "",
        reason: "being built",
    },
    Difference { story: "patching", request: "A JSON patch that is no JSON", at: "", reason: "being built" },
    Difference {
        story: "patching",
        request: "A JSON patch that takes the version away is unconditional",
        at: "",
        reason: "being built",
    },
    Difference { story: "patching", request: "A JSON patch of the status", at: "", reason: "being built" },
    Difference { story: "patching", request: "A ConfigMap", at: "", reason: "being built" },
    Difference { story: "patching", request: "A strategic merge patch", at: "", reason: "being built" },
    Difference {
        story: "patching",
        request: "A patch of a ConfigMap with what it cannot hold",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "Plain JSON is no patch of a ConfigMap either",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A Deployment with two containers",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A strategic merge patch finds a container by its name, and its list grows",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A strategic merge patch removes one container",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A strategic merge patch with the order that it wants",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A strategic merge patch that replaces a map",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "patching",
        request: "A merge patch replaces the list",
        at: "",
        reason: "being built",
    },
    Difference { story: "patching", request: "A container without a name", at: "", reason: "being built" },
    Difference { story: "updating", request: "No name", at: "", reason: "being built" },
    Difference { story: "updating", request: "The uid of another", at: "", reason: "being built" },
    Difference {
        story: "updating",
        request: "A status that the schema refuses",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "updating",
        request: "A subresource that nobody knows",
        at: "",
        reason: "being built",
    },
    Difference { story: "updating", request: "It stays as it is", at: "", reason: "being built" },
    Difference {
        story: "watching",
        request: "A selector: who leaves it is DELETED as last seen in it, who enters is ADDED",
        at: "",
        reason: "being built",
    },
    Difference {
        story: "watching",
        request: "A bookmark comes two seconds before the end",
        at: "",
        reason: "being built",
    },
    Difference { story: "watching", request: "A negative timeout has passed", at: "", reason: "being built" },
    Difference {
        story: "watching",
        request: "A Table watch has columns in its first event",
        at: "",
        reason: "being built",
    },
    Difference { story: "watching", request: "The old path of a watch", at: "", reason: "being built" },
    Difference { story: "watching", request: "A watch has no pages", at: "", reason: "being built" },
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
