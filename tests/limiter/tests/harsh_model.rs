//! A model in virtual time of several tenants of a GPU that is as unkind as real ones: time slices
//! with a cost of each switch, work that queues, and a driver that reports use late or never. The
//! pacer and the arbiter are the real ones; what `limiter/src/pace.rs` does with them is modelled.
//! All figures are simulated.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use aliquot_monitor::arbiter::{
    ArbiterState, Measurement, PERCENT, TenantDecision, TenantSample, decide,
};
use aliquot_node_state::limits::UtilizationPolicy;
use aliquot_pacer::bucket::{Bucket, Until, gather_time};
use aliquot_pacer::cost::{Costs, LaunchSample, Running, Sharing, key};
use aliquot_pacer::credit::{CHUNK, Credit};
use aliquot_pacer::queue::StreamQueue;
use aliquot_pacer::rule::{LaunchRule, LimitWords};
use aliquot_region::host::LaunchCounters;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const STEP: u64 = 50 * MICROSECOND;
const TICK: u64 = 20 * MILLISECOND;
const SLICE: u64 = 2 * MILLISECOND;
const SWITCH: u64 = 200 * MICROSECOND;
const START: u64 = 1 << 40;
/// Launches of one stream that are measured at a time.
const MAX_PENDING: usize = 16;
/// Launches that a program makes in a step at most.
const LAUNCHES_IN_STEP: u32 = 12;
/// The longest that a launch in debt sleeps before it looks at the bucket again; and while launches
/// of its process are being measured.
const MAX_SLEEP: u64 = 20 * MILLISECOND;
const MAX_SLEEP_MEASURING: u64 = 5 * MILLISECOND;

/// How the driver reports the use of tenants.
#[derive(Clone, Copy, Debug)]
struct Reports {
    interval: u64,
    delay: u64,
    window: u64,
}

/// A launch in a program's stream.
#[derive(Debug)]
struct Work {
    left: u64,
    measured: Option<Mark>,
    begun: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    key: u64,
    charged: u64,
    /// Processes with work when it was launched.
    running: Running,
}

struct Tenant {
    cores: u32,
    policy: UtilizationPolicy,
    kernels: Vec<u64>,
    /// Each process waits for all of its work after so many launches.
    sync_every: u64,
    /// What the arbiter wrote to its limits page.
    decision: TenantDecision,
    decided: u64,
    /// Its counters; bucket and end of work apart.
    counters: LaunchCounters,
    bucket: AtomicU64,
    until: AtomicU64,
    processes: Vec<Process>,
    /// GPU time so far, at the end of the warm-up, and millisecond by millisecond.
    busy: u64,
    busy_before: u64,
    history: VecDeque<(u64, u64)>,
    /// Lowest and highest rate correction after the warm-up, in millionths.
    corrections: [u32; 2],
}

/// A process of a tenant.
#[derive(Default)]
struct Process {
    credit: Credit,
    costs: Costs,
    stream: VecDeque<Work>,
    done: Vec<(Mark, u64)>,
    pending: usize,
    gathered: u64,
    sleeps: u64,
    sleeps_until: u64,
    launches: u64,
    synchronizing: bool,
}

fn tenant(cores: u32, kernels: &[u64]) -> Tenant {
    processes(1, cores, kernels)
}

fn processes(count: usize, cores: u32, kernels: &[u64]) -> Tenant {
    Tenant {
        cores,
        policy: UtilizationPolicy::Default,
        kernels: kernels.to_vec(),
        sync_every: 64,
        decision: TenantDecision::default(),
        decided: 0,
        counters: LaunchCounters::default(),
        bucket: AtomicU64::new(0),
        until: AtomicU64::new(0),
        processes: (0..count).map(|_| Process::default()).collect(),
        busy: 0,
        busy_before: 0,
        history: VecDeque::new(),
        corrections: [u32::MAX, 0],
    }
}

