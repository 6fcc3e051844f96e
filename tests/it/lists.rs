//! A list that breaks off midway, in pages or as a stream: it begins anew, brings each object once, and leaves none that is
//! gone.
//!
//! Here the watch runs in this process, so that a script can act just when the first object of the list is taken in.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use listwatch::{
    apiserver::Fault,
    resource::{ObjectMeta, Resource, Scope},
    store::{Change, Store},
    watch::{self, Health, Lists},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{runtime, sync::oneshot};

use crate::{
    hands::eventually,
    proxy::Proxy,
    world::{Kind, Server, World, on},
};

/// Objects that take three pages, and more bytes than a stream is sent before it is read, 256 KiB.
const MANY: usize = 250;
const TEXT_BYTES: usize = 4096;

#[tokio::test]
async fn a_list_that_is_cut_midway_leaves_no_phantom() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        a_list_survives(world, async |proxy| proxy.cut()).await;
    })
    .await;
}

/// Since 1.34 a kube-apiserver has snapshots of old lists until it is restarted, whatever etcd has forgotten.
#[tokio::test]
async fn a_list_that_expires_between_its_pages_begins_anew() {
    on(&[Kind::Embedded, Kind::RealBefore132], async |world| {
        if world.lists == Lists::Streaming {
            return;
        }
        a_list_survives(world, async |_| match &world.server {
            Server::Embedded(server) => server.fault(Fault::ExpireHistory),
            Server::Shared(_) | Server::Own(_) => world.plane().compact().await,
        })
        .await;
        let asked = world.records();
        let place = asked.iter().position(|record| record.status == 410).expect("an expired page");
        assert!(asked[place].path.contains("continue="), "{:?}", asked[place]);
        let next = asked[place + 1..].iter().find(|record| !record.path.contains("watch=1")).unwrap();
        assert!(next.path.contains("limit=") && !next.path.contains("continue="), "{next:?}");
    })
    .await;
}

#[derive(Deserialize)]
struct ConfigMap {
    metadata: ObjectMeta,
}

impl Resource for ConfigMap {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "configmaps";
    const KIND: &'static str = "ConfigMap";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Lists ConfigMaps and, while the first of them is being taken in and all others wait, changes some and does `deed`.
async fn a_list_survives(world: &World, deed: impl AsyncFn(&Proxy)) {
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]});
    world.may_be_forbidden.set(true);
    world.allow_only(&json!([rule])).await;
    let make = async |name: &str| {
        let text = "x".repeat(TEXT_BYTES);
        world.create("configmaps", &json!({"metadata": {"name": name}, "data": {"text": text}})).await;
    };
    for number in 0..MANY {
        make(&name(number)).await;
    }
    let proxy = Proxy::start(&world.url()).await;
    let mut watching = Watching::start(world, &proxy);
    watching.until_first_object().await;
    for number in [0, 1, MANY - 1] {
        world.delete(&format!("configmaps/{}", name(number))).await;
    }
    make(&name(1)).await;
    make("map-000-late").await;
    deed(&proxy).await;
    watching.goes_on();
    eventually("the list to be complete", async || watching.store.is_synced().then_some(())).await;
    is_as_the_server_has_it(world, &watching.store).await;
    each_was_told_once(&watching.heard.lock().unwrap());
}

fn name(number: usize) -> String {
    format!("map-{number:03}")
}

/// The watch, in a thread of its own, as it stands still in between.
struct Watching {
    store: Arc<Store<ConfigMap>>,
    /// `+map-000`, `-map-000`, `synced`.
    heard: Arc<Mutex<Vec<String>>>,
    first: mpsc::Receiver<()>,
    held: Option<mpsc::Sender<()>>,
    _stop: oneshot::Sender<()>,
}

impl Watching {
    fn start(world: &World, proxy: &Proxy) -> Watching {
        let (store, heard) = (Arc::new(Store::<ConfigMap>::default()), Arc::<Mutex<Vec<_>>>::default());
        let (comes, first) = mpsc::channel();
        let (held, may_go_on) = mpsc::channel::<()>();
        let (log, may_go_on) = (Arc::clone(&heard), Mutex::new(may_go_on));
        store.listen(move |change| {
            let (sign, found) = match change {
                Change::Applied { before: None, after } => ('+', after),
                Change::Applied { after, .. } => ('~', after),
                Change::Deleted { last, .. } => ('-', last),
                Change::Synced => return log.lock().unwrap().push("synced".to_owned()),
            };
            log.lock().unwrap().push(format!("{sign}{}", found.metadata().name));
            let _ = comes.send(());
            // Until nobody holds it any more.
            let _ = may_go_on.lock().unwrap().recv();
        });
        let client = world.operators_client(&proxy.url());
        let scope = Scope { namespace: Some(world.namespace.clone()), ..Scope::default() };
        let (lists, kept) = (world.lists, Arc::clone(&store));
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
        Watching { store, heard, first, held: Some(held), _stop: stop }
    }

    async fn until_first_object(&self) {
        eventually("the first object", async || self.first.try_recv().ok()).await;
    }

    fn goes_on(&mut self) {
        self.held = None;
    }
}

async fn is_as_the_server_has_it(world: &World, store: &Store<ConfigMap>) {
    let there = world.get("configmaps").await["items"].take();
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap().to_owned();
    let there: Vec<_> =
        there.as_array().unwrap().iter().map(|object| (text(object, "name"), text(object, "uid"))).collect();
    assert_eq!(there.len(), MANY - 1);
    let kept = store.keys().into_iter().map(|key| store.find(&key).unwrap());
    let kept = kept.map(|found| (found.metadata().name.to_string(), found.metadata().uid.to_string()));
    assert_eq!(kept.collect::<Vec<_>>(), there);
}

fn each_was_told_once(heard: &[String]) {
    let count = |line: String| heard.iter().filter(|heard| **heard == line).count();
    for number in 0..MANY {
        let name = name(number);
        let told = (count(format!("+{name}")), count(format!("-{name}")));
        // The first is known to have been there; what the other two were before may have been heard of.
        let expected: &[_] = match number {
            0 => &[(1, 1)],
            1 => &[(1, 0), (2, 1)],
            _ if number == MANY - 1 => &[(0, 0), (1, 1)],
            _ => &[(1, 0)],
        };
        assert!(expected.contains(&told), "{name}: {told:?}");
    }
    // And no deletion after it: then it would not have broken off.
    assert_eq!(heard.last().map(String::as_str), Some("synced"));
}
