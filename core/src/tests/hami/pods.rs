//! HAMi 4.5: the containers of a pod on one node.

use super::*;
use crate::tests::request;

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
