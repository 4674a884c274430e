//! Which cards a rule means.
//!
//! Fed by: [`read`](crate::read()) and the conversions. Must not: fall back to
//! anything when a card is not there; that is for [`resolve`](crate::resolve()).

use std::fmt;

use aliquot_core::GpuUuid;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::form;
use crate::mode::is_false;
use crate::resolve::Card;

/// The cards that every key with a value selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Select {
    /// Every card.
    #[serde(skip_serializing_if = "is_false")]
    pub all: bool,
    /// By NVML's index.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub index: Vec<u32>,
    /// By uuid.
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

/// A place on the PCI bus, or what sits there.
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

/// One entry of a selector: which key, which place in its list, as written.
pub(crate) struct Entry<'a> {
    pub(crate) key: &'static str,
    pub(crate) place: usize,
    pub(crate) written: serde_json::Value,
    pub(crate) hits: Box<dyn Fn(&Card) -> bool + 'a>,
}

impl Select {
    /// Every card.
    pub fn all() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// Whether it means this card.
    pub fn hits(&self, card: &Card) -> bool {
        let by_index = self.index.is_empty() || self.index.contains(&card.index);
        let by_uuid = self.uuid.is_empty() || self.uuid.iter().any(|u| same(u, &card.uuid));
        let by_pci = self.pci.is_empty() || self.pci.iter().any(|pci| pci.hits(card));
        let by_product =
            self.product.is_empty() || self.product.iter().any(|p| p.hits(&card.product));
        by_index && by_uuid && by_pci && by_product
    }

    /// Every entry on its own.
    pub(crate) fn entries(&self) -> Vec<Entry<'_>> {
        let mut all = Vec::new();
        for (place, index) in self.index.iter().enumerate() {
            all.push(Entry {
                key: "index",
                place,
                written: (*index).into(),
                hits: Box::new(move |card| card.index == *index),
            });
        }
        for (place, uuid) in self.uuid.iter().enumerate() {
            all.push(Entry {
                key: "uuid",
                place,
                written: uuid.as_str().into(),
                hits: Box::new(move |card| same(uuid, &card.uuid)),
            });
        }
        for (place, pci) in self.pci.iter().enumerate() {
            all.push(Entry {
                key: "pci",
                place,
                written: pci.to_string().into(),
                hits: Box::new(move |card| pci.hits(card)),
            });
        }
        for (place, product) in self.product.iter().enumerate() {
            all.push(Entry {
                key: "product",
                place,
                written: product.0.as_str().into(),
                hits: Box::new(move |card| product.hits(&card.product)),
            });
        }
        all
    }
}

/// Uuids differ in no more than the case of their digits.
fn same(one: &GpuUuid, other: &GpuUuid) -> bool {
    one.as_str().eq_ignore_ascii_case(other.as_str())
}

impl Pci {
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
        let (place, function) = text.rsplit_once('.')?;
        let (rest, device) = place.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        Some(Self::Address(
            hex(domain, 4..=8)?,
            byte(bus, 2)?,
            byte(device, 2)?,
            byte(function, 1).filter(|function| *function < 8)?,
        ))
    }

    fn hits(self, card: &Card) -> bool {
        match self {
            Self::Address(..) => card.pci == Some(self),
            Self::Model(_) => card.model == Some(self),
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
        Self::parse(&text).ok_or_else(|| D::Error::custom(form::PCI.says))
    }
}

impl Glob {
    /// Whether the whole text is as the pattern says.
    pub fn hits(&self, text: &str) -> bool {
        let pattern: Vec<char> = self.0.chars().collect();
        let text: Vec<char> = text.chars().collect();
        // How far the text is matched, for each beginning of the pattern.
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
