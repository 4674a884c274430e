//! Step 4: what a pod sets for NVIDIA's libraries in its own environment.
//!
//! `NVIDIA_VISIBLE_DEVICES` would open GPUs past all books; uuids in it become a pin
//! that is booked. The others are left, with a warning where they do not do what
//! their author expects.
//! Fed by: `env` of the containers that are new. Must not: know which GPUs there are.

use std::collections::BTreeSet;

use aliquot_core::pin::{self, Pin};
use aliquot_core::wishes::PIN;
use serde_json::{Value, json};

use super::Refusal;
use super::edit::Editor;
use super::gate::Gate;
use super::pod::{Container, Kind, items};
use super::share::Share;
use crate::settings::VisibleDevices;

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const NARROWED: &str = "CUDA_VISIBLE_DEVICES";
const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// Values that open no GPU.
const HARMLESS: [&str; 3] = ["", "none", "void"];

/// What is told and refused of a pod.
#[derive(Default)]
pub(super) struct Found {
    pub(super) warnings: Vec<String>,
    pub(super) refusals: Vec<Refusal>,
}

/// Judges the environment of all containers of a new pod; `shares` are those that ask.
pub(super) fn judge(
    editor: &mut Editor,
    containers: &[Container<'_>],
    shares: &[Share<'_>],
    gate: &Gate<'_>,
) -> Found {
    let mut found = Found::default();
    let mut pins: Vec<Named> = Vec::new();
    let lasting = containers.iter().filter(|c| c.kind != Kind::Ephemeral);
    for container in lasting {
        let share = |share: &&Share<'_>| share.container.field() == container.field();
        let share = shares.iter().find(share);
        let named = judge_one(editor, container, share, gate, &mut found);
        if share.is_some() {
            pins.push(Named {
                field: container.field(),
                container: container.name().to_owned(),
                uuids: named,
            });
        }
        close(editor, container, share.is_some(), gate, &mut found);
    }
    pin(editor, &pins, &mut found);
    found
}

/// The same for ephemeral containers that come to a pod: they are given no GPU.
pub(super) fn judge_ephemeral(
    editor: &mut Editor,
    container: &Container<'_>,
    gate: &Gate<'_>,
) -> Found {
    let mut found = Found::default();
    judge_one(editor, container, None, gate, &mut found);
    close(editor, container, false, gate, &mut found);
    found
}

/// The same for a container of a pod that others place: nothing of it becomes a pin.
pub(super) fn judge_foreign(
    editor: &mut Editor,
    container: &Container<'_>,
    asks: bool,
    gate: &Gate<'_>,
    found: &mut Found,
) {
    for (field, _, meant) in opened(container, gate) {
        match meant {
            Ok(Meant::Nothing) => {}
            Err(No::Denied(message)) => found.refusals.push(Refusal { field, message }),
            Ok(Meant::Everything | Meant::These(_)) | Err(No::Unknown(_)) => {
                found.warnings.push(dropped(container, asks));
            }
        }
    }
    close(editor, container, asks, gate, found);
}

/// What an asking container names in its environment: a place in the pod for each.
struct Named {
    field: String,
    container: String,
    uuids: BTreeSet<String>,
}

/// What one container sets; the uuids that it names, if it asks.
fn judge_one(
    editor: &Editor,
    container: &Container<'_>,
    share: Option<&Share<'_>>,
    gate: &Gate<'_>,
    found: &mut Found,
) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (field, value, meant) in opened(container, gate) {
        match (meant, share) {
            (Ok(Meant::Nothing), _) => {}
            (Ok(Meant::Everything), _) => {
                let warning = dropped(container, share.is_some());
                found.warnings.push(warning);
            }
            (Ok(Meant::These(uuids)), Some(_)) => named.extend(uuids),
            (Ok(Meant::These(uuids)), None) => {
                let warning = reaches_nothing(container, &uuids.join(","));
                found.warnings.push(warning);
            }
            (Err(No::Unknown(_)), None) => {
                let warning = reaches_nothing(container, value.unwrap_or_default());
                found.warnings.push(warning);
            }
            (Err(No::Unknown(message) | No::Denied(message)), _) => {
                found.refusals.push(Refusal { field, message });
            }
        }
    }
    for env in items(&container.raw["env"]) {
        match env["name"].as_str() {
            Some(NARROWED) => found.warnings.extend(narrowed(editor, env, share)),
            Some(MPS_LIMIT) => found.warnings.extend(mps_limit(env)),
            _ => {}
        }
    }
    named
}

/// What a container's own variables would open: field, value and meaning of each. One that is left
/// alone opens nothing.
fn opened<'a>(
    container: &'a Container<'_>,
    gate: &Gate<'_>,
) -> impl Iterator<Item = (String, Option<&'a str>, Result<Meant, No>)> {
    let (left, policy) = (gate.leaves(container), gate.policy);
    let all = items(&container.raw["env"]).iter().enumerate();
    let own = all.filter(move |(_, env)| !left && env["name"] == VISIBLE);
    own.map(move |(index, env)| {
        let value = env.get("value").and_then(Value::as_str);
        let field = format!("{}.env[{index}]", container.field());
        (field, value, meant(value, policy))
    })
}

