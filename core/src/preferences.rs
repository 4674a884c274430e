//! A pod's preferences, from its annotations: each under Aliquot's name, which is exact,
//! and under HAMi's, which has HAMi's meaning. Aliquot's wins. The scheduler and the
//! webhook both read them here, so they reject the same values.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::burst::{self, Burst};
use crate::excerpt::Excerpt;
use crate::inventory::Mode;
use crate::policy::{GpuPolicy, Policy, Weights};
use crate::request::{Resource, Written};
use crate::rules::{DeviceRules, Model, ModelRules, Pin, PinError};
use crate::units::{Mib, Percent};

/// One preference: its annotation here and at HAMi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreferenceKey {
    /// `aliquot.dev/…`
    pub aliquot: &'static str,
    /// HAMi's; empty if HAMi has none.
    pub hami: &'static str,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $aliquot:expr, $hami:literal;)*) => {
        $($(#[$doc])* pub const $name: PreferenceKey = PreferenceKey { aliquot: $aliquot, hami: $hami };)*
        /// Every preference.
        pub const KEYS: &[PreferenceKey] = &[$($name),*];
    };
}

keys! {
    /// Models to use.
    USE_TYPE = "aliquot.dev/use-gputype", "nvidia.com/use-gputype";
    /// Models not to use.
    NOUSE_TYPE = "aliquot.dev/nouse-gputype", "nvidia.com/nouse-gputype";
    /// Devices to use.
    USE_UUID = "aliquot.dev/use-gpuuuid", "nvidia.com/use-gpuuuid";
    /// Devices not to use.
    NOUSE_UUID = "aliquot.dev/nouse-gpuuuid", "nvidia.com/nouse-gpuuuid";
    /// The only devices to use.
    PIN = "aliquot.dev/use-gpu", "";
    /// Several replicas under one resource are of one device.
    SAME_DEVICE = "aliquot.dev/replicas", "";
    /// All devices of a container on one NUMA node.
    NUMA_BIND = "aliquot.dev/numa-bind", "nvidia.com/numa-bind";
    /// Sharing modes.
    MODE = "aliquot.dev/vgpu-mode", "nvidia.com/vgpu-mode";
    /// Which node is better.
    NODE_POLICY = "aliquot.dev/node-scheduler-policy", "hami.io/node-scheduler-policy";
    /// Which devices are better.
    GPU_POLICY = "aliquot.dev/gpu-scheduler-policy", "hami.io/gpu-scheduler-policy";
    /// The weights by which a device counts as full.
    WEIGHTS = "aliquot.dev/device-scoring-weights", "hami.io/device-scoring-weights";
    /// The limit of each share's memory.
    MEMORY_LIMIT = burst::MEMORY_LIMIT, "";
    /// The limit of each share's compute.
    CORES_LIMIT = burst::CORES_LIMIT, "";
    /// How lent memory is called back.
    BURST = burst::BURST, "";
}

/// The most items in all lists of a pod.
pub const MAX_ITEMS: usize = 64;
/// The most bytes in all preferences of a pod.
pub const MAX_BYTES: usize = 4 << 10;

/// An annotation with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("annotation {key}: {why}")]
pub struct PreferenceError {
    pub key: &'static str,
    pub why: String,
}

/// All preferences of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    /// Requirements on devices.
    pub rules: DeviceRules,
    /// Which node is better, if the pod chooses.
    pub node_policy: Option<Policy>,
    /// Which devices are better, if the pod chooses.
    pub gpu_policy: Option<GpuPolicy>,
}

