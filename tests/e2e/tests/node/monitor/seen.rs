//! What an administrator sees: every query of the chart's dashboards has data in a real Prometheus
//! that scraped real parts, and its rules can be evaluated.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::prometheus::{Prometheus, file, promtool, queries};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::running::{REAL, beside, monitored, over, pod};

const NAMESPACE: &str = "seen";
const RULES: &str = "charts/aliquot/files/alerts.yaml";
const RULES_TEST: &str = "tests/e2e/tests/node/monitor/alerts.yaml";
pub(crate) async fn on_dashboards(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, NAMESPACE).await?;
    let prometheus = Prometheus::start(stack, &Kind::ALL, &file(RULES)).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let quota = json!({"metadata": {"name": "most"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "50000"}}});
    let quota = serde_json::from_value(quota)?;
    quotas.create(&PostParams::default(), &quota).await?;
    pod(stack, NAMESPACE, "runs", "3000").await?;
    let waits = simple(NAMESPACE, "waits", &[("gpu", "2"), ("gpumem", "40000")]);
    stack.cluster.create_pod(waits).await?;
    // An error of a program, which takes nothing out of service.
    stack.machine().xid("0", 13)?;
    let program = &["init", "alloc,1000", "work,3"];
    let around = &[REAL, "init", "alloc,100"];
    let both = beside(stack, (NAMESPACE, "runs"), around, seen(&prometheus));
    beside(stack, (NAMESPACE, "runs"), program, both).await?;
    for kind in Kind::ALL {
        let text = http::get(stack.address(kind), "/metrics").await?;
        promtool(&["check", "metrics"], &classic(&text))?;
    }
    promtool(&["check", "rules", &file(RULES).to_string_lossy()], "")?;
    promtool(&["test", "rules", &file(RULES_TEST).to_string_lossy()], "")?;
    over(stack, NAMESPACE).await
}

async fn seen(prometheus: &Prometheus) -> Result<()> {
    let queries = queries()?;
    ensure!(queries.len() > 20, "{} queries", queries.len());
    eventually(PATIENCE, "data for every query", || async {
        let mut without = Vec::new();
        for (place, expression) in &queries {
            if prometheus.series(expression).await? == 0 {
                without.push(format!("{place}: {expression}"));
            }
        }
        let rules = prometheus.rules().await?;
        let bad: Vec<_> = rules
            .iter()
            .filter(|[_, health, ..]| health != "ok")
            .collect();
        until!(rules.len() > 5 && bad.is_empty(), "{bad:?}");
        until!(without.is_empty(), "{}", without.join("\n"));
        Ok(Some(()))
    })
    .await
}

/// An `OpenMetrics` text in the older form, the only one that promtool checks: there a counter's
/// family has the name of its samples.
fn classic(text: &str) -> String {
    let counters: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let line = |line: &str| {
        let mut words: Vec<String> = line.splitn(4, ' ').map(str::to_owned).collect();
        if line.starts_with('#') && words.len() > 2 && counters.contains(&words[2].as_str()) {
            words[2].push_str("_total");
        }
        words.join(" ") + "\n"
    };
    text.lines()
        .filter(|text| *text != "# EOF")
        .map(line)
        .collect()
}
