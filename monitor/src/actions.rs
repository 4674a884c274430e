//! Carries out the result of a sample: process lists, events, kills. Never waits for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_k8s::event::{EventNote, EventSender, PodRef, pods_text};
use aliquot_node_state::container_directory::process_list;
use aliquot_node_state::monitor_reports::write_atomically;
use aliquot_node_state::processes::{KillError, ProcessStatus, Processes};

use crate::evaluation::{Action, Evaluation, UnmanagedProcess};
use crate::lending::{GpuLending, LentShare};
use crate::managed_containers::ManagedContainer;
use crate::node_sample::NodeSample;
use crate::pods::Pods;

const MIB: u64 = 1 << 20;
/// Unmanaged processes of a pod that are reported in this time: a pod may start one after another.
const MAX_REPORTED: u32 = 10;
const REPORT_PERIOD: Duration = Duration::from_mins(10);

#[derive(Clone, Debug, Default)]
pub struct ActionCounts {
    pub killed: BTreeMap<&'static str, u64>,
    pub not_killed: u64,
    pub above: u64,
    pub call_backs: u64,
}

#[derive(Debug)]
pub struct ActionRunner {
    node: String,
    processes: Processes,
    pods: Pods,
    notes: EventSender,
    files: WrittenFiles,
    /// Since when the reported unmanaged processes of a pod count, and their number.
    reported: BTreeMap<PodUid, (Duration, u32)>,
    pub counts: ActionCounts,
}

/// The files that were written to containers' directories, by container and path.
#[derive(Debug, Default)]
struct WrittenFiles(BTreeMap<String, BTreeMap<PathBuf, Option<String>>>);

impl WrittenFiles {
    /// Writes a file unless it has this text; `None`: removes it.
    fn put(&mut self, container: &ManagedContainer, path: PathBuf, text: Option<String>) {
        let written = self.0.entry(container.id.clone()).or_default();
        if written.get(&path) == Some(&text) {
            return;
        }
        let result = match &text {
            Some(text) => write_atomically(&path, text.as_bytes()),
            None => fs::remove_file(&path),
        };
        match result {
            // There is no such file, or the directory was removed with its pod.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot write to the directory of a container");
            }
            _ => drop(written.insert(path, text)),
        }
    }
}

impl ActionRunner {
    pub fn new(node: String, processes: Processes, pods: Pods, notes: EventSender) -> Self {
        Self {
            node,
            processes,
            pods,
            notes,
            files: WrittenFiles::default(),
            reported: BTreeMap::new(),
            counts: ActionCounts::default(),
        }
    }

    /// Carries out the result of a sample. Blocks.
    pub fn carry_out(&mut self, sample: &NodeSample, evaluation: &Evaluation) {
        let containers = &sample.containers;
        let ids = containers.ids();
        self.files.0.retain(|id, _| ids.contains(id.as_str()));
        for (container, list) in containers.all.iter().zip(&evaluation.process_lists) {
            if let Some(list) = list {
                let path = container.directory.processes();
                self.files.put(container, path, Some(process_list(list)));
            }
        }
        for action in &evaluation.actions {
            self.execute(action, sample);
        }
    }

    /// Calls back lent memory as decided: notifies borrowers that asked for it, and ends others; and
    /// reports shares that are short. Blocks.
    pub fn call_back(
        &mut self,
        sample: &NodeSample,
        evaluation: &Evaluation,
        lent: &[(Vec<LentShare>, GpuLending)],
    ) {
        self.write_call_back_files(sample, lent);
        let processes = |share: (usize, usize)| {
            let all = sample.processes.iter().zip(&evaluation.shares);
            let own = all.filter(move |(_, of)| **of == Some(share));
            own.map(|(one, _)| &one.process)
        };
        for (shares, decision) in lent {
            self.counts.call_backs += u64::from(decision.begins);
            for share in decision.short.iter().map(|index| &shares[*index]) {
                let pod = pod_of(&sample.containers.all[share.at.0]);
                self.send_event(pod, "GpuMemoryUnavailable", short(sample, share));
            }
            for share in decision.notify.iter().map(|index| &shares[*index]) {
                for process in processes(share.at) {
                    let (pid, container) = (process.identity.pid, &share.container);
                    match self.processes.notify(process.identity, &process.location) {
                        Ok(()) => tracing::info!(pid, container, "asked to free lent memory"),
                        Err(KillError::Gone) => {}
                        Err(error) => tracing::warn!(pid, container, %error, "cannot send SIGUSR1"),
                    }
                }
            }
            for share in decision.end.iter().map(|index| &shares[*index]) {
                let killed = processes(share.at).map(|process| self.kill(process, "call-back"));
                if killed.fold(false, |any, one| any | one) {
                    let container = &sample.containers.all[share.at.0];
                    let text = ended(sample, share, shares);
                    self.send_event(pod_of(container), "GpuMemoryCalledBack", text);
                }
            }
        }
    }

