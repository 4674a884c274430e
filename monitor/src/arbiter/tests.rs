//! Decisions for tenants of a simple simulated GPU: those that may launch do.

use super::*;

pub(super) const MILLISECOND: u64 = 1_000_000;
const TICK: u64 = 20 * MILLISECOND;
pub(super) const START: u64 = 1_000_000 * MILLISECOND;

#[derive(Clone, Copy, Debug)]
pub(super) struct TenantSpec {
    high: bool,
    cores: u32,
    /// The most that it may be lent, in percent; 0: no maximum.
    cores_limit: u32,
    policy: UtilizationPolicy,
    /// It would use the whole GPU, nothing, or this.
    pub(super) wants: Ppm,
    pub(super) measured: Option<Ppm>,
}

pub(super) fn low(cores: u32) -> TenantSpec {
    TenantSpec {
        high: false,
        cores,
        cores_limit: 0,
        policy: UtilizationPolicy::Default,
        wants: FULL_DEVICE,
        measured: None,
    }
}

pub(super) fn high(cores: u32) -> TenantSpec {
    TenantSpec {
        high: true,
        ..low(cores)
    }
}

fn idle(spec: TenantSpec) -> TenantSpec {
    TenantSpec { wants: 0, ..spec }
}

fn forced(spec: TenantSpec) -> TenantSpec {
    TenantSpec {
        policy: UtilizationPolicy::Force,
        ..spec
    }
}

#[derive(Debug)]
pub(super) struct SimulatedGpu {
    pub(super) tenants: Vec<(TenantSpec, LaunchCounters)>,
    pub(super) state: ArbiterState,
    pub(super) now: u64,
    pub(super) decisions: Vec<TenantDecision>,
}

impl SimulatedGpu {
    pub(super) fn new(tenants: &[TenantSpec]) -> Self {
        let counters = LaunchCounters::default();
        let tenants: Vec<_> = tenants.iter().map(|spec| (*spec, counters)).collect();
        Self {
            decisions: vec![TenantDecision::default(); tenants.len()],
            tenants,
            state: ArbiterState::default(),
            now: START,
        }
    }

    /// Lets time pass: tenants launch as they may, and the arbiter decides.
    pub(super) fn pass(&mut self, milliseconds: u64) -> &mut Self {
        self.pass_with(milliseconds, |_, _| {})
    }

    /// The same; `falsify` changes a tenant's counters.
    pub(super) fn pass_with(
        &mut self,
        milliseconds: u64,
        falsify: impl Fn(usize, &mut LaunchCounters),
    ) -> &mut Self {
        for _ in 0..milliseconds * MILLISECOND / TICK {
            self.now += TICK;
            let now = self.now;
            for ((spec, counters), decision) in self.tenants.iter_mut().zip(&self.decisions) {
                work(*spec, counters, *decision, now);
            }
            let names: Vec<String> = (0..self.tenants.len()).map(|i| i.to_string()).collect();
            let tenants = self.tenants.iter().zip(&names).enumerate();
            let samples = tenants.map(|(i, ((spec, counters), container))| {
                let mut counters = *counters;
                falsify(i, &mut counters);
                TenantSample {
                    container,
                    device: "GPU-a",
                    high_priority: spec.high,
                    policy: spec.policy,
                    cores: spec.cores,
                    cores_limit: spec.cores_limit,
                    counters: Some(counters),
                    measured: spec.measured.map(|used| Measurement {
                        used,
                        at: now,
                        is_late: false,
                        processes: 1,
                    }),
                }
            });
            let samples: Vec<TenantSample> = samples.collect();
            self.decisions = decide(&samples, &mut self.state, now);
        }
        self
    }

    /// Checks what each may use, in percent of the GPU; 100 if unlimited, 0 if it must wait.
    #[track_caller]
    pub(super) fn check(&self, expected: &[u32]) {
        let rate = |(decision, (spec, _)): (&TenantDecision, &(TenantSpec, LaunchCounters))| {
            match decision.throttle {
                ThrottleFlag::Wait => 0,
                ThrottleFlag::Unlimited => 100,
                ThrottleFlag::Open if decision.rate_correction == 0 => 100,
                ThrottleFlag::Open => {
                    (decision.rate_correction / 100 * spec.cores + 5_000) / 10_000
                }
            }
        };
        let found: Vec<u32> = self.decisions.iter().zip(&self.tenants).map(rate).collect();
        let spec: Vec<TenantSpec> = self.tenants.iter().map(|(spec, _)| *spec).collect();
        assert_eq!(found, expected, "{spec:?}: {:?}", self.decisions);
    }
}

