//! Checks the links of the site that mdBook built, and makes those to files of the repository lead to
//! copies in the site. `cargo run -p aliquot-style --bin site -- target/docs`

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use aliquot_style::{site, tree};
use anyhow::{Context as _, Result, ensure};

fn main() -> Result<()> {
    let folder = env::args_os().nth(1).context("usage: site FOLDER")?;
    let folder = PathBuf::from(folder);
    let pages = pages(&folder)?;
    ensure!(!pages.is_empty(), "no page in {}", folder.display());
    let top = tree::root();
    let is_file = |path: &str| folder.join(path).is_file();
    let checked = site::check(&pages, is_file, |path| top.join(path).exists());
    let errors = checked.errors.join("\n");
    ensure!(errors.is_empty(), "broken links:\n{errors}");
    for (from, to) in &checked.copies {
        let (from, to) = (top.join(from), folder.join(to));
        let parent = to.parent().context("a copy without a folder")?;
        fs::create_dir_all(parent)?;
        fs::write(&to, text(&from)?).with_context(|| format!("cannot write {}", to.display()))?;
    }
    for (page, html) in &checked.pages {
        fs::write(folder.join(page), html)?;
    }
    let (pages, copies) = (pages.len(), checked.copies.len());
    let mut out = std::io::stdout();
    writeln!(
        out,
        "no broken link in {pages} files; they link to {copies} others of the repository"
    )?;
    Ok(())
}

/// A file's text, or the names in a folder.
fn text(path: &Path) -> Result<Vec<u8>> {
    if path.is_file() {
        return Ok(fs::read(path)?);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    names.push(String::new());
    Ok(names.join("\n").into_bytes())
}

/// The built pages by path. The page for addresses that do not exist has absolute links.
fn pages(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = fs::read_dir(&next);
        for entry in entries.with_context(|| format!("cannot list {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "html")
                && !path.ends_with("404.html")
            {
                let name = path.strip_prefix(folder)?.display().to_string();
                found.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    Ok(found)
}
