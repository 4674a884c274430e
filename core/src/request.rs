//! What one container asks for: the five resources, their ranges and defaults. Callers add
//! the field path to errors.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::excerpt::Excerpt;
use crate::mig;
use crate::quantity::{self, QuantityError};
use crate::units::{Mib, Percent};

/// More memory than any GPU has: 1 TiB, in MiB.
pub const MAX_GPU_MIB: u64 = 1 << 20;
/// More GPUs than any node has.
pub const MAX_GPUS: u64 = 64;
/// More containers with a share than any pod has. Each is compared with those before it, on every
/// node.
pub const MAX_CONTAINERS: usize = 64;
/// More containers, with a share or without, than any pod with a share has. What is remembered of a
/// pod names all of them.
pub const MAX_CONTAINERS_IN_ALL: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Number of vGPUs, each on a GPU of its own.
    Gpu,
    /// MiB on each of them.
    Memory,
    /// The same in percent of the device.
    MemoryPercentage,
    /// Percent of each device's compute.
    Cores,
    /// 0 is high, 1 is low.
    Priority,
}

impl Resource {
    /// All five, in display order.
    pub const ALL: [Self; 5] = [
        Self::Gpu,
        Self::Memory,
        Self::MemoryPercentage,
        Self::Cores,
        Self::Priority,
    ];

    fn is_memory(self) -> bool {
        matches!(self, Self::Memory | Self::MemoryPercentage)
    }

    fn range(self) -> (u64, u64) {
        match self {
            Self::Gpu => (0, MAX_GPUS),
            Self::Memory => (1, MAX_GPU_MIB),
            Self::MemoryPercentage => (1, 100),
            Self::Cores => (0, 100),
            Self::Priority => (0, 1),
        }
    }

    /// The expected form, for error messages.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Gpu => "a whole number of GPUs, 0 to 64",
            Self::Memory => "a whole number of MiB, 1 to 1048576",
            Self::MemoryPercentage => "a whole percentage of the GPU's memory, 1 to 100",
            Self::Cores => "a whole percentage of the GPU's compute, 0 to 100",
            Self::Priority => "0 (high) or 1 (low)",
        }
    }
}

/// The cluster's names of the five resources. All are configurable, as in HAMi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNames([String; 5]);

impl Default for ResourceNames {
    fn default() -> Self {
        Self(
            [
                "nvidia.com/gpu",
                "nvidia.com/gpumem",
                "nvidia.com/gpumem-percentage",
                "nvidia.com/gpucores",
                "nvidia.com/priority",
            ]
            .map(str::to_owned),
        )
    }
}

impl ResourceNames {
    /// The default names with those in `changed` replaced.
    pub fn with(changed: impl IntoIterator<Item = (Resource, String)>) -> Self {
        let mut names = Self::default();
        for (resource, name) in changed {
            names.0[resource as usize] = name;
        }
        names
    }

    pub fn of(&self, resource: Resource) -> &str {
        &self.0[resource as usize]
    }
}

/// Whether this is another GPU resource than the main one: of MIG instances, or one of the
/// `extra` resources that renamed GPUs are advertised under.
pub fn is_other(name: &str, extra: &[String]) -> bool {
    name.starts_with(mig::RESOURCES) || extra.iter().any(|extra| extra == name)
}

/// Whether a resource of any device plugin is one of GPUs, such as `nvidia.com/gpu.shared`,
/// `volcano.sh/vgpu-number` or `aliyun.com/gpu-mem`. NVIDIA's network operator names network devices
/// `nvidia.com/hostdev`.
pub fn is_gpu(name: &str) -> bool {
    let parts = name.split_once('/');
    name.starts_with(mig::RESOURCES) || parts.is_some_and(|(_, own)| own.contains("gpu"))
}

/// What a bare `nvidia.com/gpu: 1` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BareGpu {
    /// `defaultMem` and `defaultCores`, as in HAMi 2.4.
    #[default]
    Defaults,
    /// A whole GPU, as with NVIDIA's plugin and newer HAMi.
    Whole,
}

