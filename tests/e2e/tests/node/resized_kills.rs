//! A thousand random resizes of fifty shares while scheduler and agent are killed at every fail-point
//! of a resize. Eight of the pods run on the real node with a program in each; the test plays the
//! agents of the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_core::Mib;
use aliquot_core::inventory::{INVENTORY, Inventory, ResizeReport};
use aliquot_core::resize::{RESIZE, RESIZE_STATUS, ResizeState, ResizeStatus};
use aliquot_device_plugin::fail_point::Point;
use aliquot_e2e::clients::{answers, answers_until_released, nvidia_spec, release, with_python};
use aliquot_e2e::ledger::{Amount, amounts_by_gpu};
use aliquot_e2e::pods::{allocation, simple};
use aliquot_e2e::pool::{Shape, node_of};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::limits::{limited, unlimited};
use crate::resized::{SPACE, untouched};
use crate::running::PATIENCE;

const RESIZES: usize = 1000;
const REAL: usize = 8;
const ALL: usize = 50;
const NODES: [&str; 3] = ["resized-0", "resized-1", "resized-2"];
const SHAPE: Shape = Shape {
    gpus: 4,
    replicas: 10,
};
/// Between two requests.
const EVERY: Duration = Duration::from_millis(25);
/// MiB of a program, and of its context in that.
const USED: u64 = 1012;
const CONTEXT: u64 = 512;
/// All that a resize passes.
const POINTS: [Killed; 5] = [
    Killed::Scheduler("ResizeReserved"),
    Killed::Agent(Point::ResizeStored),
    Killed::Scheduler("ResizeBeforePatch"),
    Killed::Agent(Point::ResizeWritten),
    Killed::Scheduler("ResizeAfterPatch"),
];
const CHAOS: NodeOptions = NodeOptions {
    split: 10,
    scaling: "1",
    library: None,
    limited: true,
    flags: &[],
    profiles: None,
    runtime: None,
    chaos: true,
};

#[derive(Clone, Copy, Debug)]
enum Killed {
    Scheduler(&'static str),
    Agent(Point),
}

pub(crate) async fn random(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack, &nvidia_spec(stack)?).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&CHAOS).await?;
    stack.terminate(Kind::Scheduler).await?;
    stack.start_chaos_scheduler().await?;
    for node in NODES {
        stack.gpu_node("resized", node, SHAPE).await?;
    }
    let names: Vec<String> = (0..ALL).map(|n| format!("share-{n}")).collect();
    let (real, others) = names.split_at(REAL);
    let limits = [("gpu", "1"), ("gpumem", "2000"), ("gpucores", "3")];
    for name in real {
        let mut pod = with_python(stack, SPACE, name, &limits)?;
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node-1"});
        stack.cluster.create_pod(pod).await?;
    }
    for name in others {
        let mut pod = simple(SPACE, name, &limits);
        pod["spec"]["nodeSelector"] = json!({"pool": "resized"});
        stack.cluster.create_pod(pod).await?;
    }
    for name in real {
        stack.cluster.wait_running(SPACE, name).await?;
    }
    for name in others {
        let is_bound = |pod: &Pod| Ok(node_of(pod).is_some());
        stack
            .cluster
            .wait_pod(SPACE, name, "a bound pod", is_bound)
            .await?;
    }
    let capacity = stack.capacity().await?;
    let agents = async {
        loop {
            play_agents(stack, &capacity).await?;
        }
    };
    let programs = real.iter().map(|name| async move {
        let commands = ["init", "alloc,500", "hold", "info"];
        answers_until_released(stack, SPACE, name, &commands).await
    });
    let body = async {
        resize_and_kill(stack, &names).await?;
        settled(stack, &names).await?;
        try_join_all(real.iter().map(|name| shown(stack, name))).await?;
        stack.ledger_agrees().await?;
        let mut requested = 0;
        for gpu in capacity.keys().filter(|gpu| !gpu.contains("resized")) {
            let usage = stack.machine().process_usage(gpu)?;
            requested += usage.iter().map(|one| one.requested).sum::<u64>();
        }
        let expected = Mib(USED - CONTEXT).bytes() * REAL as u64;
        ensure!(requested == expected, "the simulator counts {requested}");
        join_all(real.iter().map(|name| release(stack, SPACE, name))).await;
        anyhow::Ok(())
    };
    let held = async { futures::try_join!(body, try_join_all(programs)) };
    let ((), said) = tokio::select! {
        ended = held => ended?,
        failed = agents => return failed,
    };
    for (said, name) in said.iter().zip(real) {
        ensure!(said[..2] == ["init: 0", "alloc,500: 0"], "{name}: {said:?}");
        untouched(stack, name).await?;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (real, others) = names.split_at(REAL);
    let mut delete = vec!["delete", "pod", "-n", SPACE, "--force", "--grace-period=0"];
    delete.extend(others);
    stack.cluster.kubectl(&delete).await?.success()?;
    stack.terminate(Kind::Scheduler).await?;
    stack.start_scheduler(&[]).await?;
    unlimited(stack, real).await?;
    for node in NODES {
        stack.delete_node(node).await?;
    }
    Ok(())
}

