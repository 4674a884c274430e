//! Reads the inventory with one call per fact, so that a failed call (a symbol missing from an old
//! driver, a feature that the GPU lacks) loses only that fact.

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

use crate::facts::{GpuFacts, Note};
use crate::links::{LinkEnds, nvlinks, score};
use crate::mig::{self, MigLayout, MigMode};

const BYTES_IN_MIB: u64 = 1 << 20;

/// Reads one GPU, without its links; `Err` says why the inventory omits it.
pub(crate) fn read_gpu(
    nvml: &Nvml,
    device: &Device,
    index: u32,
    notes: &mut Vec<Note>,
) -> Result<GpuFacts, Note> {
    let place = format!("index {index}");
    let uuid = device
        .uuid()
        .map_err(|e| note(&place, "nvmlDeviceGetUUID", &e))?;
    let model = device
        .name()
        .map_err(|e| note(&uuid, "nvmlDeviceGetName", &e))?;
    let (memory, reserved) =
        memory(nvml, device).map_err(|e| note(&uuid, "nvmlDeviceGetMemoryInfo", &e))?;

    let mut collector = NoteCollector {
        gpu: uuid.clone(),
        notes,
    };
    let minor = collector.optional("nvmlDeviceGetMinorNumber", device.minor_number());
    let pci = collector.optional("nvmlDeviceGetPciInfo_v3", device.pci_info());
    let capability = device.cuda_compute_capability();
    let capability = collector.optional("nvmlDeviceGetCudaComputeCapability", capability);
    let near = device.memory_affinity(1, NVML_AFFINITY_SCOPE_NODE);
    let near = collector.optional("nvmlDeviceGetMemoryAffinity", near);
    let mig = collector.optional("nvmlDeviceGetMigMode", device.mig_mode());
    let mig = MigMode {
        capable: mig.is_some(),
        enabled: mig.as_ref().is_some_and(|mode| mode.current == 1),
        pending: mig.as_ref().is_some_and(|mode| mode.pending == 1),
    };
    let mut layout = MigLayout::default();
    if mig.enabled {
        match mig::read_enabled_layout(nvml, device, &collector.gpu, memory) {
            Ok(found) => layout = found,
            Err(e) => collector.add("nvmlDeviceGetGpuInstances", e.to_string()),
        }
    }
    let events = device.supported_event_types();
    let events = collector.optional("nvmlDeviceGetSupportedEventTypes", events);
    if events.is_some_and(|types| !types.contains(EventTypes::CRITICAL_XID_ERROR)) {
        collector.add(
            "nvmlDeviceGetSupportedEventTypes",
            "no critical errors are reported".to_owned(),
        );
    }

    Ok(GpuFacts {
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
        layout,
        links: BTreeMap::new(),
    })
}

fn first_bit(words: &[std::ffi::c_ulong]) -> Option<u32> {
    let word = *words.first()?;
    (word != 0).then(|| word.trailing_zeros())
}

/// Total and reserved memory. Drivers before 510 lack version 2 of the call.
pub(crate) fn memory(nvml: &Nvml, device: &Device) -> Result<(Mib, Option<Mib>), Cause> {
    match device.memory_info() {
        Ok(info) => Ok((mib(info.total), Some(mib(info.reserved)))),
        Err(e) if is_missing(&e) => memory_v1(nvml, device).map(|total| (total, None)),
        Err(e) => Err(e),
    }
}

/// `nvml_wrapper` lacks version 1.
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

/// Whether the driver lacks the call.
pub(crate) fn is_missing(error: &Cause) -> bool {
    matches!(
        error,
        Cause::FailedToLoadSymbol(_) | Cause::FunctionNotFound
    )
}

/// A note about a GPU.
pub(crate) fn note(gpu: &str, call: &'static str, error: &Cause) -> Note {
    Note {
        gpu: Some(gpu.to_owned()),
        call,
        problem: error.to_string(),
    }
}

/// Collects notes about one GPU.
struct NoteCollector<'a> {
    gpu: String,
    notes: &'a mut Vec<Note>,
}

impl NoteCollector<'_> {
    /// The value, if the call succeeded. A feature that the GPU lacks is not worth a note.
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
        let gpu = Some(self.gpu.clone());
        self.notes.push(Note { gpu, call, problem });
    }
}

/// Fills in `links` of every GPU; `devices` are their handles in the same order.
pub(crate) fn fill_links(
    nvml: &Nvml,
    gpus: &mut [GpuFacts],
    devices: &[Device],
    notes: &mut Vec<Note>,
) {
    let places: Vec<Option<PciInfo>> = devices
        .iter()
        .map(|device| device.pci_info().ok())
        .collect();
    let ends: Vec<LinkEnds> = gpus
        .iter()
        .zip(devices)
        .map(|(gpu, device)| link_ends(nvml, &gpu.uuid, device, &places, notes))
        .collect();
    let uuids: Vec<String> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    for (a, gpu) in gpus.iter_mut().enumerate() {
        for b in (0..uuids.len()).filter(|b| *b != a) {
            let mut collector = NoteCollector {
                gpu: gpu.uuid.clone(),
                notes,
            };
            // The call takes the other device by value, and devices cannot be cloned.
            let other = nvml.device_by_uuid(uuids[b].as_str());
            let level = other.and_then(|other| devices[a].topology_common_ancestor(other));
            let level = collector.optional("nvmlDeviceGetTopologyCommonAncestor", level);
            let score = score(level.as_ref(), nvlinks(&ends, a, b));
            gpu.links.insert(uuids[b].clone(), score);
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
        gpus: vec![0; places.len()],
    };
    let mut collector = NoteCollector {
        gpu: uuid.to_owned(),
        notes,
    };
    for link in 0..NVML_NVLINK_MAX_LINKS {
        let wrapper = device.link_wrapper_for(link);
        match wrapper.is_active() {
            Ok(true) => {}
            // InvalidArg: past the GPU's last link.
            Ok(false) | Err(Cause::NotSupported | Cause::InvalidArg) => continue,
            Err(e) => {
                collector.add("nvmlDeviceGetNvLinkState", e.to_string());
                break;
            }
        }
        let remote = collector.optional(
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            wrapper.remote_pci_info(),
        );
        let Some(remote) = remote else { continue };
        if let Some(peer) = places
            .iter()
            .position(|place| is_at(place.as_ref(), &remote))
        {
            ends.gpus[peer] += 1;
            continue;
        }
        let kind = remote_kind(nvml, device, link);
        let kind = collector.optional("nvmlDeviceGetNvLinkRemoteDeviceType", kind);
        ends.switches += u32::from(kind == Some(NVML_NVLINK_DEVICE_TYPE_SWITCH));
    }
    ends
}

/// The type of a link's remote end. `nvml_wrapper`'s own call always returns "unknown": it passes
/// the driver a copy.
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
