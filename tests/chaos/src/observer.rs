//! Watches all pods in the API server: which node each is bound to, and whether the allocations on
//! a GPU exceed its capacity. It never asks the scheduler.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_e2e::ledger::{Amount, amounts_by_gpu};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::pool::node_of;
use anyhow::{Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::provoke::FORGED;

/// A pod as the last event had it.
#[derive(Clone, Debug, Default)]
pub struct PodSample {
    /// Its name.
    pub name: String,
    /// Where it is bound.
    pub node: Option<String>,
    /// What it has of each GPU.
    allocated: BTreeMap<String, Amount>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<String, PodSample>,
    /// What each pod has of each GPU.
    gpus: BTreeMap<String, BTreeMap<String, Amount>>,
    over: BTreeSet<String>,
    violations: Vec<String>,
    deleted: HashSet<String>,
    bindings: Vec<Instant>,
}

/// The watch and what it has shown. Clones share it.
#[derive(Clone, Debug)]
pub struct Observer {
    state: Arc<Mutex<State>>,
    capacity: Arc<BTreeMap<String, Amount>>,
}

impl Observer {
    /// Watches until `stop`. `capacity` is what each GPU has.
    pub fn start(
        client: Client,
        capacity: BTreeMap<String, Amount>,
        stop: CancellationToken,
    ) -> Self {
        let observer = Self {
            state: Arc::default(),
            capacity: Arc::new(capacity),
        };
        tokio::spawn(observer.clone().watch(client, stop));
        observer
    }

    async fn watch(self, client: Client, stop: CancellationToken) {
        let pods = watcher::watcher(Api::<Pod>::all(client), watcher::Config::default());
        let mut pods = pin!(pods);
        let mut listed = Vec::new();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = pods.next() => event,
            };
            let mut state = self.state.lock();
            match event {
                None => return,
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(pod))) => listed.push(pod),
                Some(Ok(Event::InitDone)) => {
                    state.pods.clear();
                    state.gpus.clear();
                    for pod in listed.drain(..) {
                        state.apply(&pod);
                    }
                }
                Some(Ok(Event::Apply(pod))) => state.apply(&pod),
                Some(Ok(Event::Delete(pod))) => {
                    state.remove(&uid(&pod));
                    state.deleted.extend(pod.metadata.name);
                }
                // The watcher lists again by itself.
                Some(Err(_)) => continue,
            }
            state.check_capacity(&self.capacity);
        }
    }

    /// The pods whose names have this prefix.
    pub fn pods(&self, begins: &str) -> Vec<PodSample> {
        let state = self.state.lock();
        let pods = state.pods.values();
        pods.filter(|pod| pod.name.starts_with(begins))
            .cloned()
            .collect()
    }

    /// The names of the pods with this prefix that were seen to be deleted.
    pub fn deleted(&self, begins: &str) -> HashSet<String> {
        let state = self.state.lock();
        let names = state.deleted.iter();
        names
            .filter(|name| name.starts_with(begins))
            .cloned()
            .collect()
    }

    /// The longest time without a binding between `from` and now, and how many
    /// bindings there were.
    pub fn pause(&self, from: Instant) -> (Duration, usize) {
        let state = self.state.lock();
        let bindings: Vec<_> = state.bindings.iter().filter(|at| **at >= from).collect();
        let mut last = from;
        let mut longest = Duration::ZERO;
        for at in &bindings {
            longest = longest.max(at.duration_since(last));
            last = **at;
        }
        (longest, bindings.len())
    }

    /// Fails when something has been seen that must never be.
    pub fn check(&self) -> Result<()> {
        let state = self.state.lock();
        ensure!(
            state.violations.is_empty(),
            "{}",
            state.violations.join("; ")
        );
        Ok(())
    }

    /// The GPUs with more allocated than they have, at this moment.
    pub fn overcommitted(&self) -> Vec<String> {
        self.state.lock().over.iter().cloned().collect()
    }
}

impl State {
    fn apply(&mut self, pod: &Pod) {
        let uid = uid(pod);
        let before = self.pods.get(&uid).and_then(|seen| seen.node.clone());
        self.remove(&uid);
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let node = node_of(pod).map(str::to_owned);
        let allocated = match allocation(pod) {
            Ok(allocation) if !ended => amounts_by_gpu(&allocation),
            _ => BTreeMap::new(),
        };
        for (gpu, amount) in &allocated {
            let holders = self.gpus.entry(gpu.clone()).or_default();
            holders.insert(uid.clone(), *amount);
        }
        if before.is_none() && node.is_some() {
            self.bindings.push(Instant::now());
        }
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.pods.insert(
            uid,
            PodSample {
                name,
                node,
                allocated,
            },
        );
    }

    fn remove(&mut self, uid: &str) {
        let Some(seen) = self.pods.remove(uid) else {
            return;
        };
        for gpu in seen.allocated.keys() {
            if let Some(holders) = self.gpus.get_mut(gpu) {
                holders.remove(uid);
            }
        }
    }

    fn check_capacity(&mut self, capacity: &BTreeMap<String, Amount>) {
        for (gpu, holders) in &self.gpus {
            let mut sum = Amount::default();
            for amount in holders.values() {
                sum += *amount;
            }
            let total = capacity.get(gpu).copied().unwrap_or_default();
            if sum.within(total) {
                self.over.remove(gpu);
                continue;
            }
            let seen = holders.keys().filter_map(|uid| self.pods.get(uid));
            let names: Vec<_> = seen.map(|seen| seen.name.as_str()).collect();
            let forged = names.iter().any(|name| name.starts_with(FORGED));
            if self.over.insert(gpu.clone()) && !forged {
                let violation = format!("{gpu}: {sum:?} of {total:?} allocated to {names:?}");
                self.violations.push(violation);
            }
        }
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}
