//! Memory.

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};

use super::calls;
use crate::ffi::{Out, struct_version};
use crate::library;

calls! {
    /// Version 1 counts the driver's own part as used.
    nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, out: Out<nvmlMemory_t>) {
        let (total, reserved, used) = library::device(device)?.memory();
        let used = used + reserved;
        let free = total - used;
        out.put(nvmlMemory_t { total, free, used })
    }

    nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, out: Out<nvmlMemory_v2_t>) {
        let found = library::device(device)?;
        let (mut total, mut reserved, mut used) = found.memory();
        out.check_version(2)?;
        let own = || {
            library::cuda_processes()
                .ok()?
                .member()?
                .own_memory_limit(library::index(device).ok()?)
        };
        // A process in a cgroup with a limit sees the limit.
        if let Some(limit) = own().filter(|_| found.instance.is_none()) {
            total = total.min(limit.hard);
            (reserved, used) = (0, limit.used.min(total));
        }
        out.put(nvmlMemory_v2_t {
            version: struct_version::<nvmlMemory_v2_t>(2),
            total,
            reserved,
            free: total - reserved - used,
            used,
        })
    }
}
