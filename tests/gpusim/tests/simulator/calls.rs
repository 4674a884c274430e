//! Raw NVML calls: initialisation, handles, versions and codes, as a C client sees them.
//!
//! Facts of: NVML API Reference, Initialization and Cleanup, Device Queries and Device Commands.

use std::ffi::{CString, c_uint, c_ulonglong};

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
