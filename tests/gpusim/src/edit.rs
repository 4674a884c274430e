//! Changes to a running machine as functions of the model, without IO: set a field, raise an XID,
//! add and remove processes.

use aliquot_gpusim_model::mig::WHOLE_GPU;

use crate::machine::MachineError;
use crate::model::{
    ABSENT, FABRIC_COMPLETED, FABRIC_IN_PROGRESS, FABRIC_NOT_STARTED, FABRIC_NOT_SUPPORTED, Gpu,
    MAX_PROCESSES, MAX_XIDS, Machine, OFF, ON, PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED,
    PROCESS_UTILISATION_NOT_SUPPORTED, PROCESS_UTILISATION_OK, Process, ProcessKind, Xid, text,
};

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// The profile `harsh`: a driver and a GPU as unkind as real ones.
const HARSH: [(&str, &str); 12] = [
    ("reservedMib", "450"),
    ("contextMib", "300"),
    ("contextGrowthMib", "200"),
    ("switchUs", "200"),
    ("markLatencyUs", "5"),
    ("launchUs", "4"),
    ("overlap", "on"),
    ("otherAddresses", "on"),
    ("processUtilisation", "legacyNotSupported"),
    ("strangeSamples", "on"),
    ("bytesWithoutManaged", "on"),
    ("importedTwice", "on"),
];

/// What the profile `blind` sets after [`HARSH`]: the driver shows the host nothing about processes.
const BLIND: [(&str, &str); 2] = [
    ("processUtilisation", "notSupported"),
    ("bytesNotAvailable", "on"),
];

/// The index of the GPU that `given` (an index or a uuid) names.
pub(crate) fn index_of(machine: &Machine, given: &str) -> Result<usize, MachineError> {
    let gpus = machine.existing_gpus();
    let found = match given.parse::<usize>() {
        Ok(index) => (index < gpus.len()).then_some(index),
        Err(_) => gpus.iter().position(|gpu| text(&gpu.uuid) == given),
    };
    found.ok_or_else(|| MachineError(format!("no GPU {given} among {}", gpus.len())))
}

/// Sets a field of [`FIELDS`] from its text. `health=ok` also clears a requested reset.
pub(crate) fn set(gpu: &mut Gpu, field: &str, value: &str) -> Result<(), MachineError> {
    let Some((_, expected)) = FIELDS.iter().find(|(name, _)| *name == field) else {
        let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        let error = format!("unknown field {field:?}; expected one of: {names}");
        return Err(MachineError(error));
    };
    let error = || format!("{field}: {value:?} is invalid; expected: {expected}");
    try_set(gpu, field, value).ok_or_else(|| MachineError(error()))
}

/// Declares the fields: name, what it accepts, and how it is set.
macro_rules! fields {
    ($gpu:ident, $value:ident: $($name:literal $expected:literal => $set:expr;)*) => {
        /// Names that [`set`] knows, each with what it accepts.
        const FIELDS: &[(&str, &str)] = &[$(($name, $expected)),*];

        fn try_set($gpu: &mut Gpu, field: &str, $value: &str) -> Option<()> {
            match field {
                $($name => $set,)*
                _ => return None,
            }
            Some(())
        }
    };
}

fields! { gpu, value:
    "health" "ok | lost" => match value {
        "ok" => (gpu.lost, gpu.recovery_action) = (0, 0),
        "lost" => gpu.lost = 1,
        _ => return None,
    };
    "fabric" "absent | notStarted | inProgress | completed | failed"
        => (gpu.fabric_state, gpu.fabric_status) = fabric(value)?;
    "mig" "on | off | absent" => (gpu.mig, gpu.mig_pending) = (switch(value)?, switch(value)?);
    "cutFaults" "how many creations of compute instances will fail"
        => gpu.creation_failures = word(value)?;
    "computeMode" "default | prohibited | exclusiveProcess"
        => gpu.compute_mode = compute_mode(value)?;
    "contextMib" "MiB that one CUDA context takes" => gpu.context_bytes = mib(value)?;
    "clockPpm" "parts per million by which the GPU's clock is fast"
        => gpu.clock_ppm = value.parse().ok()?;
    "clockSwing" "percent by which kernel times vary"
        => gpu.clock_swing = word(value).filter(|percent| *percent <= 100)?;
    "profile" "harsh | blind (README.md), on a GPU of more than 450 MiB" => {
        let blind: &[_] = match value {
            "harsh" => &[],
            "blind" => &BLIND,
            _ => return None,
        };
        let mut fields = HARSH.iter().chain(blind);
        fields.try_for_each(|(field, value)| try_set(gpu, field, value))?;
    };
    "reservedMib" "MiB that the driver reserves, less than the memory" => {
        gpu.memory_reserved = mib(value).filter(|bytes| *bytes < gpu.memory_total)?;
    };
    "contextGrowthMib" "MiB by which a context grows at its first launch"
        => gpu.context_growth_bytes = mib(value)?;
    "switchUs" "microseconds lost when another tenant's work runs, up to 100000"
        => gpu.switch_us = short_us(value)?;
    "markLatencyUs" "microseconds until an event is ready, up to 100000"
        => gpu.mark_latency_us = short_us(value)?;
    "launchUs" "microseconds of CPU time of a launch call, up to 100000"
        => gpu.launch_us = short_us(value)?;
    "overlap" "on | off" => gpu.overlap = flag(value)?;
    "otherAddresses" "on | off" => gpu.other_addresses = flag(value)?;
    "processUtilisation" "ok | legacyNotSupported | notSupported"
        => gpu.process_utilisation = process_utilisation(value)?;
    "strangeSamples" "on | off" => gpu.strange_samples = flag(value)?;
    "bytesNotAvailable" "on | off" => gpu.bytes_not_available = flag(value)?;
    "bytesWithoutManaged" "on | off" => gpu.bytes_without_managed = flag(value)?;
    "importedTwice" "on | off" => gpu.imported_twice = flag(value)?;
    "copyGibps" "GiB that fills and copies move within the GPU in a second, up to 100000; 0: they take no time"
        => gpu.copy_gib_per_second = number(value).filter(|gib| *gib <= 100_000)?;
}

