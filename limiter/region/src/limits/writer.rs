//! The limits page in the host's hand: what it measures, written in place under the tenants' eyes.
//!
//! The file is the host's own, and a tenant has it read-only, so that mapping it is safe.
//! Fed by: the monitor. Must not: change what the page says of limits, or its length.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::path::Path;

use super::{Header, Limits, LimitsError, Record, record};
use crate::map;

/// A page that the host may write its measures to. What it says of limits is read by
/// [`Measured::page`].
#[derive(Debug)]
pub struct Measured(Limits);

impl Measured {
    /// Maps the page at `path`.
    pub fn open(path: &Path) -> Result<Self, LimitsError> {
        let file = map::open(&map::c_path(path)?, libc::O_RDWR)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Limits::map(&file, protection).map(Self)
    }

    /// What the page says.
    pub fn page(&self) -> &Limits {
        &self.0
    }

    /// Memory beyond what the slots say, in bytes; whether that was news.
    pub fn set_overhead(&self, i: usize, bytes: u64) -> bool {
        let word = self.u64(record(i) + offset_of!(Record, overhead));
        word.swap(bytes, Ordering::Relaxed) != bytes
    }

    /// The gate word of a device; whoever waits for it is woken where it changed, and it is told
    /// whether it did.
    pub fn set_gate(&self, i: usize, word: u32) -> bool {
        let gate = self.u32(record(i) + offset_of!(Record, gate));
        let changed = gate.swap(word, Ordering::Release) != word;
        if changed {
            // SAFETY: the word lies in a mapping that lives as long as `self`; waking reads no
            // memory.
            unsafe { libc::syscall(libc::SYS_futex, gate.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
        changed
    }

    /// Trim of the compute rate in millionths; 0: none.
    pub fn set_trim(&self, i: usize, millionths: u32) {
        let word = self.u32(record(i) + offset_of!(Record, trim));
        word.store(millionths, Ordering::Relaxed);
    }

    /// Tenants that are active on the card; 0: unknown.
    pub fn set_tenants(&self, i: usize, number: u32) {
        let word = self.u32(record(i) + offset_of!(Record, tenants));
        word.store(number, Ordering::Relaxed);
    }

    /// A sign of life, nanoseconds since the epoch.
    pub fn beat(&self, now: u64) {
        let word = self.u64(offset_of!(Header, heartbeat));
        word.store(now, Ordering::Relaxed);
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        self.0.0.u32(at)
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        self.0.0.u64(at)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::limits::{Container, Device, SIZE, page, same};

    #[test]
    fn what_the_host_measures_is_seen_by_the_tenant_and_changes_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits");
        let device = Device {
            uuid: "GPU-a",
            memory: 3000 << 20,
            cores: 30,
            ..Device::default()
        };
        let fresh = page(Container::default(), &[device]).unwrap();
        std::fs::write(&path, fresh).unwrap();
        let host = Measured::open(&path).unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let tenant = Limits::open(&name).unwrap();
        assert!(host.set_overhead(0, 77) && !host.set_overhead(0, 77));
        assert!(host.set_gate(0, 1) && !host.set_gate(0, 1));
        host.set_trim(0, 900_000);
        host.set_tenants(0, 3);
        host.beat(5);
        assert_eq!(tenant.overhead(0), 77);
        assert_eq!(tenant.gate(0).load(Ordering::Relaxed), 1);
        assert_eq!((tenant.trim(0), tenant.tenants(0)), (900_000, 3));
        assert_eq!((tenant.heartbeat(), tenant.memory(0)), (5, 3000 << 20));
        let now = std::fs::read(&path).unwrap();
        let now: &[u8; SIZE] = now.as_slice().try_into().unwrap();
        assert!(same(now, &fresh));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str, expected: &str| {
            let error = Measured::open(&folder.path().join(name)).unwrap_err();
            assert!(error.to_string().contains(expected), "{name}: {error}");
        };
        check("nothing", "No such file");
        std::fs::write(folder.path().join("short"), b"ALQLIMIT").unwrap();
        check("short", "no file of 4096 bytes");
        std::fs::write(folder.path().join("zero"), [0; SIZE]).unwrap();
        check("zero", "does not begin as one");
        std::os::unix::fs::symlink("zero", folder.path().join("link")).unwrap();
        check("link", "symbolic");
    }
}
