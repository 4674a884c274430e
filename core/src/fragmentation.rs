//! How much of a node becomes useless when a pod goes there.
//!
//! Idle capacity of a device is a fragment for a typical pod that cannot use it. A node's F is the
//! sum of its fragments, averaged over the cluster's [`Typical`] pods by how common they are. The
//! policy `fragmentation` takes the node whose F grows least (fragmentation gradient descent,
//! USENIX ATC'23). A device has two sides here, memory and compute: its size is their mean,
//! weighted by how much the typical pods ask of each, and a typical pod can use it only if both
//! suffice. What a pod takes of a scarce model costs it more ([`crate::scarcity`]). Integers only;
//! the score is coarse on purpose: on the public trace a continuous one strands 2.4 points more.

use crate::inventory::Mode;
use crate::node::{DeviceState, NodeState};
use crate::typical::{Typical, TypicalPod};
use crate::units::{HostResources, Mib, Percent};
use crate::usage::DeviceUse;

/// Score `k` (51 to 99) takes a gradient of at least `THRESHOLDS[k - 51]`
/// millionths of a device: `1e6 * ln(k / (100 - k))`, rounded up. Scores below 50
/// mirror these.
pub(crate) const THRESHOLDS: [i64; 49] = [
    40_006, 80_043, 120_145, 160_343, 200_671, 241_163, 281_852, 322_774, 363_966, 405_466,
    447_313, 489_549, 532_217, 575_365, 619_040, 663_295, 708_186, 753_772, 800_120, 847_298,
    895_385, 944_462, 994_623, 1_045_969, 1_098_613, 1_152_680, 1_208_312, 1_265_667, 1_324_926,
    1_386_295, 1_450_011, 1_516_348, 1_585_628, 1_658_229, 1_734_602, 1_815_290, 1_900_959,
    1_992_431, 2_090_742, 2_197_225, 2_313_635, 2_442_348, 2_586_690, 2_751_536, 2_944_439,
    3_178_054, 3_476_099, 3_891_821, 4_595_120,
];

/// What is left of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remainder {
    memory: Mib,
    cores: Percent,
    /// It can take one more share.
    replica: bool,
    /// It has no allocation.
    empty: bool,
}

impl Remainder {
    fn new(device: &DeviceState, more: Option<&DeviceUse>) -> Self {
        let used = more.map_or(device.allocated.used, |more| {
            device.allocated.used.with(*more)
        });
        // Typical pods ask for shares; `mig::place` weighs the loss of instances.
        let open = device.closed.is_none() && device.mode != Mode::Mig;
        let replica = open && !used.alone && used.replicas < device.replicas;
        let taken = used.memory + device.withheld;
        Self {
            memory: Mib(device.scaled.0.saturating_sub(taken.0)),
            cores: Percent(device.cores.0.saturating_sub(used.cores.0)),
            replica,
            empty: device.allocated.pods == 0 && more.is_none(),
        }
    }

    fn serves(&self, pod: &TypicalPod, memory: Mib) -> bool {
        self.replica
            && self.memory >= memory
            && self.cores >= pod.cores
            && (self.cores > Percent(0) || pod.cores > Percent(0))
            && (self.empty || pod.cores < Percent::WHOLE)
    }
}

/// One device as the typical pods see it.
#[derive(Clone, Copy, Debug)]
struct DeviceView {
    /// How much of it is idle, in thousandths of a device.
    size: u64,
    /// The typical pods that it can serve, one bit each.
    serves: u64,
    /// Where its kind of device starts in [`View::requests`].
    kind: usize,
    /// What a device of its model costs, in thousandths of a device.
    price: i64,
}

/// A node's free CPU and memory as the typical pods see them, before and after a pod takes some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HostView {
    /// The typical pods for which they suffice, one bit each.
    hosted: [u64; 2],
    /// How much of the node's devices the CPU can serve, in thousandths of one; 0 while no model is
    /// scarce, since nothing depends on it then.
    reach: [i64; 2],
}

impl HostView {
    /// The view of a node from whose `free` CPU and memory a pod is about to take `taken`.
    pub(crate) fn new(
        typical: &Typical,
        node: &NodeState,
        free: HostResources,
        taken: HostResources,
    ) -> Self {
        let both = [free, free.less(taken)];
        let reach = |free: HostResources| {
            if !typical.has_scarce_models() {
                return 0;
            }
            let all = i64::try_from(node.devices.len() * 1000).unwrap_or(i64::MAX);
            let served = typical.gpus_served_by(free.cpu);
            served.map_or(all, |served| signed(served).min(all))
        };
        Self {
            hosted: both.map(|free| typical.hosted(free)),
            reach: both.map(reach),
        }
    }
}

