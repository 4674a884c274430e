//! Pools reserve in chunks, and release what exceeds their threshold at the next synchronization.
//!
//! Facts of: CUDA Driver API, Stream Ordered Memory Allocator.

use aliquot_gpusim::SimulatedMachine;

use crate::client::*;
use crate::common::{TWO_A100, on_machine, used_mib};

fn charged(machine: &SimulatedMachine) -> u64 {
    used_mib(machine, "0") - 416
}

fn alloc_async(cuda: Cuda, bytes: u64) -> Result<u64, u32> {
    let mut pointer = 0;
    match call!(cuda, cuMemAllocAsync(*mut u64: &raw mut pointer, u64: bytes, u64: 0)) {
        OK => Ok(pointer),
        code => Err(code),
    }
}

fn attribute(cuda: Cuda, pool: u64, number: u32) -> u64 {
    let mut value = 0;
    ok!(cuda, cuMemPoolGetAttribute(u64: pool, u32: number, *mut u64: &raw mut value));
    value / MIB
}

#[test]
fn pool_keeps_reserve_until_synchronization() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let mut pool = 0;
        ok!(cuda, cuDeviceGetDefaultMemPool(*mut u64: &raw mut pool, i32: 0));
        let free = |pointer| ok!(cuda, cuMemFreeAsync(u64: pointer, u64: 0));
        let synchronize = || ok!(cuda, cuCtxSynchronize());
        let (first, second) = (
            alloc_async(cuda, 10 * MIB).unwrap(),
            alloc_async(cuda, 40 * MIB).unwrap(),
        );
        assert_eq!(
            (
                charged(machine),
                attribute(cuda, pool, 5),
                attribute(cuda, pool, 7)
            ),
            (64, 64, 50)
        );
        free(second);
        assert_eq!((charged(machine), attribute(cuda, pool, 7)), (64, 10));
        synchronize();
        assert_eq!((charged(machine), attribute(cuda, pool, 5)), (10, 10));
        let threshold = 48 * MIB;
        ok!(cuda, cuMemPoolSetAttribute(u64: pool, u32: 4, *const u64: &raw const threshold));
        let third = alloc_async(cuda, 60 * MIB).unwrap();
        free(third);
        synchronize();
        assert_eq!(charged(machine), 48);
        ok!(cuda, cuMemPoolTrimTo(u64: pool, u64: 20 * MIB));
        assert_eq!(charged(machine), 20);
        // cuMemFree frees them too.
        assert_eq!(cuda.free(first), OK);
        assert_eq!(
            call!(cuda, cuMemFreeAsync(u64: first, u64: 0)),
            INVALID_VALUE
        );
        ok!(cuda, cuMemPoolTrimTo(u64: pool, u64: 0));
        assert_eq!((charged(machine), attribute(cuda, pool, 8)), (0, 70));
        assert_eq!(alloc_async(cuda, 81_920 * MIB), Err(OUT_OF_MEMORY));
        let all = cuda.info().0;
        free(alloc_async(cuda, all).unwrap());
    });
}

#[test]
fn destroyed_pool_is_freed_with_its_last_allocation() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        // CUmemPoolProps: pinned, on device 0, at most 100 MiB.
        let mut properties = [0_u64; 11];
        (properties[0], properties[1], properties[3]) = (1, 1, 100 * MIB);
        let (mut pool, mut pointer) = (0, 0);
        ok!(cuda, cuMemPoolCreate(
            *mut u64: &raw mut pool, *const [u64; 11]: &raw const properties,
        ));
        let mut take = |bytes: u64| {
            call!(cuda, cuMemAllocFromPoolAsync(
                *mut u64: &raw mut pointer, u64: bytes, u64: pool, u64: 0,
            ))
        };
        assert_eq!((take(101 * MIB), take(20 * MIB)), (OUT_OF_MEMORY, OK));
        assert_eq!(charged(machine), 32);
        let destroy = || call!(cuda, cuMemPoolDestroy(u64: pool));
        assert_eq!((destroy(), destroy()), (OK, INVALID_VALUE));
        assert_eq!((take(MIB), charged(machine)), (INVALID_VALUE, 20));
        assert_eq!(cuda.free(pointer), OK);
        assert_eq!(charged(machine), 0);
    });
}
