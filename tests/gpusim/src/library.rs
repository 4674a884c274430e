//! What `nvmlInit` opens: the state file of `GPUSIM_STATE`, a count of users, and device handles.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_gpusim_model::device_nodes;
use aliquot_gpusim_model::mig::MigDevice;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NO_PERMISSION as NO_PERMISSION,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};
use parking_lot::RwLock;

use crate::cuda_processes::{self, CudaProcesses};
use crate::ffi::{Answer, Out};
use crate::handles;
use crate::holders::{self, OpenDriver};
use crate::mig::instances;
use crate::model::{Gpu, MAX_GPUS, Machine, Process, text};
use crate::state::{State, update};
use crate::visible_devices::VisibleDevices;

/// Environment variable with the state file's path.
pub const STATE_VARIABLE: &str = "GPUSIM_STATE";
/// A file beside the library with that path, for a process without the variable.
pub const STATE_FILE: &str = "gpusim-state";

struct Library {
    users: usize,
    path: PathBuf,
    state: Arc<State>,
    cuda_processes: Option<Arc<CudaProcesses>>,
    visible_devices: Arc<VisibleDevices>,
    _open: OpenDriver,
}

static LIBRARY: RwLock<Option<Library>> = RwLock::new(None);

/// Handle n is the address of byte n; never read through.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];

/// The state file that [`STATE_FILE`] names beside this library: a container runtime gives hooks no
/// environment of the simulator's.
fn beside_library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mapped = maps
        .lines()
        .filter_map(|line| Some(&line[line.find('/')?..]));
    let mut beside = mapped.map(|path| Path::new(path).with_file_name(STATE_FILE));
    let file = beside.find(|file| file.is_file())?;
    Some(std::fs::read_to_string(file).ok()?.into())
}

/// Adds a user; the first one opens the driver.
pub(crate) fn init() -> Answer {
    let mut library = LIBRARY.write();
    if let Some(open) = library.as_mut() {
        open.users += 1;
        return Ok(());
    }
    let named = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
    let path = named.or_else(beside_library).ok_or(DRIVER_NOT_LOADED)?;
    let state = State::open(&path).map_err(|e| code(&e))?;
    let machine = state.machine();
    if !machine.is_loaded() || !device_nodes::opens_control(&machine) {
        return Err(DRIVER_NOT_LOADED);
    }
    let visible_devices = VisibleDevices::of_process(&machine);
    let gpus = visible_devices.gpu_indexes(&machine);
    *library = Some(Library {
        users: 1,
        cuda_processes: CudaProcesses::open(&path).ok(),
        _open: holders::open(&path, &gpus).map_err(|_| DRIVER_NOT_LOADED)?,
        path,
        state: Arc::new(state),
        visible_devices: Arc::new(visible_devices),
    });
    Ok(())
}

/// Removes a user; the last one closes the driver.
pub(crate) fn shutdown() -> Answer {
    let mut library = LIBRARY.write();
    let open = library.as_mut().ok_or(UNINITIALIZED)?;
    open.users -= 1;
    if open.users == 0 {
        *library = None;
    }
    Ok(())
}

fn of_open<T>(read: impl FnOnce(&Library) -> Option<T>) -> Answer<T> {
    let library = LIBRARY.read();
    let open = library.as_ref().ok_or(UNINITIALIZED)?;
    read(open).ok_or(UNKNOWN)
}

/// The open state file.
pub(crate) fn state() -> Answer<Arc<State>> {
    of_open(|open| Some(Arc::clone(&open.state)))
}

/// What CUDA processes use.
pub(crate) fn cuda_processes() -> Answer<Arc<CudaProcesses>> {
    of_open(|open| open.cuda_processes.clone())
}

/// The devices that this process sees.
pub(crate) fn visible_devices() -> Answer<Arc<VisibleDevices>> {
    of_open(|open| Some(Arc::clone(&open.visible_devices)))
}

fn path() -> Answer<PathBuf> {
    of_open(|open| Some(open.path.clone()))
}

/// The machine as it is now.
pub(crate) fn machine() -> Answer<Box<Machine>> {
    Ok(state()?.machine())
}

/// The GPU of a handle as it is now, if it is not lost.
pub(crate) fn gpu(device: nvmlDevice_t) -> Answer<Box<Gpu>> {
    gpu_over(device, Duration::ZERO)
}

