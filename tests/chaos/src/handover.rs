//! Kills the leading replica in the middle of a preemption for good: the other one carries out its
//! plan and makes no other. Victims are compared by uid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::Cluster;
use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually, throughout};
use aliquot_core::preemption::record::{PREEMPTION, PreemptionRecord};
use aliquot_e2e::ledger::reported_ledger;
use aliquot_e2e::pods::{classes, simple};
use aliquot_e2e::pool::{Shape, node_of};
use aliquot_e2e::proxy::{StoppedRequest, Traffic, Trap};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::replicas::{Replicas, print_line};
use crate::run::on_stack;

const NAMESPACE: &str = "handover";
/// Two GPUs with four pods of 20,000 MiB each, and two further nodes like it, so that a new plan
/// could choose others.
const NODES: [&str; 3] = ["handover-1", "handover-2", "handover-3"];
const SHAPE: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
const TENANTS: usize = 24;
/// Of 81,920 MiB, 60,000 are free once three of four pods of 20,000 have ended.
const VICTIMS: usize = 3;
/// Clusters, where the first ones were too slow.
const TRIES: usize = 3;
/// How long no other pod may be evicted afterwards.
const QUIET: Duration = Duration::from_secs(5);

type Uids = BTreeSet<String>;

/// Runs on a cluster of its own. The leader falls when this many victims of three
/// have been evicted.
pub async fn run(evictions: usize) -> Result<()> {
    for _ in 0..TRIES {
        let cluster = Cluster::control_plane().without_scheduler();
        let stack = Stack::on(Box::pin(cluster.start()).await?).await?;
        let outcome = on_stack(stack, async |stack, stop| {
            Box::pin(on(stack, stop, evictions)).await
        });
        match outcome.await {
            Err(error) if error.is::<LeaseLost>() => print_line(&format!("{error:#}: once more")),
            outcome => return outcome,
        }
    }
    bail!("{LeaseLost}, {TRIES} times")
}

/// On a busy machine the lease may change hands by itself, and the new leader has no trap.
#[derive(Debug)]
struct LeaseLost;

impl std::fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the leader lost its lease before it was killed")
    }
}

impl std::error::Error for LeaseLost {}

/// The next request in the trap, as long as this one holds the lease.
async fn next(trap: &mut Trap, replicas: &Replicas, leads: &str) -> Result<StoppedRequest> {
    let lost = eventually(PATIENCE, "another holder of the lease", || async {
        Ok((replicas.holder().await? != leads).then_some(()))
    });
    tokio::select! {
        stopped = trap.next() => stopped,
        lost = lost => Err(lost.map_or_else(|error| error, |()| LeaseLost.into())),
    }
}

async fn on(stack: Arc<Stack>, stop: CancellationToken, evictions: usize) -> Result<()> {
    classes(&stack).await?;
    stack.cluster.namespace(NAMESPACE).await?;
    for node in NODES {
        stack.gpu_node(NAMESPACE, node, SHAPE).await?;
    }
    let replicas = Replicas::start(stack.clone(), stop).await?;
    replicas.whole().await?;
    let scene = Scene {
        pods: Api::namespaced(stack.cluster.admin()?, NAMESPACE),
        stack: &stack,
    };
    let tenants = scene.tenants().await?;
    let leader = replicas.leader().await?;
    let leads = replicas.holder().await?;
    let mut trap = leader.proxy.trap(&[Traffic::Eviction]);
    let urgent = Scene::pod("urgent", "urgent", 60_000);
    stack.cluster.create_pod(urgent).await?;
    for _ in 0..evictions {
        let stopped = next(&mut trap, &replicas, &leads).await?;
        stopped.forward().await?.pass()?;
    }
    // The next eviction never arrives: its sender is killed.
    let stopped = next(&mut trap, &replicas, &leads).await?;
    let planned = scene.planned().await?;
    let gone = scene.gone(&tenants).await?;
    ensure!(
        gone.len() == evictions && gone.is_subset(&planned),
        "{gone:?} of {planned:?}"
    );
    leader.kill_for_good().await?;
    let dead = replicas.holder().await?;
    ensure!(dead == leads, LeaseLost);
    drop((stopped, trap));
    let fallen = Instant::now();
    let next = replicas.leader_after(&dead).await?;
    ensure!(next.name != leader.name, "{} leads again", next.name);
    scene.bound("urgent").await?;
    let what = format!("{evictions} of {VICTIMS} evicted: the other replica has bound the pod");
    print_line(&format!(
        "{what} after {:.1} s",
        fallen.elapsed().as_secs_f64()
    ));
    eventually(PATIENCE, "the plan to be taken away", || async {
        Ok(scene.plan().await?.is_none().then_some(()))
    })
    .await?;
    throughout(QUIET, || async {
        let gone = scene.gone(&tenants).await?;
        ensure!(gone == planned, "{gone:?} ended, planned were {planned:?}");
        Ok(())
    })
    .await?;
    eventually(PATIENCE, "the ledger to match the pods", || async {
        let (annotated, reported) = (
            stack.annotated_ledger().await?,
            reported_ledger(next.address).await?,
        );
        until!(
            annotated == reported,
            "pods {annotated:?}, ledger {reported:?}"
        );
        Ok(Some(()))
    })
    .await
}

