//! The limits page: one file of 4,096 bytes that the host writes and the
//! container maps read-only. It is what governs (the environment informs).
//!
//! Layout, little-endian, unused bytes zero:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `ALQLIMIT` |
//! | 8 | 4 | layout version, 1 |
//! | 12 | 4 | number of device records |
//! | 16 | 8 | sequence: odd while being written, even when whole |
//! | 24 | 8 | heartbeat of the host, nanoseconds since the epoch; 0: none yet |
//! | 32 | 4 | priority: 0 high, 1 low |
//! | 36 | 4 | utilization policy: 0 default, 1 force, 2 disable |
//! | 40 | 4 | flags: 1 oversubscribe, 2 OOM killer, 4 uncontrolled |
//! | 64 + 120 i | 40 | uuid of visible device i, zero-padded |
//! | + 40 | 8 | memory limit in bytes |
//! | + 48 | 4 | compute limit in percent, 0 and 100: none |
//! | + 52 | 4 | gate word, written by the arbiter; 0: open |
//!
//! Fed by: an accepted share. Must not: move or shrink once a container has it;
//! a new field takes bytes that were zero.

use aliquot_core::Grant;

use crate::environment::{Effective, Utilization};

/// Size of the page in bytes.
pub const SIZE: usize = 4096;
/// Most device records that fit.
pub const MAX_DEVICES: usize = (SIZE - HEADER) / RECORD;
/// Where the sequence is.
pub const SEQUENCE: std::ops::Range<usize> = 16..24;
/// Where the heartbeat is.
pub const HEARTBEAT: std::ops::Range<usize> = 24..32;

const HEADER: usize = 64;
const RECORD: usize = 120;
const UUID: usize = 40;
const VERSION: u32 = 1;

/// The page of a container, with sequence and heartbeat 0; `None` when a uuid
/// or the number of devices does not fit.
pub fn page(grants: &[Grant], priority: u8, effective: Effective) -> Option<[u8; SIZE]> {
    if grants.len() > MAX_DEVICES {
        return None;
    }
    let mut page = [0; SIZE];
    page[0..8].copy_from_slice(b"ALQLIMIT");
    put_u32(&mut page, 8, VERSION);
    put_u32(&mut page, 12, u32::try_from(grants.len()).ok()?);
    put_u32(&mut page, 32, u32::from(priority));
    put_u32(&mut page, 36, policy(effective.utilization));
    put_u32(&mut page, 40, flags(effective));
    for (record, grant) in page[HEADER..].chunks_exact_mut(RECORD).zip(grants) {
        let uuid = grant.gpu.as_str().as_bytes();
        if uuid.len() > UUID {
            return None;
        }
        record[..uuid.len()].copy_from_slice(uuid);
        put_u64(record, 40, grant.memory.bytes());
        put_u32(record, 48, grant.cores.0);
    }
    Some(page)
}

/// Whether two pages say the same, whatever their sequence, heartbeat and gates.
pub fn same(one: &[u8; SIZE], other: &[u8; SIZE]) -> bool {
    let bare = |page: &[u8; SIZE]| {
        let mut page = *page;
        page[SEQUENCE].fill(0);
        page[HEARTBEAT].fill(0);
        for record in page[HEADER..].chunks_exact_mut(RECORD) {
            put_u32(record, 52, 0);
        }
        page
    };
    bare(one) == bare(other)
}

fn policy(utilization: Utilization) -> u32 {
    match utilization {
        Utilization::Default => 0,
        Utilization::Force => 1,
        Utilization::Disable => 2,
    }
}

fn flags(effective: Effective) -> u32 {
    u32::from(effective.oversubscribe)
        | u32::from(effective.oom_killer) << 1
        | u32::from(effective.uncontrolled) << 2
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use aliquot_core::{Mib, Percent};

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
            })
            .collect()
    }

    #[test]
    fn the_bytes_are_where_the_table_says() {
        let page = page(&grants(2), 1, EFFECTIVE).expect("two devices fit");
        assert_eq!(&page[..8], b"ALQLIMIT");
        assert_eq!(page[8..16], [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(page[16..32], [0; 16]);
        assert_eq!(page[32..44], [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        let second = 64 + 120;
        assert_eq!(
            &page[second..second + 40],
            b"GPU-00000000-0000-0000-0000-000000000001"
        );
        assert_eq!(
            page[second + 40..second + 48],
            (3000_u64 << 20).to_le_bytes()
        );
        assert_eq!(page[second + 48..second + 56], [30, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[second + 56..], [0; SIZE - 64 - 120 - 56]);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        assert!(page(&grants(MAX_DEVICES), 1, EFFECTIVE).is_some());
        assert!(page(&grants(MAX_DEVICES + 1), 1, EFFECTIVE).is_none());
        let mut long = grants(1);
        long[0].gpu = "G".repeat(41).into();
        assert!(page(&long, 1, EFFECTIVE).is_none());
    }

    #[test]
    fn sequence_heartbeat_and_gates_do_not_count_as_content() {
        let one = page(&grants(1), 1, EFFECTIVE).expect("fits");
        let mut other = one;
        other[SEQUENCE].fill(7);
        other[HEARTBEAT].fill(7);
        other[64 + 52] = 1;
        assert!(same(&one, &other));
        other[64 + 48] = 31;
        assert!(!same(&one, &other));
    }
}
