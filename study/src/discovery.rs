//! Finds the path of a resource by the words that kubectl accepts. Nothing in this file does I/O.
//!
//! ```text
//! pods, po, pod                   by plural, short name, or singular
//! deploy.apps, deployments.v1.apps
//! GET /api and GET /apis, with Accept: application/json;…;as=APIGroupDiscoveryList
//! ```

use serde::Deserialize;

/// The media type of aggregated discovery: one answer for all groups. Since Kubernetes 1.30, and before that as v2beta1.
pub const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Most names of resources that an error suggests.
const NEAR_MAX: usize = 3;
/// A name is near if one letter in so many is wrong, missing or too many, or two neighbours have changed places.
const LETTERS_PER_TYPO: usize = 3;

/// The resources of every cluster, and ours: group/version, plural, singular, short names; `*` marks those without a
/// namespace. For `--curl`, which asks no server, and for shells.
const BUILT_IN: &str = "\
v1 pods pod po
v1 services service svc
v1 configmaps configmap cm
v1 secrets secret
v1 namespaces* namespace ns
v1 nodes* node no
v1 events event ev
v1 serviceaccounts serviceaccount sa
v1 persistentvolumeclaims persistentvolumeclaim pvc
v1 persistentvolumes* persistentvolume pv
v1 endpoints endpoints ep
v1 resourcequotas resourcequota quota
v1 limitranges limitrange limits
v1 replicationcontrollers replicationcontroller rc
apps/v1 deployments deployment deploy
apps/v1 replicasets replicaset rs
apps/v1 statefulsets statefulset sts
apps/v1 daemonsets daemonset ds
batch/v1 jobs job
batch/v1 cronjobs cronjob cj
autoscaling/v2 horizontalpodautoscalers horizontalpodautoscaler hpa
policy/v1 poddisruptionbudgets poddisruptionbudget pdb
networking.k8s.io/v1 ingresses ingress ing
networking.k8s.io/v1 networkpolicies networkpolicy netpol
discovery.k8s.io/v1 endpointslices endpointslice
coordination.k8s.io/v1 leases lease
storage.k8s.io/v1 storageclasses* storageclass sc
rbac.authorization.k8s.io/v1 roles role
rbac.authorization.k8s.io/v1 rolebindings rolebinding
rbac.authorization.k8s.io/v1 clusterroles* clusterrole
rbac.authorization.k8s.io/v1 clusterrolebindings* clusterrolebinding
apiextensions.k8s.io/v1 customresourcedefinitions* customresourcedefinition crd crds
k8sobjects.gsa.com/v2 mywebservers mywebserver mws myweb
flant.com/v1 copyrators copyrator copyr
cache.example.com/v1alpha1 memcacheds memcached
app.example.com/v1 databases database db
";

/// A resource that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
    /// Plural, singular, short names.
    pub names: Vec<String>,
    pub is_namespaced: bool,
}

impl ApiResource {
    /// `/apis/apps/v1/namespaces/default/deployments`.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        let namespace = namespace.filter(|_| self.is_namespaced);
        let namespace = namespace.map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
        format!("{root}/{}{namespace}/{}", self.version, self.plural)
    }

    /// `deployments.apps`.
    fn full_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether a word names it: `deploy`, `deploy.apps`, `deployments.v1.apps`, `services.v1`.
    fn is_called(&self, word: &str) -> bool {
        let (name, rest) = word.split_once('.').unwrap_or((word, ""));
        let is_it = self.names.iter().any(|known| known == name);
        let with_version = format!("{}.{}", self.version, self.group);
        // `services.v1`, and with an empty group `services.v1.`, as in kubectl.
        let is_version = rest.trim_end_matches('.') == with_version.trim_end_matches('.');
        is_it && (rest.is_empty() || rest == self.group || is_version)
    }
}

/// The plurals of the built-in resources, and then their short names.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    let plurals = BUILT_IN.lines().filter_map(|line| Some(line.split(' ').nth(1)?.trim_end_matches('*')));
    plurals.chain(BUILT_IN.lines().flat_map(|line| line.split(' ').skip(3)))
}

