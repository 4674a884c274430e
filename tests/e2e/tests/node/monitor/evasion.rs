//! Kinds of attacks of the threat model that the host can detect, on the real node: reported and
//! charged; neighbours retain their limits. The simulator gives the time at which a program got its
//! GPU.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{check, script_until_released, with_program, with_python};
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, Stack};
use aliquot_gpusim::ProcessUsage;
use anyhow::{Context as _, Result, ensure};
use futures::future::{Either, join_all, select};
use serde_json::json;

use super::running::{CONTEXT, MIB, PATIENCE, becomes, figure, monitored, over, with_oom_killer};

const USED: &str = "aliquot_share_memory_used_bytes";
const OVERHEAD: &str = "aliquot_share_memory_overhead_bytes";
const KILLED: &str = "aliquot_monitor_killed_processes_total";
/// Until a process is reported: two samples, half a second apart, on a machine that is not busy.
const LATEST: Duration = Duration::from_secs(30);
/// MiB that each takes, well within its share.
const TAKEN: f64 = 500.0;
/// MiB of a context where no library is used at all (`bare-gpu`).
const BARE: f64 = 480.0;

/// A pod, the script that evades the limiter in it, and MiB of its context.
type Attack = (&'static str, &'static str, f64);

/// Each hides the preload list, or finds the driver's functions past it (`load`). `HOLD` allocates
/// memory and holds it.
const ATTACKS: &[Attack] = &[
    (
        "by-path",
        "exec python3 $client load,/.aliquot/lib/libcuda-real.so.1 HOLD",
        CONTEXT,
    ),
    (
        "brought-along",
        "cp /.aliquot/lib/libcuda-real.so.1 /tmp/libcuda.so.1
         export LD_LIBRARY_PATH=/tmp
         exec unshare --user --map-root-user --mount sh -c '
             mount --bind /dev/null /etc/ld.so.preload
             exec python3 \"$@\"' sh $client HOLD",
        CONTEXT,
    ),
    (
        "sandboxed",
        "exec unshare --user --map-root-user --pid --fork \
             python3 $client load,/.aliquot/lib/libcuda-real.so.1 HOLD",
        CONTEXT,
    ),
    ("without-any", "exec /programs/bare-gpu HOLD", BARE),
];

/// Scripts whose program has a process slot and exceeds its limit nevertheless: the OOM killer's.
const PASSING: &[(&str, &str)] = &[
    (
        "page-bound-over",
        r#"exec unshare --user --map-root-user --mount sh -c '
             cp /.aliquot/limits /tmp/forged
             printf "\0\0\0\0\100\0\0\0" | dd of=/tmp/forged bs=1 seek=104 conv=notrunc 2>/dev/null
             mount --bind /tmp/forged /.aliquot/limits
             exec python3 "$@"' sh $client init alloc,5000 hold"#,
    ),
    (
        "counters-forged",
        "exec python3 $client init alloc,2000 forge alloc,2000 hold",
    ),
];

/// A pod of which no process may be killed, which is the default.
const SPARED: &str = "spared";

pub(crate) async fn attacks(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let space = "shed";
    monitored(stack, space).await?;
    let passing = PASSING.iter().map(|(name, _)| *name);
    let names = ATTACKS.iter().map(|one| one.0).chain(passing);
    let names: Vec<&str> = names.chain([SPARED]).collect();
    let uids = pods(stack, space, &names).await?;
    let checks = async {
        for (name, script) in PASSING {
            passes(stack, space, name, script).await?;
        }
        spared(stack, space).await?;
        all(stack, space, ATTACKS, &uids).await
    };
    beside_neighbour(stack, space, checks).await
}

/// The pods of these names and a neighbour; the uids of the first.
async fn pods(stack: &Stack, space: &str, names: &[&str]) -> Result<Vec<String>> {
    let first = stack.gpu_uuid(0)?;
    for name in names.iter().chain(&["neighbour"]) {
        let limits = [("gpu", "1"), ("gpumem", "3000"), ("gpucores", "5")];
        let mut pod = with_python(stack, space, name, &limits)?;
        with_program(&mut pod, stack, "bare-gpu")?;
        if *name != SPARED {
            with_oom_killer(&mut pod);
        }
        // The program without any library knows the first GPU only.
        pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": first});
        stack.cluster.create_pod(pod).await?;
    }
    let mut uids = Vec::new();
    for name in names {
        let pod = stack.cluster.wait_running(space, name).await?;
        uids.push(pod.metadata.uid.context("a uid")?);
    }
    stack.cluster.wait_running(space, "neighbour").await?;
    Ok(uids)
}

/// While a neighbour uses a part of its share; afterwards it still has that, and its limit.
async fn beside_neighbour(
    stack: &Stack,
    space: &str,
    checks: impl Future<Output = Result<()>>,
) -> Result<()> {
    let whole = async {
        becomes(stack, USED, "neighbour", (1000.0 + CONTEXT) * MIB).await?;
        checks.await?;
        becomes(stack, USED, "neighbour", (1000.0 + CONTEXT) * MIB).await?;
        let more = "init: 0; alloc,1500: 2; alloc,400: 0";
        check(stack, space, "neighbour", more).await
    };
    let script = "exec python3 $client init alloc,1000 hold";
    with_scripts(stack, &[(space, "neighbour", script.to_owned())], whole).await?;
    over(stack, space).await
}

