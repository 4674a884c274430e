//! HAMI-7 and HAMI-13: more memory than a GPU has, and the limiter's log lines.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{answers, beside, program, with_python};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::world::{PATIENCE, other_machine, over, run, seen, usual_machine};

/// A small GPU with 4096 MiB beside what its driver reserves.
const SMALL: &str = "name: small\ngpus: [{model: Tesla T4, memoryMib: 4192, reservedMib: 96}]\n";
const MIB: u64 = 1 << 20;

/// HAMI-7: with a scaling of 2 two pods of the GPU's size run at once on it.
pub(crate) async fn scaled(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("scaled").await?;
    let options = NodeOptions {
        limited: true,
        scaling: "2",
        ..NodeOptions::default()
    };
    other_machine(stack, SMALL, &options, "10").await?;
    let outcome = on_one_gpu(stack).await;
    over(stack, "scaled").await?;
    usual_machine(stack).await?;
    outcome
}

async fn on_one_gpu(stack: &Stack) -> Result<()> {
    for name in ["one", "other"] {
        let limits = [("gpu", "1"), ("gpumem", "4096")];
        let pod = with_python(stack, "scaled", name, &limits)?;
        let found = run(stack, pod).await?;
        ensure!(found.shares() == [(4096, 0)], "{name}: {found:?}");
    }
    let third = simple("scaled", "third", &[("gpu", "1"), ("gpumem", "1000")]);
    stack.cluster.create_pod(third).await?;
    stack
        .wait_event("scaled", "third", &["1 CardInsufficientMemory"])
        .await?;
    // Each has more than half of the GPU, and works on what lies beyond its part.
    let work = ["init", "alloc,1400", "alloc,2100", "work,2"];
    let expected = work.map(|command| format!("{command}: 0"));
    let while_one_holds = async {
        let gpu = super::world::uuid(stack, 0)?;
        eventually(PATIENCE, "the first to use its memory", || async {
            let holders = stack.machine().process_usage(&gpu)?;
            let used: u64 = holders.iter().map(|one| one.used + one.host).sum();
            until!(used > 3800 * MIB, "{holders:?}");
            Ok(Some(()))
        })
        .await?;
        let output = answers(stack, "scaled", "other", &work).await?;
        ensure!(output == expected, "{output:?}");
        Ok(())
    };
    beside(stack, ("scaled", "one"), &work, while_one_holds).await
}

/// HAMI-13: nothing, or a line at start and at exit, by the variable that HAMi has for it.
pub(crate) async fn startup_lines(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("output").await?;
    for (name, level) in [("unset", None), ("errors", Some("1")), ("lines", Some("3"))] {
        let limits = [("gpu", "1"), ("gpumem", "3000")];
        let mut pod = with_python(stack, "output", name, &limits)?;
        if let Some(level) = level {
            let variable = json!([{"name": "LIBCUDA_LOG_LEVEL", "value": level}]);
            pod["spec"]["containers"][0]["env"] = variable;
        }
        stack.cluster.create_pod(pod).await?;
    }
    for (name, expected) in [("unset", 0), ("errors", 0), ("lines", 2)] {
        seen(stack, "output", name).await?;
        let words = program(&["init", "alloc,1000"])?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = stack.cluster.exec("output", name, "main", &words).await?;
        let errors = output.stderr.clone();
        output.success()?;
        let lines: Vec<&str> = errors.lines().filter(|l| l.contains("aliquot[")).collect();
        ensure!(lines.len() == expected, "{name}: {errors}");
        if expected == 2 {
            ensure!(lines[0].contains("limits of 1 devices"), "{errors}");
            ensure!(lines[0].contains("first 3000 MiB"), "{errors}");
            let last = lines.last().context("a last line")?;
            ensure!(last.contains("exit;"), "{errors}");
        }
    }
    over(stack, "output").await
}
