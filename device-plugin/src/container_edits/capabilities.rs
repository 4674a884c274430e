//! Which parts of the driver a container with a share gets: compute and utility always; graphics
//! and video only where the device's profile allows them, because libvgpu.so limits neither. The
//! edits of a container whose devices are not shared by vgpu stay as they are.

use aliquot_core::inventory::Gpu;
use serde_json::Value;

use crate::container_edits::cdi::Edits;
use crate::gpus::allocatable::{NodeLayout, parent_gpu};
use crate::modes::{self, Capabilities};

/// File name prefixes of the driver's graphics libraries.
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
/// The same of its video libraries.
const VIDEO: [&str; 4] = [
    "libnvcuvid",
    "libnvidia-encode",
    "libnvidia-opticalflow",
    "libvdpau_nvidia",
];
/// The same of `OptiX`.
const OPTIX: [&str; 2] = ["libnvoptix", "nvoptix"];
const FOLDERS: [&str; 6] = ["glvnd", "vulkan", "vulkansc", "egl", "X11", "xorg"];
const DEVICES: [&str; 2] = ["/dev/dri", "/dev/nvidia-modeset"];

impl Capabilities {
    /// What the profile of this device's GPU allows.
    fn on(device: &Gpu, layout: &NodeLayout) -> Option<Self> {
        let default = modes::of_device(device.mode).capabilities(device)?;
        let gpu = layout.gpus.get(parent_gpu(device));
        let own = gpu.and_then(|gpu| modes::of(&gpu.mode).capabilities(device));
        Some(own.unwrap_or(default))
    }

