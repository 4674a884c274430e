//! Daemons, servers and the supervisor itself die at any moment.

use std::path::Path;
use std::time::{Duration, Instant};

use aliquot_cluster::starvation::{Attempts, Measurement};
use aliquot_cluster::wait::PATIENCE;
use aliquot_node_state::mps::DaemonPhase;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, daemon_shm};

/// The specified time until a daemon's end is detected.
const DETECTED: Duration = Duration::from_secs(2);

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[tokio::test]
async fn mps_11_restarts_a_killed_daemon_within_two_seconds() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    let mut attempts = Attempts::new("a killed daemon's end is detected");
    for number in 1.. {
        let first = bench.served("GPU-a").await;
        let mut lost = bench.client_of("GPU-a", &[], &["init", "ready", "hold", "sync"]);
        lost.until("ready: 0");
        std::fs::write(daemon_shm(&first).join("of a client"), "").unwrap();
        bench
            .status("GPU-a", |status| !status.servers.is_empty())
            .await;
        let measured = Measurement::of([bench.supervisor_pid()]);
        let killed = Instant::now();
        kill(first.daemon.unwrap());
        let seen = bench.status("GPU-a", |status| status.losses == number);
        let seen = seen.await;
        let (took, starved) = (killed.elapsed(), measured.starved());
        assert_eq!(seen.restarts, number);
        let second = bench.served("GPU-a").await;
        assert_ne!(second.daemon, first.daemon);
        // It has the same memory, which containers of clients have mounted.
        assert!(daemon_shm(&second).join("of a client").exists());
        // The client that was there has lost its server; a new one has another.
        lost.go_on();
        lost.until("sync: 806");
        if took < DETECTED {
            break;
        }
        let missed = format!("{took:?}, promised {DETECTED:?}");
        attempts.again(missed, starved).unwrap();
    }
    let mut fresh = bench.client_of("GPU-a", &[], &["init", "info"]);
    assert_eq!(fresh.answer(), "init: 0");
    assert_eq!(fresh.answer(), "info: 0 10188 10240");
}

#[tokio::test]
async fn reports_a_dead_server_without_restarting_its_daemon() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.served("GPU-a").await;
    let mut client = bench.client_of("GPU-a", &[], &["init", "ready", "hold"]);
    client.until("ready: 0");
    let with_client = |status: &aliquot_node_state::mps::DaemonStatus| {
        status
            .servers
            .iter()
            .any(|server| !server.clients.is_empty())
    };
    let status = bench.status("GPU-a", with_client).await;
    kill(status.servers[0].pid);
    let status = bench.status("GPU-a", |status| status.losses == 1).await;
    assert_eq!((status.restarts, status.phase), (0, DaemonPhase::Running));
}

#[tokio::test]
async fn mps_13_reports_a_client_error_for_the_whole_device() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.served("GPU-a").await;
    let mut victim = bench.client_of("GPU-a", &[], &["init", "ready", "hold", "sync"]);
    victim.until("ready: 0");
    let bad = [("GPUSIM_FAULTS", "cuCtxSynchronize=700")];
    let mut culprit = bench.client_of("GPU-a", &bad, &["init", "sync", "ready", "hold"]);
    culprit.until("ready: 0");
    let status = bench.status("GPU-a", |status| status.faults == 1).await;
    assert_eq!((status.losses, status.restarts), (0, 0));
    victim.go_on();
    victim.until("sync: 700");
    drop((victim, culprit));
    bench
        .status("GPU-a", |s| s.servers.iter().all(|server| !server.fault))
        .await;
    let mut next = bench.client_of("GPU-a", &[], &["init"]);
    assert_eq!(next.answer(), "init: 0");
}

#[tokio::test]
async fn next_supervisor_ends_what_the_killed_one_left() {
    let mut bench = Bench::new();
    bench.request("GPU-a", 4);
    let first = bench.served("GPU-a").await;
    let mut client = bench.client_of("GPU-a", &[], &["init", "ready", "hold", "sync"]);
    client.until("ready: 0");
    bench.kill_supervisor();
    bench.start_supervisor();
    bench.status("GPU-a", |status| status.losses == 1).await;
    let second = bench.served("GPU-a").await;
    assert_ne!(second.daemon, first.daemon);
    client.go_on();
    client.until("sync: 806");
    let mut next = bench.client_of("GPU-a", &[], &["init"]);
    assert_eq!(next.answer(), "init: 0");
}

/// Files of a device, in the order in which they come.
const MOMENTS: [&str; 6] = [
    "before.json",
    "pipe",
    "shm",
    "pipe/control",
    "pipe/nvidia-cuda-mps-control.pid",
    "status.json",
];

#[tokio::test]
async fn mps_18_supervisor_killed_at_any_moment_leaves_nothing_behind() {
    let mut bench = Bench::new();
    for up in [true, false] {
        for moment in MOMENTS {
            bench.request("GPU-a", 4);
            if !up {
                bench.served("GPU-a").await;
                bench.directory("GPU-a").remove_spec().unwrap();
            }
            bench.until_exists("GPU-a", moment, up).await;
            bench.kill_supervisor();
            let folder = bench.directory("GPU-a");
            let before = folder.last_checked();
            bench.start_supervisor();
            bench.request("GPU-a", 4);
            // The status is not the killed one's.
            bench
                .status("GPU-a", |_| folder.last_checked() > before)
                .await;
            bench.served("GPU-a").await;
            assert_eq!(bench.compute_mode(0), "exclusiveProcess", "{moment}");
            let threads = bench.daemon_answer("GPU-a", "get_default_active_thread_percentage");
            assert_eq!(threads, "25.0", "{moment}");
            bench.turn_off("GPU-a").await;
            assert_eq!(bench.compute_mode(0), "default", "{moment}");
        }
    }
}

#[tokio::test]
async fn client_cannot_impersonate_a_daemon_in_the_pipe_directory() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    let first = bench.served("GPU-a").await;
    let file = Path::new(&bench.pipe("GPU-a")).join("nvidia-cuda-mps-control.pid");
    let own = std::process::id().to_string();
    for text in [own.as_str(), "0", "no number"] {
        std::fs::write(&file, text).unwrap();
        checked_again(&bench).await;
    }
    std::fs::remove_file(&file).unwrap();
    let last = checked_again(&bench).await;
    assert_eq!((last.daemon, last.restarts), (first.daemon, 0));
}

/// The status after the supervisor has checked its daemon once more.
async fn checked_again(bench: &Bench) -> aliquot_node_state::mps::DaemonStatus {
    let folder = bench.directory("GPU-a");
    let before = folder.last_checked();
    bench
        .status("GPU-a", |status| {
            folder.last_checked() > before && status.phase == DaemonPhase::Running
        })
        .await
}

#[tokio::test]
async fn supervisor_keeps_no_gpu_open_against_a_reset() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.served("GPU-a").await;
    let maps = format!("/proc/{}/maps", bench.supervisor_pid());
    let open = || async {
        let maps = std::fs::read_to_string(&maps)?;
        let state = bench.machine.state().display().to_string();
        // What the simulator's CUDA half has mapped is no GPU.
        let open = maps.lines().any(|line| line.ends_with(&state));
        Ok((!open).then_some(()))
    };
    aliquot_cluster::wait::eventually(PATIENCE, "the driver to be closed", open)
        .await
        .unwrap();
}
