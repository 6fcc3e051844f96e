//! `listwatch rbac`: the roles that the operators need, as YAML for `kubectl apply -f -`.

use std::io::{self, Write};

use listwatch::{
    leader::LeaderElection,
    rbac,
    runtime::{MetricsSecurity, Runtime},
};
use listwatch_operators::{self as operators, BuiltIn};

use super::{failure::Failure, run::chosen};

/// Print the least roles of operators, each rule with its reason, for kubectl apply -f -
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A ClusterRole has the rules for all namespaces; with -n, a Role in each of them has the others. The Role for leader \
    election belongs into the namespace of the operator.\n\nExamples:\n  \
    listwatch rbac mywebserver                             a ClusterRole, and the Role for leader election\n  \
    listwatch rbac mywebserver -n web -n shop              Roles\n  \
    listwatch rbac copyrator --copyrator-secrets           with the rule for Secrets"
)]
pub(super) struct RbacArgs {
    /// Operators whose roles to print. Default: all
    #[arg(value_name = "OPERATOR")]
    operators: Vec<BuiltIn>,
    /// Namespace to watch; may be repeated, or a list with commas. Default: all namespaces
    #[arg(short, long = "namespace", value_name = "NAME", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// For operators with --metrics-secure
    #[arg(long)]
    metrics_secure: bool,
    #[command(flatten)]
    of_operators: operators::Flags,
}

pub(super) fn main(args: RbacArgs) -> Result<(), Failure> {
    let mut printed = Vec::new();
    for operator in chosen(&args.operators) {
        // As in `manifests/`.
        let runtime = Runtime::offline()?.leader_election(LeaderElection::default())?;
        let runtime = runtime.namespaces(args.namespaces.clone())?;
        let runtime = match args.metrics_secure {
            // It listens nowhere.
            true => runtime.metrics(([0, 0, 0, 0], 0).into(), MetricsSecurity::Tls { certificate: None }),
            false => runtime,
        };
        let permissions = operator.add_to(runtime, &args.of_operators).permissions()?;
        printed.push(rbac::roles(operator.role(), &permissions));
    }
    Ok(write!(io::stdout(), "{}", printed.join("---\n"))?)
}
