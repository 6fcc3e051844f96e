//! In place of `embedded.rs` in a build without the feature `developer`: no such commands, and no `--demo`.

use clap::{Args, Subcommand};
use listwatch::client::Config;

use super::failure::Failure;

pub(super) const EXAMPLES: &str = "";
pub(super) const GET_EXAMPLE: &str = "";
pub(super) const WATCH_EXAMPLE: &str = "";
/// The commands that this build lacks.
pub(super) const LEFT_OUT: [&str; 7] = ["demo", "apiserver", "new", "types", "bundle", "scorecard", "lens"];

#[derive(Debug, Subcommand)]
pub(super) enum EmbeddedCommand {}

impl EmbeddedCommand {
    pub(super) fn main(self) -> Result<(), Failure> {
        match self {}
    }
}

#[derive(Args, Clone, Debug)]
pub(super) struct DemoFlag {}

impl DemoFlag {
    pub(super) async fn stage(&self) -> Result<Option<DemoServer>, Failure> {
        Ok(None)
    }
}

/// There is none.
pub(super) enum DemoServer {}

impl DemoServer {
    pub(super) fn config(&self) -> Result<Config, Failure> {
        match *self {}
    }

    pub(super) async fn stop(self) {
        match self {}
    }
}
