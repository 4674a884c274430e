//! Memory that graphs take of a card when they are launched or uploaded, and keep.

use aliquot_limiter_tests::scene::{FIRST, SECOND, check, device, machine};
use aliquot_limiter_tests::{Container, WAYS};
use aliquot_region::limits::Container as Rules;

#[test]
fn memory_of_graphs_stayed_charged_when_the_last_context_of_its_device_ended() {
    check(
        3000,
        &[
            ("init", "0"),
            ("ninit", "0"),
            ("graph,2000", "0"),
            ("launch", "0"),
            ("nmemory", "[0, 0] 2480 3000"),
            ("reset", "0"),
            ("nmemory", "[0, 0] 0 3000"),
        ],
    );
}

#[test]
fn a_graph_whose_memory_passes_the_limit_was_launched() {
    check(
        3000,
        &[
            ("init", "0"),
            ("graph,2000,600", "0"),
            ("launch", "2"),
            ("info", "0 2520 3000"),
            ("graph,2000,500", "0"),
            ("info", "0 2520 3000"),
            ("launch", "0"),
            ("info", "0 20 3000"),
            ("alloc,22", "2"),
            ("free", "0"),
            ("free", "0"),
            ("info", "0 20 3000"),
            ("graphtrim", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn a_node_of_the_host_made_a_whole_graph_uncounted() {
    check(
        3000,
        &[
            ("init", "0"),
            ("graph,100:host,2000,600", "0"),
            ("launch", "2"),
            ("info", "0 2520 3000"),
            ("graph,9000:host,2000", "0"),
            ("launch", "0"),
            ("info", "0 520 3000"),
        ],
    );
}

#[test]
fn a_graph_that_is_uploaded_when_it_is_made_took_its_memory_uncounted() {
    check(
        3000,
        &[
            ("init", "0"),
            ("graph,uploaded,2000,600", "2"),
            ("info", "0 2520 3000"),
            ("graph,uploaded,2000,500", "0"),
            ("info", "0 20 3000"),
            ("alloc,22", "2"),
            ("launch", "0"),
            ("info", "0 20 3000"),
        ],
    );
}

#[test]
fn memory_that_a_graph_frees_again_is_needed_once() {
    check(
        3000,
        &[
            ("init", "0"),
            ("graph,-2000,-2500,-1000", "0"),
            ("launch", "0"),
            ("launch", "0"),
            ("info", "0 20 3000"),
            ("graphtrim", "0"),
            ("graph,0,2500", "0"),
            ("launch", "0"),
            ("launch", "0"),
            ("info", "0 20 3000"),
        ],
    );
}

#[test]
fn memory_of_a_graph_in_a_graph_was_not_reserved() {
    check(
        3000,
        &[
            ("init", "0"),
            ("graph,within,2600", "0"),
            ("launch", "2"),
            ("graph,within,2000,-500", "0"),
            ("launch", "0"),
            ("info", "0 20 3000"),
        ],
    );
}

#[test]
fn a_graph_on_two_cards_was_reserved_on_the_last_one_only() {
    for way in WAYS {
        let (_room, machine) = machine();
        let devices = [device(FIRST, 1000), device(SECOND, 3000)];
        let container = Container::new(&machine, way, Rules::default(), &devices);
        let container = container.expect("a container");
        let said = container.client(&[
            "init",
            "graph,800,2:1",
            "launch",
            "info",
            "graph,500,2:1",
            "launch",
            "info",
        ]);
        let expected = [
            "init: 0",
            "graph,800,2:1: 0",
            "launch: 2",
            "info: 0 520 1000",
            "graph,500,2:1: 0",
            "launch: 0",
            "info: 0 20 1000",
        ];
        assert_eq!(said.expect("answers"), expected, "{way:?}");
    }
}

#[test]
fn what_another_graph_holds_was_taken_for_what_this_one_left() {
    check(
        3000,
        &[
            ("init", "0"),
            // Freed by hand after its launch, while another graph took as much.
            ("graph,0,2400", "0"),
            ("launch", "0"),
            ("keepexec", "0"),
            ("unordered", "0"),
            ("sync", "0"),
            ("graphtrim", "0"),
            ("graph,2400", "0"),
            ("launch", "0"),
            ("otherexec", "0"),
            ("launch", "2"),
            ("info", "0 120 3000"),
        ],
    );
}
