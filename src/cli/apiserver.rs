//! `listwatch apiserver`: the embedded API server alone, for kubectl and for programs that want an API server to try.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use clap::Args;
use tempfile::{Builder, TempDir};
use tracing::Level;

use super::{Failure, log::Log, manifests};
use crate::{
    apiserver::{ApiServer, Options, Planned, fault_names},
    client::{Client, Config},
    shutdown::Stop,
};

/// What is written for kubectl.
pub(super) const KUBECONFIG: &str = "kubeconfig";
/// What a kubeconfig of ours begins with, by which we know that it may be overwritten.
const OURS: &str = "# Written by listwatch apiserver, which overwrites it at its next start.\n";

/// Run the embedded API server alone, for kubectl and for tests
#[derive(Debug, Args)]
#[command(
    after_help = "It lives on 127.0.0.1 and in memory: nothing is kept. While it runs, faults are planned,\n\
    listed and ended at /listwatch/faults, in the words of --fault, one in each line:\n\n  \
      echo cut-watches,path=/pods | kubectl create --raw /listwatch/faults -f -\n  \
      kubectl get --raw /listwatch/faults\n  \
      kubectl delete --raw /listwatch/faults\n\n\
    With -v each request is a line on standard error: method, path with query, status, user agent, duration. A watch\n\
    has one line when it begins and one when it ends."
)]
pub(super) struct Apiserver {
    /// Port on 127.0.0.1; 0 for any
    #[arg(long, value_name = "PORT", env = "LISTWATCH_PORT", default_value_t = 0, value_parser = parse_port)]
    port: u16,
    /// YAML or JSON file, or directory of such files, with objects to create at the start: CRDs first, then Namespaces; may be repeated
    #[arg(long, value_name = "PATH", env = "LISTWATCH_MANIFESTS")]
    manifests: Vec<PathBuf>,
    /// File to write a kubeconfig to. Without it: to a directory that goes with the server
    #[arg(long, value_name = "FILE", env = "LISTWATCH_KUBECONFIG_OUT")]
    kubeconfig_out: Option<PathBuf>,
    /// Something that goes wrong from the start, such as too-many-requests,path=/pods,times=3; repeated, or with ; between. --fault help lists them all
    #[arg(long, value_name = "FAULT", env = "LISTWATCH_FAULT", value_delimiter = ';', value_parser = parse_fault)]
    fault: Vec<Fault>,
    #[command(flatten)]
    log: Log,
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
            "is done at once, and at the start there is nothing to do it to: POST it to /listwatch/faults"
        } else {
            "ends the watches that are open now, and at the start none is: give lines=N, or POST it to /listwatch/faults"
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

pub(super) fn main(apiserver: Apiserver) -> Result<(), Failure> {
    if apiserver.fault.iter().any(|fault| matches!(fault, Fault::Help)) {
        return help();
    }
    apiserver.log.start(Level::WARN);
    let Apiserver { port, manifests, kubeconfig_out, fault, .. } = apiserver;
    super::until_signal(async |stop| run(port, manifests, kubeconfig_out, fault, stop).await)
}

fn help() -> Result<(), Failure> {
    say!("{}", fault_names().trim_end());
    Ok(())
}

async fn run(
    port: u16,
    manifests: Vec<PathBuf>,
    kubeconfig_out: Option<PathBuf>,
    faults: Vec<Fault>,
    stop: Stop,
) -> Result<(), Failure> {
    // What cannot be read is found out before anything is started.
    let objects = manifests::read(&manifests)?;
    let server = start(Options { port, ..Options::default() }).await?;
    let admin = Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?)?;
    let count = objects.len();
    tokio::select! {
        created = manifests::create(&admin, objects) => created?,
        () = stop.clone().requested() => return Ok(()),
    }
    for fault in faults {
        if let Fault::Planned(planned) = fault {
            server.fault(*planned);
        }
    }
    let (kubeconfig, _dir) = match kubeconfig_out {
        Some(path) => {
            write_kubeconfig(&path, &server.kubeconfig())?;
            (path, None)
        }
        None => {
            let dir = private_dir(|dir| write_private(&dir.join(KUBECONFIG), &server.kubeconfig()))?;
            (dir.path().join(KUBECONFIG), Some(dir))
        }
    };
    match introduce(&server.url(), &manifests, count, &kubeconfig) {
        // `| head -1`: who has read enough may well use the server.
        Ok(()) | Err(Failure::Unheard) => {}
        Err(failure) => return Err(failure),
    }
    stop.requested().await;
    server.stop().await;
    Ok(())
}

/// Says what is there and how it is used.
fn introduce(url: &str, manifests: &[PathBuf], count: usize, kubeconfig: &Path) -> Result<(), Failure> {
    say!("An API server is listening at {url}, in this process.");
    if !manifests.is_empty() {
        let from: Vec<_> = manifests.iter().map(|path| path.display().to_string()).collect();
        say!("Objects created from {}: {count}.", from.join(", "));
    }
    let kubeconfig = std::path::absolute(kubeconfig).unwrap_or_else(|_| kubeconfig.to_owned());
    say!("\nIn another terminal:\n");
    say!("    export KUBECONFIG='{}'", kubeconfig.display());
    say!("    kubectl get namespaces");
    say!(
        "    echo cut-watches | kubectl create --raw /listwatch/faults -f -    # all: listwatch apiserver --fault help\n"
    );
    say!("Nothing is kept. Ctrl-C ends it; then `unset KUBECONFIG`.");
    Ok(())
}

pub(super) async fn start(options: Options) -> Result<ApiServer, Failure> {
    let port = options.port;
    let server = ApiServer::start(options).await;
    server.map_err(|error| Failure::Runtime(format!("--port {port}: {error}; 0 takes one that is free")))
}

/// A directory for credentials: only its owner can read it, and it goes with us.
pub(super) fn private_dir(write: impl FnOnce(&Path) -> io::Result<()>) -> Result<TempDir, Failure> {
    let only_owner = Permissions::from_mode(0o700);
    let dir = Builder::new().prefix("listwatch-").permissions(only_owner).tempdir().and_then(|dir| {
        write(dir.path())?;
        Ok(dir)
    });
    dir.map_err(|error| {
        let parent = std::env::temp_dir();
        let parent = parent.display();
        Failure::Runtime(format!("write credentials below {parent}: {error}; TMPDIR names another place"))
    })
}

/// A new file that only its owner can read.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

/// Only its owner can read it. What somebody else wrote is not ours to overwrite: it may be the way into a real cluster.
fn write_kubeconfig(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Runtime(format!("--kubeconfig-out {}: {error}", path.display()));
    let is_ours = fs::read_to_string(path).is_ok_and(|before| before.starts_with(OURS));
    let mut options = File::options();
    options.write(true).mode(0o600);
    let file = if is_ours { options.truncate(true).open(path) } else { options.create_new(true).open(path) };
    let mut file = match file {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let path = path.display();
            return Err(Failure::Usage(format!(
                "--kubeconfig-out {path}: is there already, and not from listwatch apiserver; remove it, or name another"
            )));
        }
        file => file.map_err(failed)?,
    };
    // A file that was there before kept its mode.
    file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    file.write_all(format!("{OURS}{text}").as_bytes()).map_err(failed)
}
