//! A node: a simulated machine, the driver's root with its libraries and device nodes, and the CDI
//! specs that NVIDIA's own program writes for them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place, proc_folder};
use anyhow::{Context as _, Result};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::agent::Agent;
use crate::programs::{Release, run, script};

/// The GPU that containers get.
pub const FIRST: &str = "GPU-11111111-1111-1111-1111-111111111111";
/// The other GPU of the node.
pub const SECOND: &str = "GPU-22222222-2222-2222-2222-222222222222";
/// The driver's version.
pub const DRIVER: &str = "580.82.07";
/// What a context takes, in MiB.
pub const CONTEXT: u64 = 480;
/// The folder of the driver's libraries, below its root and in containers.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The search path of all programs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Device nodes as the driver makes them, with their numbers.
const DEVICE_NODES: [(&str, u32, u32); 5] = [
    ("nvidia0", 195, 0),
    ("nvidia1", 195, 1),
    ("nvidiactl", 195, 255),
    ("nvidia-uvm", 508, 0),
    ("nvidia-uvm-tools", 508, 1),
];

/// A file system of its own for capability nodes in the folder $1, as in the mount namespace of the
/// program that creates the instance: $2 the program, $3 its first argument.
const CREATE_INSTANCE: &str = r#"
set -e
mkdir -p "$1"
mount -t tmpfs tmpfs "$1"
exec "$2" "$3" "$1"
"#;

/// A MIG instance of the first GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its UUID.
    pub uuid: String,
    /// Its number on the GPU.
    pub gpu_instance: u32,
    /// The number of the compute instance in it.
    pub compute_instance: u32,
    /// The names of its capability nodes.
    pub nodes: Vec<String>,
}

/// What installed the toolkit, and writes the node's CDI specs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installer {
    /// The package, with `nvidia-cdi-refresh`: the kind `nvidia.com/gpu`.
    Package,
    /// GPU Operator since 25.10: the kinds of NVIDIA's device plugin and of management containers.
    Operator,
}

impl Installer {
    /// The default kind in the runtime's configuration.
    pub fn default_kind(self) -> &'static str {
        match self {
            Self::Package => "nvidia.com/gpu",
            Self::Operator => "management.nvidia.com/gpu",
        }
    }

    /// The files, each with the arguments that make it.
    fn specs(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Package => &[("nvidia.yaml", &["--mode=nvml"])],
            Self::Operator => &[
                (
                    "k8s.device-plugin.nvidia.com-gpu.json",
                    &[
                        "--mode=nvml",
                        "--vendor=k8s.device-plugin.nvidia.com",
                        "--device-name-strategy=uuid",
                    ],
                ),
                (
                    "management.nvidia.com-gpu.yaml",
                    &["--mode=management", "--vendor=management.nvidia.com"],
                ),
            ],
        }
    }
}

/// A node with a release of the toolkit. It exists as long as this value.
pub struct Node {
    /// The release.
    pub release: Release,
    folder: tempfile::TempDir,
}

