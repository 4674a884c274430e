//! HAMi 4.3: what one container's resources mean.

use super::*;
use crate::request::{Defaults, Memory, Resource, Written};
use crate::tests::ask;
use crate::units::{Mib, Percent};

fn check_ask(rule: &str, written: &[(Resource, &str)], defaults: &Defaults, expected: Option<Ask>) {
    let value_of = |resource| {
        written
            .iter()
            .find(|(r, _)| *r == resource)
            .map(|(_, v)| *v)
    };
    let found = Written::read(value_of).unwrap().ask(defaults);
    let found = found.map(|ask| Ask::of(ask.count, ask.memory, ask.cores));
    assert_eq!(found, expected, "rule {rule}: {written:?}");
}

#[test]
fn what_is_left_out_comes_from_the_defaults() {
    use Resource::{Cores, Gpu, Memory as Mem, MemoryPercentage};
    let usual = Defaults::default();
    let share = |count, percent, cores| {
        Some(Ask {
            memory: Memory::Share(Percent(percent)),
            ..ask(count, 0, cores)
        })
    };
    check_ask("4.3.1", &[], &usual, None);
    check_ask(
        "4.3.1",
        &[(Gpu, "2"), (Mem, "3k")],
        &usual,
        Some(ask(2, 3000, 0)),
    );
    check_ask(
        "4.3.2",
        &[(Gpu, "1"), (Mem, "8192")],
        &usual,
        Some(ask(1, 8192, 0)),
    );
    check_ask(
        "4.3.3",
        &[(Gpu, "1"), (MemoryPercentage, "50")],
        &usual,
        share(1, 50, 0),
    );
    check_ask("4.3.4", &[(Gpu, "1")], &usual, Some(ask(1, 5000, 0)));
    let whole = Defaults {
        memory: Mib(0),
        cores: Percent(20),
        ..usual
    };
    check_ask("4.3.4", &[(Gpu, "1")], &whole, share(1, 100, 20));
    check_ask(
        "4.3.5",
        &[(Gpu, "1"), (Cores, "30")],
        &whole,
        share(1, 100, 30),
    );
    check_ask(
        "4.3.5",
        &[(Gpu, "1"), (Cores, "0")],
        &whole,
        share(1, 100, 0),
    );
}
