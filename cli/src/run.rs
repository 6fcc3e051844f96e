//! `listwatch run`: the operators, in a Pod or from a kubeconfig.

use std::{env, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};
use listwatch::{
    advanced::{address, checked, names_in},
    controller, leader,
    runtime::{MetricsSecurity, Runtime, RuntimeError},
    shard::Shard,
    store::KEPT_MIB,
    watch::Lists,
};
use listwatch_operators::{self as operators, BuiltIn};
use tracing::Level;

use super::{
    connection::{ConnectionFlags, parse_time},
    env::parse_switch,
    failure::Failure,
    log::Log,
    trace::TraceFlags,
};

/// Run operators, in a Pod or from a kubeconfig
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    listwatch run mywebserver                          all namespaces, current context\n  \
    listwatch run -n web -n shop --log-level debug     two namespaces, one log line per event\n  \
    listwatch run --context staging --as system:serviceaccount:mywebserver-system:mywebserver-operator\n\n\
    On SIGTERM or Ctrl-C, finishes the current reconciliations within 25 s and stops. A second signal stops it at once.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    which: Which,
    /// How many objects of one kind are reconciled at the same time
    #[arg(long, value_name = "N", env = "LISTWATCH_MAX_CONCURRENT_RECONCILES", default_value_t = controller::WORKERS)]
    #[arg(value_parser = parse_workers)]
    max_concurrent_reconciles: usize,
    /// List by watching (sendInitialEvents): for very many objects; Kubernetes 1.32 and since 1.34 support it
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_STREAMING_LISTS")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    streaming_lists: bool,
    /// The limit for all objects whose content is kept, in MiB; half of it for each namespace. The memory limit must be twice as much
    #[arg(long, value_name = "MIB", env = "LISTWATCH_KEPT_MIB", default_value_t = KEPT_MIB)]
    kept_mib: u32,
    /// Address of /livez and /readyz, [IP]:PORT; 0 to serve none
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "LISTWATCH_HEALTH_PROBE_BIND_ADDRESS",
        default_value = ":8081"
    )]
    #[arg(value_parser = parse_bind_address)]
    health_probe_bind_address: BindAddress,
    #[command(flatten)]
    metrics: MetricsFlags,
    /// Address of /debug/state and /debug/log, [IP]:PORT, for every client that reaches it; 0 to serve none
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "LISTWATCH_DEBUG_BIND_ADDRESS",
        default_value = "127.0.0.1:8082"
    )]
    #[arg(value_parser = parse_bind_address)]
    debug_bind_address: BindAddress,
    #[command(flatten)]
    leader_election: LeaderElectionFlags,
    /// Reconcile only the objects in shard N of M, such as 0/3; other processes have 1/3 and 2/3. Needs --leader-elect
    #[arg(long, value_name = "N/M", env = "LISTWATCH_SHARD", default_value_t = Shard::default())]
    shard: Shard,
    #[command(flatten)]
    of_operators: operators::Flags,
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    trace: TraceFlags,
    #[command(flatten)]
    log: Log,
}

/// Which objects.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Operators. Default: all. An operator waits until its custom resource is installed
    #[arg(value_name = "OPERATOR")]
    pub(super) operators: Vec<BuiltIn>,
    /// Namespace to watch; may be repeated, or a list with commas. Default: $WATCH_NAMESPACE, then all namespaces
    #[arg(
        short,
        long = "namespace",
        value_name = "NAME",
        env = "LISTWATCH_NAMESPACE",
        value_delimiter = ','
    )]
    namespaces: Vec<String>,
    /// Watch all namespaces, also when $WATCH_NAMESPACE is set
    #[arg(short = 'A', long, value_name = "BOOL", env = "LISTWATCH_ALL_NAMESPACES")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    all_namespaces: bool,
}

impl Which {
    /// Empty: all namespaces.
    pub(super) fn namespaces(&self) -> Result<Vec<String>, Failure> {
        namespaces(self.all_namespaces, self.namespaces.clone(), env::var("WATCH_NAMESPACE").ok())
    }
}