impl Preferences {
    /// Reads a pod's annotations; `value_of` looks one up. Returns all errors, not only the
    /// first.
    pub fn read<'a>(
        value_of: impl Fn(&'static str) -> Option<&'a str>,
    ) -> Result<Self, Vec<PreferenceError>> {
        let mut reader = Reader {
            value_of,
            errors: Vec::new(),
        };
        reader.within_bounds().map_err(|error| vec![error])?;
        let node_policy = reader.one(NODE_POLICY, parsed::<Policy>);
        let gpu_policy = reader.one(GPU_POLICY, parsed::<GpuPolicy>);
        let rules = DeviceRules {
            use_models: reader.list(USE_TYPE, model),
            nouse_models: reader.list(NOUSE_TYPE, model),
            use_uuids: reader.list(USE_UUID, |item, _| item.into()),
            nouse_uuids: reader.list(NOUSE_UUID, |item, _| item.into()),
            pins: reader.one(PIN, pins).unwrap_or_default(),
            modes: reader.one(MODE, modes).unwrap_or_default(),
            same_device: reader
                .one(SAME_DEVICE, same_device_value)
                .unwrap_or_default(),
            one_numa: reader.one(NUMA_BIND, truth).unwrap_or_default(),
            weights: reader.one(WEIGHTS, weights).unwrap_or_default(),
            burst: reader.burst(),
        };
        if reader.errors.is_empty() {
            Ok(Self {
                rules,
                node_policy,
                gpu_policy,
            })
        } else {
            Err(reader.errors)
        }
    }
}

/// The models that a pod with these annotations accepts; `None` for any, or where its preferences
/// cannot be read.
pub fn models<'a>(value_of: impl Fn(&'static str) -> Option<&'a str>) -> Option<Arc<ModelRules>> {
    let reader = Reader {
        value_of,
        errors: Vec::new(),
    };
    reader.within_bounds().ok()?;
    ModelRules::new(reader.list(USE_TYPE, model), reader.list(NOUSE_TYPE, model))
}

/// Whether the value is under Aliquot's name, which is exact.
type Exact = bool;

struct Reader<F> {
    value_of: F,
    errors: Vec<PreferenceError>,
}

impl<'a, F: Fn(&'static str) -> Option<&'a str>> Reader<F> {
    fn found(&self, key: PreferenceKey) -> Option<(&'static str, &'a str, Exact)> {
        let under = |name, exact| (self.value_of)(name).map(|text| (name, text, exact));
        let hamis = || under(key.hami, false).filter(|_| !key.hami.is_empty());
        under(key.aliquot, true).or_else(hamis)
    }

    /// A pod's preferences are read at every call and kept while it is pending, so they have a bound.
    /// The error names the first annotation that exceeds it together with those before.
    fn within_bounds(&self) -> Result<(), PreferenceError> {
        let (mut all_items, mut all_bytes) = (0, 0);
        for (key, text, _) in KEYS.iter().filter_map(|key| self.found(*key)) {
            all_items += items(text).count();
            all_bytes += text.len();
            if all_items > MAX_ITEMS || all_bytes > MAX_BYTES {
                let text = Excerpt::from(text);
                let why = format!(
                    "{text:?} is too long; expected: at most {MAX_ITEMS} items and {MAX_BYTES} bytes in all annotations that choose GPUs"
                );
                return Err(PreferenceError { key, why });
            }
        }
        Ok(())
    }

    fn one<T>(
        &mut self,
        key: PreferenceKey,
        read: fn(&str, Exact) -> Result<T, String>,
    ) -> Option<T> {
        let (key, text, exact) = self.found(key)?;
        match read(text, exact) {
            Ok(value) => Some(value),
            Err(why) => {
                self.errors.push(PreferenceError { key, why });
                None
            }
        }
    }

    /// `None` if no annotation says anything.
    fn burst(&mut self) -> Option<Burst> {
        let burst = Burst {
            memory: self.one(MEMORY_LIMIT, memory_limit),
            cores: self.one(CORES_LIMIT, cores_limit),
            yields: self.one(BURST, yields).is_some(),
        };
        Some(burst).filter(|burst| *burst != Burst::default())
    }

    /// A comma-separated list; empty items are ignored, and an empty list requires nothing.
    fn list<T>(&self, key: PreferenceKey, item: fn(&str, Exact) -> T) -> Vec<T> {
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

fn parsed<T: FromStr<Err: Display>>(text: &str, _: Exact) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|error: T::Err| error.to_string())
}

fn invalid<T>(text: &str, why: &str) -> Result<T, String> {
    Err(format!("{:?} {why}", Excerpt::from(text)))
}

fn model(item: &str, exact: Exact) -> Model {
    if exact {
        Model::Is(item.to_owned())
    } else {
        Model::Contains(item.to_owned())
    }
}

