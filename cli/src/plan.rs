//! `listwatch plan`: what `listwatch run` would write now.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use listwatch::{
    client::Client,
    plan::{Objects, Plan},
    runtime::Runtime,
    shutdown,
};
use listwatch_operators::{self as operators, BuiltIn};
use tracing::Level;

use super::{
    connection::ConnectionFlags,
    failure::{EXIT_USAGE, Failure, complain, reported},
    log::Log,
    run::{Which, chosen},
};

/// Show what listwatch run would write now, as diffs, and write nothing
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status, as kubectl diff: 0 there is nothing to write, 1 there is, 2 something is refused or could not be planned.\n\n\
    Writes are sent as dry runs, which need the permissions of real ones. The values of Secrets are hidden.\n\nExamples:\n  \
    listwatch plan mywebserver                     before a start or an upgrade of the operator\n  \
    listwatch plan -f web.yaml                     as if web.yaml was applied\n  \
    listwatch plan --as system:serviceaccount:mywebserver-system:mywebserver-operator mywebserver"
)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    which: Which,
    /// Objects to plan for, as if they were applied, instead of all in the cluster; - for standard input
    #[arg(short, long, value_name = "FILE")]
    filename: Option<PathBuf>,
    #[command(flatten)]
    of_operators: operators::Flags,
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    log: Log,
}

/// Returns the plan's exit code, also if nobody reads the plan to its end.
pub(super) fn main(args: PlanArgs) -> u8 {
    match made(args) {
        Ok(plan) => {
            let written = write!(io::stdout(), "{plan}").map_err(Failure::from);
            plan.problems.iter().for_each(|problem| complain(problem));
            plan.exit_code().max(reported(written))
        }
        // 1 is an answer: there is something to write.
        Err(failure) => reported(Err(failure)).max(EXIT_USAGE),
    }
}

fn made(args: PlanArgs) -> Result<Plan, Failure> {
    // The plan has the problems.
    args.log.start(Level::ERROR);
    let objects = args.filename.as_deref().map(Objects::read).transpose();
    let objects = objects.map_err(|problem| Failure::Usage(format!("--filename {problem}")))?;
    let mut namespaces = args.which.namespaces()?;
    let mut flags = args.of_operators;
    let operators = chosen(&args.which.operators);
    if operators == [BuiltIn::Copyrator] {
        flags.copyrator.runs_alone(&mut namespaces);
    }
    let client = Client::new(args.connection.config()?)?;
    let runtime = Runtime::new(client).namespaces(namespaces)?;
    let runtime = operators.into_iter().fold(runtime, |runtime, operator| operator.add_to(runtime, &flags));
    shutdown::run(|stop| async move {
        tokio::select! {
            plan = runtime.plan(objects) => Ok(plan),
            () = stop.requested() => Err(Failure::Usage("interrupted: the plan is incomplete".to_owned())),
        }
    })?
}
