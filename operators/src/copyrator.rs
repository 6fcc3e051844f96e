//! The operator of `CopyratorRule`: copies ConfigMaps or Secrets to other namespaces, and keeps the copies up to date.
//!
//! ```yaml
//! apiVersion: flant.com/v1                # becomes   ConfigMap settings, in each namespace but default,
//! kind: CopyratorRule                     #           if default has a ConfigMap settings with this label
//! metadata: {name: main-rule, namespace: default}
//! ruleType: configmap
//! selector: {copyrator: "true"}
//! namespace: default
//! ```
//!
//! [`plan`] computes what to do, [`pass`] does a bounded share of it, [`backoff`] has the pauses between attempts, [`outcome`] has the counts
//! and failures, and [`copy`] knows a copy by its marks. The garbage collector does not delete the copies, because they are in other
//! namespaces than the rule. So the rule has a finalizer.

mod backoff;
pub mod copy;
mod glob;
mod outcome;
mod pass;
mod plan;
mod report;
pub mod types;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    env, slice,
    sync::{Arc, Mutex},
};

use listwatch::{
    children::ObservedState,
    cluster::{Cluster, Events, Watch},
    controller::{Cleanup, Controller, Next, Operator, Reconcile, ReconcileError},
    locked,
    rbac::{Permission, Reach, Verb},
    resource::{
        Key, ObjectMeta, Resource, Scope,
        conditions::{self, Verdict},
        kinds::{ConfigMap, Namespace, Secret},
        list::{Found, PartialCause},
    },
    runtime::Setup,
    store::{Budget, Kept, Portion},
};
use smol_str::SmolStr;
use tracing::info;

use copy::{Copied, Copyable, LABEL, Mark};
pub use glob::Glob;
use outcome::{OLDER_WINS, Pass};
use pass::{Copies, Order};
use plan::{Maker, is_active, is_bound_to_its_namespace};
use report::{state_of, status_of};
use types::{CopyratorDeletionPolicy, RuleType};
pub use types::{CopyratorRule, CopyratorSpec};

/// The `reportingController` of its Events.
pub const CONTROLLER: &str = "flant.com/copyrator";

/// The name of the operator. Copies have a label of their own.
const OPERATOR: &str = "copyrator";
/// The reason of the conditions of a rule for Secrets, if the operator may not copy Secrets.
const SECRETS_NOT_ENABLED: &str = "SecretsNotEnabled";
/// Why copied Secrets stay in that case.
const NO_SECRETS: &str = "the operator may not delete Secrets";
/// The `--rule-name` of an operator that runs alone.
const MAIN_RULE: &str = "main-rule";
/// The `--rule-name` for all rules.
const ALL_RULES: &str = "*";
/// The default of `--copyrator-sources-mib`: a quarter of the memory limit in `manifests/base/deployment.yaml`.
const SOURCES_MIB_MAX: u32 = 16;

/// Why the operator may write ConfigMaps and Secrets.
const SOURCES_AND_COPIES: &str = "To read the sources, and to create, correct and delete their copies.";

/// The flags of the operator.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Settings {
    /// copyrator: also copy Secrets. Needs the permissions of manifests/copyrator/secrets
    #[arg(long = "copyrator-secrets", value_name = "BOOL")]
    #[arg(env = "LISTWATCH_COPYRATOR_SECRETS", default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set)]
    #[arg(value_parser = clap::builder::BoolishValueParser::new())]
    pub secrets: bool,
    /// copyrator: namespaces of which rules in other namespaces may copy objects, such as 'shared-*,default'
    #[arg(long = "copyrator-source-namespaces", value_name = "GLOB")]
    #[arg(env = "LISTWATCH_COPYRATOR_SOURCE_NAMESPACES", value_delimiter = ',')]
    pub source_namespaces: Vec<Glob>,
    /// copyrator: how much memory the objects to copy may take, in MiB; half of it for each namespace. Default: 16
    #[arg(long, value_name = "MIB", env = "LISTWATCH_COPYRATOR_SOURCES_MIB")]
    pub copyrator_sources_mib: Option<u32>,
    /// copyrator: serve only the CopyratorRule with this name; '*' for all. Default: main-rule if copyrator runs alone, else
    /// all. Its namespace is --namespace, else $NAMESPACE, else default
    #[arg(long, value_name = "NAME", env = "RULE_NAME")]
    pub rule_name: Option<String>,
    /// The namespace of that rule, if no namespace is named otherwise: `$NAMESPACE`, or else `default`.
    #[arg(skip = env::var("NAMESPACE").ok().filter(|name| !name.is_empty()).unwrap_or("default".to_owned()))]
    pub rule_namespace: String,
}

