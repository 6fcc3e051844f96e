//! No webhooks: without the feature `webhook`.

use std::{future::ready, net::SocketAddr};

use super::{Runtime, RuntimeError};
use crate::{cluster::Cluster, manifests::WebhookInstallation, rbac::Permission, shutdown::Stop};

#[derive(Default)]
pub(super) struct OfRuntime;

impl OfRuntime {
    pub(super) fn at(_: Option<SocketAddr>) -> OfRuntime {
        OfRuntime
    }

    pub(super) fn permissions(&self) -> Vec<Permission> {
        Vec::new()
    }
}

impl Runtime {
    pub(super) fn webhook_installation(&self) -> Option<WebhookInstallation> {
        None
    }
}

pub(super) async fn listen(
    _: &mut Runtime,
    _: &Cluster,
    _: Stop,
) -> Result<impl Future<Output = ()> + use<>, RuntimeError> {
    Ok(ready(()))
}
