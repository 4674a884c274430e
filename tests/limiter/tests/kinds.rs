//! Every kind of memory is charged once and given back when the driver gives it back.

use aliquot_limiter_tests::scene::{FIRST, SECOND, check, device, machine};
use aliquot_limiter_tests::{Container, WAYS};
use aliquot_region::limits::Container as Rules;

#[test]
fn each_kind_is_counted_once_and_given_back() {
    check(
        3000,
        &[
            ("init", "0"),
            ("managed,100", "0"),
            ("info", "0 2420 3000"),
            ("free", "0"),
            ("info", "0 2520 3000"),
            ("pitch,1000,2048", "0"),
            ("info", "0 2518 3000"),
            ("free", "0"),
            ("array,1024,1024", "0"),
            ("info", "0 2504 3000"),
            ("unarray", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn a_context_is_charged_when_it_is_made_and_takes_its_memory_with_it() {
    check(
        3000,
        &[
            ("init", "0"),
            ("create", "0"),
            ("info", "0 2040 3000"),
            ("alloc,500", "0"),
            ("info", "0 1540 3000"),
            ("destroy", "0"),
            ("info", "0 2520 3000"),
            ("alloc,2520", "0"),
            ("reset", "0"),
            ("init", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn physical_memory_is_held_until_its_last_mapping_is_gone() {
    check(
        3000,
        &[
            ("init", "0"),
            ("physical,1000", "0"),
            ("info", "0 1520 3000"),
            ("map", "0"),
            ("unphysical", "0"),
            ("info", "0 1520 3000"),
            ("alloc,1522", "2"),
            ("unmap", "0"),
            ("info", "0 2520 3000"),
            ("physical,2600", "2"),
            ("physical,2520", "0"),
            ("alloc,2", "2"),
        ],
    );
}

#[test]
fn physical_memory_of_a_card_of_others_is_refused() {
    check(3000, &[("init", "0"), ("physical,10,1", "800")]);
}

#[test]
fn a_pool_is_charged_for_what_it_keeps() {
    check(
        3000,
        &[
            ("init", "0"),
            ("ordered,1000", "0"),
            ("info", "0 1496 3000"),
            ("ordered,1600", "2"),
            ("unordered", "0"),
            ("sync", "0"),
            ("trim", "0"),
            ("info", "0 2520 3000"),
            ("ordered,2496", "0"),
            ("alloc,26", "2"),
        ],
    );
}

#[test]
fn a_pool_of_ones_own_is_charged_like_any_other() {
    check(
        3000,
        &[
            ("init", "0"),
            ("pool", "0"),
            ("frompool,1000", "0"),
            ("info", "0 1496 3000"),
            ("frompool,1600", "2"),
            ("unordered", "0"),
            ("sync", "0"),
            ("unpool", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn a_pool_on_the_host_was_charged_to_the_card() {
    check(
        3000,
        &[
            ("init", "0"),
            ("hostpool", "0"),
            ("frompool,9000", "0"),
            ("info", "0 2520 3000"),
            ("unordered", "0"),
            ("unpool", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn calls_of_cuda_3_are_refused() {
    check(
        3000,
        &[("init", "0"), ("old", "801"), ("info", "0 2520 3000")],
    );
}

#[test]
fn a_pool_of_another_card_was_charged_on_the_current_one() {
    for way in WAYS {
        let (_room, machine) = machine();
        let devices = [device(FIRST, 3000), device(SECOND, 1000)];
        let container = Container::new(&machine, way, Rules::default(), &devices);
        let container = container.expect("a container");
        for how in ["poolof,1", "placepool,1,1"] {
            let said = container.client(&["init", how, "frompool,1200", "frompool,900", "info"]);
            let said = said.expect("answers");
            let expected = ["frompool,1200: 2", "frompool,900: 0", "info: 0 2520 3000"];
            assert_eq!(said[2..], expected, "{way:?} {how}");
        }
        let said = container.client(&["init", "placepool,3,0", "frompool,9000", "info"]);
        let expected = ["frompool,9000: 0", "info: 0 2520 3000"];
        assert_eq!(said.expect("answers")[2..], expected, "{way:?}: the host's");
    }
}
