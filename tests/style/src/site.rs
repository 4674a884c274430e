//! The documents as a site: the links of the pages that mdBook built.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

/// Where the copies of linked files of the repository are in the site.
const COPIES: &str = "repository";

/// What a link of a page leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// A file of the site, and the id in it.
    Site(String, String),
    /// A file or a folder of the repository.
    Repository(String),
    /// Not ours to check.
    Elsewhere,
}

fn target(page: &str, link: &str) -> Target {
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    if link.contains(':') {
        return Target::Elsewhere;
    }
    if path.is_empty() {
        return Target::Site(page.to_owned(), fragment.to_owned());
    }
    // The site has the paths of `docs`.
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let from = ["docs", folder, path].join("/");
    match from_top(from.as_ref()) {
        None => Target::Repository(from),
        Some(full) => match full.strip_prefix("docs/") {
            Some(inside) => Target::Site(inside.to_owned(), fragment.to_owned()),
            None => Target::Repository(full),
        },
    }
}

/// The path without `.` and `..`; `None` when it leaves the repository.
fn from_top(path: &Path) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// The values of an attribute, with the places where they begin.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<(usize, &'a str)> {
    let start = format!(" {attribute}=\"");
    let places = html.match_indices(&start).map(|(at, _)| at + start.len());
    let value = |at: usize| (at, html[at..].split('"').next().unwrap_or_default());
    places.map(value).collect()
}

/// What becomes of the built pages.
#[derive(Debug, Default)]
pub struct Checked {
    /// Pages whose links to files of the repository lead to copies now, by path.
    pub pages: BTreeMap<String, String>,
    /// Files and folders of the repository that the pages link to, and their copies in the site.
    pub copies: BTreeMap<String, String>,
    /// Links that lead nowhere.
    pub errors: Vec<String>,
}

/// Checks the links of the built pages. `is_file` knows the site's files, `exists` the repository's
/// files and folders.
pub fn check(
    pages: &BTreeMap<String, String>,
    is_file: impl Fn(&str) -> bool,
    exists: impl Fn(&str) -> bool,
) -> Checked {
    let mut checked = Checked::default();
    let ids: BTreeMap<&str, BTreeSet<&str>> = pages
        .iter()
        .map(|(page, html)| {
            let ids = values(html, "id").into_iter().map(|(_, id)| id);
            (page.as_str(), ids.collect())
        })
        .collect();
    for (page, html) in pages {
        let mut links = values(html, "href");
        links.extend(values(html, "src"));
        links.sort_unstable();
        let (mut text, mut done) = (String::new(), 0);
        for (at, link) in links {
            match target(page, link) {
                Target::Elsewhere => {}
                Target::Site(file, id) => {
                    let there = is_file(&file);
                    let known = || {
                        let ids = ids.get(file.as_str());
                        ids.is_none_or(|ids| ids.contains(id.as_str()))
                    };
                    if !there || !(id.is_empty() || known()) {
                        checked.errors.push(format!("{page}: {link}"));
                    }
                }
                Target::Repository(path) => {
                    // mdBook names every document by its page.
                    let document = path.strip_suffix(".html").map(|name| format!("{name}.md"));
                    let path = document.filter(|path| exists(path)).unwrap_or(path);
                    if !exists(&path) {
                        checked.errors.push(format!("{page}: {link}"));
                        continue;
                    }
                    let copy = format!("{COPIES}/{path}.txt");
                    text.push_str(&html[done..at]);
                    text.push_str(&"../".repeat(page.matches('/').count()));
                    text.push_str(&copy);
                    done = at + link.len();
                    checked.copies.insert(path, copy);
                }
            }
        }
        if done > 0 {
            text.push_str(&html[done..]);
            checked.pages.insert(page.clone(), text);
        }
    }
    checked
}
