//! The certificate authorities and the certificate of the webhooks: what the Secret has, and when it is renewed.
//!
//! ```text
//! ca.crt     the authorities that the API server must trust, the newest first: this is the caBundle
//! ca.key     the key of the newest one
//! tls.crt    the certificate that the operator serves, of one of them
//! tls.key    its key
//! ```
//!
//! Both are renewed after two thirds of their life. A new authority comes to the others in `ca.crt`, and signs nothing until each caBundle has
//! it. So at each time, the API server trusts each certificate that a replica serves. Nothing in this file does I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Clocks of an API server and of the operator may differ by a day.
const SKEW: Duration = Duration::from_secs(25 * 60 * 60);
/// The authorities in one bundle. There are two for a third of their life, and more only after somebody has removed a key.
const AUTHORITIES_MAX: usize = 4;

/// How long certificates are valid, from their making on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    pub(super) authority: Duration,
    pub(super) certificate: Duration,
}

impl Default for Lives {
    fn default() -> Lives {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        Lives { authority: days(730), certificate: days(90) }
    }
}

/// What the Secret has. `Debug` shows no key.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Pki {
    /// In PEM, the newest first.
    authorities: Vec<String>,
    authority_key: String,
    pub(super) certificate: String,
    pub(super) key: String,
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pki").field("authorities", &self.authorities.len()).finish_non_exhaustive()
    }
}

impl Pki {
    /// From the data of a Secret. What is missing or not readable counts as absent.
    pub(super) fn read(data: &BTreeMap<String, String>) -> Pki {
        let text = |key: &str| {
            let bytes = data.get(key).and_then(|base64| STANDARD.decode(base64).ok());
            bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
        };
        const END: &str = "-----END CERTIFICATE-----\n";
        let authorities =
            text("ca.crt").split_inclusive(END).filter(|pem| der(pem).is_some()).map(str::to_owned).collect();
        Pki { authorities, authority_key: text("ca.key"), certificate: text("tls.crt"), key: text("tls.key") }
    }

    /// The data of a Secret.
    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let Pki { authority_key, certificate, key, .. } = self;
        let texts = [
            ("ca.crt", &self.bundle()),
            ("ca.key", authority_key),
            ("tls.crt", certificate),
            ("tls.key", key),
        ];
        texts.map(|(name, text)| (name.to_owned(), STANDARD.encode(text))).into()
    }

    /// The `caBundle`, in PEM.
    pub(super) fn bundle(&self) -> String {
        self.authorities.concat()
    }

    /// Whether an API server with this bundle trusts the certificate, for all of these names.
    pub(super) fn is_trusted_by(&self, bundle: &str, names: &BTreeSet<String>, now: SystemTime) -> bool {
        is_trusted(&self.certificate, bundle, names, now)
    }

    /// [`Pki::is_trusted_by`], whatever time it is.
    pub(super) fn is_of(&self, bundle: &str, names: &BTreeSet<String>) -> bool {
        validity(&self.certificate).is_some_and(|(from, _)| self.is_trusted_by(bundle, names, from + SKEW))
    }

    /// The newest authority, in PEM.
    pub(super) fn newest(&self) -> &str {
        self.authorities.first().map_or("", String::as_str)
    }

    /// What there should be now: the same, or something renewed. `newest_is_trusted`: each caBundle has the newest authority.
    pub(super) fn renewed(
        &self,
        names: &BTreeSet<String>,
        now: SystemTime,
        lives: Lives,
        newest_is_trusted: bool,
    ) -> Result<Pki, rcgen::Error> {
        let mut next = self.clone();
        next.authorities.retain(|pem| validity(pem).is_some_and(|(from, to)| from <= now && now < to));
        let key = KeyPair::from_pem(&next.authority_key).ok();
        let issuer = key.filter(|key| !is_due(next.newest(), now) && belongs(next.newest(), key));
        let is_new = issuer.is_none();
        let key = match issuer {
            Some(key) => key,
            None => {
                let (pem, key) = authority(now, lives.authority)?;
                next.authorities.insert(0, pem);
                next.authorities.truncate(AUTHORITIES_MAX);
                next.authority_key = key.serialize_pem();
                key
            }
        };
        let serves = next.is_trusted_by(&next.bundle(), names, now) && fits(&next.certificate, &next.key);
        let is_old = is_due(&next.certificate, now) || !next.is_trusted_by(next.newest(), names, now);
        if !serves || is_old && newest_is_trusted && !is_new {
            let issuer = Issuer::from_ca_cert_pem(next.newest(), key)?;
            (next.certificate, next.key) = certificate(&issuer, names, now, lives.certificate)?;
        }
        Ok(next)
    }

    /// When the next renewal is due.
    pub(super) fn due(&self) -> SystemTime {
        let all = [self.newest(), &self.certificate];
        all.iter().filter_map(|pem| due(pem)).min().unwrap_or(UNIX_EPOCH)
    }
}

