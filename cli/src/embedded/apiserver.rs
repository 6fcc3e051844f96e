//! `listwatch apiserver`: the embedded API server alone, for kubectl and for tests of other programs.

pub(super) mod credentials;

use std::{
    env, fs,
    io::{self, Write},
    path::{self, Path, PathBuf},
    pin::pin,
    sync::Arc,
    thread,
};

use clap::{ArgAction, Args, ValueEnum};
use listwatch::client::{Client, Config};
use listwatch_apiserver::{
    ApiServer, Checkpoint, ExecRule, LOG_TARGET, Options, Planned, fault_help, kinds_help,
};
use listwatch_lens::{Live, Operator};
use listwatch_scorecard::EVENTS_MAX;
use tempfile::{NamedTempFile, PersistError};
use tokio::sync::oneshot;
use tracing::Level;

use self::credentials::{CredentialFiles, KUBECONFIG, quoted};
use super::{
    lens,
    manifests::{self, Depth},
};
use crate::{
    env::parse_switch,
    failure::{Failure, until_signal},
    log::Log,
    output_file::{is_special, special},
};

/// The first line of a kubeconfig that this command wrote. Only such a file is replaced.
const OURS: &str = "# Written by listwatch apiserver, which overwrites it at its next start.\n";

/// Run the embedded API server alone, for kubectl and for tests
#[derive(Debug, Args)]
#[command(
    after_help = "The server keeps everything in memory. While it runs, inject, list and end faults at /listwatch/faults, \
    one fault a line, written as for --fault:\n\n  \
      echo cut-watches,path=/pods | kubectl create --raw /listwatch/faults -f -\n  \
      kubectl get --raw /listwatch/faults\n  \
      kubectl delete --raw /listwatch/faults\n\n\
    --log-requests logs each request to standard error: method, path with query, status, user agent, duration. \
    It logs a watch twice: when it starts and when it ends. -v logs connections as well."
)]
pub(in super::super) struct ApiserverArgs {
    /// Port on 127.0.0.1; 0 for a free one
    #[arg(long, value_name = "PORT", env = "LISTWATCH_PORT", default_value_t = 0, value_parser = parse_port)]
    port: u16,
    /// YAML or JSON file, or directory of such files or with a kustomization, whose resources are read; with objects to create at the start (CRDs first, then Namespaces); may be repeated
    #[arg(long, value_name = "PATH", env = "LISTWATCH_MANIFESTS")]
    manifests: Vec<PathBuf>,
    /// Read the directories of --manifests with all directories below them, and no kustomization
    #[arg(short = 'R', long, env = "LISTWATCH_RECURSIVE")]
    recursive: bool,
    /// File from GET /listwatch/checkpoint: start with its objects, their uids and versions
    #[arg(long, value_name = "FILE", env = "LISTWATCH_CHECKPOINT")]
    checkpoint: Option<PathBuf>,
    /// File to write the kubeconfig to. The files for curl are then in a directory beside it. Default: all in a temporary directory, removed when the server stops
    #[arg(long, value_name = "FILE", env = "LISTWATCH_KUBECONFIG_OUT")]
    kubeconfig_out: Option<PathBuf>,
    /// Fault to inject from the start, such as too-many-requests,path=/pods,times=3; may be repeated, or separated by ";". --fault help lists all faults
    #[arg(long, value_name = "FAULT", env = "LISTWATCH_FAULT", value_delimiter = ';', value_parser = parse_fault)]
    fault: Vec<Fault>,
    /// Output when the server is ready: text for people, or one line of JSON for scripts (server, kubeconfig, caFile, tokenFile, curlrcFile)
    #[arg(short, long, value_name = "FORMAT", env = "LISTWATCH_OUTPUT", default_value = "text")]
    output: ReadyOutput,
    /// What users may do, other than admin: everything, or what Roles and bindings grant
    #[arg(long, value_name = "MODE", env = "LISTWATCH_AUTHORIZATION", default_value = "always-allow")]
    authorization: Authorization,
    /// Port on 127.0.0.1 at which webhooks of a Service are called, such as a webhook of an operator on this machine
    #[arg(long, value_name = "PORT", env = "LISTWATCH_WEBHOOK_PORT", value_parser = parse_port)]
    webhook_port: Option<u16>,
    /// What a command prints in the containers of Pods, where nothing runs, such as 'redis-cli.*=OK'; may be repeated. In PATTERN, write \x3d for "=". Other commands are refused
    #[arg(long, value_name = "PATTERN=OUTPUT", env = "LISTWATCH_EXEC")]
    exec: Vec<ExecRule>,
    /// Run the simulated controllers and kubelet. With false, only the API server, as with envtest
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_CONTROLLERS")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    controllers: bool,
    /// Stop when standard input ends: if it is a pipe from the process that started the server, also when that process is killed
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_STOP_WITH_STDIN")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    stop_with_stdin: bool,
    /// List the built-in kinds, and what the server does not do with their objects; start nothing
    #[arg(long)]
    kinds: bool,
    /// Log each request to standard error
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_LOG_REQUESTS")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    log_requests: bool,
    /// Serve a page that shows what clients do, and why, and can stop them; its address is printed to standard error
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_LENS")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    lens: bool,
    #[command(flatten)]
    log: Log,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReadyOutput {
    Text,
    Json,
}

/// As `--authorization-mode` of kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Authorization {
    AlwaysAllow,
    Rbac,
}

