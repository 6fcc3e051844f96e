//! Claims that are bound, and Pods that run: a kube-apiserver without a node cannot show them.

use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::Fixture;
use crate::{
    storage::Place,
    verbs::{
        delete::{Deletion, delete},
        write::{self, WriteOptions},
    },
};

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
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
    let fixture = Fixture::start().await;
    fixture.post(SETS, stateful_set(3)).await;
    fixture.until(&format!("{SETS}/db"), is_available(3)).await;
    let claim = format!("{CLAIMS}/data-db-2");
    let (_, bound) = fixture.get(&claim).await;
    assert_eq!(bound["status"]["phase"], "Bound");
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    fixture.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    fixture.until(&claim, |_, claim| claim["status"]["capacity"]["storage"] == "2Gi").await;
    // A claim that a Pod uses is only marked.
    fixture.delete(&claim).await;
    let (status, held) = fixture.get(&claim).await;
    assert_eq!(status, 200);
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    fixture.delete(&format!("{SETS}/db?propagationPolicy=Foreground")).await;
    fixture.until(&claim, |status, _| status == 404).await;
    let (_, kept) = fixture.get(CLAIMS).await;
    assert_eq!(kept["items"].as_array().map(Vec::len), Some(2));
}

/// Before the controllers saw that the first claim was gone. Its volume stayed, bound to nothing.
#[tokio::test]
async fn the_volume_of_a_claim_that_was_created_again_is_deleted() {
    let fixture = Fixture::start().await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    fixture.post(CLAIMS, claim.clone()).await;
    let path = format!("{CLAIMS}/data");
    let is_bound = |_: u16, claim: &Value| claim["status"]["phase"] == "Bound";
    let first = fixture.until(&path, is_bound).await;
    fixture.merge(&path, json!({"metadata": {"finalizers": null}})).await;
    {
        let mut storage = fixture.server.server.storage();
        let kind = storage.kinds.built_in("", "persistentvolumeclaims");
        let place = Place::new("persistentvolumeclaims", Some("default"), "data");
        delete(&mut storage, &kind, &place, &Deletion::default()).expect("deleted");
        write::create(&mut storage, &kind, Some("default"), claim, &mut WriteOptions::default())
            .expect("created");
    }
    fixture.until(&path, is_bound).await;
    let volume = first["spec"]["volumeName"].as_str().expect("a volume");
    fixture.until(&format!("/api/v1/persistentvolumes/{volume}"), |status, _| status == 404).await;
}

#[tokio::test]
async fn a_pod_waits_for_a_claim_that_is_not_bound() {
    let fixture = Fixture::start().await;
    let mut set = stateful_set(2);
    set["spec"]["volumeClaimTemplates"][0]["metadata"]["annotations"]["listwatch/simulate"] =
        "pending".into();
    fixture.post(SETS, set).await;
    let is_unschedulable = |_: u16, pod: &Value| pod["status"]["conditions"][0]["reason"] == "Unschedulable";
    let pod = fixture.until(&format!("{PODS}/db-0"), is_unschedulable).await;
    let message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(pod["status"]["conditions"][0]["message"], message);
    let bind = json!({"metadata": {"annotations": {"listwatch/simulate": null}}});
    fixture.merge(&format!("{CLAIMS}/data-db-0"), bind.clone()).await;
    fixture.until(&format!("{SETS}/db"), |_, set| set["status"]["readyReplicas"] == 1).await;
    fixture.until(&format!("{PODS}/db-1"), is_unschedulable).await;
    fixture.merge(&format!("{CLAIMS}/data-db-1"), bind).await;
    fixture.until(&format!("{SETS}/db"), is_available(2)).await;
}

