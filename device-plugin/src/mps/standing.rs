//! What the keeper's answers mean: which daemon is down, what is new of it, whose its clients are.
//!
//! Fed by: status files, the node's pods, process lists. Must not: read anything; it is all
//! values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::GpuUuid;
use aliquot_k8s::event::Note;

use super::folder::{FolderError, Phase, Status};
use crate::metrics::Tenant;
use crate::pod::Pod;
use crate::sick;

/// A keeper that did not look for so long is gone, and its daemons with its container.
const STALE: Duration = Duration::from_secs(15);

/// A unit's daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Why it does not serve; `None`: it does.
    pub down: Option<String>,
    /// How often it was started again.
    pub restarts: u64,
    losses: u64,
    faults: u64,
    /// Process ids of its clients.
    pub clients: Vec<u32>,
}

impl Standing {
    /// By what the keeper wrote and when it last looked.
    pub fn of(
        status: Result<Option<Status>, FolderError>,
        looked: Option<SystemTime>,
        now: SystemTime,
    ) -> Self {
        let down = |why: &str| Self {
            down: Some(why.to_owned()),
            ..Self::default()
        };
        let status = match status {
            Ok(Some(status)) => status,
            Ok(None) => return down("the keeper has not answered"),
            Err(error) => return down(&error.to_string()),
        };
        let age = looked.and_then(|looked| now.duration_since(looked).ok());
        let stale = age.is_some_and(|age| age > STALE);
        let clients = status.servers.iter().flat_map(|server| &server.clients);
        Self {
            down: match status.phase {
                Phase::Down(why) => Some(why),
                Phase::Running if stale => Some("the keeper does not look at it".to_owned()),
                Phase::Running => None,
            },
            restarts: status.restarts,
            losses: status.losses,
            faults: status.faults,
            clients: clients.copied().collect(),
        }
    }
}

/// Something that happened to all clients of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// Their server is gone.
    Lost,
    /// One of them faulted.
    Fault,
}

/// What happened since the last look. A unit that was not known then has no news.
pub fn news(
    old: &BTreeMap<GpuUuid, Standing>,
    new: &BTreeMap<GpuUuid, Standing>,
) -> Vec<(GpuUuid, Blow)> {
    let mut blows = Vec::new();
    for (unit, now) in new {
        let Some(before) = old.get(unit) else {
            continue;
        };
        if now.losses > before.losses {
            blows.push((unit.clone(), Blow::Lost));
        }
        if now.faults > before.faults {
            blows.push((unit.clone(), Blow::Fault));
        }
    }
    blows
}

/// What a pod on the unit is told.
pub fn note(pod: &Pod, unit: &GpuUuid, blow: Blow) -> Note {
    let (reason, text) = match blow {
        Blow::Lost => (
            "MpsServerLost",
            format!(
                "{unit}: the MPS server of this GPU ended; programs of this pod that ran on it get errors and must start again; the daemon is started again for new ones"
            ),
        ),
        Blow::Fault => (
            "MpsSharedFault",
            format!(
                "{unit}: a program on this GPU made a fatal error; MPS shares errors, so it hit every program on this GPU, those of this pod too; they must start again"
            ),
        ),
    };
    sick::note(pod, true, reason, text)
}

/// Clients of each container, and the bytes that they hold, by the containers in which their
/// processes are. Processes of no known container are left out.
pub fn tenants(
    unit: &GpuUuid,
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
            gpu: unit.to_string(),
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

/// The container that a process is in, by its cgroups: the last part of 64 hexadecimal digits.
pub fn container_in(cgroups: &str) -> Option<&str> {
    let mut parts = cgroups.rsplit(|c: char| !c.is_ascii_hexdigit());
    parts.find(|part| part.len() == 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn status(phase: Phase, losses: u64, faults: u64) -> Status {
        Status {
            v: 1,
            phase,
            wish: None,
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

    fn standing(losses: u64, faults: u64) -> Standing {
        let now = SystemTime::now();
        Standing::of(
            Ok(Some(status(Phase::Running, losses, faults))),
            Some(now),
            now,
        )
    }

    #[test]
    fn a_daemon_serves_as_long_as_its_keeper_says_so_and_looks() {
        let now = SystemTime::now();
        let check = |phase: Option<Phase>, age: u64, expected: Option<&str>| {
            let looked = now - Duration::from_secs(age);
            let found = phase.map(|phase| status(phase, 0, 0));
            let standing = Standing::of(Ok(found), Some(looked), now);
            assert_eq!(standing.down.as_deref(), expected);
        };
        check(Some(Phase::Running), 1, None);
        check(
            Some(Phase::Running),
            16,
            Some("the keeper does not look at it"),
        );
        check(
            Some(Phase::Down("it ended".to_owned())),
            1,
            Some("it ended"),
        );
        check(None, 1, Some("the keeper has not answered"));
    }

    #[test]
    fn mps_11_each_loss_is_told_once_and_names_the_pod_and_its_gpu() {
        let unit = GpuUuid::from("GPU-a");
        let of = |standing: Standing| BTreeMap::from([(unit.clone(), standing)]);
        let check = |old: BTreeMap<_, _>, new: Standing, expected: &[Blow]| {
            let found: Vec<Blow> = news(&old, &of(new)).into_iter().map(|(_, b)| b).collect();
            assert_eq!(found, expected);
        };
        check(BTreeMap::new(), standing(3, 1), &[]);
        check(of(standing(3, 1)), standing(3, 1), &[]);
        check(of(standing(3, 1)), standing(4, 1), &[Blow::Lost]);
        check(
            of(standing(3, 1)),
            standing(4, 2),
            &[Blow::Lost, Blow::Fault],
        );
        let told = note(&testing::pod("u1"), &unit, Blow::Lost);
        assert_eq!(
            (told.pod.name.as_str(), told.reason),
            ("u1", "MpsServerLost")
        );
        assert!(told.text.contains("GPU-a") && told.text.contains("start again"));
    }

    #[test]
    fn mps_4_clients_are_counted_by_the_container_that_they_run_in() {
        let id = |digit: &str| digit.repeat(64);
        let mut pod = testing::pod("u1");
        pod.ids = BTreeMap::from([(id("a"), "main".to_owned()), (id("b"), "side".to_owned())]);
        let containers = BTreeMap::from([(1, id("a")), (2, id("a")), (3, id("b")), (4, id("c"))]);
        let clients = [(1, 10), (2, 20), (3, 5), (4, 7), (5, 9)];
        let found = tenants(
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
        assert_eq!(container_in(&cgroup), Some(id("a").as_str()));
        assert_eq!(container_in("0::/system.slice/sshd.service"), None);
    }
}
