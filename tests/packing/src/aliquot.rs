//! Aliquot itself as a policy, with the scheduler's own code from `aliquot-core`.
//!
//! A pod goes through the same steps as in a cluster: nodes with enough CPU and memory
//! (kube-scheduler's part), filter with its shortlist, prioritize with its ranks, the node with the
//! highest rank, and a reservation in the ledger. A thousandth of a GPU is requested as a tenth of a
//! percent of its memory and of its compute.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::decide::{self, Memo, NodeQuery};
use aliquot_core::inventory::{Gpu, Inventory};
use aliquot_core::node::NodePublication;
use aliquot_core::policy::MAX_KEYS;
use aliquot_core::rules::Model;
use aliquot_core::score::Policies;
use aliquot_core::typical::{Census, PodShape as Typed};
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{
    ContainerDemand, Demand, DeviceRules, GpuPolicy, GpuRequest, GpuUuid, HostResources, Ledger,
    Memory, Mib, MilliCpu, Percent, Policy, Stage,
};
use fastrand::Rng;

use crate::experiment::{Choice, Placer};
use crate::hami::{least_allocated, least_allocated_score};
use crate::trace::{PodRow, Trace};
use crate::workload::{Node, Pod};

/// Enough to have ranks in play. The scheduler's default of 1 places alike: only
/// one node ranks 10.
const SHORTLIST: usize = 64;
/// What one rank is worth beside the scores of other plugins: 10 times the
/// weight of the extender in the shipped profile.
const RANK: u64 = 400;
/// Pods placed between two updates from the ledger: of the typical pods, or only of what is free.
const LEARN_INTERVAL: u64 = 100;
const RESOURCE: &str = "nvidia.com/gpu";

/// Who places pods that request no GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuOnly {
    /// The shipped profile with the CPU-only entry.
    Ranked,
    /// A scheduler without Aliquot: `LeastAllocated`.
    LeastAllocated,
    /// `LeastAllocated` together with the CPU-only entry.
    LeastAllocatedAndRanked,
}

/// Where the typical pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypicalSource {
    /// The trace, from the start, as in the published experiment.
    Trace,
    /// The pods in the ledger, as in a cluster; an assumed mix before the first.
    Ledger,
}

/// Who chooses the GPUs on a node. The node's score is that of the GPUs which it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    /// Aliquot's default policy.
    Ours,
    /// kube-scheduler's allocator of DRA devices, which takes the first that fit in the order of the
    /// driver's list: by index.
    FirstFit,
    /// The same allocator, and a driver that lists the fullest GPU first.
    FullestFirst,
}

impl GpuChoice {
    fn policy(self) -> GpuPolicy {
        match self {
            Self::Ours => Policy::Fragmentation.into(),
            // Without a key, only the index decides.
            Self::FirstFit => GpuPolicy {
                keys: [None; MAX_KEYS],
                idle: false,
                links: false,
            },
            Self::FullestFirst => Policy::Binpack.into(),
        }
    }
}

/// How Aliquot runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Who places pods that request no GPU.
    pub cpu_only: CpuOnly,
    /// Where the typical pods come from.
    pub typical: TypicalSource,
    /// Who chooses the GPUs on a node.
    pub gpus: GpuChoice,
}

/// Aliquot with its ledger.
pub struct Aliquot<'a> {
    trace: &'a Trace,
    manner: Manner,
    policies: Policies,
    /// What is known of the pods from the start.
    known: Option<Census>,
    ledger: Ledger,
    memo: Memo,
    demands: HashMap<(usize, u32), Demand>,
    placed: u64,
    rng: Rng,
}

/// A trace has no namespaces and no quotas.
const NAMESPACE: &str = "trace";

impl<'a> Aliquot<'a> {
    /// On empty nodes. `seed` breaks ties of kube-scheduler, which does so at random.
    pub fn new(trace: &'a Trace, nodes: &[Node], manner: Manner, seed: u64) -> Self {
        let mut census = Census::default();
        if manner.typical == TypicalSource::Trace {
            trace
                .pods
                .iter()
                .for_each(|pod| count(trace, &mut census, pod));
        }
        let mut ledger = Ledger::default();
        for node in nodes {
            ledger.publish(&node.name.as_str().into(), Some(published(trace, node)));
        }
        Self {
            trace,
            manner,
            policies: Policies {
                node: Policy::Fragmentation,
                gpu: manner.gpus.policy(),
                typical: Arc::new(census.typical()),
            },
            known: (manner.typical == TypicalSource::Trace).then_some(census),
            ledger,
            memo: Memo::default(),
            demands: HashMap::new(),
            placed: 0,
            rng: Rng::with_seed(seed),
        }
    }

    fn learn(&mut self) {
        let mut census = Census::default();
        for (_, name, _) in self.ledger.cluster().iter() {
            self.ledger.count_pods(name, &mut census);
        }
        if let Some(known) = &self.known {
            let free = census.balance.free;
            census = known.clone();
            census.balance.free = free;
        }
        let typical = census.typical();
        if self.policies.typical.differs(&typical) {
            self.policies.typical = Arc::new(typical);
        }
    }

