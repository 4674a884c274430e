//! What takes memory of a card behind the calls that allocate: what lives longer than its handle,
//! and what grows with contexts, modules and graphs.

use aliquot_limiter_tests::scene::{FIRST, check, container, device, machine};
use aliquot_limiter_tests::{Container, WAYS, lines};
use aliquot_region::limits::Container as Rules;

#[test]
fn exported_memory_outlived_its_charge() {
    check(
        3000,
        &[
            ("init", "0"),
            ("physical,1500", "0"),
            ("export", "0"),
            ("unphysical", "0"),
            // The file holds it.
            ("info", "0 1020 3000"),
            ("alloc,1022", "2"),
            ("imported", "0"),
            ("closed", "0"),
            ("info", "0 1020 3000"),
            // With the import it is really gone.
            ("unphysical", "0"),
            ("info", "0 2520 3000"),
            ("alloc,2520", "0"),
        ],
    );
}

#[test]
fn memory_that_was_exported_and_closed_is_free_with_its_last_handle() {
    check(
        3000,
        &[
            ("init", "0"),
            ("physical,1500", "0"),
            ("export", "0"),
            ("closed", "0"),
            ("map", "0"),
            ("unphysical", "0"),
            ("info", "0 1020 3000"),
            ("unmap", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn what_the_program_freed_meanwhile_gave_back_the_charge_of_lent_memory() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let mut client = container.client_command(&[
            "init",
            "physical,1000",
            "export",
            "unphysical",
            "alloc,1000",
            "steered",
            "info",
        ]);
        // While that is under way the same number of bytes is freed beside.
        let output = client.env("GPUSIM_SLOW", "cuMemRelease=500").output();
        let said = lines(&output.expect("the client"));
        assert_eq!(
            said[4..],
            ["alloc,1000: 0", "steered: 0", "info: 0 1520 3000"],
            "{way:?}"
        );
    }
}

#[test]
fn what_a_pool_gave_back_at_a_wait_stayed_charged_until_the_next_call() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let first = ["init", "ordered,1000", "unordered", "sync"];
        let waiting = container.start(&first).expect("a client");
        assert!(waiting.answers.iter().all(|line| line.ends_with(": 0")));
        let said = container.client(&["init", "info", "alloc,2040"]);
        let expected = ["info: 0 2040 3000", "alloc,2040: 0"];
        assert_eq!(said.expect("a client")[1..], expected, "{way:?}");
    }
}

