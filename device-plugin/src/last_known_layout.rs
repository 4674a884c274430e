//! The last known MIG layout of a GPU whose MIG calls failed this time. A GPU that the driver no
//! longer lists stays out: the driver's own part decides that.

use std::collections::BTreeSet;

use aliquot_nvml::DriverInventory;

/// The NVML calls that read a GPU's MIG layout.
const CALLS: [&str; 2] = ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"];

/// Copies from `last` the MIG layout of the GPUs for which `now` has none because a call failed: an
/// empty layout would remove every instance from the inventory. Returns those GPUs.
pub(crate) fn restore(now: &mut DriverInventory, last: &DriverInventory) -> BTreeSet<String> {
    let failed = now.notes.iter().filter(|note| CALLS.contains(&note.call));
    let gpus: BTreeSet<String> = failed.filter_map(|note| note.gpu.clone()).collect();
    for gpu in now.gpus.iter_mut().filter(|one| gpus.contains(&one.uuid)) {
        if let Some(known) = last.gpus.iter().find(|one| one.uuid == gpu.uuid) {
            gpu.mig = known.mig;
            gpu.layout.clone_from(&known.layout);
        }
    }
    gpus
}

#[cfg(test)]
mod tests {
    use aliquot_nvml::{GpuInstance, MigLayout, MigMode, Note};

    use super::*;
    use crate::testing::facts;

    fn partitioned() -> DriverInventory {
        let mut facts = facts(&["GPU-a", "GPU-b"]);
        for gpu in &mut facts.gpus {
            gpu.mig = MigMode {
                capable: true,
                enabled: true,
                pending: true,
            };
            let instance = GpuInstance {
                profile: "1g.5gb".to_owned(),
                start: 6,
                size: 1,
                memory: aliquot_core::Mib(4864),
                id: 13,
                devices: Vec::new(),
            };
            gpu.layout.instances = vec![instance];
        }
        facts
    }

    #[test]
    fn keeps_mig_layout_after_read_error() {
        let check = |call: &'static str, restored: bool| {
            let mut now = partitioned();
            now.gpus[0].layout = MigLayout::default();
            now.gpus[1].layout = MigLayout::default();
            now.notes.push(Note {
                gpu: Some("GPU-a".to_owned()),
                call,
                problem: "Unknown".to_owned(),
            });
            let gpus_to_retry = restore(&mut now, &partitioned());
            let instances: Vec<usize> = now.gpus.iter().map(|c| c.layout.instances.len()).collect();
            assert_eq!(instances, [usize::from(restored), 0], "{call}");
            assert_eq!(gpus_to_retry.contains("GPU-a"), restored);
        };
        check("nvmlDeviceGetGpuInstances", true);
        check("nvmlDeviceGetMigMode", true);
        check("nvmlDeviceGetMinorNumber", false);
    }
}
