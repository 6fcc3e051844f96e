//! Tests leader election: of several operators, one writes, whatever happens to it, to the Lease, or to the API server.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    rc::Rc,
};

use listwatch_apiserver::RequestRecord;
use listwatch_control_plane::{eventually, saw, unique};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    clients,
    fixture::{ACCOUNT, Fixture, Kind, Server, kubeconfig_of, on},
    manifests,
    operator::{Operator, ends_with_test},
    proxy::{Flow, Proxy},
    refused::with_crd,
};

const LEASE: &str = "leases/mywebserver-operator.k8sobjects.gsa.com";
/// Short, so that a killed leader is soon followed, and long enough to renew on a busy machine most of the time. If it is not, the
/// leader changes once more: no test fails for it.
const TIMES: [&str; 6] = times(["6s", "4s", "500ms"]);
pub const LONGER: [&str; 6] = times(["9s", "5s", "1s"]);

const fn times([duration, deadline, period]: [&'static str; 3]) -> [&'static str; 6] {
    [
        "--leader-elect-lease-duration",
        duration,
        "--leader-elect-renew-deadline",
        deadline,
        "--leader-elect-retry-period",
        period,
    ]
}

/// The operators of a test, each with an account of its own, so that the server's log tells them apart.
pub struct Instances<'a> {
    pub fixture: &'a Fixture,
    all: RefCell<HashMap<&'static str, Instance>>,
    /// How much of the log of a real server has been read, and the requests in it.
    log: RefCell<(u64, Vec<Value>)>,
}

/// A write in the log of the server.
#[derive(Clone, Debug)]
pub struct Write {
    /// The name of the operator.
    pub by: &'static str,
    /// It ends with the resource, the name and the subresource.
    pub path: String,
}

struct Instance {
    operator: Rc<Operator>,
    user: String,
    _dir: TempDir,
}

