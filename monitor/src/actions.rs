//! Carries out the result of a sample: charges, process lists, events, kills, eviction requests. Never
//! waits for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_core::PodUid;
use aliquot_core::inventory::RefusedPod;
use aliquot_k8s::event::{EventNote, EventSender, PodRef};

use crate::cgroup::ProcessLocation;
use crate::evaluation::{Action, Evaluation, ListedProcess, NodeSample, UnmanagedProcess};
use crate::log_rate_limit::LogRateLimit;
use crate::managed_containers::ManagedContainer;
use crate::pods::Pods;
use crate::processes::{KillError, ProcessIdentity, Processes};
use crate::sampler::Sampler;

const MIB: u64 = 1 << 20;
/// The file of eviction requests to the agent, below its state directory.
const EVICT: &str = "evict.json";
/// Requests are renewed after this, a third of the time after which the agent drops them.
const EVICTION_RENEWAL: Duration = Duration::from_secs(20);

/// Counters of what was done.
#[derive(Clone, Debug, Default)]
pub struct ActionCounts {
    /// Killed processes, by reason.
    pub killed: BTreeMap<&'static str, u64>,
    /// Processes that could not be killed.
    pub not_killed: u64,
    /// Times that a container was above its limit.
    pub above: u64,
    /// Pods whose eviction was requested.
    pub evictions: u64,
}

/// Carries out actions.
#[derive(Debug)]
pub struct ActionRunner {
    node: String,
    processes: Processes,
    pods: Pods,
    notes: EventSender,
    evict: PathBuf,
    evictions_requested: BTreeMap<PodUid, RefusedPod>,
    /// When the file was last written; `None` if it is out of date, as at the start, when it may have
    /// the requests of an earlier monitor.
    written: Option<Instant>,
    process_lists: BTreeMap<String, String>,
    log_limit: LogRateLimit,
    /// What was done so far.
    pub counts: ActionCounts,
}

impl ActionRunner {
    /// For this node; `state` is the agent's state directory.
    pub fn new(
        node: String,
        processes: Processes,
        pods: Pods,
        notes: EventSender,
        state: &Path,
    ) -> Self {
        Self {
            node,
            processes,
            pods,
            notes,
            evict: state.join(EVICT),
            evictions_requested: BTreeMap::new(),
            written: None,
            process_lists: BTreeMap::new(),
            log_limit: LogRateLimit::default(),
            counts: ActionCounts::default(),
        }
    }

    /// Carries out the result of a sample. Blocks.
    pub fn carry_out(
        &mut self,
        sample: &NodeSample,
        evaluation: &Evaluation,
        sampler: &mut Sampler,
    ) {
        self.log_limit.begin_sample();
        let containers = &sample.containers.all;
        for (container, charges) in containers.iter().zip(&evaluation.charges) {
            for (device, charge) in charges.iter().enumerate() {
                if let Some(bytes) = charge
                    && let Some(page) = sampler.page(container)
                    && device < page.page().devices()
                {
                    page.set_overhead(device, *bytes);
                }
            }
        }
        for (container, list) in containers.iter().zip(&evaluation.process_lists) {
            if let Some(list) = list {
                self.write_process_list(container, list);
            }
        }
        let names: BTreeSet<&String> = containers.iter().map(|container| &container.id).collect();
        self.process_lists.retain(|name, _| names.contains(name));
        for action in &evaluation.actions {
            self.execute(action, containers);
        }
        self.forget_gone();
        self.write_evictions();
    }

