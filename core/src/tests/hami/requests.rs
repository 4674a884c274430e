//! HAMi 4.3: what one container's resources mean.

use super::*;
use crate::request::{Defaults, Memory, Resource, Written};
use crate::tests::request;
use crate::units::{Mib, Percent};

fn check_request(
    rule: &str,
    written: &[(Resource, &str)],
    defaults: &Defaults,
    expected: Option<GpuRequest>,
) {
    let value_of = |resource| {
        written
            .iter()
            .find(|(r, _)| *r == resource)
            .map(|(_, v)| *v)
    };
    let found = Written::read(value_of).unwrap().request(defaults);
    let found = found.map(|request| GpuRequest::of(request.count, request.memory, request.cores));
    assert_eq!(found, expected, "rule {rule}: {written:?}");
}

#[test]
fn fills_omitted_values_from_defaults() {
    use Resource::{Cores, Gpu, Memory as Mem, MemoryPercentage};
    let usual = Defaults::default();
    let share = |count, percent, cores| {
        Some(GpuRequest {
            memory: Memory::Share(Percent(percent)),
            ..request(count, 0, cores)
        })
    };
    check_request("4.3.1", &[], &usual, None);
    check_request(
        "4.3.1",
        &[(Gpu, "2"), (Mem, "3k")],
        &usual,
        Some(request(2, 3000, 0)),
    );
    check_request(
        "4.3.2",
        &[(Gpu, "1"), (Mem, "8192")],
        &usual,
        Some(request(1, 8192, 0)),
    );
    check_request(
        "4.3.3",
        &[(Gpu, "1"), (MemoryPercentage, "50")],
        &usual,
        share(1, 50, 0),
    );
    check_request("4.3.4", &[(Gpu, "1")], &usual, Some(request(1, 5000, 0)));
    let whole = Defaults {
        memory: Mib(0),
        cores: Percent(20),
        ..usual
    };
    check_request("4.3.4", &[(Gpu, "1")], &whole, share(1, 100, 20));
    check_request(
        "4.3.5",
        &[(Gpu, "1"), (Cores, "30")],
        &whole,
        share(1, 100, 30),
    );
    check_request(
        "4.3.5",
        &[(Gpu, "1"), (Cores, "0")],
        &whole,
        share(1, 100, 0),
    );
}
