//! Simulations of the compute share: a device that runs tenants in slices of 2 ms, in steps of
//! simulated time, and programs that launch as soon as they may. All figures are simulated.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use aliquot_pacer::bucket::Bucket;
use aliquot_pacer::cost::{Costs, LaunchSample, key};
use aliquot_pacer::credit::{CHUNK, Credit};
use aliquot_pacer::rule::Rate;

const STEP: u64 = 10_000;
const SLICE: u64 = 2_000_000;
const SECOND: u64 = 1_000_000_000;
const SAMPLE_INTERVAL: u64 = SECOND / 4;
/// Launches that a program has under way at most.
const DEPTH: usize = 8;

/// A launch on the device.
struct SimulatedLaunch {
    left: u64,
    measured: bool,
    charged: u64,
    overlapped: bool,
    /// When its stream reached it.
    begun: Option<u64>,
}

/// A container with one kernel, launched by programs that share its bucket.
struct SimulatedTenant {
    cores: u32,
    rate: Rate,
    host: SimulatedHost,
    kernel: SimulatedKernel,
    bucket: AtomicU64,
    until: AtomicU64,
    programs: Vec<SimulatedProgram>,
    /// GPU time in this window.
    busy: u64,
    /// GPU time in all.
    spent: u64,
    windows: Vec<f64>,
}

/// What the host knows about a tenant: whole percents of utilisation, smoothed.
struct SimulatedHost {
    used: f64,
    rate_correction: f64,
    /// GPU time at the last sample.
    sampled: u64,
}

impl SimulatedHost {
    /// Samples four times a second, and corrects the rate by a twentieth of the error.
    fn sample(&mut self, busy: u64, cores: u32) -> Rate {
        let percent = float(busy - self.sampled) / float(SAMPLE_INTERVAL) * 100.0;
        self.sampled = busy;
        self.used += (percent.floor() - self.used) / 8.0;
        let error = (f64::from(cores) - self.used) / f64::from(cores);
        self.rate_correction = (self.rate_correction * (1.0 + 0.05 * error)).clamp(0.5, 2.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between half and two millions"
        )]
        let rate_correction = (self.rate_correction * 1e6) as u32;
        Rate::new(cores, rate_correction)
    }
}

#[derive(Default)]
struct SimulatedProgram {
    credit: Credit,
    costs: Costs,
    jobs: VecDeque<SimulatedLaunch>,
    /// Measured; learnt from at the next launch.
    done: Vec<(u64, u64, bool)>,
}

/// Times of a kernel.
#[derive(Clone, Copy)]
struct SimulatedKernel {
    nanoseconds: u64,
    sigma: f64,
}

impl SimulatedKernel {
    fn draw(self, now: u64, random: &mut fastrand::Rng) -> u64 {
        if self.sigma == 0.0 {
            return self.nanoseconds;
        }
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let phase = float(now % (10 * SECOND)) / float(10 * SECOND) * std::f64::consts::TAU;
        let drift = 1.0 + 0.1 * phase.sin();
        let time = float(self.nanoseconds) * drift * (self.sigma * normal).exp();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below a second"
        )]
        let time = time as u64;
        time.max(STEP)
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(nanoseconds: u64) -> f64 {
    nanoseconds as f64
}

fn tenant(cores: u32, programs: usize, nanoseconds: u64, sigma: f64) -> SimulatedTenant {
    SimulatedTenant {
        cores,
        rate: Rate::new(cores, 1_000_000),
        host: SimulatedHost {
            used: f64::from(cores),
            rate_correction: 1.0,
            sampled: 0,
        },
        kernel: SimulatedKernel { nanoseconds, sigma },
        bucket: AtomicU64::new(0),
        until: AtomicU64::new(0),
        programs: (0..programs).map(|_| SimulatedProgram::default()).collect(),
        busy: 0,
        spent: 0,
        windows: Vec::new(),
    }
}

impl SimulatedTenant {
    /// Launches what may be launched now, as libvgpu.so does.
    fn launch(&mut self, now: u64, sharing: u32, random: &mut fastrand::Rng) {
        let name = key([1, 2, 3]);
        let first = usize::try_from(now / STEP).expect("64 bits") % self.programs.len();
        let count = self.programs.len();
        for turn in 0..count {
            let program = &mut self.programs[(first + turn) % count];
            while program.jobs.len() < DEPTH {
                let kernel = program.costs.kernel(name);
                let mut job = SimulatedLaunch {
                    left: self.kernel.draw(now, random),
                    measured: false,
                    charged: kernel.cost(),
                    overlapped: false,
                    begun: None,
                };
                if kernel.is_known() && program.credit.spend(0, 1, kernel.cost()) {
                    program.jobs.push_back(job);
                    continue;
                }
                for (took, charged, overlapped) in program.done.drain(..) {
                    kernel.end_measurement();
                    let found = kernel.learn(LaunchSample {
                        took,
                        sharing,
                        exclusive: false,
                        overlapped,
                        disturbed: false,
                        delayed: 0,
                    });
                    if let Some(found) = found {
                        Bucket(&self.bucket).settle(self.rate, charged, found);
                    }
                }
                if kernel.is_at_unmeasured_limit() {
                    break;
                }
                let cost = kernel.cost();
                let chunk = program.credit.chunk(0, cost);
                if Bucket(&self.bucket).take(now, self.rate, chunk).is_err() {
                    break;
                }
                job.charged = cost;
                job.overlapped = program.credit.begin_work(0, 1, &self.until, (now, chunk));
                let small = kernel.is_known() && cost < CHUNK / 2 && chunk > 0;
                program.credit.grant(0, chunk, cost);
                program.credit.take_launches(0, 0);
                job.measured = !small;
                if small {
                    program.credit.measure_soon(0, cost);
                } else {
                    kernel.begin_measurement();
                }
                program.jobs.push_back(job);
            }
        }
    }

