//! `listwatch crd`: the custom resources that the operators act on, as YAML for `kubectl apply -f -`.

use std::io::{self, Write};

use listwatch::manifests;
use listwatch_operators::BuiltIn;

use super::{failure::Failure, run::chosen};

/// Print the CustomResourceDefinitions, for kubectl apply -f -
#[derive(Debug, clap::Args)]
pub(super) struct CrdArgs {
    /// Operators whose CustomResourceDefinitions to print. Default: all
    #[arg(value_name = "OPERATOR")]
    operators: Vec<BuiltIn>,
}

pub(super) fn main(crd: &CrdArgs) -> Result<(), Failure> {
    let definitions: Vec<_> = chosen(&crd.operators).into_iter().flat_map(BuiltIn::definitions).collect();
    Ok(write!(io::stdout(), "{}", manifests::documents(&definitions))?)
}
