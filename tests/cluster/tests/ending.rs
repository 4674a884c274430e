//! However the owner ends, nothing but the logs is left.

mod leftovers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_cluster::{not_yet, until};
use anyhow::{Result, ensure};
use serde_json::json;

/// Starts `aliquot-cluster hold` in a new state folder.
fn hold(args: &[&str]) -> Result<(PathBuf, Child)> {
    let state = tempfile::Builder::new()
        .prefix("alq-")
        .tempdir_in("/tmp")?
        .keep();
    let child = Command::new(env!("CARGO_BIN_EXE_aliquot-cluster"))
        .arg("hold")
        .args(args)
        .arg("--state")
        .arg(&state)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    Ok((state, child))
}

async fn until(what: &str, is_met: impl Fn() -> bool) -> Result<()> {
    eventually(PATIENCE, what, || async { Ok(is_met().then_some(())) }).await
}

/// Waits until only the logs are left, reads and removes them.
async fn only_logs_remain(state: &Path) -> Result<()> {
    eventually(PATIENCE, "the watchdog to end the cluster", || async {
        let left = leftovers::of(state);
        until!(left.is_empty(), "{left:?}");
        let mut names = Vec::new();
        for entry in fs::read_dir(state)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        if names != ["down.sh", "log"] {
            not_yet!("{names:?}");
        }
        Ok(Some(()))
    })
    .await?;
    ensure!(
        state.join("log/apiserver.log").exists(),
        "the API server's log is lost"
    );
    fs::remove_dir_all(state)?;
    Ok(())
}

#[tokio::test]
async fn kill_during_start_leaves_nothing_behind() -> Result<()> {
    let (state, mut owner) = hold(&[])?;
    until("the API server's start", || {
        state.join("run/apiserver.pid").exists()
    })
    .await?;
    owner.kill()?;
    owner.wait()?;
    only_logs_remain(&state).await
}

#[tokio::test]
async fn kill_with_a_running_pod_and_part_leaves_nothing_behind() -> Result<()> {
    let (state, mut owner) = hold(&["--node"])?;
    let recorded = || fs::metadata(state.join("aliquot-cluster")).is_ok_and(|file| file.len() > 0);
    until("the cluster", recorded).await?;
    let cluster = Cluster::attach(&state).await?;
    cluster
        .create_pod(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{
                "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "7654321"],
            }]},
        }))
        .await?;
    cluster.wait_running("default", "p").await?;
    let interface = leftovers::interface_of(&cluster, "p").await?;
    let part = cluster.start_part("sleeper", "/bin/sleep".as_ref(), &["7654322"], &[])?;
    part.leave_running();
    owner.kill()?;
    owner.wait()?;
    only_logs_remain(&state).await?;
    ensure!(
        !leftovers::has_interface(interface),
        "{interface} is still there"
    );
    for argument in ["7654321", "7654322"] {
        until(&format!("the end of `sleep {argument}`"), || {
            !running_with(argument)
        })
        .await?;
    }
    Ok(())
}

fn running_with(argument: &str) -> bool {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let mut lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| {
        line.split(|b| *b == 0)
            .any(|word| word == argument.as_bytes())
    })
}

#[tokio::test]
async fn failed_start_names_its_log_and_leaves_nothing_else() -> Result<()> {
    let state = tempfile::Builder::new()
        .prefix("alq-")
        .tempdir_in("/tmp")?
        .keep();
    let builder = Cluster::control_plane()
        .state(&state)
        .apiserver_arg("--no-such-flag");
    let error = Box::pin(builder.start())
        .await
        .expect_err("the API server refuses the flag");
    let text = format!("{error:#}");
    assert!(text.contains("unknown flag: --no-such-flag"), "{text}");
    assert!(text.contains(state.join("log").to_str().unwrap()), "{text}");
    only_logs_remain(&state).await
}

#[tokio::test]
async fn detached_cluster_outlives_its_starter_until_a_second_start() -> Result<()> {
    let state = tempfile::Builder::new()
        .prefix("alq-")
        .tempdir_in("/tmp")?
        .keep();
    for n in 0..2 {
        let up = Command::new(env!("CARGO_BIN_EXE_aliquot-cluster"))
            .args(["up", "--extender", "own", "--state"])
            .arg(&state)
            .output()?;
        ensure!(
            up.status.success(),
            "start {n}: {}",
            String::from_utf8_lossy(&up.stderr)
        );
        let cluster = Cluster::attach(&state).await?;
        let name = format!("space-{n}");
        cluster.namespace(&name).await?;
        let spaces = cluster
            .kubectl(&["get", "namespaces", "-o", "name"])
            .await?
            .success()?;
        assert_eq!(spaces.matches("space-").count(), 1, "{spaces}");
        drop(cluster);
    }
    Cluster::stop_at(&state).await?;
    Cluster::stop_at(&state).await?;
    assert_eq!(leftovers::of(&state), Vec::<String>::new());
    assert!(!state.exists());
    Ok(())
}

#[tokio::test]
async fn rejects_an_unusable_state_directory() -> Result<()> {
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(60)));
    let error = Box::pin(Cluster::control_plane().state(&long).start())
        .await
        .expect_err("long");
    assert!(format!("{error:#}").contains("at most 60"), "{error:#}");
    let foreign = tempfile::tempdir()?;
    fs::write(foreign.path().join("thesis.txt"), "mine")?;
    let builder = Cluster::control_plane().state(foreign.path());
    let error = Box::pin(builder.start()).await.expect_err("not empty");
    assert!(
        format!("{error:#}").contains("holds thesis.txt"),
        "{error:#}"
    );
    assert!(foreign.path().join("thesis.txt").exists());
    Ok(())
}