#[tokio::test]
async fn init_containers_end_before_the_containers_start_and_sidecars_go_on() {
    let fixture = Fixture::start().await;
    let pod = |name: &str, image: &str| {
        let first = json!({"name": "a", "image": image});
        let sidecar = json!({"name": "s", "image": "i", "restartPolicy": "Always"});
        json!({"metadata": {"name": name}, "spec": {"initContainers": [first, sidecar], "containers": [{"name": "c", "image": "i"}]}})
    };
    fixture.post(PODS, pod("good", "i")).await;
    let good = fixture.until(&format!("{PODS}/good"), |_, pod| pod["status"]["phase"] == "Running").await;
    let statuses = &good["status"]["initContainerStatuses"];
    assert_eq!(statuses[0]["state"]["terminated"]["reason"], "Completed");
    assert_eq!((&statuses[0]["ready"], &statuses[0]["started"]), (&json!(true), &json!(false)));
    assert!(statuses[1]["state"]["running"].is_object() && statuses[1]["started"] == true, "{statuses}");

    fixture.post(PODS, pod("bad", "does-not-exist")).await;
    let is_pulled = |_: u16, pod: &Value| pod["status"]["initContainerStatuses"].is_array();
    let bad = fixture.until(&format!("{PODS}/bad"), is_pulled).await;
    let status = &bad["status"];
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status["initContainerStatuses"][0]["state"]["waiting"]["reason"], "ErrImagePull");
    assert_eq!(status["initContainerStatuses"][1]["state"]["waiting"]["reason"], "PodInitializing");
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    let condition = &status["conditions"].as_array().expect("a list")[1];
    assert_eq!(condition["message"], "containers with incomplete status: [a s]", "{condition}");
}

#[tokio::test]
async fn a_pod_that_does_not_fit_on_the_node_waits_and_says_why() {
    let fixture = Fixture::start().await;
    let node = async |change: Value| fixture.merge("/api/v1/nodes/node-1", change).await;
    let pod = format!("{PODS}/choosy");
    node(json!({"spec": {"unschedulable": true}})).await;
    let affinity = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}]}]});
    let spec = json!({
        "containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"zone": "a"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
    });
    fixture.post(PODS, json!({"metadata": {"name": "choosy"}, "spec": spec})).await;
    let taints =
        json!([{"key": "gpu", "effect": "NoSchedule"}, {"key": "a", "value": "b", "effect": "NoExecute"}]);
    for (change, why) in [
        (json!({}), "node(s) were unschedulable"),
        (json!({"spec": {"unschedulable": null, "taints": taints}}), "node(s) had untolerated taint(s)"),
        (json!({"spec": {"taints": [taints[0]]}}), "node(s) didn't match Pod's node affinity/selector"),
    ] {
        node(change).await;
        let message = format!(
            "0/1 nodes are available: 1 {why}. no new claims to deallocate, preemption: 0/1 nodes are available: \
            1 Preemption is not helpful for scheduling."
        );
        let waits = |_: u16, pod: &Value| pod["status"]["conditions"][0]["message"] == message;
        assert_eq!(fixture.until(&pod, waits).await["status"]["phase"], "Pending");
    }
    node(json!({"metadata": {"labels": {"zone": "a", "disk": "ssd"}}})).await;
    fixture.until(&pod, |_, pod| pod["status"]["phase"] == "Running").await;
}

