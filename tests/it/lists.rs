//! Tests lists that break off midway, paged or streamed: the list begins again, reports each object once, and keeps no
//! deleted object.
//!
//! The watch runs in this process, so that a script can act while the Store takes in the first object of the list.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use listwatch::{
    resource::{Scope, kinds::ConfigMap},
    store::{Change, Listening, Store},
    watch::{self, Health, Lists},
};
use listwatch_apiserver::Fault;
use listwatch_control_plane::eventually;
use serde_json::{Value, json};
use tokio::{runtime, sync::oneshot};

use crate::{
    fixture::{Fixture, Kind, Server, on},
    proxy::Proxy,
};

/// Objects for three pages, with more bytes than a server sends before the client reads: 256 KiB.
const MANY: usize = 250;
const TEXT_BYTES: usize = 4096;

#[tokio::test]
async fn a_list_that_is_cut_midway_keeps_no_deleted_object() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        check_interrupted_list(fixture, async |proxy| proxy.cut()).await;
    })
    .await;
}

/// Since 1.34, kube-apiserver keeps snapshots of old lists until its restart, even if etcd has compacted that history.
#[tokio::test]
async fn a_list_that_expires_between_its_pages_begins_anew() {
    on(&[Kind::Embedded, Kind::RealBefore132], async |fixture| {
        if fixture.lists == Lists::Streaming {
            return;
        }
        check_interrupted_list(fixture, async |_| match &fixture.server {
            Server::Embedded(server) => server.fault(Fault::ExpireHistory),
            Server::Shared(_) | Server::Own(_) => fixture.control_plane().compact().await,
        })
        .await;
        let records = fixture.records().await;
        let place = records.iter().position(|record| record.status == 410).expect("an expired page");
        assert!(records[place].path.contains("continue="), "{:?}", records[place]);
        let next = records[place + 1..].iter().find(|record| !record.path.contains("watch=1")).unwrap();
        assert!(next.path.contains("limit=") && !next.path.contains("continue="), "{next:?}");
    })
    .await;
}

/// Lists ConfigMaps. While the Store takes in the first one and the rest wait, changes some and calls `interrupt`.
async fn check_interrupted_list(fixture: &Fixture, interrupt: impl AsyncFn(&Proxy)) {
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]});
    fixture.may_be_forbidden.set(true);
    fixture.allow_only(&json!([rule])).await;
    let create = async |name: &str| {
        let text = "x".repeat(TEXT_BYTES);
        fixture.create("configmaps", &json!({"metadata": {"name": name}, "data": {"text": text}})).await;
    };
    for number in 0..MANY {
        create(&name(number)).await;
    }
    let proxy = Proxy::start(&fixture.url()).await;
    let mut watching = Watching::start(fixture, &proxy);
    watching.until_first_object().await;
    for number in [0, 1, MANY - 1] {
        fixture.delete(&format!("configmaps/{}", name(number))).await;
    }
    create(&name(1)).await;
    create("map-000-late").await;
    interrupt(&proxy).await;
    watching.unblock();
    eventually("the list to be complete", async || watching.store.is_synced().then_some(())).await;
    assert_equals_server(fixture, &watching.store).await;
    assert_reported_once(&watching.changes.lock().unwrap());
}

fn name(number: usize) -> String {
    format!("map-{number:03}")
}

/// The watch, in a thread of its own, because it blocks in between.
struct Watching {
    store: Arc<Store<ConfigMap>>,
    /// `+map-000`, `-map-000`, `synced`.
    changes: Arc<Mutex<Vec<String>>>,
    first: mpsc::Receiver<()>,
    block: Option<mpsc::Sender<()>>,
    _stop: oneshot::Sender<()>,
    _listening: Listening,
}

impl Watching {
    fn start(fixture: &Fixture, proxy: &Proxy) -> Watching {
        let (store, changes) = (Arc::new(Store::<ConfigMap>::default()), Arc::<Mutex<Vec<_>>>::default());
        let (arrived, first) = mpsc::channel();
        let (block, unblocked) = mpsc::channel::<()>();
        let (log, unblocked) = (Arc::clone(&changes), Mutex::new(unblocked));
        let _listening = store.listen(move |change| {
            let (sign, found) = match change {
                Change::Applied { before: None, after } => ('+', after),
                Change::Applied { after, .. } => ('~', after),
                Change::Deleted { last, .. } => ('-', last),
                Change::Synced => return log.lock().unwrap().push("synced".to_owned()),
                Change::Forbidden => return log.lock().unwrap().push("forbidden".to_owned()),
            };
            log.lock().unwrap().push(format!("{sign}{}", found.metadata().name));
            let _ = arrived.send(());
            // Blocks until `unblock` drops the sender.
            let _ = unblocked.lock().unwrap().recv();
        });
        let client = fixture.operators_client(&proxy.url());
        let scope = Scope { namespace: Some(fixture.namespace.clone()), ..Scope::default() };
        let (lists, kept) = (fixture.lists, Arc::clone(&store));
        let (stop, stopped) = oneshot::channel();
        thread::spawn(move || {
            let health = Health::new("configmaps".to_owned());
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = watch::watch(client, scope, lists, &kept, &health) => {}
                    _ = stopped => {}
                }
            });
        });
        Watching { store, changes, first, block: Some(block), _stop: stop, _listening }
    }

    async fn until_first_object(&self) {
        eventually("the first object", async || self.first.try_recv().ok()).await;
    }

    fn unblock(&mut self) {
        self.block = None;
    }
}

async fn assert_equals_server(fixture: &Fixture, store: &Store<ConfigMap>) {
    let expected = fixture.get("configmaps").await["items"].take();
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap().to_owned();
    let expected: Vec<_> = expected
        .as_array()
        .unwrap()
        .iter()
        .map(|object| (text(object, "name"), text(object, "uid")))
        .collect();
    assert_eq!(expected.len(), MANY - 1);
    let kept = store.keys().into_iter().map(|key| store.find(&key).unwrap());
    let kept = kept.map(|found| (found.metadata().name.to_string(), found.metadata().uid.to_string()));
    assert_eq!(kept.collect::<Vec<_>>(), expected);
}

fn assert_reported_once(changes: &[String]) {
    let count = |line: String| changes.iter().filter(|change| **change == line).count();
    for number in 0..MANY {
        let name = name(number);
        let counts = (count(format!("+{name}")), count(format!("-{name}")));
        // The first object is known to have existed. The earlier states of the other two may have been reported.
        let expected: &[_] = match number {
            0 => &[(1, 1)],
            1 => &[(1, 0), (2, 1)],
            _ if number == MANY - 1 => &[(0, 0), (1, 1)],
            _ => &[(1, 0)],
        };
        assert!(expected.contains(&counts), "{name}: {counts:?}");
    }
    // No deletion follows `synced`: otherwise the list would not have broken off.
    assert_eq!(changes.last().map(String::as_str), Some("synced"));
}
