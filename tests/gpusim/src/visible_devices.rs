//! The GPUs and MIG instances that this process sees: those whose device nodes it may open. On a
//! machine without device nodes the environment stands for them, and a process without those
//! variables sees all.

use aliquot_gpusim_model::mig::MigDevice;

use crate::model::{Machine, text};

/// The visible names; `None`: all.
#[derive(Debug, Default)]
pub(crate) struct VisibleDevices(Option<Vec<String>>);

impl VisibleDevices {
    pub(crate) fn of_process(machine: &Machine) -> Self {
        Self::of(aliquot_gpusim_model::visible_devices(machine).as_deref())
    }

    fn of(given: Option<&str>) -> Self {
        match given {
            None | Some("" | "all") => Self(None),
            Some(list) => {
                let names = list.split(',').map(|name| name.trim().to_owned());
                Self(Some(names.collect()))
            }
        }
    }

    fn names(&self, what: &str) -> bool {
        let names = self.0.as_ref();
        names.is_none_or(|names| names.iter().any(|name| name == what))
    }

    fn shows_gpu(&self, machine: &Machine, gpu_index: usize) -> bool {
        self.names(text(&machine.gpus[gpu_index].uuid)) || self.names(&gpu_index.to_string())
    }

    /// An instance is visible with its GPU, or by itself.
    pub(crate) fn instance(&self, machine: &Machine, found: &MigDevice) -> bool {
        self.shows_gpu(machine, found.gpu_index) || self.names(&found.uuid(machine))
    }

    /// The visible GPUs, also those with a visible instance, in their order.
    pub(crate) fn gpu_indexes(&self, machine: &Machine) -> Vec<usize> {
        let instances = machine.instances();
        let has = |gpu_index: usize| {
            let mut own = instances
                .iter()
                .filter(|found| found.gpu_index == gpu_index);
            self.shows_gpu(machine, gpu_index) || own.any(|found| self.instance(machine, found))
        };
        (0..machine.existing_gpus().len())
            .filter(|gpu_index| has(*gpu_index))
            .collect()
    }
}
