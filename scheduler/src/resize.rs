//! Resizes the shares of running pods, as their annotation asks ([`aliquot_core::resize`]).
//!
//! What a resize takes is reserved in the ledger, then one PATCH writes the pod's new allocation and
//! what its node shall enforce, with the pod's resource version as precondition. The reservation ends
//! when the watch shows it, or when it is definitely not written. The node reports in its inventory
//! when it enforces the new share; only then does the pod's allocation become smaller. A share that
//! shrinks waits on the node, which knows what is in use; its deadline is here.
//!
//! Whoever may write a pod may ask as often as he likes, and each answer costs writes and events. So
//! each answer says in the pod's status from when on another request is decided.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::ResizeReport;
use aliquot_core::ledger::NotResized;
use aliquot_core::resize::{
    self, PendingResize, RESIZE_STATUS, ResizeRequest, ResizeState, ResizeStatus, Resized,
};
use aliquot_core::{Allocation, Excerpt, PodUid, Stage, hami};
use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use aliquot_k8s::view::PodView;
use aliquot_serve::fail_point;
use k8s_openapi::jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::resizes::ObservedResize;
use crate::pod_client::{DEADLINE, PodClient, WriteOutcome};
use crate::ticks::ticks;

/// Interval of checking deadlines and what could not be written.
const INTERVAL: Duration = Duration::from_millis(500);
/// Pause before a PATCH of unknown outcome is sent again, and before a pod is looked at again on which
/// nothing was written.
const RETRY: Duration = Duration::from_millis(200);
/// What a pod shows until its node reports something else.
const NOT_APPLIED: &str = "the pod's node has not applied it yet";

/// What is to be done about a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Decide(String),
    /// The node enforces it.
    Finish,
    /// Show what the node waits for.
    Explain(String),
    /// Refuse it, back to the old share.
    Return(String),
}

/// What is to be done, `now` in seconds since 1970. `report` is the node's. `interval` is the
/// shortest time between two answers that the pod itself, or its use, causes.
fn next(
    observed: &ObservedResize,
    report: Option<&ResizeReport>,
    now: u64,
    interval: Duration,
) -> Option<Action> {
    let status = observed.status.as_ref();
    let defers = status.is_some_and(|status| status.defers(now, interval));
    if let Some(request) = &observed.request
        && status.is_none_or(|status| status.request != *request)
        && !defers
    {
        return Some(Action::Decide(request.clone()));
    }
    let status = status?;
    let pending = status.pending.as_ref()?;
    let report = report.filter(|report| report.generation == status.generation);
    let refused = report.and_then(|report| report.refused.clone());
    let waits = report.and_then(|report| report.waits.clone());
    if report.is_some() && refused.is_none() && waits.is_none() {
        return Some(Action::Finish);
    }
    // One back to the old share waits as long as it takes.
    let until = pending.until?;
    if observed.request.is_none() {
        Some(Action::Return("the annotation was removed".to_owned()))
    } else if let Some(refused) = refused {
        Some(Action::Return(refused))
    } else if now >= until {
        let waits = waits.unwrap_or_else(|| status.message.clone());
        Some(Action::Return(format!("its deadline has passed: {waits}")))
    } else {
        let is_first = status.message == NOT_APPLIED;
        waits
            .filter(|waits| *waits != status.message && (is_first || !defers))
            .map(Action::Explain)
    }
}

/// Resizes pods while this replica leads.
#[derive(Clone)]
pub struct Resizer {
    cache: Arc<LedgerCache>,
    pods: PodClient,
    events: EventSender,
    leader: Leader,
    /// HAMi's annotation is written too.
    hami: bool,
    /// The shortest time between two requests of a pod that are decided.
    interval: Duration,
}

/// What is written on a pod.
struct Change {
    /// `None`: it stays.
    allocation: Option<Allocation>,
    status: ResizeStatus,
}

impl Resizer {
    /// A resizer that writes with `pods`; `hami`: HAMi's annotation of the allocation too. `interval`:
    /// the shortest time between two requests of a pod that are decided.
    pub fn new(
        cache: Arc<LedgerCache>,
        pods: PodClient,
        events: EventSender,
        leader: Leader,
        hami: bool,
        interval: Duration,
    ) -> Self {
        Self {
            cache,
            pods,
            events,
            leader,
            hami,
            interval,
        }
    }

