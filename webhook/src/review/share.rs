//! Step 1 for resources: what each container asks for, or why it cannot be meant.
//!
//! Fed by: `resources.limits` and `resources.requests` of init and app containers.
//! Must not: know ranges or quantities; that is `aliquot_core::request`.

use aliquot_core::quantity;
use aliquot_core::request::{self, RequestError, Resource, Written};
use serde_json::Value;

use super::Refusal;
use super::others;
use super::pod::{Container, Kind};
use crate::settings::Settings;

/// A container that asks for a share.
pub(super) struct Share<'a> {
    pub(super) container: Container<'a>,
    pub(super) written: Written,
    /// Resources of ours besides the usual ones that it names.
    pub(super) others: Vec<&'a str>,
}

impl Share<'_> {
    /// How many units it asks for.
    pub(super) fn count(&self) -> u64 {
        let other = |name: &&str| {
            let (_, text) = Texts::named(&self.container, name).chosen()?;
            quantity::whole(text).ok()
        };
        let others: u64 = self.others.iter().filter_map(other).sum();
        let usual = self.written.get(Resource::Gpu);
        others + usual.unwrap_or_else(|| u64::from(self.others.is_empty()))
    }
}

/// The container asks for a share, or tries to.
pub(super) fn asks(container: &Container<'_>, settings: &Settings) -> bool {
    let asks = written(container, settings);
    asks.map_or(true, |written| written.asks(&settings.defaults))
        || others::asks(container, settings)
}

/// A plugin is asked before the container starts: it names a number of what plugins hand out.
/// Memory, compute and a priority are handed out by none, and amounts of 0 are seen by nobody.
pub(super) fn takes_units(container: &Container<'_>, settings: &Settings) -> bool {
    let usual = settings.names.of(Resource::Gpu);
    let mut names = std::iter::once(usual).chain(others::names(container, settings));
    names.any(|name| {
        let chosen = Texts::named(container, name).chosen();
        chosen.is_some_and(|(_, text)| request::count(text).is_ok_and(|count| count > 0))
    })
}

/// The asking containers of a pod, and every fault of all its containers.
pub(super) fn read<'a>(
    containers: &[Container<'a>],
    settings: &Settings,
) -> (Vec<Share<'a>>, Vec<Refusal>) {
    let mut shares = Vec::new();
    let mut refusals = Vec::new();
    for container in containers {
        if container.kind == Kind::Ephemeral {
            continue;
        }
        refusals.extend(differing_requests(container, settings));
        refusals.extend(others::refusals(container, settings));
        let other = others::asks(container, settings);
        match written(container, settings) {
            Ok(written) if other || written.asks(&settings.defaults) => shares.push(Share {
                container: *container,
                written,
                others: others::names(container, settings),
            }),
            Ok(written) => refusals.extend(part_of_nothing(container, &written, settings)),
            Err(errors) => {
                refusals.extend(
                    errors
                        .iter()
                        .map(|error| refusal(container, error, settings)),
                );
            }
        }
    }
    (shares, refusals)
}

fn written(container: &Container<'_>, settings: &Settings) -> Result<Written, Vec<RequestError>> {
    let read =
        Written::read(|resource| Some(Texts::of(container, resource, settings).chosen()?.1))?;
    Ok(if others::asks(container, settings) {
        read.beside_others()
    } else {
        read
    })
}

/// One resource of one container, as it stands in limits and in requests.
pub(super) struct Texts<'a> {
    pub(super) limit: Option<&'a str>,
    pub(super) request: Option<&'a str>,
}

impl<'a> Texts<'a> {
    pub(super) fn of(container: &Container<'a>, resource: Resource, settings: &Settings) -> Self {
        Self::named(container, settings.names.of(resource))
    }

    pub(super) fn named(container: &Container<'a>, name: &str) -> Self {
        let text = |list: &str| {
            // The API server writes every quantity as a string.
            container.raw["resources"][list]
                .get(name)
                .map(|value| value.as_str().unwrap_or(""))
        };
        Self {
            limit: text("limits"),
            request: text("requests"),
        }
    }

    /// The limit counts; a request alone stands for the limit too.
    pub(super) fn chosen(&self) -> Option<(&'static str, &'a str)> {
        let limit = self.limit.map(|text| ("limits", text));
        limit.or_else(|| self.request.map(|text| ("requests", text)))
    }
}

pub(super) fn field(container: &Container<'_>, list: &str, name: &str) -> String {
    format!("{}.resources.{list}[{name:?}]", container.field())
}

fn refusal(container: &Container<'_>, error: &RequestError, settings: &Settings) -> Refusal {
    let resource = error.resource();
    let name = settings.names.of(resource);
    let (list, text) = Texts::of(container, resource, settings)
        .chosen()
        .unwrap_or(("limits", ""));
    let message = match error {
        RequestError::MemoryTwice => {
            let memory = settings.names.of(Resource::Memory);
            format!("{text:?} percent beside {memory}; accepted: one of the two")
        }
        other => other.to_string(),
    };
    Refusal {
        field: field(container, list, name),
        message,
    }
}

fn differing_requests(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let five = Resource::ALL.map(|resource| settings.names.of(resource));
    let names = five.into_iter().chain(others::names(container, settings));
    let differing = |name| {
        let texts = Texts::named(container, name);
        let (limit, request) = (texts.limit?, texts.request?);
        if limit == request || quantity::whole(limit) == quantity::whole(request) {
            return None;
        }
        Some(Refusal {
            field: field(container, "requests", name),
            message: format!(
                "{request:?} differs from the limit; accepted: {limit:?}, or no request"
            ),
        })
    };
    names.filter_map(differing).collect()
}

/// Memory, compute or a priority, but of no card: no count, and none filled in.
fn part_of_nothing(
    container: &Container<'_>,
    written: &Written,
    settings: &Settings,
) -> Option<Refusal> {
    let resource = Resource::ALL
        .into_iter()
        .find(|&resource| resource != Resource::Gpu && written.get(resource).is_some())?;
    let (list, text) = Texts::of(container, resource, settings).chosen()?;
    let gpu = settings.names.of(Resource::Gpu);
    Some(Refusal {
        field: field(container, list, settings.names.of(resource)),
        message: format!("{text:?} of no GPU; accepted: with {gpu}: 1 or more beside it"),
    })
}

/// Our resources in an ephemeral container: it can never be given any.
pub(super) fn in_ephemeral(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let five = Resource::ALL.map(|resource| settings.names.of(resource));
    let all = five.into_iter().chain(others::names(container, settings));
    let named = |name| {
        let (list, text) = Texts::named(container, name).chosen()?;
        Some(Refusal {
            field: field(container, list, name),
            message: format!("{text:?} in an ephemeral container; accepted: no {name}"),
        })
    };
    all.filter_map(named).collect()
}

/// A JSON string value.
pub(super) fn text(value: impl Into<String>) -> Value {
    Value::String(value.into())
}
