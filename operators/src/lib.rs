//! The operators in the binary: `listwatch run` runs them, `listwatch crd` prints their CRDs, and `listwatch rbac` their roles.
//!
//! To add an operator: its module; a variant of [`BuiltIn`], whose name is its name on the command line; the arms of the
//! variant in the methods below; and, if it has flags, a struct of them in its module and a field in [`Flags`]. Its
//! CRD, roles and samples are in a directory of its name, as those in `manifests/mywebserver`. For the chart, the directory has a
//! link in `manifests/chart/files`, and its name is in `values.schema.json`.
//!
//! ```text
//! mywebserver   a Deployment and a Service; each operator has its spec, status and CRD in `types`
//! memcached     a Deployment and a headless Service
//! database/     PostgreSQL: desired (its children), data (passwords and claims), scripts (the files in its Pods), deletion (its last backup)
//! copyrator/    copies: plan (which there should be), copy (one of them), pass (makes them), backoff, outcome, report, glob
//! pod_settings  what users may set in the Pods of each operator
//! ```

pub mod copyrator;
pub mod database;
pub mod memcached;
pub mod mywebserver;
pub mod pod_settings;
#[cfg(test)]
mod tests;

use listwatch::{
    manifests::roles_of_users,
    resource::{Key, ObjectMeta, Resource},
    runtime::Runtime,
};
use serde_json::{Value, json};

/// An operator in the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BuiltIn {
    /// A CopyratorRule copies ConfigMaps or Secrets to other namespaces
    Copyrator,
    /// A Database becomes PostgreSQL with replicas
    Database,
    /// A Memcached becomes a Deployment and a headless Service
    Memcached,
    /// A MyWebserver becomes a Deployment and a Service
    Mywebserver,
}

/// The flags of single operators. The name of a flag begins with the name of its operator.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Of the copyrator.
    #[command(flatten)]
    pub copyrator: copyrator::Settings,
    /// Of the Database operator.
    #[command(flatten)]
    pub database: database::DatabaseFlags,
    /// Of the Memcached operator.
    #[command(flatten)]
    pub memcached: memcached::MemcachedFlags,
}

/// The kind and key of an owner that an object does not name in its ownerReferences: the rule of a copy.
pub fn marked_owner(metadata: &ObjectMeta) -> Option<(&'static str, Key)> {
    let mark = copyrator::copy::Mark::of(metadata)?;
    Some((copyrator::CopyratorRule::KIND, mark.rule.clone()))
}

impl BuiltIn {
    /// The CustomResourceDefinitions that the operator waits for.
    #[must_use]
    pub fn definitions(self) -> Vec<Value> {
        match self {
            BuiltIn::Copyrator => vec![copyrator::types::definition()],
            BuiltIn::Database => vec![database::types::definition()],
            BuiltIn::Mywebserver => vec![mywebserver::types::definition()],
            BuiltIn::Memcached => vec![memcached::types::definition()],
        }
    }

    /// The roles for users of its kinds.
    #[must_use]
    pub fn roles_of_users(self) -> Vec<Value> {
        let mut roles: Vec<Value> =
            self.definitions().iter().flat_map(|one| roles_of_users(one, "")).collect();
        if self == BuiltIn::Copyrator {
            // A rule writes into other namespaces, in which its author may have no rights. So the writing roles are not part of `edit`.
            for role in roles.iter_mut().filter(|role| role["metadata"]["name"] != "copyrator-viewer") {
                role["metadata"] = json!({"name": role["metadata"]["name"]});
            }
        }
        roles
    }

    /// The name of its roles, its Deployment and its ServiceAccount.
    #[must_use]
    pub fn role(self) -> &'static str {
        match self {
            BuiltIn::Copyrator => "copyrator-operator",
            BuiltIn::Database => "database-operator",
            BuiltIn::Mywebserver => "mywebserver-operator",
            BuiltIn::Memcached => "memcached-operator",
        }
    }

    /// Whether several processes can share the objects ([`Runtime::shard`]). Several rules may copy to one place, and each must know all
    /// others to decide whose copy it has.
    #[must_use]
    pub fn can_be_divided(self) -> bool {
        match self {
            BuiltIn::Copyrator => false,
            BuiltIn::Database | BuiltIn::Memcached | BuiltIn::Mywebserver => true,
        }
    }

    /// Adds the controllers of the operator.
    #[must_use]
    pub fn add_to(self, runtime: Runtime, flags: &Flags) -> Runtime {
        match self {
            BuiltIn::Copyrator => {
                let settings = flags.copyrator.clone();
                runtime.controller(copyrator::CONTROLLER, |setup| copyrator::controller(setup, settings))
            }
            BuiltIn::Database => {
                let flags = flags.database.clone();
                runtime.controller(database::CONTROLLER, move |setup| database::controller(setup, &flags))
            }
            BuiltIn::Mywebserver => runtime.controller(mywebserver::CONTROLLER, mywebserver::controller),
            BuiltIn::Memcached => {
                let flags = flags.memcached.clone();
                runtime.controller(memcached::CONTROLLER, move |setup| memcached::controller(setup, &flags))
            }
        }
    }
}
