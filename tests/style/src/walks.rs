//! The ways of values through the code, as docs/contributing/walks.md tells them function by function.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{ImplItem, Item, Type};

/// One step of a walk: the name of a function, linked to its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The type whose function it is, if it is one's.
    pub owner: Option<String>,
    /// The function's name.
    pub function: String,
    /// The file, from the top of the repository.
    pub file: String,
}

/// The walks of a page, each under a heading `## <title>` as a numbered list.
pub fn walks(page: &str) -> Vec<(String, Vec<Step>)> {
    let sections = page.split("\n## ").skip(1);
    let walk = |section: &str| {
        let mut lines = section.lines();
        let title = lines.next().unwrap_or_default().to_owned();
        (title, lines.filter_map(step).collect())
    };
    sections.map(walk).collect()
}

fn step(line: &str) -> Option<Step> {
    let (number, text) = line.split_once(". [`")?;
    number.parse::<u32>().ok()?;
    let (name, rest) = text.split_once("`](../../")?;
    let (file, _) = rest.split_once(')')?;
    let (owner, function) = match name.split_once("::") {
        Some((owner, function)) => (Some(owner.to_owned()), function),
        None => (None, name),
    };
    Some(Step {
        owner,
        function: function.to_owned(),
        file: file.to_owned(),
    })
}

/// The errors of one walk: a function that its file does not define, one that no earlier function of the
/// walk names, and a file that the walk returns to. `read` gives a file's text.
pub fn errors(steps: &[Step], read: impl Fn(&str) -> Result<String>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut named: BTreeSet<String> = BTreeSet::new();
    let mut left: BTreeSet<&str> = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        let text = read(&step.file)?;
        let file = syn::parse_file(&text).with_context(|| format!("cannot parse {}", step.file))?;
        let name = format!("{}: {}", step.file, step.function);
        let Some(body) = body_of(step, &file) else {
            found.push(format!("{name}: no such function"));
            continue;
        };
        if at > 0 && !named.contains(&step.function) {
            found.push(format!("{name}: no earlier function of the walk names it"));
        }
        if left.contains(step.file.as_str()) {
            found.push(format!("{name}: the walk left this file before"));
        }
        words(body, &mut named);
        if steps.get(at + 1).is_some_and(|next| next.file != step.file) {
            left.insert(&step.file);
        }
    }
    Ok(found)
}

fn words(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => {
                found.insert(word.to_string());
            }
            TokenTree::Group(group) => words(group.stream(), found),
            _ => {}
        }
    }
}

/// The body of a step's function.
fn body_of(step: &Step, file: &syn::File) -> Option<TokenStream> {
    let is_owner = |kind: &Type| match (kind, &step.owner) {
        (Type::Path(path), Some(owner)) => path
            .path
            .segments
            .last()
            .is_some_and(|part| part.ident == owner),
        _ => false,
    };
    file.items.iter().find_map(|item| match item {
        Item::Fn(item) if step.owner.is_none() && item.sig.ident == step.function => {
            Some(item.block.to_token_stream())
        }
        Item::Impl(item) if is_owner(&item.self_ty) => {
            item.items.iter().find_map(|one| match one {
                ImplItem::Fn(one) if one.sig.ident == step.function => {
                    Some(one.block.to_token_stream())
                }
                _ => None,
            })
        }
        _ => None,
    })
}