impl Tenant {
    fn words(&self) -> LimitWords {
        LimitWords {
            cores: self.cores,
            policy: self.policy.word(),
            throttle_flag: self.decision.throttle.value(),
            rate_correction: if self.decision.rate_correction == 0 {
                1_000_000
            } else {
                self.decision.rate_correction
            },
            tenants: self.decision.tenants,
            host_alive: true,
        }
    }

    fn running(&self) -> Running {
        Running {
            own: u32::try_from(self.counters.running).expect("few"),
            streams: 1,
            others: self.decision.others,
            others_time: self.decision.others_time,
            written: self.decided,
        }
    }

    /// Lets the programs launch what they may.
    fn program(&mut self, now: u64) {
        for i in 0..self.processes.len() {
            for _ in 0..LAUNCHES_IN_STEP {
                let process = &mut self.processes[i];
                if process.synchronizing {
                    if !process.stream.is_empty() {
                        break;
                    }
                    process.synchronizing = false;
                    self.poll(i);
                }
                if !self.launch(i, now) {
                    self.counters.waited += STEP;
                    break;
                }
                let process = &mut self.processes[i];
                process.launches += 1;
                process.synchronizing = process.launches.is_multiple_of(self.sync_every);
                self.counters.launches += 1;
                self.counters.last = now;
            }
        }
    }

    /// A launch, as libvgpu.so makes it; false if it waits.
    fn launch(&mut self, i: usize, now: u64) -> bool {
        let rule = self.words().rule();
        let process = &mut self.processes[i];
        let number = usize::try_from(process.launches).expect("64 bits") % self.kernels.len();
        let nanoseconds = self.kernels[number];
        let key = key([number as u64 + 1, 1, 1]);
        match rule {
            LaunchRule::Wait => {
                self.poll(i);
                false
            }
            LaunchRule::Unlimited => {
                if self.processes[i].stream.len() >= 1024 {
                    return false;
                }
                self.processes[i].push(now, nanoseconds, None);
                true
            }
            LaunchRule::Limited(rate) => {
                let kernel = process.costs.kernel(key);
                if kernel.is_known() && process.credit.spend(0, kernel.cost()) {
                    process.push(now, nanoseconds, None);
                    return true;
                }
                let chunk = process.credit.chunk(0, kernel.cost());
                if chunk > 0 && now < process.sleeps_until {
                    return false;
                }
                self.poll(i);
                let words = self.words();
                let process = &mut self.processes[i];
                let kernel = process.costs.kernel(key);
                let queue = StreamQueue {
                    launches: process.pending,
                    queued: self.until.load(Relaxed).saturating_sub(now),
                    sharing: words.sharing(),
                };
                let cost = kernel.cost();
                let is_full = process.pending >= MAX_PENDING;
                if kernel.is_at_unmeasured_limit()
                    || (is_full && !kernel.is_known())
                    || queue.is_full(cost)
                {
                    return false;
                }
                let chunk = process.credit.chunk(0, cost);
                let due = now - process.gathered;
                if chunk > 0
                    && let Err(Until(until)) = Bucket(&self.bucket).take(due, rate, chunk)
                {
                    if words.sharing() > 1 && process.gathered == 0 {
                        process.gathered = gather_time(rate, chunk);
                    }
                    let longest = if process.pending > 0 {
                        MAX_SLEEP_MEASURING
                    } else {
                        MAX_SLEEP
                    };
                    process.sleeps += 1;
                    // Nobody wakes on time, or tenants would never get out of step.
                    let late = process.sleeps * 7 % 16 * STEP / 4;
                    process.sleeps_until = (until + process.gathered).min(now + longest) + late;
                    return false;
                }
                process.gathered = 0;
                let _alone = process.credit.begin_work(0, &self.until, (now, chunk));
                let small = kernel.is_known() && cost < CHUNK / 2 && chunk > 0;
                process.credit.grant(0, chunk, cost);
                process.credit.take_launches(0, 0);
                let mut mark = None;
                if small {
                    process.credit.measure_soon(0, cost);
                } else if !is_full {
                    kernel.begin_measurement();
                    process.pending += 1;
                    self.counters.running += u64::from(process.pending == 1);
                    mark = Some(Mark {
                        key,
                        charged: cost,
                        running: Running {
                            own: u32::try_from(self.counters.running).expect("few"),
                            streams: 1,
                            others: self.decision.others,
                            others_time: self.decision.others_time,
                            written: self.decided,
                        },
                    });
                }
                self.counters.busy += chunk;
                process.push(now, nanoseconds, mark);
                true
            }
        }
    }

