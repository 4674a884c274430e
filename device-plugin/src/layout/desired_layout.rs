//! The desired mode of each GPU, from the configuration, the node's labels and its GPUs. If one of
//! them is invalid, the caller keeps the last layout. Changes of the configuration, a file or a mounted
//! `ConfigMap`, are detected by its text, not by names, times or links.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use aliquot_core::GpuUuid;
use aliquot_nvml as nvml;
use aliquot_profiles::config::Transition;
use aliquot_profiles::gpu_selector::Pci;
use aliquot_profiles::{
    Defaults, Mode, PhysicalGpu, ProfileSource, Reservation, read, resolve, select_profile,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLayout {
    /// The profile and what selected it, for people.
    pub profile: String,
    /// What happens to the pods of a GPU whose mode changes.
    pub transition: Transition,
    /// The mode of each GPU, with all defaults filled in.
    pub gpus: BTreeMap<GpuUuid, Mode>,
    /// What of each GPU is reserved for namespaces; GPUs without a reservation are absent.
    pub reserve: BTreeMap<GpuUuid, Vec<Reservation>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLayoutError {
    pub reason: &'static str,
    /// What is wrong, a line for each error.
    pub text: String,
}

/// The layout that these labels and this configuration ask for; `text` is `None` without a
/// configuration.
pub fn determine(
    text: Option<&str>,
    labels: &BTreeMap<String, String>,
    facts: &nvml::DriverInventory,
    defaults: &Defaults,
) -> Result<DesiredLayout, DesiredLayoutError> {
    let error = |reason, text: String| DesiredLayoutError { reason, text };
    let config = text
        .map(read)
        .transpose()
        .map_err(|errors| error("ConfigurationBroken", errors.to_string()))?;
    let chosen = select_profile(config.as_ref(), labels)
        .map_err(|one| error("ProfileUnknown", one.to_string()))?;
    let gpus: Vec<PhysicalGpu> = facts.gpus.iter().map(gpu).collect();
    let plans = resolve(chosen.name, &chosen.profile, &gpus, defaults)
        .map_err(|errors| error("ProfileDoesNotFit", errors.to_string()))?;
    let by = match chosen.source {
        ProfileSource::Label(key) => format!(", by the node's label {key}"),
        ProfileSource::NodeSelector => ", by its nodeSelector".to_owned(),
        ProfileSource::Default => ", the default".to_owned(),
        ProfileSource::BuiltIn => String::new(),
    };
    Ok(DesiredLayout {
        profile: format!("{}{by}", chosen.name),
        transition: chosen.profile.transition,
        reserve: plans
            .iter()
            .filter(|plan| !plan.reserve.is_empty())
            .map(|plan| (plan.uuid.clone(), plan.reserve.clone()))
            .collect(),
        gpus: plans
            .into_iter()
            .map(|plan| (plan.uuid, plan.mode))
            .collect(),
    })
}

fn gpu(facts: &nvml::GpuFacts) -> PhysicalGpu {
    PhysicalGpu {
        uuid: facts.uuid.as_str().into(),
        index: facts.index,
        product: facts.model.clone(),
        pci: facts.pci_bus_id.as_deref().and_then(Pci::parse),
        model: facts.pci_device_id.map(Pci::Model),
        capability: facts.compute_capability,
        mig: facts.mig.capable,
    }
}

/// The text at `path`: a file, or a directory with one file that ends in `.yaml`, `.yml` or
/// `.json`. One that is missing does not ask for the default.
pub fn read_configuration(path: &Path) -> Result<String, DesiredLayoutError> {
    let broken = |text| DesiredLayoutError {
        reason: "ConfigurationBroken",
        text,
    };
    let missing = || DesiredLayoutError {
        reason: "ConfigurationMissing",
        text: format!(
            "no configuration found at {}, expected a .yaml, .yml or .json file",
            path.display()
        ),
    };
    let failed = |error: io::Error| broken(format!("cannot read {}: {error}", path.display()));
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
        Err(error) => return Err(failed(error)),
    };
    if found.is_file() {
        return std::fs::read_to_string(path).map_err(failed);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        let name = file.file_name().and_then(|name| name.to_str());
        let is_hidden = name.is_none_or(|name| name.starts_with('.'));
        if matches!(ending, Some("yaml" | "yml" | "json")) && !is_hidden {
            files.push(file);
        }
    }
    match files.as_slice() {
        [] => Err(missing()),
        [file] => std::fs::read_to_string(file)
            .map_err(|error| broken(format!("cannot read {}: {error}", file.display()))),
        several => {
            let n = several.len();
            let path = path.display();
            Err(broken(format!(
                "{path} has {n} configuration files, expected one .yaml, .yml or .json file"
            )))
        }
    }
}

/// A hash by which people see that two nodes read the same text (FNV-1a).
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use aliquot_core::Scaling;

    use super::*;
    use crate::gpus::allocatable::{GpuLayout, NodeLayout};
    use crate::gpus::inventory::NodePublisher;
    use crate::testing::facts;

    const CONFIG: &str = "
apiVersion: aliquot.dev/v1alpha1
default: shared
profiles:
  shared: {rest: vgpu}
  lab:
    gpus:
    - {select: {index: 0}, mode: exclusive}
    - {select: {pci: '0000:07:00.0', product: '*A30'}, mode: timeslice, replicas: 3}
    transition: {policy: evict, timeout: 5m}
  model: {gpus: [{select: {pci: '0x20B710DE'}, mode: exclusive}], rest: vgpu}
  third: {gpus: [{select: {index: 7}, mode: exclusive}], rest: vgpu}
";

    /// `expected`: the modes in order, or the reason and a part of the text.
    fn check(text: Option<&str>, label: Option<&str>, expected: Result<&[&str], (&str, &str)>) {
        let labels = label.map(|value| ("aliquot.dev/profile".to_owned(), value.to_owned()));
        let mut facts = facts(&["GPU-a", "GPU-b"]);
        facts.gpus[1].pci_bus_id = Some("00000000:07:00.0".to_owned());
        facts.gpus[1].pci_device_id = Some(0x20B7_10DE);
        facts.gpus[1].model = "NVIDIA A30".to_owned();
        let defaults = Defaults {
            split: 4,
            memory_scaling: Scaling::ONE,
        };
        let found = determine(text, &labels.into_iter().collect(), &facts, &defaults);
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let actual = found.gpus.values().map(|mode| format!("{mode:?}"));
                let actual: Vec<String> = actual.map(|m| m.chars().take(7).collect()).collect();
                assert_eq!(actual, expected, "{label:?}");
            }
            (Err(error), Err((reason, part))) => {
                assert_eq!(error.reason, reason);
                assert!(error.text.contains(part), "{}", error.text);
            }
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn resolves_mode_from_configuration_labels_and_gpus() {
        let vgpu = Ok(&["Vgpu(Vg", "Vgpu(Vg"][..]);
        let broken = Err(("ConfigurationBroken", "line 1"));
        let unknown = Err(("ProfileUnknown", "\"labb\" is not a profile"));
        let unfit = Err(("ProfileDoesNotFit", "7 selects no GPU"));
        check(None, None, vgpu);
        check(None, Some("lab"), vgpu);
        check(Some(CONFIG), None, vgpu);
        check(Some(CONFIG), Some("lab"), Ok(&["Exclusi", "Timesli"]));
        check(Some(CONFIG), Some("model"), Ok(&["Vgpu(Vg", "Exclusi"]));
        check(Some("profiles: ["), None, broken);
        check(Some(CONFIG), Some("labb"), unknown);
        check(Some(CONFIG), Some("third"), unfit);
    }

    #[test]
    fn ts_11_defaults_to_vgpu_and_shows_readable_profile() {
        let facts = facts(&["GPU-a", "GPU-b"]);
        let defaults = Defaults {
            split: 4,
            memory_scaling: Scaling::ONE,
        };
        let found = determine(None, &BTreeMap::new(), &facts, &defaults).expect("built in");
        let open = |(uuid, mode)| (uuid, GpuLayout::serving(mode));
        let layout = NodeLayout {
            default_resource: crate::testing::RESOURCE.to_owned(),
            gpus: found.gpus.into_iter().map(open).collect(),
            ..NodeLayout::default()
        };
        let published = NodePublisher::new(facts, Vec::new(), layout);
        let inventory = &published.get().inventory;
        let config = aliquot_profiles::effective::effective("n1", inventory).expect("can be shown");
        let yaml = config.to_yaml().expect("yaml");
        assert_eq!(read(&yaml).expect("good"), config);
        assert!(yaml.contains("vgpu") && yaml.contains("split: 4"), "{yaml}");
    }

    #[test]
    fn reads_file_or_mounted_config_map() {
        let dir = tempfile::tempdir().expect("tempdir");
        let read = |name: &str| read_configuration(&dir.path().join(name));
        let is_missing = |name: &str| read(name).expect_err(name).reason == "ConfigurationMissing";
        assert!(is_missing("none"));
        std::fs::write(dir.path().join("a.yaml"), "one").expect("written");
        assert_eq!(read("a.yaml"), Ok("one".to_owned()));
        // As the kubelet mounts it: a link to a link to the file of this version.
        let data = dir.path().join("map/..v1");
        std::fs::create_dir_all(&data).expect("made");
        // A ConfigMap as that of NVIDIA's plugin, whose keys have no ending.
        std::fs::write(dir.path().join("map/a100"), "none").expect("written");
        assert!(is_missing("map"));
        std::fs::write(data.join("profiles.yaml"), "two").expect("written");
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, dir.path().join(at));
        link("..v1", "map/..data").expect("linked");
        link("..data/profiles.yaml", "map/profiles.yaml").expect("linked");
        assert_eq!(read("map"), Ok("two".to_owned()));
        std::fs::write(dir.path().join("map/more.json"), "").expect("written");
        let error = read("map").expect_err("two files");
        assert!(error.text.contains("2 configuration files"), "{error:?}");
    }
}
