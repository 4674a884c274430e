//! Suspended processes (`cuCheckpointProcess*`): the driver moves their memory to the host, so it is
//! free for the others of the container, and is asked for again when they are restored. Any process may
//! suspend another, and several may do it at once: what counts is what the driver says afterwards.

use core::ffi::c_uint;

use crate::charges;
use crate::driver::call;
use crate::ffi::{Code, NOT_SUPPORTED, OUT_OF_MEMORY, Out, SUCCESS};
use crate::log;
use crate::process::{self, ProcessState};

/// `CUcheckpointCheckpointArgs` or `CUcheckpointRestoreArgs`: storage of the caller's own, which keeps
/// the memory on the devices meanwhile, and other devices to restore to. Both are null by default.
type Arguments = Out<[u64; 8]>;
const CHECKPOINTED: c_uint = 2;

pub(crate) fn suspend(
    pid: i32,
    arguments: Arguments,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    let Some(process) = process::limited() else {
        return Ok(call());
    };
    refuse_arguments("cuCheckpointProcessCheckpoint", arguments)?;
    let code = call();
    if code == SUCCESS {
        note_suspended(process, pid);
    }
    Ok(code)
}

pub(crate) fn restore(
    pid: i32,
    arguments: Arguments,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    let Some(process) = process::required()? else {
        return Ok(call());
    };
    refuse_arguments("cuCheckpointProcessRestore", arguments)?;
    let resume = || resume(process, pid, |device_index| process.limit(device_index));
    if !resume() {
        charges::refresh(process);
        if !resume() {
            log::line(
                log::ERROR,
                format_args!(
                    "cuCheckpointProcessRestore: the share has no room for the memory of process {pid}"
                ),
            );
            return Err(OUT_OF_MEMORY);
        }
    }
    let code = call();
    if code != SUCCESS {
        note_suspended(process, pid);
    }
    Ok(code)
}

/// Another process may restore it before its memory no longer counts: then it counts all the same.
fn note_suspended(process: &ProcessState, pid: i32) {
    let is_suspended = || {
        let mut state = 0;
        let code = call::cuCheckpointProcessGetState(pid, Out::to(&mut state));
        code == SUCCESS && state == CHECKPOINTED
    };
    if !is_suspended() {
        return;
    }
    if let Ok(pid) = u32::try_from(pid) {
        process.slot.suspend(pid, process.limits.devices());
    }
    if !is_suspended() {
        resume(process, pid, |_| u64::MAX);
    }
}

fn resume(process: &ProcessState, pid: i32, limit: impl Fn(usize) -> u64) -> bool {
    let devices = process.limits.devices();
    // The driver knows no process with another id.
    u32::try_from(pid).map_or(true, |pid| process.slot.resume(pid, devices, limit))
}

fn refuse_arguments(name: &str, arguments: Arguments) -> Result<(), Code> {
    if arguments.get().is_none_or(|words| words == [0; 8]) {
        return Ok(());
    }
    log::line(
        log::ERROR,
        format_args!("{name}: cannot count memory in other storage or on other devices"),
    );
    Err(NOT_SUPPORTED)
}
