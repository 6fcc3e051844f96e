//! No webhooks: without the feature `webhook`.

use std::{future::ready, net::SocketAddr, path::PathBuf};

use super::{Runtime, RuntimeError};
#[cfg(feature = "testing")]
use crate::client::{Client, Error};
use crate::{cluster::Cluster, manifests::WebhookInstallation, rbac::Permission, shutdown::Stop};

#[derive(Default)]
pub(super) struct OfRuntime;

impl OfRuntime {
    pub(super) fn at(_: Option<SocketAddr>, _: Option<PathBuf>, _: &str) -> Result<OfRuntime, RuntimeError> {
        Ok(OfRuntime)
    }

    pub(super) fn read_certificates(&mut self, _: Option<PathBuf>) {}

    #[cfg(feature = "testing")]
    pub(super) async fn serve_for(&self, _: &Client) -> Result<(), Error> {
        Ok(())
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