/// Runs scripts in pods, all at once, while `then` checks. They may end before.
async fn with_scripts<T>(
    stack: &Stack,
    scripts: &[(&str, &str, String)],
    then: impl Future<Output = Result<T>>,
) -> Result<T> {
    let running = scripts
        .iter()
        .map(|(space, pod, script)| script_until_released(stack, space, pod, script));
    let running = Box::pin(join_all(running));
    match select(running, Box::pin(then)).await {
        Either::Left((ended, then)) => then.await.with_context(|| format!("{ended:?}")),
        Either::Right((found, _)) => found,
    }
}

/// A program with a process slot that exceeds its limit is killed, and its pod gets an event.
async fn passes(stack: &Stack, space: &str, name: &str, script: &str) -> Result<()> {
    let before = figure(stack, KILLED, &["oom"]).await?;
    let ended = async {
        eventually(PATIENCE, &format!("{name} to be ended"), || async {
            let ended = figure(stack, KILLED, &["oom"]).await? - before;
            until!((ended - 1.0).abs() < 0.5, "{ended} ended");
            Ok(Some(()))
        })
        .await?;
        stack.wait_event(space, name, &["GpuOomKilled"]).await?;
        becomes(stack, USED, name, 0.0).await
    };
    with_scripts(stack, &[(space, name, script.to_owned())], ended).await
}

/// Where no process may be killed, the same is reported.
async fn spared(stack: &Stack, space: &str) -> Result<()> {
    let before = figure(stack, KILLED, &["oom"]).await?;
    let (_, script) = PASSING[1];
    let reported = stack.wait_event(space, SPARED, &["GpuMemoryAboveLimit"]);
    with_scripts(stack, &[(space, SPARED, script.to_owned())], reported).await?;
    let killed = figure(stack, KILLED, &["oom"]).await? - before;
    ensure!(killed < 0.5, "{killed} killed");
    Ok(())
}

/// All attacks at once: each is reported soon, and charged.
async fn all(stack: &Stack, space: &str, attacks: &[Attack], uids: &[String]) -> Result<()> {
    let hold = format!("init alloc,{TAKEN} hold");
    let scripts: Vec<_> = attacks
        .iter()
        .map(|(name, script, _)| (space, *name, script.replace("HOLD", &hold)))
        .collect();
    let checks = async {
        wait_reported(stack, attacks, uids).await?;
        for (name, _, context) in attacks {
            let all = (TAKEN + context) * MIB;
            becomes(stack, USED, name, all).await?;
            becomes(stack, OVERHEAD, name, all).await?;
            stack
                .wait_event(space, name, &["GpuProcessUnmanaged"])
                .await?;
        }
        Ok(())
    };
    with_scripts(stack, &scripts, checks).await
}

/// From when the GPU has a program of a pod until the monitor reports it.
async fn wait_reported(stack: &Stack, attacks: &[Attack], uids: &[String]) -> Result<()> {
    let shown = RefCell::new(vec![None::<Instant>; attacks.len()]);
    let reported = RefCell::new(vec![None::<Duration>; attacks.len()]);
    eventually(PATIENCE, "all attacks to be reported", || async {
        let cgroups = cgroups(stack)?;
        for (uid, shown) in uids.iter().zip(&mut *shown.borrow_mut()) {
            if shown.is_none() && cgroups.iter().any(|text| text.contains(uid.as_str())) {
                *shown = Some(Instant::now());
            }
        }
        let figures = http::get(stack.address(Kind::Monitor), "/metrics").await?;
        let (shown, mut reported) = (shown.borrow(), reported.borrow_mut());
        for (((name, ..), shown), reported) in attacks.iter().zip(&*shown).zip(&mut *reported) {
            let own = format!("pod=\"{name}\"");
            let mut lines = figures.lines();
            let is_reported = lines.any(|line| {
                let is_unmanaged = line.starts_with("aliquot_gpu_unmanaged_processes{");
                is_unmanaged && line.contains("\"no-library\"") && line.contains(&own)
            });
            if let (None, true, Some(shown)) = (&reported, is_reported, shown) {
                *reported = Some(shown.elapsed());
            }
        }
        until!(
            reported.iter().all(Option::is_some),
            "{reported:?} of {shown:?}"
        );
        Ok(Some(()))
    })
    .await?;
    let reported = reported.into_inner();
    let late = reported.iter().flatten().any(|took| *took >= LATEST);
    ensure!(!late, "reported after {reported:?}");
    Ok(())
}

/// The cgroups of all programs that have a GPU.
fn cgroups(stack: &Stack) -> Result<Vec<String>> {
    let machine = stack.machine();
    let holders = [machine.process_usage("0")?, machine.process_usage("1")?].concat();
    let pids = holders.iter().filter_map(ProcessUsage::pid_here);
    // One that ended meanwhile has none.
    let texts = pids.filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
    Ok(texts.collect())
}
