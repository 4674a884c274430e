//! Processes that are suspended.
//!
//! Facts of: CUDA Driver API, CUDA Checkpointing.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until, used_mib};

const ILLEGAL_STATE: u32 = 401;
const RUNNING: u32 = 0;
const CHECKPOINTED: u32 = 2;

fn state(cuda: Cuda, pid: i32) -> u32 {
    let mut found = u32::MAX;
    ok!(cuda, cuCheckpointProcessGetState(i32: pid, *mut u32: &raw mut found));
    found
}

#[test]
fn suspended_process_leaves_its_gpu_until_it_is_restored() {
    on_machine(TWO_A100, |machine| {
        if role().is_some() {
            let cuda = Cuda::ready();
            cuda.alloc(50_000 * MIB).unwrap();
            loop {
                std::thread::park();
            }
        }
        let used = || used_mib(machine, "0");
        let child = start("holder");
        until("it allocates", || used() == 50_416);
        let cuda = Cuda::ready();
        let pid = i32::try_from(child.id()).unwrap();
        let restore = || call!(cuda, cuCheckpointProcessRestore(i32: pid, u64: 0));
        let checkpoint = || call!(cuda, cuCheckpointProcessCheckpoint(i32: pid, u64: 0));
        assert_eq!(checkpoint(), ILLEGAL_STATE, "not locked");
        ok!(cuda, cuCheckpointProcessLock(i32: pid, u64: 0));
        assert_eq!(checkpoint(), OK);
        assert_eq!(state(cuda, pid), CHECKPOINTED);
        assert_eq!(used(), 416);
        assert_eq!(machine.process_usage("0").unwrap().len(), 1);
        let large = cuda.alloc(60_000 * MIB).unwrap();
        assert_eq!(restore(), OUT_OF_MEMORY);
        assert_eq!(state(cuda, pid), CHECKPOINTED);
        assert_eq!(cuda.free(large), OK);
        assert_eq!(restore(), OK);
        assert_eq!(used(), 50_832);
        ok!(cuda, cuCheckpointProcessUnlock(i32: pid, u64: 0));
        assert_eq!(state(cuda, pid), RUNNING);
    });
}
