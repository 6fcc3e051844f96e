//! Claims that are bound, and Pods that run: a kube-apiserver without a node cannot show them.

use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::World;

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn stateful_set(replicas: u64) -> Value {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    json!({"metadata": {"name": "db"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "postgres:15"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }})
}

fn is_available(replicas: u64) -> impl Fn(u16, &Value) -> bool {
    move |_, set| {
        let status = &set["status"];
        status["availableReplicas"] == replicas && status["replicas"] == replicas
    }
}

#[tokio::test]
async fn a_claim_is_bound_grows_and_outlives_its_stateful_set() {
    let world = World::start().await;
    world.post(SETS, stateful_set(3)).await;
    world.until(&format!("{SETS}/db"), is_available(3)).await;
    let claim = format!("{CLAIMS}/data-db-2");
    let (_, bound) = world.get(&claim).await;
    assert_eq!(bound["status"]["phase"], "Bound");
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    world.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    world.until(&claim, |_, claim| claim["status"]["capacity"]["storage"] == "2Gi").await;
    // A claim that a Pod uses is only marked.
    world.delete(&claim).await;
    let (status, held) = world.get(&claim).await;
    assert_eq!(status, 200);
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    world.delete(&format!("{SETS}/db?propagationPolicy=Foreground")).await;
    world.until(&claim, |status, _| status == 404).await;
    let (_, kept) = world.get(CLAIMS).await;
    assert_eq!(kept["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_pod_waits_for_a_claim_that_is_not_bound() {
    let world = World::start().await;
    let mut set = stateful_set(2);
    set["spec"]["volumeClaimTemplates"][0]["metadata"]["annotations"]["listwatch/simulate"] =
        "pending".into();
    world.post(SETS, set).await;
    let is_unschedulable = |_: u16, pod: &Value| pod["status"]["conditions"][0]["reason"] == "Unschedulable";
    let pod = world.until(&format!("{PODS}/db-0"), is_unschedulable).await;
    let message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(pod["status"]["conditions"][0]["message"], message);
    let bind = json!({"metadata": {"annotations": {"listwatch/simulate": null}}});
    world.merge(&format!("{CLAIMS}/data-db-0"), bind.clone()).await;
    world.until(&format!("{SETS}/db"), |_, set| set["status"]["readyReplicas"] == 1).await;
    world.until(&format!("{PODS}/db-1"), is_unschedulable).await;
    world.merge(&format!("{CLAIMS}/data-db-1"), bind).await;
    world.until(&format!("{SETS}/db"), is_available(2)).await;
}

/// The successor of a Pod waits while the claim of its predecessor is being deleted.
#[tokio::test]
async fn a_claim_that_goes_with_its_pod_is_made_anew() {
    let world = World::start().await;
    let mut set = stateful_set(2);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete"});
    world.post(SETS, set).await;
    let db = format!("{SETS}/db");
    world.until(&db, is_available(2)).await;
    let (_, before) = world.get(&format!("{CLAIMS}/data-db-1")).await;
    world.merge(&db, json!({"spec": {"replicas": 1}})).await;
    world.merge(&db, json!({"spec": {"replicas": 2}})).await;
    world.until(&db, is_available(2)).await;
    world.merge(&db, json!({"spec": {"replicas": 1}})).await;
    world.until(&format!("{CLAIMS}/data-db-1"), |status, _| status == 404).await;
    world.merge(&db, json!({"spec": {"replicas": 2}})).await;
    world.until(&db, is_available(2)).await;
    let (_, after) = world.get(&format!("{CLAIMS}/data-db-1")).await;
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
}

fn job_spec(simulate: &str) -> Value {
    json!({"template": {"metadata": {"annotations": {"listwatch/simulate": simulate}}, "spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "postgres:15"}]}}})
}

fn conditions(object: &Value) -> Vec<&str> {
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.filter_map(|condition| condition["type"].as_str()).collect()
}

async fn phases(world: &World, job: &str) -> Vec<Value> {
    let (_, pods) = world.get(&format!("{PODS}?labelSelector=job-name={job}")).await;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.iter().map(|pod| pod["status"]["phase"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_pod_of_a_job_succeeds_or_crashes_by_annotation() {
    let world = World::start().await;
    world.post(JOBS, json!({"metadata": {"name": "good"}, "spec": job_spec("")})).await;
    let mut spec = job_spec("crash");
    spec["backoffLimit"] = 2.into();
    world.post(JOBS, json!({"metadata": {"name": "bad"}, "spec": spec})).await;
    let mut spec = job_spec("");
    spec["ttlSecondsAfterFinished"] = 5.into();
    world.post(JOBS, json!({"metadata": {"name": "short"}, "spec": spec})).await;
    world.post(JOBS, json!({"metadata": {"name": "endless"}, "spec": job_spec("unready")})).await;
    // The second Pod comes ten seconds after the first failure, the third one twenty seconds later.
    sleep(Duration::from_secs(20)).await;
    assert_eq!(phases(&world, "bad").await, ["Failed", "Failed"]);
    sleep(Duration::from_secs(20)).await;
    let (_, good) = world.get(&format!("{JOBS}/good")).await;
    assert_eq!(conditions(&good), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!(phases(&world, "good").await, ["Succeeded"]);
    assert_eq!(world.get(&format!("{JOBS}/short")).await.0, 404);
    assert_eq!(phases(&world, "short").await, [] as [Value; 0]);
    let (_, bad) = world.get(&format!("{JOBS}/bad")).await;
    assert_eq!(conditions(&bad), ["FailureTarget", "Failed"]);
    assert_eq!(bad["status"]["failed"], 3);
    let (_, endless) = world.get(&format!("{JOBS}/endless")).await;
    assert_eq!(endless["status"]["active"], 1);
    world.delete(&format!("{JOBS}/endless?propagationPolicy=Background")).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(phases(&world, "endless").await, [] as [Value; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_runs_on_time_and_keeps_its_last_jobs() {
    let world = World::start().await;
    let spec = json!({"schedule": "*/5 * * * *", "successfulJobsHistoryLimit": 2, "jobTemplate": {"spec": job_spec("")}});
    world.post(CRON_JOBS, json!({"metadata": {"name": "often"}, "spec": spec})).await;
    sleep(Duration::from_secs(22 * 60)).await;
    let (_, often) = world.get(&format!("{CRON_JOBS}/often")).await;
    assert!(often["status"]["lastSuccessfulTime"].is_string(), "{often}");
    assert!(often["status"]["active"].is_null(), "{often}");
    let (_, jobs) = world.get(JOBS).await;
    let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(jobs.len(), 2);
    for job in &jobs {
        let due = job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"].as_str();
        assert!(due.is_some_and(|due| due.ends_with("0:00Z") || due.ends_with("5:00Z")), "{job}");
    }
    world.merge(&format!("{CRON_JOBS}/often"), json!({"spec": {"suspend": true}})).await;
    sleep(Duration::from_secs(22 * 60)).await;
    let (_, later) = world.get(JOBS).await;
    assert_eq!(later["items"], json!(jobs));
}

/// The last run seemed to be a second earlier than it was, and due again.
#[tokio::test]
async fn a_cron_job_runs_once_at_each_time() {
    let world = World::start().await;
    let (_, namespace) = world.get("/api/v1/namespaces/default").await;
    let year =
        namespace["metadata"]["creationTimestamp"].as_str().and_then(|time| time.get(..4)?.parse().ok());
    let year: u64 = year.expect("a timestamp begins with a year");
    // Only the second one is due.
    for (name, last) in [("done", year), ("due", year - 1)] {
        let spec = json!({"schedule": "@yearly", "suspend": true, "jobTemplate": {"spec": job_spec("")}});
        world.post(CRON_JOBS, json!({"metadata": {"name": name}, "spec": spec})).await;
        let status = json!({"status": {"lastScheduleTime": format!("{last}-01-01T00:00:00Z")}});
        world.merge(&format!("{CRON_JOBS}/{name}/status"), status).await;
        world.merge(&format!("{CRON_JOBS}/{name}"), json!({"spec": {"suspend": false}})).await;
    }
    let jobs = world.until(JOBS, |_, jobs| jobs["items"] != json!([])).await;
    let jobs = jobs["items"].as_array().into_iter().flatten();
    let owners: Vec<&Value> = jobs.map(|job| &job["metadata"]["ownerReferences"][0]["name"]).collect();
    assert_eq!(owners, ["due"]);
}

/// Each Job is made by hand from the CronJob, with its ownerReference: `kubectl create job --from`.
#[tokio::test(start_paused = true)]
async fn a_suspended_cron_job_counts_jobs_that_a_user_makes() {
    let world = World::start().await;
    let spec = json!({"schedule": "@daily", "suspend": true, "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0,
        "jobTemplate": {"spec": job_spec("")}});
    let (_, cron_job) = world.post(CRON_JOBS, json!({"metadata": {"name": "nightly"}, "spec": spec})).await;
    let owner = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "controller": true,
        "uid": cron_job["metadata"]["uid"]}]);
    for (name, simulate) in [("first", ""), ("second", ""), ("bad", "crash")] {
        let mut spec = job_spec(simulate);
        spec["backoffLimit"] = 0.into();
        world.post(JOBS, json!({"metadata": {"name": name, "ownerReferences": owner}, "spec": spec})).await;
        sleep(Duration::from_secs(10)).await;
    }
    let (_, jobs) = world.get(JOBS).await;
    let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
    let names: Vec<&Value> = jobs.iter().map(|job| &job["metadata"]["name"]).collect();
    assert_eq!(names, ["second"]);
    let (_, nightly) = world.get(&format!("{CRON_JOBS}/nightly")).await;
    assert_eq!(nightly["status"]["lastSuccessfulTime"], jobs[0]["status"]["completionTime"]);
}

/// The controller made a new ControllerRevision as often as the garbage collector deleted it.
#[tokio::test]
async fn a_stateful_set_that_is_being_deleted_writes_nothing() {
    let world = World::start().await;
    world.post(SETS, stateful_set(1)).await;
    world.until(&format!("{SETS}/db"), is_available(1)).await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    world.merge(&format!("{PODS}/db-0"), hold).await;
    world.delete(&format!("{SETS}/db?propagationPolicy=Foreground")).await;
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    world.until(revisions, |_, list| list["items"] == json!([])).await;
    world.until(&format!("{PODS}/db-0"), |_, pod| pod["metadata"]["deletionGracePeriodSeconds"] == 0).await;
    let version = async || world.get(SETS).await.1["metadata"]["resourceVersion"].clone();
    let before = version().await;
    for _ in 0..20 {
        assert_eq!(version().await, before);
    }
}
