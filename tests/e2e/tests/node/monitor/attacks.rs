//! Whatever happens to a tenant's counters, the monitor goes on, no other figure changes, and no
//! tenant gets another's processes killed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_e2e::clients::{answers, release};
use aliquot_e2e::stack::{Kind, Stack};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_node_state::state::StateDirectory;
use anyhow::{Context as _, Result, ensure};

use super::running::{CONTEXT, MIB, PATIENCE, becomes, beside, figure, monitored, over, pod};

const UNREADABLE: &str = "aliquot_share_counters_unreadable";
const USED: &str = "aliquot_share_memory_used_bytes";
const TRACKED: &str = "aliquot_share_memory_tracked_bytes";

/// With the ids of others' processes, overwritten, of another version, with every slot taken, a
/// FIFO, a link, short, a directory, missing: reported, nobody's process is killed, and no other
/// figure changes, nor when pods vanish meanwhile.
pub(crate) async fn spoiled(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, "spoiled").await?;
    pod(stack, "spoiled", "tenant", "3000").await?;
    let file = counters(stack, ("spoiled", "tenant")).await?;
    pod(stack, "spoiled", "neighbour", "3000").await?;
    let others = counters(stack, ("spoiled", "neighbour")).await?;
    let checks = async {
        unharmed(stack).await?;
        // The ids of all others' processes, with more than the limit.
        let mut all = vec!["init".to_owned(), "alloc,500".to_owned()];
        let machine = stack.machine();
        for holder in [machine.process_usage("0")?, machine.process_usage("1")?].concat() {
            let here = holder.pid_here().context("a process of this machine")?;
            all.extend([holder.pid, here].map(|pid| format!("say,{pid},9000")));
        }
        let commands: Vec<&str> = all.iter().map(String::as_str).collect();
        let reported = stack.wait_event("spoiled", "tenant", &["GpuProcessUnmanaged"]);
        beside(stack, ("spoiled", "tenant"), &commands, reported).await?;
        unharmed(stack).await?;
        release(stack, "spoiled", "tenant").await?;
        // The magic word, and the version.
        for spoil in ["spoil,0,ffffffff", "spoil,8,00000000", "spoil,8,03000000"] {
            answers(stack, "spoiled", "tenant", &[spoil]).await?;
            seen(stack, spoil, 1.0).await?;
            answers(stack, "spoiled", "tenant", &[MAGIC, VERSION]).await?;
            seen(stack, "mended", 0.0).await?;
        }
        // Every slot taken by a process with all locks.
        let full = async {
            becomes(stack, TRACKED, "tenant", 1024.0 * 4.0 * MIB).await?;
            seen(stack, "all slots taken", 0.0).await
        };
        beside(stack, ("spoiled", "tenant"), &["fill,4"], full).await?;
        // Its end frees the file, which takes all the space.
        release(stack, "spoiled", "tenant").await?;
        // By root of the node, in the file's place: there is space for one file.
        let original = fs::read(&file).context("counters")?;
        let mode = fs::metadata(&file).context("counters")?.permissions();
        for what in ["a FIFO", "a link", "a short file", "a folder"] {
            // The monitor has it open for a moment more, and the agent puts a missing one back.
            eventually(PATIENCE, what, || async {
                match fs::remove_file(&file) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                    _ => put(what, &file, &others).or_not_yet()?,
                }
                Ok(Some(()))
            })
            .await?;
            seen(stack, what, 1.0).await?;
            if what == "a folder" {
                fs::remove_dir(&file).context("the folder")?;
            } else {
                fs::remove_file(&file).context(what)?;
            }
            fs::write(&file, &original).context("put back")?;
            fs::set_permissions(&file, mode.clone()).context("put back")?;
            seen(stack, "mended", 0.0).await?;
        }
        // Pods that vanish while they are read.
        for n in 0..3 {
            let name = format!("gone-{n}");
            pod(stack, "spoiled", &name, "1000").await?;
            let delete = ["delete", "pod", "-n", "spoiled", &name, "--force"];
            stack.cluster.kubectl(&delete).await?.success()?;
            unharmed(stack).await?;
        }
        Ok(())
    };
    let program = ["init", "alloc,1000"];
    beside(stack, ("spoiled", "neighbour"), &program, checks).await?;
    let killed = figure(stack, "aliquot_monitor_killed_processes_total", &["oom"]).await?;
    ensure!(killed < 0.5, "{killed} processes were killed");
    over(stack, "spoiled").await
}

fn put(what: &str, file: &Path, others: &Path) -> Result<()> {
    match what {
        "a FIFO" => {
            let made = std::process::Command::new("mkfifo").arg(file).status()?;
            ensure!(made.success(), "{made}");
            Ok(())
        }
        "a link" => Ok(std::os::unix::fs::symlink(others, file)?),
        "a short file" => Ok(fs::write(file, [0; 100])?),
        _ => Ok(fs::create_dir(file)?),
    }
}

/// How a counters file begins.
const MAGIC: &str = "spoil,0,414c51434f554e54";
const VERSION: &str = "spoil,8,01000000";

async fn seen(stack: &Stack, what: &str, expected: f64) -> Result<()> {
    let outcome = becomes(stack, UNREADABLE, "tenant", expected).await;
    outcome.with_context(|| what.to_owned())?;
    unharmed(stack).await.with_context(|| what.to_owned())
}

async fn unharmed(stack: &Stack) -> Result<()> {
    becomes(stack, USED, "neighbour", (1000.0 + CONTEXT) * MIB).await?;
    becomes(stack, TRACKED, "neighbour", (1000.0 + 512.0) * MIB).await?;
    becomes(stack, UNREADABLE, "neighbour", 0.0).await
}

/// The counters file of a pod's container, as the agent sees it.
async fn counters(stack: &Stack, (namespace, pod): (&str, &str)) -> Result<PathBuf> {
    let state = stack
        .seen_by(Kind::DevicePlugin, &stack.agent_state())
        .await?;
    // The agent writes a share beside its place and moves it there; shares of pods before
    // this one, of the same name in other namespaces too, go meanwhile.
    eventually(PATIENCE, &format!("the share of {pod}"), || async {
        let state = StateDirectory(&state);
        for file in fs::read_dir(state.accepted())?.flatten() {
            let Ok(share) = fs::read(file.path()) else {
                continue;
            };
            let Ok(Some(share)) = AcceptedAllocation::decode(&share) else {
                continue;
            };
            if share.namespace == namespace && share.pod_name == pod {
                let first = share.names.first().context("a name")?;
                let directory = state.container_directories().join(&first.name);
                return Ok(Some(ContainerDirectory::new(directory).counters()));
            }
        }
        Ok(None)
    })
    .await
}
