//! The driver's own memory limits of cgroups, which hold whatever library a program uses: from
//! driver r615 on, on cards that are not cut. Raw calls, for the bindings have none of them. Fed by
//! NVML; must not know which cgroup is whose.

use std::ffi::{CString, c_char, c_ulonglong};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError as Cause, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::driver::Nvml;
use crate::inventory::is_missing;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`.
const UNLIMITED: u64 = u64::MAX;

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
struct SetLimits {
    cgroup: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct GetLimits {
    cgroup: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

type Call<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t;

/// What the driver holds a cgroup to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that its processes may hold together; `None`: as many as there are.
    pub hard: Option<u64>,
    /// Bytes that they hold.
    pub used: u64,
}

/// Why a limit was not set or read.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// This driver, or this card while it is cut, has none.
    #[error("the driver has no memory limits of cgroups for {0}")]
    NotOffered(String),
    /// The cgroup is gone, or the kernel counts no device memory in it.
    #[error("the driver has no memory limit of cgroup {0}")]
    NoCgroup(String),
    /// Another reason.
    #[error("cannot {step} the memory limit of cgroup {cgroup} on {card}: {source}")]
    Step {
        /// "set" or "read".
        step: &'static str,
        /// The cgroup's folder.
        cgroup: String,
        /// The card.
        card: String,
        /// What the driver said.
        source: Cause,
    },
}

/// What is asked of the driver about memory limits. A cgroup is given by its whole path, such as
/// `/sys/fs/cgroup/kubepods/…`. Calls block.
pub trait MemoryLimits: Send + Sync {
    /// The processes of a cgroup may hold so many bytes of a card together from now on. What they
    /// hold beyond stays theirs, and more is refused. Needs root. The limit ends with the cgroup.
    fn limit_memory(&self, card: &str, cgroup: &Path, hard: u64) -> Result<(), LimitError>;

    /// What holds for a cgroup.
    fn memory_limit(&self, card: &str, cgroup: &Path) -> Result<MemoryLimit, LimitError>;
}

impl MemoryLimits for Nvml {
    fn limit_memory(&self, card: &str, cgroup: &Path, hard: u64) -> Result<(), LimitError> {
        let failed = failed("set", card, cgroup);
        let name = name(cgroup);
        // Nothing is guaranteed: the driver adds that to every cgroup above, and leaves it there
        // when this one is removed.
        let mut limits = SetLimits {
            cgroup: name.as_ptr(),
            soft: 0,
            hard,
        };
        let device = self.library().device_by_uuid(card).map_err(&failed)?;
        let call = self.call::<SetLimits>(b"nvmlDeviceSetMemoryLimits_v1\0");
        let call = call.map_err(&failed)?;
        // SAFETY: the symbol has this signature in every NVML that has it; the handle came from
        // this library; the struct and the text in it are ours and live through the call.
        nvml_try(unsafe { call(handle(&device), &raw mut limits) }).map_err(failed)
    }

    fn memory_limit(&self, card: &str, cgroup: &Path) -> Result<MemoryLimit, LimitError> {
        let failed = failed("read", card, cgroup);
        let name = name(cgroup);
        let mut limits = GetLimits {
            cgroup: name.as_ptr(),
            soft: 0,
            hard: UNLIMITED,
            used: 0,
        };
        let device = self.library().device_by_uuid(card).map_err(&failed)?;
        let call = self.call::<GetLimits>(b"nvmlDeviceGetMemoryLimits_v1\0");
        let call = call.map_err(&failed)?;
        // SAFETY: as in `limit_memory`.
        nvml_try(unsafe { call(handle(&device), &raw mut limits) }).map_err(failed)?;
        Ok(MemoryLimit {
            hard: Some(limits.hard).filter(|hard| *hard != UNLIMITED),
            used: limits.used,
        })
    }
}

impl Nvml {
    /// A call that only newer drivers have.
    fn call<T>(&self, symbol: &[u8]) -> Result<Call<T>, Cause> {
        // SAFETY: both symbols that are asked for have this signature; the library stays open for
        // as long as `self` does, which every caller borrows through the call.
        let found = unsafe { self.library().lib().__library.get::<Call<T>>(symbol) };
        found.map(|call| *call).map_err(|_| Cause::FunctionNotFound)
    }
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed to the library that it came from, which is open.
    unsafe { device.handle() }
}

/// As C has it; a path with a zero in it is no cgroup's.
fn name(cgroup: &Path) -> CString {
    CString::new(cgroup.as_os_str().as_bytes()).unwrap_or_default()
}

fn failed(step: &'static str, card: &str, cgroup: &Path) -> impl Fn(Cause) -> LimitError {
    let (card, cgroup) = (card.to_owned(), cgroup.display().to_string());
    move |source| match source {
        Cause::NotSupported => LimitError::NotOffered(card.clone()),
        Cause::NotFound => LimitError::NoCgroup(cgroup.clone()),
        source if is_missing(&source) => LimitError::NotOffered(card.clone()),
        source => LimitError::Step {
            step,
            cgroup: cgroup.clone(),
            card: card.clone(),
            source,
        },
    }
}
