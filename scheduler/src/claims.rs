//! Soft notes: where pods that were told a node, or woken for one, are about to
//! go. They last two seconds at most (design 4.2).
//!
//! Fed by: filter, prioritize and the nudge.
//! Must not: make a node infeasible; a claim lowers a node's place for others
//! and keeps other refused pods asleep.

use std::collections::HashMap;
use std::time::Duration;

use aliquot_core::decide::SoftNote;
use aliquot_core::{Namespace, PodUid};
use tokio::time::Instant;

/// How long a claim lasts.
pub const LIFE: Duration = Duration::from_secs(2);

/// What a pod is about to take.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Where, and of which cards.
    pub note: SoftNote,
    /// Of whose quotas.
    pub namespace: Namespace,
}

/// One claim per pod.
#[derive(Debug, Default)]
pub struct Claims(HashMap<PodUid, (Claim, Instant)>);

impl Claims {
    /// The pod is about to go there. Replaces what it claimed before; if that was
    /// something else, it is returned: others may have it.
    #[must_use = "others may sleep because of what is claimed no longer"]
    pub fn put(&mut self, pod: &PodUid, claim: Claim, now: Instant) -> Option<Claim> {
        let note = claim.note.clone();
        let old = self.0.insert(pod.clone(), (claim, now + LIFE));
        old.map(|(old, _)| old).filter(|old| old.note != note)
    }

    /// The pod no longer needs its claim.
    pub fn end(&mut self, pod: &PodUid) -> Option<Claim> {
        self.0.remove(pod).map(|(claim, _)| claim)
    }

    /// The claims of all pods but this one that still count.
    pub fn others(&self, pod: &PodUid, now: Instant) -> Vec<SoftNote> {
        let others = self.0.iter().filter(|(uid, _)| *uid != pod);
        let alive = others.filter(|(_, (_, until))| *until > now);
        alive.map(|(_, (claim, _))| claim.note.clone()).collect()
    }

    /// Removes the claims that are over.
    pub fn expire(&mut self, now: Instant) -> Vec<Claim> {
        let over = self.0.extract_if(|_, (_, until)| *until <= now);
        over.map(|(_, (claim, _))| claim).collect()
    }

    /// When the next claim is over.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, until)| *until).min()
    }

    /// Every claim that still counts.
    pub fn all(&self, now: Instant) -> Vec<Claim> {
        let alive = self.0.values().filter(|(_, until)| *until > now);
        alive.map(|(claim, _)| claim.clone()).collect()
    }
}
