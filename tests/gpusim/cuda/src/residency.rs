//! Where the pages of managed memory are: on the host until a GPU touches them, and again when
//! others need the GPU's memory.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use crate::driver::Driver;
use crate::heap::Allocation;

/// Bytes that move together.
const PAGE: u64 = 2 << 20;
/// Pages that are charged to the GPU together.
const BATCH: u64 = 16;

/// An allocation and a number in it.
type Page = (u64, u64);

/// All pages of the process that are on GPUs.
#[derive(Default)]
pub(crate) struct Residency(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// GPU of each page, by allocation and number.
    gpu_of_page: BTreeMap<Page, usize>,
    /// Of each page that a GPU used and that is on the host now, that GPU.
    on_host: BTreeMap<Page, usize>,
    /// Oldest first; entries of pages that went are skipped.
    ages: BTreeMap<usize, VecDeque<Page>>,
}

impl Residency {
    /// A GPU touches `bytes` from `address`; returns how many bytes had to move there.
    pub(crate) fn touch(
        &self,
        driver: &Driver,
        gpu_index: usize,
        found: &Allocation,
        (address, bytes): (u64, u64),
    ) -> u64 {
        let offset = address - found.base;
        let last = (offset + bytes.min(found.size - offset)).div_ceil(PAGE);
        let mut pages = self.0.lock();
        pages.record_all_evictions(driver);
        let mut moved = 0;
        let mut number = offset / PAGE;
        while number < last {
            let batch: Vec<Page> = (number..last.min(number + BATCH))
                .map(|number| (found.id, number))
                .filter(|page| pages.gpu_of_page.get(page) != Some(&gpu_index))
                .collect();
            number += BATCH;
            let wanted = batch.len() as u64 * PAGE;
            if wanted == 0 {
                continue;
            }
            for page in &batch {
                pages.record_off_host(driver, page);
            }
            if driver.charge_managed(gpu_index, wanted).is_err() {
                // Nothing can be evicted: the GPU reads them on the host.
                for page in batch {
                    pages.record_on_host(driver, page, gpu_index);
                }
                continue;
            }
            moved += wanted;
            for page in batch {
                if let Some(before) = pages.gpu_of_page.insert(page, gpu_index) {
                    let evicted = driver.member().release_managed(before, PAGE);
                    pages.record_evicted(before, evicted);
                }
                pages.ages.entry(gpu_index).or_default().push_back(page);
            }
            pages.record_evicted(gpu_index, driver.member().release_managed(gpu_index, 0));
        }
        moved
    }

    /// Moves `bytes` from `address` to the host.
    pub(crate) fn move_to_host(
        &self,
        driver: &Driver,
        found: &Allocation,
        (address, bytes): (u64, u64),
    ) {
        let offset = address - found.base;
        let last = (offset + bytes).div_ceil(PAGE);
        let first = (offset / PAGE).min(last);
        let gone = self.drop_pages(driver, (found.id, first), (found.id, last));
        let mut pages = self.0.lock();
        for (page, gpu_index) in gone {
            pages.record_on_host(driver, page, gpu_index);
        }
    }

    /// Removes all pages of an allocation from their GPUs.
    pub(crate) fn forget(&self, driver: &Driver, allocation: u64) {
        let all = ((allocation, 0), (allocation, u64::MAX));
        self.drop_pages(driver, all.0, all.1);
        let mut pages = self.0.lock();
        let gone = pages.on_host.extract_if(all.0..all.1, |_, _| true);
        let member = driver.member();
        gone.for_each(|(_, gpu_index)| member.remove_host_bytes(gpu_index, PAGE));
    }

    /// Removes pages from their GPUs; returns them.
    fn drop_pages(&self, driver: &Driver, first: Page, end: Page) -> Vec<(Page, usize)> {
        let mut pages = self.0.lock();
        pages.record_all_evictions(driver);
        let gone = pages.gpu_of_page.extract_if(first..end, |_, _| true);
        let gone: Vec<(Page, usize)> = gone.collect();
        for (_, gpu_index) in &gone {
            let evicted = driver.member().release_managed(*gpu_index, PAGE);
            pages.record_evicted(*gpu_index, evicted);
        }
        gone
    }
}

impl Pages {
    /// Records what others evicted to the host meanwhile, which they counted.
    fn record_all_evictions(&mut self, driver: &Driver) {
        let gpu_indexes: Vec<usize> = self.ages.keys().copied().collect();
        for gpu_index in gpu_indexes {
            self.record_evicted(gpu_index, driver.member().release_managed(gpu_index, 0));
        }
    }

    fn record_off_host(&mut self, driver: &Driver, page: &Page) {
        if let Some(gpu_index) = self.on_host.remove(page) {
            driver.member().remove_host_bytes(gpu_index, PAGE);
        }
    }

    /// A page used by a GPU is on the host, and counted there once.
    fn record_on_host(&mut self, driver: &Driver, page: Page, gpu_index: usize) {
        if self.on_host.insert(page, gpu_index).is_none() {
            driver.member().add_host_bytes(gpu_index, PAGE);
        }
    }

    /// Records that `bytes` of the oldest pages of a GPU were evicted to the host.
    fn record_evicted(&mut self, gpu_index: usize, bytes: u64) {
        let ages = self.ages.entry(gpu_index).or_default();
        let mut left = bytes.div_ceil(PAGE);
        while left > 0 {
            let Some(page) = ages.pop_front() else {
                return;
            };
            if self.gpu_of_page.get(&page) == Some(&gpu_index) {
                self.gpu_of_page.remove(&page);
                self.on_host.insert(page, gpu_index);
                left -= 1;
            }
        }
    }
}
