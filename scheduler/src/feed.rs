//! The watches of pods and nodes, written into the books.
//!
//! Fed by: `aliquot_k8s::watch`. Must not: free a reservation because a list
//! lacks its pod: the pod may be younger than the list ([`crate::audit`] asks).

use std::collections::HashMap;

use aliquot_core::ledger::{Booking, Held};
use aliquot_core::node::Published;
use aliquot_core::{Ledger, NodeName, PodUid};
use aliquot_k8s::node::published;
use aliquot_k8s::watch::Index;
use aliquot_k8s::{compute, pod};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::books::Books;
use crate::waiting::{Waiting, waiting};

/// Books what the watch shows of a pod; the booking that ended or changed by it.
fn book(ledger: &mut Ledger, uid: &PodUid, pod: &Pod) -> Option<Booking> {
    if pod::ended(pod) {
        return ledger.release(uid);
    }
    let node = pod::node(pod)?;
    // Without an allocation somebody else bound it: what we may have reserved
    // elsewhere will not be used.
    let held = pod::held(pod).map_or_else(Held::nothing, |(_, held)| held);
    if held == Held::Unreadable {
        tracing::error!(pod = ?pod.metadata.name, %node, "allocation cannot be read; its node counts as full");
    }
    let host = compute::requested(pod);
    let old = ledger.confirm(uid, &node, held, host)?;
    let now = ledger.booking(uid)?;
    (now.node != old.node || now.held != old.held).then_some(old)
}

impl Books {
    fn wait(&self, all: &mut HashMap<PodUid, Waiting>, uid: PodUid, pod: &Pod, refused: bool) {
        if pod::node(pod).is_some() || pod::ended(pod) {
            all.remove(&uid);
            return;
        }
        match pod::demand(pod, self.settings()) {
            Ok(demand) if demand.asks() => {
                let mut new = waiting(pod, demand, refused);
                if let Some(old) = all.remove(&uid) {
                    new.refused = old.refused;
                    new.offered = old.offered;
                }
                all.insert(uid, new);
            }
            // A pod whose demand cannot be read is told so when it is filtered.
            Ok(_) | Err(_) => {
                all.remove(&uid);
            }
        }
    }
}

impl Index<Pod> for Books {
    fn apply(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = book(&mut self.ledger.write(), &uid, &pod);
        if let Some(booking) = freed {
            self.grow_on(&booking.node);
        }
        self.wait(&mut self.waits.lock(), uid, &pod, false);
    }

    fn delete(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = self.ledger.write().release(&uid);
        if let Some(booking) = freed {
            self.grow_on(&booking.node);
        }
        self.forget(&uid);
    }

    fn reset(&self, pods: Vec<Pod>) {
        let mut ledger = self.ledger.write();
        let listed: HashMap<_, _> = pods.iter().map(|pod| (pod::uid(pod), pod)).collect();
        let gone: Vec<_> = ledger
            .bookings()
            .filter(|(uid, booking)| booking.confirmed && !listed.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            ledger.release(&uid);
        }
        for (uid, pod) in &listed {
            book(&mut ledger, uid, pod);
        }
        drop(ledger);
        let mut all = self.waits.lock();
        all.retain(|uid, _| listed.contains_key(uid));
        for (uid, pod) in listed {
            self.wait(&mut all, uid, pod, true);
        }
        drop(all);
        self.grow(None);
    }
}

impl Index<Node> for Books {
    fn apply(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        let published = published(&node);
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

    fn reset(&self, nodes: Vec<Node>) {
        let mut ledger = self.ledger.write();
        let nodes: HashMap<NodeName, Published> = nodes
            .iter()
            .map(|node| {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                (name.into(), published(node))
            })
            .collect();
        let known = ledger.cluster().iter().map(|(_, name, _)| name.clone());
        for gone in known
            .filter(|name| !nodes.contains_key(name))
            .collect::<Vec<_>>()
        {
            ledger.publish(&gone, None);
        }
        for (name, published) in nodes {
            ledger.publish(&name, Some(published));
        }
        drop(ledger);
        self.grow(None);
    }
}
