//! Pods that fit nowhere: notified why, requeued in time, and not retried until then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::wait::throughout;
use aliquot_e2e::figures::report;
use aliquot_e2e::http::metric;
use aliquot_e2e::pods::classes;
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

/// The specified time between a pod's end and another's Binding.
const REQUEUED: Duration = Duration::from_secs(5);
/// The same on a slow machine, where a pod that was tried often waits up to 10 s in its backoff.
/// Without a requeue it waits five minutes.
const LATEST: Duration = Duration::from_secs(30);
/// How long a refused pod is watched, and how often it may be tried meanwhile.
const QUIET: Duration = Duration::from_secs(20);
const TRIES: f64 = 3.0;
const WHOLE: (&str, &str) = ("gpumem", "81920");

/// kube-scheduler may see an end before our ledger does; in either order, and whatever is under way
/// then, the next pod is requeued.
pub(crate) async fn hand_over(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 1,
        replicas: 2,
    };
    let nodes = [("relay-1".to_owned(), shape)];
    let pool = Pool::open(&stack, "relay", &nodes).await?;
    let mut holder = "p0".to_owned();
    pool.create(&holder, &[WHOLE]).await?;
    pool.bound(&holder).await?;
    let requeues = async || {
        let address = stack.address(Kind::Scheduler);
        metric(address, "aliquot_scheduler_requeues_total", &[]).await
    };
    let before = requeues().await?;
    let mut times = Vec::new();
    for n in 1..=20 {
        let next = format!("p{n}");
        pool.create(&next, &[WHOLE]).await?;
        // In every other run its first try and the end of the previous pod coincide.
        if n % 2 == 0 {
            pool.event(&next, "Refused: ").await?;
        }
        stack.cluster.delete_pod("relay", &holder).await?;
        let start = Instant::now();
        pool.bound(&next).await?;
        let took = start.elapsed();
        ensure!(took < LATEST, "pod {n}: {took:?}, allowed {LATEST:?}");
        times.push(took);
        holder = next;
    }
    ensure!(requeues().await? > before, "the scheduler requeued no pod");
    times.sort_unstable();
    let (middle, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    report("slowest of 20 pods bound after another's end", slowest);
    ensure!(middle < REQUEUED, "{times:?}, allowed {REQUEUED:?}");
    pool.close().await
}

/// The nodes are full of CPU, so kube-scheduler refuses the pods without asking our scheduler, and
/// its own check of a new node asks for `gpumem`, which no node has.
pub(crate) async fn node_added(stack: Arc<Stack>) -> Result<()> {
    const ADDED: usize = 8;
    let shape = Shape::of_gpus(1);
    let pool = Pool::open(&stack, "joined", &[("joined-full".to_owned(), shape)]).await?;
    let create = async |name: &str| {
        let mut pod = pool.pod(name, &[("gpumem", "4000")]);
        pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "60"});
        stack.cluster.create_pod(pod).await
    };
    create("first").await?;
    pool.bound("first").await?;
    let mut times = Vec::new();
    for n in 0..ADDED {
        let (name, node) = (format!("p{n}"), format!("joined-{n}"));
        create(&name).await?;
        pool.event(&name, "FailedScheduling: ").await?;
        let start = Instant::now();
        stack.gpu_node("joined", &node, shape).await?;
        let bound = pool.bound(&name).await?;
        let took = start.elapsed();
        ensure!(node_of(&bound) == Some(&*node), "{bound:?}");
        ensure!(took < LATEST, "pod {n}: {took:?}, allowed {LATEST:?}");
        times.push(took);
    }
    times.sort_unstable();
    report(
        "slowest of 8 pods bound after a node was added",
        times[ADDED - 1],
    );
    for n in 0..ADDED {
        stack.delete_node(&format!("joined-{n}")).await?;
    }
    pool.close().await
}

/// kube-scheduler's preemption must not retry again and again. Ours is off, or it would evict pods.
pub(crate) async fn high_priority(stack: Arc<Stack>) -> Result<()> {
    stack.restart_scheduler(&["--preempt", "false"]).await?;
    let outcome = quiet_refusal(&stack).await;
    stack.restart_scheduler(&[]).await?;
    outcome
}

async fn quiet_refusal(stack: &Stack) -> Result<()> {
    classes(stack).await?;
    let shape = Shape::of_gpus(2);
    let nodes: Vec<_> = (0..30).map(|n| (format!("thirty-{n:02}"), shape)).collect();
    let pool = Pool::open(stack, "thirty", &nodes).await?;
    let names: Vec<_> = (0..60).map(|n| format!("humble-{n}")).collect();
    let created = stream::iter(&names).map(|name| async {
        let mut pod = pool.pod(name, &[WHOLE]);
        pod["spec"]["priorityClassName"] = json!("batch");
        stack.cluster.create_pod(pod).await
    });
    let _created: Vec<_> = created.buffer_unordered(8).try_collect().await?;
    for name in &names {
        pool.bound(name).await?;
    }

    let calls = async || {
        let address = stack.address(Kind::Scheduler);
        metric(
            address,
            "aliquot_scheduler_calls_total",
            &["verb=\"filter\""],
        )
        .await
    };
    let before = calls().await?;
    let mut pod = pool.pod("urgent", &[("gpumem", "4000")]);
    pod["spec"]["priorityClassName"] = json!("urgent");
    let start = Instant::now();
    stack.cluster.create_pod(pod).await?;
    let why = "GPU request fits none of 30 nodes: 60 CardInsufficientMemory";
    let event = pool.event("urgent", "Refused: ").await?;
    ensure!(event.starts_with(&format!("Refused: {why}")), "{event}");
    throughout(QUIET, || async {
        let (tries, after) = (calls().await? - before, start.elapsed());
        ensure!(tries <= TRIES, "{tries} filter calls in {after:?}");
        Ok(())
    })
    .await?;
    let tries = calls().await? - before;
    ensure!(tries >= 1.0, "the pod was never tried");
    let what = format!("{tries} filter calls for a refused pod of high priority within");
    report(&what, start.elapsed());

    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "thirty");
    for pod in pods.list(&ListParams::default()).await? {
        let name = pod.metadata.name.as_deref();
        ensure!(
            pod.metadata.deletion_timestamp.is_none(),
            "{name:?} was evicted"
        );
        ensure!(
            node_of(&pod).is_some() == (name != Some("urgent")),
            "{name:?}"
        );
    }
    pool.close().await
}
