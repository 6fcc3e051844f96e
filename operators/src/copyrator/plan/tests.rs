//! Tests the plan with a small model of a cluster: what is planned is done, until nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};

use listwatch::resource::{
    kinds::{ConfigMap, Secret},
    list::{Partial, PartialCause},
};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn rule(uid: &str, created: &str, fields: &Value) -> CopyratorRule {
    let mut rule = json!({
        "metadata": {"name": uid, "namespace": "src", "uid": uid, "resourceVersion": "1", "creationTimestamp": created},
        "ruleType": "configmap", "selector": {"copyrator": "true"},
    });
    rule.as_object_mut().expect("a rule").extend(fields.as_object().cloned().expect("fields"));
    serde_json::from_value(rule).expect("a rule")
}

fn object(namespace: &str, name: &str, data: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"), "resourceVersion": "1",
            "creationTimestamp": "2026-11-22T06:39:00Z", "labels": {"copyrator": "true", "team": "web"},
        },
        "data": {"a": data},
    })
}

fn read(object: &Value) -> ConfigMap {
    serde_json::from_value(object.clone()).expect("a ConfigMap")
}

fn sources_of(readable: Vec<Arc<ConfigMap>>, left_out: Vec<Arc<ConfigMap>>) -> Vec<Found<ConfigMap>> {
    let partial = |source: Arc<ConfigMap>| {
        let (metadata, message) = (source.metadata.clone(), "no room".to_owned());
        Found::Partial(Arc::new(Partial { metadata, message, cause: PartialCause::NoRoom(1) }))
    };
    readable.into_iter().map(Found::Readable).chain(left_out.into_iter().map(partial)).collect()
}

/// The objects of a cluster, by namespace and name.
#[derive(Clone, Default)]
struct Model {
    objects: BTreeMap<Key, Value>,
    writes: Vec<String>,
    /// Copies that were not read since the start.
    unread: BTreeSet<Key>,
    /// Sources for whose content there is no room.
    left_out: BTreeSet<Key>,
}

impl Model {
    fn with(objects: &[Value]) -> Model {
        let objects = objects.iter().map(|object| (read(object).key(), object.clone())).collect();
        Model { objects, ..Model::default() }
    }

    fn copied(&self, key: &Key) -> Option<Arc<Copied<ConfigMap>>> {
        let object = self.objects.get(key).filter(|object| object["metadata"]["labels"][LABEL] == "true")?;
        let copied = Copied::of(&read(object));
        // As after a GET: the object has the content of its digest.
        if object["data"]["edited"].is_null() && !self.unread.contains(key) {
            copied.verified();
        }
        Some(Arc::new(copied))
    }

    fn plan(
        &self,
        rule: &CopyratorRule,
        others: &[&CopyratorRule],
        targets: &[&str],
    ) -> (Pass, Vec<CopyStep<ConfigMap>>) {
        let spec = Arc::new(rule.spec.clone().expect("readable"));
        let sources = self.objects.values().map(|object| Arc::new(read(object)));
        let sources = sources.filter(|source| {
            source.metadata.namespace.as_deref() == Some("src")
                && spec.selector.matches(&source.metadata.labels)
        });
        let copies = self.objects.keys().filter_map(|key| self.copied(key));
        let ours = copies
            .filter(|copied| copied.mark.as_ref().is_some_and(|mark| mark.rule_uid == rule.metadata.uid));
        let (left_out, readable) = sources.partition(|source| self.left_out.contains(&source.key()));
        let targets: Vec<SmolStr> = targets.iter().map(SmolStr::new).collect();
        let maker = |mark: &Mark| maker(mark, rule, others);
        let view = View {
            targets: &targets,
            ours: ours.collect(),
            find: &|key| self.copied(key),
            was_created: &|_, _| false,
            maker: &maker,
            pause: &mut |_| None,
            steps_max: usize::MAX,
            is_active: &|_| true,
        };
        let mut pass = Pass::default();
        let steps = plan(rule, &spec, sources_of(readable, left_out), view, &mut pass);
        (pass, steps)
    }

