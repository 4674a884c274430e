//! Reading cards: each question on its own, so that one that is not answered (a symbol missing
//! from an old driver, a feature the card has not) costs only its own fact.

use std::collections::BTreeMap;

use aliquot_core::Mib;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_AFFINITY_SCOPE_NODE, NVML_NVLINK_MAX_LINKS,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as NVML_NVLINK_DEVICE_TYPE_SWITCH,
    nvmlIntNvLinkDeviceType_t, nvmlMemory_t,
};

use crate::facts::{CardFacts, Note};
use crate::links::{LinkEnds, nvlinks, score};
use crate::mig::{self, Cut, Mig};

const BYTES_IN_MIB: u64 = 1 << 20;

/// A card's own facts; `Err` is the note of why it is left out. Links come later.
pub(crate) fn card(
    nvml: &Nvml,
    device: &Device,
    index: u32,
    notes: &mut Vec<Note>,
) -> Result<CardFacts, Note> {
    let place = format!("index {index}");
    let uuid = device
        .uuid()
        .map_err(|e| note(&place, "nvmlDeviceGetUUID", &e))?;
    let model = device
        .name()
        .map_err(|e| note(&uuid, "nvmlDeviceGetName", &e))?;
    let (memory, reserved) =
        memory(nvml, device).map_err(|e| note(&uuid, "nvmlDeviceGetMemoryInfo", &e))?;

    let mut asked = Asked {
        card: uuid.clone(),
        notes,
    };
    let minor = asked.optional("nvmlDeviceGetMinorNumber", device.minor_number());
    let pci = asked.optional("nvmlDeviceGetPciInfo_v3", device.pci_info());
    let capability = device.cuda_compute_capability();
    let capability = asked.optional("nvmlDeviceGetCudaComputeCapability", capability);
    let near = device.memory_affinity(1, NVML_AFFINITY_SCOPE_NODE);
    let near = asked.optional("nvmlDeviceGetMemoryAffinity", near);
    let mig = asked.optional("nvmlDeviceGetMigMode", device.mig_mode());
    let mig = Mig {
        capable: mig.is_some(),
        enabled: mig.as_ref().is_some_and(|mode| mode.current == 1),
        pending: mig.as_ref().is_some_and(|mode| mode.pending == 1),
    };
    let mut cut = Cut::default();
    if mig.enabled {
        match mig::cut_while_on(nvml, device, &asked.card, memory) {
            Ok(found) => cut = found,
            Err(e) => asked.add("nvmlDeviceGetGpuInstances", e.to_string()),
        }
    }
    let events = device.supported_event_types();
    let events = asked.optional("nvmlDeviceGetSupportedEventTypes", events);
    if events.is_some_and(|types| !types.contains(EventTypes::CRITICAL_XID_ERROR)) {
        asked.add(
            "nvmlDeviceGetSupportedEventTypes",
            "no critical errors are reported".to_owned(),
        );
    }

    Ok(CardFacts {
        uuid,
        index,
        minor,
        pci_device_id: pci.as_ref().map(|pci| pci.pci_device_id),
        pci_bus_id: pci.map(|pci| pci.bus_id),
        model,
        memory,
        reserved,
        compute_capability: capability.and_then(|capability| {
            let number = |part: i32| u32::try_from(part).ok();
            Some((number(capability.major)?, number(capability.minor)?))
        }),
        numa: near.and_then(|words| first_bit(&words)),
        mig,
        cut,
        links: BTreeMap::new(),
    })
}

fn first_bit(words: &[std::ffi::c_ulong]) -> Option<u32> {
    let word = *words.first()?;
    (word != 0).then(|| word.trailing_zeros())
}

/// Total and reserved. Version 2 of the call is missing from drivers before 510.
pub(crate) fn memory(nvml: &Nvml, device: &Device) -> Result<(Mib, Option<Mib>), Cause> {
    match device.memory_info() {
        Ok(info) => Ok((mib(info.total), Some(mib(info.reserved)))),
        Err(e) if is_missing(&e) => memory_v1(nvml, device).map(|total| (total, None)),
        Err(e) => Err(e),
    }
}

/// The wrapper lacks version 1.
fn memory_v1(nvml: &Nvml, device: &Device) -> Result<Mib, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the symbol has this signature in every NVML; the handle came from this library,
    // which outlives the borrow; the struct is the call's and lives through it.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(mib(info.total))
}

fn mib(bytes: u64) -> Mib {
    Mib(bytes / BYTES_IN_MIB)
}

