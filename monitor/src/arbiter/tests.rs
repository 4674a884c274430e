//! Decisions, with tenants of a simulated machine of the simplest kind: who may launch does.

use super::*;

pub(super) const MILLISECOND: u64 = 1_000_000;
const TICK: u64 = 20 * MILLISECOND;
pub(super) const START: u64 = 1_000_000 * MILLISECOND;

/// A tenant and what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    high: bool,
    cores: u32,
    policy: Policy,
    /// It would use the whole card, nothing, or this.
    pub(super) wants: Ppm,
    /// What the driver measures.
    pub(super) measured: Option<Ppm>,
}

pub(super) fn low(cores: u32) -> Who {
    Who {
        high: false,
        cores,
        policy: Policy::Default,
        wants: WHOLE,
        measured: None,
    }
}

pub(super) fn high(cores: u32) -> Who {
    Who {
        high: true,
        ..low(cores)
    }
}

fn idle(who: Who) -> Who {
    Who { wants: 0, ..who }
}

fn forced(who: Who) -> Who {
    Who {
        policy: Policy::Force,
        ..who
    }
}

/// A card and its tenants.
pub(super) struct Card {
    pub(super) tenants: Vec<(Who, Launches)>,
    memory: Memory,
    pub(super) now: u64,
    pub(super) verdicts: Vec<Verdict>,
}

impl Card {
    pub(super) fn new(tenants: &[Who]) -> Self {
        let tenants: Vec<_> = tenants
            .iter()
            .map(|who| (*who, Launches::default()))
            .collect();
        Self {
            verdicts: vec![Verdict::default(); tenants.len()],
            tenants,
            memory: Memory::default(),
            now: START,
        }
    }

    /// Lets time pass: tenants launch as they may, and the arbiter decides.
    pub(super) fn pass(&mut self, milliseconds: u64) -> &mut Self {
        self.pass_with(milliseconds, |_, _| {})
    }

    /// The same; `lie` changes what a tenant says.
    pub(super) fn pass_with(
        &mut self,
        milliseconds: u64,
        lie: impl Fn(usize, &mut Launches),
    ) -> &mut Self {
        for _ in 0..milliseconds * MILLISECOND / TICK {
            self.now += TICK;
            let now = self.now;
            for ((who, said), verdict) in self.tenants.iter_mut().zip(&self.verdicts) {
                work(*who, said, *verdict, now);
            }
            let mut shown: Vec<Launches> = self.tenants.iter().map(|(_, said)| *said).collect();
            for (i, said) in shown.iter_mut().enumerate() {
                lie(i, said);
            }
            let names: Vec<String> = (0..shown.len()).map(|i| format!("seat-{i}")).collect();
            let samples: Vec<Sample> = self
                .tenants
                .iter()
                .zip(&shown)
                .zip(&names)
                .map(|(((who, _), said), seat)| Sample {
                    seat,
                    card: "GPU-a",
                    high: who.high,
                    policy: who.policy,
                    cores: who.cores,
                    said: Some(*said),
                    measured: who.measured.map(|used| Measured { used, at: now }),
                })
                .collect();
            self.verdicts = decide(&samples, &mut self.memory, now);
        }
        self
    }

    /// What each may use, in percent of the card; 100 without a limit, 0 at a closed gate.
    #[track_caller]
    pub(super) fn check(&self, expected: &[u32]) {
        let rate = |(verdict, (who, _)): (&Verdict, &(Who, Launches))| match verdict.gate {
            Gate::Wait => 0,
            Gate::Unlimited => 100,
            Gate::Open if verdict.trim == 0 => 100,
            Gate::Open => (verdict.trim / 100 * who.cores + 5_000) / 10_000,
        };
        let found: Vec<u32> = self.verdicts.iter().zip(&self.tenants).map(rate).collect();
        let who: Vec<Who> = self.tenants.iter().map(|(who, _)| *who).collect();
        assert_eq!(found, expected, "{who:?}: {:?}", self.verdicts);
    }
}

/// What the library would tell of 20 ms.
fn work(who: Who, said: &mut Launches, verdict: Verdict, now: u64) {
    if who.wants == 0 {
        return;
    }
    said.last = now - 1;
    if verdict.gate == Gate::Wait {
        // One launch came to the gate and waits there.
        said.launches += u64::from(said.launches == 0);
        said.last = said.last.min(START + 1);
        return;
    }
    said.launches += 10;
    if verdict.gate == Gate::Open && verdict.trim > 0 {
        let rate = u64::from(verdict.trim) * u64::from(who.cores) / 100;
        said.busy += rate.min(who.wants) * TICK / WHOLE;
        if rate < who.wants {
            said.debt = now + 5 * MILLISECOND;
            said.waited += MILLISECOND;
        }
    }
}