    /// Does one step, as the operator does.
    fn step(&mut self, step: &CopyStep<ConfigMap>, rule: &CopyratorRule, others: &[&CopyratorRule]) {
        let key = step.key();
        match step {
            CopyStep::Create(original, namespace)
            | CopyStep::Check(original, namespace)
            | CopyStep::Verify(original, namespace) => {
                let desired = original.copy_for(namespace);
                let Some(live) = self.objects.get(&key).map(read) else {
                    let mut created = serde_json::to_value(&desired).expect("JSON");
                    created["metadata"]["uid"] = json!(format!("copy-{key}"));
                    created["metadata"]["resourceVersion"] = json!("1");
                    self.writes.push(format!("create {key}"));
                    self.objects.insert(key, created);
                    return;
                };
                let mark = Mark::of(&live.metadata);
                let maker = mark.as_ref().map(|mark| maker(mark, rule, others));
                let is_same_source = mark.is_some_and(|mark| original.is_source_of(&mark));
                let policy = rule.spec.as_ref().expect("readable").conflict_policy;
                match decide(&live, &desired, maker, is_same_source, policy) {
                    Decision::Keep | Decision::Conflict(..) => {}
                    Decision::Patch(operations) => self.patch(&key, operations),
                    Decision::Replace(claim) => {
                        if !claim.is_empty() {
                            self.patch(&key, claim);
                        }
                        self.writes.push(format!("replace {key}"));
                        self.objects.remove(&key);
                    }
                }
            }
            CopyStep::Delete(_) => {
                self.writes.push(format!("delete {key}"));
                self.objects.remove(&key);
            }
        }
    }

    fn patch(&mut self, key: &Key, operations: Vec<Value>) {
        self.writes.push(format!("patch {key}"));
        let patch: json_patch::Patch = serde_json::from_value(json!(operations)).expect("a patch");
        let live = self.objects.get_mut(key).expect("it is there");
        json_patch::patch(live, &patch).expect("the patch applies");
    }

    /// Does everything that is planned for a rule, until nothing is written any more.
    fn settle(&mut self, rule: &CopyratorRule, others: &[&CopyratorRule], targets: &[&str]) -> Pass {
        for _ in 0..5 {
            let ((pass, steps), before) = (self.plan(rule, others, targets), self.writes.len());
            for step in &steps {
                self.step(step, rule, others);
            }
            if self.writes.len() == before {
                return pass;
            }
        }
        panic!("no end of writes: {:?}", self.writes);
    }

    fn data(&self, namespace: &str, name: &str) -> Option<&str> {
        self.objects.get(&Key::namespaced(namespace, name))?["data"]["a"].as_str()
    }
}

fn maker(mark: &Mark, rule: &CopyratorRule, others: &[&CopyratorRule]) -> Maker {
    let present = others.iter().chain([&rule]).find(|other| other.key() == mark.rule);
    Maker::of(mark, rule, present.copied())
}

const OLD: &str = "2026-11-22T06:00:00Z";
const NEW: &str = "2026-11-22T07:00:00Z";

#[test]
fn a_copy_has_the_content_the_allowed_labels_and_the_marks() {
    let rule = rule("r1", OLD, &json!({"copyLabels": ["team", "copyrator", "absent"]}));
    let mut model = Model::with(&[object("src", "settings", "1")]);
    let pass = model.settle(&rule, &[], &["src", "a", "b"]);
    assert_eq!(model.writes, ["create a/settings", "create b/settings"]);
    assert_eq!((pass.sources, pass.wanted, pass.copies), (1, 2, 2));
    let copy = &model.objects[&Key::namespaced("a", "settings")];
    assert_eq!(copy["metadata"]["labels"], json!({"flant.com/copy": "true", "team": "web"}));
    let annotations = copy["metadata"]["annotations"].as_object().expect("annotations");
    assert_eq!(annotations["flant.com/place"], "a/settings");
    assert_eq!(annotations["flant.com/rule-uid"], "r1");
    assert_eq!((annotations.len(), &copy["data"]), (6, &json!({"a": "1"})));
}

