//! Executes a plan: writes it on its pod, evicts the victims, and waits until the pod is bound or
//! the plan expires. Plans of a previous leader are continued, and none is changed.

use std::collections::HashSet;

use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::preemption::record::Victim;
use aliquot_core::{Ledger, PodUid};
use aliquot_k8s::event::{EventNote, PodRef, pods_text};
use tokio::time::Instant;

use super::candidates::time_limit;
use super::{INTERVAL, Preemptor, RETRY, unix};
use crate::ledger_cache::pending_pods::PendingPod;
use crate::pod_client::{EvictionOutcome, WriteOutcome};
use crate::ticks::ticks;

impl Preemptor {
    /// Runs until the pod is bound or deleted, the plan is closed, or another replica leads. Nobody is
    /// evicted unless the watch shows the plan on the pod.
    pub(super) async fn execute(&self, uid: &PodUid, record: &PreemptionRecord, written: bool) {
        let Some(waiting) = self.cache.pending(uid) else {
            return;
        };
        if !written && !self.write(&waiting.pod, record).await {
            return;
        }
        if !written {
            self.notify_preemptor(&waiting.pod, record);
        }
        let mut evicted = HashSet::new();
        let (mut shown, mut node_known) = (written, false);
        let deadline = self.deadline(record);
        let mut ticks = ticks(INTERVAL);
        while self.leader.leads() {
            let Some(waiting) = self.cache.pending(uid) else {
                return;
            };
            let is_open = waiting.preemption.shows(record);
            if shown && !is_open {
                return;
            }
            shown = is_open;
            // After a start, the nodes may not be known yet.
            let has_node = |ledger: &Ledger| ledger.published(record.node.as_str()).is_some();
            let node_gone = node_known && !self.cache.read(has_node);
            node_known = self.cache.read(has_node);
            if node_gone || unix() >= deadline {
                let why = if node_gone {
                    "the node is gone"
                } else {
                    "the pod was not bound in time"
                };
                return self.give_up(uid, &waiting, record, &evicted, why).await;
            }
            if shown
                && let Some(why) = self
                    .evict_victims(uid, &waiting, record, &mut evicted)
                    .await
            {
                tracing::info!(
                    pod = waiting.pod.name,
                    why,
                    "preemption cancelled before the first eviction"
                );
                self.close(uid, &waiting.pod, record, None).await;
                return;
            }
            ticks.tick().await;
        }
    }

    /// Whether the watch shows this plan on its pod.
    fn is_open(&self, uid: &PodUid, record: &PreemptionRecord) -> bool {
        let pending = self.cache.pending(uid);
        pending.is_some_and(|pending| pending.preemption.shows(record))
    }

    /// Removes the plan from the pod, or writes `text` in its place. Repeats that until it is done
    /// and the watch shows it, because the plan would be taken up again before. `false` where the
    /// pod is gone, or another replica leads.
    async fn close(
        &self,
        uid: &PodUid,
        pod: &PodRef,
        record: &PreemptionRecord,
        text: Option<&str>,
    ) -> bool {
        let mut ticks = ticks(INTERVAL);
        let (mut due, mut pause) = (Instant::now(), RETRY.0);
        let mut closed = false;
        loop {
            ticks.tick().await;
            if !closed && Instant::now() >= due {
                match self.annotate(pod, text).await {
                    WriteOutcome::Written => closed = true,
                    WriteOutcome::NotWritten(error) | WriteOutcome::Unknown(error) => {
                        tracing::warn!(pod = pod.name, error, "cannot close the preemption plan");
                    }
                }
                due = Instant::now() + pause;
                pause = (pause * 2).min(RETRY.1);
            }
            if !self.leader.leads() || !self.is_open(uid, record) {
                return closed;
            }
        }
    }

