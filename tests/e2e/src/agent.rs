//! The node agent as a part, on a simulated machine.

use std::path::{Path, PathBuf};

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place, proc_folder};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use crate::stack::{Kind, NODE, PATIENCE, Stack};

/// What a node offers.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// `deviceMemoryScaling`.
    pub scaling: &'static str,
    /// With libvgpu.so, so that limits are enforced.
    pub limited: bool,
    /// Where programs are that the host runs; with the agent's files when absent.
    pub exec_dir: Option<PathBuf>,
    /// Further flags of the agent.
    pub flags: &'static [&'static str],
    /// A configuration of profiles, which [`Stack::write_profiles`] changes later.
    pub profiles: Option<String>,
    /// The build with fail-points; see [`Stack::kill_at`].
    pub chaos: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            scaling: "1",
            limited: false,
            exec_dir: None,
            flags: &[],
            profiles: None,
            chaos: false,
        }
    }
}

impl NodeOptions {
    /// With libvgpu.so.
    pub fn limited() -> Self {
        Self {
            limited: true,
            ..Self::default()
        }
    }
}

/// `deviceSplitCount`.
const SPLIT: usize = 10;
/// The folder of the toolkit's programs, and the CDI spec of the driver that they print.
const TOOLKIT: &str = "toolkit";
const DRIVER_SPEC: &str = "driver.json";
/// The file that arms a fail-point.
const FAIL_POINT: &str = "fail-point";
/// Names that file to it.
const FAIL_POINT_FILE: &str = "ALIQUOT_FAIL_POINT_FILE";

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Stack {
    /// The simulated machine of the real node.
    pub fn machine(&self) -> SimulatedMachine {
        SimulatedMachine::at(&self.files().join("gpusim.state"))
    }

    /// The UUID of one of its GPUs.
    pub fn gpu_uuid(&self, index: usize) -> Result<String> {
        let shown = self.machine().show()?;
        let uuid = shown["gpus"][index]["uuid"].as_str();
        Ok(uuid.context("a uuid")?.to_owned())
    }

    /// The simulated driver's NVML.
    fn nvml_library(&self) -> Result<PathBuf> {
        let driver = self.files().join("driver");
        std::fs::create_dir_all(&driver)?;
        Ok(place::link_into(&driver)?)
    }

    fn profiles(&self) -> PathBuf {
        self.files().join("profiles.yaml")
    }

    /// The CDI spec of the driver that the toolkit prints for the agent.
    pub(crate) fn driver_spec(&self) -> Result<PathBuf> {
        let folder = self.files().join(TOOLKIT);
        std::fs::create_dir_all(&folder)?;
        Ok(folder.join(DRIVER_SPEC))
    }

    /// The folder of a toolkit. Its spec is that of a scenario, or else one of the simulated driver
    /// for whatever GPUs the machine has.
    fn toolkit(&self) -> Result<PathBuf> {
        let (folder, file) = (self.files().join(TOOLKIT), self.driver_spec()?);
        place::write_toolkit(&folder, &file)?;
        if file.exists() {
            return Ok(folder);
        }
        let mount = |from: PathBuf, name: &str| {
            json!({"hostPath": from, "containerPath": format!("/driver/{name}"),
                "options": ["ro", "nosuid", "nodev", "bind"]})
        };
        let spec = json!({
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [],
            "containerEdits": {"mounts": [
                mount(place::cuda_library_path()?, place::CUDA_LIBRARY_NAME),
                mount(place::library_path()?, place::LIBRARY_NAME),
            ]},
        });
        std::fs::write(file, spec.to_string())?;
        Ok(folder)
    }

    /// Flags and environment of the agent; the machine is created if there is none yet.
    fn agent_command(&self, options: &NodeOptions) -> Result<(Vec<String>, String)> {
        let machine = self.machine();
        // Makes the folder of the machine, too.
        let library = text(&self.nvml_library()?);
        if !machine.state().exists() {
            let gpus = "gpus:\n  - count: 2\n    model: NVIDIA A100-SXM4-80GB\n";
            let yaml = format!("name: {NODE}\n{gpus}");
            SimulatedMachine::create(machine.state(), &yaml)?;
        }
        let proc = proc_folder(machine.state());
        let mut flags = vec![
            ("--listen", self.address(Kind::DevicePlugin).to_string()),
            ("--node-name", NODE.to_owned()),
            ("--kubelet-dir", text(&self.cluster.kubelet_dir())),
            ("--kubelet-config", text(&self.cluster.kubelet_config())),
            // The agent runs outside a container, and may not follow /proc/1/root.
            ("--host-root", "/".to_owned()),
            ("--cdi-dir", text(&self.cluster.cdi_dir())),
            ("--state-dir", text(&self.agent_state())),
            ("--nvml-library", library),
            ("--device-split-count", SPLIT.to_string()),
            ("--device-memory-scaling", options.scaling.to_owned()),
            // Fixed, so that figures do not depend on what the monitor has measured.
            ("--context-memory", "512".to_owned()),
            ("--housekeeping-seconds", "1".to_owned()),
            ("--proc-devices", text(&proc.join("devices"))),
            ("--mig-capabilities-dir", text(&proc.join("capabilities"))),
            ("--toolkit", text(&self.toolkit()?)),
            ("--runtime-config", text(&self.cluster.containerd_config())),
        ];
        if let Some(profiles) = &options.profiles {
            std::fs::write(self.profiles(), profiles)?;
            flags.push(("--profiles-config", text(&self.profiles())));
        }
        if options.limited {
            let limiter = self.program(Kind::DevicePlugin);
            let limiter = limiter.with_file_name("libvgpu.so");
            flags.push(("--limiter-library", text(&limiter)));
        }
        if let Some(folder) = &options.exec_dir {
            flags.push(("--exec-dir", text(folder)));
        }
        let flags = flags.into_iter();
        let flags = flags.flat_map(|(flag, value)| [flag.to_owned(), value]);
        let flags = flags.chain(options.flags.iter().map(|&flag| flag.to_owned()));
        Ok((flags.collect(), text(machine.state())))
    }

    /// Replaces the configuration of profiles while the agent runs.
    pub fn write_profiles(&self, profiles: &str) -> Result<()> {
        let path = self.profiles();
        let new = path.with_extension("new");
        std::fs::write(&new, profiles)?;
        Ok(std::fs::rename(new, path)?)
    }

    /// Starts the supervisor of MPS daemons beside the agent.
    pub async fn start_mps_supervisor(&self) -> Result<()> {
        let (library, state) = (self.nvml_library()?, self.agent_state());
        let program = self.program(Kind::DevicePlugin);
        let control = program.with_file_name("nvidia-cuda-mps-control");
        let args = [
            "mps-supervisor",
            "--state-dir",
            &text(&state),
            "--nvml-library",
            &text(&library),
            "--mps-control",
            &text(&control),
            "--shm-size=64",
        ];
        let machine = text(self.machine().state());
        let env = [(STATE_VARIABLE, machine.as_str())];
        let supervisor =
            self.cluster
                .start_part_on_node("mps-supervisor", &program, &args, &env)?;
        self.mps_supervisor.lock().await.replace(supervisor);
        Ok(())
    }

    /// Starts the monitor beside the agent, and waits for its first sample.
    pub async fn start_monitor(&self) -> Result<()> {
        self.launch_monitor().await?;
        self.wait_ready(Kind::Monitor).await
    }

    pub(crate) async fn launch_monitor(&self) -> Result<()> {
        let listen = self.address(Kind::Monitor).to_string();
        let library = text(&self.nvml_library()?);
        let state = text(&self.agent_state());
        let mut flags = vec!["--listen", &listen, "--node-name", NODE];
        flags.extend(["--state-dir", &state, "--nvml-library", &library]);
        let machine = text(self.machine().state());
        let env = [(STATE_VARIABLE, machine.as_str())];
        let kubeconfig = self.kubeconfig(Kind::Monitor).await?;
        let program = self.program(Kind::Monitor);
        self.start_on_node(Kind::Monitor, &program, &kubeconfig, &flags, &env)
            .await
    }

    /// Starts the node agent on the simulated machine, created if there is none yet, and waits
    /// until the node offers its replicas.
    pub async fn start_device_plugin(&self, options: &NodeOptions) -> Result<()> {
        self.start_device_plugin_unready(options).await?;
        self.wait_ready(Kind::DevicePlugin).await?;
        let shown = self.machine().show()?;
        let gpus = shown["gpus"].as_array();
        let gpus = gpus.context("the machine lists its GPUs")?.len();
        self.wait_capacity(&(SPLIT * gpus).to_string()).await
    }

    /// Ends the node agent, and starts it with these options.
    pub async fn restart_device_plugin(&self, options: &NodeOptions) -> Result<()> {
        self.terminate(Kind::DevicePlugin).await?;
        self.start_device_plugin(options).await
    }

    /// Starts the node agent and returns at once.
    pub async fn start_device_plugin_unready(&self, options: &NodeOptions) -> Result<()> {
        let (flags, machine) = self.agent_command(options)?;
        let kubeconfig = self.kubeconfig(Kind::DevicePlugin).await?;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let point = text(&self.files().join(FAIL_POINT));
        let env = [
            (STATE_VARIABLE, machine.as_str()),
            (FAIL_POINT_FILE, point.as_str()),
        ];
        let kind = Kind::DevicePlugin;
        let mut program = self.program(kind);
        if options.chaos {
            program.set_file_name("aliquot-device-plugin-chaos");
            ensure!(
                program.is_file(),
                "no {}: cargo build -p aliquot-device-plugin --features fail-points --bin aliquot-device-plugin-chaos",
                program.display()
            );
        }
        self.start_on_node(kind, &program, &kubeconfig, &flags, &env)
            .await
    }

    /// Has an agent with fail-points killed at the next passage of this one.
    pub fn kill_at(&self, point: &str) -> Result<()> {
        let file = self.files().join(FAIL_POINT);
        let _none_before = std::fs::remove_file(file.with_extension("fired"));
        Ok(std::fs::write(file, format!("{point} 1"))?)
    }

    /// Waits until it was killed there.
    pub async fn killed(&self) -> Result<()> {
        let fired = self.files().join(FAIL_POINT).with_extension("fired");
        eventually(PATIENCE, "the agent to be killed", || async {
            Ok(fired.exists().then_some(()))
        })
        .await?;
        self.kill(Kind::DevicePlugin).await
    }

    /// Waits until the node's allocatable `nvidia.com/gpu` is `replicas`.
    pub async fn wait_capacity(&self, replicas: &str) -> Result<()> {
        self.wait_allocatable("nvidia.com/gpu", replicas).await
    }

    /// The same of another resource.
    pub async fn wait_allocatable(&self, resource: &str, replicas: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        let what = format!("{replicas} allocatable {resource}");
        eventually(PATIENCE, &what, || async {
            let node = nodes.get(NODE).await?;
            let allocatable = node.status.and_then(|s| s.allocatable).unwrap_or_default();
            let found = allocatable.get(resource).map(|q| q.0.as_str());
            until!(found == Some(replicas), "{found:?}");
            Ok(Some(()))
        })
        .await
    }

    /// What the agent of the real node has published.
    pub async fn inventory(&self) -> Result<Inventory> {
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        let annotations = nodes.get(NODE).await?.metadata.annotations;
        let text = annotations.and_then(|mut all| all.remove(INVENTORY));
        Ok(Inventory::decode(&text.context("an inventory")?)?)
    }

    /// Waits until a condition of the real node, as `status reason: message`, is as expected, and
    /// returns it.
    pub async fn wait_condition(
        &self,
        kind: &str,
        is_expected: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        eventually(PATIENCE, &format!("the node's {kind}"), || async {
            let status = nodes.get(NODE).await?.status.unwrap_or_default();
            let mut all = status.conditions.into_iter().flatten();
            let found = all.find(|one| one.type_ == kind);
            let found = found.context("no such condition").or_not_yet()?;
            let [reason, message] = [found.reason, found.message].map(Option::unwrap_or_default);
            let text = format!("{} {reason}: {message}", found.status);
            until!(is_expected(&text), "{text}");
            Ok(Some(text))
        })
        .await
    }
}
