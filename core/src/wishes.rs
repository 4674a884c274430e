//! What a pod's annotations wish: each under our name, which is exact, and under
//! HAMi's, which keeps HAMi's meaning. With both present ours holds.
//!
//! Fed by: the scheduler and the webhook, which thus refuse the same values.
//! Must not: guess; a value that cannot be meant is an error that says what can.

use thiserror::Error;

use crate::card_policy::CardPolicy;
use crate::inventory::Mode;
use crate::pin::{Pin, PinError};
use crate::rules::{Model, Rules};
use crate::score::{Policy, Weights};

/// One wish: its name here and its name at HAMi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// `aliquot.dev/…`
    pub ours: &'static str,
    /// HAMi's; empty where HAMi has none.
    pub hamis: &'static str,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $ours:literal, $hamis:literal;)*) => {
        $($(#[$doc])* pub const $name: Key = Key { ours: $ours, hamis: $hamis };)*
        /// Every wish.
        pub const KEYS: &[Key] = &[$($name),*];
    };
}

keys! {
    /// Models to use.
    USE_TYPE = "aliquot.dev/use-gputype", "nvidia.com/use-gputype";
    /// Models not to use.
    NOUSE_TYPE = "aliquot.dev/nouse-gputype", "nvidia.com/nouse-gputype";
    /// Cards to use.
    USE_UUID = "aliquot.dev/use-gpuuuid", "nvidia.com/use-gpuuuid";
    /// Cards not to use.
    NOUSE_UUID = "aliquot.dev/nouse-gpuuuid", "nvidia.com/nouse-gpuuuid";
    /// The units to use and no others.
    PIN = "aliquot.dev/use-gpu", "";
    /// Several of one resource are seats of one unit.
    SEATS = "aliquot.dev/seats", "";
    /// All cards of a container on one NUMA node.
    NUMA_BIND = "aliquot.dev/numa-bind", "nvidia.com/numa-bind";
    /// Ways of sharing.
    MODE = "aliquot.dev/vgpu-mode", "nvidia.com/vgpu-mode";
    /// Which node is better.
    NODE_POLICY = "aliquot.dev/node-scheduler-policy", "hami.io/node-scheduler-policy";
    /// Which cards are better.
    GPU_POLICY = "aliquot.dev/gpu-scheduler-policy", "hami.io/gpu-scheduler-policy";
    /// What makes a card full.
    WEIGHTS = "aliquot.dev/device-scoring-weights", "hami.io/device-scoring-weights";
}

/// An annotation that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("annotation {key}: {why}")]
pub struct WishError {
    /// The annotation.
    pub key: &'static str,
    /// Its value, and what is accepted.
    pub why: String,
}

/// All wishes of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Of cards.
    pub rules: Rules,
    /// Which node is better, if the pod says.
    pub node_policy: Option<Policy>,
    /// Which cards are better, if the pod says.
    pub gpu_policy: Option<CardPolicy>,
}

impl Wishes {
    /// Reads a pod's annotations; `value_of` looks one up. All faults are
    /// reported, not only the first.
    pub fn read<'a>(
        value_of: impl Fn(&'static str) -> Option<&'a str>,
    ) -> Result<Self, Vec<WishError>> {
        let mut reader = Reader {
            value_of,
            faults: Vec::new(),
        };
        let node_policy = reader.one(NODE_POLICY, |text, _| {
            let policy = text.trim().parse();
            policy.map_err(|error: crate::score::UnknownPolicy| error.to_string())
        });
        let gpu_policy = reader.one(GPU_POLICY, |text, _| {
            let policy = text.trim().parse();
            policy.map_err(|error: crate::card_policy::UnknownCardPolicy| error.to_string())
        });
        let rules = Rules {
            use_models: reader.list(USE_TYPE, model),
            nouse_models: reader.list(NOUSE_TYPE, model),
            use_uuids: reader.list(USE_UUID, |item, _| item.into()),
            nouse_uuids: reader.list(NOUSE_UUID, |item, _| item.into()),
            pins: reader.one(PIN, pins).unwrap_or_default(),
            modes: reader.one(MODE, modes).unwrap_or_default(),
            same_unit: reader.one(SEATS, same).unwrap_or_default(),
            one_numa: reader.one(NUMA_BIND, truth).unwrap_or_default(),
            weights: reader.one(WEIGHTS, weights).unwrap_or_default(),
        };
        if reader.faults.is_empty() {
            Ok(Self {
                rules,
                node_policy,
                gpu_policy,
            })
        } else {
            Err(reader.faults)
        }
    }
}

/// Whether a value stands under our name, which is the exact one.
type Exact = bool;