#[test]
fn the_mark_of_a_program_is_never_copied() {
    for (key, is_copied) in [
        ("team", true),
        ("example.com/team", true),
        ("app.kubernetes.io/name", true),
        ("myhelm.sh/chart", true),
        ("app.kubernetes.io/instance", false),
        ("app.kubernetes.io/managed-by", false),
        ("applyset.kubernetes.io/part-of", false),
        ("kubernetes.io/metadata.name", false),
        ("kustomize.config.k8s.io/behavior", false),
        ("argocd.argoproj.io/instance", false),
        ("argocd.argoproj.io/tracking-id", false),
        ("argocd.argoproj.io/secret-type", true),
        ("argocd.argoproj.io/sync-options", true),
        ("meta.helm.sh/release-name", false),
        ("kustomize.toolkit.fluxcd.io/name", false),
        ("helm.sh/chart", false),
        ("flant.com/copy", false),
        ("flant.com/rule", false),
    ] {
        let spec = rule("r1", OLD, &json!({"copyLabels": [key], "copyAnnotations": [key]}))
            .spec
            .expect("the fields");
        assert_eq!(spec.is_copied_label(key), is_copied, "{key}");
        assert_eq!(spec.is_copied_annotation(key), is_copied, "{key}");
    }
}

#[test]
fn a_label_that_the_source_loses_leaves_the_copy_and_labels_of_others_stay() {
    let rule = rule("r1", OLD, &json!({"copyLabels": ["team"]}));
    let mut model = Model::with(&[object("src", "settings", "1")]);
    model.settle(&rule, &[], &["a"]);
    let copy = model.objects.get_mut(&Key::namespaced("a", "settings")).expect("a copy");
    copy["metadata"]["labels"]["theirs"] = json!("x");
    let source = model.objects.get_mut(&Key::namespaced("src", "settings")).expect("a source");
    source["metadata"]["labels"].as_object_mut().expect("labels").remove("team");
    model.settle(&rule, &[], &["a"]);
    let copy = model.objects.get_mut(&Key::namespaced("a", "settings")).expect("a copy");
    assert_eq!(copy["metadata"]["labels"], json!({"flant.com/copy": "true", "theirs": "x"}));
    // The mark with the keys of the labels stayed, so the label was removed as soon as another client changed the copy.
    copy["metadata"]["labels"]["team"] = json!("theirs");
    copy["data"]["edited"] = json!("x");
    model.settle(&rule, &[], &["a"]);
    let labels = &model.objects[&Key::namespaced("a", "settings")]["metadata"]["labels"];
    assert_eq!(*labels, json!({"flant.com/copy": "true", "theirs": "x", "team": "theirs"}));
}

/// After a restart, the status of a thousand copies went back to `InProgress` until all of them had been read.
#[test]
fn a_copy_that_was_not_read_yet_counts_as_up_to_date() {
    let rule = rule("r1", OLD, &json!({}));
    let mut model = Model::with(&[object("src", "settings", "1")]);
    model.settle(&rule, &[], &["a"]);
    model.unread.insert(Key::namespaced("a", "settings"));
    let (pass, steps) = model.plan(&rule, &[], &["a"]);
    assert_eq!((pass.copies, pass.wanted), (1, 1));
    assert!(matches!(steps[..], [CopyStep::Verify(..)]));
}

