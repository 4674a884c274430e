//! Who uses a GPU, and whether its mode may change.

use std::sync::Arc;

use aliquot_core::inventory::{ForeignAllocation, Inventory};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::usage::DeviceUses;
use aliquot_core::{GpuUuid, PodUid};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_profiles::Mode;

use crate::gpus::allocatable::parent_gpu;
use crate::pods::pod::{Phase, Pod};

#[derive(Clone, Debug, Default)]
pub struct DeviceUsers {
    /// Living pods with an allocation on it, accepted or only bound.
    pub pods: Vec<Arc<Pod>>,
    /// Users that are not our pods, or whose pod is gone or has ended.
    pub others: usize,
}

impl DeviceUsers {
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.others == 0
    }

    /// Whether a GPU in this mode may change to another one. As an earlier plugin left it, it
    /// becomes vgpu beside that plugin's pods, and stays closed.
    pub fn allow_change(&self, from: Option<&Mode>, to: &Mode) -> bool {
        self.is_empty() || from.is_none() && matches!(to, Mode::Vgpu(_))
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
    /// Pods that are gone or have ended, and still have processes.
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
        if uses(pod, sources.shares).keys().any(is_here) {
            found.pods.push(Arc::clone(pod));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::transition::tests::{exclusive, vgpu};
    use crate::testing::{allocation, fixed_instance, grant, inventory, pod, share_of};

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
        let shares = [("u1", "GPU-a"), ("left", "GPU-d"), ("over", "GPU-a")];
        let shares = shares.map(|(uid, gpu)| Arc::new(share_of(uid, &[gpu])));
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
                (found.pods.len(), found.others)
            };
            assert_eq!(found("GPU-a"), (2, 0));
            assert_eq!(found("GPU-b"), (1, 0));
            assert_eq!(found("GPU-c"), (0, 1));
            assert_eq!(found("GPU-d"), (0, 1));
            assert_eq!(found("GPU-e"), (0, 0));
            let unclear = UserSources {
                unclear: 1,
                ..sources
            };
            assert_eq!(users_of(&"GPU-e".into(), unclear).others, 1);
            let left_of_ended = UserSources {
                alive: &["over".into()].into(),
                ..sources
            };
            let found = users_of(&"GPU-a".into(), left_of_ended);
            assert_eq!((found.pods.len(), found.others), (2, 1));
        });
    }

    #[test]
    fn changes_only_gpu_without_users() {
        with_sources(|sources| {
            let two = users_of(&"GPU-a".into(), sources);
            for (from, to, expected) in [
                (Some(vgpu(10)), exclusive(), false),
                (Some(exclusive()), vgpu(10), false),
                (None, exclusive(), false),
                (None, vgpu(10), true),
            ] {
                let found = two.allow_change(from.as_ref(), &to);
                assert_eq!(found, expected, "{from:?} {to:?}");
                assert!(DeviceUsers::default().allow_change(from.as_ref(), &to));
            }
        });
    }
}
