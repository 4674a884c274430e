//! The machine as JSON.

use serde_json::{Value, json};

use crate::edit::MIB;
use crate::mig::instances;
use crate::model::{Machine, text};

/// What tests look up of the machine; memory in MiB.
#[must_use]
pub fn json(machine: &Machine) -> Value {
    let gpus = (0..machine.existing_gpus().len()).map(|index| gpu_json(machine, index));
    json!({"driver": text(&machine.driver), "gpus": gpus.collect::<Vec<_>>()})
}

fn gpu_json(machine: &Machine, index: usize) -> Value {
    let gpu = &machine.gpus[index];
    let processes = gpu.running().iter();
    let processes = processes.map(|one| json!({"pid": one.pid, "memory": one.memory / MIB}));
    let instances = gpu.instances(index);
    let instances = instances.iter().map(|one| {
        json!({
            "uuid": gpu.mig_uuid(&one.compute),
            "gpuInstance": one.gpu.id,
            "computeInstance": one.compute.id,
            "profile": instances::name(gpu, &one.gpu, &one.compute),
            "start": one.gpu.start,
        })
    });
    json!({
        "uuid": text(&gpu.uuid),
        "model": text(&gpu.model),
        "serial": text(&gpu.serial),
        "pci": gpu.bus_id(),
        "memoryUsed": gpu.used() / MIB,
        "computeMode": match gpu.compute_mode {
            2 => "prohibited",
            3 => "exclusiveProcess",
            _ => "default",
        },
        "instances": instances.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
    })
}