/// Reports every resize on the nodes without an agent as enforced. No GPU is promised twice.
async fn play_agents(stack: &Stack, capacity: &BTreeMap<String, Amount>) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, SPACE);
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let mut reports: BTreeMap<String, Vec<ResizeReport>> = BTreeMap::new();
    let mut promised: BTreeMap<String, Amount> = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await?.items {
        for (gpu, amount) in amounts_by_gpu(&allocation(&pod)?) {
            *promised.entry(gpu).or_default() += amount;
        }
        let (Some(node), Some(status)) = (node_of(&pod), status(&pod)?) else {
            continue;
        };
        if status.pending.is_some() {
            let report = ResizeReport {
                pod: pod.metadata.uid.as_deref().context("a uid")?.into(),
                generation: status.generation,
                waits: None,
                refused: None,
            };
            reports.entry(node.to_owned()).or_default().push(report);
        }
    }
    for (gpu, promised) in promised {
        let all = capacity[&gpu];
        ensure!(promised.within(all), "{gpu}: {promised:?} of {all:?}");
    }
    for name in NODES {
        let annotations = nodes.get(name).await?.metadata.annotations;
        let text = annotations.context("an inventory")?[INVENTORY].clone();
        let mut inventory = Inventory::decode(&text)?;
        inventory.resizes = reports.remove(name).unwrap_or_default();
        let patch = json!({"metadata": {"annotations": {INVENTORY: inventory.encode()?}}});
        let params = PatchParams::default();
        nodes
            .patch_metadata(name, &params, &Patch::Merge(patch))
            .await?;
    }
    Ok(())
}

fn status(pod: &Pod) -> Result<Option<ResizeStatus>> {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(RESIZE_STATUS));
    Ok(text.map(|text| ResizeStatus::decode(text)).transpose()?)
}

/// Resizes at random; twice at each point, a process is killed there and started again.
async fn resize_and_kill(stack: &Stack, names: &[String]) -> Result<()> {
    let mut rng = Rng::with_seed(20_261_124);
    let kills = POINTS.iter().chain(&POINTS);
    for killed in kills {
        ask(stack, names, &mut rng, RESIZES / (2 * POINTS.len())).await?;
        match killed {
            Killed::Scheduler(point) => stack.kill_scheduler_at(point).await?,
            Killed::Agent(point) => stack.kill_at(*point)?,
        }
        let ended = async {
            match killed {
                Killed::Scheduler(_) => stack.scheduler_killed().await,
                Killed::Agent(_) => stack.killed().await,
            }
        };
        tokio::select! {
            asked = ask(stack, names, &mut rng, usize::MAX) => asked?,
            ended = ended => ended.with_context(|| format!("{killed:?}"))?,
        }
        match killed {
            Killed::Scheduler(_) => stack.start_chaos_scheduler().await?,
            Killed::Agent(_) => stack.start_device_plugin(&CHAOS).await?,
        }
    }
    Ok(())
}

/// Asks for this many random shares.
async fn ask(stack: &Stack, names: &[String], rng: &mut Rng, count: usize) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, SPACE);
    let mut ticks = tokio::time::interval(EVERY);
    for _ in 0..count {
        ticks.tick().await;
        let (memory, cores) = (rng.u64(600..25_000), rng.u32(1..20));
        let id = rng.u32(..);
        let text = format!("main:gpumem={memory},gpucores={cores} deadline=1 id={id}");
        let patch = json!({"metadata": {"annotations": {RESIZE: text}}});
        let (name, params) = (&names[rng.usize(..names.len())], PatchParams::default());
        pods.patch_metadata(name, &params, &Patch::Merge(patch))
            .await?;
    }
    Ok(())
}

/// Waits until every request is answered and enforced; what is applied is what was asked for.
async fn settled(stack: &Stack, names: &[String]) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, SPACE);
    let mut counts = BTreeMap::new();
    for name in names {
        let (pod, status) = eventually(PATIENCE, &format!("{name} to be resized"), || async {
            let pod = pods.get(name).await?;
            let status = status(&pod)?.context("no status").or_not_yet()?;
            let annotations = pod.metadata.annotations.as_ref();
            let asked = annotations.and_then(|all| all.get(RESIZE));
            let answered = asked == Some(&status.request) && status.pending.is_none();
            until!(answered, "{asked:?}: {status:?}");
            Ok(Some((pod, status)))
        })
        .await?;
        *counts.entry(format!("{:?}", status.state)).or_insert(0) += 1;
        if status.state == ResizeState::Applied {
            let grant = &allocation(&pod)?.grants("main").context("a share")?[0].clone();
            let (memory, cores) = (grant.memory.0, grant.cores.0);
            let own = format!("main:gpumem={memory},gpucores={cores} ");
            ensure!(status.request.starts_with(&own), "{grant:?}: {status:?}");
        }
    }
    let line = format!("    last answers of {ALL} shares: {counts:?}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes())?;
    Ok(())
}

/// The program sees the pod's allocation, and uses what it did before.
async fn shown(stack: &Stack, name: &str) -> Result<()> {
    let pod = untouched(stack, name).await?;
    let memory = allocation(&pod)?.grants("main").context("a share")?[0].memory;
    let nvml = answers(stack, SPACE, name, &["ninit", "nmemory"]).await?;
    let expected = format!("nmemory: [0, 0] {USED} {}", memory.0);
    ensure!(nvml[1] == expected, "{name}: {nvml:?}, expected {expected}");
    Ok(())
}
