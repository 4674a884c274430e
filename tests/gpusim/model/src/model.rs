//! The machine model: plain fixed-size records, the same bytes in every process.

use bytemuck::{Pod, Zeroable};

use crate::mig::{ComputeInstance, GpuInstance, MAX_INSTANCES};

/// Most GPUs that one machine may have.
pub const MAX_GPUS: usize = 16;
/// Most processes on one GPU.
pub const MAX_PROCESSES: usize = 128;
/// Most `NVLink` connections of one GPU.
pub const MAX_LINKS: usize = 18;
/// XIDs retained; a reader further behind misses the oldest.
pub const MAX_XIDS: usize = 64;

/// `Gpu::nvlink` value: nothing connected.
pub const LINK_NONE: u32 = 0;
/// `Gpu::nvlink` value: connected to a switch. Values 1 to [`MAX_GPUS`] are peer index + 1.
pub const LINK_SWITCH: u32 = 255;

/// `Gpu::fabric_state`: the GPU is not part of a fabric.
pub const FABRIC_NOT_SUPPORTED: u32 = 0;
/// The registration with the fabric has not started.
pub const FABRIC_NOT_STARTED: u32 = 1;
/// The registration has started.
pub const FABRIC_IN_PROGRESS: u32 = 2;
/// The registration has ended, with `Gpu::fabric_status`.
pub const FABRIC_COMPLETED: u32 = 3;

/// A switch of the hardware that a GPU may not have: 0 absent, 1 off, 2 on.
pub const ABSENT: u32 = 0;
/// Present and off.
pub const OFF: u32 = 1;
/// Present and on.
pub const ON: u32 = 2;

/// `Gpu::process_utilisation`: both calls for the utilisation of processes work.
pub const PROCESS_UTILISATION_OK: u32 = 0;
/// `nvmlDeviceGetProcessUtilization` is not supported, `nvmlDeviceGetProcessesUtilizationInfo` works.
pub const PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED: u32 = 1;
/// Neither call is supported.
pub const PROCESS_UTILISATION_NOT_SUPPORTED: u32 = 2;

/// A machine with its driver and GPUs.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct Machine {
    /// Driver version, zero-padded text; empty while no driver is loaded.
    pub driver: [u8; 80],
    /// CUDA version as NVML gives it: 1000 × major + 10 × minor.
    pub cuda: u32,
    /// How many of `gpus` exist.
    pub gpu_count: u32,
    /// The node's folder of device nodes, zero-padded text; empty: the machine has none, and the
    /// environment stands for them.
    pub dev: [u8; 256],
    /// Sequence number that the next XID will get; the first is 1.
    pub next_xid: u64,
    /// Serial of the last instance that was made.
    pub last_serial: u64,
    /// The last XIDs, at `sequence % MAX_XIDS`.
    pub xids: [Xid; MAX_XIDS],
    /// The GPUs, by NVML index.
    pub gpus: [Gpu; MAX_GPUS],
}

/// One critical error that the driver reported.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Xid {
    /// Place in the machine's history, from 1; 0 = none yet.
    pub sequence: u64,
    /// Index of the GPU.
    pub gpu: u32,
    /// NVIDIA's XID number.
    pub code: u32,
    /// The GPU instance that it came from, or [`WHOLE_GPU`](crate::mig::WHOLE_GPU).
    pub gpu_instance: u32,
    /// The compute instance, likewise.
    pub compute_instance: u32,
}

/// What a process does on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProcessKind {
    /// CUDA.
    Compute = 0,
    /// Graphics.
    Graphics = 1,
    /// CUDA through the MPS server.
    Mps = 2,
}

