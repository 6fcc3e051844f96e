//! `listwatch types`: Rust types of a kind that a CRD or the server defines, to own or to watch its objects.

mod declaration;
mod generator;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use listwatch::{
    client::{Client, Request},
    plan::Objects,
};
use listwatch_study::discovery::{self, ApiResource};
use serde_json::Value;
use tracing::Level;

use self::generator::{Definition, FieldPaths};
use super::stage::DemoFlag;
use crate::{
    connection::{self, ConnectionFlags, kinds},
    failure::{Failure, until_signal},
    log::Log,
};

/// Print Rust types of a kind, from its CRD or from the OpenAPI document of the API server
#[derive(Debug, Args)]
#[command(
    after_help = "The types are for a file of their own, such as src/certificate.rs. It needs the crate serde, and serde_json for fields of any form.\n\n\
    Examples:\n  \
    listwatch types certificates.cert-manager.io                          of the cluster\n  \
    listwatch types -f crd.yaml --fields spec.secretName,status.conditions\n  \
    listwatch types cronjobs --demo                                       a built-in kind, without a cluster"
)]
pub(in super::super) struct TypesArgs {
    /// The kind: certificates.cert-manager.io, Certificate, certificates.v1.cert-manager.io. With -f: by default, the only one of the file
    #[arg(value_name = "KIND", required_unless_present = "filename")]
    kind: Option<String>,
    /// File with the CustomResourceDefinition; - for standard input
    #[arg(short, long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["demo", "kubeconfig", "context", "cluster", "user", "act_as", "service_account_dir"])]
    filename: Option<PathBuf>,
    /// Only these fields, with everything in them, and metadata: spec.a,spec.b.c. The path of a field in a list is the path of the list, and the field
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    fields: Vec<String>,
    #[command(flatten)]
    demo: DemoFlag,
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    log: Log,
}

pub(super) fn main(args: TypesArgs) -> Result<(), Failure> {
    args.log.start(Level::WARN);
    let fields = FieldPaths::of(&args.fields);
    if let Some(path) = args.filename {
        let objects =
            Objects::read(&path).map_err(|problem| Failure::Usage(format!("--filename {problem}")))?;
        return print(&in_file(&objects, args.kind.as_deref(), &fields)?);
    }
    until_signal(async |_| {
        let stage = args.demo.stage().await?;
        let config = match &stage {
            Some(stage) => stage.config()?,
            None => args.connection.config()?,
        };
        let kind = args.kind.unwrap_or_default();
        let text = in_cluster(&connection::client(config)?, &kind, &fields).await;
        if let Some(stage) = stage {
            stage.stop().await;
        }
        print(&text?)
    })
}

fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn in_file(objects: &Objects, kind: Option<&str>, fields: &FieldPaths<'_>) -> Result<String, Failure> {
    let mut definitions: Vec<_> = objects.iter().collect();
    definitions.retain(|object| object["kind"] == "CustomResourceDefinition");
    let versions: Vec<_> = definitions.iter().map(|definition| versions(&definition["spec"])).collect();
    let all = versions.concat();
    let found = match (kind, &versions[..]) {
        (Some(word), _) => discovery::find(&all, word).map_err(Failure::Usage)?,
        (None, [versions]) => {
            versions.first().ok_or_else(|| wrong("the definition has no served version"))?
        }
        (None, []) => return Err(wrong("the file has no CustomResourceDefinition")),
        (None, _) => return Err(wrong("the file has several CustomResourceDefinitions: name a KIND")),
    };
    let definition = definitions.iter().find(|definition| {
        let spec = &definition["spec"];
        spec["group"] == *found.group && spec["names"]["plural"] == *found.plural
    });
    let spec = definition.map_or(&Value::Null, |definition| &definition["spec"]);
    let mut versions = spec["versions"].as_array().into_iter().flatten();
    let version = versions.find(|version| version["name"] == *found.version).unwrap_or(&Value::Null);
    let kind = spec["names"]["kind"].as_str().unwrap_or_default();
    let schema = &version["schema"]["openAPIV3Schema"];
    printed(found, kind, schema, &Value::Null, fields)
}

/// The served versions of a definition. The stored one comes first.
fn versions(spec: &Value) -> Vec<ApiResource> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = &spec["names"];
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let kind = [text(&names["plural"]), text(&names["singular"]), text(&names["kind"]).to_lowercase()];
    let mut versions: Vec<_> = spec["versions"].as_array().into_iter().flatten().collect();
    versions.retain(|version| version["served"] == true);
    versions.sort_by_key(|version| version["storage"] != true);
    let of = |version: &&Value| ApiResource {
        group: text(&spec["group"]),
        version: text(&version["name"]),
        plural: text(&names["plural"]),
        names: [&kind[..], &texts(&names["shortNames"])].concat(),
        is_namespaced: spec["scope"] == "Namespaced",
    };
    versions.iter().map(of).collect()
}

async fn in_cluster(client: &Client, word: &str, fields: &FieldPaths<'_>) -> Result<String, Failure> {
    let kinds = kinds(client).await?;
    let found = discovery::find(&kinds, word).map_err(Failure::Usage)?;
    let path = found.path(None);
    let document = format!("/openapi/v3{}", path.trim_end_matches(&found.plural).trim_end_matches('/'));
    let answer = client.send(Request::get(&*document)).await?;
    let document: Value = serde_json::from_slice(&answer.body).map_err(|error| {
        Failure::Runtime(answer.unreadable(&document, "an OpenAPI document", &error).to_string())
    })?;
    // `GET /apis/apps/v1/namespaces/{namespace}/deployments/{name}` names the kind, and the schemas with this kind are of its objects.
    let path = format!("{}/{{name}}", found.path(Some("{namespace}")));
    let gvk = &document["paths"][&path]["get"]["x-kubernetes-group-version-kind"];
    let schemas = &document["components"]["schemas"];
    let is_of_kind = |schema: &&Value| {
        schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.contains(gvk))
    };
    let schema = schemas.as_object().into_iter().flat_map(|schemas| schemas.values()).find(is_of_kind);
    let schema = schema.ok_or_else(|| wrong("the server describes no objects of this kind"))?;
    printed(found, gvk["kind"].as_str().unwrap_or_default(), schema, schemas, fields)
}

fn printed(
    found: &ApiResource,
    kind: &str,
    schema: &Value,
    definitions: &Value,
    fields: &FieldPaths<'_>,
) -> Result<String, Failure> {
    let (group, version, plural) = (&*found.group, &*found.version, &*found.plural);
    let definition = Definition { kind, group, version, plural, schema, definitions };
    generator::types(&definition, fields).map_err(Failure::Usage)
}

fn wrong(problem: &str) -> Failure {
    Failure::Usage(problem.to_owned())
}
