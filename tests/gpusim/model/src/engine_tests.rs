//! The engine in virtual time: `Member`s of one process, and moments that the tests choose.

use super::Dependencies::{All, Numbers};
use super::*;
use crate::shared;

const GPU: usize = 0;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// What a switch takes, of slices of 2 ms: nothing, or as on a GPU that keeps about 92 % of its
/// throughput with two tenants.
const FREE: u64 = 0;
const COSTLY: u64 = 200 * US;

/// Processes of a machine of their own.
fn processes(count: usize) -> (tempfile::TempDir, Vec<Member>) {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    shared::create(&state).expect("the file is new");
    let join = |_| Member::join(&state).expect("a free slot");
    let members = (0..count).map(join).collect();
    (folder, members)
}

fn push(member: &Member, work: u64, after: Dependencies, moment: Moment) -> u64 {
    member.push(GPU, work, after, moment).expect("room")
}

fn busy(member: &Member) -> u64 {
    member.counters(GPU).busy.load(Relaxed)
}

/// Parts in a thousand of the time in which each of so many busy processes runs.
fn parts(count: usize, kernel: u64, switch: u64) -> Vec<u64> {
    let (_folder, members) = processes(count);
    let end = 2_000 * MS;
    for now in (1..end).step_by(500_000) {
        members[0].settle(GPU, (now, switch));
        for member in &members {
            let undone = || member.newest(GPU).0 - member.all_done_to(GPU);
            while undone() < 4 {
                push(member, kernel, All, (now, switch));
            }
        }
    }
    members[0].settle(GPU, (end, switch));
    members.iter().map(|one| busy(one) * 1000 / end).collect()
}

#[test]
fn switches_of_tenant_take_time_from_all_of_them() {
    for (count, kernel, switch, expected) in [
        (1, 20 * MS, COSTLY, 1000),
        (2, 20 * MS, FREE, 500),
        // 2 ms of 2 × (2 + 0.2) ms.
        (2, 20 * MS, COSTLY, 454),
        (3, 20 * MS, COSTLY, 303),
        (2, MS, COSTLY, 454),
    ] {
        let got = parts(count, kernel, switch);
        let is_near = |part: &u64| part.abs_diff(expected) <= 3;
        assert!(
            got.iter().all(is_near),
            "{count} tenants, kernels of {kernel} ns, switches of {switch}: {got:?}, not {expected}"
        );
    }
}

#[test]
fn independent_work_of_one_process_overlaps() {
    let (_folder, members) = processes(1);
    let member = &members[0];
    let at = |now: u64| (now, COSTLY);
    let start = 10 * MS;
    let long = push(member, 10 * MS, Numbers(&[]), at(start));
    let short = push(member, 4 * MS, Numbers(&[]), at(start));
    let chained = push(member, 4 * MS, Numbers(&[short]), at(start));
    let joined = push(member, MS, Numbers(&[long, chained, chained]), at(start));
    let last = push(member, MS, All, at(start));
    let waiting = [long, chained, joined, last].map(|one| member.progress(GPU, one, at(start)));
    let left = [10, 8, 11, 12].map(|ms| Progress::Running(ms * MS));
    assert_eq!(waiting, left);
    let done = [long, short, chained, joined, last]
        .map(|number| member.progress(GPU, number, at(start + 30 * MS)));
    let ends = [10, 4, 8, 11, 12].map(|ms| Progress::Done(start + ms * MS));
    assert_eq!(done, ends);
    assert_eq!(busy(member), 12 * MS, "the union, not the sum");
}
