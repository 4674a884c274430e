//! What one look at all cards, processes and counters files means: figures, charges, deeds.
//!
//! Fed by: [`crate::look`], look by look. Must not: read anything itself, or let a file that one
//! tenant spoiled change a figure of another.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;
use aliquot_region::host::Report;

use crate::account::{Overhead, Seen};
use crate::attribute::{self, OnCard, Owner, Reason};
use crate::oom::{self, Rule, Watched};
use crate::processes::Life;
use crate::unmanaged::{self, Stray, Strays};

mod values;
pub use values::{Counters, Deed, Look, Outcome, Rules, Unmanaged, Use};

/// Looks for which a process is in no container that was told of, until that is told: the API
/// server tells of a new one after a second or two.
const UNTOLD: u32 = 20;

/// What is kept from look to look.
#[derive(Debug, Default)]
pub struct Judge {
    shares: BTreeMap<(String, usize), Kept>,
    strays: Strays,
    /// Looks for which processes were in no container that was told of.
    untold: BTreeMap<Life, u32>,
}

#[derive(Debug, Default)]
struct Kept {
    overhead: Overhead,
    watched: Watched,
    peak: u64,
}

/// The processes of a share on a device, each with whether it avoids the library.
#[derive(Clone, Copy)]
struct Own<'a> {
    all: &'a [(&'a OnCard, bool)],
    /// There may be others of its own.
    is_unsure: bool,
}

impl Judge {
    /// What one more look means.
    pub fn after(&mut self, look: &Look, rules: &Rules) -> Outcome {
        let seats = &look.seats.all;
        let owners: Vec<Owner> = look
            .on_cards
            .iter()
            .map(|one| with_library(one, attribute::owner(one, seats, &look.beside), look))
            .collect();
        let is_unsure = |owner: &Owner| matches!(owner, Owner::Unknown | Owner::Untold);
        let mut outcome = Outcome {
            unknown: count(&owners, is_unsure),
            ..Outcome::default()
        };
        // Pods with a process on a card that may be that of any container of theirs.
        let unsure = look.on_cards.iter().zip(&owners);
        let unsure = unsure.filter(|(_, owner)| is_unsure(owner));
        let unsure: BTreeSet<(&str, &PodUid)> = unsure
            .filter_map(|(one, _)| Some((one.card.as_str(), one.process.place.pod.as_ref()?)))
            .collect();
        let names: BTreeSet<&str> = seats.iter().map(|seat| seat.name.as_str()).collect();
        self.shares
            .retain(|(name, _), _| names.contains(name.as_str()));
        for (at, seat) in seats.iter().enumerate() {
            let mut list = Vec::new();
            let (mut uses, mut charges) = (Vec::new(), Vec::new());
            for device in 0..seat.devices.len() {
                let own = of_share(&look.on_cards, &owners, (at, device));
                list.extend(
                    own.iter()
                        .filter_map(|(one, _)| Some((one.process.inner?, device, one.bytes))),
                );
                let is_unsure = unsure.contains(&(look.card(at, device), &seat.pod));
                let own = Own {
                    all: &own,
                    is_unsure,
                };
                let (found, charge) = self.share(look, rules, (at, device), own, &mut outcome);
                uses.push(found);
                charges.push(charge);
            }
            list.sort_unstable();
            let is_whole = !uses.iter().any(|found| found.blind);
            outcome.uses.push(uses);
            outcome.charges.push(charges);
            outcome.lists.push(is_whole.then_some(list));
            if let Some(Some(Err(error))) = look.counters.get(at)
                && error.is_by_tenant()
            {
                outcome.spoiled.push((at, error.to_string()));
            }
        }
        self.strays(look, rules, &owners, &mut outcome);
        outcome
    }

