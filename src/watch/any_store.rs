//! [`AnyStore`]: what the loop in `watch.rs` does with a [`Store`] of any kind. It decodes the objects.

use smol_str::SmolStr;

use super::{Effect, decode::WatchEvent};
use crate::{
    client::{Error, PageBody},
    resource::{
        ObjectMeta, Resource,
        list::{Found, RawPage},
    },
    store::Store,
};

/// A [`Store`] of any kind, with the decoder of its objects. Only what is called through this trait is compiled for each kind.
pub(crate) trait AnyStore: Send + Sync {
    /// [`Store::version`].
    fn version(&self) -> SmolStr;
    /// [`Store::list_begins`].
    fn list_begins(&self);
    /// Takes the objects of a page of a list.
    fn page(&self, page: PageBody) -> Result<PageHead, Error>;
    /// [`Store::list_ends`].
    fn list_ends(&self, version: &SmolStr);
    /// Decodes a line of a watch, asks `decide` for its effect, and has this effect.
    fn line(
        &self,
        line: &[u8],
        decide: &mut dyn FnMut(&WatchEvent<&ObjectMeta>) -> Effect,
    ) -> Result<Effect, serde_json::Error>;
    /// [`Store::forbidden`].
    fn forbidden(&self);
    /// [`Store::len`].
    fn objects(&self) -> usize;
}

/// A page of a list without its objects.
pub(crate) struct PageHead {
    pub(super) version: SmolStr,
    pub(super) continue_token: String,
    /// The number of objects.
    pub(super) objects: usize,
}

impl<K: Resource> AnyStore for Store<K> {
    fn version(&self) -> SmolStr {
        self.version()
    }

    fn list_begins(&self) {
        self.list_begins();
    }

    fn page(&self, page: PageBody) -> Result<PageHead, Error> {
        // One by one: there is never more than one object in memory that is not kept.
        page.read(|body| {
            let page = RawPage::from_json(body)?;
            let version = page.version()?;
            // Also without objects: if this version is older, the server was restored from a backup.
            self.listed(&version, []);
            for object in page.items() {
                let (found, bytes) = match self.kept.weigh(object.as_bytes()) {
                    Ok(bytes) => (Found::from_json(object)?, bytes),
                    Err(problem) => (Found::without_content(object, problem)?, 0),
                };
                self.listed_of(&version, [(found, bytes)]);
            }
            let objects = page.items().count();
            Ok(PageHead { version, continue_token: page.continue_token(), objects })
        })
    }

    fn list_ends(&self, version: &SmolStr) {
        self.list_ends(version);
    }

    fn line(
        &self,
        line: &[u8],
        decide: &mut dyn FnMut(&WatchEvent<&ObjectMeta>) -> Effect,
    ) -> Result<Effect, serde_json::Error> {
        let (event, bytes) = match self.kept.weigh(line) {
            Ok(bytes) => (WatchEvent::<Found<K>>::from_json(line)?, bytes),
            Err(problem) => (WatchEvent::without_content(line, &problem)?, 0),
        };
        let effect = decide(&event.head());
        match (&effect, event.object()) {
            (Effect::Apply, Some(object)) => self.applied_of(object, bytes),
            (Effect::Remove, Some(object)) => self.deleted(object),
            (Effect::Listed, Some(object)) => self.listed_of("", [(object, bytes)]),
            (Effect::Complete(version), None) => self.list_ends(version),
            (Effect::Bookmark(version), None) => self.bookmark(version),
            // No effect on the Store, or not an effect of such an event.
            (Effect::Apply | Effect::Remove | Effect::Listed | Effect::Skip | Effect::End(_), None)
            | (Effect::Complete(_) | Effect::Bookmark(_) | Effect::Skip | Effect::End(_), Some(_)) => {}
        }
        Ok(effect)
    }

    fn forbidden(&self) {
        self.forbidden();
    }

    fn objects(&self) -> usize {
        self.len()
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        operators::{
            copyrator::types::CopyratorRule, database::Database, memcached::Memcached,
            mywebserver::MyWebserver,
        },
        resource::{Meta, kinds::*},
        shard::Shard,
        store::{Budget, KEPT_MIB, Kept},
    };

    /// About the bytes of each object, as they count, and the number of objects: more than one namespace may have.
    const BYTES: usize = 240_000;
    const OBJECTS: usize = 160;

    /// The field at this path, with many of these items: of a list, or of a map if they have keys, or characters of a text. `#` is a number,
    /// and `*` a list with one item.
    fn fields(path: &str, item: &str) -> Value {
        let entries = 1 + item.matches([',', '{', '[']).count();
        let numbered = (0..BYTES / (item.len() + 5 + 64 * entries))
            .map(|number| item.replace('#', &format!("{number:05}")));
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
                    more.iter()
                        .for_each(|(field, value)| merge(into.entry(field).or_insert(Value::Null), value));
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
            let metadata = json!({"metadata": {"namespace": "a", "resourceVersion": "1", "name": "NAME", "uid": "NAME"}});
            let object = with(with(fields(path, item), &metadata), needs);
            let line = json!({"type": "ADDED", "object": object}).to_string();
            let store =
                Store::<K>::keeping(Kept::reconciled(&Budget::of_process(KEPT_MIB), Shard::default()));
            let mut kept = 0;
            let used = allocation_counter::measure(|| {
                for number in 0..OBJECTS {
                    let line = line.replace("NAME", &format!("o-{number}"));
                    store.line(line.as_bytes(), &mut |_| Effect::Apply).expect("an event");
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
        check::<Deployment>(
            &json!({}),
            &[("status.conditions", "{}"), ("spec.strategy.a", r#"{"a":{"b":0}}"#)],
        );
        check::<Service>(&json!({}), &[("spec.ports", r#"{"port":1}"#), ("spec.externalIPs", r#""x""#)]);
        check::<ConfigMap>(&json!({}), &[("data", r##""#":"""##), ("data.a", "x")]);
        check::<Secret>(&json!({}), &[("data", r##""#":"""##), ("data.a", "x")]);
        check::<Meta<Secret>>(&json!({}), &METADATA);
        check::<PodReadiness>(&json!({}), &METADATA);
    }
}
