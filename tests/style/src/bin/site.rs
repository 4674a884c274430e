//! Copies the files of the repository that the built site links to into the site, and makes the links lead
//! there. `cargo run -p aliquot-style --bin site -- target/docs`

#![forbid(unsafe_code)]

use std::path::{Component, Path, PathBuf};
use std::{env, fs};

use aliquot_style::tree;
use anyhow::{Context as _, Result, ensure};

/// Where the copies are in the site.
const COPIES: &str = "repository";

fn main() -> Result<()> {
    let site = env::args_os().nth(1).context("usage: site FOLDER")?;
    let site = PathBuf::from(site);
    let pages = pages(&site)?;
    ensure!(!pages.is_empty(), "no page in {}", site.display());
    for page in pages {
        let html = fs::read_to_string(site.join(&page))?;
        let depth = page.components().count() - 1;
        let (mut text, mut done) = (String::new(), 0);
        for (at, link) in links(&html) {
            if let Some(path) = outside(&page, link) {
                text.push_str(&html[done..at]);
                text.push_str(&"../".repeat(depth));
                text.push_str(
                    &copied(&path, &site).with_context(|| format!("{}: {link}", page.display()))?,
                );
                done = at + link.len();
            }
        }
        text.push_str(&html[done..]);
        fs::write(site.join(&page), text)?;
    }
    Ok(())
}

/// The values of `href` and `src`, with the places where they begin.
fn links(html: &str) -> Vec<(usize, &str)> {
    let begins = [" href=\"", " src=\""].map(|begin| {
        let places = html.match_indices(begin);
        places.map(move |(at, _)| at + begin.len())
    });
    let mut places: Vec<usize> = begins.into_iter().flatten().collect();
    places.sort_unstable();
    let link = |at: usize| (at, html[at..].split('"').next().unwrap_or_default());
    places.into_iter().map(link).collect()
}

/// The path of what a page links to in the repository, if that is not a document.
fn outside(page: &Path, link: &str) -> Option<PathBuf> {
    let (path, _) = link.split_once('#').unwrap_or((link, ""));
    if link.contains(':') || path.is_empty() {
        return None;
    }
    // The site has the paths of `docs`.
    let mut full = PathBuf::from("docs");
    for component in page.parent()?.join(path).components() {
        match component {
            Component::ParentDir => drop(full.pop()),
            other => full.push(other),
        }
    }
    (!full.starts_with("docs")).then_some(full)
}

/// Copies a file, or the names in a folder; the copy's path in the site.
fn copied(path: &Path, site: &Path) -> Result<String> {
    // mdBook names every document by its page.
    let (top, document) = (tree::root(), path.with_extension("md"));
    let is_page = path.extension().is_some_and(|end| end == "html");
    let path = if is_page && top.join(&document).exists() {
        &document
    } else {
        path
    };
    let from = top.join(path);
    let text = if from.is_dir() {
        let entries = fs::read_dir(&from)?.collect::<Result<Vec<_>, _>>()?;
        let names = entries.iter().map(fs::DirEntry::file_name);
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
        names.sort();
        names.join("\n").into_bytes()
    } else {
        fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?
    };
    let copy = format!("{COPIES}/{}.txt", path.display());
    let to = site.join(&copy);
    fs::create_dir_all(to.parent().context("a copy without a folder")?)?;
    fs::write(to, text)?;
    Ok(copy)
}

/// The paths of the built pages in the site. The page for addresses that do not exist has absolute links.
fn pages(site: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![site.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let is_page = path.extension().is_some_and(|end| end == "html");
            if path.is_dir() {
                folders.push(path);
            } else if is_page && !path.ends_with("404.html") {
                found.push(path.strip_prefix(site)?.to_owned());
            }
        }
    }
    Ok(found)
}
