//! The part of an object that the path of a request names: the object, its status, its scale.

use crate::{
    kinds::{Kind, Part, scale_of},
    request::ResourcePath,
    status::StatusError,
};

/// Subresources of kube-apiserver that this server does not support. kubectl needs `pods/ephemeralcontainers` for `debug`.
const NOT_SERVED: [&str; 4] = ["nodes/proxy", "pods/proxy", "services/proxy", "pods/ephemeralcontainers"];

/// The part of the object that a path names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    Object(Part),
    /// The [`scale`](crate::verbs::scale) subresource.
    Scale,
}

impl Target {
    /// What the path of an object with this name addresses.
    pub(crate) fn of(kind: &Kind, path: &ResourcePath, name: &str) -> Result<Target, StatusError> {
        let Some(subresource) = path.subresource.as_deref() else { return Ok(Target::Object(Part::Main)) };
        if kind.subresources().contains(&subresource) {
            return Ok(match subresource {
                "scale" => Target::Scale,
                // The approval of a CertificateSigningRequest is a condition in its status.
                "status" | "approval" => Target::Object(Part::Status),
                "resize" => Target::Object(Part::Resize),
                _ => Target::Object(Part::Finalize),
            });
        }
        let whole = format!("{}/{subresource}", path.plural);
        Err(if kind.is_custom() {
            // The error names the object, even if only the subresource is missing.
            StatusError::not_found(kind, name)
        } else if NOT_SERVED.iter().any(|one| whole == *one || whole.starts_with(&format!("{one}/"))) {
            StatusError::not_served(&whole)
        } else {
            StatusError::no_such_resource()
        })
    }

    /// The part of the object that a write changes.
    pub(crate) fn part(self) -> Part {
        match self {
            Target::Object(part) => part,
            Target::Scale => Part::Main,
        }
    }

    /// The kind of the body, in the request and in the answer.
    pub(crate) fn sent(self, kind: &Kind) -> &Kind {
        match self {
            Target::Object(_) => kind,
            Target::Scale => &scale_of::KIND,
        }
    }
}
