//! Pods with MIG instances come and go on eight A100 with dynamic MIG, through the scheduler's
//! ledger: how much of the requests is refused. Poisson arrivals, exponential run times,
//! 40/25/18/10/7 % of 1, 2, 3, 4 and 7 slices; a load of 1 requests all compute slices. The run
//! fails when an instance overlaps one of a running pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::{self, Gpu, Health, Inventory, Mode};
use aliquot_core::ledger::NotReserved;
use aliquot_core::mig::published::{DynamicMig, Mig};
use aliquot_core::mig::{Geometry, Instance, resource, table};
use aliquot_core::node::NodePublication;
use aliquot_core::score::Policies;
use aliquot_core::{
    ContainerDemand, Demand, DeviceRules, GpuRequest, HostResources, Ledger, Memory, Mib, Percent,
    PodUid, Stage, allocation,
};
use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result, bail, ensure};

const MODEL: &str = "NVIDIA A100-SXM4-40GB";
const GPUS: u32 = 8;
const SEEDS: u32 = 48;
const ARRIVALS: u32 = 8_000;
/// Profiles, and how many of 100 requests are for them.
const MIX: [(&str, u32); 5] = [
    ("1g.5gb", 40),
    ("2g.10gb", 25),
    ("3g.20gb", 18),
    ("4g.20gb", 10),
    ("7g.40gb", 7),
];
/// Loads in percent, and the percentage that the best published algorithm refuses.
const LOADS: [(u32, f64); 3] = [(60, 5.4), (85, 17.6), (110, 30.3)];

/// The mean of all seeds, for each load.
pub(crate) fn measure() -> Result<Vec<Figure>> {
    let geometry = table::geometry(MODEL).context("a known model")?;
    let mut figures = Vec::new();
    for (load, published) in LOADS {
        let seeds = (1..=SEEDS).map(|seed| run(&geometry, load, seed));
        let refused = seeds.collect::<Result<Vec<f64>>>()?;
        let mean = refused.iter().sum::<f64>() / f64::from(SEEDS);
        figures.push(Figure {
            name: format!("mig_refused_{load}"),
            value: mean,
            unit: "%",
            baseline: published,
            what: format!(
                "requested compute slices that are refused at load {load} %, {SEEDS} seeds; baseline: the best published row"
            ),
        });
    }
    Ok(figures)
}

/// The percentage that one seed gives.
fn run(geometry: &Geometry, load: u32, seed: u32) -> Result<f64> {
    let compute = |name: &str| {
        let at = geometry.find(name).context("a profile of the GPU")?;
        anyhow::Ok(f64::from(geometry.profiles()[at].compute))
    };
    let mut mean = 0.0;
    for (name, of) in MIX {
        mean += compute(name)? * f64::from(of) / 100.0;
    }
    let slices = f64::from(GPUS) * f64::from(geometry.compute());
    let pause = mean / (slices * f64::from(load) / 100.0);
    let mut random = fastrand::Rng::with_seed(seed.into());
    let mut node = Node::new(geometry);
    let mut ends: BTreeMap<(u128, u32), (PodUid, usize, Instance)> = BTreeMap::new();
    let (mut now, mut requested, mut refused) = (0, 0.0, 0.0);
    for arrival in 0..ARRIVALS {
        now += exponential(&mut random, pause);
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
            let (pod, gpu_index, instance) = end.remove();
            node.release(&pod, gpu_index, instance);
        }
        let name = pick(&mut random)?;
        requested += compute(name)?;
        let pod: PodUid = format!("p{arrival}").into();
        match node.reserve(&pod, name)? {
            Some((gpu_index, instance)) => {
                let end = now + exponential(&mut random, 1.0);
                ends.insert((end, arrival), (pod, gpu_index, instance));
            }
            None => refused += compute(name)?,
        }
    }
    Ok(100.0 * refused / requested)
}

/// Nanoseconds with this mean in seconds.
fn exponential(random: &mut fastrand::Rng, mean: f64) -> u128 {
    let part = 1.0 - random.f64();
    Duration::from_secs_f64(-part.ln() * mean).as_nanos()
}

fn pick(random: &mut fastrand::Rng) -> Result<&'static str> {
    let mut at = random.u32(0..100);
    for (name, of) in MIX {
        if at < of {
            return Ok(name);
        }
        at -= of;
    }
    bail!("the mix makes 100")
}

