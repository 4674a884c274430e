//! Carries out what a look asks for: charges, lists of processes, events, ends, evictions.
//!
//! Fed by: [`crate::judge`]. Must not: end a process that is not where it was judged
//! ([`Processes::end`]), or wait for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_core::PodUid;
use aliquot_core::inventory::Refused;
use aliquot_k8s::event::{Note, Notes, PodRef};

use crate::cgroup::Place;
use crate::judge::{Deed, Look, Outcome, Unmanaged};
use crate::look::Looker;
use crate::once::Once;
use crate::pods::Pods;
use crate::processes::{EndError, Life, Processes};
use crate::seats::Seat;

const MIB: u64 = 1 << 20;
/// The pods that the agent is to have evicted, below its state directory.
const EVICT: &str = "evict.json";
/// They are asked for again after this: a third of the time after which the agent forgets them.
const ASKED: Duration = Duration::from_secs(20);

/// How often what was done; all only grow.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Processes ended, by why.
    pub killed: BTreeMap<&'static str, u64>,
    /// Those that could not be.
    pub spared: u64,
    /// Containers seen above their limit, by namespace of the pod, pod and container.
    pub above: u64,
    /// Pods whose eviction was asked for.
    pub evictions: u64,
}

/// Carries out.
#[derive(Debug)]
pub struct Actor {
    node: String,
    processes: Processes,
    pods: Pods,
    notes: Notes,
    evict: PathBuf,
    asked: BTreeMap<PodUid, Refused>,
    /// When the file was made to say the same; `None`: it does not, as at the start, when it may
    /// say what an earlier monitor asked for.
    written: Option<Instant>,
    lists: BTreeMap<String, String>,
    said: Once,
    /// What was done so far.
    pub done: Done,
}

impl Actor {
    /// For this node; `state` is the agent's directory.
    pub fn new(node: String, processes: Processes, pods: Pods, notes: Notes, state: &Path) -> Self {
        Self {
            node,
            processes,
            pods,
            notes,
            evict: state.join(EVICT),
            asked: BTreeMap::new(),
            written: None,
            lists: BTreeMap::new(),
            said: Once::default(),
            done: Done::default(),
        }
    }

    /// Carries out what follows from a look. Blocks.
    pub fn carry_out(&mut self, look: &Look, outcome: &Outcome, looker: &mut Looker) {
        self.said.turn();
        let seats = &look.seats.all;
        for (seat, charges) in seats.iter().zip(&outcome.charges) {
            for (device, charge) in charges.iter().enumerate() {
                if let Some(bytes) = charge
                    && let Some(page) = looker.page(seat)
                    && device < page.page().devices()
                {
                    page.set_overhead(device, *bytes);
                }
            }
        }
        for (seat, list) in seats.iter().zip(&outcome.lists) {
            if let Some(list) = list {
                self.list(seat, list);
            }
        }
        let names: BTreeSet<&String> = seats.iter().map(|seat| &seat.name).collect();
        self.lists.retain(|name, _| names.contains(name));
        for deed in &outcome.deeds {
            self.deed(deed, seats);
        }
        self.forget_gone();
        self.put_asked();
    }

    /// The container's own list of its processes, in the folder that it has read-only: id in the
    /// container, number of the device, bytes.
    fn list(&mut self, seat: &Seat, list: &[(u32, usize, u64)]) {
        let text = list
            .iter()
            .fold(String::new(), |mut text, (pid, device, bytes)| {
                let _ = writeln!(text, "{pid} {device} {bytes}");
                text
            });
        if self.lists.get(&seat.name) == Some(&text) {
            return;
        }
        match put(&seat.processes(), text.as_bytes()) {
            Ok(()) => drop(self.lists.insert(seat.name.clone(), text)),
            // The folder went with its pod.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.warn("processes not listed", &seat.name, &error),
        }
    }

    fn deed(&mut self, deed: &Deed, seats: &[Seat]) {
        match deed {
            Deed::TellStray(stray, pid) => self.tell_stray(stray, *pid),
            Deed::EndStray(life, place, stray) => {
                if self.end(*life, place, "unmanaged") {
                    let text = format!("a process was ended: {}", about(stray));
                    self.tell(stray.pod.as_ref(), "GpuProcessEnded", text);
                }
            }
            Deed::Evict(pod, stray) => self.ask_eviction(pod, stray),
            Deed::TellAbove(at, device, held) => {
                self.done.above += 1;
                let seat = &seats[*at];
                let text = above(seat, *device, *held);
                self.tell(Some(&seat.pod), "GpuMemoryAboveLimit", text);
            }
            Deed::EndGrower(life, place, at, device, held) => {
                self.done.above += 1;
                let seat = &seats[*at];
                if self.end(*life, place, "oom") {
                    let text = above(seat, *device, *held);
                    let text = format!("{text}: the process that grew last was ended");
                    self.tell(Some(&seat.pod), "GpuOomKilled", text);
                }
            }
        }
    }

