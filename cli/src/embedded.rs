//! The commands with an API server in this process: `listwatch demo`, `listwatch apiserver` and others, and `--demo` of others.
//!
//! A build without the feature `developer` has `not_embedded.rs` in place of this module.

mod apiserver;
mod bundle;
mod demo;
mod lens;
mod manifests;
mod new;
mod scorecard;
mod stage;
mod types;

use clap::Subcommand;

use super::{failure::Failure, log::Log};

pub(super) use self::stage::DemoFlag;

/// Lines of `listwatch --help`. The demo comes first.
pub(super) const EXAMPLES: &str = "  listwatch demo                        see it work, without a cluster\n  \
    listwatch apiserver                   an API server alone, for kubectl and for tests\n  \
    listwatch new NAME --group … --kind … write an operator of your own, with its tests\n  \
    listwatch types KIND                  print Rust types of a kind that others define\n  \
    listwatch scorecard … -- COMMAND      find the bugs of an operator in any language\n  \
    listwatch lens … -- COMMAND           see what an operator does, and why\n";
/// A line of `listwatch get --help`.
pub(super) const GET_EXAMPLE: &str = "  listwatch get namespaces --demo              without a cluster\n";
/// Lines of `listwatch watch --help`.
pub(super) const WATCH_EXAMPLE: &str = "  listwatch watch mws --demo | jq .type\n  \
    listwatch watch mws --demo --resource-version=1   410 Expired, in an answer 200\n";
/// The commands that this build lacks.
pub(super) const LEFT_OUT: [&str; 0] = [];

#[derive(Debug, Subcommand)]
pub(super) enum EmbeddedCommand {
    Demo(demo::DemoArgs),
    Apiserver(apiserver::ApiserverArgs),
    New(new::NewArgs),
    Types(Box<types::TypesArgs>),
    Bundle(Box<bundle::BundleArgs>),
    Scorecard(Box<scorecard::ScorecardArgs>),
    Lens(Box<lens::LensArgs>),
}

impl EmbeddedCommand {
    pub(super) fn main(self) -> Result<(), Failure> {
        match self {
            EmbeddedCommand::Demo(demo) => demo::main(demo),
            EmbeddedCommand::Apiserver(apiserver) => apiserver::main(apiserver),
            EmbeddedCommand::New(new) => new::main(new),
            EmbeddedCommand::Types(types) => types::main(*types),
            EmbeddedCommand::Bundle(bundle) => bundle::main(&bundle),
            EmbeddedCommand::Scorecard(scorecard) => scorecard::main(*scorecard),
            EmbeddedCommand::Lens(lens) => lens::main(*lens),
        }
    }
}

impl Log {
    /// Takes away one `-v`, for a command that itself prints more with the first one. Returns whether there was any.
    fn take_verbose(&mut self) -> bool {
        let is_verbose = self.verbose > 0;
        self.verbose = self.verbose.saturating_sub(1);
        is_verbose
    }

    /// Adds the debug lines of a target.
    fn add(&mut self, target: &'static str) {
        self.also = Some(target);
    }
}
