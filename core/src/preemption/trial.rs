//! A node on which pods are removed and put back to see whether another fits.

use crate::fit;
use crate::mig::Instance;
use crate::mig::published::{Mig, MigPlacement};
use crate::node::{NodeState, Sums};
use crate::preemption::{Occupant, PreemptionQuery};
use crate::refusal::Reason;
use crate::replicas::Replicas;
use crate::units::{Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse};

/// Devices that a set can distinguish.
pub(super) const MAX_DEVICES: usize = 64;

/// A pod that may be evicted, in the order of eviction.
pub(super) struct TrialPod {
    pub(super) priority: i32,
    pub(super) age: i64,
    pub(super) budgets: Vec<usize>,
    /// The previous pod with the same shares and budgets: it is evicted first.
    pub(super) twin: Option<usize>,
    /// By device index.
    uses: Vec<(usize, DeviceUse)>,
    /// On GPUs under dynamic MIG, by device index: an instance, or an unknown allocation,
    /// which closes the GPU.
    instances: Vec<(usize, Option<Instance>)>,
    replicas: Replicas,
}

/// One attempt: its devices, the evicted pods, and the pods that stay.
pub(super) struct EvictionAttempt {
    pub(super) devices: u64,
    pub(super) gone: Vec<usize>,
    pub(super) staying: Vec<bool>,
    /// The evictions that each disruption budget still allows.
    pub(super) budgets: Vec<u32>,
}

/// The node and its pods.
pub(super) struct Trial<'a> {
    query: &'a PreemptionQuery<'a>,
    /// The node without any of the pods.
    base: NodeState,
    pub(super) pods: Vec<TrialPod>,
    scratch: NodeState,
    /// The kubelet has too few replicas: every eviction helps, whatever the device.
    short_of_replicas: bool,
    /// Evaluations left.
    pub(super) steps: u64,
}

impl<'a> Trial<'a> {
    pub(super) fn new(
        query: &'a PreemptionQuery<'a>,
        base: NodeState,
        low: &[&Occupant],
        steps: u64,
    ) -> Self {
        let mut pods: Vec<TrialPod> = Vec::with_capacity(low.len());
        let mut all = base.replicas.clone();
        for occupant in low {
            let (uses, instances) = uses(&base, &occupant.allocated);
            all.requested.plus(&occupant.replicas);
            let twin = pods.iter().rposition(|pod| {
                pod.uses == uses
                    && pod.instances == instances
                    && pod.replicas == occupant.replicas
                    && pod.budgets == occupant.budgets
            });
            pods.push(TrialPod {
                priority: occupant.priority,
                age: -occupant.started,
                budgets: occupant.budgets.clone(),
                twin,
                uses,
                instances,
                replicas: occupant.replicas.clone(),
            });
        }
        Self {
            query,
            short_of_replicas: all.shortage(query.demand.replicas_by_resource()).is_some(),
            scratch: base.clone(),
            base,
            pods,
            steps,
        }
    }

    pub(super) fn devices(&self) -> usize {
        self.base.devices.len()
    }

    pub(super) fn empty_attempt(&self, devices: u64) -> EvictionAttempt {
        EvictionAttempt {
            devices,
            gone: Vec::new(),
            staying: vec![false; self.pods.len()],
            budgets: self.query.budgets.to_vec(),
        }
    }

    /// Whether evicting the pod may help on these devices.
    pub(super) fn touches(&self, pod: usize, devices: u64) -> bool {
        let pod = &self.pods[pod];
        let mut uses = pod.uses.iter();
        uses.any(|(device, _)| devices & bit(*device) != 0)
            || (self.short_of_replicas && !pod.replicas.is_empty())
    }

    /// Whether the preemptor fits on the devices of this attempt.
    pub(super) fn fits(&mut self, attempt: &EvictionAttempt) -> bool {
        self.reset(attempt.devices);
        for (number, pod) in self.pods.iter().enumerate() {
            if !attempt.gone.contains(&number) {
                for &(device, used) in &pod.uses {
                    self.scratch.devices[device].allocated.add(used);
                }
                allocate_instances(&mut self.scratch, pod, |_| true);
                self.scratch.replicas.requested.plus(&pod.replicas);
            }
        }
        self.fits_current()
    }

    /// Whether this device would do if the others of the attempt were empty.
    pub(super) fn serves(&mut self, device: usize, attempt: &EvictionAttempt) -> bool {
        self.reset(attempt.devices);
        for (number, pod) in self.pods.iter().enumerate() {
            if let (false, Some(used)) = (attempt.gone.contains(&number), use_of(pod, device)) {
                self.scratch.devices[device].allocated.add(used);
                allocate_instances(&mut self.scratch, pod, |place| place == device);
            }
        }
        self.fits_current()
    }

