//! MIG by raw NVML calls: what can be created where, the error codes, and the lifetime of handles,
//! UUIDs and instances.
//!
//! Facts of: NVML API Reference, Multi Instance GPU Management; MIG User Guide.

use aliquot_gpusim::SimulatedMachine;
use aliquot_gpusim::edit::compute_process;
use nvml_wrapper_sys::bindings::*;

use crate::common::{name_of, on_machine, run_test};
use crate::nvml_client::*;

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
    on_machine(A100, |_| {
        let gpu = MigGpu::open();
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
        let more = [ONE, TWO].map(|id| gpu.anywhere(id));
        assert_eq!(more, [Err(NO_ROOM), Err(NO_ROOM)]);
        // Slice 7 has no compute slice of its own.
        assert_eq!(gpu.at(ONE, 7, 1), Err(INVALID_ARGUMENT));
    });
}

#[test]
fn keeps_used_instance_and_its_uuid_after_recreation() {
    on_machine(A100, |machine| {
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
        assert_eq!(gpu.uuid(gpu.device_of(again).unwrap()), uuid);
    });
}

fn check_mode<F: FnOnce(&SimulatedMachine, &MigGpu)>(model: &str, body: F) {
    let yaml = format!("gpus: [{{model: {model}}}]");
    run_test(&name_of::<F>(), &yaml, &[], |machine| {
        body(machine, &MigGpu::open());
    });
}

#[test]
fn switches_used_ampere_gpu_at_next_reset() {
    check_mode("NVIDIA A100-SXM4-80GB", |machine, gpu| {
        machine.add_process("0", compute_process(5, 1)).unwrap();
        assert_eq!((gpu.switch(1), gpu.modes()), ((OK, IN_USE), (0, 1)));
        assert_eq!(gpu.anywhere(ONE), Err(NOT_SUPPORTED));
        machine.reset("0").unwrap_err();
        machine.remove_process("0", 5).unwrap();
        machine.reset("0").unwrap();
        assert_eq!(gpu.modes(), (1, 1));
        gpu.anywhere(ONE).unwrap();
        machine.reboot().unwrap();
        assert_eq!(gpu.modes(), (1, 1));
        assert_eq!(gpu.end(gpu.anywhere(SEVEN).unwrap()), OK);
        assert_eq!((gpu.switch(0), gpu.modes()), ((OK, OK), (0, 0)));
    });
}

#[test]
fn switches_idle_hopper_gpu_at_once_until_reboot() {
    check_mode("NVIDIA H200", |machine, gpu| {
        machine.add_process("0", compute_process(5, 1)).unwrap();
        assert_eq!((gpu.switch(1), gpu.modes()), ((IN_USE, 99), (0, 0)));
        machine.remove_process("0", 5).unwrap();
        assert_eq!((gpu.switch(1), gpu.modes()), ((OK, OK), (1, 1)));
        gpu.anywhere(SEVEN).unwrap();
        assert_eq!(gpu.switch(0), (IN_USE, 99));
        machine.reboot().unwrap();
        assert_eq!(
            (gpu.modes(), gpu.anywhere(ONE)),
            ((0, 0), Err(NOT_SUPPORTED))
        );
    });
}

#[test]
fn lists_placements_while_mig_is_off() {
    // The driver reports what a GPU could be partitioned into in either mode.
    on_machine("gpus: [{model: NVIDIA A100-SXM4-40GB}]", |_| {
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
    });
}