impl<'a> Instances<'a> {
    pub fn new(fixture: &'a Fixture) -> Instances<'a> {
        Instances { fixture, all: RefCell::default(), log: RefCell::default() }
    }

    pub async fn start(&self, name: &'static str, args: &[&str]) -> Rc<Operator> {
        self.start_at(&self.fixture.url(), name, args).await
    }

    /// Starts an operator that connects to this URL.
    async fn start_at(&self, url: &str, name: &'static str, args: &[&str]) -> Rc<Operator> {
        let namespace = &self.fixture.namespace;
        let dir = TempDir::new().unwrap();
        let (user, token) = match &self.fixture.server {
            Server::Embedded(server) => {
                let (user, token) = (self.user(name), format!("{name}-{}", unique()));
                server.add_token(&token, &user);
                (user, token)
            }
            Server::Shared(_) | Server::Own(_) => (self.user(name), self.account(name).await),
        };
        fs::write(dir.path().join("namespace"), namespace).unwrap();
        fs::write(dir.path().join("token"), token).unwrap();
        fs::write(dir.path().join("ca.crt"), self.fixture.ca_pem()).unwrap();
        let mut all = vec!["--namespace", namespace, "--leader-elect"];
        all.extend(args);
        let variables = [("POD_NAME", name)];
        let operator = Operator::run(&["mywebserver"], url, dir.path(), &all, &variables);
        let operator = Rc::new(operator);
        let instance = Instance { operator: Rc::clone(&operator), user, _dir: dir };
        self.all.borrow_mut().insert(name, instance);
        operator
    }

    /// One of those that were started.
    pub fn operator(&self, name: &str) -> Rc<Operator> {
        Rc::clone(&self.all.borrow()[name].operator)
    }

    fn user(&self, name: &str) -> String {
        format!("system:serviceaccount:{}:{name}", self.fixture.namespace)
    }

    /// Gives an account only these verbs for Leases, and its other permissions.
    async fn allow(&self, name: &str, verbs: &[&str]) {
        let mut rules = manifests::lease_role()["rules"].take();
        rules[0]["verbs"] = json!(verbs);
        if let Server::Embedded(server) = &self.fixture.server {
            rules
                .as_array_mut()
                .unwrap()
                .extend(manifests::cluster_role()["rules"].as_array().unwrap().clone());
            server.set_rules(&self.user(name), serde_json::from_value(rules).unwrap());
        } else {
            self.account(name).await;
            self.fixture.patch(&format!("roles/{name}"), json!({"rules": rules})).await;
        }
    }

    /// A ServiceAccount with the permissions of `manifests/`. Returns a token.
    async fn account(&self, name: &str) -> String {
        let (fixture, namespace) = (self.fixture, &self.fixture.namespace);
        if fixture.find(&format!("serviceaccounts/{name}")).await.is_none() {
            fixture.create("serviceaccounts", &json!({"metadata": {"name": name}})).await;
            let rules = manifests::lease_role()["rules"].take();
            fixture.create("roles", &json!({"metadata": {"name": name}, "rules": rules})).await;
            for (kind, role) in [("ClusterRole", ACCOUNT), ("Role", name)] {
                let binding = json!({
                    "metadata": {"name": format!("{}-{name}", kind.to_lowercase())},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                    "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
                });
                fixture.create("rolebindings", &binding).await;
            }
        }
        let request = json!({"spec": {
            "audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600,
        }});
        let answer = fixture.create(&format!("serviceaccounts/{name}/token"), &request).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Waits until this operator holds the Lease.
    async fn until_leads(&self, name: &str) -> Value {
        let begin = format!("{name}_");
        let is_held = |lease: &Value| {
            saw("the Lease", &lease["spec"]);
            lease["spec"]["holderIdentity"].as_str().is_some_and(|holder| holder.starts_with(&begin))
        };
        eventually(&format!("{name} to lead"), async || self.fixture.find(LEASE).await.filter(is_held)).await
    }

    /// Waits until one of the operators has renewed the Lease twice, and returns its name.
    async fn until_one_renews(&self) -> String {
        let seen = RefCell::new(Vec::new());
        eventually("an operator to renew the Lease twice", async || {
            let lease = self.fixture.find(LEASE).await?;
            saw("the Lease", &lease["spec"]);
            let name = lease["spec"]["holderIdentity"].as_str()?.split_once('_')?.0.to_owned();
            let mut seen = seen.borrow_mut();
            seen.retain(|(holder, _)| *holder == name);
            let renewal = (name.clone(), lease["spec"]["renewTime"].to_string());
            if seen.last() != Some(&renewal) {
                seen.push(renewal);
            }
            (seen.len() > 2).then_some(name)
        })
        .await
    }

    /// Waits until an object has the children that it wants.
    pub async fn until_reconciled(&self, web: &str) {
        self.fixture
            .until(&format!("mywebservers/{web}"), |web| {
                web["status"]["observedGeneration"] == web["metadata"]["generation"]
            })
            .await;
    }

    /// The writes in the server's log, in order: the account, and whether it was a write of the Lease.
    fn writes(&self) -> Vec<(String, bool)> {
        let of = |write: Write| (write.by.to_owned(), write.path.contains("/leases"));
        self.logged().into_iter().map(of).collect()
    }

    /// The writes in the server's log, in order.
    pub fn logged(&self) -> Vec<Write> {
        let all = self.all.borrow();
        let of_user: HashMap<&str, &'static str> =
            all.iter().map(|(name, instance)| (&*instance.user, *name)).collect();
        match &self.fixture.server {
            Server::Embedded(server) => {
                let requests = server.requests().into_iter();
                let done = requests.filter(|request| request.method != "GET" && request.status < 300);
                let of = |request: RequestRecord| {
                    // The name of a created object is in the body.
                    let path = format!("{}/{}", request.path, request.name).trim_end_matches('/').to_owned();
                    Some(Write { by: of_user.get(&*request.user)?, path })
                };
                done.filter_map(of).collect()
            }
            Server::Shared(_) | Server::Own(_) => {
                let mut log = self.log.borrow_mut();
                let (read, events) = &mut *log;
                events.extend(self.fixture.control_plane().audit(read, ""));
                // A Lease changes its holder when the write has ended; any other write counts from when it has begun.
                let mut writes: Vec<_> = events
                    .iter()
                    .filter(|event| event["stage"] == "ResponseComplete")
                    .filter(|event| {
                        matches!(event["verb"].as_str(), Some("create" | "patch" | "update" | "delete"))
                    })
                    .filter(|event| event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300))
                    .filter_map(|event| {
                        let by = of_user.get(event["user"]["username"].as_str()?)?;
                        let of = |field: &str| event["objectRef"][field].as_str().unwrap_or_default();
                        let path = format!("/{}/{}/{}", of("resource"), of("name"), of("subresource"));
                        let is_lease = of("resource") == "leases";
                        let time = if is_lease { "stageTimestamp" } else { "requestReceivedTimestamp" };
                        Some((
                            event[time].to_string(),
                            Write { by, path: path.trim_end_matches('/').to_owned() },
                        ))
                    })
                    .collect();
                writes.sort_by(|(one, _), (other, _)| one.cmp(other));
                writes.into_iter().map(|(_, write)| write).collect()
            }
        }
    }

    /// Checks that each write came from the account that had written the Lease last, and that each of `expected` has led.
    fn assert_one_writer(&self, expected: &[&str]) {
        let writes = self.writes();
        assert_eq!(late(None, &writes), 0, "writes of another than the leader: {writes:?}");
        for expected in expected {
            let has_led = writes.iter().any(|(name, is_lease)| name == expected && !is_lease);
            assert!(has_led, "{expected} has written nothing: {writes:?}");
        }
    }
}

/// The writes that came from another account than the one that had written the Lease last.
fn late<'a>(mut leader: Option<&'a String>, writes: &'a [(String, bool)]) -> usize {
    let is_late = |(name, is_lease): &&'a (String, bool)| {
        if *is_lease {
            leader = Some(name);
        }
        leader != Some(name)
    };
    writes.iter().filter(is_late).count()
}

