//! Raw NVML calls: initialisation, handles, versions and codes, as a C client sees them.

use std::ffi::{CStr, CString, c_uint, c_ulonglong};

use aliquot_gpusim::SimulatedMachine;
use nvml_wrapper_sys::bindings::*;

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

#[test]
fn rejects_calls_before_init_and_after_last_shutdown() {
    let name = "calls::rejects_calls_before_init_and_after_last_shutdown";
    on_machine(name, TWO_A100, |_| {
        let library = library();
        let count = || number(|out| call!(library.nvmlDeviceGetCount_v2(out)));
        assert_eq!(count(), Err(UNINITIALIZED));
        assert_eq!(call!(library.nvmlShutdown()), UNINITIALIZED);
        assert_eq!(call!(library.nvmlInit_v2()), OK);
        assert_eq!(call!(library.nvmlInitWithFlags(1)), OK);
        assert_eq!(call!(library.nvmlShutdown()), OK);
        assert_eq!(count(), Ok(2));
        assert_eq!(call!(library.nvmlShutdown()), OK);
        assert_eq!(count(), Err(UNINITIALIZED));
    });
}

#[test]
fn init_rejects_missing_foreign_and_mismatched_state_files() {
    let name = "calls::init_rejects_missing_foreign_and_mismatched_state_files";
    on_machine(name, TWO_A100, |machine| {
        let library = library();
        let init = || call!(library.nvmlInit_v2());
        let mut bytes = std::fs::read(machine.state()).unwrap();
        bytes[8] ^= 0xff;
        std::fs::write(machine.state(), &bytes).unwrap();
        assert_eq!(init(), nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH);
        bytes[0] ^= 0xff;
        std::fs::write(machine.state(), &bytes).unwrap();
        assert_eq!(init(), nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
        std::fs::write(machine.state(), b"").unwrap();
        assert_eq!(init(), nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
        std::fs::remove_file(machine.state()).unwrap();
        assert_eq!(init(), nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
        SimulatedMachine::create(machine.state(), TWO_A100).unwrap();
        assert_eq!(init(), OK);
    });
}

#[test]
fn requires_the_version_of_versioned_structs() {
    on_machine(
        "calls::requires_the_version_of_versioned_structs",
        TWO_A100,
        |machine| {
            machine.set("0", &[("memoryUsed", "1000")]).unwrap();
            let library = opened();
            let device = device_handle(&library, 0);
            let mut memory = nvmlMemory_v2_t {
                version: 0,
                total: 0,
                reserved: 0,
                free: 0,
                used: 0,
            };
            let size = c_uint::try_from(size_of::<nvmlMemory_v2_t>()).unwrap();
            for (version, code) in [
                (size | 2 << 24, OK),
                (size | 1 << 24, VERSION_MISMATCH),
                ((size - 8) | 2 << 24, VERSION_MISMATCH),
                (0, VERSION_MISMATCH),
            ] {
                memory.version = version;
                let answer = call!(library.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory));
                assert_eq!(answer, code, "{version:#x}");
            }
            let mib = |bytes: c_ulonglong| bytes >> 20;
            assert_eq!((mib(memory.total), mib(memory.reserved)), (81_920, 634));
            assert_eq!(
                (mib(memory.used), mib(memory.free)),
                (1000, 81_920 - 634 - 1000)
            );

            let mut old = nvmlMemory_t {
                total: 0,
                free: 0,
                used: 0,
            };
            assert_eq!(
                call!(library.nvmlDeviceGetMemoryInfo(device, &raw mut old)),
                OK
            );
            assert_eq!((mib(old.used), mib(old.free)), (1634, 81_920 - 1634));
        },
    );
}

#[test]
fn finds_gpus_by_uuid_serial_and_pci_id_only() {
    on_machine(
        "calls::finds_gpus_by_uuid_serial_and_pci_id_only",
        TWO_A100,
        |machine| {
            let library = opened();
            let second = device_handle(&library, 1);
            let shown = machine.show().unwrap();
            let text = |key: &str| CString::new(shown["gpus"][1][key].as_str().unwrap()).unwrap();
            let (uuid, serial, pci) = (text("uuid"), text("serial"), text("pci"));
            let mut found = std::ptr::null_mut();
            let check = |code: nvmlReturn_t, expected: nvmlReturn_t, found: *mut nvmlDevice_t| {
                assert_eq!(code, expected);
                // SAFETY: the address of a local variable.
                let handle = unsafe { found.replace(std::ptr::null_mut()) };
                assert_eq!(
                    handle,
                    if expected == OK {
                        second
                    } else {
                        std::ptr::null_mut()
                    }
                );
            };
            let out = &raw mut found;
            check(
                call!(library.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), out)),
                OK,
                out,
            );
            check(
                call!(library.nvmlDeviceGetHandleBySerial(serial.as_ptr(), out)),
                OK,
                out,
            );
            for place in [pci.as_c_str(), c"0000:0f:00.0", c"0F:00.0", c"0f:00"] {
                check(
                    call!(library.nvmlDeviceGetHandleByPciBusId_v2(place.as_ptr(), out)),
                    OK,
                    out,
                );
            }
            for wrong in [c"", c"GPU-0", c"0000:0e:00.0", c"zz:00"] {
                check(
                    call!(library.nvmlDeviceGetHandleByUUID(wrong.as_ptr(), out)),
                    NOT_FOUND,
                    out,
                );
                check(
                    call!(library.nvmlDeviceGetHandleByPciBusId_v2(wrong.as_ptr(), out)),
                    NOT_FOUND,
                    out,
                );
            }
            check(
                call!(library.nvmlDeviceGetHandleByUUID(std::ptr::null(), out)),
                INVALID_ARGUMENT,
                out,
            );
            check(
                call!(library.nvmlDeviceGetHandleByIndex_v2(2, out)),
                INVALID_ARGUMENT,
                out,
            );
            assert_eq!(
                number(|out| call!(library.nvmlDeviceGetIndex(second, out))),
                Ok(1)
            );
        },
    );
}

