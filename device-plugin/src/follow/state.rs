//! What following knows between two looks, and how it begins.
//!
//! Fed by: what was stored, what is wanted. Must not: begin what is not stored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use aliquot_core::{GpuUuid, Inventory};
use aliquot_profiles::mode::On;
use aliquot_profiles::{Defaults, Mode};
use tokio::time::Instant;

use crate::accepted::Accepted;
use crate::clock::steady;
use crate::fail_point::{self, Point};
use crate::modes::Modes;
use crate::node::Seen;
use crate::profile_status::Hindrance;
use crate::standing::{Standing, StandingError};
use crate::transition::{self, Card, Situation, Todo};
use crate::wanted::{self, Fault};
use crate::{occupants, units};

/// A mode that could not be made so often is given up.
const TRIES: u32 = 3;
/// Pause after a step that failed: doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is known between two looks.
pub struct State {
    pub(super) standing: Standing,
    /// The cards that the driver tells. One that is stored and not here waits for its return.
    pub(super) here: BTreeSet<GpuUuid>,
    pub(super) stored: Standing,
    pub(super) fault: Option<Fault>,
    /// Since when the scheduler knows that a card takes nothing new.
    pub(super) closed: BTreeMap<GpuUuid, Instant>,
    /// Cards on which a step is being done.
    pub(super) busy: BTreeSet<GpuUuid>,
    pub(super) failures: BTreeMap<GpuUuid, Failure>,
    pub(super) said: Option<[String; 3]>,
    /// Of the configuration that was read last, and of the one that was told.
    pub(super) hash: Option<u64>,
    pub(super) told: Option<u64>,
}

pub(super) struct Failure {
    pub(super) why: Hindrance,
    pub(super) tries: u32,
    pub(super) again: Instant,
    pub(super) pause: Duration,
}

impl Failure {
    pub(super) fn none() -> Self {
        Self {
            why: Hindrance::Failed(String::new()),
            tries: 0,
            again: Instant::now(),
            pause: RETRY.0,
        }
    }

    /// A step was not done; the card after that. One that waits for its owner is never given up,
    /// which would undo what it waits for.
    pub(super) fn once_more(&mut self, card: &Card, why: Hindrance) -> Card {
        self.again = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY.1);
        self.why = why;
        let Hindrance::Failed(text) = &self.why else {
            return card.clone();
        };
        self.tries += 1;
        if self.tries < TRIES {
            return card.clone();
        }
        self.tries = 0;
        transition::give_up(card, text)
    }
}

impl State {
    /// What was stored, made sure of as far as that takes no waiting. Blocks. A node that knows
    /// no profiles yet has what an earlier release made of it: vgpu where pods hold shares.
    pub fn begin(
        stored: Option<Standing>,
        follower: &Beginning<'_>,
    ) -> Result<Self, StandingError> {
        let now = steady();
        let mut state = Self {
            stored: Standing::default(),
            standing: stored.unwrap_or_else(|| follower.before_profiles()),
            here: BTreeSet::new(),
            fault: None,
            closed: BTreeMap::new(),
            busy: BTreeSet::new(),
            failures: BTreeMap::new(),
            said: None,
            hash: None,
            told: None,
        };
        state.meet(follower.facts);
        if !follower.configured {
            let labels = BTreeMap::new();
            state.learn(None, &labels, follower.facts, follower.defaults);
        }
        for facts in &follower.facts.cards {
            let uuid = GpuUuid::from(facts.uuid.as_str());
            let wanted = state.standing.wanted.get(&uuid).cloned();
            let mut card = state.standing.cards.remove(&uuid).unwrap_or_default();
            loop {
                let free = card.mode.is_none() && matches!(wanted, Some(Mode::Vgpu(_)));
                let see = Situation {
                    wanted: wanted.as_ref().filter(|_| free),
                    known: free,
                    free,
                    closed: free,
                    timeout: None,
                    now,
                };
                let next = transition::next(&card, &see);
                let changed = next != card;
                card = next;
                if let Todo::Enter(mode) = transition::todo(&card) {
                    if waits(mode) {
                        break;
                    }
                    match follower.modes.switch(mode).enter(facts, mode) {
                        Ok(()) => card = transition::done(&card),
                        Err(error) => {
                            tracing::warn!(%uuid, %error, "a card is not in its mode yet");
                            break;
                        }
                    }
                } else if !changed {
                    break;
                }
            }
            state.standing.cards.insert(uuid, card);
        }
        state.store(follower.path)?;
        Ok(state)
    }

    /// How the cards are shared now.
    pub fn arrangement(&self, usual: &str) -> units::Arrangement {
        self.standing.arrangement(usual)
    }