/// Keeps the copies of each CopyratorRule.
pub struct Copyrator {
    cluster: Cluster,
    settings: Settings,
    rules: Rules,
    namespaces: Watch<Namespace>,
    config_maps: Arc<Copies<ConfigMap>>,
    secrets: Option<Arc<Copies<Secret>>>,
    /// For the objects to copy, of both kinds.
    budget: Arc<Budget>,
    events: Events,
    blocked: Arc<Blocked>,
}

/// The rules that can be seen.
#[derive(Clone)]
struct Rules {
    watch: Watch<CopyratorRule>,
    /// Empty: all.
    namespaces: Arc<[String]>,
}

/// The rules that wait for the place of another rule's copy, by place.
type Blocked = Mutex<HashMap<Key, BTreeSet<Key>>>;

/// The controller of the Copyrator. Without namespaces: for the rules of all namespaces, or the namespace of the only rule.
#[must_use]
pub fn controller(mut setup: Setup, settings: Settings) -> Controller<Copyrator> {
    setup.namespaces = settings.namespaces(&setup.namespaces).to_vec();
    if let Some(name) = settings.only_rule() {
        let namespaces = setup.namespaces.join(",");
        info!(name, namespaces, "serving one CopyratorRule; --rule-name='*' serves all");
    }
    let cluster = setup.cluster.clone();
    let mut rules = setup.kind::<CopyratorRule>(OPERATOR);
    let reason = "To find the namespaces that get copies.";
    rules.needs_everywhere::<Namespace>(&[Verb::List, Verb::Watch], reason);
    rules.needs_everywhere::<ConfigMap>(Verb::CHILDREN, SOURCES_AND_COPIES);
    if settings.secrets {
        rules.needs_everywhere::<Secret>(Verb::CHILDREN, SOURCES_AND_COPIES);
    }
    // Those about a namespace that ends with its rules.
    cluster.declare(Permission::of_events(Reach::Namespace("default".to_owned())));
    let watch = rules.objects().clone();
    let namespaces = cluster.watch::<Namespace>([Scope::default()]);
    let known = watch.clone();
    let is_rule =
        move |mark: &Mark| known.get(&mark.rule).is_some_and(|rule| rule.metadata.uid == mark.rule_uid);
    let config_maps = Copies::<ConfigMap>::new(&cluster, is_rule.clone());
    let secrets = settings.secrets.then(|| Copies::<Secret>::new(&cluster, is_rule));
    let blocked = Arc::<Blocked>::default();
    let mib = settings.copyrator_sources_mib.unwrap_or(SOURCES_MIB_MAX) as usize;
    let budget = Budget::new("the objects to copy", mib * 1024 * 1024);
    // A copy may belong to a rule of a namespace that is listed later.
    rules.wakes_when_listed(&watch);
    let every_rule = watch.clone();
    rules.watches(&namespaces, move |_| every_rule.keys());
    // A younger rule takes over the copies that a deleted rule leaves behind. They do not change, so they cause no event.
    let present = watch.clone();
    rules.watches(&watch, move |rule| {
        let is_it = |found: Found<CopyratorRule>| found.metadata().uid == rule.metadata.uid;
        if present.find(&rule.key()).is_some_and(is_it) { Vec::new() } else { present.keys() }
    });
    rules.watches(&config_maps.watch, rules_of(&blocked));
    rules.watches_each_keeping::<ConfigMap>(within(&budget), scopes_of::<ConfigMap>(&settings));
    if let Some(secrets) = &secrets {
        rules.watches(&secrets.watch, rules_of(&blocked));
        rules.watches_each_keeping::<Secret>(within(&budget), scopes_of::<Secret>(&settings));
    }
    rules.run_by(Copyrator {
        rules: Rules { watch, namespaces: setup.namespaces.into() },
        cluster,
        settings,
        namespaces,
        config_maps,
        secrets,
        budget,
        events: setup.events,
        blocked,
    })
}