/// The counters of 20 ms, as the limiter would write them.
fn work(spec: TenantSpec, counters: &mut LaunchCounters, decision: TenantDecision, now: u64) {
    if spec.wants == 0 {
        return;
    }
    counters.last = now - 1;
    if decision.throttle == ThrottleFlag::Wait {
        // One launch waits.
        counters.launches += u64::from(counters.launches == 0);
        counters.last = counters.last.min(START + 1);
        return;
    }
    counters.launches += 10;
    if decision.throttle == ThrottleFlag::Open && decision.rate_correction > 0 {
        let rate = u64::from(decision.rate_correction) * u64::from(spec.cores) / 100;
        counters.busy += rate.min(spec.wants) * TICK / FULL_DEVICE;
        if rate < spec.wants {
            counters.debt = now + 5 * MILLISECOND;
            counters.waited += MILLISECOND;
        }
    }
}

/// What each may use after 400 ms of the same work.
#[test]
fn decides_by_priority_policy_and_idle_compute() {
    let disabled = |spec| TenantSpec {
        policy: UtilizationPolicy::Disable,
        ..spec
    };
    let capped = |cores_limit| TenantSpec {
        cores_limit,
        ..low(30)
    };
    let check = |tenants: &[TenantSpec], expected: &[u32]| {
        SimulatedGpu::new(tenants).pass(400).check(expected);
    };
    // One that is alone has no limit, unless it is forced.
    check(&[low(30)], &[100]);
    check(&[high(30)], &[100]);
    check(&[forced(low(30))], &[30]);
    check(&[low(30), idle(low(50)), idle(high(20))], &[100, 50, 20]);
    // Idle compute is given up to a tenant's limit, even if it is alone.
    check(&[capped(60)], &[60]);
    check(&[capped(60), idle(low(50))], &[60, 50]);
    check(&[capped(60), low(20)], &[60, 40]);
    check(&[capped(20)], &[30]);
    // Those of high priority have no limit among themselves.
    check(&[high(30), high(30)], &[100, 100]);
    check(&[high(30), forced(high(30))], &[100, 30]);
    check(&[high(30), high(30), idle(low(40))], &[50, 50, 0]);
    // All of low priority yield to them.
    let yields = [forced(low(30)), disabled(low(30)), low(0), high(50)];
    check(&yields, &[0, 0, 0, 100]);
    // A forced one borrows nothing and lends its rest.
    check(&[forced(low(30)), low(20)], &[30, 70]);
    check(&[forced(idle(low(30))), low(20), low(20)], &[30, 50, 50]);
    // Nothing is lent beside an unlimited one.
    check(&[low(0), low(20)], &[100, 20]);
    check(&[disabled(low(40)), low(20)], &[100, 20]);
}

#[test]
fn low_priority_yields_while_high_priority_runs() {
    let mut gpu = SimulatedGpu::new(&[low(30), high(50)]);
    gpu.pass(40).check(&[0, 100]);
    gpu.pass(60_000).check(&[0, 100]);
    gpu.tenants[1].0.wants = 0;
    gpu.pass(120).check(&[100, 50]);
    gpu.tenants[1].0.wants = FULL_DEVICE;
    gpu.pass(40).check(&[0, 100]);
}

#[test]
fn low_priority_gets_its_share_above_the_cap() {
    let mut gpu = SimulatedGpu::new(&[low(40), high(60)]);
    gpu.state = ArbiterState::new(PriorityCap(50));
    gpu.pass(4_500).check(&[0, 100]);
    gpu.pass(1_000).check(&[40, 60]);
    gpu.pass(4_000).check(&[40, 60]);
    // Ten seconds later, for as long as before.
    gpu.pass(1_500).check(&[0, 100]);
    gpu.pass(5_000).check(&[40, 60]);
    // With a cap of 0, priority gives nothing.
    let mut gpu = SimulatedGpu::new(&[low(30), high(30)]);
    gpu.state = ArbiterState::new(PriorityCap(0));
    for _ in 0..15 {
        gpu.pass(1_000).check(&[50, 50]);
    }
}

#[test]
fn full_device_takes_its_loss_from_all_alike() {
    let shares = [40, 60];
    let of = |share: u32| TenantSpec {
        // A tenth of the time is lost by switching.
        measured: Some(Ppm::from(share) * PERCENT * 9 / 10),
        ..low(share)
    };
    let mut gpu = SimulatedGpu::new(&shares.map(of));
    gpu.pass(10_000).check(&[38, 56]);
    for (spec, _) in &mut gpu.tenants {
        spec.measured = Some(Ppm::from(spec.cores) * PERCENT * 8 / 10);
    }
    gpu.pass(20_000);
    let rates = gpu.decisions.iter().map(|one| one.rate_correction);
    assert!(
        rates.clone().all(|rate| rate > 1_100_000),
        "it is not full, and they are charged too much: {gpu:?}"
    );
}

