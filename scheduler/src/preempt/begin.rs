//! A plan from the books to the point where it may be written: chosen, held, and
//! every eviction tried with dryRun.
//!
//! Fed by: [`super::Preemptor::run`]. Must not: change anything in the API server.

use std::collections::{HashMap, HashSet};

use aliquot_core::PodUid;
use aliquot_core::preemption::{NoPlan, Record};
use aliquot_k8s::event::{Note, PodRef};
use tokio::time::Instant;

use super::view::Apart;
use super::{AGAIN, Following, Preemptor, Since, unix};
use crate::eviction::{self, Evicted};
use crate::waiting::Waiting;

/// Plans tried in one go; each finds a pod that the API server protects.
const TRIES: usize = 8;

impl Preemptor {
    /// A plan that is held and would be allowed.
    pub(super) async fn begin(
        &self,
        uid: &PodUid,
        waiting: &Waiting,
        following: &Following,
    ) -> Result<Record, NoPlan> {
        let mut protected = HashSet::new();
        for _ in 0..TRIES {
            let records: Vec<_> = following.lock().values().cloned().collect();
            let (me, id, waits) = (self.clone(), uid.clone(), waiting.clone());
            let spared = protected.clone();
            // The search may take a second.
            let planned = tokio::task::spawn_blocking(move || {
                let victims = records.iter().flat_map(|record| &record.victims);
                let apart = Apart {
                    ending: victims.map(|victim| &victim.uid).collect(),
                    protected: spared,
                };
                let now = unix();
                let plan = me.books.plan(&id, &waits, &apart, now)?;
                me.books.hold_for(&id, &waits, &plan, &apart, now)
            });
            let planned = planned.await.unwrap_or(Err(NoPlan::NoNode))?;
            // The books changed meanwhile: look again.
            let Some(record) = planned else { continue };
            match self.try_evictions(&record).await {
                Ok(()) => return Ok(record),
                Err(Some(pod)) => {
                    self.books.unhold_unwritten(uid);
                    protected.insert(pod);
                }
                Err(None) => {
                    self.books.unhold_unwritten(uid);
                    return Err(NoPlan::Ending);
                }
            }
        }
        Err(NoPlan::Budgets)
    }

    /// Tries all evictions; which victim is protected, or that it is not known.
    async fn try_evictions(&self, record: &Record) -> Result<(), Option<PodUid>> {
        for victim in &record.victims {
            let pod = PodRef {
                namespace: victim.namespace.clone(),
                name: victim.name.clone(),
                uid: victim.uid.to_string(),
            };
            match eviction::evict(&self.client, &pod, true).await {
                Evicted::Ends | Evicted::Gone => {}
                Evicted::Protected(why) => {
                    tracing::info!(pod = pod.name, why, "may not be preempted");
                    return Err(Some(victim.uid.clone()));
                }
                Evicted::Failed(error) => {
                    tracing::warn!(pod = pod.name, error, "eviction cannot be tried");
                    return Err(None);
                }
            }
        }
        Ok(())
    }

    /// No plan: says why, once, and when it is looked again.
    pub(super) fn later(
        &self,
        uid: &PodUid,
        waiting: &Waiting,
        why: NoPlan,
        since: &mut HashMap<PodUid, Since>,
    ) {
        let Some(since) = since.get_mut(uid) else {
            return;
        };
        since.due = Instant::now() + since.pause;
        if matches!(why, NoPlan::Ending | NoPlan::Fits) {
            return;
        }
        since.pause = (since.pause * 2).min(AGAIN.1);
        if since.told.replace(why) != Some(why) {
            tracing::info!(pod = waiting.pod.name, why = why.text(), "no preemption");
            self.notes.send(Note {
                pod: waiting.pod.clone(),
                warning: false,
                reason: "NotPreempting",
                action: "Preempting",
                text: format!("no pod ends for it: {}", why.text()),
            });
        }
    }
}
