//! What a pod uses of each device over its whole life: its effective use.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::allocation::{Allocation, Grant};
use crate::id::GpuUuid;
use crate::units::{Mib, Percent};

/// When a container runs, by Kubernetes' rules (KEP-753 for sidecars).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// A plain init container: runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: runs on until the pod ends.
    Sidecar,
    App,
}

/// One pod's use of one device.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct DeviceUse {
    /// Replicas at a time.
    pub replicas: u32,
    /// Memory at a time.
    pub memory: Mib,
    /// Compute at a time.
    pub cores: Percent,
    /// Some container has 100 % compute: no other pod may be on the device.
    pub alone: bool,
    /// Some container has 0 % compute: it uses only what is not allocated.
    pub leftover: bool,
}

impl DeviceUse {
    /// One container's share of one device.
    pub fn new(memory: Mib, cores: Percent) -> Self {
        Self {
            replicas: 1,
            memory,
            cores,
            alone: cores >= Percent::WHOLE,
            leftover: cores == Percent(0),
        }
    }

    /// Both at the same time: the sums.
    pub fn with(self, other: Self) -> Self {
        Self {
            replicas: self.replicas.saturating_add(other.replicas),
            memory: self.memory + other.memory,
            cores: self.cores + other.cores,
            alone: self.alone || other.alone,
            leftover: self.leftover || other.leftover,
        }
    }

    /// The amounts that both have.
    pub fn overlap(self, other: Self) -> Self {
        Self {
            replicas: self.replicas.min(other.replicas),
            memory: self.memory.min(other.memory),
            cores: self.cores.min(other.cores),
            alone: self.alone && other.alone,
            leftover: self.leftover && other.leftover,
        }
    }

    /// The same with less of each amount.
    pub fn less(self, other: Self) -> Self {
        Self {
            replicas: self.replicas.saturating_sub(other.replicas),
            memory: Mib(self.memory.0.saturating_sub(other.memory.0)),
            cores: Percent(self.cores.0.saturating_sub(other.cores.0)),
            ..self
        }
    }

    /// One after the other: the maxima.
    pub fn or(self, other: Self) -> Self {
        Self {
            replicas: self.replicas.max(other.replicas),
            memory: self.memory.max(other.memory),
            cores: self.cores.max(other.cores),
            alone: self.alone || other.alone,
            leftover: self.leftover || other.leftover,
        }
    }
}

/// One pod's effective use of each of its devices, by [`Grant::device_key`]. Most pods use one
/// device, for which a tree would take ten times the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUses(Box<[(GpuUuid, DeviceUse)]>);

impl DeviceUses {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, key: &GpuUuid) -> Option<&DeviceUse> {
        let place = self.0.binary_search_by(|(known, _)| known.cmp(key));
        place.ok().map(|place| &self.0[place].1)
    }

    pub fn contains_key(&self, key: &GpuUuid) -> bool {
        self.get(key).is_some()
    }

    /// Every device's key and use, by key.
    pub fn iter<'a>(&'a self) -> DeviceUsesIter<'a> {
        let pair: fn(&'a (GpuUuid, DeviceUse)) -> _ = |(key, used)| (key, used);
        self.0.iter().map(pair)
    }

    pub fn keys(&self) -> impl Iterator<Item = &GpuUuid> {
        self.0.iter().map(|(key, _)| key)
    }

    /// The larger use of each device of both.
    pub fn or(&self, other: &Self) -> Self {
        let mut both: BTreeMap<_, _> = self.clone().into_iter().collect();
        for (key, used) in other {
            let own = both.entry(key.clone()).or_insert(*used);
            *own = own.or(*used);
        }
        both.into_iter().collect()
    }

    pub fn values(&self) -> impl Iterator<Item = &DeviceUse> {
        self.0.iter().map(|(_, used)| used)
    }
}

/// Every device's key and use.
pub type DeviceUsesIter<'a> = std::iter::Map<
    std::slice::Iter<'a, (GpuUuid, DeviceUse)>,
    fn(&'a (GpuUuid, DeviceUse)) -> (&'a GpuUuid, &'a DeviceUse),
>;

impl<'a> IntoIterator for &'a DeviceUses {
    type Item = (&'a GpuUuid, &'a DeviceUse);
    type IntoIter = DeviceUsesIter<'a>;

    fn into_iter(self) -> DeviceUsesIter<'a> {
        self.iter()
    }
}

