//! What happens when the kubelet is about to start a container: find out whose
//! seats these are, judge the pod once, write the container's files.
//!
//! Fed by: the device plugin service with the ids of one call.
//! Must not: ask the API server for a pod accepted before; hold a lock across
//! an await; write anything for a refused pod.

use std::collections::BTreeMap;
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
use crate::environment::NodeRules;
use crate::fail_point::{self, Point};
use crate::files::FileError;
use crate::inventory::{Node, Published};
use crate::judge::{self, Facts, Refusal, Verdict};
use crate::modes::{EquipError, Modes};
use crate::pod::{Phase, Pod};
use crate::pods::Pods;
use crate::seat::{Ids, Name};
use crate::settings::Paths;
use crate::way_in::Installed;
use crate::{dress, hami, units};

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
    /// What the mode of a unit needs is not there.
    #[error(transparent)]
    Equip(#[from] EquipError),
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
    /// The resource of cards that have no name of their own.
    pub usual: String,
    /// The node's rules for the environment.
    pub rules: NodeRules,
    /// Where things are.
    pub paths: Paths,
    /// What holds the limits in a container, if this node has it.
    pub limiter: Option<Installed>,
    /// What each mode does to a container.
    pub modes: Modes,
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
    /// Lets the container that holds `ids` of a resource start, or says why not.
    pub async fn start(
        self: &Arc<Self>,
        resource: &str,
        ids: Ids,
    ) -> Result<Started, PreStartError> {
        let this = Arc::clone(self);
        let entries = spawn_blocking(move || this.entries()).await??;
        let holders: Vec<&Entry> = checkpoint::holders(&entries, resource, &ids).collect();
        if holders.is_empty() {
            return Err(PreStartError::NoHolder(ids));
        }
        // A container's other resources are served with this one: its environment is one.
        let named = |entry: &&Entry| entry.name.is_some();
        let mut by_pod: BTreeMap<PodUid, Vec<Entry>> = BTreeMap::new();
        for holder in holders.into_iter().filter(named) {
            let same = |e: &&Entry| e.pod == holder.pod && e.container == holder.container;
            let all = entries.iter().filter(same).filter(named).cloned();
            by_pod.entry(holder.pod.clone()).or_default().extend(all);
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
        for holders in dress::containers(&entries) {
            let Some(accepted) = store.get(&holders[0].pod) else {
                continue;
            };
            let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
            if !names.all(|name| accepted.names.contains(name.as_str())) {
                continue;
            }
            let container = &holders[0].container;
            let others = self.others(&accepted.pod, &store).into_iter().cloned();
            match self.write(accepted, &others.collect::<Vec<_>>(), &holders, &node) {
                Ok(()) => served += 1,
                Err(error) => {
                    let pod = &accepted.pod_name;
                    tracing::warn!(pod, container, %error, "a share is not up to date");
                }
            }
        }
        Ok(served)
    }

    /// The checkpoint's entries of our resources.
    pub fn entries(&self) -> Result<Vec<Entry>, CheckpointError> {
        let mut served = units::resources(&self.published.get());
        served.insert(self.usual.clone());
        checkpoint::read(&self.paths.checkpoint, &served)
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
        let mut store = self.store.lock();
        // Under the lock: a card that begins to change meanwhile is seen.
        let node = self.published.get();
        let mut started = Started::Served;
        if store.get(uid).is_none() {
            let accepted = match self.judge(uid, pod, holders, hamis, &node, &store) {
                Verdict::Accept(accepted) => *accepted,
                Verdict::Refuse(refusal) => return Err(self.refuse(pod, refusal)),
            };
            fail_point::at(Point::ShareBeforeStore);
            store.put(accepted)?;
            fail_point::at(Point::ShareAfterStore);
            self.published.keep_refused(|refused| refused != uid);
            started = Started::Accepted;
        }
        let names = holders.iter().filter_map(|holder| holder.name.as_ref());
        if let Some(accepted) = store.get(uid) {
            for holder in holders {
                judge::holder_has_its_share(holder, &accepted.allocation)
                    .map_err(PreStartError::Refused)?;
            }
        }
        store.note_names(uid, names)?;
        fail_point::at(Point::NamesStored);
        if let Some(accepted) = store.get(uid).cloned() {
            let others = self.others(uid, &store).into_iter().cloned();
            let others: Vec<Accepted> = others.collect();
            // Making a MIG instance takes a second, in which nobody else must wait.
            drop(store);
            for holders in dress::containers(holders) {
                self.write(&accepted, &others, &holders, &node)?;
            }
        }
        fail_point::at(Point::StartServed);
        Ok(started)
    }

    /// What living pods but this one hold. Until the pods are known, every accepted share counts.
    fn others<'a>(&self, uid: &PodUid, store: &'a Store) -> Vec<&'a Accepted> {
        let synced = self.pods.synced();
        let holds = |share: &&Accepted| {
            let pod = self.pods.get(&share.pod);
            share.pod != *uid && pod.map_or(!synced, |pod| pod.phase != Phase::Ended)
        };
        store.all().filter(holds).collect()
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
        let others = self.others(uid, store);
        judge::judge(Facts {
            node: &self.node,
            inventory: &node.inventory,
            arrangement: &node.arrangement,
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
}
