//! MIG instances as records: what exists on a card now. Fed by NVML's create and destroy calls;
//! must not know which cuts a card allows.

use bytemuck::{Pod, Zeroable};

use crate::model::{Gpu, Machine, text};

/// Most instances of either kind on one card: one for each compute slice.
pub const MAX_INSTANCES: usize = 7;
/// Instance number of who has the whole card.
pub const WHOLE_CARD: u32 = u32::MAX;

/// A GPU instance: memory slices and the compute slices that go with them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct GpuInstance {
    /// Different for every instance that this machine ever had; 0 = none here.
    pub serial: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// The driver's id of it, by its place on the card.
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
    /// The GPU instance that it lies in.
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

/// A compute instance with all that it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index of the card.
    pub card: usize,
    /// The GPU instance.
    pub gpu: GpuInstance,
    /// The compute instance.
    pub compute: ComputeInstance,
}

impl Found {
    /// The uuid of the device that it is.
    #[must_use]
    pub fn uuid(&self, machine: &Machine) -> String {
        machine.gpus[self.card].mig_uuid(&self.compute)
    }
}

impl Machine {
    /// A serial that no instance had before.
    pub fn new_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Every compute instance, by card and numbers.
    #[must_use]
    pub fn instances(&self) -> Vec<Found> {
        let cards = self.cards().iter().enumerate();
        cards.flat_map(|(card, gpu)| gpu.instances(card)).collect()
    }

    /// The compute instance whose device has this uuid.
    #[must_use]
    pub fn instance(&self, uuid: &str) -> Option<Found> {
        let mut all = self.instances().into_iter();
        all.find(|found| found.uuid(self) == uuid)
    }
}

impl Gpu {
    /// The GPU instances that exist, by number.
    #[must_use]
    pub fn gpu_instances(&self) -> Vec<GpuInstance> {
        let exists = |one: &&GpuInstance| one.serial != 0;
        let mut found: Vec<_> = self.cut.iter().filter(exists).copied().collect();
        found.sort_by_key(|one| one.id);
        found
    }

    /// The compute instances of a GPU instance, by number.
    #[must_use]
    pub fn compute_instances(&self, gpu_instance: u32) -> Vec<ComputeInstance> {
        let of = |one: &&ComputeInstance| one.serial != 0 && one.gpu_instance == gpu_instance;
        let mut found: Vec<_> = self.compute.iter().filter(of).copied().collect();
        found.sort_by_key(|one| one.id);
        found
    }

    /// Every compute instance; the card has this index.
    #[must_use]
    pub fn instances(&self, card: usize) -> Vec<Found> {
        let mut found = Vec::new();
        for gpu in self.gpu_instances() {
            let all = self.compute_instances(gpu.id).into_iter();
            found.extend(all.map(|compute| Found { card, gpu, compute }));
        }
        found
    }

    /// Bytes that processes use of a GPU instance.
    #[must_use]
    pub fn used_by(&self, gpu_instance: u32) -> u64 {
        let on = |process: &&crate::model::Process| process.gpu_instance == gpu_instance;
        let held = self.running().iter().filter(on).map(|one| one.memory);
        held.fold(0, u64::saturating_add)
    }

    /// The uuid of the device that a compute instance of this card is.
    #[must_use]
    pub fn mig_uuid(&self, compute: &ComputeInstance) -> String {
        let card = text(&self.uuid);
        let serial = compute.serial;
        format!(
            "MIG-{}",
            made_uuid(&format!("{card}/{serial}"), &format!("{serial}/{card}"))
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

/// FNV-1a with a last mix, so that names that differ little give ids that differ much.
#[must_use]
pub fn hash(text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}
