//! What happens when the kubelet is about to start a container: find out whose devices these are,
//! validate the pod once, write the container's files. Never asks the API server for a pod that is
//! accepted, holds no lock across an await, and writes nothing for a refused pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::RefusedPod;
use aliquot_core::ledger::AllocatedUse;
use aliquot_core::{GpuUuid, NodeName, PodUid};
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;

use crate::accepted::{AcceptedAllocation, Store, StoreError};
use crate::call_state::CallState;
use crate::cdi::SpecRefusal;
use crate::checkpoint::{self, CheckpointEntry, CheckpointError};
use crate::context_memory::ContextMemory;
use crate::device_id::{AnswerName, DeviceIds};
use crate::device_nodes::MissingNode;
use crate::environment::NodeRules;
use crate::fail_point::{self, Point};
use crate::files::FileError;
use crate::injection::InstalledLimiter;
use crate::inventory::{NodePublisher, PublishedNode};
use crate::modes::{ModeError, SharingModes};
use crate::non_cdi::DeviceListStrategy;
use crate::pod::{Phase, Pod};
use crate::pods::Pods;
use crate::preallocated::Preallocated;
use crate::settings::Paths;
use crate::tenant_rights::NamespaceRights;
use crate::validation::{self, Decision, Refusal, ValidationInput};
use crate::{allocatable, container_edits, hami};

/// Longest wait for the API server when the watch does not know a pod. The kubelet's deadline for
/// the whole call is 30 s.
const LOOKUP: Duration = Duration::from_secs(5);

/// Asks the API server for the pod that the kubelet runs under this uid here.
pub type Lookup =
    Arc<dyn Fn(PodUid) -> BoxFuture<'static, Result<Option<Pod>, kube::Error>> + Send + Sync>;

/// How a call succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The pod was accepted by this call.
    Accepted,
    /// The pod was accepted before.
    Served,
    /// Another plugin allocated these device ids.
    Untouched,
}

/// Why a container may not start.
#[derive(Debug, Error)]
pub enum PreStartError {
    /// The pod was refused. The text is for the user.
    #[error("{0}")]
    Refused(Refusal),
    /// The container would start without its GPU.
    #[error(
        "the container would start without its GPU and without limits: {0}; the kubelet retries"
    )]
    Runtime(String),
    /// Whether it would is not known yet.
    #[error(
        "the agent has not inspected the container runtime yet, which needs the Node object from the API server; the kubelet retries"
    )]
    RuntimeUnknown,
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No container has these device ids.
    #[error(
        "the kubelet's device checkpoint lists no container with exactly the device ids {0:?}; the kubelet retries"
    )]
    NoHolder(DeviceIds),
    /// The pod is not known yet and the API server cannot be asked.
    #[error(
        "cannot read pod {pod}, which starts here for the first time, from the API server: {source}; the kubelet retries"
    )]
    Lookup {
        /// The pod.
        pod: PodUid,
        /// The error.
        source: kube::Error,
    },
    /// The API server does not answer.
    #[error(
        "cannot read pod {0}, which starts here for the first time, from the API server: no answer within 5 s; the kubelet retries"
    )]
    LookupTimeout(PodUid),
    /// The accepted allocation cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The accepted allocation names a device that is no longer on this node.
    #[error(
        "{gpu} of the allocation of pod {pod} is no longer on this node: delete the pod and create it again"
    )]
    DeviceGone {
        /// The pod.
        pod: PodUid,
        /// The device.
        gpu: GpuUuid,
    },
    /// Nothing would bring the CUDA driver's library into the container, or hold it to its limits.
    #[error(
        "container {container} would start without libcuda.so.1: no CDI spec of NVIDIA's has it for {}{}, and NVIDIA's container runtime does not start this container; expected nvidia-ctk on the node, with which the agent generates such a spec, or `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`; the kubelet retries",
        gpus.join(", "),
        in_parentheses(refused)
    )]
    NoDriver {
        /// The container.
        container: String,
        /// Its devices.
        gpus: Vec<String>,
        /// Why specs of NVIDIA's on the node are not used.
        refused: Vec<SpecRefusal>,
    },
    /// The driver's programs in the container could not open a device node that they need.
    #[error("container {container} would start without {source}; the kubelet retries")]
    NoDeviceNode {
        /// The container.
        container: String,
        /// The node.
        source: MissingNode,
    },
    /// A device's sharing mode cannot be applied to the container.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// The devices do not fit into a limits page.
    #[error("container {container}: {source}")]
    Page {
        /// The container.
        container: String,
        /// What does not fit.
        source: aliquot_region::limits::PageError,
    },
    /// A CDI spec cannot be written as JSON.
    #[error("cannot encode the CDI spec {name}: {source}")]
    Encode {
        /// Its name.
        name: AnswerName,
        /// The encoder's error.
        source: serde_json::Error,
    },
    /// The work ended early.
    #[error("the agent is stopping")]
    Stopped,
}

