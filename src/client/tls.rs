//! TLS: configures the client with the certificates of server and client, from the kubeconfig or from files.
//!
//! Nothing in this file connects. [`Certificates`] are compared again and again with the files, which cert-manager or the
//! kubelet may replace while we run; a change of them makes new connections.

use std::{
    net::SocketAddr,
    sync::{Arc, Once},
};

use reqwest::{
    Certificate, ClientBuilder, Identity,
    dns::{Addrs, Name, Resolve, Resolving},
};
use tokio::net::lookup_host;

use super::config::{Config, Tls};

/// The contents of the certificate files.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Certificates {
    /// The certificate authorities that sign the server's certificate.
    authority: Option<Vec<u8>>,
    /// Client certificate and key.
    pub(super) identity: Option<Vec<u8>>,
}

impl Certificates {
    pub(super) fn read(tls: &Tls) -> Result<Certificates, String> {
        let authority = tls.authority.as_ref().map(|pem| pem.read()).transpose()?;
        let identity = match &tls.identity {
            Some((certificate, key)) => {
                let mut pem = certificate.read()?;
                pem.push(b'\n');
                pem.extend(key.read()?);
                Some(pem)
            }
            None => None,
        };
        Ok(Certificates { authority, identity })
    }

    /// Has a client use them.
    pub(super) fn configure(
        &self,
        config: &Config,
        mut builder: ClientBuilder,
    ) -> Result<ClientBuilder, String> {
        if config.tls.server_name.is_some() {
            let host = Arc::from(config.server.host_str().unwrap_or_default());
            builder = builder.dns_resolver(ServerAddress(host));
        }
        if config.tls.insecure {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        match (&self.authority, &config.tls.authority) {
            (Some(pem), Some(source)) => {
                let field = &source.field;
                let roots = Certificate::from_pem_bundle(pem).map_err(|_| format!("{field}: not PEM"))?;
                if roots.is_empty() {
                    return Err(format!("{field}: there is no certificate in it"));
                }
                builder = builder.tls_certs_only(roots);
            }
            // Plain HTTP needs no root certificates, so a machine without any will do.
            (None, _) if config.server.scheme() == "http" => builder = builder.tls_certs_only([]),
            (None, _) | (Some(_), None) => {}
        }
        if let Some(pem) = &self.identity {
            let field = match &config.tls.identity {
                Some((certificate, _)) => &certificate.field,
                None => "client certificate of the credential plugin",
            };
            // Without the cause, which could quote the key.
            let identity = Identity::from_pem(pem)
                .map_err(|_| format!("{field}: not a certificate and its key in PEM"))?;
            builder = builder.identity(identity);
        }
        Ok(builder)
    }
}

/// Chooses ring as the cryptography of rustls, once per process.
pub(super) fn install_crypto() {
    static ONCE: Once = Once::new();
    // An error means that another crate has chosen before, which is as good.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// Resolves every name to the address of the server. With `tls-server-name`, the URL has that name as its host, because
/// reqwest verifies the host of the URL and sends it as SNI. reqwest does not resolve IP addresses; the reader of the
/// kubeconfig refuses an IP address as `tls-server-name`.
struct ServerAddress(Arc<str>);

impl Resolve for ServerAddress {
    fn resolve(&self, _name: Name) -> Resolving {
        let host = Arc::clone(&self.0);
        Box::pin(async move {
            // In the URL, an IPv6 address has brackets.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let addresses: Vec<SocketAddr> = lookup_host((host, 0)).await?.collect();
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok::<Addrs, Box<dyn std::error::Error + Send + Sync>>(addresses)
        })
    }
}
