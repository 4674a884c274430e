//! Fills a container's limits page from its accepted allocation, in the layout of
//! [`aliquot_region::limits`].

use aliquot_core::{GpuUuid, Grant, Mib};
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_region::limits::{ContainerLimits, DeviceLimits, PageError, SIZE, YIELDS};

/// The page of a container, with nothing measured yet. `names` are the UUIDs that it sees,
/// `contexts` what a context takes of each, `real` returns a device's usable and advertised memory.
pub fn page(
    grants: &[Grant],
    names: &[&str],
    priority: u8,
    effective: EffectiveLimits,
    contexts: &[Mib],
    real: impl Fn(&GpuUuid) -> Option<(Mib, Mib)>,
) -> Result<[u8; SIZE], PageError> {
    let devices: Vec<DeviceLimits> = grants
        .iter()
        .zip(names)
        .zip(contexts)
        .map(|((grant, uuid), context)| DeviceLimits {
            uuid,
            memory: grant.memory_limit().bytes(),
            request: if grant.memory_limit() > grant.memory {
                grant.memory.bytes()
            } else {
                0
            },
            cores: grant.cores.0,
            cores_limit: grant
                .burst
                .and_then(|burst| burst.cores)
                .map_or(0, |most| most.0),
            context: context.bytes(),
            physical: real(&grant.gpu).map_or(0, |(has, promised)| {
                physical_part(grant.memory_limit(), has, promised)
            }),
        })
        .collect();
    let yields = |grant: &Grant| grant.burst.is_some_and(|burst| burst.yields);
    let yields = if grants.iter().any(yields) { YIELDS } else { 0 };
    let container = ContainerLimits {
        priority: u32::from(priority),
        policy: effective.utilization.word(),
        flags: effective.flags() | yields,
    };
    aliquot_region::limits::page(container, &devices)
}

/// The device memory in bytes that goes with this grant of advertised memory; 0: all of the grant.
fn physical_part(granted: Mib, has: Mib, promised: Mib) -> u64 {
    if promised <= has {
        return 0;
    }
    let part = u128::from(granted.0) * u128::from(has.0) / u128::from(promised.0.max(1));
    Mib(u64::try_from(part).unwrap_or(granted.0)).bytes()
}

#[cfg(test)]
mod tests {
    use aliquot_core::Mib;
    use aliquot_node_state::limits::UtilizationPolicy;

    use super::*;
    use crate::testing::grant;

    const EFFECTIVE: EffectiveLimits = EffectiveLimits {
        utilization: UtilizationPolicy::Force,
        oom_killer: true,
        oversubscribe: false,
        uncontrolled: false,
    };

    #[test]
    fn encodes_page_that_limiter_reads() {
        let (first, part) = (
            "GPU-00000000-0000-0000-0000-000000000000",
            "MIG-00000000-0000-0000-0000-000000000001",
        );
        let grants = [first, "GPU-b"].map(|gpu| grant(gpu, 3000, 30));
        let contexts = [Mib(480); 2];
        let page = page(&grants, &[first, part], 1, EFFECTIVE, &contexts, |_| None);
        let page = page.expect("two devices fit");
        assert_eq!(page[12..16], 2_u32.to_le_bytes());
        assert_eq!(page[32..44], [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        let second = &page[64 + 120..];
        assert_eq!(
            &second[..40],
            part.as_bytes(),
            "the instance's UUID, not the GPU's"
        );
        assert_eq!(second[40..48], (3000_u64 << 20).to_le_bytes());
        assert_eq!(second[48..56], [30, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(second[72..80], (480_u64 << 20).to_le_bytes());
    }

    #[test]
    fn halves_physical_memory_of_double_promised_device() {
        let check = |has, promised, expected: u64| {
            let grants = [grant("GPU-a", 3000, 30)];
            let page = page(&grants, &["GPU-a"], 1, EFFECTIVE, &[Mib(512)], |_| {
                Some((Mib(has), Mib(promised)))
            });
            let page = page.expect("it fits");
            let physical = (expected << 20).to_le_bytes();
            assert_eq!(page[64 + 80..64 + 88], physical, "{promised}");
        };
        check(81920, 163_840, 1500);
        check(81920, 122_880, 2000);
        check(81920, 81920, 0);
        check(81920, 40960, 0);
    }
}
