//! The link score of two GPUs, from NVML's topology levels and `NVLink`s.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;

/// Where a GPU's active `NVLink`s lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkEnds {
    /// Number of links to switches.
    pub(crate) switches: u32,
    /// Number of links to the GPU at this index of the inventory.
    pub(crate) gpus: Vec<u32>,
}

/// `NVLink`s between the GPUs at indices `a` and `b`, direct and through switches. Where the two
/// sides differ (a link is half down), the lesser counts.
pub(crate) fn nvlinks(ends: &[LinkEnds], a: usize, b: usize) -> u32 {
    let direct = |from: usize, to: usize| ends[from].gpus.get(to).copied().unwrap_or(0);
    direct(a, b).min(direct(b, a)) + ends[a].switches.min(ends[b].switches)
}

/// The pair's score; the scale of NVIDIA's allocator, which HAMi uses too.
pub(crate) fn score(level: Option<&TopologyLevel>, nvlinks: u32) -> u32 {
    let near = match level {
        Some(TopologyLevel::Internal) => 60,
        Some(TopologyLevel::Single) => 50,
        Some(TopologyLevel::Multiple) => 40,
        Some(TopologyLevel::HostBridge) => 30,
        Some(TopologyLevel::Node) => 20,
        Some(TopologyLevel::System) => 10,
        None => 0,
    };
    near + 100 * nvlinks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: LinkEnds, b: LinkEnds, level: Option<&TopologyLevel>, expected: u32) {
        let ends = [a, b];
        let (there, back) = (nvlinks(&ends, 0, 1), nvlinks(&ends, 1, 0));
        assert_eq!(there, back);
        assert_eq!(score(level, there), expected);
    }

    fn ends(switches: u32, gpus: &[u32]) -> LinkEnds {
        LinkEnds {
            switches,
            gpus: gpus.to_vec(),
        }
    }

    #[test]
    fn scores_nvlinks_above_pcie_and_counts_lesser_side() {
        check(ends(0, &[]), ends(0, &[]), None, 0);
        check(ends(0, &[]), ends(0, &[]), Some(&TopologyLevel::System), 10);
        check(
            ends(0, &[]),
            ends(0, &[]),
            Some(&TopologyLevel::Internal),
            60,
        );
        check(
            ends(12, &[]),
            ends(12, &[]),
            Some(&TopologyLevel::Node),
            1220,
        );
        check(
            ends(12, &[]),
            ends(11, &[]),
            Some(&TopologyLevel::System),
            1110,
        );
        check(ends(12, &[]), ends(0, &[]), Some(&TopologyLevel::Node), 20);
        check(
            ends(0, &[0, 4]),
            ends(0, &[4, 0]),
            Some(&TopologyLevel::Single),
            450,
        );
        check(
            ends(0, &[0, 4]),
            ends(0, &[3, 0]),
            Some(&TopologyLevel::Single),
            350,
        );
        check(ends(1, &[0, 2]), ends(1, &[2]), None, 300);
    }
}
