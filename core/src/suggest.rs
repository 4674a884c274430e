//! How many containers of a kind a device could serve, from their measured peaks. A
//! suggestion only: what a container may use at most is its share.

use serde::{Deserialize, Serialize};

use crate::units::{Mib, Percent};

/// The largest use of one container while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    pub memory: Mib,
    /// Compute in percent of the whole device.
    pub cores: Percent,
}

/// What allows no more replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    Memory,
    Compute,
    /// The sharing mode's own maximum.
    #[serde(rename = "most")]
    ModeLimit,
}

/// A suggested number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suggestion {
    /// At least 1, even if one container needs the whole device.
    pub replicas: u32,
    /// What allows no more.
    pub bound: Bound,
    /// The largest memory and the largest compute of any container; all replicas are
    /// assumed to need that at once.
    pub peak: Peak,
}

/// What these peaks suggest for a device with this memory in a mode with at most `most`
/// replicas; `None` if nothing was used.
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
        (most, Bound::ModeLimit),
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
    fn ts_14_suggests_as_many_replicas_as_largest_peaks_allow() {
        check(48, &[(3_000, 5), (5_000, 2)], Some((8, Bound::Memory)));
        check(48, &[(3_000, 30), (5_000, 2)], Some((3, Bound::Compute)));
        check(48, &[(100, 1)], Some((48, Bound::ModeLimit)));
        check(48, &[(0, 10)], Some((10, Bound::Compute)));
        check(48, &[(1_000, 0)], Some((40, Bound::Memory)));
        check(48, &[(50_000, 100)], Some((1, Bound::Memory)));
        check(48, &[(0, 0)], None);
        check(48, &[], None);
    }
}
