//! The certificates that a `caBundle` trusts. As in Go, one of them may be the certificate of the webhook itself, which envtest writes
//! there.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

#[derive(Debug)]
pub(super) struct Trust {
    bundle: Vec<CertificateDer<'static>>,
    by_ca: Arc<WebPkiServerVerifier>,
}

impl Trust {
    /// Fails if the bundle has no certificates, or one that cannot be read.
    pub(super) fn new(
        bundle: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Trust, String> {
        let mut roots = RootCertStore::empty();
        for certificate in &bundle {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let by_ca = builder.build().map_err(|error| error.to_string())?;
        Ok(Trust { bundle, by_ca })
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.bundle.contains(end_entity) {
            return self.by_ca.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        // Unlike Go, this does not check its dates.
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_ca.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_ca.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_ca.supported_verify_schemes()
    }
}