impl Node {
    /// A node with two GPUs and all specs.
    pub fn new(release: Release) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let node = Self { release, folder };
        fs::create_dir(node.machine())?;
        let yaml = format!(
            "driver: {DRIVER}\ndev: {}\ngpus:\n- count: 2\n  model: NVIDIA A100-SXM4-80GB\n  uuids: [{FIRST}, {SECOND}]\n  set: {{contextMib: {CONTEXT}}}\n",
            node.device_nodes().display()
        );
        SimulatedMachine::create(&node.state(), &yaml)?;
        node.make_driver_root()?;
        for installer in [Installer::Package, Installer::Operator] {
            node.write_specs(installer)?;
        }
        Ok(node)
    }

    /// A folder for what a test makes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder with the state of the simulated machine.
    pub fn machine(&self) -> PathBuf {
        self.folder().join("machine")
    }

    /// The state of the simulated machine.
    pub fn state(&self) -> PathBuf {
        self.machine().join("state")
    }

    /// The driver's root.
    pub fn driver_root(&self) -> PathBuf {
        self.folder().join("driver")
    }

    /// The driver's CUDA library.
    pub fn cuda_library(&self) -> PathBuf {
        let file = format!("libcuda.so.{DRIVER}");
        self.driver_root().join(LIBRARIES).join(file)
    }

    /// The folder of the host's device nodes.
    pub fn device_nodes(&self) -> PathBuf {
        self.driver_root().join("dev")
    }

    /// The driver's files of `/proc`.
    pub fn proc(&self) -> PathBuf {
        proc_folder(&self.state())
    }

    /// Removes device nodes, as on a node where nobody ran a program that creates them.
    pub fn remove_device_nodes(&self, which: impl Fn(&str) -> bool) -> Result<()> {
        for (name, ..) in DEVICE_NODES.iter().filter(|(name, ..)| which(name)) {
            fs::remove_file(self.device_nodes().join(name))?;
        }
        Ok(())
    }

    /// Creates a MIG instance in a mount namespace of its own, where its capability nodes are.
    pub fn create_instance(&self) -> Result<Instance> {
        let library = self.driver_root().join(LIBRARIES);
        let library = library.join(format!("libnvidia-ml.so.{DRIVER}"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command.args(["sh", "-c", CREATE_INSTANCE, "sh"]);
        command.arg(self.device_nodes().join("nvidia-caps"));
        command.arg(script("create-mig-instance")).arg(library);
        let output = run(command.env(STATE_VARIABLE, self.state()))?;
        let text = String::from_utf8(output.stdout)?;
        let mut words = text.split_whitespace();
        let mut next = || words.next().context("too few words");
        Ok(Instance {
            uuid: next()?.to_owned(),
            gpu_instance: next()?.parse()?,
            compute_instance: next()?.parse()?,
            nodes: words.map(str::to_owned).collect(),
        })
    }

    /// The folder with the specs of an installer.
    pub fn specs(&self, installer: Installer) -> PathBuf {
        self.folder().join(format!("{installer:?}"))
    }

    /// A node agent that has generated NVIDIA's CDI spec of the driver's root.
    pub fn agent(&self) -> Result<Agent> {
        Agent::start(self)
    }

    fn make_driver_root(&self) -> Result<()> {
        let libraries = self.driver_root().join(LIBRARIES);
        let nodes = self.device_nodes();
        fs::create_dir_all(&libraries)?;
        fs::create_dir_all(&nodes)?;
        let built = [
            ("libcuda", place::cuda_library_path()?),
            ("libnvidia-ml", place::library_path()?),
        ];
        for (stem, built) in built {
            let file = format!("{stem}.so.{DRIVER}");
            fs::copy(built, libraries.join(&file))?;
            symlink(file, libraries.join(format!("{stem}.so.1")))?;
        }
        for (name, major, minor) in DEVICE_NODES {
            let mode = Mode::from_raw_mode(0o666);
            let number = makedev(major, minor);
            let kind = FileType::CharacterDevice;
            mknodat(CWD, nodes.join(name), kind, mode, number)?;
        }
        Ok(())
    }

    fn write_specs(&self, installer: Installer) -> Result<()> {
        let folder = self.specs(installer);
        fs::create_dir(&folder)?;
        for (file, arguments) in installer.specs() {
            let root = self.driver_root();
            let mut command = Command::new(self.release.program("nvidia-ctk"));
            command.env_clear().env("PATH", PATH);
            command.env(STATE_VARIABLE, self.state());
            command.args(["cdi", "generate"]).args(*arguments);
            command.arg("--driver-root").arg(&root);
            command.arg("--dev-root").arg(&root);
            let hook = self.release.program("nvidia-cdi-hook");
            command.arg("--nvidia-cdi-hook-path").arg(hook);
            command.arg("--output").arg(folder.join(file));
            run(&mut command)?;
        }
        Ok(())
    }
}
