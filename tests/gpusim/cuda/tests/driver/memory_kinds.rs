//! Memory of every kind: what it is charged on the GPU, what is rejected, and that all is released.
//!
//! Facts of: CUDA Driver API, Memory Management.

use aliquot_gpusim::SimulatedMachine;

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

fn charged(machine: &SimulatedMachine) -> (u64, u64) {
    let holders = machine.process_usage("0").unwrap();
    let sum = |part: fn(&aliquot_gpusim::ProcessUsage) -> u64| holders.iter().map(part).sum();
    (sum(|one| one.used), sum(|one| one.requested))
}

#[test]
fn charges_and_frees_each_kind_of_memory_like_the_driver() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let (context, _) = charged(machine);
        let check = |what: &str, used: u64, requested: u64| {
            assert_eq!(charged(machine), (context + used, requested), "{what}");
        };
        check("only the context", 0, 0);
        let small: Vec<u64> = (0..4096).map(|_| cuda.alloc(500).unwrap()).collect();
        check("4096 of 500 bytes share one block", 2 * MIB, 4096 * 500);
        for pointer in small {
            assert_eq!(cuda.free(pointer), OK);
        }
        check("the block is free with its last part", 0, 0);

        for (size, used) in [
            (1, 2),
            (MIB, 2),
            (MIB + 1, 2),
            (2 * MIB, 2),
            (2 * MIB + 1, 4),
            (100 * MIB, 100),
        ] {
            let pointer = cuda.alloc(size).unwrap();
            check(&format!("{size} bytes"), used * MIB, size);
            assert_eq!(cuda.free(pointer), OK);
        }

        let (mut pointer, mut pitch) = (0, 0);
        let mut alloc_pitch = |width, height, element| {
            call!(cuda, cuMemAllocPitch_v2(
                *mut u64: &raw mut pointer, *mut u64: &raw mut pitch, u64: width, u64: height,
                u32: element,
            ))
        };
        assert_eq!(alloc_pitch(100, 10_000, 5), INVALID_VALUE);
        assert_eq!(alloc_pitch(100, 10_000, 4), OK);
        assert_eq!(pitch, 512);
        check("rows of 512 bytes", 6 * MIB, 5_120_000);
        assert_eq!(cuda.free(pointer), OK);

        let mut managed = 0;
        ok!(cuda, cuMemAllocManaged(*mut u64: &raw mut managed, u64: 64 * MIB, u32: 1));
        check("managed memory nobody touched", 0, 0);
        assert_eq!(cuda.free(managed), OK);
        let mut host = 0;
        ok!(cuda, cuMemHostAlloc(*mut u64: &raw mut host, u64: 64 * MIB, u32: 0));
        check("host memory", 0, 0);
        assert_eq!(cuda.free(host), INVALID_VALUE);
        ok!(cuda, cuMemFreeHost(u64: host));

        let mut array = 0;
        // 1000 x 1000 of four 32-bit floats: rows of 16,000 bytes.
        let descriptor = [1000_u64, 1000, 0x4_0000_0020];
        ok!(cuda, cuArrayCreate_v2(
            *mut u64: &raw mut array, *const [u64; 3]: &raw const descriptor,
        ));
        check("an array", 16 * MIB, 16_056_320);
        ok!(cuda, cuArrayDestroy(u64: array));
        let mipmapped = [1024_u64, 1024, 0, 0x1_0000_0020, 0];
        ok!(cuda, cuMipmappedArrayCreate(
            *mut u64: &raw mut array, *const [u64; 5]: &raw const mipmapped, u32: 11,
        ));
        let (used, _) = charged(machine);
        assert_eq!(used, context + 6 * MIB, "4 MiB and a third, in blocks");
        ok!(cuda, cuMipmappedArrayDestroy(u64: array));
        check("all is back", 0, 0);
    });
}

#[test]
fn rejects_invalid_pointers() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::ready();
        assert_eq!(cuda.alloc(0), Err(INVALID_VALUE));
        assert_eq!(
            call!(cuda, cuMemAlloc_v2(*mut u64: std::ptr::null_mut(), u64: 1)),
            INVALID_VALUE
        );
        let pointer = cuda.alloc(1000).unwrap();
        for wrong in [0, 8, pointer + 1, pointer + 1024] {
            assert_eq!(cuda.free(wrong), INVALID_VALUE);
        }
        assert_eq!(cuda.free(pointer), OK);
        assert_eq!(cuda.free(pointer), INVALID_VALUE);
        let mut base = 0_u64;
        let null = std::ptr::null_mut();
        assert_eq!(
            call!(cuda, cuMemGetAddressRange_v2(
                *mut u64: &raw mut base, *mut u64: null, u64: pointer,
            )),
            NOT_FOUND
        );
        ok!(cuda, cuMemGetInfo_v2(*mut u64: null, *mut u64: null));
    });
}