/// The refusals in parentheses; empty without one.
fn in_parentheses(refused: &[SpecRefusal]) -> String {
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if refused.is_empty() {
        return String::new();
    }
    format!(" ({})", refused.join("; "))
}

/// How far a call gets with what is known here.
enum Attempt {
    Started(Started),
    /// The watch does not know this pod, which starts here for the first time.
    Unknown(PodUid),
    /// The container runtime's CDI support is not known yet.
    RuntimeUnknown,
}

/// Serves `PreStartContainer` and Allocate; shared by all calls.
pub struct PreStart {
    /// This node.
    pub node: NodeName,
    /// The resource of GPUs whose profile names none.
    pub default_resource: String,
    /// The node's rules for the environment.
    pub rules: NodeRules,
    /// Which of their own limits pods may set, by namespace; `None`: as in `rules`.
    pub namespace_rights: Option<NamespaceRights>,
    /// Paths on this node.
    pub paths: Paths,
    /// How Allocate passes GPUs to containers.
    pub device_list: DeviceListStrategy,
    /// The limiter, if this node has one.
    pub limiter: Option<InstalledLimiter>,
    /// How contexts are charged.
    pub context: ContextMemory,
    /// The sharing modes.
    pub modes: SharingModes,
    /// The watched pods.
    pub pods: Pods,
    /// The published node.
    pub published: NodePublisher,
    /// Accepted allocations. The lock also makes validating and counting one step.
    pub store: Mutex<Store>,
    /// Preallocated container directories and files.
    pub preallocated: Arc<Preallocated>,
    /// State that calls share.
    pub call_state: CallState,
    /// Asks the API server.
    pub lookup: Lookup,
}

impl PreStart {
    /// Prepares the start of the container with `ids` of a resource, or returns why it may not
    /// start.
    pub async fn start(
        self: &Arc<Self>,
        resource: &str,
        ids: DeviceIds,
    ) -> Result<Started, PreStartError> {
        let mut asked = BTreeMap::new();
        loop {
            let (this, resource) = (Arc::clone(self), resource.to_owned());
            let (ids, known) = (ids.clone(), asked.clone());
            let attempt = move || this.attempt(&resource, ids, &known);
            let attempt = self.call_state.workers.run(attempt).await;
            match attempt.ok_or(PreStartError::Stopped)?? {
                Attempt::Started(started) => return Ok(started),
                Attempt::Unknown(uid) => {
                    let pod = self.look_up_pod(&uid).await?;
                    asked.insert(uid, pod);
                }
                Attempt::RuntimeUnknown => {
                    let mut node = self.published.subscribe();
                    let inspected = node.wait_for(|node| node.runtime.is_some());
                    let inspected = tokio::time::timeout(LOOKUP, inspected).await;
                    if !matches!(inspected, Ok(Ok(_))) {
                        return Err(PreStartError::RuntimeUnknown);
                    }
                }
            }
        }
    }

