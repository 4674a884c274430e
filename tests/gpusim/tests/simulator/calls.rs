//! Raw NVML calls: initialisation, handles, versions and codes, as a C client sees them.
//!
//! Facts of: NVML API Reference, Initialization and Cleanup, Device Queries and Device Commands.

use std::ffi::{CStr, CString, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::*;

use crate::common::{TWO_A100, on_machine};
use crate::nvml_client::*;

#[test]
fn rejects_calls_before_init_and_after_last_shutdown() {
    on_machine(TWO_A100, |_| {
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
    on_machine(TWO_A100, |machine| {
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
    });
}

#[test]
fn finds_gpus_by_uuid_serial_and_pci_id_only() {
    on_machine(TWO_A100, |machine| {
        let library = opened();
        let second = device_handle(&library, 1);
        let shown = machine.show().unwrap();
        let text = |key: &str| CString::new(shown["gpus"][1][key].as_str().unwrap()).unwrap();
        let found = |read: &dyn Fn(*mut nvmlDevice_t) -> nvmlReturn_t| {
            let mut device = std::ptr::null_mut();
            match read(&raw mut device) {
                OK => Ok(device),
                code => Err(code),
            }
        };
        let by_uuid = |uuid: &CStr| {
            found(&|out| call!(library.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), out)))
        };
        let by_place = |place: &CStr| {
            found(&|out| call!(library.nvmlDeviceGetHandleByPciBusId_v2(place.as_ptr(), out)))
        };
        let serial = text("serial");
        let by_serial = |out| call!(library.nvmlDeviceGetHandleBySerial(serial.as_ptr(), out));
        assert_eq!(by_uuid(&text("uuid")), Ok(second));
        assert_eq!(found(&by_serial), Ok(second));
        for place in [&text("pci"), c"0000:0f:00.0", c"0F:00.0", c"0f:00"] {
            assert_eq!(by_place(place), Ok(second));
        }
        for wrong in [c"", c"GPU-0", c"0000:0e:00.0", c"zz:00"] {
            let both = (by_uuid(wrong), by_place(wrong));
            assert_eq!(both, (Err(NOT_FOUND), Err(NOT_FOUND)));
        }
        let third = found(&|out| call!(library.nvmlDeviceGetHandleByIndex_v2(2, out)));
        assert_eq!(third, Err(INVALID_ARGUMENT));
    });
}
