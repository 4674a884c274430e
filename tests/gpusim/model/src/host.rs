//! Managed memory that is on the host, though a card used it: how much of each process, and the most
//! that there ever was of all. Fed by the simulated CUDA driver; must not move anything.

use std::sync::atomic::Ordering::Relaxed;

use crate::member::Member;
use crate::shared::Card;

impl Member {
    /// Managed bytes that the card wanted to use stay on the host, or are brought there.
    pub fn stay_on_host(&self, card: usize, bytes: u64) {
        self.locked(card, |record| {
            self.holding(card).host.fetch_add(bytes, Relaxed);
            self.note_host(card, record);
        });
    }

    /// Managed bytes left the host.
    pub fn leave_host(&self, card: usize, bytes: u64) {
        self.locked(card, |_| {
            let host = &self.holding(card).host;
            host.store(host.load(Relaxed).saturating_sub(bytes), Relaxed);
        });
    }

    /// Notes what lies on the host, if it never was so much. Needs the card's lock.
    pub(crate) fn note_host(&self, card: usize, record: &Card) {
        let sum = || -> u64 {
            let slots = self.shared().claimed().map(|(_, slot)| slot);
            slots.map(|one| one.holdings[card].host.load(Relaxed)).sum()
        };
        if sum() > record.host_peak.load(Relaxed) {
            // It may be the dead who make it so much.
            self.bury(card, record);
            record.host_peak.fetch_max(sum(), Relaxed);
        }
    }
}
