//! Which of the cards that fit a container gets: by the policy's keys, by NUMA
//! node, by the links between the cards (HAMi 4.7).
//!
//! Fed by: [`crate::fit`], with the cards that can take the container.
//! Must not: judge room; every candidate has it.

use std::collections::BTreeMap;

use crate::card_policy::MOST_KEYS;
use crate::inventory::Inventory;
use crate::node::NodeState;
use crate::reason::Reason;

/// Up to this many candidates every combination is compared.
const EXACT: usize = 8;

/// A card that fits. The order is best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// For an init container: the pod's app containers are not on it.
    pub(crate) stranger: bool,
    /// A whole card for one that is content with less.
    pub(crate) waste: bool,
    /// One number for each key of the policy; lower is better.
    pub(crate) rank: [u64; MOST_KEYS],
    /// The card's place on the node.
    pub(crate) place: usize,
}

/// What a choice must look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How many cards.
    pub(crate) count: usize,
    /// All of them on one NUMA node.
    pub(crate) one_numa: bool,
    /// Where the policy's `numa` key is.
    pub(crate) numa_key: Option<usize>,
    /// By their links first.
    pub(crate) links: bool,
}

/// Moves the chosen cards to the front; why there are none otherwise.
pub(crate) fn choose(
    node: &NodeState,
    manner: Manner,
    candidates: &mut Vec<Candidate>,
) -> Result<(), Reason> {
    let count = manner.count;
    if candidates.len() < count {
        return Err(Reason::AllocatedCardsInsufficientRequest);
    }
    if let Some(key) = manner.numa_key {
        prefer_whole_numa(node, count, key, candidates);
    }
    candidates.sort_unstable();
    if !manner.one_numa && !manner.links {
        return Ok(());
    }
    let groups = if manner.one_numa {
        by_numa(node, candidates)
    } else {
        vec![candidates.clone()]
    };
    let able = groups.into_iter().filter(|group| group.len() >= count);
    let best = able.map(|group| pick(node, manner, group)).min();
    *candidates = best.ok_or(Reason::NumaNotFit)?.cards;
    Ok(())
}

/// The candidates of each NUMA node, in their order. Cards of which the driver
/// knows none are one more group.
fn by_numa(node: &NodeState, candidates: &[Candidate]) -> Vec<Vec<Candidate>> {
    let mut groups: BTreeMap<Option<u32>, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let numa = node.cards[candidate.place].numa;
        groups.entry(numa).or_default().push(*candidate);
    }
    groups.into_values().collect()
}

/// The `numa` key: NUMA nodes that can hold the whole request come first, then
/// the lower number.
fn prefer_whole_numa(node: &NodeState, count: usize, key: usize, candidates: &mut [Candidate]) {
    let numa = |c: &Candidate| node.cards[c.place].numa;
    let numas: Vec<_> = candidates.iter().map(numa).collect();
    for candidate in candidates {
        let own = numa(candidate);
        let together = numas.iter().filter(|numa| **numa == own).count();
        let split = u64::from(together < count) << 32;
        candidate.rank[key] = split + u64::from(own.unwrap_or(u32::MAX));
    }
}

/// Cards of one group. The order is best first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Picked {
    strangers: usize,
    /// How bad they are by their links.
    strain: i64,
    ranks: Vec<[u64; MOST_KEYS]>,
    cards: Vec<Candidate>,
}

/// The best cards of one group, which is sorted.
fn pick(node: &NodeState, manner: Manner, mut group: Vec<Candidate>) -> Picked {
    let own = group.iter().filter(|c| !c.stranger).count();
    if own >= manner.count {
        group.truncate(own);
    }
    let mut strain = 0;
    if let (true, Some(inventory)) = (manner.links, &node.inventory) {
        let places: Vec<usize> = group.iter().map(|c| c.place).collect();
        let (found, chosen) = by_links(&scores(inventory, &places), manner.count);
        strain = found;
        group = chosen.into_iter().map(|at| group[at]).collect();
    }
    group.truncate(manner.count);
    Picked {
        strangers: group.iter().filter(|c| c.stranger).count(),
        strain,
        ranks: group.iter().map(|c| c.rank).collect(),
        cards: group,
    }
}

/// The pair score of each two cards; a link that only one end knows counts 0.
fn scores(inventory: &Inventory, places: &[usize]) -> Vec<Vec<i64>> {
    let link = |a: usize, b: usize| {
        let (a, b) = (&inventory.gpus[a], &inventory.gpus[b]);
        let there = a.links.get(&b.uuid).copied().unwrap_or(0);
        i64::from(there.min(b.links.get(&a.uuid).copied().unwrap_or(0)))
    };
    let row = |&a: &usize| places.iter().map(|&b| link(a, b)).collect();
    places.iter().map(row).collect()
}

