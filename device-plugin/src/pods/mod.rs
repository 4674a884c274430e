//! The pods of this node, by uid, in the order of their arrival. Readers get the last known state.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::PodUid;
use parking_lot::RwLock;
use tokio::sync::watch;

pub mod pod;

use pod::Pod;

/// The node's pods. Clones share one state.
#[derive(Clone, Debug)]
pub struct Pods {
    state: Arc<RwLock<State>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    // By the kubelet's uid, with the number of their arrival.
    pods: HashMap<PodUid, (u64, Arc<Pod>)>,
    arrivals: u64,
    synced: bool,
}

impl Default for Pods {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Pods {
    /// The pod that the kubelet runs under this uid.
    pub fn get(&self, kubelet_uid: &PodUid) -> Option<Arc<Pod>> {
        let state = self.state.read();
        state.pods.get(kubelet_uid).map(|(_, pod)| Arc::clone(pod))
    }

    /// All pods in the order of their arrival.
    pub fn in_order(&self) -> Vec<Arc<Pod>> {
        let state = self.state.read();
        let mut pods: Vec<_> = state.pods.values().collect();
        pods.sort_by_key(|(arrival, _)| *arrival);
        pods.into_iter().map(|(_, pod)| Arc::clone(pod)).collect()
    }

    /// Whether a full list has been received since the start.
    pub fn synced(&self) -> bool {
        self.state.read().synced
    }

    /// Resolves on every change after this call.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn apply(&self, pod: Pod) {
        self.state.write().put(pod);
        self.changed();
    }

    /// A pod is gone. `uid` is that of the API server.
    pub fn delete(&self, uid: &PodUid) {
        let mut state = self.state.write();
        state.pods.retain(|_, (_, pod)| pod.uid != *uid);
        drop(state);
        self.changed();
    }

    /// The whole list: what is not in it is gone. Pods new to us come in the
    /// order of their creation, as the kubelet takes them.
    pub fn reset(&self, mut pods: Vec<Pod>) {
        pods.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        let mut state = self.state.write();
        state
            .pods
            .retain(|_, (_, known)| pods.iter().any(|pod| pod.uid == known.uid));
        for pod in pods {
            state.put(pod);
        }
        state.synced = true;
        drop(state);
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl State {
    /// A pod with the uid that the API server assigned is never replaced by one whose annotation
    /// names that uid.
    fn put(&mut self, pod: Pod) {
        let uid = pod.kubelet_uid.clone();
        let arrival = if let Some((arrival, known)) = self.pods.get(&uid) {
            if known.uid == uid && pod.uid != uid {
                return;
            }
            *arrival
        } else {
            self.arrivals += 1;
            self.arrivals
        };
        self.pods.insert(uid, (arrival, Arc::new(pod)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn names(pods: &Pods) -> Vec<String> {
        pods.in_order().iter().map(|pod| pod.name.clone()).collect()
    }

    #[test]
    fn orders_pods_by_arrival_and_relisted_ones_by_age() {
        let pods = Pods::default();
        for name in ["b", "a", "b"] {
            pods.apply(pod(name));
        }
        assert_eq!(names(&pods), ["b", "a"]);
        pods.delete(&"b".into());
        assert_eq!(names(&pods), ["a"]);
        assert!(!pods.synced());
        let listed = [("young", 20), ("a", 30), ("old", 10)].map(|(name, created)| Pod {
            created,
            ..pod(name)
        });
        pods.reset(listed.into());
        assert!(pods.synced());
        assert_eq!(names(&pods), ["a", "old", "young"]);
        pods.reset(vec![pod("old")]);
        assert!(pods.get(&"young".into()).is_none());
    }

    #[test]
    fn keeps_pod_beside_forged_mirror_pod_of_its_uid() {
        let forged = || Pod {
            kubelet_uid: "victim".into(),
            mirror: true,
            ..pod("tenant")
        };
        let pods = Pods::default();
        let kept = || pods.get(&"victim".into()).is_some_and(|pod| !pod.mirror);
        pods.apply(forged());
        pods.apply(pod("victim"));
        assert!(kept(), "comes second");
        pods.apply(forged());
        assert!(kept(), "comes first");
        pods.delete(&"tenant".into());
        assert!(kept(), "the forged one goes");
        pods.reset(vec![pod("victim"), forged()]);
        assert!(kept(), "both are listed");
        pods.reset(vec![forged()]);
        assert!(!kept(), "gone");
    }
}
