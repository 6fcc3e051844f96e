//! Tests an example operator with a status on the embedded API server. `docs/your-operator.md` shows lines of it.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::{
    children::{Conditions, Owned, Reporter, Stage},
    controller::{Controller, Next, Operator, ReconcileError},
    locked,
    resource::{
        Key, Labels, ObjectMeta,
        conditions::{self, Verdict},
        kinds::ConfigMap,
    },
    runtime::Setup,
    testing::TestServer,
};

const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Note, plural: notes, singular: note}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {text: {type: string}}}
          status:
            type: object
            properties:
              observedGeneration: {type: integer}
              conditions: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

#[derive(Serialize, Deserialize)]
struct Note {
    metadata: ObjectMeta,
    spec: NoteSpec,
    #[serde(default)]
    status: Conditions,
}

#[derive(Serialize, Deserialize)]
struct NoteSpec {
    text: String,
}

crate::kind!(Note, "example.com", "v1", "notes");
crate::reported!(Note, Conditions);

struct Notes {
    config_maps: Owned<ConfigMap>,
    reporter: Reporter,
    problems: Arc<Mutex<Vec<String>>>,
}

impl Notes {
    async fn keep(&self, note: &Note) -> Result<Next, ReconcileError> {
        let stage = Stage::of(note);
        let metadata = ObjectMeta::of_child(note, &note.metadata.name, Labels::default());
        let data = [("text".to_owned(), note.spec.text.clone())].into();
        let desired = ConfigMap { metadata, data, ..ConfigMap::default() };
        let Some(config_map) = self.config_maps.keep(note, &desired, stage).await else {
            return Ok(Next::OnChange);
        };
        let report = self.reporter.of(note).with(&config_map);
        if let Some(result) = report.begin(stage) {
            return result;
        }
        let ready = Verdict::yes("Written", "the ConfigMap has the text");
        report.write(note.status.clone(), ready.into()).await
    }
}

impl Operator for Notes {
    type Kind = Note;

    async fn applied(&self, note: Arc<Note>) -> Result<Next, ReconcileError> {
        let result = self.keep(&note).await;
        locked(&self.problems).extend(result.as_ref().err().map(ToString::to_string));
        result
    }

    async fn deleted(&self, last: Arc<Note>) -> Result<(), ReconcileError> {
        self.reporter.forget(&last.metadata.uid);
        Ok(())
    }
}

/// A server with a Note, and the problems of the operator.
async fn start(crd: &str) -> (TestServer, Arc<Mutex<Vec<String>>>) {
    let server = TestServer::start(&[crd]).await;
    let metadata =
        ObjectMeta { name: "a".into(), namespace: Some("default".into()), ..ObjectMeta::default() };
    let note = Note { metadata, spec: NoteSpec { text: "hello".to_owned() }, status: Conditions::default() };
    server.client.create(&note).await.expect("a Note");
    (server, Arc::default())
}

async fn run(server: &TestServer, problems: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    let controller = |setup: Setup| {
        let notes = setup.cluster.watch::<Note>(setup.scopes(""));
        let config_maps = setup.cluster.watch::<ConfigMap>(setup.scopes(""));
        let operator = Notes {
            config_maps: Owned::new(&setup.cluster, &config_maps),
            reporter: Reporter::new(&setup.cluster, setup.events.clone()),
            problems: Arc::clone(problems),
        };
        Controller::new(&setup.cluster, &notes, operator).owns(&config_maps)
    };
    server.run(controller).await
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_new_kind_has_its_conditions() {
    let (server, problems) = start(CRD).await;
    assert_eq!(run(&server, &problems).await, ["POST configmaps/a 201", "PATCH notes/a/status 200"]);
    let note: Note = server.client.get(&Key::namespaced("default", "a")).await.expect("a Note");
    let ready = conditions::find(&note.status.conditions, "Ready").expect("the condition");
    assert_eq!((note.status.observed_generation, &*ready.status, &*ready.reason), (1, "True", "Written"));
    assert_eq!(run(&server, &problems).await, [""; 0]);
    assert_eq!(*locked(&problems), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn without_the_status_subresource_the_error_says_what_the_crd_lacks() {
    let (server, problems) = start(&CRD.replace("    subresources: {status: {}}\n", "")).await;
    run(&server, &problems).await;
    let expected = "the CRD has no status subresource: add `subresources: {status: {}}` to its version";
    assert_eq!(locked(&problems).first().map(String::as_str), Some(expected));
}
