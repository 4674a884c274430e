//! Shares of each kind, and what holds them.

use aliquot_nvml::MemoryLimit;
use parking_lot::Mutex;

use super::*;
use crate::seats::Seats;
use crate::testing::seat;

/// A driver that offers limits of one card.
#[derive(Default)]
struct Fake {
    set: Mutex<Vec<(String, String, u64)>>,
    asked: Mutex<u32>,
}

impl MemoryLimits for Fake {
    fn limit_memory(&self, card: &str, cgroup: &Path, hard: u64) -> Result<(), LimitError> {
        *self.asked.lock() += 1;
        let cgroup = cgroup.display().to_string();
        if card != "GPU-a" {
            return Err(LimitError::NotOffered(card.to_owned()));
        }
        if cgroup.ends_with("gone") {
            return Err(LimitError::NoCgroup(cgroup));
        }
        self.set.lock().push((card.to_owned(), cgroup, hard));
        Ok(())
    }

    fn memory_limit(&self, card: &str, _cgroup: &Path) -> Result<MemoryLimit, LimitError> {
        Err(LimitError::NotOffered(card.to_owned()))
    }
}

fn look(seats: Vec<Seat>, cgroup: &str) -> Look {
    let key = |seat: &Seat| (seat.pod.clone(), seat.container.clone());
    Look {
        limits: seats
            .iter()
            .map(|seat| vec![100; seat.devices.len()])
            .collect(),
        cgroups: seats
            .iter()
            .map(|seat| (key(seat), [cgroup.to_owned()].into()))
            .collect(),
        seats: Arc::new(Seats {
            all: seats,
            ..Seats::default()
        }),
        ..Look::default()
    }
}

fn one(change: impl FnOnce(&mut Seat)) -> Vec<Seat> {
    let mut seat = seat("s0", "u1", "main", &["GPU-a"]);
    change(&mut seat);
    vec![seat]
}

#[track_caller]
fn check(seats: Vec<Seat>, cgroup: &str, expected: &[&str]) {
    let held = Enforcements::new(Arc::new(Fake::default())).hold(&look(seats, cgroup));
    assert_eq!(held, [[expected]]);
}

#[test]
fn a_share_is_held_by_all_that_can() {
    check(one(|_| ()), "/k/a", &["library", "driver"]);
    check(one(|seat| seat.limited = false), "/k/a", &["driver"]);
    check(one(|_| ()), "/k/gone", &["library"]);
    let mps = one(|seat| {
        seat.limited = false;
        seat.devices[0].mode = Mode::Mps;
    });
    check(mps, "/k/a", &["mps", "driver"]);
}

#[test]
fn what_has_all_of_its_card_or_an_instance_has_no_limit_of_the_driver() {
    for mode in [Mode::Exclusive, Mode::Timeslice, Mode::Mig] {
        let seats = one(|seat| seat.devices[0].mode = mode);
        check(seats, "/k/a", &["library"]);
    }
    let instance = one(|seat| seat.devices[0].uuid = "MIG-a".into());
    check(instance, "/k/a", &["library"]);
    let made = one(|seat| seat.devices[0].profile = Some("1g.5gb".to_owned()));
    check(made, "/k/a", &["library"]);
    check(
        one(|seat| seat.effective.uncontrolled = true),
        "/k/a",
        &["library"],
    );
}

#[test]
fn a_limit_is_set_once_for_each_cgroup_and_again_when_it_changes() {
    let fake = Arc::new(Fake::default());
    let mut all = Enforcements::new(fake.clone());
    let mut first = look(one(|_| ()), "/k/a");
    all.hold(&first);
    all.hold(&first);
    first.limits = vec![vec![200]];
    all.hold(&first);
    // The container started again.
    let second = look(one(|_| ()), "/k/b");
    all.hold(&second);
    let set = fake.set.lock().clone();
    let path = |name: &str| format!("/sys/fs/cgroup/k/{name}");
    let row = |name: &str, bytes| ("GPU-a".to_owned(), path(name), bytes);
    assert_eq!(set, [row("a", 100), row("a", 200), row("b", 100)]);
}

#[test]
fn a_start_that_ended_kept_its_containers_living_cgroup_from_the_drivers_limit() {
    let fake = Arc::new(Fake::default());
    let mut all = Enforcements::new(fake.clone());
    let mut both = look(one(|_| ()), "/k/a-gone");
    for cgroups in both.cgroups.values_mut() {
        cgroups.insert("/k/b".to_owned());
    }
    for _ in 0..5 {
        assert_eq!(all.hold(&both), [[["library", "driver"]]]);
    }
    assert_eq!(fake.set.lock().len(), 1);
    assert_eq!(*fake.asked.lock(), 2, "one that is gone is asked for once");
}

#[test]
fn a_limit_that_somebody_took_away_was_believed_to_be_set_for_ever() {
    let fake = Arc::new(Fake::default());
    let mut driver = Driver::new(fake.clone());
    let long_ago = Instant::now().checked_sub(AGAIN * 2);
    let Some(long_ago) = long_ago else {
        return; // The machine was started a moment ago.
    };
    let mut check = |then: Instant, times: usize| {
        let key = ("GPU-a".to_owned(), "/k/a".to_owned());
        driver.set.insert(key, (100, then));
        assert!(driver.limit("GPU-a", "/k/a", 100) == Limited::Yes);
        assert_eq!(fake.set.lock().len(), times);
    };
    check(Instant::now(), 0);
    check(long_ago, 1);
}

#[test]
fn a_driver_without_limits_is_not_asked_at_every_look() {
    let fake = Arc::new(Fake::default());
    let mut all = Enforcements::new(fake.clone());
    let seats = one(|seat| seat.devices[0].uuid = "GPU-old".into());
    let look = look(seats, "/k/a");
    for _ in 0..20 {
        assert_eq!(all.hold(&look), [[["library"]]]);
    }
    assert_eq!(*fake.asked.lock(), 1);
}

#[test]
fn a_container_that_was_not_told_yet_is_held_before_it_can_be_named() {
    let fake = Arc::new(Fake::default());
    let mut all = Enforcements::new(fake.clone());
    let mut look = look(one(|_| ()), "/k/a");
    look.early = std::mem::take(&mut look.cgroups);
    for _ in 0..2 {
        let held = all.hold(&look);
        assert_eq!(held, [[["library"]]], "which it is nobody knows");
    }
    let path = "/sys/fs/cgroup/k/a".to_owned();
    assert_eq!(*fake.set.lock(), [("GPU-a".to_owned(), path, 100)]);
}
