//! Reads the facts of a GPU with one call for each, so that a failed call (a symbol missing from an old
//! driver, a feature that the GPU lacks) loses only that fact.

use std::collections::BTreeMap;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::NVML_AFFINITY_SCOPE_NODE;

use crate::calls::memory;
use crate::facts::{GpuFacts, Note};
use crate::mig::{self, MigLayout, MigMode};

/// Why the inventory omits a GPU.
pub(crate) struct Omission {
    pub(crate) note: Note,
    /// The GPU lacks what was asked: it will never answer.
    pub(crate) is_unsupported: bool,
}

/// Reads one GPU, without its links; `Err` says why the inventory omits it.
pub(crate) fn read_gpu(
    nvml: &Nvml,
    device: &Device,
    index: u32,
    notes: &mut Vec<Note>,
) -> Result<GpuFacts, Omission> {
    let place = format!("index {index}");
    let uuid = device
        .uuid()
        .map_err(|e| omission(&place, "nvmlDeviceGetUUID", &e))?;
    let model = device
        .name()
        .map_err(|e| omission(&uuid, "nvmlDeviceGetName", &e))?;
    let (memory, reserved) =
        memory(nvml, device).map_err(|e| omission(&uuid, "nvmlDeviceGetMemoryInfo", &e))?;

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

pub(crate) fn omission(gpu: &str, call: &'static str, error: &Cause) -> Omission {
    Omission {
        note: Note {
            gpu: gpu.to_owned(),
            call,
            problem: error.to_string(),
        },
        is_unsupported: matches!(error, Cause::NotSupported),
    }
}

pub(crate) struct NoteCollector<'a> {
    pub(crate) gpu: String,
    pub(crate) notes: &'a mut Vec<Note>,
}

impl NoteCollector<'_> {
    /// The value, if the call succeeded. A feature that the GPU lacks is not worth a note.
    pub(crate) fn optional<T>(
        &mut self,
        call: &'static str,
        answer: Result<T, Cause>,
    ) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(Cause::NotSupported) => None,
            Err(e) => {
                self.add(call, e.to_string());
                None
            }
        }
    }

    pub(crate) fn add(&mut self, call: &'static str, problem: String) {
        let gpu = self.gpu.clone();
        self.notes.push(Note { gpu, call, problem });
    }
}