    /// The same without the API server, except for the pods in `asked`, which were looked up.
    fn attempt(
        &self,
        resource: &str,
        ids: DeviceIds,
        asked: &BTreeMap<PodUid, Option<Arc<Pod>>>,
    ) -> Result<Attempt, PreStartError> {
        let entries = self.entries()?;
        let holders: Vec<&CheckpointEntry> =
            checkpoint::holders(&entries, resource, &ids).collect();
        if holders.is_empty() {
            return Err(PreStartError::NoHolder(ids));
        }
        // A container's other resources are served with this one: they share one environment.
        let named = |entry: &&CheckpointEntry| entry.name.is_some();
        let mut by_pod: BTreeMap<PodUid, Vec<CheckpointEntry>> = BTreeMap::new();
        for holder in holders.into_iter().filter(named) {
            let same =
                |e: &&CheckpointEntry| e.pod == holder.pod && e.container == holder.container;
            let all = entries.iter().filter(same).filter(named).cloned();
            by_pod.entry(holder.pod.clone()).or_default().extend(all);
        }
        let mut pods = BTreeMap::new();
        for uid in by_pod.keys() {
            if self.store.lock().get(uid).is_some() {
                continue;
            }
            match self.pods.get(uid).or_else(|| asked.get(uid)?.clone()) {
                Some(pod) => drop(pods.insert(uid, pod)),
                None if asked.contains_key(uid) => {}
                None => return Ok(Attempt::Unknown(uid.clone())),
            }
        }
        let hami = if entries.iter().all(|entry| entry.name.is_some()) {
            Vec::new()
        } else {
            hami::pod_allocations(&entries, &self.pods.in_order())
        };
        let by_cdi = || by_pod.values().flatten().any(|one| one.non_cdi.is_none());
        let node = self.published.get();
        let first = |uid: &PodUid| self.store.lock().get(uid).is_none();
        if node.runtime.is_none() && by_cdi() && by_pod.keys().any(first) {
            return Ok(Attempt::RuntimeUnknown);
        }
        let off = node.runtime.as_ref();
        let off = off.and_then(|runtime| runtime.without_cdi.clone());
        if let Some(why) = off.filter(|_| by_cdi()) {
            return Err(PreStartError::Runtime(why));
        }
        let mut started = Started::Untouched;
        // One pod, unless the checkpoint still lists one that is gone.
        for (uid, holders) in &by_pod {
            let pod = pods.get(uid).map(|pod| &**pod);
            started = self.serve(uid, pod, holders, &hami)?;
        }
        Ok(Attempt::Started(started))
    }

    /// The checkpoint's entries of our resources.
    pub fn entries(&self) -> Result<Arc<Vec<CheckpointEntry>>, CheckpointError> {
        let mut served = allocatable::resources(&self.published.get());
        served.insert(self.default_resource.clone());
        self.call_state.checkpoint(&self.paths.checkpoint, served)
    }

    /// Asks the API server for a pod: the watch may lag behind the kubelet's.
    async fn look_up_pod(&self, uid: &PodUid) -> Result<Option<Arc<Pod>>, PreStartError> {
        match tokio::time::timeout(LOOKUP, (self.lookup)(uid.clone())).await {
            Ok(Ok(pod)) => Ok(pod.map(Arc::new)),
            Ok(Err(source)) => Err(PreStartError::Lookup {
                pod: uid.clone(),
                source,
            }),
            Err(_) => Err(PreStartError::LookupTimeout(uid.clone())),
        }
    }

    fn serve(
        &self,
        uid: &PodUid,
        pod: Option<&Pod>,
        holders: &[CheckpointEntry],
        hami: &[(PodUid, AllocatedUse)],
    ) -> Result<Started, PreStartError> {
        let _locked = self.call_state.lock_pod(uid);
        let mut store = self.store.lock();
        // Under the lock, so that a GPU that begins to change meanwhile is noticed.
        let node = self.published.get();
        let names = container_edits::names_by_container(holders);
        let mut started = Started::Served;
        if store.get(uid).is_none() {
            let mut accepted = match self.validate(uid, pod, holders, hami, &node, &store) {
                Decision::Accept(accepted) => *accepted,
                Decision::Refuse(refusal) => return Err(self.refuse(pod, refusal)),
            };
            self.check_non_cdi_answers(&accepted, holders, &node, pod)
                .map_err(|refusal| self.refuse(pod, refusal))?;
            for (name, container) in names.clone() {
                accepted.record_name(name, container);
            }
            fail_point::at(Point::ShareBeforeStore);
            // It counts for all others from here on; they do not wait for its file.
            let accepted = store.insert_unstored(accepted);
            let stored = MutexGuard::unlocked(&mut store, || {
                accepted.store(&self.paths.accepted, self.preallocated.take_file())
            });
            store.finish_store(uid, stored.is_ok());
            stored?;
            fail_point::at(Point::ShareAfterStore);
            self.published.retain_refused(|refused| refused != uid);
            started = Started::Accepted;
        }
        if let Some(accepted) = store.get(uid) {
            for holder in holders {
                validation::check_holder(holder, &accepted.allocation)
                    .map_err(PreStartError::Refused)?;
            }
            // The kubelet may have allocated again, and instances have new UUIDs after a reboot.
            let pod = self.pods.get(uid);
            self.check_non_cdi_answers(accepted, holders, &node, pod.as_deref())
                .map_err(|refusal| self.refuse(pod.as_deref(), refusal))?;
        }
        store.record_names(uid, names)?;
        fail_point::at(Point::NamesStored);
        let accepted = store.get(uid).cloned();
        let others = accepted
            .as_ref()
            .map(|own| self.others_for_dynamic_mig(own, &store));
        let others = others.unwrap_or_default();
        // Creating a MIG instance takes a second; others must not wait for it.
        drop(store);
        if let Some(accepted) = accepted {
            for holders in container_edits::entries_by_container(holders) {
                self.write(&accepted, &others, &holders, &node)?;
            }
        }
        fail_point::at(Point::StartServed);
        Ok(started)
    }

