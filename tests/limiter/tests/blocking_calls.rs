//! A call that blocks in the driver until the GPU advances does not block other threads' calls: the
//! GPU may be waiting for one of them. No launch waits for a clock that does not advance, or busily.

use aliquot_limiter_tests::scene::{
    FIRST, compile, container, container_of, machine, share_of, split,
};
use aliquot_limiter_tests::{INJECTION_METHODS, client, lines};

/// Runs a client whose first call of `blocked_call` waits until another thread releases it.
#[track_caller]
fn check(blocked_call: &str, script: &str) {
    let (commands, expected) = split(script);
    for method in INJECTION_METHODS {
        let (temp, machine) = machine();
        let container = container(&machine, method, 3000);
        let file = temp.path().join("wait");
        std::fs::write(&file, "").expect("a file");
        let client = client();
        // Threads that wait for each other would never end.
        let mut words = vec!["timeout", "--signal=KILL", "200", "python3", &client];
        words.extend(&commands);
        let mut command = container.command(&words);
        command.env("GPUSIM_HELD", format!("{blocked_call}={}", file.display()));
        let output = command.output().expect("a client");
        assert_eq!(lines(&output), expected, "{method:?}: {output:?}");
    }
}

#[test]
fn serves_other_threads_while_graph_launch_blocks() {
    check(
        "cuGraphLaunch",
        "init: 0; graph,-100: 0; beside,launch: 0; graph,-50: 0; launch: 0; together: 0; \
         info: 0 2420 3000",
    );
}

#[test]
fn serves_other_threads_while_pool_allocation_blocks() {
    // Including the step by which a pool may grow.
    check(
        "cuMemAllocAsync",
        "init: 0; beside,ordered,100: 0; info: 0 2388 3000; ordered,50: 0; info: 0 2338 3000; \
         unordered: 0; together: 0; info: 0 2392 3000",
    );
}

#[test]
fn serves_other_threads_while_memory_is_released() {
    // Afterwards there is no room for another step: what is free in the pool counts again.
    check(
        "cuMemPoolTrimTo",
        "init: 0; ordered,100: 0; unordered: 0; beside,trim: 0; ordered,50: 0; sync: 0; \
         info: 0 2470 3000; together: 0; unordered: 0; sync: 0; ordered,2496: 0",
    );
    check(
        "cuMemPoolDestroy",
        "init: 0; pool: 0; frompool,100: 0; unordered: 0; beside,unpool: 0; ordered,50: 0; \
         sync: 0; info: 0 2342 3000; together: 0; info: 0 2470 3000",
    );
    check(
        "cuMemUnmap",
        "init: 0; physical,100: 0; map: 0; unphysical: 0; beside,unmap: 0; physical,50: 0; \
         info: 0 2370 3000; together: 0; info: 0 2470 3000",
    );
    check(
        "cuMemRelease",
        "init: 0; physical,100: 0; beside,unphysical: 0; physical,50: 0; info: 0 2370 3000; \
         together: 0; info: 0 2470 3000",
    );
}

#[test]
fn serves_other_threads_while_context_limit_is_set() {
    check(
        "cuCtxSetLimit",
        "init: 0; beside,limit,2,108003328: 0; limit,1,7340033: 0; info: 0 2422 3000; \
         together: 0; info: 0 2422 3000",
    );
}

#[test]
fn keeps_release_threshold_that_program_sets_during_allocation() {
    // There is no room for another step: nothing may be trimmed until it returns.
    check(
        "cuMemAllocFromPoolAsync",
        "init: 0; pool: 0; threshold,32: 0 32; beside,frompool,2496: 0; \
         threshold: 0 17592186044415; threshold,64: 0 64; together: 0; threshold: 0 64; \
         unordered: 0; sync: 0; frompool,2496: 0; threshold: 0 64",
    );
}

#[test]
fn launch_sleeps_and_ends_under_faked_clock() {
    let (temp, machine) = machine();
    let clock = compile(
        temp.path(),
        "clock.c",
        "clock.so",
        &["-shared", "-fPIC", "-ldl"],
    );
    let clock = clock.expect("a C compiler");
    for method in INJECTION_METHODS {
        let container = container_of(&machine, method, &[share_of(FIRST, 3000, 30)]);
        let client = client();
        let words = ["timeout", "60", "python3", &client, "init", "run,k_ms_20"];
        // Each but the first waits for its share.
        let waiting = ["asleep,run,k_ms_20"; 3];
        let mut program = container.command(&[&words[..], &waiting].concat());
        let output = program
            .env("LD_PRELOAD", &clock)
            .output()
            .expect("a client");
        let expected = ["asleep,run,k_ms_20: 0 True"; 3];
        assert_eq!(lines(&output)[2..], expected, "{method:?}");
    }
}

#[test]
fn work_ends_with_waits_exits_and_kills() {
    let (_temp, machine) = machine();
    // None of these kernels is known, so no launch waits for another.
    let queued = "queued,k_ms_20,k_ms_21,k_ms_22,k_ms_23,k_ms_24,k_ms_25";
    for method in INJECTION_METHODS {
        let container = container_of(&machine, method, &[share_of(FIRST, 3000, 50)]);
        let running = || {
            let counters = container.counters_snapshot().expect("counters");
            counters.device(0).compute.running
        };
        let waited = container.start(&["init", queued, "sync"]);
        let mut waited = waited.expect("a client");
        assert_eq!(waited.answers[1], format!("{queued}: 0"), "{method:?}");
        assert_eq!(running(), 0, "{method:?}: after a wait");
        waited.end().expect("its end");
        container.client(&["init", queued]).expect("a client");
        assert_eq!(running(), 0, "{method:?}: after an exit");
        let killed = container.start(&["init", "queued,k_ms_5000"]);
        let killed = killed.expect("a client");
        assert_eq!(running(), 1, "{method:?}");
        killed.kill().expect("killed");
        container.client(&["init"]).expect("a client");
        assert_eq!(running(), 0, "{method:?}: after a kill");
    }
}
