//! The declared metrics, the scraped ones and those of the reference are the same.

use std::collections::BTreeMap;

use aliquot_core::ledger::PodEntry;
use aliquot_core::usage::{AllocatedUse, DeviceUse};
use aliquot_core::{Reason, Refusal, Replicas};
use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use prometheus_client::encoding::text::encode;
use serde_json::json;

use super::*;
use crate::leader::Leadership;
use crate::ledger_cache::tests::{node, pod};
use crate::metrics::{ALL, reference};

fn scrape(cache: &Arc<LedgerCache>) -> String {
    let mut registry = Registry::default();
    let watch = Freshness::default();
    let leader = Leader::new(Leadership::always(), watch.clone());
    let watches = metrics::WATCHED.map(|kind| (kind, watch.clone()));
    let policies = Compared::default();
    let gauges = Gauges::new(cache, &event::queue().0, &leader, watches, policies);
    let metrics = gauges.register(&mut registry);
    metrics.refused(&Refusal::from(Reason::CardNotHealth));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    gpu_metrics_text(cache.snapshot()).fold(text, |text, piece| text + &piece)
}

#[test]
fn exports_exactly_the_declared_metrics() {
    let text = scrape(&Arc::default());
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let found: BTreeMap<_, _> = types.filter_map(|line| line.split_once(' ')).collect();
    let families: Vec<_> = ALL.iter().map(|m| (m.family(), m.kind.name())).collect();
    let declared: BTreeMap<_, _> = families
        .iter()
        .map(|(f, kind)| (f.as_str(), *kind))
        .collect();
    assert_eq!(found, declared);
    assert_eq!(declared.len(), ALL.len());
    let line = "aliquot_scheduler_refusals_total{reason=\"CardNotHealth\"} 1";
    assert!(text.lines().any(|found| found == line), "{text}");
}

#[test]
fn exports_allocated_free_and_orphaned_of_gpu() {
    let cache = LedgerCache::default();
    let mut object = node("n", 1000);
    let annotations = object.metadata.annotations.as_mut().unwrap();
    for text in annotations.values_mut() {
        let mut inventory: serde_json::Value = serde_json::from_str(text).unwrap();
        inventory["orphaned"] = json!([
            {"pod": "gone", "gpu": "GPU-n", "memory": 100, "cores": 10},
        ]);
        *text = inventory.to_string();
    }
    Index::<Node>::reset(&cache, vec![object]);
    Index::apply(&cache, pod("a", 600, Some("n")));
    let check = |name: &str, value: &str| {
        let text: String = gpu_metrics_text(cache.snapshot()).collect();
        let line =
            format!("aliquot_scheduler_gpu_{name}{{node=\"n\",gpu=\"GPU-n\",index=\"0\"}} {value}");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    };
    check("memory_allocated_bytes", "734003200");
    check("memory_free_bytes", "314572800");
    check("memory_orphaned_bytes", "104857600");
    check("cores_allocated_ratio", "0.1");
    check("cores_free_ratio", "0.9");
    check("cores_orphaned_ratio", "0.1");
    check("replicas_allocated", "2");
    check("replicas_free", "8");
    // What a victim still holds of the share that it is evicted for counts once.
    let used = DeviceUse::new(Mib(600), Percent(0));
    let allocated = AllocatedUse::Known([("GPU-n".into(), used)].into());
    let planned = PodEntry::planned(
        "n".into(),
        "d".into(),
        (allocated, Replicas::default()),
        (vec!["a".into()], true),
    );
    cache.lock().ledger.assume_plan(&"p".into(), planned);
    check("memory_allocated_bytes", "734003200");
    check("replicas_allocated", "2");
}

/// `UPDATE=1` rewrites it.
#[test]
fn metrics_reference_matches_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(written, reference(), "run: make reference");
}

#[test]
fn exports_use_and_limit_of_quotas() {
    let cache = Arc::new(LedgerCache::default());
    let hard = json!({"limits.nvidia.com/gpumem": "2k", "limits.nvidia.com/gpucores": "1Gi"});
    let object = json!({"metadata": {"name": "q", "namespace": "d"}, "spec": {"hard": hard}});
    Index::<ResourceQuota>::reset(&*cache, vec![serde_json::from_value(object).unwrap()]);
    Index::apply(&*cache, pod("a", 600, Some("n")));
    let text = scrape(&cache);
    let check = |name: &str, resource: &str, value: &str| {
        let labels =
            format!("namespace=\"d\",quota=\"q\",resource=\"limits.nvidia.com/{resource}\"");
        let line = format!("aliquot_scheduler_quota_{name}{{{labels}}} {value}");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    };
    check("used", "gpumem", "600");
    check("limit", "gpumem", "2000");
    check("used", "gpucores", "0");
    check("limit", "gpucores", "0");
}
