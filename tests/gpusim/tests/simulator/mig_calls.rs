//! MIG by raw NVML calls: what can be created where, the error codes, and the lifetime of handles,
//! UUIDs and instances.
//!
//! Facts of: NVML API Reference, Multi Instance GPU Management; MIG User Guide.

use aliquot_gpusim::edit::compute_process;
use aliquot_gpusim::{SimulatedMachine, proc_folder};
use nvml_wrapper_sys::bindings::*;

use crate::client::*;
use crate::common::on_machine;

const NO_ROOM: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;
const IN_USE: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_IN_USE;
const A100: &str = "gpus: [{model: NVIDIA A100-SXM4-40GB, set: {mig: on}}]";
// Driver ids.
const ONE: u32 = 19;
const TWO: u32 = 14;
const THREE: u32 = 9;
const SEVEN: u32 = 0;

struct MigGpu {
    library: NvmlLib,
    device: nvmlDevice_t,
}

type NvmlResult<T> = Result<T, nvmlReturn_t>;

fn result<T>(code: nvmlReturn_t, value: T) -> NvmlResult<T> {
    if code == OK { Ok(value) } else { Err(code) }
}

impl MigGpu {
    fn open() -> Self {
        let library = opened();
        let device = device_handle(&library, 0);
        Self { library, device }
    }

    fn at(&self, id: u32, start: u32, size: u32) -> NvmlResult<nvmlGpuInstance_t> {
        let place = nvmlGpuInstancePlacement_t { start, size };
        let mut made = std::ptr::null_mut();
        let (name, library) = (&raw mut made, &self.library);
        let code = call!(library.nvmlDeviceCreateGpuInstanceWithPlacement(
            self.device,
            id,
            &raw const place,
            name
        ));
        result(code, made)
    }

    fn anywhere(&self, id: u32) -> NvmlResult<nvmlGpuInstance_t> {
        let mut made = std::ptr::null_mut();
        let (name, library) = (&raw mut made, &self.library);
        let code = call!(library.nvmlDeviceCreateGpuInstance(self.device, id, name));
        result(code, made)
    }

    fn compute(&self, inside: nvmlGpuInstance_t, kind: u32) -> NvmlResult<nvmlComputeInstance_t> {
        let mut made = std::ptr::null_mut();
        let (name, library) = (&raw mut made, &self.library);
        let code = call!(library.nvmlGpuInstanceCreateComputeInstance(inside, kind, name));
        result(code, made)
    }

