//! The kubelet's replicas in the model: a plain sum over the pods of a node.

use super::{LedgerTest, PodUid, namespace, uid};
use crate::refusal::{Reason, Refusal};
use crate::usage::AllocatedUse;
use crate::{Demand, NodeName, NodeState, Replicas, Requests};

/// This many of the main resource.
pub(super) fn usual(count: u32) -> Replicas {
    Replicas::from_iter([("nvidia.com/gpu".into(), count)])
}

impl LedgerTest {
    /// The watch shows the pod bound with this.
    pub(super) fn observe_bound(
        &mut self,
        pod: u8,
        node: NodeName,
        allocated: AllocatedUse,
        replicas: Replicas,
    ) {
        self.replicas.insert(pod, replicas.clone());
        let requests = Requests {
            replicas,
            ..Requests::default()
        };
        let (uid, namespace) = (uid(pod), namespace(pod));
        self.ledger
            .confirm(&uid, &namespace, &node, allocated.clone(), requests);
        // As the scheduler does: a pod that the watch shows bound waits for nothing more.
        self.ledger.drop_reservation(&uid);
        self.reservations.remove(&pod);
        self.model.insert(pod, (node, allocated, true));
    }

    pub(super) fn offer(&mut self, node: &NodeName, offered: Option<u32>) {
        let Some(mut published) = self.ledger.published(node.as_str()).cloned() else {
            return;
        };
        let resources = ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"];
        let all = |count| resources.map(|name| (name.into(), count));
        published.replicas = offered.map(|count| Replicas::from_iter(all(count)));
        self.ledger.publish(node, Some(published));
    }

    /// What all pods on the node request under a resource, including those with a
    /// reservation and no entry.
    fn requested(&self, node: &NodeName, resource: &str, except: Option<&PodUid>) -> u32 {
        let of_pods = self.model.iter().filter(|(_, (on, ..))| on == node);
        let of_pods = of_pods.map(|(pod, _)| self.replicas[pod].under(resource));
        let waiting = self
            .waiting()
            .filter(|(pod, own)| own.node == *node && Some(&uid(*pod)) != except);
        let reservations = waiting.map(|(_, own)| own.replicas.under(resource));
        of_pods.chain(reservations).sum()
    }

    pub(super) fn check_replicas(&self, node: &NodeName, state: &NodeState) {
        for resource in [
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.5gb",
            "nvidia.com/mig-3g.20gb",
        ] {
            let found = state.replicas.requested.under(resource);
            assert_eq!(found, self.requested(node, resource, None), "{resource}");
        }
    }

    /// After an allocation, no more replicas are requested than offered.
    pub(super) fn offered_enough(&self, node: &NodeName, demand: &Demand) {
        let state = self.ledger.cluster().node(node.as_str()).expect("reserved");
        let Some(offered) = &state.replicas.offered else {
            return;
        };
        for resource in &demand.resources {
            let asked = demand.replicas().under(resource);
            let sum = state.replicas.requested.under(resource);
            assert!(asked == 0 || sum <= offered.under(resource), "{resource}");
        }
    }

    /// A refusal for replicas is right: some resource has too few.
    pub(super) fn check_replica_shortage(
        &self,
        pod: u8,
        node: &NodeName,
        demand: &Demand,
        why: &Refusal,
    ) {
        if why.count(Reason::NodeInsufficientSeats) == 0 {
            return;
        }
        let state = self.ledger.cluster().node(node.as_str()).expect("refused");
        let offered = state
            .replicas
            .offered
            .as_ref()
            .expect("a kubelet that counts");
        let short = demand.resources.iter().any(|resource| {
            let others = self.requested(node, resource, Some(&uid(pod)));
            others + demand.replicas().under(resource) > offered.under(resource)
        });
        assert!(short, "{why}");
    }
}
