//! What one look at all cards, processes and counters files means: figures, charges, deeds.
//!
//! Fed by: [`crate::look`], look by look. Must not: read anything itself, or let a file that one
//! tenant spoiled change a figure of another.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_region::host::{Report, Unreadable};

use crate::account::{Overhead, Seen};
use crate::attribute::{self, OnCard, Owner, Reason};
use crate::oom::{self, Rule, Watched};
use crate::unmanaged::{self, Stray, Strays};

mod values;
pub use values::{Counters, Deed, Look, Outcome, Rules, Unmanaged, Use};

/// What is kept from look to look.
#[derive(Debug, Default)]
pub struct Judge {
    shares: BTreeMap<(String, usize), Kept>,
    strays: Strays,
}

#[derive(Debug, Default)]
struct Kept {
    overhead: Overhead,
    watched: Watched,
    peak: u64,
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
        let mut outcome = Outcome {
            unknown: count(&owners, |owner| *owner == Owner::Unknown),
            ..Outcome::default()
        };
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
                let (found, charge) = self.share(look, rules, (at, device), &own, &mut outcome);
                uses.push(found);
                charges.push(charge);
            }
            list.sort_unstable();
            outcome.uses.push(uses);
            outcome.charges.push(charges);
            outcome.lists.push(list);
            if let Some(Some(Err(error))) = look.counters.get(at)
                && !is_gone(error)
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
        own: &[(&OnCard, bool)],
        outcome: &mut Outcome,
    ) -> (Use, Option<u64>) {
        let seat = &look.seats.all[at];
        let kept = self.shares.entry((seat.name.clone(), device)).or_default();
        let reports = match look.counters.get(at) {
            Some(Some(Ok(reports))) => Some(reports),
            _ => None,
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
        let uuid = seat.devices[device].uuid.as_str();
        let card = look.cards.get(uuid).map_or(uuid, String::as_str);
        if !seat.limited || look.blind.contains(card) {
            return (found, None);
        }
        let charged = value(look.charged.get(at), device);
        found.overhead = kept.overhead.after(seen, charged);
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
        (found, Some(found.overhead))
    }

    fn strays(&mut self, look: &Look, rules: &Rules, owners: &[Owner], outcome: &mut Outcome) {
        let mut all: BTreeMap<Stray, (&OnCard, Unmanaged)> = BTreeMap::new();
        let mut seen = Vec::new();
        for (one, owner) in look.on_cards.iter().zip(owners) {
            let reason = match owner {
                // Where it was the kernel does not say any more, in groups of version 1.
                Owner::Nobody(Reason::Host) if one.process.going => continue,
                Owner::Nobody(reason) => *reason,
                Owner::Loose(..) => Reason::NoLibrary,
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
            let pod = all
                .get(stray)
                .and_then(|(one, _)| one.process.place.pod.as_ref());
            pod.is_none_or(|pod| rules.spared.contains(pod))
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
        Some(Some(Err(error))) => is_gone(error),
        Some(None) | None => true,
    };
    if has_slot || one.process.going {
        owner
    } else {
        Owner::Loose(at, device)
    }
}

/// The file went with its container, or was not there yet.
fn is_gone(error: &Unreadable) -> bool {
    let gone = std::io::ErrorKind::NotFound;
    matches!(error, Unreadable::Step { source, .. } if source.kind() == gone)
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
#[path = "judge_tests.rs"]
mod tests;