/// The rules to which a change of a copy matters.
fn rules_of<K: Copyable>(blocked: &Arc<Blocked>) -> impl Fn(&Copied<K>) -> Vec<Key> + Send + Sync + 'static {
    let blocked = Arc::clone(blocked);
    move |copied| {
        let waiting = locked(&blocked).get(&copied.key()).cloned().unwrap_or_default();
        waiting.into_iter().chain(copied.mark.as_ref().map(|mark| mark.rule.clone())).collect()
    }
}

/// The objects to copy of one kind.
fn within<K: Copyable>(budget: &Arc<Budget>) -> Kept<K> {
    Kept::within(budget, "sources", |found| match found.readable() {
        Some(object) if is_bound_to_its_namespace(&**object) => {
            Portion::Metadata("it is bound to its namespace")
        }
        Some(_) | None => Portion::Whole,
    })
}

/// The scopes of a rule's sources of one kind.
fn scopes_of<K: Copyable>(
    settings: &Settings,
) -> impl Fn(&CopyratorRule) -> Vec<Scope> + Send + Sync + 'static {
    let settings = settings.clone();
    move |rule| match settings.accept(rule) {
        Ok(spec) if spec.rule_type == K::RULE_TYPE => spec.sources(rule),
        Ok(_) | Err(_) => Vec::new(),
    }
}

impl CopyratorSpec {
    /// The scopes of the objects to copy.
    fn sources(&self, rule: &CopyratorRule) -> Vec<Scope> {
        let not_a_copy = format!("!{LABEL}");
        let selector = self.selector.to_string();
        let labels = if selector.is_empty() { not_a_copy } else { format!("{selector},{not_a_copy}") };
        Scope::each(&self.source_namespaces(rule), &labels)
    }

    fn source_namespaces(&self, rule: &CopyratorRule) -> Vec<String> {
        let named = self.namespace.iter().chain(&self.namespaces);
        let named: BTreeSet<String> = named.map(SmolStr::to_string).collect();
        if named.is_empty() {
            return rule.metadata.namespace.iter().map(SmolStr::to_string).collect();
        }
        named.into_iter().collect()
    }
}

impl Settings {
    /// Serves `main-rule` by default, as the article's operator does. Empty `namespaces` get the only rule's.
    pub fn runs_alone(&mut self, namespaces: &mut Vec<String>) {
        self.rule_name.get_or_insert_with(|| MAIN_RULE.to_owned());
        *namespaces = self.namespaces(namespaces).to_vec();
    }

    /// The given namespaces, or the only rule's if none is given.
    fn namespaces<'a>(&'a self, given: &'a [String]) -> &'a [String] {
        match self.only_rule() {
            Some(_) if given.is_empty() => slice::from_ref(&self.rule_namespace),
            Some(_) | None => given,
        }
    }

    /// The name of the only rule to serve.
    fn only_rule(&self) -> Option<&str> {
        self.rule_name.as_deref().filter(|name| *name != ALL_RULES)
    }
}

