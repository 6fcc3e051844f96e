//! Memory: somebody who may create objects in one namespace cannot end an operator, which serves all namespaces.
//!
//! Each operator runs as a process, with a namespace full of large objects that have the labels of its children. All other objects are
//! served, and the process never takes as much memory as a fraction of these objects.

mod kept;

use std::{fs, ops::Range};

use listwatch::watch::Lists;
use listwatch_control_plane::{eventually, saw};
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::{UserClient, condition},
    fixture::{Fixture, Kind, on},
    in_process,
    operator::Operator,
};

/// Large objects of each kind, before the start of the operator, and again later.
const LARGE: usize = 16;
/// The same of the kind that the operator reconciles.
const OBJECTS_LARGE: usize = 30;
/// The same, if they have maps, so that one object would take 7 MB.
const MAPS_LARGE: usize = 8;
/// Objects of 200 kB of the kind that the operator reconciles.
const OBJECTS_OF_200_KB: usize = 420;
/// Most memory of the process without its executable. The limit of the Pod is 128 MiB; the large objects of a test
/// have 30 to 170 MB, and pages of lists are read at the same time.
const OWN_MEMORY_KIB_MAX: u64 = 96 * 1024;

/// Labels of the largest size: 540 kB.
fn labels(managed_by: &str) -> Value {
    let prefix = ["x"; 4].map(|x| x.repeat(62)).join(".");
    let label = |number| (format!("{prefix}/{number:0>63}"), json!("x".repeat(63)));
    let mut labels: serde_json::Map<_, _> = (0..1400).map(label).collect();
    labels.insert("app.kubernetes.io/managed-by".to_owned(), json!(managed_by));
    labels.insert("app.kubernetes.io/instance".to_owned(), json!("mine"));
    labels.into()
}

/// A process with access to everything, and two namespaces of the test.
struct Hostile<'a> {
    fixture: &'a Fixture,
    mine: UserClient,
    hostile: UserClient,
    operator: Operator,
    _dir: TempDir,
}

impl Hostile<'_> {
    /// Starts an operator after `create` has filled the hostile namespace.
    async fn start<'a>(
        fixture: &'a Fixture,
        operator: BuiltIn,
        args: &[&str],
        create: impl AsyncFn(&UserClient),
    ) -> Hostile<'a> {
        in_process::install(fixture, operator).await;
        let [mine, hostile] = ["mine", "hostile"].map(|name| format!("{}-{name}", fixture.namespace));
        for name in [&mine, &hostile] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            fixture.install(&namespace).await;
        }
        let namespaces = format!("{mine},{hostile}");
        let [mine, hostile] =
            [mine, hostile].map(|namespace| UserClient { namespace, ..fixture.user.clone() });
        create(&hostile).await;
        let dir = TempDir::new().unwrap();
        for (name, text) in
            [("token", fixture.admin_token()), ("ca.crt", &fixture.ca_pem()), ("namespace", "default")]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let name = format!("{operator:?}").to_lowercase();
        let mut all = vec!["--namespace", &namespaces];
        if fixture.lists == Lists::Streaming {
            all.push("--streaming-lists");
        }
        all.extend(args);
        let operator = Operator::run(&[&name], &fixture.url(), dir.path(), &all, &[]);
        Hostile { fixture, mine, hostile, operator, _dir: dir }
    }

    /// Waits until an object has this reason for `Ready`, at its present generation.
    async fn until_ready(&self, user: &UserClient, what: &str, reason: &str) -> Value {
        let is_so = |object: &Value| {
            let ready = condition(object, "Ready");
            saw(what, json!(ready));
            object["status"]["observedGeneration"] == object["metadata"]["generation"]
                && ready.is_some_and(|ready| ready["reason"] == reason)
        };
        user.until(what, is_so).await
    }

    /// Waits until the status of each large object says that it is too large.
    async fn until_too_large(&self, plural: &str, count: usize) {
        for number in 0..count {
            for part in ["a", "b"] {
                let what = format!("{plural}/{part}-{number}");
                let object = self.until_ready(&self.hostile, &what, "InvalidSpec").await;
                let message = &condition(&object, "Ready").unwrap()["message"];
                assert_eq!(message, "the object is too large: more than 256 KiB");
            }
        }
    }

    /// The most memory that the process ever had, without its executable.
    fn assert_small(&self) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.operator.id())).unwrap();
        let kib = |field: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(field)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let own = kib("VmHWM:") - kib("RssFile:");
        eprintln!("{}: {own} KiB, now {}", self.fixture.name, kib("RssAnon:"));
        assert!(own < OWN_MEMORY_KIB_MAX, "{own} KiB");
    }

    /// Creates an object of the operator's kind in the other namespace, and changes it after more large objects.
    async fn serves(&self, plural: &str, object: &Value, change: Value, more: impl AsyncFn(&UserClient)) {
        self.mine.create(plural, object).await;
        let what = format!("{plural}/mine");
        self.until_ready(&self.mine, &what, "RolloutInProgress").await;
        more(&self.hostile).await;
        self.mine.patch(&what, change).await;
        self.until_ready(&self.mine, &what, "RolloutInProgress").await;
        self.assert_small();
    }
}

