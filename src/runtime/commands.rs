//! The commands of an operator that has no flags of its own: [`main`].

use std::{
    collections::VecDeque,
    env,
    io::{self, Write},
    mem,
    path::PathBuf,
    process,
};

use serde_json::Value;

use super::{Runtime, RuntimeError, WEBHOOK_CERT_DIR, checked};
#[cfg(feature = "bundle")]
use crate::bundle::{self, BundleFlags};
use crate::{
    leader::LeaderElection,
    manifests::{self, Installation, roles_of_users},
    plan::{Objects, Plan},
    rbac, shutdown,
};

#[cfg(not(feature = "bundle"))]
const EXPECTED: &str = "none to run, or plan, crd, rbac, manifests or --dev";
#[cfg(feature = "bundle")]
const EXPECTED: &str = "none to run, or plan, crd, rbac, manifests, bundle or --dev";

const WITHOUT_CLUSTER: &str =
    "without a cluster: cargo run --features dev -- --dev, with dev = [\"listwatch/testing\"] as a feature";

const USAGE: &str = "\
(no argument)       runs, with the service account of the Pod or a kubeconfig
plan [-f FILE]      what it would write now, as diffs; exit status 1 if there is something, 2 after an error
crd                 its CustomResourceDefinitions
rbac [-n NAME]…     the least ClusterRole or, for these namespaces, Roles, each rule with its reason
manifests           everything to install: --image IMAGE, --namespace NAME, --replicas N, --watch-namespace NAME, --env NAME=VALUE,
                    --service-monitor, --network-policy
--dev [-f FILE]…    runs with an API server in this process, its CustomResourceDefinitions, and the objects of these files or
                    of sample*.yaml; in a build with the feature testing of listwatch
";
#[cfg(feature = "bundle")]
const USAGE_BUNDLE: &str = "\
bundle              writes a bundle for the Operator Lifecycle Manager: --version VERSION, --image IMAGE, --output DIR, --overwrite,
                    --sample FILE, --icon FILE, --link NAME=URL, --provider NAME, --channel NAME, --replaces VERSION
";
#[cfg(not(feature = "bundle"))]
const USAGE_BUNDLE: &str = "";

/// The `main` of an operator that has no flags, with the commands of `my-operator help`: `plan`, `crd`, `rbac`, `manifests`, `bundle` (with the
/// feature `bundle`) and `--dev` (with the feature `testing`). `name` is the name of its Deployment and its roles. Without a command, the
/// operator runs, by [`Runtime::from_env`].
pub fn main(name: &str, controllers: impl FnOnce(Runtime) -> Runtime) -> Result<(), RuntimeError> {
    let text = match OperatorCommand::parse(env::args().skip(1).collect())? {
        OperatorCommand::Run => {
            let runtime = Runtime::from_env().map_err(|error| match error {
                RuntimeError::Config(cause) if cause.starts_with("find the API server") => {
                    wrong(format!("{cause}; {WITHOUT_CLUSTER}"))
                }
                error => error,
            });
            return controllers(runtime?).run();
        }
        OperatorCommand::Dev(files) => return dev(name, controllers, files),
        OperatorCommand::Plan(objects) => {
            let plan = Runtime::from_env().and_then(|runtime| plan_of(controllers(runtime), objects));
            let code = plan.map_or_else(|error| report(&error), |plan| plan.exit_code());
            process::exit(code.into())
        }
        OperatorCommand::Help => format!("{USAGE}{USAGE_BUNDLE}"),
        OperatorCommand::Crd => manifests::documents(&definitions_of(&controllers(Runtime::offline()?))?),
        OperatorCommand::Rbac(namespaces) => {
            let runtime = Runtime::offline()?.namespaces(namespaces)?;
            rbac::roles(name, &controllers(runtime).permissions()?)
        }
        OperatorCommand::Manifests(flags) => installation(name, flags, controllers)?.yaml(),
        #[cfg(feature = "bundle")]
        OperatorCommand::Bundle(flags) => write_bundle(name, &flags, controllers)?,
    };
    print(&text)
}

#[cfg(feature = "testing")]
fn dev(
    name: &str,
    controllers: impl FnOnce(Runtime) -> Runtime,
    mut files: Vec<PathBuf>,
) -> Result<(), RuntimeError> {
    if files.is_empty() {
        files =
            super::dev::samples().map_err(|error| wrong(format!("read the working directory: {error}")))?;
    }
    let objects: Result<Vec<_>, _> = files.iter().map(|file| Objects::read(file)).collect();
    let objects = objects.map_err(wrong)?;
    // For each start the same, so that a terminal can keep its KUBECONFIG.
    let kubeconfig = env::current_dir().unwrap_or_default().join("target/dev.kubeconfig");
    let say = |line: &str| drop(print(&format!("{line}\n")));
    shutdown::run(|stop| super::dev::serve(name, controllers, &objects, &kubeconfig, stop.requested(), say))?
}

