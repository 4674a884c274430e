//! Shares of each kind, and what enforces their limits.

use aliquot_nvml::MemoryLimit;
use parking_lot::Mutex;

use super::*;
use crate::testing::{container, node_sample, page};

/// A driver that supports limits on one GPU.
#[derive(Default)]
struct Fake {
    set: Mutex<Vec<(String, String, CgroupLimits)>>,
    calls: Mutex<u32>,
}

impl MemoryLimits for Fake {
    fn limit_memory(
        &self,
        gpu: &str,
        cgroup: &Path,
        limits: CgroupLimits,
    ) -> Result<(), LimitError> {
        *self.calls.lock() += 1;
        let cgroup = cgroup.display().to_string();
        if gpu != "GPU-a" {
            return Err(LimitError::NotOffered(gpu.to_owned()));
        }
        if cgroup.ends_with("gone") {
            return Err(LimitError::NoCgroup(cgroup));
        }
        self.set.lock().push((gpu.to_owned(), cgroup, limits));
        Ok(())
    }

    fn memory_limit(&self, gpu: &str, cgroup: &Path) -> Result<MemoryLimit, LimitError> {
        if gpu != "GPU-a" {
            return Err(LimitError::NotOffered(gpu.to_owned()));
        }
        let cgroup = cgroup.display().to_string();
        let set = self.set.lock();
        let last = set.iter().rev().find(|(_, of, _)| *of == cgroup);
        Ok(MemoryLimit {
            soft: last.map_or(0, |(_, _, limits)| limits.soft),
            hard: last.map(|(_, _, limits)| limits.hard),
            used: 0,
        })
    }
}

/// Soft and hard are the same.
fn both(bytes: u64) -> CgroupLimits {
    CgroupLimits {
        soft: bytes,
        hard: bytes,
    }
}

fn sample(containers: Vec<ManagedContainer>, cgroup: &str) -> NodeSample {
    let mut sample = node_sample(containers);
    for container in &sample.containers.all {
        sample.pages.push(vec![page(100); container.devices.len()]);
        let key = (container.pod.clone(), container.name.clone());
        sample.cgroups.insert(key, [cgroup.to_owned()].into());
    }
    sample
}

fn one() -> Vec<ManagedContainer> {
    vec![container("s0", "u1", "main", &["GPU-a"])]
}

/// What enforces the limit of a changed container.
fn check(change: impl FnOnce(&mut ManagedContainer), cgroup: &str, expected: &[&str]) {
    let mut containers = one();
    change(&mut containers[0]);
    let mut limits = DriverLimits::new(Arc::new(Fake::default()));
    let enforced_by = limits.enforce(&sample(containers, cgroup)).by;
    assert_eq!(enforced_by, [[expected]]);
}

#[test]
fn enforces_limit_by_all_applicable_means() {
    check(|_| (), "/k/a", &["library", "driver"]);
    check(|container| container.limited = false, "/k/a", &["driver"]);
    check(|_| (), "/k/gone", &["library"]);
    let mps = |container: &mut ManagedContainer| {
        container.limited = false;
        container.devices[0].mode = Mode::Mps;
    };
    check(mps, "/k/a", &["mps", "driver"]);
}

#[test]
fn sets_no_driver_limit_for_whole_gpu_or_instance() {
    let check = |change: &dyn Fn(&mut ManagedContainer)| check(change, "/k/a", &["library"]);
    for mode in [Mode::Exclusive, Mode::Timeslice, Mode::Mig] {
        check(&|container| container.devices[0].mode = mode);
    }
    check(&|container| container.devices[0].uuid = "MIG-a".into());
    check(&|container| container.devices[0].profile = Some("1g.5gb".to_owned()));
    check(&|container| container.effective.uncontrolled = true);
}

#[test]
fn sets_limit_once_per_cgroup_and_value() {
    let fake = Arc::new(Fake::default());
    let mut all = DriverLimits::new(fake.clone());
    let mut first = sample(one(), "/k/a");
    all.enforce(&first);
    all.enforce(&first);
    first.pages = vec![vec![page(200)]];
    all.enforce(&first);
    // The container started again.
    let second = sample(one(), "/k/b");
    all.enforce(&second);
    let set = fake.set.lock().clone();
    let path = |name: &str| format!("/sys/fs/cgroup/k/{name}");
    let row = |name: &str, bytes| ("GPU-a".to_owned(), path(name), both(bytes));
    assert_eq!(set, [row("a", 100), row("a", 200), row("b", 100)]);
}

#[test]
fn reports_once_what_started_without_driver_limit() {
    let fake = Arc::new(Fake::default());
    let mut first = DriverLimits::new(fake.clone());
    let mut one = sample(one(), "/k/a");
    assert_eq!(first.enforce(&one).late, [(0, 0)]);
    assert!(first.enforce(&one).late.is_empty());
    // One that has a limit: a hook set it, or another monitor, and now it is resized.
    one.pages = vec![vec![page(200)]];
    let found = DriverLimits::new(fake).enforce(&one);
    assert!(found.late.is_empty());
    assert_eq!(found.by, [[["library", "driver"]]]);
}

#[test]
fn limits_live_cgroup_beside_removed_one() {
    let fake = Arc::new(Fake::default());
    let mut all = DriverLimits::new(fake.clone());
    let mut both = sample(one(), "/k/a-gone");
    for cgroups in both.cgroups.values_mut() {
        cgroups.insert("/k/b".to_owned());
    }
    for _ in 0..5 {
        assert_eq!(all.enforce(&both).by, [[["library", "driver"]]]);
    }
    assert_eq!(fake.set.lock().len(), 1);
    assert_eq!(*fake.calls.lock(), 2, "one that is gone is asked for once");
}

#[test]
fn renews_driver_limit_periodically() {
    let fake = Arc::new(Fake::default());
    let mut driver = DriverLimits::new(fake.clone());
    let long_ago = Instant::now().checked_sub(RETRY * 2);
    let long_ago = long_ago.expect("Linux represents times before its start");
    let mut check = |then: Instant, times: usize| {
        let key = ("GPU-a".to_owned(), "/k/a".to_owned());
        driver.set.insert(key, (both(100), then));
        assert!(driver.limit("GPU-a", "/k/a", both(100)) == LimitStatus::Yes);
        assert_eq!(fake.set.lock().len(), times);
    };
    check(Instant::now(), 0);
    check(long_ago, 1);
}

#[test]
fn does_not_retry_unsupported_driver_in_every_sample() {
    let fake = Arc::new(Fake::default());
    let mut all = DriverLimits::new(fake.clone());
    let mut containers = one();
    containers[0].devices[0].uuid = "GPU-old".into();
    let sample = sample(containers, "/k/a");
    for _ in 0..20 {
        assert_eq!(all.enforce(&sample).by, [[["library"]]]);
    }
    assert_eq!(*fake.calls.lock(), 1);
}
