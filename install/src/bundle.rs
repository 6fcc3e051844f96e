//! A bundle for the [Operator Lifecycle Manager](https://olm.operatorframework.io/docs/tasks/creating-operator-bundle/): what a catalog
//! shows of an operator, and what OLM installs.
//!
//! ```text
//! manifests/NAME.clusterserviceversion.yaml   its Deployment and permissions, its kinds with their fields, examples, icon, links
//! manifests/GROUP_PLURAL.yaml                 each CustomResourceDefinition
//! manifests/NAME_poddisruptionbudget.yaml
//! metadata/annotations.yaml                   package and channels
//! tests/scorecard/config.yaml                 for `operator-sdk scorecard`
//! bundle.Dockerfile                           the image of the bundle
//! ```
//!
//! All of it follows from the [`Installation`] but for the [`BundleFlags`]. OLM gives the operator the namespaces to watch in an annotation of
//! its Pod, and makes Roles there or, for all namespaces, ClusterRoles. For webhooks, it makes the Service, the certificate and the
//! configurations.

use std::{fs, path::PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use semver::Version;
use serde_json::{Value, json};

use crate::{
    manifests::{Installation, InstallationFlags, WEBHOOK_PORT},
    rbac::{self, Permission, Reach, Verb},
};

/// Stands for the namespaces to watch, in an [`Installation`] whose bundle is written.
const TARGET_NAMESPACE: &str = "olm-targets";
/// Where OLM mounts `tls.crt` and `tls.key` of the certificate that it makes for webhooks.
pub const CERTIFICATE_DIR: &str = "/tmp/k8s-webhook-server/serving-certs";

/// The oldest Kubernetes that the library supports: README.
const KUBERNETES_MIN: &str = "1.33.0";
/// Longest value of a label.
const LABEL_MAX: usize = 63;
/// <https://sdk.operatorframework.io/docs/testing-operators/scorecard/>.
const SCORECARD_IMAGE: &str = "quay.io/operator-framework/scorecard-test:v1.41.1";
const SCORECARD_TESTS: [(&str, &str, &str); 6] = [
    ("basic", "basic-check-spec", "basic-check-spec-test"),
    ("olm", "olm-bundle-validation", "olm-bundle-validation-test"),
    ("olm", "olm-crds-have-validation", "olm-crds-have-validation-test"),
    ("olm", "olm-crds-have-resources", "olm-crds-have-resources-test"),
    ("olm", "olm-spec-descriptors", "olm-spec-descriptors-test"),
    ("olm", "olm-status-descriptors", "olm-status-descriptors-test"),
];
/// The formats of an icon that catalogs show, by the end of a file's name.
const ICONS: [(&str, &str); 5] = [
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
];
/// Prefix of the hints for the forms of a console.
const HINT: &str = "urn:alm:descriptor:com.tectonic.ui:";

/// What a bundle says that the code does not.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct BundleFlags {
    /// Version of the operator, such as 0.1.0
    #[arg(long, value_name = "VERSION")]
    pub version: String,
    /// Image of its Pods, with a tag or a digest
    #[arg(long, value_name = "IMAGE")]
    pub image: String,
    /// Directory to write. Default: bundle
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Overwrite the files of an earlier bundle there
    #[arg(long = "overwrite")]
    pub overwrites: bool,
    /// File with examples of the kinds; may be repeated
    #[arg(long = "sample", value_name = "FILE")]
    pub samples: Vec<PathBuf>,
    /// Picture for catalogs: .svg, .png, .jpg or .gif. Default: a letter
    #[arg(long, value_name = "FILE")]
    pub icon: Option<PathBuf>,
    /// Page about the operator, such as Source=https://…; may be repeated
    #[arg(long = "link", value_name = "NAME=URL")]
    pub links: Vec<String>,
    /// Who publishes it. Default: the domain of its kinds
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Channel of the catalog; may be repeated, the default one first. Default: stable
    #[arg(long = "channel", value_name = "NAME")]
    pub channels: Vec<String>,
    /// Version that this one replaces
    #[arg(long, value_name = "VERSION")]
    pub replaces: Option<String>,
}

impl BundleFlags {
    /// What a bundle installs.
    #[must_use]
    pub fn installation(&self) -> InstallationFlags {
        let watched = vec![TARGET_NAMESPACE.to_owned()];
        InstallationFlags { image: Some(self.image.clone()), watched, ..InstallationFlags::default() }
    }
}

