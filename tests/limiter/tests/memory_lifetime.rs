//! Device memory that no allocating call accounts for: memory that outlives its handle, and memory
//! that grows with contexts, modules and graphs.

use aliquot_limiter_tests::scene::{check, each_method};

#[test]
fn charges_exported_memory_until_it_is_gone() {
    // The file keeps it.
    // With the import it is really gone.
    check(
        3000,
        "init: 0; physical,1500: 0; export: 0; unphysical: 0; info: 0 1020 3000; alloc,1022: 2; \
         imported: 0; closed: 0; info: 0 1020 3000; unphysical: 0; info: 0 2520 3000; \
         alloc,2520: 0",
    );
}

#[test]
fn releases_pool_memory_after_synchronize() {
    each_method(3000, |container, _| {
        let first = ["init", "ordered,1000", "unordered", "sync"];
        let waiting = container.start(&first).expect("a client");
        assert!(waiting.answers.iter().all(|line| line.ends_with(": 0")));
        container.check("init: 0; info: 0 2040 3000; alloc,2040: 0");
    });
}

#[test]
fn suspended_process_leaves_its_share_to_others() {
    each_method(3000, |container, _| {
        let mut holder = container.start(&["init", "alloc,1500", "pid"]);
        let holder = holder.as_mut().expect("a client");
        let pid = holder.answers[2].strip_prefix("pid: ").expect("its id");
        let [suspend, restore, elsewhere] =
            ["suspend", "restore", "elsewhere"].map(|name| format!("{name},{pid}"));
        // It stays suspended where its memory has no room, so it cannot be unlocked.
        container.check(&format!(
            "init: 0; ninit: 0; info: 0 540 3000; nprocesses: 0 2 [480]; {suspend}: 0 0; \
             info: 0 2520 3000; nprocesses: 0 1 [480]; alloc,2000: 0; {restore}: 2 401; \
             info: 0 520 3000; free: 0; {elsewhere}: 801; {restore}: 0 0; info: 0 540 3000; \
             alloc,542: 2; {suspend}: 0 0; info: 0 2520 3000"
        ));
        holder.kill_process().expect("a kill");
        container.check("init: 0; info: 0 2520 3000");
    });
}

#[test]
fn charges_memory_mapped_behind_array() {
    // The driver unmaps it when the stream gets there.
    check(
        3000,
        "init: 0; sparse: 0; info: 0 2520 3000; physical,1500: 0; behind: 0; unphysical: 0; \
         info: 0 1020 3000; alloc,1022: 2; behind,2: 0; info: 0 1020 3000; unarray: 0; \
         info: 0 2520 3000",
    );
}

#[test]
fn charges_heaps_of_context() {
    // Stacks are charged when the host sees them.
    check(
        3000,
        "init: 0; limit,2,108003328: 0; info: 0 2424 3000; limit,1,7340033: 0; info: 0 2422 3000; \
         alloc,2422: 0; limit,2,110003328: 2; free: 0; limit,2,1: 0; info: 0 2518 3000; \
         limit,0,2048: 0; info: 0 2518 3000; reset: 0; init: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_primary_context_once_for_green_contexts() {
    // It belongs to the primary context.
    check(
        3000,
        "green: 0; info: 0 2520 3000; alloc,1000: 0; info: 0 1520 3000; init: 0; ungreen: 0; \
         info: 0 1520 3000; free: 0; green: 0; info: 0 2520 3000",
    );
}

#[test]
fn charges_no_context_for_stream_of_green_context() {
    check(
        3000,
        "init: 0; greenstream: 0; ordered,128: 0; info: 0 2392 3000",
    );
}

#[test]
fn releases_primary_context_with_last_green_context() {
    check(
        3000,
        "green: 0; alloc,1000: 0; ungreen: 0; init: 0; info: 0 2520 3000",
    );
}
