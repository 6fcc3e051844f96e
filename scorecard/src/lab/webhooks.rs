//! The webhooks of the operator: their certificate and ports, and when the server calls them.
//!
//! ```text
//! clientConfig: {service: {name: webhook-service, namespace: system, path: /validate}}
//! clientConfig: {url: https://127.0.0.1:20017/validate, caBundle: …}
//! ```
//!
//! Admission webhooks are called only while an operator serves them, so that a check which kills it can create and change objects.

use std::{
    fs, io,
    net::{TcpListener, TcpStream},
    ops::Range,
    path::PathBuf,
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Lab, TICK};
use crate::{
    process::Program,
    settings::{CannotJudge, Scorecard},
    snapshot::POKE,
};

/// What stands in braces for the port, and for the directory with `tls.crt` and `tls.key`.
pub(crate) const PLACEHOLDERS: [&str; 2] = ["webhook-port", "webhook-cert-dir"];

/// Where controller-runtime serves webhooks by default.
const DEFAULT_PORT: u16 = 9443;

/// Linux gives ports from 32768 on to clients: one could have the port of an operator that is down.
const PORTS: Range<u16> = 20_000..32_000;

/// `timeoutSeconds` by default.
const DEFAULT_TIMEOUT_SECS: u64 = 10;

const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// Where the programs of a run serve webhooks.
pub(crate) struct Webhooks {
    dir: PathBuf,
    /// The authority, in PEM.
    ca: String,
    /// Of each [`Program`].
    ports: [u16; 3],
}

impl Webhooks {
    /// Makes a certificate in a directory.
    pub(super) fn new(scorecard: &Scorecard, dir: PathBuf) -> io::Result<Webhooks> {
        fs::create_dir(&dir)?;
        let port = |program: Program| {
            let is_told = program.command(scorecard).iter().any(|word| word.contains("{webhook-port}"));
            if is_told { free_port() } else { DEFAULT_PORT }
        };
        let identity = Identity::new().map_err(io::Error::other)?;
        let webhooks = Webhooks { dir, ca: identity.ca.clone(), ports: Program::ALL.map(port) };
        webhooks.write(&identity)?;
        Ok(webhooks)
    }

    fn write(&self, identity: &Identity) -> io::Result<()> {
        fs::write(self.dir.join("tls.key"), &identity.key)?;
        fs::write(self.dir.join("tls.crt"), &identity.certificate)
    }

    /// What stands for [`PLACEHOLDERS`] in the command of a program.
    pub(crate) fn values(&self, program: Program) -> [(&'static str, String); 2] {
        let [port, dir] = PLACEHOLDERS;
        [(port, self.port(program).to_string()), (dir, self.dir.to_string_lossy().into_owned())]
    }

    fn port(&self, program: Program) -> u16 {
        self.ports[program as usize]
    }

    /// A `clientConfig` that leads to a program.
    fn client_config(&self, config: &Value, program: Program) -> Value {
        let path = config["service"]["path"].as_str().unwrap_or_default();
        let url = format!("https://127.0.0.1:{}{path}", self.port(program));
        json!({"url": url, "caBundle": BASE64_STANDARD.encode(&self.ca)})
    }
}

/// A port that nobody has.
fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    loop {
        let port = PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An authority, a certificate of it, and the key of this certificate, in PEM.
pub(crate) struct Identity {
    ca: String,
    certificate: String,
    key: String,
}

impl Identity {
    fn new() -> Result<Identity, rcgen::Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "scorecard");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let ca = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate()?;
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?.pem();
        Ok(Identity { ca, certificate, key: key.serialize_pem() })
    }
}

/// The shortest time that a webhook of the configurations has for its answer.
pub(crate) fn timeout(scorecard: &Scorecard) -> Duration {
    let webhooks = configurations(scorecard).flat_map(|one| one["webhooks"].as_array().into_iter().flatten());
    let secs = webhooks.map(|webhook| webhook["timeoutSeconds"].as_u64().unwrap_or(DEFAULT_TIMEOUT_SECS));
    Duration::from_secs(secs.min().unwrap_or(DEFAULT_TIMEOUT_SECS))
}

/// Whether a CRD has a conversion webhook.
fn is_converted(crd: &Value) -> bool {
    crd["spec"]["conversion"]["strategy"] == "Webhook"
}

