//! The webhooks of a process: where they are served, and the controller of their certificates.

use std::{
    future::ready,
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

#[cfg(feature = "testing")]
use tokio::task::JoinSet;
use url::{Position::BeforePath, Url};

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
    /// By which the API server calls, instead of the Service.
    url: Option<Url>,
}

impl OfRuntime {
    /// `url` may be empty.
    pub(super) fn at(
        address: Option<SocketAddr>,
        files: Option<PathBuf>,
        url: &str,
    ) -> Result<OfRuntime, RuntimeError> {
        let new = OfRuntime { address, files, ..OfRuntime::default() };
        if url.is_empty() { Ok(new) } else { new.called_at(url, "WEBHOOK_URL") }
    }

    fn called_at(self, url: &str, source: &str) -> Result<OfRuntime, RuntimeError> {
        let parsed = Url::parse(url).ok().filter(|parsed| {
            parsed.scheme() == "https" && parsed.username().is_empty() && &parsed[BeforePath..] == "/"
        });
        let wrong = || RuntimeError::Config(format!("{source}: {url:?} is not https://HOST[:PORT]"));
        Ok(OfRuntime { url: Some(parsed.ok_or_else(wrong)?), ..self })
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

    /// For an operator that runs outside of the cluster: writes this URL into its configurations and CRDs, so that the API server calls it
    /// there, and not by the Service. The certificate is also for this host. Without [`Runtime::webhook_bind_address`], the webhooks are
    /// served at the port of the URL.
    ///
    /// Fails if it is not `https://HOST[:PORT]`.
    pub fn webhook_url(self, url: &str) -> Result<Runtime, RuntimeError> {
        Ok(Runtime { webhooks: self.webhooks.called_at(url, "webhook_url")?, ..self })
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
    let OfRuntime { webhooks: Some(webhooks), address, files, url } = &runtime.webhooks else {
        return Ok(Box::pin(ready(())));
    };
    if files.is_some() && url.is_some() {
        let cause = "WEBHOOK_URL: not with WEBHOOK_CERT_DIR, whose caBundle is not the operator's";
        return Err(RuntimeError::Config(cause.to_owned()));
    }
    let port = url.as_ref().and_then(Url::port_or_known_default);
    let Some(address) = address.or(port.map(|port| (Ipv6Addr::UNSPECIFIED, port).into())) else {
        return Ok(Box::pin(ready(())));
    };
    let name = webhooks.name();
    let server = WebhookServer { address, files: files.clone(), url: url.clone() };
    let listening = server.listen(webhooks, cluster, stop).await;
    let (serving, watched) =
        listening.map_err(|cause| RuntimeError::Listen { endpoint: "webhooks", address, cause })?;
    if let Some(watched) = watched {
        runtime.add_controller(name, move |setup| controller(setup, &watched));
    }
    Ok(serving)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_url_is_a_host_for_a_certificate_of_the_operator() {
        let runtime = || Runtime::offline().expect("a runtime").webhooks(Webhooks::new("example.com/any"));
        for url in ["https://10.0.0.5:9443", "https://[::1]:9443/", "https://web.example.com"] {
            assert!(runtime().webhook_url(url).is_ok(), "{url}");
        }
        for url in ["10.0.0.5:9443", "http://a.b", "https://a.b/webhooks", "https://me@a.b", "https://a.b?c"]
        {
            let error = runtime().webhook_url(url).map(drop).expect_err(url).to_string();
            assert_eq!(error, format!("webhook_url: {url:?} is not https://HOST[:PORT]"));
        }
        let address = ([127, 0, 0, 1], 0).into();
        let both = runtime().webhook_bind_address(address, Some("certificates".into()));
        let both = both.webhook_url("https://a.b").expect("a URL");
        let error = both.run_until(ready(())).await.expect_err("an error").to_string();
        assert!(error.starts_with("WEBHOOK_URL: not with WEBHOOK_CERT_DIR"), "{error}");
    }
}
