//! The webhooks of a process: where they are served, and the controller of their certificates.

use std::{env, future::ready, net::SocketAddr, path::PathBuf, sync::Arc};

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
    server: Option<WebhookServer>,
}

impl OfRuntime {
    /// At the address of the environment.
    pub(super) fn at(address: Option<SocketAddr>) -> OfRuntime {
        let files =
            env::var_os("WEBHOOK_CERT_DIR").filter(|directory| !directory.is_empty()).map(PathBuf::from);
        OfRuntime { webhooks: None, server: address.map(|address| WebhookServer { address, files }) }
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
        self.webhooks.as_ref().map(|webhooks| Watched::permissions(webhooks)).unwrap_or_default()
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
        self.webhooks.server = Some(WebhookServer { address, files });
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
    let (Some(webhooks), Some(server)) = (&runtime.webhooks.webhooks, &runtime.webhooks.server) else {
        return Ok(Box::pin(ready(())));
    };
    let (name, address) = (webhooks.name(), server.address);
    let listening = server.listen(webhooks, cluster, stop).await;
    let (serving, watched) =
        listening.map_err(|cause| RuntimeError::Listen { endpoint: "webhooks", address, cause })?;
    if let Some(watched) = watched {
        runtime.add_controller(name, move |setup| controller(setup, &watched));
    }
    Ok(serving)
}
