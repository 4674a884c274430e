//! Seats of the kubelet in the model: a plain sum over the pods of a node.

use super::{Books, PodUid, namespace, uid};
use crate::ledger::Held;
use crate::reason::{Reason, Refusal};
use crate::{Demand, NodeName, NodeState, Requests, Seats};

/// So many of the usual resource.
pub(super) fn usual(count: u32) -> Seats {
    Seats::from_iter([("nvidia.com/gpu".into(), count)])
}

impl Books {
    /// The watch shows the pod bound with this.
    pub(super) fn shown(&mut self, pod: u8, node: NodeName, held: Held, seats: Seats) {
        self.seats.insert(pod, seats.clone());
        let requests = Requests {
            seats,
            ..Requests::default()
        };
        let (uid, namespace) = (uid(pod), namespace(pod));
        self.ledger
            .confirm(&uid, &namespace, &node, held.clone(), requests);
        self.model.insert(pod, (node, held, true));
    }

    pub(super) fn offer(&mut self, node: &NodeName, offered: Option<u32>) {
        let Some(mut published) = self.ledger.published(node.as_str()).cloned() else {
            return;
        };
        let resources = ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"];
        let all = |count| resources.map(|name| (name.into(), count));
        published.seats = offered.map(|count| Seats::from_iter(all(count)));
        self.ledger.publish(node, Some(published));
    }

    /// What all pods on the node request under a resource, and those for whom
    /// something of it is held and who are not booked.
    fn requested(&self, node: &NodeName, resource: &str, but: Option<&PodUid>) -> u32 {
        let booked = self.model.iter().filter(|(_, (on, ..))| on == node);
        let booked = booked.map(|(pod, _)| self.seats[pod].under(resource));
        let waits = |pod: &u8| !self.model.contains_key(pod) && Some(&uid(*pod)) != but;
        let holds = self.holds.iter();
        let holds = holds.filter(|(pod, (on, _))| on == node && waits(pod));
        let holds = holds.map(|_| u32::from(resource == "nvidia.com/gpu"));
        booked.chain(holds).sum()
    }

    pub(super) fn check_seats(&self, node: &NodeName, state: &NodeState) {
        for resource in [
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.5gb",
            "nvidia.com/mig-3g.20gb",
        ] {
            let found = state.seats.requested.under(resource);
            assert_eq!(found, self.requested(node, resource, None), "{resource}");
        }
    }

    /// Of what the pod was given a seat for, no more is requested than is offered.
    pub(super) fn offered_enough(&self, node: &NodeName, demand: &Demand) {
        let state = self.ledger.cluster().node(node.as_str()).expect("reserved");
        let Some(offered) = &state.seats.offered else {
            return;
        };
        for resource in &demand.resources {
            let asked = demand.seats().under(resource);
            let sum = state.seats.requested.under(resource);
            assert!(asked == 0 || sum <= offered.under(resource), "{resource}");
        }
    }

    /// Refused for seats: under some resource there are too few.
    pub(super) fn short_of_seats(&self, pod: u8, node: &NodeName, demand: &Demand, why: &Refusal) {
        if why.count(Reason::NodeInsufficientSeats) == 0 {
            return;
        }
        let state = self.ledger.cluster().node(node.as_str()).expect("refused");
        let offered = state.seats.offered.as_ref().expect("a kubelet that counts");
        let short = demand.resources.iter().any(|resource| {
            let others = self.requested(node, resource, Some(&uid(pod)));
            others + demand.seats().under(resource) > offered.under(resource)
        });
        assert!(short, "{why}");
    }
}
