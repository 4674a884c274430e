//! What happens when the kubelet is about to start a container: find out whose
//! seats these are, judge the pod once, write the container's files.
//!
//! Fed by: the device plugin service with the ids of one call.
//! Must not: ask the API server for a pod accepted before; hold a lock across
//! an await; write anything for a refused pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::Refused;
use aliquot_core::ledger::Held;
use aliquot_core::{GpuUuid, NodeName, PodUid};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::spawn_blocking;

use crate::accepted::{Accepted, Store, StoreError};
use crate::checkpoint::{self, CheckpointError, Entry};
use crate::environment::{self, NodeRules};
use crate::files::{self, FileError};
use crate::inventory::{Node, Published};
use crate::judge::{self, Facts, Refusal, Verdict};
use crate::pod::{Phase, Pod};
use crate::pods::Pods;
use crate::seat::{Ids, Name};
use crate::settings::Paths;
use crate::way_in::{self, Installed};
use crate::{cdi, hami, host, limits};

/// Longest wait for the API server when the watch does not know a pod. The
/// kubelet gives the whole call 30 s.
const LOOKUP: Duration = Duration::from_secs(5);

/// Asks the API server for the pod that the kubelet runs under this uid here.
pub type Lookup =
    Arc<dyn Fn(PodUid) -> BoxFuture<'static, Result<Option<Pod>, kube::Error>> + Send + Sync>;

/// How a call ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The pod was accepted by this call.
    Accepted,
    /// The pod was accepted before.
    Served,
    /// The seats were handed out by another plugin.
    Untouched,
}

/// Why a container may not start.
#[derive(Debug, Error)]
pub enum PreStartError {
    /// The pod may not have it. The text is for the user.
    #[error("{0}")]
    Refused(Refusal),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nobody holds these seats.
    #[error(
        "the kubelet's device checkpoint names no container with exactly the seats {0:?}; it will try again"
    )]
    NoHolder(Ids),
    /// The pod is not known yet and the API server cannot be asked.
    #[error(
        "cannot ask the API server for pod {pod}, which starts here for the first time: {source}; the kubelet will try again"
    )]
    Lookup {
        /// The pod.
        pod: PodUid,
        /// What kube found.
        source: kube::Error,
    },
    /// The API server does not answer.
    #[error(
        "cannot ask the API server for pod {0}, which starts here for the first time: no answer within 5 s; the kubelet will try again"
    )]
    LookupTimeout(PodUid),
    /// The accepted share cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The accepted share names a card that is not here any more.
    #[error(
        "pod {pod} holds a share of {gpu}, which is not on this node any more: delete the pod and create it again"
    )]
    CardGone {
        /// The pod.
        pod: PodUid,
        /// The card.
        gpu: GpuUuid,
    },
    /// More devices than a limits page holds.
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
        name: Name,
        /// What serde found.
        source: serde_json::Error,
    },
    /// A blocking task ended early.
    #[error("the agent is stopping")]
    Stopped(#[from] tokio::task::JoinError),
}

/// All that a call needs; shared by all calls.
pub struct PreStart {
    /// This node.
    pub node: NodeName,
    /// The resource we serve.
    pub resource: String,
    /// The node's rules for the environment.
    pub rules: NodeRules,
    /// Where things are.
    pub paths: Paths,
    /// What holds the limits in a container, if this node has it.
    pub limiter: Option<Installed>,
    /// The watched pods.
    pub pods: Pods,
    /// Cards and holders.
    pub published: Published,
    /// Accepted shares. The lock also makes judging and storing one step.
    pub store: Mutex<Store>,
    /// Asks the API server.
    pub lookup: Lookup,
}

impl PreStart {
    /// Lets the container that holds `ids` start, or says why not.
    pub async fn start(self: &Arc<Self>, ids: Ids) -> Result<Started, PreStartError> {
        let this = Arc::clone(self);
        let entries = spawn_blocking(move || this.entries()).await??;
        let holders: Vec<Entry> = checkpoint::holders(&entries, &ids).cloned().collect();
        if holders.is_empty() {
            return Err(PreStartError::NoHolder(ids));
        }
        let mut by_pod: BTreeMap<PodUid, Vec<Entry>> = BTreeMap::new();
        for holder in holders.into_iter().filter(|holder| holder.name.is_some()) {
            by_pod.entry(holder.pod.clone()).or_default().push(holder);
        }
        let hamis = hami::holders(&entries, &self.pods.in_order());
        let mut started = Started::Untouched;
        // One pod, but for a checkpoint that still names one that is gone.
        for (uid, holders) in by_pod {
            let known = self.store.lock().get(&uid).is_some();
            let pod = if known { None } else { self.find(&uid).await? };
            let this = Arc::clone(self);
            let hamis = hamis.clone();
            let serve = move || this.serve(&uid, pod.as_deref(), &holders, &hamis);
            started = spawn_blocking(serve).await??;
        }
        Ok(started)
    }

