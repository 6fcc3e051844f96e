//! An operator in a crate of its own: a Page becomes a ConfigMap with the text at its URL.

use std::{collections::BTreeMap, io, thread, time::Duration};

use listwatch::{
    children::{Children, Conditions},
    controller::{Controller, Next, Operator, Reconcile, ReconcileError},
    resource::{Key, Labels, MANAGED_BY, ObjectMeta, conditions::Verdict, kinds::ConfigMap},
    runtime::{self, RuntimeError, Setup},
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

const OPERATOR: &str = "your-operator";

#[derive(Serialize, Deserialize)]
struct Page {
    metadata: ObjectMeta,
    spec: PageSpec,
    #[serde(default)]
    status: Conditions,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageSpec {
    url: String,
    every_seconds: u64,
}

listwatch::kind!(Page, "example.com", "v1", "pages");
listwatch::reported!(Page, Conditions);

fn desired(page: &Page, text: String) -> ConfigMap {
    let labels: Labels = [(MANAGED_BY, OPERATOR)].into_iter().collect();
    let metadata = ObjectMeta::of_child(page, &page.metadata.name, labels);
    ConfigMap { metadata, data: BTreeMap::from([("page".to_owned(), text)]), ..ConfigMap::default() }
}

struct Pages {
    config_maps: Children<ConfigMap>,
}

impl Operator for Pages {
    type Kind = Page;

    async fn reconcile(&self, page: Reconcile<Page>) -> Result<Next, ReconcileError> {
        let text = reqwest::get(&page.spec.url).await?.error_for_status()?.text().await?;
        page.keep(&self.config_maps, &desired(&page, text)).await;
        let ready = Verdict::yes("Written", "the ConfigMap has the text");
        let next = page.finish(Conditions::default(), ready).await?;
        Ok(next.or_sooner(Next::After(Duration::from_secs(page.spec.every_seconds))))
    }
}

fn controller(setup: &Setup, wakes: mpsc::Receiver<Key>) -> Controller<Pages> {
    let mut pages = setup.kind::<Page>(OPERATOR);
    let operator = Pages { config_maps: pages.children() };
    pages.wakes(wakes);
    pages.run_by(operator)
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
    runtime::main(OPERATOR, |runtime| {
        let runtime = runtime.definitions(include_str!("../crd.yaml"));
        runtime.controller("example.com/pages", |setup| controller(&setup, wakes))
    })
}

#[cfg(test)]
mod tests;
