//! `listwatch new`: a crate with an operator, its tests, and what builds and checks it. Or, in such a crate, a module with one more.
//!
//! The files below `new/` are templates. `__Kind__` and other such words stand for the names. A line that ends with `//~ deployment` or
//! `#~ deployment` is for operators with this child alone, one that ends with `//~ !deployment` for those without.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use clap::{ArgGroup, Args, ValueEnum};

use crate::failure::Failure;

/// The templates of an operator, of its tests, of an object, and of a kind without an operator.
const OPERATOR: &str = include_str!("new/main.rs.txt");
const TESTS: &str = include_str!("new/tests.rs.txt");
const SAMPLE: &str = include_str!("new/sample.yaml");
const KIND: &str = include_str!("new/kind.rs.txt");

/// The files of the crate, and their templates.
const FILES: [(&str, &str); 7] = [
    ("Cargo.toml", include_str!("new/Cargo.toml.txt")),
    ("src/main.rs", OPERATOR),
    ("src/tests.rs", TESTS),
    ("sample.yaml", SAMPLE),
    ("README.md", include_str!("new/README.md")),
    (".gitignore", "/target\n"),
    (".dockerignore", "/target\n/.git\n"),
];
/// Those for a crate that can be built from a copy of its own directory: not with `--path`.
const FILES_TO_BUILD: [(&str, &str); 2] = [
    ("Dockerfile", include_str!("new/Dockerfile")),
    (".github/workflows/ci.yml", include_str!("new/ci.yml")),
];

/// <https://doc.rust-lang.org/reference/keywords.html>, names that cargo refuses, and words that are not strings in YAML 1.1.
const WORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern false final fn for gen if impl \
    in let loop macro match mod move mut override priv pub ref return self static struct super trait true try type typeof union unsafe \
    unsized use virtual where while yield build core deps examples incremental proc-macro std test null yes no on off y n";
/// The types that a generated crate and its tests use.
const TYPES: &str = "BTreeMap Box Children Cleanup Client Conditions ConfigMap Container Controller CronJob CronJobSpec Decision DeleteOptions Deployment \
    DeploymentSpec Deserialize Err HttpIngressPath HttpIngressRule Ingress IngressBackend IngressRule IngressServiceBackend IngressSpec JobSpec \
    JobTemplate JsonSchema Key LabelSelector Labels Next None ObjectMeta Ok Operator Option Part Patch PersistentVolumeClaim \
    PersistentVolumeClaimSpec PodSpec PodTemplate Reconcile ReconcileError Resource ResourceRequirements Result Review Runtime RuntimeError Self Serialize \
    Service ServiceBackendPort ServicePort ServiceSpec Setup Some String TestServer Validator Value Vec Verdict Webhooks";

/// What to do about a kind that there is.
const ANOTHER: &str = "choose another kind; another version of it is a few lines, beside crd::of in the documentation of listwatch";

/// The names of modules that would hide a crate, or be one.
const CRATES: &str = "lib listwatch schemars serde";

/// Write a crate with an operator of your own, and its tests
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").args(["git", "path"]))]
#[command(after_help = "Examples:\n  \
    listwatch new page-operator --group example.com --kind Page --git URL --rev v0.1.0\n  \
    listwatch new shop --group example.com --kind Shop --child deployment,service --finalizer --path ../listwatch\n\n\
    Then, in the new directory: cargo test\n\n\
    In the directory of such a crate, without a NAME, it adds a kind:\n\n  \
    listwatch new --group example.com --kind Shelf\n  \
    listwatch new --group example.com --kind ShelfPolicy --without-operator")]
pub(in super::super) struct NewArgs {
    /// Name of the crate, of its directory and of the operator
    #[arg(value_name = "NAME", value_parser = name, requires = "source")]
    name: Option<String>,
    /// API group of the kind: a domain of yours
    #[arg(long, value_name = "DOMAIN", value_parser = group)]
    group: String,
    /// Kind of the objects, such as Page
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kind: String,
    /// API version of the kind
    #[arg(long, value_name = "VERSION", default_value = "v1", value_parser = version)]
    version: String,
    /// Plural of the kind in lower case. Default: by the rules of English
    #[arg(long, value_name = "PLURAL", value_parser = plural)]
    plural: Option<String>,
    /// Objects of the kind are in no namespace
    #[arg(long)]
    cluster: bool,
    /// What an object becomes; may be repeated, or a list with commas
    #[arg(long = "child", value_name = "KIND", value_delimiter = ',', default_value = "configmap")]
    children: Vec<ChildKind>,
    /// The operator cleans up after a deleted object
    #[arg(long)]
    finalizer: bool,
    /// A webhook validates the objects before they are stored
    #[arg(long, requires = "name")]
    webhook: bool,
    /// Only a kind, for the operators that the crate has
    #[arg(long, conflicts_with_all = ["name", "children", "finalizer", "webhook"])]
    without_operator: bool,
    /// Git repository of listwatch
    #[arg(long, value_name = "URL", value_parser = url, requires = "name")]
    git: Option<String>,
    /// Tag or commit there. Default: its main branch
    #[arg(long, value_name = "REV", value_parser = url, requires = "git")]
    rev: Option<String>,
    /// Directory of a clone of listwatch, to try it: the crate can then be built on this machine alone
    #[arg(long, value_name = "DIR", requires = "name")]
    path: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum ChildKind {
    #[value(name = "configmap")]
    ConfigMap,
    Deployment,
    Service,
    /// With its Service.
    Ingress,
    #[value(name = "cronjob")]
    CronJob,
    #[value(name = "claim", alias = "persistentvolumeclaim")]
    Claim,
}

impl ChildKind {
    /// The tag of its lines, and what it is called in a sentence.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            ChildKind::ConfigMap => ("configmap", "a ConfigMap"),
            ChildKind::Deployment => ("deployment", "a Deployment"),
            ChildKind::Service => ("service", "a Service"),
            ChildKind::Ingress => ("ingress", "an Ingress"),
            ChildKind::CronJob => ("cronjob", "a CronJob"),
            ChildKind::Claim => ("claim", "a PersistentVolumeClaim"),
        }
    }
}

