//! The scheduler's ledger as it reports it, and as the allocations of the bound pods give it: the
//! two must agree, and no GPU may be overcommitted.
//!
//! Sums are added up here from the annotations alone, without the product's ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_core::Allocation;
use aliquot_core::inventory::{INVENTORY, Inventory};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::http;
use crate::pods::allocation;
use crate::pool::node_of;
use crate::stack::{Kind, Stack};

/// The scheduler of pods with shares.
const SCHEDULER: &str = "aliquot-scheduler";
/// Within this time the ledger sees that the last scenario's pods are gone.
const EMPTIED: Duration = Duration::from_secs(30);

/// What is allocated on a GPU, or its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Shares.
    pub replicas: u64,
    /// MiB.
    pub memory: u64,
    /// Percent.
    pub cores: u64,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.replicas += other.replicas;
        self.memory += other.memory;
        self.cores += other.cores;
    }
}

impl Amount {
    /// No more of anything than `total`.
    pub fn within(self, total: Self) -> bool {
        self.replicas <= total.replicas && self.memory <= total.memory && self.cores <= total.cores
    }

    fn read(amount: &Value) -> Result<Self> {
        let number = |field| amount[field].as_u64().with_context(|| amount.to_string());
        Ok(Self {
            replicas: number("replicas")?,
            memory: number("memory")?,
            cores: number("cores")?,
        })
    }
}

/// A ledger, whichever its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerSummary {
    /// Pod uid to its node and what it has of each GPU.
    pub pods: BTreeMap<String, (String, BTreeMap<String, Amount>)>,
    /// GPUs with allocations, by uuid.
    pub gpus: BTreeMap<String, Amount>,
    /// Pods whose Binding the scheduler's watch has not shown.
    pub reserved: BTreeSet<String>,
}

/// What an allocation takes of each GPU.
pub fn amounts_by_gpu(allocation: &Allocation) -> BTreeMap<String, Amount> {
    let mut amounts: BTreeMap<String, Amount> = BTreeMap::new();
    for grant in allocation.all().flat_map(|(_, grants)| grants) {
        *amounts.entry(grant.gpu.to_string()).or_default() += Amount {
            replicas: 1,
            memory: grant.memory.0,
            cores: u64::from(grant.cores.0),
        };
    }
    amounts
}

/// What the scheduler at this address states.
pub async fn reported_ledger(address: SocketAddr) -> Result<LedgerSummary> {
    let text = http::get(address, "/ledger").await?;
    let report: Value = serde_json::from_str(&text)?;
    let mut ledger = LedgerSummary::default();
    for (uid, pod) in report["pods"].as_object().context("pods")? {
        let gpus = pod["gpus"].as_object().context("readable allocations")?;
        let amounts = gpus
            .iter()
            .map(|(gpu, amount)| Ok((gpu.clone(), Amount::read(amount)?)));
        let amounts: Result<_> = amounts.collect();
        let node = pod["node"].as_str().context("node")?.to_owned();
        ledger.pods.insert(uid.clone(), (node, amounts?));
        if pod["confirmed"] == false {
            ledger.reserved.insert(uid.clone());
        }
    }
    for node in report["nodes"].as_object().context("nodes")?.values() {
        for gpu in node["gpus"].as_array().into_iter().flatten() {
            let (uuid, used) = (&gpu["uuid"], Amount::read(&gpu["used"])?);
            if used != Amount::default() {
                let uuid = uuid.as_str().context("uuid")?.to_owned();
                ledger.gpus.insert(uuid, used);
            }
        }
    }
    Ok(ledger)
}

impl Stack {
    /// Checks that nothing is allocated: what counts the whole ledger starts here.
    pub async fn ledger_is_empty(&self) -> Result<()> {
        eventually(EMPTIED, "an empty ledger at the start", || async {
            let ledger = self.scheduler_ledger().await?;
            until!(ledger == LedgerSummary::default(), "{ledger:?}");
            Ok(Some(()))
        })
        .await
    }

    /// What the scheduler states.
    pub async fn scheduler_ledger(&self) -> Result<LedgerSummary> {
        reported_ledger(self.address(Kind::Scheduler)).await
    }

    /// The ledger by the annotations of the pods that exist. Fails on a half state: an allocation
    /// without a node, a node that our scheduler's pod got without an allocation, or two that differ.
    pub async fn annotated_ledger(&self) -> Result<LedgerSummary> {
        let pods: Api<Pod> = Api::all(self.cluster.admin()?);
        let mut ledger = LedgerSummary::default();
        for pod in pods.list(&ListParams::default()).await?.items {
            let meta = &pod.metadata;
            let Some(node) = node_of(&pod) else {
                ensure!(
                    allocation(&pod).is_err(),
                    "{:?} is unbound with an allocation",
                    meta.name
                );
                continue;
            };
            let scheduler = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref());
            if scheduler != Some(SCHEDULER) && allocation(&pod).is_err() {
                continue; // it has no share
            }
            let allocation = allocation(&pod)?;
            ensure!(
                allocation.node.as_str() == node,
                "{:?} is on {node}, its shares are not",
                meta.name
            );
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            if matches!(phase, Some("Succeeded" | "Failed")) {
                continue; // it has released its share
            }
            let amounts = amounts_by_gpu(&allocation);
            for (gpu, amount) in &amounts {
                *ledger.gpus.entry(gpu.clone()).or_default() += *amount;
            }
            let uid = meta.uid.clone().context("a uid")?;
            ledger.pods.insert(uid, (node.to_owned(), amounts));
        }
        Ok(ledger)
    }

    /// The capacity of every GPU, by uuid.
    pub async fn capacity(&self) -> Result<BTreeMap<String, Amount>> {
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        let mut gpus = BTreeMap::new();
        for node in nodes.list(&ListParams::default()).await?.items {
            let annotations = node.metadata.annotations.unwrap_or_default();
            let Some(text) = annotations.get(INVENTORY) else {
                continue;
            };
            for gpu in Inventory::decode(text)?.gpus {
                let amount = Amount {
                    replicas: gpu.replicas.into(),
                    memory: gpu.scaled.0,
                    cores: gpu.cores.0.into(),
                };
                gpus.insert(gpu.uuid.to_string(), amount);
            }
        }
        Ok(gpus)
    }

    /// Waits until the scheduler reports what the pods' annotations give, with nothing else
    /// reserved, and checks that no GPU is overcommitted.
    pub async fn ledger_agrees(&self) -> Result<LedgerSummary> {
        let (ledger, gpus) = eventually(PATIENCE, "the ledger to match the pods", || async {
            let (annotated, reported) = (
                self.annotated_ledger().await?,
                self.scheduler_ledger().await?,
            );
            until!(
                annotated == reported,
                "pods {annotated:?}, ledger {reported:?}"
            );
            // A scenario beside this one may have removed its nodes meanwhile.
            let capacity = self.capacity().await?;
            let gpus = annotated.gpus.iter().map(|(gpu, used)| {
                let total = capacity.get(gpu).with_context(|| format!("no GPU {gpu}"));
                Ok((gpu.clone(), *used, *total?))
            });
            let gpus = gpus.collect::<Result<Vec<_>>>().or_not_yet()?;
            Ok(Some((annotated, gpus)))
        })
        .await?;
        for (gpu, used, total) in gpus {
            ensure!(used.within(total), "{gpu}: {used:?} of {total:?} allocated");
        }
        Ok(ledger)
    }
}