/// Its value is not kept in memory, but a patch that adds the first annotation would remove it.
#[test]
fn the_annotation_of_kubectl_apply_stays_on_an_adopted_object() {
    let rule = rule("r1", OLD, &json!({"conflictPolicy": "Overwrite"}));
    let mut theirs = object("a", "settings", "2");
    let applied = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
    theirs["metadata"]["annotations"] = applied.clone();
    let mut model = Model::with(&[object("src", "settings", "1"), theirs]);
    model.settle(&rule, &[], &["a"]);
    let copy = &model.objects[&Key::namespaced("a", "settings")];
    assert_eq!(copy["data"], json!({"a": "1"}));
    for (key, value) in applied.as_object().expect("annotations") {
        assert_eq!(copy["metadata"]["annotations"][key], *value);
    }
}

#[test]
fn the_older_rule_wins_whoever_comes_first() {
    let (old, new) = (rule("old", OLD, &json!({})), rule("new", NEW, &json!({})));
    for first_is_old in [true, false] {
        let mut model = Model::with(&[object("src", "settings", "1")]);
        let (first, second) = if first_is_old { (&old, &new) } else { (&new, &old) };
        model.settle(first, &[second], &["a"]);
        model.settle(second, &[first], &["a"]);
        let (writes, (pass, _)) = (model.writes.len(), model.plan(&new, &[&old], &["a"]));
        assert_eq!((pass.failures.len(), &*pass.failures[0].reason), (1, OLDER_WINS));
        model.settle(&old, &[&new], &["a"]);
        model.settle(&new, &[&old], &["a"]);
        assert_eq!(model.writes.len(), writes, "no flip-flop: {:?}", model.writes);
        // The younger rule deletes nothing that it no longer has.
        model.settle(&new, &[&old], &[]);
        assert_eq!(model.data("a", "settings"), Some("1"));
        model.settle(&old, &[&new], &[]);
        assert_eq!(model.data("a", "settings"), None);
    }
}

/// An old rule took the copies of the rules of all namespaces, with a new source of their name.
#[test]
fn a_rule_takes_no_copy_of_a_rule_of_another_namespace_however_old_it_is() {
    let (mut old, new) =
        (rule("old", OLD, &json!({"conflictPolicy": "Overwrite"})), rule("new", NEW, &json!({})));
    old.metadata.namespace = Some("other".into());
    let mut model = Model::with(&[object("src", "settings", "1")]);
    model.settle(&new, &[&old], &["a"]);
    let pass = model.settle(&old, &[&new], &["a"]);
    model.settle(&new, &[&old], &["a"]);
    assert_eq!(
        (&*pass.failures[0].reason, &model.writes[..]),
        (OLDER_WINS, &["create a/settings".to_owned()][..])
    );
}

/// A rule may have been deleted and created again: its copies belong to the deleted rule.
#[test]
fn the_maker_of_a_copy_is_the_rule_with_the_same_uid() {
    let (us, other) = (rule("us", NEW, &json!({})), rule("other", OLD, &json!({})));
    let again = {
        let mut again = rule("other", OLD, &json!({}));
        again.metadata.uid = "again".into();
        again
    };
    let mut model = Model::with(&[object("src", "settings", "1")]);
    model.settle(&other, &[], &["a"]);
    let copied = model.copied(&Key::namespaced("a", "settings")).expect("a copy");
    let mark = copied.mark.as_ref().expect("marks");
    assert_eq!(Maker::of(mark, &us, Some(&other)), Maker::Older(other.key()));
    assert_eq!(Maker::of(mark, &us, Some(&again)), Maker::Gone);
}

/// An object that this rule did not make is overwritten only if nothing of its own can be lost.
#[test]
fn what_another_rule_has_made_is_taken_over_only_if_it_is_a_copy_of_the_same_source() {
    let decision = |maker: &Maker, is_same_source: bool, immutable: bool| {
        let (mut live, desired) = (object("a", "settings", "2"), read(&object("a", "settings", "1")));
        live["immutable"] = json!(immutable);
        decide(&read(&live), &desired, Some(maker.clone()), is_same_source, ConflictPolicy::Skip)
    };
    let patched = |decision: &Decision| matches!(decision, Decision::Patch(operations) if operations.iter().any(|operation| operation["path"].as_str().is_some_and(|path| path.starts_with("/data"))));
    for (maker, is_same_source) in [(Maker::Younger, false), (Maker::Gone, true)] {
        assert!(patched(&decision(&maker, is_same_source, false)), "{maker:?}");
    }
    for (is_same_source, immutable) in [(false, false), (false, true), (true, true)] {
        let decision = decision(&Maker::Gone, is_same_source, immutable);
        assert!(matches!(decision, Decision::Conflict(NAME_CONFLICT, _)), "{decision:?}");
    }
}

