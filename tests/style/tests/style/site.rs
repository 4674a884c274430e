//! SUMMARY.md has every document once.

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