#[derive(Clone, Debug)]
enum Fault {
    Help,
    Planned(Box<Planned>),
}

pub(super) fn parse_port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "is not a number from 0 to 65535")
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    if text == "help" {
        return Ok(Fault::Help);
    }
    let planned: Planned = text.parse()?;
    if planned.is_momentary() {
        let why = if planned.is_for_server() {
            "happens at once, so it has no effect at the start: POST it to /listwatch/faults"
        } else {
            "ends only open watches, so it has no effect at the start: add lines=N, or POST it to /listwatch/faults"
        };
        return Err(why.to_owned());
    }
    Ok(Fault::Planned(Box::new(planned)))
}

/// `println!`, for an output that may be closed at any time.
macro_rules! say {
    ($($text:tt)*) => { writeln!(io::stdout(), $($text)*)? };
}
pub(super) use say;

pub(super) fn main(mut apiserver: ApiserverArgs) -> Result<(), Failure> {
    if apiserver.fault.iter().any(|fault| matches!(fault, Fault::Help)) {
        return help(&fault_help());
    }
    if apiserver.kinds {
        return help(&kinds_help());
    }
    if let Some(path) = apiserver.kubeconfig_out.as_ref().filter(|path| path.to_str().is_none()) {
        return Err(Failure::Usage(format!("--kubeconfig-out {path:?}: is not UTF-8; choose another file")));
    }
    if apiserver.log_requests {
        apiserver.log.add(LOG_TARGET);
    }
    apiserver.log.start(Level::WARN);
    let ApiserverArgs {
        port,
        manifests,
        checkpoint,
        kubeconfig_out,
        fault,
        output,
        controllers,
        authorization,
        webhook_port,
        exec,
        lens,
        ..
    } = apiserver;
    let depth = if apiserver.recursive { Depth::All } else { Depth::One };
    let rbac = authorization == Authorization::Rbac;
    let events = if lens { EVENTS_MAX } else { 0 };
    let options = Options { port, controllers, rbac, webhook_port, exec, events, ..Options::default() };
    let kubeconfig_out = kubeconfig_out.map(|path| path::absolute(&path).unwrap_or(path));
    let checkpoint = checkpoint.map(|path| read_checkpoint(&path)).transpose()?;
    let initial = InitialObjects { checkpoint, manifests, depth };
    let stdin = apiserver.stop_with_stdin;
    until_signal(async |stop| {
        let stop = async {
            tokio::select! {
                () = stop.requested() => {}
                () = end_of_stdin(), if stdin => {}
            }
        };
        run(options, initial, kubeconfig_out, fault, output, lens, stop).await
    })
}

/// What is stored before the server is ready.
struct InitialObjects {
    checkpoint: Option<Checkpoint>,
    manifests: Vec<PathBuf>,
    depth: Depth,
}

fn read_checkpoint(path: &Path) -> Result<Checkpoint, Failure> {
    let read = || Checkpoint::from_json(serde_json::from_slice(&fs::read(path)?)?).map_err(io::Error::other);
    read().map_err(|error| Failure::Usage(format!("--checkpoint {}: {error}", path.display())))
}

/// Waits until standard input ends. Its bytes mean nothing.
async fn end_of_stdin() {
    let (sender, end) = oneshot::channel::<()>();
    // Not a task: it would delay the end of the process until the input ends.
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(sender);
    });
    let _ = end.await;
}

fn help(text: &str) -> Result<(), Failure> {
    say!("{}", text.trim_end());
    Ok(())
}

