//! Memory limits of cgroups, through the product's own driver library: which drivers support them,
//! which processes a limit applies to, and that an allocation beyond it fails.

use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};

use aliquot_gpusim::{SimulatedMachine, place};
use aliquot_nvml::{
    CgroupLimits, Driver as _, LimitError, MemoryLimit, MemoryLimits as _, Nvml, Options,
};

use crate::common::{TWO_A100, on_machine};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: c_int = 2;

fn open() -> Nvml {
    let library = place::library_path().unwrap().into();
    let options = Options::default();
    Nvml::open(Options { library, ..options }).unwrap()
}

/// The cgroup of this process, as the simulator finds it.
fn own_cgroup() -> PathBuf {
    let listing = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let paths = listing
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    let path = paths.max_by_key(|path| path.len()).unwrap();
    Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'))
}

fn gpu(driver: &Nvml) -> String {
    driver.inventory().unwrap().gpus[0].uuid.clone()
}

/// A call of the CUDA driver, which is opened in this process.
pub(crate) fn cuda(name: &str) -> *mut c_void {
    let library = CString::new(place::cuda_library_path().unwrap().to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: both texts end with a zero, and the library has no load-time code of its own.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null());
    found
}

/// A context on GPU 0.
pub(crate) fn context() {
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type Create = unsafe extern "C" fn(*mut *mut c_void, u32, c_int) -> c_int;
    let mut context: *mut c_void = std::ptr::null_mut();
    // SAFETY: these are the calls' signatures; the place lives through the call.
    unsafe {
        let init: Init = std::mem::transmute(cuda("cuInit"));
        let create: Create = std::mem::transmute(cuda("cuCtxCreate_v2"));
        assert_eq!((init(0), create(&raw mut context, 0, 0)), (0, 0));
    }
}

fn alloc(mib: u64) -> c_int {
    type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
    let mut pointer = 0_u64;
    let bytes = usize::try_from(mib * MIB).unwrap();
    // SAFETY: as above.
    unsafe {
        let alloc: Alloc = std::mem::transmute(cuda("cuMemAlloc_v2"));
        alloc(&raw mut pointer, bytes)
    }
}

/// Free and in all, in MiB.
fn info() -> (usize, usize) {
    type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
    let (mut free, mut total) = (0, 0);
    // SAFETY: as above.
    unsafe {
        let info: Info = std::mem::transmute(cuda("cuMemGetInfo_v2"));
        assert_eq!(info(&raw mut free, &raw mut total), 0);
    }
    (free >> 20, total >> 20)
}

fn both(bytes: u64) -> CgroupLimits {
    CgroupLimits {
        soft: bytes,
        hard: bytes,
    }
}

fn newer(machine: &SimulatedMachine) -> (Nvml, String) {
    machine.set_driver("615.10").unwrap();
    let driver = open();
    let gpu = gpu(&driver);
    (driver, gpu)
}

#[test]
fn old_drivers_and_mig_gpus_offer_no_memory_limits() {
    let name = "memory_limits::old_drivers_and_mig_gpus_offer_no_memory_limits";
    on_machine(name, TWO_A100, |machine| {
        let driver = open();
        let gpu = gpu(&driver);
        let set = |cgroup: &Path| driver.limit_memory(&gpu, cgroup, both(MIB));
        assert!(matches!(set(&own_cgroup()), Err(LimitError::NotOffered(_))));
        machine.set_driver("615.10").unwrap();
        let gone = Path::new("/sys/fs/cgroup/no/such/group");
        assert!(matches!(set(gone), Err(LimitError::NoCgroup(_))));
        set(&own_cgroup()).unwrap();
        machine.set("0", &[("mig", "on")]).unwrap();
        assert!(matches!(set(&own_cgroup()), Err(LimitError::NotOffered(_))));
    });
}

#[test]
fn rejects_allocation_over_cgroup_memory_limit() {
    let name = "memory_limits::rejects_allocation_over_cgroup_memory_limit";
    on_machine(name, TWO_A100, |machine| {
        let (driver, gpu) = newer(machine);
        let cgroup = own_cgroup();
        context();
        let read = || driver.memory_limit(&gpu, &cgroup).unwrap();
        assert_eq!(read().hard, None);
        let limits = CgroupLimits {
            soft: 2000 * MIB,
            hard: 3000 * MIB,
        };
        driver.limit_memory(&gpu, &cgroup, limits).unwrap();
        assert_eq!(alloc(2000), 0);
        let charged = 2000 + 416;
        let expected = MemoryLimit {
            soft: 2000 * MIB,
            hard: Some(3000 * MIB),
            used: charged * MIB,
        };
        assert_eq!(read(), expected);
        assert_eq!(alloc(1000), OUT_OF_MEMORY);
        assert_eq!(info(), (3000 - 2416, 3000));
        let memory = aliquot_nvml::Usage::memory(&driver, &gpu).unwrap();
        assert_eq!((memory.total, memory.used), (3000 * MIB, charged * MIB));
        // A limit below what is in use takes nothing away.
        let low = both(100 * MIB);
        driver.limit_memory(&gpu, &cgroup, low).unwrap();
        assert_eq!((alloc(2), read().used), (OUT_OF_MEMORY, charged * MIB));
        let none = CgroupLimits {
            soft: 0,
            hard: u64::MAX,
        };
        driver.limit_memory(&gpu, &cgroup, none).unwrap();
        assert_eq!((read().hard, alloc(4000)), (None, 0));
    });
}