    /// What all of a container's devices allow; `None` where none of them is shared by vgpu.
    pub fn on_all<'a>(devices: impl Iterator<Item = &'a Gpu>, layout: &NodeLayout) -> Option<Self> {
        let all = devices.filter_map(|device| Self::on(device, layout));
        all.reduce(|one, other| Self {
            graphics: one.graphics && other.graphics,
            video: one.video && other.video,
        })
    }

    /// What NVIDIA's container runtime reads, as `NAME=value`.
    pub fn variable(self) -> String {
        let graphics = if self.graphics {
            ",graphics,display"
        } else {
            ""
        };
        let video = if self.video { ",video" } else { "" };
        format!("NVIDIA_DRIVER_CAPABILITIES=compute,utility{graphics}{video}")
    }

    /// Removes what is not allowed from the driver's edits.
    pub fn filter_edits(self, edits: &mut Edits) {
        let allowed = |path: Option<&str>| path.is_none_or(|path| self.allows_path(path));
        edits
            .mounts
            .retain(|mount| allowed(mount["containerPath"].as_str()));
        edits
            .device_nodes
            .retain(|node| allowed(node["path"].as_str()));
        if let Some(Value::Array(hooks)) = edits.other.get_mut("hooks") {
            // A hook that changes the mode of a removed device node would fail.
            hooks.retain(|hook| {
                let arguments = hook["args"].as_array().into_iter().flatten();
                let mut paths = arguments.filter_map(Value::as_str);
                self.graphics || !paths.any(|path| path.starts_with(DEVICES[0]))
            });
        }
    }

    fn allows_path(self, path: &str) -> bool {
        let file = path.rsplit('/').next().unwrap_or(path);
        let starts = |all: &[&str]| all.iter().any(|start| file.starts_with(start));
        let graphics = starts(&GRAPHICS)
            || starts(&OPTIX)
            || DEVICES.iter().any(|device| path.starts_with(device))
            || path.split('/').any(|folder| FOLDERS.contains(&folder));
        (self.graphics || !graphics) && (self.video || !starts(&VIDEO))
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::inventory::Mode as Shared;
    use aliquot_profiles::Mode;
    use aliquot_profiles::mode::{InstanceSharing, Mig as MigSettings, Vgpu};
    use serde_json::json;

    use super::*;
    use crate::testing::{fixed_instance, gpu, layout_entry, layout_of};

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
    fn toolkit_edits() -> Edits {
        let libraries = LIBRARIES.map(|name| format!("/usr/lib/x86_64-linux-gnu/{name}"));
        let others = [
            "/usr/bin/nvidia-smi",
            "/etc/vulkan/icd.d/nvidia_icd.json",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        ];
        let mounts = libraries.into_iter().chain(others.map(str::to_owned));
        let nodes = ["nvidia0", "nvidiactl", "nvidia-modeset", "dri/card1"];
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
            mounts: mounts.map(|path| json!({"containerPath": path})).collect(),
            device_nodes: nodes
                .map(|name| json!({"path": format!("/dev/{name}")}))
                .into(),
            other: [("hooks".to_owned(), hooks)].into_iter().collect(),
            ..Edits::default()
        }
    }

    /// Expects these remaining file names and this number of hooks.
    fn check(graphics: bool, video: bool, expected: &[&str], hooks: usize) {
        let mut edits = toolkit_edits();
        Capabilities { graphics, video }.filter_edits(&mut edits);
        let all = edits.mounts.iter().map(|mount| &mount["containerPath"]);
        let all = all.chain(edits.device_nodes.iter().map(|node| &node["path"]));
        let names = all.filter_map(|path| path.as_str()?.rsplit('/').next());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, expected, "{graphics} {video}");
        let left = edits.other["hooks"].as_array().map(Vec::len);
        assert_eq!(left, Some(hooks));
    }

    #[test]
    fn omits_graphics_and_video_unless_profile_allows() {
        let compute = &LIBRARIES[..4];
        let utility = ["nvidia-smi", "nvidia0", "nvidiactl"];
        check(false, false, &[compute, &utility].concat(), 1);
        let videos = [compute, &LIBRARIES[7..], &utility].concat();
        check(false, true, &videos, 1);
        let desktop = ["nvidia-smi", "nvidia_icd.json", "10_nvidia.json"];
        let devices = ["nvidia0", "nvidiactl", "nvidia-modeset", "card1"];
        let with_graphics = [&LIBRARIES[..7], &desktop, &devices].concat();
        check(true, false, &with_graphics, 2);
        let all = [&LIBRARIES[..], &desktop, &devices].concat();
        check(true, true, &all, 2);
    }

    #[test]
    fn intersects_capabilities_of_all_devices() {
        let mut shared = layout_of(&["GPU-a", "GPU-b"]);
        let (one, other) = (gpu("GPU-a", 0), gpu("GPU-b", 1));
        let mut alone = gpu("GPU-a", 0);
        alone.mode = Shared::Exclusive;
        let check = |shared: &NodeLayout, devices: &[&Gpu], expected: Option<&str>| {
            let allowed = Capabilities::on_all(devices.iter().copied(), shared);
            let variable = allowed.map(Capabilities::variable);
            assert_eq!(variable.as_deref(), expected);
        };
        let neither = Some("NVIDIA_DRIVER_CAPABILITIES=compute,utility");
        check(&shared, &[&one, &other], neither);
        let gpu = shared.gpus.get_mut("GPU-a").expect("a GPU");
        gpu.mode = Mode::Vgpu(Vgpu {
            graphics: true,
            video: true,
            ..Vgpu::default()
        });
        let all = "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics,display,video";
        check(&shared, &[&one], Some(all));
        check(&shared, &[&one, &other], neither);
        // It is left to its image.
        check(&shared, &[&alone], None);
        check(&shared, &[&alone, &other], neither);
    }

    #[test]
    fn applies_capabilities_of_instance_profile() {
        let on = InstanceSharing::Vgpu(Vgpu {
            video: true,
            ..Vgpu::default()
        });
        let small = layout_entry("1g.5gb", 1, None);
        let layout = vec![small, layout_entry("3g.20gb", 1, Some(on))];
        let mut shared = layout_of(&["GPU-a"]);
        shared.gpus.get_mut("GPU-a").expect("a GPU").mode = Mode::Mig(MigSettings {
            layout,
            ..MigSettings::default()
        });
        let mut instance = gpu("MIG-1", 0);
        instance.mig = Some(fixed_instance("GPU-a", "3g.20gb"));
        let allowed = Capabilities::on(&instance, &shared).expect("vgpu");
        let variable = "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video";
        assert_eq!(allowed.variable(), variable);
    }
}
