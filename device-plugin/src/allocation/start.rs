//! What happens when the kubelet is about to start a container: find out whose devices these are,
//! validate the pod once, store what was accepted, write the container's files. Never asks the API
//! server for a pod that is accepted, holds no lock across an await, and writes nothing for a refused
//! pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{GpuUuid, Inventory, PodUid};
use futures::future::BoxFuture;
use parking_lot::MutexGuard;
use thiserror::Error;
use tokio::task::spawn_blocking;

use crate::allocation::accepted::{self, Store, StoreError};
use crate::allocation::collect;
use crate::allocation::node_allocations::NodeAllocations;
use crate::allocation::prepare::{PrepareError, Preparer};
use crate::allocation::validation::{self, Refusal, ValidationInput, Validator};
use crate::gpus::inventory::PublishedNode;
use crate::modes::ModeError;
use crate::pods::pod::Pod;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::checkpoint::{self, CheckpointEntry, CheckpointError};
use aliquot_node_state::device_id::DeviceIds;
use aliquot_node_state::processes;
use aliquot_serve::fail_point;

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

#[derive(Debug, Error)]
pub enum StartError {
    /// The pod was refused. The text is for the user.
    #[error("{0}")]
    Refused(Refusal),
    #[error(
        "the container would start without its GPU and without limits: {0}; the kubelet retries"
    )]
    Runtime(String),
    #[error(
        "the agent has not inspected the container runtime yet, which needs the Node object from the API server; the kubelet retries"
    )]
    RuntimeUnknown,
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "the kubelet's device checkpoint lists no container with exactly the device ids {0:?}; the kubelet retries"
    )]
    NoHolder(DeviceIds),
    #[error(
        "cannot read pod {pod}, which starts here for the first time, from the API server: {source}; the kubelet retries"
    )]
    Lookup { pod: PodUid, source: kube::Error },
    #[error(
        "cannot read pod {0}, which starts here for the first time, from the API server: no answer within 5 s; the kubelet retries"
    )]
    LookupTimeout(PodUid),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Prepare(PrepareError),
    #[error("the agent is stopping")]
    Stopped,
}

impl From<PrepareError> for StartError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Refused(refusal) => Self::Refused(refusal),
            error => Self::Prepare(error),
        }
    }
}

/// Containers of one pod that have the device ids of a call.
struct Owner {
    pod: PodUid,
    /// All of their checkpoint entries: a container's other resources are served with this one,
    /// since they share one environment.
    entries: Vec<CheckpointEntry>,
}

/// Serves `PreStartContainer`; shared by all calls.
pub struct ContainerStarter {
    pub allocations: Arc<NodeAllocations>,
    pub validator: Validator,
    pub preparer: Arc<Preparer>,
    pub lookup: Lookup,
    /// The host's `/proc`.
    pub proc: PathBuf,
}

impl ContainerStarter {
    /// Prepares the start of the container with `ids` of a resource, or returns why it may not
    /// start.
    pub async fn start(
        self: &Arc<Self>,
        resource: &str,
        ids: DeviceIds,
    ) -> Result<Started, StartError> {
        let (this, resource) = (Arc::clone(self), resource.to_owned());
        let owners = spawn_blocking(move || this.find_owners(&resource, ids));
        let owners = owners.await.map_err(|_| StartError::Stopped)??;
        let mut started = Started::Untouched;
        // One, unless the checkpoint still lists a pod that is gone.
        for owner in owners {
            let pod = self.load_pod(&owner.pod).await?;
            let this = Arc::clone(self);
            let served = spawn_blocking(move || this.serve(&owner, pod.as_deref()));
            started = served.await.map_err(|_| StartError::Stopped)??;
        }
        Ok(started)
    }

    /// Those whose containers have exactly these ids; none where another plugin allocated them.
    fn find_owners(&self, resource: &str, ids: DeviceIds) -> Result<Vec<Owner>, StartError> {
        let entries = self.allocations.entries()?;
        let holders: Vec<&CheckpointEntry> =
            checkpoint::holders(&entries, resource, &ids).collect();
        if holders.is_empty() {
            return Err(StartError::NoHolder(ids));
        }
        let named = |entry: &&CheckpointEntry| entry.name.is_some();
        let mut by_pod: BTreeMap<PodUid, Vec<CheckpointEntry>> = BTreeMap::new();
        for holder in holders.into_iter().filter(named) {
            let same =
                |e: &&CheckpointEntry| e.pod == holder.pod && e.container == holder.container;
            let all = entries.iter().filter(same).filter(named).cloned();
            by_pod.entry(holder.pod.clone()).or_default().extend(all);
        }
        let owners = by_pod.into_iter();
        Ok(owners
            .map(|(pod, entries)| Owner { pod, entries })
            .collect())
    }

