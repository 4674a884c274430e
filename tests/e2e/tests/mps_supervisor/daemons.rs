//! Daemons start, serve, and leave nothing behind.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use aliquot_core::{Mib, Percent};
use aliquot_gpusim::place;
use aliquot_node_state::mps::DaemonPhase;

use crate::bench::{Bench, daemon_shm, program};

/// Puts the control program, the server and libcuda below a driver root.
fn install_driver(root: &Path) {
    let put = |file: &Path, folder: &str, name: &str| {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(file, folder.join(name)).unwrap();
    };
    let library = place::cuda_library_path().unwrap();
    put(&library, "usr/lib64", place::CUDA_LIBRARY_NAME);
    for name in ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control"] {
        put(&program(name), "usr/bin", name);
    }
}

#[tokio::test]
async fn mps_3_daemon_limits_its_clients_to_an_even_part_of_the_gpu() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.served("GPU-a").await;
    let ask = |command: &str| bench.daemon_answer("GPU-a", command);
    assert_eq!(ask("get_default_device_pinned_mem_limit 0"), "10240M");
    assert_eq!(ask("get_default_active_thread_percentage"), "25.0");
    let commands = ["init", "info", "alloc,10189", "alloc,10188"];
    let mut client = bench.client_of("GPU-a", &[], &commands);
    assert_eq!(client.answer(), "init: 0");
    assert_eq!(client.answer(), "info: 0 10188 10240");
    // Out of memory, and the process goes on.
    assert_eq!(client.answer(), "alloc,10189: 2");
    assert_eq!(client.answer(), "alloc,10188: 0");
}

#[tokio::test]
async fn mps_17_daemon_sees_only_its_gpu_and_the_other_has_no_mps() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.served("GPU-a").await;
    assert_eq!(bench.compute_mode(0), "exclusiveProcess");
    assert_eq!(bench.compute_mode(1), "default");
    let commands = ["init", "count", "ready", "hold"];
    let on_a = [("NVIDIA_VISIBLE_DEVICES", "GPU-a")];
    let mut inside = bench.client_of("GPU-a", &on_a, &commands);
    inside.until("ready: 0");
    let on_b = [("NVIDIA_VISIBLE_DEVICES", "GPU-b")];
    let mut outside = bench.client(&on_b, &commands);
    assert_eq!(outside.answer(), "init: 0");
    assert_eq!(outside.answer(), "count: 0 1");
    outside.until("ready: 0");
    let of = |gpu: &str| bench.machine.process_usage(gpu).unwrap();
    assert!(
        of("GPU-b").iter().all(|holder| !holder.mps),
        "no client of MPS"
    );
    assert_eq!(of("GPU-a").iter().filter(|holder| holder.mps).count(), 1);
    assert_eq!(of("GPU-b").len(), 1, "no server of the other GPU's daemon");
    // No process gets onto the GPU without the daemon.
    assert_eq!(bench.client(&on_a, &["init"]).answer(), "init: 46");
}

#[tokio::test]
async fn mps_18_disabling_restores_compute_mode_and_removes_files() {
    let bench = Bench::new();
    let before = [("computeMode", "prohibited")];
    bench.machine.set("GPU-b", &before).unwrap();
    for (device, gpu, mode) in [("GPU-a", 0, "default"), ("GPU-b", 1, "prohibited")] {
        bench.request(device, 4);
        let status = bench.served(device).await;
        assert_eq!(bench.compute_mode(gpu), "exclusiveProcess");
        assert!(bench.directory(device).log().join("control.log").exists());
        bench.turn_off(device).await;
        assert_eq!(bench.compute_mode(gpu), mode);
        let pid = status.daemon.unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists());
    }
}

#[tokio::test]
async fn each_daemon_has_its_own_sized_memory_at_dev_shm() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.request("GPU-b", 4);
    let (first, other) = (bench.served("GPU-a").await, bench.served("GPU-b").await);
    fs::write(daemon_shm(&first).join("data"), "of a client").unwrap();
    // --shm-size is 1 MiB.
    let full = fs::write(daemon_shm(&other).join("large"), vec![1; 2 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    fs::write(daemon_shm(&first).join("more"), vec![1; 1 << 19]).unwrap();
    assert!(!daemon_shm(&other).join("data").exists());
    // What the container runtime mounts into the clients of each.
    let (mounted, others) = (bench.mounted_shm("GPU-a"), bench.mounted_shm("GPU-b"));
    assert_eq!(fs::read(mounted.join("data")).unwrap(), b"of a client");
    assert!(others.join("large").exists());
    assert!(!others.join("data").exists());
    bench.turn_off("GPU-a").await;
    assert!(!mounted.exists());
    assert!(others.join("large").exists());
}

#[tokio::test]
async fn lowered_limit_applies_to_clients_that_start_later() {
    let bench = Bench::new();
    let spec = bench.request("GPU-a", 4);
    let raised = spec.with_at_least(Mib(20_000), Percent(50));
    bench.directory("GPU-a").put_spec(&raised).unwrap();
    bench.served("GPU-a").await;
    let own = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=20000M")];
    let mut early = bench.client_of("GPU-a", &own, &["init", "ready", "hold", "info"]);
    early.until("ready: 0");
    bench
        .status("GPU-a", |status| !status.servers.is_empty())
        .await;
    bench.directory("GPU-a").put_spec(&spec).unwrap();
    bench.served("GPU-a").await;
    let mut late = bench.client_of("GPU-a", &own, &["init", "info"]);
    assert_eq!(late.answer(), "init: 0");
    assert_eq!(late.answer(), "info: 0 10188 10240");
    early.go_on();
    assert_eq!(early.answer(), "hold: 0");
    assert_eq!(early.answer(), "info: 0 19948 20000");
}

#[tokio::test]
async fn runs_programs_of_a_driver_root_with_its_libraries() {
    let root = tempfile::tempdir().unwrap();
    let bench = Bench::with(vec!["--driver-root".into(), root.path().into()]);
    bench.request("GPU-a", 4);
    let searched = format!(
        "usr/bin, usr/local/bin, bin, usr/sbin, usr/local/sbin, sbin of {}",
        root.path().display()
    );
    bench
        .status("GPU-a", |status| match &status.phase {
            DaemonPhase::Down(why) => why.contains(&searched),
            DaemonPhase::Running => false,
        })
        .await;
    // The driver comes later than the supervisor.
    install_driver(root.path());
    let daemon = bench.served("GPU-a").await.daemon.unwrap();
    let file = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let programs = root.path().join("usr/bin");
    assert_eq!(file(daemon), programs.join("nvidia-cuda-mps-control"));
    let mut client = bench.client_of("GPU-a", &[], &["init", "ready", "hold"]);
    client.until("ready: 0");
    let status = bench.status("GPU-a", |status| !status.servers.is_empty());
    let server = status.await.servers[0].pid;
    assert_eq!(file(server), programs.join("nvidia-cuda-mps-server"));
    let libraries = bench.root().join("driver");
    let environment = fs::read(format!("/proc/{server}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let expected = format!("LD_LIBRARY_PATH={}", libraries.display());
    assert!(
        environment.split('\0').any(|one| one == expected),
        "{environment}"
    );
    let linked = fs::read_link(libraries.join(place::CUDA_LIBRARY_NAME)).unwrap();
    assert_eq!(
        linked,
        root.path().join("usr/lib64").join(place::CUDA_LIBRARY_NAME)
    );
}
