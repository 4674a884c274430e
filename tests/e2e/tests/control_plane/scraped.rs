//! `/metrics` of a running scheduler has exactly what its reference lists: every metric, its type
//! and its labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_core::inventory::{INVENTORY, Inventory, LingeringShare};
use aliquot_core::{Mib, Percent};
use aliquot_e2e::http;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

const REFERENCE: &str = include_str!("../../../../docs/reference/metrics.md");
const NODE: &str = "scrape-1";
const SHAPE: Shape = Shape {
    gpus: 1,
    replicas: 10,
};
pub(crate) async fn against_the_reference(stack: Arc<Stack>) -> Result<()> {
    let reference = Reference::read()?;
    let pool = Pool::open(&stack, "scrape", &[(NODE.to_owned(), SHAPE)]).await?;
    // Some metrics have samples only under these conditions.
    linger(&stack).await?;
    let hard = json!({"metadata": {"name": "most"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "50000"}}});
    let quotas: Api<ResourceQuota> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let quota = serde_json::from_value(hard)?;
    quotas.create(&PostParams::default(), &quota).await?;
    let memory = |memory| [("gpu", "1"), ("gpumem", memory), ("gpucores", "10")];
    pool.create("bound", &memory("10000")).await?;
    pool.bound("bound").await?;
    pool.create("refused", &memory("90000")).await?;
    pool.event("refused", "Refused: ").await?;
    eventually(PATIENCE, "what is documented to be scraped", || async {
        let text = http::get(stack.address(Kind::Scheduler), "/metrics").await?;
        let scrape = Scrape::read(&text)?;
        reference.compare(&scrape).or_not_yet().map(Some)
    })
    .await?;
    pool.close().await
}

/// A share whose pod is gone, as the node's agent would report it.
async fn linger(stack: &Stack) -> Result<()> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let annotations = nodes.get(NODE).await?.metadata.annotations;
    let text = annotations.and_then(|mut all| all.remove(INVENTORY));
    let mut inventory = Inventory::decode(&text.context("an inventory")?)?;
    inventory.lingering.push(LingeringShare {
        pod: "gone".into(),
        gpu: inventory.gpus[0].uuid.clone(),
        replicas: 1,
        memory: Mib(100),
        cores: Percent(10),
    });
    let patch = json!({"metadata": {"annotations": {INVENTORY: inventory.encode()?}}});
    let patch = Patch::Merge(patch);
    nodes.patch(NODE, &PatchParams::default(), &patch).await?;
    Ok(())
}

type Labels = BTreeSet<String>;

/// What the page lists of a metric.
struct Documented {
    kind: String,
    labels: Labels,
}

/// The page.
struct Reference {
    metrics: BTreeMap<String, Documented>,
    /// The values that a label may have, for those of which all are named.
    values: BTreeMap<String, Labels>,
}

impl Reference {
    fn read() -> Result<Self> {
        let (mut metrics, mut values) = (BTreeMap::new(), BTreeMap::new());
        let words = |text: &str| {
            let words = text.split(", ").filter(|word| !word.is_empty());
            words.map(str::to_owned).collect::<Labels>()
        };
        for line in REFERENCE.lines() {
            if let Some(row) = line.strip_prefix("| `") {
                let cells: Vec<&str> = row.split(" | ").collect();
                let [name, kind, labels, _] = cells[..] else {
                    bail!("{line}");
                };
                let name = name.trim_end_matches('`').to_owned();
                let (kind, labels) = (kind.to_owned(), words(labels.trim()));
                metrics.insert(name, Documented { kind, labels });
            } else if let Some((label, all)) = line
                .strip_prefix("- `")
                .and_then(|line| line.split_once("` is one of: "))
            {
                values.insert(label.to_owned(), words(all.trim_end_matches('.')));
            }
        }
        ensure!(
            metrics.len() > 20 && values.len() > 2,
            "the page: {values:?}"
        );
        Ok(Self { metrics, values })
    }

    fn compare(&self, scrape: &Scrape) -> Result<()> {
        for name in scrape.samples.keys() {
            ensure!(self.metrics.contains_key(name), "{name} is not documented");
        }
        for (name, documented) in &self.metrics {
            let family = name.trim_end_matches("_total");
            let kind = scrape.kinds.get(family);
            ensure!(
                kind == Some(&documented.kind),
                "{name}: {kind:?}, documented {}",
                documented.kind
            );
            let samples = scrape.samples.get(name);
            let samples = samples.with_context(|| format!("{name} has no sample"))?;
            for labels in samples {
                let names: Labels = labels.keys().cloned().collect();
                ensure!(
                    names == documented.labels,
                    "{name}: {names:?}, documented {:?}",
                    documented.labels
                );
                for (label, value) in labels {
                    let all = self.values.get(label);
                    ensure!(
                        all.is_none_or(|all| all.contains(value)),
                        "{name}: {label}={value} is not documented"
                    );
                }
            }
        }
        let families: BTreeSet<_> = scrape.kinds.keys().map(String::as_str).collect();
        let documented = self
            .metrics
            .keys()
            .map(|name| name.trim_end_matches("_total"));
        let documented: BTreeSet<_> = documented.collect();
        ensure!(families == documented, "{families:?}, not {documented:?}");
        Ok(())
    }
}

/// An `OpenMetrics` text.
struct Scrape {
    /// By family.
    kinds: BTreeMap<String, String>,
    /// By the name that a reference has: a histogram's parts are one.
    samples: BTreeMap<String, Vec<BTreeMap<String, String>>>,
}

impl Scrape {
    fn read(text: &str) -> Result<Self> {
        let (mut kinds, mut samples) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        let body = text.strip_suffix("# EOF\n").context("no end")?;
        for line in body.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (family, kind) = kind.split_once(' ').context("a type")?;
                let before = kinds.insert(family.to_owned(), kind.to_owned());
                ensure!(before.is_none(), "{family} twice");
            } else if !line.starts_with('#') {
                let (name, labels) = sample(line)?;
                samples.entry(base(&name, &kinds)).or_default().push(labels);
            }
        }
        Ok(Self { kinds, samples })
    }
}

/// Of a histogram's part the family, of anything else the name.
fn base(name: &str, kinds: &BTreeMap<String, String>) -> String {
    let parts = ["_bucket", "_sum", "_count"];
    let mut families = parts.iter().filter_map(|part| name.strip_suffix(part));
    let family = families.find(|family| kinds.get(*family).is_some_and(|k| k == "histogram"));
    family.unwrap_or(name).to_owned()
}

/// Name and labels of a sample; the bound of a histogram's bucket aside.
fn sample(line: &str) -> Result<(String, BTreeMap<String, String>)> {
    let (series, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
    let _: f64 = value.parse().with_context(|| line.to_owned())?;
    let Some((name, labels)) = series.split_once('{') else {
        return Ok((series.to_owned(), BTreeMap::new()));
    };
    let labels = labels.strip_suffix('}').with_context(|| line.to_owned())?;
    let pairs = labels.split(',').map(|pair| {
        let (label, value) = pair.split_once('=').with_context(|| line.to_owned())?;
        Ok((label.to_owned(), value.trim_matches('"').to_owned()))
    });
    let mut labels = pairs.collect::<Result<BTreeMap<_, _>>>()?;
    labels.remove("le");
    Ok((name.to_owned(), labels))
}
