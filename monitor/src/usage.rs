//! What a node's GPUs and shares use now, from a snapshot of the monitor.

use std::time::{Duration, UNIX_EPOCH};

use aliquot_core::measured::{GpuUsage, NodeUsage, Peak, ShareName, ShareUsage, Used};
use aliquot_core::{Mib, Percent};
use aliquot_nvml::DeviceMemory;

use crate::exporter::Snapshot;

/// What a snapshot says, and for how long the launches of each share have waited so far, if that is
/// known: from two samples the history knows how much they are throttled.
pub fn read(snapshot: &Snapshot) -> (NodeUsage, Vec<Option<Duration>>) {
    let taken_at = snapshot.completed_at.duration_since(UNIX_EPOCH);
    let shares = snapshot.sample.shares();
    let (shares, waited) = shares
        .map(|(at, device)| share(snapshot, at, device))
        .unzip();
    let usage = NodeUsage {
        node: snapshot.node.as_str().into(),
        taken_at: taken_at.unwrap_or_default().as_secs(),
        gpus: gpus(snapshot),
        shares,
    };
    (usage, waited)
}

fn gpus(snapshot: &Snapshot) -> Vec<GpuUsage> {
    let used = |bytes: Option<DeviceMemory>| bytes.map(|bytes| Mib(bytes.used >> 20));
    let mut all = Vec::new();
    for gpu in &snapshot.gpus {
        let whole = GpuUsage {
            gpu: gpu.uuid.as_str().into(),
            memory: used(gpu.bytes),
            sm: gpu.load.busy.map(Percent),
            temperature: gpu.load.temperature,
            power: gpu.load.power.map(|milliwatts| milliwatts / 1000),
        };
        all.extend(gpu.instances.iter().map(|one| GpuUsage {
            gpu: one.uuid.as_str().into(),
            memory: used(one.bytes),
            sm: None,
            ..whole.clone()
        }));
        all.push(whole);
    }
    all
}

fn share(snapshot: &Snapshot, at: usize, device: usize) -> (ShareUsage, Option<Duration>) {
    let sample = &snapshot.sample;
    let container = &sample.containers.all[at];
    let found = snapshot.evaluation.share(at, device);
    let gpu = sample.gpu(at, device);
    let is_limited = !container.effective.uncontrolled && found.limit > 0;
    let is_reported = !found.blind && sample.is_utilization_known(gpu);
    let request = Some(sample.page(at, device).request)
        .filter(|bytes| is_limited && (1..found.limit).contains(bytes));
    let usage = ShareUsage {
        name: ShareName {
            gpu: gpu.into(),
            device: sample.device_uuid(at, device).into(),
            namespace: container.namespace.clone(),
            pod: container.pod_name.clone(),
            container: container.name.clone(),
        },
        limit: is_limited.then_some(Mib(found.limit >> 20)),
        request: request.map(|bytes| Mib(bytes >> 20)),
        used: Used {
            memory: found.is_measured().then_some(Mib(found.measured >> 20)),
            sm: is_reported.then_some(Percent(found.busy)),
            throttled: None,
            processes: (!found.blind).then_some(found.processes),
        },
        peak: Peak {
            memory: Mib(found.peak >> 20),
            sm: Percent(found.busy_peak),
        },
    };
    let waited = Duration::from_nanos(found.work.waited);
    (usage, (!found.unread).then_some(waited))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::tests::snapshot;
    use crate::testing::page;

    #[test]
    fn reports_shares_and_instances_and_nothing_unknown_as_zero() {
        let (usage, waited) = read(&snapshot(|_| (), |_| ()));
        assert_eq!((usage.node.as_str(), usage.taken_at), ("n1", 7));
        let gpus = usage.gpus.iter().map(|one| (one.gpu.as_str(), one.sm));
        let expected = [("MIG-1", None), ("GPU-a", Some(Percent(50)))];
        assert_eq!(gpus.collect::<Vec<_>>(), expected);
        let share = &usage.shares[1];
        let place = (share.name.gpu.as_str(), share.name.device.as_str());
        assert_eq!((place, &*share.name.pod), (("GPU-a", "MIG-1"), "pod-u2"));
        assert_eq!(share.limit, Some(Mib(4096)));
        let used = (share.used.memory, share.used.sm);
        assert_eq!(used, (Some(Mib(3072)), Some(Percent(0))));
        assert_eq!(share.used.processes, Some(1));
        assert_eq!(waited[1], Some(Duration::from_millis(250)));
        assert_eq!(share.request, None);

        let (lent, _) = read(&snapshot(
            |sample| sample.pages = vec![vec![page(2 << 30)], vec![page(4 << 30)]],
            |_| (),
        ));
        let requests: Vec<_> = lent.shares.iter().map(|one| one.request).collect();
        assert_eq!(requests, [Some(Mib(2048)), None]);

        let (used, _) = read(&snapshot(
            |_| (),
            |evaluation| {
                let used = &mut evaluation.uses[0][0];
                (used.peak, used.busy_peak) = (5 << 30, 60);
            },
        ));
        let peak = Peak {
            memory: Mib(5120),
            sm: Percent(60),
        };
        assert_eq!(used.shares[0].peak, peak);

        let (unknown, waited) = read(&snapshot(
            |sample| sample.uncorrected = ["GPU-a".to_owned()].into(),
            |evaluation| {
                let used = &mut evaluation.uses[0][0];
                (used.blind, used.unread) = (true, true);
            },
        ));
        assert_eq!(unknown.shares[0].used, Used::default());
        assert_eq!(waited[0], None);
    }
}
