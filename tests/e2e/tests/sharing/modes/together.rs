//! Six GPUs in six layouts on one node, a pod of each kind on it at once. What a pod requests
//! decides which it gets; none is pinned.

use std::sync::Arc;

use aliquot_e2e::pods;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::PLAIN;

const NAMESPACE: &str = "together";

/// GPU 0 in shares, 1 whole, 2 in time slices, 3 by MPS, 4 partitioned with MPS on its largest
/// instance, 5 with dynamic MIG; the two others of the machine are not used.
const SIX: &str = "
apiVersion: aliquot.dev/v1alpha1
default: six
profiles:
  six:
    gpus:
    - {select: {index: 0}, mode: vgpu}
    - {select: {index: 1}, mode: exclusive}
    - {select: {index: 2}, mode: timeslice, replicas: 10}
    - {select: {index: 3}, mode: mps, replicas: 4}
    - select: {index: 4}
      mode: mig
      layout:
      - {profile: 1g.5gb, count: 2}
      - {profile: 2g.10gb}
      - {profile: 3g.20gb, on: {mode: mps, replicas: 2}}
    - {select: {index: 5}, mode: mig, dynamic: true, allow: [1g.10gb]}
    rest: unmanaged
";

/// A pod: its name, the mode that it prefers, its limits, the GPU that it must get (`profile` of
/// its instance, if it is one), and what its environment must have.
type LayoutPod<'a> = (
    &'a str,
    &'a str,
    &'a [(&'a str, &'a str)],
    (usize, &'a str),
    &'a [(&'a str, Option<&'a str>)],
);

/// What a pod has without limits and without MPS.
const UNLIMITED: &[(&str, Option<&str>)] = &[
    ("CUDA_DEVICE_MEMORY_LIMIT_0", None),
    ("CUDA_MPS_PIPE_DIRECTORY", None),
];

const PODS: &[LayoutPod<'_>] = &[
    (
        "shares",
        "vgpu",
        &[("gpu", "1"), ("gpumem", "3000"), ("gpucores", "30")],
        (0, ""),
        &[
            ("CUDA_DEVICE_MEMORY_LIMIT_0", Some("3000m")),
            ("CUDA_DEVICE_SM_LIMIT", Some("30")),
            ("CUDA_MPS_PIPE_DIRECTORY", None),
        ],
    ),
    ("whole", "exclusive", &[("gpu", "1")], (1, ""), UNLIMITED),
    ("turns", "timeslice", &[("gpu", "1")], (2, ""), UNLIMITED),
    (
        "client",
        "mps",
        &[("gpu", "1"), ("gpumem", "8000"), ("gpucores", "20")],
        (3, ""),
        &[
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", Some("0=8000M")),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", Some("20")),
        ],
    ),
    (
        "small",
        "",
        &[("mig-1g.5gb", "1")],
        (4, "1g.5gb"),
        &[("CUDA_MPS_PIPE_DIRECTORY", None)],
    ),
    (
        "middle",
        "",
        &[("mig-2g.10gb", "1")],
        (4, "2g.10gb"),
        &[("CUDA_MPS_PIPE_DIRECTORY", None)],
    ),
    (
        "client-of-instance",
        "",
        &[("mig-3g.20gb", "1")],
        (4, "3g.20gb"),
        &[
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", Some("0=9984M")),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", Some("50")),
        ],
    ),
    (
        "made",
        "",
        &[("mig-1g.10gb", "1")],
        (5, "1g.10gb"),
        &[("CUDA_MPS_PIPE_DIRECTORY", None)],
    ),
];
pub(crate) async fn six(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace(NAMESPACE).await?;
    stack.write_profiles(SIX)?;
    // 10 shares, one whole GPU, 10 time slices, 4 clients.
    stack.wait_capacity("25").await?;
    for (resource, replicas) in [
        ("nvidia.com/mig-1g.5gb", "2"),
        ("nvidia.com/mig-2g.10gb", "1"),
        ("nvidia.com/mig-3g.20gb", "2"),
        ("nvidia.com/mig-1g.10gb", "4"),
    ] {
        stack.wait_allocatable(resource, replicas).await?;
    }
    for (name, mode, limits, ..) in PODS {
        let mut pod = pods::simple(NAMESPACE, name, limits);
        if !mode.is_empty() {
            pod["metadata"]["annotations"] = json!({"aliquot.dev/vgpu-mode": mode});
        }
        stack.cluster.create_pod(pod).await?;
    }
    for (name, ..) in PODS {
        stack.cluster.wait_running(NAMESPACE, name).await?;
    }
    let machine = stack.machine().show()?;
    for (name, _, _, place, expected) in PODS {
        let environment = stack.environment(NAMESPACE, name, "main").await?;
        let visible = environment.get("ALIQUOT_VISIBLE_DEVICES");
        let visible = visible.with_context(|| format!("{name}: {environment:?}"))?;
        ensure!(
            devices(&machine, *place)?.contains(visible),
            "{name} sees {visible}, not {place:?}"
        );
        for (variable, value) in *expected {
            let found = environment.get(*variable).map(String::as_str);
            ensure!(found == *value, "{name}: {variable} is {found:?}");
        }
    }
    for (name, ..) in PODS {
        stack.cluster.delete_pod(NAMESPACE, name).await?;
    }
    stack.write_profiles(PLAIN)?;
    stack.wait_capacity("80").await
}

/// The uuids of a GPU, or of its instances of a profile, on the simulated machine.
fn devices(machine: &Value, (index, profile): (usize, &str)) -> Result<Vec<String>> {
    let gpu = &machine["gpus"][index];
    let uuid = |one: &Value| one["uuid"].as_str().map(str::to_owned).context("a uuid");
    if profile.is_empty() {
        return Ok(vec![uuid(gpu)?]);
    }
    let instances = gpu["instances"].as_array().context("instances")?;
    let alike = instances.iter().filter(|one| one["profile"] == profile);
    alike.map(uuid).collect()
}