    /// Runs one program's work for a step; false if it has none.
    fn run(&mut self, program: usize, now: u64) -> bool {
        let program = &mut self.programs[program];
        let mut left = STEP;
        let mut worked = false;
        while left > 0 {
            let Some(job) = program.jobs.front_mut() else {
                break;
            };
            let part = job.left.min(left);
            job.left -= part;
            left -= part;
            self.busy += part;
            self.spent += part;
            worked = true;
            if job.left == 0 {
                let end = now + STEP - left;
                let job = program.jobs.pop_front().expect("the one that ran");
                if job.measured {
                    let took = end - job.begun.unwrap_or(now);
                    program.done.push((took, job.charged, job.overlapped));
                }
                if let Some(next) = program.jobs.front_mut() {
                    next.begun.get_or_insert(end);
                }
            }
        }
        worked
    }
}

/// Runs tenants for some seconds; the first one is not checked.
fn simulate(tenants: &mut [SimulatedTenant], seconds: u64) {
    let mut random = fastrand::Rng::with_seed(42);
    let schedule: Vec<(usize, usize)> = tenants
        .iter()
        .enumerate()
        .flat_map(|(at, tenant)| (0..tenant.programs.len()).map(move |program| (at, program)))
        .collect();
    let sharing = u32::try_from(tenants.len()).expect("a few");
    let (mut turn, mut slice_end) = (0, 0);
    let start = 1 << 40;
    for now in (start..start + seconds * SECOND).step_by(usize::try_from(STEP).expect("64 bits")) {
        for tenant in tenants.iter_mut() {
            tenant.launch(now, sharing, &mut random);
            for program in &mut tenant.programs {
                if let Some(job) = program.jobs.front_mut() {
                    job.begun.get_or_insert(now);
                }
            }
        }
        if now >= slice_end {
            turn = (turn + 1) % schedule.len();
            slice_end = now + SLICE;
        }
        for _ in 0..schedule.len() {
            let (at, program) = schedule[turn];
            if tenants[at].run(program, now) {
                break;
            }
            turn = (turn + 1) % schedule.len();
            slice_end = now + SLICE;
        }
        if sharing > 1 && (now - start + STEP).is_multiple_of(SAMPLE_INTERVAL) {
            for tenant in tenants.iter_mut() {
                tenant.rate = tenant.host.sample(tenant.spent, tenant.cores);
            }
        }
        if (now - start + STEP).is_multiple_of(SECOND) {
            for tenant in tenants.iter_mut() {
                let percent = float(std::mem::take(&mut tenant.busy)) / float(SECOND) * 100.0;
                tenant.windows.push(percent);
            }
        }
    }
}

#[track_caller]
fn assert_share(tenant: &SimulatedTenant, most: f64) {
    let windows = &tenant.windows[1..];
    let expected = f64::from(tenant.cores);
    let count = float(windows.len() as u64);
    let error = windows
        .iter()
        .map(|got| (got - expected).abs())
        .sum::<f64>()
        / count;
    assert!(error <= most, "{} %: {windows:.1?}", tenant.cores);
}

#[track_caller]
fn assert_alone(cores: u32, programs: usize, nanoseconds: u64, sigma: f64, most: f64) {
    let mut scene = [tenant(cores, programs, nanoseconds, sigma)];
    simulate(&mut scene, 6);
    assert_share(&scene[0], most);
    let mean = scene[0].windows[1..].iter().sum::<f64>() / 5.0;
    let throughput = 100.0 * mean / f64::from(cores);
    // A few hundred measured launches tell the mean of varying times to about a percent.
    let least = if sigma > 0.0 { 97.0 } else { 98.0 };
    assert!(
        throughput >= least || nanoseconds > 10_000_000,
        "{throughput}"
    );
}

#[test]
fn keeps_share_for_all_kernel_sizes() {
    for cores in [10, 25, 30, 50, 75, 90] {
        assert_alone(cores, 1, 20_000, 0.0, 0.5);
        assert_alone(cores, 1, 1_000_000, 0.0, 0.5);
        assert_alone(cores, 1, 10_000_000, 0.0, 1.0);
    }
}

#[test]
fn shares_one_bucket_among_eight_programs() {
    assert_alone(30, 8, 1_000_000, 0.0, 1.0);
    assert_alone(75, 8, 200_000, 0.0, 2.0);
}

#[test]
fn follows_varying_and_drifting_durations() {
    for cores in [10, 50, 90] {
        assert_alone(cores, 1, 50_000, 0.3, 2.0);
        assert_alone(cores, 1, 2_000_000, 0.3, 2.0);
    }
}

#[test]
fn gives_several_tenants_their_shares() {
    for shares in [&[20, 30, 50][..], &[10; 10]] {
        let shares = shares.iter();
        let mut scene: Vec<SimulatedTenant> = shares
            .map(|cores| tenant(*cores, 1, 1_000_000, 0.0))
            .collect();
        simulate(&mut scene, 40);
        for tenant in &scene {
            assert_share(tenant, 2.0);
        }
    }
}
