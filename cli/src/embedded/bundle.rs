//! `listwatch bundle`: a bundle for the Operator Lifecycle Manager. It is not part of a production build, because only developers need it.

use std::io::{self, Write};

use listwatch::bundle::{self, BundleFlags};
use listwatch_operators::BuiltIn;

use crate::{failure::Failure, manifests::installation};

/// Write a bundle of an operator for the Operator Lifecycle Manager
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    listwatch bundle mywebserver --version 0.1.0 --image registry.example.com/listwatch:0.1.0\n  \
    docker build --file bundle/bundle.Dockerfile --tag registry.example.com/mywebserver-bundle:0.1.0 bundle")]
pub(in super::super) struct BundleArgs {
    /// The operator
    #[arg(value_name = "OPERATOR")]
    operator: BuiltIn,
    #[command(flatten)]
    flags: BundleFlags,
}

pub(super) fn main(args: &BundleArgs) -> Result<(), Failure> {
    let installation = installation(args.operator, args.flags.installation())?;
    let written =
        bundle::write(&installation, &args.flags, samples(args.operator)).map_err(Failure::Usage)?;
    Ok(io::stdout().write_all(written.as_bytes())?)
}

/// At least one for each served version.
fn samples(operator: BuiltIn) -> &'static [&'static str] {
    macro_rules! sample {
        ($path:literal) => {
            include_str!(concat!("../../../manifests/", $path))
        };
    }
    match operator {
        // Not the rule for a Secret, which needs another flag of the operator.
        BuiltIn::Copyrator => &[sample!("copyrator/samples/main-rule.yaml")],
        BuiltIn::Database => &[
            sample!("database/samples/database.yaml"),
            sample!("database/samples/backup.yaml"),
            sample!("database/samples/restore.yaml"),
        ],
        BuiltIn::Memcached => &[sample!("memcached/samples/memcached.yaml")],
        BuiltIn::Mywebserver => &[
            sample!("mywebserver/samples/mywebserver-v1.yaml"),
            sample!("mywebserver/samples/mywebserver-v2.yaml"),
        ],
    }
}
