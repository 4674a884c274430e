//! What the supervisor's status files mean: which daemon is down, what changed, and which container
//! each client belongs to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::GpuUuid;
use aliquot_k8s::event::EventNote;

use super::directory::{DaemonDirectoryError, DaemonPhase, DaemonStatus};
use crate::device_failures;
use crate::metrics::Tenant;
use crate::pod::Pod;

/// A supervisor that did not check for so long is gone, and its daemons with its container.
const STALE: Duration = Duration::from_secs(15);

/// The health of a device's daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonHealth {
    /// Why it is down; `None`: it is up.
    pub down: Option<String>,
    /// How often it was restarted.
    pub restarts: u64,
    losses: u64,
    faults: u64,
    /// Process ids of its clients.
    pub clients: Vec<u32>,
}

impl DaemonHealth {
    /// From the supervisor's status and the time of its last check.
    pub fn of(
        status: Result<Option<DaemonStatus>, DaemonDirectoryError>,
        last_checked: Option<SystemTime>,
        now: SystemTime,
    ) -> Self {
        let down = |why: &str| Self {
            down: Some(why.to_owned()),
            ..Self::default()
        };
        let status = match status {
            Ok(Some(status)) => status,
            Ok(None) => return down("the MPS supervisor (DaemonSet aliquot-mps) has not answered"),
            Err(error) => return down(&error.to_string()),
        };
        let age = last_checked.and_then(|last_checked| now.duration_since(last_checked).ok());
        let stale = age.is_some_and(|age| age > STALE);
        let clients = status.servers.iter().flat_map(|server| &server.clients);
        Self {
            down: match status.phase {
                DaemonPhase::Down(why) => Some(why),
                DaemonPhase::Running if stale => {
                    Some("the MPS supervisor (DaemonSet aliquot-mps) does not check it".to_owned())
                }
                DaemonPhase::Running => None,
            },
            restarts: status.restarts,
            losses: status.losses,
            faults: status.faults,
            clients: clients.copied().collect(),
        }
    }
}

/// A failure that affects all clients of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFailure {
    /// Their server exited.
    Lost,
    /// One of them faulted.
    Fault,
}

/// The failures since the last poll. A device that was unknown then has none.
pub fn new_failures(
    old: &BTreeMap<GpuUuid, DaemonHealth>,
    new: &BTreeMap<GpuUuid, DaemonHealth>,
) -> Vec<(GpuUuid, ClientFailure)> {
    let mut failures = Vec::new();
    for (device, now) in new {
        let Some(before) = old.get(device) else {
            continue;
        };
        if now.losses > before.losses {
            failures.push((device.clone(), ClientFailure::Lost));
        }
        if now.faults > before.faults {
            failures.push((device.clone(), ClientFailure::Fault));
        }
    }
    failures
}

/// The event on a pod on the device.
pub fn failure_event(pod: &Pod, device: &GpuUuid, failure: ClientFailure) -> EventNote {
    let (reason, text) = match failure {
        ClientFailure::Lost => (
            "MpsServerLost",
            format!(
                "the MPS server of {device} exited: programs of this pod that use it get errors and must restart; the MPS daemon is being restarted"
            ),
        ),
        ClientFailure::Fault => (
            "MpsSharedFault",
            format!(
                "a program on {device} caused a fatal GPU error: MPS shares errors, so every program on this GPU, including those of this pod, must restart"
            ),
        ),
    };
    device_failures::pod_event(pod, true, reason, text)
}

/// The number of clients of each container and the bytes that they use, by the cgroups of the
/// processes. Processes outside known containers are left out.
pub fn clients_by_container(
    device: &GpuUuid,
    clients: &[(u32, u64)],
    container_of: impl Fn(u32) -> Option<String>,
    pods: &[Arc<Pod>],
) -> BTreeMap<Tenant, (i64, i64)> {
    let mut found: BTreeMap<Tenant, (i64, i64)> = BTreeMap::new();
    for (pid, bytes) in clients {
        let Some(id) = container_of(*pid) else {
            continue;
        };
        let owner = pods.iter().find_map(|pod| Some((pod, pod.ids.get(&id)?)));
        let Some((pod, container)) = owner else {
            continue;
        };
        let tenant = Tenant {
            gpu: device.to_string(),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.clone(),
        };
        let sum = found.entry(tenant).or_default();
        sum.0 += 1;
        sum.1 = sum
            .1
            .saturating_add(i64::try_from(*bytes).unwrap_or(i64::MAX));
    }
    found
}