#[test]
fn memory_behind_an_array_outlived_its_charge() {
    check(
        3000,
        &[
            ("init", "0"),
            ("sparse", "0"),
            ("info", "0 2520 3000"),
            ("physical,1500", "0"),
            ("behind", "0"),
            ("unphysical", "0"),
            ("info", "0 1020 3000"),
            ("alloc,1022", "2"),
            ("behind,2", "0"),
            ("info", "0 2520 3000"),
            ("physical,1500", "0"),
            ("behind", "0"),
            ("unphysical", "0"),
            ("info", "0 1020 3000"),
            ("unarray", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn stacks_and_heaps_of_a_context_took_memory_that_nobody_counted() {
    // 108 processors with 2048 threads each: a KiB more of stack is 216 MiB.
    check(
        3000,
        &[
            ("init", "0"),
            ("limit,2,108003328", "0"),
            ("info", "0 2424 3000"),
            ("limit,1,7340033", "0"),
            ("info", "0 2422 3000"),
            ("limit,0,2048", "0"),
            ("info", "0 2206 3000"),
            ("limit,0,13312", "2"),
            ("alloc,2206", "0"),
            ("limit,0,2049", "2"),
            ("free", "0"),
            ("limit,0,1024", "0"),
            ("limit,2,1", "0"),
            ("info", "0 2518 3000"),
            ("limit,3,100", "0"),
            ("info", "0 2518 3000"),
        ],
    );
}

#[test]
fn what_a_context_grew_by_ends_with_it() {
    check(
        3000,
        &[
            ("init", "0"),
            ("limit,2,108003328", "0"),
            ("elf,100", "0"),
            ("info", "0 2326 3000"),
            ("reset", "0"),
            ("init", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn modules_took_memory_that_nobody_counted() {
    check(
        3000,
        &[
            ("init", "0"),
            ("ptx,1", "0"),
            ("info", "0 2520 3000"),
            ("elf,1000", "0"),
            ("info", "0 1520 3000"),
            ("elf,1522", "2"),
            ("ptx,1522", "2"),
            ("info", "0 1520 3000"),
            ("elf,1518", "0"),
            ("info", "0 2 3000"),
        ],
    );
}

#[test]
fn a_module_is_given_back_when_it_is_unloaded() {
    check(
        3000,
        &[
            ("init", "0"),
            ("ptx,2000", "0"),
            ("info", "0 520 3000"),
            ("unmodule", "0"),
            ("info", "0 2520 3000"),
            ("alloc,2520", "0"),
        ],
    );
}

#[test]
fn a_green_context_was_charged_as_a_whole_one() {
    check(
        3000,
        &[
            ("green", "0"),
            ("info", "0 2520 3000"),
            ("alloc,1000", "0"),
            ("info", "0 1520 3000"),
            ("init", "0"),
            ("ungreen", "0"),
            // It was the primary context's.
            ("info", "0 1520 3000"),
            ("free", "0"),
            ("green", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn the_last_green_context_ends_the_primary_one() {
    check(
        3000,
        &[
            ("green", "0"),
            ("alloc,1000", "0"),
            ("ungreen", "0"),
            ("init", "0"),
            ("info", "0 2520 3000"),
        ],
    );
}

#[test]
fn libraries_took_memory_that_nobody_counted() {
    check(
        3000,
        &[
            ("init", "0"),
            ("libload,1000", "0"),
            // It is in no context yet.
            ("info", "0 2520 3000"),
            ("kernelrun", "0"),
            ("info", "0 1522 3000"),
            ("kernelrun", "0"),
            ("moduleof", "0"),
            ("info", "0 1522 3000"),
            ("unlibrary", "0"),
            ("info", "0 2520 3000"),
            ("libload,2600", "0"),
            ("kernelrun", "2"),
            ("moduleof", "2"),
            ("functionof", "2"),
            ("libload,2000", "0"),
            ("functionof", "0"),
            ("info", "0 522 3000"),
            ("reset", "0"),
            ("init", "0"),
            ("info", "0 2520 3000"),
            // In the new context it is used anew.
            ("kernelrun", "0"),
            ("info", "0 522 3000"),
        ],
    );
}

#[test]
fn a_library_is_charged_at_once_where_the_driver_loads_it_at_once() {
    for way in WAYS {
        let (_room, machine) = machine();
        let devices = [device(FIRST, 3000)];
        let container = Container::new(&machine, way, Rules::default(), &devices);
        let container = container.expect("a container");
        let mut client =
            container.client_command(&["init", "libload,1000", "info", "libload,1600", "info"]);
        let output = client
            .env("CUDA_MODULE_LOADING", "EAGER")
            .output()
            .expect("a client");
        let expected = [
            "init: 0",
            "libload,1000: 0",
            "info: 0 1522 3000",
            "libload,1600: 2",
            "info: 0 1522 3000",
        ];
        assert_eq!(lines(&output), expected, "{way:?}");
    }
}

#[test]
fn a_fat_binary_that_is_loaded_at_once_was_charged_five_bytes() {
    for way in WAYS {
        let (_room, machine) = machine();
        let devices = [device(FIRST, 3000)];
        let container = Container::new(&machine, way, Rules::default(), &devices);
        let container = container.expect("a container");
        let words = [
            "init",
            "fat,1000",
            "info",
            "fatlib,500",
            "info",
            "fat,1100",
            "fatlib,1100",
        ];
        let mut client = container.client_command(&words);
        let client = client.env("CUDA_MODULE_LOADING", "EAGER");
        let output = client.output().expect("a client");
        let expected = [
            "init: 0",
            "fat,1000: 0",
            "info: 0 1522 3000",
            "fatlib,500: 0",
            "info: 0 1022 3000",
            "fat,1100: 2",
            "fatlib,1100: 2",
        ];
        assert_eq!(lines(&output), expected, "{way:?}");
    }
}