#[test]
fn only_what_has_our_marks_in_its_place_is_ever_deleted() {
    let (rule, other) = (rule("r1", OLD, &json!({})), rule("r2", NEW, &json!({})));
    let mut model = Model::with(&[object("src", "settings", "1"), object("b", "theirs", "2")]);
    model.settle(&rule, &[], &["a"]);
    // A copy of a copy has the marks of another place.
    let mut moved = model.objects[&Key::namespaced("a", "settings")].clone();
    moved["metadata"]["namespace"] = json!("c");
    model.objects.insert(Key::namespaced("c", "settings"), moved);
    model.settle(&other, &[&rule], &[]);
    model.settle(&rule, &[&other], &[]);
    assert_eq!(model.writes, ["create a/settings", "delete a/settings"]);
    assert!(model.data("c", "settings").is_some() && model.data("b", "theirs").is_some());
}

/// Such a copy no longer counted as a copy: it stayed as it was edited, also when its rule was deleted.
#[test]
fn a_copy_whose_source_or_digest_was_edited_or_removed_is_corrected() {
    let (rule, key) = (rule("r1", OLD, &json!({})), Key::namespaced("a", "settings"));
    for annotation in ["flant.com/source", "flant.com/content"] {
        for value in [None, Some(json!("a")), Some(json!("b/a"))] {
            let mut model = Model::with(&[object("src", "settings", "1")]);
            model.settle(&rule, &[], &["a"]);
            let edited = &mut model.objects.get_mut(&key).expect("a copy")["metadata"]["annotations"];
            let annotations = edited.as_object_mut().expect("annotations");
            let wanted = annotations.remove(annotation).expect("an annotation");
            annotations.extend(value.map(|value| (annotation.to_owned(), value)));
            model.settle(&rule, &[], &["a"]);
            assert_eq!(model.objects[&key]["metadata"]["annotations"][annotation], wanted);
        }
    }
}

#[test]
fn an_object_that_is_no_copy_is_taken_over_only_as_the_policy_says() {
    for (policy, other, equal) in [("Skip", "2", false), ("Adopt", "2", true), ("Overwrite", "1", true)] {
        let rule = rule("r1", OLD, &json!({"conflictPolicy": policy}));
        let mut equal_one = object("b", "settings", "1");
        equal_one["metadata"].as_object_mut().expect("metadata").remove("labels");
        let mut model =
            Model::with(&[object("src", "settings", "1"), object("a", "settings", "2"), equal_one]);
        model.settle(&rule, &[], &["a", "b"]);
        assert_eq!(model.data("a", "settings"), Some(other), "{policy}");
        assert_eq!(model.copied(&Key::namespaced("b", "settings")).is_some(), equal, "{policy}");
        model.settle(&rule, &[], &[]);
        assert_eq!(model.data("a", "settings").is_some(), policy != "Overwrite", "{policy}");
        assert_eq!(model.data("b", "settings").is_none(), equal, "{policy}");
    }
}