/// The resources that no server need be asked for.
pub fn built_in() -> Vec<ApiResource> {
    let kind = |line: &str| {
        let mut words = line.split(' ');
        let (version, plural) = (words.next()?, words.next()?);
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let name = plural.trim_end_matches('*');
        Some(ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: name.to_owned(),
            names: [name].into_iter().chain(words).map(str::to_owned).collect(),
            is_namespaced: name == plural,
        })
    };
    BUILT_IN.lines().filter_map(kind).collect()
}

/// The resource that a word names. The error lists near names.
pub fn find<'a>(kinds: &'a [ApiResource], word: &str) -> Result<&'a ApiResource, String> {
    let word = word.to_lowercase();
    if let Some(kind) = kinds.iter().find(|kind| kind.is_called(&word)) {
        return Ok(kind);
    }
    let name = word.split('.').next().unwrap_or_default();
    let typos = |known: &String| {
        let typos = strsim::damerau_levenshtein(known, name);
        // The beginning of a word is not a typo.
        if !name.is_empty() && known.starts_with(name) { 0 } else { typos }
    };
    let typos = |kind: &ApiResource| kind.names.iter().map(typos).min().unwrap_or(usize::MAX);
    let mut near: Vec<_> = kinds.iter().map(|kind| (typos(kind), kind.full_name())).collect();
    near.retain(|(typos, _)| *typos <= name.chars().count() / LETTERS_PER_TYPO);
    near.sort();
    near.dedup();
    let near: Vec<_> = near.into_iter().take(NEAR_MAX).map(|(_, name)| name).collect();
    let hint = if near.is_empty() {
        "listwatch get / lists the paths of the server".to_owned()
    } else {
        format!("near: {}", near.join(", "))
    };
    Err(format!("there is no resource {word:?}; {hint}"))
}

/// Decodes the answer to `GET /api` or `GET /apis`.
pub fn kinds(json: &[u8]) -> Result<Vec<ApiResource>, serde_json::Error> {
    let groups: Groups = serde_json::from_slice(json)?;
    let mut kinds = Vec::new();
    for group in groups.items {
        for version in group.versions {
            for found in version.resources {
                let mut names = vec![found.resource.clone(), found.singular_resource];
                names.extend(found.short_names);
                kinds.push(ApiResource {
                    group: group.metadata.name.clone(),
                    version: version.version.clone(),
                    plural: found.resource,
                    names,
                    is_namespaced: found.scope == "Namespaced",
                });
            }
        }
    }
    Ok(kinds)
}

#[derive(Deserialize)]
struct Groups {
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    /// The core group has no name, and so no metadata in v2beta1.
    #[serde(default)]
    metadata: Name,
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct Name {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    #[serde(default)]
    singular_resource: String,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    scope: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_found_by_each_of_its_names() {
        let kinds = built_in();
        let path = |word| find(&kinds, word).map(|kind| kind.path(Some("a")));
        for word in ["deployments", "Deployment", "deploy", "deploy.apps", "deployments.v1.apps"] {
            assert_eq!(path(word), Ok("/apis/apps/v1/namespaces/a/deployments".to_owned()), "{word}");
        }
        assert_eq!(path("svc.v1"), path("services.v1."));
        assert_eq!(path("ns"), Ok("/api/v1/namespaces".to_owned()));
        assert_eq!(
            path("deploy.batch"),
            Err("there is no resource \"deploy.batch\"; near: deployments.apps".to_owned())
        );
        for (word, near) in [
            ("xyz", "; listwatch get / lists the paths of the server"),
            ("", "; listwatch get / lists the paths of the server"),
            ("deplo", "; near: deployments.apps"),
            ("pdos", "; near: pods"),
            ("mw", "; near: mywebservers.k8sobjects.gsa.com"),
            ("webservers", "; near: mywebservers.k8sobjects.gsa.com"),
            ("endpointslcies", "; near: endpointslices.discovery.k8s.io"),
        ] {
            assert_eq!(path(word), Err(format!("there is no resource {word:?}{near}")));
        }
    }

    #[test]
    fn aggregated_discovery_names_the_resources_of_all_groups() {
        let json = br#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1",
            "resources":[{"resource":"deployments","scope":"Namespaced","singularResource":"deployment",
            "verbs":["list"],"shortNames":["deploy"]}]}]}]}"#;
        let kinds = kinds(json).expect("a list");
        assert_eq!(find(&kinds, "deploy"), find(&built_in(), "deploy"));
    }
}
