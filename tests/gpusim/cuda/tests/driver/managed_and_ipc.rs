//! Managed memory that moves between host and GPU, and IPC between processes.
//!
//! Facts of: CUDA Driver API, Unified Addressing and Memory Management (`cuMemAllocManaged`,
//! `cuIpcOpenMemHandle`).

use aliquot_gpusim::SimulatedMachine;

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until};

const SMALL: &str = "gpus: [{model: Tesla T4, memoryMib: 4096, reservedMib: 96}]";

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u64; 8]);

fn managed(cuda: Cuda, bytes: u64) -> u64 {
    let mut pointer = 0;
    ok!(cuda, cuMemAllocManaged(*mut u64: &raw mut pointer, u64: bytes, u32: 1));
    pointer
}

fn prefetch(cuda: Cuda, pointer: u64, bytes: u64, device: i32) -> u32 {
    call!(cuda, cuMemPrefetchAsync(u64: pointer, u64: bytes, i32: device, u64: 0))
}

fn charged(machine: &SimulatedMachine) -> Vec<u64> {
    machine
        .process_usage("0")
        .unwrap()
        .iter()
        .map(|one| one.used / MIB - 416)
        .collect()
}

/// MiB of managed memory on the host, now and the most there ever was.
fn on_host(machine: &SimulatedMachine) -> [u64; 2] {
    let holders = machine.process_usage("0").unwrap();
    let now: u64 = holders.iter().map(|one| one.host).sum();
    [now / MIB, machine.host_peak("0").unwrap() / MIB]
}

#[test]
fn managed_memory_occupies_gpu_when_touched_and_yields() {
    on_machine(SMALL, |machine| {
        let cuda = Cuda::ready();
        // More than the GPU has.
        let large = managed(cuda, 8000 * MIB);
        assert_eq!(charged(machine), [0]);
        assert_eq!(prefetch(cuda, large, 1000 * MIB, 0), OK);
        assert_eq!(charged(machine), [1000]);
        assert_eq!(on_host(machine), [0, 0]);
        assert_eq!(prefetch(cuda, large, 1000 * MIB, 0), OK);
        assert_eq!(charged(machine), [1000]);
        assert_eq!(prefetch(cuda, large, 500 * MIB, -1), OK);
        assert_eq!(charged(machine), [500]);
        ok!(cuda, cuMemsetD8_v2(u64: large, u8: 1, u64: 10));
        assert_eq!(charged(machine), [502]);
        // Managed pages are evicted for device memory, and for later pages of their own.
        let firm = cuda.alloc(3200 * MIB).unwrap();
        assert_eq!(charged(machine), [3584]);
        assert_eq!(cuda.alloc(500 * MIB), Err(OUT_OF_MEMORY));
        assert_eq!(prefetch(cuda, large, 8000 * MIB, 0), OK);
        assert_eq!(charged(machine), [3584]);
        assert_eq!(on_host(machine), [8000 - 384, 8000 - 384]);
        assert_eq!(cuda.free(large), OK);
        assert_eq!(charged(machine), [3200]);
        assert_eq!(on_host(machine), [0, 8000 - 384]);
        assert_eq!(cuda.free(firm), OK);
        assert_eq!(charged(machine), [0]);
        assert_eq!(prefetch(cuda, large, 1, 0), INVALID_VALUE);
    });
}

#[test]
fn evicts_managed_pages_of_another_process() {
    on_machine(SMALL, |machine| {
        let cuda = Cuda::ready();
        if role().is_some() {
            let pointer = managed(cuda, 2000 * MIB);
            assert_eq!(prefetch(cuda, pointer, 2000 * MIB, 0), OK);
            loop {
                std::thread::park();
            }
        }
        let mut child = start("holder");
        until("the other's pages are there", || {
            let mut all = charged(machine);
            all.sort_unstable();
            all == [0, 2000]
        });
        assert_eq!(cuda.info().0, (4000 - 2832) * MIB);
        let pointer = cuda.alloc(3000 * MIB).unwrap();
        let mut all = charged(machine);
        all.sort_unstable();
        assert_eq!(all, [168, 3000]);
        assert_eq!(on_host(machine), [1832, 1832]);
        assert_eq!(cuda.free(pointer), OK);
        child.kill();
        assert_eq!(charged(machine), [0]);
    });
}

/// MiB that processes imported from others.
fn imported(machine: &SimulatedMachine) -> u64 {
    let holders = machine.process_usage("0").unwrap();
    holders.iter().map(|one| one.imported / MIB).sum()
}

#[test]
fn ipc_memory_is_charged_once() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let open = |handle: IpcHandle, pointer: *mut u64| {
            call!(cuda, cuIpcOpenMemHandle_v2(
                *mut u64: pointer, IpcHandle: handle, u32: 1,
            ))
        };
        let mut pointer = 0;
        if let Some(words) = role() {
            let (words, keeps) = match words.strip_prefix("keep ") {
                Some(words) => (words.to_owned(), true),
                None => (words, false),
            };
            let words: Vec<u64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
            assert_eq!(
                open(IpcHandle(words.try_into().unwrap()), &raw mut pointer),
                OK
            );
            let close = || call!(cuda, cuIpcCloseMemHandle(u64: pointer));
            assert_eq!(imported(machine), 100);
            if keeps {
                loop {
                    std::thread::park();
                }
            }
            assert_eq!(cuda.free(pointer), INVALID_VALUE);
            assert_eq!((close(), close()), (OK, INVALID_VALUE));
            assert_eq!(imported(machine), 0);
            return;
        }
        let own = cuda.alloc(100 * MIB).unwrap();
        let mut handle = IpcHandle([0; 8]);
        let get = |handle: *mut IpcHandle, pointer: u64| {
            call!(cuda, cuIpcGetMemHandle(
                *mut IpcHandle: handle, u64: pointer,
            ))
        };
        assert_eq!(get(&raw mut handle, managed(cuda, MIB)), INVALID_VALUE);
        assert_eq!(get(&raw mut handle, own), OK);
        assert_eq!(open(handle, &raw mut pointer), INVALID_CONTEXT);
        let words: Vec<String> = handle.0.iter().map(u64::to_string).collect();
        let mut child = start(&words.join(" "));
        child.finish();
        assert_eq!(charged(machine), [100]);
        let before = cuda.info().0;
        let mut child = start(&format!("keep {}", words.join(" ")));
        until("it has opened the memory", || imported(machine) == 100);
        assert_eq!(cuda.free(own), OK);
        assert_eq!(cuda.info().0, before - 416 * MIB, "the other has it");
        child.kill();
        assert_eq!(cuda.info().0, before + 100 * MIB);
    });
}
