//! Memory that graphs take of a device when they are launched or uploaded, and keep.

use aliquot_limiter_tests::scene::{check, each_method};

#[test]
fn releases_graph_memory_with_last_context_of_device() {
    check(
        3000,
        "init: 0; ninit: 0; graph,2000: 0; launch: 0; nmemory: [0, 0] 2480 3000; reset: 0; \
         nmemory: [0, 0] 0 3000",
    );
}

#[test]
fn charges_graph_memory_when_launch_returns() {
    check(
        3000,
        "init: 0; graph,2000,500: 0; info: 0 2520 3000; launch: 0; info: 0 20 3000; alloc,22: 2; \
         free: 0; free: 0; info: 0 20 3000; graphtrim: 0; info: 0 2520 3000",
    );
}

#[test]
fn refuses_everything_after_graph_beyond_limit() {
    each_method(3000, |container, _| {
        container.check(
            "init: 0; graph,2000,600: 0; launch: 0; info: 0 0 3000; alloc,2: 2; free: 0; free: 0; \
             graphtrim: 0; alloc,2520: 0",
        );
    });
}

#[test]
fn charges_memory_of_graph_uploaded_at_instantiation() {
    check(
        3000,
        "init: 0; graph,uploaded,2000,500: 0; info: 0 20 3000; alloc,22: 2; launch: 0; \
         info: 0 20 3000",
    );
}