#[test]
fn content_that_can_never_change_is_replaced_only_if_it_is_ours() {
    let fixed = |namespace: &str, data: &str| {
        let mut object = object(namespace, "settings", data);
        object["immutable"] = json!(true);
        object
    };
    let (old, new) =
        (rule("old", OLD, &json!({})), rule("new", NEW, &json!({"conflictPolicy": "Overwrite"})));
    let mut model = Model::with(&[fixed("src", "1"), fixed("b", "theirs")]);
    let pass = model.settle(&new, &[], &["a", "b"]);
    assert_eq!((pass.copies, model.data("b", "settings")), (1, Some("theirs")));
    model.objects.insert(Key::namespaced("src", "settings"), fixed("src", "2"));
    // The older rule deletes only what is its own.
    model.settle(&old, &[&new], &["a"]);
    assert_eq!(
        model.writes,
        ["create a/settings", "patch a/settings", "replace a/settings", "create a/settings"]
    );
    assert_eq!(model.data("a", "settings"), Some("2"));
}

/// The source `settings` in a namespace.
fn settings(namespace: &str, created: &str) -> Arc<ConfigMap> {
    let mut source = object(namespace, "settings", namespace);
    source["metadata"]["creationTimestamp"] = json!(created);
    Arc::new(read(&source))
}

/// The plan of a rule that copies from `src` and `other`, without copies, and the keys of its steps.
fn plan_of(sources: Vec<Found<ConfigMap>>, targets: &[&str], steps_max: usize) -> (Pass, Vec<String>) {
    let rule = rule("r1", OLD, &json!({"namespaces": ["src", "other"]}));
    let targets: Vec<SmolStr> = targets.iter().map(SmolStr::new).collect();
    let view = View {
        targets: &targets,
        ours: Vec::new(),
        find: &|_| None,
        was_created: &|_, _| false,
        maker: &|_| Maker::Us,
        pause: &mut |_| None,
        steps_max,
        is_active: &|_| true,
    };
    let mut pass = Pass::default();
    let steps = plan(&rule, &Arc::new(rule.spec.clone().expect("readable")), sources, view, &mut pass);
    (pass, steps.iter().map(|step| step.key().to_string()).collect())
}

#[test]
fn of_two_sources_with_one_name_the_older_is_copied() {
    let sources = sources_of(vec![settings("src", NEW), settings("other", OLD)], Vec::new());
    let (pass, created) = plan_of(sources, &["src", "other", "a", "b"], 1);
    assert_eq!((created, pass.failures.len()), (vec!["a/settings".to_owned()], 1));
    assert_eq!((&*pass.failures[0].namespace, &*pass.failures[0].reason), ("src", OLDER_WINS));
    // The copy for b is left.
    assert_eq!((pass.wanted, pass.left, pass.has_writes_left), (2, 1, true));
}

/// Anybody in one of two namespaces could end the updates of the other's copies, with a source that is too large.
#[test]
fn a_source_for_which_there_is_no_room_keeps_the_copies_of_its_name_only_if_it_is_the_oldest() {
    let too_large = ("other", SOURCE_TOO_LARGE);
    for (readable, left_out, created, expected) in [
        (OLD, NEW, vec!["a/settings"], vec![too_large]),
        (NEW, OLD, vec![], vec![too_large, ("src", OLDER_WINS)]),
    ] {
        let sources = sources_of(vec![settings("src", readable)], vec![settings("other", left_out)]);
        let (pass, steps) = plan_of(sources, &["src", "other", "a"], 9);
        assert_eq!(steps, created);
        let failures: Vec<_> =
            pass.failures.iter().map(|failure| (&*failure.namespace, &*failure.reason)).collect();
        assert_eq!(failures, expected);
    }
}

/// Another digest would rewrite each copy of each user.
#[test]
fn the_digest_of_a_content_stays_as_it_is() {
    let rule = rule("r1", OLD, &json!({"copyLabels": ["team"]}));
    let spec = &Arc::new(rule.spec.clone().expect("the fields"));
    let digest = |source: ConfigMap| Original::new(&rule, spec, Arc::new(source)).digest().clone();
    assert_eq!(digest(read(&object("src", "settings", "1"))), "1193da34126d781ec8f0ff44594e48cc");
    let mut secret = object("src", "settings", "MQ==");
    secret["type"] = json!("Opaque");
    secret["metadata"]["labels"] = json!({"copyrator": "true"});
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    let digest = Original::new(&rule, spec, Arc::new(secret)).digest().clone();
    assert_eq!(digest, "ebcb143e2b11c695c1e03ad750091d7d");
}

