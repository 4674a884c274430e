//! Learns the cluster's typical pods from its books.
//!
//! Fed by: a clock and the books: every pod on a node with an inventory counts,
//! those without a GPU, too.
//! Must not: keep what it counted; the next look counts anew.

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::Census;
use tokio_util::sync::CancellationToken;

use crate::books::Books;

/// How often.
const EVERY: Duration = Duration::from_secs(30);
/// Nodes counted under one look at the ledger, so that nobody waits for long.
const NODES: usize = 64;

/// Runs until `stop`.
pub async fn run(books: Arc<Books>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if learn(&books) {
            let pods = books.policies().typical.pods().len();
            tracing::info!(pods, "typical pods changed");
        }
    }
}

/// Counts once; whether the typical pods became others by that.
pub fn learn(books: &Books) -> bool {
    let cluster = books.snapshot();
    let nodes = cluster.iter().filter(|(.., node)| node.inventory.is_some());
    let nodes: Vec<_> = nodes.map(|(_, name, _)| name).collect();
    let mut census = Census::default();
    for some in nodes.chunks(NODES) {
        books.read(|ledger| {
            for node in some {
                census.count(ledger, node);
            }
        });
    }
    books.adopt(census.typical())
}

#[cfg(test)]
mod tests {
    use aliquot_core::{Memory, Mib};
    use aliquot_k8s::watch::Index;
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;
    use crate::books::tests::{books, node, pod};

    #[test]
    fn typical_pods_are_those_on_nodes_with_gpus() {
        let books = books();
        Index::<Node>::apply(&books, node("m", 100_000));
        assert!(!learn(&books), "without pods the assumed mix stands");
        for number in 0..60 {
            Index::<Pod>::apply(&books, pod(&format!("a{number}"), 700, Some("m")));
            Index::<Pod>::apply(&books, pod(&format!("b{number}"), 10, Some("no-gpu")));
        }
        let before = books.policies();
        assert!(learn(&books));
        let typical = books.policies().typical.clone();
        let [only] = typical.pods() else {
            panic!("{typical:?}");
        };
        assert_eq!((only.count, only.memory), (1, Memory::Mib(Mib(700))));
        assert!(!Arc::ptr_eq(&before.typical, &typical));
        Index::<Pod>::apply(&books, pod("c", 800, Some("m")));
        assert!(!learn(&books), "one pod of sixty is no change");
        assert!(Arc::ptr_eq(&books.policies().typical, &typical));
    }
}