/// Defaults for what a container leaves out. Helm: `scheduler.default*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Count for a container that asks for memory or cores only; 0 means no default.
    pub count: u32,
    /// Memory for a container without any; 0 means the whole device.
    pub memory: Mib,
    /// Compute for a container without any.
    pub cores: Percent,
    /// Meaning of a count alone.
    pub bare_gpu: BareGpu,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            count: 1,
            memory: Mib(5000),
            cores: Percent(0),
            bare_gpu: BareGpu::Defaults,
        }
    }
}

/// The pod annotation in which the webhook lists what it filled in, by container
/// and resource: `{"main":{"nvidia.com/gpumem":"5000"}}`.
pub const DEFAULTED: &str = "aliquot.dev/defaulted";

/// Parses the count under any GPU resource.
pub fn count(text: &str) -> Result<u32, RequestError> {
    let resource = Resource::Gpu;
    let number =
        quantity::whole(text).map_err(|source| RequestError::Quantity { resource, source })?;
    let fits = u32::try_from(number).ok().filter(|_| number <= MAX_GPUS);
    fits.ok_or_else(|| RequestError::OutOfRange {
        resource,
        value: text.into(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// In MiB.
    Mib(Mib),
    /// In percent of the chosen device's scaled memory.
    Share(Percent),
}

/// A container's complete request under one resource: shares of `count` different devices,
/// or `count` replicas of one ([`crate::DeviceRules::same_device`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuRequest {
    /// An index in the demand's resources; 0 is the main one.
    pub resource: u8,
    /// The number of devices, at least 1.
    pub count: u32,
    pub memory: Memory,
    /// Compute on each; 100 means exclusive use.
    pub cores: Percent,
    /// Which of the amounts the container wrote; the others are defaults.
    pub written: WrittenAmounts,
}

impl GpuRequest {
    /// These amounts of `count` devices under the main resource, as written.
    pub fn new(count: u32, memory: Memory, cores: Percent) -> Self {
        Self {
            resource: 0,
            count,
            memory,
            cores,
            written: WrittenAmounts {
                memory: true,
                cores: true,
            },
        }
    }
}

/// Which amounts of an [`GpuRequest`] the container wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WrittenAmounts {
    pub memory: bool,
    pub cores: bool,
}

/// Why a container's resources are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("{source}; expected: {}{}", .resource.expected(), hint(*.resource, .source))]
    Quantity {
        resource: Resource,
        source: QuantityError,
    },
    #[error("{value:?} is out of range; expected: {}", .resource.expected())]
    OutOfRange { resource: Resource, value: Excerpt },
    #[error("memory is requested both in MiB and in percent; expected: one of the two")]
    MemoryTwice,
    #[error(
        "a count of 0 with memory or compute; expected: 1 to 64 GPUs, or no other GPU resource"
    )]
    ShareWithoutGpu,
}

impl RequestError {
    pub fn resource(&self) -> Resource {
        match self {
            Self::Quantity { resource, .. } | Self::OutOfRange { resource, .. } => *resource,
            Self::MemoryTwice => Resource::MemoryPercentage,
            Self::ShareWithoutGpu => Resource::Gpu,
        }
    }
}

fn hint(resource: Resource, error: &QuantityError) -> String {
    match (resource, error) {
        (Resource::Memory, QuantityError::BinarySuffix { mib: Some(mib), .. }) => {
            format!(" (write {mib}, the unit is MiB)")
        }
        (_, QuantityError::SmallSuffix { value, .. }) => {
            let written = value.start().trim_end_matches(['n', 'u', 'm']);
            format!(" (write {written}, without a suffix)")
        }
        _ => String::new(),
    }
}

/// The numbers that a container wrote, validated one by one and together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    numbers: [Option<u64>; 5],
    /// It also asks for devices under other GPU resources.
    others: bool,
}

/// What a container asks for: its own values, and what its pod's annotation adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest<'a> {
    pub written: Written,
    /// Counts under other GPU resources, also those of 0, by name.
    pub others: BTreeMap<&'a str, u32>,
}

/// Why one of a container's values is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidResource {
    pub name: String,
    pub source: RequestError,
}