/// Whether the driver has no such call.
pub(crate) fn is_missing(error: &Cause) -> bool {
    matches!(
        error,
        Cause::FailedToLoadSymbol(_) | Cause::FunctionNotFound
    )
}

/// A note about a card.
pub(crate) fn note(card: &str, call: &'static str, error: &Cause) -> Note {
    Note {
        card: Some(card.to_owned()),
        call,
        problem: error.to_string(),
    }
}

/// Collects notes about one card.
struct Asked<'a> {
    card: String,
    notes: &'a mut Vec<Note>,
}

impl Asked<'_> {
    /// The answer, if there is one. That a card has not a feature is an answer and no note.
    fn optional<T>(&mut self, call: &'static str, answer: Result<T, Cause>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(Cause::NotSupported) => None,
            Err(e) => {
                self.add(call, e.to_string());
                None
            }
        }
    }

    fn add(&mut self, call: &'static str, problem: String) {
        let card = Some(self.card.clone());
        self.notes.push(Note {
            card,
            call,
            problem,
        });
    }
}

/// Fills in `links` of every card. The devices are those of the cards, in the same order.
pub(crate) fn join(
    nvml: &Nvml,
    cards: &mut [CardFacts],
    devices: &[Device],
    notes: &mut Vec<Note>,
) {
    let places: Vec<Option<PciInfo>> = devices
        .iter()
        .map(|device| device.pci_info().ok())
        .collect();
    let ends: Vec<LinkEnds> = cards
        .iter()
        .zip(devices)
        .map(|(card, device)| link_ends(nvml, &card.uuid, device, &places, notes))
        .collect();
    let uuids: Vec<String> = cards.iter().map(|card| card.uuid.clone()).collect();
    for (a, card) in cards.iter_mut().enumerate() {
        for b in (0..uuids.len()).filter(|b| *b != a) {
            let mut asked = Asked {
                card: card.uuid.clone(),
                notes,
            };
            // The call takes the other device by value, and devices cannot be cloned.
            let other = nvml.device_by_uuid(uuids[b].as_str());
            let level = other.and_then(|other| devices[a].topology_common_ancestor(other));
            let level = asked.optional("nvmlDeviceGetTopologyCommonAncestor", level);
            let score = score(level.as_ref(), nvlinks(&ends, a, b));
            card.links.insert(uuids[b].clone(), score);
        }
    }
}

fn link_ends(
    nvml: &Nvml,
    uuid: &str,
    device: &Device,
    places: &[Option<PciInfo>],
    notes: &mut Vec<Note>,
) -> LinkEnds {
    let mut ends = LinkEnds {
        switches: 0,
        cards: vec![0; places.len()],
    };
    let mut asked = Asked {
        card: uuid.to_owned(),
        notes,
    };
    for link in 0..NVML_NVLINK_MAX_LINKS {
        let wrapper = device.link_wrapper_for(link);
        match wrapper.is_active() {
            Ok(true) => {}
            // InvalidArg: beyond the card's last link.
            Ok(false) | Err(Cause::NotSupported | Cause::InvalidArg) => continue,
            Err(e) => {
                asked.add("nvmlDeviceGetNvLinkState", e.to_string());
                break;
            }
        }
        let remote = asked.optional(
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            wrapper.remote_pci_info(),
        );
        let Some(remote) = remote else { continue };
        if let Some(peer) = places
            .iter()
            .position(|place| is_at(place.as_ref(), &remote))
        {
            ends.cards[peer] += 1;
            continue;
        }
        let kind = remote_kind(nvml, device, link);
        let kind = asked.optional("nvmlDeviceGetNvLinkRemoteDeviceType", kind);
        ends.switches += u32::from(kind == Some(NVML_NVLINK_DEVICE_TYPE_SWITCH));
    }
    ends
}

/// What a link leads to. The wrapper's own answers "unknown" always: it hands the driver a copy.
fn remote_kind(
    nvml: &Nvml,
    device: &Device,
    link: u32,
) -> Result<nvmlIntNvLinkDeviceType_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind: nvmlIntNvLinkDeviceType_t = u32::MAX;
    // SAFETY: as in `memory_v1`.
    nvml_try(unsafe { call(device.handle(), link, &raw mut kind) })?;
    Ok(kind)
}

fn is_at(place: Option<&PciInfo>, remote: &PciInfo) -> bool {
    place.is_some_and(|place| {
        (place.domain, place.bus, place.device) == (remote.domain, remote.bus, remote.device)
    })
}
