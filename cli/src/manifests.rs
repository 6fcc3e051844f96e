//! `listwatch manifests`: everything to install for an operator, as YAML for `kubectl apply -f -`.

use std::io::{self, Write};

use listwatch::{
    leader::LeaderElection,
    manifests::{Installation, InstallationFlags, REPLICAS},
    runtime::{Runtime, RuntimeError},
};
use listwatch_operators::{self as operators, BuiltIn};

use super::failure::Failure;

/// Print everything to install for an operator, for kubectl apply -f -
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    listwatch manifests mywebserver --image registry.example.com/listwatch:0.1.0\n  \
    listwatch manifests mywebserver --watch-namespace web      with a Role there instead of a ClusterRole\n  \
    listwatch manifests mywebserver | kubectl diff -f -")]
pub(super) struct ManifestsArgs {
    /// The operator
    #[arg(value_name = "OPERATOR")]
    operator: BuiltIn,
    #[command(flatten)]
    flags: InstallationFlags,
}

pub(super) fn main(args: ManifestsArgs) -> Result<(), Failure> {
    Ok(io::stdout().write_all(installation(args.operator, args.flags)?.yaml().as_bytes())?)
}

pub(super) fn installation(operator: BuiltIn, flags: InstallationFlags) -> Result<Installation, Failure> {
    let InstallationFlags { image, namespace, replicas, watched, has_service_monitor, has_network_policy } =
        flags.checked().map_err(RuntimeError::Config)?;
    let short = operator.role().trim_end_matches("-operator");
    let mut variables = vec![("LISTWATCH_LEADER_ELECT".to_owned(), "true".to_owned())];
    if operator == BuiltIn::Copyrator {
        // All rules. An operator that runs alone serves one by default.
        variables.push(("RULE_NAME".to_owned(), "*".to_owned()));
    }
    if !watched.is_empty() {
        variables.push(("WATCH_NAMESPACE".to_owned(), watched.join(",")));
    }
    let runtime = Runtime::offline()?.leader_election(LeaderElection::default())?.namespaces(watched)?;
    Ok(Installation {
        name: operator.role().to_owned(),
        namespace: namespace.unwrap_or_else(|| format!("{short}-system")),
        image: image.unwrap_or_else(|| concat!("listwatch:", env!("CARGO_PKG_VERSION")).to_owned()),
        replicas: replicas.unwrap_or(REPLICAS),
        args: vec!["run".to_owned(), short.to_owned()],
        variables,
        definitions: operator.definitions(),
        roles_of_users: operator.roles_of_users(),
        permissions: operator.add_to(runtime, &operators::Flags::default()).permissions()?,
        has_service_monitor,
        has_network_policy,
        webhooks: None,
    })
}
