//! Tests a watch with a label selector: ADDED and DELETED mean that an object enters or leaves the selection.

use std::sync::{Arc, Mutex};

use listwatch::{
    resource::{Scope, kinds::Service, list::Found},
    store::{Change, Store},
    watch::{self, Health, Lists},
};
use listwatch_control_plane::eventually;
use serde_json::{Value, json};

use crate::fixture::{Kind, on};

#[tokio::test]
async fn objects_that_enter_or_leave_a_selection_are_added_or_deleted() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let store = Store::<Service>::default();
        let log = Arc::clone(&changes);
        let _listening = store.listen(move |change| {
            let name = |found: &Found<Service>| found.metadata().name.to_string();
            log.lock().unwrap().push(match change {
                Change::Applied { before: None, after } => format!("+{}", name(after)),
                Change::Applied { after, .. } => format!("~{}", name(after)),
                Change::Deleted { last, source } => format!("-{} {source:?}", name(last)),
                Change::Synced => "synced".to_owned(),
                Change::Forbidden => "forbidden".to_owned(),
            });
        });
        let scope = Scope {
            namespace: Some(fixture.namespace.clone()),
            labels: "color=red".into(),
            ..Scope::default()
        };
        let health = Health::new("services".to_owned());
        let watching = watch::watch(fixture.client.clone(), scope, Lists::Paged, &store, &health);
        let script = async {
            let until = async |expected: &str| {
                eventually(expected, async || (changes.lock().unwrap().last()? == expected).then_some(()))
                    .await;
            };
            until("synced").await;
            let service = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}});
            fixture.create("services", &service).await;
            let paint = async |color: Value| {
                fixture.patch("services/a", json!({"metadata": {"labels": {"color": color}}})).await;
            };
            paint(json!("blue")).await;
            paint(json!("red")).await;
            until("+a").await;
            fixture.patch("services/a", json!({"metadata": {"labels": {"size": "xl"}}})).await;
            until("~a").await;
            paint(json!("blue")).await;
            until("-a Event").await;
            assert!(store.is_empty());
            fixture.get("services/a").await;
            paint(json!("red")).await;
            until("+a").await;
            fixture.delete("services/a").await;
            until("-a Event").await;
            assert_eq!(*changes.lock().unwrap(), ["synced", "+a", "~a", "-a Event", "+a", "-a Event"]);
        };
        tokio::select! {
            () = watching => unreachable!("a watch runs until dropped"),
            () = script => {}
        }
    })
    .await;
}