/// Why a rule is not served, as the reason and message of conditions.
type Refused = (&'static str, String);

impl Settings {
    /// The fields of a rule, if they are valid and allowed.
    fn accept<'a>(&self, rule: &'a CopyratorRule) -> Result<&'a CopyratorSpec, Refused> {
        let invalid = |problem: String| ("InvalidSpec", problem);
        let spec = rule.spec.as_ref().map_err(|error| invalid(error.clone()))?;
        if spec.namespace.is_some() && !spec.namespaces.is_empty() {
            return Err(invalid("namespace and namespaces are both set: leave one of them out".to_owned()));
        }
        let mut names = HashSet::new();
        if let Some(twice) = spec.named_keys().into_iter().find(|(_, name)| !names.insert(*name)) {
            return Err(invalid(format!(
                "rename gives two keys the name {}: give each another one",
                twice.1
            )));
        }
        if spec.selector.is_empty() && !spec.allow_all {
            let problem = "selector is empty: give the labels of the objects to copy, or set allowAll to true to copy all of them";
            return Err(invalid(problem.to_owned()));
        }
        if spec.rule_type == RuleType::Secret && !self.secrets {
            let problem = "the operator does not copy Secrets: start it with --copyrator-secrets and the permissions for Secrets";
            return Err((SECRETS_NOT_ENABLED, problem.to_owned()));
        }
        let own = rule.metadata.namespace.as_deref().unwrap_or_default();
        let is_allowed =
            |name: &String| name == own || self.source_namespaces.iter().any(|glob| glob.matches(name));
        if let Some(namespace) = spec.source_namespaces(rule).iter().find(|name| !is_allowed(name)) {
            let problem = format!(
                "objects of namespace {namespace} may be copied only by rules in it: create the rule there, or start the operator with --copyrator-source-namespaces={namespace}"
            );
            return Err(("SourceNamespaceNotAllowed", problem));
        }
        Ok(spec)
    }

    /// Whether this process serves a rule.
    fn serves(&self, rule: &CopyratorRule) -> bool {
        self.only_rule().is_none_or(|name| rule.metadata.name == name)
    }
}

impl Rules {
    fn maker(&self, mark: &Mark, us: &CopyratorRule) -> Maker {
        let namespace = mark.rule.namespace.as_deref().unwrap_or_default();
        let is_seen = (self.namespaces.is_empty() || self.namespaces.iter().any(|seen| seen == namespace))
            && self.watch.is_synced_for(&mark.rule);
        let is_unreadable = self.watch.find(&mark.rule).is_some_and(|rule| rule.readable().is_none());
        match Maker::of(mark, us, self.watch.get(&mark.rule).as_deref()) {
            // It may exist where we cannot see it, or be too large to be read.
            Maker::Gone if !is_seen || is_unreadable => Maker::Older(mark.rule.clone()),
            maker => maker,
        }
    }

    /// A rule of which this object is a source.
    fn copying(&self, settings: &Settings, kind: RuleType, object: &ObjectMeta) -> Option<Key> {
        if object.labels.get(LABEL).is_some() {
            return None;
        }
        let copies = |rule: &Arc<CopyratorRule>| {
            settings.accept(rule).is_ok_and(|spec| {
                let is_in = |name: &String| object.namespace.as_deref() == Some(&**name);
                spec.rule_type == kind
                    && spec.selector.matches(&object.labels)
                    && spec.source_namespaces(rule).iter().any(is_in)
            })
        };
        self.watch.all().iter().find(|rule| copies(rule)).map(|rule| rule.key())
    }
}

impl Copyrator {
    /// The objects to copy. Reads those again for whose content there is room now.
    async fn sources<K: Copyable>(&self, rule: &CopyratorRule, spec: &CopyratorSpec) -> Vec<Found<K>> {
        let watch = self.cluster.watch_keeping::<K>(spec.sources(rule), &within(&self.budget));
        for found in watch.all_found() {
            if let Found::Partial(partial) = found
                && let PartialCause::NoRoom(bytes) = partial.cause
                && self.budget.has_room(partial.metadata.namespace.as_deref().unwrap_or_default(), bytes)
            {
                // A failure is no worse than no room.
                drop(self.cluster.get_live::<K>(&partial.metadata.key()).await);
            }
        }
        let is_wanted = |found: &Found<K>| match found {
            Found::Readable(_) => true,
            Found::Partial(partial) => partial.cause != PartialCause::Unwanted,
        };
        watch.all_found().into_iter().filter(is_wanted).collect()
    }

