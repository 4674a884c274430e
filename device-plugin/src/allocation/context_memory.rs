//! The memory that a context is charged before the monitor has sampled its process: what the
//! administrator set, or an estimate for the GPU. The driver reports it only afterwards.

use aliquot_core::{Grant, Mib};

use crate::gpus::inventory::PublishedNode;

/// Estimates in MiB by compute capability: typical of what nvidia-smi shows for a process with one
/// context under a recent driver that loads modules lazily. They were not measured by this project.
const ESTIMATES: [((u32, u32), Mib); 10] = [
    ((6, 0), Mib(280)),
    ((6, 1), Mib(150)),
    ((7, 0), Mib(310)),
    ((7, 5), Mib(105)),
    ((8, 0), Mib(420)),
    ((8, 6), Mib(260)),
    ((8, 9), Mib(300)),
    ((9, 0), Mib(520)),
    ((10, 0), Mib(600)),
    ((12, 0), Mib(500)),
];
/// The estimate for a GPU that the table does not have.
const UNKNOWN: Mib = Mib(500);

/// The size of a context on each of these devices; `fixed`: the administrator's value.
pub fn context_sizes(fixed: Option<Mib>, grants: &[Grant], node: &PublishedNode) -> Vec<Mib> {
    grants
        .iter()
        .map(|grant| fixed.unwrap_or_else(|| estimate(grant, node)))
        .collect()
}

fn estimate(grant: &Grant, node: &PublishedNode) -> Mib {
    let capability = node.inventory.gpu(&grant.gpu).and_then(|device| {
        let gpus = &node.readings.facts.gpus;
        let gpu = gpus.iter().find(|gpu| gpu.model == device.model)?;
        gpu.compute_capability
    });
    ESTIMATES
        .iter()
        .find(|(known, _)| Some(*known) == capability)
        .map_or(UNKNOWN, |(_, size)| *size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::inventory::NodePublisher;
    use crate::testing::{facts, grant, layout_of};

    #[test]
    fn charges_contexts_by_estimate_unless_value_is_set() {
        for (capability, fixed, expected) in [
            (Some((7, 5)), None, 105),
            (Some((8, 0)), None, 420),
            (Some((13, 7)), None, 500),
            (None, None, 500),
            (Some((8, 0)), Some(Mib(777)), 777),
        ] {
            let mut facts = facts(&["GPU-a"]);
            facts.gpus[0].compute_capability = capability;
            let published = NodePublisher::new(facts, Vec::new(), layout_of(&["GPU-a"]));
            let grants = [grant("GPU-a", 3000, 30)];
            let sizes = context_sizes(fixed, &grants, &published.get());
            assert_eq!(sizes, [Mib(expected)], "{capability:?} {fixed:?}");
        }
    }
}