#[tokio::test]
async fn a_pod_waits_for_room_on_the_node() {
    let fixture = Fixture::start().await;
    let allocatable = json!({"cpu": "1", "memory": "1Gi", "pods": "2"});
    fixture.merge("/api/v1/nodes/node-1/status", json!({"status": {"allocatable": allocatable}})).await;
    let create = async |name: &str, requests: Value| {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": requests}});
        fixture.post(PODS, json!({"metadata": {"name": name}, "spec": {"containers": [container]}})).await;
    };
    let runs = async |name: &str| {
        let is_running = |_: u16, pod: &Value| pod["status"]["phase"] == "Running";
        fixture.until(&format!("{PODS}/{name}"), is_running).await;
    };
    let waits = async |name: &str, reasons: &str, preemption: &str| {
        let message = format!(
            "0/1 nodes are available: {reasons}. no new claims to deallocate, preemption: 0/1 nodes are available: 1 {preemption}."
        );
        let says_why = |_: u16, pod: &Value| pod["status"]["conditions"][0]["message"] == message;
        fixture.until(&format!("{PODS}/{name}"), says_why).await;
    };
    let no_victims = "No preemption victims found for incoming pod";
    create("a", json!({"cpu": "600m", "memory": "512Mi"})).await;
    runs("a").await;
    create("large", json!({"cpu": "500m", "memory": "2Gi"})).await;
    let reasons = "1 Insufficient cpu, 1 Insufficient memory";
    waits("large", reasons, "Preemption is not helpful for scheduling").await;
    create("b", json!({"cpu": "0.4001"})).await;
    waits("b", "1 Insufficient cpu", no_victims).await;
    fixture.delete(&format!("{PODS}/a")).await;
    runs("b").await;
    create("c", json!({})).await;
    runs("c").await;
    create("d", json!({})).await;
    waits("d", "1 Too many pods", no_victims).await;
}

#[tokio::test]
async fn a_pod_is_not_scheduled_until_its_gates_are_removed() {
    let fixture = Fixture::start().await;
    let pod = |name: &str, gates: Value| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], "schedulingGates": gates}});
    fixture.post(PODS, pod("gated", json!([{"name": "example.com/a"}]))).await;
    fixture.post(PODS, pod("later", json!([]))).await;
    let is_running = |_: u16, pod: &Value| pod["status"]["phase"] == "Running";
    fixture.until(&format!("{PODS}/later"), is_running).await;
    let gated = format!("{PODS}/gated");
    let (_, pod) = fixture.get(&gated).await;
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    fixture.merge(&gated, json!({"spec": {"schedulingGates": null}})).await;
    fixture.until(&gated, is_running).await;
}