/// One process on a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Process {
    /// Bytes of GPU memory.
    pub memory: u64,
    /// Bytes of them that are managed memory.
    pub managed: u64,
    /// Bytes that it imported from other processes, which have them in their `memory`.
    pub imported: u64,
    /// Process id on the host.
    pub pid: u32,
    /// A [`ProcessKind`].
    pub kind: u32,
    /// Percent of the GPU's compute.
    pub sm: u32,
    /// Percent of the GPU's memory bandwidth.
    pub bandwidth: u32,
    /// The GPU instance that it uses, or [`WHOLE_GPU`](crate::mig::WHOLE_GPU).
    pub gpu_instance: u32,
    /// The compute instance, likewise.
    pub compute_instance: u32,
}

/// One GPU. Every number in NVML's own unit.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct Gpu {
    /// `GPU-…`, zero-padded text.
    pub uuid: [u8; 96],
    /// Marketing name, zero-padded text.
    pub model: [u8; 96],
    /// Serial number, zero-padded text.
    pub serial: [u8; 32],
    /// Bytes of memory, the driver's own part included.
    pub memory_total: u64,
    /// Bytes reserved by the driver.
    pub memory_reserved: u64,
    /// Bytes used by no process in `processes`.
    pub memory_used: u64,
    /// Bytes that one CUDA context takes.
    pub context_bytes: u64,
    /// Bytes by which a context grows when a kernel is first launched in it.
    pub context_growth_bytes: u64,
    /// Percent by which kernels get slower and faster in periods of 10 seconds.
    pub clock_swing: u32,
    /// Parts per million by which the GPU's own clock, which times events, is fast.
    pub clock_ppm: i32,
    /// Microseconds in which nobody's work runs when the GPU changes from one tenant to another.
    pub switch_us: u32,
    /// Microseconds from the work before an event, or from its record on an idle stream, until the
    /// event is ready.
    pub mark_latency_us: u32,
    /// Microseconds of CPU time of a launch call.
    pub launch_us: u32,
    /// 1: work in different streams of one process runs at the same time.
    pub overlap: u32,
    /// 1: `cuGetProcAddress` answers other addresses than `dlsym`.
    pub other_addresses: u32,
    /// Which calls give the utilisation of processes, such as
    /// [`PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED`].
    pub process_utilisation: u32,
    /// 1: the utilisation of processes has samples above 100 and of ended processes besides.
    pub strange_samples: u32,
    /// 1: NVML does not know the bytes of a process.
    pub bytes_not_available: u32,
    /// 1: NVML's bytes of a process lack its managed memory.
    pub bytes_without_managed: u32,
    /// 1: NVML's bytes of a process have the memory that it imported from another.
    pub imported_twice: u32,
    /// GiB that fills and copies move within the GPU in a second; 0: they take no time.
    pub copy_gib_per_second: u64,
    /// Device-node number (`/dev/nvidia<minor>`).
    pub minor: u32,
    /// PCI bus; domain and device are 0.
    pub pci_bus: u32,
    /// PCI device id, the vendor in the low half.
    pub pci_device_id: u32,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// Compute capability, before the dot.
    pub capability_major: u32,
    /// Compute capability, after the dot.
    pub capability_minor: u32,
    /// CUDA cores.
    pub cores: u32,
    /// NUMA node, -1 = none.
    pub numa: i32,
    /// MIG mode now: [`ABSENT`], [`OFF`] or [`ON`].
    pub mig: u32,
    /// MIG mode after the next reset, same values.
    pub mig_pending: u32,
    /// `nvmlComputeMode_t`.
    pub compute_mode: u32,
    /// 1: the GPU fell off the bus.
    pub lost: u32,
    /// The action that the driver requests after an error: 0 none, 1 a GPU reset, 2 a reboot.
    pub recovery_action: u32,
    /// `nvmlGpuFabricState_t`, such as [`FABRIC_IN_PROGRESS`].
    pub fabric_state: u32,
    /// `nvmlReturn_t` of the registration with the fabric, once it has ended.
    pub fabric_status: u32,
    /// Percent of time that some kernel ran.
    pub utilisation: u32,
    /// Degrees Celsius.
    pub temperature: u32,
    /// Milliwatts now.
    pub power: u32,
    /// MHz now: graphics, SM, memory, video.
    pub clocks: [u32; 4],
    /// MHz at most: graphics, SM, memory, video.
    pub max_clocks: [u32; 4],
    /// `nvmlGpuTopologyLevel_t` to each other GPU.
    pub levels: [u32; MAX_GPUS],
    /// Where each `NVLink` leads: [`LINK_NONE`], [`LINK_SWITCH`] or peer index + 1.
    pub nvlink: [u32; MAX_LINKS],
    /// How many creations of compute instances will fail.
    pub creation_failures: u32,
    /// How many of `processes` exist.
    pub process_count: u32,
    /// The processes on the GPU.
    pub processes: [Process; MAX_PROCESSES],
    /// Its GPU instances; `serial` 0 marks a free slot.
    pub gpu_instance_slots: [GpuInstance; MAX_INSTANCES],
    /// The compute instances in them.
    pub compute_instance_slots: [ComputeInstance; MAX_INSTANCES],
}

