//! The stories of the demo: for each operator, what a user does, and what to look for. Nothing in this file does I/O.

use clap::ValueEnum;
use http::Method;
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

/// A demo of one operator.
pub(super) struct Story {
    pub(super) operator: BuiltIn,
    /// The kind of its objects.
    pub(super) kind: &'static str,
    /// The watch whose events are shown.
    pub(super) watch: &'static str,
    /// The kinds that the operator watches.
    pub(super) watched: usize,
    pub(super) scenes: Vec<Scene>,
    /// The state after the last scene.
    pub(super) end: &'static str,
    /// Commands to try after that.
    pub(super) commands: &'static [&'static str],
}

/// One step: a command of the user, and its consequences.
pub(super) struct Scene {
    pub(super) announced: &'static str,
    pub(super) command: String,
    /// The requests of that command.
    pub(super) requests: Vec<UserRequest>,
    /// When the scene is over.
    pub(super) until: Vec<Until>,
    /// Why the operator sends its requests.
    pub(super) reasons: &'static [Reason],
}

/// The start of a request, with its verb and resource, and why the operator sends it.
pub(super) type Reason = (&'static str, &'static str);

/// Why the operator sends some requests, before the scenes.
pub(super) const START: &[Reason] = &[("list", "what exists"), ("watch", "what changes after that")];
/// Why the operator sends some requests, in each scene.
pub(super) const ALWAYS: &[Reason] =
    &[("list pods", "why do they not run?"), ("create events", "for kubectl describe")];

