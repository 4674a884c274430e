//! The limiter's part of `make bench`: one JSON line for each figure that SPECIFICATION.md promises
//! about the compute share and launches. Arguments select groups (`launch`, `start`, `share`,
//! `long`, `tenants`, `arbiter`); without any, all are measured. Every figure is from the simulated
//! driver.
//!
//! `libvgpu.so` and the simulated driver must be built in the same target directory.

#![allow(clippy::print_stdout, reason = "the figures are its output")]
#![allow(clippy::print_stderr, reason = "missing tools are reported")]

use std::thread;
use std::time::Duration;

use aliquot_limiter_tests::InjectionMethod;
use aliquot_limiter_tests::idle_arbiter::idle_cpu_percent;
use aliquot_limiter_tests::launch::{
    LaunchSide, allocation, init, instructions, nanoseconds, start, storm,
};
use aliquot_limiter_tests::share::{
    HostRole, ShareScenario, ShareTenant, TenantResult, run, tenant,
};
use aliquot_limiter_tests::throttle::{measure_latency, percentile};
use anyhow::{Result, anyhow, ensure};
use serde::Serialize;

const GROUPS: [&str; 6] = ["launch", "start", "share", "long", "tenants", "arbiter"];
/// Live allocations beside those that are measured.
const LIVE: u32 = 100_000;
/// Programs that start at once.
const STORM: u32 = 300;
const SHARES: [u32; 6] = [10, 25, 30, 50, 75, 90];
/// Windows of a second in a scene.
const WINDOWS: usize = 8;

#[derive(Serialize)]
struct BenchFigure {
    name: String,
    value: f64,
    #[serde(rename = "unit")]
    dimension: &'static str,
    baseline: f64,
    what: String,
}