/// With the type of its source, the API server would refuse it.
#[test]
fn a_copy_of_some_keys_has_the_type_that_they_allow() {
    let type_of = |of: &str, keys: &[&str], spec: Value| {
        let data: BTreeMap<_, _> = keys.iter().map(|key| (*key, "MQ==")).collect();
        let metadata = json!({"name": "tls", "namespace": "src", "resourceVersion": "1"});
        let source: Secret = serde_json::from_value(json!({"metadata": metadata, "type": of, "data": data}))
            .expect("a Secret");
        let rule = rule("r1", OLD, &spec);
        let spec = Arc::new(rule.spec.clone().expect("the fields"));
        let copy = Original::new(&rule, &spec, Arc::new(source)).copy_for("a");
        (copy.r#type.to_string(), copy.data.into_keys().collect::<Vec<_>>().join(" "))
    };
    let tls = |spec| type_of("kubernetes.io/tls", &["ca.crt", "tls.crt", "tls.key"], spec);
    let is = |of: &str, keys: &str| (of.to_owned(), keys.to_owned());
    assert_eq!(tls(json!({})), is("kubernetes.io/tls", "ca.crt tls.crt tls.key"));
    assert_eq!(tls(json!({"keys": ["ca.crt", "absent"]})), is("Opaque", "ca.crt"));
    assert_eq!(tls(json!({"keys": ["tls.crt", "tls.key"]})), is("kubernetes.io/tls", "tls.crt tls.key"));
    assert_eq!(tls(json!({"rename": {"tls.crt": "a.crt", "x": "y"}})), is("Opaque", "a.crt ca.crt tls.key"));
    assert_eq!(tls(json!({"keys": ["ca.crt"], "rename": {"ca.crt": "root.crt"}})), is("Opaque", "root.crt"));
    assert_eq!(tls(json!({"rename": {"ca.crt": "tls.crt"}})), is("kubernetes.io/tls", "tls.crt tls.key"));
    let basic = |keys: &[&str]| {
        type_of("kubernetes.io/basic-auth", &["username", "password", "uri"], json!({"keys": keys}))
    };
    assert_eq!(basic(&["password"]), is("kubernetes.io/basic-auth", "password"));
    assert_eq!(basic(&["uri"]), is("Opaque", "uri"));
    assert_eq!(type_of("example.com/any", &["a"], json!({"keys": ["b"]})), is("example.com/any", ""));
}

#[test]
fn objects_that_belong_to_their_namespace_are_never_copied() {
    let rule = rule("r1", OLD, &json!({}));
    let mut copy = object("src", "copy", "1");
    copy["metadata"]["labels"][LABEL] = json!("true");
    let helm = object("src", "sh.helm.release.v1.web.v1", "1");
    let model = Model::with(&[object("src", "kube-root-ca.crt", "1"), helm, copy]);
    let (pass, steps) = model.plan(&rule, &[], &["a"]);
    assert_eq!((pass.sources, steps.len()), (0, 0));
    for (kind, expected) in [("kubernetes.io/service-account-token", true), ("kubernetes.io/tls", false)] {
        let secret = Secret { r#type: kind.into(), ..Secret::default() };
        assert_eq!(is_bound_to_its_namespace(&secret), expected, "{kind}");
    }
}

#[test]
fn target_namespaces_are_chosen_by_name_and_label() {
    let namespace = |name: &str, labels: &Value, phase: &str| -> Namespace {
        let metadata = json!({"name": name, "resourceVersion": "1", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}}))
            .expect("a Namespace")
    };
    let is_target = |fields: Value, name: &str, labels: Value| {
        let rule = rule("r1", OLD, &json!({"targetNamespaces": fields}));
        rule.spec.expect("readable").is_target(&namespace(name, &labels, "Active"))
    };
    for (fields, name, expected) in [
        (json!({}), "team-a", true),
        (json!({}), "kube-system", false),
        (json!({"include": ["*"]}), "kube-system", false),
        (json!({"include": ["kube-*"]}), "kube-system", false),
        (json!({"include": ["kube-system"]}), "kube-system", true),
        (json!({"include": ["kube-system"]}), "team-a", false),
        (json!({"include": ["team-*"], "exclude": ["*-a"]}), "team-a", false),
        (json!({"include": ["team-*"], "exclude": ["*-a"]}), "team-b", true),
        (json!({"selector": {"tier": "web"}}), "team-a", true),
        (json!({"selector": {"tier": "db"}}), "team-a", false),
        (
            json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["db"]}]}}),
            "a",
            true,
        ),
    ] {
        assert_eq!(is_target(fields.clone(), name, json!({"tier": "web"})), expected, "{fields} {name}");
    }
    let all = rule("r1", OLD, &json!({})).spec.expect("readable");
    assert!(!all.is_target(&namespace("team-a", &json!({}), "Terminating")));
}

