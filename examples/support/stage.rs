//! What the examples stand on: a cluster, and a way to show objects and events in one line each.
//!
//! By default the cluster is an API server in this process. `--kubeconfig FILE` or `--context NAME` chooses another.

use std::{
    error::Error,
    io::{self, ErrorKind::BrokenPipe},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, builder::NonEmptyStringValueParser};
use listwatch::{
    apiserver::{self, ApiServer},
    client::{Body, Client, Config, Env, Options},
    watch::decode::Lines,
};
use serde_json::Value;

/// Runs against an API server in this process, or against the cluster that a flag chooses
#[derive(Parser)]
struct Flags {
    /// kubeconfig file to use, with its current context
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context to use, of --kubeconfig, $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    context: Option<String>,
}

/// `println!`, for an output that may be closed at any time, as by `| head -1`.
macro_rules! say {
    ($($text:tt)*) => { std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($text)*)))? };
}
pub(crate) use say;

/// The result of an example.
pub(crate) type Told = Result<(), Box<dyn Error>>;

/// Connects, tells the story, and turns its result into an exit code.
pub(crate) fn main(story: impl AsyncFnOnce(Client) -> Told) -> ExitCode {
    let flags = Flags::parse();
    let told = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into);
    match told.and_then(|runtime| runtime.block_on(tell(flags, story))) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn tell(Flags { kubeconfig, context }: Flags, story: impl AsyncFnOnce(Client) -> Told) -> Told {
    if kubeconfig.is_some() || context.is_some() {
        let options = Options { kubeconfig, context, ..Options::default() };
        let client = Client::new(Config::load(&options, &Env::from_process())?)?;
        say!("# {} as {}\n", client.server(), client.user());
        return story(client).await;
    }
    let server = ApiServer::start(apiserver::Options::default()).await?;
    say!("# An API server in this process; --kubeconfig FILE or --context NAME chooses another.\n");
    let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?;
    story(Client::new(config)?).await
}

/// Shows the events of a watch until the server ends it.
#[allow(dead_code, reason = "not every example watches")]
pub(crate) async fn show(mut body: Body) -> Told {
    let mut lines = Lines::default();
    while let Some(chunk) = body.chunk().await? {
        lines.push(&chunk);
        while let Ok(Some(line)) = lines.next_line() {
            let event: Value = serde_json::from_slice(line)?;
            say!(r#"  {{"type":{},"object":{{{},…}}}}"#, event["type"], shorten(&event["object"]));
        }
    }
    Ok(())
}

/// `"metadata":{"name":"web","resourceVersion":"7",…}`: what the examples are about.
pub(crate) fn shorten(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        r#""metadata":{{"name":{},"resourceVersion":{},…}}"#,
        metadata["name"], metadata["resourceVersion"]
    )
}