const SERVERS: [Kind; 2] = [Kind::Embedded, Kind::RealPaged];

fn large(name: &str, labels: Value, more: Value) -> Value {
    let mut object = json!({"metadata": {"name": name, "labels": labels}});
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

async fn create_deployments_and_services(user: &UserClient, name: &str, managed_by: &str) {
    let pod = json!({
        "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    });
    let deployment = json!({"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": pod}});
    let service = json!({"spec": {"ports": [{"port": 80}]}});
    for number in 0..LARGE {
        let name = format!("{name}-{number}");
        user.create("deployments", &large(&name, labels(managed_by), deployment.clone())).await;
        user.create("services", &large(&name, labels(managed_by), service.clone())).await;
    }
}

#[tokio::test]
async fn mywebservers_are_served_beside_deployments_and_services_with_hundreds_of_long_labels() {
    on(&SERVERS, async |fixture| {
        let create = async |user: &UserClient, name| {
            create_deployments_and_services(user, name, "mywebserver-operator").await;
        };
        let hostile =
            Hostile::start(fixture, BuiltIn::Mywebserver, &[], async |user| create(user, "a").await).await;
        let web = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "metadata": {"name": "mine"}, "spec": {"image": "nginx"}});
        let change = json!({"spec": {"replicas": 2}});
        hostile.serves("mywebservers", &web, change, async |user| create(user, "b").await).await;
    })
    .await;
}

/// All of them and their Deployments were kept, and the operator was killed, again after each restart.
#[tokio::test]
async fn mywebservers_are_served_beside_mywebservers_of_200_kilobytes_which_are_served_too() {
    on(&SERVERS, async |fixture| {
        let web = |name: &str, env: Value| {
            let spec = json!({"image": "nginx", "env": env});
            json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "metadata": {"name": name}, "spec": spec})
        };
        let variable = |number| json!({"name": format!("A{number}"), "value": "x".repeat(4000)});
        let large: Vec<_> = (0..50).map(variable).collect();
        let create = async |user: &UserClient, range: Range<usize>| {
            for number in range {
                user.create("mywebservers", &web(&format!("a-{number}"), json!(large))).await;
            }
        };
        let half = OBJECTS_OF_200_KB / 2;
        let hostile =
            Hostile::start(fixture, BuiltIn::Mywebserver, &[], async |user| create(user, 0..half).await)
                .await;
        let change = json!({"spec": {"replicas": 2}});
        let mine = web("mine", json!([]));
        hostile
            .serves("mywebservers", &mine, change, async |user| create(user, half..OBJECTS_OF_200_KB).await)
            .await;
        for number in 0..OBJECTS_OF_200_KB {
            hostile
                .until_ready(&hostile.hostile, &format!("mywebservers/a-{number}"), "RolloutInProgress")
                .await;
        }
        hostile.assert_small();
    })
    .await;
}