/// The same, with the mean utilisation of processes over the last `period`.
pub(crate) fn gpu_over(device: nvmlDevice_t, period: Duration) -> Answer<Box<Gpu>> {
    let state = state()?;
    let mut gpu = state.gpu(index(device)?);
    if gpu.uuid[0] == 0 {
        return Err(INVALID_ARGUMENT);
    }
    reachable(&gpu)?;
    if let Ok(processes) = cuda_processes() {
        cuda_processes::add(&mut gpu, &processes, index(device)?, period);
    }
    Ok(gpu)
}

/// The device of a handle: a GPU, or a MIG instance.
pub(crate) struct Device {
    pub(crate) gpu: Box<Gpu>,
    pub(crate) instance: Option<MigDevice>,
}

/// The device of a handle as it is now, if it is there and can be reached.
pub(crate) fn device(device: nvmlDevice_t) -> Answer<Device> {
    let Some(serial) = handles::serial_of_device(device) else {
        let gpu = gpu(device)?;
        return Ok(Device {
            gpu,
            instance: None,
        });
    };
    let all = machine()?.instances();
    let found = all.into_iter().find(|found| found.compute.serial == serial);
    let found = found.ok_or(INVALID_ARGUMENT)?;
    let gpu = gpu(handle(found.gpu_index))?;
    let instance = Some(found);
    Ok(Device { gpu, instance })
}

impl Device {
    pub(crate) fn uuid(&self) -> String {
        match &self.instance {
            None => text(&self.gpu.uuid).to_owned(),
            Some(found) => self.gpu.mig_uuid(&found.compute),
        }
    }

    pub(crate) fn name(&self) -> String {
        let model = text(&self.gpu.model);
        match &self.instance {
            None => model.to_owned(),
            Some(found) => {
                let profile = instances::name(&self.gpu, &found.gpu, &found.compute);
                format!("{model} MIG {profile}")
            }
        }
    }

    /// Bytes in all, of the driver's own part, and used.
    pub(crate) fn memory(&self) -> (u64, u64, u64) {
        match &self.instance {
            None => (
                self.gpu.memory_total,
                self.gpu.memory_reserved,
                self.gpu.used(),
            ),
            Some(found) => {
                let total = found.gpu.memory;
                (total, 0, self.gpu.used_by(found.gpu.id).min(total))
            }
        }
    }

    /// Whether a process of the GPU is on this device.
    pub(crate) fn has(&self, process: &Process) -> bool {
        let on = (process.gpu_instance, process.compute_instance);
        self.instance
            .is_none_or(|found| on == (found.gpu.id, found.compute.id))
    }
}

/// Rejects a GPU that fell off the bus.
pub(crate) fn reachable(gpu: &Gpu) -> Answer {
    if gpu.lost == 0 {
        Ok(())
    } else {
        Err(GPU_IS_LOST)
    }
}

/// Answers a call that reads one thing of one GPU.
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

/// Whether other processes have the GPU of a handle open.
pub(crate) fn is_open_elsewhere(device: nvmlDevice_t) -> Answer<bool> {
    let index = index(device)?;
    let holders = holders::of_nvml(&path()?).map_err(|_| UNKNOWN)?;
    let own = std::process::id();
    Ok(holders.iter().any(|one| one.pid != own && one.has(index)))
}

pub(crate) fn change(device: nvmlDevice_t, edit: impl FnOnce(&mut Gpu) -> Answer) -> Answer {
    gpu(device)?;
    let index = index(device)?;
    change_machine(|machine| edit(&mut machine.gpus[index]))
}

pub(crate) fn change_machine<T>(edit: impl FnOnce(&mut Machine) -> Answer<T>) -> Answer<T> {
    let changed = update(&path()?, |machine| edit(machine).map_err(UpdateError));
    changed.map_err(|UpdateError(code)| code)
}

struct UpdateError(nvmlReturn_t);

impl From<io::Error> for UpdateError {
    fn from(error: io::Error) -> Self {
        Self(code(&error))
    }
}

fn code(error: &io::Error) -> nvmlReturn_t {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => NO_PERMISSION,
        ErrorKind::Other => UNKNOWN,
        _ => DRIVER_NOT_LOADED,
    }
}

/// The handle of GPU `index`; the same in every call of this process.
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
