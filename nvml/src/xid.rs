//! Which XIDs say something about the card. Pure values.

use std::collections::BTreeSet;

/// XIDs that a faulty application causes on a sound card; the list that NVIDIA's device plugin
/// skips. 13 graphics engine exception, 31 memory page fault, 43 stopped processing,
/// 45 preemptive cleanup, 68 video processor exception, 109 context switch timeout.
pub const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// The XIDs that leave a card healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredXids(pub BTreeSet<u64>);

impl Default for IgnoredXids {
    fn default() -> Self {
        Self(APPLICATION_XIDS.into())
    }
}

impl IgnoredXids {
    /// Whether this XID leaves the card healthy.
    #[must_use]
    pub fn contains(&self, code: u64) -> bool {
        self.0.contains(&code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_errors_are_ignored_and_card_errors_are_not() {
        let ignored = IgnoredXids::default();
        let check = |code, expected| assert_eq!(ignored.contains(code), expected, "{code}");
        for code in APPLICATION_XIDS {
            check(code, true);
        }
        for code in [48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140] {
            check(code, false);
        }
    }
}
