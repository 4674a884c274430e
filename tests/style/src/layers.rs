//! Which module of a crate may use which: a crate's README shows its modules in layers, and a module
//! uses only modules of lower layers. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, ItemMod};

/// The name of a module in its crate, such as `["layout", "state"]`; empty for the crate's root.
pub type Module = Vec<String>;

/// The modules of a crate, each with the modules that it uses.
pub type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Reads the modules that `src/lib.rs`, or else `src/main.rs`, declares, but those of tests.
pub fn imports(folder: &Path) -> Result<Imports> {
    let src = folder.join("src");
    let library = src.join("lib.rs");
    let root = if library.exists() {
        library
    } else {
        src.join("main.rs")
    };
    let mut reader = Reader::default();
    reader.file(&root, &src, Vec::new())?;
    let known: BTreeSet<Module> = reader.paths.keys().cloned().collect();
    let module_of = |path: &[String]| {
        let lengths = (1..=path.len()).rev();
        lengths
            .map(|n| path[..n].to_vec())
            .find(|name| known.contains(name))
    };
    let used = |(name, paths): (Module, Vec<Module>)| {
        let others = paths.iter().filter_map(|path| module_of(path));
        let others = others.filter(|other| *other != name).collect();
        (name, others)
    };
    Ok(reader.paths.into_iter().map(used).collect())
}

/// The block `layers` of a README: the modules of `src/`, the highest layer first.
pub fn layers(readme: &str) -> Option<Vec<Vec<&str>>> {
    let (_, block) = readme.split_once("```layers\n")?;
    let (block, _) = block.split_once("```")?;
    Some(
        block
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect(),
    )
}

/// What the crate's layers do not allow, and circles between the modules of one folder.
pub fn violations(imports: &Imports, layers: &[Vec<&str>]) -> Vec<String> {
    let layer = |name: &str| layers.iter().position(|names| names.contains(&name));
    let tops: BTreeSet<&str> = imports
        .keys()
        .filter_map(|name| name.first())
        .map(String::as_str)
        .collect();
    let shown: Vec<&str> = layers.iter().flatten().copied().collect();
    let mut found: Vec<String> = Vec::new();
    for name in &tops {
        if shown.iter().filter(|other| *other == name).count() != 1 {
            found.push(format!("{name}: expected: in one layer of the README"));
        }
    }
    let unknown = shown.iter().filter(|name| !tops.contains(*name));
    found.extend(unknown.map(|name| format!("{name}: no module of this crate")));
    for (from, to) in imports
        .iter()
        .flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
    {
        let (Some(first), Some(second)) = (from.first(), to.first()) else {
            continue;
        };
        if first != second && layer(first) >= layer(second) {
            found.push(format!(
                "{} -> {}: not a lower layer",
                from.join("::"),
                to.join("::")
            ));
        }
    }
    found.extend(circles(imports));
    found
}

/// Modules of one folder that use each other, itself or by their own modules. A module and the
/// modules in it count as one.
fn circles(imports: &Imports) -> Vec<String> {
    let folders: BTreeSet<&[String]> = imports
        .keys()
        .filter_map(|name| name.split_last())
        .map(|(_, folder)| folder)
        .collect();
    let mut found = Vec::new();
    for folder in folders {
        let depth = folder.len();
        let inside = |name: &Module| {
            (name.len() > depth && name.starts_with(folder)).then(|| name[depth].clone())
        };
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in imports
            .iter()
            .flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
        {
            if let (Some(from), Some(to)) = (inside(from), inside(to)) {
                uses.entry(from).or_default().insert(to);
            }
        }
        // Without those that use none of the others or are used by none, again and again.
        loop {
            let before = uses.len();
            let names: BTreeSet<String> = uses.keys().cloned().collect();
            for (from, all) in &mut uses {
                all.retain(|to| to != from && names.contains(to));
            }
            let targets: BTreeSet<String> = uses.values().flatten().cloned().collect();
            uses.retain(|from, all| !all.is_empty() && targets.contains(from));
            if uses.len() == before {
                break;
            }
        }
        if !uses.is_empty() {
            let names: Vec<String> = uses
                .into_iter()
                .map(|(from, all)| format!("{from} -> {}", Vec::from_iter(all).join(" ")))
                .collect();
            found.push(format!(
                "circle in crate::{}: {}",
                folder.join("::"),
                names.join("; ")
            ));
        }
    }
    found
}

