//! The example pods of HAMi's repository, rewritten in `examples`: each runs with the share that
//! docs/migrating-from-hami.md states, or the changed one beside it does. Only UUIDs are filled in.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use self::Memory::{Mib, Percent};
use super::world::{A100, PATIENCE, T4, over, seen, with_parts};

const NAMESPACE: &str = "examples";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sharing/hami/examples");
/// Stands in a fixture for the uuid of the first GPU.
const UUID: &str = "UUID";

/// Memory of each GPU of a pod.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Mib(u64),
    Percent(u64),
}

/// Which GPUs they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Any,
    /// Of these models.
    Models(&'static [&'static str]),
    First,
    NotFirst,
    /// All pods on one.
    Same,
    /// No two pods on one.
    Apart,
}

/// The fixture, and for each of its pods in the order of their names what its container has: GPUs,
/// memory and compute of each; and on which GPUs.
type Example = (&'static str, &'static [(usize, Memory, u32)], On);

/// Together on three GPUs.
const FIRST: &[Example] = &[
    ("specify_uuid_not_use", &[(2, Mib(5000), 0)], On::NotFirst),
    ("specify_uuid_to_use", &[(1, Mib(5000), 0)], On::First),
    ("default_use", &[(1, Mib(3000), 30)], On::Any),
    ("default_use_legacy", &[(2, Mib(5000), 0)], On::Any),
    (
        "use_as_normal",
        &[(1, Mib(5000), 0), (1, Mib(5000), 0)],
        On::Any,
    ),
    ("example", &[(1, Mib(3000), 0)], On::Any),
    (
        "specify_card_type_to_use",
        &[(2, Mib(5000), 0)],
        On::Models(&["A100", "V100"]),
    ),
    ("specify_card_type_not_use", &[(2, Mib(5000), 0)], On::Any),
    ("specify_scheduling_policy", &[(1, Mib(5000), 0)], On::Any),
    ("sglang_gpu_sharing", &[(1, Mib(12_000), 30)], On::Any),
];
const LARGE: &[Example] = &[
    ("use_memory_fraction", &[(2, Percent(50), 30)], On::Any),
    ("vllm_cross_vgpu", &[(2, Percent(30), 30)], On::Any),
];
/// Two of the three GPUs, and two pods on the third.
const EXCLUSIVE: &[Example] = &[("use_exclusive_card", &[(2, Percent(100), 100)], On::Any)];
const THIRD: &[Example] = &[(
    "use_sharing_card",
    &[(1, Percent(40), 60), (1, Percent(60), 40)],
    On::Same,
)];
/// With `compat.bareGpu: whole`.
const LEGACY: &[Example] = &[("default_use_legacy", &[(2, Percent(100), 100)], On::Any)];
const NORMAL: &[Example] = &[(
    "use_as_normal",
    &[(1, Percent(100), 100), (1, Percent(100), 100)],
    On::Apart,
)];
/// The fixture, and the instances that its container sees.
const INSTANCES: [(&str, &[&str]); 2] = [
    ("mig_example", &["3g.20gb"]),
    ("dynamic_mig_changed", &["2g.10gb", "2g.10gb"]),
];

pub(crate) async fn run(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace(NAMESPACE).await?;
    together(stack, FIRST).await?;
    instances(stack).await?;
    waits(stack).await?;
    gone(stack).await?;
    together(stack, LARGE).await?;
    gone(stack).await?;
    together(stack, EXCLUSIVE).await?;
    together(stack, THIRD).await?;
    gone(stack).await?;
    with_parts(stack, &["--bare-gpu", "whole"]).await?;
    let outcome = async {
        together(stack, LEGACY).await?;
        gone(stack).await?;
        together(stack, NORMAL).await
    };
    let outcome = outcome.await;
    gone(stack).await?;
    with_parts(stack, &[]).await?;
    outcome
}

async fn applied(stack: &Stack, example: &str) -> Result<()> {
    let text = std::fs::read_to_string(format!("{FOLDER}/{example}.yaml"))?;
    let text = text.replace(UUID, &stack.gpu_uuid(0)?);
    let file = stack.write("example.yaml", &text)?;
    let file = file.to_string_lossy();
    let apply = ["apply", "-n", NAMESPACE, "-f", &*file];
    stack.cluster.kubectl(&apply).await?.success().map(drop)
}