#[tokio::test]
async fn a_standby_is_ready_and_takes_over_when_the_leader_stops() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        let a = instances.start("a", &[]).await;
        let lease = instances.until_leads("a").await;
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
        assert_eq!(lease["spec"]["leaseTransitions"], 0);
        let b = instances.start("b", &[]).await;
        b.until_ready().await;
        b.until_logged(&["waits: another process holds the Lease", "\"a_"]).await;
        fixture.create_web("first", json!({"image": "nginx"})).await;
        instances.until_reconciled("first").await;

        a.signal("TERM");
        assert_eq!(a.ended().await.code(), Some(0));
        assert!(a.log().contains("gave the Lease back"), "{}", a.log());
        let lease = instances.until_leads("b").await;
        assert_eq!(lease["spec"]["leaseTransitions"], 1);
        fixture.create_web("second", json!({"image": "nginx"})).await;
        instances.until_reconciled("second").await;
        instances.assert_one_writer(&["a", "b"]);
        // Nothing is written twice.
        assert_eq!(fixture.get("deployments/mws-first").await["metadata"]["generation"], 1);
    })
    .await;
}

#[tokio::test]
async fn killed_and_frozen_leaders_are_followed_and_write_no_more() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        let names = ["a", "b", "c"];
        for (name, times) in names.into_iter().zip([TIMES, LONGER, TIMES]) {
            instances.start(name, &times).await;
        }
        fixture.create_web("web", json!({"image": "nginx"})).await;
        instances.until_reconciled("web").await;
        for (number, signal) in ["STOP", "KILL"].into_iter().enumerate() {
            let lease = fixture.get(LEASE).await;
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
            let leader = *names.iter().find(|name| holder.starts_with(**name)).unwrap();
            let operator = instances.operator(leader);
            // Something to do when it is frozen, and when it wakes up.
            for web in 0..20 {
                fixture
                    .create_web(&format!("{}-{web}", signal.to_lowercase()), json!({"image": "nginx"}))
                    .await;
            }
            operator.signal(signal);
            eventually("another leader", async || {
                let lease = fixture.get(LEASE).await;
                let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
                (!holder.is_empty() && !holder.starts_with(leader)).then_some(())
            })
            .await;
            fixture.patch("mywebservers/web", json!({"spec": {"port": 8000 + number}})).await;
            instances.until_reconciled("web").await;
            if signal == "STOP" {
                operator.signal("CONT");
                operator.until_logged(&["leads no longer"]).await;
                operator.until_ready().await;
            }
            for web in 0..20 {
                instances.until_reconciled(&format!("{}-{web}", signal.to_lowercase())).await;
            }
        }
        // What a process was just sending when it was frozen, it sends when it wakes up. It goes on with none of the other 60.
        let writes = instances.writes();
        assert!(late(None, &writes) <= 3, "writes of another than the leader: {writes:?}");
    })
    .await;
}

