//! The values of all parts on an API server, which checks the objects and creates pods of them; no pod runs,
//! because there is no node.

use std::sync::Arc;

use aliquot_chart::{IMAGE, NAMESPACE, chart};
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_cluster::{Cluster, crds, until};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{ChartCluster, helm_on};

fn values() -> Value {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let labelled = json!({"matchExpressions": [{"key": "e", "operator": "Exists"}]});
    let others = json!({"matchLabels": {"team": "other"}});
    let apart = json!({"topologyKey": "zone", "labelSelector": others});
    let pod = json!({
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "nodeSelector": {"pool": "c"},
        "tolerations": [{"key": "d", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": [labelled]}},
            "podAntiAffinity": {required: [apart]},
        },
        "priorityClassName": "system-cluster-critical",
    });
    let requests = json!({"cpu": "70m", "memory": "70Mi"});
    let resources = json!({"requests": requests, "limits": {"memory": "700Mi"}});
    json!({
        "platform": {"openshift": true},
        "scheduler": {
            "pod": pod,
            "extender": {"resources": resources},
            "kubeScheduler": {"resources": resources},
        },
        "webhook": {"pod": pod, "resources": resources},
        "devicePlugin": {
            "pod": pod,
            "resources": resources,
            "mps": {"enabled": true, "resources": resources},
        },
        "monitor": {"resources": resources},
        "monitoring": {
            "enabled": true,
            "dashboards": true,
            "labels": {"release": "prometheus"},
            "readers": [{"name": "prometheus-k8s", "namespace": "monitoring"}],
        },
    })
}

async fn json_of(cluster: &Cluster, what: &[&str]) -> Result<Value> {
    let get = [&["get", "-n", NAMESPACE, "-o", "json"][..], what].concat();
    let text = cluster.kubectl(&get).await?.success()?;
    Ok(serde_json::from_str(&text)?)
}

async fn list(cluster: &Cluster, kinds: &str) -> Result<Vec<Value>> {
    let list = json_of(cluster, &[kinds]).await?;
    Ok(list["items"].as_array().context("no list")?.clone())
}

pub(crate) async fn are_accepted(on: Arc<ChartCluster>) -> Result<()> {
    let cluster = &on.cluster;
    cluster.namespace(NAMESPACE).await?;
    let definitions = crds().await?;
    for kind in ["servicemonitors", "prometheusrules"] {
        let file = definitions.join(format!("monitoring.coreos.com_{kind}.yaml"));
        let apply = ["apply", "--server-side", "-f", &*file.to_string_lossy()];
        cluster.kubectl(&apply).await?.success()?;
    }
    cluster.wait_established().await?;
    let file = cluster.state_dir().join("parts.json");
    std::fs::write(&file, values().to_string())?;
    let (chart, file) = (chart(), file.to_string_lossy());
    let install = ["install", "aliquot", &chart, IMAGE, "-f", &file];
    helm_on(cluster, &install)?.success()?;

    let parts = list(cluster, "deployments,daemonsets").await?;
    ensure!(parts.len() == 5, "{} of 5 parts", parts.len());
    // Admission accepts their pods, too: Kubernetes' own, the chart's policies and its quota.
    eventually(PATIENCE, "the pods of scheduler and webhook", || async {
        let pods = list(cluster, "pods").await?;
        until!(pods.len() == 4, "{} of 4 pods", pods.len());
        Ok(Some(()))
    })
    .await?;
    monitoring(cluster).await?;
    let uninstall = ["uninstall", "aliquot", "--no-hooks"];
    helm_on(cluster, &uninstall)?.success()?;
    Ok(())
}

/// The Prometheus operator's objects have what its definitions know, and the token exists.
async fn monitoring(cluster: &Cluster) -> Result<()> {
    let monitors = list(cluster, "servicemonitors.monitoring.coreos.com").await?;
    ensure!(monitors.len() == 4, "{} of 4 monitors", monitors.len());
    let token = json!({"name": "aliquot-metrics", "key": "token"});
    for monitor in &monitors {
        let labels = &monitor["metadata"]["labels"];
        ensure!(labels["release"] == "prometheus", "{monitor}");
        let endpoint = &monitor["spec"]["endpoints"][0];
        let credentials = &endpoint["authorization"]["credentials"];
        let is_known = *credentials == token && endpoint["honorLabels"] == true;
        let is_known = is_known && endpoint["tlsConfig"]["insecureSkipVerify"] == true;
        ensure!(is_known, "{monitor}");
    }
    let rules = ["prometheusrules.monitoring.coreos.com", "aliquot"];
    let rules = json_of(cluster, &rules).await?;
    let alert = &rules["spec"]["groups"][0]["rules"][0]["alert"];
    ensure!(alert.is_string(), "{rules}");
    eventually(PATIENCE, "the token of the ServiceMonitors", || async {
        let secret = json_of(cluster, &["secret", "aliquot-metrics"]).await?;
        until!(secret["data"]["token"].is_string(), "{secret}");
        Ok(Some(()))
    })
    .await
}
