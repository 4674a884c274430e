//! What others see of the node's profile: units, seats, condition, events, evictions.
//!
//! Fed by: the state of a look. Must not: show what is not stored.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::GpuUuid;
use aliquot_core::inventory::Refused;
use aliquot_profiles::config::Policy;

use super::{Follower, State};
use crate::fail_point::{self, Point};
use crate::inventory::Course;
use crate::occupants::{self, Occupants};
use crate::standing::Standing;
use crate::transition::Step;
use crate::{profile_status, sick};

impl Follower {
    pub(super) fn publish(
        &self,
        state: &mut State,
        occupants: &BTreeMap<GpuUuid, Occupants>,
        resources: &BTreeSet<String>,
        changed: bool,
    ) {
        let failures = state.failures.iter();
        let failures = failures.map(|(uuid, failure)| (uuid.clone(), failure.why.clone()));
        let failures = failures.collect();
        let (standing, fault) = (&state.standing, state.fault.as_ref());
        let condition =
            profile_status::condition(standing, &state.here, fault, occupants, &failures);
        self.metrics.profile_fault.set(i64::from(fault.is_some()));
        let changing = i64::try_from(state.changing()).unwrap_or(i64::MAX);
        self.metrics.changing_cards.set(changing);
        let news = state.said.as_ref() != Some(&condition);
        if self.source.is_some() && (news || state.told != state.hash) {
            let profile = state.standing.profile.as_deref();
            let applied = news && condition[1] == "Applied";
            self.metrics.tell_profile(profile, state.hash, applied);
            state.told = state.hash;
        }
        if self.source.is_some() && news {
            tracing::info!(reason = condition[1], message = condition[2], "profile");
            if condition[1] != "Changing" {
                self.notes
                    .send(profile_status::note(&self.node, &condition));
            }
            state.said = Some(condition.clone());
        }
        // Who holds what is read anew before a seat may go.
        let entries = changed.then(|| self.prestart.entries().ok()).flatten();
        let held = entries.map(|entries| {
            let pods = &self.prestart.pods;
            sick::held(&entries, &pods.in_order(), pods.synced())
        });
        let vanished = standing.offered.difference(resources).cloned().collect();
        self.prestart.published.arrange(Course {
            arrangement: standing.arrangement(&self.prestart.usual),
            held,
            evict: evict(standing, occupants),
            profile: self.source.as_ref().map(|_| condition),
            vanished,
        });
        fail_point::at(Point::ChangePublished);
    }
}

/// Pods that must leave a card that drains: those that the new mode has no place for.
fn evict(standing: &Standing, occupants: &BTreeMap<GpuUuid, Occupants>) -> Vec<Refused> {
    if standing.transition.policy != Policy::Evict {
        return Vec::new();
    }
    let mut evict = Vec::new();
    for (uuid, there) in occupants {
        let card = standing.cards.get(uuid);
        let change = card.and_then(|card| card.change.as_ref());
        let Some(change) = change.filter(|change| change.step == Step::Draining) else {
            continue;
        };
        let mode = card.and_then(|card| card.mode.as_ref());
        if occupants::may_stay(there, mode, &change.to) {
            continue;
        }
        let to = crate::standing::name(&change.to);
        for pod in there.pods.iter().filter(|pod| !pod.mirror) {
            evict.push(Refused {
                pod: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                reason: format!("{uuid} becomes {to}, by its node's profile"),
            });
        }
    }
    evict
}

#[cfg(test)]
mod tests {
    use aliquot_profiles::Mode;
    use aliquot_profiles::mode::Vgpu;

    use super::*;
    use crate::testing::pod;
    use crate::transition::{Card, Change};

    fn vgpu(split: u32) -> Mode {
        Mode::Vgpu(Vgpu {
            split: Some(split),
            ..Vgpu::default()
        })
    }

    #[test]
    fn pods_that_fit_the_new_numbers_were_evicted() {
        let check = |to: Mode, expected: usize| {
            let card = Card {
                mode: Some(vgpu(10)),
                change: Some(Change {
                    to,
                    step: Step::Draining,
                    since: 0,
                }),
                ..Card::default()
            };
            let mut standing = Standing::default();
            standing.cards.insert("GPU-a".into(), card);
            standing.transition.policy = Policy::Evict;
            let there = Occupants {
                pods: vec![std::sync::Arc::new(pod("u1"))],
                ..Occupants::default()
            };
            let occupants = BTreeMap::from([("GPU-a".into(), there)]);
            assert_eq!(evict(&standing, &occupants).len(), expected);
        };
        check(vgpu(12), 0);
        check(
            Mode::Exclusive(aliquot_profiles::mode::Exclusive::default()),
            1,
        );
    }
}