/// The successor of a Pod waits while the claim of its predecessor is being deleted.
#[tokio::test]
async fn a_claim_that_goes_with_its_pod_is_made_anew() {
    let fixture = Fixture::start().await;
    let mut set = stateful_set(2);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete"});
    fixture.post(SETS, set).await;
    let db = format!("{SETS}/db");
    fixture.until(&db, is_available(2)).await;
    let (_, before) = fixture.get(&format!("{CLAIMS}/data-db-1")).await;
    fixture.merge(&db, json!({"spec": {"replicas": 1}})).await;
    fixture.merge(&db, json!({"spec": {"replicas": 2}})).await;
    fixture.until(&db, is_available(2)).await;
    fixture.merge(&db, json!({"spec": {"replicas": 1}})).await;
    fixture.until(&format!("{CLAIMS}/data-db-1"), |status, _| status == 404).await;
    fixture.merge(&db, json!({"spec": {"replicas": 2}})).await;
    fixture.until(&db, is_available(2)).await;
    let (_, after) = fixture.get(&format!("{CLAIMS}/data-db-1")).await;
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

async fn phases(fixture: &Fixture, job: &str) -> Vec<Value> {
    let (_, pods) = fixture.get(&format!("{PODS}?labelSelector=job-name={job}")).await;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.iter().map(|pod| pod["status"]["phase"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_pod_of_a_job_succeeds_or_crashes_by_annotation() {
    let fixture = Fixture::start().await;
    fixture.post(JOBS, json!({"metadata": {"name": "good"}, "spec": job_spec("")})).await;
    let mut spec = job_spec("crash");
    spec["backoffLimit"] = 2.into();
    fixture.post(JOBS, json!({"metadata": {"name": "bad"}, "spec": spec})).await;
    let mut spec = job_spec("");
    spec["ttlSecondsAfterFinished"] = 5.into();
    fixture.post(JOBS, json!({"metadata": {"name": "short"}, "spec": spec})).await;
    fixture.post(JOBS, json!({"metadata": {"name": "endless"}, "spec": job_spec("unready")})).await;
    // The second Pod comes ten seconds after the first failure, the third one twenty seconds later.
    sleep(Duration::from_secs(20)).await;
    assert_eq!(phases(&fixture, "bad").await, ["Failed", "Failed"]);
    sleep(Duration::from_secs(20)).await;
    let (_, good) = fixture.get(&format!("{JOBS}/good")).await;
    assert_eq!(conditions(&good), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!(phases(&fixture, "good").await, ["Succeeded"]);
    assert_eq!(fixture.get(&format!("{JOBS}/short")).await.0, 404);
    assert_eq!(phases(&fixture, "short").await, [] as [Value; 0]);
    let (_, bad) = fixture.get(&format!("{JOBS}/bad")).await;
    assert_eq!(conditions(&bad), ["FailureTarget", "Failed"]);
    assert_eq!(bad["status"]["failed"], 3);
    let (_, endless) = fixture.get(&format!("{JOBS}/endless")).await;
    assert_eq!(endless["status"]["active"], 1);
    fixture.delete(&format!("{JOBS}/endless?propagationPolicy=Background")).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(phases(&fixture, "endless").await, [] as [Value; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_runs_on_time_and_keeps_its_last_jobs() {
    let fixture = Fixture::start().await;
    let spec = json!({"schedule": "*/5 * * * *", "successfulJobsHistoryLimit": 2, "jobTemplate": {"spec": job_spec("")}});
    fixture.post(CRON_JOBS, json!({"metadata": {"name": "often"}, "spec": spec})).await;
    sleep(Duration::from_secs(22 * 60)).await;
    let (_, often) = fixture.get(&format!("{CRON_JOBS}/often")).await;
    assert!(often["status"]["lastSuccessfulTime"].is_string(), "{often}");
    assert!(often["status"]["active"].is_null(), "{often}");
    let (_, jobs) = fixture.get(JOBS).await;
    let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(jobs.len(), 2);
    for job in &jobs {
        let due = job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"].as_str();
        assert!(due.is_some_and(|due| due.ends_with("0:00Z") || due.ends_with("5:00Z")), "{job}");
    }
    fixture.merge(&format!("{CRON_JOBS}/often"), json!({"spec": {"suspend": true}})).await;
    sleep(Duration::from_secs(22 * 60)).await;
    let (_, later) = fixture.get(JOBS).await;
    assert_eq!(later["items"], json!(jobs));
}

/// The last run seemed to be a second earlier than it was, and due again.
#[tokio::test]
async fn a_cron_job_runs_once_at_each_time() {
    let fixture = Fixture::start().await;
    let (_, namespace) = fixture.get("/api/v1/namespaces/default").await;
    let year =
        namespace["metadata"]["creationTimestamp"].as_str().and_then(|time| time.get(..4)?.parse().ok());
    let year: u64 = year.expect("a timestamp begins with a year");
    // Only the second one is due.
    for (name, last) in [("done", year), ("due", year - 1)] {
        let spec = json!({"schedule": "@yearly", "suspend": true, "jobTemplate": {"spec": job_spec("")}});
        fixture.post(CRON_JOBS, json!({"metadata": {"name": name}, "spec": spec})).await;
        let status = json!({"status": {"lastScheduleTime": format!("{last}-01-01T00:00:00Z")}});
        fixture.merge(&format!("{CRON_JOBS}/{name}/status"), status).await;
        fixture.merge(&format!("{CRON_JOBS}/{name}"), json!({"spec": {"suspend": false}})).await;
    }
    let jobs = fixture.until(JOBS, |_, jobs| jobs["items"] != json!([])).await;
    let jobs = jobs["items"].as_array().into_iter().flatten();
    let owners: Vec<&Value> = jobs.map(|job| &job["metadata"]["ownerReferences"][0]["name"]).collect();
    assert_eq!(owners, ["due"]);
}

/// Each Job is made by hand from the CronJob, with its ownerReference: `kubectl create job --from`.
#[tokio::test(start_paused = true)]
async fn a_suspended_cron_job_counts_jobs_that_a_user_makes() {
    let fixture = Fixture::start().await;
    let spec = json!({"schedule": "@daily", "suspend": true, "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0,
        "jobTemplate": {"spec": job_spec("")}});
    let (_, cron_job) = fixture.post(CRON_JOBS, json!({"metadata": {"name": "nightly"}, "spec": spec})).await;
    let owner = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "controller": true,
        "uid": cron_job["metadata"]["uid"]}]);
    for (name, simulate) in [("first", ""), ("second", ""), ("bad", "crash")] {
        let mut spec = job_spec(simulate);
        spec["backoffLimit"] = 0.into();
        fixture.post(JOBS, json!({"metadata": {"name": name, "ownerReferences": owner}, "spec": spec})).await;
        sleep(Duration::from_secs(10)).await;
    }
    let (_, jobs) = fixture.get(JOBS).await;
    let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
    let names: Vec<&Value> = jobs.iter().map(|job| &job["metadata"]["name"]).collect();
    assert_eq!(names, ["second"]);
    let (_, nightly) = fixture.get(&format!("{CRON_JOBS}/nightly")).await;
    assert_eq!(nightly["status"]["lastSuccessfulTime"], jobs[0]["status"]["completionTime"]);
}

/// The controller made a new ControllerRevision as often as the garbage collector deleted it.
#[tokio::test]
async fn a_stateful_set_that_is_being_deleted_writes_nothing() {
    let fixture = Fixture::start().await;
    fixture.post(SETS, stateful_set(1)).await;
    fixture.until(&format!("{SETS}/db"), is_available(1)).await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    fixture.merge(&format!("{PODS}/db-0"), hold).await;
    fixture.delete(&format!("{SETS}/db?propagationPolicy=Foreground")).await;
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    fixture.until(revisions, |_, list| list["items"] == json!([])).await;
    fixture.until(&format!("{PODS}/db-0"), |_, pod| pod["metadata"]["deletionGracePeriodSeconds"] == 0).await;
    let version = async || fixture.get(SETS).await.1["metadata"]["resourceVersion"].clone();
    let before = version().await;
    for _ in 0..20 {
        assert_eq!(version().await, before);
    }
}

const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

fn claim(name: &str, class: Option<&str>) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

fn is_bound(_: u16, object: &Value) -> bool {
    object["status"]["phase"] == "Bound"
}

#[tokio::test]
async fn a_daemon_set_has_a_pod_on_the_node_and_replaces_it() {
    let fixture = Fixture::start().await;
    let template = json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    let set = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template}});
    fixture.post(DAEMON_SETS, set).await;
    let path = format!("{DAEMON_SETS}/d");
    let is_settled = |_: u16, set: &Value| {
        let status = &set["status"];
        status["observedGeneration"] == set["metadata"]["generation"]
            && status["numberAvailable"] == 1
            && status["updatedNumberScheduled"] == 1
    };
    let set = fixture.until(&path, is_settled).await;
    assert_eq!(set["status"]["desiredNumberScheduled"], 1);
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}});
    fixture.merge(&path, image).await;
    fixture.until(&path, is_settled).await;
    let (_, pods) = fixture.get(PODS).await;
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(pods["items"][0]["spec"]["containers"][0]["image"], "i:2");
    fixture.merge(&path, json!({"spec": {"template": {"spec": {"nodeSelector": {"gpu": "yes"}}}}})).await;
    fixture.until(PODS, |_, pods| pods["items"] == json!([])).await;
}

