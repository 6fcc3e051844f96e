//! What a Store keeps of the objects of one namespace takes less memory than a Pod has, whatever their fields are.

use listwatch::{
    resource::{Meta, Resource, kinds::*},
    shard::Shard,
    store::{Budget, KEPT_MIB, Kept, Store},
    watch::{Effect, apply_line},
};
use listwatch_operators::{
    copyrator::types::CopyratorRule,
    database::Database,
    memcached::{Memcached, PodReadiness},
    mywebserver::MyWebserver,
};
use serde_json::{Value, json};

/// About the bytes of each object, as they count, and the number of objects: more than one namespace may have.
const BYTES: usize = 240_000;
const OBJECTS: usize = 160;

/// The field at this path, with many of these items: of a list, or of a map if they have keys, or characters of a text. `#` is a number,
/// and `*` a list with one item.
fn fields(path: &str, item: &str) -> Value {
    let entries = 1 + item.matches([',', '{', '[']).count();
    let numbered =
        (0..BYTES / (item.len() + 5 + 64 * entries)).map(|number| item.replace('#', &format!("{number:05}")));
    let items = numbered.collect::<Vec<_>>().join(",");
    let value = match item {
        "x" => json!("x".repeat(BYTES)),
        item if item.contains("#\":") && !item.starts_with('{') => {
            serde_json::from_str(&format!("{{{items}}}")).expect("a map")
        }
        _ => serde_json::from_str(&format!("[{items}]")).expect("a list"),
    };
    path.rsplit('.').fold(value, |value, field| match field {
        "*" => json!([value]),
        field => json!({field: value}),
    })
}

/// Merges the fields that an object needs.
fn with(mut object: Value, more: &Value) -> Value {
    fn merge(into: &mut Value, more: &Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                more.iter().for_each(|(field, value)| merge(into.entry(field).or_insert(Value::Null), value));
            }
            (Value::Array(into), Value::Array(more)) => {
                into.iter_mut().zip(more).for_each(|(into, more)| merge(into, more));
            }
            (into @ Value::Null, more) => *into = more.clone(),
            _ => {}
        }
    }
    merge(&mut object, more);
    object
}

/// Fills a Store with objects whose fields at each of these paths are as large as that.
fn check<K: Resource>(needs: &Value, shapes: &[(&str, &str)]) {
    for (path, item) in shapes {
        let metadata =
            json!({"metadata": {"namespace": "a", "resourceVersion": "1", "name": "NAME", "uid": "NAME"}});
        let object = with(with(fields(path, item), &metadata), needs);
        let line = json!({"type": "ADDED", "object": object}).to_string();
        let store = Store::<K>::keeping(Kept::reconciled(&Budget::of_process(KEPT_MIB), Shard::default()));
        let mut kept = 0;
        let used = allocation_counter::measure(|| {
            for number in 0..OBJECTS {
                let line = line.replace("NAME", &format!("o-{number}"));
                apply_line(&store, line.as_bytes(), |_| Effect::Apply).expect("an event");
            }
        });
        for key in store.keys() {
            kept += usize::from(store.find(&key).is_some_and(|found| found.readable().is_some()));
        }
        let (now, most) = (used.bytes_current / 1000, used.bytes_max / 1000);
        let what = format!("{} {path} {item}: {kept} kept, {now} kB, {most} kB at most", K::KIND);
        eprintln!("{what}");
        assert_eq!(store.len(), OBJECTS);
        assert!(used.bytes_current < 48 * 1024 * 1024, "{what}");
        assert!(used.bytes_max < 64 * 1024 * 1024, "{what}");
    }
}

const METADATA: [(&str, &str); 4] = [
    ("metadata.labels", r##""#":"x""##),
    ("metadata.annotations", r##""#":"x""##),
    ("metadata.finalizers", r#""a/b""#),
    ("metadata.ownerReferences", r#"{"apiVersion":"v1","kind":"a","name":"b","uid":"c"}"#),
];

const POD: [(&str, &str); 8] = [
    // With the defaults of the API server.
    (
        "containers",
        r##"{"name":"#","image":"a","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File"}"##,
    ),
    ("containers.*.env", r##"{"name":"#","value":"x"}"##),
    ("containers.*.ports", r#"{"containerPort":1}"#),
    ("containers.*.args", r#""x""#),
    ("tolerations", "{}"),
    ("volumes", r##"{"name":"#","emptyDir":{}}"##),
    ("affinity.podAffinity", r#"{"a":{"b":0}}"#),
    ("hostAliases", r#"{"ip":"x"}"#),
];

fn check_workload<K: Resource>(template: &str) {
    let needs = json!({});
    check::<K>(&needs, &METADATA);
    for (path, item) in POD {
        check::<K>(&needs, &[(&format!("{template}.spec.{path}"), item)]);
    }
}

#[test]
fn objects_of_one_namespace_take_less_memory_than_a_pod_has_whatever_their_fields_are() {
    check::<MyWebserver>(
        &json!({"spec": {"image": "a"}}),
        &[
            ("spec.env.*.value", "x"),
            ("spec.env", r##"{"name":"#","value":"x"}"##),
            ("spec.tolerations", "{}"),
            ("spec.affinity.a", r#"{"a":{"b":0}}"#),
            ("spec.resources.limits", r##""#":"1""##),
            ("status.conditions", "{}"),
        ],
    );
    check::<Memcached>(&json!({"spec": {"size": 1}}), &[("spec.affinity.a", r#"{"a":{"b":0}}"#)]);
    let database = json!({"spec": {"size": 1, "version": "15"}});
    check::<Database>(&database, &[("spec.affinity.a", r#"{"a":{"b":0}}"#)]);
    let rule = json!({"ruleType": "configmap", "selector": {"a": "b"}});
    check::<CopyratorRule>(&rule, &[("targetNamespaces.include", r##""#""##)]);
    check_workload::<Deployment>("spec.template");
    check_workload::<StatefulSet>("spec.template");
    check::<Deployment>(&json!({}), &[("status.conditions", "{}"), ("spec.strategy.a", r#"{"a":{"b":0}}"#)]);
    check::<Service>(&json!({}), &[("spec.ports", r#"{"port":1}"#), ("spec.externalIPs", r#""x""#)]);
    check::<ConfigMap>(&json!({}), &[("data", r##""#":"""##), ("data.a", "x")]);
    check::<Secret>(&json!({}), &[("data", r##""#":"""##), ("data.a", "x")]);
    check::<Meta<Secret>>(&json!({}), &METADATA);
    check::<PodReadiness>(&json!({}), &METADATA);
}
