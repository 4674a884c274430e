//! The driver's memory limits for cgroups, which apply whatever library a program uses: since driver
//! r615, on GPUs that are not partitioned. Raw calls: the bindings lack them.

use std::ffi::{CString, c_char, c_ulonglong};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError as Cause, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::calls::is_missing;
use crate::driver::Nvml;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`.
const UNLIMITED: u64 = u64::MAX;

/// The first driver with such limits.
const FIRST: u32 = 615;

/// Whether a driver of this version may have them.
pub fn may_limit_memory(driver_version: &str) -> bool {
    let major = driver_version.split('.').next();
    let major = major.and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= FIRST)
}

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

/// The limits of a cgroup on a GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLimits {
    /// What its processes keep when the GPU is full. The driver may evict what they have beyond it:
    /// with 0, every byte.
    pub soft: u64,
    /// What its processes may allocate together.
    pub hard: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that its processes keep when the GPU is full.
    pub soft: u64,
    /// Bytes that its processes may allocate together; `None`: unlimited.
    pub hard: Option<u64>,
    /// Bytes that they have allocated.
    pub used: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The driver, or the GPU while it is partitioned, has no such limits.
    #[error("the driver does not support cgroup memory limits on {0}")]
    NotOffered(String),
    #[error("cgroup {0} is gone, or the driver does not account its memory")]
    NoCgroup(String),
    #[error("cannot {step} the memory limit of cgroup {cgroup} on {gpu}: {source}")]
    Step {
        /// "set" or "read".
        step: &'static str,
        cgroup: String,
        gpu: String,
        source: Cause,
    },
}

/// The driver's memory limits. A cgroup is given by its absolute path, such as
/// `/sys/fs/cgroup/kubepods/…`. Calls block.
pub trait MemoryLimits: Send + Sync {
    /// Limits what the processes of a cgroup may allocate together on a GPU. What they have beyond
    /// the hard limit stays theirs, and new allocations fail. Needs root. The limits end with the
    /// cgroup, but the driver adds the soft limit to every parent cgroup, where it stays.
    fn limit_memory(
        &self,
        gpu: &str,
        cgroup: &Path,
        limits: CgroupLimits,
    ) -> Result<(), LimitError>;

    /// The limit of a cgroup and its use.
    fn memory_limit(&self, gpu: &str, cgroup: &Path) -> Result<MemoryLimit, LimitError>;
}

impl MemoryLimits for Nvml {
    fn limit_memory(
        &self,
        gpu: &str,
        cgroup: &Path,
        limits: CgroupLimits,
    ) -> Result<(), LimitError> {
        let failed = failed("set", gpu, cgroup);
        let name = name(cgroup);
        let mut limits = SetLimits {
            cgroup: name.as_ptr(),
            soft: limits.soft,
            hard: limits.hard,
        };
        let device = self.library().device_by_uuid(gpu).map_err(&failed)?;
        let call = self.call::<SetLimits>(b"nvmlDeviceSetMemoryLimits_v1\0");
        let call = call.map_err(&failed)?;
        // SAFETY: the symbol has this signature in every NVML that has it; the handle came from
        // this library; the struct and the text in it are ours and live through the call.
        nvml_try(unsafe { call(handle(&device), &raw mut limits) }).map_err(failed)
    }

    fn memory_limit(&self, gpu: &str, cgroup: &Path) -> Result<MemoryLimit, LimitError> {
        let failed = failed("read", gpu, cgroup);
        let name = name(cgroup);
        let mut limits = GetLimits {
            cgroup: name.as_ptr(),
            soft: 0,
            hard: UNLIMITED,
            used: 0,
        };
        let device = self.library().device_by_uuid(gpu).map_err(&failed)?;
        let call = self.call::<GetLimits>(b"nvmlDeviceGetMemoryLimits_v1\0");
        let call = call.map_err(&failed)?;
        // SAFETY: as in `limit_memory`.
        nvml_try(unsafe { call(handle(&device), &raw mut limits) }).map_err(failed)?;
        Ok(MemoryLimit {
            soft: limits.soft,
            hard: Some(limits.hard).filter(|hard| *hard != UNLIMITED),
            used: limits.used,
        })
    }
}

impl Nvml {
    /// A call that only newer drivers provide.
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

/// A path with a zero byte is no cgroup's.
fn name(cgroup: &Path) -> CString {
    CString::new(cgroup.as_os_str().as_bytes()).unwrap_or_default()
}

fn failed(step: &'static str, gpu: &str, cgroup: &Path) -> impl Fn(Cause) -> LimitError {
    let (gpu, cgroup) = (gpu.to_owned(), cgroup.display().to_string());
    move |source| match source {
        Cause::NotSupported => LimitError::NotOffered(gpu.clone()),
        Cause::NotFound => LimitError::NoCgroup(cgroup.clone()),
        source if is_missing(&source) => LimitError::NotOffered(gpu.clone()),
        source => LimitError::Step {
            step,
            cgroup: cgroup.clone(),
            gpu: gpu.clone(),
            source,
        },
    }
}
