//! A plan from its writing to its end: written, victims evicted, pod bound or not.
//!
//! Fed by: [`super::Preemptor::run`], with plans of its own and with those that a
//! leader before it wrote. Must not: change the plan.

use std::collections::HashSet;

use aliquot_core::PodUid;
use aliquot_core::preemption::Record;
use aliquot_core::preemption::record::{State, Victim};
use aliquot_k8s::event::{Note, PodRef};

use super::view::limit;
use super::{Annotated, EVERY, Preemptor, unix};
use crate::eviction::{self, Evicted};
use crate::waiting::{Noted, Waiting};

/// Looks for the end of a plan in the watch.
const SHOWN: u32 = 15;

/// What a round of evictions came to.
enum Round {
    /// All have ended or will, or it is to be tried again.
    Goes,
    /// A budget stands in the way, and nobody has ended for it yet.
    Stopped(String),
}

impl Preemptor {
    /// Until the pod is bound or gone, the plan is over, or another leads.
    pub(super) async fn follow(&self, uid: &PodUid, record: &Record, written: bool) {
        let Some(waiting) = self.books.waiting(uid) else {
            return;
        };
        if !written && !self.write(&waiting.pod, record).await {
            return;
        }
        if !written {
            self.tell_preemptor(&waiting.pod, record);
        }
        let mut asked = HashSet::new();
        let mut shown = written;
        let until = self.until(record);
        let mut ticks = tokio::time::interval(EVERY);
        while self.leader.fault().is_none() {
            let Some(waiting) = self.books.waiting(uid) else {
                return;
            };
            match waiting.preemption.plan {
                Some(Noted::Closed) => return,
                // Somebody took it away.
                None if shown => return,
                None => {}
                Some(Noted::Open(_)) => shown = true,
            }
            if unix() >= until {
                self.give_up(&waiting.pod, record, &asked).await;
                return self.until_shown(uid).await;
            }
            if let Round::Stopped(why) = self.evictions(&waiting, record, &mut asked).await {
                tracing::info!(
                    pod = waiting.pod.name,
                    why,
                    "preemption ended before it began"
                );
                if let Annotated::Done | Annotated::Never(_) =
                    self.annotate(&waiting.pod, None).await
                {
                    self.books.unhold(uid);
                    return;
                }
            }
            ticks.tick().await;
        }
    }

    /// Until the watch shows that the plan is over: it would be taken up again.
    async fn until_shown(&self, uid: &PodUid) {
        let open = || {
            let waiting = self.books.waiting(uid);
            let plan = waiting.and_then(|waiting| waiting.preemption.plan);
            matches!(plan, Some(Noted::Open(_)))
        };
        let mut ticks = tokio::time::interval(EVERY);
        for _ in 0..SHOWN {
            if !open() {
                return;
            }
            ticks.tick().await;
        }
    }

