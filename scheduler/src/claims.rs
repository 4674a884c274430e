//! Soft notes: where pods that were told a node, or woken for one, are about to
//! go. They last two seconds at most (design 4.2).
//!
//! Fed by: filter, prioritize and the nudge.
//! Must not: make a node infeasible; a claim lowers a node's place for others
//! and keeps other refused pods asleep.

use std::collections::HashMap;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::decide::SoftNote;
use tokio::time::Instant;

/// How long a claim lasts.
pub const LIFE: Duration = Duration::from_secs(2);

/// One claim per pod.
#[derive(Debug, Default)]
pub struct Claims(HashMap<PodUid, (SoftNote, Instant)>);

impl Claims {
    /// The pod is about to go there. Replaces what it claimed before.
    pub fn put(&mut self, pod: &PodUid, note: SoftNote, now: Instant) {
        self.0.insert(pod.clone(), (note, now + LIFE));
    }

    /// The pod no longer needs its claim; the slot it was for.
    pub fn end(&mut self, pod: &PodUid) -> Option<usize> {
        self.0.remove(pod).map(|(note, _)| note.slot)
    }

    /// The claims of all pods but this one that still count.
    pub fn others(&self, pod: &PodUid, now: Instant) -> Vec<SoftNote> {
        let others = self.0.iter().filter(|(uid, _)| *uid != pod);
        let alive = others.filter(|(_, (_, until))| *until > now);
        alive.map(|(_, (note, _))| note.clone()).collect()
    }

    /// Removes the claims that are over; the slots they were for.
    pub fn expire(&mut self, now: Instant) -> Vec<usize> {
        let over = self.0.extract_if(|_, (_, until)| *until <= now);
        over.map(|(_, (note, _))| note.slot).collect()
    }

    /// When the next claim is over.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, until)| *until).min()
    }

    /// Every claim that still counts.
    pub fn all(&self, now: Instant) -> Vec<SoftNote> {
        let alive = self.0.values().filter(|(_, until)| *until > now);
        alive.map(|(note, _)| note.clone()).collect()
    }
}