fn figure(
    name: &str,
    (value, dimension): (f64, &'static str),
    baseline: f64,
    what: &str,
) -> Result<()> {
    let figure = BenchFigure {
        name: name.to_owned(),
        value: (value * 100.0).round() / 100.0,
        dimension,
        baseline: (baseline * 100.0).round() / 100.0,
        what: format!("simulated: {what}"),
    };
    println!("{}", serde_json::to_string(&figure)?);
    Ok(())
}

fn main() -> Result<()> {
    let groups: Vec<String> = std::env::args().skip(1).collect();
    let unknown = groups.iter().find(|name| !GROUPS.contains(&name.as_str()));
    ensure!(
        unknown.is_none(),
        "unknown group {unknown:?}; expected: {GROUPS:?}"
    );
    let is_selected = |group: &str| groups.is_empty() || groups.iter().any(|name| name == group);
    if is_selected("launch") {
        launches()?;
    }
    if is_selected("start") {
        starts()?;
    }
    if is_selected("share") {
        shares()?;
    }
    if is_selected("long") {
        long_kernels()?;
    }
    if is_selected("tenants") {
        tenants()?;
    }
    if is_selected("arbiter") {
        arbiter()?;
    }
    Ok(())
}

/// The extra cost of a launch compared with the bare driver, which alternates with the limited one.
fn launches() -> Result<()> {
    let side = |method, cores| LaunchSide {
        method,
        cores,
        stale_flag: 0,
    };
    let sides = [
        side(InjectionMethod::NoLimiter, 0),
        side(InjectionMethod::Replacement, 0),
        side(InjectionMethod::Replacement, 30),
    ];
    let names = ["unlimited", "limited"];
    for (threads, of) in [(1, ""), (4, "_4_threads")] {
        let found = nanoseconds(&sides, threads, 5)?;
        for (name, ours) in names.iter().zip(&found[1..]) {
            let what = "CPU time that a launch takes more; baseline: the bare driver's launch";
            let name = format!("launch_added_ns_{name}{of}");
            figure(&name, (ours - found[0], "ns"), found[0], what)?;
        }
    }
    let Some(found) = instructions(&sides)? else {
        eprintln!("no instructions of a launch: valgrind is absent");
        return Ok(());
    };
    for (name, ours) in names.iter().zip(&found[1..]) {
        let what = "instructions that a launch takes more (callgrind); baseline: the bare driver's";
        let name = format!("launch_added_instructions_{name}");
        figure(&name, (ours - found[0], "instructions"), found[0], what)?;
    }
    Ok(())
}

/// Allocations, and starts of programs, under both injection methods.
fn starts() -> Result<()> {
    let sides = [
        InjectionMethod::NoLimiter,
        InjectionMethod::Replacement,
        InjectionMethod::Preload,
    ]
    .map(|method| LaunchSide {
        method,
        cores: 30,
        stale_flag: 0,
    });
    let found = allocation(&sides[..2], LIVE, 3)?;
    let what = "CPU time that an allocation and its end take more beside 100,000; baseline: bare";
    let added = found[1] - found[0];
    figure("alloc_free_added_ns", (added, "ns"), found[0], what)?;
    for (name, with_driver, what) in [
        ("start", false, "/bin/true ends later; baseline: bare"),
        (
            "init",
            true,
            "a program that calls cuInit ends later; baseline: bare",
        ),
    ] {
        let found = start(&sides, with_driver, 3)?;
        for (method, ours) in ["replacement", "preload"].iter().zip(&found[1..]) {
            let name = format!("{name}_added_us_{method}");
            figure(&name, (ours - found[0], "microseconds"), found[0], what)?;
        }
    }
    let [instructions, calls] = init(&sides)?;
    for (name, found, tool) in [
        ("instructions", instructions, "valgrind"),
        ("calls", calls, "strace"),
    ] {
        let Some(found) = found else {
            eprintln!("no {name} of cuInit: {tool} is absent");
            continue;
        };
        for (method, ours) in ["replacement", "preload"].iter().zip(&found[1..]) {
            let what = format!("{name} of a program that calls cuInit, more; baseline: bare");
            let dimension = if name == "calls" {
                "system calls"
            } else {
                name
            };
            let name = format!("init_added_{name}_{method}");
            figure(&name, (ours - found[0], dimension), found[0], &what)?;
        }
    }
    let found = storm(&sides, STORM, 3)?;
    let what = "300 programs that call cuInit at once, by the time that the bare ones take";
    for (method, ours) in ["replacement", "preload"].iter().zip(&found[1..]) {
        let name = format!("init_300_{method}");
        figure(&name, (ours / found[0], "times"), 1.0, what)?;
    }
    Ok(())
}

/// Windows of a second, kernels up to 10 ms.
fn shares() -> Result<()> {
    for cores in SHARES {
        let kinds = ["plain k_ms_1", "plain k_ms_10"];
        let got =
            kinds.map(|work| run(&ShareScenario::seconds(WINDOWS, vec![tenant(cores, work)])));
        let [one, ten] = got;
        let all = [one?.remove(0), ten?.remove(0)];
        share_figures(&format!("share_{cores}"), cores, &all, &kinds.join(", "))?;
    }
    let eight = ShareTenant {
        processes: 8,
        ..tenant(30, "plain k_ms_1")
    };
    let drifting = [("clockSwing", "10"), ("clockPpm", "200")];
    for (name, tenant, card) in [
        ("8_processes", eight, &[][..]),
        ("small", tenant(75, "plain k_us_100"), &[]),
        ("graphs", tenant(50, "graphs k_us_300"), &[]),
        ("cooperative", tenant(50, "cooperative k_ms_1"), &[]),
        ("streams", tenant(75, "streams k_ms_2"), &[]),
        ("threads", tenant(75, "threads k_us_100"), &[]),
        ("capture", tenant(50, "capture k_ms_1"), &[]),
        ("lognormal", tenant(50, "plain k_ms_1_sd_30"), &drifting),
    ] {
        let mut scene = ShareScenario::seconds(WINDOWS, vec![tenant]);
        scene.gpu_fields = card;
        let got = run(&scene)?;
        let groups = &scene.tenants[0];
        let what = format!("{} % of {}", groups.cores, groups.work.join(" "));
        share_figures(&format!("share_{name}"), groups.cores, &got, &what)?;
    }
    Ok(())
}

/// Windows of ten seconds, kernels of 200 ms. They hardly use this machine's processors, so all run
/// at once.
fn long_kernels() -> Result<()> {
    let scenes = SHARES.map(|cores| {
        thread::spawn(move || {
            let mut scene = ShareScenario::seconds(3, vec![tenant(cores, "plain k_ms_200")]);
            scene.window = Duration::from_secs(10);
            scene.warm_up = Duration::from_secs(3);
            run(&scene)
        })
    });
    for (cores, scene) in SHARES.into_iter().zip(scenes) {
        let got = scene.join().map_err(|_| anyhow!("a scene panicked"))??;
        let name = format!("share_{cores}_long");
        share_figures(&name, cores, &got, "plain k_ms_200, windows of 10 s")?;
    }
    Ok(())
}

/// Several tenants that are always busy, with the host's arbiter.
fn tenants() -> Result<()> {
    for (name, shares) in [
        ("3_tenants", vec![20, 30, 50]),
        ("10_tenants", vec![10; 10]),
    ] {
        let busy = shares.iter().map(|cores| tenant(*cores, "plain k_ms_1"));
        let mut scene = ShareScenario::seconds(2 * WINDOWS, busy.collect());
        scene.host = HostRole::Arbiter;
        scene.warm_up = Duration::from_secs(5);
        let got = run(&scene)?;
        let errors = got.iter().zip(&shares);
        let worst = errors.map(|(got, cores)| got.error(*cores));
        let worst = worst.fold(0.0, f64::max);
        let all: f64 = got.iter().map(TenantResult::mean).sum();
        let what = format!("mean distance from the share, of the tenant with most; {shares:?} %");
        figure(
            &format!("share_error_{name}"),
            (worst, "points"),
            0.0,
            &what,
        )?;
        let what = "use of the whole GPU by all of them; baseline: the sum of the shares";
        figure(&format!("share_used_{name}"), (all, "percent"), 100.0, what)?;
    }
    Ok(())
}

/// Priorities, loans, and how soon a throttle flag takes effect.
fn arbiter() -> Result<()> {
    let plain = |cores, priority| tenant(cores, "plain k_ms_1").priority(priority);
    for (name, tenants, expected) in [
        (
            "low_beside_high",
            [plain(50, 1), plain(30, 0)],
            [0.0, 100.0],
        ),
        (
            "high_beside_high",
            [plain(20, 0), plain(20, 0)],
            [50.0, 50.0],
        ),
        ("lent_30_10", [plain(30, 1), plain(10, 1)], [75.0, 25.0]),
    ] {
        let mut scene = ShareScenario::seconds(WINDOWS, tenants.to_vec());
        scene.host = HostRole::Arbiter;
        scene.warm_up = Duration::from_secs(5);
        let got = run(&scene)?;
        let errors = got.iter().zip(expected);
        let worst = errors.map(|(got, expected)| (got.mean() - expected).abs());
        let worst = worst.fold(0.0, f64::max);
        let what = format!("distance of GPU time from {expected:?} %, of the worse tenant");
        figure(
            &format!("share_error_{name}"),
            (worst, "points"),
            0.0,
            &what,
        )?;
    }
    let latency = measure_latency(Duration::from_mins(1))?;
    let changes: Vec<f64> = latency
        .throttled
        .iter()
        .chain(&latency.released)
        .copied()
        .collect();
    for (name, figures, what) in [
        (
            "gate_felt",
            &changes,
            "from a change of the throttle flag to a tenant's work",
        ),
        (
            "gate_yielded",
            &latency.yielded,
            "from the first kernel of high priority to the last of low",
        ),
    ] {
        let times = figures.len();
        let what = format!("99th percentile of {times} times {what}; kernels of 1 ms");
        let value = percentile(figures, 99);
        figure(&format!("{name}_p99_ms"), (value, "ms"), 0.0, &what)?;
    }
    let value = idle_cpu_percent(100, Duration::from_secs(10))?;
    let what = "of a core for 100 idle shares of 8 GPUs";
    figure("arbiter_at_rest_100", (value, "percent"), 0.0, what)
}

fn share_figures(name: &str, cores: u32, got: &[TenantResult], what: &str) -> Result<()> {
    let errors = got.iter().map(|got| got.error(cores));
    let worst = errors.fold(0.0, f64::max);
    let groups = format!("mean distance of windows from {cores} %; {what}");
    figure(&format!("{name}_error"), (worst, "points"), 0.0, &groups)?;
    let least = got.iter().map(|got| got.throughput(cores));
    let least = least.fold(f64::INFINITY, f64::min);
    let groups = format!("of the {cores} % that are permitted; {what}");
    figure(
        &format!("{name}_throughput"),
        (least, "percent"),
        100.0,
        &groups,
    )
}
