//! The links of each GPU to the others: a score from NVML's topology levels and `NVLink`s.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_NVLINK_MAX_LINKS,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as NVML_NVLINK_DEVICE_TYPE_SWITCH,
    nvmlIntNvLinkDeviceType_t,
};

use crate::facts::{GpuFacts, Note};
use crate::inventory::NoteCollector;

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
    // SAFETY: the symbol has this signature in every NVML; the handle came from this library, which
    // outlives the borrow; the place for the answer lives through the call.
    nvml_try(unsafe { call(device.handle(), link, &raw mut kind) })?;
    Ok(kind)
}

fn is_at(place: Option<&PciInfo>, remote: &PciInfo) -> bool {
    place.is_some_and(|place| {
        (place.domain, place.bus, place.device) == (remote.domain, remote.bus, remote.device)
    })
}

/// Where a GPU's active `NVLink`s lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LinkEnds {
    /// Number of links to switches.
    switches: u32,
    /// Number of links to the GPU at this index of the inventory.
    gpus: Vec<u32>,
}

/// `NVLink`s between the GPUs at indices `a` and `b`, direct and through switches. Where the two
/// sides differ (a link is half down), the lesser counts.
fn nvlinks(ends: &[LinkEnds], a: usize, b: usize) -> u32 {
    let direct = |from: usize, to: usize| ends[from].gpus.get(to).copied().unwrap_or(0);
    direct(a, b).min(direct(b, a)) + ends[a].switches.min(ends[b].switches)
}

/// The pair's score; the scale of NVIDIA's allocator, which HAMi uses too.
fn score(level: Option<&TopologyLevel>, nvlinks: u32) -> u32 {
    let near = match level {
        Some(TopologyLevel::Internal) => 60,
        Some(TopologyLevel::Single) => 50,
        Some(TopologyLevel::Multiple) => 40,
        Some(TopologyLevel::HostBridge) => 30,
        Some(TopologyLevel::Node) => 20,
        Some(TopologyLevel::System) => 10,
        None => 0,
    };
    near + 100 * nvlinks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(switches: u32, gpus: &[u32]) -> LinkEnds {
        LinkEnds {
            switches,
            gpus: gpus.to_vec(),
        }
    }

    #[test]
    fn scores_nvlinks_above_pcie_and_counts_lesser_side() {
        use TopologyLevel::{Internal, Node, Single, System};
        let none = || ends(0, &[]);
        for (a, b, level, expected) in [
            (none(), none(), None, 0),
            (none(), none(), Some(System), 10),
            (none(), none(), Some(Internal), 60),
            (ends(12, &[]), ends(12, &[]), Some(Node), 1220),
            (ends(12, &[]), ends(11, &[]), Some(System), 1110),
            (ends(12, &[]), none(), Some(Node), 20),
            (ends(0, &[0, 4]), ends(0, &[4, 0]), Some(Single), 450),
            (ends(0, &[0, 4]), ends(0, &[3, 0]), Some(Single), 350),
            (ends(1, &[0, 2]), ends(1, &[2]), None, 300),
        ] {
            let ends = [a, b];
            let (there, back) = (nvlinks(&ends, 0, 1), nvlinks(&ends, 1, 0));
            assert_eq!(there, back);
            assert_eq!(score(level.as_ref(), there), expected);
        }
    }
}
