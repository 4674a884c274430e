//! What is used of each GPU and each share now, from the last sample: the answer of `GET /usage`.
//!
//! ```json
//! {"node": "n1", "taken_at": 1790000000,
//!  "gpus": [{"gpu": "GPU-…", "memory": 31000, "sm": 72, "temperature": 61, "power": 240}],
//!  "shares": [{"gpu": "GPU-…", "device": "GPU-…", "namespace": "ci", "pod": "p", "container": "main",
//!              "limit": 3000, "memory": 2100, "sm": 28, "throttled": 12}]}
//! ```
//!
//! Memory is in MiB, `sm` and `throttled` in percent, `temperature` in degrees Celsius, `power` in watts.
//! A MIG instance is an entry of `gpus` too, with temperature and power of its GPU; for a share in one,
//! `device` is the instance. `null` is what the driver does not report, never 0.

use std::time::{Duration, UNIX_EPOCH};

use aliquot_core::{Mib, Percent};
use aliquot_nvml::DeviceMemory;
use serde::Serialize;

use crate::exporter::Snapshot;

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeUsage {
    /// Its name.
    pub node: String,
    /// When the sample completed, in seconds since 1970; stays behind while the driver does not answer.
    pub taken_at: u64,
    /// GPUs and MIG instances.
    pub gpus: Vec<GpuUsage>,
    /// Each device of each container with a share.
    pub shares: Vec<ShareUsage>,
}

/// A GPU or a MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuUsage {
    /// Its uuid.
    pub gpu: String,
    /// Memory in use by anybody.
    pub memory: Option<Mib>,
    /// How much of the time a kernel ran.
    pub sm: Option<Percent>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Watts.
    pub power: Option<u32>,
}

/// Which share.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ShareName {
    /// The GPU.
    pub gpu: String,
    /// The GPU, or the MIG instance on it.
    pub device: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
}

/// A container's use of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShareUsage {
    /// Which share.
    #[serde(flatten)]
    pub name: ShareName,
    /// Memory that it may use; `None` for a container without limits.
    pub limit: Option<Mib>,
    /// Memory of its processes.
    pub memory: Option<Mib>,
    /// Compute of the GPU that they used.
    pub sm: Option<Percent>,
    /// How much of the time launches waited for the share; more than 100 where several threads wait.
    /// From two samples, so it is the history that sets it.
    pub throttled: Option<Percent>,
    /// For how long launches have waited so far.
    #[serde(skip)]
    pub waited: Duration,
}

impl NodeUsage {
    /// What a snapshot says.
    pub fn of(snapshot: &Snapshot) -> Self {
        let taken_at = snapshot.completed_at.duration_since(UNIX_EPOCH);
        let containers = 0..snapshot.sample.containers.all.len();
        let shares = containers.flat_map(|at| {
            let devices = 0..snapshot.sample.containers.all[at].devices.len();
            devices.map(move |device| share(snapshot, at, device))
        });
        Self {
            node: snapshot.node.clone(),
            taken_at: taken_at.unwrap_or_default().as_secs(),
            gpus: gpus(snapshot),
            shares: shares.collect(),
        }
    }
}

fn gpus(snapshot: &Snapshot) -> Vec<GpuUsage> {
    let used = |bytes: Option<DeviceMemory>| bytes.map(|bytes| Mib(bytes.used >> 20));
    let each = snapshot.gpus.iter().flat_map(|gpu| {
        let whole = GpuUsage {
            gpu: gpu.uuid.clone(),
            memory: used(gpu.bytes),
            sm: gpu.load.busy.map(Percent),
            temperature: gpu.load.temperature,
            power: gpu.load.power.map(|milliwatts| milliwatts / 1000),
        };
        let instances = gpu.instances.iter().map({
            let whole = whole.clone();
            move |one| GpuUsage {
                gpu: one.uuid.clone(),
                memory: used(one.bytes),
                sm: None,
                ..whole.clone()
            }
        });
        instances.chain([whole]).collect::<Vec<_>>()
    });
    each.collect()
}

fn share(snapshot: &Snapshot, at: usize, device: usize) -> ShareUsage {
    let sample = &snapshot.sample;
    let container = &sample.containers.all[at];
    let found = snapshot.evaluation.uses.get(at);
    let found = found
        .and_then(|uses| uses.get(device))
        .copied()
        .unwrap_or_default();
    let gpu = sample.gpu(at, device);
    let is_limited = !container.effective.uncontrolled && found.limit > 0;
    // As in the metrics: no value is better than one that is too low.
    let is_measured = !found.blind && found.unavailable == 0;
    let is_reported = !found.blind && !sample.uncorrected.contains(gpu);
    ShareUsage {
        name: ShareName {
            gpu: gpu.to_owned(),
            device: sample.device_uuid(at, device).to_owned(),
            namespace: container.namespace.clone(),
            pod: container.pod_name.clone(),
            container: container.name.clone(),
        },
        limit: is_limited.then_some(Mib(found.limit >> 20)),
        memory: is_measured.then_some(Mib(found.measured >> 20)),
        sm: is_reported.then_some(Percent(found.busy)),
        throttled: None,
        waited: Duration::from_nanos(found.work.waited),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::tests::snapshot;

    #[test]
    fn reports_shares_and_instances_and_nothing_unknown_as_zero() {
        let usage = NodeUsage::of(&snapshot(|_| (), |_| ()));
        assert_eq!((usage.node.as_str(), usage.taken_at), ("n1", 7));
        let gpus: Vec<_> = usage.gpus.iter().map(|one| (&*one.gpu, one.sm)).collect();
        assert_eq!(gpus, [("MIG-1", None), ("GPU-a", Some(Percent(50)))]);
        let share = &usage.shares[1];
        let place = (&*share.name.gpu, &*share.name.device, &*share.name.pod);
        assert_eq!(place, ("GPU-a", "MIG-1", "pod-u2"));
        let amounts = (share.limit, share.memory, share.sm);
        assert_eq!(
            amounts,
            (Some(Mib(4096)), Some(Mib(3072)), Some(Percent(0)))
        );
        assert_eq!(share.waited, Duration::from_millis(250));

        let unknown = NodeUsage::of(&snapshot(
            |sample| sample.uncorrected = ["GPU-a".to_owned()].into(),
            |evaluation| evaluation.uses[0][0].unavailable = 1,
        ));
        let share = &unknown.shares[0];
        assert_eq!((share.memory, share.sm), (None, None));
    }
}
