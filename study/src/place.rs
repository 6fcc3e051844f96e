//! Paths of the API, in parts. Nothing in this file does I/O.

/// A path of the API of objects: `/apis/apps/v1/namespaces/default/deployments/web/status`.
#[derive(Default)]
pub struct Place<'a> {
    /// With group and version: `apis`, `apps`, `v1`, `deployments`. Empty for what curl wrote, whose path is not known.
    pub resource: Vec<&'a str>,
    pub namespace: Option<&'a str>,
    /// `None`: the path of a collection.
    pub name: Option<&'a str>,
    pub subresource: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// `None`: another path, such as `/healthz`.
    pub fn of(path: &'a str) -> Option<Place<'a>> {
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        let root = match parts.first() {
            None => return Some(Place { resource: parts, ..Place::default() }),
            Some(&"api") => 2,
            Some(&"apis") => 3,
            Some(_) => return None,
        };
        let (group, rest) = parts.split_at_checked(root)?;
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            all => (None, all),
        };
        let resource = [group, rest.get(..1)?].concat();
        let part = |index: usize| rest.get(index).copied();
        Some(Place { resource, namespace, name: part(1), subresource: part(2) })
    }

    /// `deployments`. Empty for what curl wrote.
    pub fn plural(&self) -> &'a str {
        self.resource.last().copied().unwrap_or_default()
    }
}
