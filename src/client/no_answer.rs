//! Says why a request got no answer, in words for the person who can mend it: name, network, proxy or certificates.

use std::{error, io};

use rustls::CertificateError;
use url::Url;

use super::{config::Config, error::Cause};

/// The server, in words.
#[derive(Clone)]
pub(super) struct Where {
    /// `https://10.0.0.1:443 through the proxy p:3128 (cluster local in /home/…/.kube/config)`.
    pub(super) address: String,
    /// Who accepts connections, as far as we know.
    pub(super) peer: &'static str,
    /// Whose certificates are trusted.
    pub(super) trust: String,
}

impl Where {
    pub(super) fn of(config: &Config) -> Where {
        let address = config.server.as_str().trim_end_matches('/');
        let (way, peer) = match &config.proxy {
            Some(proxy) => (through(proxy), "the proxy"),
            None if config.excludes_proxy_by_server_name() => {
                let past = " past the proxy of the environment, because of tls-server-name";
                (past.to_owned(), "an API server")
            }
            // Unless NO_PROXY excludes the server.
            None if config.has_proxy_variable && !config.ignores_proxy_variables() => {
                (String::new(), "an API server, or the proxy of the environment,")
            }
            None => (String::new(), "an API server"),
        };
        let trust = match &config.tls.authority {
            Some(pem) => pem.field.clone(),
            None => "what this machine trusts".to_owned(),
        };
        Where { address: format!("{address}{way} ({})", config.origin), peer, trust }
    }
}

/// ` through the proxy HOST:PORT`, without the user and password that the URL may have.
pub(super) fn through(proxy: &Url) -> String {
    let host = proxy.host_str().unwrap_or_default();
    // The URL knows a default for http and https alone; the other schemes are SOCKS.
    let port = proxy.port_or_known_default().unwrap_or(1080);
    format!(" through the proxy {host}:{port}")
}

/// The cause of an error that is not an answer.
pub(super) fn broken(error: &reqwest::Error, server: &Where) -> Cause {
    let Where { address, peer, trust } = server;
    let unreachable = |why: &str| Cause::Unreachable(format!("{address}: {why}"));
    if let Some(tls) = find::<rustls::Error>(error) {
        return unreachable(&tls_trouble(tls, trust));
    }
    if error.is_dns() {
        return unreachable("the name does not resolve: check the server's address, and DNS");
    }
    // A TLS server answers plain HTTP with an alert, which does not read as HTTP.
    if address.starts_with("http://") && find::<hyper::Error>(error).is_some_and(hyper::Error::is_parse) {
        let why = "the server does not speak plain HTTP: should its address be https:// ?";
        return Cause::Lost(format!("{address}: {why}"));
    }
    let kind = find::<io::Error>(error).map(io::Error::kind);
    let deepest = match kind {
        // The libraries know a dozen ways to say so; one links to its manual.
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            "the peer closed it".to_owned()
        }
        Some(_) | None => deepest(error),
    };
    if !error.is_connect() {
        return Cause::Lost(format!("{address}: the connection broke: {deepest}"));
    }
    let is_late = kind == Some(io::ErrorKind::TimedOut) || error.is_timeout();
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => {
            unreachable(&format!("connection refused: does {peer} run there?"))
        }
        Some(_) | None if is_late => unreachable("no connection: check the address, the network, firewalls"),
        Some(_) | None => unreachable(&format!("no connection: {deepest}")),
    }
}

fn tls_trouble(error: &rustls::Error, trust: &str) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    match error {
        // An authority that was made anew keeps its name, so then it is the signature that does not fit.
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!(
                "certificate signed by an unknown authority: is {trust} that of this cluster, and up to date?"
            )
        }
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "certificate has expired: renew it on the server, or set this machine's clock".to_owned()
        }
        InvalidCertificate(CertificateError::NotValidForName) => {
            "certificate is for another name: use that in server or tls-server-name".to_owned()
        }
        InvalidCertificate(error @ CertificateError::NotValidForNameContext { .. }) => {
            format!("{error}: use one of those in server or tls-server-name")
        }
        InvalidCertificate(error) => format!("certificate not valid: {error}"),
        AlertReceived(alert) => {
            format!("TLS alert {alert:?}: does the server accept our client certificate?")
        }
        InvalidMessage(_) => "the server does not speak TLS: should its address be http:// ?".to_owned(),
        error => format!("TLS: {error}"),
    }
}

/// The first error of type `T` among the causes. [`io::Error`] hides what it wraps from `source()`.
fn find<'e, T: error::Error + 'static>(error: &'e (dyn error::Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn deepest(error: &(dyn error::Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'e>(
    error: &'e (dyn error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn error::Error + 'static)> {
    std::iter::successors(Some(error), |error| match error.downcast_ref::<io::Error>() {
        Some(io) if io.get_ref().is_some() => {
            io.get_ref().map(|inner| inner as &(dyn error::Error + 'static))
        }
        Some(_) | None => error.source(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_error_is_shown() {
        assert_eq!(deepest(&io::Error::other(io::Error::other("no route"))), "no route");
    }
}