    fn gpu(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        let known = self.demands.entry((pod.kind, pod.memory));
        let demand = known.or_insert_with(|| demand(self.trace, pod));
        let room = |node: &&Node| node.has_room(pod);
        let names: Vec<&str> = nodes.iter().filter(room).map(|n| n.name.as_str()).collect();
        let question = NodeQuery {
            cluster: self.ledger.cluster(),
            demand,
            policies: &self.policies,
            without_own: None,
            headroom: None,
        };
        let short = decide::best(&question, &mut self.memo, &names, SHORTLIST).ok()?;
        let ranks = decide::ranks(&question, &mut self.memo, &short);
        let (best, _) = ranks.into_iter().max_by_key(|(_, rank)| *rank)?;
        let node = nodes.iter().position(|node| node.name == best)?;
        self.placed += 1;
        let uid = self.placed.to_string().into();
        let name = best.into();
        let allocation = self
            .ledger
            .reserve(&uid, &NAMESPACE.into(), &name, demand, &self.policies)
            .ok()?;
        let grants = allocation.containers.into_values().flatten();
        let mut gpus: Vec<usize> = grants.filter_map(|grant| gpu_index(&grant.gpu)).collect();
        gpus.sort_unstable();
        Some(Choice { node, gpus })
    }

    fn cpu_only(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        let choice = match self.manner.cpu_only {
            CpuOnly::LeastAllocated => least_allocated(nodes, pod)?,
            CpuOnly::Ranked => self.ranked(nodes, pod, |_| 0)?,
            CpuOnly::LeastAllocatedAndRanked => {
                self.ranked(nodes, pod, |node| least_allocated_score(node, pod))?
            }
        };
        self.placed += 1;
        let uid = self.placed.to_string().into();
        let name = nodes[choice.node].name.as_str().into();
        self.ledger.confirm(
            &uid,
            &NAMESPACE.into(),
            &name,
            AllocatedUse::nothing(),
            host(pod),
        );
        Some(choice)
    }

    /// The highest sum of rank and other score; one of the best by chance.
    fn ranked(
        &mut self,
        nodes: &[Node],
        pod: &Pod,
        other: impl Fn(&Node) -> u64,
    ) -> Option<Choice> {
        let room: Vec<usize> = (0..nodes.len())
            .filter(|&n| nodes[n].has_room(pod))
            .collect();
        let names: Vec<&str> = room.iter().map(|&n| nodes[n].name.as_str()).collect();
        let (cluster, typical) = (self.ledger.cluster(), &self.policies.typical);
        let ranks = decide::cpu_only_ranks(cluster, typical, host(pod), &names);
        let sums = room.iter().zip(ranks).map(|(&node, rank)| {
            let rank = u64::try_from(rank).unwrap_or(0);
            (RANK * rank + other(&nodes[node]), node)
        });
        let sums: Vec<(u64, usize)> = sums.collect();
        let (most, _) = sums.iter().max()?;
        let best: Vec<usize> = sums.iter().filter(|s| s.0 == *most).map(|s| s.1).collect();
        Some(Choice {
            node: self.rng.choice(best)?,
            gpus: Vec::new(),
        })
    }
}

impl Placer for Aliquot<'_> {
    fn choose(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        if self.placed.is_multiple_of(LEARN_INTERVAL) {
            self.learn();
        }
        if pod.shape.gpus == 0 {
            self.cpu_only(nodes, pod)
        } else {
            self.gpu(nodes, pod)
        }
    }
}

fn count(trace: &Trace, census: &mut Census, pod: &PodRow) {
    let is = |model: &str| Model::Is(model.to_owned());
    let rules = DeviceRules {
        use_models: trace.names(pod.shape.models).map(is).collect(),
        ..DeviceRules::default()
    };
    census
        .balance
        .ask(rules.models().as_ref(), pod.shape.request().into());
    let shape = Typed {
        cpu: MilliCpu(pod.shape.cpu.into()),
        count: pod.shape.gpus,
        memory: Memory::Share(percent(pod.shape.milli)),
        cores: percent(pod.shape.milli),
    };
    census.add(shape, Mib(pod.memory.into()));
}

fn percent(milli: u32) -> Percent {
    Percent(milli / 10)
}

fn host(pod: &Pod) -> HostResources {
    HostResources {
        cpu: MilliCpu(pod.shape.cpu.into()),
        memory: Mib(pod.memory.into()),
    }
}

fn demand(trace: &Trace, pod: &Pod) -> Demand {
    let part = percent(pod.shape.milli);
    let ask = GpuRequest::new(pod.shape.gpus, Memory::Share(part), part);
    let is = |model: &str| Model::Is(model.to_owned());
    Demand {
        namespace: "".into(),
        resources: vec![RESOURCE.into()],
        containers: vec![ContainerDemand {
            name: "main".to_owned(),
            stage: Stage::App,
            requests: vec![ask],
        }],
        host: host(pod),
        priority: 1,
        node_policy: None,
        gpu_policy: None,
        rules: DeviceRules {
            use_models: trace.names(pod.shape.models).map(is).collect(),
            ..DeviceRules::default()
        },
    }
}

fn published(trace: &Trace, node: &Node) -> NodePublication {
    let gpu = |index: u32| {
        let uuid = format!("GPU-{index}").into();
        let model = trace.names(node.model).collect();
        Gpu {
            replicas: 100,
            resource: RESOURCE.to_owned(),
            ..Gpu::vgpu(uuid, index, model, Mib(40_000))
        }
    };
    let count = u32::try_from(node.gpus.len()).unwrap_or(0);
    let inventory = Inventory::new((0..count).map(gpu).collect());
    NodePublication {
        inventory: Some(Arc::new(inventory)),
        allocatable: HostResources {
            cpu: MilliCpu(node.cpu.0.into()),
            memory: Mib(node.memory.0.into()),
        },
        ..NodePublication::default()
    }
}

fn gpu_index(uuid: &GpuUuid) -> Option<usize> {
    uuid.as_str().strip_prefix("GPU-")?.parse().ok()
}