    /// One pass over the copies of both kinds: the rule may have had the other `ruleType` before.
    async fn pass(&self, rule: &Reconcile<CopyratorRule>, spec: &CopyratorSpec, targets: &[SmolStr]) -> Pass {
        let (rules, us) = (self.rules.clone(), Arc::clone(rule.object()));
        let (others, settings) = (self.rules.clone(), self.settings.clone());
        let order = Arc::new(Order {
            rule: Arc::clone(rule.object()),
            spec: Arc::new(spec.clone()),
            maker: Box::new(move |mark| rules.maker(mark, &us)),
            copied_by: Box::new(move |kind, object| others.copying(&settings, kind, object)),
        });
        let mut pass = Pass::default();
        self.keep(&self.config_maps, &order, targets, &mut pass).await;
        if let Some(secrets) = &self.secrets {
            self.keep(secrets, &order, targets, &mut pass).await;
        }
        if !pass.writes.is_empty() {
            info!(key = %rule.key(), writes = pass.writes.len(), "copied");
            rule.wrote(&pass.writes);
        }
        pass
    }

    async fn keep<K: Copyable>(
        &self,
        copies: &Arc<Copies<K>>,
        order: &Arc<Order>,
        targets: &[SmolStr],
        pass: &mut Pass,
    ) {
        let sources = if order.spec.rule_type == K::RULE_TYPE && !order.rule.metadata.is_terminating() {
            self.sources(&order.rule, &order.spec).await
        } else {
            Vec::new()
        };
        copies.keep(order, sources, targets, &self.namespaces, pass).await;
    }

    /// Notes for which places a rule waits.
    fn block(&self, rule: &CopyratorRule, pass: &Pass) {
        let mut blocked = locked(&self.blocked);
        let key = rule.key();
        blocked.retain(|_, rules| {
            rules.remove(&key);
            !rules.is_empty()
        });
        for failure in pass.failures.iter().filter(|failure| failure.reason == OLDER_WINS) {
            let place = Key::namespaced(&failure.namespace, &failure.name);
            blocked.entry(place).or_default().insert(key.clone());
        }
    }

    /// The namespace of a rule, if it is being deleted.
    fn ending_namespace(&self, rule: &CopyratorRule) -> Option<Arc<Namespace>> {
        let namespace = rule.metadata.namespace.as_deref().unwrap_or_default();
        self.namespaces.get(&Key::cluster(namespace)).filter(|namespace| !is_active(namespace))
    }

    /// Reports why a rule is not served. Its copies stay as they are.
    async fn refuse(
        &self,
        rule: &Reconcile<CopyratorRule>,
        (reason, problem): Refused,
    ) -> Result<(), ReconcileError> {
        let stalled = Some(Verdict::yes(reason, problem.as_str()));
        let state = ObservedState { stalled, ..ObservedState::from(Verdict::no(reason, problem)) };
        self.report(rule, rule.status.clone(), state).await.map(drop)
    }
}

impl Operator for Copyrator {
    type Kind = CopyratorRule;
    const FINALIZER: Option<&'static str> = Some("flant.com/copies");

    fn serves(&self, rule: &CopyratorRule) -> bool {
        self.settings.serves(rule)
    }