/// The container of a process, by its cgroups: the last part of 64 hexadecimal digits.
pub fn container_of_cgroup(cgroups: &str) -> Option<&str> {
    let mut parts = cgroups.rsplit(|c: char| !c.is_ascii_hexdigit());
    parts.find(|part| part.len() == 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn status(phase: DaemonPhase, losses: u64, faults: u64) -> DaemonStatus {
        DaemonStatus {
            v: 1,
            phase,
            spec: None,
            daemon: None,
            since: 0,
            restarts: 0,
            losses,
            faults,
            servers: Vec::new(),
            shm: None,
            one_user: false,
        }
    }

    fn daemon_health(losses: u64, faults: u64) -> DaemonHealth {
        let now = SystemTime::now();
        DaemonHealth::of(
            Ok(Some(status(DaemonPhase::Running, losses, faults))),
            Some(now),
            now,
        )
    }

    #[test]
    fn daemon_is_up_while_its_status_is_fresh() {
        let now = SystemTime::now();
        let check = |phase: Option<DaemonPhase>, age: u64, expected: Option<&str>| {
            let last_checked = now - Duration::from_secs(age);
            let found = phase.map(|phase| status(phase, 0, 0));
            let daemon_health = DaemonHealth::of(Ok(found), Some(last_checked), now);
            assert_eq!(daemon_health.down.as_deref(), expected);
        };
        check(Some(DaemonPhase::Running), 1, None);
        check(
            Some(DaemonPhase::Running),
            16,
            Some("the MPS supervisor (DaemonSet aliquot-mps) does not check it"),
        );
        check(
            Some(DaemonPhase::Down("it ended".to_owned())),
            1,
            Some("it ended"),
        );
        check(
            None,
            1,
            Some("the MPS supervisor (DaemonSet aliquot-mps) has not answered"),
        );
    }

    #[test]
    fn mps_11_reports_each_loss_once_with_pod_and_gpu() {
        let device = GpuUuid::from("GPU-a");
        let of = |daemon_health: DaemonHealth| BTreeMap::from([(device.clone(), daemon_health)]);
        let check = |old: BTreeMap<_, _>, new: DaemonHealth, expected: &[ClientFailure]| {
            let found: Vec<ClientFailure> = new_failures(&old, &of(new))
                .into_iter()
                .map(|(_, b)| b)
                .collect();
            assert_eq!(found, expected);
        };
        check(BTreeMap::new(), daemon_health(3, 1), &[]);
        check(of(daemon_health(3, 1)), daemon_health(3, 1), &[]);
        check(
            of(daemon_health(3, 1)),
            daemon_health(4, 1),
            &[ClientFailure::Lost],
        );
        check(
            of(daemon_health(3, 1)),
            daemon_health(4, 2),
            &[ClientFailure::Lost, ClientFailure::Fault],
        );
        let event = failure_event(&testing::pod("u1"), &device, ClientFailure::Lost);
        assert_eq!(
            (event.pod.name.as_str(), event.reason),
            ("u1", "MpsServerLost")
        );
        assert!(event.text.contains("GPU-a") && event.text.contains("must restart"));
    }

    #[test]
    fn mps_4_counts_clients_by_container() {
        let id = |digit: &str| digit.repeat(64);
        let mut pod = testing::pod("u1");
        pod.ids = BTreeMap::from([(id("a"), "main".to_owned()), (id("b"), "side".to_owned())]);
        let containers = BTreeMap::from([(1, id("a")), (2, id("a")), (3, id("b")), (4, id("c"))]);
        let clients = [(1, 10), (2, 20), (3, 5), (4, 7), (5, 9)];
        let found = clients_by_container(
            &"GPU-a".into(),
            &clients,
            |pid| containers.get(&pid).cloned(),
            &[Arc::new(pod)],
        );
        let found: Vec<_> = found
            .into_iter()
            .map(|(t, sums)| (t.container, sums))
            .collect();
        assert_eq!(
            found,
            [("main".to_owned(), (2, 30)), ("side".to_owned(), (1, 5))]
        );
        let cgroup = format!("0::/kubepods.slice/pod_u1/cri-containerd-{}.scope", id("a"));
        assert_eq!(container_of_cgroup(&cgroup), Some(id("a").as_str()));
        assert_eq!(container_of_cgroup("0::/system.slice/sshd.service"), None);
    }
}
