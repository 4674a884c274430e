//! Initialisation, devices and contexts.
//!
//! Facts of: CUDA Driver API, Initialization, Device Management, Primary Context Management and
//! Context Management; CUDA Programming Guide, `CUDA_VISIBLE_DEVICES`.

use std::ffi::{CStr, c_char};

use crate::client::*;
use crate::common::{TWO_A100, on_machine, on_machine_with, used_mib};

#[test]
fn rejects_calls_before_cu_init_except_error_texts() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::open();
        let mut count = 0;
        let mut ask = || call!(cuda, cuDeviceGetCount(*mut i32: &raw mut count));
        assert_eq!(ask(), NOT_INITIALIZED);
        assert_eq!(call!(cuda, cuInit(u32: 1)), INVALID_VALUE);
        let mut words: *const c_char = std::ptr::null();
        ok!(cuda, cuGetErrorName(u32: 2, *mut *const c_char: &raw mut words));
        // SAFETY: the driver's names end with a zero and live forever.
        let name = unsafe { CStr::from_ptr(words) };
        assert_eq!(name, c"CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(
            call!(cuda, cuGetErrorString(u32: 4242, *mut *const c_char: &raw mut words)),
            INVALID_VALUE
        );
        assert!(words.is_null());
        ok!(cuda, cuInit(u32: 0));
        ok!(cuda, cuInit(u32: 0));
        assert_eq!(ask(), OK);
        assert_eq!(count, 2);
        assert_eq!(cuda.alloc(1), Err(INVALID_CONTEXT));
    });
}

#[test]
fn cu_init_fails_while_gpu_waits_for_fabric() {
    let yaml = "gpus: [{model: NVIDIA H200, set: {fabric: notStarted}}]";
    on_machine(yaml, |machine| {
        let cuda = Cuda::open();
        let init = || call!(cuda, cuInit(u32: 0));
        assert_eq!(init(), SYSTEM_NOT_READY);
        machine.set("0", &[("fabric", "inProgress")]).unwrap();
        assert_eq!(init(), SYSTEM_NOT_READY);
        machine.set("0", &[("fabric", "completed")]).unwrap();
        assert_eq!(init(), OK);
    });
}

#[test]
fn context_charges_gpu_memory_and_frees_it() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::open();
        ok!(cuda, cuInit(u32: 0));
        let check = |used: [u64; 2]| {
            assert_eq!(["0", "1"].map(|gpu| used_mib(machine, gpu)), used);
        };
        let release = |device| call!(cuda, cuDevicePrimaryCtxRelease_v2(i32: device));
        check([0, 0]);
        let first = cuda.primary(0);
        assert_eq!(cuda.primary(0), first);
        check([416, 0]);
        let mut other = 0;
        ok!(cuda, cuCtxCreate_v2(*mut u64: &raw mut other, u32: 0, i32: 1));
        check([416, 416]);
        ok!(cuda, cuCtxCreate_v2(*mut u64: &raw mut other, u32: 0, i32: 1));
        check([416, 832]);
        // Destroying a context frees what it owns.
        cuda.alloc(100 * MIB).unwrap();
        check([416, 932]);
        ok!(cuda, cuCtxDestroy_v2(u64: other));
        assert_eq!(call!(cuda, cuCtxDestroy_v2(u64: other)), INVALID_CONTEXT);
        check([416, 416]);
        assert_eq!(release(0), OK);
        check([416, 416]);
        assert_eq!(release(0), OK);
        check([0, 416]);
        assert_eq!(release(0), INVALID_CONTEXT);
        assert_eq!(cuda.primary(0), first, "the same handle again");
        check([416, 416]);
        machine.set("1", &[("computeMode", "prohibited")]).unwrap();
        assert_eq!(
            call!(cuda, cuCtxCreate_v2(*mut u64: &raw mut other, u32: 0, i32: 1)),
            46
        );
    });
}

#[test]
fn each_thread_has_its_own_context_stack() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::ready();
        let current = || {
            let mut context = 1;
            ok!(cuda, cuCtxGetCurrent(*mut u64: &raw mut context));
            context
        };
        let (first, second) = (cuda.primary(0), cuda.primary(1));
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(current(), 0)).join().unwrap());
        assert_eq!(current(), first);
        ok!(cuda, cuCtxPushCurrent_v2(u64: second));
        assert_eq!(current(), second);
        let mut popped = 0;
        ok!(cuda, cuCtxPopCurrent_v2(*mut u64: &raw mut popped));
        assert_eq!((popped, current()), (second, first));
        for _ in 0..2 {
            ok!(cuda, cuDevicePrimaryCtxRelease_v2(i32: 0));
        }
        assert_eq!(cuda.alloc(MIB), Err(DESTROYED));
        assert_eq!(call!(cuda, cuCtxSetCurrent(u64: 12345)), INVALID_CONTEXT);
    });
}

#[test]
fn enumerates_only_visible_devices() {
    const YAML: &str = "gpus: [{count: 2, model: Tesla T4, uuids: [GPU-a, GPU-b]}]";
    let check = |given: &str, chosen: &str, expected: Result<i32, u32>| {
        let environment = [
            ("NVIDIA_VISIBLE_DEVICES", given),
            ("CUDA_VISIBLE_DEVICES", chosen),
        ];
        let wanted = format!("{expected:?}");
        let environment = [&environment[..], &[("EXPECTED", wanted.as_str())]].concat();
        on_machine_with(YAML, &environment, |_| {
            let cuda = Cuda::open();
            let found = match call!(cuda, cuInit(u32: 0)) {
                OK => {
                    let mut count = 0;
                    ok!(cuda, cuDeviceGetCount(*mut i32: &raw mut count));
                    Ok(count)
                }
                code => Err(code),
            };
            assert_eq!(format!("{found:?}"), std::env::var("EXPECTED").unwrap());
        });
    };
    check("all", "0,1", Ok(2));
    if std::env::var_os("EXPECTED").is_some() {
        return;
    }
    check("GPU-b", "0", Ok(1));
    check("GPU-b", "GPU-a", Err(NO_DEVICE));
    check("all", "1,7,0", Ok(1));
    check("all", "", Err(NO_DEVICE));
    check("void", "0", Err(NO_DEVICE));
}
