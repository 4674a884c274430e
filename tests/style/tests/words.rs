//! No name of the workspace has a retired word, and no test a name that is too long.

use aliquot_style::rust::{Kind, Source};
use aliquot_style::tree::{self, File};
use aliquot_style::words::{EXCEPTIONS, errors, retired};

#[test]
fn names_use_the_glossary() {
    let files = tree::files("rs").unwrap();
    let found = errors(&files, EXCEPTIONS);
    let count = found.len();
    assert!(found.is_empty(), "{count} remain:\n{}", found.join("\n"));
}

#[test]
fn finds_every_definition() {
    let text = "
        /// struct Comment {}
        pub struct Record<'a, F: Fn(u8) -> u8> { #[doc = \"x: y\"] pub(crate) one: Map<u8, a::B>, r#two: &'a F }
        struct Tuple(u8);
        enum Choice { First, #[x] Second { inner: u8 }, Third(Vec<u8>) }
        type Alias = *const Tuple;
        const fn call(argument: u8) -> char { let local = '\"'; '\\'' }
        static mut STATIC: &'static str = r#\"fn text() \"quoted\" {}\"#;
        mod inside { trait Able { const LIMIT: usize; } }
    ";
    let found: Vec<String> = Source::new(text)
        .definitions()
        .into_iter()
        .map(|name| name.text)
        .collect();
    let expected =
        "Record one two Tuple Choice First Second inner Third Alias call STATIC inside Able LIMIT";
    assert_eq!(found.join(" "), expected);
}

#[test]
fn finds_every_test() {
    let text = "
        #[cfg(test)] mod tests { #[test] fn one() {} fn helper() {} }
        #[tokio::test(start_paused = true)]
        #[allow(clippy::x, reason = \"y\")]
        async fn two() {}
        fn list() { scenario(\"three\", run); Trial::test(\"four\", run); other(\"five\"); }
    ";
    let found: Vec<(usize, String)> = Source::new(text)
        .tests()
        .into_iter()
        .map(|name| (name.line, name.text))
        .collect();
    let expected = [(2, "one"), (5, "two"), (6, "three"), (6, "four")];
    assert_eq!(found, expected.map(|(line, name)| (line, name.to_owned())));
}

#[test]
fn reports_retired_words_in_names() {
    let check = |name: &str, kind: Kind, word: Option<&str>| {
        let found = retired(name, kind);
        let found = found
            .as_deref()
            .map(|error| error.split('"').nth(1).unwrap_or("type"));
        assert_eq!(found, word, "{name}");
    };
    check("MigCards", Kind::Type, Some("cards"));
    check("UUIDCard", Kind::Type, Some("card"));
    check("free_seats", Kind::Function, Some("seats"));
    check("way_in", Kind::Field, Some("way_in"));
    check("MOST_SEATS", Kind::Constant, Some("seats"));
    check("Held", Kind::Type, Some("type"));
    check("discard", Kind::Function, None);
    check("unitary", Kind::Function, None);
    check("holds_memory_limit", Kind::Function, None);
}

#[test]
fn reports_place_and_unused_exceptions() {
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let long = "a".repeat(61);
    let files = [
        file("a/src/seat.rs", "\nfn card() {}\n//! Fed by: nothing\n"),
        file(
            "b/src/c.rs",
            &format!("struct Share;\n#[test]\nfn {long}() {{}}\n"),
        ),
        file("b/src/d.rs", "fn card() {}\nstruct Share;\n"),
    ];
    let found = errors(&files, &[("card", "b/", "ours"), ("gone", "", "ours")]);
    let starts = [
        "a/src/seat.rs:2: card: \"card\"",
        "a/src/seat.rs:0: seat: \"seat\"",
        "a/src/seat.rs:3: \"Fed by:\"",
        "b/src/c.rs:3: aaa",
        "b/src/d.rs:2: Share: is also another type, at b/src/c.rs:1",
        "the exception gone",
    ];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}, expected {start}");
    }
}