/// The ledger of one node, and the instances of its pods.
struct Node {
    geometry: Geometry,
    ledger: Ledger,
    policies: Policies,
    instances: Vec<Vec<Instance>>,
}

impl Node {
    fn new(geometry: &Geometry) -> Self {
        let gpu = |index: u32| Gpu {
            uuid: format!("GPU-{index}").into(),
            index,
            model: MODEL.to_owned(),
            memory: Mib(40_960),
            scaled: Mib(40_960),
            cores: Percent::WHOLE,
            replicas: 0,
            mode: Mode::Mig,
            resource: "nvidia.com/gpu".to_owned(),
            numa: None,
            health: Health::Ok,
            links: BTreeMap::new(),
            mig: Some(Mig::Dynamic(DynamicMig {
                geometry: geometry.clone(),
                instances: Vec::new(),
                reserved: Vec::new(),
            })),
            cordon: None,
            even_share: None,
            strict: false,
            reserved: Vec::new(),
        };
        let inventory = Inventory {
            v: inventory::VERSION,
            reads: vec![allocation::VERSION],
            driver: String::new(),
            topology_policy: String::new(),
            topology_scope: inventory::TopologyScope::default(),
            gpus: (0..GPUS).map(gpu).collect(),
            lingering: Vec::new(),
            foreign: Vec::new(),
            refused: Vec::new(),
            evict: Vec::new(),
            unmeasured: Vec::new(),
            unreadable: Vec::new(),
            resizes: Vec::new(),
        };
        let published = NodePublication {
            inventory: Some(Arc::new(inventory)),
            ..NodePublication::default()
        };
        let mut ledger = Ledger::default();
        ledger.publish(&"n".into(), Some(published));
        Self {
            geometry: geometry.clone(),
            ledger,
            policies: Policies::default(),
            instances: (0..GPUS).map(|_| Vec::new()).collect(),
        }
    }

    /// The GPU and the instance that the ledger reserves; `None`: it refuses.
    fn reserve(&mut self, pod: &PodUid, profile: &str) -> Result<Option<(usize, Instance)>> {
        let (namespace, name) = ("d".into(), "n".into());
        let demand = demand(profile);
        let given = self
            .ledger
            .reserve(pod, &namespace, &name, &demand, &self.policies);
        let given = match given {
            Ok(given) => given,
            Err(NotReserved::Refused(_)) => return Ok(None),
            Err(NotReserved::AlreadyAllocated(node)) => {
                bail!("{pod} already has an allocation on {node}")
            }
        };
        let grant = given.all().flat_map(|(_, grants)| grants).next();
        let grant = grant.context("a grant")?;
        let place = grant.mig.as_ref().context("an instance")?;
        let instance = self
            .geometry
            .instance(place)
            .context("an instance of the GPU")?;
        let gpu_index = grant.gpu.as_str().trim_start_matches("GPU-");
        let gpu_index: usize = gpu_index.parse().context("a GPU index")?;
        let running = &mut self.instances[gpu_index];
        let open: Vec<u8> = self.geometry.starts(instance.profile, running).collect();
        let free = open.contains(&instance.start);
        ensure!(free, "{place:?} overlaps a running instance: {running:?}");
        running.push(instance);
        Ok(Some((gpu_index, instance)))
    }

    fn release(&mut self, pod: &PodUid, gpu_index: usize, instance: Instance) {
        self.ledger.release(pod);
        self.instances[gpu_index].retain(|one| *one != instance);
    }
}

fn demand(profile: &str) -> Demand {
    let ask = GpuRequest {
        resource: 1,
        written: aliquot_core::request::WrittenAmounts::default(),
        ..GpuRequest::of(1, Memory::Share(Percent::WHOLE), Percent(0))
    };
    Demand {
        namespace: "d".into(),
        resources: vec!["nvidia.com/gpu".into(), resource(profile).into()],
        containers: vec![ContainerDemand {
            name: "main".to_owned(),
            stage: Stage::App,
            requests: vec![ask],
        }],
        host: HostResources::default(),
        priority: 1,
        node_policy: None,
        gpu_policy: None,
        rules: DeviceRules::default(),
    }
}