/// What a value would open.
enum Meant {
    Nothing,
    Everything,
    These(Vec<String>),
}

/// Why a value is not taken.
enum No {
    /// It names no GPU.
    Unknown(String),
    /// None is.
    Denied(String),
}

fn meant(value: Option<&str>, policy: VisibleDevices) -> Result<Meant, No> {
    if value.is_some_and(|value| HARMLESS.contains(&value.trim())) {
        return Ok(Meant::Nothing);
    }
    let shown = value.map_or_else(|| "a reference".to_owned(), |value| format!("{value:?}"));
    if policy == VisibleDevices::Deny {
        let ours = PIN.ours;
        return Err(No::Denied(format!(
            "{shown} opens GPUs past the books; accepted: no {VISIBLE} (annotation {ours} chooses a GPU)"
        )));
    }
    let Some(value) = value else {
        return Ok(Meant::Everything);
    };
    if value.trim() == "all" {
        return Ok(Meant::Everything);
    }
    let uuids = value.split(',').map(|one| match one.trim().parse() {
        Ok(Pin::Uuid(uuid)) => Some(uuid.to_string()),
        Ok(Pin::Place { .. }) | Err(_) => None,
    });
    let uuids: Option<Vec<String>> = uuids.collect();
    let forms = pin::UUIDS;
    let unknown = || format!("{value:?} names no GPU; accepted: {forms}, or no {VISIBLE}");
    uuids
        .map(Meant::These)
        .ok_or_else(|| No::Unknown(unknown()))
}

fn dropped(container: &Container<'_>, asks: bool) -> String {
    let name = container.name();
    if asks {
        format!("container {name}: {VISIBLE} removed: it sees the GPUs that it is given")
    } else {
        format!(
            "container {name}: {VISIBLE} is void now: a container that asks for no GPU sees none"
        )
    }
}

fn reaches_nothing(container: &Container<'_>, written: &str) -> String {
    let name = container.name();
    if container.kind == Kind::Ephemeral {
        return format!(
            "container {name}: {VISIBLE} is void now: an ephemeral container is given no GPU"
        );
    }
    format!(
        "container {name}: {VISIBLE} is void now: ask for a GPU or a MIG instance in its limits and choose it by annotation {}: {written}",
        PIN.ours,
    )
}

