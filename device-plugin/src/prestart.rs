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
use aliquot_core::{GpuUuid, Mib, NodeName, PodUid};
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
use crate::kept::Kept;
use crate::modes::{ModeError, Modes};
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
    Equip(#[from] ModeError),
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

/// How far a call comes with what is known here.
enum Attempt {
    Started(Started),
    /// The watch does not know this pod, which starts here for the first time.
    Unknown(PodUid),
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
    /// What each process takes of a card at once.
    pub context: Mib,
    /// What each mode does to a container.
    pub modes: Modes,
    /// The watched pods.
    pub pods: Pods,
    /// Cards and holders.
    pub published: Published,
    /// Accepted shares. The lock also makes judging and storing one step.
    pub store: Mutex<Store>,
    /// What calls share.
    pub kept: Kept,
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
        let mut asked = BTreeMap::new();
        loop {
            let (this, resource) = (Arc::clone(self), resource.to_owned());
            let (ids, known) = (ids.clone(), asked.clone());
            let turn = self.kept.turn().await;
            let attempt = spawn_blocking(move || this.attempt(&resource, ids, &known)).await??;
            drop(turn);
            match attempt {
                Attempt::Started(started) => return Ok(started),
                Attempt::Unknown(uid) => {
                    let pod = self.ask(&uid).await?;
                    asked.insert(uid, pod);
                }
            }
        }
    }

    /// The same without the API server, but for the pods that it was `asked` for.
    fn attempt(
        &self,
        resource: &str,
        ids: Ids,
        asked: &BTreeMap<PodUid, Option<Arc<Pod>>>,
    ) -> Result<Attempt, PreStartError> {
        let entries = self.entries()?;
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
        let hamis = if entries.iter().all(|entry| entry.name.is_some()) {
            Vec::new()
        } else {
            hami::holders(&entries, &self.pods.in_order())
        };
        let mut started = Started::Untouched;
        // One pod, but for a checkpoint that still names one that is gone.
        for (uid, holders) in &by_pod {
            let pod = pods.get(uid).map(|pod| &**pod);
            started = self.serve(uid, pod, holders, &hamis)?;
        }
        Ok(Attempt::Started(started))
    }

    /// The checkpoint's entries of our resources.
    pub fn entries(&self) -> Result<Arc<Vec<Entry>>, CheckpointError> {
        let mut served = units::resources(&self.published.get());
        served.insert(self.usual.clone());
        self.kept.checkpoint(&self.paths.checkpoint, served)
    }

    /// The watch may lag behind the kubelet's.
    async fn ask(&self, uid: &PodUid) -> Result<Option<Arc<Pod>>, PreStartError> {
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
        let _alone = self.kept.lane(uid);
        let mut store = self.store.lock();
        // Under the lock: a card that begins to change meanwhile is seen.
        let node = self.published.get();
        let names = dress::named(holders);
        let mut started = Started::Served;
        if store.get(uid).is_none() {
            let mut accepted = match self.judge(uid, pod, holders, hamis, &node, &store) {
                Verdict::Accept(accepted) => *accepted,
                Verdict::Refuse(refusal) => return Err(self.refuse(pod, refusal)),
            };
            for (name, container) in names.clone() {
                accepted.note(name, container);
            }
            fail_point::at(Point::ShareBeforeStore);
            store.put(accepted)?;
            fail_point::at(Point::ShareAfterStore);
            self.published.keep_refused(|refused| refused != uid);
            started = Started::Accepted;
        }
        if let Some(accepted) = store.get(uid) {
            for holder in holders {
                judge::holder_has_its_share(holder, &accepted.allocation)
                    .map_err(PreStartError::Refused)?;
            }
        }
        store.note_names(uid, names)?;
        fail_point::at(Point::NamesStored);
        let accepted = store.get(uid).cloned();
        let others = self.others(uid, &store);
        // Making a MIG instance takes a second, in which nobody else must wait.
        drop(store);
        if let Some(accepted) = accepted {
            for holders in dress::containers(holders) {
                self.write(&accepted, &others, &holders, &node)?;
            }
        }
        fail_point::at(Point::StartServed);
        Ok(started)
    }

    /// What living pods but this one hold.
    pub(crate) fn others(&self, uid: &PodUid, store: &Store) -> Vec<Arc<Accepted>> {
        let holds = |share: &&Arc<Accepted>| share.pod != *uid && self.lives(&share.pod);
        store.shared().filter(holds).cloned().collect()
    }

    /// Until the pods are known, every accepted share counts.
    pub(crate) fn lives(&self, uid: &PodUid) -> bool {
        let pod = self.pods.get(uid);
        pod.map_or_else(|| !self.pods.synced(), |pod| pod.phase != Phase::Ended)
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
        let damaged = self.damaged(uid, store);
        judge::judge(Facts {
            node: &self.node,
            inventory: &node.inventory,
            arrangement: &node.arrangement,
            rules: self.rules,
            uid,
            pod,
            holders: &holders.iter().collect::<Vec<_>>(),
            others: &others.iter().map(|other| &**other).collect::<Vec<_>>(),
            hamis,
            damaged: &damaged,
        })
    }

    /// What living pods but this one hold whose share cannot be read back, by their annotations.
    fn damaged(&self, uid: &PodUid, store: &Store) -> Vec<(PodUid, Held)> {
        let pods = store.damaged().keys();
        let others = pods.filter(|pod| *pod != uid && self.lives(pod));
        let held = |other: &PodUid| {
            let pod = self.pods.get(other);
            let uses = pod.and_then(|pod| pod.uses());
            (other.clone(), uses.map_or(Held::Unreadable, Held::Uses))
        };
        others.map(held).collect()
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
