//! HAMI-3, HAMI-4, HAMI-5 and HAMI-10: what a pod gets that requests a percentage, or not
//! everything.

use std::sync::Arc;

use aliquot_e2e::clients::{answers, with_python};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};

use super::world::{A100, T4, annotated, over, run, seen, stored, wait_event, with_parts};

const USE_TYPE: &str = "nvidia.com/use-gputype";

/// HAMI-3: a half of what each GPU has, and NVML shows it.
pub(crate) async fn half(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("half").await?;
    for (name, model, memory) in [
        ("of-the-large", "A100-SXM4-80GB", A100 / 2),
        ("of-the-small", "T4", T4 / 2),
    ] {
        let limits = [("gpu", "1"), ("gpumem-percentage", "50")];
        let pod = with_python(stack, "half", name, &limits)?;
        let found = run(stack, annotated(pod, USE_TYPE, model)).await?;
        ensure!(found.shares() == [(memory, 0)], "{name}: {found:?}");
        let output = answers(stack, "half", name, &["ninit", "ncount", "nmemory"]).await?;
        let shown = format!("nmemory: [0, 0] 0 {memory}");
        ensure!(output[1..] == ["ncount: 0 1", &shown], "{name}: {output:?}");
    }
    over(stack, "half").await
}

/// Requests without a count: name, limit, and the resulting share.
type WithoutCount = (&'static str, (&'static str, &'static str), (u64, u32));
const WITHOUT_COUNT: [WithoutCount; 3] = [
    ("memory", ("gpumem", "3000"), (3000, 0)),
    ("percentage", ("gpumem-percentage", "10"), (1491, 0)),
    ("cores", ("gpucores", "30"), (5000, 30)),
];

/// HAMI-4: one GPU, or as many as the administrator configures, or no default.
pub(crate) async fn count(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("count").await?;
    for (name, asked, share) in WITHOUT_COUNT {
        let pod = simple("count", name, &[asked]);
        let found = run(stack, annotated(pod, USE_TYPE, "T4")).await?;
        ensure!(found.shares() == [share], "{name}: {found:?}");
        let pod = stored(stack, "count", name).await?;
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        ensure!(limits["nvidia.com/gpu"] == "1", "{name}: {limits}");
    }
    with_parts(stack, &["--default-gpu-num", "2"]).await?;
    let two = run(stack, simple("count", "two", &[("gpumem", "3000")])).await;
    with_parts(stack, &["--default-gpu-num", "0"]).await?;
    let none = without(stack).await;
    with_parts(stack, &[]).await?;
    let two = two?;
    ensure!(two.shares() == [(3000, 0), (3000, 0)], "{two:?}");
    none?;
    over(stack, "count").await
}

/// A count that is no number of GPUs is refused, not turned into a pod without a limit.
async fn without(stack: &Stack) -> Result<()> {
    let pod = simple("count", "none", &[("gpumem", "3000")]);
    let output = stack.refusal(pod).await?.context("it was admitted")?;
    let words = "requires nvidia.com/gpu of at least 1";
    ensure!(output.contains(words), "{output}");
    Ok(())
}

/// HAMI-5: the defaults for memory and compute, and those of an administrator who configures whole
/// GPUs.
pub(crate) async fn defaults(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("defaults").await?;
    let bare = |name: &str| {
        let pod = simple("defaults", name, &[("gpu", "1")]);
        annotated(pod, USE_TYPE, "T4")
    };
    let found = run(stack, bare("usual")).await?;
    ensure!(found.shares() == [(5000, 0)], "{found:?}");
    ensure!(found.priority == 1, "{found:?}");
    // A share without compute goes anywhere where its memory fits.
    let beside = run(stack, bare("beside")).await?;
    ensure!(beside.gpus == found.gpus, "{beside:?}");
    over(stack, "defaults").await?;
    with_parts(stack, &["--default-mem", "0", "--default-cores", "100"]).await?;
    let outcome = async {
        let whole = run(stack, bare("whole")).await?;
        ensure!(whole.shares() == [(T4, 100)], "{whole:?}");
        stack.cluster.create_pod(bare("second")).await?;
        wait_event(stack, "defaults", "second", "1 Card").await
    };
    let outcome = outcome.await;
    with_parts(stack, &[]).await?;
    outcome?;
    over(stack, "defaults").await
}

/// HAMI-10: 97, 2 and 1 percent fill a GPU, and the next one percent waits until a pod ends.
pub(crate) async fn steps(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("steps").await?;
    let share = |name: &str, percent: &str| {
        let limits = [
            ("gpu", "1"),
            ("gpumem-percentage", percent),
            ("gpucores", percent),
        ];
        annotated(simple("steps", name, &limits), USE_TYPE, "T4")
    };
    for (name, percent) in [("most", 97_u32), ("two", 2), ("one", 1)] {
        let found = run(stack, share(name, &percent.to_string())).await?;
        let memory = T4 * u64::from(percent) / 100;
        ensure!(found.shares() == [(memory, percent)], "{name}: {found:?}");
    }
    stack.cluster.create_pod(share("next", "1")).await?;
    wait_event(stack, "steps", "next", "1 Card").await?;
    stack.cluster.delete_pod("steps", "one").await?;
    let next = seen(stack, "steps", "next").await?;
    ensure!(next.shares() == [(T4 / 100, 1)], "{next:?}");
    over(stack, "steps").await
}
