//! Where the pages of managed memory are: on the host until a card touches them, and again when
//! somebody needs the card's room. Fed by touches; must not know who needs the room.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use crate::driver::Driver;
use crate::heap::Allocation;

/// Bytes that move together.
const PAGE: u64 = 2 << 20;
/// Pages that are taken of the card together.
const BATCH: u64 = 16;

/// All pages of the process that are on cards.
#[derive(Default)]
pub(crate) struct Residency(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// Card of each page, by allocation and number.
    cards: BTreeMap<(u64, u64), usize>,
    /// Oldest first; entries of pages that went are skipped.
    ages: BTreeMap<usize, VecDeque<(u64, u64)>>,
}

impl Residency {
    /// A card touches `bytes` from `address`; tells how many bytes had to move there.
    pub(crate) fn touch(
        &self,
        driver: &Driver,
        card: usize,
        found: &Allocation,
        (address, bytes): (u64, u64),
    ) -> u64 {
        let offset = address - found.base;
        let last = (offset + bytes.min(found.size - offset)).div_ceil(PAGE);
        let mut pages = self.0.lock();
        pages.follow(card, driver.release_managed(card, 0));
        let mut moved = 0;
        let mut number = offset / PAGE;
        while number < last {
            let batch: Vec<u64> = (number..last.min(number + BATCH))
                .filter(|number| pages.cards.get(&(found.id, *number)) != Some(&card))
                .collect();
            number += BATCH;
            let wanted = batch.len() as u64 * PAGE;
            // Where nothing can make room, the card reads them on the host.
            if wanted == 0 || driver.charge_managed(card, wanted).is_err() {
                continue;
            }
            moved += wanted;
            for number in batch {
                let page = (found.id, number);
                if let Some(before) = pages.cards.insert(page, card) {
                    let evicted = driver.release_managed(before, PAGE);
                    pages.follow(before, evicted);
                }
                pages.ages.entry(card).or_default().push_back(page);
            }
            pages.follow(card, driver.release_managed(card, 0));
        }
        moved
    }

    /// Moves `bytes` from `address` to the host.
    pub(crate) fn leave(&self, driver: &Driver, found: &Allocation, (address, bytes): (u64, u64)) {
        let offset = address - found.base;
        let last = (offset + bytes).div_ceil(PAGE);
        let first = (offset / PAGE).min(last);
        self.drop_pages(driver, (found.id, first), (found.id, last));
    }

    /// The card on which a page is.
    pub(crate) fn place(&self, allocation: u64, page: u64) -> Option<usize> {
        self.0.lock().cards.get(&(allocation, page)).copied()
    }

    /// Takes all pages of an allocation off their cards.
    pub(crate) fn forget(&self, driver: &Driver, allocation: u64) {
        self.drop_pages(driver, (allocation, 0), (allocation, u64::MAX));
    }

    fn drop_pages(&self, driver: &Driver, first: (u64, u64), end: (u64, u64)) {
        let mut pages = self.0.lock();
        let cards: Vec<usize> = pages.ages.keys().copied().collect();
        for card in cards {
            pages.follow(card, driver.release_managed(card, 0));
        }
        let gone: Vec<usize> = pages
            .cards
            .extract_if(first..end, |_, _| true)
            .map(|(_, card)| card)
            .collect();
        for card in gone {
            let evicted = driver.release_managed(card, PAGE);
            pages.follow(card, evicted);
        }
    }
}

impl Pages {
    /// Notes that `bytes` of the oldest pages of a card moved to the host.
    fn follow(&mut self, card: usize, bytes: u64) {
        let ages = self.ages.entry(card).or_default();
        let mut left = bytes.div_ceil(PAGE);
        while left > 0 {
            let Some(page) = ages.pop_front() else {
                return;
            };
            if self.cards.get(&page) == Some(&card) {
                self.cards.remove(&page);
                left -= 1;
            }
        }
    }
}
