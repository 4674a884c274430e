//! Shares of running programs become larger and smaller. Every context takes 512 MiB of a share here.

use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{answers, answers_until_released, beside, check, release, with_python};
use aliquot_e2e::figures::print_line;
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use tokio::process::Command;

use crate::limits::{limited, unlimited};
use crate::running::{PATIENCE, main_status};

const SPACE: &str = "limits";
/// Of the pod, and by how much it grows each time.
const MEMORY: u64 = 3000;
const STEP: u64 = 10;
/// Within this, 99 of 100 growths are felt.
const PROMISED: Duration = Duration::from_secs(1);

/// A program gets more of what its GPU has, keeps what it uses, and gives back what it does not.
pub(crate) async fn program(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    start(stack).await?;
    let held = async {
        let why = "its deadline has passed: container main uses more than 2000 MiB of GPU-";
        let fits = "what would fit: 3020 MiB";
        refused(
            stack,
            &["--gpumem", "2000", "--deadline", "3"],
            &[why, fits],
        )
        .await?;
        let why = [
            "has too little left (CardInsufficientMemory)",
            "what fits: 81286 MiB",
        ];
        refused(stack, &["--gpumem", "90000"], &why).await?;
        granted(stack, &["--gpucores", "40"]).await
    };
    grow(stack, 2, held).await?;
    let smaller = async {
        wait_used(stack, 1512, 3020).await?;
        granted(stack, &["--gpumem", "2000"]).await?;
        let nvml = "ninit: 0; nmemory: [0, 0] 1512 2000";
        check(stack, SPACE, "tenant", nvml).await?;
        release(stack, SPACE, "tenant").await
    };
    let commands = ["init", "alloc,1000"];
    beside(stack, (SPACE, "tenant"), &commands, smaller).await?;
    let cuda = "init: 0; alloc,1490: 2; alloc,1488: 0";
    check(stack, SPACE, "tenant", cuda).await?;
    let pod = untouched(stack).await?;
    let grant = &allocation(&pod)?.grants("main").context("a share")?[0].clone();
    ensure!((grant.memory.0, grant.cores.0) == (2000, 40), "{grant:?}");
    let events = stack.event_texts(SPACE, "tenant").await?;
    for reason in ["Resized: ", "ResizeWaiting: ", "ResizeRefused: "] {
        let found = events.iter().any(|event| event.starts_with(reason));
        ensure!(found, "{reason}{events:?}");
    }
    stack.ledger_agrees().await?;
    end(stack).await
}

/// 99 of 100 growths are felt within a second.
pub(crate) async fn hundred(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    start(stack).await?;
    let mut took = grow(stack, 100, async { Ok(()) }).await?;
    untouched(stack).await?;
    took.sort();
    let line = format!(
        "100 growths felt: median {:?}, 99th {:?}",
        took[49], took[98]
    );
    let line = format!("{line}, last {:?}", took[99]);
    print_line(&line);
    ensure!(took[98] <= PROMISED, "{line}");
    end(stack).await
}

/// A pod without a program yet, whose resizes follow each other without a pause.
async fn start(stack: &Stack) -> Result<()> {
    stack.restart_scheduler(&["--resize-interval", "0"]).await?;
    limited(stack).await?;
    let memory = MEMORY.to_string();
    let limits = [("gpu", "1"), ("gpumem", &*memory), ("gpucores", "30")];
    let pod = with_python(stack, SPACE, "tenant", &limits)?;
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(SPACE, "tenant").await.map(drop)
}

async fn end(stack: &Stack) -> Result<()> {
    stack.restart_scheduler(&[]).await?;
    unlimited(stack, &["tenant"]).await
}

/// A program that uses all of its share allocates as soon as that grows, `count` times, and holds it
/// while `held`. How long each took, from before the command was started.
async fn grow(
    stack: &Stack,
    count: u64,
    held: impl Future<Output = Result<()>>,
) -> Result<Vec<Duration>> {
    let full = format!("alloc,{}", MEMORY - 512);
    let step = format!("grown,{STEP}");
    let mut commands = vec!["init", "ninit", &full];
    commands.extend((0..count).map(|_| &*step));
    commands.push("hold");
    let growing = async {
        wait_used(stack, MEMORY, MEMORY).await?;
        let mut asked = Vec::new();
        for n in 1..=count {
            asked.push(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
            granted(stack, &["--gpumem", &(MEMORY + STEP * n).to_string()]).await?;
        }
        held.await?;
        release(stack, SPACE, "tenant").await?;
        Ok(asked)
    };
    let program = answers_until_released(stack, SPACE, "tenant", &commands);
    let (said, asked) = try_join!(program, growing)?;
    let mut took = Vec::new();
    let grown = said.iter().filter(|line| line.starts_with("grown"));
    for ((line, asked), n) in grown.zip(asked).zip(1..) {
        let (seen, at) = line.rsplit_once(' ').context("a time")?;
        let total = MEMORY + STEP * n;
        let expected = format!("{step}: 0 0 0 {total} [0, 0] {total} {total}");
        ensure!(seen == expected, "{line}, expected {expected}");
        took.push(Duration::from_secs_f64(at.parse()?).saturating_sub(asked));
    }
    ensure!(took.len() as u64 == count, "{said:?}");
    Ok(took)
}

/// Waits until the pod's program uses this much of its share.
async fn wait_used(stack: &Stack, used: u64, share: u64) -> Result<()> {
    let expected = format!("nmemory: [0, 0] {used} {share}");
    eventually(PATIENCE, "the program to use its memory", || async {
        let nvml = answers(stack, SPACE, "tenant", &["ninit", "nmemory"]).await?;
        until!(nvml[1] == expected, "{nvml:?}");
        Ok(Some(()))
    })
    .await
}

async fn resize(stack: &Stack, flags: &[&str]) -> Result<Output> {
    let program = stack.program(Kind::Scheduler);
    let mut command = Command::new(program.with_file_name("kubectl-aliquot"));
    command.args(["resize", "pod/tenant", "-n", SPACE, "--wait"]);
    command.arg("--kubeconfig").arg(stack.cluster.kubeconfig());
    let output = command.args(flags).kill_on_drop(true).output();
    Ok(tokio::time::timeout(PATIENCE, output).await??)
}

async fn granted(stack: &Stack, flags: &[&str]) -> Result<()> {
    let output = resize(stack, flags).await?;
    ensure!(output.status.success(), "{flags:?}: {output:?}");
    Ok(())
}

async fn refused(stack: &Stack, flags: &[&str], expected: &[&str]) -> Result<()> {
    let output = resize(stack, flags).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    let all = expected.iter().all(|text| said.contains(text));
    ensure!(!output.status.success() && all, "{flags:?}: {output:?}");
    Ok(())
}

/// The pod, whose container was never restarted.
async fn untouched(stack: &Stack) -> Result<Pod> {
    let pod = stack.cluster.wait_running(SPACE, "tenant").await?;
    let status = main_status(&pod).context("a status")?;
    ensure!(status.restart_count == 0, "{status:?}");
    Ok(pod)
}
