//! Learns the cluster's typical pods from the ledger. Every pod on a node with an inventory counts,
//! also without a GPU, and every pass counts from zero.

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::Census;
use tokio_util::sync::CancellationToken;

use crate::ledger_cache::LedgerCache;
use crate::ticks::Ticks;

const INTERVAL: Duration = Duration::from_secs(30);
/// Nodes counted under one lock of the ledger, so that others do not wait long.
const NODES: usize = 64;

pub async fn run(cache: Arc<LedgerCache>, stop: CancellationToken) {
    let mut ticks = Ticks::every(INTERVAL, &stop);
    while ticks.next().await {
        if learn(&cache) {
            let pods = cache.policies().typical.pods().len();
            tracing::info!(pods, "adopted new typical pods");
        }
    }
}

/// Counts once; whether the typical pods changed.
pub fn learn(cache: &LedgerCache) -> bool {
    let cluster = cache.snapshot();
    let nodes = cluster.iter().filter(|(.., node)| node.inventory.is_some());
    let nodes: Vec<_> = nodes.map(|(_, name, _)| name).collect();
    let mut census = Census::default();
    for some in nodes.chunks(NODES) {
        cache.read(|ledger| {
            for node in some {
                ledger.count_pods(node, &mut census);
            }
        });
    }
    cache.adopt(census.typical())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aliquot_core::{Memory, Mib};
    use aliquot_k8s::watch::Index;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::ledger_cache::tests::{cache, node, pod, pod_with};

    #[test]
    fn learns_typical_pods_from_nodes_with_gpus() {
        let cache = cache();
        Index::<Node>::apply(&cache, node("m", 100_000));
        assert!(!learn(&cache), "without pods the assumed mix stands");
        for number in 0..60 {
            Index::apply(&cache, pod(&format!("a{number}"), 700, Some("m")));
            Index::apply(&cache, pod(&format!("b{number}"), 10, Some("no-gpu")));
        }
        let before = cache.policies();
        assert!(learn(&cache));
        let typical = cache.policies().typical.clone();
        let [only] = typical.pods() else {
            panic!("{typical:?}");
        };
        assert_eq!((only.count, only.memory), (1, Memory::Mib(Mib(700))));
        assert!(!Arc::ptr_eq(&before.typical, &typical));
        Index::apply(&cache, pod("c", 800, Some("m")));
        assert!(!learn(&cache), "one pod of sixty is no change");
        assert!(Arc::ptr_eq(&cache.policies().typical, &typical));
    }

    /// Half of the pods accept only the model of one of two nodes.
    #[test]
    fn learns_which_models_pods_accept() {
        let cache = cache();
        for name in ["m", "x"] {
            let mut node = node(name, 100_000);
            let (model, replicas) = (format!(r#""model":"{name}""#), r#""replicas":100"#);
            let annotations = node.metadata.annotations.iter_mut();
            for text in annotations.flat_map(BTreeMap::values_mut) {
                *text = text.replace(r#""model":"m""#, &model);
                *text = text.replace(r#""replicas":10"#, replicas);
            }
            Index::<Node>::apply(&cache, node);
        }
        for number in 0..30 {
            Index::apply(&cache, pod(&format!("a{number}"), 700, Some("m")));
            let pin = json!({"metadata": {"annotations": {"aliquot.dev/use-gputype": "x"}}});
            let pinned = pod_with(&format!("b{number}"), 700, Some("x"), pin);
            Index::apply(&cache, pinned);
        }
        assert!(learn(&cache));
        let typical = cache.policies().typical.clone();
        assert!(
            typical.price("x") > 0 && typical.price("m") == 0,
            "{typical:?}"
        );
    }
}
