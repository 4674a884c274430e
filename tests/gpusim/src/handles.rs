//! Handles of what may come and go: instances. A handle is a number that was never used before
//! with a mark for its kind, never read through; one whose instance is gone names nothing.

use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t};

/// Marks, in bits that no address of a process has.
const DEVICE: usize = 0x4D << 56;
const GPU_INSTANCE: usize = 0x47 << 56;
const COMPUTE_INSTANCE: usize = 0x43 << 56;
const SERIAL: usize = (1 << 56) - 1;

pub(crate) fn mig_device(serial: u64) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(marked(DEVICE, serial))
}

pub(crate) fn gpu_instance(serial: u64) -> nvmlGpuInstance_t {
    std::ptr::without_provenance_mut(marked(GPU_INSTANCE, serial))
}

pub(crate) fn compute_instance(serial: u64) -> nvmlComputeInstance_t {
    std::ptr::without_provenance_mut(marked(COMPUTE_INSTANCE, serial))
}

/// The compute instance that is behind a device; `None` for a GPU.
pub(crate) fn serial_of_device(device: nvmlDevice_t) -> Option<u64> {
    serial(DEVICE, device.addr())
}

pub(crate) fn serial_of_gpu_instance(instance: nvmlGpuInstance_t) -> Option<u64> {
    serial(GPU_INSTANCE, instance.addr())
}

pub(crate) fn serial_of_compute_instance(instance: nvmlComputeInstance_t) -> Option<u64> {
    serial(COMPUTE_INSTANCE, instance.addr())
}

fn marked(kind: usize, serial: u64) -> usize {
    kind | usize::try_from(serial).unwrap_or(0) & SERIAL
}

fn serial(kind: usize, handle: usize) -> Option<u64> {
    (handle & !SERIAL == kind).then_some((handle & SERIAL) as u64)
}