#[test]
fn rejects_bad_handles_null_pointers_and_small_buffers() {
    on_machine(
        "calls::rejects_bad_handles_null_pointers_and_small_buffers",
        TWO_A100,
        |_| {
            let library = opened();
            let device = device_handle(&library, 0);
            let minor = |device| number(|out| call!(library.nvmlDeviceGetMinorNumber(device, out)));
            assert_eq!(minor(device), Ok(0));
            assert_eq!(minor(std::ptr::null_mut()), Err(INVALID_ARGUMENT));
            assert_eq!(
                minor(std::ptr::without_provenance_mut(0x1234)),
                Err(INVALID_ARGUMENT)
            );
            assert_eq!(
                minor(device.wrapping_byte_add(2)),
                Err(INVALID_ARGUMENT),
                "no third GPU"
            );
            let nowhere = std::ptr::null_mut();
            assert_eq!(
                call!(library.nvmlDeviceGetMinorNumber(device, nowhere)),
                INVALID_ARGUMENT
            );

            let model = words(|out, length| call!(library.nvmlDeviceGetName(device, out, length)));
            assert_eq!(model, "NVIDIA A100-SXM4-80GB");
            let mut small = [7; 21];
            let answer = call!(library.nvmlDeviceGetName(device, small.as_mut_ptr(), 21));
            assert_eq!((answer, small), (INSUFFICIENT_SIZE, [7; 21]));
        },
    );
}

#[test]
fn lost_gpu_fails_every_call_but_is_still_counted() {
    on_machine(
        "calls::lost_gpu_fails_every_call_but_is_still_counted",
        TWO_A100,
        |machine| {
            let library = opened();
            let device = device_handle(&library, 0);
            machine.set("0", &[("health", "lost")]).unwrap();
            assert_eq!(
                number(|out| call!(library.nvmlDeviceGetCount_v2(out))),
                Ok(2)
            );
            assert_eq!(
                number(|out| call!(library.nvmlDeviceGetMinorNumber(device, out))),
                Err(GPU_IS_LOST)
            );
            assert_eq!(
                call!(library.nvmlDeviceSetComputeMode(device, 0)),
                GPU_IS_LOST
            );
            let mut again = std::ptr::null_mut();
            assert_eq!(
                call!(library.nvmlDeviceGetHandleByIndex_v2(0, &raw mut again)),
                GPU_IS_LOST
            );
            device_handle(&library, 1);
        },
    );
}

#[test]
fn compute_mode_changes_are_visible_across_processes() {
    on_machine(
        "calls::compute_mode_changes_are_visible_across_processes",
        TWO_A100,
        |machine| {
            let library = opened();
            let device = device_handle(&library, 0);
            let mode = || number(|out| call!(library.nvmlDeviceGetComputeMode(device, out)));
            assert_eq!(mode(), Ok(0));
            machine.set("0", &[("computeMode", "prohibited")]).unwrap();
            assert_eq!(mode(), Ok(2));
            for (wanted, code) in [(3, OK), (1, NOT_SUPPORTED), (4, INVALID_ARGUMENT)] {
                assert_eq!(
                    call!(library.nvmlDeviceSetComputeMode(device, wanted)),
                    code
                );
                assert_eq!(mode(), Ok(3));
            }
        },
    );
}

#[test]
fn every_error_code_has_a_text() {
    let library = library();
    for (code, expected) in [
        (0, "Success"),
        (15, "GPU is lost"),
        (999, "Unknown Error"),
        (12345, "Unknown Error"),
    ] {
        // SAFETY: the call answers a static text for every number.
        let text = unsafe { CStr::from_ptr(library.nvmlErrorString(code)) };
        assert_eq!(text.to_str().unwrap(), expected);
    }
}
