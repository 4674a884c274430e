//! Words that docs/contributing/glossary.md replaced: no definition in the workspace brings one back.

use crate::tree::File;

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

/// Names that stay: file, name, and why.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("core/src/lib.rs", "units", "units of measure: MiB, percent")];

const KEYWORDS: [&str; 8] = [
    "fn", "struct", "enum", "trait", "type", "const", "static", "mod",
];

/// The definitions in this file whose name has a retired word. Lines are read as text.
pub fn errors(File { path, text }: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        let words: Vec<&str> = code
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .collect();
        for pair in words.windows(2).filter(|pair| KEYWORDS.contains(&pair[0])) {
            let name = pair[1];
            let is_excepted = EXCEPTIONS
                .iter()
                .any(|(file, other, _)| file == path && *other == name);
            if let (Some(error), false) = (retired(name), is_excepted) {
                found.push(format!("{path}:{}: {name}: {error}", index + 1));
            }
        }
    }
    found
}

/// What is wrong with a name, and what to say instead.
pub fn retired(name: &str) -> Option<String> {
    if RETIRED_TYPES
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