#[derive(Debug, Args)]
struct MetricsFlags {
    /// Address of /metrics, [IP]:PORT; 0 to serve none
    #[arg(long, value_name = "ADDRESS", env = "LISTWATCH_METRICS_BIND_ADDRESS", default_value = ":8080")]
    #[arg(value_parser = parse_bind_address)]
    metrics_bind_address: BindAddress,
    /// Serve the metrics over TLS, to clients that may get the nonResourceURL /metrics
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_METRICS_SECURE")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    metrics_secure: bool,
    /// Directory with tls.crt and tls.key for --metrics-secure, read again when they change. Default: a certificate made at the start
    #[arg(long, value_name = "DIR", env = "LISTWATCH_METRICS_CERT_PATH")]
    metrics_cert_path: Option<PathBuf>,
}

impl MetricsFlags {
    fn add_to(self, runtime: Runtime) -> Result<Runtime, Failure> {
        let security = match (self.metrics_secure, self.metrics_cert_path) {
            (true, certificate) => MetricsSecurity::Tls { certificate },
            (false, None) => MetricsSecurity::Plain,
            (false, Some(_)) => {
                return Err(Failure::Usage("--metrics-cert-path needs --metrics-secure".to_owned()));
            }
        };
        Ok(match self.metrics_bind_address {
            BindAddress(Some(address)) => runtime.metrics(address, security),
            BindAddress(None) => runtime,
        })
    }
}

#[derive(Debug, Args)]
struct LeaderElectionFlags {
    /// Write only while holding a Lease, one for each operator. Others with the same flag wait for it, with their caches filled
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_LEADER_ELECT")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    leader_elect: bool,
    /// Namespace of the Leases. Default: the service account's or the context's
    #[arg(long, value_name = "NAME", env = "LISTWATCH_LEADER_ELECT_RESOURCE_NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
    /// Name of the Lease, for one operator. Default: its own name, with its domain. Give one to those that watch other namespaces
    #[arg(long, value_name = "NAME", env = "LISTWATCH_LEADER_ELECT_RESOURCE_NAME")]
    leader_elect_resource_name: Option<String>,
    /// How long others wait after the last renewal of a Lease, in whole seconds
    #[arg(long, value_name = "TIME", env = "LISTWATCH_LEADER_ELECT_LEASE_DURATION", default_value = "15s")]
    #[arg(value_parser = parse_time)]
    leader_elect_lease_duration: Duration,
    /// How long the leader may write after its last renewal; shorter than the lease duration
    #[arg(long, value_name = "TIME", env = "LISTWATCH_LEADER_ELECT_RENEW_DEADLINE", default_value = "10s")]
    #[arg(value_parser = parse_time)]
    leader_elect_renew_deadline: Duration,
    /// From one attempt to renew or take a Lease to the next
    #[arg(long, value_name = "TIME", env = "LISTWATCH_LEADER_ELECT_RETRY_PERIOD", default_value = "2s")]
    #[arg(value_parser = parse_time)]
    leader_elect_retry_period: Duration,
}

impl LeaderElectionFlags {
    /// `None`: not asked for.
    fn settings(self) -> Option<leader::LeaderElection> {
        self.leader_elect.then_some(leader::LeaderElection {
            namespace: self.leader_elect_resource_namespace,
            name: self.leader_elect_resource_name,
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
        })
    }
}

/// The address to listen on. `None`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BindAddress(Option<SocketAddr>);

fn parse_bind_address(text: &str) -> Result<BindAddress, &'static str> {
    address(text).map(BindAddress)
}

fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers @ 1..=1024) => Ok(workers),
        Ok(_) | Err(_) => Err("is not a number from 1 to 1024".to_owned()),
    }
}

