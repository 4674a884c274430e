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
use aliquot_pacer::cost::{Costs, LaunchSample, key};
use aliquot_pacer::credit::{CHUNK, Credit};
use aliquot_pacer::queue::StreamQueue;
use aliquot_pacer::rule::{LaunchRule, LimitWords};
use aliquot_region::host::LaunchCounters;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const STEP: u64 = 50 * MICROSECOND;
const TICK: u64 = 20 * MILLISECOND;
const CALIBRATION_TICK: u64 = 2 * MILLISECOND;
const SLICE: u64 = 2 * MILLISECOND;
const SWITCH: u64 = 200 * MICROSECOND;
/// A launch that is shorter than this is not measured as the first while all others wait.
const LONG_LAUNCH: u64 = 10 * MILLISECOND;
const START: u64 = 1 << 40;
/// Launches of one stream that are measured at a time.
const MAX_PENDING: usize = 16;
/// Launches that a program makes in a step at most.
const LAUNCHES_IN_STEP: u32 = 12;

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
    sharing: u32,
    exclusive: bool,
    overlapped: bool,
}

struct Tenant {
    cores: u32,
    policy: UtilizationPolicy,
    kernels: Vec<u64>,
    /// It waits for all of its work after so many launches.
    sync_every: u64,
    /// What the arbiter wrote to its limits page.
    decision: TenantDecision,
    /// Its counters; bucket and end of work apart.
    counters: LaunchCounters,
    bucket: AtomicU64,
    until: AtomicU64,
    credit: Credit,
    costs: Costs,
    stream: VecDeque<Work>,
    done: Vec<(Mark, u64)>,
    pending: usize,
    in_exclusive: bool,
    gathers_until: Option<u64>,
    gathered: u64,
    launches: u64,
    synchronizing: bool,
    /// GPU time so far, at the end of the warm-up, and millisecond by millisecond.
    busy: u64,
    busy_before: u64,
    history: VecDeque<(u64, u64)>,
    /// Lowest and highest rate correction after the warm-up, in millionths.
    corrections: [u32; 2],
}