    /// The accepted allocations of the other live pods.
    pub(crate) fn others(&self, uid: &PodUid, store: &Store) -> Vec<Arc<AcceptedAllocation>> {
        let is_other =
            |share: &&Arc<AcceptedAllocation>| share.pod != *uid && self.is_live(&share.pod);
        store.shared().filter(is_other).cloned().collect()
    }

    /// The same for an allocation with instances of dynamic MIG; empty for others, which do not
    /// need it.
    pub(crate) fn others_for_dynamic_mig(
        &self,
        own: &AcceptedAllocation,
        store: &Store,
    ) -> Vec<Arc<AcceptedAllocation>> {
        let mut grants = own.allocation.all().flat_map(|(_, grants)| grants);
        if grants.any(|grant| grant.mig.is_some()) {
            self.others(&own.pod, store)
        } else {
            Vec::new()
        }
    }

    /// Whether this pod is live. Until the pods are known, every accepted one is.
    pub(crate) fn is_live(&self, uid: &PodUid) -> bool {
        let pod = self.pods.get(uid);
        pod.map_or_else(|| !self.pods.synced(), |pod| pod.phase != Phase::Ended)
    }

    /// The rules for the pods of this one's namespace.
    fn rules_of(&self, pod: Option<&Pod>) -> NodeRules {
        let rights = self.namespace_rights.as_ref().zip(pod);
        let rights = rights.map_or(self.rules.rights, |(rights, pod)| rights.of(&pod.namespace));
        NodeRules {
            rights,
            ..self.rules
        }
    }

    fn validate(
        &self,
        uid: &PodUid,
        pod: Option<&Pod>,
        holders: &[CheckpointEntry],
        hami: &[(PodUid, AllocatedUse)],
        node: &PublishedNode,
        store: &Store,
    ) -> Decision {
        let others = self.others(uid, store);
        let damaged = self.damaged(uid, store);
        validation::validate(ValidationInput {
            node: &self.node,
            inventory: &node.inventory,
            layout: &node.layout,
            rules: self.rules_of(pod),
            uid,
            pod,
            holders: &holders.iter().collect::<Vec<_>>(),
            others: &others.iter().map(|other| &**other).collect::<Vec<_>>(),
            hami,
            damaged: &damaged,
        })
    }

    /// What other live pods use whose accepted allocation cannot be read, by their annotations.
    fn damaged(&self, uid: &PodUid, store: &Store) -> Vec<(PodUid, AllocatedUse)> {
        let pods = store.damaged().keys();
        let others =
            pods.filter(|pod| *pod != uid && store.get(pod).is_none() && self.is_live(pod));
        let used = |other: &PodUid| {
            let pod = self.pods.get(other);
            let uses = pod.and_then(|pod| pod.uses());
            (
                other.clone(),
                uses.map_or(AllocatedUse::Unreadable, AllocatedUse::Known),
            )
        };
        others.map(used).collect()
    }

    /// Publishes a refusal, so that the scheduler can evict the pod.
    fn refuse(&self, pod: Option<&Pod>, refusal: Refusal) -> PreStartError {
        if let Some(pod) = pod {
            self.published.add_refused(RefusedPod {
                pod: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                reason: refusal.to_string(),
            });
        }
        PreStartError::Refused(refusal)
    }
}
