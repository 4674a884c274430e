//! Mode mps with clients of several pods at once: of different users, and as `top` shows them.

use std::sync::Arc;

use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_cluster::{not_yet, until};
use aliquot_core::Mib;
use aliquot_e2e::clients::{answers, answers_until_released, with_python};
use aliquot_e2e::stack::{Kind, NODE, Stack};
use aliquot_node_state::mps::{self, DaemonStatus};
use aliquot_node_state::state::StateDirectory;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::mps::{end, give_driver, one_mps_gpu, plain, start, two_mps_gpus, uuid, wait_replicas};

/// What a client's context takes.
const CONTEXT: u64 = 416 / 8;

/// Another future, as long as the first is not over.
async fn beside<T>(
    first: impl Future<Output = Result<Vec<String>>>,
    other: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        over = first => Err(anyhow::anyhow!("the client ended early: {over:?}")),
        seen = other => seen,
    }
}

/// MPS-14: clients and their memory, for each pod and for each GPU, as long as they run.
pub(crate) async fn shown(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let space = "mps-shown";
    stack.write_profiles(&one_mps_gpu())?;
    wait_replicas(stack, "nvidia.com/gpu", Some("11")).await?;
    stack.cluster.namespace(space).await?;
    give_driver(stack)?;
    let limits = [("gpu", "1"), ("gpumem", "5000")];
    start(stack, (space, "client"), 0, &limits).await?;
    start(stack, (space, "idle"), 0, &limits).await?;
    let client = answers_until_released(stack, space, "client", &["init", "alloc,3000", "hold"]);
    beside(client, holds(stack, space)).await?;
    end(stack, space, &["client", "idle"]).await?;
    plain(stack).await
}

async fn holds(stack: &Stack, space: &str) -> Result<()> {
    let gpu = uuid(stack, 0)?;
    let expected = json!({"clients": 1, "bytes": Mib(3000 + CONTEXT).0 << 20});
    let agent = format!("{NODE}=http://{}", stack.address(Kind::DevicePlugin));
    let kubeconfig = stack.kubeconfig(Kind::Scheduler).await?;
    let kubeconfig = kubeconfig.display().to_string();
    let server = format!("http://{}", stack.address(Kind::Scheduler));
    let gpus = ["gpus", "--server", &server, "--agent", &agent];
    let own = ["-n", space, "--kubeconfig", &kubeconfig];
    let pods = [&["pods"][..], &gpus[1..], &own].concat();
    eventually(PATIENCE, "the client in top", || async {
        let answer = top(stack, &pods).await?;
        let all = answer.as_array().context("pods")?;
        let of = |name: &str| all.iter().find(|pod| pod["name"] == name);
        let client = of("client").context("no client").or_not_yet()?;
        until!(client["mps"][&gpu] == expected, "{client}");
        let idle = of("idle").context("no idle pod").or_not_yet()?;
        until!(idle.get("mps").is_none(), "{idle}");
        Ok(Some(()))
    })
    .await?;
    let answer = top(stack, &gpus).await?;
    let all = answer["mps"].as_array().context("clients")?;
    let [one] = all.as_slice() else {
        anyhow::bail!("{all:?}");
    };
    let name =
        json!({"node": NODE, "gpu": gpu, "namespace": space, "pod": "client", "container": "main"});
    for (key, value) in name.as_object().into_iter().flatten() {
        ensure!(one[key] == *value, "{key} of {one}");
    }
    ensure!(one["bytes"] == expected["bytes"], "{one}");
    Ok(())
}

async fn top(stack: &Stack, arguments: &[&str]) -> Result<Value> {
    let program = stack.program(Kind::Scheduler);
    let program = program.with_file_name("kubectl-aliquot");
    let mut command = Command::new(program);
    command.arg("top").args(arguments).args(["-o", "json"]);
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, output).await??;
    ensure!(output.status.success(), "{output:?}");
    ensure!(output.stderr.is_empty(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// MPS-16: programs of different users are clients of one server at the same time.
pub(crate) async fn users(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let space = "mps-users";
    stack.write_profiles(&one_mps_gpu())?;
    wait_replicas(stack, "nvidia.com/gpu", Some("11")).await?;
    stack.cluster.namespace(space).await?;
    give_driver(stack)?;
    let gpu = uuid(stack, 0)?;
    for (name, user) in [("one", 1000), ("other", 2000)] {
        start_as(stack, (space, name), 0, user).await?;
    }
    let client = ["init", "alloc,1000", "hold"];
    let second = async {
        clients(stack, &gpu, 1).await?;
        let third = answers_until_released(stack, space, "other", &client);
        beside(third, clients(stack, &gpu, 2)).await?;
        let seen = answers(stack, space, "other", &["init", "alloc,1000"]).await?;
        ensure!(seen == ["init: 0", "alloc,1000: 0"], "{seen:?}");
        anyhow::Ok(())
    };
    beside(answers_until_released(stack, space, "one", &client), second).await?;
    end(stack, space, &["one", "other"]).await?;
    plain(stack).await
}

/// Starts a pod of a user on a GPU.
async fn start_as(
    stack: &Stack,
    (namespace, name): (&str, &str),
    gpu: usize,
    user: u32,
) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", "5000")];
    let mut pod = with_python(stack, namespace, name, &limits)?;
    pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": uuid(stack, gpu)?});
    pod["spec"]["securityContext"] = json!({"runAsUser": user, "runAsGroup": user});
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(namespace, name).await.map(drop)
}

/// Clients of one GPU have one memory of limited size at `/dev/shm`, in which the files of one user
/// are closed to others; those of another GPU have another.
pub(crate) async fn shared_memory(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let space = "mps-shm";
    stack.write_profiles(&two_mps_gpus())?;
    wait_replicas(stack, "nvidia.com/gpu", Some("14")).await?;
    stack.cluster.namespace(space).await?;
    give_driver(stack)?;
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
    end(stack, space, &["one", "twin", "neighbour", "other"]).await?;
    plain(stack).await
}

/// Waits until the one server of a device has this many clients, as it reports to the supervisor.
async fn clients(stack: &Stack, gpu: &str, count: usize) -> Result<()> {
    let root = StateDirectory(&stack.agent_state()).mps();
    let status = root.join(gpu).join(mps::STATUS);
    eventually(PATIENCE, &format!("{count} clients"), || async {
        let status: DaemonStatus = serde_json::from_slice(&std::fs::read(&status).or_not_yet()?)?;
        let [server] = status.servers.as_slice() else {
            not_yet!("{status:?}");
        };
        until!(server.clients.len() == count, "{status:?}");
        Ok(Some(()))
    })
    .await
}
