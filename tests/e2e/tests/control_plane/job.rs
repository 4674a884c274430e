//! Many pods at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::starvation::Attempts;
use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::figures::report;
use aliquot_e2e::pods::allocation;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, bail, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

const PODS: usize = 40;
/// The specified time.
const ALLOWED: Duration = Duration::from_secs(2);

/// 40 pods of one job with 2000 MiB each on two GPUs.
pub(crate) async fn forty_pods(stack: Arc<Stack>) -> Result<()> {
    let mut attempts = Attempts::new("40 pods of one job bound within two seconds");
    for name in ["forty", "forty-again", "forty-at-last"] {
        let cluster = ["scheduler", "apiserver", "etcd"];
        let measured = stack
            .measure_starvation(&[Kind::Scheduler], &cluster)
            .await?;
        let took = bound_within(&stack, name).await?;
        if took < ALLOWED {
            return Ok(());
        }
        let missed = format!("{took:?}, allowed {ALLOWED:?}");
        attempts.again(missed, measured.starved())?;
    }
    bail!("no attempt is left")
}

async fn bound_within(stack: &Stack, name: &'static str) -> Result<Duration> {
    let shape = Shape {
        gpus: 2,
        replicas: 20,
    };
    let node = format!("{name}-1");
    let pool = Pool::open(stack, name, &[(node.clone(), shape)]).await?;
    let mut spec = pool.pod("template", &[("gpumem", "2000")])["spec"].clone();
    spec["restartPolicy"] = json!("Never");
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"parallelism": PODS, "completions": PODS, "template": {"spec": spec}},
    }))?;
    let jobs: Api<Job> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);

    let start = Instant::now();
    jobs.create(&PostParams::default(), &job).await?;
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let took = eventually(PATIENCE, "40 bound pods", || async {
        let found = pods.list_metadata(&bound).await?.items.len();
        until!(found == PODS, "{found}");
        Ok(Some(start.elapsed()))
    })
    .await?;
    report(
        "40 pods of one job, from its creation to the last Binding",
        took,
    );

    let mut gpus = std::collections::BTreeMap::<_, (usize, u64)>::new();
    for pod in pods.list(&ListParams::default()).await? {
        for grant in allocation(&pod)?.grants("main").unwrap_or_default() {
            let (pods, memory) = gpus.entry(grant.gpu.clone()).or_default();
            *pods += 1;
            *memory += grant.memory.0;
        }
    }
    let sums: Vec<_> = gpus.into_values().collect();
    ensure!(sums == [(20, 40_000), (20, 40_000)], "{sums:?}");
    jobs.delete(name, &DeleteParams::background()).await?;
    pool.close().await?;
    Ok(took)
}