    /// A lower bound for the number of further pods to evict from this device: as many as
    /// suffice if the largest of each quantity go, whichever pods they belong to.
    pub(super) fn needed_on(&mut self, device: usize, attempt: &EvictionAttempt) -> usize {
        let (mut stay, mut go) = (Sums::default(), Vec::new());
        for (number, pod) in self.pods.iter().enumerate() {
            let Some(used) = use_of(pod, device).filter(|_| !attempt.gone.contains(&number)) else {
                continue;
            };
            if attempt.staying[number] {
                stay.add(used);
            } else {
                go.push(used);
            }
        }
        for ended in 0..=go.len() {
            self.reset(attempt.devices);
            let sums = &mut self.scratch.devices[device].allocated;
            if stay.pods > 0 {
                sums.used = sums.used.with(stay.used);
                sums.pods += stay.pods;
            }
            if ended < go.len() {
                sums.used = sums.used.with(remaining(&go, ended));
                sums.pods += u32::try_from(go.len() - ended).unwrap_or(u32::MAX);
            }
            if self.fits_current() {
                return ended;
            }
        }
        usize::MAX
    }

    fn reset(&mut self, devices: u64) {
        self.scratch.devices.copy_from_slice(&self.base.devices);
        self.scratch.dynamic_mig.clone_from(&self.base.dynamic_mig);
        let requested = &mut self.scratch.replicas.requested;
        requested.clone_from(&self.base.replicas.requested);
        let places = self.scratch.devices.iter_mut().enumerate();
        for (place, device) in places {
            if devices & bit(place) == 0 {
                device.closed = Some(Reason::CardCordoned);
            }
        }
    }

    fn fits_current(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        let (demand, policies) = (self.query.demand, self.query.policies);
        fit::fit(&self.scratch, demand, policies).is_ok()
    }
}

/// By device index: the uses, and the instances ([`TrialPod`]).
type PodShares = (Vec<(usize, DeviceUse)>, Vec<(usize, Option<Instance>)>);

/// An allocation by device index.
fn uses(base: &NodeState, allocated: &AllocatedUse) -> PodShares {
    let mut found = PodShares::default();
    let (Some(uses), Some(inventory)) = (allocated.uses(), &base.inventory) else {
        return found;
    };
    for (key, used) in uses {
        let instance = MigPlacement::parse_device_key(key);
        let device = instance.as_ref().map_or(key.as_str(), |(device, _)| device);
        let Some(place) = inventory
            .gpus
            .iter()
            .position(|g| g.uuid.as_str() == device)
        else {
            continue;
        };
        match found.0.iter_mut().find(|(known, _)| *known == place) {
            Some((_, sum)) => *sum = sum.with(*used),
            None => found.0.push((place, *used)),
        }
        let mig_state = inventory.gpus[place].mig.as_ref().and_then(Mig::dynamic);
        let placed = instance.as_ref().map(|(_, placed)| placed);
        found.1.extend(
            mig_state
                .map(|mig_state| (place, placed.and_then(|it| mig_state.geometry.instance(it)))),
        );
    }
    found
}

/// Allocates the pod's instances on the devices that are `here`.
fn allocate_instances(node: &mut NodeState, pod: &TrialPod, here: impl Fn(usize) -> bool) {
    for &(place, instance) in pod.instances.iter().filter(|(place, _)| here(*place)) {
        let Some(mig_state) = node
            .dynamic_mig
            .iter_mut()
            .find(|mig_state| mig_state.device == place)
        else {
            continue;
        };
        match instance {
            Some(instance) => mig_state.allocate_instance(instance),
            None => mig_state.inconsistent = true,
        }
    }
}

/// What remains of these uses without the `ended` largest of each quantity.
fn remaining(uses: &[DeviceUse], ended: usize) -> DeviceUse {
    let left = |of: fn(&DeviceUse) -> u64| {
        let mut all: Vec<u64> = uses.iter().map(of).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all[ended..].iter().sum::<u64>()
    };
    let narrow = |amount| u32::try_from(amount).unwrap_or(u32::MAX);
    DeviceUse {
        replicas: narrow(left(|u| u.replicas.into())),
        memory: Mib(left(|u| u.memory.0)),
        cores: Percent(narrow(left(|u| u.cores.0.into()))),
        alone: uses.iter().filter(|u| u.alone).count() > ended,
        leftover: false,
    }
}

fn use_of(pod: &TrialPod, device: usize) -> Option<DeviceUse> {
    let mut uses = pod.uses.iter();
    uses.find(|(place, _)| *place == device)
        .map(|(_, used)| *used)
}

/// Indices beyond 63 are in every set.
pub(super) fn bit(place: usize) -> u64 {
    if place < MAX_DEVICES {
        1 << place
    } else {
        u64::MAX
    }
}

pub(super) fn places(devices: u64, all: usize) -> impl Iterator<Item = usize> {
    (0..all).filter(move |&place| devices & bit(place) != 0)
}