    fn poll(&mut self, i: usize) {
        let words = self.words();
        for (mark, took) in std::mem::take(&mut self.processes[i].done) {
            let running = [mark.running, self.running()];
            let process = &mut self.processes[i];
            process.pending -= 1;
            self.counters.running -= u64::from(process.pending == 0);
            let kernel = process.costs.kernel(mark.key);
            kernel.end_measurement();
            let found = kernel.learn(LaunchSample {
                took,
                sharing: Sharing::new(running),
                overlapped: false,
                disturbed: false,
                delayed: 0,
            });
            let cost = found.unwrap_or(mark.charged);
            let launches = (CHUNK / cost.max(1)).max(1);
            self.counters.contended += took.saturating_sub(cost) * launches;
            let Some(found) = found else {
                continue;
            };
            if let LaunchRule::Limited(rate) = words.rule() {
                Bucket(&self.bucket).correct_charge(rate, mark.charged, found);
                self.counters.busy = self
                    .counters
                    .busy
                    .wrapping_add(found.wrapping_sub(mark.charged));
            }
        }
    }

    fn read_counters(&self) -> LaunchCounters {
        LaunchCounters {
            debt: self.bucket.load(Relaxed),
            until: self.until.load(Relaxed),
            ..self.counters
        }
    }
}

impl Process {
    fn push(&mut self, now: u64, nanoseconds: u64, measured: Option<Mark>) {
        let begun = self.stream.is_empty().then_some(now);
        self.stream.push_back(Work {
            left: nanoseconds,
            measured,
            begun,
        });
    }
}

#[derive(Debug, Default)]
struct Gpu {
    running: usize,
    switched: u64,
    slice_end: u64,
}

impl Gpu {
    /// Serves the processes of all tenants in turn.
    fn run(&mut self, tenants: &mut [Tenant], from: u64, to: u64) {
        let mut all: Vec<(usize, &mut Process)> = Vec::new();
        let mut busy = vec![0; tenants.len()];
        for (i, tenant) in tenants.iter_mut().enumerate() {
            all.extend(tenant.processes.iter_mut().map(|process| (i, process)));
        }
        let mut time = from;
        while time < to {
            let count = all.len();
            let has_work = |i: &usize| !all[*i].1.stream.is_empty();
            let working = (0..count).filter(has_work).count();
            if working == 0 {
                break;
            }
            let keeps = has_work(&self.running) && (working == 1 || time < self.slice_end);
            if !keeps {
                let next = (1..=count)
                    .map(|i| (self.running + i) % count)
                    .find(has_work);
                let next = next.expect("one has work");
                if next != self.running {
                    self.switched = time + SWITCH;
                }
                self.running = next;
                self.slice_end = self.switched.max(time) + SLICE;
            }
            if time < self.switched {
                time = self.switched.min(to);
                continue;
            }
            let until = if working == 1 {
                to
            } else {
                to.min(self.slice_end)
            };
            let (tenant, process) = &mut all[self.running];
            let work = process.stream.front_mut().expect("it has work");
            let part = work.left.min(until - time);
            work.left -= part;
            busy[*tenant] += part;
            time += part;
            if work.left == 0 {
                let work = process.stream.pop_front().expect("it ran");
                if let Some(mark) = work.measured {
                    process
                        .done
                        .push((mark, time - work.begun.expect("it began")));
                }
                if let Some(next) = process.stream.front_mut() {
                    next.begun = Some(time);
                }
            }
        }
        for (tenant, busy) in tenants.iter_mut().zip(busy) {
            tenant.busy += busy;
        }
    }
}