/// Writes the bundle of an operator, and returns what to do next. The operator has the flags of [`BundleFlags::installation`], and its
/// certificate in [`CERTIFICATE_DIR`]. `samples` are texts in YAML, besides
/// the samples of the flags. Does not overwrite a file unless the flags say so.
pub fn write(installation: &Installation, flags: &BundleFlags, samples: &[&str]) -> Result<String, String> {
    let dir = flags.output.clone().unwrap_or_else(|| "bundle".into());
    let files = files(installation, flags, samples)?;
    let exists = |file: &String| dir.join(file).exists();
    if let Some((file, _)) = files.iter().find(|(file, _)| exists(file)).filter(|_| !flags.overwrites) {
        return Err(format!(
            "{} exists: choose another directory with --output, or give --overwrite",
            dir.join(file).display()
        ));
    }
    let mut done = String::new();
    for (file, text) in &files {
        let path = dir.join(file);
        let verb = if exists(file) { "overwritten" } else { "written" };
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, text)).map_err(|error| format!("{}: {error}", path.display()))?;
        done += &format!("{verb}: {}\n", path.display());
    }
    let dir = dir.display();
    Ok(format!("{done}next: docker build --file {dir}/bundle.Dockerfile --tag BUNDLE_IMAGE {dir}\n"))
}

