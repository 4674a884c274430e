//! GPUs as the driver reports them, and how a rule selects among them.

use std::fmt;

use aliquot_core::GpuUuid;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::mode::is_false;
use crate::text_format::TextFormat;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysicalGpu {
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    pub product: String,
    /// [`Pci::Address`], if the driver reports it.
    pub pci: Option<Pci>,
    /// [`Pci::Model`], if the driver reports it.
    pub model: Option<Pci>,
    /// Compute capability, major and minor, if the driver reports it.
    pub capability: Option<(u32, u32)>,
    /// Whether it supports MIG.
    pub mig: bool,
}

/// Selects the GPUs that match every key that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSelector {
    #[serde(skip_serializing_if = "is_false")]
    pub all: bool,
    /// By NVML's index.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub index: Vec<u32>,
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub uuid: Vec<GpuUuid>,
    /// By PCI address or device id.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pci: Vec<Pci>,
    /// By the driver's name of the model.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub product: Vec<Glob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pci {
    /// Domain, bus, device, function.
    Address(u32, u8, u8, u8),
    /// Device and vendor, as NVML's `pciDeviceId`.
    Model(u32),
}

/// A pattern for product names: `*` any text, `?` any character.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Glob(pub String);

/// One entry of a selector: its key, its index in the list, its value as written.
pub(crate) struct SelectorEntry<'a> {
    pub(crate) key: &'static str,
    pub(crate) index: usize,
    pub(crate) written: serde_json::Value,
    pub(crate) matches: Box<dyn Fn(&PhysicalGpu) -> bool + 'a>,
}

impl PhysicalGpu {
    /// The value of a selector's key that would select this GPU.
    pub(crate) fn selector_value(&self, key: &str) -> Option<String> {
        match key {
            "uuid" => Some(self.uuid.to_string()),
            "pci" => Some(self.pci?.to_string()),
            "product" => Some(self.product.clone()),
            _ => Some(self.index.to_string()),
        }
    }
}

/// Such as `2 (NVIDIA A30, GPU-…)`.
impl fmt::Display for PhysicalGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.index, self.product, self.uuid)
    }
}

impl GpuSelector {
    pub fn all() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    pub fn matches(&self, gpu: &PhysicalGpu) -> bool {
        let by_index = self.index.is_empty() || self.index.contains(&gpu.index);
        let by_uuid = self.uuid.is_empty() || self.uuid.iter().any(|u| same(u, &gpu.uuid));
        let by_pci = self.pci.is_empty() || self.pci.iter().any(|pci| pci.matches(gpu));
        let by_product =
            self.product.is_empty() || self.product.iter().any(|p| p.matches(&gpu.product));
        by_index && by_uuid && by_pci && by_product
    }

    /// All entries, one by one.
    pub(crate) fn entries(&self) -> Vec<SelectorEntry<'_>> {
        let mut all = entries_of("index", &self.index, |index, gpu| gpu.index == *index);
        all.extend(entries_of("uuid", &self.uuid, |uuid, gpu| {
            same(uuid, &gpu.uuid)
        }));
        all.extend(entries_of("pci", &self.pci, |pci, gpu| pci.matches(gpu)));
        all.extend(entries_of("product", &self.product, |product, gpu| {
            product.matches(&gpu.product)
        }));
        all
    }
}

fn entries_of<'a, T: Serialize>(
    key: &'static str,
    list: &'a [T],
    matches: fn(&T, &PhysicalGpu) -> bool,
) -> Vec<SelectorEntry<'a>> {
    let entries = list.iter().enumerate();
    let entries = entries.map(|(index, entry)| SelectorEntry {
        key,
        index,
        written: serde_json::json!(entry),
        matches: Box::new(move |gpu| matches(entry, gpu)),
    });
    entries.collect()
}

/// Compares uuids without regard to case.
fn same(one: &GpuUuid, other: &GpuUuid) -> bool {
    one.as_str().eq_ignore_ascii_case(other.as_str())
}

impl Pci {
    /// How it is written.
    pub const FORMAT: TextFormat = TextFormat {
        expectation: "a quoted PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE",
        pattern: "^(([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\\.[0-7]|0[xX][0-9a-fA-F]{8})$",
        matches: |text| Self::parse(text).is_some(),
    };

    /// Reads `65:00.0`, `0000:65:00.0`, `00000000:65:00.0` or `0x20B010DE`.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
            let good = lengths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            good.then(|| u32::from_str_radix(part, 16).ok()).flatten()
        };
        if let Some(id) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            return hex(id, 8..=8).map(Self::Model);
        }
        let byte = |part: &str, length: usize| u8::try_from(hex(part, length..=length)?).ok();
        let (index, function) = text.rsplit_once('.')?;
        let (rest, device) = index.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        Some(Self::Address(
            hex(domain, 4..=8)?,
            byte(bus, 2)?,
            byte(device, 2)?,
            byte(function, 1).filter(|function| *function < 8)?,
        ))
    }

    fn matches(self, gpu: &PhysicalGpu) -> bool {
        match self {
            Self::Address(..) => gpu.pci == Some(self),
            Self::Model(_) => gpu.model == Some(self),
        }
    }
}

impl fmt::Display for Pci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(domain, bus, device, function) => {
                write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
            }
            Self::Model(id) => write!(f, "0x{id:08X}"),
        }
    }
}

impl Serialize for Pci {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pci {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(Self::FORMAT.expectation))
    }
}

impl Glob {
    pub fn matches(&self, text: &str) -> bool {
        let pattern: Vec<char> = self.0.chars().collect();
        let text: Vec<char> = text.chars().collect();
        // The prefixes of the text that the pattern so far matches.
        let mut reached = vec![false; text.len() + 1];
        reached[0] = true;
        for sign in pattern {
            let mut next = vec![false; text.len() + 1];
            next[0] = sign == '*' && reached[0];
            for (at, letter) in text.iter().enumerate() {
                next[at + 1] = match sign {
                    '*' => reached[at + 1] || next[at],
                    '?' => reached[at],
                    _ => reached[at] && sign == *letter,
                };
            }
            reached = next;
        }
        reached[text.len()]
    }
}

fn one_or_more<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMore<T> {
        More(Vec<T>),
        One(T),
    }
    Ok(match OneOrMore::deserialize(deserializer)? {
        OneOrMore::More(all) => all,
        OneOrMore::One(one) => vec![one],
    })
}
