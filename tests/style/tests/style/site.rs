//! SUMMARY.md has every document once, and a broken link of the built site is reported.

use std::collections::BTreeMap;

use aliquot_style::site::check;
use aliquot_style::tree;

#[test]
fn summary_lists_every_document_once() {
    let summary = tree::read("docs/SUMMARY.md").unwrap();
    let links = summary.split("](").skip(1);
    let mut listed: Vec<String> = links
        .filter_map(|rest| Some(format!("docs/{}", rest.split_once(')')?.0)))
        .collect();
    listed.sort();
    let files = tree::files("md").unwrap();
    let files = files.iter().map(|file| file.path.as_str());
    let is_page = |path: &&str| path.starts_with("docs/") && *path != "docs/SUMMARY.md";
    let written: Vec<&str> = files.filter(is_page).collect();
    assert_eq!(listed, written);
}

#[test]
fn reports_broken_links_of_built_site() {
    let page = |html: &str| {
        let other = ("limiter.html".to_owned(), "<h2 id=\"pools\">".to_owned());
        let pages = BTreeMap::from([other, ("guides/a.html".to_owned(), html.to_owned())]);
        let files = ["limiter.html", "guides/a.html", "screens/a.png"];
        let tree = ["core/src/fit.rs", "tests/gpu/README.md", "tests/e2e"];
        check(
            &pages,
            |path| files.contains(&path),
            |path| tree.contains(&path),
        )
    };
    for (link, errors) in [
        ("../limiter.html#pools", 0),
        ("../limiter.html#gone", 1),
        ("../gone.html", 1),
        ("#here", 1),
        ("https://example.org/x#y", 0),
        ("../../core/src/fit.rs", 0),
        ("../../core/src/gone.rs", 1),
        ("../../../outside", 1),
    ] {
        let found = page(&format!("<a class=\"x\" href=\"{link}\">"));
        assert_eq!(found.errors.len(), errors, "{link}: {:?}", found.errors);
    }
    assert_eq!(page("<img src=\"../screens/b.png\">").errors.len(), 1);
    let html = "<a href=\"../../tests/gpu/README.html\">x</a><a href=\"../../tests/e2e\">y</a>";
    let found = page(html);
    let copies = [
        "repository/tests/e2e.txt",
        "repository/tests/gpu/README.md.txt",
    ];
    assert!(found.copies.values().eq(copies.iter()), "{found:?}");
    let expected = "<a href=\"../repository/tests/gpu/README.md.txt\">x</a>\
                    <a href=\"../repository/tests/e2e.txt\">y</a>";
    assert_eq!(found.pages["guides/a.html"], expected);
}