/// Its connections stall, so it cannot know whether it still leads.
#[tokio::test]
async fn a_leader_without_a_network_is_followed_and_writes_no_more() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        let proxy = Proxy::start(&fixture.url()).await;
        let a = instances.start_at(&proxy.url(), "a", &TIMES).await;
        instances.until_leads("a").await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        instances.until_reconciled("web").await;
        let b = instances.start("b", &LONGER).await;
        b.until_logged(&["waits: another process holds the Lease", "\"a_"]).await;

        // With reconciles in hand.
        for web in 0..20 {
            fixture.create_web(&format!("before-{web}"), json!({"image": "nginx"})).await;
        }
        proxy.set(Flow::Stalled, Flow::Stalled);
        a.until_logged(&["leads no longer", "could not be renewed"]).await;
        instances.until_leads("b").await;
        fixture.patch("mywebservers/web", json!({"spec": {"port": 8000}})).await;
        for web in 0..20 {
            instances.until_reconciled(&format!("before-{web}")).await;
        }
        instances.until_reconciled("web").await;

        // What the stalled connections had is lost.
        proxy.cut();
        proxy.set(Flow::Open, Flow::Open);
        a.until_logged(&["waits: another process holds the Lease", "\"b_"]).await;
        fixture.patch("mywebservers/web", json!({"spec": {"port": 8001}})).await;
        instances.until_reconciled("web").await;
        b.signal("TERM");
        instances.until_leads("a").await;
        fixture.patch("mywebservers/web", json!({"spec": {"port": 8002}})).await;
        instances.until_reconciled("web").await;
        instances.assert_one_writer(&["a", "b"]);
    })
    .await;
}

/// An attempt every half second wrote a warning each time.
#[tokio::test]
async fn a_missing_permission_for_leases_is_a_warning_once_and_leaves_a_standby_ready() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        instances.allow("a", &["get", "list", "watch"]).await;
        let a = instances.start("a", &TIMES).await;
        let count = |level: &str, text: &str| {
            let level = format!("\"level\":\"{level}\"");
            a.log().lines().filter(|line| line.contains(&level) && line.contains(text)).count()
        };
        a.until_logged(&["cannot take the Lease; trying again", "403"]).await;
        eventually("more attempts", async || (count("DEBUG", "cannot take the Lease") > 1).then_some(()))
            .await;
        assert_eq!(count("WARN", "cannot take the Lease"), 1);
        a.until_ready().await;
        // Now it can take the Lease, and not renew it.
        instances.allow("a", &["get", "list", "watch", "create"]).await;
        a.until_logged(&["leads no longer", "could not be renewed", "403"]).await;
        assert!(count("WARN", "cannot renew the Lease") <= 1, "{}", a.log());
        a.until_ready().await;
        instances.allow("a", &["get", "list", "watch", "create", "patch"]).await;
        instances.until_one_renews().await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        instances.until_reconciled("web").await;
        instances.assert_one_writer(&["a"]);
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_is_edited_or_deleted_by_hand_gets_one_holder_again() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        // `b` waits as long as the holder says, not as long as it would itself.
        let (a, b) = (instances.start("a", &TIMES).await, instances.start("b", &[]).await);
        fixture.create_web("web", json!({"image": "nginx"})).await;
        instances.until_reconciled("web").await;
        instances.assert_one_writer(&[]);
        let years = json!({"holderIdentity": "nobody", "leaseDurationSeconds": 2147483647});
        let edits = [
            Some(json!({"holderIdentity": "somebody", "leaseDurationSeconds": 3})),
            Some(json!({"holderIdentity": null, "leaseDurationSeconds": null, "renewTime": null})),
            Some(json!({"leaseDurationSeconds": 1, "acquireTime": "2020-01-01T00:00:00.000000Z", "leaseTransitions": 2147483647})),
            None,
            Some(years.clone()),
        ];
        for (number, edit) in edits.into_iter().enumerate() {
            let is_for_years = edit.as_ref() == Some(&years);
            if let Some(spec) = &edit {
                fixture.patch(LEASE, json!({"spec": spec})).await;
            }
            if is_for_years {
                let waits = |process: &Operator| process.log().lines().any(|line| line.contains("waits: ") && line.contains("nobody"));
                eventually("both to wait", async || (waits(&a) && waits(&b)).then_some(())).await;
            }
            if edit.is_none() || is_for_years {
                fixture.delete(LEASE).await;
            }
            let holder = instances.until_one_renews().await;
            // The other one has seen each of its renewals.
            let before = instances.writes().len();
            fixture.patch("mywebservers/web", json!({"spec": {"port": 8000 + number}})).await;
            instances.until_reconciled("web").await;
            let after = instances.writes().split_off(before);
            assert_eq!(late(Some(&holder), &after), 0, "writes of another than the leader: {after:?}");
        }
        assert!(!a.log().contains("panicked"));
    })
    .await;
}