/// An error if `--webhooks` has no webhook, or if only the operator could tell how a sample is stored.
pub(crate) fn validate(scorecard: &Scorecard) -> Result<(), CannotJudge> {
    if scorecard.webhooks.is_empty() {
        return Ok(());
    }
    if configurations(scorecard).next().is_none() && !scorecard.crds.iter().any(is_converted) {
        let kinds = KINDS.join(" or ");
        return Err(CannotJudge(format!(
            "--webhooks: holds no {kinds}, and no CRD has a conversion webhook"
        )));
    }
    for sample in &scorecard.samples {
        let versions = versions(scorecard, sample);
        let is_stored =
            |(stored, version): &(bool, Value)| *stored && version["apiVersion"] == sample["apiVersion"];
        if !versions.is_empty() && !versions.iter().any(is_stored) {
            let (kind, name) = (sample["kind"].as_str().unwrap_or_default(), &sample["metadata"]["name"]);
            return Err(CannotJudge(format!(
                "--sample: {kind} {name}: must have the version that its CRD stores: nothing converts it while COMMAND is down"
            )));
        }
    }
    Ok(())
}

/// A sample as an object of each served version, if a webhook converts them, and whether this version is the stored one.
fn versions(scorecard: &Scorecard, sample: &Value) -> Vec<(bool, Value)> {
    let group =
        sample["apiVersion"].as_str().and_then(|version| version.split('/').next()).unwrap_or_default();
    let is_its =
        |crd: &&Value| crd["spec"]["group"] == group && crd["spec"]["names"]["kind"] == sample["kind"];
    let crds = scorecard.crds.iter().filter(is_its).filter(|crd| is_converted(crd));
    let versions = crds.flat_map(|crd| crd["spec"]["versions"].as_array().into_iter().flatten());
    let of_version = |version: &Value| {
        let mut object = sample.clone();
        object["apiVersion"] = format!("{group}/{}", version["name"].as_str().unwrap_or_default()).into();
        (version["storage"] == true, object)
    };
    versions.filter(|version| version["served"] == true).map(of_version).collect()
}

fn configurations(scorecard: &Scorecard) -> impl Iterator<Item = &Value> {
    let is_configuration = |object: &&Value| KINDS.iter().any(|kind| object["kind"] == *kind);
    scorecard.webhooks.iter().filter(is_configuration)
}

/// Why the server has refused a request.
pub(crate) fn message(answer: &Value) -> &str {
    answer["message"].as_str().unwrap_or_default()
}

/// What the server says if a webhook has refused an object.
pub(crate) const DENIED: &str = "denied the request";

/// What an answer says if a webhook could not be called: for admission, and for a conversion.
const FAILED_CALLS: [&str; 2] = ["failed calling webhook", "conversion webhook for"];

