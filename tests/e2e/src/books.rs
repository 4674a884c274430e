//! The scheduler's books as it states them, and as the bound pods' allocations
//! have them: the two must agree, and no card may have promised too much.
//!
//! Fed by: `GET /books` and lists of pods. Must not: compute with the product's
//! ledger; sums are added up here from the annotations alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use aliquot_cluster::wait::{PATIENCE, eventually};
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

/// What was promised of a card, or can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Shares.
    pub seats: u64,
    /// MiB.
    pub memory: u64,
    /// Percent.
    pub cores: u64,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.seats += other.seats;
        self.memory += other.memory;
        self.cores += other.cores;
    }
}

impl Amount {
    /// No more of anything than `total`.
    pub fn within(self, total: Self) -> bool {
        self.seats <= total.seats && self.memory <= total.memory && self.cores <= total.cores
    }

    fn read(amount: &Value) -> Result<Self> {
        let number = |field| amount[field].as_u64().with_context(|| amount.to_string());
        Ok(Self {
            seats: number("seats")?,
            memory: number("memory")?,
            cores: number("cores")?,
        })
    }
}

/// Books, wherever they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Pod uid to its node and what it holds of each card.
    pub pods: BTreeMap<String, (String, BTreeMap<String, Amount>)>,
    /// Cards that promised something, by uuid.
    pub cards: BTreeMap<String, Amount>,
    /// Pods whose Binding the scheduler's watch has not shown.
    pub reserved: BTreeSet<String>,
}

/// What an allocation takes of each card.
pub fn held(allocation: &Allocation) -> BTreeMap<String, Amount> {
    let mut held: BTreeMap<String, Amount> = BTreeMap::new();
    for grant in allocation.all().flat_map(|(_, grants)| grants) {
        *held.entry(grant.gpu.to_string()).or_default() += Amount {
            seats: 1,
            memory: grant.memory.0,
            cores: u64::from(grant.cores.0),
        };
    }
    held
}

/// What the scheduler at this address states.
pub async fn stated(address: SocketAddr) -> Result<Books> {
    let text = http::get(address, "/books").await?;
    let stated: Value = serde_json::from_str(&text)?;
    let mut books = Books::default();
    for (uid, pod) in stated["bookings"].as_object().context("bookings")? {
        let gpus = pod["gpus"].as_object().context("readable allocations")?;
        let amounts = gpus
            .iter()
            .map(|(gpu, amount)| Ok((gpu.clone(), Amount::read(amount)?)));
        let amounts: Result<_> = amounts.collect();
        let node = pod["node"].as_str().context("node")?.to_owned();
        books.pods.insert(uid.clone(), (node, amounts?));
        if pod["confirmed"] == false {
            books.reserved.insert(uid.clone());
        }
    }
    for node in stated["nodes"].as_object().context("nodes")?.values() {
        for gpu in node["gpus"].as_array().into_iter().flatten() {
            let (uuid, used) = (&gpu["uuid"], Amount::read(&gpu["used"])?);
            if used != Amount::default() {
                let uuid = uuid.as_str().context("uuid")?.to_owned();
                books.cards.insert(uuid, used);
            }
        }
    }
    Ok(books)
}

impl Stack {
    /// What the scheduler states.
    pub async fn stated_books(&self) -> Result<Books> {
        stated(self.address(Kind::Scheduler)).await
    }

    /// What the pods that exist say. Fails on a half state: an allocation
    /// without a node, a node without an allocation, or two that differ.
    pub async fn written_books(&self) -> Result<Books> {
        let pods: Api<Pod> = Api::all(self.cluster.admin()?);
        let mut books = Books::default();
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
            let allocation = allocation(&pod)?;
            ensure!(
                allocation.node.as_str() == node,
                "{:?} is on {node}, its shares are not",
                meta.name
            );
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            if matches!(phase, Some("Succeeded" | "Failed")) {
                continue; // it holds nothing any more
            }
            let held = held(&allocation);
            for (gpu, amount) in &held {
                *books.cards.entry(gpu.clone()).or_default() += *amount;
            }
            let uid = meta.uid.clone().context("a uid")?;
            books.pods.insert(uid, (node.to_owned(), held));
        }
        Ok(books)
    }

    /// What every card may promise, by uuid.
    pub async fn capacity(&self) -> Result<BTreeMap<String, Amount>> {
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        let mut cards = BTreeMap::new();
        for node in nodes.list(&ListParams::default()).await?.items {
            let annotations = node.metadata.annotations.unwrap_or_default();
            let Some(text) = annotations.get(INVENTORY) else {
                continue;
            };
            for gpu in Inventory::decode(text)?.gpus {
                let amount = Amount {
                    seats: gpu.seats.into(),
                    memory: gpu.scaled.0,
                    cores: gpu.cores.0.into(),
                };
                cards.insert(gpu.uuid.to_string(), amount);
            }
        }
        Ok(cards)
    }

    /// Waits until the scheduler states what the pods say, with nothing
    /// reserved beside, and checks that no card promised more than it has.
    pub async fn books_agree(&self) -> Result<Books> {
        self.books_agree_within(PATIENCE).await
    }

    /// The same, and no later: an audit may mend them some time after.
    pub async fn books_agree_within(&self, patience: Duration) -> Result<Books> {
        let books = eventually(patience, "the books to agree with the pods", || async {
            let (written, stated) = (self.written_books().await?, self.stated_books().await?);
            ensure!(written == stated, "pods {written:?}, books {stated:?}");
            Ok(Some(written))
        })
        .await?;
        let capacity = self.capacity().await?;
        for (gpu, used) in &books.cards {
            let total = capacity
                .get(gpu)
                .with_context(|| format!("no card {gpu}"))?;
            ensure!(used.within(*total), "{gpu} promised {used:?} of {total:?}");
        }
        Ok(books)
    }
}
