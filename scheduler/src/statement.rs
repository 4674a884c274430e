//! A statement of the books, for people: what every card has promised, and what
//! every pod holds. `GET /books` beside the metrics, which may not name pods.
//!
//! Fed by: a copy of the ledger. Must not: change it, or decide anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::inventory::{Gpu, Health};
use aliquot_core::ledger::{Booking, Held};
use aliquot_core::node::Sums;
use aliquot_core::reason::Reason;
use aliquot_core::top::Amount;
use aliquot_core::{GpuUuid, Ledger, NodeName, PodUid};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::books::Books;

/// Everything. Sorted, so that equal books give equal texts.
#[derive(Debug, Serialize)]
pub struct Statement {
    nodes: BTreeMap<NodeName, NodeLine>,
    bookings: BTreeMap<PodUid, PodLine>,
}

#[derive(Debug, Serialize)]
struct NodeLine {
    /// A pod's allocation cannot be read: the node counts as full.
    unreadable: bool,
    /// `null` for a node whose inventory is not known.
    gpus: Option<Vec<GpuLine>>,
}

#[derive(Debug, Serialize)]
struct GpuLine {
    uuid: GpuUuid,
    health: Health,
    pods: u32,
    used: Amount,
    total: Amount,
}

#[derive(Debug, Serialize)]
struct PodLine {
    node: NodeName,
    /// Seen in the API server; otherwise its Binding is on the way.
    confirmed: bool,
    /// `null` when the allocation cannot be read.
    gpus: Option<BTreeMap<GpuUuid, Amount>>,
}

impl Statement {
    /// The statement of these books.
    pub fn of(ledger: &Ledger) -> Self {
        let nodes = ledger.cluster().iter().filter_map(|(_, name, node)| {
            let inventory = node.inventory.as_ref();
            let gpus = inventory.map(|inventory| {
                let cards = inventory.gpus.iter().zip(&node.cards);
                cards.map(|(gpu, card)| line(gpu, &card.sums)).collect()
            });
            let mut pods = ledger.pods_on(name.as_str());
            let holds = pods.any(|pod| ledger.booking(pod).is_some_and(Booking::holds));
            let unreadable = node.closed == Some(Reason::NodeAllocationUnreadable);
            let line = NodeLine { unreadable, gpus };
            // Nodes without GPU that only run pods without GPU say nothing here.
            (line.gpus.is_some() || holds).then(|| (name.clone(), line))
        });
        Self {
            nodes: nodes.collect(),
            bookings: ledger
                .bookings()
                .filter(|(_, booking)| booking.holds())
                .map(|(pod, booking)| (pod.clone(), entry(booking)))
                .collect(),
        }
    }
}

fn line(gpu: &Gpu, sums: &Sums) -> GpuLine {
    GpuLine {
        uuid: gpu.uuid.clone(),
        health: gpu.health.clone(),
        pods: sums.pods,
        used: sums.used.into(),
        total: Amount {
            seats: gpu.seats,
            memory: gpu.scaled,
            cores: gpu.cores,
        },
    }
}

fn entry(booking: &Booking) -> PodLine {
    let gpus = match &booking.held {
        Held::Uses(uses) => {
            let uses = uses.iter();
            Some(uses.map(|(gpu, used)| (gpu.clone(), (*used).into())))
        }
        Held::Unreadable => None,
    };
    PodLine {
        node: booking.node.clone(),
        confirmed: booking.confirmed,
        gpus: gpus.map(Iterator::collect),
    }
}

/// The route.
pub fn router(books: Arc<Books>) -> Router {
    Router::new().route("/books", get(show)).with_state(books)
}

async fn show(State(books): State<Arc<Books>>) -> Json<Statement> {
    // A copy: the lock is not held while the text is made.
    Json(Statement::of(&books.read(Ledger::clone)))
}

#[cfg(test)]
mod tests {
    use aliquot_k8s::watch::Index;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::books::tests::{node, pod};

    #[test]
    fn the_statement_names_every_card_and_every_booking() {
        let books = Books::default();
        Index::<Node>::reset(&books, vec![node("n", 1000)]);
        Index::apply(&books, pod("a", 600, Some("n")));
        Index::apply(&books, pod("b", 100, Some("unknown")));
        let statement = books.read(Statement::of);
        let amount =
            |seats, memory, cores| json!({"seats": seats, "memory": memory, "cores": cores});
        let held = |node: &str, memory| {
            json!({
                "node": node, "confirmed": true,
                "gpus": {format!("GPU-{node}"): amount(1, memory, 0)},
            })
        };
        let expected = json!({
            "nodes": {
                "n": {"unreadable": false, "gpus": [{
                    "uuid": "GPU-n", "health": "ok", "pods": 1,
                    "used": amount(1, 600, 0), "total": amount(10, 1000, 100),
                }]},
                "unknown": {"unreadable": false, "gpus": null},
            },
            "bookings": {"a": held("n", 600), "b": held("unknown", 100)},
        });
        assert_eq!(serde_json::to_value(&statement).unwrap(), expected);
    }
}
