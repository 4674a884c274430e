//! MIG instances as records: those that exist on a GPU now. `aliquot_gpusim::mig` knows which ones
//! a GPU allows.

use bytemuck::{Pod, Zeroable};

use crate::model::{Gpu, Machine, text};

/// Most instances of either kind on one GPU: one for each compute slice.
pub const MAX_INSTANCES: usize = 7;
/// Instance number of a process on the whole GPU.
pub const WHOLE_GPU: u32 = u32::MAX;

/// A GPU instance: memory slices and the compute slices that go with them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct GpuInstance {
    /// Unique among all instances that this machine ever had; 0: a free slot.
    pub serial: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// The driver's id of it, by its place on the GPU.
    pub id: u32,
    /// The driver's id of its profile.
    pub profile: u32,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub sms: u32,
}

/// A compute instance: what a process sees as one device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ComputeInstance {
    /// As of [`GpuInstance`].
    pub serial: u64,
    /// The GPU instance that contains it.
    pub gpu_instance: u32,
    /// Its number in there.
    pub id: u32,
    /// The driver's id of its profile.
    pub profile: u32,
    /// First compute slice in there.
    pub start: u32,
    /// Compute slices.
    pub slices: u32,
    /// For later.
    pub reserved: u32,
}

/// A MIG device: a compute instance with its GPU instance and GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// Index of the GPU.
    pub gpu_index: usize,
    /// The GPU instance.
    pub gpu: GpuInstance,
    /// The compute instance.
    pub compute: ComputeInstance,
}

impl MigDevice {
    /// The device's UUID.
    #[must_use]
    pub fn uuid(&self, machine: &Machine) -> String {
        machine.gpus[self.gpu_index].mig_uuid(&self.compute)
    }

    /// Its part of the streaming multiprocessors of its GPU instance.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.gpu.sms * self.compute.slices / self.gpu.slices.max(1)
    }
}

impl Machine {
    /// A serial that no instance had before.
    pub fn new_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Every compute instance, by GPU and numbers.
    #[must_use]
    pub fn instances(&self) -> Vec<MigDevice> {
        let gpus = self.existing_gpus().iter().enumerate();
        gpus.flat_map(|(gpu_index, gpu)| gpu.instances(gpu_index))
            .collect()
    }

    /// The compute instance whose device has this uuid.
    #[must_use]
    pub fn instance(&self, uuid: &str) -> Option<MigDevice> {
        let mut all = self.instances().into_iter();
        all.find(|found| found.uuid(self) == uuid)
    }
}

impl Gpu {
    /// The GPU instances that exist, by number.
    #[must_use]
    pub fn gpu_instances(&self) -> Vec<GpuInstance> {
        let exists = |one: &&GpuInstance| one.serial != 0;
        let mut found: Vec<_> = self
            .gpu_instance_slots
            .iter()
            .filter(exists)
            .copied()
            .collect();
        found.sort_by_key(|one| one.id);
        found
    }

    /// The compute instances of a GPU instance, by number.
    #[must_use]
    pub fn compute_instances(&self, gpu_instance: u32) -> Vec<ComputeInstance> {
        let of = |one: &&ComputeInstance| one.serial != 0 && one.gpu_instance == gpu_instance;
        let mut found: Vec<_> = self
            .compute_instance_slots
            .iter()
            .filter(of)
            .copied()
            .collect();
        found.sort_by_key(|one| one.id);
        found
    }

    /// Every compute instance of this GPU, which has this index.
    #[must_use]
    pub fn instances(&self, gpu_index: usize) -> Vec<MigDevice> {
        let mut found = Vec::new();
        for gpu in self.gpu_instances() {
            let all = self.compute_instances(gpu.id).into_iter();
            found.extend(all.map(|compute| MigDevice {
                gpu_index,
                gpu,
                compute,
            }));
        }
        found
    }

    /// Bytes that processes use of a GPU instance.
    #[must_use]
    pub fn used_by(&self, gpu_instance: u32) -> u64 {
        let on = |process: &&crate::model::Process| process.gpu_instance == gpu_instance;
        let used = self.running().iter().filter(on).map(|one| one.memory);
        used.fold(0, u64::saturating_add)
    }

    /// The UUID of the MIG device of a compute instance of this GPU. As NVIDIA's open kernel modules
    /// derive it: from the GPU, the GPU instance's id and the first engine, so an instance that is
    /// created again has it again.
    #[must_use]
    pub fn mig_uuid(&self, compute: &ComputeInstance) -> String {
        let uuid = text(&self.uuid);
        let place = format!("{}/{}", compute.gpu_instance, compute.start);
        format!(
            "MIG-{}",
            made_uuid(&format!("{uuid}/{place}"), &format!("{place}/{uuid}"))
        )
    }
}

/// A uuid without its prefix, the same for the same two texts.
#[must_use]
pub fn made_uuid(one: &str, other: &str) -> String {
    let (a, b) = (hash(one), hash(other));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        (a & 0x0fff) | 0x4000,
        ((b >> 48) & 0x3fff) | 0x8000,
        b & 0xffff_ffff_ffff
    )
}

/// FNV-1a with a final mix, so that similar names give different ids.
#[must_use]
pub fn hash(text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}