    async fn reconcile(&self, rule: Reconcile<CopyratorRule>) -> Result<Next, ReconcileError> {
        let spec = match self.settings.accept(&rule) {
            Ok(spec) => spec,
            Err(refused) => return self.refuse(&rule, refused).await.map(|()| Next::OnChange),
        };
        let ready = conditions::find(&rule.status.conditions, "Ready");
        let were_secrets = ready.is_some_and(|ready| ready.reason == SECRETS_NOT_ENABLED);
        if were_secrets && spec.rule_type == RuleType::Configmap && self.secrets.is_none() {
            self.report_left(&rule, NO_SECRETS);
        }
        if self.ending_namespace(&rule).is_some() {
            // The sources may be deleted before the rule, whose deletion policy then decides what becomes of the copies.
            let message =
                "the namespace of the rule is being deleted: its copies stay until the rule is deleted";
            let state = ObservedState::from(Verdict::no("NamespaceTerminating", message));
            return self.report(&rule, rule.status.clone(), state).await;
        }
        let namespaces = self.namespaces.all();
        let targets = namespaces.iter().filter(|namespace| spec.is_target(namespace));
        let targets: Vec<SmolStr> = targets.map(|namespace| namespace.metadata.name.clone()).collect();
        let mut pass = self.pass(&rule, spec, &targets).await;
        self.block(&rule, &pass);
        if let Some(error) = pass.error.take() {
            return Err(error.into());
        }
        self.report(&rule, status_of(&pass, targets.len()), state_of(&rule, spec, &pass)).await
    }

    async fn deleting(&self, rule: Reconcile<CopyratorRule>) -> Result<Cleanup, ReconcileError> {
        // If the fields are unreadable, the deletion policy is unknown, so the copies stay.
        let Ok(spec) = &rule.spec else {
            self.report_left(&rule, "the fields of the deleted rule are invalid");
            return Ok(Cleanup::Done);
        };
        if spec.deletion_policy == CopyratorDeletionPolicy::Retain {
            return Ok(Cleanup::Done);
        }
        if spec.rule_type == RuleType::Secret && self.secrets.is_none() && rule.status.copies > 0 {
            if self.ending_namespace(&rule).is_some() {
                // A rule that waits would hold up everything in the namespace.
                self.report_left(&rule, NO_SECRETS);
                return Ok(Cleanup::Done);
            }
            let problem = "the operator cannot delete the copied Secrets: start it with --copyrator-secrets and the permissions for Secrets, or set deletionPolicy to Retain";
            self.refuse(&rule, (SECRETS_NOT_ENABLED, problem.to_owned())).await?;
            return Ok(Cleanup::Pending(Next::OnChange));
        }
        let mut pass = self.pass(&rule, spec, &[]).await;
        self.block(&rule, &Pass::default());
        if let Some(error) = pass.error.take() {
            return Err(error.into());
        }
        if pass.left == 0 && pass.retry.is_none() {
            return Ok(Cleanup::Done);
        }
        let next = self.report(&rule, rule.status.clone(), state_of(&rule, spec, &pass)).await?;
        Ok(Cleanup::Pending(next))
    }