    /// Takes over which cards there are. One that is met for the first time, or again, is made sure
    /// of like all are at a start.
    pub(super) fn meet(&mut self, facts: &aliquot_nvml::Inventory) {
        let cards = facts.cards.iter();
        let here: BTreeSet<GpuUuid> = cards.map(|card| card.uuid.as_str().into()).collect();
        for uuid in here.difference(&self.here) {
            if let Some(card) = self.standing.cards.get_mut(uuid) {
                *card = transition::found(card, steady());
            }
        }
        self.here = here;
    }

    /// How many cards are on their way.
    pub(super) fn changing(&self) -> usize {
        let cards = self.standing.cards.iter();
        let here = cards.filter(|(uuid, _)| self.here.contains(*uuid));
        here.filter(|(_, card)| card.change.is_some()).count()
    }

    /// Takes over what is wanted, or why that is not known.
    pub(super) fn learn(
        &mut self,
        text: Option<&str>,
        labels: &BTreeMap<String, String>,
        facts: &aliquot_nvml::Inventory,
        defaults: &Defaults,
    ) {
        match wanted::wanted(text, labels, facts, defaults) {
            Ok(wanted) => {
                self.standing.profile = Some(wanted.profile);
                self.standing.transition = wanted.transition;
                self.standing.wanted = wanted.cards;
                self.standing.reserve = wanted.reserve;
                self.fault = None;
            }
            Err(fault) => self.fault = Some(fault),
        }
    }

    /// The cards that change, or should.
    pub(super) fn concerned(&self) -> BTreeSet<GpuUuid> {
        let wanted = self.standing.wanted.iter().filter(|(uuid, wanted)| {
            let card = self.standing.cards.get(*uuid);
            card.is_none_or(|card| card.mode.as_ref() != Some(wanted))
        });
        let cards = self.standing.cards.iter();
        let changing = cards.filter(|(_, card)| card.change.is_some());
        let changing = changing.map(|(uuid, _)| uuid);
        wanted
            .map(|(uuid, _)| uuid)
            .chain(changing)
            .filter(|uuid| self.here.contains(*uuid))
            .cloned()
            .collect()
    }

    pub(super) fn store(&mut self, path: &Path) -> Result<bool, StandingError> {
        if self.standing == self.stored {
            return Ok(false);
        }
        fail_point::at(Point::ChangeBeforeStore);
        self.standing.store(path)?;
        fail_point::at(Point::ChangeAfterStore);
        self.stored = self.standing.clone();
        Ok(true)
    }
}

/// Whether making a mode waits for somebody else, the keeper of MPS daemons: such a mode is made
/// sure of while the kubelet is served.
fn waits(mode: &Mode) -> bool {
    match mode {
        Mode::Mps(_) => true,
        Mode::Mig(mig) => {
            let mut slices = mig.layout.iter();
            slices.any(|slice| matches!(slice.on, Some(On::Mps(_))))
        }
        Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Timeslice(_) | Mode::Unmanaged => false,
    }
}

/// What the agent knows before it serves anybody.
pub struct Beginning<'a> {
    /// There is a configuration, which is read when the node's labels are known.
    pub configured: bool,
    /// The driver's facts.
    pub facts: &'a aliquot_nvml::Inventory,
    /// What holds where a profile says nothing.
    pub defaults: &'a Defaults,
    /// What makes modes.
    pub modes: &'a Modes,
    /// Shares that were accepted before.
    pub shares: &'a [Accepted],
    /// Where [`Standing`] is stored.
    pub path: &'a Path,
}

impl Beginning<'_> {
    fn before_profiles(&self) -> Standing {
        let vgpu = Mode::Vgpu(aliquot_profiles::mode::Vgpu::default()).filled(self.defaults);
        let held = self
            .shares
            .iter()
            .flat_map(|share| share.uses().keys().cloned());
        let card = Card {
            mode: Some(vgpu),
            ..Card::default()
        };
        Standing {
            cards: held.map(|gpu| (gpu, card.clone())).collect(),
            ..Standing::default()
        }
    }
}

/// Notes since when the API server shows that a card takes nothing new.
pub(super) fn close(state: &mut State, concerned: &BTreeSet<GpuUuid>, node: Option<&Seen>) {
    let text = node.map(|node| node.inventory.as_deref());
    let shown = text.map(|text| text.map(Inventory::decode).transpose());
    let Some(Ok(shown)) = shown else {
        state.closed.clear();
        return;
    };
    let open = |uuid: &GpuUuid| {
        let mut units = shown.iter().flat_map(|shown| &shown.gpus);
        units.any(|unit| occupants::is_of(unit, uuid) && unit.cordon.is_none())
    };
    state
        .closed
        .retain(|uuid, _| concerned.contains(uuid) && !open(uuid));
    for uuid in concerned.iter().filter(|uuid| !open(uuid)) {
        state
            .closed
            .entry(uuid.clone())
            .or_insert_with(Instant::now);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
