//! Memory that graphs take of a device when they are launched or uploaded, and keep.

use aliquot_limiter_tests::scene::{FIRST, SECOND, check, container, device, machine};
use aliquot_limiter_tests::{INJECTION_METHODS, TestContainer};
use aliquot_region::limits::ContainerLimits;

#[test]
fn releases_graph_memory_with_last_context_of_device() {
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
fn refuses_launch_of_graph_over_limit() {
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
fn counts_device_nodes_of_graph_with_host_nodes() {
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
fn counts_memory_of_graph_uploaded_at_instantiation() {
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
fn reserves_memory_freed_within_graph_once() {
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
fn reserves_memory_of_child_graphs() {
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
fn reserves_graph_memory_on_each_device() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let devices = [device(FIRST, 1000), device(SECOND, 3000)];
        let container = TestContainer::new(&machine, method, ContainerLimits::default(), &devices);
        let container = container.expect("a container");
        let reply = container.client(&[
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
        assert_eq!(reply.expect("answers"), expected, "{method:?}");
    }
}

#[test]
fn separates_memory_of_one_graph_from_anothers() {
    check(
        3000,
        &[
            ("init", "0"),
            // Freed explicitly after its launch, while another graph took as much.
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

#[test]
fn instantiates_graph_by_form_of_client_version() {
    for method in INJECTION_METHODS {
        for other_addresses in ["off", "on"] {
            let (_temp, machine) = machine();
            let fields = [("otherAddresses", other_addresses)];
            machine.set("0", &fields).expect("set");
            let container = container(&machine, method, 3000);
            let answers = container.client(&[
                "init",
                // Three arguments: the flag says that a launch frees what the one before left.
                "graph,v12000,0,2500",
                "launch",
                "launch",
                "graphtrim",
                // Five arguments, without flags.
                "graph,v11000,2600",
                "launch",
            ]);
            let expected = [
                "init: 0",
                "graph,v12000,0,2500: 0",
                "launch: 0",
                "launch: 0",
                "graphtrim: 0",
                "graph,v11000,2600: 0",
                "launch: 2",
            ];
            let what = format!("{method:?}, otherAddresses {other_addresses}");
            assert_eq!(answers.expect("a client"), expected, "{what}");
        }
    }
}
