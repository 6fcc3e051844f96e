//! `listwatch manifests`: everything to install for an operator, as YAML for `kubectl apply -f -`.

use std::io::{self, Write};

use listwatch::{advanced::checked, leader::LeaderElection, manifests::Installation, runtime::Runtime};
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
    /// Image of its Pods
    #[arg(long, value_name = "IMAGE", default_value = concat!("listwatch:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Namespace of the operator. Default: OPERATOR-system
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Number of Pods. One of them leads
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: u32,
    /// Namespace to watch; may be repeated, or a list with commas. Default: all namespaces
    #[arg(long = "watch-namespace", value_name = "NAME", value_delimiter = ',')]
    watched: Vec<String>,
    /// Add a Service for the metrics, and a ServiceMonitor for the Prometheus Operator
    #[arg(long = "service-monitor")]
    has_service_monitor: bool,
    /// Add a NetworkPolicy
    #[arg(long = "network-policy")]
    has_network_policy: bool,
}

pub(super) fn main(args: ManifestsArgs) -> Result<(), Failure> {
    Ok(io::stdout().write_all(installation(args)?.yaml().as_bytes())?)
}

/// For a bundle, of an operator that watches this namespace.
#[cfg(feature = "developer")]
pub(super) fn installation_of(
    operator: BuiltIn,
    image: &str,
    watched: &str,
) -> Result<Installation, Failure> {
    installation(ManifestsArgs {
        operator,
        image: image.to_owned(),
        namespace: None,
        replicas: 2,
        watched: vec![watched.to_owned()],
        has_service_monitor: false,
        has_network_policy: false,
    })
}

fn installation(args: ManifestsArgs) -> Result<Installation, Failure> {
    let ManifestsArgs { operator, image, namespace, replicas, watched, .. } = args;
    let short = operator.role().trim_end_matches("-operator");
    let watched = checked(watched, "--watch-namespace")?;
    checked(namespace.iter().cloned().collect(), "--namespace")?;
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
        image,
        replicas,
        args: vec!["run".to_owned(), short.to_owned()],
        variables,
        definitions: operator.definitions(),
        roles_of_users: operator.roles_of_users(),
        permissions: operator.add_to(runtime, &operators::Flags::default()).permissions()?,
        has_service_monitor: args.has_service_monitor,
        has_network_policy: args.has_network_policy,
        webhooks: None,
    })
}
