//! What of the driver a container with a share gets: what computes and what tells, always; what
//! draws and what encodes video only where the card's profile allows it, because libvgpu.so holds
//! neither to a share.
//!
//! Fed by: NVIDIA's edits, the settings of the container's cards. Must not: touch the edits of a
//! container whose cards are not shared by vgpu.

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_core::mig::published::Mig;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::On;
use serde_json::Value;

use crate::cdi::Edits;
use crate::occupants::card_of;
use crate::units::Arrangement;

/// What NVIDIA's container runtime reads.
pub const VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// How the driver's files begin that draw.
const GRAPHICS: [&str; 22] = [
    "libGL",
    "libEGL",
    "libOpenGL",
    "libglxserver_nvidia",
    "libnvidia-api",
    "libnvidia-cbl",
    "libnvidia-egl",
    "libnvidia-fbc",
    "libnvidia-glcore",
    "libnvidia-glsi",
    "libnvidia-glvkspirv",
    "libnvidia-gtk",
    "libnvidia-ifr",
    "libnvidia-ngx",
    "libnvidia-present",
    "libnvidia-rtcore",
    "libnvidia-tls",
    "libnvidia-vksc-core",
    "libnvidia-vulkan-producer",
    "libnvidia-wayland-client",
    "nvidia-drm_gbm",
    "nvidia_drv",
];
/// The same of what encodes and decodes video.
const VIDEO: [&str; 4] = [
    "libnvcuvid",
    "libnvidia-encode",
    "libnvidia-opticalflow",
    "libvdpau_nvidia",
];
/// `OptiX` has a name of its own.
const OPTIX: [&str; 2] = ["libnvoptix", "nvoptix"];
/// Folders in which a desktop looks for what draws.
const FOLDERS: [&str; 6] = ["glvnd", "vulkan", "vulkansc", "egl", "X11", "xorg"];
/// Devices that only draw.
const DEVICES: [&str; 2] = ["/dev/dri", "/dev/nvidia-modeset"];

/// What a container may have besides compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    graphics: bool,
    video: bool,
}

impl Allowed {
    /// What the profile of this unit's card allows; `None`: the unit is not shared by vgpu, and
    /// its containers get what their image asks for.
    pub fn of(unit: &Gpu, arrangement: &Arrangement) -> Option<Self> {
        if !matches!(unit.mode, Shared::Vgpu | Shared::Unknown) {
            return None;
        }
        let nothing = aliquot_profiles::mode::Vgpu::default();
        let mode = arrangement.cards.get(card_of(unit)).map(|s| &s.mode);
        let settings = match (mode, &unit.mig) {
            (Some(Mode::Vgpu(vgpu)), _) => vgpu,
            (Some(Mode::Mig(mig)), Some(Mig::Part(part))) => {
                let mut slices = mig.layout.iter();
                let own = slices.find(|slice| slice.profile == part.profile);
                match own.and_then(|slice| slice.on.as_ref()) {
                    Some(On::Vgpu(vgpu)) => vgpu,
                    _ => &nothing,
                }
            }
            _ => &nothing,
        };
        Some(Self {
            graphics: settings.graphics,
            video: settings.video,
        })
    }