    /// Writes the plan; `false` where it definitely is not written, or another replica leads. While
    /// the outcome is unknown the same plan is written again.
    async fn write(&self, pod: &PodRef, record: &PreemptionRecord) -> bool {
        let text = match record.encode() {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(pod = pod.name, %error, "cannot encode the preemption plan");
                return false;
            }
        };
        let mut ticks = ticks(INTERVAL);
        while self.leader.leads() {
            match self.annotate(pod, Some(&text)).await {
                WriteOutcome::Written => return true,
                WriteOutcome::NotWritten(error) => {
                    tracing::warn!(pod = pod.name, error, "cannot write the preemption plan");
                    self.events.send(EventNote {
                        pod: pod.clone(),
                        warning: true,
                        reason: "NotPreempting",
                        action: "Preempting",
                        text: format!(
                            "Not preempting any pod: the plan cannot be written on this pod: {error}"
                        ),
                    });
                    return false;
                }
                WriteOutcome::Unknown(error) => {
                    tracing::warn!(
                        pod = pod.name,
                        error,
                        "outcome of writing the preemption plan unknown, trying again"
                    );
                    ticks.tick().await;
                }
            }
        }
        false
    }

    /// Evicts those that remain; `Some` with the reason where a disruption budget forbids it and no
    /// victim terminates yet.
    async fn evict_victims(
        &self,
        uid: &PodUid,
        preemptor: &PendingPod,
        record: &PreemptionRecord,
        evicted: &mut HashSet<PodUid>,
    ) -> Option<String> {
        for victim in &record.victims {
            if evicted.contains(&victim.uid) {
                continue;
            }
            // An eviction takes time: the plan may have been removed meanwhile.
            if !self.leader.leads() || !self.is_open(uid, record) {
                return None;
            }
            let Some(pod) = self.evictable(victim, preemptor) else {
                evicted.insert(victim.uid.clone());
                continue;
            };
            match self.pods.evict(&pod, false).await {
                EvictionOutcome::Accepted => {
                    if evicted.is_empty() && !self.has_started(record) {
                        self.metrics.preemptions.inc();
                    }
                    evicted.insert(victim.uid.clone());
                    self.notify_victim(pod, &preemptor.pod, record);
                }
                EvictionOutcome::Gone => {
                    evicted.insert(victim.uid.clone());
                }
                EvictionOutcome::Protected(why)
                    if !self.has_started(record) && evicted.is_empty() =>
                {
                    return Some(why);
                }
                EvictionOutcome::Protected(why) | EvictionOutcome::Failed(why) => {
                    tracing::warn!(pod = pod.name, why, "cannot evict the victim yet");
                }
            }
        }
        None
    }

    /// The victim, if it runs with a lower priority than the preemptor: an annotation alone evicts
    /// nobody.
    fn evictable(&self, victim: &Victim, preemptor: &PendingPod) -> Option<PodRef> {
        let bound_pods = &self.cache.lock().bound_pods;
        let bound_pod = bound_pods.get(&victim.uid)?;
        let may = bound_pod.can_be_evicted() && bound_pod.priority < preemptor.priority;
        may.then(|| bound_pod.pod.clone())
    }

    /// A victim is terminating or has ended.
    fn has_started(&self, record: &PreemptionRecord) -> bool {
        let bound_pods = &self.cache.lock().bound_pods;
        let mut victims = record.victims.iter();
        victims.any(|victim| {
            bound_pods
                .get(&victim.uid)
                .is_none_or(|pod| pod.terminating.is_some())
        })
    }

    /// When the plan is given up, in seconds since 1970; not later than a plan of ours would be.
    fn deadline(&self, record: &PreemptionRecord) -> i64 {
        let bound_pods = &self.cache.lock().bound_pods;
        let victims = record.victims.iter();
        let graces = victims.filter_map(|victim| Some(bound_pods.get(&victim.uid)?.grace));
        let latest = match graces.max() {
            Some(grace) => unix().saturating_add_unsigned(time_limit(grace)),
            None => i64::MAX,
        };
        i64::try_from(record.until).unwrap_or(i64::MAX).min(latest)
    }

    async fn give_up(
        &self,
        uid: &PodUid,
        preemptor: &PendingPod,
        record: &PreemptionRecord,
        evicted: &HashSet<PodUid>,
        why: &str,
    ) {
        let (pod, now) = (&preemptor.pod, u64::try_from(unix()).unwrap_or(0));
        let closed = record.given_up(now);
        // Where no victim was evicted, another plan may be made at once.
        let started = !evicted.is_empty() || self.has_started(record);
        let text = if started { closed.encode().ok() } else { None };
        if !self.close(uid, pod, record, text.as_deref()).await {
            return;
        }
        let next = match text {
            Some(_) => format!("; another plan may follow in {} s", closed.until - now),
            None => String::new(),
        };
        self.events.send(EventNote {
            pod: pod.clone(),
            warning: true,
            reason: "PreemptionGivenUp",
            action: "Preempting",
            text: format!(
                "Gave up preemption: {why}; released the reservation on node {}{next}",
                record.node
            ),
        });
    }

    fn notify_preemptor(&self, pod: &PodRef, record: &PreemptionRecord) {
        let victims = record.victims.iter();
        let victims = victims.map(|victim| (&*victim.namespace, &*victim.name));
        let text = format!(
            "Evicting {} on node {} for this pod: {}",
            counted(record.victims.len()),
            record.node,
            pods_text(Some(&pod.namespace), victims)
        );
        tracing::info!(
            pod = pod.name,
            namespace = pod.namespace,
            text,
            "preempting"
        );
        self.events.send(EventNote {
            pod: pod.clone(),
            warning: false,
            reason: "Preempting",
            action: "Preempting",
            text,
        });
    }

    fn notify_victim(&self, victim: PodRef, preemptor: &PodRef, record: &PreemptionRecord) {
        let who = if preemptor.namespace == victim.namespace {
            format!("pod {}/{}", preemptor.namespace, preemptor.name)
        } else {
            "a pod of another namespace".to_owned()
        };
        let text = format!(
            "Preempted by {who} with a higher priority, for its share of a GPU on node {}",
            record.node
        );
        self.events.send(EventNote {
            pod: victim,
            warning: true,
            reason: "Preempted",
            action: "Preempting",
            text,
        });
    }
}

fn counted(pods: usize) -> String {
    match pods {
        1 => "1 pod".to_owned(),
        _ => format!("{pods} pods"),
    }
}
