//! Memory limits of cgroups, through the product's own driver library: which drivers support them,
//! which processes a limit applies to, and that an allocation beyond it fails.

use std::path::{Path, PathBuf};

use aliquot_gpusim::{SimulatedMachine, place};
use aliquot_hook::limit;
use aliquot_nvml::{CgroupLimits, Driver as _, LimitError, MemoryLimit, MemoryLimits as _, Nvml};
use aliquot_region::limits::{ContainerLimits, DeviceLimits, page};

use crate::client::{Cuda, MIB, OUT_OF_MEMORY};
use crate::common::{TWO_A100, on_machine};
use crate::driver::open;

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
    on_machine(TWO_A100, |machine| {
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
fn hook_limits_cgroup_as_the_limits_page_says() {
    on_machine(TWO_A100, |machine| {
        let (driver, gpu) = newer(machine);
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("containers/a");
        std::fs::create_dir_all(&directory).unwrap();
        let library = place::library_path().unwrap();
        let set = || limit::limit(&own_cgroup(), &library, &directory, &[&gpu]);
        // A share without a limit, as with MPS and `memory: full`, comes first.
        for (memory, request, hard) in [(0, 0, None), (3000, 2000, Some(3000 * MIB))] {
            let devices = ["GPU-other", &gpu].map(|uuid| DeviceLimits {
                uuid,
                memory: memory * MIB,
                request: request * MIB,
                ..DeviceLimits::default()
            });
            let limits = page(ContainerLimits::default(), &devices).unwrap();
            std::fs::write(directory.join("limits"), limits).unwrap();
            set().unwrap();
            let found = driver.memory_limit(&gpu, &own_cgroup()).unwrap();
            assert_eq!((found.soft, found.hard), (request * MIB, hard));
        }
        machine.set_driver("580.82").unwrap();
        let error = set().unwrap_err().to_string();
        assert!(error.contains("does not support"), "{error}");
    });
}

#[test]
fn rejects_allocation_over_cgroup_memory_limit() {
    on_machine(TWO_A100, |machine| {
        let (driver, gpu) = newer(machine);
        let cgroup = own_cgroup();
        let cuda = Cuda::ready();
        let alloc = |mib: u64| cuda.alloc(mib * MIB).err();
        let read = || driver.memory_limit(&gpu, &cgroup).unwrap();
        assert_eq!(read().hard, None);
        let limits = CgroupLimits {
            soft: 2000 * MIB,
            hard: 3000 * MIB,
        };
        driver.limit_memory(&gpu, &cgroup, limits).unwrap();
        assert_eq!(alloc(2000), None);
        let charged = 2000 + 416;
        let expected = MemoryLimit {
            soft: 2000 * MIB,
            hard: Some(3000 * MIB),
            used: charged * MIB,
        };
        assert_eq!(read(), expected);
        assert_eq!(alloc(1000), Some(OUT_OF_MEMORY));
        assert_eq!(cuda.info(), ((3000 - 2416) * MIB, 3000 * MIB));
        let memory = aliquot_nvml::Usage::memory(&driver, &gpu).unwrap();
        assert_eq!((memory.total, memory.used), (3000 * MIB, charged * MIB));
        // A limit below what is in use takes nothing away.
        let low = both(100 * MIB);
        driver.limit_memory(&gpu, &cgroup, low).unwrap();
        assert_eq!(
            (alloc(2), read().used),
            (Some(OUT_OF_MEMORY), charged * MIB)
        );
        let none = CgroupLimits {
            soft: 0,
            hard: u64::MAX,
        };
        driver.limit_memory(&gpu, &cgroup, none).unwrap();
        assert_eq!((read().hard, alloc(4000)), (None, None));
    });
}
