//! Step 1 for resources of ours besides the usual ones: MIG instances, and what
//! renamed cards are advertised under.
//!
//! Fed by: `resources.limits` and `resources.requests`, as they came.
//! Must not: fill anything in; who asks for these writes what it wants.

use aliquot_core::request::{self, is_other};
use serde_json::Value;

use super::Refusal;
use super::pod::Container;
use super::share::{Texts, field};
use crate::settings::Settings;

/// Those that the container names, each once, in order.
pub(super) fn names<'a>(container: &Container<'a>, settings: &Settings) -> Vec<&'a str> {
    let raw: &'a Value = container.raw;
    let lists = ["limits", "requests"].map(|list| raw["resources"][list].as_object());
    let keys = lists.into_iter().flatten().flat_map(|list| list.keys());
    let ours = keys
        .map(String::as_str)
        .filter(|name| is_other(name, &settings.extra));
    let mut names: Vec<&str> = ours.collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn counts<'a>(
    container: &Container<'a>,
    settings: &Settings,
) -> impl Iterator<Item = (&'a str, &'static str, &'a str)> {
    let container = *container;
    let names = names(&container, settings).into_iter();
    names.filter_map(move |name| {
        let (list, text) = Texts::named(&container, name).chosen()?;
        Some((name, list, text))
    })
}

/// The container asks for some of them, or tries to.
pub(super) fn asks(container: &Container<'_>, settings: &Settings) -> bool {
    counts(container, settings).any(|(_, _, text)| request::count(text) != Ok(0))
}

/// Numbers that cannot be meant, and more than one where one is all there is.
pub(super) fn refusals(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let fault = |(name, list, text): (&str, &str, &str)| {
        let message = match request::count(text) {
            Err(error) => error.to_string(),
            Ok(count) if count > 1 && settings.strict.iter().any(|strict| strict == name) => {
                format!(
                    "{text:?} shares for one container; accepted: 1, because each container may have one share of a card under this name"
                )
            }
            Ok(_) => return None,
        };
        let field = field(container, list, name);
        Some(Refusal { field, message })
    };
    let strict = settings.names.of(request::Resource::Gpu);
    let usual = Texts::named(container, strict).chosen();
    let usual = usual.map(|(list, text)| (strict, list, text));
    let usual = usual.filter(|(.., text)| request::count(text).is_ok());
    counts(container, settings)
        .chain(usual)
        .filter_map(fault)
        .collect()
}
