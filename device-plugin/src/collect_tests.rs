//! Tables for housekeeping.

use super::*;
use crate::testing::{allocation, entry, grant, pod};

fn accepted(pod: &str, names: &[&str]) -> Accepted {
    let mut share = Accepted::new(
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

struct Case {
    held: bool,
    present: bool,
    alive: bool,
}

/// One accepted pod `u1` with the file `n1`.
fn check(case: &Case, collected: bool) {
    let entries = [entry("u1", Some("n1"), &["GPU-a::0"])];
    let found = garbage(
        &entries[..usize::from(case.held)],
        &pods(&["u1"])[..usize::from(case.present)],
        [accepted("u1", &["n1"])].iter(),
        &if case.alive { set(&["u1"]) } else { set(&[]) },
        &set(&["n1"]),
    );
    let expected = if collected {
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
fn a_share_is_collected_only_when_entry_pod_and_processes_are_gone() {
    for held in [false, true] {
        for present in [false, true] {
            for alive in [false, true] {
                let case = Case {
                    held,
                    present,
                    alive,
                };
                check(&case, !held && !present && !alive);
            }
        }
    }
}

#[test]
fn a_name_without_an_owner_is_collected_unless_the_checkpoint_knows_it() {
    let found = garbage(
        &[entry("u2", Some("n2"), &["GPU-a::1"])],
        &[],
        [].iter(),
        &set(&[]),
        &set(&["n2", "orphan"]),
    );
    assert_eq!(found.names, set(&["orphan"]));
}

#[test]
fn an_older_name_of_a_present_pod_is_kept() {
    let found = garbage(
        &[entry("u1", Some("new"), &["GPU-a::1"])],
        &pods(&["u1"]),
        [accepted("u1", &["old", "new"])].iter(),
        &set(&[]),
        &set(&["old", "new"]),
    );
    assert_eq!(found, Garbage::default());
}

#[test]
fn running_accepted_pods_without_an_entry_lost_it() {
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
fn what_a_departed_pod_still_holds_is_lingering() {
    let shares = [accepted("u1", &[]), accepted("u2", &[])];
    assert_eq!(departed(&pods(&["u1"]), shares.iter()), set(&["u2"]));
    let left = lingering(&set(&["u2"]), shares.iter());
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].pod, "u2".into());
    assert_eq!((left[0].memory.0, left[0].cores.0), (3000, 30));
}

#[test]
fn another_plugins_pods_hold_their_cards_whole_while_they_are_there() {
    let entries = [
        entry("old", None, &["GPU-b", "GPU-z"]),
        entry("older", None, &["GPU-a::1", "GPU-a::2"]),
        entry("gone", None, &["GPU-a"]),
        entry("ours", Some("n1"), &["GPU-a::0"]),
    ];
    let cards = set(&["GPU-a", "GPU-b"]);
    let found = foreign(&entries, &pods(&["old", "older", "ours"]), &cards);
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
fn a_pod_of_hami_holds_a_card_whole_only_if_nothing_says_what_it_was_given() {
    let cards = set(&["GPU-a"]);
    let entries = [entry("u1", None, &["GPU-a-3"])];
    let found = foreign(&entries, &pods(&["u1"]), &cards);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].gpu, "GPU-a".into());
    let mut known = pod("u1");
    known.hamis = Some("GPU-a,NVIDIA,1,1:;".to_owned());
    assert_eq!(foreign(&entries, &[Arc::new(known)], &cards), []);
}