    /// Writes to each container that asked for it what it is to free.
    fn write_call_back_files(
        &mut self,
        sample: &NodeSample,
        lent: &[(Vec<LentShare>, GpuLending)],
    ) {
        let mut texts: BTreeMap<usize, String> = BTreeMap::new();
        for (shares, decision) in lent {
            let yielding = shares
                .iter()
                .filter(|share| decision.called_back && share.yields && share.excess() > 0);
            for share in yielding {
                let (at, device) = share.at;
                let text = texts.entry(at).or_default();
                let uuid = sample.device_uuid(at, device);
                let _ = writeln!(text, "{uuid} {}", share.excess());
            }
        }
        for (at, container) in sample.containers.all.iter().enumerate() {
            let path = container.directory.call_back();
            self.files.put(container, path, texts.remove(&at));
        }
    }

    fn execute(&mut self, action: &Action, sample: &NodeSample) {
        match action {
            Action::ReportUnmanaged(process, pid) => {
                if self.may_report(process, sample.taken_at) {
                    self.report_unmanaged(process, *pid);
                }
            }
            Action::AboveLimit {
                at,
                device,
                used,
                kill,
            } => {
                self.counts.above += 1;
                let pod = pod_of(&sample.containers.all[*at]);
                let text = above(sample, *at, *device, *used);
                match kill {
                    None => self.send_event(pod, "GpuMemoryAboveLimit", text),
                    Some(process) => {
                        if self.kill(process, "oom") {
                            let text = format!("{text}: killed the process that grew");
                            self.send_event(pod, "GpuOomKilled", text);
                        }
                    }
                }
            }
        }
    }

    fn kill(&mut self, process: &ProcessStatus, why: &'static str) -> bool {
        let (pid, cgroup) = (process.identity.pid, &process.location.path);
        match self.processes.kill(process.identity, &process.location) {
            Ok(()) => {
                tracing::warn!(pid, cgroup, why, "killed a process");
                *self.counts.killed.entry(why).or_default() += 1;
                true
            }
            Err(KillError::Gone) => false,
            Err(error) => {
                tracing::warn!(pid, cgroup, why, %error, "cannot kill a process");
                self.counts.not_killed += 1;
                false
            }
        }
    }

    /// Counts a report of its pod at `now`. Those of processes in no pod are not limited.
    fn may_report(&mut self, process: &UnmanagedProcess, now: Duration) -> bool {
        let is_recent = |since: Duration| now.saturating_sub(since) < REPORT_PERIOD;
        self.reported.retain(|_, (since, _)| is_recent(*since));
        let Some(pod) = &process.pod else {
            return true;
        };
        let (_, number) = self.reported.entry(pod.clone()).or_insert((now, 0));
        *number = number.saturating_add(1);
        *number <= MAX_REPORTED
    }

    fn report_unmanaged(&self, process: &UnmanagedProcess, pid: u32) {
        let reason = process.reason.name();
        tracing::warn!(pid, gpu = process.gpu, pod = ?process.pod, reason, "unmanaged process on a GPU");
        let pod = process.pod.as_ref().and_then(|uid| self.pods.get(uid));
        let object = pod.map_or_else(|| PodRef::node(&self.node), |pod| pod.reference.clone());
        self.send_event(object, "GpuProcessUnmanaged", about(process));
    }

    /// Reports containers that started without the driver's limit, each by container and device.
    pub fn report_late_limits(&self, sample: &NodeSample, late: &[(usize, usize)]) {
        for (at, device) in late {
            let container = &sample.containers.all[*at];
            let (name, gpu) = (&container.name, &container.devices[*device].uuid);
            let text = format!(
                "container {name} started without the driver's limit of its memory on {gpu}, which is set now; until then only the library in it enforced its limit"
            );
            tracing::warn!(pod = container.pod_name, text, "late driver limit");
            self.send_event(pod_of(container), "GpuMemoryLimitLate", text);
        }
    }

