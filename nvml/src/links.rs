//! How well two cards are joined, as one number. Pure; fed by what NVML says of levels and links.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;

/// Where a card's active `NVLink`s lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkEnds {
    /// How many lead to switches.
    pub(crate) switches: u32,
    /// How many lead to the card at this place of the inventory.
    pub(crate) cards: Vec<u32>,
}

/// `NVLink`s between the cards at places `a` and `b`: direct ones and those through switches.
/// Where the two sides differ (a link is half down), the lesser counts.
pub(crate) fn nvlinks(ends: &[LinkEnds], a: usize, b: usize) -> u32 {
    let direct = |from: usize, to: usize| ends[from].cards.get(to).copied().unwrap_or(0);
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

    fn ends(switches: u32, cards: &[u32]) -> LinkEnds {
        LinkEnds {
            switches,
            cards: cards.to_vec(),
        }
    }

    #[test]
    fn nvlinks_outweigh_every_pcie_level_and_the_lesser_side_counts() {
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
