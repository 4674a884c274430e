//! Pending pods that request a share, as the pod watch shows them, or filter where
//! kube-scheduler's watch is ahead of ours.

use std::sync::Arc;

use aliquot_core::cluster::NodeSet;
use aliquot_core::preemption::record::{PREEMPTION, PlanState, PreemptionRecord};
use aliquot_core::{Demand, NodeName};
use aliquot_k8s::disruption;
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

/// A pod that requests a share and is not bound.
#[derive(Clone, Debug)]
pub struct PendingPod {
    /// The pod.
    pub pod: PodRef,
    /// What it requests.
    pub demand: Demand,
    /// `spec.priority`.
    pub priority: i32,
    /// Bytes of its annotations, keys and values.
    pub annotation_bytes: usize,
    /// Filter refused it and it has not been requeued since.
    pub refused: bool,
    /// The nodes of the last filter call: the others have a taint, a label or too little CPU. All,
    /// before the first call.
    pub offered: NodeSet,
    /// Its refusals, if filter refused it.
    pub refusals: Option<RefusalRecord>,
    /// What its spec and status say about preemption.
    pub preemption: PreemptionStatus,
}

/// The refusals of one pod that this replica remembers.
#[derive(Clone, Debug)]
pub struct RefusalRecord {
    /// How many.
    pub times: u32,
    /// The first one.
    pub first: Instant,
    /// The last one.
    pub last: Instant,
    /// The text of the last one.
    pub text: String,
}

impl RefusalRecord {
    /// One refusal.
    pub fn new(text: String, now: Instant) -> Self {
        Self {
            times: 1,
            first: now,
            last: now,
            text,
        }
    }

    /// This refusal added to the previous ones.
    pub fn after(self, before: Option<&Self>) -> Self {
        Self {
            times: before.map_or(0, |before| before.times) + self.times,
            first: before.map_or(self.first, |before| before.first),
            ..self
        }
    }
}

/// What a pending pod's spec and status say about preemption.
#[derive(Clone, Debug, Default)]
pub struct PreemptionStatus {
    /// `preemptionPolicy` forbids it.
    pub never: bool,
    /// kube-scheduler reports it as unschedulable.
    pub unschedulable: bool,
    /// kube-scheduler preempts for it on this node (`nominatedNodeName`).
    pub nominated: Option<NodeName>,
    /// The last node that kube-scheduler nominated.
    pub nominated_last: Option<NodeName>,
    /// The plan in its annotation.
    pub plan: Option<RecordedPlan>,
}

/// The annotation `aliquot.dev/preemption` of a pending pod.
#[derive(Clone, Debug)]
pub enum RecordedPlan {
    /// An open plan.
    Open(Arc<PreemptionRecord>),
    /// A plan that was given up, or is unreadable: there will be no other.
    Closed,
}

fn preemption(pod: &Pod) -> PreemptionStatus {
    let nominated: Option<NodeName> = disruption::nominated(pod).map(Into::into);
    let plan = pod::annotation(pod, PREEMPTION).map(|text| match PreemptionRecord::decode(text) {
        Ok(record) if record.state == PlanState::Open => RecordedPlan::Open(Arc::new(record)),
        Ok(_) => RecordedPlan::Closed,
        Err(error) => {
            tracing::error!(pod = ?pod.metadata.name, %error, "invalid annotation aliquot.dev/preemption; the pod does not preempt again");
            RecordedPlan::Closed
        }
    });
    PreemptionStatus {
        never: !disruption::may_preempt(pod),
        unschedulable: disruption::unschedulable(pod),
        nominated_last: nominated.clone(),
        nominated,
        plan,
    }
}

impl PendingPod {
    /// Reads a pod with this demand.
    pub fn read(pod: &Pod, demand: Demand, refused: bool) -> Self {
        let annotations = pod.metadata.annotations.iter().flatten();
        Self {
            pod: reference(pod),
            demand,
            priority: disruption::priority(pod),
            annotation_bytes: annotations
                .map(|(key, value)| key.len() + value.len())
                .sum(),
            refused,
            offered: NodeSet::default(),
            refusals: None,
            preemption: preemption(pod),
        }
    }
}

/// The pod as events refer to it.
pub fn reference(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}