impl IntoIterator for DeviceUses {
    type Item = (GpuUuid, DeviceUse);
    type IntoIter = std::vec::IntoIter<(GpuUuid, DeviceUse)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

impl FromIterator<(GpuUuid, DeviceUse)> for DeviceUses {
    /// Of several uses of one key the last one counts.
    fn from_iter<I: IntoIterator<Item = (GpuUuid, DeviceUse)>>(uses: I) -> Self {
        let sorted: BTreeMap<_, _> = uses.into_iter().collect();
        Self(sorted.into_iter().collect())
    }
}

impl<const N: usize> From<[(GpuUuid, DeviceUse); N]> for DeviceUses {
    fn from(uses: [(GpuUuid, DeviceUse); N]) -> Self {
        uses.into_iter().collect()
    }
}

impl Serialize for DeviceUses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de> Deserialize<'de> for DeviceUses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let uses = BTreeMap::<GpuUuid, DeviceUse>::deserialize(deserializer)?;
        Ok(Self(uses.into_iter().collect()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocatedUse {
    /// Known shares; empty for a pod that uses only CPU and memory.
    Known(DeviceUses),
    /// An unreadable allocation: the whole node.
    Unreadable,
    /// An unreadable allocation of a pod that our scheduler did not admit: anybody who may write
    /// pods could have written it. It counts as the whole node while the node agent finds that
    /// the pod has device ids ([`crate::node::NodePublication::counts`]).
    Unproven,
}

impl AllocatedUse {
    pub fn nothing() -> Self {
        Self::Known(DeviceUses::new())
    }

    /// What is allocated of each device; `None` if that is unreadable.
    pub fn uses(&self) -> Option<&DeviceUses> {
        match self {
            Self::Known(uses) => Some(uses),
            Self::Unreadable | Self::Unproven => None,
        }
    }
}

/// What a pod uses over its life, from its containers' uses in pod order, by Kubernetes' own rule:
/// the larger of (each init container plus the sidecars before it) and (app containers plus
/// sidecars).
pub fn over_life<T: Copy + Default>(
    containers: impl IntoIterator<Item = (Stage, T)>,
    plus: impl Fn(T, T) -> T,
    larger: impl Fn(T, T) -> T,
) -> T {
    let (mut sidecars, mut apps, mut peak) = (T::default(), T::default(), T::default());
    for (stage, used) in containers {
        match stage {
            Stage::Init => peak = larger(peak, plus(sidecars, used)),
            Stage::Sidecar => sidecars = plus(sidecars, used),
            Stage::App => apps = plus(apps, used),
        }
    }
    larger(peak, plus(sidecars, apps))
}

/// The effective use of a pod on one device, from its containers' uses of that device in
/// pod order.
pub fn on_device(containers: impl IntoIterator<Item = (Stage, DeviceUse)>) -> DeviceUse {
    over_life(containers, DeviceUse::with, DeviceUse::or)
}

/// The effective use of an allocation, given the stage of each container in pod order. A
/// container that the pod does not have counts as an app container.
pub fn effective<'a>(
    allocation: &Allocation,
    stages: impl IntoIterator<Item = (&'a str, Stage)>,
) -> DeviceUses {
    let mut devices: BTreeMap<GpuUuid, Vec<(Stage, DeviceUse)>> = BTreeMap::new();
    let mut add = |stage, grants: &[Grant]| {
        let mut own: BTreeMap<GpuUuid, DeviceUse> = BTreeMap::new();
        for grant in grants {
            let used = own.entry(grant.device_key()).or_default();
            *used = used.with(DeviceUse {
                replicas: grant.replicas,
                ..DeviceUse::new(grant.memory, grant.cores)
            });
        }
        for (key, used) in own {
            devices.entry(key).or_default().push((stage, used));
        }
    };
    let mut known = Vec::new();
    for (name, stage) in stages {
        add(stage, allocation.grants(name).unwrap_or_default());
        known.push(name);
    }
    for (name, grants) in allocation.all() {
        if !known.contains(&name) {
            add(Stage::App, grants);
        }
    }
    let sorted = devices.into_iter();
    DeviceUses(
        sorted
            .map(|(gpu, containers)| (gpu, on_device(containers)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rule` is HAMi's, where it has one.
    fn check(
        rule: &str,
        containers: &[(Stage, u64, u32)],
        (replicas, memory, cores): (u32, u64, u32),
    ) {
        let used =
            on_device(containers.iter().map(|&(stage, memory, cores)| {
                (stage, DeviceUse::new(Mib(memory), Percent(cores)))
            }));
        assert_eq!(
            (used.replicas, used.memory, used.cores),
            (replicas, Mib(memory), Percent(cores)),
            "{containers:?} rule {rule}"
        );
    }

    #[test]
    fn follows_kubernetes_rule_for_init_containers_and_sidecars() {
        use Stage::{App, Init, Sidecar};
        check("", &[], (0, 0, 0));
        check("", &[(App, 10, 1), (App, 20, 2)], (2, 30, 3));
        check("4.10.2", &[(Init, 50, 1)], (1, 50, 1));
        let two = [(Init, 50, 5), (Init, 40, 9), (App, 20, 2)];
        check("4.10.1", &two, (1, 50, 9));
        let two = [(Init, 50, 5), (App, 20, 20), (App, 40, 1)];
        check("4.10.1", &two, (2, 60, 21));
        // Memory of one and compute of the other: the larger of each.
        check("4.10.1", &[(Init, 50, 1), (App, 20, 20)], (1, 50, 20));
        let sidecar = (Sidecar, 5, 1);
        check("", &[sidecar, (Init, 50, 5), (App, 20, 2)], (2, 55, 6));
        check("", &[(Init, 50, 5), sidecar, (App, 20, 2)], (2, 50, 5));
        check("", &[(Init, 9, 0), sidecar, (App, 20, 2)], (2, 25, 3));
    }
}
