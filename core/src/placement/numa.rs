//! NUMA alignment: all devices of a container, or of the whole pod, on one NUMA node where
//! the kubelet or the pod requires it.

use super::ContainerPlacer;
use crate::fit::FitTrace;
use crate::node::{Align, DeviceState};
use crate::reason::{Reason, Refusal};
use crate::request::GpuRequest;

/// A NUMA node; `None` groups the devices whose NUMA node the driver does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NumaNode(pub(super) Option<u32>);

impl ContainerPlacer<'_, '_> {
    /// The alignment that the node's kubelet and the pod require.
    pub(super) fn align(&self) -> Align {
        let own = if self.scorer.demand.rules.one_numa {
            Align::Container
        } else {
            Align::Nothing
        };
        own.max(self.scorer.node.align)
    }

    /// Refuses a device on another NUMA node than the one being tried.
    pub(super) fn off_numa_node(&self, device: &DeviceState) -> Option<Reason> {
        let numa = self.numa?;
        (NumaNode(device.numa) != numa).then_some(Reason::NumaNotFit)
    }

    /// Places the requests, aligned by container or by pod.
    pub(super) fn place_aligned(
        &mut self,
        order: &[(usize, &GpuRequest)],
        align: Align,
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let with =
            |place_request: usize, other: usize| align == Align::Pod || place_request == other;
        for (at, &(container, _)) in order.iter().enumerate() {
            let mut before = order[..at].iter();
            if before.any(|(earlier, _)| with(*earlier, container)) {
                continue;
            }
            let all = order.iter().copied();
            let group: Vec<_> = all.filter(|(other, _)| with(*other, container)).collect();
            self.place_on_one_numa_node(&group, trace)?;
        }
        Ok(())
    }

    /// Places these requests on one NUMA node, trying first the one that the first request
    /// would choose by itself. The refusal is that of the last NUMA node tried.
    fn place_on_one_numa_node(
        &mut self,
        group: &[(usize, &GpuRequest)],
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let before = self.shares.len();
        let Some((&(container, request), rest)) = group.split_first() else {
            return Ok(());
        };
        trace.container(container);
        self.place_request(container, request, trace)?;
        if rest.is_empty() {
            return Ok(());
        }
        let devices = &self.scorer.node.devices;
        let own = self.shares.get(before);
        let first = own.map(|share| NumaNode(devices[share.device].numa));
        let mut numas: Vec<NumaNode> = devices.iter().map(|device| NumaNode(device.numa)).collect();
        numas.sort_unstable_by_key(|numa| (Some(*numa) != first, *numa));
        numas.dedup();
        let mut refusal = Refusal::default();
        for numa in numas {
            self.shares.truncate(before);
            self.numa = Some(numa);
            let placed = group.iter().try_for_each(|&(container, request)| {
                trace.container(container);
                self.place_request(container, request, trace)
            });
            self.numa = None;
            match placed {
                Ok(()) => return Ok(()),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }
}