/// When a certificate ends, in seconds since 1970. 0: it cannot be read.
pub(super) fn expires_secs(pem: &str) -> i64 {
    let ends = validity(pem).and_then(|(_, ends)| ends.duration_since(UNIX_EPOCH).ok());
    ends.unwrap_or_default().as_secs().try_into().unwrap_or_default()
}

fn authority(now: SystemTime, life: Duration) -> Result<(String, KeyPair), rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    let key = KeyPair::generate()?;
    // Each has a name of its own: by the name a verifier finds the issuer.
    let made = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    params.distinguished_name.push(DnType::CommonName, format!("webhook authority {made}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = ((now - SKEW).into(), (now + life).into());
    Ok((params.self_signed(&key)?.pem(), key))
}

fn certificate(
    issuer: &Issuer<'_, KeyPair>,
    names: &BTreeSet<String>,
    now: SystemTime,
    life: Duration,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    let key = KeyPair::generate()?;
    let name = names.first().map_or("webhook", String::as_str);
    // A common name has at most 64 characters; verifiers read the alternative names.
    params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (params.not_before, params.not_after) = ((now - SKEW).into(), (now + life).into());
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

fn der(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok()
}

fn parsed<T>(pem: &str, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let der = der(pem)?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Some(look(&certificate))
}

fn validity(pem: &str) -> Option<(SystemTime, SystemTime)> {
    let time = |secs: i64| UNIX_EPOCH + Duration::from_secs(secs.try_into().unwrap_or_default());
    parsed(pem, |certificate| {
        let validity = certificate.validity();
        (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()))
    })
}

/// When a certificate is renewed: after two thirds of the life that it had when it was made.
fn due(pem: &str) -> Option<SystemTime> {
    let (from, to) = validity(pem)?;
    let life = to.duration_since(from + SKEW).unwrap_or_default();
    Some(to - life / 3)
}

fn is_due(pem: &str, now: SystemTime) -> bool {
    due(pem).is_none_or(|due| due <= now)
}

/// Whether the key of an authority is the one of its certificate.
fn belongs(pem: &str, key: &KeyPair) -> bool {
    use rcgen::PublicKeyData;
    parsed(pem, |certificate| certificate.public_key().raw == key.subject_public_key_info())
        .unwrap_or_default()
}

fn fits(pem: &str, key: &str) -> bool {
    KeyPair::from_pem(key).is_ok_and(|key| belongs(pem, &key))
}

/// Whether a client with these authorities trusts a certificate, for all of these names.
fn is_trusted(certificate: &str, authorities: &str, names: &BTreeSet<String>, now: SystemTime) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        CertificateDer::pem_slice_iter(authorities.as_bytes()).filter_map(Result::ok),
    );
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider())).build();
    let (Ok(verifier), Some(certificate)) = (verifier, der(certificate)) else { return false };
    let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    names.iter().all(|name| {
        let name = ServerName::try_from(&**name);
        name.is_ok_and(|name| verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn names() -> BTreeSet<String> {
        ["sites-webhook.default.svc".to_owned(), "127.0.0.1".to_owned()].into()
    }

    fn start() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn renewed(pki: &Pki, now: SystemTime, newest_is_trusted: bool) -> Pki {
        pki.renewed(&names(), now, Lives::default(), newest_is_trusted).expect("certificates")
    }

    #[test]
    fn the_secret_has_all_of_it() {
        let pki = renewed(&Pki::default(), start(), false);
        assert!(pki.is_trusted_by(&pki.bundle(), &names(), start()));
        assert_eq!(Pki::read(&pki.data()), pki);
        assert_eq!(renewed(&pki, start() + HOUR, true), pki);
        assert_eq!(format!("{pki:?}"), "Pki { authorities: 1, .. }");
    }

    /// Four years of rotations. Two replicas and two API servers: one of each is half a day behind, and clocks differ by a day.
    #[test]
    fn at_each_time_each_api_server_trusts_what_each_replica_serves() {
        let mut stored = renewed(&Pki::default(), start(), false);
        let mut bundles = [stored.bundle(), stored.bundle()];
        let mut served = [stored.clone(), stored.clone()];
        let (mut authorities, mut certificates) = (BTreeSet::new(), BTreeSet::new());
        let mut has_new_bundle_since = start();
        let mut now = start();
        while now < start() + HOUR * 24 * 365 * 4 {
            now += HOUR * 12;
            bundles = [bundles[1].clone(), stored.bundle()];
            served = [served[1].clone(), stored.clone()];
            if !bundles.iter().all(|bundle| bundle.contains(stored.newest())) {
                has_new_bundle_since = now;
            }
            stored = renewed(&stored, now, now > has_new_bundle_since);
            authorities.insert(stored.newest().to_owned());
            certificates.insert(stored.certificate.clone());
            for (bundle, pki) in bundles.iter().flat_map(|bundle| served.iter().map(move |pki| (bundle, pki)))
            {
                for clock in [now - HOUR * 24, now + HOUR * 24] {
                    assert!(pki.is_trusted_by(bundle, &names(), clock), "{now:?}");
                }
            }
            assert!(stored.authorities.len() <= 2);
        }
        // Each after two thirds of 730 and of 90 days, and one certificate more for each new authority.
        assert_eq!((authorities.len(), certificates.len()), (3, 27));
    }

    #[test]
    fn what_somebody_has_removed_or_replaced_is_made_again_and_what_serves_stays_until_the_new_is_trusted() {
        let good = renewed(&Pki::default(), start(), false);
        let other = renewed(&Pki::default(), start() + HOUR, false);
        let now = start() + HOUR;
        let without_key = Pki { authority_key: String::new(), ..good.clone() };
        let foreign_key = Pki { authority_key: other.authority_key.clone(), ..good.clone() };
        for broken in [without_key, foreign_key] {
            let mended = renewed(&broken, now, true);
            assert_eq!(mended.certificate, good.certificate);
            assert_eq!(mended.authorities.len(), 2);
            let later = renewed(&mended, now + HOUR, false);
            assert_eq!(later, mended);
            let later = renewed(&mended, now + HOUR, true);
            assert!(later.is_trusted_by(later.newest(), &names(), now));
        }
        // Nobody can use what there is.
        let no_key = Pki { key: String::new(), ..good.clone() };
        let other_key = Pki { key: other.key.clone(), ..good.clone() };
        let foreign = Pki {
            authorities: other.authorities.clone(),
            authority_key: other.authority_key.clone(),
            ..good.clone()
        };
        let other_name = good.renewed(&["web.default.svc".to_owned()].into(), now, Lives::default(), true);
        let other_name = other_name.expect("a certificate");
        for broken in
            [no_key, other_key, foreign, other_name, Pki { certificate: "text".to_owned(), ..good.clone() }]
        {
            let mended = renewed(&broken, now, false);
            assert!(
                mended.is_trusted_by(&mended.bundle(), &names(), now)
                    && fits(&mended.certificate, &mended.key)
            );
            assert_eq!(mended.authorities, broken.authorities);
        }
        // Somebody has set the clock a year ahead, and back again.
        let ahead = renewed(&good, now + HOUR * 24 * 365, true);
        assert!(ahead.is_trusted_by(good.newest(), &names(), now + HOUR * 24 * 365));
        assert!(renewed(&ahead, now, true).is_trusted_by(good.newest(), &names(), now));
        let expired = renewed(&good, now + Lives::default().authority, false);
        assert_eq!(expired.authorities.len(), 1);
        assert!(!expired.bundle().contains(good.newest()));
    }
}
