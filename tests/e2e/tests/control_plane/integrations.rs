//! The manifests of docs/guides/integrations.md, with the definitions of their projects.

use std::sync::Arc;

use aliquot_cluster::crds;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../../docs/guides/integrations.md");
/// The kinds of the page's manifests, in its order.
const KINDS: [&str; 7] = [
    "ResourceFlavor",
    "ClusterQueue",
    "LocalQueue",
    "Job",
    "JobSet",
    "RayCluster",
    "InferenceService",
];

/// The API server accepts each manifest as it stands, with a check of its fields, and our webhook a pod
/// with each share in them.
pub(crate) async fn manifests(stack: Arc<Stack>) -> Result<()> {
    let definitions = crds().await?;
    let definitions = definitions
        .to_str()
        .context("the cache's path is no text")?;
    let cluster = &stack.cluster;
    // Some are too large for the annotation of a client's apply.
    let apply = ["apply", "--server-side", "-f", definitions];
    cluster.kubectl(&apply).await?.success()?;
    cluster.wait_established().await?;

    let mut kinds = Vec::new();
    let mut shares = Vec::new();
    for (number, text) in blocks().enumerate() {
        let file = stack.write(&format!("integration-{number}.yaml"), text)?;
        let file = file.display().to_string();
        let trial = "--dry-run=server";
        let create = [
            "create",
            trial,
            "--validate=strict",
            "-o",
            "json",
            "-f",
            &file,
        ];
        let stored = cluster.kubectl(&create).await?.success()?;
        for object in serde_json::Deserializer::from_str(&stored).into_iter::<Value>() {
            let object = object?;
            let kind = object["kind"].as_str().context("a kind")?;
            kinds.push(kind.to_owned());
            find_shares(&object, &mut shares);
        }
    }
    ensure!(kinds == KINDS, "{kinds:?}");
    ensure!(shares.len() >= 4, "{shares:?}");

    for limits in shares {
        let main = json!({"name": "main", "image": "image", "resources": {"limits": limits}});
        let pod = json!({"metadata": {"name": "share"}, "spec": {"containers": [main]}});
        let pod = stack.trial(pod).await?;
        let scheduler = pod.spec.context("a spec")?.scheduler_name;
        ensure!(
            scheduler.as_deref() == Some("aliquot-scheduler"),
            "{limits}"
        );
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let defaulted = annotations.get("aliquot.dev/defaulted");
        let only_priority = r#"{"main":{"nvidia.com/priority":"1"}}"#;
        ensure!(
            defaulted.is_some_and(|text| text == only_priority),
            "{limits}: {defaulted:?}"
        );
    }
    Ok(())
}

/// The page's blocks that are manifests; the values of a chart are not.
fn blocks() -> impl Iterator<Item = &'static str> {
    let blocks = PAGE.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    blocks.filter(|text| text.starts_with("apiVersion:"))
}

/// The limits with a GPU anywhere in an object.
fn find_shares(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            let limits = fields.get("limits");
            found.extend(
                limits
                    .filter(|one| one.get("nvidia.com/gpu").is_some())
                    .cloned(),
            );
            fields.values().for_each(|field| find_shares(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| find_shares(item, found)),
        _ => {}
    }
}
