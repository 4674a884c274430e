//! Checks the table itself: names, variants, and the page that documents what is done with each
//! call.

use super::*;

#[test]
fn lists_each_call_once_with_its_library() {
    for (i, hook) in HOOKS.iter().enumerate() {
        let same = |other: &Hook| other.name == hook.name;
        assert_eq!(HOOKS.iter().position(same), Some(i), "{}", hook.name);
        let cuda = hook.name.starts_with("cu");
        assert!(
            cuda == hook.name.starts_with(hook.stem) || !cuda,
            "{}",
            hook.name
        );
        assert_eq!(cuda, !hook.stem.is_empty(), "{}", hook.name);
        assert_eq!(
            hook.per_thread,
            hook.name.ends_with("_ptsz") || hook.name.ends_with("_ptds"),
            "{}",
            hook.name
        );
    }
}

#[test]
fn documents_each_hooked_call_once() {
    let page = include_str!("../../docs/limiter.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let mut named: Vec<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| *name != "dlsym")
        .collect();
    let mut known: Vec<&str> = HOOKS.iter().map(|hook| hook.name).collect();
    named.sort_unstable();
    known.sort_unstable();
    assert_eq!(named, known);
}

#[test]
fn gives_variants_of_a_call_distinct_versions() {
    for hook in HOOKS.iter().filter(|hook| !hook.stem.is_empty()) {
        let key = |hook: &Hook| (hook.stem, hook.since, hook.per_thread);
        let same = HOOKS.iter().filter(|other| key(other) == key(hook));
        assert_eq!(same.count(), 1, "{}", hook.name);
    }
}
