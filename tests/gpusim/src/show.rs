//! The machine as JSON, for people and scripts.

use serde_json::{Value, json};

use crate::edit::MIB;
use crate::mig::instances;
use crate::model::{
    ABSENT, FABRIC_COMPLETED, FABRIC_IN_PROGRESS, FABRIC_NOT_STARTED, Gpu, LINK_NONE, LINK_SWITCH,
    Machine, ON, PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED, PROCESS_UTILISATION_NOT_SUPPORTED, text,
};

/// The whole machine; memory in MiB.
#[must_use]
pub fn json(machine: &Machine) -> Value {
    let gpus = (0..machine.existing_gpus().len()).map(|index| gpu_json(machine, index));
    let newest = machine.next_xid.saturating_sub(1);
    let mut xids: Vec<_> = machine.xids.iter().filter(|xid| xid.sequence > 0).collect();
    xids.sort_by_key(|xid| xid.sequence);
    let xids = xids
        .iter()
        .map(|xid| json!({"sequence": xid.sequence, "gpu": xid.gpu, "code": xid.code}));
    json!({
        "driver": text(&machine.driver),
        "nvml": text(&machine.nvml),
        "cuda": format!("{}.{}", machine.cuda / 1000, machine.cuda % 1000 / 10),
        "gpus": gpus.collect::<Vec<_>>(),
        "xids": xids.collect::<Vec<_>>(),
        "lastXid": newest,
    })
}

fn gpu_json(machine: &Machine, index: usize) -> Value {
    let gpu = &machine.gpus[index];
    let links: Vec<Value> = gpu
        .nvlink
        .iter()
        .filter(|leads| **leads != LINK_NONE)
        .map(|leads| match *leads {
            LINK_SWITCH => json!("switch"),
            peer => json!(peer - 1),
        })
        .collect();
    let processes: Vec<Value> = gpu
        .running()
        .iter()
        .map(|p| json!({"pid": p.pid, "memory": p.memory / MIB, "utilisation": p.sm}))
        .collect();
    let instances: Vec<Value> = gpu
        .instances(index)
        .iter()
        .map(|one| {
            json!({
                "uuid": gpu.mig_uuid(&one.compute),
                "gpuInstance": one.gpu.id,
                "computeInstance": one.compute.id,
                "profile": instances::name(gpu, &one.gpu, &one.compute),
                "start": one.gpu.start,
                "memory": one.gpu.memory / MIB,
            })
        })
        .collect();
    json!({
        "index": index,
        "uuid": text(&gpu.uuid),
        "model": text(&gpu.model),
        "serial": text(&gpu.serial),
        "minor": gpu.minor,
        "pci": gpu.bus_id(),
        "numa": gpu.numa,
        "memory": gpu.memory_total / MIB,
        "memoryReserved": gpu.memory_reserved / MIB,
        "memoryUsed": gpu.used() / MIB,
        "computeCapability": format!("{}.{}", gpu.capability_major, gpu.capability_minor),
        "computeMode": match gpu.compute_mode {
            2 => "prohibited",
            3 => "exclusiveProcess",
            _ => "default",
        },
        "mig": switch(gpu.mig),
        "migPending": switch(gpu.mig_pending),
        "instances": instances,
        "health": if gpu.lost == 0 { "ok" } else { "lost" },
        "recoveryAction": gpu.recovery_action,
        "fabric": fabric(gpu),
        "utilisation": gpu.utilisation,
        "temperature": gpu.temperature,
        "power": gpu.power,
        "nvlinks": links,
        "settings": settings(gpu),
        "processes": processes,
    })
}

/// What makes the driver more or less kind, by the names of `gpusim set`.
fn settings(gpu: &Gpu) -> Value {
    let flag = |value: u32| if value == 0 { "off" } else { "on" };
    json!({
        "contextMib": gpu.context_bytes / MIB,
        "contextGrowthMib": gpu.context_growth_bytes / MIB,
        "sliceUs": gpu.slice_us,
        "switchUs": gpu.switch_us,
        "markLatencyUs": gpu.mark_latency_us,
        "launchUs": gpu.launch_us,
        "overlap": flag(gpu.overlap),
        "otherAddresses": flag(gpu.other_addresses),
        "processUtilisation": match gpu.process_utilisation {
            PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED => "legacyNotSupported",
            PROCESS_UTILISATION_NOT_SUPPORTED => "notSupported",
            _ => "ok",
        },
        "strangeSamples": flag(gpu.strange_samples),
        "bytesNotAvailable": flag(gpu.bytes_not_available),
        "bytesWithoutManaged": flag(gpu.bytes_without_managed),
        "importedTwice": flag(gpu.imported_twice),
        "copyGibps": gpu.copy_gib_per_second,
    })
}

fn fabric(gpu: &Gpu) -> &'static str {
    match (gpu.fabric_state, gpu.fabric_status) {
        (FABRIC_NOT_STARTED, _) => "notStarted",
        (FABRIC_IN_PROGRESS, _) => "inProgress",
        (FABRIC_COMPLETED, 0) => "completed",
        (FABRIC_COMPLETED, _) => "failed",
        _ => "absent",
    }
}

fn switch(value: u32) -> &'static str {
    match value {
        ABSENT => "absent",
        ON => "on",
        _ => "off",
    }
}