/// The files of the bundle, and their texts.
fn files(
    installation: &Installation,
    flags: &BundleFlags,
    samples: &[&str],
) -> Result<Vec<(String, String)>, String> {
    let name = &installation.name;
    let mut installation = installation.clone();
    if let Some(webhooks) = &mut installation.webhooks {
        // The Service that OLM makes.
        webhooks.name = format!("{name}-service");
    }
    let installation = &installation;
    let version =
        ClusterServiceVersion { installation, flags, examples: examples(installation, flags, samples)? };
    let mut files = vec![(
        format!("manifests/{name}.clusterserviceversion.yaml"),
        listwatch_yaml::write(&version.object()?),
    )];
    for definition in &installation.definitions {
        let spec = &definition["spec"];
        let file = format!("manifests/{}_{}.yaml", text(&spec["group"]), text(&spec["names"]["plural"]));
        // OLM writes the conversion after the definition: in an upgrade, a definition without one would lose fields meanwhile.
        files.push((file, listwatch_yaml::write(&installation.converting(definition))));
    }
    let mut budget = version.object_of("PodDisruptionBudget");
    if let Some(metadata) = budget["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    files.push((format!("manifests/{name}_poddisruptionbudget.yaml"), listwatch_yaml::write(&budget)));
    let annotations = annotations(name, &flags.channels);
    files.push((
        "metadata/annotations.yaml".to_owned(),
        listwatch_yaml::write(&json!({"annotations": annotations})),
    ));
    files.push(("tests/scorecard/config.yaml".to_owned(), listwatch_yaml::write(&scorecard())));
    let labels: String = annotations
        .iter()
        .map(|(name, value)| format!("LABEL {name}={}\n", value.as_str().unwrap_or_default()))
        .collect();
    let copies =
        "COPY manifests /manifests/\nCOPY metadata /metadata/\nCOPY tests/scorecard /tests/scorecard/\n";
    files.push(("bundle.Dockerfile".to_owned(), format!("FROM scratch\n\n{labels}\n{copies}")));
    Ok(files)
}

/// <https://github.com/operator-framework/operator-registry/blob/master/docs/design/operator-bundle.md>.
fn annotations(name: &str, channels: &[String]) -> serde_json::Map<String, Value> {
    let stable = ["stable".to_owned()];
    let channels = if channels.is_empty() { &stable[..] } else { channels };
    let pairs = [
        ("operators.operatorframework.io.bundle.mediatype.v1", "registry+v1"),
        ("operators.operatorframework.io.bundle.manifests.v1", "manifests/"),
        ("operators.operatorframework.io.bundle.metadata.v1", "metadata/"),
        ("operators.operatorframework.io.bundle.package.v1", name),
        ("operators.operatorframework.io.bundle.channels.v1", &channels.join(",")),
        ("operators.operatorframework.io.bundle.channel.default.v1", &channels[0]),
        ("operators.operatorframework.io.test.mediatype.v1", "scorecard+v1"),
        ("operators.operatorframework.io.test.config.v1", "tests/scorecard/"),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

fn scorecard() -> Value {
    let tests = SCORECARD_TESTS.map(|(suite, entrypoint, test)| {
        json!({
            "image": SCORECARD_IMAGE,
            "entrypoint": ["scorecard-test", entrypoint],
            "labels": {"suite": suite, "test": test},
        })
    });
    json!({
        "apiVersion": "scorecard.operatorframework.io/v1alpha3",
        "kind": "Configuration",
        "metadata": {"name": "config"},
        "stages": [{"parallel": true, "tests": tests}],
    })
}

/// The samples of the operator's kinds. Other objects, such as a Secret that a sample names, are left out.
fn examples(
    installation: &Installation,
    flags: &BundleFlags,
    samples: &[&str],
) -> Result<Vec<Value>, String> {
    let is_ours = |object: &Value| {
        let mut groups = installation.definitions.iter().map(|definition| &definition["spec"]);
        groups.any(|spec| {
            let group = text(&object["apiVersion"]).split_once('/').unwrap_or_default().0;
            spec["names"]["kind"] == object["kind"] && spec["group"] == group
        })
    };
    let mut examples = Vec::new();
    let mut add = |yaml: &str| -> Result<usize, String> {
        let before = examples.len();
        for object in listwatch_yaml::documents(yaml) {
            let object = object.map_err(|error| error.to_string())?;
            examples.extend(Some(object).filter(is_ours));
        }
        Ok(examples.len() - before)
    };
    for yaml in samples {
        add(yaml)?;
    }
    for path in &flags.samples {
        let wrong = |cause: String| format!("--sample: {}: {cause}", path.display());
        let yaml = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        if add(&yaml).map_err(wrong)? == 0 {
            return Err(wrong("has no object of the operator's kinds".to_owned()));
        }
    }
    Ok(examples)
}

/// The object that describes one version of an operator.
struct ClusterServiceVersion<'a> {
    installation: &'a Installation,
    flags: &'a BundleFlags,
    examples: Vec<Value>,
}

impl ClusterServiceVersion<'_> {
    fn object(&self) -> Result<Value, String> {
        let Installation { name, definitions, image, .. } = self.installation;
        let version = version("--version", &self.flags.version)?;
        check_image(image)?;
        let kinds: Vec<_> = definitions.iter().map(|one| text(&one["spec"]["names"]["kind"])).collect();
        let group = definitions.first().map_or(&**name, |one| text(&one["spec"]["group"]));
        let mut spec = json!({
            "version": version.to_string(),
            "displayName": display_name(name, &kinds),
            "description": self.description(),
            "keywords": kinds,
            "maturity": self.maturity(),
            "minKubeVersion": KUBERNETES_MIN,
            "provider": {"name": self.flags.provider.as_deref().unwrap_or(group)},
            "icon": [self.icon()?],
            "links": self.links()?,
            "installModes": self.install_modes(),
            "install": {"strategy": "deployment", "spec": self.strategy()},
            "customresourcedefinitions": {"owned": definitions.iter().flat_map(|one| self.owned(one)).collect::<Value>()},
        });
        let webhooks = self.webhooks()?;
        if !webhooks.is_empty() {
            spec["webhookdefinitions"] = webhooks.into();
        }
        if let Some(replaced) = &self.flags.replaces {
            spec["replaces"] = format!("{name}.v{}", self::version("--replaces", replaced)?).into();
        }
        Ok(json!({
            "apiVersion": "operators.coreos.com/v1alpha1",
            "kind": "ClusterServiceVersion",
            "metadata": {
                "name": format!("{name}.v{version}"),
                "annotations": {
                    "alm-examples": serde_json::to_string_pretty(&self.examples).unwrap_or_default(),
                    // Every operator that can be installed has this level. Other levels are for people to judge: docs/capability-levels.md.
                    "capabilities": "Basic Install",
                    "containerImage": image,
                },
            },
            "spec": spec,
        }))
    }

    /// The descriptions of its kinds.
    fn description(&self) -> String {
        let of = |definition: &Value| {
            let kind = text(&definition["spec"]["names"]["kind"]);
            let version = served(definition).last().cloned().unwrap_or_default();
            let schema = &version["schema"]["openAPIV3Schema"];
            format!("**{kind}**: {}\n", text(&schema["description"]))
        };
        self.installation.definitions.iter().map(of).collect::<Vec<_>>().join("\n")
    }

    /// The maturity of its least mature stored version.
    fn maturity(&self) -> &'static str {
        let is_any = |stage: &str| {
            let versions = self.installation.definitions.iter().flat_map(served);
            let mut stored = versions.filter(|version| version["storage"] == true);
            stored.any(|version| text(&version["name"]).contains(stage))
        };
        ["alpha", "beta"].into_iter().find(|stage| is_any(stage)).unwrap_or("stable")
    }

    fn icon(&self) -> Result<Value, String> {
        let Some(path) = &self.flags.icon else {
            let letter = self.installation.name.chars().next().unwrap_or_default().to_uppercase();
            let svg = format!(
                r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" rx="12" fill="#326ce5"/><text x="32" y="46" font-family="sans-serif" font-size="40" text-anchor="middle" fill="#fff">{letter}</text></svg>"##
            );
            return Ok(json!({"base64data": BASE64_STANDARD.encode(svg), "mediatype": ICONS[0].1}));
        };
        let end = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let known = ICONS.iter().find(|(icon, _)| *icon == end);
        let (_, mediatype) =
            known.ok_or_else(|| format!("--icon: {} is not .svg, .png, .jpg or .gif", path.display()))?;
        let data = fs::read(path).map_err(|error| format!("--icon: {}: {error}", path.display()))?;
        Ok(json!({"base64data": BASE64_STANDARD.encode(data), "mediatype": mediatype}))
    }

    fn links(&self) -> Result<Vec<Value>, String> {
        let link = |link: &String| {
            let pair = link.split_once('=').filter(|(name, url)| {
                !name.is_empty() && (url.starts_with("https://") || url.starts_with("http://"))
            });
            let (name, url) = pair.ok_or_else(|| format!("--link: {link:?} is not NAME=https://…"))?;
            Ok(json!({"name": name, "url": url}))
        };
        self.flags.links.iter().map(link).collect()
    }

    /// By the variable `WATCH_NAMESPACE`, any namespaces. Objects without a namespace and conversions belong to no part of a cluster.
    fn install_modes(&self) -> Vec<Value> {
        let Installation { definitions, webhooks, .. } = self.installation;
        let is_cluster_wide = definitions.iter().any(|one| one["spec"]["scope"] == "Cluster")
            || webhooks.as_ref().is_some_and(|webhooks| !webhooks.converted.is_empty());
        ["OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"]
            .map(|mode| json!({"type": mode, "supported": mode == "AllNamespaces" || !is_cluster_wide}))
            .to_vec()
    }

    fn strategy(&self) -> Value {
        let Installation { name, permissions, .. } = self.installation;
        let roles = rbac::objects(name, permissions);
        let rules = |is_for_cluster: bool| {
            let chosen = roles.iter().filter(|role| (role["kind"] == "ClusterRole") == is_for_cluster);
            let rules: Vec<_> =
                chosen.filter_map(|role| role["rules"].as_array()).flatten().cloned().collect();
            // An entry without rules would be a role that allows nothing.
            let all = json!([{"serviceAccountName": name, "rules": rules}]);
            if rules.is_empty() { json!([]) } else { all }
        };
        let mut deployment = self.object_of("Deployment");
        let variables = &mut deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        for variable in variables.as_array_mut().into_iter().flatten() {
            if variable["name"] == "WATCH_NAMESPACE" {
                let field = "metadata.annotations['olm.targetNamespaces']";
                *variable =
                    json!({"name": "WATCH_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": field}}});
            }
        }
        json!({
            "deployments": [{"name": name, "label": deployment["metadata"]["labels"], "spec": deployment["spec"]}],
            "permissions": rules(false),
            "clusterPermissions": rules(true),
        })
    }

    /// The webhooks. OLM writes configurations and conversions that call them.
    fn webhooks(&self) -> Result<Vec<Value>, String> {
        let Some(webhooks) = &self.installation.webhooks else { return Ok(Vec::new()) };
        let conversion = |definition: &String| {
            json!({
                "name": format!("convert.{definition}"),
                "clientConfig": {"service": {"path": "/convert"}},
                "conversionCRDs": [definition],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
            })
        };
        let conversions = webhooks.converted.iter().map(conversion).collect();
        let mut all = Vec::new();
        for (kind, hooks) in [
            ("MutatingAdmissionWebhook", &webhooks.mutating),
            ("ValidatingAdmissionWebhook", &webhooks.validating),
            ("ConversionWebhook", &conversions),
        ] {
            for hook in hooks {
                all.push(self.webhook(kind, hook)?);
            }
        }
        Ok(all)
    }

    fn webhook(&self, kind: &str, hook: &Value) -> Result<Value, String> {
        let name = text(&hook["name"]);
        if name.len() > LABEL_MAX {
            return Err(format!(
                "{name}: OLM needs a name of a webhook with at most {LABEL_MAX} characters, for a label"
            ));
        }
        let mut webhook = json!({
            "type": kind,
            "generateName": name,
            "deploymentName": self.installation.name,
            "webhookPath": hook["clientConfig"]["service"]["path"],
            "containerPort": 443,
            "targetPort": WEBHOOK_PORT,
        });
        for (field, value) in hook.as_object().into_iter().flatten() {
            if field != "name" && field != "clientConfig" {
                webhook[field] = value.clone();
            }
        }
        Ok(webhook)
    }

    /// Each served version of a kind, with its fields by their descriptions.
    fn owned(&self, definition: &Value) -> Vec<Value> {
        let kind = &definition["spec"]["names"]["kind"];
        let resources = self.children();
        let of = |version: &Value| {
            let schema = &version["schema"]["openAPIV3Schema"];
            json!({
                "name": definition["metadata"]["name"],
                "version": version["name"],
                "kind": kind,
                "displayName": kind,
                "description": text(&schema["description"]),
                "resources": resources,
                "specDescriptors": descriptors(&schema["properties"]["spec"], ""),
                "statusDescriptors": descriptors(&schema["properties"]["status"], ""),
            })
        };
        served(definition).map(of).collect()
    }

    /// The kinds of the objects that the operator creates for users' objects. The Lease is for the operator itself.
    fn children(&self) -> Vec<Value> {
        let is_child = |one: &&Permission| {
            one.verbs.contains(&Verb::Create) && one.kind != [""; 2] && one.reach != Reach::OwnNamespace
        };
        let permissions = self.installation.permissions.iter().filter(is_child);
        permissions
            .map(|Permission { kind: [version, kind], .. }| json!({"version": version, "kind": kind}))
            .collect()
    }

    /// The only object of its kind in the installation.
    fn object_of(&self, kind: &str) -> Value {
        let objects = self.installation.objects();
        objects.into_iter().find(|object| object["kind"] == kind).unwrap_or_default()
    }
}

