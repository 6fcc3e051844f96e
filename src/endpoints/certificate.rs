//! The certificate of an endpoint: `tls.crt` and `tls.key` of a directory, or one that the process makes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::locked;

/// How long the files are used before they are compared again. cert-manager replaces them weeks before they expire.
const AGE_MAX: Duration = Duration::from_secs(10);

/// A certificate and its key, as they are now.
pub(crate) struct Certificate {
    directory: Option<PathBuf>,
    current: Mutex<InUse>,
}

struct InUse {
    pem: PemFiles,
    acceptor: TlsAcceptor,
    read: Instant,
}

#[derive(PartialEq)]
struct PemFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Certificate {
    pub(crate) fn new(directory: Option<&Path>) -> io::Result<Certificate> {
        let pem = match directory {
            Some(directory) => PemFiles::read(directory)?,
            None => PemFiles::generate()?,
        };
        let current = InUse { acceptor: pem.acceptor()?, pem, read: Instant::now() };
        Ok(Certificate { directory: directory.map(Path::to_owned), current: Mutex::new(current) })
    }

    /// For the next connection. Files that cannot be used, as in the middle of a change, are tried again.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = locked(&self.current);
        if let Some(directory) = &self.directory
            && current.read.elapsed() >= AGE_MAX
        {
            current.read = Instant::now();
            match PemFiles::read(directory).and_then(|pem| Ok((pem.acceptor()?, pem))) {
                Ok((_, pem)) if pem == current.pem => {}
                Ok((acceptor, pem)) => {
                    info!(directory = %directory.display(), "new certificate");
                    (current.acceptor, current.pem) = (acceptor, pem);
                }
                Err(error) => warn!(%error, "certificate not read, the last one is kept"),
            }
        }
        current.acceptor.clone()
    }

    /// The certificate of the next connection, in PEM.
    #[cfg(feature = "webhook")]
    pub(crate) fn pem(&self) -> Vec<u8> {
        self.acceptor();
        locked(&self.current).pem.certificate.clone()
    }
}

impl PemFiles {
    fn read(directory: &Path) -> io::Result<PemFiles> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        Ok(PemFiles { certificate: read("tls.crt")?, key: read("tls.key")? })
    }

    fn generate() -> io::Result<PemFiles> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
        Ok(PemFiles { certificate: made.cert.pem().into(), key: made.signing_key.serialize_pem().into() })
    }

    fn acceptor(&self) -> io::Result<TlsAcceptor> {
        acceptor(&self.certificate, &self.key)
    }
}

/// Serves TLS with a certificate and its key, in PEM.
pub(crate) fn acceptor(certificate: &[u8], key: &[u8]) -> io::Result<TlsAcceptor> {
    // Without the cause, which could quote the key.
    let wrong = |what: &str| io::Error::other(format!("{what} in PEM"));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|_| wrong("tls.crt is not a certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong("tls.key is not a private key"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| io::Error::other(format!("tls.crt and tls.key: {error}")))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::captured_log::CapturedLog;

    #[tokio::test(start_paused = true)]
    async fn a_new_certificate_is_used_within_ten_seconds_and_an_invalid_one_never() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &[u8]| fs::write(directory.path().join(name), text).expect("a file");
        let error = Certificate::new(Some(directory.path())).err().expect("no files").to_string();
        assert!(error.contains("tls.crt"), "{error}");
        let first = PemFiles::generate().expect("a certificate");
        write("tls.crt", &first.certificate);
        write("tls.key", b"no key");
        let error = Certificate::new(Some(directory.path())).err().expect("no key").to_string();
        assert!(error.contains("tls.key is not a private key"), "{error}");
        write("tls.key", &first.key);

        let certificate = Certificate::new(Some(directory.path())).expect("a certificate");
        let in_use = || {
            certificate.acceptor();
            locked(&certificate.current).pem.certificate.clone()
        };
        let second = PemFiles::generate().expect("a certificate");
        write("tls.crt", &second.certificate);
        let log = CapturedLog::start();
        advance(AGE_MAX).await;
        assert_eq!(in_use(), first.certificate, "the key is that of the first one");
        assert!(log.text().contains("certificate not read"), "{}", log.text());
        write("tls.key", &second.key);
        assert_eq!(in_use(), first.certificate, "not compared again yet");
        advance(AGE_MAX).await;
        assert_eq!(in_use(), second.certificate);
    }
}