/// Runs tenants for some seconds after a warm-up; percent of the GPU of each.
fn simulate(
    tenants: &mut [Tenant],
    reports: Option<Reports>,
    warm_up: u64,
    seconds: u64,
) -> Vec<f64> {
    let mut gpu = Gpu::default();
    let mut state = ArbiterState::default();
    let names: Vec<String> = (0..tenants.len()).map(|i| format!("tenant-{i}")).collect();
    let mut measured: Vec<Option<Measurement>> = vec![None; tenants.len()];
    let begun = START + warm_up * SECOND;
    let end = begun + seconds * SECOND;
    let mut now = START;
    let (mut next_decision, mut decisions_made) = (START, 0);
    while now < end {
        if now == begun {
            for tenant in tenants.iter_mut() {
                tenant.busy_before = tenant.busy;
            }
        }
        if (now - START).is_multiple_of(MILLISECOND) {
            for tenant in tenants.iter_mut() {
                tenant.history.push_back((now, tenant.busy));
                if tenant.history.len() > 3_000 {
                    tenant.history.pop_front();
                }
            }
        }
        if let Some(reports) = reports
            && (now - START).is_multiple_of(reports.interval)
        {
            for (tenant, measured) in tenants.iter().zip(&mut measured) {
                let at = |when: u64| {
                    let found = tenant.history.iter().rev().find(|(at, _)| *at <= when);
                    found.map_or(0, |(_, busy)| *busy)
                };
                let to = now - reports.delay;
                let used = (at(to) - at(to - reports.window)) * 100 / reports.window;
                *measured = Some(Measurement {
                    used: used * PERCENT,
                    at: now,
                    is_late: false,
                });
            }
        }
        if now >= next_decision {
            let counters: Vec<LaunchCounters> = tenants.iter().map(Tenant::read_counters).collect();
            let samples: Vec<TenantSample> = tenants
                .iter()
                .enumerate()
                .map(|(i, tenant)| TenantSample {
                    container: &names[i],
                    device: "GPU-a",
                    high_priority: false,
                    policy: tenant.policy,
                    cores: tenant.cores,
                    cores_limit: 0,
                    counters: Some(counters[i]),
                    measured: measured[i],
                })
                .collect();
            let decisions = decide(&samples, &mut state, now);
            // Never for long in step with kernels and time slices.
            decisions_made += 1;
            next_decision = now + TICK + decisions_made * 7 % 20 * STEP;
            for (tenant, decision) in tenants.iter_mut().zip(decisions) {
                tenant.decision = decision;
                tenant.decided = now;
                if now > begun {
                    let [lowest, highest] = tenant.corrections;
                    let correction = decision.rate_correction;
                    tenant.corrections = [lowest.min(correction), highest.max(correction)];
                }
            }
        }
        for tenant in tenants.iter_mut() {
            tenant.program(now);
        }
        gpu.run(tenants, now, now + STEP);
        now += STEP;
    }
    let percent =
        |tenant: &Tenant| 100.0 * float(tenant.busy - tenant.busy_before) / float(end - begun);
    tenants.iter().map(percent).collect()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(nanoseconds: u64) -> f64 {
    nanoseconds as f64
}

/// As the monitor gets them: a driver reports its last sample, and none of those before.
const LATE: Reports = Reports {
    interval: SECOND / 2 + MILLISECOND / 2,
    delay: 160 * MILLISECOND,
    window: SECOND / 6,
};

/// Milliseconds of the kernels of all scenes.
const KERNELS: [u64; 3] = [1, 10, 50];
const WARM_UP: u64 = 20;
/// The error without measurements of the driver, in percent of the GPU: each tenant is charged for what
/// its changes cost.
const BLIND: f64 = 7.0;
const SECONDS: u64 = 60;

/// What tenants with these shares get of the GPU if each launches kernels of so many milliseconds,
/// as often as it may.
fn play(
    shares: &[u32],
    kernel: u64,
    policy: UtilizationPolicy,
    reports: Option<Reports>,
) -> (Vec<f64>, Vec<Tenant>) {
    let of = |cores: &u32| Tenant {
        policy,
        ..tenant(*cores, &[kernel * MILLISECOND])
    };
    let mut tenants: Vec<Tenant> = shares.iter().map(of).collect();
    let got = simulate(&mut tenants, reports, WARM_UP, SECONDS);
    (got, tenants)
}

#[test]
fn harsh_gpu_gives_busy_tenants_their_shares() {
    let scenes: [&[u32]; 5] = [&[30, 60], &[45, 45], &[10, 80], &[20, 30, 40], &[9; 10]];
    for kernel in KERNELS {
        for shares in scenes {
            let (got, _) = play(shares, kernel, UtilizationPolicy::Default, Some(LATE));
            for (got, share) in got.iter().zip(shares) {
                assert!(
                    *got >= f64::from(*share) - 5.0,
                    "{shares:?}, {kernel} ms: {got:?}"
                );
            }
        }
    }
}

#[test]
fn harsh_gpu_takes_its_loss_from_all_alike() {
    let scenes: [&[u32]; 4] = [&[30, 70], &[50, 50], &[20, 30, 50], &[10; 10]];
    for kernel in KERNELS {
        for shares in scenes {
            let (got, _) = play(shares, kernel, UtilizationPolicy::Default, Some(LATE));
            // Whole kernels.
            let error = 100.0 * float(kernel * MILLISECOND) / float(SECONDS * SECOND);
            let parts = got.iter().zip(shares);
            let parts: Vec<f64> = parts
                .map(|(got, share)| (got + error) / f64::from(*share))
                .collect();
            let lowest = parts.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = parts.iter().copied().fold(0.0, f64::max);
            assert!(lowest >= 0.85, "{shares:?}, {kernel} ms: {got:?}");
            assert!(highest - lowest < 0.1, "{shares:?}, {kernel} ms: {got:?}");
        }
    }
}

#[test]
fn harsh_gpu_gives_forced_tenants_their_shares_and_no_more() {
    let scenes: [&[u32]; 4] = [&[30, 30], &[30, 60], &[20, 30, 40], &[9; 10]];
    for kernel in KERNELS {
        for shares in scenes {
            // Nothing is lent, so that a rate is the share, its correction, and what is lost.
            let (got, _) = play(shares, kernel, UtilizationPolicy::Force, Some(LATE));
            for (got, share) in got.iter().zip(shares) {
                let error = (got - f64::from(*share)).abs();
                assert!(error <= 5.0, "{shares:?}, {kernel} ms: {got:?}");
            }
        }
    }
}

#[test]
fn harsh_gpu_keeps_share_of_tenant_alone() {
    for kernel in [1, 10, 50, 200] {
        for share in [10, 30, 50, 90] {
            let (got, tenants) = play(&[share], kernel, UtilizationPolicy::Force, Some(LATE));
            let error = (got[0] - f64::from(share)).abs();
            assert!(
                error <= 2.0,
                "{share} %, {kernel} ms: {got:?} {:?}",
                tenants[0].corrections
            );
        }
    }
}

#[test]
fn keeps_shares_without_utilisation_samples() {
    let scenes: [&[u32]; 4] = [&[30, 30], &[45, 45], &[20, 30, 40], &[9; 10]];
    for kernel in KERNELS {
        for shares in scenes {
            let (got, _) = play(shares, kernel, UtilizationPolicy::Force, None);
            for (got, share) in got.iter().zip(shares) {
                let error = (got - f64::from(*share)).abs();
                assert!(error <= BLIND, "{shares:?}, {kernel} ms: {got:?}");
            }
        }
    }
}

/// Programs that wait for each of their launches, in one process and in four.
#[test]
fn harsh_gpu_keeps_shares_of_processes_that_launch_and_wait() {
    for (reports, kernel) in [
        (Some(LATE), MILLISECOND / 2),
        (Some(LATE), 5 * MILLISECOND),
        (Some(LATE), 50 * MILLISECOND),
        (None, 5 * MILLISECOND),
        (None, 50 * MILLISECOND),
    ] {
        for count in [1, 4] {
            for shares in [[10, 80], [30, 60], [10, 90]] {
                let waiting = |cores: u32| Tenant {
                    sync_every: 1,
                    ..processes(count, cores, &[kernel])
                };
                let mut tenants: Vec<_> = shares.into_iter().map(waiting).collect();
                let got = simulate(&mut tenants, reports, WARM_UP, SECONDS);
                for (got, share) in got.iter().zip(shares) {
                    // A full device loses a tenth by switching.
                    let share = f64::from(share);
                    let least = match reports {
                        _ if shares == [10, 90] => share * 0.8 - 1.0,
                        Some(_) => share - 5.0,
                        None => share - BLIND,
                    };
                    assert!(
                        *got >= least,
                        "{count} processes, {kernel} ns, {shares:?}, {}: {got}",
                        reports.is_some()
                    );
                }
            }
        }
    }
}

#[test]
fn harsh_gpu_keeps_shares_of_unlike_programs() {
    let ms = MILLISECOND;
    // One waits for each of its kernels; others have long ones.
    let waiting = |cores, kernel| Tenant {
        sync_every: 1,
        ..tenant(cores, &[kernel])
    };
    for reports in [Some(LATE), None] {
        for mut tenants in [
            vec![waiting(30, ms), waiting(60, ms)],
            vec![waiting(60, 10 * ms), tenant(30, &[10 * ms])],
            vec![tenant(30, &[50 * ms]), tenant(60, &[ms])],
            vec![tenant(10, &[50 * ms]), tenant(80, &[ms])],
            vec![
                tenant(20, &[ms]),
                tenant(30, &[10 * ms]),
                tenant(40, &[50 * ms]),
            ],
            vec![
                tenant(30, &[ms / 10, ms, 7 * ms]),
                tenant(60, &[27 * ms, ms / 3]),
            ],
        ] {
            let got = simulate(&mut tenants, reports, WARM_UP, SECONDS);
            for (got, tenant) in got.iter().zip(&tenants) {
                let error = if reports.is_some() { 5.0 } else { BLIND };
                let least = f64::from(tenant.cores) - error;
                assert!(
                    *got >= least,
                    "{:?} {}: {got}",
                    tenant.kernels,
                    tenant.cores
                );
            }
        }
    }
}

/// Tenants that do not fill the GPU are busy at the same time only now and then. Before the driver has
/// measured anything, and where it never does.
#[test]
fn harsh_gpu_keeps_shares_of_tenants_that_seldom_meet() {
    let scenes: [&[u32]; 4] = [&[30, 50], &[20, 40], &[10, 10, 10], &[10, 20, 30, 30]];
    // Longer ones than a time slice are charged for what the changes cost.
    for (kernel, bounds) in [
        (50, -4.0..=0.5),
        (200, -4.0..=0.5),
        (1000, -4.0..=0.5),
        (3000, -6.0..=4.0),
        (7300, -6.0..=4.0),
        (20_000, -6.0..=4.0),
    ] {
        for (sync_every, shares) in [8, 64]
            .into_iter()
            .flat_map(|every| scenes.map(|of| (every, of)))
        {
            let forced = |cores: &u32| Tenant {
                policy: UtilizationPolicy::Force,
                sync_every,
                ..tenant(*cores, &[kernel * MICROSECOND])
            };
            let mut tenants: Vec<_> = shares.iter().map(forced).collect();
            // Among more, the first launches of a kernel seem longer.
            let seconds = if shares.len() > 2 { 20 } else { 3 };
            let got = simulate(&mut tenants, None, 1, seconds);
            for (got, share) in got.iter().zip(shares) {
                let error = got - f64::from(*share);
                assert!(
                    bounds.contains(&error),
                    "{shares:?}, {kernel} us, {sync_every}: {got}"
                );
            }
        }
    }
}