fn served(definition: &Value) -> impl Iterator<Item = &Value> {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    versions.filter(|version| version["served"] == true)
}

/// The fields with a description, including the fields of nested objects.
fn descriptors(schema: &Value, above: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        if let Some(description) = field["description"].as_str() {
            let mut descriptor =
                json!({"path": path, "displayName": words(name), "description": description});
            let hint = match (&**name, text(&field["type"])) {
                ("conditions", "array") => Some("urn:alm:descriptor:io.kubernetes.conditions".to_owned()),
                ("replicas", _) => Some(format!("{HINT}podCount")),
                (_, "boolean") => Some(format!("{HINT}booleanSwitch")),
                (_, "integer") => Some(format!("{HINT}number")),
                (_, "string") => Some(format!("{HINT}text")),
                _ => None,
            };
            if let Some(hint) = hint {
                descriptor["x-descriptors"] = json!([hint]);
            }
            found.push(descriptor);
        }
        found.extend(descriptors(field, &path));
    }
    found
}

/// `memoryMb` in words: `Memory Mb`.
fn words(field: &str) -> String {
    let mut words = String::new();
    for (index, letter) in field.chars().enumerate() {
        match (index, letter.is_uppercase()) {
            (0, _) => words.extend(letter.to_uppercase()),
            (_, true) => words.extend([' ', letter]),
            (_, false) => words.push(letter),
        }
    }
    words
}

