//! A simulated machine by its state file: what the command and the tests do with one.
//! Fed by paths and texts; decides nothing, `machine_file` and `edit` do.

use std::path::{Path, PathBuf};

use aliquot_gpusim_model::mig::WHOLE_CARD;
use serde_json::Value;

use crate::Holder;
use crate::edit::{self, EditError};
use crate::machine_file::{self, MachineFileError};
use crate::mig::cut;
use crate::model::{Gpu, Process, padded};
use crate::running::{self, Running};
use crate::show;
use crate::state::{self, State, StateError};

/// What can fail.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The machine file is wrong.
    #[error(transparent)]
    MachineFile(#[from] MachineFileError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The change was refused.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The peak of a group is not known.
    #[error("the peak of group {0} was perhaps not kept: too many groups were on the card")]
    Crowded(String),
}

/// A machine; everyone who names its state file shares it. Cards are named by index or uuid.
#[derive(Clone, Debug)]
pub struct SimulatedMachine {
    state: PathBuf,
}

impl SimulatedMachine {
    /// Makes a state file from the text of a machine file (YAML).
    pub fn create(state: &Path, yaml: &str) -> Result<Self, MachineError> {
        state::create(state, &*machine_file::parse(yaml)?)?;
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

    /// Everything as JSON; memory in MiB.
    pub fn show(&self) -> Result<Value, MachineError> {
        let mut machine = State::open(&self.state)?.machine();
        let holdings = Running::open(&self.state)?;
        for (index, gpu) in machine.gpus.iter_mut().enumerate() {
            running::add(gpu, &holdings, index);
        }
        Ok(show::json(&machine))
    }

    /// What living CUDA processes hold on a card, by the simulator's own count.
    pub fn holders(&self, gpu: &str) -> Result<Vec<Holder>, MachineError> {
        let machine = State::open(&self.state)?.machine();
        let index = edit::index_of(&machine, gpu)?;
        let holdings = Running::open(&self.state)?;
        Ok(holdings.holders(&machine.gpus[index], index))
    }

    /// The most bytes of a card that the processes started with `GPUSIM_GROUP=group` ever held
    /// together at one moment, looked at with every byte they took.
    pub fn group_peak(&self, gpu: &str, group: &str) -> Result<u64, MachineError> {
        let index = edit::index_of(&State::open(&self.state)?.machine(), gpu)?;
        let found = Running::open(&self.state)?.group_peak(index, group);
        found.ok_or_else(|| MachineError::Crowded(group.to_owned()))
    }

    /// The most bytes of managed memory that a card used and that were on the host at one moment,
    /// because it had no room for them or a program wanted them there.
    pub fn host_peak(&self, gpu: &str) -> Result<u64, MachineError> {
        let index = edit::index_of(&State::open(&self.state)?.machine(), gpu)?;
        Ok(Running::open(&self.state)?.host_peak(index))
    }

    /// Sets fields of one card at once; the names and values of [`edit::FIELDS`].
    pub fn set(&self, gpu: &str, fields: &[(&str, &str)]) -> Result<(), MachineError> {
        self.change(gpu, |gpu| {
            fields
                .iter()
                .try_for_each(|(field, value)| edit::set(gpu, field, value))
        })
    }

    /// Another driver from now on, for who asks anew: its version, such as `615.10`.
    pub fn set_driver(&self, version: &str) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            machine.driver = padded(version).ok_or_else(|| EditError::BadValue {
                field: "driver",
                value: version.to_owned(),
                accepted: "up to 79 bytes",
            })?;
            Ok(())
        })
    }

    /// Reports an XID of one card.
    pub fn xid(&self, gpu: &str, code: u32) -> Result<(), MachineError> {
        self.xid_of(gpu, code, (WHOLE_CARD, WHOLE_CARD))
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

    /// Resets a card that nobody uses: what was pending holds, nothing is cut any more.
    pub fn reset(&self, gpu: &str) -> Result<(), MachineError> {
        let used = self.holders(gpu)?.len();
        self.change(gpu, |gpu| {
            let used = used + gpu.running().len();
            if used > 0 {
                return Err(EditError::Used(used));
            }
            cut::reset(gpu);
            Ok(())
        })
    }

    /// A reboot as the cards see it: no process, no instance; MIG stays on where cards keep it.
    pub fn reboot(&self) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            machine.gpus.iter_mut().for_each(cut::reboot);
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

    fn change(
        &self,
        gpu: &str,
        apply: impl FnOnce(&mut Gpu) -> Result<(), EditError>,
    ) -> Result<(), MachineError> {
        state::update(&self.state, |machine| {
            let index = edit::index_of(machine, gpu)?;
            Ok(apply(&mut machine.gpus[index])?)
        })
    }
}
