//! The watches of pods and nodes, written into the books.
//!
//! Fed by: `aliquot_k8s::watch`. Must not: free a reservation because a list
//! lacks its pod: the pod may be younger than the list ([`crate::audit`] asks).

use std::collections::{HashMap, HashSet};

use aliquot_core::ledger::{Booking, Held};
use aliquot_core::node::Published;
use aliquot_core::preemption::record::PREEMPTION;
use aliquot_core::{Ledger, Namespace, NodeName, PodUid, Requests};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::node::published;
use aliquot_k8s::watch::Index;
use aliquot_k8s::{pod, seats};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::books::Books;
use crate::fail_point::{self, Point};
use crate::grown::Where;
use crate::tenants::{self, Tenant};
use crate::waiting::{Waiting, reference, waiting};

/// A pod as far as the books need it.
#[derive(Debug)]
pub struct Seen {
    uid: PodUid,
    namespace: Namespace,
    state: State,
}

#[derive(Debug)]
enum State {
    Ended,
    Bound {
        node: NodeName,
        held: Held,
        requests: Requests,
        /// What preemption must know of it, if anything.
        tenant: Option<Box<Tenant>>,
        /// It still carries a plan of preemption.
        planned: Option<Box<PodRef>>,
    },
    Waiting(Box<Waiting>),
    /// Not bound, and no concern of ours.
    Other,
}

/// Reads a pod.
fn seen(pod: &Pod, settings: &pod::Settings) -> Seen {
    let uid = pod::uid(pod);
    let state = if pod::ended(pod) {
        State::Ended
    } else if let Some(node) = pod::node(pod) {
        // Without an allocation somebody else bound it: what we may have
        // reserved elsewhere will not be used.
        let held = pod::held(pod, settings).map_or_else(Held::nothing, |(_, held)| held);
        if held == Held::Unreadable {
            tracing::error!(pod = ?pod.metadata.name, %node, "allocation cannot be read; its node counts as full");
        }
        State::Bound {
            tenant: tenants::read(pod, &node, &held),
            planned: pod::annotation(pod, PREEMPTION).map(|_| Box::new(reference(pod))),
            requests: seats::requests(pod, settings),
            node,
            held,
        }
    } else {
        match pod::demand(pod, settings) {
            Ok(demand) if demand.asks() => State::Waiting(Box::new(waiting(pod, demand, false))),
            // A pod whose demand cannot be read is told so when it is filtered.
            Ok(_) | Err(_) => State::Other,
        }
    };
    Seen {
        uid,
        namespace: pod::namespace(pod),
        state,
    }
}

/// Books what the watch shows of a pod; the booking that ended or changed by it.
fn book(ledger: &mut Ledger, seen: &Seen) -> Option<Booking> {
    match &seen.state {
        State::Ended => ledger.release(&seen.uid),
        State::Bound {
            node,
            held,
            requests,
            ..
        } => {
            let (namespace, asked) = (&seen.namespace, requests.clone());
            let old = ledger.confirm(&seen.uid, namespace, node, held.clone(), asked)?;
            let same =
                old.node == *node && old.held == *held && old.requests.seats == requests.seats;
            (!same).then_some(old)
        }
        State::Waiting(_) | State::Other => None,
    }
}

impl Books {
    /// Keeps the pods that wait, with what is known of their last refusal, and
    /// those that preemption may ask to end.
    fn keep(&self, all: &mut HashMap<PodUid, Waiting>, seen: Seen, refused: bool) {
        let old = all.remove(&seen.uid);
        let mut tenant = None;
        match seen.state {
            State::Waiting(mut new) => {
                new.refused = refused;
                if let Some(old) = old {
                    new.refused = old.refused;
                    new.offered = old.offered;
                    new.told = old.told;
                    let last = &mut new.preemption.nominated_last;
                    *last = last.take().or(old.preemption.nominated_last);
                }
                self.plan_shown(&seen.uid, &new);
                all.insert(seen.uid.clone(), *new);
            }
            State::Bound {
                tenant: shown,
                planned,
                ..
            } => {
                self.plan_over(&seen.uid, planned);
                tenant = shown;
            }
            State::Ended | State::Other => self.plan_over(&seen.uid, None),
        }
        self.tenants.0.write().put(&seen.uid, tenant);
    }
}

impl Index<Pod> for Books {
    type Entry = Seen;

    fn entry(&self, pod: Pod) -> Seen {
        seen(&pod, self.settings())
    }

    fn apply(&self, pod: Pod) {
        fail_point::at(Point::BeforeApply);
        let seen = self.entry(pod);
        let freed = book(&mut self.ledger.write(), &seen);
        if let Some(booking) = freed {
            self.freed(&booking);
        }
        self.keep(&mut self.waits.lock(), seen, false);
        fail_point::at(Point::AfterApply);
    }

    fn delete(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = self.ledger.write().release(&uid);
        if let Some(booking) = freed {
            self.freed(&booking);
        }
        self.tenants.0.write().put(&uid, None);
        self.forget(&uid);
    }

    fn replace(&self, pods: Vec<Seen>) {
        fail_point::at(Point::BeforeReset);
        let mut ledger = self.ledger.write();
        let listed: HashSet<&PodUid> = pods.iter().map(|seen| &seen.uid).collect();
        let gone: Vec<_> = ledger
            .bookings()
            .filter(|(uid, booking)| booking.confirmed && !listed.contains(uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            ledger.release(&uid);
        }
        for seen in &pods {
            book(&mut ledger, seen);
        }
        let holders = ledger.holds().map(|(uid, _)| uid);
        let gone: Vec<_> = holders
            .filter(|uid| !listed.contains(uid))
            .cloned()
            .collect();
        for uid in gone {
            ledger.unhold(&uid);
        }
        drop(ledger);
        self.tenants.0.write().retain(|uid| listed.contains(uid));
        let mut all = self.waits.lock();
        all.retain(|uid, _| listed.contains(uid));
        drop(listed);
        for seen in pods {
            self.keep(&mut all, seen, true);
        }
        drop(all);
        self.grow(Where::Everywhere);
        fail_point::at(Point::AfterReset);
    }
}

impl Index<Node> for Books {
    type Entry = (NodeName, Published);

    fn entry(&self, node: Node) -> Self::Entry {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        (name.into(), published(&node))
    }

    fn apply(&self, node: Node) {
        let (name, published) = self.entry(node);
        let mut ledger = self.ledger.write();
        if ledger.published(name.as_str()) == Some(&published) {
            return;
        }
        ledger.publish(&name, Some(published));
        drop(ledger);
        self.grow_on(&name);
    }

    fn delete(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        self.ledger.write().publish(&name, None);
    }

    fn replace(&self, nodes: Vec<(NodeName, Published)>) {
        let mut ledger = self.ledger.write();
        let listed: HashSet<&NodeName> = nodes.iter().map(|(name, _)| name).collect();
        let known = ledger.cluster().iter().map(|(_, name, _)| name);
        let gone: Vec<_> = known.filter(|n| !listed.contains(n)).cloned().collect();
        drop(listed);
        for name in gone {
            ledger.publish(&name, None);
        }
        for (name, published) in nodes {
            ledger.publish(&name, Some(published));
        }
        drop(ledger);
        self.grow(Where::Everywhere);
    }
}
