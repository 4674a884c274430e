//! Who uses a GPU, and whether they may stay when its mode changes.

use std::sync::Arc;

use aliquot_core::inventory::{ForeignAllocation, Inventory};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::usage::{DeviceUse, DeviceUses};
use aliquot_core::{GpuUuid, PodUid};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_profiles::Mode;

use crate::gpus::allocatable::parent_gpu;
use crate::layout::transition::is_compatible;
use crate::pods::pod::{Phase, Pod};

#[derive(Clone, Debug, Default)]
pub struct DeviceUsers {
    /// Living pods with an allocation on it, accepted or only bound.
    pub pods: Vec<Arc<Pod>>,
    /// Users that are not our pods, or whose pod is gone.
    pub others: usize,
    /// What the pods use together.
    pub used: DeviceUse,
}

impl DeviceUsers {
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.others == 0
    }
}

/// What is known about all users on the node.
#[derive(Clone, Copy, Debug)]
pub struct UserSources<'a> {
    pub inventory: &'a Inventory,
    pub foreign: &'a [ForeignAllocation],
    pub pods: &'a [Arc<Pod>],
    pub shares: &'a [Arc<AcceptedAllocation>],
    /// Users whose GPUs are unknown.
    pub unclear: usize,
    /// Pods without an object that still have processes.
    pub alive: &'a std::collections::BTreeSet<PodUid>,
}

pub fn users_of(gpu: &GpuUuid, sources: UserSources<'_>) -> DeviceUsers {
    let is_here = |device: &GpuUuid| {
        let made = MigPlacement::parse_device_key(device).map(|(gpu, _)| GpuUuid::from(gpu));
        let device = made.as_ref().unwrap_or(device);
        let found = sources.inventory.gpu(device);
        device == gpu || found.is_some_and(|device| parent_gpu(device) == gpu)
    };
    let mut found = DeviceUsers::default();
    for pod in sources.pods.iter().filter(|pod| pod.phase != Phase::Ended) {
        let mut uses = uses(pod, sources.shares)
            .into_iter()
            .filter(|(device, _)| is_here(device));
        if let Some((_, first)) = uses.next() {
            found.pods.push(Arc::clone(pod));
            found.used = uses.fold(found.used.with(first), |sum, (_, used)| sum.with(used));
        }
    }
    let gone = sources
        .shares
        .iter()
        .filter(|share| sources.alive.contains(&share.pod));
    found.others += gone
        .filter(|share| share.uses().keys().any(is_here))
        .count();
    let foreign = sources.foreign.iter().filter(|f| is_here(&f.gpu));
    found.others += foreign.count() + sources.unclear;
    found
}

fn uses(pod: &Pod, shares: &[Arc<AcceptedAllocation>]) -> DeviceUses {
    if let Some(share) = shares.iter().find(|share| share.pod == pod.kubelet_uid) {
        return share.uses().clone();
    }
    pod.uses().unwrap_or_default()
}

/// Whether the users may stay while the GPU changes its mode.
pub fn may_stay(users: &DeviceUsers, from: Option<&Mode>, to: &Mode) -> bool {
    if users.is_empty() {
        return true;
    }
    let Some(from) = from else {
        // The GPU as an earlier plugin left it: in vgpu it stays closed beside that plugin's pods.
        return matches!(to, Mode::Vgpu(_));
    };
    let replicas = match to {
        // A GPU that allocated more than it now may keeps its pods and accepts no new ones.
        Mode::Vgpu(_) | Mode::Mig(_) | Mode::Unmanaged => u32::MAX,
        Mode::Exclusive(_) => 1,
        Mode::Timeslice(slices) => slices.replicas,
        Mode::Mps(mps) => mps.replicas,
    };
    from == to || is_compatible(from, to) && users.used.replicas <= replicas
}

#[cfg(test)]
mod tests {
    use aliquot_profiles::mode::{Exclusive, Scaling, Timeslice, Vgpu};

    use super::*;
    use crate::testing::{allocation, fixed_instance, grant, inventory, pod, share_of};

    fn vgpu(split: u32, scaling: &str) -> Mode {
        Mode::Vgpu(Vgpu {
            split: Some(split),
            memory_scaling: Scaling::parse(scaling),
            ..Vgpu::default()
        })
    }

    /// Two pods on GPU-a, one of them not accepted yet, one on an instance of GPU-b, and one that
    /// ended.
    fn with_sources(check: impl FnOnce(UserSources<'_>)) {
        let mut inventory = inventory(&["GPU-a", "MIG-1"]);
        inventory.gpus[1].mig = Some(fixed_instance("GPU-b", "1g.5gb"));
        let foreign = ForeignAllocation {
            gpu: "GPU-c".into(),
            pod: "default/old".to_owned(),
        };
        let given = |gpu: &str| allocation(&[("main", &[grant(gpu, 3000, 10)])]);
        let mut over = pod("over").with(&given("GPU-a"));
        over.phase = Phase::Ended;
        let pods = [
            pod("u1").with(&given("GPU-a")),
            pod("u2").with(&given("GPU-a")),
            pod("instance").with(&given("MIG-1")),
            over,
        ];
        let shares = [share_of("u1", &["GPU-a"]), share_of("left", &["GPU-d"])].map(Arc::new);
        check(UserSources {
            inventory: &inventory,
            foreign: &[foreign],
            pods: &pods.map(Arc::new),
            shares: &shares,
            unclear: 0,
            alive: &["left".into()].into(),
        });
    }

    #[test]
    fn counts_accepted_and_bound_pods_as_users() {
        with_sources(|sources| {
            let found = |gpu: &str| {
                let found = users_of(&gpu.into(), sources);
                (found.pods.len(), found.others, found.used.replicas)
            };
            assert_eq!(found("GPU-a"), (2, 0, 2));
            assert_eq!(found("GPU-b"), (1, 0, 1));
            assert_eq!(found("GPU-c"), (0, 1, 0));
            assert_eq!(found("GPU-d"), (0, 1, 0));
            assert_eq!(found("GPU-e"), (0, 0, 0));
            let unclear = UserSources {
                unclear: 1,
                ..sources
            };
            assert_eq!(users_of(&"GPU-e".into(), unclear).others, 1);
        });
    }

    #[test]
    fn keeps_only_pods_that_fit_the_same_mode() {
        with_sources(|sources| {
            let two = users_of(&"GPU-a".into(), sources);
            let check = |from: Option<Mode>, to: Mode, expected: bool| {
                let found = may_stay(&two, from.as_ref(), &to);
                assert_eq!(found, expected, "{from:?} {to:?}");
                assert!(may_stay(&DeviceUsers::default(), from.as_ref(), &to));
            };
            let exclusive = || Mode::Exclusive(Exclusive::default());
            let timeslice = |n| Mode::Timeslice(Timeslice::new(n));
            for (split, scaling) in [(2, "1"), (1, "1"), (10, "0.6"), (10, "0.5")] {
                check(Some(vgpu(10, "1")), vgpu(split, scaling), true);
            }
            check(Some(vgpu(10, "1")), exclusive(), false);
            check(Some(timeslice(10)), timeslice(2), true);
            check(Some(timeslice(10)), vgpu(10, "1"), false);
            check(None, vgpu(10, "1"), true);
            check(None, exclusive(), false);
        });
    }
}