    async fn deleted(&self, last: Arc<CopyratorRule>) -> Result<(), ReconcileError> {
        self.block(&last, &Pass::default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_rule_is_accepted_if_it_is_valid_and_the_flags_allow_it() {
        let accept = |secrets: bool, fields: Value| {
            let source_namespaces = vec!["team-*".parse().expect("a glob")];
            let settings = Settings { secrets, source_namespaces, ..Settings::default() };
            let mut rule = json!({
                "apiVersion": "flant.com/v1", "kind": "CopyratorRule",
                "metadata": {"name": "main-rule", "namespace": "own", "uid": "u", "resourceVersion": "7"},
                "ruleType": "configmap", "selector": {"copyrator": "true"},
            });
            rule.as_object_mut().expect("a rule").extend(fields.as_object().cloned().expect("fields"));
            let rule = serde_json::from_value::<CopyratorRule>(rule).expect("a rule");
            settings.accept(&rule).err().map_or("", |(reason, _)| reason)
        };
        for (fields, reason) in [
            (json!({}), ""),
            (json!({"ruleType": "pod"}), "InvalidSpec"),
            (json!({"selector": {}}), "InvalidSpec"),
            (json!({"selector": {}, "allowAll": true}), ""),
            (json!({"namespace": "own"}), ""),
            (json!({"namespace": "team-a"}), ""),
            (json!({"namespace": "other"}), "SourceNamespaceNotAllowed"),
            (json!({"namespaces": ["own", "team-a"]}), ""),
            (json!({"namespaces": ["own", "other"]}), "SourceNamespaceNotAllowed"),
            (json!({"namespace": "own", "namespaces": ["team-a"]}), "InvalidSpec"),
            (json!({"rename": {"a": "b", "b": "a"}}), ""),
            (json!({"rename": {"a": "x", "b": "x"}}), "InvalidSpec"),
            (json!({"rename": {"a": "x"}, "keys": ["a", "x"]}), "InvalidSpec"),
            (json!({"rename": {"a": "x"}, "keys": ["x"]}), ""),
        ] {
            assert_eq!(accept(false, fields.clone()), reason, "{fields}");
        }
        for (secrets, reason) in [(true, ""), (false, SECRETS_NOT_ENABLED)] {
            assert_eq!(accept(secrets, json!({"ruleType": "secret"})), reason);
        }
    }

    /// After a start, a rule counted as deleted until its namespace was listed, and a rule of another namespace took its copies; for good
    /// if the list was forbidden.
    #[tokio::test(start_paused = true)]
    async fn a_rule_whose_namespace_is_not_listed_yet_or_forbidden_keeps_its_copies() {
        use std::time::Duration;

        use http::Method;
        use listwatch_apiserver::Fault;

        use listwatch::{client::Request, runtime::Setup, testing::TestServer};

        let server = TestServer::start(&[&types::definition().to_string()]).await;
        let namespaces = ["default", "kube-public", "kube-system"].map(str::to_owned);
        for namespace in &namespaces[..2] {
            let source = json!({
                "metadata": {"name": "settings", "labels": {"copyrator": "true"}}, "data": {"from": namespace},
            });
            let rule = json!({
                "apiVersion": "flant.com/v1", "kind": "CopyratorRule", "metadata": {"name": "rule"},
                "ruleType": "configmap", "selector": {"copyrator": "true"}, "conflictPolicy": "Overwrite",
                "targetNamespaces": {"include": ["kube-node-lease"]},
            });
            for (group, plural, object) in
                [("api/v1", "configmaps", source), ("apis/flant.com/v1", "copyrators", rule)]
            {
                let create = Request::post(format!("/{group}/namespaces/{namespace}/{plural}"), &object);
                server.client.send(create).await.expect("an object");
            }
        }
        let run = async || {
            let rules =
                |setup| controller(Setup { namespaces: namespaces.to_vec(), ..setup }, Settings::default());
            server.run(rules).await
        };
        assert!(!run().await.is_empty());
        for fault in [Fault::Delay(Duration::from_secs(1)), Fault::Forbidden(Vec::new())] {
            server.server.end_faults();
            server.server.fault(fault.clone().on("GET", "/namespaces/default/copyrators"));
            assert_eq!(run().await, [""; 0], "{fault:?}");
        }
        // When the namespace is allowed again, the other rule is told that this one is gone, whatever a third namespace does.
        server.server.end_faults();
        let rule = || Request::get("/apis/flant.com/v1/namespaces/default/copyrators/rule");
        let delete = rule().sends(Method::DELETE, "application/json", Vec::new());
        let forget = br#"{"metadata": {"finalizers": null}}"#.to_vec();
        let forget = rule().sends(Method::PATCH, "application/merge-patch+json", forget);
        for request in [delete, forget] {
            server.client.send(request).await.expect("an answer");
        }
        let forbidden = |namespace| {
            Fault::Forbidden(Vec::new()).on("GET", &format!("/namespaces/{namespace}/copyrators"))
        };
        server.server.fault(forbidden("default").times(1));
        server.server.fault(forbidden("kube-system"));
        assert_eq!(run().await, ["PATCH configmaps/settings 200", "PATCH copyrators/rule/status 200"]);
    }
}
