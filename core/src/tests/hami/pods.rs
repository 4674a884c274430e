//! HAMi 4.5 and 4.10: the containers of a pod on one node, and their sum.

use super::*;
use crate::tests::request;
use crate::units::{Mib, Percent};
use crate::usage::{DeviceUse, on_device};
use Stage::{App, Init};

#[test]
fn reuses_devices_for_init_and_sums_app_containers() {
    let init = (Stage::Init, request(1, 900, 90));
    let app = |memory| (Stage::App, request(1, memory, 0));
    let one = node(&[&[]]);
    check(
        "4.5.1",
        &one,
        &pod(&[init, init, app(900)], &[]),
        "c0:0 c1:0 c2:0",
    );
    check("4.5.2", &one, &pod(&[app(500), app(500)], &[]), "c0:0 c1:0");
    let why = "1 CardInsufficientMemory";
    check("4.5.2", &one, &pod(&[app(500), app(501)], &[]), why);
    check(
        "4.5.1",
        &one,
        &pod(&[(Stage::Init, request(1, 1001, 0)), app(1)], &[]),
        why,
    );
}

#[test]
fn refuses_node_with_fewer_devices_than_requested() {
    let demand = requests(request(3, 1, 0), &[]);
    check(
        "4.5.4",
        &node(&[&[], &[]]),
        &demand,
        "1 NodeInsufficientDevice",
    );
}

#[test]
fn allocates_larger_of_init_peak_and_app_sum() {
    let check_use = |rule: &str, containers: &[(Stage, u64, u32)], expected: (u32, u64, u32)| {
        let used =
            on_device(containers.iter().map(|&(stage, memory, cores)| {
                (stage, DeviceUse::of(Mib(memory), Percent(cores)))
            }));
        let found = (used.replicas, used.memory.0, used.cores.0);
        assert_eq!(found, expected, "rule {rule}");
    };
    check_use(
        "4.10.1",
        &[(Init, 50, 60), (Init, 70, 10), (App, 20, 20)],
        (1, 70, 60),
    );
    check_use(
        "4.10.1",
        &[(Init, 50, 5), (App, 20, 20), (App, 40, 1)],
        (2, 60, 21),
    );
    // Memory of one and compute of the other: the larger of each.
    check_use("4.10.1", &[(Init, 50, 1), (App, 20, 20)], (1, 50, 20));
    check_use("4.10.2", &[(Init, 50, 1)], (1, 50, 1));
}