/// Takes the variable out of a container that asks; one that does not gets `void`, which
/// also stands before what its image and an `envFrom` set.
fn close(
    editor: &mut Editor,
    container: &Container<'_>,
    asks: bool,
    gate: &Gate<'_>,
    found: &mut Found,
) {
    if gate.leaves(container) {
        return;
    }
    let before = items(&container.raw["env"]);
    let is = |env: &&Value| env["name"] == VISIBLE;
    let own: Vec<&Value> = before.iter().filter(is).collect();
    let harmless = |env: &&Value| {
        let value = env["value"].as_str();
        value.is_some_and(|value| HARMLESS.contains(&value.trim()))
    };
    // The last of several would win: all of them have to be harmless.
    let left = own.iter().all(harmless) && !own.is_empty();
    if left || (own.is_empty() && (asks || !gate.shuts(container))) {
        return;
    }
    if let Some(class) = gate.class().filter(|_| own.is_empty() && !gate.shared) {
        let name = container.name();
        found.warnings.push(format!(
            "container {name}: {VISIBLE} is void now: runtime class {class} would open GPUs to it, and it asks for none"
        ));
    }
    let mut after: Vec<Value> = before.iter().filter(|env| !is(env)).cloned().collect();
    if !asks {
        after.push(json!({"name": VISIBLE, "value": "void"}));
    }
    let index = container.index.to_string();
    let path = ["spec", container.kind.list(), &index, "env"];
    editor.set(&path, Value::Array(after));
}

/// What the containers named becomes the pod's pin, unless it has one. A pin is for
/// all of them, so they have to name the same.
fn pin(editor: &mut Editor, all: &[Named], found: &mut Found) {
    let Some(first) = all.iter().find(|one| !one.uuids.is_empty()) else {
        return;
    };
    let path = ["metadata", "annotations", PIN.ours];
    let annotation = &editor.pod()["metadata"]["annotations"][PIN.ours];
    if let Some(own) = annotation.as_str() {
        let warning = format!("{VISIBLE} removed: annotation {} says {own}", PIN.ours);
        found.warnings.push(warning);
        return;
    }
    let text = |one: &Named| {
        let uuids: Vec<&str> = one.uuids.iter().map(String::as_str).collect();
        uuids.join(",")
    };
    let uuids = text(first);
    if let Some(other) = all.iter().find(|one| one.uuids != first.uuids) {
        let own = match text(other) {
            none if none.is_empty() => "none".to_owned(),
            own => own,
        };
        let (name, ours) = (&other.container, PIN.ours);
        found.refusals.push(Refusal {
            field: first.field.clone(),
            message: format!(
                "{VISIBLE} {uuids:?} would be the choice of all containers that ask for a GPU, and {name} names {own}; accepted: the same in each of them, or annotation {ours} with all that the pod may be given"
            ),
        });
        return;
    }
    found.warnings.push(format!(
        "{VISIBLE} became annotation {}: {uuids}, which is booked",
        PIN.ours
    ));
    editor.set(&path, Value::String(uuids));
}

/// A device that the container will not have: beyond its number, or not its pin.
fn narrowed(editor: &Editor, env: &Value, share: Option<&Share<'_>>) -> Option<String> {
    let value = env["value"].as_str()?;
    let pins = editor.pod()["metadata"]["annotations"][PIN.ours].as_str();
    let count = share.map_or(0, Share::count);
    let unknown = |one: &str| match one.trim().parse::<u64>() {
        Ok(index) => index >= count,
        Err(_) => !one.trim().is_empty() && !pins.unwrap_or_default().contains(one.trim()),
    };
    let first = value.split(',').find(|one| unknown(one))?;
    Some(format!(
        "{NARROWED}: {first:?} is no device that the container will have ({count} in all); it can only narrow what the container is given, annotation {} chooses a GPU",
        PIN.ours
    ))
}

/// The value is a list of `ordinal=size` with M or G.
fn mps_limit(env: &Value) -> Option<String> {
    let value = env["value"].as_str()?;
    let is_size = |size: &str| {
        let number = size.strip_suffix(['M', 'G']).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let is_entry = |entry: &str| {
        let (device, size) = entry.split_once('=').unwrap_or_default();
        !device.is_empty() && device.bytes().all(|b| b.is_ascii_digit()) && is_size(size)
    };
    if value.split(',').all(|entry| is_entry(entry.trim())) {
        return None;
    }
    let size = value
        .trim()
        .trim_end_matches(['B', 'b', 'i'])
        .to_ascii_uppercase();
    let right = if is_size(&size) {
        format!("0={size}")
    } else {
        "0=5G".to_owned()
    };
    Some(format!(
        "{MPS_LIMIT}: {value:?} is no form that MPS reads; write {right} (a device's place and a size in M or G, several with commas between)"
    ))
}