    fn send_event(&self, pod: PodRef, reason: &'static str, text: String) {
        self.notes.send(EventNote {
            pod,
            warning: true,
            reason,
            action: "Monitoring",
            text,
        });
    }
}

/// As its share names it: a sample may be before the first list of pods.
fn pod_of(container: &ManagedContainer) -> PodRef {
    PodRef {
        namespace: container.namespace.clone(),
        name: container.pod_name.clone(),
        uid: container.pod.as_str().to_owned(),
    }
}

fn about(process: &UnmanagedProcess) -> String {
    let words = process.reason.describe();
    let gpu = &process.gpu;
    let used = process.bytes.map_or_else(
        || "memory that the driver does not report".to_owned(),
        |bytes| format!("{} MiB", bytes / MIB),
    );
    format!("an unmanaged process uses {used} of GPU {gpu}: {words}")
}

fn ended(sample: &NodeSample, share: &LentShare, all: &[LentShare]) -> String {
    let containers = &sample.containers.all;
    let (at, device) = share.at;
    let (container, uuid) = (&containers[at].name, &containers[at].devices[device].uuid);
    let (excess, request) = (share.excess() / MIB, share.request / MIB);
    let lacking = all.iter().filter(|one| one.lacking > 0);
    let names = lacking.map(|one| {
        let owner = &containers[one.at.0];
        (&*owner.namespace, &*owner.pod_name)
    });
    let owners: BTreeSet<_> = names.collect();
    let pods = pods_text(Some(&containers[at].namespace), owners);
    format!(
        "container {container} used {excess} MiB of {uuid} beyond its request of {request} MiB; killed its processes there, to give memory within their requests to {pods}"
    )
}

fn short(sample: &NodeSample, share: &LentShare) -> String {
    let (at, device) = share.at;
    let container = &sample.containers.all[at].name;
    let uuid = sample.device_uuid(at, device);
    let (used, request) = (share.used / MIB, share.request / MIB);
    format!(
        "container {container} uses {used} MiB of {uuid} and cannot get the {request} MiB that it requested: processes outside every share hold memory there"
    )
}

fn above(sample: &NodeSample, at: usize, device: usize, used: u64) -> String {
    let container = &sample.containers.all[at];
    let uuid = &container.devices[device].uuid;
    let limit = sample.page(at, device).limit / MIB;
    let (container, used) = (&container.name, used / MIB);
    format!("container {container} uses {used} MiB of {uuid}, its limit is {limit} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::UnmanagedReason;
    use crate::testing::{container, node_sample, share};

    /// Events of other pods wait behind them.
    #[test]
    fn pod_gets_few_events_for_many_unmanaged_processes() {
        let (notes, mut note_rx) = aliquot_k8s::event::queue();
        let (processes, pods) = (Processes::default(), Pods::default());
        let mut runner = ActionRunner::new("n1".to_owned(), processes, pods, notes);
        let mut events = |pod: Option<&str>, minute| {
            let process = UnmanagedProcess {
                gpu: "GPU-a".to_owned(),
                pod: pod.map(PodUid::from),
                reason: UnmanagedReason::NoLimiter,
                bytes: None,
            };
            let evaluation = Evaluation {
                actions: vec![Action::ReportUnmanaged(process, 7); 100],
                ..Evaluation::default()
            };
            let sample = NodeSample {
                taken_at: Duration::from_mins(minute),
                ..NodeSample::default()
            };
            runner.carry_out(&sample, &evaluation);
            std::iter::from_fn(|| note_rx.try_recv().ok()).count()
        };
        assert_eq!(events(Some("u1"), 1), 10);
        assert_eq!(events(Some("u1"), 10), 0);
        assert_eq!(events(Some("u2"), 10), 10, "another pod");
        assert_eq!(events(None, 10), 100, "of the node's owner");
        assert_eq!(events(Some("u1"), 11), 10);
    }

    /// Whoever may read the borrower's namespace reads the event.
    #[test]
    fn names_no_lacking_pod_of_another_namespace() {
        let mut all = ["u0", "u1", "u2"].map(|pod| container(pod, pod, "main", &["GPU-a"]));
        all[2].namespace = "other".to_owned();
        let shares = [share(0, 3000, 0), share(1, 0, 500), share(2, 0, 500)];
        let text = ended(&node_sample(all.into()), &shares[0], &shares);
        let pods = "default/pod-u1 and 1 pod of another namespace";
        assert!(text.contains(pods) && !text.contains("other/"), "{text}");
    }
}
