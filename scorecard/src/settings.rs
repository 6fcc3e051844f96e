//! What to test, and how.

use std::{fmt, time::Duration};

use serde_json::Value;

use super::sample_condition::SampleCondition;

/// How many checks to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Those that find most: `converges`, `quiet`, `restart-is-silent`, `repairs-drift`, `deletes-cleanly`, `crash-between-writes`.
    Quick,
    /// All checks but `restored-backup` and `stalled-watch`, which wait for long.
    Checks,
    /// All checks, with all their faults, such as a crash after each of the writes.
    Faults,
}

/// An operator, the objects that it serves, and how to judge it.
#[derive(Clone, Debug)]
pub struct Scorecard {
    /// The CRDs, and other objects that are there before the operator starts.
    pub crds: Vec<Value>,
    /// The custom resources, and the objects that they need.
    pub samples: Vec<Value>,
    /// The Roles and ClusterRoles that the operator is shipped with, and their bindings.
    pub rbac: Vec<Value>,
    /// The configurations of the operator's webhooks. Without any, it is asked not to serve them, by `ENABLE_WEBHOOKS=false`. A CRD may have a conversion
    /// webhook as well.
    pub webhooks: Vec<Value>,
    /// The manifests of a bundle for the Operator Lifecycle Manager.
    pub bundle: Vec<Value>,
    /// The program and its arguments. `{kubeconfig}` in them becomes the path of the kubeconfig, which is also in `KUBECONFIG`. With [`webhooks`](Self::webhooks),
    /// `{webhook-port}` becomes the port at which to serve them, 9443 without it, and `{webhook-cert-dir}` the directory with `tls.crt` and `tls.key`.
    /// Without a program, only the checks of files run.
    pub command: Vec<String>,
    /// The program of the version before, and its arguments, to test the upgrade from it.
    pub previous: Vec<String>,
    /// The program of another operator, and its arguments, to test both together.
    pub and: Vec<String>,
    /// Kinds of objects that may stay after the deletion: `PersistentVolumeClaim`.
    pub keep: Vec<String>,
    /// What is not compared, and may be written at any time: a `KIND`, or a field as `KIND:PATH`, such as `ConfigMap:.data.time`.
    pub ignore: Vec<String>,
    /// How many checks to run, if `only` names none.
    pub extent: Extent,
    /// The checks to run, by name. `crash-between-writes:create/services#1` is the check with this crash alone.
    pub only: Vec<String>,
    /// How many checks run at a time. Only one if two operators disturb each other, as with a fixed port.
    pub jobs: usize,
    /// Chooses the faults of a check that has too many for all.
    pub seed: u64,
    /// How long nothing may be written until the operator counts as settled, or three times its longest pause. A third of it, if it sleeps.
    pub settle: Duration,
    /// What each custom resource of the samples must have as well.
    pub settled: Option<SampleCondition>,
    /// How long an operator may take to settle, and to repair a difference.
    pub patience: Duration,
    /// How long a process may take until it lists or watches the kind of a sample.
    pub start: Duration,
}

impl Scorecard {
    /// Settings with the defaults.
    #[must_use]
    pub fn new(crds: Vec<Value>, samples: Vec<Value>, command: Vec<String>) -> Scorecard {
        Scorecard {
            crds,
            samples,
            rbac: Vec::new(),
            webhooks: Vec::new(),
            bundle: Vec::new(),
            command,
            previous: Vec::new(),
            and: Vec::new(),
            keep: Vec::new(),
            ignore: Vec::new(),
            extent: Extent::Checks,
            only: Vec::new(),
            jobs: 4,
            seed: 1,
            settle: Duration::from_secs(1),
            settled: None,
            patience: Duration::from_secs(30),
            start: Duration::from_secs(30),
        }
    }

    /// The faults of a check that `--only` names. None: all.
    pub(super) fn named_faults(&self, check: &str) -> Vec<&str> {
        if self.only.iter().any(|only| only == check) {
            return Vec::new();
        }
        self.only.iter().filter_map(|only| only.strip_prefix(check)?.strip_prefix(':')).collect()
    }

    /// An error if a path of `ignore` can match nothing.
    pub(super) fn validate_ignored_paths(&self) -> Result<(), CannotJudge> {
        for ignored in &self.ignore {
            let Some((_, path)) = ignored.split_once(':') else { continue };
            if !path.starts_with('.') || path.contains('[') {
                return Err(CannotJudge(format!(
                    "--ignore {ignored}: a path begins with a dot, and has the names of list items: .spec.containers.web.image"
                )));
            }
        }
        Ok(())
    }

    /// Whether to run a check. Only this extent and larger ones have it.
    pub(super) fn has(&self, check: &str, extent: Extent) -> bool {
        if !self.only.is_empty() {
            return self.only.iter().any(|only| only.split(':').next() == Some(check));
        }
        self.extent >= extent
    }
}

/// Why an operator cannot be judged: in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannotJudge(pub String);

impl fmt::Display for CannotJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CannotJudge {}
