//! Who holds the units that a refused pod names: the pods behind `CardPinned`.
//!
//! Fed by: the books and what is known of their pods. Must not: judge; it is asked
//! once a pod was refused for that reason.

use std::collections::BTreeSet;

use aliquot_core::cut::in_the_way;
use aliquot_core::explain::NodeAnswer;
use aliquot_core::ledger::Held;
use aliquot_core::reason::Reason;
use aliquot_core::{Demand, PodUid};
use aliquot_k8s::event::PodRef;

use crate::books::Books;

/// More are not named.
const MOST: usize = 3;

fn said(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

impl Books {
    /// The pods on a node that hold what this one names, as `namespace/name`.
    fn holders_on(&self, node: &str, demand: &Demand) -> Vec<String> {
        let holders: Vec<PodUid> = self.read(|ledger| {
            let Some(state) = ledger.cluster().node(node) else {
                return Vec::new();
            };
            let pods = ledger.pods_on(node).filter(|pod| {
                let held = ledger.booking(pod).map(|booking| &booking.held);
                matches!(held, Some(Held::Uses(uses)) if in_the_way(state, demand, uses))
            });
            pods.cloned().collect()
        });
        // One after the other: who writes tenants holds the lock of those that wait.
        let tenants: Vec<Option<String>> = {
            let tenants = self.tenants.0.read();
            let name = |uid| tenants.get(uid).map(|tenant| said(&tenant.pod));
            holders.iter().map(name).collect()
        };
        let waits = self.waits.lock();
        let name = |(uid, tenant): (&PodUid, Option<String>)| {
            tenant
                .or_else(|| waits.get(uid).map(|waiting| said(&waiting.pod)))
                .unwrap_or_else(|| format!("the pod with uid {uid}"))
        };
        holders.iter().zip(tenants).map(name).collect()
    }

    /// ` (held by ns/pod)`, by name; nothing where nobody is found. More nodes than it
    /// takes to find enough are not looked at.
    pub(crate) fn held_by(&self, nodes: &[&str], demand: &Demand) -> String {
        let mut holders = BTreeSet::new();
        for node in nodes {
            holders.extend(self.holders_on(node, demand));
            if holders.len() > MOST {
                break;
            }
        }
        let mut holders: Vec<String> = holders.into_iter().collect();
        let more = if holders.len() > MOST { ", ..." } else { "" };
        holders.truncate(MOST);
        match holders.join(", ") {
            none if none.is_empty() => none,
            some => format!(" (held by {some}{more})"),
        }
    }

    /// Says of each card that is refused for it who holds what the pod names.
    pub(crate) fn name_holders(&self, answer: &mut NodeAnswer, demand: &Demand) {
        let pinned = Reason::CardPinned.name();
        for gpu in answer.gpus.iter_mut().filter(|gpu| gpu.answer == pinned) {
            let held = self.held_by(&[answer.node.as_str()], demand);
            let bare = held.trim_start_matches(" (").trim_end_matches(')');
            bare.clone_into(&mut gpu.detail);
        }
    }
}