fn tenant(cores: u32, kernels: &[u64]) -> Tenant {
    Tenant {
        cores,
        policy: UtilizationPolicy::Default,
        kernels: kernels.to_vec(),
        sync_every: 64,
        decision: TenantDecision::default(),
        counters: LaunchCounters::default(),
        bucket: AtomicU64::new(0),
        until: AtomicU64::new(0),
        credit: Credit::default(),
        costs: Costs::default(),
        stream: VecDeque::new(),
        done: Vec::new(),
        pending: 0,
        gathers_until: None,
        gathered: 0,
        in_exclusive: false,
        launches: 0,
        synchronizing: false,
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

    /// Lets the program launch what it may.
    fn program(&mut self, now: u64) {
        for _ in 0..LAUNCHES_IN_STEP {
            if self.synchronizing && !self.stream.is_empty() {
                return;
            }
            self.synchronizing = false;
            if !self.launch(now) {
                self.counters.waited += STEP;
                return;
            }
            self.launches += 1;
            self.counters.launches = self.launches;
            self.counters.last = now;
            self.synchronizing = self.launches.is_multiple_of(self.sync_every);
        }
    }

    fn push(&mut self, now: u64, nanoseconds: u64, measured: Option<Mark>) {
        let begun = self.stream.is_empty().then_some(now);
        self.stream.push_back(Work {
            left: nanoseconds,
            measured,
            begun,
        });
    }

    /// A launch, as libvgpu.so makes it; false if it waits.
    fn launch(&mut self, now: u64) -> bool {
        let number = usize::try_from(self.launches).expect("64 bits") % self.kernels.len();
        let nanoseconds = self.kernels[number];
        let key = key([number as u64 + 1, 1, 1]);
        match self.words().rule() {
            LaunchRule::Wait => {
                self.poll();
                false
            }
            LaunchRule::Unlimited => {
                if self.stream.len() >= 1024 {
                    return false;
                }
                self.push(now, nanoseconds, None);
                true
            }
            rule @ (LaunchRule::Limited(rate) | LaunchRule::Exclusive(rate)) => {
                let kernel = self.costs.kernel(key);
                if kernel.is_known() && self.credit.spend(0, 1, kernel.cost()) {
                    self.push(now, nanoseconds, None);
                    return true;
                }
                self.poll();
                let kernel = self.costs.kernel(key);
                let sharing = self.words().sharing();
                let queue = StreamQueue {
                    launches: self.pending,
                    queued: self.until.load(Relaxed).saturating_sub(now),
                    sharing,
                };
                let cost = kernel.cost();
                let is_full = self.pending >= MAX_PENDING;
                if kernel.is_at_unmeasured_limit()
                    || (is_full && !kernel.is_known())
                    || queue.is_full(rule, cost)
                {
                    return false;
                }
                let chunk = self.credit.chunk(0, cost);
                let credit = Bucket(&self.bucket).credit(now - self.gathered, rate, chunk);
                if let LaunchRule::Exclusive(rate) = rule {
                    Bucket(&self.bucket).charge(now, rate, chunk);
                } else if self.gathers_until.is_some_and(|until| now < until) {
                    return false;
                } else if let Err(Until(until)) = Bucket(&self.bucket).take(now, rate, chunk) {
                    if sharing > 1 && self.gathers_until.is_none() {
                        self.gathered = gather_time(rate, chunk);
                        self.gathers_until = Some(until + self.gathered);
                    }
                    return false;
                }
                self.gathers_until = None;
                self.gathered = 0;
                self.counters.credit = credit;
                let overlapped = self.credit.begin_work(0, 1, &self.until, (now, chunk));
                let small = kernel.is_known() && cost < CHUNK / 2 && chunk > 0;
                self.credit.grant(0, chunk, cost);
                self.credit.take_launches(0, 0);
                let mut mark = None;
                if small {
                    self.credit.measure_soon(0, cost);
                } else if !is_full {
                    kernel.begin_measurement();
                    self.pending += 1;
                    self.counters.in_progress += 1;
                    mark = Some(Mark {
                        key,
                        charged: cost,
                        sharing,
                        exclusive: matches!(rule, LaunchRule::Exclusive(_)),
                        overlapped,
                    });
                }
                self.counters.busy += chunk;
                self.push(now, nanoseconds, mark);
                true
            }
        }
    }

    fn poll(&mut self) {
        let words = self.words();
        self.in_exclusive &= matches!(words.rule(), LaunchRule::Exclusive(_));
        for (mark, took) in std::mem::take(&mut self.done) {
            self.pending -= 1;
            self.counters.in_progress -= 1;
            let sharing = mark.sharing.max(words.sharing());
            let exclusive = mark.exclusive && matches!(words.rule(), LaunchRule::Exclusive(_));
            // The device changed to this tenant meanwhile.
            let is_first = exclusive && !std::mem::replace(&mut self.in_exclusive, true);
            if is_first && took < LONG_LAUNCH {
                continue;
            }
            self.counters.undisturbed += u64::from(sharing == 1);
            let kernel = self.costs.kernel(mark.key);
            kernel.end_measurement();
            let found = kernel.learn(LaunchSample {
                took,
                sharing,
                exclusive,
                overlapped: mark.overlapped,
                disturbed: false,
                delayed: 0,
            });
            if let Some(found) = found
                && sharing > 1
            {
                let launches = (CHUNK / found.max(1)).max(1);
                self.counters.contended += took.saturating_sub(found) * launches;
            }
            if let (Some(found), LaunchRule::Limited(rate) | LaunchRule::Exclusive(rate)) =
                (found, words.rule())
            {
                Bucket(&self.bucket).settle(rate, mark.charged, found);
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

#[derive(Debug, Default)]
struct Gpu {
    running: usize,
    switched: u64,
    slice_end: u64,
}

impl Gpu {
    fn run(&mut self, tenants: &mut [Tenant], from: u64, to: u64) {
        let mut time = from;
        while time < to {
            let count = tenants.len();
            let has_work = |i: &usize| !tenants[*i].stream.is_empty();
            let working = (0..count).filter(has_work).count();
            if working == 0 {
                return;
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
            let tenant = &mut tenants[self.running];
            let work = tenant.stream.front_mut().expect("it has work");
            let part = work.left.min(until - time);
            work.left -= part;
            tenant.busy += part;
            time += part;
            if work.left == 0 {
                let work = tenant.stream.pop_front().expect("it ran");
                if let Some(mark) = work.measured {
                    tenant
                        .done
                        .push((mark, time - work.begun.expect("it began")));
                }
                if let Some(next) = tenant.stream.front_mut() {
                    next.begun = Some(time);
                }
            }
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
    let mut next_decision = START;
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
            next_decision = now
                + if state.is_calibrating() {
                    CALIBRATION_TICK
                } else {
                    TICK
                };
            for (tenant, decision) in tenants.iter_mut().zip(decisions) {
                tenant.decision = decision;
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
const WARM_UP: u64 = 15;
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
                    *got >= f64::from(*share) - 2.0,
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
            assert!(lowest >= 0.9, "{shares:?}, {kernel} ms: {got:?}");
            assert!(highest - lowest < 0.05, "{shares:?}, {kernel} ms: {got:?}");
        }
    }
}

#[test]
fn harsh_gpu_does_not_saturate_rate_corrections() {
    let scenes: [&[u32]; 4] = [&[30, 30], &[30, 60], &[20, 30, 40], &[9; 10]];
    for kernel in KERNELS {
        for shares in scenes {
            // Nothing is lent, so that a rate is the share, its correction, and what is lost.
            let (got, tenants) = play(shares, kernel, UtilizationPolicy::Force, Some(LATE));
            for ((got, share), tenant) in got.iter().zip(shares).zip(&tenants) {
                let error = (got - f64::from(*share)).abs();
                assert!(error <= 2.0, "{shares:?}, {kernel} ms: {got:?}");
                let [lowest, highest] = tenant.corrections;
                assert!(
                    lowest > 750_000 && highest < 1_400_000,
                    "{shares:?}, {kernel} ms: {lowest} {highest}"
                );
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
                assert!(error <= 5.0, "{shares:?}, {kernel} ms: {got:?}");
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
                let least = f64::from(tenant.cores) - 2.0;
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
