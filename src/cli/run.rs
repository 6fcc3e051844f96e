//! `listwatch run`: the operators, in a Pod or from a kubeconfig.

use std::{
    env,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    time::Duration,
};

use clap::{ArgAction, Args, ValueEnum};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tracing::{Level, info, warn};

use super::{Connection, Failure, log::Log, parse_switch};
use crate::{
    admin,
    client::{Client, Request},
    cluster::Cluster,
    controller,
    operators::mywebserver,
    shutdown::Stop,
    watch::Lists,
};

/// How long, when all else has stopped, to go on writing Events. With what the controllers may take, less than the 30 s
/// after which Kubernetes kills a Pod.
const LAST_EVENTS_LIMIT: Duration = Duration::from_secs(2);

/// More namespaces than this are warned about: three watches for each of them take four connections.
const NAMESPACES_MANY: usize = 100;

/// Run operators, in a Pod or from a kubeconfig
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    listwatch run mywebserver                          all namespaces, as the current context's user\n  \
    listwatch run -n web -n shop --log-level debug     two namespaces, one line per event\n  \
    listwatch run --context staging --as system:serviceaccount:mywebserver-system:mywebserver-operator\n\n\
    Stops on SIGTERM or Ctrl-C: takes no more work, and finishes what is in hand within 25 s.")]
pub(super) struct Run {
    /// Which operators. Without any: all. One whose custom resource is not installed waits for it
    #[arg(value_name = "OPERATOR")]
    operators: Vec<Kind>,
    /// Only in this namespace; may be repeated, or a comma list. Without it: $WATCH_NAMESPACE, then all namespaces
    #[arg(
        short,
        long = "namespace",
        value_name = "NAME",
        env = "LISTWATCH_NAMESPACE",
        value_delimiter = ','
    )]
    namespaces: Vec<String>,
    /// In all namespaces, whatever $WATCH_NAMESPACE says
    #[arg(short = 'A', long, value_name = "BOOL", env = "LISTWATCH_ALL_NAMESPACES")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    all_namespaces: bool,
    /// Objects of one kind that are worked on at a time
    #[arg(long, value_name = "N", env = "LISTWATCH_MAX_CONCURRENT_RECONCILES", default_value_t = controller::WORKERS)]
    #[arg(value_parser = parse_workers)]
    max_concurrent_reconciles: usize,
    /// Learn what exists from the watch itself: for very large sets, on Kubernetes 1.32 and later
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_STREAMING_LISTS")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    streaming_lists: bool,
    /// Where /livez and /readyz answer, [IP]:PORT; 0 for nowhere
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "LISTWATCH_HEALTH_PROBE_BIND_ADDRESS",
        default_value = ":8081"
    )]
    #[arg(value_parser = parse_bind_address)]
    health_probe_bind_address: BindAddress,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    log: Log,
}

/// The operators that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A MyWebserver becomes a Deployment and a Service
    Mywebserver,
}

/// Where to listen, if anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BindAddress(Option<SocketAddr>);

fn parse_bind_address(text: &str) -> Result<BindAddress, String> {
    if text == "0" {
        return Ok(BindAddress(None));
    }
    // IPv4 too, where both are there.
    let address = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    match address.parse() {
        Ok(address) => Ok(BindAddress(Some(address))),
        Err(_) => Err("is not [IP]:PORT, such as :8081 or 127.0.0.1:8081, nor 0 for off".to_owned()),
    }
}

fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers @ 1..=1024) => Ok(workers),
        Ok(_) | Err(_) => Err("is not a number from 1 to 1024".to_owned()),
    }
}

/// The operator's task is to wait: one thread is enough for it, and costs less memory than several.
pub(super) fn main(run: Run) -> Result<(), Failure> {
    // First, because what a kubeconfig is warned about belongs into the log.
    run.log.start(Level::INFO);
    let namespaces = namespaces(run.all_namespaces, run.namespaces, env::var("WATCH_NAMESPACE").ok())?;
    let client = run.connection.client()?;
    let lists = if run.streaming_lists { Lists::Streaming } else { Lists::Paged };
    let work = Work {
        cluster: Cluster::new(client.clone(), lists),
        client,
        operators: chosen(&run.operators),
        namespaces,
        workers: run.max_concurrent_reconciles,
        probes: run.health_probe_bind_address,
    };
    super::until_signal(|stop| work.run(stop))
}

/// Each operator once, however often it was named; all where none was.
fn chosen(named: &[Kind]) -> Vec<Kind> {
    let all = Kind::value_variants().iter().copied();
    all.filter(|kind| named.is_empty() || named.contains(kind)).collect()
}

