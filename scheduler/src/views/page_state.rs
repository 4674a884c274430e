//! What the page shows of the ledger, in editions: a browser first gets all of it, and then what
//! changed since its last edition. A node's text is made anew only when the node or its pods
//! changed, so that ten viewers cost what one does.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_core::explain::{RequestedShare, container_requests};
use aliquot_core::inventory::{Health, Mode};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::quota::LimitedResource;
use aliquot_core::top::{DeviceAmount, GpuTop, InstanceTop, NodeTop};
use aliquot_core::{Cluster, GpuUuid, Inventory, Ledger, NodeName};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use tokio::time::Instant;

use super::hour::{self, Hour, Point};
use super::slots_by_name;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::bound_pods::BoundPods;
use crate::ledger_cache::pending_pods::PendingPod;

/// Maximum number of pending pods listed; the others are counted.
const MAX_PENDING: usize = 500;
/// An edition is made no sooner than this after the one before.
const INTERVAL: Duration = Duration::from_secs(2);
/// Nodes that are compared under one lock of the ledger.
const TOGETHER: usize = 64;

/// The state of the page.
pub(super) struct Editions {
    /// Other replicas, and this one after a restart, count anew.
    process: u128,
    edition: u64,
    updated: Option<Instant>,
    nodes: BTreeMap<NodeName, Part>,
    rest: Part,
}

/// A text, with the edition in which it changed last.
#[derive(Default)]
struct Part {
    /// Of what it was made from.
    hash: u64,
    edition: u64,
    /// Empty for a node that is gone.
    text: String,
}

#[derive(Serialize)]
struct Rest {
    /// This replica leads; others do not know why pods were refused.
    leads: bool,
    waiting: Vec<WaitingShown>,
    more_waiting: usize,
    /// What pending pods request beyond what is allocated.
    asked: DeviceAmount,
    hour: Vec<Point>,
    quotas: Vec<QuotaShown>,
}

#[derive(Serialize)]
struct NodeShown {
    node: NodeName,
    closed: Option<String>,
    gpus: Vec<GpuShown>,
}

#[derive(Serialize)]
struct GpuShown {
    gpu: GpuUuid,
    index: u32,
    model: String,
    mode: Mode,
    closed: Option<String>,
    /// What its node says about that, such as `xid 79`.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    total: DeviceAmount,
    used: DeviceAmount,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceTop>,
    shares: Vec<PageShare>,
}

#[derive(Clone, Serialize)]
struct PageShare {
    #[serde(skip)]
    gpu: String,
    namespace: String,
    pod: String,
    #[serde(flatten)]
    amount: DeviceAmount,
    /// On a GPU with dynamic MIG: profile and start of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    confirmed: bool,
}

#[derive(Serialize)]
struct WaitingShown {
    namespace: String,
    pod: String,
    requests: Vec<RequestedShare>,
    /// In the pod's annotation.
    annotated: bool,
    since: Option<Time>,
    times: u32,
    text: Option<String>,
}

#[derive(Serialize)]
struct QuotaShown {
    namespace: String,
    quota: String,
    resource: &'static str,
    /// `None` while the allocation of one of its pods cannot be read.
    used: Option<u64>,
    limit: u64,
}

impl Default for Editions {
    fn default() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            process: started.unwrap_or_default().as_nanos(),
            edition: 0,
            updated: None,
            nodes: BTreeMap::new(),
            rest: Part::default(),
        }
    }
}

impl Editions {
    /// Makes an edition of what changed, unless the last one is new.
    pub(super) fn update(&mut self, cache: &LedgerCache, hour: &Hour, leads: bool, now: Instant) {
        if self.updated.is_some_and(|then| then + INTERVAL > now) {
            return;
        }
        self.updated = Some(now);
        self.edition += 1;
        let cluster = cache.snapshot();
        for (name, part) in &mut self.nodes {
            if cluster.node(name.as_str()).is_none() {
                part.hash = 0;
                part.set(String::new(), self.edition);
            }
        }
        for slots in slots_by_name(&cluster).chunks(TOGETHER) {
            self.update_nodes(cache, &cluster, slots);
        }
        let rest = rest(cache, &cluster, hour, leads);
        self.rest.set(encode(&rest), self.edition);
    }

    fn update_nodes(&mut self, cache: &LedgerCache, cluster: &Cluster, slots: &[usize]) {
        let changed: Vec<(usize, u64, Vec<PageShare>)> = {
            let state = cache.lock();
            let (ledger, bound_pods) = (&state.ledger, &state.bound_pods);
            let compared = slots.iter().filter_map(|slot| {
                let (name, _) = cluster.named(*slot)?;
                let mut hasher = DefaultHasher::new();
                cluster.version(*slot).hash(&mut hasher);
                for (uid, entry) in ledger.pods_on(name.as_str()) {
                    let shown = (entry.is_confirmed(), bound_pods.get(uid).is_some());
                    (uid, shown).hash(&mut hasher);
                }
                let hash = hasher.finish();
                let known = self.nodes.get(name).map(|part| part.hash);
                (known != Some(hash)).then(|| (*slot, hash, shares(ledger, bound_pods, name)))
            });
            compared.collect()
        };
        let cores = cache.settings().defaults.cores;
        for (slot, hash, shares) in changed {
            let Some((name, node)) = cluster.named(slot) else {
                continue;
            };
            let top = NodeTop::new(name, node, cores);
            let inventory = node.inventory.as_deref();
            let text = top.map_or_else(String::new, |top| encode(&shown(top, inventory, &shares)));
            let part = self.nodes.entry(name.clone()).or_default();
            part.hash = hash;
            part.set(text, self.edition);
        }
    }