struct Scene<'a> {
    stack: &'a Stack,
    pods: Api<Pod>,
}

impl Scene<'_> {
    fn pod(name: &str, class: &str, memory: u64) -> Value {
        let memory = memory.to_string();
        let mut pod = simple(NAMESPACE, name, &[("gpu", "1"), ("gpumem", &memory)]);
        pod["spec"]["schedulerName"] = json!("aliquot-scheduler");
        pod["spec"]["priorityClassName"] = json!(class);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        pod
    }

    /// Pods that fill all GPUs and run.
    async fn tenants(&self) -> Result<BTreeMap<String, String>> {
        let names: Vec<_> = (0..TENANTS).map(|n| format!("low-{n:02}")).collect();
        for name in &names {
            let pod = Self::pod(name, "batch", 20_000);
            self.stack.cluster.create_pod(pod).await?;
        }
        let mut tenants = BTreeMap::new();
        for name in names {
            let pod = self.bound(&name).await?;
            let status = json!({"status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}]}});
            let params = PatchParams::default();
            let status = Patch::Strategic(status);
            self.pods.patch_status(&name, &params, &status).await?;
            tenants.insert(pod.metadata.uid.context("a uid")?, name);
        }
        Ok(tenants)
    }

    async fn bound(&self, name: &str) -> Result<Pod> {
        let what = format!("{name} to be bound");
        let is_bound = |pod: &Pod| Ok(node_of(pod).is_some());
        let cluster = &self.stack.cluster;
        cluster.wait_pod(NAMESPACE, name, &what, is_bound).await
    }

    /// The uids of the planned victims.
    async fn planned(&self) -> Result<Uids> {
        let plan = self.plan().await?.context("no plan")?;
        ensure!(plan.victims.len() == VICTIMS, "{plan:?}");
        let victims = plan.victims.iter();
        Ok(victims.map(|victim| victim.uid.to_string()).collect())
    }

    /// What is written on the preemptor.
    async fn plan(&self) -> Result<Option<PreemptionRecord>> {
        let annotations = self.pods.get("urgent").await?.metadata.annotations;
        let text = annotations.and_then(|mut all| all.remove(PREEMPTION));
        Ok(text
            .map(|text| PreemptionRecord::decode(&text))
            .transpose()?)
    }

    /// Which of these pods are gone or ending.
    async fn gone(&self, tenants: &BTreeMap<String, String>) -> Result<Uids> {
        let pods = self.pods.list(&ListParams::default()).await?.items;
        let pods = pods.into_iter();
        let there = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let there: Uids = there.filter_map(|pod| pod.metadata.uid).collect();
        let gone = tenants.keys().filter(|uid| !there.contains(*uid));
        Ok(gone.cloned().collect())
    }
}