fn memory_limit(text: &str, _: Exact) -> Result<Mib, String> {
    amount(text, Resource::Memory).map(Mib)
}

fn cores_limit(text: &str, _: Exact) -> Result<Percent, String> {
    let cores = amount(text, Resource::Cores)?;
    u32::try_from(cores)
        .map(Percent)
        .map_err(|error| error.to_string())
}

/// An amount in the form and range of a request.
fn amount(text: &str, resource: Resource) -> Result<u64, String> {
    let written = Written::read(|asked| (asked == resource).then_some(text))
        .map_err(|mut errors| errors.swap_remove(0).to_string())?;
    written
        .get(resource)
        .ok_or_else(|| format!("{:?} is not a number", Excerpt::from(text)))
}

fn yields(text: &str, _: Exact) -> Result<(), String> {
    match text {
        "yield" => Ok(()),
        _ => invalid(text, "is invalid; expected: yield"),
    }
}

/// HAMi accepts what Go's `strconv.ParseBool` accepts.
fn truth(text: &str, exact: Exact) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        "1" | "t" | "T" | "TRUE" | "True" if !exact => Ok(true),
        "0" | "f" | "F" | "FALSE" | "False" if !exact => Ok(false),
        _ => invalid(text, "is not a boolean; expected: true, false"),
    }
}

fn pins(text: &str, _: Exact) -> Result<Vec<Pin>, String> {
    let pins: Result<Vec<Pin>, PinError> = text.split(',').map(|one| one.trim().parse()).collect();
    pins.map_err(|error| error.to_string())
}

fn same_device_value(text: &str, _: Exact) -> Result<bool, String> {
    match text {
        "same" => Ok(true),
        "distinct" => Ok(false),
        _ => invalid(
            text,
            "is invalid; expected: same (replicas of one GPU), distinct (one replica each of several GPUs)",
        ),
    }
}

/// A comma-separated list of our names. HAMi searches the text for the name of a device's
/// mode; its `hami-core` is our `vgpu`.
fn modes(text: &str, exact: Exact) -> Result<Vec<Mode>, String> {
    const UNKNOWN: &str = "is not a sharing mode; expected: vgpu, exclusive, timeslice, mps, mig, or several, comma-separated";
    if exact {
        let mode = |item| match item {
            "vgpu" => Ok(Mode::Vgpu),
            "exclusive" => Ok(Mode::Exclusive),
            "timeslice" => Ok(Mode::Timeslice),
            "mps" => Ok(Mode::Mps),
            "mig" => Ok(Mode::Mig),
            _ => invalid(item, UNKNOWN),
        };
        return items(text).map(mode).collect();
    }
    let known = [
        ("hami-core", Mode::Vgpu),
        ("mig", Mode::Mig),
        ("mps", Mode::Mps),
    ];
    let named: Vec<Mode> = known
        .into_iter()
        .filter(|(name, _)| text.contains(name))
        .map(|(_, mode)| mode)
        .collect();
    if named.is_empty() && !text.trim().is_empty() {
        return invalid(text, "names no sharing mode; expected: hami-core, mig, mps");
    }
    Ok(named)
}

/// `slot=1,core=1,memory=3`: each once, not all 0.
fn weights(text: &str, _: Exact) -> Result<Weights, String> {
    let refused = || {
        format!(
            "{:?} are not weights; expected: slot=N,core=N,memory=N, each a whole number of at most 1000, not all 0",
            Excerpt::from(text)
        )
    };
    let mut found = [None; 3];
    for item in text.split(',') {
        let (name, number) = item.split_once('=').ok_or_else(refused)?;
        let names = ["slot", "core", "memory"];
        let place = names.iter().position(|known| *known == name.trim());
        let number = number.trim().parse::<u32>().ok().filter(|n| *n <= 1000);
        let (place, number) = place.zip(number).ok_or_else(refused)?;
        if found[place].replace(number).is_some() {
            return Err(refused());
        }
    }
    match found {
        [Some(replicas), Some(cores), Some(memory)] if replicas + cores + memory > 0 => {
            Ok(Weights {
                replicas,
                cores,
                memory,
            })
        }
        _ => Err(refused()),
    }
}