#[derive(Default)]
struct Reader {
    /// Each module with the paths that stand in it, from the crate's root.
    paths: BTreeMap<Module, Vec<Module>>,
}

impl Reader {
    /// Reads a file and those of the modules that it declares; `children` is their folder.
    fn file(&mut self, file: &Path, children: &Path, name: Module) -> Result<()> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        self.items(&parsed.items, children, name)
    }

    fn items(&mut self, items: &[Item], children: &Path, name: Module) -> Result<()> {
        let mut paths = Paths {
            module: &name,
            found: Vec::new(),
        };
        let mut declared: Vec<&ItemMod> = Vec::new();
        for item in items {
            match item {
                Item::Mod(module) if is_for_tests(&module.attrs) => {}
                Item::Mod(module) => declared.push(module),
                _ if attributes(item).is_some_and(is_for_tests) => {}
                _ => paths.tokens(item.to_token_stream(), &[]),
            }
        }
        let found = paths.found;
        for module in declared {
            let child = module.ident.to_string();
            let folder = children.join(&child);
            let mut child_name = name.clone();
            child_name.push(child);
            match &module.content {
                Some((_, items)) => self.items(items, &folder, child_name)?,
                None => self.file(&file_of(&folder), &folder, child_name)?,
            }
        }
        self.paths.insert(name, found);
        Ok(())
    }
}

/// `folder.rs`, or else `folder/mod.rs`.
fn file_of(folder: &Path) -> PathBuf {
    let beside = folder.with_extension("rs");
    if beside.exists() {
        beside
    } else {
        folder.join("mod.rs")
    }
}

fn attributes(item: &Item) -> Option<&[Attribute]> {
    match item {
        Item::Const(item) => Some(&item.attrs),
        Item::Fn(item) => Some(&item.attrs),
        Item::Impl(item) => Some(&item.attrs),
        Item::Use(item) => Some(&item.attrs),
        _ => None,
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_test)
}

/// Collects the paths that begin with `crate` or `super`, also those in macros.
struct Paths<'a> {
    module: &'a Module,
    found: Vec<Module>,
}

impl Paths<'_> {
    fn add(&mut self, path: &[String]) {
        let mut from_root = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => self.module.clone(),
            _ => return,
        };
        for part in path {
            match part.as_str() {
                "crate" => {}
                "super" => {
                    from_root.pop();
                }
                _ => from_root.push(part.clone()),
            }
        }
        self.found.push(from_root);
    }

    /// Reads the paths in tokens; those in braces behind `before::` begin with it.
    fn tokens(&mut self, tokens: TokenStream, before: &[String]) {
        let mut path = before.to_vec();
        // How many colons stand right before; at the start of a group the path goes on.
        let mut colons = 2;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(word) if colons == 2 => path.push(word.to_string()),
                TokenTree::Group(group) if colons == 2 && !path.is_empty() => {
                    self.tokens(group.stream(), &path);
                    path = before.to_vec();
                }
                other => {
                    self.add(&path);
                    path = before.to_vec();
                    match other {
                        TokenTree::Ident(word) => path = vec![word.to_string()],
                        TokenTree::Group(group) => self.tokens(group.stream(), &[]),
                        TokenTree::Punct(mark) if mark.as_char() == ',' => {
                            colons = 2;
                            continue;
                        }
                        _ => {}
                    }
                }
            }
            colons = 0;
        }
        self.add(&path);
    }
}
