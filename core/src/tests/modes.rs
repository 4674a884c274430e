//! What each way of sharing gives to whom: tables of pods that come one after the
//! other to a node, through the books.

pub(super) mod books;
mod instances;
mod kept;
mod mended;
mod shares;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fit::Policies;
use crate::inventory::{Even, Gpu, Inventory, Mode};
use crate::ledger::{Ledger, NotReserved};
use crate::mig::published::{Cut, Made, Mig, Part};
use crate::mig::{Geometry, resource, table};
use crate::node::Published;
use crate::request::{Resource, Written};
use crate::tests::{demand, gpu, inventory};
use crate::units::{Mib, Percent};
use crate::wishes::Wishes;
use crate::{ContainerDemand, Defaults, Demand, Stage, invariant};

const SHARED: &str = "nvidia.com/gpu.shared";
const UUID: &str = "5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";

/// A card that is cut as pods come, with these instances.
pub(super) fn cut(index: u32, geometry: &Geometry, instances: Vec<Made>) -> Gpu {
    let geometry = geometry.clone();
    Gpu {
        mode: Mode::Mig,
        mig: Some(Mig::Dynamic(Cut {
            geometry,
            instances,
            reserved: Vec::new(),
        })),
        ..gpu(index, 40_960, 0)
    }
}

/// A pod of one container that asks for one instance of each of these profiles.
pub(super) fn instances(profiles: &[&str]) -> Demand {
    let asks: Vec<(String, u32)> = profiles.iter().map(|name| (resource(name), 1)).collect();
    let asks: Vec<(&str, u32)> = asks.iter().map(|(name, n)| (&**name, *n)).collect();
    pod(&[(Stage::App, &asks)], &[])
}

/// A container's stage, and how many it asks under each name.
type Asked<'a> = (Stage, &'a [(&'a str, u32)]);

/// Containers that ask so many under each name; under those of amounts, amounts.
fn pod(containers: &[Asked<'_>], annotations: &[(&str, &str)]) -> Demand {
    let mut resources: Vec<Arc<str>> = vec!["nvidia.com/gpu".into()];
    let container = |(number, (stage, asked)): (usize, &Asked<'_>)| {
        let texts: BTreeMap<&str, String> =
            asked.iter().map(|(n, v)| (*n, v.to_string())).collect();
        let value_of = |resource| {
            let name = match resource {
                Resource::Gpu => "gpu",
                Resource::Memory => "mem",
                Resource::MemoryPercentage => "part",
                Resource::Cores => "cores",
                Resource::Priority => "priority",
            };
            texts.get(name).map(String::as_str)
        };
        let mut written = Written::read(value_of).unwrap();
        let others: Vec<_> = asked
            .iter()
            .filter(|(name, _)| name.contains('/'))
            .collect();
        if !others.is_empty() {
            written = written.beside_others();
        }
        let mut asks: Vec<_> = written.ask(&Defaults::default()).into_iter().collect();
        for (name, count) in others {
            let known = resources.iter().position(|known| **known == **name);
            let place = known.unwrap_or_else(|| {
                resources.push((*name).into());
                resources.len() - 1
            });
            let place = u8::try_from(place).unwrap();
            asks.push(written.ask_under(place, *count));
        }
        ContainerDemand {
            name: format!("c{number}"),
            stage: *stage,
            asks,
        }
    };
    let containers = containers.iter().enumerate().map(container).collect();
    let value_of = |key: &str| annotations.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let rules = Wishes::read(value_of).unwrap().rules;
    Demand {
        resources,
        containers,
        rules,
        ..demand(&[])
    }
}

/// One pod after the other: what each is given as `resource-unit:MiB/percent`,
/// times its seats, or why not; the books equal books made anew after each.
fn check(gpus: Vec<Gpu>, pods: &[(Demand, &str)]) {
    check_on(inventory(gpus), pods);
}

/// The same on a node that published this.
fn check_on(inventory: Inventory, pods: &[(Demand, &str)]) {
    let mut ledger = Ledger::default();
    let published = Published {
        inventory: Some(Arc::new(inventory)),
        ..Published::default()
    };
    ledger.publish(&"n".into(), Some(published));
    for (number, (demand, expected)) in pods.iter().enumerate() {
        let (uid, policies) = (format!("p{number}").as_str().into(), Policies::default());
        let given = ledger.reserve(&uid, &"d".into(), &"n".into(), demand, &policies);
        let found = match given {
            Ok(given) => {
                let text = given.encode().unwrap();
                let read = crate::Allocation::decode(&text).unwrap();
                let held =
                    crate::ledger::Held::Uses(crate::usage::effective(&read, demand.stages()));
                assert_eq!(ledger.booking(&uid).unwrap().held, held, "pod {number}");
                let containers = given.all().map(|(name, grants)| {
                    let all = grants.iter().map(|grant| {
                        let unit = grant.unit();
                        let times = match grant.seats {
                            1 => String::new(),
                            seats => format!("x{seats}"),
                        };
                        format!("{unit}:{}/{}{times}", grant.memory.0, grant.cores.0)
                    });
                    let all: Vec<String> = all.collect();
                    format!("{name} {}", all.join("+"))
                });
                containers.collect::<Vec<_>>().join(", ")
            }
            Err(NotReserved::Refused(refusal)) => refusal.to_string(),
            Err(NotReserved::Booked(node)) => unreachable!("booked on {node}"),
        };
        assert_eq!(found, *expected, "pod {number}");
        assert!(ledger == ledger.recompute(), "pod {number}");
        let node = ledger.cluster().node("n").unwrap();
        assert!(node.cards.iter().all(invariant::within_capacity));
        assert!(invariant::instances_have_their_places(node));
    }
}

fn app(asked: &[(&str, u32)]) -> Demand {
    pod(&[(Stage::App, asked)], &[])
}

fn wishing(asked: &[(&str, u32)], annotation: (&str, &str)) -> Demand {
    pod(&[(Stage::App, asked)], &[annotation])
}

fn shared(index: u32, mode: Mode, seats: u32, name: &str) -> Gpu {
    Gpu {
        mode,
        resource: name.to_owned(),
        ..gpu(index, 40_000, seats)
    }
}

fn mps(index: u32, strict: bool) -> Gpu {
    Gpu {
        even: Some(Even {
            memory: Mib(10_000),
            cores: Percent(25),
        }),
        strict,
        ..shared(index, Mode::Mps, 4, SHARED)
    }
}

fn part(index: u32, profile: &str, start: u8) -> Gpu {
    Gpu {
        uuid: format!("MIG-{index}-{start}").into(),
        mode: Mode::Exclusive,
        resource: resource(profile),
        mig: Some(Mig::Part(Part {
            parent: format!("GPU-{index}").into(),
            profile: profile.to_owned(),
            start,
            gi: 0,
            ci: 0,
        })),
        ..gpu(index, 19_968, 1)
    }
}

fn a100() -> Geometry {
    table::geometry("NVIDIA A100-SXM4-40GB").unwrap()
}

const GPU: &str = "nvidia.com/gpu";
const ONE: &[(&str, u32)] = &[("gpu", 1)];
