//! The table by itself: names, variants, and the page that says what is done with each call.

use super::*;

#[test]
fn every_name_is_there_once_and_says_where_it_belongs() {
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
            hook.name.ends_with("_ptsz"),
            "{}",
            hook.name
        );
    }
}

#[test]
fn the_page_of_calls_names_each_of_them_once_and_no_other() {
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
fn variants_of_one_call_have_versions_that_differ() {
    for hook in HOOKS.iter().filter(|hook| !hook.stem.is_empty()) {
        let key = |hook: &Hook| (hook.stem, hook.since, hook.per_thread);
        let same = HOOKS.iter().filter(|other| key(other) == key(hook));
        assert_eq!(same.count(), 1, "{}", hook.name);
    }
}