    fn share(
        &mut self,
        look: &Look,
        rules: &Rules,
        (at, device): (usize, usize),
        own: Own<'_>,
        outcome: &mut Outcome,
    ) -> (Use, Option<u64>) {
        let (own, is_unsure) = (own.all, own.is_unsure);
        let seat = &look.seats.all[at];
        let kept = self.shares.entry((seat.name.clone(), device)).or_default();
        let (reports, is_unread) = match look.counters.get(at) {
            Some(Some(Ok(reports))) => (Some(reports), false),
            // What the library counts is not known.
            Some(Some(Err(error))) => (None, !error.is_by_tenant()),
            _ => (None, false),
        };
        let limit = value(look.limits.get(at), device);
        let mut found = said(reports.map(|(_, after)| after), device);
        found.limit = limit;
        let bytes = |loose: bool| {
            let those = own.iter().filter(|(_, is_loose)| *is_loose == loose);
            those.fold(0_u64, |sum, (one, _)| sum.saturating_add(one.bytes))
        };
        let seen = Seen {
            held: bytes(false),
            loose: bytes(true),
            before: reports.map_or(0, |(before, _)| before.used(device)),
            after: found.tracked,
        };
        found.measured = seen.measured();
        found.processes = count(own, |_| true);
        found.busy = own.iter().fold(0, |sum: u32, (one, _)| {
            let key = (one.card.clone(), one.process.life.pid);
            sum.saturating_add(look.busy.get(&key).copied().unwrap_or(0))
        });
        kept.peak = kept.peak.max(seen.measured());
        found.peak = kept
            .peak
            .max(if limit == 0 { 0 } else { found.peak.min(limit) });
        let is_blind = look.blind.contains(look.card(at, device));
        found.blind = is_blind || is_unsure;
        let charged = value(look.charged.get(at), device);
        found.overhead = charged;
        if !seat.limited || is_blind {
            return (found, None);
        }
        let is_known = !is_unsure && !is_unread;
        let charge = is_known.then(|| kept.overhead.after(seen, charged));
        found.overhead = charge.unwrap_or(charged);
        let rule = Rule {
            limit,
            tolerance: rules.tolerance,
            kill: seat.effective.oom_killer,
        };
        let holder = |(one, _): &(&OnCard, bool)| oom::Holder {
            life: one.process.life,
            bytes: one.bytes,
            going: one.process.going,
        };
        let all: Vec<oom::Holder> = own.iter().map(holder).collect();
        match kept.watched.after(&all, rule) {
            oom::Verdict::Fine => {}
            oom::Verdict::Tell { held } => outcome.deeds.push(Deed::TellAbove(at, device, held)),
            oom::Verdict::Kill { held, life } => {
                let victim = own.iter().find(|(one, _)| one.process.life == life);
                let place = victim.map(|(one, _)| one.process.place.clone());
                let deed = place.map(|place| Deed::EndGrower(life, place, at, device, held));
                outcome.deeds.extend(deed);
            }
        }
        (found, charge)
    }

    /// Processes of pods that are known, in none of their containers for so long that it is no new
    /// one.
    fn in_no_container(&mut self, look: &Look, rules: &Rules, owners: &[Owner]) -> BTreeSet<Life> {
        let all = look.on_cards.iter().zip(owners);
        let untold = all.filter(|(one, owner)| {
            let pod = one.process.place.pod.as_ref();
            let is_known = pod.is_some_and(|pod| look.beside.pods.contains_key(pod));
            **owner == Owner::Untold && is_known && rules.fresh
        });
        let mut next = BTreeMap::new();
        let mut found = BTreeSet::new();
        for (one, _) in untold {
            let life = one.process.life;
            let looks = self
                .untold
                .get(&life)
                .copied()
                .unwrap_or(0)
                .saturating_add(1);
            next.insert(life, looks);
            // In the cgroup of the pod itself nobody will tell of a container.
            if looks >= UNTOLD || one.process.place.container.is_none() {
                found.insert(life);
            }
        }
        self.untold = next;
        found
    }

