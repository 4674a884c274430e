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
use aliquot_core::{Mib, NodeName, PodUid};
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};

use crate::accepted::{Accepted, Store};
use crate::by_env::DeviceList;
use crate::checkpoint::{self, CheckpointError, Entry};
use crate::environment::NodeRules;
use crate::fail_point::{self, Point};
use crate::inventory::{Node, Published};
use crate::judge::{self, Facts, Refusal, Verdict};
use crate::kept::Kept;
use crate::modes::Modes;
use crate::pod::{Phase, Pod};
use crate::pods::Pods;
use crate::seat::Ids;
use crate::settings::Paths;
use crate::spare::Spares;
use crate::tenant_may::TenantMay;
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

mod error;

pub use error::PreStartError;

/// How far a call comes with what is known here.
enum Attempt {
    Started(Started),
    /// The watch does not know this pod, which starts here for the first time.
    Unknown(PodUid),
    /// Nobody has looked yet whether the runtime gives containers what CDI says.
    NotLooked,
}

/// All that a call needs; shared by all calls.
pub struct PreStart {
    /// This node.
    pub node: NodeName,
    /// The resource of cards that have no name of their own.
    pub usual: String,
    /// The node's rules for the environment.
    pub rules: NodeRules,
    /// What pods may say of their own limits, by namespace; `None`: what the rules say.
    pub tenant_may: Option<TenantMay>,
    /// Where things are.
    pub paths: Paths,
    /// How Allocate hands GPUs over.
    pub device_list: DeviceList,
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
    /// Accepted shares. The lock also makes judging and counting one step.
    pub store: Mutex<Store>,
    /// Seats made ahead.
    pub spares: Arc<Spares>,
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
            let attempt = move || this.attempt(&resource, ids, &known);
            let attempt = self.kept.turns.run(attempt).await;
            match attempt.ok_or(PreStartError::Stopped)?? {
                Attempt::Started(started) => return Ok(started),
                Attempt::Unknown(uid) => {
                    let pod = self.ask(&uid).await?;
                    asked.insert(uid, pod);
                }
                Attempt::NotLooked => {
                    let mut node = self.published.subscribe();
                    let looked = node.wait_for(|node| node.runtime.is_some());
                    let looked = tokio::time::timeout(LOOKUP, looked).await;
                    if !matches!(looked, Ok(Ok(_))) {
                        return Err(PreStartError::NotLooked);
                    }
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
        let ours = || by_pod.values().flatten().any(|one| one.by_env.is_none());
        let node = self.published.get();
        let first = |uid: &PodUid| self.store.lock().get(uid).is_none();
        if node.runtime.is_none() && ours() && by_pod.keys().any(first) {
            return Ok(Attempt::NotLooked);
        }
        let off = node.runtime.as_ref();
        let off = off.and_then(|looked| looked.without_cdi.clone());
        if let Some(why) = off.filter(|_| ours()) {
            return Err(PreStartError::Runtime(why));
        }
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
            self.named_rightly(&accepted, holders, &node, pod)
                .map_err(|refusal| self.refuse(pod, refusal))?;
            for (name, container) in names.clone() {
                accepted.note(name, container);
            }
            fail_point::at(Point::ShareBeforeStore);
            // It counts for all others from here on; nobody else waits for its file.
            let accepted = store.count(accepted);
            let stored = MutexGuard::unlocked(&mut store, || {
                accepted.store(&self.paths.accepted, self.spares.blank())
            });
            store.settle(uid, stored.is_ok());
            stored?;
            fail_point::at(Point::ShareAfterStore);
            self.published.keep_refused(|refused| refused != uid);
            started = Started::Accepted;
        }
        if let Some(accepted) = store.get(uid) {
            for holder in holders {
                judge::holder_has_its_share(holder, &accepted.allocation)
                    .map_err(PreStartError::Refused)?;
            }
            // Seats may have been handed out anew, and instances have other names after a reboot.
            let pod = self.pods.get(uid);
            self.named_rightly(accepted, holders, &node, pod.as_deref())
                .map_err(|refusal| self.refuse(pod.as_deref(), refusal))?;
        }
        store.note_names(uid, names)?;
        fail_point::at(Point::NamesStored);
        let accepted = store.get(uid).cloned();
        let others = accepted.as_ref().map(|own| self.beside(own, &store));
        let others = others.unwrap_or_default();
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

    /// What others hold, for a share of a card that is cut as pods come: only there it matters.
    pub(crate) fn beside(&self, own: &Accepted, store: &Store) -> Vec<Arc<Accepted>> {
        let mut grants = own.allocation.all().flat_map(|(_, grants)| grants);
        if grants.any(|grant| grant.mig.is_some()) {
            self.others(&own.pod, store)
        } else {
            Vec::new()
        }
    }

    /// Until the pods are known, every accepted share counts.
    pub(crate) fn lives(&self, uid: &PodUid) -> bool {
        let pod = self.pods.get(uid);
        pod.map_or_else(|| !self.pods.synced(), |pod| pod.phase != Phase::Ended)
    }

    /// The rules for the pods of this one's namespace.
    fn rules_of(&self, pod: Option<&Pod>) -> NodeRules {
        let may = self.tenant_may.as_ref().zip(pod);
        let may = may.map_or(self.rules.may, |(may, pod)| may.of(&pod.namespace));
        NodeRules { may, ..self.rules }
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
            rules: self.rules_of(pod),
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
        let others = pods.filter(|pod| *pod != uid && store.get(pod).is_none() && self.lives(pod));
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