/// `count` of the cards with the least strain: a single one that is linked least
/// to the others, several that are linked most to each other. Among equals the
/// first by order. All combinations of up to [`EXACT`] cards are compared;
/// beyond that each card in turn is the seed of a set that grows by its closest
/// card and is then improved by exchanges, so the cost stays bounded.
fn by_links(scores: &[Vec<i64>], count: usize) -> (i64, Vec<usize>) {
    let all = scores.len();
    if count == 1 {
        let strain = |at: usize| scores[at].iter().sum::<i64>() - scores[at][at];
        let best = (0..all).min_by_key(|&at| (strain(at), at)).unwrap_or(0);
        return (strain(best), vec![best]);
    }
    let mut best = (i64::MAX, Vec::new());
    let mut consider = |set: Vec<usize>| {
        let strain = -within(scores, &set);
        best = std::mem::take(&mut best).min((strain, set));
    };
    if all <= EXACT {
        for mask in 1_u32..1 << all {
            let set: Vec<usize> = (0..all).filter(|at| mask & (1 << at) != 0).collect();
            if set.len() == count {
                consider(set);
            }
        }
    } else {
        for seed in 0..all {
            consider(improved(scores, grown(scores, seed, count)));
        }
    }
    best
}

/// The sum of the pair scores in a set.
fn within(scores: &[Vec<i64>], set: &[usize]) -> i64 {
    let pairs = set
        .iter()
        .map(|&a| set.iter().map(|&b| scores[a][b]).sum::<i64>());
    let diagonal: i64 = set.iter().map(|&a| scores[a][a]).sum();
    (pairs.sum::<i64>() - diagonal) / 2
}

fn pull(scores: &[Vec<i64>], set: &[usize], at: usize) -> i64 {
    set.iter().map(|&other| scores[at][other]).sum()
}

fn grown(scores: &[Vec<i64>], seed: usize, count: usize) -> Vec<usize> {
    let mut set = vec![seed];
    while set.len() < count {
        let outside = (0..scores.len()).filter(|at| !set.contains(at));
        let closest = outside.min_by_key(|&at| (-pull(scores, &set, at), at));
        let Some(closest) = closest else { break };
        set.push(closest);
    }
    set
}

/// Exchanges one card at a time while that helps; each exchange makes the sum
/// larger, and there are at most as many as there are cards.
fn improved(scores: &[Vec<i64>], mut set: Vec<usize>) -> Vec<usize> {
    for _ in 0..scores.len() {
        let outside = (0..scores.len()).filter(|at| !set.contains(at));
        let exchanges = outside.flat_map(|new| (0..set.len()).map(move |old| (old, new)));
        let gain = |&(old, new): &(usize, usize)| {
            let out = set[old];
            pull(scores, &set, new)
                - scores[new][out]
                - (pull(scores, &set, out) - scores[out][out])
        };
        let best = exchanges.max_by_key(gain);
        match best {
            Some(exchange) if gain(&exchange) > 0 => set[exchange.0] = exchange.1,
            _ => break,
        }
    }
    set.sort_unstable();
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of neighbours are linked best, then those of one half.
    fn ladder(cards: usize) -> Vec<Vec<i64>> {
        let link = |a: usize, b: usize| match (a == b, a / 2 == b / 2, a / 4 == b / 4) {
            (true, ..) => 0,
            (_, true, _) => 400,
            (_, _, true) => 100,
            _ => 10,
        };
        let row = |a| (0..cards).map(|b| link(a, b)).collect();
        (0..cards).map(row).collect()
    }

    #[test]
    fn several_cards_are_the_closest_ones_and_one_is_the_loneliest() {
        let mut scores = ladder(8);
        assert_eq!(by_links(&scores, 2), (-400, vec![0, 1]));
        assert_eq!(by_links(&scores, 4), (-1200, vec![0, 1, 2, 3]));
        assert_eq!(by_links(&scores, 1).1, [0]);
        scores[5][4] = 0;
        scores[4][5] = 0;
        assert_eq!(by_links(&scores, 1).1, [4]);
        assert_eq!(by_links(&ladder(3), 1).1, [2]);
        assert_eq!(by_links(&ladder(1), 1), (0, vec![0]));
    }

    #[test]
    fn sixteen_cards_are_chosen_as_well_as_by_comparing_all() {
        let scores = ladder(16);
        for count in 2..=16 {
            let (strain, set) = by_links(&scores, count);
            assert_eq!(set.len(), count);
            assert_eq!(strain, -within(&scores, &set));
            let first: Vec<usize> = (0..count).collect();
            assert!(strain <= -within(&scores, &first), "{count}: {set:?}");
        }
    }
}
