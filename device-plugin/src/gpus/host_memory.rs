//! Host memory that backs device memory where a device advertises more memory than it has: how much
//! it may advertise, and how much device memory goes with a share of that.
//!
//! Containers together use at most what the device advertises. While the device is full the rest is
//! in host memory and so stays within the reserve. Accepted allocations and devices without scaling
//! are not affected.

use aliquot_core::Mib;
use aliquot_core::inventory::Gpu;
use aliquot_nvml::{DriverInventory, GpuFacts};

use crate::gpus::allocatable::parent_gpu;

/// Lowers what these devices advertise to their memory plus the `reserve` of each GPU. An instance
/// has the same part of its GPU's reserve as of its memory.
pub(crate) fn cap_promised(devices: &mut [Gpu], reserve: Option<Mib>, facts: &DriverInventory) {
    let Some(reserve) = reserve else { return };
    for device in devices {
        let (parent, memory) = (parent_gpu(device), device.memory);
        let gpu = facts.gpus.iter().find(|gpu| gpu.uuid == parent.as_str());
        let whole = gpu.map_or(memory, GpuFacts::usable).0.max(1);
        let part = u128::from(reserve.0) * u128::from(memory.0) / u128::from(whole);
        let host = u64::try_from(part).unwrap_or(reserve.0);
        device.scaled = device.scaled.min(Mib(memory.0.saturating_add(host)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::allocatable::allocatable_devices;
    use crate::gpus::inventory::NodePublisher;
    use crate::testing::{facts, fixed_instance, layout_of, mixed_layout};

    /// What is published of a GPU of 10,000 MiB, of which the driver reserves 600: what it promises,
    /// and what of that is in its own memory.
    fn published(scaled: u64, reserve: Option<u64>) -> (u64, u64) {
        let mut facts = facts(&["GPU-a"]);
        facts.gpus[0].reserved = Some(Mib(600));
        let mut devices = allocatable_devices(&facts, &[], &layout_of(&["GPU-a"]));
        devices[0].scaled = Mib(scaled);
        cap_promised(&mut devices, reserve.map(Mib), &facts);
        (devices[0].scaled.0, devices[0].memory.0)
    }

    #[test]
    fn caps_promised_memory_at_device_and_host_reserve() {
        let check = |scaled, reserve, expected| {
            assert_eq!(published(scaled, reserve), (expected, 9_400), "{reserve:?}");
        };
        check(20_000, None, 20_000);
        check(20_000, Some(50_000), 20_000);
        check(20_000, Some(5_000), 14_400);
        // No reserve: as without scaling.
        check(20_000, Some(0), 9_400);
        check(20_000, Some(600), 10_000);
        check(9_400, Some(0), 9_400);
        check(5_000, Some(9_000), 5_000);
    }

    #[test]
    fn gives_instance_its_part_of_host_reserve() {
        let mut facts = facts(&["GPU-a"]);
        facts.gpus[0].reserved = Some(Mib(1_000));
        let mut devices = allocatable_devices(&facts, &[], &layout_of(&["GPU-a"]));
        devices[0].uuid = "MIG-a".into();
        devices[0].memory = Mib(3_600);
        devices[0].scaled = Mib(8_000);
        devices[0].mig = Some(fixed_instance("GPU-a", "3g.20gb"));
        cap_promised(&mut devices, Some(Mib(5_000)), &facts);
        assert_eq!(devices[0].scaled, Mib(3_600 + 2_000));
    }

    #[test]
    fn publishes_memory_capped_by_host_reserve() {
        let published = NodePublisher::new(facts(&["GPU-a"]), Vec::new(), mixed_layout());
        let scaled = || published.get().inventory.gpus[0].scaled;
        assert_eq!(scaled(), Mib(15_000));
        published.set_host_reserve(Some(Mib(3_000)));
        assert_eq!(scaled(), Mib(13_000));
    }
}