    /// The pod, unless it is accepted already or the API server has no such pod. Fails where the
    /// container runtime would start it without its GPU.
    async fn load_pod(&self, uid: &PodUid) -> Result<Option<Arc<Pod>>, StartError> {
        let known = &*self.allocations;
        let is_first = known.store.lock().get(uid).is_none();
        let mut pod = None;
        if is_first {
            pod = known.pods.get(uid);
            if pod.is_none() {
                pod = self.look_up_pod(uid).await?;
            }
            let mut node = known.published.subscribe();
            let inspected = node.wait_for(|node| node.runtime.is_some());
            let inspected = tokio::time::timeout(LOOKUP, inspected).await;
            if !matches!(inspected, Ok(Ok(_))) {
                return Err(StartError::RuntimeUnknown);
            }
        }
        let node = known.published.get();
        let runtime = node.runtime.as_ref();
        match runtime.and_then(|runtime| runtime.without_cdi.clone()) {
            Some(why) => Err(StartError::Runtime(why)),
            None => Ok(pod),
        }
    }

    /// Asks the API server for a pod: the watch may lag behind the kubelet's.
    async fn look_up_pod(&self, uid: &PodUid) -> Result<Option<Arc<Pod>>, StartError> {
        match tokio::time::timeout(LOOKUP, (self.lookup)(uid.clone())).await {
            Ok(Ok(pod)) => Ok(pod.map(Arc::new)),
            Ok(Err(source)) => Err(StartError::Lookup {
                pod: uid.clone(),
                source,
            }),
            Err(_) => Err(StartError::LookupTimeout(uid.clone())),
        }
    }

    /// Has the pod validated at its first start, and writes the files of its containers. `pod` is
    /// that of [`Self::load_pod`].
    fn serve(&self, owner: &Owner, pod: Option<&Pod>) -> Result<Started, StartError> {
        let (uid, holders) = (&owner.pod, owner.entries.as_slice());
        let _locked = self.preparer.lock_pod(uid);
        let mut store = self.allocations.store.lock();
        // Under the lock, so that a GPU that begins to change meanwhile is noticed.
        let node = self.allocations.published.get();
        let started = if let Some(accepted) = store.get(uid) {
            // The kubelet may have allocated again.
            for holder in holders {
                validation::check_holder(holder, &accepted.allocation)
                    .map_err(|refusal| self.refuse_again(uid, refusal))?;
            }
            Started::Served
        } else {
            self.accept(&mut store, uid, pod, holders, &node)?;
            Started::Accepted
        };
        store.record_names(uid, checkpoint::names_by_container(holders))?;
        fail_point::at("NamesStored");
        let accepted = store.get(uid).cloned();
        // Creating a MIG instance takes a second; others must not wait for it.
        drop(store);
        if let Some(accepted) = accepted {
            for named in checkpoint::named_containers(holders) {
                let prepared = self.preparer.prepare(&accepted, &named, &node);
                prepared.map_err(|error| self.not_prepared(uid, error, &node))?;
            }
            self.allocations
                .published
                .retain_refused(|refused| refused != uid);
        }
        fail_point::at("StartServed");
        Ok(started)
    }

    /// Publishes why a container of an accepted pod cannot start any more. While its GPU is being set
    /// up, the device may come back; nothing comes back while a GPU waits for its pods. An instance
    /// of an unknown GPU may have been on any.
    fn not_prepared(&self, uid: &PodUid, error: PrepareError, node: &PublishedNode) -> StartError {
        let device = match &error {
            PrepareError::Refused(Refusal::DeviceGone(device))
            | PrepareError::Mode(ModeError::Refused(device, _)) => Some(device),
            _ => None,
        };
        let own = device.and_then(|device| self.gpu_of(device));
        let is_settled = node.layout.gpus.iter().all(|(gpu, layout)| {
            let is_other = own.as_ref().is_some_and(|own| own != gpu);
            is_other || !layout.switching && !layout.restoring
        });
        match error {
            PrepareError::Refused(refusal) if is_settled => self.refuse_again(uid, refusal),
            PrepareError::Mode(ModeError::Refused(_, text)) if is_settled => {
                self.refuse_again(uid, Refusal::Mode(text))
            }
            error => error.into(),
        }
    }

