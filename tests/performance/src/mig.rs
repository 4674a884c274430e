//! Instances that come and go on eight A100 that are cut as pods come, through the
//! scheduler's books: how much of what is asked is refused. Poisson arrivals,
//! exponential times, 40/25/18/10/7 % of 1, 2, 3, 4 and 7 slices; a load of 1 asks for
//! all compute slices.
//!
//! Fed by: seeds. Must not: go on when an instance is given whose slices a running pod
//! holds; what pods hold is kept here, too, beside the books.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::fit::Policies;
use aliquot_core::inventory::{self, Gpu, Health, Inventory, Mode};
use aliquot_core::ledger::NotReserved;
use aliquot_core::mig::published::{Cut, Mig};
use aliquot_core::mig::{Geometry, Instance, resource, table};
use aliquot_core::node::Published;
use aliquot_core::{
    Ask, Compute, ContainerDemand, Demand, Ledger, Memory, Mib, Percent, PodUid, Rules, Stage,
    allocation,
};
use anyhow::{Context as _, Result, bail, ensure};

use crate::client::Figure;

const MODEL: &str = "NVIDIA A100-SXM4-40GB";
const CARDS: u32 = 8;
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
/// Loads in percent, and the percentage that the best choice in print refuses.
const LOADS: [(u32, f64); 3] = [(60, 5.4), (85, 17.6), (110, 30.3)];

/// The mean of all seeds, for each load.
pub(crate) fn measure() -> Result<Vec<Figure>> {
    let geometry = table::geometry(MODEL).context("a known model")?;
    let mut figures = Vec::new();
    for (load, printed) in LOADS {
        let seeds = (1..=SEEDS).map(|seed| run(&geometry, load, seed));
        let refused = seeds.collect::<Result<Vec<f64>>>()?;
        let mean = refused.iter().sum::<f64>() / f64::from(SEEDS);
        figures.push(Figure {
            name: format!("mig_refused_{load}"),
            value: mean,
            unit: "%",
            baseline: printed,
            what: format!(
                "requested compute slices that are refused at load {load} %, {SEEDS} seeds; baseline: the best row in print"
            ),
        });
    }
    Ok(figures)
}

/// The percentage that one seed gives.
fn run(geometry: &Geometry, load: u32, seed: u32) -> Result<f64> {
    let compute = |name: &str| {
        let at = geometry.find(name).context("a profile of the card")?;
        anyhow::Ok(f64::from(geometry.profiles()[at].compute))
    };
    let mut mean = 0.0;
    for (name, of) in MIX {
        mean += compute(name)? * f64::from(of) / 100.0;
    }
    let slices = f64::from(CARDS) * f64::from(geometry.compute());
    let pause = mean / (slices * f64::from(load) / 100.0);
    let mut random = fastrand::Rng::with_seed(seed.into());
    let mut node = Node::new(geometry);
    let mut ends: BTreeMap<(u128, u32), (PodUid, usize, Instance)> = BTreeMap::new();
    let (mut now, mut asked, mut refused) = (0, 0.0, 0.0);
    for arrival in 0..ARRIVALS {
        now += exponential(&mut random, pause);
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
            let (pod, card, instance) = end.remove();
            node.release(&pod, card, instance);
        }
        let name = pick(&mut random)?;
        asked += compute(name)?;
        let pod: PodUid = format!("p{arrival}").into();
        match node.reserve(&pod, name)? {
            Some((card, instance)) => {
                let end = now + exponential(&mut random, 1.0);
                ends.insert((end, arrival), (pod, card, instance));
            }
            None => refused += compute(name)?,
        }
    }
    Ok(100.0 * refused / asked)
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

/// The books of one node, and beside them what its pods hold.
struct Node {
    geometry: Geometry,
    ledger: Ledger,
    policies: Policies,
    held: Vec<Vec<Instance>>,
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
            seats: 0,
            mode: Mode::Mig,
            resource: "nvidia.com/gpu".to_owned(),
            numa: None,
            health: Health::Ok,
            links: BTreeMap::new(),
            mig: Some(Mig::Dynamic(Cut {
                geometry: geometry.clone(),
                instances: Vec::new(),
                reserved: Vec::new(),
            })),
            cordon: None,
            even: None,
            strict: false,
            reserved: Vec::new(),
        };
        let inventory = Inventory {
            v: inventory::VERSION,
            reads: vec![allocation::VERSION],
            driver: String::new(),
            topology_policy: String::new(),
            topology_scope: inventory::Scope::default(),
            gpus: (0..CARDS).map(gpu).collect(),
            lingering: Vec::new(),
            foreign: Vec::new(),
            refused: Vec::new(),
            evict: Vec::new(),
        };
        let published = Published {
            inventory: Some(Arc::new(inventory)),
            ..Published::default()
        };
        let mut ledger = Ledger::default();
        ledger.publish(&"n".into(), Some(published));
        Self {
            geometry: geometry.clone(),
            ledger,
            policies: Policies::default(),
            held: (0..CARDS).map(|_| Vec::new()).collect(),
        }
    }

    /// The card and the instance that the books give; `None`: they refuse.
    fn reserve(&mut self, pod: &PodUid, profile: &str) -> Result<Option<(usize, Instance)>> {
        let (namespace, name) = ("d".into(), "n".into());
        let demand = demand(profile);
        let given = self
            .ledger
            .reserve(pod, &namespace, &name, &demand, &self.policies);
        let given = match given {
            Ok(given) => given,
            Err(NotReserved::Refused(_)) => return Ok(None),
            Err(NotReserved::Booked(node)) => bail!("{pod} is booked on {node}"),
        };
        let grant = given.all().flat_map(|(_, grants)| grants).next();
        let grant = grant.context("a grant")?;
        let place = grant.mig.as_ref().context("an instance")?;
        let instance = self.geometry.instance(place).context("one of the card")?;
        let card = grant.gpu.as_str().trim_start_matches("GPU-");
        let card: usize = card.parse().context("a card")?;
        let held = &mut self.held[card];
        let open: Vec<u8> = self.geometry.starts(instance.profile, held).collect();
        let free = open.contains(&instance.start);
        ensure!(free, "{place:?} is given over what is held: {held:?}");
        held.push(instance);
        Ok(Some((card, instance)))
    }

    fn release(&mut self, pod: &PodUid, card: usize, instance: Instance) {
        self.ledger.release(pod);
        self.held[card].retain(|one| *one != instance);
    }
}

fn demand(profile: &str) -> Demand {
    let ask = Ask {
        resource: 1,
        wrote: aliquot_core::request::Wrote::default(),
        ..Ask::of(1, Memory::Share(Percent::WHOLE), Percent(0))
    };
    Demand {
        namespace: "d".into(),
        resources: vec!["nvidia.com/gpu".into(), resource(profile).into()],
        containers: vec![ContainerDemand {
            name: "main".to_owned(),
            stage: Stage::App,
            asks: vec![ask],
        }],
        host: Compute::default(),
        priority: 1,
        node_policy: None,
        gpu_policy: None,
        rules: Rules::default(),
    }
}