proptest! {
    /// Sources and targets come and go, copies are edited and deleted, and two rules take turns. In the end there is
    /// exactly what the older rule wants, and then what the younger one wants in addition.
    #[test]
    fn whatever_happens_the_copies_end_as_they_should_be(
        steps in proptest::collection::vec((0..6_u8, 0..3_usize, 0..3_usize), 0..40),
    ) {
        let (old, new) = (rule("old", OLD, &json!({})), rule("new", NEW, &json!({"copyLabels": ["team"]})));
        let (names, namespaces) = (["x", "y", "z"], ["a", "b", "c"]);
        let mut model = Model::with(&[]);
        let mut targets = [BTreeSet::new(), BTreeSet::from([0, 1, 2])];
        let at = |one: &BTreeSet<usize>| one.iter().map(|index| namespaces[*index]).collect::<Vec<_>>();
        for (kind, which, other) in steps {
            let source = Key::namespaced("src", names[which]);
            let place = Key::namespaced(namespaces[other], names[which]);
            match kind {
                0 => drop(model.objects.insert(source, object("src", names[which], &other.to_string()))),
                1 => drop(model.objects.remove(&source)),
                2 => drop(model.objects.remove(&place)),
                3 => {
                    let place = model.objects.get_mut(&place);
                    if let Some(copy) = place { copy["data"] = json!({"a": "theirs", "edited": "x"}) }
                }
                4 => if !targets[0].remove(&other) { targets[0].insert(other); },
                _ => if !targets[1].remove(&other) { targets[1].insert(other); },
            }
            let rule = if which == 0 { &old } else { &new };
            let index = usize::from(which != 0);
            let (_, steps) = model.plan(rule, &[&old, &new], &at(&targets[index]));
            if let Some(step) = steps.get(other) {
                model.step(step, rule, &[&old, &new]);
            }
        }
        for _ in 0..2 {
            model.settle(&old, &[&new], &at(&targets[0]));
            model.settle(&new, &[&old], &at(&targets[1]));
        }
        let mut expected = BTreeMap::new();
        for (rule, targets) in [(&new, &targets[1]), (&old, &targets[0])] {
            for namespace in at(targets) {
                for name in names {
                    if let Some(data) = model.data("src", name) {
                        expected.insert(Key::namespaced(namespace, name), (rule.metadata.uid.clone(), data.to_owned()));
                    }
                }
            }
        }
        let copies = model.objects.keys().filter_map(|key| model.copied(key));
        let found: BTreeMap<_, _> = copies.map(|copied| {
            let key = copied.key();
            let data = model.objects[&key]["data"]["a"].as_str().unwrap_or_default().to_owned();
            (key, (copied.mark.as_ref().expect("a mark").rule_uid.clone(), data))
        }).collect();
        prop_assert_eq!(found, expected);
    }
}
