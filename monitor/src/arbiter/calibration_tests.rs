//! Calibrations with given counters.

use super::*;

const START: u64 = 100 * SECOND;
const TICK: u64 = 2 * MILLISECOND;

/// Three tenants, and who waits.
struct Scene {
    calibration: Calibration,
    candidates: Vec<Candidate>,
    now: u64,
    flags: Option<Vec<ThrottleFlag>>,
}

impl Scene {
    fn new() -> Self {
        let candidate = Candidate {
            eligible: true,
            counters: Some(LaunchCounters::default()),
        };
        Self {
            calibration: Calibration::default(),
            candidates: vec![candidate; 3],
            now: START,
            flags: None,
        }
    }

    fn counters(&mut self, candidate: usize) -> &mut LaunchCounters {
        self.candidates[candidate]
            .counters
            .as_mut()
            .expect("counters")
    }

    fn tick(&mut self, allowed: bool) -> Option<usize> {
        self.now += TICK;
        self.flags = self.calibration.update(&self.candidates, allowed, self.now);
        let flags = self.flags.as_ref()?;
        let exclusive = flags
            .iter()
            .position(|flag| *flag == ThrottleFlag::Exclusive);
        let waiting = flags.iter().filter(|flag| **flag == ThrottleFlag::Wait);
        assert_eq!(
            waiting.count(),
            flags.len() - usize::from(exclusive.is_some())
        );
        exclusive
    }

    /// Plays whole calibrations for a while, in which launches are measured at once; how long they
    /// took.
    fn play(&mut self, time: u64) -> u64 {
        let (end, mut length) = (self.now + time, 0);
        while self.now < end {
            if let Some(exclusive) = self.tick(true) {
                self.counters(exclusive).undisturbed += LAUNCHES;
            }
            length += if self.flags.is_some() { TICK } else { 0 };
        }
        length
    }
}

#[test]
fn gives_device_to_each_tenant_when_work_has_ended() {
    let mut scene = Scene::new();
    scene.counters(1).in_progress = 2;
    for _ in 0..5 {
        assert_eq!(scene.tick(true), None, "work is in progress");
        assert!(scene.flags.is_some(), "all wait for its end");
    }
    scene.counters(1).in_progress = 0;
    for expected in 0..3 {
        for measured in 0..LAUNCHES {
            assert_eq!(scene.tick(true), Some(expected), "{measured}");
            scene.counters(expected).undisturbed += 1;
        }
    }
    assert_eq!(scene.tick(true), None);
    assert_eq!(scene.flags, None, "it is over");
    assert!(scene.play(INTERVAL - SECOND) == 0);
    assert!(scene.play(2 * SECOND) > 0, "the next one");
}

#[test]
fn one_long_launch_is_enough() {
    let mut scene = Scene::new();
    assert_eq!(scene.tick(true), Some(0));
    scene.counters(0).in_progress = 1;
    for _ in 0..LONG_ENOUGH / TICK {
        assert_eq!(scene.tick(true), Some(0));
    }
    *scene.counters(0) = LaunchCounters {
        undisturbed: 1,
        ..LaunchCounters::default()
    };
    assert_eq!(scene.tick(true), Some(1));
}

#[test]
fn does_not_calibrate_where_it_would_harm() {
    let mut scene = Scene::new();
    for _ in 0..100 {
        scene.tick(false);
        assert_eq!(scene.flags, None, "not allowed");
    }
    assert_eq!(scene.tick(true), Some(0));
    scene.tick(false);
    assert_eq!(scene.flags, None, "it ends at once");
    let mut alone = Scene::new();
    alone.candidates[1].eligible = false;
    alone.candidates[2].eligible = false;
    assert_eq!(alone.play(10 * SECOND), 0);
}

#[test]
fn silent_or_dead_tenant_costs_bounded_wait() {
    let mut scene = Scene::new();
    // Its process ended during a launch.
    scene.counters(0).in_progress = 3;
    let mut waited = 0;
    while scene.tick(true).is_none() {
        waited += TICK;
    }
    assert!(
        (STALLED..STALLED + SECOND / 10).contains(&waited),
        "{waited}"
    );
    // It never launches either.
    let mut exclusive = 0;
    while scene.tick(true) == Some(0) {
        exclusive += TICK;
    }
    assert!(exclusive <= MAX_IDLE, "{exclusive}");
    let took = scene.play(200 * SECOND);
    assert!(took <= 8 * SECOND, "{took}: one part in 25");
    // Forged counters that never rest.
    let mut forged = Scene::new();
    let mut took = 0;
    for i in 0..100 * SECOND / TICK {
        forged.counters(2).in_progress = i;
        forged.tick(true);
        took += if forged.flags.is_some() { TICK } else { 0 };
    }
    assert!(took <= 12 * SECOND, "{took}");
}

#[test]
fn measures_new_tenants_soon_and_not_at_once_again() {
    let mut scene = Scene::new();
    assert!(scene.play(SECOND / 10) > 0);
    scene.calibration.forget_tenants(scene.now);
    assert_eq!(scene.tick(true), None, "at most once a second");
    assert!(scene.play(2 * SECOND) > 0);
}