pub(super) fn main(run: RunArgs) -> Result<(), Failure> {
    // First, because reading a kubeconfig may log warnings.
    run.log.start(Level::INFO);
    let mut namespaces = run.which.namespaces()?;
    let client = run.trace.client(run.connection.config()?, None, "")?;
    let lists = if run.streaming_lists { Lists::Streaming } else { Lists::Paged };
    let (operators, mut flags) = (chosen(&run.which.operators), run.of_operators);
    if operators == [BuiltIn::Copyrator] {
        flags.copyrator.runs_alone(&mut namespaces);
    }
    if !run.shard.is_whole()
        && let Some(operator) = operators.iter().find(|operator| !operator.can_be_divided())
    {
        let name = operator.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        return Err(Failure::Usage(format!(
            "--shard: {name} cannot be divided, because its objects share what they write; name the other operators, such as: listwatch run mywebserver"
        )));
    }
    let runtime = Runtime::new(client).namespaces(namespaces)?.shard(run.shard);
    let mut runtime = runtime.lists(lists).kept_mib(run.kept_mib).workers(run.max_concurrent_reconciles);
    if let BindAddress(Some(address)) = run.health_probe_bind_address {
        runtime = runtime.probes(address);
    }
    runtime = run.metrics.add_to(runtime)?;
    if let BindAddress(Some(address)) = run.debug_bind_address {
        runtime = runtime.debug(address);
    }
    if let Some(settings) = run.leader_election.settings() {
        runtime = runtime.leader_election(settings)?;
    }
    for operator in operators {
        runtime = operator.add_to(runtime, &flags);
    }
    Ok(runtime.run()?)
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        match error {
            RuntimeError::Config(cause) => Failure::Usage(cause),
            RuntimeError::Listen { endpoint, address, cause } => {
                let flag = if endpoint == "probes" { "health-probe" } else { endpoint };
                Failure::Runtime(format!(
                    "--{flag}-bind-address: cannot listen on {address}: {cause}; choose another port, or 0 to serve none"
                ))
            }
            RuntimeError::Shutdown(error) => error.into(),
            other => Failure::Runtime(other.to_string()),
        }
    }
}

/// Each named operator once; all if none is named.
pub(super) fn chosen(named: &[BuiltIn]) -> Vec<BuiltIn> {
    let all = BuiltIn::value_variants().iter().copied();
    all.filter(|operator| named.is_empty() || named.contains(operator)).collect()
}

/// The namespaces of the flag, or else of `WATCH_NAMESPACE`. Empty: all namespaces.
fn namespaces(all: bool, flag: Vec<String>, variable: Option<String>) -> Result<Vec<String>, Failure> {
    match (all, flag.is_empty()) {
        (true, true) => Ok(Vec::new()),
        (true, false) => {
            let cause = "--all-namespaces cannot be used with --namespace: leave one of them out";
            Err(Failure::Usage(cause.to_owned()))
        }
        (false, true) => Ok(checked(names_in(&variable.unwrap_or_default()), "WATCH_NAMESPACE")?),
        (false, false) => Ok(checked(flag, "--namespace")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_its_host_and_zero_is_off() {
        assert_eq!(parse_bind_address("0"), Ok(BindAddress(None)));
        assert_eq!(parse_bind_address(":8081"), Ok(BindAddress("[::]:8081".parse().ok())));
        assert_eq!(parse_bind_address("[::1]:1"), Ok(BindAddress("[::1]:1".parse().ok())));
        for wrong in ["", "8081", ":", ":99999", "localhost:1", "1.2.3.4"] {
            assert!(parse_bind_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_operator_runs_once_however_often_it_is_named() {
        assert_eq!(chosen(&[]), BuiltIn::value_variants());
        assert_eq!(chosen(&[BuiltIn::Mywebserver, BuiltIn::Mywebserver]), [BuiltIn::Mywebserver]);
    }

    #[test]
    fn namespaces_come_from_the_flag_then_the_environment_and_empty_means_all() {
        let of = |all: bool, flag: &[&str], env: Option<&str>| {
            let flag = flag.iter().map(ToString::to_string).collect();
            namespaces(all, flag, env.map(str::to_owned)).map_err(|_| ())
        };
        assert_eq!(of(true, &[], Some("a")), Ok(vec![]));
        assert_eq!(of(true, &["a"], None), Err(()));
        let names = |flag: &[&str], env: Option<&str>| of(false, flag, env);
        assert_eq!(names(&["b", "a", "b"], Some("c")), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names(&[], Some("c, d")), Ok(vec!["c".to_owned(), "d".to_owned()]));
        assert_eq!(names(&[], Some("")), Ok(vec![]));
        assert_eq!(names(&[], None), Ok(vec![]));
        for wrong in ["", " ", "No", "a.b", "-a", "a-", "a/b", &"a".repeat(64)] {
            assert_eq!(names(&["a", wrong], None), Err(()), "{wrong}");
        }
        assert_eq!(names(&[], Some("No/Name")), Err(()));
    }
}
