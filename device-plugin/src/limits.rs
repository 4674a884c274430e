//! What a container's limits page says, in the one layout of [`aliquot_region::limits`].
//!
//! Fed by: an accepted share. Must not: know where a field lies.

use aliquot_core::{GpuUuid, Grant, Mib};
use aliquot_region::limits::{
    Container, Device, OOM_KILLER, OVERSUBSCRIBE, PageError, SIZE, UNCONTROLLED,
};

use crate::environment::{Effective, Utilization};

/// The page of a container, with nothing measured yet; `names` are what the driver calls the
/// devices now, `real` says what containers can have of a card and what was promised of it,
/// `context` what a process takes of it at once.
pub fn page(
    grants: &[Grant],
    names: &[&str],
    priority: u8,
    effective: Effective,
    context: Mib,
    real: impl Fn(&GpuUuid) -> Option<(Mib, Mib)>,
) -> Result<[u8; SIZE], PageError> {
    let devices: Vec<Device> = grants
        .iter()
        .zip(names)
        .map(|(grant, uuid)| Device {
            uuid,
            memory: grant.memory.bytes(),
            cores: grant.cores.0,
            context: context.bytes(),
            physical: real(&grant.gpu)
                .map_or(0, |(has, promised)| part(grant.memory, has, promised)),
        })
        .collect();
    let container = Container {
        priority: u32::from(priority),
        policy: policy(effective.utilization),
        flags: flags(effective),
    };
    aliquot_region::limits::page(container, &devices)
}

/// The part of a card in bytes that goes with this much of what was promised of it; 0: all.
fn part(granted: Mib, has: Mib, promised: Mib) -> u64 {
    if promised <= has {
        return 0;
    }
    let part = u128::from(granted.0) * u128::from(has.0) / u128::from(promised.0.max(1));
    Mib(u64::try_from(part).unwrap_or(granted.0)).bytes()
}

fn policy(utilization: Utilization) -> u32 {
    match utilization {
        Utilization::Default => 0,
        Utilization::Force => 1,
        Utilization::Disable => 2,
    }
}

fn flags(effective: Effective) -> u32 {
    [
        (effective.oversubscribe, OVERSUBSCRIBE),
        (effective.oom_killer, OOM_KILLER),
        (effective.uncontrolled, UNCONTROLLED),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(0, |flags, (_, flag)| flags | flag)
}

#[cfg(test)]
mod tests {
    use aliquot_core::{Mib, Percent};
    use aliquot_region::limits::MAX_DEVICES;

    use super::*;

    const EFFECTIVE: Effective = Effective {
        utilization: Utilization::Force,
        oom_killer: true,
        oversubscribe: false,
        uncontrolled: false,
    };

    fn grants(number: usize) -> Vec<Grant> {
        (0..number)
            .map(|i| Grant {
                resource: "nvidia.com/gpu".to_owned(),
                gpu: format!("GPU-00000000-0000-0000-0000-{i:012}").into(),
                memory: Mib(3000),
                cores: Percent(30),
                seats: 1,
                mig: None,
            })
            .collect()
    }

    #[test]
    fn a_share_becomes_the_bytes_that_the_limiter_reads() {
        let (first, now) = (
            "GPU-00000000-0000-0000-0000-000000000000",
            "MIG-00000000-0000-0000-0000-000000000001",
        );
        let page = page(&grants(2), &[first, now], 1, EFFECTIVE, Mib(480), |_| None);
        let page = page.expect("two devices fit");
        assert_eq!(page[12..16], 2_u32.to_le_bytes());
        assert_eq!(page[32..44], [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        let second = &page[64 + 120..];
        assert_eq!(
            &second[..40],
            now.as_bytes(),
            "not what it was called before a reboot"
        );
        assert_eq!(second[40..48], (3000_u64 << 20).to_le_bytes());
        assert_eq!(second[48..56], [30, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(second[72..80], (480_u64 << 20).to_le_bytes());
    }

    #[test]
    fn of_a_card_that_is_promised_twice_a_grant_is_half_real() {
        let check = |has, promised, expected: u64| {
            let page = page(&grants(1), &["GPU-a"], 1, EFFECTIVE, Mib(512), |_| {
                Some((Mib(has), Mib(promised)))
            });
            let page = page.expect("it fits");
            assert_eq!(
                page[64 + 80..64 + 88],
                (expected << 20).to_le_bytes(),
                "{promised}"
            );
        };
        check(81920, 163_840, 1500);
        check(81920, 122_880, 2000);
        check(81920, 81920, 0);
        check(81920, 40960, 0);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let page = |number, uuid: &str| {
            let names = vec![uuid; number];
            page(&grants(number), &names, 1, EFFECTIVE, Mib(0), |_| None)
        };
        assert!(page(MAX_DEVICES, "GPU-a").is_ok());
        assert!(page(MAX_DEVICES + 1, "GPU-a").is_err());
        assert!(page(1, &"G".repeat(41)).is_err());
    }
}