    /// Runs until `stop`; at most one action per pod at a time.
    pub async fn run(self, stop: CancellationToken) {
        let mut actions: JoinSet<(PodUid, bool)> = JoinSet::new();
        let mut busy = HashSet::new();
        let mut paused: HashMap<PodUid, Instant> = HashMap::new();
        loop {
            let due = paused.values().min().copied();
            let due = due.unwrap_or_else(|| Instant::now() + INTERVAL);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.cache.resize_changed() => {}
                Some(Ok((uid, written))) = actions.join_next() => {
                    busy.remove(&uid);
                    // Somebody writes the pod all the time, or the watch is behind.
                    if !written {
                        paused.insert(uid, Instant::now() + RETRY);
                    }
                }
                () = tokio::time::sleep_until(due) => {}
            }
            let now = Instant::now();
            paused.retain(|_, until| *until > now);
            if !self.leader.leads() {
                continue;
            }
            let open = self.cache.lock().resizes.all();
            for (uid, observed) in open {
                if !paused.contains_key(&uid)
                    && self.next(&uid, &observed).is_some()
                    && busy.insert(uid.clone())
                {
                    let this = self.clone();
                    actions.spawn(async move {
                        let written = this.act(&uid, &observed.pod).await;
                        (uid, written)
                    });
                }
            }
        }
    }

    fn next(&self, uid: &PodUid, observed: &ObservedResize) -> Option<Action> {
        self.cache.read(|ledger| {
            let published = ledger.published(observed.node.as_str());
            let inventory = published.and_then(|published| published.inventory.as_deref());
            let mut reports = inventory.into_iter().flat_map(|known| &known.resizes);
            let report = reports.find(|report| report.pod == *uid);
            next(observed, report, unix(), self.interval)
        })
    }

    /// When another request is decided, after an answer now.
    fn turn(&self) -> Option<u64> {
        let pause = self.interval.as_secs();
        (pause > 0).then(|| unix().saturating_add(pause))
    }

    /// Does what is to be done by the pod as it is now; `false` where nothing was written.
    async fn act(&self, uid: &PodUid, reference: &PodRef) -> bool {
        let found = match self.pods.get(reference).await {
            Ok(Some(found)) if !found.is_finished() => found,
            Ok(_) => return false,
            Err(error) => {
                tracing::warn!(pod = reference.name, %error, "cannot get the pod to resize");
                return false;
            }
        };
        let node = found.node();
        let observed = node.map(|node| ObservedResize::read(&found, &node));
        let Some(Ok(Some(observed))) = observed else {
            return false;
        };
        match self.next(uid, &observed) {
            None => false,
            Some(Action::Decide(request)) => self.decide(uid, &found, &observed, request).await,
            Some(action) => match change(&observed, action, self.turn()) {
                Some(change) => self.write(&found, &observed, change).await,
                None => false,
            },
        }
    }

    /// Grants or refuses what the annotation asks for; `false` where nothing was written.
    async fn decide(
        &self,
        uid: &PodUid,
        found: &PodView,
        observed: &ObservedResize,
        request: String,
    ) -> bool {
        let generation = observed.generation() + 1;
        let resized = match self.reserve(uid, found, observed, generation, &request) {
            Ok(resized) => resized,
            // Tried again when the ledger shows the pod as it is.
            Err(None) => return false,
            Err(Some(why)) => {
                let refusal = refusal(observed, request, why, self.turn());
                return self.write(found, observed, refusal).await;
            }
        };
        fail_point::at("ResizeReserved");
        let (resized, from, deadline) = resized;
        let pending = PendingResize {
            to: resized.to,
            from,
            until: Some(unix().saturating_add(deadline)),
        };
        let status = ResizeStatus {
            v: resize::VERSION,
            generation,
            state: ResizeState::Waiting,
            message: NOT_APPLIED.to_owned(),
            request,
            pending: Some(pending),
            next: self.turn(),
        };
        let change = Change {
            allocation: Some(resized.allocation),
            status,
        };
        let written = self.write(found, observed, change).await;
        if !written {
            self.cache.end_resize(uid, generation);
        }
        written
    }

    /// Reserves what the request takes. Returns the share that the pod gets back if the node
    /// refuses it, and how long it may wait. The error is the refusal, or none where the ledger is
    /// behind.
    fn reserve(
        &self,
        uid: &PodUid,
        found: &PodView,
        observed: &ObservedResize,
        generation: u64,
        request: &str,
    ) -> Result<(Resized, Allocation, u64), Option<String>> {
        let request = ResizeRequest::parse(request).map_err(|error| Some(error.to_string()))?;
        let text = found
            .annotation(ALLOCATION)
            .ok_or_else(|| Some("the pod has no allocation".to_owned()))?;
        let allocation = Allocation::decode(text).map_err(|error| Some(error.to_string()))?;
        let pending = observed
            .status
            .as_ref()
            .and_then(|status| status.pending.as_ref());
        let from = pending.map_or_else(|| allocation.clone(), |pending| pending.from.clone());
        let stages: Vec<(String, Stage)> = found
            .stages()
            .map(|(name, stage)| (name.to_owned(), stage))
            .collect();
        let both = (&allocation, &from);
        match self
            .cache
            .reserve_resize(uid, generation, both, &request, &stages)
        {
            Ok(resized) => Ok((resized, from, request.deadline)),
            Err(NotResized::Behind) => Err(None),
            Err(NotResized::Refused(refusal)) => Err(Some(refusal.to_string())),
        }
    }

    /// Writes it; `false` where it is definitely not written.
    async fn write(&self, found: &PodView, observed: &ObservedResize, change: Change) -> bool {
        let reference = &observed.pod;
        let annotations = match self.annotations(found, &change) {
            Ok(annotations) => annotations,
            Err(error) => {
                tracing::error!(pod = reference.name, %error, "cannot encode the resize");
                return false;
            }
        };
        fail_point::at("ResizeBeforePatch");
        let version = found.resource_version().unwrap_or_default();
        let mut sent = None;
        let mut ticks = ticks(RETRY);
        while self.leader.leads() {
            ticks.tick().await;
            let repeated = sent.replace(Instant::now()).is_some();
            let patched = self
                .pods
                .annotate_version(reference, version, &annotations, repeated);
            match patched.await {
                WriteOutcome::Written => {
                    fail_point::at("ResizeAfterPatch");
                    self.notify(observed, &change.status);
                    return true;
                }
                WriteOutcome::NotWritten(why) => {
                    tracing::info!(
                        pod = reference.name,
                        why,
                        "resize not written, deciding again"
                    );
                    return false;
                }
                WriteOutcome::Unknown(error) => {
                    let pod = &reference.name;
                    tracing::warn!(pod, error, "outcome of the resize unknown, trying again");
                }
            }
        }
        match sent {
            Some(last) => self.was_written(reference, &annotations, last).await,
            None => false,
        }
    }

    /// Whether the pod has these annotations once the `last` PATCH of them is over. This replica
    /// may lead again, so what was reserved is released only then.
    async fn was_written(
        &self,
        pod: &PodRef,
        annotations: &BTreeMap<&str, String>,
        last: Instant,
    ) -> bool {
        tokio::time::sleep_until(last + DEADLINE).await;
        let mut ticks = ticks(RETRY);
        loop {
            ticks.tick().await;
            match self.pods.has_annotations(pod, annotations).await {
                Ok(written) => return written,
                Err(error) => {
                    tracing::warn!(pod = pod.name, %error, "outcome of the resize unknown, asking again");
                }
            }
        }
    }

    fn annotations(
        &self,
        found: &PodView,
        change: &Change,
    ) -> Result<BTreeMap<&'static str, String>, aliquot_core::allocation::CodecError> {
        let mut annotations = BTreeMap::from([(RESIZE_STATUS, change.status.encode()?)]);
        if let Some(allocation) = &change.allocation {
            annotations.insert(ALLOCATION, allocation.encode()?);
            if self.hami {
                let containers = found.stages().map(|(name, _)| name);
                annotations.insert(hami::ALLOCATED, hami::encode(allocation, containers));
            }
        }
        Ok(annotations)
    }

    /// An event on the pod, where it has anything new to read.
    fn notify(&self, observed: &ObservedResize, status: &ResizeStatus) {
        let text =
            |status: &ResizeStatus| (status.state, status.message.clone(), status.request.clone());
        let shown = observed.status.as_ref().map(text);
        if status.message == NOT_APPLIED || shown == Some(text(status)) {
            return;
        }
        let pod = observed.pod.clone();
        let (warning, reason, text) = match status.state {
            ResizeState::Applied => (
                false,
                "Resized",
                format!("Resized: {}", Excerpt::from(status.request.as_str())),
            ),
            ResizeState::Waiting => (
                false,
                "ResizeWaiting",
                format!("Waiting: {}", status.message),
            ),
            ResizeState::Refused => (
                true,
                "ResizeRefused",
                format!("Refused: {}", status.message),
            ),
        };
        tracing::info!(pod = pod.name, namespace = pod.namespace, text, "resize");
        self.events.send(EventNote {
            pod,
            warning,
            reason,
            action: "Resizing",
            text,
        });
    }
}