#[tokio::test]
async fn a_claim_has_a_volume_of_its_class() {
    let fixture = Fixture::start().await;
    let (_, made) = fixture.post(CLAIMS, claim("a", None)).await;
    assert_eq!(made["spec"]["storageClassName"], "standard");
    let bound = fixture.until(&format!("{CLAIMS}/a"), is_bound).await;
    let volume = format!("{VOLUMES}/{}", bound["spec"]["volumeName"].as_str().unwrap_or_default());
    let (_, of_claim) = fixture.get(&volume).await;
    assert_eq!(of_claim["spec"]["claimRef"]["name"], "a");
    assert_eq!(of_claim["status"]["phase"], "Bound");
    let annotations = &bound["metadata"]["annotations"];
    assert_eq!(annotations["volume.kubernetes.io/storage-provisioner"], "listwatch/simulated");
    fixture.delete(&format!("{CLAIMS}/a")).await;
    fixture.until(&volume, |status, _| status == 404).await;

    fixture.post(CLAIMS, claim("b", Some("slow"))).await;
    fixture.until("/api/v1/events", |_, events| events.to_string().contains("\\\"slow\\\" not found")).await;
    fixture
        .post(CLASSES, json!({"metadata": {"name": "slow"}, "provisioner": "p", "reclaimPolicy": "Retain"}))
        .await;
    let bound = fixture.until(&format!("{CLAIMS}/b"), is_bound).await;
    let volume = format!("{VOLUMES}/{}", bound["spec"]["volumeName"].as_str().unwrap_or_default());
    fixture.delete(&format!("{CLAIMS}/b")).await;
    fixture.until(&volume, |_, volume| volume["status"]["phase"] == "Released").await;
}

