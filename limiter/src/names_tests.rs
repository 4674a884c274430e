//! Checks the table against the names of a driver's entry points: every hooked call exists, nothing
//! that takes device memory is forgotten, and the reference of all calls is current. The lists in
//! `limiter/names` name their sources.

use std::fmt::Write as _;

use super::{HOOKS, Hook};

const CUDA: &str = include_str!("../names/cuda-13.5.txt");
const NVML: &str = include_str!("../names/nvml-13.5.txt");
const PAGE: &str = include_str!("../../docs/limiter.md");
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/driver-calls.md");
/// The test that shows that unhooked calls reach the driver.
const PASSES: &str = "passes_unhooked_calls_to_driver_with_their_arguments";

/// Prefixes of calls that may take device memory.
const TAKE: [&str; 21] = [
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuCtxCreate",
    "cuCtxSetLimit",
    "cuDevicePrimaryCtxRetain",
    "cuGLCtxCreate",
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
    "cuVDPAUCtxCreate",
];

const BY_LAUNCH: &str = "passed through; its memory is charged when the graph is launched";
const BY_HOST: &str = "passed through; the monitor charges what the driver takes for it";
const BY_CREATOR: &str = "passed through: the process that created it is charged";
const BY_BOTH: &str = "passed through: the process that created it is charged; the monitor charges \
                       the importer what the driver reports of it";
const OF_HOST: &str = "passed through: host memory";

/// Those of them that are passed through, and why.
const PASS: [(&str, &str); 11] = [
    ("cuGraphAddNode", BY_LAUNCH),
    ("cuGraphAddMemAllocNode", BY_LAUNCH),
    ("cuGraphInstantiate", BY_HOST),
    ("cuGraphInstantiate_v2", BY_HOST),
    ("cuGraphInstantiateWithFlags", BY_HOST),
    ("cuImportExternalMemory", BY_BOTH),
    ("cuLibraryLoad", BY_HOST),
    ("cuMemAllocHost", OF_HOST),
    ("cuMemAllocHost_v2", OF_HOST),
    ("cuMemPoolImportFromShareableHandle", BY_CREATOR),
    ("cuModuleLoad", BY_HOST),
];

/// Prefixes of calls that share memory with graphics.
const GRAPHICS: [&str; 4] = ["cuEGL", "cuGL", "cuGraphics", "cuVDPAU"];

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

fn is_hooked(name: &str) -> bool {
    HOOKS.iter().any(|hook| hook.name == name)
}

/// Why a call that may take memory is passed through.
fn reason(name: &str) -> Option<&'static str> {
    let same = |known: &str| {
        let whole = known.ends_with("Load") || known.ends_with("Node");
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
fn names_only_calls_that_driver_has() {
    let all: Vec<&str> = names(CUDA).chain(names(NVML)).collect();
    assert!(all.len() > 900, "{}", all.len());
    for hook in HOOKS {
        assert!(all.contains(&hook.name), "{}", hook.name);
    }
}

#[test]
fn gives_variants_of_a_call_distinct_versions() {
    for hook in HOOKS.iter().filter(|hook| !hook.stem.is_empty()) {
        let key = |hook: &Hook| (hook.stem, hook.since, hook.per_thread);
        let same = HOOKS.iter().filter(|other| key(other) == key(hook));
        assert_eq!(same.count(), 1, "{}", hook.name);
    }
}

#[test]
fn hooks_every_call_that_takes_device_memory() {
    let takes = |name: &&str| TAKE.iter().any(|take| name.starts_with(take));
    for name in names(CUDA).filter(takes) {
        assert!(is_hooked(name) != reason(name).is_some(), "{name}");
    }
}

/// Calls of CUDA 3.1 with addresses of 32 bits, which nothing here has allocated.
const OLD: [&str; 9] = [
    "cuMemFree",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemsetD16",
    "cuMemsetD2D16",
    "cuMemsetD2D32",
    "cuMemsetD2D8",
    "cuMemsetD32",
    "cuMemsetD8",
];

#[test]
fn hooks_every_variant_of_a_hooked_call() {
    for name in names(CUDA).filter(|name| !is_hooked(name) && !OLD.contains(name)) {
        let stem = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let bare = stem.rsplit_once("_v").map_or(stem, |(bare, _)| bare);
        let other = HOOKS.iter().find(|hook| [stem, bare].contains(&hook.stem));
        assert_eq!(other.map(|hook| hook.name), None, "{name} passes");
    }
}

#[test]
fn hooks_every_call_that_launches_or_captures() {
    let starts = ["cuLaunch", "cuGraphLaunch", "cuStreamBegin", "cuStreamEnd"];
    let works = |name: &&str| starts.iter().any(|start| name.starts_with(start));
    let on_the_host = |name: &&str| name.starts_with("cuLaunchHostFunc");
    let mut all = names(CUDA).filter(works).filter(|name| !on_the_host(name));
    assert_eq!(all.find(|name| !is_hooked(name)), None);
}

/// The row of the page that names a call: what is done, and the test.
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
fn generates_driver_call_reference_from_table() {
    let mut page = String::from(
        "# Driver calls\n\nGenerated by `make reference` from the limiter's table and the lists in \
         [names](names), which name their sources.\n",
    );
    for (title, list) in [("CUDA 13.5", CUDA), ("NVML of CUDA 13.5", NVML)] {
        let _ = writeln!(
            page,
            "\n## {title}\n\n| call | what is done | test |\n|---|---|---|"
        );
        for name in names(list) {
            let (what, test) = if is_hooked(name) {
                row(name).unwrap_or_else(|| panic!("{name} has no row in docs/limiter.md"))
            } else {
                let graphics = GRAPHICS.iter().any(|prefix| name.starts_with(prefix));
                let otherwise = if graphics {
                    "passed through: the memory is that of graphics, which is not limited"
                } else {
                    "passed through: uses neither memory nor time of a device"
                };
                (reason(name).unwrap_or(otherwise).to_owned(), "")
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
        "limiter/driver-calls.md is outdated; run make reference"
    );
}