/// The flag, or its environment, or `WATCH_NAMESPACE`, in which an empty name is none: operators read it so everywhere.
/// None at all: all namespaces.
fn namespaces(all: bool, flag: Vec<String>, watch_namespace: Option<String>) -> Result<Vec<String>, Failure> {
    if all && flag.is_empty() {
        return Ok(Vec::new());
    }
    if all {
        let cause = "--all-namespaces cannot be used with --namespace: leave one of them out";
        return Err(Failure::Usage(cause.to_owned()));
    }
    let (mut names, source) = if flag.is_empty() {
        let names = watch_namespace.iter().flat_map(|names| names.split(','));
        (names.filter(|name| !name.trim().is_empty()).map(str::to_owned).collect(), "WATCH_NAMESPACE")
    } else {
        (flag, "--namespace")
    };
    for name in &mut names {
        *name = name.trim().to_owned();
        let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_label = (1..=63).contains(&name.len()) && name.bytes().all(inside);
        if !is_label || name.starts_with('-') || name.ends_with('-') {
            let cause = "is not the name of a namespace; for all of them, give none";
            return Err(Failure::Usage(format!("{source}: {name:?} {cause}")));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

struct Work {
    client: Client,
    cluster: Cluster,
    operators: Vec<Kind>,
    namespaces: Vec<String>,
    workers: usize,
    probes: BindAddress,
}

impl Work {
    /// Runs until `stop`, or until it is clear that it cannot.
    async fn run(self, stop: Stop) -> Result<(), Failure> {
        let probes = match self.probes {
            BindAddress(None) => None,
            BindAddress(Some(address)) => Some(listen(address).await?),
        };
        let mut controllers = JoinSet::new();
        for operator in &self.operators {
            match operator {
                Kind::Mywebserver => {
                    let (events, write_events) = mywebserver::events(self.client.clone(), instance());
                    let controller = mywebserver::controller(&self.cluster, &self.namespaces, events);
                    let controller = controller.workers(self.workers).run(stop.clone().requested());
                    controllers.spawn(async {
                        let mut write_events = pin!(write_events);
                        tokio::select! {
                            () = controller => {}
                            () = &mut write_events => {}
                        }
                        // What could not be written by now is dropped.
                        let _ = timeout(LAST_EVENTS_LIMIT, write_events).await;
                    });
                }
            }
        }
        let answer_probes = async {
            match probes {
                None => std::future::pending().await,
                Some(listener) => admin::serve(listener, self.cluster.clone()).await,
            }
        };
        // Beside the work: an API server that does not answer must hold up neither the probes nor the stopping.
        let introduce = async {
            self.greet().await;
            self.look_for_namespaces().await;
        };
        let beside = async { tokio::join!(introduce, answer_probes).1 };
        tokio::select! {
            _ = controllers.join_all() => {}
            never = beside => match never {},
        }
        info!("stopped");
        Ok(())
    }

    /// Says once what we connect to, as whom, and what we watch.
    async fn greet(&self) {
        if self.namespaces.len() > NAMESPACES_MANY {
            let count = self.namespaces.len();
            warn!(
                count,
                "three watches for each namespace; three for all namespaces cost less, and need a ClusterRole"
            );
        }
        let namespaces =
            if self.namespaces.is_empty() { "all".to_owned() } else { self.namespaces.join(",") };
        let (server, user) = (self.client.server(), self.client.user());
        let listwatch = env!("CARGO_PKG_VERSION");
        match self.client.version().await {
            Ok(kubernetes) => info!(listwatch, server, kubernetes, user, namespaces, "started"),
            Err(error) => {
                warn!(listwatch, server, user, namespaces, %error, "started, but the API server cannot be used yet")
            }
        }
    }

    /// Warns of namespaces that do not exist: a list of one is empty, and a watch silent, as of one where nothing is.
    async fn look_for_namespaces(&self) {
        for name in &self.namespaces {
            match self.client.send(Request::get(format!("/api/v1/namespaces/{name}"))).await {
                Err(error) if error.is_not_found() => {
                    warn!(namespace = name, "there is no such namespace; waiting for it");
                }
                // An operator that is limited to a namespace may as a rule not read it.
                Err(error) if error.is_forbidden() => return,
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Which copy of the operator this is, for Events.
fn instance() -> String {
    env::var("POD_NAME").or_else(|_| env::var("HOSTNAME")).unwrap_or_else(|_| "listwatch".into())
}

/// Listens for probes, and says where: whoever asked for port 0 wants to know.
async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let wrong = |error| {
        Failure::Runtime(format!(
            "--health-probe-bind-address: cannot listen on {address}: {error}; another port, or 0 for nowhere?"
        ))
    };
    let listener = match admin::bind(address).await {
        // A machine without IPv6.
        Err(_) if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) => {
            admin::bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).await
        }
        result => result,
    };
    let listener = listener.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    info!(%address, "answering /livez and /readyz");
    Ok(listener)
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
        assert_eq!(chosen(&[]), [Kind::Mywebserver]);
        assert_eq!(chosen(&[Kind::Mywebserver, Kind::Mywebserver]), [Kind::Mywebserver]);
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
