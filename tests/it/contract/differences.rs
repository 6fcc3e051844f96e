//! Where our server is known to answer otherwise than the real one, and why.

use serde_json::Value;

use super::Answer;

/// A place in an answer of ours that is not as the real server has it.
pub struct Difference {
    pub story: &'static str,
    /// The title of the request; `*` is any of the story.
    pub request: &'static str,
    /// A JSON pointer, of which `*` is any index or key; `message`, for the words of a Status and of its causes; the name
    /// of a header; or nothing, for the whole answer.
    pub at: &'static str,
    pub reason: &'static str,
}

/// All of them. The fewer, the truer.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        story: "creating",
        request: "YAML with a field twice",
        at: "warning",
        reason: "in the words of its YAML library, which knows the line, not the path",
    },
    Difference {
        story: "creating",
        request: "YAML with a field twice can be refused",
        at: "message",
        reason: "in the words of its YAML library, which knows the line, not the path",
    },
    Difference {
        story: "crds",
        request: "A kind that is stored in two versions",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "crds",
        request: "A version that is stored cannot go",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "crds",
        request: "A rule that does not compile",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "crds",
        request: "A pattern that does not compile",
        at: "message",
        reason: "Go's library has its own words for what is wrong with a regular expression",
    },
    Difference {
        story: "crds",
        request: "A value that is stored may stay, while another field changes",
        at: "warning",
        reason: "it also runs the rules for values that have not changed, and warns of what they refuse",
    },
    Difference {
        story: "pods",
        request: "Privileges that cannot be gained",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "creating",
        request: "Two controllers",
        at: "message",
        reason: "it shows the fields of an owner in the order of its Go struct, ours in that of the alphabet",
    },
    Difference {
        story: "creating",
        request: "Another version than the widget's",
        at: "warning",
        reason: "it warns of the fields that a version which is not served does not know: all",
    },
    Difference {
        story: "creating",
        request: "Text",
        at: "message",
        reason: "it also takes protobuf, which ours does not speak, and does not offer",
    },
    Difference {
        story: "creating",
        request: "Text, for a widget",
        at: "message",
        reason: "it also takes protobuf, which ours does not speak, and does not offer",
    },
    Difference {
        story: "updating",
        request: "A status that the schema refuses",
        at: "message",
        reason: "it validates a status for itself, and names what is in it from there on; its cause has the whole path",
    },
    Difference {
        story: "forms",
        request: "*",
        at: "/columnDefinitions/*/description",
        reason: "descriptions of columns are left out, as kubectl does not show them",
    },
    Difference {
        story: "kinds",
        request: "*",
        at: "/columnDefinitions/*/description",
        reason: "descriptions of columns are left out, as kubectl does not show them",
    },
    Difference {
        story: "namespaces",
        request: "*",
        at: "/columnDefinitions/*/description",
        reason: "descriptions of columns are left out, as kubectl does not show them",
    },
    Difference {
        story: "workloads",
        request: "*",
        at: "/columnDefinitions/*/description",
        reason: "descriptions of columns are left out, as kubectl does not show them",
    },
    Difference {
        story: "deleting",
        request: "Options that are no JSON",
        at: "message",
        reason: "the body is shown here, too",
    },
    Difference {
        story: "discovery",
        request: "*",
        at: "/resources/*/storageVersionHash",
        reason: "who migrates storage reads it; there is none",
    },
    Difference {
        story: "forms",
        request: "The form of an object for a list",
        at: "message",
        reason: "in the words and the order of Go's own types",
    },
    Difference {
        story: "forms",
        request: "Anything of an application",
        at: "",
        reason: "the router before built-in kinds has words of its own, and none for application/*",
    },
    Difference {
        story: "forms",
        request: "A picture",
        at: "message",
        reason: "the router before built-in kinds has words of its own, and none for application/*",
    },
    Difference {
        story: "forms",
        request: "A picture",
        at: "/details",
        reason: "the router before built-in kinds has words of its own, and none for application/*",
    },
    Difference {
        story: "forms",
        request: "A picture of a custom resource",
        at: "message",
        reason: "no protobuf is spoken here, and none is listed",
    },
    Difference {
        story: "forms",
        request: "A watch in YAML",
        at: "",
        reason: "no protobuf is spoken here, and none is listed",
    },
    Difference {
        story: "kinds",
        request: "A Node as a Table",
        at: "/columnDefinitions",
        reason: "fewer columns",
    },
    Difference { story: "kinds", request: "A Node as a Table", at: "/rows/*/cells", reason: "fewer columns" },
    Difference {
        story: "paging",
        request: "A token that is none",
        at: "message",
        reason: "another decoder's words",
    },
    Difference {
        story: "watching",
        request: "The old path of a watch",
        at: "",
        reason: "deprecated since 1.11, and refused with what to ask instead",
    },
    Difference {
        story: "configmaps",
        request: "A ConfigMap, refused for metadata.ownerReferences (2)",
        at: "message",
        reason: "it shows the fields of an owner in the order of its Go struct, ours in that of the alphabet",
    },
    Difference {
        story: "definitions",
        request: "A definition, refused for spec.versions and status.storedVersions",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "definitions",
        request: "A definition, refused for spec.versions",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "services",
        request: "A Service, refused for spec.ports[1]",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "workloads",
        request: "A Deployment, refused for spec.strategy",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "workloads",
        request: "A change of pods/p, refused for spec",
        at: "message",
        reason: "it adds how two Go structs differ, over many lines",
    },
    Difference {
        story: "workloads",
        request: "A change of pods/p, refused for spec (2)",
        at: "message",
        reason: "it adds how two Go structs differ, over many lines",
    },
    Difference {
        story: "workloads",
        request: "A change of pods/p, refused for spec (3)",
        at: "message",
        reason: "it adds how two Go structs differ, over many lines",
    },
    Difference {
        story: "nodes",
        request: "A taint twice",
        at: "message",
        reason: "it shows what its Go structs hold, ours what was sent",
    },
    Difference {
        story: "schemas",
        request: "Rules that are a map",
        at: "message",
        reason: "OpenAPI does not say how Go calls a text or a list that has a name of its own",
    },
    Difference {
        story: "schemas",
        request: "A scope that is a number",
        at: "message",
        reason: "OpenAPI does not say how Go calls a text or a list that has a name of its own",
    },
    Difference {
        story: "schemas",
        request: "A field of a rule that is not there",
        at: "",
        reason: "rules have types and costs that it computes beforehand; ours finds out when a rule is tried",
    },
    Difference {
        story: "schemas",
        request: "A rule of a wrong type",
        at: "",
        reason: "rules have types and costs that it computes beforehand; ours finds out when a rule is tried",
    },
    Difference {
        story: "schemas",
        request: "A rule that could cost too much",
        at: "",
        reason: "rules have types and costs that it computes beforehand; ours finds out when a rule is tried",
    },
    Difference {
        story: "schemas",
        request: "An unknown format",
        at: "warning",
        reason: "a format that is not known here is not known to be unknown there",
    },
    Difference {
        story: "schemas",
        request: "A conversion by webhook",
        at: "message",
        reason: "ours has no webhooks, and refuses them as such",
    },
    Difference {
        story: "schemas",
        request: "A conversion by webhook",
        at: "/details/causes",
        reason: "ours has no webhooks, and refuses them as such",
    },
    Difference {
        story: "scaling",
        request: "Its Scale, replaced with text",
        at: "message",
        reason: "an accident: what would say it does not know the Scale of a custom resource",
    },
    Difference {
        story: "patching",
        request: "A patch that is none, of what is not there",
        at: "",
        reason: "it is read before it is known of what it is",
    },
    Difference {
        story: "patching",
        request: "The same of a custom resource",
        at: "",
        reason: "it is read before it is known of what it is",
    },
    Difference {
        story: "pods",
        request: "It stays there",
        at: "message",
        reason: "it shows how its Go structs differ",
    },
];

/// Parts of the paths of fields of Deployments and Services, of which our server is known to accept or make something else
/// than the real one, and why.
pub const FIELDS: &[(&str, &str)] = &[
    (".resources.claims", "claims are typed and not checked"),
    (".resourceClaims", "claims are typed and not checked"),
    ("template.spec.resources", "the resources of a whole Pod are typed and not checked"),
    (".topologySpreadConstraints", "typed and not checked"),
    (".volumes", "the rarer volumes are typed, have no defaults, and are not checked"),
    ("metadata.ownerReferences", "a strategic patch with one owner twice keeps both"),
    ("spec.internalTrafficPolicy", "the real server keeps what it does not show of an ExternalName"),
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
        let is_header = |line: &mut String| line.starts_with(&format!("{}: ", self.at));
        taken.head = answer.head.extract_if(.., is_header).collect();
        let pointers = match self.at {
            "message" => &["/message", "/details/causes/*/message"][..],
            pointer => &[pointer],
        };
        for pointer in pointers.iter().filter_map(|pointer| pointer.strip_prefix('/')) {
            let path: Vec<&str> = pointer.split('/').collect();
            for document in &mut answer.body {
                take(document, &path, &mut taken.body);
            }
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
