//! Which cards and instances a process is shown: in a container those whose device nodes it has.
//! Fed by `NVIDIA_VISIBLE_DEVICES`, standing in for the nodes that a container gets for it; must
//! not hide anything from who names it not.

use aliquot_gpusim_model::mig::Found;

use crate::model::{Machine, text};

/// The names of what is shown; `None`: all.
#[derive(Debug, Default)]
pub(crate) struct Shown(Option<Vec<String>>);

impl Shown {
    pub(crate) fn of_environment() -> Self {
        Self::of(std::env::var("NVIDIA_VISIBLE_DEVICES").ok().as_deref())
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

    fn card(&self, machine: &Machine, card: usize) -> bool {
        self.names(text(&machine.gpus[card].uuid)) || self.names(&card.to_string())
    }

    /// An instance is shown with its card, or by itself.
    pub(crate) fn instance(&self, machine: &Machine, found: &Found) -> bool {
        self.card(machine, found.card) || self.names(&found.uuid(machine))
    }

    /// The cards, those too of which an instance is shown, in their order.
    pub(crate) fn cards(&self, machine: &Machine) -> Vec<usize> {
        let instances = machine.instances();
        let has = |card: usize| {
            let mut own = instances.iter().filter(|found| found.card == card);
            self.card(machine, card) || own.any(|found| self.instance(machine, found))
        };
        (0..machine.cards().len())
            .filter(|card| has(*card))
            .collect()
    }
}