#[tokio::test]
async fn after_a_restart_of_the_api_server_one_leads() {
    on(&[Kind::RealBare], async |fixture| {
        with_crd(fixture, &manifests::crd()).await;
        let instances = Instances::new(fixture);
        for name in ["a", "b"] {
            instances.start(name, &TIMES).await;
        }
        fixture.create_web("web", json!({"image": "nginx"})).await;
        instances.until_reconciled("web").await;
        fixture.control_plane().kill_apiserver();
        fixture.control_plane().start_apiserver().await;
        fixture.patch("mywebservers/web", json!({"spec": {"port": 8000}})).await;
        instances.until_reconciled("web").await;
        instances.assert_one_writer(&[]);
    })
    .await;
}

/// A program in Go that competes for the Lease. Dropped: killed.
struct Go(Child);

impl Go {
    fn start(program: &Path, fixture: &Fixture) -> Go {
        let kubeconfig = fixture.dir.path().join("kubeconfig");
        let text = match &fixture.server {
            Server::Embedded(server) => server.kubeconfig(),
            Server::Shared(_) | Server::Own(_) => kubeconfig_of(fixture.control_plane()),
        };
        fs::write(&kubeconfig, text).unwrap();
        let mut command = ends_with_test(program);
        command
            .args([&*fixture.namespace, LEASE.strip_prefix("leases/").unwrap()])
            .env("KUBECONFIG", kubeconfig);
        Go(command.stderr(Stdio::null()).spawn().unwrap())
    }

    fn stop(&self) {
        let kill = format!("kill -TERM {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_leader_in_go_and_ours_take_turns() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let Some(program) = clients::program("go") else { return };
        let instances = Instances::new(fixture);
        let until_go_leads = async || {
            fixture.until(LEASE, |lease| lease["spec"]["holderIdentity"] == "go").await;
        };
        let first = Go::start(&program, fixture);
        eventually("a Lease", async || fixture.find(LEASE).await).await;
        until_go_leads().await;
        let a = instances.start("a", &[]).await;
        a.until_logged(&["waits: another process holds the Lease", "\"go\""]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        a.until_ready().await;
        instances.assert_one_writer(&[]);
        first.stop();
        instances.until_leads("a").await;
        instances.until_reconciled("web").await;
        let _second = Go::start(&program, fixture);
        a.signal("TERM");
        until_go_leads().await;
        assert_eq!(a.ended().await.code(), Some(0));
        assert_eq!(fixture.get(LEASE).await["spec"]["leaseTransitions"], 2);
    })
    .await;
}