impl<'a> ContainerRequest<'a> {
    /// Reads names and values of limits, then of requests: the first one of a name counts. Returns
    /// all errors, not only the first.
    pub fn read(
        amounts: impl Iterator<Item = (&'a str, &'a str)>,
        annotated: &Written,
        names: &ResourceNames,
        extra: &[String],
    ) -> Result<Self, Vec<InvalidResource>> {
        let mut texts: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, text) in amounts {
            texts.entry(name).or_insert(text);
        }
        let mut others = BTreeMap::new();
        let mut errors = Vec::new();
        for (&name, &text) in texts.iter().filter(|(name, _)| is_other(name, extra)) {
            match count(text) {
                Ok(count) => {
                    others.insert(name, count);
                }
                Err(source) => errors.push(InvalidResource {
                    name: name.to_owned(),
                    source,
                }),
            }
        }
        let own = Written::read(|resource| texts.get(names.of(resource)).copied());
        match own.and_then(|own| own.or(annotated)) {
            Ok(written) if errors.is_empty() => {
                let written = if others.values().any(|count| *count > 0) {
                    written.with_other_resources()
                } else {
                    written
                };
                return Ok(Self { written, others });
            }
            Ok(_) => {}
            Err(own) => errors.extend(own.into_iter().map(|source| InvalidResource {
                name: names.of(source.resource()).to_owned(),
                source,
            })),
        }
        Err(errors)
    }

    /// Whether the container asks for devices (after `defaults.count` is applied).
    pub fn asks(&self, defaults: &Defaults) -> bool {
        self.written.others || self.written.requests_gpu(defaults)
    }
}

/// One value that a default supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub resource: Resource,
    pub value: u64,
}

impl Written {
    /// Reads the five resources; `value_of` looks one up by its kind. Returns all errors,
    /// not only the first.
    pub fn read<T: AsRef<str>>(
        value_of: impl Fn(Resource) -> Option<T>,
    ) -> Result<Self, Vec<RequestError>> {
        let mut written = Self::default();
        let mut errors = Vec::new();
        for resource in Resource::ALL {
            let Some(text) = value_of(resource) else {
                continue;
            };
            let text = text.as_ref();
            match quantity::whole(text) {
                Ok(number) => errors.extend(written.set(resource, number, text)),
                Err(source) => errors.push(RequestError::Quantity { resource, source }),
            }
        }
        written.validated(errors)
    }

    /// The same of numbers, as the pod's annotation has them.
    pub fn of_numbers(
        number_of: impl Fn(Resource) -> Option<u64>,
    ) -> Result<Self, Vec<RequestError>> {
        Self::read(|resource| number_of(resource).map(|number| number.to_string()))
    }

    /// The same container with what `other` has and this lacks. Both forms of memory are one
    /// amount.
    pub fn or(self, other: &Self) -> Result<Self, Vec<RequestError>> {
        let mut written = self;
        let has_memory = self.has(Resource::Memory) || self.has(Resource::MemoryPercentage);
        for resource in Resource::ALL {
            let own = self.has(resource) || (has_memory && resource.is_memory());
            if !own {
                written.numbers[resource as usize] = other.get(resource);
            }
        }
        written.validated(Vec::new())
    }

    fn set(&mut self, resource: Resource, number: u64, text: &str) -> Option<RequestError> {
        // Templates write zeros for a container without GPUs. The count is read first.
        let is_amount = !matches!(resource, Resource::Gpu | Resource::Priority);
        if number == 0 && is_amount && self.get(Resource::Gpu) == Some(0) {
            return None;
        }
        let (least, most) = resource.range();
        if (least..=most).contains(&number) {
            self.numbers[resource as usize] = Some(number);
            return None;
        }
        Some(RequestError::OutOfRange {
            resource,
            value: text.into(),
        })
    }

    /// The numbers, if they are valid together and there are no other `errors`.
    fn validated(self, mut errors: Vec<RequestError>) -> Result<Self, Vec<RequestError>> {
        if self.has(Resource::Memory) && self.has(Resource::MemoryPercentage) {
            errors.push(RequestError::MemoryTwice);
        }
        if self.get(Resource::Gpu) == Some(0) && self.asks_beyond_count() {
            errors.push(RequestError::ShareWithoutGpu);
        }
        if errors.is_empty() {
            Ok(self)
        } else {
            Err(errors)
        }
    }

    fn has(&self, resource: Resource) -> bool {
        self.get(resource).is_some()
    }