pub(super) fn main(mut args: NewArgs) -> Result<(), Failure> {
    if args.children.contains(&ChildKind::Ingress) {
        args.children.push(ChildKind::Service);
    }
    if args.without_operator {
        args.children.clear();
    }
    args.children.sort();
    args.children.dedup();
    match args.name.clone() {
        Some(name) => new_crate(&args, &name),
        None => new_module(&args),
    }
}

fn new_crate(args: &NewArgs, name: &str) -> Result<(), Failure> {
    let dir = Path::new(name);
    if dir.exists() {
        return Err(Failure::Usage(format!("{name} exists: choose another name, or another directory")));
    }
    let source = args.source()?;
    let more = if args.path.is_none() { &FILES_TO_BUILD[..] } else { &[] };
    for (file, template) in FILES.iter().chain(more) {
        let text = args.fill(template).replace("__source__", &source).replace("__sample__", "../sample.yaml");
        write(&dir.join(file), &text)?;
    }
    format(&dir.join("src/main.rs"));
    print(&format!("{} is in {name}/. Next: cd {name} && cargo test\n", args.kind))
}

/// Adds a kind to the crate in this directory. Its source is not changed: only its author knows where the module belongs.
fn new_module(args: &NewArgs) -> Result<(), Failure> {
    let module = args.kind.to_lowercase();
    let manifest = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let main = fs::read_to_string("src/main.rs").unwrap_or_default();
    if !manifest.contains("listwatch") || main.is_empty() {
        let cause = "in this directory is no crate with an operator: give a NAME to write one";
        return Err(Failure::Usage(cause.to_owned()));
    }
    if is_one_of(CRATES, &module) {
        return Err(Failure::Usage(format!("--kind {}: the module would hide a crate", args.kind)));
    }
    let file = format!("src/{module}.rs");
    let mut files = vec![
        (file.clone(), if args.without_operator { KIND } else { OPERATOR }),
        (format!("sample-{module}.yaml"), SAMPLE),
    ];
    if !args.without_operator {
        files.push((format!("src/{module}/tests.rs"), TESTS));
    }
    if let Some((file, _)) = files.iter().find(|(file, _)| Path::new(file).exists()) {
        return Err(Failure::Usage(format!("{file} exists: {ANOTHER}")));
    }
    if main.contains(&format!("kind!({},", args.kind)) {
        return Err(Failure::Usage(format!("src/main.rs has the kind {}: {ANOTHER}", args.kind)));
    }
    for (file, template) in &files {
        let sample = format!("../../sample-{module}.yaml");
        write(Path::new(file), &args.fill(template).replace("__sample__", &sample))?;
    }
    format(Path::new(&file));
    print(&format!(
        "{} is in {file}. Two lines are missing in src/main.rs: one for the module, and one that begins the closure in main:\n\n    \
        mod {module};\n\n        \
        let runtime = {module}::add(runtime);\n\n\
        Next: cargo test\n",
        args.kind
    ))
}

fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// The lengths of the names decide where lines break. Without rustfmt, `cargo fmt` does it later.
fn format(file: &Path) {
    drop(Command::new("rustfmt").args(["--edition", "2024"]).arg(file).output());
}

/// Never overwrites a file.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let dir = path.parent().map_or(Ok(()), fs::create_dir_all);
    let file = dir.and_then(|()| OpenOptions::new().write(true).create_new(true).open(path));
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))
}

impl NewArgs {
    /// Where the crate has the library from, as in Cargo.toml.
    fn source(&self) -> Result<String, Failure> {
        let Some(path) = &self.path else {
            let rev = self.rev.as_ref().map_or_else(String::new, |rev| format!(", rev = \"{rev}\""));
            return Ok(format!("git = \"{}\"{rev}", self.git.as_deref().unwrap_or_default()));
        };
        let wrong = |cause: &str| Failure::Usage(format!("--path {}: {cause}", path.display()));
        let path = path.canonicalize().map_err(|error| wrong(&error.to_string()))?;
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
        match path.to_str() {
            Some(text) if manifest.contains("name = \"listwatch\"") => Ok(format!("path = {text:?}")),
            Some(_) | None => Err(wrong("is not a clone of listwatch")),
        }
    }