/// Method, path and, if there is one, body. The body of a PATCH that is a list is a JSON patch, else it is a merge patch.
pub(super) type UserRequest = (Method, &'static str, Value);

/// The path of an object, and what is true of it at the end of a scene. An object that does not exist is `null`.
pub(super) type Until = (&'static str, fn(&Value) -> bool);

impl Story {
    pub(super) fn of(operator: BuiltIn) -> Story {
        match operator {
            BuiltIn::Mywebserver => mywebserver(),
            BuiltIn::Copyrator => copyrator(),
            BuiltIn::Database => database(),
            BuiltIn::Memcached => memcached(),
        }
    }

    /// The name of the operator on the command line.
    pub(super) fn name(&self) -> String {
        let name = self.operator.to_possible_value().expect("no operator is hidden");
        name.get_name().to_owned()
    }

    /// The user name of the operator's token.
    pub(super) fn user(&self) -> String {
        let name = self.name();
        format!("system:serviceaccount:{name}-system:{name}-operator")
    }
}

/// A sample of the manifests: its path and its text.
macro_rules! sample {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../../manifests/", $path)))
    };
}

/// `kubectl apply -f` of a sample, with the collection of each of its objects.
fn apply(
    announced: &'static str,
    (path, text): (&str, &str),
    collections: &[&'static str],
    until: Vec<Until>,
    reasons: &'static [Reason],
) -> Scene {
    let objects = listwatch_yaml::documents(text).map(|object| applied(object.expect("a sample is YAML")));
    let objects: Vec<Value> = objects.collect();
    assert_eq!(objects.len(), collections.len(), "the objects of {path}");
    let requests = collections.iter().zip(objects).map(|(path, object)| (Method::POST, *path, object));
    let (command, requests) = (format!("kubectl apply -f manifests/{path}"), requests.collect());
    Scene { announced, command, requests, until, reasons }
}

/// An object as `kubectl apply` creates it: with the annotation by which a later `apply` finds removed fields.
pub(super) fn applied(mut object: Value) -> Value {
    let manifest = format!("{object}\n");
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": manifest});
    object
}

/// Whether the operator reports the newest generation as Ready.
fn is_ready(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
        && has_condition(object, "Ready")
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|one| one["type"] == kind && one["status"] == "True")
}

fn is_gone(object: &Value) -> bool {
    object.is_null()
}

fn is_there(object: &Value) -> bool {
    !object.is_null()
}

const WEBS_V1: &str = "/apis/k8sobjects.gsa.com/v1/namespaces/default/mywebservers";
const WEBS: &str = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers";
const HELLO: &str = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers/hello";
const WEB: &str = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers/web";
const WEB_SCALE: &str = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers/web/scale";
const WEB_DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/mws-web";
const WEB_SERVICE: &str = "/api/v1/namespaces/default/services/mws-web";

fn mywebserver() -> Story {
    let port = json!([{"op": "add", "path": "/spec/ports/-", "value": {"name": "extra", "port": 9999}}]);
    Story {
        operator: BuiltIn::Mywebserver,
        kind: "MyWebserver",
        watch: "/apis/k8sobjects.gsa.com/v2/mywebservers?watch=1",
        watched: 3,
        scenes: vec![
            apply(
                "Next: a user creates the MyWebserver hello in the API version v1, which has no field for replicas.\n\
                 Look for: ADDED, in the watch of v2, with the default of replicas. The operator creates two children.\n\
                 Each patch of the status is another event. The last one is Ready=True.",
                sample!("mywebserver/samples/mywebserver-v1.yaml"),
                &[WEBS_V1],
                vec![(HELLO, is_ready)],
                &[("create deployments", "runs the Pods"), ("create services", "leads to the Pods")],
            ),
            apply(
                "Next: a user creates the MyWebserver web in the API version v2, with two replicas.\n\
                 Look for: the same requests as before. Ready=True comes when both Pods are ready.",
                sample!("mywebserver/samples/mywebserver-v2.yaml"),
                &[WEBS],
                vec![(WEB, is_ready)],
                &[("create deployments", "runs the Pods"), ("create services", "leads to the Pods")],
            ),
            Scene {
                announced: "Next: the user changes one field of web, replicas.\n\
                            Look for: one patch of the Deployment. The Service stays as it is.",
                command: "kubectl scale mws/web --replicas=3".to_owned(),
                requests: vec![(Method::PATCH, WEB_SCALE, json!({"spec": {"replicas": 3}}))],
                until: vec![(WEB, is_ready)],
                reasons: &[("patch deployments", "three replicas")],
            },
            Scene {
                announced: "Next: the user deletes the Deployment of web.\n\
                            Look for: the operator reacts although web has not changed, because it also watches Deployments.\n\
                            It makes sure with a get (404), then it creates the Deployment again.",
                command: "kubectl delete deployment mws-web    # the operator recreates it".to_owned(),
                requests: vec![(Method::DELETE, WEB_DEPLOYMENT, Value::Null)],
                until: vec![
                    (WEB_DEPLOYMENT, |deployment| deployment["status"]["readyReplicas"] == 3),
                    (WEB, is_ready),
                ],
                reasons: &[
                    ("get deployments", "it is really gone"),
                    ("get mywebservers", "its owner still exists"),
                    ("create deployments", "again"),
                ],
            },
            Scene {
                announced: "Next: the user adds a port to the Service of web.\n\
                            Look for: one patch that removes the port. The status of web stays the same, so no MODIFIED follows.\n\
                            The operator creates an Event: an object, for kubectl describe, and no watch event.",
                command: format!("kubectl patch service mws-web --type=json -p \\\n    '{port}'"),
                requests: vec![(Method::PATCH, WEB_SERVICE, port)],
                until: vec![(WEB_SERVICE, |service| {
                    service["spec"]["ports"].as_array().map(Vec::len) == Some(1)
                })],
                reasons: &[("patch services", "removes the port")],
            },
            Scene {
                announced: "Next: the user deletes web.\n\
                            Look for: DELETED. The whole event, with -v or from curl, has the last state of web. The operator deletes the children,\n\
                            and so does the garbage collector of the cluster; where that is first, the operator gets 404 Not Found.",
                command: "kubectl delete mws/web".to_owned(),
                requests: vec![(Method::DELETE, WEB, Value::Null)],
                until: vec![(WEB_DEPLOYMENT, is_gone), (WEB_SERVICE, is_gone)],
                reasons: &[("delete ", "if no garbage collector does")],
            },
        ],
        end: "The children of web are deleted; the children of hello still exist.",
        commands: &["kubectl get mws,deploy,svc,pods", "kubectl scale mws/hello --replicas=3"],
    }
}

const RULES: &str = "/apis/flant.com/v1/namespaces/default/copyrators";
const RULE: &str = "/apis/flant.com/v1/namespaces/default/copyrators/main-rule";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SOURCE: &str = "/api/v1/namespaces/default/configmaps/settings";
const COPY: &str = "/api/v1/namespaces/team-a/configmaps/settings";

fn copyrator() -> Story {
    let color = |color: &str| json!({"data": {"color": color}});
    let is_red: fn(&Value) -> bool = |copy| copy["data"]["color"] == "red";
    Story {
        operator: BuiltIn::Copyrator,
        kind: "CopyratorRule",
        watch: "/apis/flant.com/v1/copyrators?watch=1",
        watched: 3,
        scenes: vec![
            apply(
                "Next: a user creates the rule main-rule, and a ConfigMap with the label that the rule selects.\n\
                 Look for: the operator adds its finalizer to the rule, and watches the ConfigMaps with this label.\n\
                 There is nothing to copy: default has the ConfigMap itself, and kube-* namespaces get no copies.",
                sample!("copyrator/samples/main-rule.yaml"),
                &[RULES, CONFIG_MAPS],
                vec![(RULE, |rule| is_ready(rule) && rule["status"]["sources"] == 1)],
                &[
                    ("patch copyrators", "adds the finalizer"),
                    ("list configmaps", "those with the label of the rule"),
                    ("watch configmaps", "those with the label of the rule"),
                ],
            ),
            Scene {
                announced: "Next: the user creates a namespace.\n\
                            Look for: one create, in the namespace team-a. The status of the rule counts the copy.",
                command: "kubectl create namespace team-a    # the operator creates a copy in it".to_owned(),
                requests: vec![(Method::POST, "/api/v1/namespaces", json!({"metadata": {"name": "team-a"}}))],
                until: vec![(COPY, is_red), (RULE, |rule| rule["status"]["copies"] == 1)],
                reasons: &[("create configmaps", "the copy")],
            },
            Scene {
                announced: "Next: somebody edits the copy.\n\
                            Look for: a get, because the operator watches only the metadata of copies, and a patch.",
                command: format!("kubectl -n team-a patch configmap settings -p '{}'", color("green")),
                requests: vec![(Method::PATCH, COPY, color("green"))],
                until: vec![(COPY, is_red)],
                reasons: &[
                    ("get configmaps", "the watch has only metadata"),
                    ("patch configmaps", "restores the data"),
                ],
            },
            Scene {
                announced: "Next: the user changes the ConfigMap itself.\n\
                            Look for: a get and a patch of the copy.",
                command: format!("kubectl patch configmap settings -p '{}'", color("blue")),
                requests: vec![(Method::PATCH, SOURCE, color("blue"))],
                until: vec![(COPY, |copy| copy["data"]["color"] == "blue")],
                reasons: &[
                    ("get configmaps", "the watch has only metadata"),
                    ("patch configmaps", "copies the new data"),
                ],
            },
            Scene {
                announced: "Next: the user deletes the rule.\n\
                            Look for: the operator deletes the copy. Then it removes its finalizer, and the rule is DELETED.",
                command: "kubectl delete copyr/main-rule".to_owned(),
                requests: vec![(Method::DELETE, RULE, Value::Null)],
                until: vec![(COPY, is_gone), (RULE, is_gone)],
                reasons: &[("delete configmaps", "the copy"), ("patch copyrators", "removes the finalizer")],
            },
        ],
        end: "The copy is deleted; the ConfigMap in default still exists.",
        commands: &["kubectl get copyr,cm -A", "kubectl apply -f manifests/copyrator/samples/main-rule.yaml"],
    }
}

const CACHES: &str = "/apis/cache.example.com/v1alpha1/namespaces/default/memcacheds";
const CACHE: &str = "/apis/cache.example.com/v1alpha1/namespaces/default/memcacheds/cache";
const CACHE_SCALE: &str = "/apis/cache.example.com/v1alpha1/namespaces/default/memcacheds/cache/scale";
const CACHE_SERVICE: &str = "/api/v1/namespaces/default/services/cache";

fn memcached() -> Story {
    Story {
        operator: BuiltIn::Memcached,
        kind: "Memcached",
        watch: "/apis/cache.example.com/v1alpha1/memcacheds?watch=1",
        watched: 4,
        scenes: vec![
            apply(
                "Next: a user creates the Memcached cache, with three Pods.\n\
                 Look for: a Deployment and a headless Service. The status gets the names of the Pods that are ready.",
                sample!("memcached/samples/memcached.yaml"),
                &[CACHES],
                vec![(CACHE, is_ready)],
                &[("create deployments", "runs the Pods"), ("create services", "leads to the Pods")],
            ),
            Scene {
                announced: "Next: the user changes the size of cache.\n\
                            Look for: one patch of the Deployment, and status.nodes with one name less.",
                command: "kubectl scale memcached/cache --replicas=2".to_owned(),
                requests: vec![(Method::PATCH, CACHE_SCALE, json!({"spec": {"replicas": 2}}))],
                until: vec![(CACHE, |cache| {
                    is_ready(cache) && cache["status"]["nodes"].as_array().map(Vec::len) == Some(2)
                })],
                reasons: &[("patch deployments", "two replicas")],
            },
            Scene {
                announced: "Next: somebody deletes the Service of cache.\n\
                            Look for: the operator creates it again, at once.",
                command: "kubectl delete service cache    # the operator recreates it".to_owned(),
                requests: vec![(Method::DELETE, CACHE_SERVICE, Value::Null)],
                until: vec![(CACHE_SERVICE, is_there)],
                reasons: &[
                    ("get services", "it is really gone"),
                    ("get memcacheds", "its owner still exists"),
                    ("create services", "again"),
                ],
            },
        ],
        end: "The Deployment has two Pods, whose names are in the status.",
        commands: &["kubectl get memcached,deploy,svc,pods", "kubectl scale memcached/cache --replicas=5"],
    }
}

const DATABASES: &str = "/apis/app.example.com/v1/namespaces/default/databases";
const DATABASE: &str = "/apis/app.example.com/v1/namespaces/default/databases/db";
const DATABASE_SET: &str = "/apis/apps/v1/namespaces/default/statefulsets/db";
const DATABASE_CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data-db-2";

fn database() -> Story {
    Story {
        operator: BuiltIn::Database,
        kind: "Database",
        watch: "/apis/app.example.com/v1/databases?watch=1",
        watched: 10,
        scenes: vec![
            apply(
                "Next: a user creates the Database db, with a primary and a replica.\n\
                 Look for: a StatefulSet, two Services, two Secrets with new passwords, a ConfigMap with the scripts of the Pods, and a\n\
                 PodDisruptionBudget.",
                sample!("database/samples/database.yaml"),
                &[DATABASES],
                vec![(DATABASE, is_ready)],
                &[("get secrets", "there is none yet"), ("create configmaps", "the scripts of the Pods"), ("create poddisruptionbudgets", "for the drain of a node"), ("create services/db-ro", "for reading"), ("create services", "the primary"), ("create statefulsets", "the instances"), ("create secrets", "a new password"), ("patch configmaps", "the primary has data now")],
            ),
            Scene {
                announced: "Next: the user wants a second replica.\n\
                            Look for: one patch of the StatefulSet, and one of the file that says the size.",
                command: "kubectl patch db/db --type=merge -p '{\"spec\":{\"size\":3}}'".to_owned(),
                requests: vec![(Method::PATCH, DATABASE, json!({"spec": {"size": 3}}))],
                until: vec![(DATABASE, |database| {
                    is_ready(database) && database["status"]["readyInstances"] == 3
                })],
                reasons: &[("patch configmaps", "the new size"), ("patch statefulsets", "three instances"), ("get cronjobs", "none is left")],
            },
            Scene {
                announced: "Next: a new minor version of PostgreSQL.\n\
                            Look for: the Pods are replaced one by one, the replicas first. Then status.version follows.",
                command: "kubectl patch db/db --type=merge -p '{\"spec\":{\"version\":\"15.15\"}}'"
                    .to_owned(),
                requests: vec![(Method::PATCH, DATABASE, json!({"spec": {"version": "15.15"}}))],
                until: vec![(DATABASE, |database| {
                    is_ready(database) && database["status"]["version"] == "15.15"
                })],
                reasons: &[("patch statefulsets", "the new image"), ("get cronjobs", "none is left")],
            },
            Scene {
                announced: "Next: one replica is enough.\n\
                            Look for: the same two patches. The last Pod is deleted; its claim stays.",
                command: "kubectl patch db/db --type=merge -p '{\"spec\":{\"size\":2}}'    # the claim of db-2 stays"
                    .to_owned(),
                requests: vec![(Method::PATCH, DATABASE, json!({"spec": {"size": 2}}))],
                until: vec![
                    (DATABASE, |database| is_ready(database) && database["status"]["readyInstances"] == 2),
                    (DATABASE_CLAIM, is_there),
                ],
                reasons: &[("patch configmaps", "the new size"), ("patch statefulsets", "two instances"), ("get cronjobs", "none is left")],
            },
            Scene {
                announced: "Next: the user wants backups.\n\
                            Look for: a claim and a CronJob. After the first backup, the condition BackupSucceeded is true.",
                command: "kubectl patch db/db --type=merge -p '{\"spec\":{\"backup\":{\"schedule\":\"@every 1s\"}}}'    \
                          # so that the first backup comes at once; 0 3 * * * is each night"
                    .to_owned(),
                requests: vec![(
                    Method::PATCH,
                    DATABASE,
                    json!({"spec": {"backup": {"schedule": "@every 1s"}}}),
                )],
                until: vec![(DATABASE, |database| {
                    is_ready(database) && has_condition(database, "BackupSucceeded")
                })],
                reasons: &[("patch databases", "adds the finalizer, for a last backup"), ("get databases", "it still exists"), ("get ", "there is none yet"), ("create cronjobs", "makes the backups"), ("create persistentvolumeclaims", "keeps them")],
            },
            Scene {
                announced: "Next: the user deletes the Database.\n\
                            Look for: a last backup. Then its StatefulSet, Services and scripts are deleted; claims and Secrets are not.",
                command: "kubectl delete db/db".to_owned(),
                requests: vec![(Method::DELETE, DATABASE, Value::Null)],
                until: vec![(DATABASE, is_gone), (DATABASE_SET, is_gone), (DATABASE_CLAIM, is_there)],
                reasons: &[("get databases", "it is really being deleted"), ("create jobs", "a last backup"), ("patch databases", "removes the finalizer")],
            },
        ],
        end: "The claims and the Secrets still exist: a new Database of that name takes them over.",
        commands: &["kubectl get pvc,secrets", "kubectl apply -f manifests/database/samples/database.yaml"],
    }
}