#[tokio::test]
async fn memcacheds_are_served_beside_pods_deployments_and_services_with_hundreds_of_long_labels() {
    on(&SERVERS, async |fixture| {
        let create = async |user: &UserClient, name: &str| {
            create_deployments_and_services(user, name, "memcached-operator").await;
            let pod = json!({"spec": {"containers": [{"name": "web", "image": "nginx"}], "automountServiceAccountToken": false}});
            user.create("serviceaccounts", &json!({"metadata": {"name": name}})).await;
            for number in 0..LARGE {
                let mut pod = pod.clone();
                pod["spec"]["serviceAccountName"] = json!(name);
                let name = format!("{name}-{number}");
                user.create("pods", &large(&name, labels("memcached-operator"), pod)).await;
            }
        };
        let hostile =
            Hostile::start(fixture, BuiltIn::Memcached, &[], async |user| create(user, "a").await).await;
        let cache = json!({"apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "metadata": {"name": "mine"}, "spec": {"size": 1}});
        let change = json!({"spec": {"size": 2}});
        hostile.serves("memcacheds", &cache, change, async |user| create(user, "b").await).await;
    })
    .await;
}

/// The ConfigMaps of one namespace ended the operator at each start, whose memory limit is 64 MiB.
#[tokio::test]
async fn databases_are_served_beside_large_config_maps_and_secrets() {
    on(&SERVERS, async |fixture| {
        let create = async |user: &UserClient, name: &str| {
            let managed = || json!({"app.kubernetes.io/managed-by": "database-operator", "app.kubernetes.io/instance": "mine"});
            // The owner of some of them does not exist, or is said to be a Database.
            let owner = json!({
                "apiVersion": "app.example.com/v1", "kind": "Database", "name": "mine", "uid": "00e4f4f5-13c0-44c5-98d6-3aca49e4a0b4",
                "controller": true,
            });
            // Many short keys take ten times as much memory as one long text.
            let keys: serde_json::Map<_, _> =
                (0..700).map(|number| (format!("k{number}"), json!(""))).collect();
            for number in 0..LARGE {
                let data = json!({"data": {"a": "x".repeat(950_000)}});
                user.create("configmaps", &large(&format!("{name}-data-{number}"), managed(), data.clone())).await;
                let mut owned = large(&format!("{name}-owned-{number}"), managed(), json!({"data": keys}));
                owned["metadata"]["ownerReferences"] = json!([owner]);
                user.create("configmaps", &owned).await;
                for part in 0..16 {
                    owned["metadata"]["name"] = json!(format!("{name}-owned-{number}-{part}"));
                    user.create("configmaps", &owned).await;
                }
                let labels = labels("database-operator");
                user.create("secrets", &large(&format!("{name}-labels-{number}"), labels, json!({}))).await;
                let mut annotated = large(&format!("{name}-notes-{number}"), managed(), json!({}));
                annotated["metadata"]["annotations"] = json!({"note": "x".repeat(250_000)});
                user.create("secrets", &annotated).await;
                // No annotation of a Secret or claim is read, however small it is.
                let volume = json!({"spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                }});
                for (part, (plural, spec)) in
                    (0..16).flat_map(|part| [("secrets", json!({})), ("persistentvolumeclaims", volume.clone())].map(|of| (part, of)))
                {
                    let mut annotated = large(&format!("{name}-note-{number}-{part}"), managed(), spec);
                    annotated["metadata"]["annotations"] = json!({"note": "x".repeat(60_000)});
                    user.create(plural, &annotated).await;
                }
            }
        };
        let hostile =
            Hostile::start(fixture, BuiltIn::Database, &[], async |user| create(user, "a").await).await;
        let database = json!({"apiVersion": "app.example.com/v1", "kind": "Database", "metadata": {"name": "mine"}, "spec": {"size": 1, "version": "15"}});
        let change = json!({"spec": {"size": 2}});
        hostile.serves("databases", &database, change, async |user| create(user, "b").await).await;
    })
    .await;
}

/// All of them were kept, and the operator was killed.
#[tokio::test]
async fn a_rule_with_too_many_large_sources_says_so_and_other_rules_are_served() {
    on(&SERVERS, async |fixture| {
        let create = async |user: &UserClient, name: &str| {
            for number in 0..LARGE {
                let data = json!({"data": {"a": "x".repeat(950_000)}});
                let source = large(&format!("{name}-{number:02}"), json!({"copyrator": "true"}), data);
                user.create("configmaps", &source).await;
                let mut labels = labels("copyrator");
                labels["flant.com/copy"] = json!("true");
                user.create("configmaps", &large(&format!("{name}-copy-{number}"), labels, json!({}))).await;
            }
        };
        let rule = |fixture: &Fixture| {
            json!({
                "apiVersion": "flant.com/v1", "kind": "CopyratorRule", "metadata": {"name": "mine"},
                "ruleType": "configmap", "selector": {"copyrator": "true"},
                "targetNamespaces": {"include": [format!("{}-target", fixture.namespace)]},
            })
        };
        let hostile = Hostile::start(fixture, BuiltIn::Copyrator, &["--rule-name=*"], async |user| {
            let target = format!("{}-target", fixture.namespace);
            let target = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": target}});
            fixture.install(&target).await;
            create(user, "a").await;
        })
        .await;
        hostile.hostile.create("copyrators", &rule(fixture)).await;
        hostile.mine.create("copyrators", &rule(fixture)).await;
        let source = large("settings", json!({"copyrator": "true"}), json!({"data": {"a": "1"}}));
        hostile.mine.create("configmaps", &source).await;
        hostile.until_ready(&hostile.mine, "copyrators/mine", "Synced").await;
        let is_stalled = |rule: &Value| {
            condition(rule, "Stalled").is_some_and(|stalled| stalled["reason"] == "SourceTooLarge")
        };
        let stalled = hostile.hostile.until("copyrators/mine", is_stalled).await;
        assert_eq!(condition(&stalled, "Ready").unwrap()["reason"], "CopiesFailed");
        let message = condition(&stalled, "Stalled").unwrap()["message"].as_str().unwrap().to_owned();
        let limit =
            format!("the objects to copy from namespace {} take more than 8 MiB", hostile.hostile.namespace);
        assert!(message.contains(&limit), "{message}");

        create(&hostile.hostile, "b").await;
        hostile.mine.patch("configmaps/settings", json!({"data": {"a": "2"}})).await;
        let target =
            UserClient { namespace: format!("{}-target", fixture.namespace), ..fixture.user.clone() };
        target.until("configmaps/settings", |copy| copy["data"]["a"] == "2").await;
        hostile.until_ready(&hostile.mine, "copyrators/mine", "Synced").await;
        hostile.assert_small();

        // When there is room again, the others are copied.
        let copied = async || {
            let rule = hostile.hostile.get("copyrators/mine").await;
            rule["status"]["copies"].as_i64().unwrap_or_default()
        };
        eventually("some of them to be copied", async || (copied().await >= 8).then_some(())).await;
        for name in ["a", "b"] {
            for number in 0..LARGE - 2 {
                hostile.hostile.delete(&format!("configmaps/{name}-{number:02}")).await;
            }
        }
        hostile.until_ready(&hostile.hostile, "copyrators/mine", "Synced").await;
        assert_eq!(copied().await, 4);
        hostile.assert_small();
    })
    .await;
}

/// Each of them had a copy of all sources, and together they had eight times the memory of the sources.
#[tokio::test]
async fn rules_are_served_beside_many_rules_that_copy_some_keys_of_the_same_sources() {
    on(&SERVERS, async |fixture| {
        let rule = |name: &str, include: &str| {
            json!({
                "apiVersion": "flant.com/v1", "kind": "CopyratorRule", "metadata": {"name": name},
                "ruleType": "configmap", "selector": {"copyrator": "true"}, "keys": ["a"],
                "targetNamespaces": {"include": [format!("{}-{include}", fixture.namespace)]},
            })
        };
        let hostile = Hostile::start(fixture, BuiltIn::Copyrator, &["--rule-name=*"], async |user| {
            for number in 0..8 {
                let target = format!("{}-{number}", fixture.namespace);
                fixture
                    .install(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": target}}))
                    .await;
                let data = json!({"data": {"a": "x".repeat(950_000), "b": ""}});
                user.create("configmaps", &large(&format!("a-{number}"), json!({"copyrator": "true"}), data))
                    .await;
                user.create("copyrators", &rule(&format!("a-{number}"), &number.to_string())).await;
            }
        })
        .await;
        hostile.mine.create("copyrators", &rule("mine", "hostile")).await;
        let source = large("settings", json!({"copyrator": "true"}), json!({"data": {"a": "1", "b": "2"}}));
        hostile.mine.create("configmaps", &source).await;
        for number in 0..8 {
            hostile.until_ready(&hostile.hostile, &format!("copyrators/a-{number}"), "Synced").await;
        }
        hostile.until_ready(&hostile.mine, "copyrators/mine", "Synced").await;
        assert_eq!(hostile.hostile.get("configmaps/settings").await["data"], json!({"a": "1"}));
        hostile.assert_small();
    })
    .await;
}

/// All of them were kept, and the operator was killed.
#[tokio::test]
async fn rules_are_served_beside_rules_with_thousands_of_labels() {
    on(&SERVERS, async |fixture| {
        let values: Vec<_> = (0..14_000).map(|number| format!("{number:0>60}")).collect();
        let large = json!({"matchExpressions": [{"key": "copyrator", "operator": "In", "values": values}]});
        let rule = |name: &str, selector: Value| {
            json!({
                "apiVersion": "flant.com/v1", "kind": "CopyratorRule", "metadata": {"name": name},
                "ruleType": "configmap", "selector": selector,
            })
        };
        let create = async |user: &UserClient, name: &str| {
            for number in 0..OBJECTS_LARGE {
                user.create("copyrators", &rule(&format!("{name}-{number}"), large.clone())).await;
            }
        };
        let hostile = Hostile::start(fixture, BuiltIn::Copyrator, &["--rule-name=*"], async |user| {
            create(user, "a").await
        })
        .await;
        hostile.mine.create("copyrators", &rule("mine", json!({"copyrator": "true"}))).await;
        hostile.until_ready(&hostile.mine, "copyrators/mine", "NoSources").await;
        create(&hostile.hostile, "b").await;
        hostile.until_too_large("copyrators", OBJECTS_LARGE).await;
        let change = json!({"selector": {"copyrator": "other"}});
        hostile.mine.patch("copyrators/mine", change).await;
        hostile.until_ready(&hostile.mine, "copyrators/mine", "NoSources").await;
        hostile.assert_small();
    })
    .await;
}

/// The schema leaves `affinity` open.
#[tokio::test]
async fn databases_are_served_beside_databases_of_a_megabyte() {
    on(&SERVERS, async |fixture| {
        let database = |name: &str, affinity: Value| {
            let spec = json!({"size": 1, "version": "15", "affinity": affinity});
            json!({"apiVersion": "app.example.com/v1", "kind": "Database", "metadata": {"name": name}, "spec": spec})
        };
        // Many small maps take sixty times as much memory as their JSON.
        let maps = json!({"maps": vec![json!({"a": 0}); 10_000]});
        let create = async |user: &UserClient, name: &str| {
            for number in 0..MAPS_LARGE {
                user.create("databases", &database(&format!("{name}-{number}"), maps.clone())).await;
            }
        };
        let hostile =
            Hostile::start(fixture, BuiltIn::Database, &[], async |user| create(user, "a").await).await;
        let change = json!({"spec": {"size": 2}});
        let mine = database("mine", json!({}));
        hostile.serves("databases", &mine, change, async |user| create(user, "b").await).await;
        hostile.until_too_large("databases", MAPS_LARGE).await;
        hostile.assert_small();
    })
    .await;
}