    fn end(&mut self, life: Life, place: &Place, why: &'static str) -> bool {
        let (pid, cgroup) = (life.pid, &place.path);
        match self.processes.end(life, place) {
            Ok(()) => {
                tracing::warn!(pid, cgroup, why, "a process was ended");
                *self.done.killed.entry(why).or_default() += 1;
                true
            }
            Err(EndError::Gone) => false,
            Err(error) => {
                tracing::warn!(pid, cgroup, why, %error, "a process was not ended");
                self.done.spared += 1;
                false
            }
        }
    }

    fn tell_stray(&self, stray: &Unmanaged, pid: u32) {
        let reason = stray.reason.name();
        tracing::warn!(pid, card = stray.card, pod = ?stray.pod, reason, "an unmanaged process");
        self.tell(stray.pod.as_ref(), "GpuProcessUnmanaged", about(stray));
    }

    /// On the pod; on the node where there is none that is known.
    fn tell(&self, pod: Option<&PodUid>, reason: &'static str, text: String) {
        let known = pod.and_then(|uid| self.pods.get(uid));
        let pod = known.map_or_else(|| PodRef::node(&self.node), |pod| pod.named.clone());
        self.notes.send(Note {
            pod,
            warning: true,
            reason,
            action: "Monitoring",
            text,
        });
    }

    /// The agent publishes them, and the scheduler evicts.
    fn ask_eviction(&mut self, uid: &PodUid, stray: &Unmanaged) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        let refused = Refused {
            pod: pod.named.uid.as_str().into(),
            namespace: pod.named.namespace.clone(),
            name: pod.named.name.clone(),
            reason: about(stray),
        };
        if self.asked.insert(uid.clone(), refused).is_none() {
            self.done.evictions += 1;
            self.written = None;
        }
    }

    fn forget_gone(&mut self) {
        let before = self.asked.len();
        self.asked.retain(|uid, _| self.pods.get(uid).is_some());
        if self.asked.len() != before {
            self.written = None;
        }
    }

    /// Writes whom to evict until that stands there, and then again now and then while there is
    /// somebody: the agent forgets what nobody asks for any more.
    fn put_asked(&mut self) {
        let is_due = |then: Instant| !self.asked.is_empty() && then.elapsed() > ASKED;
        if self.written.is_some_and(|then| !is_due(then)) {
            return;
        }
        let asked: Vec<&Refused> = self.asked.values().collect();
        let text = serde_json::to_vec(&asked).map_err(io::Error::other);
        let put = text.and_then(|text| put(&self.evict, &text));
        match put {
            Ok(()) => self.written = Some(Instant::now()),
            Err(error) => self.warn("whom to evict is not told", "", &error),
        }
    }

    /// Says what kept a file from being written: it is tried again at every look.
    fn warn(&mut self, what: &'static str, seat: &str, error: &io::Error) {
        let error = error.to_string();
        if self.said.is_new(&format!("{what} {seat}"), &error) {
            tracing::warn!(seat, error, "{what}");
        }
    }
}

fn about(stray: &Unmanaged) -> String {
    let words = stray.reason.words();
    let (card, mib) = (&stray.card, stray.bytes / MIB);
    format!("a process holds {mib} MiB of {card}: {words}")
}

fn above(seat: &Seat, device: usize, held: u64) -> String {
    let (uuid, limit) = (&seat.devices[device].uuid, seat.devices[device].memory.0);
    let (container, held) = (&seat.container, held / MIB);
    format!("container {container} holds {held} MiB of {uuid}, its limit is {limit} MiB")
}

/// By rename: a reader sees the old or the new.
pub(crate) fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_an_earlier_monitor_wanted_gone_were_evicted_after_the_policy_had_changed() {
        let room = tempfile::tempdir().expect("tempdir");
        let file = room.path().join(EVICT);
        fs::write(&file, "[{}]").expect("written");
        let (processes, pods) = (Processes::default(), Pods::default());
        let notes = aliquot_k8s::event::queue().0;
        let mut actor = Actor::new("n1".to_owned(), processes, pods, notes, room.path());
        actor.put_asked();
        assert_eq!(fs::read_to_string(file).expect("read"), "[]");
    }

    #[test]
    fn an_eviction_that_could_not_be_written_once_was_never_written() {
        let room = tempfile::tempdir().expect("tempdir");
        let state = room.path().join("state");
        let (processes, pods) = (Processes::default(), Pods::default());
        let notes = aliquot_k8s::event::queue().0;
        let mut actor = Actor::new("n1".to_owned(), processes, pods, notes, &state);
        let refused = Refused {
            pod: "u1".into(),
            namespace: "d".to_owned(),
            name: "p".to_owned(),
            reason: "r".to_owned(),
        };
        actor.asked.insert("u1".into(), refused);
        actor.put_asked();
        assert_eq!(actor.written, None, "there is no folder");
        fs::create_dir(&state).expect("made");
        actor.put_asked();
        let file = state.join(EVICT);
        assert!(fs::read_to_string(&file).expect("read").contains("u1"));
        // It stands there, and is not written at every look.
        fs::remove_file(&file).expect("removed");
        actor.put_asked();
        assert!(!file.exists());
        actor.written = Instant::now().checked_sub(ASKED * 2);
        actor.put_asked();
        assert!(file.exists(), "asked for again");
    }
}
