//! SUMMARY.md has every document once, pages say what they were not run on, and a broken link of the
//! built site is reported.

use std::collections::BTreeMap;

use aliquot_style::site::{MOST_PAGES, NOT_RUN_ON, admits, check, has_notice, parts};
use aliquot_style::tree;

/// Parts whose pages describe names and code, and not what was run.
const DESCRIPTIONS: [&str; 2] = ["Reference", "Contribute"];

/// Pages that need not say it: what they describe was run on the real thing, because it needs no GPU.
const RUN: [(&str, &str); 5] = [
    (
        "guides/doctor.md",
        "a real API server, kubelet and containerd",
    ),
    ("guides/high-availability.md", "a real control plane"),
    ("guides/quotas.md", "a real control plane and kubelet"),
    (
        "guides/scheduling-policies.md",
        "a real kube-scheduler and kubelet",
    ),
    (
        "guides/why-is-my-pod-pending.md",
        "a real API server and kube-scheduler",
    ),
];

#[test]
fn summary_lists_every_document_once() {
    let summary = tree::read("docs/SUMMARY.md").unwrap();
    let mut listed: Vec<String> = parts(&summary)
        .into_iter()
        .flat_map(|(_, pages)| pages)
        .map(|page| format!("docs/{page}"))
        .collect();
    listed.sort();
    let files = tree::files("md").unwrap();
    let files = files.iter().map(|file| file.path.as_str());
    let is_page = |path: &&str| path.starts_with("docs/") && *path != "docs/SUMMARY.md";
    let written: Vec<&str> = files.filter(is_page).collect();
    assert_eq!(listed, written);
    assert!(listed.len() <= MOST_PAGES, "{} pages", listed.len());
}

#[test]
fn pages_name_first_what_they_were_not_run_on() {
    let summary = tree::read("docs/SUMMARY.md").unwrap();
    let mut errors = Vec::new();
    for (part, pages) in parts(&summary) {
        if DESCRIPTIONS.contains(&part.as_str()) {
            continue;
        }
        for page in pages {
            let text = tree::read(&format!("docs/{page}")).unwrap();
            let run = RUN.iter().any(|(path, _)| *path == page);
            match (has_notice(&text), run) {
                (true, true) => errors.push(format!("{page}: is in RUN")),
                (false, true) if admits(&text) => {
                    errors.push(format!(
                        "{page}: says further down that something was not run"
                    ));
                }
                (false, false) => {
                    errors.push(format!("{page}: no {NOT_RUN_ON:?} in its first lines"));
                }
                _ => {}
            }
        }
    }
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn reports_page_without_notice_of_what_was_not_run() {
    let notice = format!("# A page\n\n{NOT_RUN_ON}a physical GPU.\n");
    assert!(has_notice(&notice));
    assert!(!has_notice(&notice.replace("GPU.", "GPU")));
    assert!(!has_notice(&format!("{}{notice}", "\n".repeat(6))));
    assert!(admits("It was not run beside a real HAMi."));
    assert!(!admits("It runs."));
}

#[test]
fn reads_parts_of_summary() {
    let text = "# Summary\n\n[First](a.md)\n\n# Start\n\n- [Next](guides/b.md)\n";
    let found = parts(text);
    let found: Vec<(&str, Vec<&str>)> = found
        .iter()
        .map(|(part, pages)| (part.as_str(), pages.iter().map(String::as_str).collect()))
        .collect();
    let expected = [
        ("", vec![]),
        ("Summary", vec!["a.md"]),
        ("Start", vec!["guides/b.md"]),
    ];
    assert_eq!(found, expected);
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