async fn run(
    options: Options,
    InitialObjects { checkpoint, manifests, depth }: InitialObjects,
    kubeconfig_out: Option<PathBuf>,
    faults: Vec<Fault>,
    output: ReadyOutput,
    lens: bool,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    // An unreadable file is an error before anything is started.
    let objects = manifests::read("--manifests", &manifests, depth)?;
    let server = Arc::new(start(options).await?);
    if let Some(checkpoint) = checkpoint {
        server.restore(&checkpoint);
    }
    let admin = Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?)?;
    let count = objects.len();
    let mut stop = pin!(stop);
    tokio::select! {
        created = manifests::create(&admin, objects) => created?,
        () = &mut stop => return Ok(()),
    }
    for fault in faults {
        if let Fault::Planned(planned) = fault {
            server.fault(*planned);
        }
    }
    let mut parent = env::temp_dir();
    let file = kubeconfig_out.as_deref().map(NewKubeconfig::create).transpose()?;
    if let Some(path) = &kubeconfig_out {
        path.parent().unwrap_or(path).clone_into(&mut parent);
    }
    let credentials = CredentialFiles::write(&server, &parent)?;
    if let Some(file) = file {
        file.persist(&server.kubeconfig())?;
    }
    let kubeconfig = kubeconfig_out.unwrap_or_else(|| credentials.file(KUBECONFIG));
    let introduced = match output {
        ReadyOutput::Text => introduce(&server.url(), &manifests, count, &kubeconfig, &credentials),
        ReadyOutput::Json => credentials.print_json(&kubeconfig),
    };
    match introduced {
        // The reader of `| head -1` closes our output, and can still use the server.
        Ok(()) | Err(Failure::ClosedPipe) => {}
        Err(failure) => return Err(failure),
    }
    if lens {
        let operator = Operator { user: String::new(), restart: None, scorecard: None };
        let show = async |live: Live, end: lens::End| live.run(Arc::clone(&server), operator, end).await;
        lens::with_page(show, stop, |()| "the API server was stopped".to_owned()).await?;
    } else {
        stop.await;
    }
    server.stop().await;
    Ok(())
}

/// Prints the address, and how to use the server.
fn introduce(
    url: &str,
    manifests: &[PathBuf],
    count: usize,
    kubeconfig: &Path,
    credentials: &CredentialFiles,
) -> Result<(), Failure> {
    say!("An API server is listening at {url}, in this process.");
    if !manifests.is_empty() {
        let from: Vec<_> = manifests.iter().map(|path| path.display().to_string()).collect();
        say!("Objects created from {}: {count}.", from.join(", "));
    }
    say!("\nIn another terminal:\n");
    say!("    export KUBECONFIG={}", quoted(kubeconfig));
    say!("    kubectl get namespaces");
    say!("    echo cut-watches | kubectl create --raw /listwatch/faults -f -");
    say!("\nThe last one breaks open watches. All faults: listwatch apiserver --fault help");
    say!("\nOr with curl:\n\n{}", credentials.curl(&["/api/v1/namespaces"]));
    say!("\nNothing is stored. Ctrl-C stops the server; then `unset KUBECONFIG`.");
    Ok(())
}

pub(super) async fn start(options: Options) -> Result<ApiServer, Failure> {
    let port = options.port;
    let server = ApiServer::start(options).await;
    server.map_err(|error| Failure::Runtime(format!("--port {port}: {error}; 0 chooses a free port")))
}

/// The file of `--kubeconfig-out`, under a temporary name until it is complete. Clients read the old file or the new one, and never
/// a part.
struct NewKubeconfig<'a> {
    file: NamedTempFile,
    /// As in the flag, for errors.
    path: &'a Path,
    /// The file to replace.
    replaces: Option<PathBuf>,
}

impl NewKubeconfig<'_> {
    /// Creates the temporary file, which only its owner can read. A file that another program wrote is not replaced: it may be the
    /// kubeconfig of a cluster.
    fn create(path: &Path) -> Result<NewKubeconfig<'_>, Failure> {
        // Reading a terminal or a pipe may last for ever.
        if is_special(path) {
            return Err(special("--kubeconfig-out", path));
        }
        let is_ours =
            fs::read_to_string(path).is_ok_and(|before| before.is_empty() || before.starts_with(OURS));
        if !is_ours && path.symlink_metadata().is_ok() {
            return Err(is_foreign(path));
        }
        let failed = |error| failed(path, &error);
        // A symbolic link stays, and its target is replaced.
        let replaces = is_ours.then(|| path.canonicalize()).transpose().map_err(failed)?;
        let dir = replaces.as_deref().unwrap_or(path).parent().unwrap_or(path);
        let file = NamedTempFile::new_in(dir).map_err(failed)?;
        Ok(NewKubeconfig { file, path, replaces })
    }

    fn persist(mut self, kubeconfig: &str) -> Result<(), Failure> {
        let NewKubeconfig { path, replaces, .. } = self;
        let written = self.file.write_all(format!("{OURS}{kubeconfig}").as_bytes());
        written.map_err(|error| failed(path, &error))?;
        let persisted = match replaces {
            Some(before) => self.file.persist(before),
            None => self.file.persist_noclobber(path),
        };
        match persisted {
            Ok(_) => Ok(()),
            Err(PersistError { error, .. }) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(is_foreign(path))
            }
            Err(PersistError { error, .. }) => Err(failed(path, &error)),
        }
    }
}

fn is_foreign(path: &Path) -> Failure {
    let path = path.display();
    Failure::Usage(format!(
        "--kubeconfig-out {path}: exists and was not written by listwatch apiserver; remove it, or choose another file"
    ))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Runtime(format!("--kubeconfig-out {}: {error}", path.display()))
}
