//! Which XIDs say something about the card. Pure values.

use std::collections::BTreeSet;

/// XIDs that a faulty application causes on a sound card; the list that NVIDIA's device plugin
/// skips. 13 graphics engine exception, 31 memory page fault, 43 stopped processing,
/// 45 preemptive cleanup, 68 video processor exception, 109 context switch timeout.
pub const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// The XIDs that leave a card healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IgnoredXids {
    /// These and no other.
    These(BTreeSet<u64>),
    /// All but these.
    AllBut(BTreeSet<u64>),
}

impl Default for IgnoredXids {
    fn default() -> Self {
        Self::These(APPLICATION_XIDS.into())
    }
}

impl IgnoredXids {
    /// Whether this XID leaves the card healthy.
    #[must_use]
    pub fn contains(&self, code: u64) -> bool {
        match self {
            Self::These(codes) => codes.contains(&code),
            Self::AllBut(codes) => !codes.contains(&code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ignored: &IgnoredXids, code: u64, expected: bool) {
        assert_eq!(ignored.contains(code), expected, "{code}");
    }

    #[test]
    fn application_errors_are_ignored_and_card_errors_are_not() {
        let ignored = IgnoredXids::default();
        for code in APPLICATION_XIDS {
            check(&ignored, code, true);
        }
        for code in [48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140] {
            check(&ignored, code, false);
        }
    }

    #[test]
    fn all_but_some_are_ignored() {
        let ignored = IgnoredXids::AllBut([79].into());
        check(&ignored, 79, false);
        check(&ignored, 48, true);
    }
}