#[tokio::test]
async fn a_claim_is_bound_to_a_volume_that_fits() {
    let fixture = Fixture::start().await;
    let volume = |name: &str, size: &str| {
        json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand", "hostPath": {"path": "/"}}})
    };
    fixture.post(CLAIMS, claim("c", Some("by-hand"))).await;
    for (name, size) in [("small", "1Mi"), ("large", "3Gi"), ("right", "2Gi")] {
        fixture.post(VOLUMES, volume(name, size)).await;
    }
    let bound = fixture.until(&format!("{CLAIMS}/c"), is_bound).await;
    assert!(["right", "large"].contains(&bound["spec"]["volumeName"].as_str().unwrap_or_default()));
    fixture.until(&format!("{VOLUMES}/small"), |_, volume| volume["status"]["phase"] == "Available").await;
}

#[tokio::test]
async fn endpoints_are_written_only_if_they_change() {
    let fixture = Fixture::start().await;
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    fixture.post(SERVICES, service("web")).await;
    let pod = json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    fixture.post(PODS, pod).await;
    let has_address = |_: u16, endpoints: &Value| endpoints["subsets"][0]["addresses"][0]["ip"].is_string();
    let endpoints = format!("{ENDPOINTS}/web");
    let before = fixture.until(&endpoints, has_address).await;
    fixture.merge(&format!("{PODS}/web"), json!({"metadata": {"labels": {"other": "label"}}})).await;
    // The controllers see it after the Pod.
    fixture.post(SERVICES, service("later")).await;
    fixture.until(&format!("{ENDPOINTS}/later"), has_address).await;
    assert_eq!(fixture.get(&endpoints).await.1, before);
}

