//! Every kind of memory is charged once, and released when the driver frees it.

use aliquot_limiter_tests::scene::{
    FIRST, SECOND, check, check_in, container_of, device, each_method, machine,
};
use aliquot_limiter_tests::{INJECTION_METHODS, lines};

#[test]
fn counts_each_kind_of_memory_once() {
    check(
        3000,
        "init: 0; managed,100: 0; info: 0 2420 3000; free: 0; info: 0 2520 3000; \
         pitch,1000,2048: 0; info: 0 2518 3000; free: 0; array,1024,1024: 0; info: 0 2504 3000; \
         unarray: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_context_and_releases_its_memory_with_it() {
    check(
        3000,
        "init: 0; create: 0; info: 0 2040 3000; alloc,500: 0; info: 0 1540 3000; destroy: 0; \
         info: 0 2520 3000; alloc,2520: 0; reset: 0; init: 0; create,cuCtxCreate: 0; \
         info: 0 2040 3000; destroy,cuCtxDestroy: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_physical_memory_until_last_mapping_ends() {
    check(
        3000,
        "init: 0; physical,1000: 0; info: 0 1520 3000; map: 0; unphysical: 0; info: 0 1520 3000; \
         alloc,1522: 2; unmap: 0; info: 0 2520 3000; physical,2600: 2; physical,2520: 0; \
         alloc,2: 2",
    );
}

#[test]
fn refuses_physical_memory_of_unassigned_device() {
    check(3000, "init: 0; physical,10,1: 800");
}

#[test]
fn charges_pool_for_its_reserved_memory() {
    check(
        3000,
        "init: 0; ordered,1000: 0; info: 0 1496 3000; ordered,1600: 2; unordered: 0; sync: 0; \
         trim: 0; info: 0 2520 3000; ordered,2496: 0; alloc,26: 2",
    );
}

#[test]
fn charges_pool_created_by_program() {
    check(
        3000,
        "init: 0; pool: 0; frompool,1000: 0; info: 0 1496 3000; frompool,1600: 2; unordered: 0; \
         sync: 0; unpool: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_default_pool_that_cannot_be_destroyed() {
    check(
        3000,
        "init: 0; poolof,0: 0; frompool,1000: 0; unpool: 1; info: 0 1520 3000; frompool,1600: 2; \
         unordered: 0; sync: 0; info: 0 2520 3000",
    );
}

#[test]
fn does_not_charge_host_pool_to_device() {
    check(
        3000,
        "init: 0; pool,1,3: 0; frompool,9000: 0; info: 0 2520 3000; unordered: 0; unpool: 0; \
         info: 0 2520 3000",
    );
}

#[test]
fn does_not_charge_host_pool_that_cannot_be_destroyed() {
    check_in(
        &[("GPUSIM_FAULTS", "cuMemPoolDestroy=1")],
        3000,
        "init: 0; placepool,3,0: 0; unpool: 1; frompool,9000: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_locality_domain_memory_to_its_device() {
    // CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN (6): part 1 of GPU 0.
    check(
        3000,
        "init: 0; physical,2600,256,6: 2; physical,1000,256,6: 0; info: 0 1520 3000; \
         unphysical: 0; pool,1,6,256: 0; frompool,2600: 2; frompool,1000: 0; info: 0 1496 3000",
    );
}

#[test]
fn refuses_memory_at_unknown_location() {
    each_method(3000, |container, method| {
        for (command, name) in [
            ("physical,10,0,7", "cuMemCreate"),
            ("physical,10,0,0", "cuMemCreate"),
            ("pool,1,5,0", "cuMemPoolCreate"),
        ] {
            let output = container.client_command(&["init", command]).output();
            let output = output.expect("the client");
            let expected = ["init: 0".to_owned(), format!("{command}: 801")];
            assert_eq!(lines(&output), expected, "{method:?}");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(stderr.lines().count(), 1, "{method:?} {stderr}");
            assert!(stderr.contains(name), "{method:?} {stderr}");
        }
    });
}

#[test]
fn charges_managed_pool_without_device() {
    for pool in ["pool,2,0", "pool,2,2", "placepool,0,0,2"] {
        let script = format!(
            "init: 0; {pool}: 0; frompool,2600: 2; frompool,2000: 0; touch: 0; info: 0 504 3000; \
             frompool,600: 2; unordered: 0; sync: 0; info: 0 2520 3000"
        );
        check(3000, &script);
    }
}

#[test]
fn charges_stream_ordered_memory_without_current_context() {
    check(
        3000,
        "init: 0; ownstream: 0; uncurrent: 0; ordered,2600: 2; ordered,1000: 0; ordered,1600: 2; \
         recurrent: 0; info: 0 1496 3000",
    );
}

#[test]
fn keeps_charge_until_stream_reaches_free() {
    // A kernel that outlasts the test, and one that does not.
    check(
        3000,
        "init: 0; alloc,1000: 0; managed,500: 0; busy,3600000: 0; unordered: 0; unordered: 0; \
         info: 0 1020 3000; alloc,1022: 2; alloc,1020: 0",
    );
    check(
        3000,
        "init: 0; alloc,1000: 0; managed,500: 0; busy,50: 0; unordered: 0; unordered: 0; sync: 0; \
         alloc,2520: 0; unordered: 0; info: 0 2520 3000",
    );
}

#[test]
fn limits_threads_own_streams_beside_capture_and_breaks_none() {
    // Regression: they were taken for the legacy stream, of which the driver says that it is captured.
    check(
        3000,
        "init: 0; alloc,500: 0; capture: 0; threadordered,2100: 2; threadordered,1000: 0; \
         info: 0 996 3000; threadunordered: 0; threadunordered: 0; uncapture: 0; sync: 0; \
         info: 0 2520 3000",
    );
}

#[test]
fn releases_pending_stream_frees_with_context() {
    check(
        3000,
        "init: 0; create: 0; alloc,1000: 0; busy,50: 0; unordered: 0; destroy: 0; \
         info: 0 2520 3000",
    );
}

#[test]
fn releases_context_after_last_detach() {
    check(
        3000,
        "init: 0; create: 0; alloc,500: 0; attach: 0; detach: 0; info: 0 1540 3000; detach: 0; \
         info: 0 2520 3000; create: 0; info: 0 2040 3000",
    );
}

#[test]
fn charges_layers_of_mipmapped_array_at_each_level() {
    // 100 layers with 11 levels each: 4/3 of the first level, where slices take 8/7.
    check(
        3000,
        "init: 0; layers,1024,1024,100,11: 0; info: 0 386 3000; alloc,388: 2; alloc,386: 0; \
         unlayers: 0; info: 0 2134 3000",
    );
}

#[test]
fn keeps_memory_retained_during_last_unmap() {
    // The driver retains it some time before the call returns.
    check_in(
        &[("GPUSIM_SLOW", "cuMemRetainAllocationHandle=500")],
        3000,
        "init: 0; retainrace: 0; info: 0 2420 3000; unphysical: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_pool_on_its_own_device() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let devices = [device(FIRST, 3000), device(SECOND, 1000)];
        let container = container_of(&machine, method, &devices);
        for how in ["poolof,1", "placepool,1,1"] {
            container.check(&format!(
                "init: 0; {how}: 0; frompool,1200: 2; frompool,900: 0; info: 0 2520 3000"
            ));
        }
        container.check("init: 0; placepool,3,0: 0; frompool,9000: 0; info: 0 2520 3000");
    }
}

#[test]
fn refuses_calls_of_cuda_3_and_of_graphics() {
    for call in [
        "old",
        "oldtotal",
        "oldinfo",
        "create,cuGLCtxCreate",
        "create,cuGLCtxCreate_v2",
        "create,cuVDPAUCtxCreate",
        "create,cuVDPAUCtxCreate_v2",
    ] {
        check(3000, &format!("init: 0; {call}: 801; info: 0 2520 3000"));
    }
}
