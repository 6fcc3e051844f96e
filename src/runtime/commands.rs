//! The commands of an operator that has no flags of its own: [`main`].

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use serde_json::Value;

use super::{Runtime, RuntimeError, WEBHOOK_CERT_DIR};
#[cfg(feature = "bundle")]
use crate::bundle::{self, BundleFlags};
use crate::{
    leader::LeaderElection,
    manifests::{self, Installation, InstallationFlags, roles_of_users},
    plan::{Objects, Plan},
    rbac, shutdown,
};

const WITHOUT_CLUSTER: &str =
    "without a cluster: cargo run --features dev -- --dev, with dev = [\"listwatch/testing\"] as a feature";

/// Without a command, runs, with the service account of the Pod or a kubeconfig
#[derive(Parser)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<OperatorCommand>,
}

#[derive(Subcommand)]
enum OperatorCommand {
    /// Print what it would write now, as diffs; exit status 1 if there is something, 2 after an error
    Plan {
        /// Plan for these objects, as if they were applied, instead of all in the cluster
        #[arg(short, long, value_name = "FILE")]
        filename: Option<PathBuf>,
    },
    /// Print its CustomResourceDefinitions
    Crd,
    /// Print the least ClusterRole or, with namespaces, Roles, each rule with its reason
    Rbac {
        /// Namespace to watch; may be repeated
        #[arg(short, long = "namespace", value_name = "NAME")]
        namespaces: Vec<String>,
    },
    /// Print everything to install
    Manifests {
        #[command(flatten)]
        flags: InstallationFlags,
        /// Variable in the environment of its container; may be repeated
        #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
        variables: Vec<(String, String)>,
    },
    /// Write a bundle for the Operator Lifecycle Manager
    #[cfg(feature = "bundle")]
    Bundle(BundleFlags),
    /// Run with an API server in this process, in a build with the feature testing of listwatch
    #[command(long_flag = "dev")]
    Dev {
        /// Objects to create; may be repeated. Default: those of sample*.yaml
        #[arg(short, long = "filename", value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

fn variable(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("it is not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The `main` of an operator that has no flags, with the commands of `my-operator help`: `plan`, `crd`, `rbac`, `manifests`, `bundle` (with the
/// feature `bundle`) and `--dev` (with the feature `testing`). `name` is the name of its Deployment and its roles. Without a command, the
/// operator runs, by [`Runtime::from_env`]. With the feature `log`, it logs as by `log::start`, unless the program has set a subscriber of its
/// own. Prints the error of a failure.
pub fn main(name: &str, controllers: impl FnOnce(Runtime) -> Runtime) -> ExitCode {
    let command = CommandLine::parse().command;
    // For a plan, 1 means that there is something to write.
    let failure = if let Some(OperatorCommand::Plan { .. }) = command { 2 } else { 1 };
    execute(name, command, controllers).unwrap_or_else(|error| {
        eprintln!("{error}");
        failure.into()
    })
}

fn execute(
    name: &str,
    command: Option<OperatorCommand>,
    controllers: impl FnOnce(Runtime) -> Runtime,
) -> Result<ExitCode, RuntimeError> {
    #[cfg(feature = "log")]
    if !tracing::dispatcher::has_been_set() {
        crate::log::start()?;
    }
    let Some(command) = command else {
        let runtime = Runtime::from_env().map_err(|error| match error {
            RuntimeError::Config(cause) if cause.starts_with("find the API server") => {
                wrong(format!("{cause}; {WITHOUT_CLUSTER}"))
            }
            error => error,
        });
        controllers(runtime?).run()?;
        return Ok(ExitCode::SUCCESS);
    };
    let text = match command {
        OperatorCommand::Dev { files } => {
            dev(name, controllers, files)?;
            String::new()
        }
        OperatorCommand::Plan { filename } => return Ok(plan_of(filename, controllers)?.exit_code().into()),
        OperatorCommand::Crd => manifests::documents(&definitions_of(&controllers(Runtime::offline()?))?),
        OperatorCommand::Rbac { namespaces } => {
            let runtime = Runtime::offline()?.namespaces(namespaces)?;
            rbac::roles(name, &controllers(runtime).permissions()?)
        }
        OperatorCommand::Manifests { flags, variables } => {
            installation(name, flags, variables, controllers)?.yaml()
        }
        #[cfg(feature = "bundle")]
        OperatorCommand::Bundle(flags) => write_bundle(name, &flags, controllers)?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
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
    let kubeconfig = std::env::current_dir().unwrap_or_default().join("target/dev.kubeconfig");
    let say = |line: &str| drop(print(&format!("{line}\n")));
    shutdown::run(|stop| super::dev::serve(name, controllers, &objects, &kubeconfig, stop.requested(), say))?
}

#[cfg(not(feature = "testing"))]
fn dev(_: &str, _: impl FnOnce(Runtime) -> Runtime, _: Vec<PathBuf>) -> Result<(), RuntimeError> {
    Err(wrong(format!("--dev: this build has no API server; {WITHOUT_CLUSTER}")))
}

/// Prints what the controllers would write.
fn plan_of(
    filename: Option<PathBuf>,
    controllers: impl FnOnce(Runtime) -> Runtime,
) -> Result<Plan, RuntimeError> {
    let objects = filename.map(|file| Objects::read(&file)).transpose().map_err(wrong)?;
    let runtime = controllers(Runtime::from_env()?);
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

fn print(text: &str) -> Result<(), RuntimeError> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| RuntimeError::Config(format!("print: {error}")))
}

/// Writes a bundle, and returns what to print.
#[cfg(feature = "bundle")]
fn write_bundle(
    name: &str,
    flags: &BundleFlags,
    controllers: impl FnOnce(Runtime) -> Runtime,
) -> Result<String, RuntimeError> {
    let variables = vec![(WEBHOOK_CERT_DIR.to_owned(), bundle::CERTIFICATE_DIR.to_owned())];
    let mut installed = installation(name, flags.installation(), variables, controllers)?;
    if installed.webhooks.is_none() {
        installed.variables.retain(|(name, _)| name != WEBHOOK_CERT_DIR);
    }
    bundle::write(&installed, flags, &[]).map_err(wrong)
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
    flags: InstallationFlags,
    more: Vec<(String, String)>,
    controllers: impl FnOnce(Runtime) -> Runtime,
) -> Result<Installation, RuntimeError> {
    let InstallationFlags { image, namespace, replicas, watched, has_service_monitor, has_network_policy } =
        flags.checked().map_err(RuntimeError::Config)?;
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
        replicas: replicas.unwrap_or(manifests::REPLICAS),
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
    use clap::CommandFactory;

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

    fn parse(arguments: &[&str]) -> Option<OperatorCommand> {
        let parsed = CommandLine::try_parse_from([&["cards"], arguments].concat());
        parsed.unwrap_or_else(|error| panic!("{error}")).command
    }

    /// Also inside another runtime.
    #[tokio::test]
    async fn the_permissions_follow_from_the_controllers_and_the_namespaces() {
        let permissions = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(ToString::to_string).collect();
            let runtime = Runtime::offline().and_then(|runtime| runtime.namespaces(namespaces));
            let line = |one: Permission| {
                let verbs: Vec<_> = one.verbs.iter().map(|verb| format!("{verb:?}").to_lowercase()).collect();
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

    #[tokio::test]
    async fn wrong_values_are_named() {
        CommandLine::command().debug_assert();
        let environment = CommandLine::try_parse_from(["cards", "manifests", "--env", "LEVEL"]);
        let message = environment.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("'LEVEL' for '--env <NAME=VALUE>': it is not NAME=VALUE"), "{message}");
        let Some(OperatorCommand::Manifests { flags, .. }) = parse(&["manifests", "-n", "No"]) else {
            panic!()
        };
        let refused = installation("cards", flags, Vec::new(), add).expect_err("an error").to_string();
        assert_eq!(refused, "--namespace: \"No\" is not the name of a namespace; for all of them, give none");
        assert!(
            matches!(parse(&["--dev", "-f", "a.yaml"]), Some(OperatorCommand::Dev { files }) if files.len() == 1)
        );
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
        let Some(OperatorCommand::Bundle(flags)) = parse(&given) else { panic!("{given:?}") };
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
            let Some(OperatorCommand::Manifests { flags, variables }) = parse(arguments) else {
                panic!("{arguments:?}")
            };
            let objects = installation("cards", flags, variables, add).expect("an installation").objects();
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
        let last: Vec<_> = names[names.len() - 4..].iter().map(String::as_str).collect();
        assert_eq!(
            last,
            [
                "Service ops cards-metrics",
                "ServiceMonitor ops cards",
                "PrometheusRule ops cards",
                "NetworkPolicy ops cards"
            ]
        );
        let policy = &all[all.len() - 1]["spec"];
        assert_eq!(policy["podSelector"]["matchLabels"][NAME], "cards");
        assert!(all[all.len() - 4]["spec"]["selector"][NAME] == "cards");
    }
}
