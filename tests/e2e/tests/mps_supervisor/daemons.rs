//! Daemons start, serve, and leave nothing behind.

use crate::bench::Bench;

#[tokio::test]
async fn mps_3_daemon_limits_its_clients_to_an_even_part_of_the_gpu() {
    let bench = Bench::new();
    bench.request("GPU-a", 4);
    bench.served("GPU-a").await;
    let ask = |command: &str| bench.daemon_answer("GPU-a", command);
    assert_eq!(ask("get_default_device_pinned_mem_limit 0"), "10240M");
    assert_eq!(ask("get_default_active_thread_percentage"), "25.0");
    let pipe = bench.pipe("GPU-a");
    let environment = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    let mut client = bench.client(
        &environment,
        &["init", "info", "alloc,10189", "alloc,10188"],
    );
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
    let pipe = bench.pipe("GPU-a");
    let on_a = [
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str()),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-a"),
    ];
    let mut inside = bench.client(&on_a, &["init", "count", "ready", "hold"]);
    inside.until("ready: 0");
    let on_b = [("NVIDIA_VISIBLE_DEVICES", "GPU-b")];
    let mut outside = bench.client(&on_b, &["init", "count", "ready", "hold"]);
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
    let past = [("NVIDIA_VISIBLE_DEVICES", "GPU-a")];
    assert_eq!(bench.client(&past, &["init"]).answer(), "init: 46");
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
async fn larger_share_raises_the_limit_of_a_running_daemon() {
    let bench = Bench::new();
    let spec = bench.request("GPU-a", 4);
    let first = bench.served("GPU-a").await;
    let pipe = bench.pipe("GPU-a");
    let environment = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    let mut early = bench.client(&environment, &["init", "info", "ready", "hold", "sync"]);
    assert_eq!(early.answer(), "init: 0");
    bench
        .status("GPU-a", |status| !status.servers.is_empty())
        .await;
    let raised = spec.with_at_least(aliquot_core::Mib(20_000), aliquot_core::Percent(50));
    bench.directory("GPU-a").put_spec(&raised).unwrap();
    let second = bench.served("GPU-a").await;
    assert_eq!(second.daemon, first.daemon);
    let own = [
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str()),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=20000M"),
    ];
    let mut late = bench.client(&own, &["init", "info"]);
    assert_eq!(late.answer(), "init: 0");
    assert_eq!(late.answer(), "info: 0 19948 20000");
    early.until("ready: 0");
    early.go_on();
    assert_eq!(early.answer(), "hold: 0");
    assert_eq!(early.answer(), "sync: 0");
}
