//! What `nvmlInit` opens: the state file, counted users, and device handles.
//! Fed by the environment variable `GPUSIM_STATE`; must not know any single NVML call.

use std::path::PathBuf;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as LIB_RM_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_NO_PERMISSION as NO_PERMISSION,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};
use parking_lot::RwLock;

use crate::ffi::{Answer, Out};
use crate::model::{Gpu, MAX_GPUS, Machine};
use crate::running::{self, Running};
use crate::state::{State, StateError, update};

/// Environment variable with the state file's path.
pub const STATE_VARIABLE: &str = "GPUSIM_STATE";

struct Library {
    users: usize,
    path: PathBuf,
    state: Arc<State>,
    holdings: Option<Arc<Running>>,
}

static LIBRARY: RwLock<Option<Library>> = RwLock::new(None);

/// Handle n is the address of byte n; never read through.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];

/// Another user; the first one opens the state file.
pub(crate) fn init() -> Answer {
    let mut library = LIBRARY.write();
    if let Some(open) = library.as_mut() {
        open.users += 1;
        return Ok(());
    }
    let path = PathBuf::from(std::env::var_os(STATE_VARIABLE).ok_or(DRIVER_NOT_LOADED)?);
    let state = State::open(&path).map_err(|e| code(&e))?;
    *library = Some(Library {
        users: 1,
        holdings: Running::open(&path).ok(),
        path,
        state: Arc::new(state),
    });
    Ok(())
}

/// One user less; the last one closes the state file.
pub(crate) fn shutdown() -> Answer {
    let mut library = LIBRARY.write();
    let open = library.as_mut().ok_or(UNINITIALIZED)?;
    open.users -= 1;
    if open.users == 0 {
        *library = None;
    }
    Ok(())
}

/// The open state file.
pub(crate) fn state() -> Answer<Arc<State>> {
    let library = LIBRARY.read();
    let open = library.as_ref().ok_or(UNINITIALIZED)?;
    Ok(Arc::clone(&open.state))
}

/// The machine as it is now.
pub(crate) fn machine() -> Answer<Box<Machine>> {
    Ok(state()?.machine())
}

/// The card of a handle as it is now, if it can still be reached.
pub(crate) fn gpu(device: nvmlDevice_t) -> Answer<Box<Gpu>> {
    let state = state()?;
    let mut gpu = state.gpu(index(device)?);
    if gpu.uuid[0] == 0 {
        return Err(INVALID_ARGUMENT);
    }
    reachable(&gpu)?;
    let library = LIBRARY.read();
    let holdings = library.as_ref().and_then(|open| open.holdings.as_ref());
    if let Some(holdings) = holdings {
        running::add(&mut gpu, holdings, index(device)?);
    }
    Ok(gpu)
}

/// Refuses a card that fell off the bus.
pub(crate) fn reachable(gpu: &Gpu) -> Answer {
    if gpu.lost == 0 {
        Ok(())
    } else {
        Err(GPU_IS_LOST)
    }
}

/// Answers a call that reads one thing of one card.
pub(crate) fn read<T: Copy>(
    device: nvmlDevice_t,
    out: &Out<T>,
    get: impl FnOnce(&Gpu) -> Answer<T>,
) -> Answer {
    let gpu = gpu(device)?;
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    out.put(get(&gpu)?)
}

/// Answers a call that changes one card.
pub(crate) fn change(device: nvmlDevice_t, edit: impl FnOnce(&mut Gpu) -> Answer) -> Answer {
    gpu(device)?;
    let index = index(device)?;
    let path = LIBRARY.read().as_ref().map(|open| open.path.clone());
    update(&path.ok_or(UNINITIALIZED)?, |machine| {
        edit(&mut machine.gpus[index]).map_err(Refusal)
    })
    .map_err(|Refusal(code)| code)
}

struct Refusal(nvmlReturn_t);

impl From<StateError> for Refusal {
    fn from(error: StateError) -> Self {
        Self(code(&error))
    }
}

fn code(error: &StateError) -> nvmlReturn_t {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        StateError::Open { source, .. }
            if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
        {
            NO_PERMISSION
        }
        StateError::Open { .. } | StateError::NotAState { .. } => DRIVER_NOT_LOADED,
        StateError::Version { .. } => LIB_RM_VERSION_MISMATCH,
        StateError::Create { .. } | StateError::Map { .. } | StateError::Full { .. } => UNKNOWN,
    }
}

/// The handle of card `index`; the same in every call of this process.
pub(crate) fn handle(index: usize) -> nvmlDevice_t {
    std::ptr::from_ref(&HANDLES[index]).cast_mut().cast()
}

/// The index that a handle stands for.
pub(crate) fn index(device: nvmlDevice_t) -> Answer<usize> {
    let base = HANDLES.as_ptr().addr();
    let index = device.addr().checked_sub(base);
    index
        .filter(|index| *index < MAX_GPUS)
        .ok_or(INVALID_ARGUMENT)
}
