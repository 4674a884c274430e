//! Which card gives an instance, and where on it: the choice that costs the
//! fewest placements of others.
//!
//! What a card can still give is the number of starts that its profiles have
//! left, each worth its memory slices; the choice that lowers it least is best.
//! An instance that nobody holds costs nothing: it is taken as it is, or gives way.
//! Fed by: the node's agent and the scheduler, who must agree.
//! Must not: move or touch an instance that is held.

use std::cmp::Reverse;

use super::{Geometry, Instance};

/// Where an instance goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The card, by its place among those that were offered.
    pub card: usize,
    /// The profile, by its place in that card's geometry.
    pub profile: usize,
    /// The first memory slice.
    pub start: u8,
    /// The instance is there already and idle.
    pub ready: bool,
    /// The starts of idle instances that must be destroyed first.
    pub destroys: Vec<u8>,
}

/// The best place for an instance of the profile of this name on one of the
/// cards, or `None` where all would have to wait for a pod to end.
///
/// Least loss first; then the first card; on it an instance that is ready, then few
/// to destroy, then the highest start. The fullest card instead of the first
/// would refuse more: the test of arrivals has both.
pub fn place(cards: &[(&Geometry, &[Instance])], name: &str) -> Option<Placement> {
    let cards = cards.iter().enumerate();
    let offers = cards.filter_map(|(card, (geometry, all))| {
        let profile = geometry.find(name)?;
        let (loss, found) = on_card(geometry, all, profile, |_| true)?;
        Some(((loss, card), Placement { card, ..found }))
    });
    let best = offers.min_by_key(|(cost, _)| *cost);
    best.map(|(_, placement)| placement)
}

/// The same on one card, at one of the starts that are `allowed`, beside what the
/// card can give less afterwards.
pub fn on_card(
    geometry: &Geometry,
    all: &[Instance],
    profile: usize,
    allowed: impl Fn(u8) -> bool,
) -> Option<(u32, Placement)> {
    let mut held: Vec<Instance> = all.iter().copied().filter(|one| one.busy).collect();
    let starts: Vec<u8> = geometry.starts(profile, &held).collect();
    let worth = worth(geometry, &held);
    let mut best: Option<((u32, _, Reverse<u8>), Placement)> = None;
    for start in starts.into_iter().filter(|start| allowed(*start)) {
        let found = offer(geometry, all, profile, start);
        held.push(Instance {
            profile,
            start,
            busy: true,
        });
        let loss = worth - self::worth(geometry, &held);
        held.pop();
        let effort = (Reverse(found.ready), found.destroys.len());
        let cost = (loss, effort, Reverse(start));
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, found));
        }
    }
    best.map(|((loss, ..), found)| (loss, found))
}

/// What must happen for an instance of this profile to be there.
fn offer(geometry: &Geometry, all: &[Instance], profile: usize, start: u8) -> Placement {
    let idle = || all.iter().filter(|one| !one.busy);
    let ready = idle().any(|one| (one.profile, one.start) == (profile, start));
    let wanted = &geometry.profiles()[profile];
    let mut destroys: Vec<u8> = Vec::new();
    if !ready {
        let overlaps = |one: &&Instance| {
            let slices = geometry.profiles()[one.profile].slices(one.start);
            slices & wanted.slices(start) != 0
        };
        destroys.extend(idle().filter(overlaps).map(|one| one.start));
        // Compute slices and the number of its kind may stand in the way, too.
        let mut left: Vec<Instance> = all.to_vec();
        left.retain(|one| one.busy || !destroys.contains(&one.start));
        while !geometry.starts(profile, &left).any(|open| open == start) {
            let Some(at) = left.iter().rposition(|one| !one.busy) else {
                break;
            };
            destroys.push(left.remove(at).start);
        }
    }
    Placement {
        card: 0,
        profile,
        start,
        ready,
        destroys,
    }
}

/// What a card with these instances can still give.
fn worth(geometry: &Geometry, held: &[Instance]) -> u32 {
    let profiles = geometry.profiles().iter().enumerate();
    let each = profiles.map(|(at, profile)| {
        let starts = u32::try_from(geometry.starts(at, held).count()).unwrap_or(0);
        starts * u32::from(profile.size)
    });
    each.sum()
}