/// A node as the typical pods see it before and after a pod takes CPU and memory.
#[derive(Debug)]
pub struct View<'a> {
    typical: &'a Typical,
    node: &'a NodeState,
    devices: Vec<DeviceView>,
    /// For each size of device on the node, the memory that each typical pod asks for.
    requests: Vec<Mib>,
    /// The weights of the sides of a device: memory, compute.
    sides: (u64, u64),
    /// For each typical pod: the number of devices that serve it, and the sum of their
    /// sizes.
    served: Vec<(u32, u64)>,
    host: HostView,
    /// The sum of the devices' sizes.
    idle: i64,
}

impl<'a> View<'a> {
    /// A view of a node from whose CPU and memory a pod is about to take `taken`.
    pub fn new(typical: &'a Typical, node: &'a NodeState, taken: HostResources) -> Self {
        let mut view = Self {
            typical,
            node,
            devices: Vec::with_capacity(node.devices.len()),
            requests: Vec::with_capacity(typical.pods().len()),
            sides: (1, 0),
            served: vec![(0, 0); typical.pods().len()],
            host: HostView::new(typical, node, node.host.free(), taken),
            idle: 0,
        };
        let mut kinds: Vec<Mib> = Vec::with_capacity(1);
        let everybody = (0..typical.pods().len()).fold(0, |bits, at| bits | 1 << at);
        let mut prices = prices(typical, node);
        for device in &node.devices {
            let known = kinds.iter().position(|kind| *kind == device.scaled);
            let kind = known.unwrap_or(kinds.len());
            if known.is_none() {
                kinds.push(device.scaled);
                let pods = typical.pods().iter();
                view.requests
                    .extend(pods.map(|pod| pod.memory_of(device.scaled)));
                if kind == 0 {
                    view.sides = view.weigh_sides(device.scaled);
                }
            }
            let mut device_view =
                view.view_of(device, None, kind * typical.pods().len(), everybody);
            device_view.price = prices.next().unwrap_or_default();
            for at in bits_of(device_view.serves) {
                let (count, size) = &mut view.served[at];
                (*count, *size) = (*count + 1, *size + device_view.size);
            }
            view.idle += signed(device_view.size);
            view.devices.push(device_view);
        }
        view
    }

    /// What all typical pods together ask of a device's memory and of its compute.
    fn weigh_sides(&self, all: Mib) -> (u64, u64) {
        let pods = self.typical.pods().iter().zip(&self.requests);
        let (memory, cores) = pods.fold((0, 0), |(memory, cores), (pod, request)| {
            let each = u64::from(pod.weight) * u64::from(pod.count);
            let asked = each * u64::from(pod.cores.0) * 10;
            (memory + each * request.0.min(all.0), cores + asked)
        });
        let memory = (memory * 1000).checked_div(all.0).unwrap_or(0);
        if memory + cores == 0 {
            (1, 0)
        } else {
            (memory, cores)
        }
    }

    /// The device with `more` on it, as the typical pods of `whom` see it.
    fn view_of(
        &self,
        device: &DeviceState,
        more: Option<&DeviceUse>,
        kind: usize,
        whom: u64,
    ) -> DeviceView {
        let left = Remainder::new(device, more);
        let memory = per_mille(left.memory.0, device.scaled.0) * self.sides.0;
        let cores = per_mille(left.cores.0.into(), device.cores.0.into()) * self.sides.1;
        let idle = (memory + cores) / (self.sides.0 + self.sides.1);
        let (pods, requests) = (self.typical.pods(), &self.requests[kind..]);
        DeviceView {
            // Idle capacity of a device that takes nothing is no loss.
            size: if device.closed.is_some() || device.mode == Mode::Mig {
                0
            } else {
                idle
            },
            serves: bits_of(whom)
                .filter(|&at| left.serves(&pods[at], requests[at]))
                .fold(0, |bits, at| bits | 1 << at),
            kind,
            price: 0,
        }
    }