    /// Brings the files of every accepted share in the checkpoint up to date
    /// (NVIDIA's own spec may have changed). What fails for one entry is logged:
    /// its container says the same at its next start. Returns how many it served.
    pub fn refresh(&self) -> Result<usize, CheckpointError> {
        let entries = self.entries()?;
        let node = self.published.get();
        let store = self.store.lock();
        let mut served = 0;
        for entry in &entries {
            let (Some(accepted), Some(name)) = (store.get(&entry.pod), &entry.name) else {
                continue;
            };
            if !accepted.names.contains(name.as_str()) {
                continue;
            }
            match self.write(accepted, entry, &node) {
                Ok(()) => served += 1,
                Err(error) => tracing::warn!(%name, %error, "a share is not up to date"),
            }
        }
        Ok(served)
    }

    /// The checkpoint's entries of our resource.
    pub fn entries(&self) -> Result<Vec<Entry>, CheckpointError> {
        checkpoint::read(&self.paths.checkpoint, &self.resource)
    }

    async fn find(&self, uid: &PodUid) -> Result<Option<Arc<Pod>>, PreStartError> {
        if let Some(pod) = self.pods.get(uid) {
            return Ok(Some(pod));
        }
        // The watch may lag behind the kubelet's.
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
        holders: &[Entry],
        hamis: &[(PodUid, Held)],
    ) -> Result<Started, PreStartError> {
        let node = self.published.get();
        let mut store = self.store.lock();
        let mut started = Started::Served;
        if store.get(uid).is_none() {
            let accepted = match self.judge(uid, pod, holders, hamis, &node, &store) {
                Verdict::Accept(accepted) => *accepted,
                Verdict::Refuse(refusal) => return Err(self.refuse(pod, refusal)),
            };
            store.put(accepted)?;
            self.published.keep_refused(|refused| refused != uid);
            started = Started::Accepted;
        }
        let names = holders.iter().filter_map(|holder| holder.name.as_ref());
        if let Some(accepted) = store.get(uid) {
            for holder in holders {
                judge::holder_has_its_share(holder, &accepted.allocation, &self.resource)
                    .map_err(PreStartError::Refused)?;
            }
        }
        store.note_names(uid, names)?;
        if let Some(accepted) = store.get(uid) {
            for holder in holders {
                self.write(accepted, holder, &node)?;
            }
        }
        Ok(started)
    }

    fn judge(
        &self,
        uid: &PodUid,
        pod: Option<&Pod>,
        holders: &[Entry],
        hamis: &[(PodUid, Held)],
        node: &Node,
        store: &Store,
    ) -> Verdict {
        // Until the pods are known, every accepted share counts.
        let synced = self.pods.synced();
        let holds = |share: &&Accepted| {
            let pod = self.pods.get(&share.pod);
            pod.map_or(!synced, |pod| pod.phase != Phase::Ended)
        };
        let others: Vec<&Accepted> = store.all().filter(holds).collect();
        judge::judge(Facts {
            node: &self.node,
            resource: &self.resource,
            inventory: &node.inventory,
            rules: self.rules,
            uid,
            pod,
            holders: &holders.iter().collect::<Vec<_>>(),
            others: &others,
            hamis,
        })
    }

    /// Publishes a refusal, so that the scheduler can evict the pod.
    fn refuse(&self, pod: Option<&Pod>, refusal: Refusal) -> PreStartError {
        if let Some(pod) = pod {
            self.published.refused(Refused {
                pod: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                reason: refusal.to_string(),
            });
        }
        PreStartError::Refused(refusal)
    }

    /// Writes limits page, counters file and CDI spec of one entry.
    fn write(&self, accepted: &Accepted, holder: &Entry, node: &Node) -> Result<(), PreStartError> {
        let grants = accepted.allocation.grants(&holder.container);
        let effective = accepted.effective(&holder.container);
        let (Some(name), Some(grants), Some(effective)) = (&holder.name, grants, effective) else {
            let refusal = Refusal::NoShare(holder.container.clone());
            return Err(PreStartError::Refused(refusal));
        };
        let mut cards = Vec::with_capacity(grants.len());
        for grant in grants {
            let card = node.cards.get(&grant.gpu);
            cards.push(card.cloned().ok_or_else(|| PreStartError::CardGone {
                pod: accepted.pod.clone(),
                gpu: grant.gpu.clone(),
            })?);
        }
        let priority = accepted.allocation.priority;
        let page = limits::page(grants, priority, effective);
        let page = page.map_err(|source| PreStartError::Page {
            container: holder.container.clone(),
            source,
        })?;
        let seat = self.paths.seats.join(name.as_str());
        files::seat(&seat, &page)?;
        let mut driver = host::driver(&self.paths.nvidia_cdi, Path::new("/dev"), &cards);
        let seat_name = seat.display().to_string();
        if let Some(limiter) = self.limiter.as_ref().filter(|_| !effective.uncontrolled) {
            way_in::equip(&seat, limiter)?;
            way_in::stand_before(&mut driver.edits, &seat_name, limiter);
        }
        let variables = environment::variables(grants, priority, effective);
        let spec = cdi::spec(name, variables, &seat_name, &driver);
        let text = serde_json::to_vec_pretty(&spec).map_err(|source| PreStartError::Encode {
            name: name.clone(),
            source,
        })?;
        files::replace(&self.paths.cdi.join(cdi::file_name(name.as_str())), &text)?;
        Ok(())
    }
}
