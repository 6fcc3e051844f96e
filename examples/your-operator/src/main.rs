//! An operator in a crate of its own: a Page becomes a ConfigMap with the text at its URL.

use std::{collections::BTreeMap, io, sync::Arc, thread, time::Duration};

use listwatch::{
    children::{Owned, Stage},
    controller::{Controller, Next, Operator, ReconcileError},
    resource::{Key, Labels, ObjectMeta, kinds::ConfigMap},
    runtime::{Runtime, RuntimeError, Setup},
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[derive(Serialize, Deserialize)]
struct Page {
    metadata: ObjectMeta,
    spec: PageSpec,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageSpec {
    url: String,
    every_seconds: u64,
}

listwatch::kind!(Page, "example.com", "v1", "pages");

struct Pages {
    labels: Labels,
    config_maps: Owned<ConfigMap>,
}

impl Operator for Pages {
    type Kind = Page;

    async fn applied(&self, page: Arc<Page>) -> Result<Next, ReconcileError> {
        let text = reqwest::get(&page.spec.url).await?.error_for_status()?.text().await?;
        let desired = ConfigMap {
            metadata: ObjectMeta::of_child(&*page, &page.metadata.name, self.labels.clone()),
            data: BTreeMap::from([("page".to_owned(), text)]),
            ..ConfigMap::default()
        };
        if let Some(outcome) = self.config_maps.keep(&*page, &desired, Stage::Settled).await {
            outcome.next()?;
        }
        Ok(Next::After(Duration::from_secs(page.spec.every_seconds)))
    }
}

fn controller(setup: &Setup, wakes: mpsc::Receiver<Key>) -> Controller<Pages> {
    let labels: Labels = [("app.kubernetes.io/managed-by", "your-operator")].into_iter().collect();
    let pages = setup.cluster.watch::<Page>(setup.scopes(""));
    let config_maps = setup.cluster.watch_children::<Page, ConfigMap>(setup.scopes(labels.as_selector()));
    let operator = Pages { labels, config_maps: Owned::new(&setup.cluster, &config_maps) };
    Controller::new(&setup.cluster, &pages, operator).owns(&config_maps).wakes(wakes)
}

fn main() -> Result<(), RuntimeError> {
    listwatch::log::start()?;
    let (sender, wakes) = mpsc::channel(1);
    // A line on standard input names a Page in the namespace `default` whose text is read again at once.
    thread::spawn(move || {
        for name in io::stdin().lines().map_while(Result::ok) {
            drop(sender.blocking_send(Key::namespaced("default", &name)));
        }
    });
    Runtime::from_env()?.controller("example.com/pages", |setup| controller(&setup, wakes)).run()
}

#[cfg(test)]
mod tests;
