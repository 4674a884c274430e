//! What a container sees is what its allocation says, for every container.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::pod_resources::{self, ListPodResourcesRequest};
use aliquot_e2e::pods::{allocation, container, parse_environment, pod, with_command};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use serde_json::json;

/// The pods of the examples: the mission's, and one that may borrow memory.
pub(crate) async fn example_pod(stack: Arc<Stack>) -> Result<()> {
    for file in [
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/gpu-pod.yaml"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/burst.yaml"),
    ] {
        let apply = ["apply", "-f", file];
        stack.cluster.kubectl(&apply).await?.success()?;
    }
    stack.cluster.wait_running("default", "burst-pod").await?;
    let env = stack.environment("default", "burst-pod", "main").await?;
    let limit = env.get("CUDA_DEVICE_MEMORY_LIMIT_0").map(String::as_str);
    ensure!(limit == Some("12000m"), "{env:?}");
    stack.cluster.delete_pod("default", "burst-pod").await?;

    let pod = stack.cluster.wait_running("default", "gpu-pod").await?;
    let allocation = allocation(&pod)?;
    let gpu = allocation.grants("main").context("main has a share")?[0]
        .gpu
        .to_string();
    let mut kubelet = pod_resources::client(&stack.cluster).await?;
    let listed = kubelet.list(ListPodResourcesRequest::default()).await?;
    let listed = listed.into_inner();
    let ours = listed
        .pod_resources
        .iter()
        .find(|pod| pod.name == "gpu-pod" && pod.namespace == "default");
    let devices = &ours.context("PodResources lists the pod")?.containers[0].devices;
    let ids: Vec<_> = devices
        .iter()
        .flat_map(|device| &device.device_ids)
        .collect();
    ensure!(
        ids.len() == 1 && ids[0].starts_with(&format!("{gpu}::")),
        "{ids:?}, allocated on {gpu}"
    );

    let parts = ["Allocated: ", &*gpu];
    stack.wait_event("default", "gpu-pod", &parts).await?;
    stack.cluster.delete_pod("default", "gpu-pod").await
}

/// What a container prints first: its own environment.
const PRINT: &str = "env; echo PRINTED";

/// Twelve pods at once, some with init containers and sidecars, and twelve more after them.
pub(crate) async fn twelve_pods(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("twelve").await?;
    for batch in 0..2 {
        let names: Vec<String> = (0..12).map(|n| format!("p{batch}-{n}")).collect();
        let created = names
            .iter()
            .enumerate()
            .map(|(n, name)| stack.cluster.create_pod(one_of_twelve(name, n)));
        try_join_all(created).await?;
        try_join_all(names.iter().map(|name| check(stack, name))).await?;
        try_join_all(
            names
                .iter()
                .map(|name| stack.cluster.delete_pod("twelve", name)),
        )
        .await?;
    }
    Ok(())
}

/// Memory distinguishes the containers: pod `n` requests 1000 + 100 n, its containers 10 more each.
fn one_of_twelve(name: &str, n: usize) -> serde_json::Value {
    let script = format!("{PRINT}; {}", aliquot_e2e::pods::WAIT);
    let limits = |more: usize| (1000 + 100 * n + more).to_string();
    let share = |container: &str, more: usize, script: &str| {
        let memory = limits(more);
        with_command(
            container,
            &[("gpu", "1"), ("gpumem", &memory), ("gpucores", "2")],
            script,
        )
    };
    let mut containers = vec![share("main", 0, &script)];
    let mut init = Vec::new();
    match n % 4 {
        1 => containers.push(share("second", 10, &script)),
        2 => init.push(share("init", 20, PRINT)),
        3 => {
            init.push(share("init", 20, PRINT));
            let mut sidecar = share("sidecar", 30, &script);
            sidecar["restartPolicy"] = json!("Always");
            init.push(sidecar);
            containers.push(container("bystander", &[]));
        }
        _ => {}
    }
    let mut pod = pod("twelve", name, &containers);
    pod["spec"]["initContainers"] = json!(init);
    pod
}

async fn check(stack: &Stack, name: &str) -> Result<()> {
    let pod = stack.cluster.wait_running("twelve", name).await?;
    let allocation = allocation(&pod)?;
    let spec = pod.spec.as_ref().context("a spec")?;
    let init = spec.init_containers.iter().flatten();
    for container in init.chain(&spec.containers) {
        let Some(grants) = allocation.grants(&container.name) else {
            ensure!(
                container.name == "bystander",
                "{} has no share",
                container.name
            );
            continue;
        };
        let asked = &container
            .resources
            .as_ref()
            .and_then(|r| r.limits.as_ref())
            .context("limits")?["nvidia.com/gpumem"];
        let asked = aliquot_core::quantity::whole(&asked.0)?;
        ensure!(
            grants[0].memory.0 == asked,
            "{name}/{}: asked {asked}, granted {grants:?}",
            container.name
        );
        let env = printed(stack, "twelve", name, &container.name).await?;
        let expected = [
            ("CUDA_DEVICE_MEMORY_LIMIT_0", format!("{asked}m")),
            ("CUDA_DEVICE_SM_LIMIT", "2".to_owned()),
            ("ALIQUOT_VISIBLE_DEVICES", grants[0].gpu.to_string()),
        ];
        for (key, value) in expected {
            ensure!(
                env.get(key) == Some(&value),
                "{name}/{}: {key} is {:?}, not {value}",
                container.name,
                env.get(key)
            );
        }
    }
    Ok(())
}

/// The environment that a container has printed; one that runs may not have come to it yet.
async fn printed(
    stack: &Stack,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<BTreeMap<String, String>> {
    let what = format!("the environment that {pod}/{container} prints");
    let log = eventually(PATIENCE, &what, || async {
        let log = stack.cluster.logs(namespace, pod, container).await?;
        Ok(log.contains("PRINTED").then_some(log))
    });
    Ok(parse_environment(&log.await?))
}

/// In the other form the kubelet of 1.30 refuses the pod (`OutOfnvidia.com/priority`): no node
/// publishes the resources beside the count, and it ignores those of app containers only.
pub(crate) async fn annotated_init_container(stack: Arc<Stack>) -> Result<()> {
    const SPACE: &str = "annotated";
    let cluster = &stack.cluster;
    let label = json!({"aliquot.dev/request-as": "annotation"});
    cluster.namespace_with(SPACE, &label).await?;
    let share = |name, memory, script: &str| {
        let limits = [("gpu", "1"), ("gpumem", memory), ("gpucores", "2")];
        with_command(name, &limits, script)
    };
    let script = format!("{PRINT}; {}", aliquot_e2e::pods::WAIT);
    let mut asking = pod(SPACE, "asking", &[share("main", "1100", &script)]);
    asking["spec"]["initContainers"] = json!([share("init", "1200", PRINT)]);
    cluster.create_pod(asking).await?;
    let running = cluster.wait_running(SPACE, "asking").await?;
    let spec = running.spec.context("a spec")?;
    for container in spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
    {
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        let names: Vec<_> = limits.into_iter().flatten().map(|(name, _)| name).collect();
        ensure!(names == ["nvidia.com/gpu"], "{}: {names:?}", container.name);
    }
    for (container, memory) in [("init", "1200m"), ("main", "1100m")] {
        let env = printed(&stack, SPACE, "asking", container).await?;
        let limit = env.get("CUDA_DEVICE_MEMORY_LIMIT_0");
        ensure!(
            limit.is_some_and(|limit| limit == memory),
            "{container}: {limit:?}"
        );
    }
    cluster.delete_pod(SPACE, "asking").await
}
