//! Checks of docs/modes.md: a row for each promise of a sharing mode, whose state matches the tests.

use crate::documents::{is_test, names};

/// The families of rows, and how many each has.
const FAMILIES: [(&str, usize); 3] = [("MPS", 18), ("MIG", 20), ("TS", 15)];
/// Rows that only a real GPU can show.
pub const REAL: [&str; 6] = ["MPS-4", "MPS-6", "MPS-7", "MPS-10", "MPS-12", "MPS-13"];
/// Rows that simulated and real GPUs show.
pub const BOTH: [&str; 11] = [
    "MPS-3", "MPS-5", "MPS-11", "MPS-14", "MPS-16", "MPS-17", "MIG-2", "MIG-5", "MIG-8", "MIG-11",
    "MIG-17",
];

/// All ids, in the order of the page.
pub fn ids() -> Vec<String> {
    let family = |(name, most): &(&str, usize)| {
        let numbers = 1..=*most;
        let ids = numbers.map(|number| format!("{name}-{number}"));
        ids.collect::<Vec<_>>()
    };
    FAMILIES.iter().flat_map(family).collect()
}

/// Faults of the rows: id, what a user sees, simulated, tests, on a GPU.
/// `script` returns whether a script with this path exists.
pub fn errors(rows: &[Vec<&str>], sources: &[&str], script: impl Fn(&str) -> bool) -> Vec<String> {
    let found: Vec<&str> = rows.iter().map(|cells| cells[0]).collect();
    let mut errors = Vec::new();
    if found != ids() {
        errors.push(format!("rows are {found:?}; each id once and in order"));
    }
    for cells in rows {
        let &[id, _, simulated, tests, real] = cells.as_slice() else {
            errors.push(format!("{}: five cells", cells[0]));
            continue;
        };
        let mut error = |text: String| errors.push(format!("{id}: {text}"));
        let by_simulation = !REAL.contains(&id);
        match (simulated, by_simulation) {
            ("not yet", true) | ("–", false) if tests == "–" => {}
            ("held", true) => {
                let tests = names(tests);
                for missing in tests.iter().filter(|name| !is_test(name, sources)) {
                    error(format!("there is no test {missing}"));
                }
                if !tests.iter().any(|name| is_named_after(name, id)) {
                    error("no test has the id in its name".to_owned());
                }
            }
            _ => error(format!("{simulated:?} with tests {tests:?}")),
        }
        let on_a_gpu = !by_simulation || BOTH.contains(&id);
        let scripts = names(real);
        match (real, on_a_gpu) {
            ("no script yet", true) | ("–", false) => {}
            (_, true) if !scripts.is_empty() && scripts.iter().all(|path| script(path)) => {}
            _ => error(format!("on a GPU: {real:?} names no script")),
        }
    }
    errors
}

/// `mps_1_…` is named after MPS-1, `mps_10_…` is not.
pub fn is_named_after(name: &str, id: &str) -> bool {
    let part = format!("_{}_", id.to_lowercase().replace('-', "_"));
    format!("_{name}").contains(&part)
}