async fn gone(stack: &Stack) -> Result<()> {
    let delete = ["delete", "deployment", "-n", NAMESPACE, "--all"];
    stack.cluster.kubectl(&delete).await?.success()?;
    over(stack, NAMESPACE).await
}

/// The names of an example's pods, as soon as all are there.
async fn pods(stack: &Stack, example: &str, count: usize) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let own = ListParams::default().labels(&format!("example={example}"));
    let what = format!("{count} pods of {example}");
    eventually(PATIENCE, &what, || async {
        let found = pods.list_metadata(&own).await?.items;
        let names = found.into_iter().filter_map(|pod| pod.metadata.name);
        let mut names: Vec<String> = names.collect();
        names.sort();
        until!(names.len() == count, "{names:?}");
        Ok(Some(names))
    })
    .await
}

async fn together(stack: &Stack, examples: &[Example]) -> Result<()> {
    for (example, ..) in examples {
        applied(stack, example).await.context(*example)?;
    }
    for (example, expected, on) in examples {
        let checked = check(stack, example, expected, *on);
        checked.await.context(*example)?;
    }
    Ok(())
}

async fn check(
    stack: &Stack,
    example: &str,
    expected: &[(usize, Memory, u32)],
    on: On,
) -> Result<()> {
    let models = models(stack)?;
    let model = |uuid: &String| models.get(uuid).cloned().unwrap_or_default();
    let mut all = Vec::new();
    let names = pods(stack, example, expected.len()).await?;
    for (name, (gpus, memory, cores)) in names.iter().zip(expected) {
        let found = seen(stack, NAMESPACE, name).await?;
        ensure!(found.len() == *gpus, "{found:?}");
        for gpu in &found {
            let has = if model(&gpu.uuid).contains("T4") {
                T4
            } else {
                A100
            };
            let memory = match memory {
                Mib(mib) => *mib,
                Percent(percent) => has * percent / 100,
            };
            ensure!(gpu.memory == memory && gpu.cores == *cores, "{found:?}");
            all.push(gpu.uuid.clone());
        }
    }
    let first = stack.gpu_uuid(0)?;
    let different = {
        let mut different = all.clone();
        different.sort();
        different.dedup();
        different.len()
    };
    let right = match on {
        On::Any => true,
        On::Models(models) => all
            .iter()
            .all(|uuid| models.iter().any(|part| model(uuid).contains(part))),
        On::First => all == [first],
        On::NotFirst => !all.contains(&first),
        On::Same => different == 1,
        On::Apart => different == all.len(),
    };
    ensure!(right, "{on:?}: {all:?} of {models:?}");
    Ok(())
}

/// Uuids and models of the GPUs.
fn models(stack: &Stack) -> Result<BTreeMap<String, String>> {
    let shown = stack.machine().show()?;
    let gpus = shown["gpus"].as_array().context("gpus")?.iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(gpus
        .map(|gpu| (text(&gpu["uuid"]), text(&gpu["model"])))
        .collect())
}

/// Instances are created for the pods that name them.
async fn instances(stack: &Stack) -> Result<()> {
    for (example, profiles) in INSTANCES {
        applied(stack, example).await?;
        let name = &pods(stack, example, 1).await?[0];
        stack.cluster.wait_running(NAMESPACE, name).await?;
        let environment = stack.environment(NAMESPACE, name, "main").await?;
        let visible = environment.get("ALIQUOT_VISIBLE_DEVICES").cloned();
        let visible = visible.context("the variable")?;
        let shown = stack.machine().show()?;
        let there = shown["gpus"][3]["instances"].as_array().cloned();
        let there = there.unwrap_or_default();
        let given = there.iter().filter(|one| {
            let uuid = one["uuid"].as_str().unwrap_or_default();
            visible.split(',').any(|seen| seen == uuid)
        });
        let found: Vec<_> = given.filter_map(|one| one["profile"].as_str()).collect();
        ensure!(found == profiles, "{example}: {visible} of {there:?}");
    }
    Ok(())
}

/// As in HAMi: the page states what to change.
async fn waits(stack: &Stack) -> Result<()> {
    applied(stack, "dynamic_mig_example").await?;
    let waits = stack.wait_event(NAMESPACE, "dynamic-mig-example", &["CardTypeMismatch"]);
    waits.await.map(drop)
}
