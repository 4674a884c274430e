//! The limiter's part of `make bench`: one JSON line for each figure that SPECIFICATION.md promises
//! about the compute share, launches and the OOM killer, with a verdict; an error at the end if a target
//! is not met. Arguments select groups (`launch`, `start`, `share`, `long`, `tenants`, `harsh`,
//! `arbiter`, `memory`, `lending`); without any, all are measured. Every figure is from the simulated
//! driver. `limiter-bench host …` is the host of the programs of `memory` and `lending`.
//!
//! `libvgpu.so` and the simulated driver must be built in the same target directory.

#![allow(clippy::print_stdout, reason = "the figures are its output")]
#![allow(clippy::print_stderr, reason = "gaps and scenes are shown")]

use std::thread;
use std::time::{Duration, Instant};

use aliquot_limiter_tests::InjectionMethod;
use aliquot_limiter_tests::honest::{HonestScene, SHARE};
use aliquot_limiter_tests::host::HostRole;
use aliquot_limiter_tests::launch::{LaunchSide, allocation, nanoseconds, start, storm};
use aliquot_limiter_tests::lending::{self, Limits};
use aliquot_limiter_tests::oom_host;
use aliquot_limiter_tests::share::{ShareScenario, TenantResult, run};
use aliquot_limiter_tests::throttle::{measure_latency, percentile};
use aliquot_limiter_tests::workers::{ShareTenant, tenant};
use aliquot_style::figures::{Figure, LIMITER, Report};
use anyhow::{Context as _, Result, anyhow, ensure};

/// What measures the figures of a group.
type Measure = fn(&mut Bench) -> Result<()>;
const GROUPS: [(&str, Measure); 9] = [
    ("launch", launches),
    ("start", starts),
    ("share", shares),
    ("long", long_kernels),
    ("tenants", tenants),
    ("harsh", harsh_shares),
    ("arbiter", arbiter),
    ("memory", memory),
    ("lending", lending),
];
/// Honest programs beside the OOM killer.
const HONEST: usize = 200;
/// Live allocations beside those that are measured.
const LIVE: u32 = 100_000;
/// Programs that start at once.
const STORM: u32 = 300;
const SHARES: [u32; 6] = [10, 25, 30, 50, 75, 90];
/// Windows of a second in a scene.
const WINDOWS: usize = 8;

struct Bench(Report);

impl Bench {
    fn figure(
        &mut self,
        name: &str,
        (value, unit): (f64, &'static str),
        baseline: f64,
        what: &str,
    ) -> Result<()> {
        let line = self.0.line(Figure {
            name: name.to_owned(),
            value,
            unit,
            baseline,
            what: format!("simulated: {what}"),
        })?;
        println!("{line}");
        Ok(())
    }
}

fn main() -> Result<()> {
    let groups: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, containers @ ..] = groups.as_slice()
        && verb == "host"
    {
        return oom_host::run(containers);
    }
    let known = GROUPS.map(|(name, _)| name);
    let unknown = groups.iter().find(|name| !known.contains(&name.as_str()));
    ensure!(
        unknown.is_none(),
        "unknown group {unknown:?}; expected: {known:?}"
    );
    let mut bench = Bench(Report::new(|title| title == LIMITER)?);
    for (name, measure) in GROUPS {
        if groups.is_empty() || groups.iter().any(|group| group == name) {
            measure(&mut bench)?;
        }
    }
    bench.0.end(groups.is_empty())
}

/// The extra cost of a launch compared with the bare driver, which alternates with the limited one.
fn launches(bench: &mut Bench) -> Result<()> {
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
        let found = nanoseconds(&sides, threads, 9)?;
        for (name, ours) in names.iter().zip(&found[1..]) {
            let what = "CPU time that a launch takes more; baseline: the bare driver's launch";
            let name = format!("launch_added_ns_{name}{of}");
            bench.figure(&name, (ours - found[0], "ns"), found[0], what)?;
        }
    }
    Ok(())
}

