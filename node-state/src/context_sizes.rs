//! How much device memory a CUDA context takes. The driver does not say it beforehand, and it
//! differs between GPUs and drivers: 100 MiB on a T4, 500 MiB on an H100. So the monitor measures
//! the contexts of programs, and a table has starting values for what was not measured yet.

use aliquot_core::Mib;
use serde::{Deserialize, Serialize};

/// Containers whose contexts count.
const MAX_CONTAINERS: usize = 8;
/// Sizes that a context can have.
const MIN: Mib = Mib(16);
const MAX: Mib = Mib(1024);
/// The starting value for a GPU that the table does not have.
const UNKNOWN: Mib = Mib(500);

/// Starting values in MiB by compute capability: typical of what nvidia-smi shows for a process with
/// one context under a recent driver that loads modules lazily. They were not measured by this
/// project.
const STARTING: [(u32, u32, u64); 10] = [
    (6, 0, 280),
    (6, 1, 150),
    (7, 0, 310),
    (7, 5, 105),
    (8, 0, 420),
    (8, 6, 260),
    (8, 9, 300),
    (9, 0, 520),
    (10, 0, 600),
    (12, 0, 500),
];

/// The size of a context of a GPU with this compute capability, while nothing is measured.
pub fn starting_size(compute_capability: Option<(u32, u32)>) -> Mib {
    let known = STARTING
        .iter()
        .find(|(major, minor, _)| Some((*major, *minor)) == compute_capability);
    known.map_or(UNKNOWN, |(_, _, mib)| Mib(*mib))
}

/// What the size of a context depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContextKind {
    /// NVML's name of the GPU.
    pub model: String,
    /// The driver's major version, such as `580`.
    pub driver: String,
    /// The profile of a MIG instance; `None` for a whole GPU.
    pub profile: Option<String>,
    /// Under MPS, where clients share a part of it.
    pub mps: bool,
}

impl ContextKind {
    /// Contexts on a device of this model and MIG profile under a driver version such as
    /// `580.82.07`.
    pub fn new(model: &str, driver_version: &str, profile: Option<&str>, mps: bool) -> Self {
        let driver = driver_version.split('.').next().unwrap_or_default();
        Self {
            model: model.to_owned(),
            driver: driver.to_owned(),
            profile: profile.map(str::to_owned),
            mps,
        }
    }
}

/// The measured contexts of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredKind {
    #[serde(flatten)]
    kind: ContextKind,
    /// The size by container, the newest last.
    containers: Vec<(String, Mib)>,
}

/// The contexts that were measured on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSizes {
    kinds: Vec<MeasuredKind>,
}

impl ContextSizes {
    /// Records what a context of a container was found to take; whether that changed anything. Each
    /// container counts once, with its newest value, so that one which forges its counters cannot
    /// set the size for others.
    pub fn record(&mut self, kind: &ContextKind, container: &str, bytes: u64) -> bool {
        let size = Mib(bytes.div_ceil(Mib(1).bytes()));
        if !(MIN..=MAX).contains(&size) {
            return false;
        }
        let new = (container.to_owned(), size);
        let known = self.kinds.iter_mut().find(|known| known.kind == *kind);
        let Some(known) = known else {
            self.kinds.push(MeasuredKind {
                kind: kind.clone(),
                containers: vec![new],
            });
            return true;
        };
        if known.containers.contains(&new) {
            return false;
        }
        known.containers.retain(|(name, _)| name != container);
        known.containers.push(new);
        let surplus = known.containers.len().saturating_sub(MAX_CONTAINERS);
        known.containers.drain(..surplus);
        true
    }

    /// Whether a context of a container was recorded.
    pub fn has(&self, kind: &ContextKind, container: &str) -> bool {
        let known = self.kinds.iter().find(|known| known.kind == *kind);
        let mut containers = known.into_iter().flat_map(|known| &known.containers);
        containers.any(|(name, _)| name == container)
    }

    /// The size to charge for a context: the lower median of what was measured and the starting
    /// value.
    pub fn size(&self, kind: &ContextKind, starting: Mib) -> Mib {
        let known = self.kinds.iter().find(|known| known.kind == *kind);
        let measured = known.into_iter().flat_map(|known| &known.containers);
        let mut sizes: Vec<Mib> = measured.map(|(_, size)| *size).collect();
        sizes.push(starting);
        sizes.sort_unstable();
        sizes[(sizes.len() - 1) / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Mib = Mib(105);

    fn t4() -> ContextKind {
        ContextKind::new("Tesla T4", "580.82.07", None, false)
    }

    /// The size after these containers were measured, in MiB.
    fn after(measured: &[(&str, u64)]) -> u64 {
        let mut sizes = ContextSizes::default();
        for (container, mib) in measured {
            sizes.record(&t4(), container, Mib(*mib).bytes());
        }
        sizes.size(&t4(), START).0
    }

    #[test]
    fn learns_context_size_down_and_up() {
        assert_eq!(after(&[]), 105);
        assert_eq!(after(&[("a", 80)]), 80);
        assert_eq!(after(&[("a", 300), ("b", 300)]), 300);
        // A new driver's contexts replace those of before.
        let mut many = vec![("x", 80)];
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        many.extend(names.map(|name| (name, 500)));
        assert_eq!(after(&many), 500);
    }

    #[test]
    fn one_container_cannot_raise_context_size_for_others() {
        assert_eq!(after(&[("forger", 1024)]), 105);
        assert_eq!(after(&[("forger", 1024), ("forger", 1000)]), 105);
        assert_eq!(after(&[("a", 100), ("b", 110), ("forger", 1024)]), 105);
        assert_eq!(after(&[("forger", 1025), ("other", 5000)]), 105);
        assert_eq!(after(&[("forger", 1)]), 105);
    }

    #[test]
    fn separates_context_sizes_by_kind() {
        let mut sizes = ContextSizes::default();
        assert!(sizes.record(&t4(), "a", Mib(90).bytes() - 1));
        assert!(!sizes.record(&t4(), "a", Mib(90).bytes()));
        assert!(sizes.has(&t4(), "a") && !sizes.has(&t4(), "b"));
        assert_eq!(sizes.size(&t4(), START), Mib(90));
        for other in [
            ContextKind::new("Tesla T4", "590.1", None, false),
            ContextKind::new("Tesla T4", "580.82.07", None, true),
            ContextKind::new("Tesla T4", "580.82.07", Some("1g.5gb"), false),
            ContextKind::new("NVIDIA L4", "580.82.07", None, false),
        ] {
            assert_eq!(sizes.size(&other, START), START, "{other:?}");
        }
        let same = ContextKind::new("Tesla T4", "580.95.05", None, false);
        assert_eq!(sizes.size(&same, START), Mib(90));
    }

    #[test]
    fn stores_context_sizes_as_json() {
        let mut sizes = ContextSizes::default();
        sizes.record(&t4(), "a", Mib(90).bytes());
        let text = r#"{"kinds":[{"model":"Tesla T4","driver":"580","profile":null,"mps":false,"containers":[["a",90]]}]}"#;
        assert_eq!(serde_json::to_string(&sizes).expect("it encodes"), text);
        let read: ContextSizes = serde_json::from_str(text).expect("it decodes");
        assert_eq!(read, sizes);
    }
}
