//! Soft and hard limits, by `Member`s of one process whose cgroups the tests choose.

use super::*;
use crate::shared;

const GPU: usize = 0;
const CAPACITY: u64 = 100;

/// One process in each of these cgroups, which have soft and hard limits.
fn processes(limits: &[(&str, u64, u64)]) -> (tempfile::TempDir, Vec<Member>) {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    shared::create(&state).expect("the file is new");
    let member = |(path, soft, hard): &(&str, u64, u64)| {
        let member = Member::join(&state).expect("a free slot");
        let slot = &member.shared().slots[member.slot()];
        slot.cgroup.store(number(path), Relaxed);
        let set = member.set_memory_limit(GPU, path, (*soft, *hard));
        set.expect("a free record");
        member
    };
    let members = limits.iter().map(member).collect();
    (folder, members)
}

fn take(member: &Member, bytes: u64) -> bool {
    member.charge(GPU, bytes, CAPACITY).is_ok()
}

fn used<const N: usize>(members: &[Member]) -> [u64; N] {
    let used = |member: &Member| member.counters(GPU).used.load(Relaxed);
    std::array::from_fn(|i| used(&members[i]))
}

#[test]
fn never_evicts_tenant_within_its_soft_limit() {
    let limits = [("/a", 60, 60), ("/b", 20, 80), ("/c", 20, 20)];
    let (_folder, members) = processes(&limits);
    let [a, b, c] = &members[..] else {
        unreachable!("three processes")
    };
    assert!(take(a, 20) && take(b, 80), "b gets what nobody else uses");
    assert!(take(a, 40), "what a requested is taken from b");
    assert_eq!(used(&members), [60, 40, 0]);
    assert!(take(c, 20));
    assert_eq!(used(&members), [60, 20, 20]);
    assert_eq!(b.counters(GPU).host.load(Relaxed), 60);
    // Above its soft limit, b gets nothing of others, who are within theirs.
    assert!(!take(b, 1));
    assert!(!take(a, 1) && !take(c, 1), "beyond the hard limit");
    assert_eq!(used(&members), [60, 20, 20]);
    b.release(GPU, 80);
    assert_eq!(used(&members), [60, 0, 20]);
    assert_eq!(b.counters(GPU).host.load(Relaxed), 0);
}

#[test]
fn evicts_every_byte_of_tenant_without_soft_limit() {
    // As limits without a request were set before.
    let (_folder, members) = processes(&[("/a", 0, 60), ("/b", 100, 100)]);
    assert!(take(&members[0], 60) && take(&members[1], 100));
    assert_eq!(used(&members), [0, 100]);
}