/// `mywebserver-operator` in words, of which one is the kind: `MyWebserver Operator`.
fn display_name(name: &str, kinds: &[&str]) -> String {
    let word = |word: &str| {
        let kind = kinds.iter().find(|kind| kind.to_lowercase() == word);
        kind.map_or_else(|| words(word), |kind| (*kind).to_owned())
    };
    name.split('-').map(word).collect::<Vec<_>>().join(" ")
}

/// A version that can be part of an object's name.
fn version(flag: &str, version: &str) -> Result<Version, String> {
    let parsed = Version::parse(version)
        .map_err(|error| format!("{flag}: {version:?} is not a semantic version such as 0.1.0: {error}"))?;
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || ".-".contains(letter);
    if !version.chars().all(fits) {
        return Err(format!(
            "{flag}: {version:?} cannot be part of a name: only lower case letters, digits, '-' and '.'"
        ));
    }
    Ok(parsed)
}

/// OLM installs what the bundle names, whenever that is.
fn check_image(image: &str) -> Result<(), String> {
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once(['@', ':']) {
        Some((name, tag)) if !name.is_empty() && !tag.is_empty() => Ok(()),
        Some(_) | None => Err(format!("--image: {image:?} has no tag and no digest")),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::WebhookInstallation;

    fn installation(hook: &str) -> Installation {
        let definition = json!({
            "metadata": {"name": "memcacheds.cache.example.com"},
            "spec": {"group": "cache.example.com", "names": {"kind": "Memcached", "plural": "memcacheds"}},
        });
        Installation {
            name: "cache-operator".to_owned(),
            namespace: "cache-system".to_owned(),
            image: "cache:1".to_owned(),
            replicas: 2,
            args: Vec::new(),
            variables: Vec::new(),
            definitions: vec![definition],
            roles_of_users: Vec::new(),
            permissions: Vec::new(),
            has_service_monitor: false,
            has_network_policy: false,
            webhooks: Some(WebhookInstallation {
                name: "cache-webhook".to_owned(),
                validating: vec![
                    json!({"name": hook, "clientConfig": {"service": {"path": "/validate"}}, "rules": []}),
                ],
                mutating: Vec::new(),
                converted: vec!["memcacheds.cache.example.com".to_owned()],
            }),
        }
    }

    /// What OLM writes into a conversion: `createOrUpdateConversionWebhook` in its pkg/controller/install/webhook.go.
    #[test]
    fn olm_calls_the_webhooks_by_a_service_that_it_makes() {
        let flags = BundleFlags { version: "0.1.0".to_owned(), ..BundleFlags::default() };
        let files = files(&installation("validate.memcacheds.cache.example.com"), &flags, &[]);
        let files = files.expect("a bundle");
        let read = |name: &str| {
            let (_, text) = files.iter().find(|(file, _)| file == name).expect("a file");
            listwatch_yaml::read(text).expect("YAML")
        };
        let version = read("manifests/cache-operator.clusterserviceversion.yaml");
        let common = |kind: &str, name: &str, path: &str| {
            json!({
                "type": kind, "generateName": name, "webhookPath": path,
                "deploymentName": "cache-operator", "containerPort": 443, "targetPort": 9443,
            })
        };
        let mut validate =
            common("ValidatingAdmissionWebhook", "validate.memcacheds.cache.example.com", "/validate");
        validate["rules"] = json!([]);
        let mut convert = common("ConversionWebhook", "convert.memcacheds.cache.example.com", "/convert");
        convert["conversionCRDs"] = json!(["memcacheds.cache.example.com"]);
        (convert["admissionReviewVersions"], convert["sideEffects"]) = (json!(["v1"]), "None".into());
        assert_eq!(version["spec"]["webhookdefinitions"], json!([validate, convert]));
        // OLM converts for no part of a cluster.
        let modes = version["spec"]["installModes"].as_array().into_iter().flatten();
        let modes: Vec<_> =
            modes.filter(|mode| mode["supported"] == true).map(|mode| &mode["type"]).collect();
        assert_eq!(modes, ["AllNamespaces"]);
        let definition = read("manifests/cache.example.com_memcacheds.yaml");
        let service = &definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"];
        let expected =
            json!({"namespace": "cache-system", "name": "cache-operator-service", "path": "/convert"});
        assert_eq!(*service, expected);
    }

    #[test]
    fn a_name_that_is_too_long_for_a_label_is_an_error() {
        let name = format!("validate.{}.example.com", "m".repeat(60));
        let flags = BundleFlags { version: "0.1.0".to_owned(), ..BundleFlags::default() };
        let error = files(&installation(&name), &flags, &[]).expect_err("an error");
        assert!(error.ends_with("with at most 63 characters, for a label"), "{error}");
    }
}