#[test]
fn whole_percents_that_are_rounded_down_are_no_loss() {
    // Each uses nearly ten.
    let measured = Some(9 * PERCENT);
    let mut gpu = SimulatedGpu::new(&[(); 10].map(|()| TenantSpec {
        measured,
        ..low(10)
    }));
    gpu.pass(10_000).check(&[10; 10]);
}

#[test]
fn keeps_shares_beside_tenant_without_limit_that_seldom_works() {
    let of = |share: u32| TenantSpec {
        measured: Some(Ppm::from(share) * PERCENT),
        ..low(share)
    };
    let mut gpu = SimulatedGpu::new(&[of(45), of(45), low(0)]);
    gpu.pass(10_000).check(&[45, 45, 100]);
}

#[test]
fn reports_what_others_take_from_each_tenant() {
    let mut gpu = SimulatedGpu::new(&[low(20), low(30), low(0)]);
    gpu.pass_with(2_000, |i, counters| counters.running = [1, 3, 0][i]);
    let others = |gpu: &SimulatedGpu| {
        let each = gpu.decisions.iter();
        each.map(|one| (one.others + 128) / 256).collect::<Vec<_>>()
    };
    // The unlimited one is not measured.
    assert_eq!(others(&gpu), [4, 2, 4]);
    let before = gpu.decisions[0].others_time;
    gpu.pass_with(1_000, |i, counters| counters.running = [1, 3, 0][i]);
    let passed = gpu.decisions[0].others_time - before;
    assert_eq!(passed / MILLISECOND, 800, "four beside one");
    let before = gpu.decisions[0].others_time;
    gpu.pass_with(1_000, |i, counters| counters.running = [0, 3, 0][i]);
    let after = gpu.decisions[0].others_time;
    assert_eq!(after, before, "it had no work");
    gpu.tenants[1].0.wants = 0;
    gpu.pass_with(5_000, |i, counters| counters.running = [1, 3, 0][i]);
    assert_eq!(others(&gpu)[0], 1, "what it left does not count");
    let before = gpu.decisions[0].others_time;
    gpu.tenants.pop();
    gpu.decisions.pop();
    gpu.pass_with(20, |_, counters| counters.running = 1);
    let after = gpu.decisions[0].others_time;
    assert_eq!(after, before, "the sum goes on where it was");
}

/// A neighbour's launches are charged so much less.
#[test]
fn counts_no_more_processes_with_work_than_driver_lists() {
    let measured = Some(30 * PERCENT);
    let mut gpu = SimulatedGpu::new(&[
        low(20),
        TenantSpec {
            measured,
            ..low(30)
        },
    ]);
    gpu.pass_with(2_000, |i, counters| counters.running = [1, u64::MAX][i]);
    assert_eq!((gpu.decisions[0].others + 128) / 256, 1);
}

#[test]
fn reserves_share_of_program_that_waits_for_its_work() {
    // Launches one kernel after another, each of which takes twice as long because of the other.
    let mut gpu = SimulatedGpu::new(&[low(30), low(60)]);
    gpu.tenants[1].0.wants = 45 * PERCENT;
    gpu.pass(4_000);
    assert!(gpu.decisions[0].rate_correction > 1_200_000, "{gpu:?}");
    for _ in 0..200 {
        gpu.tenants[1].1.contended += 10 * MILLISECOND;
        gpu.pass(20);
    }
    assert!(gpu.decisions[0].rate_correction < 1_150_000, "{gpu:?}");
}

#[test]
fn program_with_long_kernels_stays_active_between_launches() {
    // 300 ms each: without a limit only launches are counted.
    let mut gpu = SimulatedGpu::new(&[high(30), low(30)]);
    gpu.tenants[0].0.wants = 0;
    for step in 0..40 {
        gpu.tenants[0].1.launches += 1;
        gpu.pass(300);
        if step > 2 {
            assert_eq!(gpu.decisions[1].throttle, ThrottleFlag::Wait, "{step}");
        }
    }
}

#[test]
fn decides_for_each_device_separately() {
    let tenants = [
        ("a", "GPU-a", true),
        ("b", "GPU-b", false),
        ("a", "GPU-b", true),
        ("c", "GPU-c", false),
    ];
    let samples = tenants.map(|(container, device, high_priority)| TenantSample {
        container,
        device,
        high_priority,
        policy: UtilizationPolicy::Default,
        cores: 30,
        cores_limit: 0,
        counters: Some(LaunchCounters {
            last: START,
            launches: 1,
            ..LaunchCounters::default()
        }),
        measured: None,
    });
    let decisions = decide(&samples, &mut ArbiterState::default(), START + MILLISECOND);
    let flags = decisions.iter().map(|decision| decision.throttle);
    let mut expected = [ThrottleFlag::Unlimited; 4];
    expected[1] = ThrottleFlag::Wait;
    assert_eq!(flags.collect::<Vec<_>>(), expected);
}
