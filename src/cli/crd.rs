//! `listwatch crd`: the custom resources that the operators act on, as YAML for `kubectl apply -f -`.

use std::io::{self, Write};

use super::Failure;
use crate::operators::mywebserver;

/// Print the CustomResourceDefinitions, for kubectl apply -f -
#[derive(Debug, clap::Args)]
pub(super) struct Crd {}

pub(super) fn main(_: &Crd) -> Result<(), Failure> {
    let yaml = yaml_serde::to_string(&mywebserver::crd::definition());
    let yaml = yaml.map_err(|error| Failure::Runtime(error.to_string()))?;
    Ok(io::stdout().write_all(yaml.as_bytes())?)
}
