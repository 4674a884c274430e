//! The watches of pods and nodes, written into the books.
//!
//! Fed by: `aliquot_k8s::watch`. Must not: free a reservation because a list
//! lacks its pod: the pod may be younger than the list ([`crate::audit`] asks).

use std::collections::{HashMap, HashSet};

use aliquot_core::ledger::{Booking, Held};
use aliquot_core::node::Published;
use aliquot_core::{Compute, Ledger, Namespace, NodeName, PodUid};
use aliquot_k8s::node::published;
use aliquot_k8s::watch::Index;
use aliquot_k8s::{compute, pod};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::books::Books;
use crate::fail_point::{self, Point};
use crate::grown::Where;
use crate::waiting::{Waiting, waiting};

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
        host: Compute,
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
        let held = pod::held(pod).map_or_else(Held::nothing, |(_, held)| held);
        if held == Held::Unreadable {
            tracing::error!(pod = ?pod.metadata.name, %node, "allocation cannot be read; its node counts as full");
        }
        let host = compute::requested(pod);
        State::Bound { node, held, host }
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
        State::Bound { node, held, host } => {
            let old = ledger.confirm(&seen.uid, &seen.namespace, node, held.clone(), *host)?;
            (old.node != *node || old.held != *held).then_some(old)
        }
        State::Waiting(_) | State::Other => None,
    }
}

/// Keeps the pods that wait, with what is known of their last refusal.
fn wait(all: &mut HashMap<PodUid, Waiting>, seen: Seen, refused: bool) {
    let old = all.remove(&seen.uid);
    if let State::Waiting(mut new) = seen.state {
        new.refused = refused;
        if let Some(old) = old {
            new.refused = old.refused;
            new.offered = old.offered;
            new.told = old.told;
        }
        all.insert(seen.uid, *new);
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
        wait(&mut self.waits.lock(), seen, false);
        fail_point::at(Point::AfterApply);
    }

    fn delete(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = self.ledger.write().release(&uid);
        if let Some(booking) = freed {
            self.freed(&booking);
        }
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
        drop(ledger);
        let mut all = self.waits.lock();
        all.retain(|uid, _| listed.contains(uid));
        drop(listed);
        for seen in pods {
            wait(&mut all, seen, true);
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
