//! No name of the workspace has a retired word.

use aliquot_style::tree::{self, File};
use aliquot_style::words::{errors, retired};

#[test]
fn names_use_the_glossary() {
    let files = tree::files("rs").unwrap();
    let found: Vec<String> = files.iter().flat_map(errors).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn reports_retired_words_in_names() {
    for (name, word) in [
        ("MigCards", Some("cards")),
        ("UUIDCard", Some("card")),
        ("way_in", Some("way_in")),
        ("MOST_SEATS", Some("seats")),
        ("Held", Some("type")),
        ("discard", None),
        ("unitary", None),
    ] {
        let found = retired(name);
        let found = found
            .as_deref()
            .map(|error| error.split('"').nth(1).unwrap_or("type"));
        assert_eq!(found, word, "{name}");
    }
    let text = "// fn card() {}\npub(crate) struct Seat<'a> { card: &'a str }\n";
    let file = File {
        path: "a.rs".to_owned(),
        text: text.to_owned(),
    };
    let found = errors(&file);
    assert!(
        found.len() == 1 && found[0].starts_with("a.rs:2: Seat: \"seat\""),
        "{found:?}"
    );
}
