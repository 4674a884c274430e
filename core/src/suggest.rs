//! How many containers of a kind a card could carry, by what they were seen to use.
//!
//! Fed by: peaks of memory and compute of the containers that shared a card, from the
//! node's monitor or from whoever watched them. Must not: promise anything; what a
//! container may use at most is its share.

use serde::{Deserialize, Serialize};

use crate::units::{Mib, Percent};

/// What one container used at most while it was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Memory of the card.
    pub memory: Mib,
    /// Compute of the whole card.
    pub cores: Percent,
}

/// What allows no more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The card's memory.
    Memory,
    /// The card's compute.
    Compute,
    /// How many the mode can have.
    Most,
}

/// So many replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suggestion {
    /// At least 1, even where one container needs all.
    pub replicas: u32,
    /// Why not more.
    pub bound: Bound,
    /// The largest memory and the largest compute of any of them: all replicas are
    /// taken to need as much at once.
    pub peak: Peak,
}

/// What these peaks suggest for a card with this memory, of a mode that has at most so
/// many; `None` where nobody used anything.
pub fn replicas(memory: Mib, most: u32, peaks: &[Peak]) -> Option<Suggestion> {
    let peak = peaks.iter().fold(Peak::default(), |all, one| Peak {
        memory: all.memory.max(one.memory),
        cores: all.cores.max(one.cores),
    });
    if peak == Peak::default() {
        return None;
    }
    let narrow = |times: u64| u32::try_from(times).unwrap_or(u32::MAX);
    let by_memory = memory.0.checked_div(peak.memory.0).map(narrow);
    let by_compute = Percent::WHOLE.0.checked_div(peak.cores.0);
    let bounds = [
        (by_memory.unwrap_or(u32::MAX), Bound::Memory),
        (by_compute.unwrap_or(u32::MAX), Bound::Compute),
        (most, Bound::Most),
    ];
    let least = bounds.into_iter().min_by_key(|(replicas, _)| *replicas);
    let (replicas, bound) = least?;
    Some(Suggestion {
        replicas: replicas.max(1),
        bound,
        peak,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(most: u32, peaks: &[(u64, u32)], expected: Option<(u32, Bound)>) {
        let peaks: Vec<Peak> = peaks
            .iter()
            .map(|&(memory, cores)| Peak {
                memory: Mib(memory),
                cores: Percent(cores),
            })
            .collect();
        let found = replicas(Mib(40_960), most, &peaks);
        let found = found.map(|found| (found.replicas, found.bound));
        assert_eq!(found, expected, "{peaks:?}");
    }

    #[test]
    fn ts_14_as_many_replicas_as_the_largest_peaks_have_room_for() {
        check(48, &[(3_000, 5), (5_000, 2)], Some((8, Bound::Memory)));
        check(48, &[(3_000, 30), (5_000, 2)], Some((3, Bound::Compute)));
        check(48, &[(100, 1)], Some((48, Bound::Most)));
        check(48, &[(0, 10)], Some((10, Bound::Compute)));
        check(48, &[(1_000, 0)], Some((40, Bound::Memory)));
        check(48, &[(50_000, 100)], Some((1, Bound::Memory)));
        check(48, &[(0, 0)], None);
        check(48, &[], None);
    }
}
