//! The Prometheus operator's definitions know every field of the chart's objects for it.

use std::sync::Arc;

use aliquot_chart::{NAMESPACE, rendered};
use aliquot_cluster::crds;
use anyhow::{Result, ensure};

use crate::ChartCluster;

pub(crate) async fn is_known(on: Arc<ChartCluster>) -> Result<()> {
    let cluster = &on.cluster;
    cluster.namespace(NAMESPACE).await?;
    let definitions = crds().await?;
    for kind in ["servicemonitors", "prometheusrules"] {
        let file = definitions.join(format!("monitoring.coreos.com_{kind}.yaml"));
        let apply = ["apply", "--server-side", "-f", &*file.to_string_lossy()];
        cluster.kubectl(&apply).await?.success()?;
    }
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    cluster.kubectl(&established).await?.success()?;
    let mut objects = rendered(&["--set=monitoring.enabled=true"])?;
    objects.retain(|one| one.0["apiVersion"] == "monitoring.coreos.com/v1");
    ensure!(objects.len() == 5, "{} of 5 objects", objects.len());
    let file = cluster.state_dir().join("monitoring.json");
    let (path, trial) = (file.to_string_lossy(), "--dry-run=server");
    for object in objects {
        std::fs::write(&file, object.0.to_string())?;
        let create = ["create", trial, "--validate=strict", "-f", &*path];
        cluster.kubectl(&create).await?.success()?;
    }
    Ok(())
}
