//! What each sharing mode gives: tables of pods that are placed one after the other on a
//! node, through the ledger.

mod instances;
pub(super) mod node_ledger;
mod numa_and_instances;
mod random;
mod reservations;
mod shares;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::inventory::{EvenShare, Gpu, Inventory, Mode};
use crate::ledger::{Ledger, NotReserved};
use crate::mig::published::{CreatedInstance, DynamicMig, FixedInstance, Mig};
use crate::mig::{Geometry, resource, table};
use crate::preferences::Preferences;
use crate::request::{Resource, Written};
use crate::score::Policies;
use crate::tests::{demand, gpu, inventory, ledger, publication, published, reserve};
use crate::units::{Mib, Percent};
use crate::{ContainerDemand, Defaults, Demand, Stage};

const SHARED: &str = "nvidia.com/gpu.shared";
const UUID: &str = "5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";

/// A GPU under dynamic MIG with these instances.
pub(super) fn dynamic_gpu(index: u32, geometry: &Geometry, instances: Vec<CreatedInstance>) -> Gpu {
    let geometry = geometry.clone();
    Gpu {
        mode: Mode::Mig,
        mig: Some(Mig::Dynamic(DynamicMig {
            geometry,
            instances,
            reserved: Vec::new(),
        })),
        ..gpu(index, 40_960, 0)
    }
}

/// A pod of one container that asks for one instance of each of these profiles.
pub(super) fn instances(profiles: &[&str]) -> Demand {
    let requests: Vec<(String, u32)> = profiles.iter().map(|name| (resource(name), 1)).collect();
    let requests: Vec<(&str, u32)> = requests.iter().map(|(name, n)| (&**name, *n)).collect();
    pod(&[(Stage::App, &requests)], &[])
}

/// A container's stage, and its counts by resource name.
type NamedCounts<'a> = (Stage, &'a [(&'a str, u32)]);

/// A pod with these containers; `mem`, `part` and `cores` are amounts.
fn pod(containers: &[NamedCounts<'_>], annotations: &[(&str, &str)]) -> Demand {
    let mut resources: Vec<Arc<str>> = vec!["nvidia.com/gpu".into()];
    let container = |(number, (stage, asked)): (usize, &NamedCounts<'_>)| {
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
            written = written.with_other_resources();
        }
        let mut requests: Vec<_> = written.request(&Defaults::default()).into_iter().collect();
        for (name, count) in others {
            let known = resources.iter().position(|known| **known == **name);
            let place = known.unwrap_or_else(|| {
                resources.push((*name).into());
                resources.len() - 1
            });
            let place = u8::try_from(place).unwrap();
            requests.push(written.request_under(place, *count));
        }
        ContainerDemand {
            name: format!("c{number}"),
            stage: *stage,
            requests,
        }
    };
    let containers = containers.iter().enumerate().map(container).collect();
    let value_of = |key: &str| annotations.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let rules = Preferences::read(value_of).unwrap().rules;
    Demand {
        resources,
        containers,
        rules,
        ..demand(&[])
    }
}

/// One pod after the other: what each is given, as `resource-key:MiB/percent` times its
/// replicas, or why not. After each the ledger equals a recomputed one.
fn check(gpus: Vec<Gpu>, pods: &[(Demand, &str)]) {
    check_on(inventory(gpus), pods);
}

/// The same on a node that published this.
fn check_on(inventory: Inventory, pods: &[(Demand, &str)]) {
    let mut ledger = Ledger::default();
    ledger.publish(&"n".into(), Some(publication(inventory)));
    for (number, (demand, expected)) in pods.iter().enumerate() {
        let pod = format!("p{number}");
        let given = reserve(&mut ledger, &pod, "n", demand);
        let found = match given {
            Ok(given) => {
                let text = given.encode().unwrap();
                let read = crate::Allocation::decode(&text).unwrap();
                let allocated = crate::usage::AllocatedUse::Known(crate::usage::effective(
                    &read,
                    demand.stages(),
                ));
                assert_eq!(
                    ledger.pod_entry(&pod.into()).unwrap().allocated,
                    allocated,
                    "pod {number}"
                );
                let containers = given.all().map(|(name, grants)| {
                    let all = grants.iter().map(|grant| {
                        let key = grant.device_key();
                        let times = match grant.replicas {
                            1 => String::new(),
                            replicas => format!("x{replicas}"),
                        };
                        format!("{key}:{}/{}{times}", grant.memory.0, grant.cores.0)
                    });
                    let all: Vec<String> = all.collect();
                    format!("{name} {}", all.join("+"))
                });
                containers.collect::<Vec<_>>().join(", ")
            }
            Err(NotReserved::Refused(refusal)) => refusal.to_string(),
            Err(NotReserved::AlreadyAllocated(node)) => unreachable!("allocated on {node}"),
        };
        assert_eq!(found, *expected, "pod {number}");
        assert!(ledger == ledger.recompute(), "pod {number}");
        let node = ledger.cluster().node("n").unwrap();
        assert!(node.devices.iter().all(crate::node::within_capacity));
        assert!(crate::node::mig_placements_are_consistent(node));
    }
}

fn app(asked: &[(&str, u32)]) -> Demand {
    pod(&[(Stage::App, asked)], &[])
}

fn app_with(asked: &[(&str, u32)], annotation: (&str, &str)) -> Demand {
    pod(&[(Stage::App, asked)], &[annotation])
}

fn shared(index: u32, mode: Mode, replicas: u32, name: &str) -> Gpu {
    Gpu {
        mode,
        resource: name.to_owned(),
        ..gpu(index, 40_000, replicas)
    }
}

fn mps(index: u32, strict: bool) -> Gpu {
    Gpu {
        even_share: Some(EvenShare {
            memory: Mib(10_000),
            cores: Percent(25),
        }),
        strict,
        ..shared(index, Mode::Mps, 4, SHARED)
    }
}

fn fixed_instance(index: u32, profile: &str, start: u8) -> Gpu {
    Gpu {
        uuid: format!("MIG-{index}-{start}").into(),
        mode: Mode::Exclusive,
        resource: resource(profile),
        mig: Some(Mig::Fixed(FixedInstance {
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
