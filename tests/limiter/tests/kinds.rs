//! Every kind of memory is charged once and given back when the driver gives it back.

use aliquot_limiter_tests::scene::{FIRST, SECOND, check, container, device, machine};
use aliquot_limiter_tests::{Container, WAYS, lines};
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
            ("pool,1,3", "0"),
            ("frompool,9000", "0"),
            ("info", "0 2520 3000"),
            ("unordered", "0"),
            ("unpool", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn memory_of_a_part_of_a_card_was_taken_for_the_hosts() {
    // CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN (6): part 1 of card 0.
    check(
        3000,
        &[
            ("init", "0"),
            ("physical,2600,256,6", "2"),
            ("physical,1000,256,6", "0"),
            ("info", "0 1520 3000"),
            ("unphysical", "0"),
            ("pool,1,6,256", "0"),
            ("frompool,2600", "2"),
            ("frompool,1000", "0"),
            ("info", "0 1496 3000"),
            ("graph,1600:part", "0"),
            ("launch", "2"),
        ],
    );
}

#[test]
fn memory_at_a_place_that_is_not_known_passed_uncounted() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        for (command, name) in [
            ("physical,10,0,7", "cuMemCreate"),
            ("physical,10,0,0", "cuMemCreate"),
            ("pool,1,5,0", "cuMemPoolCreate"),
        ] {
            let output = container.client_command(&["init", command]).output();
            let output = output.expect("the client");
            let expected = ["init: 0".to_owned(), format!("{command}: 801")];
            assert_eq!(lines(&output), expected, "{way:?}");
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(words.lines().count(), 1, "{way:?} {words}");
            assert!(words.contains(name), "{way:?} {words}");
        }
    }
}

#[test]
fn a_pool_of_managed_memory_of_no_card_was_not_charged() {
    for pool in ["pool,2,0", "pool,2,2", "placepool,0,0,2"] {
        check(
            3000,
            &[
                ("init", "0"),
                (pool, "0"),
                ("frompool,2600", "2"),
                ("frompool,2000", "0"),
                ("touch", "0"),
                ("info", "0 504 3000"),
                ("frompool,600", "2"),
                ("unordered", "0"),
                ("sync", "0"),
                ("info", "0 2520 3000"),
            ],
        );
    }
}

#[test]
fn memory_in_the_order_of_a_stream_passed_where_the_thread_had_no_context() {
    check(
        3000,
        &[
            ("init", "0"),
            ("ownstream", "0"),
            ("uncurrent", "0"),
            ("ordered,2600", "2"),
            ("ordered,1000", "0"),
            ("ordered,1600", "2"),
            ("recurrent", "0"),
            ("info", "0 1496 3000"),
        ],
    );
}

#[test]
fn what_a_stream_was_to_free_was_given_back_before_the_stream_came_so_far() {
    // A kernel that outlasts the test, and one that does not.
    check(
        3000,
        &[
            ("init", "0"),
            ("alloc,1000", "0"),
            ("managed,500", "0"),
            ("busy,3600000", "0"),
            ("unordered", "0"),
            ("unordered", "0"),
            ("info", "0 1020 3000"),
            ("alloc,1022", "2"),
            ("alloc,1020", "0"),
        ],
    );
    check(
        3000,
        &[
            ("init", "0"),
            ("alloc,1000", "0"),
            ("managed,500", "0"),
            ("busy,50", "0"),
            ("unordered", "0"),
            ("unordered", "0"),
            ("sync", "0"),
            ("alloc,2520", "0"),
            ("unordered", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn what_a_stream_was_to_free_ends_with_its_context() {
    check(
        3000,
        &[
            ("init", "0"),
            ("create", "0"),
            ("alloc,1000", "0"),
            ("busy,50", "0"),
            ("unordered", "0"),
            ("destroy", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn a_context_that_was_detached_stayed_charged() {
    check(
        3000,
        &[
            ("init", "0"),
            ("create", "0"),
            ("alloc,500", "0"),
            ("attach", "0"),
            ("detach", "0"),
            ("info", "0 1540 3000"),
            ("detach", "0"),
            ("info", "0 2520 3000"),
            ("create", "0"),
            ("info", "0 2040 3000"),
        ],
    );
}

#[test]
fn layers_of_a_mipmapped_array_were_charged_as_slices() {
    // 100 layers with 11 levels each: 4/3 of the first level, where slices take 8/7.
    check(
        3000,
        &[
            ("init", "0"),
            ("layers,1024,1024,100,11", "0"),
            ("info", "0 386 3000"),
            ("alloc,388", "2"),
            ("alloc,386", "0"),
            ("unlayers", "0"),
            ("info", "0 2134 3000"),
        ],
    );
}

#[test]
fn memory_that_was_retained_while_its_last_mapping_went_was_given_back() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let mut client =
            container.client_command(&["init", "retainrace", "info", "unphysical", "info"]);
        // The driver has retained it for a while when it answers.
        let output = client
            .env("GPUSIM_SLOW", "cuMemRetainAllocationHandle=500")
            .output();
        let expected = [
            "init: 0",
            "retainrace: 0",
            "info: 0 2420 3000",
            "unphysical: 0",
            "info: 0 2520 3000",
        ];
        assert_eq!(lines(&output.expect("the client")), expected, "{way:?}");
    }
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