    /// Writes the plan; `false` where it definitely is not written, or another
    /// leads. While that is not known it is written again, never another.
    async fn write(&self, pod: &PodRef, record: &Record) -> bool {
        let text = match record.encode() {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(pod = pod.name, %error, "plan not written");
                return false;
            }
        };
        let mut ticks = tokio::time::interval(EVERY);
        while self.leader.fault().is_none() {
            match self.annotate(pod, Some(&text)).await {
                Annotated::Done => return true,
                Annotated::Never(error) => {
                    tracing::warn!(pod = pod.name, error, "plan not written");
                    return false;
                }
                Annotated::Unknown(error) => {
                    tracing::warn!(pod = pod.name, error, "plan perhaps not written");
                    ticks.tick().await;
                }
            }
        }
        false
    }

    /// Evicts those who have not been asked yet.
    async fn evictions(
        &self,
        preemptor: &Waiting,
        record: &Record,
        asked: &mut HashSet<PodUid>,
    ) -> Round {
        for victim in &record.victims {
            if asked.contains(&victim.uid) {
                continue;
            }
            if self.leader.fault().is_some() {
                return Round::Goes;
            }
            if !self.may_end(victim, preemptor) {
                asked.insert(victim.uid.clone());
                continue;
            }
            let pod = PodRef {
                namespace: victim.namespace.clone(),
                name: victim.name.clone(),
                uid: victim.uid.to_string(),
            };
            match eviction::evict(&self.client, &pod, false).await {
                Evicted::Ends => {
                    if asked.is_empty() && !self.begun(record) {
                        self.metrics.preemptions.inc();
                    }
                    asked.insert(victim.uid.clone());
                    self.tell_victim(pod, &preemptor.pod, record);
                }
                Evicted::Gone => {
                    asked.insert(victim.uid.clone());
                }
                Evicted::Protected(why) if !self.begun(record) && asked.is_empty() => {
                    return Round::Stopped(why);
                }
                Evicted::Protected(why) | Evicted::Failed(why) => {
                    tracing::info!(pod = pod.name, why, "victim not evicted yet");
                }
            }
        }
        Round::Goes
    }

    /// It runs, and with a lower priority than the pod that it is to end for: an
    /// annotation alone ends nobody.
    fn may_end(&self, victim: &Victim, preemptor: &Waiting) -> bool {
        let tenants = self.books.tenants.0.read();
        let tenant = tenants.get(&victim.uid);
        tenant.is_some_and(|tenant| tenant.can_end() && tenant.priority < preemptor.priority)
    }

    /// Some victim ends or has ended.
    fn begun(&self, record: &Record) -> bool {
        let tenants = self.books.tenants.0.read();
        let mut victims = record.victims.iter();
        victims.any(|victim| tenants.get(&victim.uid).is_none_or(|t| t.ending.is_some()))
    }

    /// When it is given up; not later than a plan of ours would be.
    fn until(&self, record: &Record) -> i64 {
        let tenants = self.books.tenants.0.read();
        let victims = record.victims.iter();
        let graces = victims.filter_map(|victim| Some(tenants.get(&victim.uid)?.grace));
        let latest = match graces.max() {
            Some(grace) => unix().saturating_add_unsigned(limit(grace)),
            None => i64::MAX,
        };
        i64::try_from(record.until).unwrap_or(i64::MAX).min(latest)
    }

    async fn give_up(&self, pod: &PodRef, record: &Record, asked: &HashSet<PodUid>) {
        let closed = Record {
            state: State::GivenUp,
            ..record.clone()
        };
        // Where nobody has ended for it, another plan may be made.
        let begun = !asked.is_empty() || self.begun(record);
        let text = if begun { closed.encode().ok() } else { None };
        if let Annotated::Unknown(error) = self.annotate(pod, text.as_deref()).await {
            tracing::warn!(
                pod = pod.name,
                error,
                "plan given up, but not on the pod yet"
            );
            return;
        }
        self.notes.send(Note {
            pod: pod.clone(),
            warning: true,
            reason: "PreemptionGivenUp",
            action: "Preempting",
            text: format!(
                "not bound in time; what was held on {} is free",
                record.node
            ),
        });
    }

    fn tell_preemptor(&self, pod: &PodRef, record: &Record) {
        let victims = record.victims.iter();
        let names: Vec<_> = victims
            .map(|v| format!("{}/{}", v.namespace, v.name))
            .collect();
        let text = format!("ends on {} for it: {}", record.node, names.join(", "));
        tracing::info!(pod = pod.name, namespace = pod.namespace, text, "preempts");
        self.notes.send(Note {
            pod: pod.clone(),
            warning: false,
            reason: "Preempting",
            action: "Preempting",
            text,
        });
    }

    fn tell_victim(&self, victim: PodRef, preemptor: &PodRef, record: &Record) {
        let (namespace, name) = (&preemptor.namespace, &preemptor.name);
        let text = format!(
            "ends for {namespace}/{name}, of higher priority, which gets its share on {}",
            record.node
        );
        self.notes.send(Note {
            pod: victim,
            warning: true,
            reason: "Preempted",
            action: "Preempting",
            text,
        });
    }
}