#[cfg(not(feature = "testing"))]
fn dev(_: &str, _: impl FnOnce(Runtime) -> Runtime, _: Vec<PathBuf>) -> Result<(), RuntimeError> {
    Err(wrong(format!("--dev: this build has no API server; {WITHOUT_CLUSTER}")))
}

/// Prints what the controllers would write.
fn plan_of(runtime: Runtime, objects: Option<Objects>) -> Result<Plan, RuntimeError> {
    let plan = shutdown::run(|stop| async {
        tokio::select! {
            plan = runtime.plan(objects) => Some(plan),
            () = stop.requested() => None,
        }
    })?;
    let plan = plan.ok_or_else(|| wrong("interrupted: the plan is incomplete".to_owned()))?;
    print(&plan.to_string())?;
    plan.problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(plan)
}

/// Prints why there is no plan, and returns the exit code: 1 would mean that there is something to write.
fn report(error: &RuntimeError) -> u8 {
    eprintln!("{error}");
    2
}

fn print(text: &str) -> Result<(), RuntimeError> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| RuntimeError::Config(format!("print: {error}")))
}

enum OperatorCommand {
    Run,
    Help,
    Plan(Option<Objects>),
    /// The files of the objects.
    Dev(Vec<PathBuf>),
    Crd,
    /// The namespaces to watch.
    Rbac(Vec<String>),
    Manifests(ManifestsFlags),
    #[cfg(feature = "bundle")]
    Bundle(Box<BundleFlags>),
}

/// The flags of `manifests`.
#[derive(Default)]
struct ManifestsFlags {
    image: Option<String>,
    namespace: Option<String>,
    replicas: Option<u32>,
    watched: Vec<String>,
    variables: Vec<(String, String)>,
    has_service_monitor: bool,
    has_network_policy: bool,
}

impl OperatorCommand {
    fn parse(mut arguments: VecDeque<String>) -> Result<OperatorCommand, RuntimeError> {
        let Some(name) = arguments.pop_front() else { return Ok(OperatorCommand::Run) };
        let mut command = match &*name {
            "help" | "-h" | "--help" => OperatorCommand::Help,
            "plan" => OperatorCommand::Plan(None),
            "--dev" => OperatorCommand::Dev(Vec::new()),
            "crd" => OperatorCommand::Crd,
            "rbac" => OperatorCommand::Rbac(Vec::new()),
            "manifests" => OperatorCommand::Manifests(ManifestsFlags::default()),
            #[cfg(feature = "bundle")]
            "bundle" => OperatorCommand::Bundle(Box::default()),
            _ => return Err(wrong(format!("unexpected argument {name:?}: expected {EXPECTED}"))),
        };
        while let Some(flag) = arguments.pop_front() {
            let mut value = || {
                let value = arguments.pop_front().filter(|value| !value.is_empty());
                value.ok_or_else(|| wrong(format!("{name} {flag}: needs a value")))
            };
            let is_known = match (&mut command, &*flag) {
                (_, "-h" | "--help") => return Ok(OperatorCommand::Help),
                (OperatorCommand::Plan(objects), "-f" | "--filename") => {
                    *objects = Some(Objects::read(&PathBuf::from(value()?)).map_err(wrong)?);
                    true
                }
                (OperatorCommand::Dev(files), "-f" | "--filename") => {
                    files.push(value()?.into());
                    true
                }
                (OperatorCommand::Rbac(namespaces), "-n" | "--namespace") => {
                    namespaces.push(value()?);
                    true
                }
                (OperatorCommand::Manifests(flags), flag) => set_manifests(flags, flag, value)?,
                #[cfg(feature = "bundle")]
                (OperatorCommand::Bundle(flags), flag) => set_bundle(flags, flag, value)?,
                _ => false,
            };
            if !is_known {
                return Err(wrong(format!("{name}: unexpected argument {flag:?}")));
            }
        }
        command.checked()
    }