    /// The name of the operator: of the crate, or of the module.
    fn operator(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("{}-operator", self.kind.to_lowercase()))
    }

    fn fill(&self, template: &str) -> String {
        let kind = self.kind.to_lowercase();
        let plural = self.plural.clone().unwrap_or_else(|| plural_of(&kind));
        let names: Vec<_> = self.children.iter().map(|child| child.names().1).collect();
        let children = match &names[..] {
            [first @ .., before, last] => [first, &[&format!("{before} and {last}")]].concat().join(", "),
            _ => names.concat(),
        };
        let lines = template.lines().filter_map(|line| {
            let Some((line, tag)) = line.split_once(" //~ ").or_else(|| line.split_once(" #~ ")) else {
                return Some(line);
            };
            let (tag, is_wanted) = tag.strip_prefix('!').map_or((tag, true), |tag| (tag, false));
            (self.has(tag) == is_wanted).then_some(line)
        });
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        [
            ("__name__", self.name.as_deref().unwrap_or_default()),
            ("__operator__", &self.operator()),
            ("__group__", &self.group),
            ("__version__", &self.version),
            ("__Kind__", &self.kind),
            ("__kind__", &kind),
            ("__plural__", &plural),
            ("__children__", &children),
        ]
        .iter()
        .fold(text, |text, (word, value)| text.replace(word, value))
    }

    /// Whether lines with this tag are wanted.
    fn has(&self, tag: &str) -> bool {
        match tag {
            "crate" => self.name.is_some(),
            "cluster" => self.cluster,
            "finalizer" => self.finalizer,
            "webhook" => self.webhook,
            "bare" => self.without_operator,
            "path" => self.path.is_some(),
            "pods" => ["deployment", "cronjob"].into_iter().any(|child| self.has(child)),
            // clippy asks for CamelCase.
            "acronym" => !self.kind.contains(|c: char| c.is_ascii_lowercase()),
            child => self.children.iter().any(|known| known.names().0 == child),
        }
    }
}

fn plural_of(kind: &str) -> String {
    let is_hissing = ["s", "x", "z", "ch", "sh"].iter().any(|end| kind.ends_with(end));
    match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if is_hissing => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

fn is_one_of(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|known| known == word)
}

fn is_label(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn name(text: &str) -> Result<String, &'static str> {
    match text {
        // With the end `-leader-election` it is the name of a Role, and in a namespace `NAME-system`.
        _ if !is_label(text) || text.len() > 40 => {
            Err("is not a name of at most 40 lower-case letters, digits and '-'")
        }
        _ if !text.starts_with(|c: char| c.is_ascii_lowercase()) => {
            Err("does not begin with a letter, as a crate must")
        }
        _ if is_one_of(WORDS, text) => Err("is a word of Rust, cargo or YAML"),
        "listwatch" => Err("is the name of the library"),
        _ => Ok(text.to_owned()),
    }
}

fn group(text: &str) -> Result<String, &'static str> {
    if text.len() > 253 || !text.contains('.') || !text.split('.').all(is_label) {
        return Err("is not a domain in lower case, such as example.com");
    }
    if text.ends_with(".k8s.io")
        || text.ends_with(".kubernetes.io")
        || text == "k8s.io"
        || text == "kubernetes.io"
    {
        return Err("belongs to Kubernetes: choose a domain of yours");
    }
    Ok(text.to_owned())
}

fn kind(text: &str) -> Result<String, &'static str> {
    let is_word = text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match text {
        _ if !is_word || text.len() > 50 => Err("is not a name in CamelCase, such as Page"),
        _ if is_one_of(TYPES, text) => Err("is the name of a type that the operator uses"),
        _ if is_one_of(WORDS, &text.to_lowercase()) => Err("is a word of Rust, cargo or YAML"),
        _ => Ok(text.to_owned()),
    }
}

/// As <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#version-priority>.
fn version(text: &str) -> Result<String, &'static str> {
    let is_number = |text: &str| {
        !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let wanted = text.strip_prefix('v').is_some_and(|rest| {
        let parts = rest.split_once("alpha").or_else(|| rest.split_once("beta"));
        parts.map_or_else(|| is_number(rest), |(major, minor)| is_number(major) && is_number(minor))
    });
    if wanted { Ok(text.to_owned()) } else { Err("is not a version such as v1, v1beta1 or v1alpha1") }
}

fn plural(text: &str) -> Result<String, &'static str> {
    let is_word = is_label(text) && text.bytes().all(|byte| byte.is_ascii_lowercase());
    if is_word { Ok(text.to_owned()) } else { Err("is not a word in lower case, such as pages") }
}

fn url(text: &str) -> Result<String, &'static str> {
    let is_plain =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if is_plain { Ok(text.to_owned()) } else { Err("is not a URL") }
}
