//! A watch with a label selector: ADDED and DELETED are about the selection, not about the object.

use std::sync::{Arc, Mutex};

use listwatch::{
    resource::{Scope, kinds::Service},
    store::{Change, Found, Store},
    watch::{self, Health, Lists},
};
use serde_json::{Value, json};

use crate::{
    hands::eventually,
    world::{Kind, on},
};

#[tokio::test]
async fn what_enters_and_leaves_a_selection_comes_and_goes() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let store = Store::<Service>::default();
        let log = Arc::clone(&heard);
        store.listen(move |change| {
            let name = |found: &Found<Service>| found.metadata().name.to_string();
            log.lock().unwrap().push(match change {
                Change::Applied { before: None, after } => format!("+{}", name(after)),
                Change::Applied { after, .. } => format!("~{}", name(after)),
                Change::Deleted { last, sighting } => format!("-{} {sighting:?}", name(last)),
                Change::Synced => "synced".to_owned(),
            });
        });
        let scope = Scope { namespace: Some(world.namespace.clone()), labels: "color=red".into() };
        let health = Health::new("services".to_owned());
        let watching = watch::watch(world.client.clone(), scope, Lists::Paged, &store, &health);
        let script = async {
            let until = async |expected: &str| {
                eventually(expected, async || (heard.lock().unwrap().last()? == expected).then_some(()))
                    .await;
            };
            until("synced").await;
            let service = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}});
            world.create("services", &service).await;
            let paint = async |color: Value| {
                world.patch("services/a", json!({"metadata": {"labels": {"color": color}}})).await;
            };
            paint(json!("blue")).await;
            paint(json!("red")).await;
            until("+a").await;
            world.patch("services/a", json!({"metadata": {"labels": {"size": "xl"}}})).await;
            until("~a").await;
            paint(json!("blue")).await;
            until("-a Event").await;
            assert!(store.is_empty());
            world.get("services/a").await;
            paint(json!("red")).await;
            until("+a").await;
            world.delete("services/a").await;
            until("-a Event").await;
            assert_eq!(*heard.lock().unwrap(), ["synced", "+a", "~a", "-a Event", "+a", "-a Event"]);
        };
        tokio::select! {
            () = watching => unreachable!("it runs for ever"),
            () = script => {}
        }
    })
    .await;
}