/// Allocations, and starts of programs, under both injection methods.
fn starts(bench: &mut Bench) -> Result<()> {
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
    bench.figure("alloc_free_added_ns", (added, "ns"), found[0], what)?;
    let found = start(&sides, 3)?;
    let what = "/bin/true ends later; baseline: bare";
    for (method, ours) in ["replacement", "preload"].iter().zip(&found[1..]) {
        let name = format!("start_added_us_{method}");
        bench.figure(&name, (ours - found[0], "microseconds"), found[0], what)?;
    }
    let found = storm(&sides, STORM, 3)?;
    let what = "300 programs that call cuInit at once, by the time that the bare ones take";
    for (method, ours) in ["replacement", "preload"].iter().zip(&found[1..]) {
        let name = format!("init_300_{method}");
        bench.figure(&name, (ours / found[0], "times"), 1.0, what)?;
    }
    Ok(())
}

/// Windows of a second, kernels up to 10 ms.
fn shares(bench: &mut Bench) -> Result<()> {
    for cores in SHARES {
        let kinds = ["plain k_ms_1", "plain k_ms_10"];
        let got =
            kinds.map(|work| run(&ShareScenario::seconds(WINDOWS, vec![tenant(cores, work)])));
        let [one, ten] = got;
        let all = [one?.remove(0), ten?.remove(0)];
        let (name, what) = (format!("share_{cores}"), kinds.join(", "));
        share_figures(bench, &name, cores, &all, &what)?;
    }
    let eight = ShareTenant {
        processes: 8,
        ..tenant(30, "plain k_ms_1")
    };
    let drifting = [("clockSwing", "10"), ("clockPpm", "200")];
    for (name, tenant, fields) in [
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
        scene.gpu_fields = fields;
        let got = run(&scene)?;
        let groups = &scene.tenants[0];
        let what = format!("{} % of {}", groups.cores, groups.work.join(" "));
        share_figures(bench, &format!("share_{name}"), groups.cores, &got, &what)?;
    }
    Ok(())
}

/// Windows of ten seconds, kernels of 200 ms. They hardly use this machine's processors, so all run
/// at once.
fn long_kernels(bench: &mut Bench) -> Result<()> {
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
        share_figures(bench, &name, cores, &got, "plain k_ms_200, windows of 10 s")?;
    }
    Ok(())
}

/// Several tenants that are always busy, with the host's arbiter.
fn tenants(bench: &mut Bench) -> Result<()> {
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
        let error = format!("share_error_{name}");
        bench.figure(&error, (worst, "points"), 0.0, &what)?;
        let what = "use of the whole GPU by all of them; baseline: the sum of the shares";
        bench.figure(&format!("share_used_{name}"), (all, "percent"), 100.0, what)?;
    }
    let latency = |method| {
        let tenants = ["sync k_ms_2", "sync k_ms_300"].map(|work| tenant(50, work));
        let scene = ShareScenario {
            method,
            windows: 3,
            ..harsh(tenants.into(), HostRole::Arbiter)
        };
        run(&scene)?[0]
            .latency
            .context("no launch of the first tenant")
    };
    let bare = latency(InjectionMethod::NoLimiter)?;
    let limited = latency(InjectionMethod::Replacement)?;
    for (name, bare, limited) in [("p50", bare[0], limited[0]), ("p99", bare[1], limited[1])] {
        let what = "of kernels of 2 ms, launched and waited for, beside a tenant with kernels of 300 ms; \
                    50 % each; baseline: without limits";
        let name = format!("beside_long_kernels_{name}_ms");
        bench.figure(&name, (limited / 1_000.0, "ms"), bare / 1_000.0, what)?;
    }
    Ok(())
}