    /// The same container, which also asks under other GPU resources. Its memory and
    /// compute apply to those, unless it writes a number of GPUs.
    pub fn with_other_resources(self) -> Self {
        Self {
            others: true,
            ..self
        }
    }

    /// What the container wrote for `resource`.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        self.numbers[resource as usize]
    }

    fn asks_beyond_count(&self) -> bool {
        [
            Resource::Memory,
            Resource::MemoryPercentage,
            Resource::Cores,
        ]
        .iter()
        .any(|&resource| self.get(resource).is_some())
    }

    /// Whether the container asks for a share of a GPU (after `defaults.count` is applied).
    pub fn requests_gpu(&self, defaults: &Defaults) -> bool {
        match self.get(Resource::Gpu) {
            Some(count) => count > 0,
            None => !self.others && defaults.count > 0 && self.asks_beyond_count(),
        }
    }

    /// The values that the defaults supply, in the order of [`Resource::ALL`]. Empty if the
    /// container asks for no share.
    pub fn fills(&self, defaults: &Defaults) -> Vec<Fill> {
        if !self.requests_gpu(defaults) {
            return Vec::new();
        }
        let missing = |resource| self.get(resource).is_none();
        let mut fills = Vec::new();
        let mut fill = |resource, value| fills.push(Fill { resource, value });
        let bare = !self.asks_beyond_count();
        let whole = bare && defaults.bare_gpu == BareGpu::Whole;
        if missing(Resource::Gpu) {
            fill(Resource::Gpu, u64::from(defaults.count));
        }
        if missing(Resource::Memory) && missing(Resource::MemoryPercentage) {
            if whole || defaults.memory == Mib(0) {
                fill(Resource::MemoryPercentage, 100);
            } else {
                fill(Resource::Memory, defaults.memory.0);
            }
        }
        if missing(Resource::Cores) {
            let cores = if whole {
                Percent::WHOLE
            } else {
                defaults.cores
            };
            fill(Resource::Cores, u64::from(cores.0));
        }
        if missing(Resource::Priority) {
            fill(Resource::Priority, 1);
        }
        fills
    }

    /// The complete request under the main resource, defaults applied; `None` if there is
    /// none.
    pub fn request(&self, defaults: &Defaults) -> Option<GpuRequest> {
        if !self.requests_gpu(defaults) {
            return None;
        }
        let full = self.completed(defaults);
        Some(GpuRequest {
            written: self.wrote(),
            ..full.amounts(full.number(Resource::Gpu))
        })
    }

    /// The same with the values that the defaults supply.
    pub fn completed(&self, defaults: &Defaults) -> Self {
        let mut full = *self;
        for Fill { resource, value } in self.fills(defaults) {
            full.numbers[resource as usize] = Some(value);
        }
        full
    }

    /// The request for `count` devices under another GPU resource, without defaults.
    /// Amounts that the container wrote apply to these devices, unless it also writes a
    /// number of GPUs.
    pub fn request_under(&self, resource: u8, count: u32) -> GpuRequest {
        let devices = self.get(Resource::Gpu).is_some();
        let mut own = if devices { Self::default() } else { *self };
        let wrote = own.wrote();
        if !wrote.memory {
            own.numbers[Resource::MemoryPercentage as usize] = Some(100);
        }
        GpuRequest {
            resource,
            written: wrote,
            ..own.amounts(count)
        }
    }

    fn wrote(&self) -> WrittenAmounts {
        let wrote = |resource| self.get(resource).is_some();
        WrittenAmounts {
            memory: wrote(Resource::Memory) || wrote(Resource::MemoryPercentage),
            cores: wrote(Resource::Cores),
        }
    }

    fn number(&self, resource: Resource) -> u32 {
        u32::try_from(self.get(resource).unwrap_or(0)).unwrap_or(u32::MAX)
    }

    fn amounts(&self, count: u32) -> GpuRequest {
        let memory = match self.get(Resource::MemoryPercentage) {
            Some(_) => Memory::Share(Percent(self.number(Resource::MemoryPercentage))),
            None => Memory::Mib(Mib(self.get(Resource::Memory).unwrap_or(0))),
        };
        GpuRequest::new(count, memory, Percent(self.number(Resource::Cores)))
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
