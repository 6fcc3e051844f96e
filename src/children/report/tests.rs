//! An operator that reports more than conditions, on the embedded API server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::*;
use crate::{
    captured_log::CapturedLog,
    children::Children,
    client::{DeleteOptions, Part, Patch},
    cluster::{Cluster, Events},
    controller::{Builder, Controller, Operator},
    locked,
    resource::{Key, Labels, ObjectMeta, Scope, Uid, kinds::ConfigMap},
    testing::TestServer,
    watch::Lists,
};

const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: teams.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Team, plural: teams, singular: team}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

#[derive(Serialize, Deserialize)]
struct Team {
    metadata: ObjectMeta,
    spec: BTreeMap<String, String>,
    #[serde(default, skip_serializing)]
    status: TeamStatus,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TeamStatus {
    observed_generation: i64,
    members: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lead: Option<String>,
    conditions: Vec<Condition>,
}

impl Default for TeamStatus {
    fn default() -> TeamStatus {
        TeamStatus { observed_generation: -1, members: BTreeMap::new(), lead: None, conditions: Vec::new() }
    }
}

crate::kind!(Team, "example.com", "v1", "teams");
crate::reported!(Team, TeamStatus);

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta { name: name.into(), namespace: Some("default".into()), ..ObjectMeta::default() }
}

async fn server() -> TestServer {
    let server = TestServer::start(&[CRD]).await;
    let spec = ["ann", "bob"].map(|name| (name.to_owned(), "here".to_owned())).into();
    let team = Team { metadata: metadata("a"), spec, status: TeamStatus::default() };
    server.client.create(&team).await.expect("a team");
    server
}

struct Members;

impl Operator for Members {
    type Kind = Team;

    async fn reconcile(&self, team: Reconcile<Team>) -> Result<Next, ReconcileError> {
        let (members, lead) = (team.spec.clone(), team.spec.get("bob").cloned());
        let status = TeamStatus { members, lead, ..TeamStatus::default() };
        team.finish(status, Verdict::yes("Counted", "all are counted")).await
    }
}

/// Its merge patch left them, so that the status was patched again at each reconcile.
#[tokio::test(start_paused = true)]
async fn a_status_loses_the_fields_that_the_operator_no_longer_reports() {
    let server = server().await;
    let run = || server.run(|setup| setup.kind::<Team>("members").run_by(Members));
    assert_eq!(run().await, ["PATCH teams/a/status 200"]);
    let (key, without) = (Key::namespaced("default", "a"), json!({"spec": {"bob": null}}));
    server.client.patch::<Team>(&key, Part::Object, &Patch::Merge(without)).await.expect("the team");
    assert_eq!(run().await, ["PATCH teams/a/status 200"]);
    let team: Team = server.client.get(&key).await.expect("the team");
    assert_eq!((team.status.members, team.status.lead), (team.spec, None));
    assert_eq!(run().await, [""; 0]);
}

/// Keeps a ConfigMap.
struct Maps {
    maps: Children<ConfigMap>,
    times: Arc<Mutex<Vec<Instant>>>,
}

impl Operator for Maps {
    type Kind = Team;

    async fn reconcile(&self, team: Reconcile<Team>) -> Result<Next, ReconcileError> {
        locked(&self.times).push(Instant::now());
        let metadata = ObjectMeta::of_child(&*team, "taken", Labels::default());
        team.keep(&self.maps, &ConfigMap { metadata, ..ConfigMap::default() }).await;
        Ok(Next::OnChange)
    }
}

/// Each pause was longer than the one before, up to 105 s, and the deletion of the other object did not end it.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_looked_at_each_45_s_and_when_it_is_free() {
    let server = server().await;
    let taken = ConfigMap { metadata: metadata("taken"), ..ConfigMap::default() };
    server.client.create(&taken).await.expect("a map");
    let cluster = Cluster::new(server.client.clone(), Lists::Paged);
    let [teams, maps] = [(); 2].map(|()| Scope::default());
    let (teams, maps) = (cluster.watch::<Team>([teams]), cluster.watch::<ConfigMap>([maps]));
    let times = Arc::<Mutex<Vec<Instant>>>::default();
    let operator = Maps { maps: Children::new(&cluster, &maps), times: Arc::clone(&times) };
    let mut teams = Builder::new(&cluster, &teams);
    teams.watches(&maps, |_| [Key::namespaced("default", "a")]);
    let running = tokio::spawn(teams.run_by(operator).run(std::future::pending()));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let begun = locked(&times).clone();
    assert!(begun.len() > 10);
    assert!(begun.windows(2).all(|pair| pair[1] - pair[0] <= Duration::from_secs(46)), "{begun:?}");

    let key = Key::namespaced("default", "taken");
    server.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.expect("deleted");
    let is_ours = async {
        while !server.client.get::<ConfigMap>(&key).await.is_ok_and(|map| map.metadata.controller().is_some())
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(5), is_ours).await.expect("our own");
    running.abort();
}

/// 10,000 objects, which a backup had restored without the ownerReferences of their children, cost up to 890 requests a second.
#[tokio::test]
async fn the_more_objects_have_a_name_conflict_the_less_often_each_is_looked_at() {
    let server = server().await;
    let cluster = Cluster::new(server.client.clone(), Lists::Paged);
    let events = Events::new(server.client.clone(), "example.com/teams", String::new()).0;
    let reporter = Reporter::new(&cluster, Some(events));
    let uid = |number: usize| Uid::from(number.to_string().as_str());
    for number in 0..450 {
        assert_eq!(reporter.conflict_pause(&uid(number)), UNSEEN_RECHECK);
    }
    let last = (450..10_000).map(|number| reporter.conflict_pause(&uid(number))).last();
    assert_eq!(last, Some(Duration::from_secs(1000)));
    (1..10_000).for_each(|number| reporter.forget(&uid(number)));
    assert_eq!(reporter.conflict_pause(&uid(0)), UNSEEN_RECHECK);
}

/// Reads an object that does not exist.
struct Reads(Cluster);

impl Operator for Reads {
    type Kind = Team;

    async fn reconcile(&self, _: Reconcile<Team>) -> Result<Next, ReconcileError> {
        self.0.get_live::<ConfigMap>(&Key::namespaced("default", "forgotten")).await?;
        Ok(Next::OnChange)
    }
}

/// A 404 counts as a deletion in the meantime, so the log had no line, however often it came.
#[tokio::test(start_paused = true)]
async fn a_404_that_comes_again_is_logged_once() {
    let (log, server) = (CapturedLog::start(), server().await);
    let cluster = Cluster::new(server.client.clone(), Lists::Paged);
    let teams = cluster.watch::<Team>([Scope::default()]);
    let controller = Controller::new(&cluster, &teams, Reads(cluster.clone()));
    drop(timeout(Duration::from_secs(600), controller.run(std::future::pending())).await);
    let log = log.text();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("forgotten")).collect();
    assert!(lines.len() == 1 && lines[0].contains("WARN"), "{log}");
}
