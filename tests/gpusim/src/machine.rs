//! A simulated machine, named by its state file: what the command and the tests do with it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_gpusim_model::mig::WHOLE_GPU;
use serde_json::Value;

use crate::ProcessUsage;
use crate::cuda_processes::CudaProcesses;
use crate::edit;
use crate::holders::{self, Holder};
use crate::machine_file;
use crate::mig::instances;
use crate::model::{Gpu, Process, padded, text};
use crate::show;
use crate::state::{self, State};

/// Why an operation on a machine failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MachineError(pub(crate) String);

impl From<io::Error> for MachineError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Names the profile of the GPUs of new machines, such as `harsh`.
pub const PROFILE_VARIABLE: &str = "GPUSIM_PROFILE";

/// A machine, shared by all who name its state file. GPUs are named by index or uuid.
#[derive(Clone, Debug)]
pub struct SimulatedMachine {
    state: PathBuf,
}

impl SimulatedMachine {
    /// Creates a state file from the text of a machine file (YAML). GPUs for which it names no
    /// profile get that of [`PROFILE_VARIABLE`].
    pub fn create(state: &Path, yaml: &str) -> Result<Self, MachineError> {
        let profile = std::env::var(PROFILE_VARIABLE).ok();
        let machine = machine_file::parse(yaml, profile.as_deref())?;
        state::create(state, &machine)?;
        Ok(Self::at(state))
    }

    /// The machine of an existing state file.
    #[must_use]
    pub fn at(state: &Path) -> Self {
        Self {
            state: state.to_owned(),
        }
    }

    /// Its state file: the value for `GPUSIM_STATE`.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// What tests look up of it, as JSON.
    pub fn show(&self) -> Result<Value, MachineError> {
        let machine = State::open(&self.state)?.machine();
        Ok(show::json(&machine))
    }

    /// What living CUDA processes use on a GPU, by the simulator's own count; their utilisation by the
    /// last sample.
    pub fn process_usage(&self, gpu: &str) -> Result<Vec<ProcessUsage>, MachineError> {
        self.process_usage_over(gpu, Duration::ZERO)
    }

    /// The same, with the mean utilisation of the last `period`.
    pub fn process_usage_over(
        &self,
        gpu: &str,
        period: Duration,
    ) -> Result<Vec<ProcessUsage>, MachineError> {
        let machine = State::open(&self.state)?.machine();
        let index = edit::index_of(&machine, gpu)?;
        let processes = CudaProcesses::open(&self.state)?;
        Ok(processes.process_usage(&machine.gpus[index], index, period))
    }

    /// Peak of the bytes of a GPU that the processes started with `GPUSIM_GROUP=group` used
    /// together at one moment, updated at every allocation.
    pub fn group_peak(&self, gpu: &str, group: &str) -> Result<u64, MachineError> {
        let index = self.index_of(gpu)?;
        let found = CudaProcesses::open(&self.state)?.group_peak(index, group);
        found.ok_or_else(|| MachineError("too many groups used the GPU".to_owned()))
    }

    /// Peak of the bytes of managed memory that a GPU used and that were on the host at one moment,
    /// because it had no memory for them or a program moved them there.
    pub fn host_peak(&self, gpu: &str) -> Result<u64, MachineError> {
        let index = self.index_of(gpu)?;
        Ok(CudaProcesses::open(&self.state)?.host_peak(index))
    }

    /// Sets fields of one GPU at once; `src/edit.rs` has their names and values.
    pub fn set(&self, gpu: &str, fields: &[(&str, &str)]) -> Result<(), MachineError> {
        self.change(gpu, |gpu| {
            fields
                .iter()
                .try_for_each(|(field, value)| edit::set(gpu, field, value))
        })
    }

