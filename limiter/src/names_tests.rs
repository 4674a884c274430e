//! The table against the names of a driver's entry points: what it stands in for is there, nothing
//! that takes memory of a card is forgotten, and the reference of all calls is current.
//!
//! Fed by: `limiter/names`, each list with its source; `docs/limiter.md`.

use std::fmt::Write as _;

use super::HOOKS;

const CUDA: &str = include_str!("../names/cuda-13.5.txt");
const NVML: &str = include_str!("../names/nvml-13.5.txt");
const PAGE: &str = include_str!("../../docs/limiter.md");
const REFERENCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../docs/reference/driver-calls.md"
);
/// Shows that a call that we do not stand in for is the driver's.
const PASSES: &str = "every_call_that_passes_reaches_the_driver_with_its_arguments";

/// How calls begin that may take memory of a card.
const TAKE: [&str; 19] = [
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuCtxCreate",
    "cuCtxSetLimit",
    "cuDevicePrimaryCtxRetain",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphInstantiate",
    "cuGreenCtxCreate",
    "cuImportExternalMemory",
    "cuIpcOpenMemHandle",
    "cuLibraryLoad",
    "cuMemAlloc",
    "cuMemCreate",
    "cuMemImportFromShareableHandle",
    "cuMemPoolCreate",
    "cuMemPoolImport",
    "cuMipmappedArrayCreate",
    "cuModuleLoad",
];

/// Of these, those that pass, and why.
const PASS: [(&str, &str); 9] = [
    (
        "cuGraphAddNode",
        "passes; its memory is charged when the graph is launched",
    ),
    (
        "cuGraphAddMemAllocNode",
        "passes; its memory is charged when the graph is launched",
    ),
    ("cuImportExternalMemory", "passes: its maker is charged"),
    ("cuIpcOpenMemHandle", "passes: its maker is charged"),
    ("cuIpcOpenMemHandle_v2", "passes: its maker is charged"),
    ("cuMemAllocHost", "passes: memory of the host"),
    ("cuMemAllocHost_v2", "passes: memory of the host"),
    (
        "cuMemImportFromShareableHandle",
        "passes: its maker is charged",
    ),
    ("cuMemPoolImport", "passes: its maker is charged"),
];

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

fn is_hooked(name: &str) -> bool {
    HOOKS.iter().any(|hook| hook.name == name)
}

/// Why a call that may take memory passes.
fn reason(name: &str) -> Option<&'static str> {
    let same = |known: &str| {
        let whole = known.ends_with("Load") || known.ends_with("Import") || known.ends_with("Node");
        if whole {
            name.starts_with(known)
        } else {
            name == known
        }
    };
    PASS.into_iter()
        .find(|(known, _)| same(known))
        .map(|(_, why)| why)
}

#[test]
fn every_call_of_the_table_is_one_of_the_drivers() {
    let all: Vec<&str> = names(CUDA).chain(names(NVML)).collect();
    assert!(all.len() > 900, "{}", all.len());
    for hook in HOOKS {
        assert!(all.contains(&hook.name), "{}", hook.name);
    }
}

#[test]
fn no_call_that_takes_memory_of_a_card_is_forgotten() {
    let takes = |name: &&str| TAKE.iter().any(|take| name.starts_with(take));
    for name in names(CUDA).filter(takes) {
        assert!(is_hooked(name) != reason(name).is_some(), "{name}");
    }
}

/// Calls of CUDA 3.1 with 32-bit sizes and addresses: what they tell or free is nothing that a
/// program of today has.
const OLD: [&str; 3] = ["cuDeviceTotalMem", "cuMemFree", "cuMemGetInfo"];

#[test]
fn no_variant_of_a_call_is_forgotten() {
    for name in names(CUDA).filter(|name| !is_hooked(name) && !OLD.contains(name)) {
        let stem = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let bare = stem.rsplit_once("_v").map_or(stem, |(bare, _)| bare);
        let other = HOOKS.iter().find(|hook| [stem, bare].contains(&hook.stem));
        assert_eq!(other.map(|hook| hook.name), None, "{name} passes");
    }
}

#[test]
fn no_call_that_launches_or_captures_is_forgotten() {
    let starts = ["cuLaunch", "cuGraphLaunch", "cuStreamBegin", "cuStreamEnd"];
    let works = |name: &&str| starts.iter().any(|start| name.starts_with(start));
    let on_the_host = |name: &&str| name.starts_with("cuLaunchHostFunc");
    let mut all = names(CUDA).filter(works).filter(|name| !on_the_host(name));
    assert_eq!(all.find(|name| !is_hooked(name)), None);
}

/// The row of the page that names a call: what is done and the test.
fn row(name: &str) -> Option<(String, &'static str)> {
    let quoted = format!("`{name}`");
    let row = PAGE.lines().find(|line| {
        line.starts_with("| `")
            && line
                .split('|')
                .nth(1)
                .is_some_and(|cell| cell.contains(&quoted))
    })?;
    let mut cells = row.split('|').skip(2).map(str::trim);
    Some((cells.next()?.to_owned(), cells.next()?))
}

#[test]
fn the_reference_of_driver_calls_is_made_from_the_table() {
    let mut page = String::from(
        "# Every call of the driver\n\nMade by `make reference` from the limiter's table and the \
         lists in [limiter/names](../../limiter/names), which say where their names are from.\n",
    );
    for (title, list) in [("CUDA 13.5", CUDA), ("NVML of CUDA 13.5", NVML)] {
        let _ = writeln!(
            page,
            "\n## {title}\n\n| call | what is done | test |\n|---|---|---|"
        );
        for name in names(list) {
            let (what, test) = if is_hooked(name) {
                row(name).unwrap_or_else(|| panic!("{name} has no row on the page"))
            } else {
                let why =
                    reason(name).unwrap_or("passes: takes no memory of a card and no time of it");
                (why.to_owned(), "")
            };
            let test = if test.is_empty() {
                format!("`{PASSES}`")
            } else {
                test.to_owned()
            };
            let _ = writeln!(page, "| `{name}` | {what} | {test} |");
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(REFERENCE, &page).unwrap();
    }
    let found = std::fs::read_to_string(REFERENCE).unwrap_or_default();
    assert!(
        found == page,
        "docs/reference/driver-calls.md is old: make reference"
    );
}
