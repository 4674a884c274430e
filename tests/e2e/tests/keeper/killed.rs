//! Daemons, servers and the keeper itself die at any moment.

use std::time::{Duration, Instant};

use aliquot_cluster::wait::PATIENCE;
use aliquot_device_plugin::mps::folder::Phase;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::Bench;

/// What a daemon's end is seen within.
const SEEN: Duration = Duration::from_secs(2);

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[tokio::test]
async fn mps_11_a_killed_daemon_is_seen_within_two_seconds_and_comes_back() {
    let bench = Bench::new();
    bench.wish("GPU-a", 4);
    let pipe = bench.pipe("GPU-a");
    let environment = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    let mut tries = Vec::new();
    // The machine does other work, too: what is promised is seen once of three times.
    for number in 1..=3 {
        let first = bench.served("GPU-a").await;
        let mut lost = bench.client(&environment, &["init", "ready", "hold", "sync"]);
        lost.until("ready: 0");
        bench
            .status("GPU-a", |status| !status.servers.is_empty())
            .await;
        let killed = Instant::now();
        kill(first.daemon.unwrap());
        let seen = bench.status("GPU-a", |status| status.losses == number);
        let seen = seen.await;
        tries.push(killed.elapsed());
        assert_eq!(seen.restarts, number);
        let second = bench.served("GPU-a").await;
        assert_ne!(second.daemon, first.daemon);
        // The client that was there has lost its server; a new one has another.
        lost.go_on();
        lost.until("sync: 806");
        if tries.iter().any(|took| *took < SEEN) {
            break;
        }
    }
    assert!(tries.iter().any(|took| *took < SEEN), "{tries:?}");
    let mut fresh = bench.client(&environment, &["init", "info"]);
    assert_eq!(fresh.answer(), "init: 0");
    assert_eq!(fresh.answer(), "info: 0 10188 10240");
}

#[tokio::test]
async fn a_server_that_dies_alone_is_a_loss_without_a_restart() {
    let bench = Bench::new();
    bench.wish("GPU-a", 4);
    bench.served("GPU-a").await;
    let pipe = bench.pipe("GPU-a");
    let environment = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    let mut client = bench.client(&environment, &["init", "ready", "hold"]);
    client.until("ready: 0");
    let with_client = |status: &aliquot_device_plugin::mps::folder::Status| {
        status
            .servers
            .iter()
            .any(|server| !server.clients.is_empty())
    };
    let status = bench.status("GPU-a", with_client).await;
    kill(status.servers[0].pid);
    let status = bench.status("GPU-a", |status| status.losses == 1).await;
    assert_eq!((status.restarts, status.phase), (0, Phase::Running));
}

#[tokio::test]
async fn mps_13_a_fault_of_one_client_is_told_for_the_whole_unit() {
    let bench = Bench::new();
    bench.wish("GPU-a", 4);
    bench.served("GPU-a").await;
    let pipe = bench.pipe("GPU-a");
    let good = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    let mut victim = bench.client(&good, &["init", "ready", "hold", "sync"]);
    victim.until("ready: 0");
    let bad = [good[0], ("GPUSIM_FAULTS", "cuCtxSynchronize:*=700")];
    let mut culprit = bench.client(&bad, &["init", "sync", "ready", "hold"]);
    culprit.until("ready: 0");
    let status = bench.status("GPU-a", |status| status.faults == 1).await;
    assert_eq!((status.losses, status.restarts), (0, 0));
    victim.go_on();
    victim.until("sync: 700");
    drop((victim, culprit));
    bench
        .status("GPU-a", |s| s.servers.iter().all(|server| !server.fault))
        .await;
    assert_eq!(bench.client(&good, &["init"]).answer(), "init: 0");
}

#[tokio::test]
async fn a_killed_keeper_ends_no_client_and_the_next_one_goes_on() {
    let mut bench = Bench::new();
    bench.wish("GPU-a", 4);
    let first = bench.served("GPU-a").await;
    let pipe = bench.pipe("GPU-a");
    let environment = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    let mut client = bench.client(&environment, &["init", "ready", "hold", "sync"]);
    client.until("ready: 0");
    bench.kill_keeper();
    // Turned off and wished again while nobody looks: a daemon that serves is kept.
    bench.start_keeper();
    let second = bench
        .status("GPU-a", |status| !status.servers.is_empty())
        .await;
    assert_eq!((second.daemon, second.restarts), (first.daemon, 0));
    client.go_on();
    client.until("sync: 0");
}

/// Files of a unit, in the order in which they come.
const MOMENTS: [&str; 5] = [
    "before.json",
    "pipe",
    "pipe/control",
    "pipe/nvidia-cuda-mps-control.pid",
    "status.json",
];

#[tokio::test]
async fn mps_18_a_keeper_killed_at_any_moment_leaves_nothing_half_done() {
    let mut bench = Bench::new();
    for up in [true, false] {
        for moment in MOMENTS {
            bench.wish("GPU-a", 4);
            if !up {
                bench.served("GPU-a").await;
                bench.unit("GPU-a").drop_wish().unwrap();
            }
            bench.until_exists("GPU-a", moment, up).await;
            bench.kill_keeper();
            bench.start_keeper();
            bench.wish("GPU-a", 4);
            bench.served("GPU-a").await;
            assert_eq!(bench.compute_mode(0), "exclusiveProcess", "{moment}");
            let threads = bench.tell("GPU-a", "get_default_active_thread_percentage");
            assert_eq!(threads, "25.0", "{moment}");
            bench.turn_off("GPU-a").await;
            assert_eq!(bench.compute_mode(0), "default", "{moment}");
        }
    }
}

#[tokio::test]
async fn a_client_that_wrote_into_the_pipe_folder_had_the_daemon_ended_or_another_taken_for_it() {
    let mut bench = Bench::new();
    bench.wish("GPU-a", 4);
    let first = bench.served("GPU-a").await;
    let file = bench
        .unit("GPU-a")
        .pipe()
        .join("nvidia-cuda-mps-control.pid");
    let own = std::process::id().to_string();
    for text in [own.as_str(), "0", "no number"] {
        std::fs::write(&file, text).unwrap();
        looked(&bench).await;
    }
    std::fs::remove_file(&file).unwrap();
    let last = looked(&bench).await;
    assert_eq!((last.daemon, last.restarts), (first.daemon, 0));
    // The next keeper does not ask that file either.
    bench.kill_keeper();
    bench.start_keeper();
    looked(&bench).await;
    let last = looked(&bench).await;
    assert_eq!((last.daemon, last.restarts), (first.daemon, 0));
}

/// The status after the keeper has looked at its daemon once more.
async fn looked(bench: &Bench) -> aliquot_device_plugin::mps::folder::Status {
    let folder = bench.unit("GPU-a");
    let before = folder.looked();
    bench
        .status("GPU-a", |status| {
            folder.looked() > before && status.phase == Phase::Running
        })
        .await
}

#[tokio::test]
async fn a_keeper_held_the_cards_open_and_with_them_a_reset() {
    let bench = Bench::new();
    bench.wish("GPU-a", 4);
    bench.served("GPU-a").await;
    let maps = format!("/proc/{}/maps", bench.keeper());
    let open = || async {
        let maps = std::fs::read_to_string(&maps)?;
        let state = bench.machine.state().display().to_string();
        // What the simulator's CUDA half has mapped is no card.
        let open = maps.lines().any(|line| line.ends_with(&state));
        Ok((!open).then_some(()))
    };
    aliquot_cluster::wait::eventually(PATIENCE, "the driver to be closed", open)
        .await
        .unwrap();
}