/// As a mutation, an expression may be of a type that shows only when it is evaluated.
#[tokio::test]
async fn a_policy_that_makes_no_object_denies_the_write() {
    let fixture = Fixture::start().await;
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]);
    let crd = json!({"metadata": {"name": "pages.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "pages", "kind": "Page"}, "versions": versions}});
    fixture.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let of = |mutation: Value| {
        let rules = json!([{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pages"]}]);
        json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules}, "reinvocationPolicy": "Never",
            "variables": [{"name": "text", "expression": "'a text'"}], "mutations": [mutation]}})
    };
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p"}});
    fixture.post(&format!("{ADMISSION}/mutatingadmissionpolicybindings"), binding).await;
    for (mutation, why) in [
        (
            json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "variables.text"}}),
            "unsupported return type from ApplyConfiguration expression",
        ),
        (
            json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "variables.text"}}),
            "JSONPatchType.expression should evaluate to array",
        ),
        (
            json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'replace', path: '', value: 'x'}]"}}),
            "replace operation value must be object or array",
        ),
    ] {
        fixture.post(&format!("{ADMISSION}/mutatingadmissionpolicies"), of(mutation)).await;
        let page = json!({"apiVersion": "example.com/v1", "kind": "Page", "metadata": {"name": "a"}});
        let (_, denied) = fixture.post("/apis/example.com/v1/namespaces/default/pages", page).await;
        let message = denied["message"].as_str().unwrap_or_default();
        assert!(message.contains(why), "{denied}");
        fixture.delete(&format!("{ADMISSION}/mutatingadmissionpolicies/p")).await;
    }
    let mut twice = of(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}));
    twice["spec"]["variables"] =
        json!([{"name": "text", "expression": "1"}, {"name": "text", "expression": "variables.text"}]);
    let (status, refused) = fixture.post(&format!("{ADMISSION}/mutatingadmissionpolicies"), twice).await;
    assert_eq!((status, &refused["details"]["causes"][0]["reason"]), (422, &"FieldValueDuplicate".into()));
}

#[tokio::test]
async fn a_pod_that_runs_is_resized_and_counted_again() {
    let fixture = Fixture::start().await;
    let hard = json!({"requests.cpu": "300m"});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    fixture.post(quotas, json!({"metadata": {"name": "cpu"}, "spec": {"hard": hard}})).await;
    fixture.until(&format!("{quotas}/cpu"), |_, quota| quota["status"]["used"]["requests.cpu"] == "0").await;
    let container = |cpu: &str| json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
    fixture.post(PODS, json!({"metadata": {"name": "p"}, "spec": {"containers": [container("100m")]}})).await;
    let pod = format!("{PODS}/p");
    let requests =
        |pod: &Value| pod["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"].clone();
    fixture.until(&pod, |_, pod| requests(pod) == "100m").await;
    let resize = async |cpu: &str| {
        fixture.merge(&format!("{pod}/resize"), json!({"spec": {"containers": [container(cpu)]}})).await
    };
    assert_eq!(resize("200m").await.0, 200);
    fixture.until(&pod, |_, pod| requests(pod) == "200m").await;
    let (status, refused) = resize("400m").await;
    assert_eq!(status, 403, "{refused}");
    let (_, quota) = fixture.get(&format!("{quotas}/cpu")).await;
    assert_eq!(quota["status"]["used"]["requests.cpu"], "200m");
}

/// Once, each container was paired with the status at its place in the list.
#[tokio::test]
async fn a_resize_is_reported_in_the_status_of_its_container() {
    let fixture = Fixture::start().await;
    let container =
        |name: &str, cpu: &str| json!({"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}});
    let containers =
        |cpu: &str| json!({"spec": {"containers": [container("a", "100m"), container("b", cpu)]}});
    let mut new = containers("200m");
    new["metadata"]["name"] = "p".into();
    fixture.post(PODS, new).await;
    let pod = format!("{PODS}/p");
    let running = fixture.until(&pod, |_, pod| pod["status"]["containerStatuses"].is_array()).await;
    let statuses = &running["status"]["containerStatuses"];
    let reversed = json!({"status": {"containerStatuses": [&statuses[1], &statuses[0]]}});
    assert_eq!(fixture.merge(&format!("{pod}/status"), reversed).await.0, 200);
    assert_eq!(fixture.merge(&format!("{pod}/resize"), containers("300m")).await.0, 200);
    let requests = |pod: &Value, index: usize| {
        let status = &pod["status"]["containerStatuses"][index];
        (status["name"].clone(), status["resources"]["requests"]["cpu"].clone())
    };
    let resized =
        fixture.until(&pod, |_, pod| requests(pod, 0).1 == "300m" || requests(pod, 1).1 == "300m").await;
    assert_eq!(requests(&resized, 0), ("b".into(), "300m".into()));
    assert_eq!(requests(&resized, 1), ("a".into(), "100m".into()));
}