    fn strays(&mut self, look: &Look, rules: &Rules, owners: &[Owner], outcome: &mut Outcome) {
        let untold = self.in_no_container(look, rules, owners);
        let mut all: BTreeMap<Stray, (&OnCard, Unmanaged)> = BTreeMap::new();
        let mut seen = Vec::new();
        for (one, owner) in look.on_cards.iter().zip(owners) {
            let reason = match owner {
                // Where it was the kernel does not say any more, in groups of version 1.
                Owner::Nobody(Reason::Host) if one.process.going => continue,
                Owner::Nobody(reason) => *reason,
                Owner::Loose(..) => Reason::NoLibrary,
                Owner::Untold if untold.contains(&one.process.life) => Reason::NoContainer,
                _ => continue,
            };
            let stray = (one.card.clone(), one.process.life);
            seen.push((stray.clone(), reason));
            let unmanaged = Unmanaged {
                card: one.card.clone(),
                pod: one.process.place.pod.clone(),
                reason,
                bytes: one.bytes,
            };
            all.insert(stray, (one, unmanaged));
        }
        let spared = |stray: &Stray| {
            let found = all.get(stray);
            let pod = found.and_then(|(one, _)| one.process.place.pod.as_ref());
            // Of a pod that is not known yet nobody knows its namespace, or who gave it a card.
            let is_unheard = |pod| {
                let has_no_share = found.is_some_and(|(_, it)| it.reason == Reason::NoShare);
                has_no_share && !look.beside.pods.contains_key(pod)
            };
            pod.is_none_or(|pod| rules.spared.contains(pod) || is_unheard(pod))
        };
        for (stray, _, deed) in self.strays.after(&seen, rules.unmanaged, spared) {
            let Some((one, unmanaged)) = all.get(&stray) else {
                continue;
            };
            let (process, unmanaged) = (&one.process, unmanaged.clone());
            outcome.deeds.extend(match deed {
                unmanaged::Deed::Tell => Some(Deed::TellStray(unmanaged, process.life.pid)),
                unmanaged::Deed::Kill => Some(Deed::EndStray(
                    process.life,
                    process.place.clone(),
                    unmanaged,
                )),
                unmanaged::Deed::Evict => {
                    unmanaged.pod.clone().map(|pod| Deed::Evict(pod, unmanaged))
                }
            });
        }
        let believed = self.strays.believed();
        let believed = believed.filter_map(|(stray, _)| Some(all.get(stray)?.1.clone()));
        outcome.strays = believed.collect();
    }
}

/// Tells apart who avoids the library. A file that says nothing, of a container that lives, is
/// not its library's any more; one who is going has let go of its slot already.
fn with_library(one: &OnCard, owner: Owner, look: &Look) -> Owner {
    let Owner::Share(at, device) = owner else {
        return owner;
    };
    let has_slot = match look.counters.get(at) {
        Some(Some(Ok((before, after)))) => {
            let mut holders = before.holders.iter().chain(&after.holders);
            let inner = one.process.inner;
            // Who shares the last slot has none of its own.
            inner.is_none() || holders.any(|holder| holder.pid.is_none() || holder.pid == inner)
        }
        // The host's own trouble says nothing of a tenant.
        Some(Some(Err(error))) => !error.is_by_tenant(),
        Some(None) | None => true,
    };
    if has_slot || one.process.going {
        owner
    } else {
        Owner::Loose(at, device)
    }
}

/// What a counters file says of a device.
fn said(report: Option<&Report>, device: usize) -> Use {
    let Some(report) = report else {
        return Use::default();
    };
    let tracked = report.used(device);
    let contexts = report.holders.iter();
    let contexts = contexts.filter_map(|holder| holder.contexts.get(device));
    Use {
        tracked,
        contexts: contexts.fold(0, |sum, bytes| sum.saturating_add(*bytes)),
        peak: value(Some(&report.peaks), device),
        stale: value(Some(&report.totals), device).saturating_sub(tracked),
        refused: value(Some(&report.refused), device),
        work: report.work.get(device).copied().unwrap_or_default(),
        ..Use::default()
    }
}

/// The processes of a share, each with whether it avoids the library: those stay its own, so that
/// they are charged.
fn of_share<'a>(
    on_cards: &'a [OnCard],
    owners: &[Owner],
    share: (usize, usize),
) -> Vec<(&'a OnCard, bool)> {
    let all = on_cards.iter().zip(owners);
    all.filter_map(|(one, owner)| match owner {
        Owner::Share(at, device) => ((*at, *device) == share).then_some((one, false)),
        Owner::Loose(at, device) => ((*at, *device) == share).then_some((one, true)),
        _ => None,
    })
    .collect()
}

fn count<T>(all: &[T], which: impl Fn(&T) -> bool) -> u64 {
    let number = all.iter().filter(|one| which(one)).count();
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn value(row: Option<&Vec<u64>>, device: usize) -> u64 {
    row.and_then(|row| row.get(device)).copied().unwrap_or(0)
}

#[cfg(test)]
#[path = "judge_doubts.rs"]
mod doubts;
#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