    /// The command, if its values are valid together.
    fn checked(mut self) -> Result<OperatorCommand, RuntimeError> {
        match &mut self {
            OperatorCommand::Rbac(namespaces) => *namespaces = checked(mem::take(namespaces), "--namespace")?,
            OperatorCommand::Manifests(flags) => {
                flags.watched = checked(mem::take(&mut flags.watched), "--watch-namespace")?;
                checked(flags.namespace.iter().cloned().collect(), "--namespace")?;
            }
            #[cfg(feature = "bundle")]
            OperatorCommand::Bundle(flags) => {
                for (flag, value) in [("--version", &flags.version), ("--image", &flags.image)] {
                    if value.is_empty() {
                        return Err(wrong(format!("bundle: needs {flag}")));
                    }
                }
            }
            OperatorCommand::Run
            | OperatorCommand::Help
            | OperatorCommand::Plan(_)
            | OperatorCommand::Dev(_)
            | OperatorCommand::Crd => {}
        }
        Ok(self)
    }
}

/// Writes a bundle, and returns what to print.
#[cfg(feature = "bundle")]
fn write_bundle(
    name: &str,
    flags: &BundleFlags,
    controllers: impl FnOnce(Runtime) -> Runtime,
) -> Result<String, RuntimeError> {
    let watched = vec![bundle::TARGET_NAMESPACE.to_owned()];
    let image = Some(flags.image.clone());
    let variables = vec![(WEBHOOK_CERT_DIR.to_owned(), bundle::CERTIFICATE_DIR.to_owned())];
    let installed = ManifestsFlags { image, watched, variables, ..ManifestsFlags::default() };
    let mut installed = installation(name, installed, controllers)?;
    if installed.webhooks.is_none() {
        installed.variables.retain(|(name, _)| name != WEBHOOK_CERT_DIR);
    }
    bundle::write(&installed, flags, &[]).map_err(wrong)
}

