//! HAMI-11: all five resources under other names, in kube-scheduler's configuration as the chart
//! renders it, and in all parts.

use std::sync::Arc;

use aliquot_e2e::pods::{container, pod, simple};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::world::{agent, offers, over, run, stored, with_agent, with_parts};

/// The chart's value, the flag, the name.
const NAMES: [(&str, &str, &str); 5] = [
    ("resourceName", "--resource-name", "example.com/vgpu"),
    ("resourceMem", "--resource-mem", "example.com/vmem"),
    (
        "resourceMemPercentage",
        "--resource-mem-percentage",
        "example.com/vmem-part",
    ),
    ("resourceCores", "--resource-cores", "example.com/vcores"),
    (
        "resourcePriority",
        "--resource-priority",
        "example.com/vrank",
    ),
];
/// Those of the agent.
const OF_AGENT: &[&str] = &[
    "--resource-name",
    "example.com/vgpu",
    "--resource-mem",
    "example.com/vmem",
    "--resource-cores",
    "example.com/vcores",
];

pub(crate) async fn renamed(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("renamed").await?;
    let values = NAMES.map(|(value, _, name)| (value, json!(name)));
    stack.cluster.restart_scheduler_with(&values).await?;
    let flags: Vec<&str> = NAMES.iter().flat_map(|one| [one.1, one.2]).collect();
    with_parts(stack, &flags).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    let options = NodeOptions {
        flags: OF_AGENT,
        ..agent()
    };
    stack.start_device_plugin_unready(&options).await?;
    let outcome = under_these(stack).await;
    over(stack, "renamed").await?;
    with_agent(stack, &agent()).await?;
    with_parts(stack, &[]).await?;
    stack.cluster.restart_scheduler_with(&[]).await?;
    outcome
}

/// A pod with these limits, by the last part of their names.
fn requesting(name: &str, limits: &[(&str, &str)]) -> Value {
    let mut one = container("main", &[]);
    for (part, amount) in limits {
        one["resources"]["limits"][format!("example.com/v{part}")] = json!(amount);
    }
    pod("renamed", name, &[one])
}

async fn under_these(stack: &Stack) -> Result<()> {
    stack.wait_ready(Kind::DevicePlugin).await?;
    offers(stack, "example.com/vgpu", Some("30")).await?;
    offers(stack, "nvidia.com/gpu", None).await?;
    let full = [
        ("gpu", "1"),
        ("mem", "3000"),
        ("cores", "30"),
        ("rank", "0"),
    ];
    let found = run(stack, requesting("all", &full)).await?;
    ensure!(found.shares() == [(3000, 30)], "{found:?}");
    ensure!(found.priority == 0, "{found:?}");
    let part = requesting("part", &[("gpu", "2"), ("mem-part", "10")]);
    let found = run(stack, part).await?;
    ensure!(found.gpus.len() == 2, "{found:?}");
    // The count is filled in under its name.
    let found = run(stack, requesting("memory", &[("mem", "2000")])).await?;
    ensure!(found.shares() == [(2000, 0)], "{found:?}");
    let pod = stored(stack, "renamed", "memory").await?;
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    ensure!(limits["example.com/vgpu"] == "1", "{limits}");
    // A pod with the old names is not ours.
    let old = simple("renamed", "old", &[("gpu", "1"), ("gpumem", "3000")]);
    stack.cluster.create_pod(old).await?;
    let pod = stored(stack, "renamed", "old").await?;
    ensure!(pod["spec"]["schedulerName"] == "default-scheduler", "{pod}");
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    ensure!(limits["nvidia.com/gpucores"].is_null(), "{limits}");
    Ok(())
}
