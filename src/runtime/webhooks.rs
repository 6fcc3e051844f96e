//! The webhooks of a process: where they are served, and the controller of their certificates.

use std::{future::ready, net::SocketAddr, path::PathBuf, sync::Arc};

#[cfg(feature = "testing")]
use tokio::task::JoinSet;

use super::{Runtime, RuntimeError};
#[cfg(feature = "testing")]
use crate::client::{Client, Error};
use crate::{
    cluster::Cluster,
    manifests::WebhookInstallation,
    rbac::Permission,
    shutdown::Stop,
    webhook::{Serving, Watched, WebhookServer, Webhooks, controller},
};

#[derive(Default)]
pub(super) struct OfRuntime {
    webhooks: Option<Arc<Webhooks>>,
    address: Option<SocketAddr>,
    /// A directory with `tls.crt` and `tls.key`. `None`: the operator looks after a Secret.
    files: Option<PathBuf>,
}

impl OfRuntime {
    pub(super) fn at(address: Option<SocketAddr>, files: Option<PathBuf>) -> OfRuntime {
        OfRuntime { webhooks: None, address, files }
    }

    /// Takes the certificate from this directory, if any.
    pub(super) fn read_certificates(&mut self, files: Option<PathBuf>) {
        self.files = files;
    }

    /// Serves on loopback, for an API server of this machine. Dropped: ended.
    #[cfg(feature = "testing")]
    pub(super) async fn serve_for(&self, user: &Client) -> Result<JoinSet<()>, Error> {
        match &self.webhooks {
            Some(webhooks) => crate::testing::serve(webhooks, user).await,
            None => Ok(JoinSet::new()),
        }
    }

    pub(super) fn permissions(&self) -> Vec<Permission> {
        match &self.webhooks {
            Some(webhooks) if self.files.is_none() => Watched::permissions(webhooks),
            Some(_) | None => Vec::new(),
        }
    }
}

impl Runtime {
    /// Serves webhooks, at the address of [`Runtime::webhook_bind_address`]. A controller looks after their certificates.
    #[must_use]
    pub fn webhooks(mut self, webhooks: Webhooks) -> Runtime {
        self.webhooks.webhooks = Some(Arc::new(webhooks));
        self
    }

    /// Where the webhooks are served. `files` is a directory with `tls.crt` and `tls.key`, which are read again when they change, as
    /// cert-manager writes them; without it, the operator makes its certificates.
    #[must_use]
    pub fn webhook_bind_address(mut self, address: SocketAddr, files: Option<PathBuf>) -> Runtime {
        self.webhooks = OfRuntime { address: Some(address), files, ..self.webhooks };
        self
    }

    pub(super) fn webhook_installation(&self) -> Option<WebhookInstallation> {
        self.webhooks.webhooks.as_ref().map(|webhooks| webhooks.installation())
    }
}

/// Listens, and adds the controller of the certificates. Returns the future that serves.
pub(super) async fn listen(
    runtime: &mut Runtime,
    cluster: &Cluster,
    stop: Stop,
) -> Result<Serving, RuntimeError> {
    let OfRuntime { webhooks: Some(webhooks), address: Some(address), files } = &runtime.webhooks else {
        return Ok(Box::pin(ready(())));
    };
    let (name, address) = (webhooks.name(), *address);
    let server = WebhookServer { address, files: files.clone() };
    let listening = server.listen(webhooks, cluster, stop).await;
    let (serving, watched) =
        listening.map_err(|cause| RuntimeError::Listen { endpoint: "webhooks", address, cause })?;
    if let Some(watched) = watched {
        runtime.add_controller(name, move |setup| controller(setup, &watched));
    }
    Ok(serving)
}