/// The profile `harsh`: a tenant alone, and several that are always busy.
fn harsh_shares(bench: &mut Bench) -> Result<()> {
    // Programs with tiny kernels keep a processor busy; the others run at once.
    let mut worst = 0.0;
    for work in ["k_us_3", "k_us_8", "k_us_100"] {
        worst = f64::max(worst, one_harsh_tenant(30, work)?);
        worst = f64::max(worst, one_harsh_tenant(50, work)?);
    }
    let scenes = ["k_ms_1", "k_ms_10", "k_ms_50", "k_ms_200"]
        .map(|work| [30, 50].map(|cores| thread::spawn(move || one_harsh_tenant(cores, work))));
    for scene in scenes.into_iter().flatten() {
        let error = scene.join().map_err(|_| anyhow!("a scene panicked"))??;
        worst = worst.max(error);
    }
    let what = "distance from 30 or 50 %, of a tenant alone; worst of kernels of 3 us to 200 ms";
    let name = "harsh_one_tenant_error_points";
    bench.figure(name, (worst, "points"), 0.0, what)?;
    let (mut below, mut lost, mut blind): (f64, f64, f64) = (0.0, 0.0, 0.0);
    for shares in [&[30, 60][..], &[20, 30, 40], &[9; 10]] {
        for (points, _) in harsh_tenants(shares, 0, HostRole::Arbiter)? {
            below = below.max(points);
        }
        for (points, _) in harsh_tenants(shares, 1, HostRole::BlindArbiter)? {
            blind = blind.max(points.abs());
        }
    }
    for shares in [&[30, 70][..], &[20, 30, 50], &[10; 10]] {
        for (points, share) in harsh_tenants(shares, 0, HostRole::Arbiter)? {
            lost = lost.max(100.0 * points / share);
        }
    }
    let what = "below its share, the worst of busy tenants whose shares sum to 90 %";
    let name = "harsh_busy_tenants_below_share_points";
    bench.figure(name, (below, "points"), 0.0, what)?;
    let what = "of its share, the worst of busy tenants whose shares sum to 100 %";
    let name = "harsh_full_lowest_part_of_share_percent";
    bench.figure(name, (100.0 - lost, "percent"), 100.0, what)?;
    let what = "distance from its share, the worst of tenants of a driver that reports no use";
    let name = "harsh_no_samples_error_points";
    bench.figure(name, (blind, "points"), 0.0, what)
}

fn harsh(tenants: Vec<ShareTenant>, host: HostRole) -> ShareScenario<'static> {
    ShareScenario {
        gpu_fields: &[("profile", "harsh")],
        host,
        warm_up: Duration::from_secs(12),
        window: Duration::from_secs(10),
        ..ShareScenario::seconds(2, tenants)
    }
}

/// Percentage points by which a tenant alone misses its share.
fn one_harsh_tenant(cores: u32, work: &str) -> Result<f64> {
    let one = tenant(cores, &format!("plain {work}")).policy(1);
    let got = run(&harsh(vec![one], HostRole::Arbiter))?;
    eprintln!("harsh {cores} % of {work}: {:.1?} %", got[0].windows);
    Ok((got[0].mean() - f64::from(cores)).abs())
}

/// Percentage points that each of several busy tenants lacks of its share, and that share; with
/// kernels of 1, 10 and 50 ms.
fn harsh_tenants(shares: &[u32], policy: u32, host: HostRole) -> Result<Vec<(f64, f64)>> {
    let kernels = [1, 10, 50];
    let scenes = kernels.map(|kernel| {
        let work = format!("plain k_ms_{kernel}");
        let tenants = shares
            .iter()
            .map(|cores| tenant(*cores, &work).policy(policy));
        // One kernel of 50 ms is little of all windows.
        let scene = ShareScenario {
            windows: 4,
            ..harsh(tenants.collect(), host)
        };
        thread::spawn(move || run(&scene))
    });
    let mut found = Vec::new();
    for (scene, kernel) in scenes.into_iter().zip(kernels) {
        let got = scene.join().map_err(|_| anyhow!("a scene panicked"))??;
        let windows: Vec<_> = got.iter().map(|got| &got.windows).collect();
        eprintln!("harsh {shares:?} % of {kernel} ms, {host:?}: {windows:.1?} %");
        let each = got.iter().zip(shares.iter().map(|share| f64::from(*share)));
        found.extend(each.map(|(got, share)| (share - got.mean(), share)));
    }
    Ok(found)
}

