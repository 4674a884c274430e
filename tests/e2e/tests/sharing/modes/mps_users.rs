//! Mode mps with clients of different users and GPUs.

use std::sync::Arc;

use aliquot_e2e::clients::with_python;
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use serde_json::json;

use super::PLAIN;

/// GPUs 0 and 1 by MPS for four containers each, the others whole.
const TWO_GPUS: &str = "
apiVersion: aliquot.dev/v1alpha1
default: here
profiles:
  here:
    gpus:
    - {select: {index: 0}, mode: mps, replicas: 4}
    - {select: {index: 1}, mode: mps, replicas: 4}
    rest: exclusive
";

/// Starts a pod of a user on a GPU.
async fn start_as(
    stack: &Stack,
    (namespace, name): (&str, &str),
    gpu: usize,
    user: u32,
) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", "5000")];
    let mut pod = with_python(stack, namespace, name, &limits)?;
    pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": stack.gpu_uuid(gpu)?});
    pod["spec"]["securityContext"] = json!({"runAsUser": user, "runAsGroup": user});
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(namespace, name).await.map(drop)
}

/// Clients of one GPU have one memory of limited size at `/dev/shm`, in which the files of one user
/// are closed to others; those of another GPU have another.
pub(crate) async fn shared_memory(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let space = "mps-shm";
    stack.write_profiles(TWO_GPUS)?;
    stack.wait_capacity("14").await?;
    stack.cluster.namespace(space).await?;
    for (name, gpu, user) in [
        ("one", 0, 1000),
        ("twin", 0, 1000),
        ("neighbour", 0, 2000),
        ("other", 1, 1000),
    ] {
        start_as(stack, (space, name), gpu, user).await?;
    }
    for (pod, line, succeeds) in [
        ("one", "umask 077; echo data > /dev/shm/file", true),
        ("twin", "cat /dev/shm/file", true),
        ("neighbour", "ls /dev/shm/file", true),
        ("neighbour", "cat /dev/shm/file", false),
        ("neighbour", "mv /dev/shm/file /dev/shm/mine", false),
        ("neighbour", "rm -f /dev/shm/file", false),
        ("other", "ls -d /dev/shm", true),
        ("other", "ls /dev/shm/file", false),
        // The supervisor's --shm-size is 64 MiB.
        (
            "one",
            "dd if=/dev/zero of=/dev/shm/large bs=1M count=65",
            false,
        ),
        (
            "other",
            "dd if=/dev/zero of=/dev/shm/large bs=1M count=60",
            true,
        ),
    ] {
        let command = ["sh", "-c", line];
        let output = stack.cluster.exec(space, pod, "main", &command).await?;
        ensure!((output.code == Some(0)) == succeeds, "{pod}: {output:?}");
    }
    for name in ["one", "twin", "neighbour", "other"] {
        stack.cluster.delete_pod(space, name).await?;
    }
    stack.write_profiles(PLAIN)?;
    stack.wait_capacity("80").await
}
