//! Suspending processes: their memory moves to the host, and back to the same GPUs. Custom storage and
//! other GPUs are not simulated.

use aliquot_gpusim_model::suspension::{LOCKED, RUNNING, SuspensionError};

use crate::calls::calls;
use crate::codes::{
    ERROR_ILLEGAL_STATE, ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, ERROR_OUT_OF_MEMORY,
};
use crate::driver::driver;
use crate::ffi::{Answer, Out};

calls! { CALLS:
    cuCheckpointProcessGetState 12080 cuCheckpointProcessGetState(pid: i32, state: Out<u32>) {
        let found = driver()?.member().process_state(number(pid)?).map_err(code)?;
        state.put(u32::try_from(found).map_err(|_| ERROR_INVALID_VALUE)?)
    }

    cuCheckpointProcessLock 12080 cuCheckpointProcessLock(pid: i32, _arguments: Out<[u64; 8]>) {
        let pid = number(pid)?;
        driver()?.member().change_process(pid, RUNNING, LOCKED).map_err(code)
    }

    cuCheckpointProcessUnlock 12080 cuCheckpointProcessUnlock(pid: i32, _arguments: Out<[u64; 8]>) {
        let pid = number(pid)?;
        driver()?.member().change_process(pid, LOCKED, RUNNING).map_err(code)
    }

    cuCheckpointProcessCheckpoint 12080 cuCheckpointProcessCheckpoint(
        pid: i32, arguments: Out<[u64; 8]>,
    ) {
        refuse_arguments(&arguments)?;
        driver()?.member().checkpoint_process(number(pid)?).map_err(code)
    }

    cuCheckpointProcessRestore 12080 cuCheckpointProcessRestore(
        pid: i32, arguments: Out<[u64; 8]>,
    ) {
        refuse_arguments(&arguments)?;
        let driver = driver()?;
        let capacity = |gpu_index| driver.capacity(gpu_index);
        driver.member().restore_process(number(pid)?, capacity).map_err(code)
    }
}

fn number(pid: i32) -> Answer<u32> {
    u32::try_from(pid).map_err(|_| ERROR_INVALID_VALUE)
}

fn refuse_arguments(arguments: &Out<[u64; 8]>) -> Answer {
    match arguments.get() {
        Ok(words) if words != [0; 8] => Err(ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

fn code(error: SuspensionError) -> u32 {
    match error {
        SuspensionError::NoProcess => ERROR_INVALID_VALUE,
        SuspensionError::State => ERROR_ILLEGAL_STATE,
        SuspensionError::Unmovable => ERROR_NOT_SUPPORTED,
        SuspensionError::Full => ERROR_OUT_OF_MEMORY,
    }
}
