//! `listwatch crd`: the custom resources that the operators act on, as YAML for `kubectl apply -f -`.

use std::io::{self, Write};

use super::{failure::Failure, run::chosen};
use crate::operators::BuiltIn;

/// Print the CustomResourceDefinitions, for kubectl apply -f -
#[derive(Debug, clap::Args)]
pub(super) struct CrdArgs {
    /// Operators whose CustomResourceDefinitions to print. Default: all
    #[arg(value_name = "OPERATOR")]
    operators: Vec<BuiltIn>,
}

pub(super) fn main(crd: &CrdArgs) -> Result<(), Failure> {
    let definitions = chosen(&crd.operators).into_iter().flat_map(BuiltIn::definitions);
    for (index, definition) in definitions.enumerate() {
        let yaml = yaml_serde::to_string(&definition);
        let yaml = yaml.map_err(|error| Failure::Runtime(error.to_string()))?;
        let separator = if index == 0 { "" } else { "---\n" };
        write!(io::stdout(), "{separator}{yaml}")?;
    }
    Ok(())
}