/// A refusal: of a request that took the place of another, back to the share before both.
fn refusal(
    observed: &ObservedResize,
    request: String,
    message: String,
    next: Option<u64>,
) -> Change {
    let pending = observed
        .status
        .as_ref()
        .and_then(|status| status.pending.as_ref());
    let back = pending.map(|pending| PendingResize {
        to: pending.from.clone(),
        from: pending.from.clone(),
        until: None,
    });
    let status = ResizeStatus {
        v: resize::VERSION,
        generation: observed.generation() + u64::from(back.is_some()),
        state: ResizeState::Refused,
        message,
        request,
        pending: back,
        next,
    };
    Change {
        allocation: None,
        status,
    }
}

/// What an action other than a decision writes. After a changed explanation, requests wait until
/// `turn`.
fn change(observed: &ObservedResize, action: Action, turn: Option<u64>) -> Option<Change> {
    let status = observed.status.clone()?;
    match action {
        Action::Decide(_) => None,
        Action::Return(why) => Some(refusal(observed, status.request, why, status.next)),
        Action::Explain(message) => Some(Change {
            allocation: None,
            status: ResizeStatus {
                message,
                next: turn,
                ..status
            },
        }),
        Action::Finish => {
            let applied = status.state == ResizeState::Waiting;
            let state = if applied {
                ResizeState::Applied
            } else {
                status.state
            };
            let message = if applied {
                String::new()
            } else {
                status.message
            };
            Some(Change {
                allocation: Some(status.pending?.to),
                status: ResizeStatus {
                    state,
                    message,
                    pending: None,
                    ..status
                },
            })
        }
    }
}

/// Seconds since 1970.
fn unix() -> u64 {
    Timestamp::now().as_second().unsigned_abs()
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