fn word(value: &str) -> Option<u32> {
    value.parse().ok()
}

fn number(value: &str) -> Option<u64> {
    value.parse().ok()
}

/// MiB in bytes.
fn mib(value: &str) -> Option<u64> {
    number(value)?.checked_mul(MIB)
}

fn short_us(value: &str) -> Option<u32> {
    word(value).filter(|us| *us <= 100_000)
}

/// State and status of a registration with the fabric.
fn fabric(value: &str) -> Option<(u32, u32)> {
    /// `NVML_ERROR_INSUFFICIENT_RESOURCES`
    const FAILED: u32 = 23;
    match value {
        "absent" => Some((FABRIC_NOT_SUPPORTED, 0)),
        "notStarted" => Some((FABRIC_NOT_STARTED, 0)),
        "inProgress" => Some((FABRIC_IN_PROGRESS, 0)),
        "completed" => Some((FABRIC_COMPLETED, 0)),
        "failed" => Some((FABRIC_COMPLETED, FAILED)),
        _ => None,
    }
}

fn switch(value: &str) -> Option<u32> {
    match value {
        "absent" => Some(ABSENT),
        "off" => Some(OFF),
        "on" => Some(ON),
        _ => None,
    }
}

/// 1 or 0.
fn flag(value: &str) -> Option<u32> {
    switch(value)
        .filter(|state| *state != ABSENT)
        .map(|state| u32::from(state == ON))
}

fn process_utilisation(value: &str) -> Option<u32> {
    match value {
        "ok" => Some(PROCESS_UTILISATION_OK),
        "legacyNotSupported" => Some(PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED),
        "notSupported" => Some(PROCESS_UTILISATION_NOT_SUPPORTED),
        _ => None,
    }
}

fn compute_mode(value: &str) -> Option<u32> {
    match value {
        "default" => Some(0),
        "prohibited" => Some(2),
        "exclusiveProcess" => Some(3),
        _ => None,
    }
}

/// Reports an XID of a GPU or, where `instance` has its numbers, of an instance (GPU and compute).
/// Codes after which NVIDIA's catalogue recommends a reset make the driver request one.
pub(crate) fn raise_xid(machine: &mut Machine, index: usize, code: u32, instance: (u32, u32)) {
    let sequence = machine.next_xid;
    machine.next_xid += 1;
    let place = sequence % MAX_XIDS as u64;
    let place = usize::try_from(place).expect("less than MAX_XIDS");
    let gpu = u32::try_from(index).expect("less than MAX_GPUS");
    machine.xids[place] = Xid {
        sequence,
        gpu,
        code,
        gpu_instance: instance.0,
        compute_instance: instance.1,
    };
    // 48, 95: uncorrectable memory errors; 62, 119, 120: halted firmware; 64: failed remapping;
    // 74: NVLink; 79: fell off the bus; 140: unrecovered ECC. 79 needs more than a reset.
    match code {
        48 | 62 | 64 | 74 | 95 | 119 | 120 | 140 => machine.gpus[index].recovery_action = 1,
        79 => machine.gpus[index].recovery_action = 2,
        _ => {}
    }
}

/// Adds a process to a GPU, or changes the one with this id and kind.
pub(crate) fn add_process(gpu: &mut Gpu, process: Process) -> Result<(), MachineError> {
    let count = gpu.running().len();
    let same = |known: &Process| known.pid == process.pid && known.kind == process.kind;
    if let Some(known) = gpu.running().iter().position(same) {
        gpu.processes[known] = process;
    } else if count < MAX_PROCESSES {
        gpu.processes[count] = process;
        gpu.process_count += 1;
    } else {
        let error = format!("the GPU already has {MAX_PROCESSES} processes");
        return Err(MachineError(error));
    }
    Ok(())
}

/// Whether these are the numbers of an instance that exists; those of the whole GPU are.
pub(crate) fn has_instance(gpu: &Gpu, instance: (u32, u32)) -> Result<(), MachineError> {
    let there = gpu.instances(0).into_iter();
    let mut there = there.map(|found| (found.gpu.id, found.compute.id));
    if instance == (WHOLE_GPU, WHOLE_GPU) || there.any(|known| known == instance) {
        return Ok(());
    }
    let error = format!("the GPU has no instance {instance:?}");
    Err(MachineError(error))
}

/// A CUDA process that uses memory only.
#[must_use]
pub fn compute_process(pid: u32, memory_mib: u64) -> Process {
    Process {
        memory: memory_mib.saturating_mul(MIB),
        managed: 0,
        imported: 0,
        pid,
        kind: ProcessKind::Compute as u32,
        sm: 0,
        bandwidth: 0,
        gpu_instance: WHOLE_GPU,
        compute_instance: WHOLE_GPU,
    }
}

pub(crate) fn remove_process(gpu: &mut Gpu, pid: u32) -> Result<(), MachineError> {
    let left: Vec<Process> = gpu
        .running()
        .iter()
        .filter(|p| p.pid != pid)
        .copied()
        .collect();
    if left.len() == gpu.running().len() {
        return Err(MachineError(format!("no process {pid} on the GPU")));
    }
    gpu.processes[..left.len()].copy_from_slice(&left);
    gpu.process_count = u32::try_from(left.len()).expect("at most MAX_PROCESSES");
    Ok(())
}
