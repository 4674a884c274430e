//! Tables for housekeeping.

use aliquot_node_state::accepted::ContainerName;

use super::*;
use crate::testing::{allocation, entry, grant, instance_grant, pod, share_of};

fn accepted(pod: &str, names: &[&str]) -> AcceptedAllocation {
    let mut share = share_of(pod, &["GPU-a"]);
    let of_container = |name: &&str| ContainerName {
        name: (*name).to_owned(),
        container: "main".to_owned(),
    };
    share.names = names.iter().map(of_container).collect();
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

#[test]
fn collects_only_after_pod_and_processes_end() {
    // One accepted pod `u1` with the file `n1`.
    let (entries, here) = ([entry("u1", Some("n1"), &["GPU-a::0"])], pods(&["u1"]));
    let (share, files) = ([accepted("u1", &["n1"])], set(&["n1"]));
    for case in 0..8 {
        let [listed, present, used] = [1, 2, 4].map(|bit| case & bit != 0);
        let found = garbage(
            &entries[..usize::from(listed)],
            &here[..usize::from(present)],
            share.iter(),
            &set(&[]),
            &set(if used { &["u1"] } else { &[] }),
            &files,
        );
        let mut expected = Garbage::default();
        if !present && !used {
            (expected.names, expected.pods) = (set(&["n1"]), set(&["u1"]));
        }
        assert_eq!(found, expected, "{listed} {present} {used}");
    }
    // Of no accepted pod, and an older name of a present one.
    let entries = [entry("u2", Some("n2"), &["GPU-a::1"])];
    let share = [accepted("u1", &["old", "n1"])];
    let files = set(&["n1", "n2", "old", "orphan"]);
    let found = garbage(&entries, &here, share.iter(), &set(&[]), &set(&[]), &files);
    assert_eq!((found.names, found.pods), (set(&["orphan"]), set(&[])));
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
fn finds_departed_pods() {
    let shares = ["u1", "u2", "u3"].map(|uid| accepted(uid, &[]));
    let mut all = pods(&["u1"]);
    let mut over = pod("u3");
    over.phase = Phase::Ended;
    all.push(Arc::new(over));
    let found = departed(&all, shares.iter().map(|share| &share.pod));
    assert_eq!(found, set(&["u2", "u3"]));
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
fn running_pod_of_hami_closes_all_gpus() {
    let devices = names(&[("GPU-a", "GPU-a"), ("MIG-1", "GPU-b")]);
    let entries = [
        entry("u1", None, &["GPU-a"]),
        entry("u2", None, &["GPU-a-3"]),
        entry("u3", None, &["GPU-gone-12"]),
    ];
    let check = |here: &[&str], expected: &[(&str, &str)]| {
        let found = foreign(&entries, &pods(here), &devices);
        let found: Vec<_> = found.iter().map(|f| (&*f.pod, f.gpu.as_str())).collect();
        assert_eq!(found, expected, "{here:?}");
    };
    check(&["u1"], &[("default/u1", "GPU-a")]);
    let both = [("default/u2", "GPU-a"), ("default/u2", "GPU-b")];
    check(&["u3", "u2"], &both);
    check(&[], &[]);
}

#[test]
fn lists_pods_with_device_ids_and_unreadable_allocation() {
    let entries = [
        entry("u1", Some("n1"), &["GPU-a::0"]),
        entry("static", Some("n2"), &["GPU-a::1"]),
    ];
    let of_node = |node: &str| {
        let mut written = allocation(&[("main", &[grant("GPU-a", 1, 1)])]);
        written.node = node.into();
        written.encode().expect("can be written")
    };
    for (allocation, kubelet_uid, phase, is_listed) in [
        (Some("{".to_owned()), "u1", Phase::Running, true),
        (None, "u1", Phase::Running, false),
        // By the uid at the API server, which the scheduler knows.
        (Some("{".to_owned()), "static", Phase::Running, true),
        (Some("{".to_owned()), "without-ids", Phase::Running, false),
        (Some("{".to_owned()), "u1", Phase::Ended, false),
        (Some(of_node("n1")), "u1", Phase::Running, false),
        (Some(of_node("other")), "u1", Phase::Running, true),
    ] {
        let changed = Pod {
            allocation,
            kubelet_uid: kubelet_uid.into(),
            phase,
            ..pod("u1")
        };
        let found = unreadable(&entries, &[Arc::new(changed), Arc::new(pod("u2"))]);
        let expected: &[PodUid] = if is_listed { &["u1".into()] } else { &[] };
        assert_eq!(found, expected, "{kubelet_uid} {phase:?}");
    }
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
fn orphaned_retains_replicas_and_instances() {
    let instance = |start| instance_grant("GPU-b", "1g.5gb", start);
    let twice = aliquot_core::Grant {
        replicas: 2,
        ..grant("GPU-a", 3000, 30)
    };
    let given = allocation(&[("main", &[twice, instance(0), instance(6)])]);
    let share = crate::testing::accepted("u1", given);
    let left = orphaned(&set(&["u1"]), [share].iter());
    let found: Vec<_> = left.iter().map(|l| (l.gpu.as_str(), l.replicas)).collect();
    let expected = [("GPU-a", 2), ("GPU-b/1g.5gb@0", 1), ("GPU-b/1g.5gb@6", 1)];
    assert_eq!(found, expected);
    assert_eq!(
        (left[0].pod.as_str(), left[0].memory.0, left[0].cores.0),
        ("u1", 3000, 30)
    );
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
