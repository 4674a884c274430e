//! Calls by old names are limited as their newer forms are.

use aliquot_limiter_tests::scene::check;

#[test]
fn charges_contexts_created_by_old_calls() {
    let calls = [
        "cuCtxCreate",
        "cuGLCtxCreate",
        "cuGLCtxCreate_v2",
        "cuVDPAUCtxCreate",
        "cuVDPAUCtxCreate_v2",
    ];
    for call in calls {
        let create = format!("create,{call}");
        check(
            3000,
            &[
                ("init", "0"),
                (create.as_str(), "0"),
                ("info", "0 2040 3000"),
                ("alloc,2041", "2"),
                ("destroy,cuCtxDestroy", "0"),
                ("info", "0 2520 3000"),
            ],
        );
    }
}

#[test]
fn shows_limit_in_cuda_3_calls() {
    check(
        3000,
        &[
            ("init", "0"),
            ("oldtotal", "0 3000"),
            ("oldinfo", "0 2520 3000"),
            ("alloc,500", "0"),
            ("oldinfo", "0 2020 3000"),
        ],
    );
}