    /// Writes the container's list of its processes, in the directory that it has read-only: pid in the
    /// container, index of the device, bytes or `unknown`.
    fn write_process_list(&mut self, container: &ManagedContainer, list: &[ListedProcess]) {
        let text = list
            .iter()
            .fold(String::new(), |mut text, (pid, device, bytes)| {
                let bytes = bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
                let _ = writeln!(text, "{pid} {device} {bytes}");
                text
            });
        if self.process_lists.get(&container.id) == Some(&text) {
            return;
        }
        match write_atomically(&container.processes(), text.as_bytes()) {
            Ok(()) => drop(self.process_lists.insert(container.id.clone(), text)),
            // The directory was removed with its pod.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                self.warn_once("cannot write the list of processes", &container.id, &error);
            }
        }
    }

    fn execute(&mut self, action: &Action, containers: &[ManagedContainer]) {
        match action {
            Action::ReportUnmanaged(process, pid) => self.report_unmanaged(process, *pid),
            Action::KillUnmanaged(identity, location, process) => {
                if self.kill(*identity, location, "unmanaged") {
                    let text = format!("killed a process: {}", about(process));
                    self.send_event(process.pod.as_ref(), "GpuProcessEnded", text);
                }
            }
            Action::Evict(pod, process) => self.request_eviction(pod, process),
            Action::ReportAboveLimit(at, device, used) => {
                self.counts.above += 1;
                let container = &containers[*at];
                let text = above(container, *device, *used);
                self.send_event(Some(&container.pod), "GpuMemoryAboveLimit", text);
            }
            Action::KillOverLimit(identity, location, at, device, used) => {
                self.counts.above += 1;
                let container = &containers[*at];
                if self.kill(*identity, location, "oom") {
                    let text = above(container, *device, *used);
                    let text = format!("{text}: killed the process that grew");
                    self.send_event(Some(&container.pod), "GpuOomKilled", text);
                }
            }
        }
    }

    fn kill(
        &mut self,
        identity: ProcessIdentity,
        location: &ProcessLocation,
        why: &'static str,
    ) -> bool {
        let (pid, cgroup) = (identity.pid, &location.path);
        match self.processes.kill(identity, location) {
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

    fn report_unmanaged(&self, process: &UnmanagedProcess, pid: u32) {
        let reason = process.reason.name();
        tracing::warn!(pid, gpu = process.gpu, pod = ?process.pod, reason, "unmanaged process on a GPU");
        self.send_event(process.pod.as_ref(), "GpuProcessUnmanaged", about(process));
    }

    /// Sends a warning event on the pod, or on the node if the pod is not known.
    fn send_event(&self, pod: Option<&PodUid>, reason: &'static str, text: String) {
        let known = pod.and_then(|uid| self.pods.get(uid));
        let pod = known.map_or_else(|| PodRef::node(&self.node), |pod| pod.reference.clone());
        self.notes.send(EventNote {
            pod,
            warning: true,
            reason,
            action: "Monitoring",
            text,
        });
    }

    /// Requests an eviction: the agent publishes it, and the scheduler evicts the pod.
    fn request_eviction(&mut self, uid: &PodUid, process: &UnmanagedProcess) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        let refused = RefusedPod {
            pod: pod.reference.uid.as_str().into(),
            namespace: pod.reference.namespace.clone(),
            name: pod.reference.name.clone(),
            reason: about(process),
        };
        if self
            .evictions_requested
            .insert(uid.clone(), refused)
            .is_none()
        {
            self.counts.evictions += 1;
            self.written = None;
        }
    }

    fn forget_gone(&mut self) {
        let before = self.evictions_requested.len();
        self.evictions_requested
            .retain(|uid, _| self.pods.get(uid).is_some());
        if self.evictions_requested.len() != before {
            self.written = None;
        }
    }

    /// Writes the eviction requests if they changed, and renews them while there are any: the agent
    /// drops requests that are not renewed.
    fn write_evictions(&mut self) {
        let is_due = |then: Instant| {
            !self.evictions_requested.is_empty() && then.elapsed() > EVICTION_RENEWAL
        };
        if self.written.is_some_and(|then| !is_due(then)) {
            return;
        }
        let evictions_requested: Vec<&RefusedPod> = self.evictions_requested.values().collect();
        let text = serde_json::to_vec(&evictions_requested).map_err(io::Error::other);
        let written = text.and_then(|text| write_atomically(&self.evict, &text));
        match written {
            Ok(()) => self.written = Some(Instant::now()),
            Err(error) => self.warn_once("cannot write the eviction requests", "", &error),
        }
    }

    /// Logs why a file cannot be written, rate-limited: each sample retries.
    fn warn_once(&mut self, what: &'static str, container: &str, error: &io::Error) {
        let error = error.to_string();
        if self
            .log_limit
            .should_log(&format!("{what} {container}"), &error)
        {
            tracing::warn!(container, error, "{what}");
        }
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

fn above(container: &ManagedContainer, device: usize, used: u64) -> String {
    let (uuid, limit) = (
        &container.devices[device].uuid,
        container.devices[device].memory.0,
    );
    let (container, used) = (&container.name, used / MIB);
    format!("container {container} uses {used} MiB of {uuid}, its limit is {limit} MiB")
}

/// Writes by rename: a reader sees the old or the new content.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_eviction_requests_of_earlier_monitor() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join(EVICT);
        fs::write(&file, "[{}]").expect("written");
        let (processes, pods) = (Processes::default(), Pods::default());
        let notes = aliquot_k8s::event::queue().0;
        let mut actor = ActionRunner::new("n1".to_owned(), processes, pods, notes, dir.path());
        actor.write_evictions();
        assert_eq!(fs::read_to_string(file).expect("read"), "[]");
    }

    #[test]
    fn retries_writing_eviction_requests() {
        let dir = tempfile::tempdir().expect("tempdir");
        let state = dir.path().join("state");
        let (processes, pods) = (Processes::default(), Pods::default());
        let notes = aliquot_k8s::event::queue().0;
        let mut actor = ActionRunner::new("n1".to_owned(), processes, pods, notes, &state);
        let refused = RefusedPod {
            pod: "u1".into(),
            namespace: "d".to_owned(),
            name: "p".to_owned(),
            reason: "r".to_owned(),
        };
        actor.evictions_requested.insert("u1".into(), refused);
        actor.write_evictions();
        assert_eq!(actor.written, None, "there is no folder");
        fs::create_dir(&state).expect("made");
        actor.write_evictions();
        let file = state.join(EVICT);
        assert!(fs::read_to_string(&file).expect("read").contains("u1"));
        // The file is up to date, and not written in every sample.
        fs::remove_file(&file).expect("removed");
        actor.write_evictions();
        assert!(!file.exists());
        actor.written = Instant::now().checked_sub(EVICTION_RENEWAL * 2);
        actor.write_evictions();
        assert!(file.exists(), "asked for again");
    }
}