/// Sets a flag of `manifests`. Returns whether there is such a flag.
fn set_manifests(
    flags: &mut ManifestsFlags,
    flag: &str,
    mut value: impl FnMut() -> Result<String, RuntimeError>,
) -> Result<bool, RuntimeError> {
    match flag {
        "--image" => flags.image = Some(value()?),
        "-n" | "--namespace" => flags.namespace = Some(value()?),
        "--replicas" => {
            let text = value()?;
            let replicas = text.parse().map_err(|_| wrong(format!("--replicas: {text:?} is no number")))?;
            flags.replicas = Some(replicas);
        }
        "--watch-namespace" => flags.watched.push(value()?),
        "--env" => {
            let text = value()?;
            let variable = text.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) =
                variable.ok_or_else(|| wrong(format!("--env: {text:?} is not NAME=VALUE")))?;
            flags.variables.push((name.to_owned(), value.to_owned()));
        }
        "--service-monitor" => flags.has_service_monitor = true,
        "--network-policy" => flags.has_network_policy = true,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets a flag of `bundle`. Returns whether there is such a flag.
#[cfg(feature = "bundle")]
fn set_bundle(
    flags: &mut BundleFlags,
    flag: &str,
    mut value: impl FnMut() -> Result<String, RuntimeError>,
) -> Result<bool, RuntimeError> {
    match flag {
        "--version" => flags.version = value()?,
        "--image" => flags.image = value()?,
        "-o" | "--output" => flags.output = Some(value()?.into()),
        "--overwrite" => flags.overwrites = true,
        "--sample" => flags.samples.push(value()?.into()),
        "--icon" => flags.icon = Some(value()?.into()),
        "--link" => flags.links.push(value()?),
        "--provider" => flags.provider = Some(value()?),
        "--channel" => flags.channels.push(value()?),
        "--replaces" => flags.replaces = Some(value()?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn wrong(problem: String) -> RuntimeError {
    RuntimeError::Config(problem)
}

/// The CustomResourceDefinitions of the controllers.
fn definitions_of(runtime: &Runtime) -> Result<Vec<Value>, RuntimeError> {
    let documents = runtime.definitions.iter().flat_map(|yaml| listwatch_yaml::documents(yaml));
    let is_empty = |document: &Result<Value, _>| matches!(document, Ok(Value::Null));
    let read = documents.filter(|document| !is_empty(document)).collect::<Result<_, _>>();
    read.map_err(|error| wrong(format!("the definition is not YAML: {error}")))
}

fn installation(
    name: &str,
    flags: ManifestsFlags,
    controllers: impl FnOnce(Runtime) -> Runtime,
) -> Result<Installation, RuntimeError> {
    let ManifestsFlags {
        image,
        namespace,
        replicas,
        watched,
        variables: more,
        has_service_monitor,
        has_network_policy,
    } = flags;
    let runtime = Runtime::offline()?.leader_election(LeaderElection::default())?;
    let mut runtime = controllers(runtime.namespaces(watched.clone())?);
    if let Some((_, directory)) = more.iter().find(|(name, _)| name == WEBHOOK_CERT_DIR) {
        runtime.webhooks.read_certificates(Some(directory.into()));
    }
    let definitions = definitions_of(&runtime)?;
    let webhooks = runtime.webhook_installation();
    let mut variables = vec![
        ("LEADER_ELECT".to_owned(), "true".to_owned()),
        ("METRICS_BIND_ADDRESS".to_owned(), ":8080".to_owned()),
        ("HEALTH_PROBE_BIND_ADDRESS".to_owned(), ":8081".to_owned()),
    ];
    if webhooks.is_some() {
        variables.push(("WEBHOOK_BIND_ADDRESS".to_owned(), format!(":{}", manifests::WEBHOOK_PORT)));
    }
    if !watched.is_empty() {
        variables.push(("WATCH_NAMESPACE".to_owned(), watched.join(",")));
    }
    // One of the user replaces ours.
    variables.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
    variables.extend(more);
    Ok(Installation {
        name: name.to_owned(),
        namespace: namespace.unwrap_or_else(|| format!("{name}-system")),
        image: image.unwrap_or_else(|| format!("{name}:latest")),
        replicas: replicas.unwrap_or(2),
        args: Vec::new(),
        variables,
        roles_of_users: definitions
            .iter()
            .flat_map(|definition| roles_of_users(definition, &format!("{name}-")))
            .collect(),
        definitions,
        permissions: runtime.permissions()?,
        has_service_monitor,
        has_network_policy,
        webhooks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{Cleanup, Next, Operator, Reconcile, ReconcileError},
        rbac::{Permission, Verb},
        resource::kinds::{ConfigMap, Secret},
    };

    const NAME: &str = "app.kubernetes.io/name";

    struct Cards;

    impl Operator for Cards {
        type Kind = ConfigMap;
        const FINALIZER: Option<&'static str> = Some("example.com/card");

        async fn reconcile(&self, _: Reconcile<ConfigMap>) -> Result<Next, ReconcileError> {
            Ok(Next::OnChange)
        }

        async fn deleting(&self, _: Reconcile<ConfigMap>) -> Result<Cleanup, ReconcileError> {
            Ok(Cleanup::Done)
        }
    }

    fn add(runtime: Runtime) -> Runtime {
        runtime.controller("example.com/cards", |setup| {
            let cards = setup.kind_without_status::<ConfigMap>("cards");
            cards.needs::<Secret>(&[Verb::Get], "To read the key.");
            cards.run_by(Cards)
        })
    }

    fn parse(arguments: &[&str]) -> Result<OperatorCommand, RuntimeError> {
        OperatorCommand::parse(arguments.iter().map(ToString::to_string).collect())
    }

    /// Also inside another runtime.
    #[tokio::test]
    async fn the_permissions_follow_from_the_controllers_and_the_namespaces() {
        let permissions = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(ToString::to_string).collect();
            let runtime = Runtime::offline().and_then(|runtime| runtime.namespaces(namespaces));
            let line = |one: Permission| {
                let verbs: Vec<_> = one.verbs.iter().map(|verb| verb.name()).collect();
                format!("{:?} {} {}", one.reach, one.resource, verbs.join(","))
            };
            let permissions = add(runtime.expect("a runtime")).permissions().expect("permissions");
            permissions.into_iter().map(line).collect::<Vec<_>>()
        };
        let expected = [
            "AllNamespaces configmaps get,list,watch,patch",
            "AllNamespaces secrets get",
            "AllNamespaces events create,patch",
        ];
        assert_eq!(permissions(&[]), expected);
        let expected = [
            "Namespace(\"a\") configmaps get,list,watch,patch",
            "Namespace(\"a\") secrets get",
            "Namespace(\"a\") events create,patch",
            "Namespace(\"a\") namespaces get",
        ];
        assert_eq!(permissions(&["a"]), expected);
    }

    #[test]
    fn a_command_takes_its_own_flags_and_no_others() {
        assert!(matches!(parse(&[]), Ok(OperatorCommand::Run)));
        assert!(matches!(parse(&["crd"]), Ok(OperatorCommand::Crd)));
        assert!(matches!(parse(&["plan"]), Ok(OperatorCommand::Plan(None))));
        assert!(matches!(parse(&["manifests", "--help"]), Ok(OperatorCommand::Help)));
        let dev = parse(&["--dev", "-f", "a.yaml", "-f", "b.yaml"]);
        assert!(matches!(dev, Ok(OperatorCommand::Dev(files)) if files.len() == 2));
        let both = parse(&["rbac", "-n", "b", "--namespace", "a"]);
        assert!(matches!(both, Ok(OperatorCommand::Rbac(names)) if names == ["a", "b"]));
        let expected = format!("unexpected argument \"run\": expected {EXPECTED}");
        for (arguments, problem) in [
            (&["run"][..], &*expected),
            (&["crd", "-n", "a"], "crd: unexpected argument \"-n\""),
            (&["--dev", "a"], "--dev: unexpected argument \"a\""),
            (&["rbac", "a"], "rbac: unexpected argument \"a\""),
            (&["rbac", "-n"], "rbac -n: needs a value"),
            (
                &["rbac", "-n", "No"],
                "--namespace: \"No\" is not the name of a namespace; for all of them, give none",
            ),
            (&["plan", "-f", "/absent/file"], "/absent/file: No such file or directory (os error 2)"),
            (&["manifests", "--replicas", "-1"], "--replicas: \"-1\" is no number"),
            (&["manifests", "--env", "LEVEL"], "--env: \"LEVEL\" is not NAME=VALUE"),
        ] {
            assert_eq!(parse(arguments).err().map(|error| error.to_string()).as_deref(), Some(problem));
        }
    }

    /// kubectl applied only the first of two in JSON, and nobody could read a change of one line in git.
    #[tokio::test]
    async fn several_definitions_are_yaml_whatever_they_were() {
        let json = |name: &str| serde_json::json!({"kind": name, "enum": ["on", "off"]}).to_string();
        let runtime = add(Runtime::offline().expect("a runtime"));
        let runtime = runtime.definitions(json("A")).definitions("# A comment\nkind: B\n---\nkind: C\n---\n");
        let printed = manifests::documents(&definitions_of(&runtime).expect("YAML"));
        assert_eq!(printed, "enum:\n- 'on'\n- 'off'\nkind: A\n---\nkind: B\n---\nkind: C\n");
        let broken = definitions_of(&runtime.definitions("{")).expect_err("an error").to_string();
        assert!(broken.starts_with("the definition is not YAML: "), "{broken}");
    }

    #[cfg(feature = "bundle")]
    #[tokio::test]
    async fn a_bundle_has_the_permissions_and_the_examples_of_the_operator() {
        let add =
            |runtime| add(runtime).definitions(include_str!("../../manifests/memcached/crd/memcacheds.yaml"));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_string_lossy();
        let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/memcached/samples/memcached.yaml");
        let given = ["bundle", "--version", "0.1.0", "--image", "cards:1", "-o", &path, "--sample", sample];
        let Ok(OperatorCommand::Bundle(flags)) = parse(&given) else { panic!("{given:?}") };
        write_bundle("cards", &flags, add).expect("a bundle");
        let file = dir.path().join("manifests/cards.clusterserviceversion.yaml");
        let version = std::fs::read_to_string(file).expect("a file");
        let version = listwatch_yaml::read(&version).expect("YAML");
        let install = &version["spec"]["install"]["spec"];
        assert_eq!(install["permissions"][0]["rules"][0]["resources"], serde_json::json!(["configmaps"]));
        let examples = version["metadata"]["annotations"]["alm-examples"].as_str();
        assert!(
            examples.is_some_and(|examples| examples.contains("\"kind\": \"Memcached\"")),
            "{examples:?}"
        );

        let missing = parse(&given[..3]).err().map(|error| error.to_string());
        assert_eq!(missing.as_deref(), Some("bundle: needs --image"));
        let unknown = parse(&["bundle", "--namespace", "a"]).err().map(|error| error.to_string());
        assert_eq!(unknown.as_deref(), Some("bundle: unexpected argument \"--namespace\""));
    }

    /// OLM makes the certificate.
    #[cfg(all(feature = "bundle", feature = "webhook"))]
    #[tokio::test]
    async fn in_a_bundle_the_certificate_of_webhooks_is_in_files_and_needs_no_permission() {
        use crate::webhook::Webhooks;
        let with = |runtime: Runtime| {
            add(runtime).webhooks(Webhooks::new("example.com/cards-webhook").defaults(|_: &mut ConfigMap| ()))
        };
        let both: [fn(Runtime) -> Runtime; 2] = [add, with];
        let [without, with] = both.map(|add| {
            let dir = tempfile::tempdir().expect("a directory");
            let flags = BundleFlags {
                version: "0.1.0".to_owned(),
                image: "cards:1".to_owned(),
                output: Some(dir.path().to_owned()),
                ..BundleFlags::default()
            };
            write_bundle("cards", &flags, add).expect("a bundle");
            let file = dir.path().join("manifests/cards.clusterserviceversion.yaml");
            let version = std::fs::read_to_string(file).expect("a file");
            let mut version = listwatch_yaml::read(&version).expect("YAML");
            version["spec"]["install"]["spec"].take()
        });
        for rules in ["permissions", "clusterPermissions"] {
            assert_eq!(with[rules], without[rules], "{rules}");
        }
        let directory = |install: &Value| {
            let container = &install["deployments"][0]["spec"]["template"]["spec"]["containers"][0];
            let mut variables = container["env"].as_array().into_iter().flatten();
            let variable = variables.find(|variable| variable["name"] == WEBHOOK_CERT_DIR);
            variable.map(|variable| variable["value"].clone())
        };
        assert_eq!(directory(&with), Some("/tmp/k8s-webhook-server/serving-certs".into()));
        assert_eq!(directory(&without), None);
    }

    #[tokio::test]
    async fn an_installation_has_the_definitions_and_binds_each_role_where_it_applies() {
        let add =
            |runtime| add(runtime).definitions(include_str!("../../manifests/memcached/crd/memcacheds.yaml"));
        let objects = |arguments: &[&str]| {
            let Ok(OperatorCommand::Manifests(flags)) = parse(arguments) else { panic!("{arguments:?}") };
            let objects = installation("cards", flags, add).expect("an installation").objects();
            let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
            let name = |object: &serde_json::Value| {
                let metadata = &object["metadata"];
                [&object["kind"], &metadata["namespace"], &metadata["name"]].map(text).join(" ")
            };
            (objects.iter().map(name).collect::<Vec<_>>(), objects)
        };
        let (names, all) = objects(&[
            "manifests",
            "--image",
            "cards:1",
            "--replicas",
            "3",
            "--env",
            "LEVEL=a=b",
            "--env",
            "LEADER_ELECT=false",
        ]);
        let expected = [
            "Namespace - cards-system",
            "CustomResourceDefinition - memcacheds.cache.example.com",
            "ClusterRole - cards-memcached-admin",
            "ClusterRole - cards-memcached-editor",
            "ClusterRole - cards-memcached-viewer",
            "ServiceAccount cards-system cards",
            "ClusterRoleBinding - cards",
            "RoleBinding cards-system cards-leader-election",
            "ClusterRole - cards",
            "Role cards-system cards-leader-election",
            "Deployment cards-system cards",
            "PodDisruptionBudget cards-system cards",
        ];
        assert_eq!(names, expected);
        let deployment = &all[10]["spec"];
        assert_eq!(
            (&deployment["replicas"], &all[10]["metadata"]["labels"][NAME]),
            (&3.into(), &"cards".into())
        );
        assert_eq!(deployment["selector"]["matchLabels"][NAME], "cards");
        let container = &deployment["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "cards:1");
        let variables = |name: &str| {
            let all = container["env"].as_array().into_iter().flatten();
            all.filter(|variable| variable["name"] == name)
                .map(|variable| variable["value"].clone())
                .collect()
        };
        let both: [Vec<Value>; 2] = ["LEVEL", "LEADER_ELECT"].map(variables);
        assert_eq!(both, [["a=b"], ["false"]]);

        let more = ["--service-monitor", "--network-policy", "--watch-namespace", "web", "-n", "ops"];
        let (names, all) = objects(&[&["manifests"], &more[..]].concat());
        let roles: Vec<_> =
            names.iter().filter(|name| name.contains("Role") && name.ends_with("cards")).collect();
        assert_eq!(roles, ["RoleBinding web cards", "Role web cards"]);
        let last: Vec<_> = names[names.len() - 3..].iter().map(String::as_str).collect();
        assert_eq!(
            last,
            ["Service ops cards-metrics", "ServiceMonitor ops cards", "NetworkPolicy ops cards"]
        );
        let policy = &all[all.len() - 1]["spec"];
        assert_eq!(policy["podSelector"]["matchLabels"][NAME], "cards");
        assert!(all[all.len() - 3]["spec"]["selector"][NAME] == "cards");
    }
}
