//! kube-scheduler preempts for CPU where ours would preempt for shares.

use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::wait::{PATIENCE, eventually, throughout};
use aliquot_e2e::pods::classes;
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::ranks::{only_on, ranked, running, there};

const ONE: Shape = Shape {
    gpus: 1,
    replicas: 10,
};

/// A pod of the class `batch` without a share that takes `cpu` of this node, with a long grace
/// period.
fn hungry(pool: &Pool<'_>, name: &str, node: &str, cpu: &str) -> Value {
    let mut pod = ranked(pool, name, "batch", 1, only_on(node));
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
    pod
}

/// One set only.
pub(crate) async fn for_cpu(stack: Arc<Stack>) -> Result<()> {
    classes(&stack).await?;
    let nodes = ["beside-cpu", "beside-gpu"].map(|name| (name.to_owned(), ONE));
    let pool = Pool::open(&stack, "beside", &nodes).await?;
    // One node has no CPU left, the other no memory on its GPU.
    running(&stack, &pool, hungry(&pool, "hungry", "beside-cpu", "60")).await?;
    let low = ranked(&pool, "low", "batch", 70_000, only_on("beside-gpu"));
    running(&stack, &pool, low).await?;
    let mut urgent = ranked(&pool, "urgent", "urgent", 60_000, json!(null));
    urgent["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "32"});
    stack.cluster.create_pod(urgent).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    // kube-scheduler has begun; its victim takes five seconds of the thirty.
    let ending = eventually(PATIENCE, "a victim", || async {
        let pods = pods.list(&ListParams::default()).await?.items;
        let mut pods = pods.into_iter();
        Ok(pods.find(|pod| pod.metadata.deletion_timestamp.is_some()))
    })
    .await?;
    ensure!(
        ending.metadata.name.as_deref() == Some("hungry"),
        "{ending:?}"
    );
    throughout(Duration::from_secs(5), || async {
        let there = there(&stack, &pool).await?;
        ensure!(there.contains("low"), "a second set of victims: {there:?}");
        Ok(())
    })
    .await?;
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("hungry", &at_once).await?;
    let bound = pool.bound("urgent").await?;
    ensure!(node_of(&bound) == Some("beside-cpu"), "{bound:?}");
    let there = there(&stack, &pool).await?;
    ensure!(there.contains("low"), "{there:?}");
    pool.close().await
}
