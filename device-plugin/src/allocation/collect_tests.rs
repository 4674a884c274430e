//! Tables for housekeeping.

use super::*;
use crate::testing::{allocation, entry, grant, pod};

fn accepted(pod: &str, names: &[&str]) -> AcceptedAllocation {
    let mut share = AcceptedAllocation::new(
        pod.into(),
        "default".to_owned(),
        pod.to_owned(),
        allocation(&[("main", &[grant("GPU-a", 3000, 30)])]),
        Vec::new(),
    );
    share.names = names.iter().map(|&name| name.to_owned()).collect();
    share
}

fn pods(uids: &[&str]) -> Vec<Arc<Pod>> {
    uids.iter().map(|uid| Arc::new(pod(uid))).collect()
}

fn set<T: Ord + From<String>>(texts: &[&str]) -> BTreeSet<T> {
    texts.iter().map(|&text| text.to_owned().into()).collect()
}

fn names(pairs: &[(&str, &str)]) -> BTreeMap<GpuUuid, GpuUuid> {
    let pairs = pairs.iter();
    pairs
        .map(|&(name, device)| (name.into(), device.into()))
        .collect()
}

struct Case {
    listed: bool,
    present: bool,
    alive: bool,
}

/// One accepted pod `u1` with the file `n1`.
fn check(case: &Case, expect_garbage: bool) {
    let entries = [entry("u1", Some("n1"), &["GPU-a::0"])];
    let found = garbage(
        &entries[..usize::from(case.listed)],
        &pods(&["u1"])[..usize::from(case.present)],
        [accepted("u1", &["n1"])].iter(),
        &set(&[]),
        &if case.alive { set(&["u1"]) } else { set(&[]) },
        &set(&["n1"]),
    );
    let expected = if expect_garbage {
        Garbage {
            names: set(&["n1"]),
            pods: set(&["u1"]),
        }
    } else {
        Garbage::default()
    };
    assert_eq!(found, expected);
}

#[test]
fn collects_only_after_entry_pod_and_processes_end() {
    for listed in [false, true] {
        for present in [false, true] {
            for alive in [false, true] {
                let case = Case {
                    listed,
                    present,
                    alive,
                };
                check(&case, !listed && !present && !alive);
            }
        }
    }
}

#[test]
fn collects_unowned_name_unless_in_checkpoint() {
    let found = garbage(
        &[entry("u2", Some("n2"), &["GPU-a::1"])],
        &[],
        [].iter(),
        &set(&[]),
        &set(&[]),
        &set(&["n2", "orphan"]),
    );
    assert_eq!(found.names, set(&["orphan"]));
}

#[test]
fn retains_older_name_of_present_pod() {
    let found = garbage(
        &[entry("u1", Some("new"), &["GPU-a::1"])],
        &pods(&["u1"]),
        [accepted("u1", &["old", "new"])].iter(),
        &set(&[]),
        &set(&[]),
        &set(&["old", "new"]),
    );
    assert_eq!(found, Garbage::default());
}

#[test]
fn reports_running_pods_without_checkpoint_entry() {
    let shares = [
        accepted("u1", &[]),
        accepted("u2", &[]),
        accepted("u3", &[]),
    ];
    let mut all = pods(&["u1", "u2"]);
    let mut leaving = pod("u3");
    leaving.phase = Phase::Terminating;
    all.push(Arc::new(leaving));
    let entries = [entry("u1", Some("n1"), &["GPU-a::0"])];
    assert_eq!(lost(&entries, &all, shares.iter()), set(&["u2"]));
}

#[test]
fn reports_devices_of_departed_pod_as_lingering() {
    let shares = [accepted("u1", &[]), accepted("u2", &[])];
    assert_eq!(
        departed(&pods(&["u1"]), shares.iter().map(|s| &s.pod)),
        set(&["u2"])
    );
    let left = lingering(&set(&["u2"]), shares.iter());
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].pod, "u2".into());
    assert_eq!((left[0].memory.0, left[0].cores.0), (3000, 30));
}

#[test]
fn counts_whole_gpu_for_pods_of_another_plugin() {
    let entries = [
        entry("old", None, &["GPU-b", "GPU-z"]),
        entry("older", None, &["GPU-a::1", "GPU-a::2"]),
        entry("gone", None, &["GPU-a"]),
        entry("ours", Some("n1"), &["GPU-a::0"]),
    ];
    let devices = names(&[("GPU-a", "GPU-a"), ("GPU-b", "GPU-b")]);
    let found = foreign(&entries, &pods(&["old", "older", "ours"]), &devices);
    let found: Vec<_> = found
        .iter()
        .map(|f| (f.gpu.as_str(), f.pod.as_str()))
        .collect();
    assert_eq!(
        found,
        [("GPU-a", "default/older"), ("GPU-b", "default/old")]
    );
}

