//! Which XIDs make a GPU unhealthy.

use std::collections::BTreeSet;

/// XIDs that a faulty application causes on a healthy GPU; the list that NVIDIA's device plugin
/// ignores. 13 graphics engine exception, 31 memory page fault, 43 stopped processing,
/// 45 preemptive cleanup, 68 video processor exception, 109 context switch timeout.
pub const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// The XIDs that do not make a GPU unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IgnoredXids {
    These(BTreeSet<u64>),
    AllBut(BTreeSet<u64>),
}

impl Default for IgnoredXids {
    fn default() -> Self {
        Self::These(APPLICATION_XIDS.into())
    }
}

impl IgnoredXids {
    #[must_use]
    pub fn contains(&self, code: u64) -> bool {
        match self {
            Self::These(codes) => codes.contains(&code),
            Self::AllBut(codes) => !codes.contains(&code),
        }
    }
}