impl Lab<'_> {
    /// Creates the configurations, without webhooks until an operator serves them.
    pub(super) async fn create_configurations(&self) -> Result<(), CannotJudge> {
        if self.webhooks.is_some() {
            for configuration in configurations(self.scorecard) {
                let mut empty = configuration.clone();
                empty["webhooks"] = json!([]);
                self.create(&empty, "--webhooks").await?;
            }
        }
        Ok(())
    }

    /// The program whose webhooks the server calls.
    fn serving(&self) -> Program {
        let running = self.processes.iter().map(|process| process.program);
        let is_judged = |program: &Program| *program == Program::Judged;
        running.clone().find(is_judged).or(running.clone().next()).unwrap_or(Program::Judged)
    }

    /// A CRD whose conversions lead to the operator.
    pub(super) fn with_conversions(&self, crd: &Value) -> Value {
        let mut crd = crd.clone();
        if let Some(webhooks) = self.webhooks.as_ref().filter(|_| is_converted(&crd)) {
            let config = &mut crd["spec"]["conversion"]["webhook"]["clientConfig"];
            *config = webhooks.client_config(config, self.serving());
        }
        crd
    }

    /// Lets the server call the conversions of the operator, which may need one for its first list.
    pub(super) async fn call_conversions(&self) {
        for crd in self.scorecard.crds.iter().filter(|crd| self.webhooks.is_some() && is_converted(crd)) {
            let patch = json!({"spec": {"conversion": self.with_conversions(crd)["spec"]["conversion"]}});
            self.request(Method::PATCH, &self.path_of_sample(crd), patch).await;
        }
    }

    /// Waits until the operator serves its webhooks, and lets the server call them.
    pub(super) async fn until_webhooks_serve(&mut self) -> Result<(), CannotJudge> {
        let Some(webhooks) = &self.webhooks else { return Ok(()) };
        let (port, mut ticks) = (webhooks.port(self.serving()), 0);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some((process, end)) = self.ended() {
                let name = process.program.name();
                return Err(CannotJudge(format!("{name} ended before it served its webhooks: {end}")));
            }
            if TICK * ticks > self.scorecard.start {
                // The previous version may have none.
                if self.serving() != Program::Judged {
                    return Ok(());
                }
                return Err(CannotJudge(format!(
                    "COMMAND serves no webhook at the port {port}: {{webhook-port}} in its arguments becomes a free port"
                )));
            }
            sleep(TICK).await;
            ticks += 1;
        }
        self.call_webhooks().await;
        Ok(())
    }

    /// Lets the server call the webhooks of the configurations.
    pub(crate) async fn call_webhooks(&self) {
        self.call_webhooks_as(|_| {}).await;
    }

    /// As [`Lab::call_webhooks`]. A call that fails is an error, whatever the `failurePolicy`.
    pub(crate) async fn call_webhooks_strictly(&self) {
        self.call_webhooks_as(|webhook| webhook["failurePolicy"] = "Fail".into()).await;
    }

    async fn call_webhooks_as(&self, change: impl Fn(&mut Value)) {
        let Some(webhooks) = &self.webhooks else { return };
        for configuration in configurations(self.scorecard) {
            let mut all = configuration["webhooks"].as_array().cloned().unwrap_or_default();
            for webhook in &mut all {
                webhook["clientConfig"] = webhooks.client_config(&webhook["clientConfig"], self.serving());
                change(webhook);
            }
            self.request(Method::PATCH, &self.path_of_sample(configuration), json!({"webhooks": all})).await;
        }
    }

    /// The server calls no admission webhook.
    pub(crate) async fn call_no_webhooks(&self) {
        if self.webhooks.is_some() {
            for configuration in configurations(self.scorecard) {
                self.request(Method::PATCH, &self.path_of_sample(configuration), json!({"webhooks": []}))
                    .await;
            }
        }
    }

    /// Lets the server call all webhooks strictly, and trust only a new authority.
    pub(crate) async fn trust_new_authority(&mut self) -> Result<Identity, CannotJudge> {
        let identity = Identity::new().map_err(|error| CannotJudge(format!("certificate: {error}")))?;
        if let Some(webhooks) = &mut self.webhooks {
            webhooks.ca.clone_from(&identity.ca);
        }
        self.call_conversions().await;
        self.call_webhooks_strictly().await;
        Ok(identity)
    }

    /// Whether a write of a sample calls a webhook: while the server does not trust it, this fails.
    pub(crate) async fn calls_any(&mut self) -> Result<bool, CannotJudge> {
        let trusted = self.webhooks.as_ref().map(|webhooks| webhooks.ca.clone());
        self.trust_new_authority().await?;
        let has_failed = self.failed_call().await.is_some();
        if let Some((webhooks, trusted)) = self.webhooks.as_mut().zip(trusted) {
            webhooks.ca = trusted;
        }
        self.call_conversions().await;
        self.call_webhooks_strictly().await;
        Ok(has_failed)
    }

    /// Replaces the certificate of the operator.
    pub(crate) fn replace_certificate(&self, identity: &Identity) -> Result<(), CannotJudge> {
        let written = self.webhooks.as_ref().map_or(Ok(()), |webhooks| webhooks.write(identity));
        written.map_err(|error| CannotJudge(format!("certificate: {error}")))
    }

    /// Asks for a create without effect: the object that would be stored, or why it is refused.
    pub(crate) async fn dry_run(&self, object: &Value) -> Result<Value, String> {
        let path = format!("{}?dryRun=All", self.collection_path(object));
        match self.request(Method::POST, &path, object.clone()).await {
            (201, created) => Ok(created),
            (_, answer) => Err(message(&answer).to_owned()),
        }
    }

    /// A sample as an object of each version, if a webhook converts them.
    pub(crate) fn converted_versions(&self, sample: &Value) -> Vec<Value> {
        versions(self.scorecard, sample).into_iter().map(|(_, object)| object).collect()
    }

    /// Sends requests without effect for which the server calls the webhooks. Why one of them could not be called.
    pub(crate) async fn failed_call(&self) -> Option<String> {
        let poke = json!({"metadata": {"annotations": {POKE: "dry run"}}});
        for sample in self.custom_samples() {
            let mut other = sample.clone();
            other["metadata"]["name"] = "scorecard-dry-run".into();
            let mut failures = vec![self.dry_run(&other).await.err().unwrap_or_default()];
            let mut objects = self.converted_versions(sample);
            objects.push(sample.clone());
            for object in &objects {
                let path = self.path_of_sample(object);
                let (_, answer) =
                    self.request(Method::PATCH, &format!("{path}?dryRun=All"), poke.clone()).await;
                failures.push(message(&answer).to_owned());
            }
            let is_failed_call = |why: &String| FAILED_CALLS.iter().any(|words| why.contains(words));
            let failure = failures.into_iter().find(is_failed_call);
            if failure.is_some() {
                return failure;
            }
        }
        None
    }
}