/// Priorities, loans, and how soon a throttle flag takes effect.
fn arbiter(bench: &mut Bench) -> Result<()> {
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
        let error = format!("share_error_{name}");
        bench.figure(&error, (worst, "points"), 0.0, &what)?;
    }
    let felt = measure_latency(Duration::from_mins(1))?;
    let what = format!(
        "99th percentile of {} times from a change of the throttle flag to a tenant's work; kernels of 1 ms",
        felt.len()
    );
    let value = percentile(&felt, 99);
    bench.figure("gate_felt_p99_ms", (value, "ms"), 0.0, &what)
}

/// Honest programs that fill their shares, and one that bypasses the limiter, beside the OOM killer.
fn memory(bench: &mut Bench) -> Result<()> {
    let scene = HonestScene::start(HONEST, "harsh")?;
    let result = scene.end_after(Duration::from_mins(5))?;
    let killed = f64::from(u32::try_from(result.killed)?);
    let what = format!(
        "of {HONEST} honest programs that fill their shares to the last byte for 5 minutes; they did so {} times",
        result.filled
    );
    bench.figure("harsh_honest_killed", (killed, "programs"), 0.0, &what)?;
    let scene = HonestScene::start(4, "harsh")?;
    let mut program = scene.bypass(SHARE + 2048)?;
    let begun = Instant::now();
    while program.child.try_wait()?.is_none() {
        thread::park_timeout(Duration::from_millis(10));
    }
    let took = begun.elapsed().as_secs_f64();
    let what =
        "until a program is killed that bypasses the limiter and takes 2 GiB more than the share";
    bench.figure("harsh_excess_killed_s", (took, "s"), 0.0, what)
}

/// Ten tenants that may use more than they request, for ten minutes each.
fn lending(bench: &mut Bench) -> Result<()> {
    let grace = Duration::from_secs(5);
    for (limits, of, with) in [
        (Limits::Library(None), "library", "the library's limits"),
        (
            Limits::Library(Some("harsh")),
            "harsh",
            "the same, on an unkind driver",
        ),
        (Limits::Driver, "driver", "the driver's limits for cgroups"),
    ] {
        let result = lending::run(limits, Duration::from_mins(10), grace)?;
        let number = |number: u64| u32::try_from(number).map(f64::from);
        let (granted, refused) = (number(result.granted)?, number(result.refused)?);
        let beyond = result.longest.saturating_sub(grace).as_secs_f64();
        for (name, figure, baseline, what) in [
            (
                format!("lent_granted_{of}"),
                (100.0 * granted / (granted + refused), "percent"),
                100.0,
                format!(
                    "of {granted} allocations within the requests of ten tenants in 10 minutes"
                ),
            ),
            (
                format!("lent_wait_{of}_s"),
                (beyond, "s"),
                0.0,
                "the longest of them beyond the grace period of 5 s".to_owned(),
            ),
            (
                format!("lent_usable_{of}"),
                (result.usable, "percent"),
                100.0,
                format!(
                    "of what two idle tenants leave, lent to others, the least of {} rounds",
                    result.rounds
                ),
            ),
            (
                format!("lent_wrong_{of}"),
                (number(result.wrong)?, "tenants"),
                0.0,
                format!(
                    "borrowers ended that were within their request, of {} ended",
                    result.ended
                ),
            ),
        ] {
            bench.figure(&name, figure, baseline, &format!("{what}, {with}"))?;
        }
    }
    Ok(())
}

fn share_figures(
    bench: &mut Bench,
    name: &str,
    cores: u32,
    got: &[TenantResult],
    what: &str,
) -> Result<()> {
    let errors = got.iter().map(|got| got.error(cores));
    let worst = errors.fold(0.0, f64::max);
    let groups = format!("mean distance of windows from {cores} %; {what}");
    bench.figure(&format!("{name}_error"), (worst, "points"), 0.0, &groups)?;
    let least = got.iter().map(|got| got.throughput(cores));
    let least = least.fold(f64::INFINITY, f64::min);
    let groups = format!("of the {cores} % that are permitted; {what}");
    let name = format!("{name}_throughput");
    bench.figure(&name, (least, "percent"), 100.0, &groups)
}