    /// What all of a container's cards allow; `None` where none of them is shared by vgpu.
    pub fn of_all<'a>(
        units: impl Iterator<Item = &'a Gpu>,
        arrangement: &Arrangement,
    ) -> Option<Self> {
        let all = units.filter_map(|unit| Self::of(unit, arrangement));
        all.reduce(|one, other| Self {
            graphics: one.graphics && other.graphics,
            video: one.video && other.video,
        })
    }

    /// In the words of NVIDIA's runtime.
    pub fn words(self) -> Vec<&'static str> {
        let mut words = vec!["compute", "utility"];
        if self.graphics {
            words.extend(["graphics", "display"]);
        }
        if self.video {
            words.push("video");
        }
        words
    }

    /// `NAME=value`.
    pub fn variable(self) -> String {
        format!("{VARIABLE}={}", self.words().join(","))
    }

    /// The first word of such a value that is not allowed.
    pub fn beyond(self, value: &str) -> Option<&str> {
        let words = self.words();
        let mut asked = value.split(',').map(str::trim);
        asked.find(|word| !word.is_empty() && !words.contains(word))
    }

    /// Takes what is not allowed out of the driver's edits.
    pub fn keep(self, edits: &mut Edits) {
        let stays = |path: Option<&str>| path.is_none_or(|path| self.has(path));
        edits
            .mounts
            .retain(|mount| stays(mount["containerPath"].as_str()));
        edits
            .device_nodes
            .retain(|node| stays(node["path"].as_str()));
        if let Some(Value::Array(hooks)) = edits.other.get_mut("hooks") {
            // One that changes a device's rights would not find it.
            hooks.retain(|hook| {
                let arguments = hook["args"].as_array().into_iter().flatten();
                let mut paths = arguments.filter_map(Value::as_str);
                self.graphics || !paths.any(|path| path.starts_with(DEVICES[0]))
            });
        }
    }

    fn has(self, path: &str) -> bool {
        let file = path.rsplit('/').next().unwrap_or(path);
        let starts = |all: &[&str]| all.iter().any(|start| file.starts_with(start));
        let draws = starts(&GRAPHICS)
            || starts(&OPTIX)
            || DEVICES.iter().any(|device| path.starts_with(device))
            || path.split('/').any(|folder| FOLDERS.contains(&folder));
        (self.graphics || !draws) && (self.video || !starts(&VIDEO))
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::mig::published::Part;
    use aliquot_profiles::mode::{Mig as Cut, Slice, Vgpu};
    use serde_json::json;

    use super::*;
    use crate::testing::{arrangement, gpu};

    const LIBRARIES: [&str; 9] = [
        "libcuda.so.580.82",
        "libnvidia-ml.so.580.82",
        "libnvidia-ptxjitcompiler.so.580.82",
        "libnvidia-gpucomp.so.580.82",
        "libGLX_nvidia.so.580.82",
        "libnvidia-glcore.so.580.82",
        "libnvoptix.so.580.82",
        "libnvidia-encode.so.580.82",
        "libnvcuvid.so.580.82",
    ];

    /// As nvidia-ctk 1.17 describes a driver.
    fn toolkits() -> Edits {
        let lib =
            |name: &str| json!({"containerPath": format!("/usr/lib/x86_64-linux-gnu/{name}")});
        let mut mounts: Vec<Value> = LIBRARIES.iter().map(|name| lib(name)).collect();
        mounts.extend([
            json!({"containerPath": "/usr/bin/nvidia-smi"}),
            json!({"containerPath": "/etc/vulkan/icd.d/nvidia_icd.json"}),
            json!({"containerPath": "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"}),
        ]);
        let nodes = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-modeset"];
        let nodes = nodes.into_iter().chain(["/dev/dri/card1"]);
        let chmod = [
            "nvidia-cdi-hook",
            "chmod",
            "--mode",
            "755",
            "--path",
            "/dev/dri",
        ];
        let hooks = json!([
            {"hookName": "createContainer", "args": chmod},
            {"hookName": "createContainer", "args": ["nvidia-cdi-hook", "update-ldcache"]},
        ]);
        Edits {
            mounts,
            device_nodes: nodes.map(|path| json!({ "path": path })).collect(),
            other: [("hooks".to_owned(), hooks)].into_iter().collect(),
            ..Edits::default()
        }
    }

    /// What is left of it, by the last part of each path, and how many hooks.
    fn check(graphics: bool, video: bool, expected: &[&str], hooks: usize) {
        let mut edits = toolkits();
        Allowed { graphics, video }.keep(&mut edits);
        let all = edits.mounts.iter().map(|mount| &mount["containerPath"]);
        let all = all.chain(edits.device_nodes.iter().map(|node| &node["path"]));
        let names = all.filter_map(|path| path.as_str()?.rsplit('/').next());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, expected, "{graphics} {video}");
        let left = edits.other["hooks"].as_array().map(Vec::len);
        assert_eq!(left, Some(hooks));
    }

    #[test]
    fn a_share_comes_without_graphics_and_video_unless_its_profile_allows_them() {
        let computes = &LIBRARIES[..4];
        let tells = ["nvidia-smi", "nvidia0", "nvidiactl"];
        check(false, false, &[computes, &tells].concat(), 1);
        let videos = [computes, &LIBRARIES[7..], &tells].concat();
        check(false, true, &videos, 1);
        let desktop = ["nvidia-smi", "nvidia_icd.json", "10_nvidia.json"];
        let devices = ["nvidia0", "nvidiactl", "nvidia-modeset", "card1"];
        let drawn = [&LIBRARIES[..7], &desktop, &devices].concat();
        check(true, false, &drawn, 2);
        check(
            true,
            true,
            &[&LIBRARIES[..], &desktop, &devices].concat(),
            2,
        );
    }

    #[test]
    fn the_words_are_those_of_nvidias_runtime_and_of_all_cards() {
        let mut shared = arrangement(&["GPU-a", "GPU-b"]);
        let (one, other) = (gpu("GPU-a", 0), gpu("GPU-b", 1));
        let said = |shared: &Arrangement, units: &[&Gpu]| {
            let allowed = Allowed::of_all(units.iter().copied(), shared);
            allowed.map(|allowed| allowed.words().join(","))
        };
        let neither = Some("compute,utility".to_owned());
        assert_eq!(said(&shared, &[&one, &other]), neither);
        let both = Mode::Vgpu(Vgpu {
            graphics: true,
            video: true,
            ..Vgpu::default()
        });
        let card = shared.cards.get_mut("GPU-a").expect("a card");
        card.mode = both;
        let all = "compute,utility,graphics,display,video";
        assert_eq!(said(&shared, &[&one]).as_deref(), Some(all));
        assert_eq!(said(&shared, &[&one, &other]), neither);
        let mut alone = one;
        alone.mode = Shared::Exclusive;
        assert_eq!(said(&shared, &[&alone]), None, "as its image says");
        assert_eq!(said(&shared, &[&alone, &other]), neither);
    }

    #[test]
    fn an_instance_has_what_its_own_profile_allows() {
        let on = On::Vgpu(Vgpu {
            video: true,
            ..Vgpu::default()
        });
        let slice = |profile: &str, on| Slice {
            profile: profile.to_owned(),
            count: 1,
            on,
        };
        let layout = vec![slice("1g.5gb", None), slice("3g.20gb", Some(on))];
        let mut shared = arrangement(&["GPU-a"]);
        shared.cards.get_mut("GPU-a").expect("a card").mode = Mode::Mig(Cut {
            layout,
            ..Cut::default()
        });
        let mut part = gpu("MIG-1", 0);
        part.mig = Some(Mig::Part(Part {
            parent: "GPU-a".into(),
            profile: "3g.20gb".to_owned(),
            start: 4,
            gi: 1,
            ci: 0,
        }));
        let allowed = Allowed::of(&part, &shared).expect("vgpu");
        assert_eq!(allowed.words(), ["compute", "utility", "video"]);
        assert_eq!(allowed.beyond("utility, compute,video"), None);
        assert_eq!(allowed.beyond("compute,graphics"), Some("graphics"));
        assert_eq!(allowed.beyond("all"), Some("all"));
    }
}