    /// The GPU that a device of an allocation is on, or was.
    fn gpu_of(&self, device: &GpuUuid) -> Option<GpuUuid> {
        if device.as_str().starts_with("GPU-") {
            return Some(device.clone());
        }
        self.allocations.modes.gpu_of_instance(device)
    }

    /// Validates a pod at its first start, and stores what it was accepted with.
    fn accept(
        &self,
        store: &mut MutexGuard<'_, Store>,
        uid: &PodUid,
        pod: Option<&Pod>,
        holders: &[CheckpointEntry],
        node: &PublishedNode,
    ) -> Result<(), StartError> {
        let known = &*self.allocations;
        let mut accepted = self
            .validate(store, uid, pod, holders, node)
            .map_err(|refusal| self.refuse(pod, refusal, None))?;
        for (name, container) in checkpoint::names_by_container(holders) {
            accepted.record_name(name, container);
        }
        fail_point::at("ShareBeforeStore");
        // Other starts see this allocation now; its file is written outside the lock.
        let accepted = store.insert_unstored(accepted);
        let stored =
            MutexGuard::unlocked(store, || accepted::store(&accepted, &known.paths.accepted));
        store.finish_store(uid, stored.is_ok());
        stored?;
        fail_point::at("ShareAfterStore");
        known.published.retain_refused(|refused| refused != uid);
        Ok(())
    }

    /// Validates a pod beside what others use. Processes may outlive their pod, and housekeeping
    /// looks for them later: a pod that does not fit beside the share of one that has just gone is
    /// accepted if that one has no process left.
    fn validate(
        &self,
        store: &Store,
        uid: &PodUid,
        pod: Option<&Pod>,
        holders: &[CheckpointEntry],
        node: &PublishedNode,
    ) -> Result<AcceptedAllocation, Refusal> {
        let known = &*self.allocations;
        let (others, damaged) = (known.others(uid, store), known.damaged(uid, store));
        let mut inventory = node.inventory.clone();
        let validate = |inventory: &Inventory| {
            self.validator.validate(ValidationInput {
                inventory,
                layout: &node.layout,
                uid,
                pod,
                holders,
                others: &others,
                damaged: &damaged,
            })
        };
        let orphaned: BTreeSet<&PodUid> = node
            .inventory
            .orphaned
            .iter()
            .map(|share| &share.pod)
            .collect();
        let gone: BTreeSet<PodUid> = store
            .all()
            .map(|share| &share.pod)
            .filter(|uid| !known.is_live(uid) && !orphaned.contains(uid))
            .cloned()
            .collect();
        let theirs = collect::orphaned(&gone, store.all());
        inventory.orphaned.extend(theirs);
        let accepted = validate(&inventory);
        if accepted.is_err()
            && !gone.is_empty()
            && let Ok(alive) = processes::alive(&self.proc, &gone)
        {
            let is_left = |uid: &PodUid| alive.contains(uid) || !gone.contains(uid);
            inventory.orphaned.retain(|share| is_left(&share.pod));
            return validate(&inventory);
        }
        accepted
    }

    /// Publishes a refusal of a pod that was accepted before.
    fn refuse_again(&self, uid: &PodUid, refusal: Refusal) -> StartError {
        let gone = match &refusal {
            Refusal::DeviceGone(gpu) => Some(gpu.clone()),
            _ => None,
        };
        self.refuse(self.allocations.pods.get(uid).as_deref(), refusal, gone)
    }

    /// Publishes a refusal, so that the scheduler can evict the pod. Where a pod that ran before
    /// lacks a device, the refusal ends when the device is there again.
    fn refuse(&self, pod: Option<&Pod>, refusal: Refusal, gone: Option<GpuUuid>) -> StartError {
        if let Some(pod) = pod {
            let refused = pod.refused(refusal.to_string());
            self.allocations.published.add_refused(refused, gone);
        }
        StartError::Refused(refusal)
    }
}
