//! Words that docs/contributing/glossary.md replaced: no name in the workspace may bring one back.

use crate::rust::{Kind, Name, Source};
use crate::tree::File;

/// The longest name of a test.
pub const LONGEST_TEST: usize = 60;

/// Parts of names, in snake case, and what to say instead.
pub const RETIRED: &[(&str, &str)] = &[
    ("book books", "ledger, allocation"),
    (
        "seat seats seated",
        "replica, device id, container directory, process slot",
    ),
    ("card cards", "gpu, device"),
    ("tell tells told untold", "report, log, notify"),
    ("say says said", "report, message"),
    ("hear hears heard ears", "subscribe, observe"),
    ("wish wishes", "desired, preference"),
    ("stray strays", "unmanaged"),
    ("nudge nudges nudged", "requeue"),
    ("grown", "capacity event, requeue"),
    (
        "dress dressed outfit furnish furnished equip equipped",
        "container edits",
    ),
    ("spare spares", "preallocated"),
    ("doubt doubts lies", "inconsistency"),
    ("held kept", "allocated, reserved, retained"),
    ("deed deeds", "action"),
    ("judge judges judged", "validate, admit"),
    ("way_in ways_in", "injection method"),
    ("stand_in stand_ins facade facades", "shim, shim library"),
    ("bury buried buries", "reap, remove"),
    ("authority authorities", "CA"),
    ("leaf", "serving certificate"),
    ("standing course arrangement arrangements", "layout"),
    ("visit visits visited", "poll, reconcile, sample"),
    ("unit units", "device; allocatable device"),
];

/// Types of these names say nothing.
pub const RETIRED_TYPES: &str = "Arrangement Authority Course Deed Ears Fault Guard Held Judge \
    Kept Lane Leaf Lies Look Looked Looker Once Room Rounds Spares Stray Turns Units Wish";

/// Types of which there may be one in the workspace.
pub const ONE_TYPE: &str = "Cut Known Question Seat Seen Share Standing Told";

/// Names that stay: the name or its end (`*_name`) or begin (`name_*`), where (a path's begin), and
/// why.
pub const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "Card*",
        "core/src/refusal.rs",
        "HAMi's names of refusal reasons, which pods' events carry",
    ),
    (
        "AllocatedCardsInsufficientRequest",
        "core/src/refusal.rs",
        "HAMi's name of a refusal reason",
    ),
    (
        "NodeInsufficientSeats",
        "core/src/refusal.rs",
        "a refusal reason, which pods' events carry",
    ),
    ("units", "core/src/", "units of measure: MiB, percent"),
    ("unit", "scheduler/src/metrics.rs", "the unit of a metric"),
    (
        "unit",
        "tests/performance/src/client.rs",
        "the unit of a figure",
    ),
];

/// Phrases that no comment on a line of its own has, and what to do instead.
const PHRASES: &[(&str, &str)] = &[
    ("Fed by:", "say in one or two lines what the name does not"),
    ("Must not:", "state the invariant where it is enforced"),
    (
        "Over 350 lines because",
        "there is no bound on a file's length",
    ),
    ("(design ", "cite ARCHITECTURE.md or docs"),
];

/// Breaks of the rules in these files, and exceptions that nothing needs.
pub fn errors(files: &[File], exceptions: &[(&str, &str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut used = vec![false; exceptions.len()];
    let mut types: Vec<(String, String)> = Vec::new();
    for file in files {
        let source = Source::new(&file.text);
        let tests = source.tests();
        let mut names = source.definitions();
        names.extend(
            tests
                .iter()
                .filter(|test| !names.contains(test))
                .cloned()
                .collect::<Vec<_>>(),
        );
        let parts = file.path.trim_end_matches(".rs").split('/');
        names.extend(parts.map(|part| Name {
            line: 0,
            text: part.replace('-', "_"),
            kind: Kind::Module,
        }));
        for Name { line, text, kind } in &names {
            let place = format!("{}:{line}", file.path);
            let excepted = exceptions.iter().position(|(name, path, _)| {
                let fits = match (name.strip_prefix('*'), name.strip_suffix('*')) {
                    (Some(end), _) => text.ends_with(end),
                    (_, Some(start)) => text.starts_with(start),
                    _ => text == name,
                };
                fits && file.path.starts_with(path)
            });
            let error = retired(text, *kind);
            match (error, excepted) {
                (Some(_), Some(index)) => used[index] = true,
                (Some(error), None) => found.push(format!("{place}: {text}: {error}")),
                (None, _) => {}
            }
            if *kind == Kind::Type && ONE_TYPE.split(' ').any(|name| name == text) {
                let first = types.iter().find(|(name, _)| name == text);
                found.extend(first.map(|(_, first)| {
                    format!("{place}: {text}: is also another type, at {first}")
                }));
                types.push((text.clone(), place.clone()));
            }
        }
        for Name { line, text, .. } in &tests {
            let length = text.chars().count();
            if length > LONGEST_TEST {
                found.push(format!(
                    "{}:{line}: {text}: {length} characters; a test's name has at most {LONGEST_TEST}",
                    file.path
                ));
            }
        }
        found.extend(phrases(file));
    }
    let stale = exceptions.iter().zip(used).filter(|(_, used)| !used);
    found
        .extend(stale.map(|((name, ..), _)| format!("the exception {name} has nothing to except")));
    found
}

/// What is wrong with a name, and what to say instead.
pub fn retired(name: &str, kind: Kind) -> Option<String> {
    if kind == Kind::Type
        && RETIRED_TYPES
            .split_whitespace()
            .any(|retired| retired == name)
    {
        return Some("says nothing; name what it is".to_owned());
    }
    let name = format!("_{}_", snake(name));
    RETIRED.iter().find_map(|(words, instead)| {
        let word = words
            .split(' ')
            .find(|word| name.contains(&format!("_{word}_")))?;
        Some(format!("\"{word}\" is retired; say {instead}"))
    })
}

/// `MigCards` and `MIG_CARDS` as `mig_cards`.
fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| chars.get(at));
        let after = chars.get(at + 1).is_some_and(|c| c.is_lowercase());
        let begins = before.is_some_and(|b| !b.is_uppercase() && *b != '_')
            || before.is_some_and(|b| b.is_uppercase() && after);
        if c.is_uppercase() && begins {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

fn phrases(file: &File) -> impl Iterator<Item = String> {
    file.text.lines().enumerate().filter_map(|(index, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        let (phrase, instead) = PHRASES
            .iter()
            .find(|(phrase, _)| comment.contains(phrase))?;
        Some(format!(
            "{}:{}: \"{phrase}\": {instead}",
            file.path,
            index + 1
        ))
    })
}
