//! What NVML shows of processes, on drivers that show less than others, or what is not so.

use std::ffi::c_uint;

use aliquot_gpusim::SimulatedMachine;
use aliquot_gpusim::edit::{MIB, compute_process};
use aliquot_gpusim::model::Process;
use aliquot_nvml::Usage;
use nvml_wrapper_sys::bindings::*;

use crate::common::{TWO_A100, on_machine};
use crate::driver::open;
use crate::nvml_client::*;

/// The bytes of the only process on GPU 0.
fn bytes(library: &NvmlLib) -> u64 {
    let mut info = nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    let (mut count, device) = (1, device_handle(library, 0));
    let count = &raw mut count;
    let answer =
        call!(library.nvmlDeviceGetComputeRunningProcesses_v3(device, count, &raw mut info));
    assert_eq!(answer, OK);
    info.usedGpuMemory
}

/// Bytes in use on GPU 0.
fn used(library: &NvmlLib) -> u64 {
    let mut memory = nvmlMemory_v2_t {
        version: c_uint::try_from(size_of::<nvmlMemory_v2_t>()).unwrap() | 2 << 24,
        total: 0,
        reserved: 0,
        free: 0,
        used: 0,
    };
    let device = device_handle(library, 0);
    let answer = call!(library.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory));
    assert_eq!(answer, OK);
    memory.used
}

fn switch(machine: &SimulatedMachine, field: &str, value: &str) {
    machine.set("0", &[(field, value)]).unwrap();
}

/// A process id and its percent.
type Sample = (u32, u32);

/// `nvmlDeviceGetProcessUtilization` of GPU 0.
fn legacy_samples(library: &NvmlLib) -> Result<Vec<Sample>, nvmlReturn_t> {
    let empty = nvmlProcessUtilizationSample_t {
        pid: 0,
        timeStamp: 0,
        smUtil: 0,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    };
    let (mut samples, mut count) = (vec![empty; 8], 8);
    let (list, number) = (samples.as_mut_ptr(), &raw mut count);
    let device = device_handle(library, 0);
    match call!(library.nvmlDeviceGetProcessUtilization(device, list, number, 0)) {
        OK => {
            samples.truncate(usize::try_from(count).unwrap());
            Ok(samples.iter().map(|one| (one.pid, one.smUtil)).collect())
        }
        code => Err(code),
    }
}

/// `nvmlDeviceGetProcessesUtilizationInfo` of GPU 0.
fn samples(library: &NvmlLib) -> Result<Vec<Sample>, nvmlReturn_t> {
    let empty = nvmlProcessUtilizationInfo_v1_t {
        timeStamp: 0,
        pid: 0,
        smUtil: 0,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
        jpgUtil: 0,
        ofaUtil: 0,
    };
    let mut samples = vec![empty; 8];
    let size = size_of::<nvmlProcessesUtilizationInfo_t>();
    let mut info = nvmlProcessesUtilizationInfo_t {
        version: c_uint::try_from(size).unwrap() | 1 << 24,
        processSamplesCount: 8,
        lastSeenTimeStamp: 0,
        procUtilArray: samples.as_mut_ptr(),
    };
    let (device, place) = (device_handle(library, 0), &raw mut info);
    match call!(library.nvmlDeviceGetProcessesUtilizationInfo(device, place)) {
        OK => {
            samples.truncate(usize::try_from(info.processSamplesCount).unwrap());
            Ok(samples.iter().map(|one| (one.pid, one.smUtil)).collect())
        }
        code => Err(code),
    }
}

#[test]
fn process_bytes_lack_or_repeat_memory_by_setting() {
    on_machine(TWO_A100, |machine| {
        let process = Process {
            managed: 300 * MIB,
            imported: 50 * MIB,
            ..compute_process(11, 1000)
        };
        machine.add_process("0", process).unwrap();
        let library = opened();
        assert_eq!(bytes(&library), 1000 * MIB);
        switch(machine, "bytesWithoutManaged", "on");
        assert_eq!(bytes(&library), 700 * MIB);
        switch(machine, "importedTwice", "on");
        assert_eq!(bytes(&library), 750 * MIB);
        switch(machine, "bytesNotAvailable", "on");
        assert_eq!(bytes(&library), u64::MAX);
        assert_eq!(used(&library), 1000 * MIB, "the GPU's own figure is true");
        for field in ["bytesWithoutManaged", "importedTwice", "bytesNotAvailable"] {
            switch(machine, field, "off");
        }
        assert_eq!(bytes(&library), 1000 * MIB);
    });
}

#[test]
fn processes_are_read_alike_on_drivers_with_longer_records() {
    on_machine(TWO_A100, |machine| {
        machine.unload().unwrap();
        machine.load("535.54.03").unwrap();
        let expected: Vec<(u32, Option<u64>)> = (1..40)
            .map(|pid| (pid, Some(u64::from(pid) * MIB)))
            .collect();
        for (pid, bytes) in &expected {
            let mib = bytes.unwrap() / MIB;
            machine
                .add_process("0", compute_process(*pid, mib))
                .unwrap();
        }
        let gpu = machine.show().unwrap()["gpus"][0]["uuid"].clone();
        let found = open().processes(gpu.as_str().unwrap()).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.pid, one.bytes)).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn strange_samples_are_above_100_and_of_an_ended_process() {
    on_machine(TWO_A100, |machine| {
        let busy = Process {
            sm: 42,
            ..compute_process(11, 100)
        };
        machine.add_process("0", busy).unwrap();
        let library = opened();
        switch(machine, "strangeSamples", "on");
        for found in [legacy_samples(&library), samples(&library)] {
            let found = found.unwrap();
            assert_eq!(found[..2], [(11, 42), (11, 135)]);
            let (ended, percent) = found[2];
            assert!(!std::path::Path::new(&format!("/proc/{ended}")).exists());
            assert_eq!((found.len(), percent), (3, 60));
        }
        switch(machine, "strangeSamples", "off");
        assert_eq!(samples(&library), Ok(vec![(11, 42)]));
    });
}