impl Machine {
    /// Whether a driver is loaded.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.driver[0] != 0
    }

    /// The GPUs that exist.
    #[must_use]
    pub fn existing_gpus(&self) -> &[Gpu] {
        let count = usize::try_from(self.gpu_count).unwrap_or(MAX_GPUS);
        &self.gpus[..count.min(MAX_GPUS)]
    }

    /// The GPUs in the order of a process's device ordinals: of those that it is `given` those that
    /// it has `chosen` by `CUDA_VISIBLE_DEVICES`. Each list ends at the first entry that names no
    /// GPU, as CUDA has it.
    #[must_use]
    pub fn visible_gpus(&self, given: Option<&str>, chosen: Option<&str>) -> Vec<usize> {
        let pick = |from: &[usize], list: &str| -> Vec<usize> {
            let names = list.split(',').map(str::trim);
            let found = names.map_while(|name| match name.parse::<usize>() {
                Ok(index) => from.get(index).copied(),
                Err(_) if name.starts_with("GPU-") => from
                    .iter()
                    .copied()
                    .find(|gpu_index| text(&self.gpus[*gpu_index].uuid).starts_with(name)),
                Err(_) => {
                    let gpu_index = self.instance(name)?.gpu_index;
                    from.contains(&gpu_index).then_some(gpu_index)
                }
            });
            found.collect()
        };
        let all: Vec<usize> = (0..self.existing_gpus().len()).collect();
        let allowed = match given {
            None | Some("all" | "") => all,
            Some(list) => pick(&all, list),
        };
        match chosen {
            None => allowed,
            Some(list) => pick(&allowed, list),
        }
    }
}

impl Gpu {
    /// The processes that exist.
    #[must_use]
    pub fn running(&self) -> &[Process] {
        let count = usize::try_from(self.process_count).unwrap_or(MAX_PROCESSES);
        &self.processes[..count.min(MAX_PROCESSES)]
    }

    /// Bytes in use, by listed processes and without one; never more than there is.
    #[must_use]
    pub fn used(&self) -> u64 {
        let used = self.running().iter().map(|process| process.memory);
        used.fold(self.memory_used, u64::saturating_add)
            .min(self.memory_total.saturating_sub(self.memory_reserved))
    }

    /// Whether CUDA waits for the GPU's registration with its fabric. After a failed one, CUDA
    /// works without the fabric.
    #[must_use]
    pub fn awaits_fabric(&self) -> bool {
        matches!(self.fabric_state, FABRIC_NOT_STARTED | FABRIC_IN_PROGRESS)
    }

    /// PCI bus id in NVML's long form.
    #[must_use]
    pub fn bus_id(&self) -> String {
        format!("00000000:{:02X}:00.0", self.pci_bus)
    }
}

/// Text as a zero-padded record field; `None` when it does not fit with its closing zero.
#[must_use]
pub fn padded<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut field = [0; N];
    if text.len() >= N || text.contains('\0') {
        return None;
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    Some(field)
}

/// The text in a zero-padded record field.
#[must_use]
pub fn text(field: &[u8]) -> &str {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).unwrap_or("")
}