    /// By how much F shrinks when the pod gets this of these devices, less what they cost if
    /// their model is scarce: in thousandths of a device times [`Typical::weight`], negative
    /// if F grows.
    pub fn gradient(&self, uses: &[(usize, DeviceUse)]) -> i64 {
        let change = |(at, used): &(usize, DeviceUse)| {
            let old = self.devices[*at];
            // A pod that could not use the device before cannot use it with more on it.
            let new = self.view_of(&self.node.devices[*at], Some(used), old.kind, old.serves);
            (old, new)
        };
        match uses {
            [one] => self.shrinks_by(&[change(one)]),
            several => self.shrinks_by(&several.iter().map(change).collect::<Vec<_>>()),
        }
    }

    fn shrinks_by(&self, changed: &[(DeviceView, DeviceView)]) -> i64 {
        let (mut idle, mut cost) = (0, 0);
        // Pods that see no change of a device or of the host lose nothing but `idle`.
        let [hosted_before, hosted_after] = self.host.hosted;
        let mut concerned = hosted_before ^ hosted_after;
        for (old, new) in changed {
            let taken = signed(old.size) - signed(new.size);
            (idle, cost) = (idle + taken, cost + taken * old.price);
            concerned |= old.serves;
        }
        if idle > 0 {
            // What the pods that need this model lose: of its devices, no more than the CPU that is
            // left could serve, but also what the CPU that this pod takes could have served.
            let [before, after] = self.host.reach;
            let lost = self.idle.min(before) - (self.idle - idle).min(after);
            cost = cost * lost / idle;
        }
        let mut gradient = (idle - cost / 1000) * signed(self.typical.weight());
        for at in bits_of(concerned) {
            let pod = &self.typical.pods()[at];
            let (mut count, mut size) = self.served[at];
            let bit = 1 << at;
            let useful = |hosted: u64, count, size| {
                let enough = hosted & bit != 0 && count >= pod.count;
                if enough { signed(size) } else { 0 }
            };
            let before = useful(hosted_before, count, size);
            for (old, new) in changed {
                if old.serves & bit != 0 {
                    (count, size) = (count - 1, size - old.size);
                }
                if new.serves & bit != 0 {
                    (count, size) = (count + 1, size + new.size);
                }
            }
            let after = useful(hosted_after, count, size);
            gradient += i64::from(pod.weight) * (after - before);
        }
        gradient
    }

    /// [`Self::gradient`] as a score from 0 to 99.
    pub fn score(&self, uses: &[(usize, DeviceUse)]) -> u32 {
        score(self.gradient(uses), self.typical.weight())
    }

    /// The used part of the node's open devices, in millionths.
    pub fn fullness(&self) -> u64 {
        let open = self
            .node
            .devices
            .iter()
            .filter(|device| device.closed.is_none())
            .count();
        let idle: u64 = self.devices.iter().map(|device| device.size).sum();
        let mean = (idle * 1000).checked_div(u64::try_from(open).unwrap_or(0));
        1_000_000 - mean.unwrap_or(0).min(1_000_000)
    }
}

/// The price of each device's model, device by device; empty if no model is scarce.
fn prices<'a>(typical: &'a Typical, node: &'a NodeState) -> impl Iterator<Item = i64> + 'a {
    let models = node.models().map(|(model, _)| model);
    let mut last = ("", 0);
    let priced = models.take_while(|_| typical.has_scarce_models());
    priced.map(move |model| {
        if model != last.0 {
            last = (model, signed(typical.price(model)));
        }
        last.1
    })
}

/// The indices of the bits that are set.
fn bits_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = usize::try_from(bits.trailing_zeros()).ok()?;
        (bits != 0).then(|| {
            bits &= bits - 1;
            at
        })
    })
}

fn per_mille(left: u64, all: u64) -> u64 {
    (left * 1000).checked_div(all).unwrap_or(0).min(1000)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// `100 * sigmoid(gradient / (1000 * weight))`, rounded down.
pub(crate) fn score(gradient: i64, weight: u64) -> u32 {
    let weight = signed(weight).max(1);
    let millionths = gradient.saturating_mul(1000);
    let steps = if millionths >= 0 {
        THRESHOLDS.partition_point(|step| step.saturating_mul(weight) <= millionths)
    } else {
        THRESHOLDS.partition_point(|step| (step - 1).saturating_mul(weight) < -millionths)
    };
    let passed = u32::try_from(steps).unwrap_or(0);
    if millionths >= 0 {
        50 + passed
    } else {
        49 - passed
    }
}