    /// What changed since that edition; everything if it is not one of ours.
    pub(super) fn answer(&self, since: Option<&str>) -> String {
        let prefix = format!("{:x}-", self.process);
        let since = since.and_then(|text| text.strip_prefix(&prefix)?.parse::<u64>().ok());
        let is_news = |part: &&Part| since.is_none_or(|since| part.edition > since);
        let mut text = format!(
            "{{\"edition\":\"{prefix}{}\",\"all\":{}",
            self.edition,
            since.is_none()
        );
        if is_news(&&self.rest) {
            text.push_str(",\"rest\":");
            text.push_str(&self.rest.text);
        }
        let news = self.nodes.iter().filter(|(_, part)| is_news(part));
        let (gone, changed): (Vec<_>, Vec<_>) = news.partition(|(_, part)| part.text.is_empty());
        let gone: Vec<&NodeName> = gone.into_iter().map(|(name, _)| name).collect();
        let changed: Vec<&str> = changed.into_iter().map(|(_, part)| &*part.text).collect();
        text.push_str(",\"gone\":");
        text.push_str(&encode(&gone));
        text.push_str(",\"nodes\":[");
        text.push_str(&changed.join(","));
        text.push_str("]}");
        text
    }
}

impl Part {
    fn set(&mut self, text: String, edition: u64) {
        if self.text != text || self.edition == 0 {
            (self.text, self.edition) = (text, edition);
        }
    }
}

/// Text of a value that serde can always write.
fn encode(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot encode the page's state");
        "null".to_owned()
    })
}

fn rest(cache: &LedgerCache, cluster: &Cluster, hour: &Hour, leads: bool) -> Rest {
    let waiting: Vec<WaitingShown> = {
        let pods = &cache.lock().pending;
        let mut first: Vec<&PendingPod> = pods.values().map(|one| &**one).collect();
        first.sort_unstable_by_key(|one| (&one.pod.namespace, &one.pod.name));
        first.truncate(MAX_PENDING);
        first.into_iter().map(line).collect()
    };
    let more_waiting = cache.pending_counts().0.saturating_sub(waiting.len());
    let quotas = cache.read(|ledger| {
        let all = ledger.namespaces().quotas().into_iter();
        let lines = all.flat_map(|(namespace, (used, quotas))| {
            quotas.iter().flat_map(move |quota| {
                quota.limits.iter().map(move |limit| QuotaShown {
                    namespace: namespace.to_string(),
                    quota: quota.name.to_string(),
                    resource: match limit.on {
                        LimitedResource::Memory => "memory",
                        LimitedResource::Cores => "cores",
                    },
                    used: used
                        .on(limit.on)
                        .map(|used| u64::try_from(used).unwrap_or(u64::MAX)),
                    limit: limit.most.allowed(),
                })
            })
        });
        lines.collect()
    });
    Rest {
        leads,
        waiting,
        more_waiting,
        asked: hour::asked(cache, cluster).0,
        hour: hour.points(),
        quotas,
    }
}

/// Why a GPU is sick or cordoned, in its node's words.
fn why(inventory: Option<&Inventory>, gpu: &GpuUuid) -> Option<String> {
    let gpu = inventory?.gpus.iter().find(|one| one.uuid == *gpu)?;
    match &gpu.health {
        Health::Unhealthy(why) => Some(why.clone()),
        Health::Ok => gpu.cordon.clone(),
    }
}

fn shown(top: NodeTop, inventory: Option<&Inventory>, shares: &[PageShare]) -> NodeShown {
    let gpu = |top: GpuTop| GpuShown {
        shares: shares
            .iter()
            .filter(|share| share.gpu == top.gpu.as_str())
            .cloned()
            .collect(),
        why: why(inventory, &top.gpu),
        gpu: top.gpu,
        index: top.index,
        model: top.model,
        mode: top.mode,
        closed: top.closed,
        total: top.total,
        used: top.used,
        instances: top.instances,
    };
    NodeShown {
        node: top.node,
        closed: top.closed,
        gpus: top.gpus.into_iter().map(gpu).collect(),
    }
}

/// The shares on a node, sorted by the pods' names.
fn shares(ledger: &Ledger, bound_pods: &BoundPods, node: &NodeName) -> Vec<PageShare> {
    let mut found = Vec::new();
    for (uid, entry) in ledger.pods_on(node.as_str()) {
        let uses = entry.allocated.uses();
        let Some(uses) = uses.filter(|_| ledger.counts(uid, entry)) else {
            continue;
        };
        let bound = bound_pods.get(uid);
        let pod = bound.map_or_else(|| uid.to_string(), |bound| bound.pod.name.clone());
        for (device, used) in uses {
            let (gpu, placed) = MigPlacement::split_device_key(device);
            found.push(PageShare {
                gpu: gpu.to_owned(),
                namespace: entry.namespace.to_string(),
                pod: pod.clone(),
                amount: (*used).into(),
                instance: placed.map(|placed| format!("{}@{}", placed.profile, placed.start)),
                confirmed: entry.is_confirmed(),
            });
        }
    }
    found.sort_by_cached_key(|share| {
        let name = (share.namespace.clone(), share.pod.clone());
        (name, share.instance.clone())
    });
    found
}

fn line(waiting: &PendingPod) -> WaitingShown {
    let refusals = waiting.refusals.as_ref();
    WaitingShown {
        requests: container_requests(&waiting.demand),
        annotated: waiting.annotated,
        since: waiting.created.clone(),
        times: refusals.map_or(0, |refusals| refusals.times),
        text: refusals.map(|refusals| refusals.text.clone()),
        namespace: waiting.pod.namespace.clone(),
        pod: waiting.pod.name.clone(),
    }
}

#[cfg(test)]
#[path = "page_state_tests.rs"]
pub(super) mod tests;