    /// Changes the driver's version, such as `615.10`, for processes that initialise NVML from now
    /// on.
    pub fn set_driver(&self, version: &str) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            let padded = padded(version);
            machine.driver = padded.ok_or_else(|| MachineError("too long".to_owned()))?;
            Ok(())
        })
    }

    /// The processes that have the driver open: by NVML, by CUDA, or added by hand.
    pub fn holders(&self) -> Result<Vec<Holder>, MachineError> {
        let machine = State::open(&self.state)?.machine();
        let mut holders = holders::of_nvml(&self.state)?;
        let processes = CudaProcesses::open(&self.state)?;
        for (index, gpu) in machine.existing_gpus().iter().enumerate() {
            let used = processes.process_usage(gpu, index, Duration::ZERO);
            let pids = used.iter().map(|one| one.pid_here().unwrap_or(one.pid));
            let pids = pids.chain(gpu.running().iter().map(|one| one.pid));
            holders.extend(pids.map(|pid| Holder::new(pid, [index])));
        }
        Ok(holders::merged(holders))
    }

    /// Unloads the driver, as before an upgrade. Fails while another process has it open; no MIG
    /// instance is left.
    pub fn unload(&self) -> Result<(), MachineError> {
        self.check_unused(|_| true)?;
        state::update(&self.state, |machine| {
            if !machine.is_loaded() {
                return Err(MachineError("no driver is loaded".to_owned()));
            }
            machine.gpus.iter_mut().for_each(instances::reboot);
            machine.driver = [0; 80];
            Ok(())
        })
    }

    /// Loads the driver of this version, such as `590.44.01`, after [`Self::unload`].
    pub fn load(&self, version: &str) -> Result<(), MachineError> {
        let loaded = State::open(&self.state)?.machine();
        if loaded.is_loaded() {
            let version = text(&loaded.driver);
            return Err(MachineError(format!("driver {version} is loaded")));
        }
        self.set_driver(version)
    }

    /// Fails while another process for which `which` holds has the driver open.
    fn check_unused(&self, which: impl Fn(&Holder) -> bool) -> Result<(), MachineError> {
        let own = std::process::id();
        let mut holders = self.holders()?;
        holders.retain(|one| one.pid != own && which(one));
        if holders.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
        let names = names.join(", ");
        Err(MachineError(format!("in use by another client: {names}")))
    }

    /// Reports an XID of one GPU.
    pub fn xid(&self, gpu: &str, code: u32) -> Result<(), MachineError> {
        self.xid_of(gpu, code, (WHOLE_GPU, WHOLE_GPU))
    }

    /// Reports an XID of an instance, by its numbers (GPU and compute instance).
    pub fn xid_of(&self, gpu: &str, code: u32, instance: (u32, u32)) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            let index = edit::index_of(machine, gpu)?;
            edit::has_instance(&machine.gpus[index], instance)?;
            edit::raise_xid(machine, index, code, instance);
            Ok(())
        })
    }

    /// Resets a GPU that no other process has open: a pending MIG mode takes effect, no MIG instance
    /// is left.
    pub fn reset(&self, gpu: &str) -> Result<(), MachineError> {
        let index = self.index_of(gpu)?;
        self.check_unused(|one| one.has(index))?;
        self.change(gpu, |gpu| {
            instances::reset(gpu);
            Ok(())
        })
    }

    /// A reboot as the GPUs see it: no process, no instance; MIG stays on for models that retain
    /// the mode.
    pub fn reboot(&self) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            machine.gpus.iter_mut().for_each(instances::reboot);
            Ok(())
        })
    }

    /// Adds a process, or changes the one with its id and kind.
    pub fn add_process(&self, gpu: &str, process: Process) -> Result<(), MachineError> {
        self.change(gpu, |gpu| {
            edit::has_instance(gpu, (process.gpu_instance, process.compute_instance))?;
            edit::add_process(gpu, process)
        })
    }

    /// Removes a process.
    pub fn remove_process(&self, gpu: &str, pid: u32) -> Result<(), MachineError> {
        self.change(gpu, |gpu| edit::remove_process(gpu, pid))
    }

    fn index_of(&self, gpu: &str) -> Result<usize, MachineError> {
        edit::index_of(&State::open(&self.state)?.machine(), gpu)
    }

    fn change(
        &self,
        gpu: &str,
        apply: impl FnOnce(&mut Gpu) -> Result<(), MachineError>,
    ) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            let index = edit::index_of(machine, gpu)?;
            apply(&mut machine.gpus[index])
        })
    }
}
