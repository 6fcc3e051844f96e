//! What a controller would write now: each object is reconciled once, by a client whose writes are dry runs.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{sleep, timeout};
use tracing::{Instrument, info_span};

use super::{Controller, Operator, RECONCILE_LIMIT};
use crate::{
    client::{Client, Patch, Request},
    cluster::Readiness,
    plan::{Given, Planning},
    resource::{Key, Resource, from_json, list::Found, remove_missing},
};

/// How often to look whether the watches have synced.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Attempts at an object that somebody else is changing.
const ATTEMPTS_MAX: u32 = 8;
/// In it, `kubectl apply` notes what it has applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Finds an object as it is now.
type FindNow<'a, K> = dyn Fn() -> Option<Found<K>> + Sync + 'a;

impl<O: Operator> Controller<O> {
    /// Reconciles each object once, one after the other, or only those that were given for this kind.
    pub(crate) async fn plan(self, planning: &Planning) {
        let kind = O::Kind::KIND;
        let result = match planning.given::<O::Kind>() {
            Some(given) => self.plan_given(planning, given).await,
            None => self.plan_all(planning).await,
        };
        if let Err(problem) = result {
            planning.note(format!("{kind}: {problem}"));
        }
    }

    async fn plan_all(&self, planning: &Planning) -> Result<(), String> {
        let objects = &self.shared.objects;
        self.until(&|| objects.readiness()).await?;
        for key in objects.keys() {
            let found = || objects.find(&key);
            self.plan_one(planning, &key, &found).await;
        }
        Ok(())
    }

    async fn plan_given(&self, planning: &Planning, given: Vec<Given>) -> Result<(), String> {
        let client = &planning.client;
        let is_namespaced = is_namespaced(client, &O::Kind::collection_path(None)).await?;
        for Given { mut object, from } in given {
            if is_namespaced && object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = client.namespace().into();
            }
            if let Err(problem) = self.plan_applied(planning, object).await {
                planning.note(format!("{from}: {problem}"));
            }
        }
        Ok(())
    }

    async fn plan_applied(&self, planning: &Planning, object: Value) -> Result<(), String> {
        let path = path_of::<O::Kind>(&object)?;
        let applied = as_applied(&planning.client, &path, object).await?;
        if !planning.dry_run.assume(&path, &applied) {
            return Err("an earlier document has the same object".to_owned());
        }
        let object: O::Kind = from_json(applied.to_string().as_bytes()).map_err(|error| error.to_string())?;
        let object = Arc::new(object);
        self.plan_one(planning, &object.key(), &|| Some(Found::Readable(Arc::clone(&object)))).await;
        Ok(())
    }

    /// `found`: the object, which may change until the watches that it needs have synced.
    async fn plan_one(&self, planning: &Planning, key: &Key, found: &FindNow<'_, O::Kind>) {
        let before = planning.dry_run.count();
        for attempt in 1.. {
            let result = match self.until(&|| self.readiness_of(key, found().as_ref())).await {
                // Its cleanup may delete something outside the cluster, which has no dry run.
                Ok(()) if found().is_some_and(|found| found.metadata().is_terminating()) => return,
                Ok(()) => {
                    let limit = format!("the reconcile timed out after {} s", RECONCILE_LIMIT.as_secs());
                    let reconciled =
                        timeout(RECONCILE_LIMIT, self.reconcile_due(key, self.due(found().as_ref())));
                    // The log says it of each write.
                    reconciled.instrument(info_span!("planned")).await.unwrap_or_else(|_| Err(limit.into()))
                }
                Err(problem) => Err(problem.into()),
            };
            match result {
                Ok(_) => return,
                // Somebody else writes, and the watches will know soon.
                Err(error) if error.is_outdated() && attempt < ATTEMPTS_MAX => {
                    planning.dry_run.go_back_to(before);
                    sleep(LOOK_AGAIN * attempt).await;
                }
                Err(error) => {
                    let problem = error.to_string();
                    if !planning.dry_run.has_noted(before, &problem) {
                        planning.note(format!("{} {key}: {problem}", O::Kind::KIND));
                    }
                    return;
                }
            }
        }
    }

    /// Waits until the watches are ready. Fails if one of them does, without a second attempt.
    async fn until(&self, readiness: &(dyn Fn() -> Readiness + Sync)) -> Result<(), String> {
        loop {
            match readiness() {
                Readiness::Ready => return Ok(()),
                Readiness::Failing(problem) => return Err(problem),
                Readiness::Waiting => {}
            }
            let failing = |health: &crate::watch::Health| {
                if health.is_synced() || health.forbidden().is_some() { None } else { health.problem() }
            };
            if let Some(problem) = self.shared.cluster.health().iter().find_map(|health| failing(health)) {
                return Err(problem);
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// Whether the objects of a collection are in namespaces: `/apis/apps/v1/deployments`.
async fn is_namespaced(client: &Client, collection: &str) -> Result<bool, String> {
    let (group, plural) = collection.rsplit_once('/').unwrap_or_default();
    let resources = ask(client, Request::get(group)).await?;
    let mut resources = resources["resources"].as_array().into_iter().flatten();
    let resource = resources.find(|resource| resource["name"] == plural);
    let resource = resource.ok_or_else(|| format!("the API server has no {plural} in {group}"))?;
    Ok(resource["namespaced"] == true)
}

/// The path of an object of this kind.
fn path_of<K: Resource>(object: &Value) -> Result<String, String> {
    let (version, known) = (object["apiVersion"].as_str().unwrap_or_default(), K::api_version());
    if version != known {
        return Err(format!("has the version {version}: write it as {known}"));
    }
    let name = object["metadata"]["name"].as_str().filter(|name| !name.is_empty());
    let name = name.ok_or("it has no metadata.name")?;
    Ok(format!("{}/{name}", K::collection_path(object["metadata"]["namespace"].as_str())))
}

/// The object at this path as it would be after `kubectl apply`.
async fn as_applied(client: &Client, path: &str, mut object: Value) -> Result<Value, String> {
    let write = match client.send(Request::get(path)).await {
        Ok(live) => {
            let live: Value = serde_json::from_slice(&live.body).map_err(|error| error.to_string())?;
            let applied = live["metadata"]["annotations"][LAST_APPLIED].as_str();
            let applied = applied.and_then(|text| serde_json::from_str(text).ok());
            remove_missing(&applied.unwrap_or_default(), &mut object);
            Request::get(path).patches(&Patch::Merge(object))
        }
        Err(error) if error.is_not_found() => {
            let (collection, _) = path.rsplit_once('/').unwrap_or_default();
            Request::post(collection, &object)
        }
        Err(error) => return Err(error.to_string()),
    };
    let query = vec![("dryRun", "All".into()), ("fieldValidation", "Strict".into())];
    let mut applied = ask(client, Request { query, ..write }).await?;
    if applied["metadata"]["resourceVersion"].is_null() {
        applied["metadata"]["resourceVersion"] = "".into();
    }
    Ok(applied)
}

async fn ask(client: &Client, request: Request) -> Result<Value, String> {
    let answer = client.send(request).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&answer.body).map_err(|error| error.to_string())
}