#[test]
fn who_is_alone_at_work_has_no_limit_unless_it_is_forced() {
    Card::new(&[low(30)]).pass(200).check(&[100]);
    Card::new(&[high(30)]).pass(200).check(&[100]);
    Card::new(&[forced(low(30))]).pass(200).check(&[30]);
    Card::new(&[low(30), idle(low(50)), idle(high(20))])
        .pass(200)
        .check(&[100, 50, 20]);
}

#[test]
fn those_of_high_priority_have_no_limit_among_themselves() {
    Card::new(&[high(30), high(30)])
        .pass(200)
        .check(&[100, 100]);
    Card::new(&[high(30), forced(high(30))])
        .pass(200)
        .check(&[100, 30]);
    Card::new(&[high(30), high(30), idle(low(40))])
        .pass(200)
        .check(&[50, 50, 0]);
}

#[test]
fn a_low_one_yields_while_a_high_one_runs_and_goes_on_after_it() {
    let mut card = Card::new(&[low(30), high(50)]);
    card.pass(40).check(&[0, 100]);
    card.pass(60_000).check(&[0, 100]);
    card.tenants[1].0.wants = 0;
    card.pass(120).check(&[100, 50]);
    card.tenants[1].0.wants = WHOLE;
    card.pass(40).check(&[0, 100]);
}

#[test]
fn a_forced_or_unlimited_low_one_yields_too() {
    let disabled = Who {
        policy: Policy::Disable,
        ..low(30)
    };
    Card::new(&[forced(low(30)), disabled, low(0), high(50)])
        .pass(100)
        .check(&[0, 0, 0, 100]);
}

#[test]
fn idle_compute_is_lent_by_shares_and_taken_back() {
    let mut card = Card::new(&[low(30), low(10), idle(low(60))]);
    card.pass(400).check(&[75, 25, 60]);
    card.tenants[2].0.wants = WHOLE;
    card.pass(40).check(&[30, 10, 60]);
    card.tenants[2].0.wants = 20 * PERCENT;
    card.pass(2_000).check(&[59, 20, 60]);
    card.tenants[0].0.wants = 0;
    card.tenants[2].0.wants = 0;
    card.pass(2_000).check(&[30, 100, 60]);
}

#[test]
fn a_forced_one_borrows_nothing_and_lends_what_it_leaves() {
    Card::new(&[forced(low(30)), low(20)])
        .pass(400)
        .check(&[30, 70]);
    Card::new(&[forced(idle(low(30))), low(20), low(20)])
        .pass(400)
        .check(&[30, 50, 50]);
}

#[test]
fn beside_a_tenant_without_a_limit_shares_are_held() {
    Card::new(&[low(0), low(20)]).pass(400).check(&[100, 20]);
    let disabled = Who {
        policy: Policy::Disable,
        ..low(40)
    };
    Card::new(&[disabled, low(20)]).pass(400).check(&[100, 20]);
}

#[test]
fn one_that_had_no_limit_seemed_idle_to_one_that_came() {
    let mut card = Card::new(&[low(70), idle(low(30))]);
    card.pass(400).check(&[100, 30]);
    card.tenants[1].0.wants = WHOLE;
    for _ in 0..20 {
        card.pass(20);
        let came = card.verdicts[1];
        assert!(
            came.gate == Gate::Open && came.trim <= 1_000_000,
            "{came:?}"
        );
    }
    card.check(&[70, 30]);
}

#[test]
fn a_program_with_long_kernels_is_at_work_between_its_launches() {
    // 300 ms each: without a limit nothing but the launches is told.
    let mut card = Card::new(&[high(30), low(30)]);
    card.tenants[0].0.wants = 0;
    for step in 0..40 {
        card.tenants[0].1.launches += 1;
        card.pass(300);
        if step > 2 {
            assert_eq!(card.verdicts[1].gate, Gate::Wait, "{step}");
        }
    }
}

#[test]
fn who_has_no_sample_any_more_is_forgotten() {
    let mut card = Card::new(&[low(30), high(30)]);
    card.pass(100).check(&[0, 100]);
    card.tenants.pop();
    card.verdicts.pop();
    card.pass(40).check(&[100]);
    assert_eq!(card.memory.tenants.len(), 1);
    decide(&[], &mut card.memory, card.now);
    assert!(card.memory.tenants.is_empty());
}

#[test]
fn cards_do_not_concern_each_other() {
    let sample = |seat, card, high| Sample {
        seat,
        card,
        high,
        policy: Policy::Default,
        cores: 30,
        said: Some(Launches {
            last: START,
            launches: 1,
            ..Launches::default()
        }),
        measured: None,
    };
    let samples = [
        sample("a", "GPU-a", true),
        sample("b", "GPU-b", false),
        sample("a", "GPU-b", true),
        sample("c", "GPU-c", false),
    ];
    let verdicts = decide(&samples, &mut Memory::default(), START + MILLISECOND);
    let gates: Vec<Gate> = verdicts.iter().map(|verdict| verdict.gate).collect();
    let expected = [
        Gate::Unlimited,
        Gate::Wait,
        Gate::Unlimited,
        Gate::Unlimited,
    ];
    assert_eq!(gates, expected);
}
