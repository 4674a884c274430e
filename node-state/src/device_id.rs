//! The device ids that we advertise to the kubelet, one for each replica (`<GPU uuid>::<n>`), and
//! the name that each Allocate answer gets, under which its CDI spec and directory are stored. A
//! device id does not decide which GPU a container gets: the allocation does.

use std::collections::BTreeSet;
use std::fmt;

use aliquot_core::GpuUuid;

pub const KIND: &str = "aliquot.dev/vgpu";
/// The longest device id that the kubelet's API allows.
pub const MAX_ID: usize = 63;

/// A set of device ids in a fixed order (the kubelet sends them in any order).
pub type DeviceIds = BTreeSet<String>;

/// One replica of one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    pub gpu: GpuUuid,
    /// 0 to `deviceSplitCount - 1`.
    pub number: u32,
}

impl DeviceId {
    /// Reads a device id; `None` when it is not of our form.
    pub fn parse(id: &str) -> Option<Self> {
        let (gpu, number) = id.rsplit_once("::")?;
        if gpu.is_empty() || !gpu.chars().all(is_plain) {
            return None;
        }
        Some(Self {
            gpu: gpu.into(),
            number: number.parse().ok()?,
        })
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.gpu, self.number)
    }
}

/// The name of one Allocate answer: a CDI device, a spec file and a directory.
/// Safe as a path component by construction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnswerName(String);

impl AnswerName {
    /// A name for these device ids that differs for every `random`; `None` when an id is not of our
    /// form or there is none.
    pub fn new(ids: &DeviceIds, random: u64) -> Option<Self> {
        let ids: Vec<DeviceId> = ids
            .iter()
            .map(|id| DeviceId::parse(id))
            .collect::<Option<_>>()?;
        let first = ids.iter().min()?;
        Some(Self(format!(
            "{}-{}-{random:016x}",
            first.gpu, first.number
        )))
    }

    /// The name in a qualified CDI device, `None` when the device is not ours or
    /// could not serve as a file name.
    pub fn parse_qualified(device: &str) -> Option<Self> {
        let name = device.strip_prefix(KIND)?.strip_prefix('=')?;
        Self::parse(name)
    }

    /// A bare name, as found in a directory.
    pub fn parse(name: &str) -> Option<Self> {
        let plain = name.chars().all(is_plain);
        let edges = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.ends_with(|c: char| c.is_ascii_alphanumeric());
        (plain && edges && name.len() < 200).then(|| Self(name.to_owned()))
    }

    /// `aliquot.dev/vgpu=<name>`.
    pub fn qualified(&self) -> String {
        format!("{KIND}={}", self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AnswerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Characters that CDI allows in a device name and a file name does as well.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> DeviceIds {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[test]
    fn parses_only_own_device_ids() {
        let parsed = |id: &str| DeviceId::parse(id).map(|parsed| parsed.to_string());
        for id in ["GPU-0a1b::0", "GPU-0a1b::19", "MIG-1_2.3::7"] {
            assert_eq!(parsed(id).as_deref(), Some(id));
        }
        for id in ["GPU-0a1b", "::1", "GPU-0a1b::", "GPU-0a1b::x", "a/b::1", ""] {
            assert_eq!(parsed(id), None, "{id:?}");
        }
    }

    #[test]
    fn name_starts_with_first_device_id_and_is_unique() {
        let several = ids(&["GPU-b::10", "GPU-b::9", "GPU-c::0"]);
        let name = AnswerName::new(&several, 0xab).expect("a name");
        assert_eq!(
            name.qualified(),
            "aliquot.dev/vgpu=GPU-b-9-00000000000000ab"
        );
        assert_ne!(AnswerName::new(&several, 1), AnswerName::new(&several, 2));
        assert_eq!(AnswerName::new(&ids(&[]), 1), None);
        assert_eq!(AnswerName::new(&ids(&["nvidia0"]), 1), None);
    }

    #[test]
    fn parses_only_own_names_that_are_safe_file_names() {
        let ok = "aliquot.dev/vgpu=GPU-b-0-00000000000000ab";
        let name = AnswerName::parse_qualified(ok).expect("a name");
        assert_eq!(name.qualified(), ok);
        for device in [
            "nvidia.com/gpu=0",
            "aliquot.dev/vgpu",
            "aliquot.dev/vgpu=",
            "aliquot.dev/vgpu=../../etc",
            "aliquot.dev/vgpu=.hidden",
            "aliquot.dev/vgpu=a b",
        ] {
            assert_eq!(AnswerName::parse_qualified(device), None, "{device}");
        }
    }
}
