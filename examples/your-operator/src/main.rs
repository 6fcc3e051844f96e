//! An operator in a crate of its own: a Page becomes a ConfigMap with the text at its URL.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use listwatch::{
    children::{Children, Conditions},
    controller::{Controller, Next, Operator, Reconcile, ReconcileError},
    resource::{Labels, ObjectMeta, conditions::Verdict, kinds::ConfigMap},
    runtime::{self, Setup},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

const OPERATOR: &str = "your-operator";

#[derive(Serialize, Deserialize)]
struct Page {
    metadata: ObjectMeta,
    spec: PageSpec,
    #[serde(default)]
    status: Conditions,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageSpec {
    url: String,
    every_seconds: u32,
}

listwatch::kind!(Page, "example.com", "v1", "pages");
listwatch::reported!(Page, Conditions);

fn desired(page: &Page, text: String) -> ConfigMap {
    let metadata = ObjectMeta::of_child(page, &page.metadata.name, Labels::of(page, OPERATOR));
    ConfigMap { metadata, data: BTreeMap::from([("page".to_owned(), text)]), ..ConfigMap::default() }
}

struct Pages {
    config_maps: Children<ConfigMap>,
    /// The text for each spec, and when it is read again.
    texts: Mutex<HashMap<PageSpec, (String, Instant)>>,
}

impl Pages {
    async fn text(&self, spec: &PageSpec) -> Result<(String, Instant), reqwest::Error> {
        let now = Instant::now();
        self.texts.lock().await.retain(|_, (_, again)| *again > now);
        if let Some(known) = self.texts.lock().await.get(spec) {
            return Ok(known.clone());
        }
        let text = reqwest::get(&spec.url).await?.error_for_status()?.text().await?;
        let read = (text, now + Duration::from_secs(spec.every_seconds.into()));
        self.texts.lock().await.insert(spec.clone(), read.clone());
        Ok(read)
    }
}

impl Operator for Pages {
    type Kind = Page;

    async fn reconcile(&self, page: Reconcile<Page>) -> Result<Next, ReconcileError> {
        let (text, again) = self.text(&page.spec).await?;
        page.keep(&self.config_maps, &desired(&page, text)).await;
        let ready = Verdict::yes("Written", "the ConfigMap has the text");
        let next = page.finish(Conditions::default(), ready).await?;
        Ok(next.or_sooner(Next::After(again.saturating_duration_since(Instant::now()))))
    }
}

fn controller(setup: Setup) -> Controller<Pages> {
    let mut pages = setup.kind::<Page>(OPERATOR);
    let operator = Pages { config_maps: pages.children(), texts: Mutex::default() };
    pages.run_by(operator)
}

fn main() -> std::process::ExitCode {
    runtime::main(OPERATOR, |runtime| {
        let runtime = runtime.definitions(include_str!("../crd.yaml"));
        runtime.controller("example.com/pages", controller)
    })
}

#[cfg(test)]
mod tests;
