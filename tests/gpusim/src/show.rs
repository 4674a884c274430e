//! The machine as JSON.

use serde_json::{Value, json};

use crate::mig::instances;
use crate::model::{Machine, text};

/// What tests look up of the machine.
pub(crate) fn json(machine: &Machine) -> Value {
    let gpus = (0..machine.existing_gpus().len()).map(|index| gpu_json(machine, index));
    json!({"gpus": gpus.collect::<Vec<_>>()})
}

fn gpu_json(machine: &Machine, index: usize) -> Value {
    let gpu = &machine.gpus[index];
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
        "pci": gpu.bus_id(),
        "computeMode": match gpu.compute_mode {
            2 => "prohibited",
            3 => "exclusiveProcess",
            _ => "default",
        },
        "instances": instances.collect::<Vec<_>>(),
    })
}