    /// Number and start.
    fn place(&self, instance: nvmlGpuInstance_t) -> NvmlResult<(u32, u32)> {
        let mut info = nvmlGpuInstanceInfo_t {
            device: std::ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        let code = call!(self.library.nvmlGpuInstanceGetInfo(instance, &raw mut info));
        result(code, (info.id, info.placement.start))
    }

    fn device_of(&self, instance: nvmlComputeInstance_t) -> NvmlResult<nvmlDevice_t> {
        let mut info = nvmlComputeInstanceInfo_t {
            device: std::ptr::null_mut(),
            gpuInstance: std::ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        let name = &raw mut info;
        let code = call!(self.library.nvmlComputeInstanceGetInfo_v2(instance, name));
        result(code, info.device)
    }

    fn uuid(&self, device: nvmlDevice_t) -> String {
        words(|text, length| call!(self.library.nvmlDeviceGetUUID(device, text, length)))
    }

    fn end(&self, instance: nvmlGpuInstance_t) -> nvmlReturn_t {
        call!(self.library.nvmlGpuInstanceDestroy(instance))
    }

    fn end_compute(&self, instance: nvmlComputeInstance_t) -> nvmlReturn_t {
        call!(self.library.nvmlComputeInstanceDestroy(instance))
    }

    fn remaining(&self, id: u32) -> NvmlResult<u32> {
        number(|out| {
            let library = &self.library;
            call!(library.nvmlDeviceGetGpuInstanceRemainingCapacity(self.device, id, out))
        })
    }

    fn modes(&self) -> (u32, u32) {
        let (mut now, mut then) = (9, 9);
        let (a, b) = (&raw mut now, &raw mut then);
        assert_eq!(
            call!(self.library.nvmlDeviceGetMigMode(self.device, a, b)),
            OK
        );
        (now, then)
    }

    /// Of the call and of the activation.
    fn switch(&self, mode: u32) -> (nvmlReturn_t, nvmlReturn_t) {
        let mut activation = 99;
        let name = &raw mut activation;
        let code = call!(self.library.nvmlDeviceSetMigMode(self.device, mode, name));
        (code, activation)
    }
}

#[test]
fn creates_instances_where_free_with_driver_ids() {
    let name = "mig_calls::creates_instances_where_free_with_driver_ids";
    on_machine(name, A100, |_| {
        let gpu = MigGpu::open();
        assert_eq!(gpu.remaining(ONE), Ok(7));
        for (id, start, size, expected) in [
            (ONE, 6, 1, Ok((13, 6))),
            (ONE, 6, 1, Err(NO_ROOM)),
            (TWO, 4, 2, Ok((5, 4))),
            (THREE, 4, 4, Err(NO_ROOM)),
            (THREE, 2, 4, Err(INVALID_ARGUMENT)),
            (THREE, 0, 3, Err(INVALID_ARGUMENT)),
            (THREE, 0, 4, Ok((2, 0))),
            (SEVEN, 0, 8, Err(NO_ROOM)),
            (77, 0, 1, Err(NOT_SUPPORTED)),
        ] {
            let made = gpu.at(id, start, size).and_then(|made| gpu.place(made));
            assert_eq!(made, expected, "{id} at {start}:{size}");
        }
        assert_eq!((gpu.remaining(ONE), gpu.remaining(TWO)), (Ok(0), Ok(0)));
        // Slice 7 has no compute slice of its own.
        assert_eq!(gpu.at(ONE, 7, 1), Err(INVALID_ARGUMENT));
    });
}

#[test]
fn default_placement_depends_on_creation_order() {
    let name = "mig_calls::default_placement_depends_on_creation_order";
    on_machine(name, A100, |_| {
        let gpu = MigGpu::open();
        let all: Vec<_> = [ONE, ONE, TWO, THREE].map(|id| gpu.anywhere(id)).into();
        assert_eq!(all[3], Err(NO_ROOM));
        for one in all.into_iter().flatten() {
            assert_eq!(gpu.end(one), OK);
        }
        for id in [THREE, TWO, ONE, ONE] {
            gpu.anywhere(id).unwrap();
        }
    });
}

#[test]
fn lists_capability_nodes_of_existing_instances() {
    let name = "mig_calls::lists_capability_nodes_of_existing_instances";
    on_machine(name, A100, |machine| {
        let folder = proc_folder(machine.state());
        let devices = std::fs::read_to_string(folder.join("devices")).unwrap();
        assert!(devices.contains("195 nvidia\n"), "{devices}");
        let listed = |file: &str| {
            let file = folder.join("capabilities/gpu0/mig").join(file);
            let text = std::fs::read_to_string(file).ok()?;
            let first = text.lines().next()?;
            Some(first.strip_prefix("DeviceFileMinor: ")?.to_owned())
        };
        let all = || ["gi1/access", "gi1/ci0/access"].map(listed);
        let numbers = |one: &str, other: &str| [one, other].map(|number| Some(number.to_owned()));
        assert_eq!(all(), [None, None]);
        let gpu = MigGpu::open();
        let outer = gpu.at(THREE, 4, 4).unwrap();
        let inner = gpu.compute(outer, 2).unwrap();
        assert_eq!(all(), numbers("12", "13"));
        assert_eq!((gpu.end_compute(inner), gpu.end(outer)), (OK, OK));
        assert_eq!(all(), [None, None]);
    });
}

#[test]
fn keeps_used_instance_and_renews_uuid_after_recreation() {
    let name = "mig_calls::keeps_used_instance_and_renews_uuid_after_recreation";
    on_machine(name, A100, |machine| {
        let gpu = MigGpu::open();
        let outer = gpu.at(THREE, 4, 4).unwrap();
        let inner = gpu.compute(outer, 2).unwrap();
        let device = gpu.device_of(inner).unwrap();
        let uuid = gpu.uuid(device);
        assert!(uuid.starts_with("MIG-"), "{uuid}");
        let mut process = compute_process(77, 100);
        (process.gpu_instance, process.compute_instance) = (1, 0);
        machine.add_process("0", process).unwrap();
        assert_eq!(gpu.end(outer), IN_USE);
        assert_eq!(gpu.end_compute(inner), IN_USE);
        assert_eq!(gpu.switch(0), (IN_USE, 99));
        machine.remove_process("0", 77).unwrap();
        assert_eq!((gpu.end_compute(inner), gpu.end(outer)), (OK, OK));

        // Every handle of it is stale now.
        assert_eq!(gpu.end(outer), INVALID_ARGUMENT);
        assert_eq!(gpu.device_of(inner), Err(INVALID_ARGUMENT));
        let mut buffer = [0; 96];
        let name = buffer.as_mut_ptr();
        let stale = call!(gpu.library.nvmlDeviceGetUUID(device, name, 96));
        assert_eq!(stale, INVALID_ARGUMENT);

        let again = gpu.at(THREE, 4, 4).unwrap();
        let again = gpu.compute(again, 2).unwrap();
        assert_ne!(gpu.uuid(gpu.device_of(again).unwrap()), uuid);
    });
}

#[test]
fn mig_device_reports_its_identity_and_parent() {
    let name = "mig_calls::mig_device_reports_its_identity_and_parent";
    on_machine(name, A100, |machine| {
        let gpu = MigGpu::open();
        let library = &gpu.library;
        let outer = gpu.at(TWO, 2, 2).unwrap();
        let half = gpu.compute(outer, 0).unwrap();
        let other = gpu.compute(outer, 0).unwrap();
        assert_eq!(gpu.compute(outer, 0), Err(NO_ROOM));
        assert_eq!(gpu.compute(outer, 3), Err(NOT_SUPPORTED));
        let device = gpu.device_of(half).unwrap();
        let name = words(|text, length| call!(library.nvmlDeviceGetName(device, text, length)));
        assert_eq!(name, "NVIDIA A100-SXM4-40GB MIG 1c.2g.10gb");
        let is = number(|out| call!(library.nvmlDeviceIsMigDeviceHandle(device, out)));
        assert_eq!(is, Ok(1));
        let outer_id = number(|out| call!(library.nvmlDeviceGetGpuInstanceId(device, out)));
        let other = gpu.device_of(other).unwrap();
        let inner_id = number(|out| call!(library.nvmlDeviceGetComputeInstanceId(other, out)));
        assert_eq!((outer_id, inner_id), (Ok(4), Ok(1)));
        let mut parent = std::ptr::null_mut();
        let at = &raw mut parent;
        let code = call!(library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, at));
        assert_eq!((code, parent), (OK, gpu.device));
        let minor = number(|out| call!(library.nvmlDeviceGetMinorNumber(device, out)));
        assert_eq!(minor, Err(INVALID_ARGUMENT));

        let mut process = compute_process(77, 100);
        (process.gpu_instance, process.compute_instance) = (4, 0);
        machine.add_process("0", process).unwrap();
        let mut memory = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let code = call!(library.nvmlDeviceGetMemoryInfo(device, &raw mut memory));
        assert_eq!(
            (code, memory.total >> 20, memory.used >> 20),
            (OK, 9856, 100)
        );
        let running = |device| {
            let mut count = 0;
            let (list, at) = (std::ptr::null_mut(), &raw mut count);
            let _ = call!(library.nvmlDeviceGetComputeRunningProcesses_v3(device, at, list));
            count
        };
        let on = (running(device), running(other), running(gpu.device));
        assert_eq!(on, (1, 0, 1));

        let second = |index| {
            let mut found = std::ptr::null_mut();
            let at = &raw mut found;
            let code = call!(library.nvmlDeviceGetMigDeviceHandleByIndex(gpu.device, index, at));
            result(code, found)
        };
        assert_eq!((second(0), second(1)), (Ok(device), Ok(other)));
        assert_eq!(
            (second(2), second(7)),
            (Err(NOT_FOUND), Err(INVALID_ARGUMENT))
        );
    });
}

fn check_mode(name: &str, model: &str, body: impl FnOnce(&SimulatedMachine, &MigGpu)) {
    let name = format!("mig_calls::{name}");
    on_machine(&name, &format!("gpus: [{{model: {model}}}]"), |machine| {
        body(machine, &MigGpu::open());
    });
}

#[test]
fn switches_used_ampere_gpu_at_next_reset() {
    let name = "switches_used_ampere_gpu_at_next_reset";
    check_mode(name, "NVIDIA A100-SXM4-80GB", |machine, gpu| {
        machine.add_process("0", compute_process(5, 1)).unwrap();
        assert_eq!((gpu.switch(1), gpu.modes()), ((OK, IN_USE), (0, 1)));
        assert_eq!(gpu.anywhere(ONE), Err(NOT_SUPPORTED));
        machine.reset("0").unwrap_err();
        machine.remove_process("0", 5).unwrap();
        machine.reset("0").unwrap();
        assert_eq!(gpu.modes(), (1, 1));
        gpu.anywhere(ONE).unwrap();
        machine.reboot().unwrap();
        assert_eq!((gpu.modes(), gpu.remaining(ONE)), ((1, 1), Ok(7)));
        assert_eq!((gpu.switch(0), gpu.modes()), ((OK, OK), (0, 0)));
    });
}

#[test]
fn switches_idle_hopper_gpu_at_once_until_reboot() {
    let name = "switches_idle_hopper_gpu_at_once_until_reboot";
    check_mode(name, "NVIDIA H200", |machine, gpu| {
        machine.add_process("0", compute_process(5, 1)).unwrap();
        assert_eq!((gpu.switch(1), gpu.modes()), ((IN_USE, 99), (0, 0)));
        machine.remove_process("0", 5).unwrap();
        assert_eq!((gpu.switch(1), gpu.modes()), ((OK, OK), (1, 1)));
        gpu.anywhere(SEVEN).unwrap();
        assert_eq!(gpu.switch(0), (IN_USE, 99));
        machine.reboot().unwrap();
        assert_eq!(
            (gpu.modes(), gpu.remaining(ONE)),
            ((0, 0), Err(NOT_SUPPORTED))
        );
    });
}

#[test]
fn lists_placements_while_mig_is_off() {
    // The driver reports what a GPU could be partitioned into in either mode.
    let name = "mig_calls::lists_placements_while_mig_is_off";
    on_machine(name, "gpus: [{model: NVIDIA A100-SXM4-40GB}]", |_| {
        let library = opened();
        let device = device_handle(&library, 0);
        let none = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let (mut places, mut count) = ([none; 8], 8);
        let (list, number) = (places.as_mut_ptr(), &raw mut count);
        let code = call!(
            library.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, THREE, list, number)
        );
        assert_eq!(code, OK);
        let starts: Vec<u32> = places.iter().take(2).map(|place| place.start).collect();
        assert_eq!((count, starts), (2, vec![0, 4]));
        // The remaining capacity cannot be queried.
        let mut left = 0;
        let left = &raw mut left;
        let code = call!(library.nvmlDeviceGetGpuInstanceRemainingCapacity(device, THREE, left));
        assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    });
}
