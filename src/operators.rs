//! The operators in the binary: `listwatch run` runs them, `listwatch crd` prints their CRDs.
//!
//! To add an operator: its module; a variant of [`BuiltIn`], whose name is its name on the command line; and the arms of
//! the variant in the methods below. Its CRD, ClusterRole and samples are in a directory of its name, as those in
//! `manifests/mywebserver`.

pub mod crd;
pub mod mywebserver;

use serde_json::Value;

use crate::runtime::Runtime;

/// An operator in the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum BuiltIn {
    /// A MyWebserver becomes a Deployment and a Service
    Mywebserver,
}

impl BuiltIn {
    /// The CustomResourceDefinitions that the operator waits for.
    #[must_use]
    pub fn definitions(self) -> Vec<Value> {
        match self {
            BuiltIn::Mywebserver => vec![mywebserver::types::definition()],
        }
    }

    /// Adds the controllers of the operator.
    #[must_use]
    pub fn add_to(self, runtime: Runtime) -> Runtime {
        match self {
            BuiltIn::Mywebserver => runtime.controller(mywebserver::CONTROLLER, |setup| {
                mywebserver::controller(&setup.cluster, &setup.namespaces, setup.events)
            }),
        }
    }
}