struct Reader<F> {
    value_of: F,
    faults: Vec<WishError>,
}

impl<'a, F: Fn(&'static str) -> Option<&'a str>> Reader<F> {
    fn found(&self, key: Key) -> Option<(&'static str, &'a str, Exact)> {
        let under = |name, exact| (self.value_of)(name).map(|text| (name, text, exact));
        let hamis = || under(key.hamis, false).filter(|_| !key.hamis.is_empty());
        under(key.ours, true).or_else(hamis)
    }

    fn one<T>(&mut self, key: Key, read: fn(&str, Exact) -> Result<T, String>) -> Option<T> {
        let (key, text, exact) = self.found(key)?;
        match read(text, exact) {
            Ok(value) => Some(value),
            Err(why) => {
                self.faults.push(WishError { key, why });
                None
            }
        }
    }

    /// A comma list; empty items say nothing, an empty list demands nothing.
    fn list<T>(&self, key: Key, item: fn(&str, Exact) -> T) -> Vec<T> {
        let Some((_, text, exact)) = self.found(key) else {
            return Vec::new();
        };
        items(text).map(|text| item(text, exact)).collect()
    }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    let items = text.split(',').map(str::trim);
    items.filter(|item| !item.is_empty())
}

fn model(item: &str, exact: Exact) -> Model {
    if exact {
        Model::Is(item.to_owned())
    } else {
        Model::Contains(item.to_owned())
    }
}

/// HAMi takes what Go's `strconv.ParseBool` takes.
fn truth(text: &str, exact: Exact) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        "1" | "t" | "T" | "TRUE" | "True" if !exact => Ok(true),
        "0" | "f" | "F" | "FALSE" | "False" if !exact => Ok(false),
        _ => Err(format!(
            "{text:?} is not a truth value; accepted: true, false"
        )),
    }
}

fn pins(text: &str, _: Exact) -> Result<Vec<Pin>, String> {
    let pins: Result<Vec<Pin>, PinError> = text.split(',').map(|one| one.trim().parse()).collect();
    pins.map_err(|error| error.to_string())
}

fn same(text: &str, _: Exact) -> Result<bool, String> {
    match text {
        "same" => Ok(true),
        "distinct" => Ok(false),
        _ => Err(format!(
            "{text:?} is no way to have several; accepted: same (seats of one GPU), distinct (one seat each of several GPUs)"
        )),
    }
}

/// Our names, a comma list. HAMi asks whether the text contains the name of a
/// card's mode; its `hami-core` is our `vgpu`.
fn modes(text: &str, exact: Exact) -> Result<Vec<Mode>, String> {
    const OURS: &str = "vgpu, exclusive, timeslice, mps, mig, or some of them with commas between";
    if exact {
        let mode = |item| match item {
            "vgpu" => Ok(Mode::Vgpu),
            "exclusive" => Ok(Mode::Exclusive),
            "timeslice" => Ok(Mode::Timeslice),
            "mps" => Ok(Mode::Mps),
            "mig" => Ok(Mode::Mig),
            _ => Err(format!("{item:?} is not a mode; accepted: {OURS}")),
        };
        return items(text).map(mode).collect();
    }
    let known = [
        ("hami-core", Mode::Vgpu),
        ("mig", Mode::Mig),
        ("mps", Mode::Mps),
    ];
    let named = known.into_iter().filter(|(name, _)| text.contains(name));
    let named: Vec<Mode> = named.map(|(_, mode)| mode).collect();
    if named.is_empty() && !text.trim().is_empty() {
        return Err(format!(
            "{text:?} names no mode; accepted: hami-core, mig, mps"
        ));
    }
    Ok(named)
}

/// `slot=1,core=1,memory=3`: each once, not all 0.
fn weights(text: &str, _: Exact) -> Result<Weights, String> {
    let refused = || {
        format!(
            "{text:?} are not weights; accepted: slot=N,core=N,memory=N, each a whole number of at most 1000, not all 0"
        )
    };
    let mut found = [None; 3];
    for item in text.split(',') {
        let (name, number) = item.split_once('=').ok_or_else(refused)?;
        let place = ["slot", "core", "memory"];
        let place = place.iter().position(|known| *known == name.trim());
        let number = number.trim().parse::<u32>().ok().filter(|n| *n <= 1000);
        let (place, number) = place.zip(number).ok_or_else(refused)?;
        if found[place].replace(number).is_some() {
            return Err(refused());
        }
    }
    match found {
        [Some(seats), Some(cores), Some(memory)] if seats + cores + memory > 0 => Ok(Weights {
            seats,
            cores,
            memory,
        }),
        _ => Err(refused()),
    }
}