#[test]
fn counts_gpus_of_hami_pods_by_id_and_by_annotation() {
    let devices = names(&[("GPU-a", "GPU-a")]);
    let entries = [entry("u1", None, &["GPU-a-3"])];
    let found = foreign(&entries, &pods(&["u1"]), &devices);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].gpu, "GPU-a".into());
    let mut known = pod("u1");
    known.hami_allocation = Some("GPU-b,NVIDIA,1,1:;".to_owned());
    let devices = names(&[("GPU-a", "GPU-a"), ("GPU-b", "GPU-b")]);
    let found = foreign(&entries, &[Arc::new(known)], &devices);
    let gpus: Vec<_> = found.iter().map(|one| one.gpu.as_str()).collect();
    assert_eq!(gpus, ["GPU-a", "GPU-b"], "by its id and by its annotation");
    assert!(found.iter().all(|one| one.hami == Some("u1".into())));
}

#[test]
fn lists_pods_with_device_ids_and_unreadable_allocation() {
    let entries = [
        entry("u1", Some("n1"), &["GPU-a::0"]),
        entry("static", Some("n2"), &["GPU-a::1"]),
    ];
    let check = |change: &dyn Fn(&mut Pod), expected: &[&str]| {
        let mut changed = pod("u1");
        change(&mut changed);
        let found = unreadable(&entries, &[Arc::new(changed), Arc::new(pod("u2"))]);
        let found: Vec<&str> = found.iter().map(PodUid::as_str).collect();
        assert_eq!(found, expected);
    };
    let spoil = |pod: &mut Pod| pod.allocation = Some("{".to_owned());
    check(&spoil, &["u1"]);
    check(&|_| {}, &[]);
    // By the uid at the API server, which the scheduler knows.
    let of_static = |pod: &mut Pod| {
        spoil(pod);
        pod.kubelet_uid = "static".into();
    };
    check(&of_static, &["u1"]);
    let without_ids = |pod: &mut Pod| {
        spoil(pod);
        pod.kubelet_uid = "u3".into();
    };
    check(&without_ids, &[]);
    let ended = |pod: &mut Pod| {
        spoil(pod);
        pod.phase = Phase::Ended;
    };
    check(&ended, &[]);
    let written = allocation(&[("main", &[grant("GPU-a", 1, 1)])]);
    let of_node = |node: &str| {
        let mut written = written.clone();
        written.node = node.into();
        let text = written.encode().expect("can be written");
        move |pod: &mut Pod| pod.allocation = Some(text.clone())
    };
    check(&of_node("n1"), &[]);
    check(&of_node("other"), &["u1"]);
}

#[test]
fn counts_foreign_pod_on_dynamic_mig_instance() {
    // Instances of dynamic MIG are no allocatable devices of their own.
    let devices = names(&[("GPU-a", "GPU-a"), ("MIG-1", "GPU-a"), ("MIG-2", "MIG-2")]);
    let check = |id: &str, expected: &str| {
        let entries = [entry("old", None, &[id])];
        let found = foreign(&entries, &pods(&["old"]), &devices);
        let found: Vec<_> = found.iter().map(|one| one.gpu.as_str()).collect();
        assert_eq!(found, [expected], "{id}");
    };
    check("MIG-1", "GPU-a");
    check("MIG-1::0", "GPU-a");
    check("MIG-2", "MIG-2");
    check("GPU-a", "GPU-a");
}

#[test]
fn lingering_retains_replicas_and_instances() {
    let placed = |profile: &str, start| aliquot_core::mig::published::MigPlacement {
        profile: profile.to_owned(),
        start,
    };
    let instance = |start| aliquot_core::Grant {
        burst: None,
        mig: Some(placed("1g.5gb", start)),
        ..grant("GPU-b", 5, 14)
    };
    let twice = aliquot_core::Grant {
        replicas: 2,
        ..grant("GPU-a", 3000, 30)
    };
    let given = allocation(&[("main", &[twice, instance(0), instance(6)])]);
    let share = crate::testing::accepted("u1", given);
    let left = lingering(&set(&["u1"]), [share].iter());
    let found: Vec<_> = left.iter().map(|l| (l.gpu.as_str(), l.replicas)).collect();
    let expected = [("GPU-a", 2), ("GPU-b/1g.5gb@0", 1), ("GPU-b/1g.5gb@6", 1)];
    assert_eq!(found, expected);
}

#[test]
fn retains_unowned_files_while_damaged_share_needed() {
    let check = |present: bool, alive: bool, expected: (&[&str], &[&str])| {
        let alive: BTreeSet<PodUid> = if alive { set(&["u1"]) } else { set(&[]) };
        let here = pods(&["u1"]);
        let here = &here[..usize::from(present)];
        let (damaged, files) = (set(&["u1"]), set(&["perhaps"]));
        let found = garbage(&[], here, [].iter(), &damaged, &alive, &files);
        assert_eq!(
            (found.names, found.pods),
            (set(expected.0), set(expected.1))
        );
        let devices = ["GPU-a", "GPU-b"].map(GpuUuid::from);
        let listed = foreign_of_damaged(&damaged, &alive, &devices).len();
        assert_eq!(listed, if alive.is_empty() { 0 } else { 2 });
    };
    check(true, false, (&[], &[]));
    check(false, true, (&[], &[]));
    check(false, false, (&["perhaps"], &["u1"]));
}
