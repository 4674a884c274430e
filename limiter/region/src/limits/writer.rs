//! The limits page as the host writes it: its measurements, written in place while containers read.
//!
//! The file is the host's own, and containers have it read-only, so mapping it is safe. The limits
//! and the length of the page never change here.

use core::mem::offset_of;
use core::sync::atomic::Ordering;
use std::path::Path;

use super::{DeviceRecord, LimitsError, LimitsPage, PageHeader, record};
use crate::map;

/// A page to which the host writes its measurements, in the units of the table in [`super`];
/// [`HostLimitsPage::page`] reads the limits.
#[derive(Debug)]
pub struct HostLimitsPage(LimitsPage);

impl HostLimitsPage {
    pub fn open(path: &Path) -> Result<Self, LimitsError> {
        let file = map::open(path, libc::O_RDWR)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        LimitsPage::map(&file, protection).map(Self)
    }

    pub fn page(&self) -> &LimitsPage {
        &self.0
    }

    /// The UUIDs of all devices; they never change.
    pub fn uuids(&self) -> impl Iterator<Item = String> {
        (0..self.0.devices()).map(|i| {
            let (uuid, length) = self.0.uuid(i);
            String::from_utf8_lossy(&uuid[..length]).into_owned()
        })
    }

    pub fn set_overhead(&self, i: usize, bytes: u64) {
        self.store_u64(record(i) + offset_of!(DeviceRecord, overhead), bytes);
    }

    /// Sets the throttle flag of a device and wakes whoever waits on it if it changed.
    pub fn set_throttle_flag(&self, i: usize, word: u32) {
        let throttle_flag = self.0.throttle_flag(i);
        if throttle_flag.swap(word, Ordering::Release) != word {
            // SAFETY: the word lies in a mapping that lives as long as `self`; waking reads no
            // memory.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    throttle_flag.as_ptr(),
                    libc::FUTEX_WAKE,
                    i32::MAX,
                )
            };
        }
    }

    pub fn set_rate_correction(&self, i: usize, millionths: u32) {
        let at = record(i) + offset_of!(DeviceRecord, rate_correction);
        self.store_u32(at, millionths);
    }

    pub fn set_tenants(&self, i: usize, number: u32) {
        self.store_u32(record(i) + offset_of!(DeviceRecord, tenants), number);
    }

    pub fn set_called_back(&self, i: usize, is_called_back: bool) {
        let at = record(i) + offset_of!(DeviceRecord, called_back);
        self.store_u32(at, is_called_back.into());
    }

    pub fn set_max_wait_ms(&self, i: usize, milliseconds: u32) {
        let at = record(i) + offset_of!(DeviceRecord, max_wait_ms);
        self.store_u32(at, milliseconds);
    }

    pub fn set_others(&self, i: usize, others: u32, time: u64) {
        self.store_u32(record(i) + offset_of!(DeviceRecord, others), others);
        self.store_u64(record(i) + offset_of!(DeviceRecord, others_time), time);
    }

    pub fn set_heartbeat(&self, now: u64) {
        self.store_u64(offset_of!(PageHeader, heartbeat), now);
    }

    fn store_u32(&self, at: usize, value: u32) {
        self.0.0.u32(at).store(value, Ordering::Relaxed);
    }

    fn store_u64(&self, at: usize, value: u64) {
        self.0.0.u64(at).store(value, Ordering::Relaxed);
    }
}
