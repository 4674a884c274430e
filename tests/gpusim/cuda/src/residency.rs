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

/// An allocation and a number in it.
type Page = (u64, u64);

/// All pages of the process that are on cards.
#[derive(Default)]
pub(crate) struct Residency(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// Card of each page, by allocation and number.
    cards: BTreeMap<Page, usize>,
    /// Of each page that a card used and that is on the host now, that card.
    on_host: BTreeMap<Page, usize>,
    /// Oldest first; entries of pages that went are skipped.
    ages: BTreeMap<usize, VecDeque<Page>>,
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
        pages.follow_all(driver);
        let mut moved = 0;
        let mut number = offset / PAGE;
        while number < last {
            let batch: Vec<Page> = (number..last.min(number + BATCH))
                .map(|number| (found.id, number))
                .filter(|page| pages.cards.get(page) != Some(&card))
                .collect();
            number += BATCH;
            let wanted = batch.len() as u64 * PAGE;
            if wanted == 0 {
                continue;
            }
            for page in &batch {
                pages.move_on(driver, page);
            }
            if driver.charge_managed(card, wanted).is_err() {
                // Nothing can make room: the card reads them on the host.
                for page in batch {
                    pages.stay(driver, page, card);
                }
                continue;
            }
            moved += wanted;
            for page in batch {
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
        let gone = self.drop_pages(driver, (found.id, first), (found.id, last));
        let mut pages = self.0.lock();
        for (page, card) in gone {
            pages.stay(driver, page, card);
        }
    }

    /// The card on which a page is.
    pub(crate) fn place(&self, allocation: u64, page: u64) -> Option<usize> {
        self.0.lock().cards.get(&(allocation, page)).copied()
    }

    /// Takes all pages of an allocation off their cards.
    pub(crate) fn forget(&self, driver: &Driver, allocation: u64) {
        let all = ((allocation, 0), (allocation, u64::MAX));
        self.drop_pages(driver, all.0, all.1);
        let mut pages = self.0.lock();
        let gone = pages.on_host.extract_if(all.0..all.1, |_, _| true);
        gone.for_each(|(_, card)| driver.leave_host(card, PAGE));
    }

    /// Takes pages off their cards; which they were.
    fn drop_pages(&self, driver: &Driver, first: Page, end: Page) -> Vec<(Page, usize)> {
        let mut pages = self.0.lock();
        pages.follow_all(driver);
        let gone = pages.cards.extract_if(first..end, |_, _| true);
        let gone: Vec<(Page, usize)> = gone.collect();
        for (_, card) in &gone {
            let evicted = driver.release_managed(*card, PAGE);
            pages.follow(*card, evicted);
        }
        gone
    }
}

impl Pages {
    /// Notes what others moved to the host meanwhile, which they counted.
    fn follow_all(&mut self, driver: &Driver) {
        let cards: Vec<usize> = self.ages.keys().copied().collect();
        for card in cards {
            self.follow(card, driver.release_managed(card, 0));
        }
    }

    /// A page is on the host no more.
    fn move_on(&mut self, driver: &Driver, page: &Page) {
        if let Some(card) = self.on_host.remove(page) {
            driver.leave_host(card, PAGE);
        }
    }

    /// A page that a card wants is on the host, and counted there once.
    fn stay(&mut self, driver: &Driver, page: Page, card: usize) {
        if self.on_host.insert(page, card).is_none() {
            driver.stay_on_host(card, PAGE);
        }
    }

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
                self.on_host.insert(page, card);
                left -= 1;
            }
        }
    }
}
