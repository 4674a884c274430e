//! A machine, a supervisor and clients, each a process.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use aliquot_cluster::wait::{PATIENCE, Unmet, eventually};
use aliquot_core::Mib;
use aliquot_device_plugin::modes::mps::directory::DaemonDirectory;
use aliquot_device_plugin::modes::mps::plan;
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_node_state::mps::{DaemonPhase, DaemonSpec, DaemonStatus};
use aliquot_node_state::state::StateDirectory;
use aliquot_profiles::mode::Mps;

const MACHINE: &str =
    "gpus: [{count: 2, model: NVIDIA A100-SXM4-40GB, memoryMib: 40960, uuids: [GPU-a, GPU-b]}]";

pub(crate) struct Bench {
    folder: tempfile::TempDir,
    /// A process in the mount namespace of the supervisor.
    host: Child,
    pub(crate) machine: SimulatedMachine,
    /// The supervisor's flags for where the control program is.
    control: Vec<OsString>,
    supervisor: Option<Child>,
}

/// A built program of the workspace, beside this one.
pub(crate) fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    let mut found = folders.map(|folder| folder.join(name));
    let missing = || panic!("no {name}: cargo build --workspace");
    found.find(|file| file.is_file()).unwrap_or_else(missing)
}

impl Bench {
    pub(crate) fn new() -> Self {
        let control = program("nvidia-cuda-mps-control");
        Self::with(vec!["--mps-control".into(), control.into()])
    }

    /// With these flags for where the control program is.
    pub(crate) fn with(control: Vec<OsString>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = SimulatedMachine::create(&folder.path().join("state"), MACHINE).unwrap();
        place::link_into(folder.path()).unwrap();
        place::link_cuda_into(folder.path()).unwrap();
        let mut bench = Self {
            host: with_shared_mounts(folder.path()),
            folder,
            machine,
            control,
            supervisor: None,
        };
        bench.start_supervisor();
        bench
    }

    pub(crate) fn start_supervisor(&mut self) {
        let supervisor = Command::new("nsenter")
            .arg(format!("--mount=/proc/{}/ns/mnt", self.host.id()))
            .arg(program("aliquot-device-plugin"))
            .args(["mps-supervisor", "--shm-size=1"])
            .args([Path::new("--state-dir"), self.folder.path()])
            .arg("--nvml-library")
            .arg(self.folder.path().join(place::LIBRARY_NAME))
            .args(&self.control)
            .env(STATE_VARIABLE, self.machine.state())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.supervisor = Some(supervisor);
    }

    pub(crate) fn supervisor_pid(&self) -> u32 {
        self.supervisor.as_ref().unwrap().id()
    }

    pub(crate) fn kill_supervisor(&mut self) {
        let mut supervisor = self.supervisor.take().unwrap();
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }

    /// The memory of a device's daemon where the container runtime finds it.
    pub(crate) fn mounted_shm(&self, device: &str) -> PathBuf {
        seen_by(self.host.id(), &self.directory(device).shm())
    }

    /// The supervisor's directory in the agent's state.
    pub(crate) fn root(&self) -> PathBuf {
        StateDirectory(self.folder.path()).mps()
    }

    pub(crate) fn directory(&self, device: &str) -> DaemonDirectory {
        DaemonDirectory::new(&self.root(), device)
    }

    pub(crate) fn request(&self, device: &str, replicas: u32) -> DaemonSpec {
        let spec = plan::daemon_spec(device, Mib(40_960), &Mps::new(replicas), Some(device));
        self.directory(device).put_spec(&spec).unwrap();
        spec
    }

    /// Waits until the device's status is running with its current specification.
    pub(crate) async fn served(&self, device: &str) -> DaemonStatus {
        self.status(device, |status| {
            let spec = self.directory(device).spec().unwrap();
            status.phase == DaemonPhase::Running && status.spec == spec
        })
        .await
    }

    pub(crate) async fn status(
        &self,
        device: &str,
        holds: impl Fn(&DaemonStatus) -> bool,
    ) -> DaemonStatus {
        let folder = self.directory(device);
        eventually(PATIENCE, "a status", || async {
            let status = folder.status()?;
            let seen = format!("{status:?}");
            let found = status.filter(|status| holds(status));
            found.map(Some).ok_or(Unmet::NotYet(seen))
        })
        .await
        .unwrap()
    }

    pub(crate) async fn gone(&self, device: &str) {
        let folder = self.directory(device);
        let gone = || async { Ok(folder.is_gone().then_some(())) };
        eventually(PATIENCE, "the device's directory to go", gone)
            .await
            .unwrap();
    }

    /// Waits until a file of the device exists on the host, or does not.
    pub(crate) async fn until_exists(&self, device: &str, file: &str, there: bool) {
        let file = self.directory(device).path().join(file);
        let file = seen_by(self.host.id(), &file);
        let changed = || async { Ok((file.exists() == there).then_some(())) };
        eventually(PATIENCE, "a file", changed).await.unwrap();
    }

    /// Turns a device's daemon off and waits for that.
    pub(crate) async fn turn_off(&self, device: &str) {
        self.directory(device).remove_spec().unwrap();
        self.gone(device).await;
    }

    pub(crate) fn compute_mode(&self, gpu: usize) -> String {
        let shown = self.machine.show().unwrap();
        shown["gpus"][gpu]["computeMode"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    pub(crate) fn daemon_answer(&self, device: &str, command: &str) -> String {
        let mut control = Command::new(program("nvidia-cuda-mps-control"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe(device))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(control.stdin.take().unwrap(), "{command}").unwrap();
        let output = control.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A CUDA program that carries out its commands (tests/limiter/clients), on the GPUs that
    /// `environment` gives it.
    pub(crate) fn client(&self, environment: &[(&str, &str)], commands: &[&str]) -> Client {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter/clients/client.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args(commands)
            .env(STATE_VARIABLE, self.machine.state())
            .env("LD_LIBRARY_PATH", self.folder.path())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Client { child, lines }
    }

    /// Such a program as a client of this device's daemon, with more in its environment.
    pub(crate) fn client_of(
        &self,
        device: &str,
        more: &[(&str, &str)],
        commands: &[&str],
    ) -> Client {
        let pipe = self.pipe(device);
        let daemon = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
        self.client(&[&daemon[..], more].concat(), commands)
    }

    /// The sockets of a device's daemon where the container runtime finds them.
    pub(crate) fn pipe(&self, device: &str) -> String {
        let pipe = seen_by(self.host.id(), &self.directory(device).pipe());
        pipe.display().to_string()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in self.supervisor.iter_mut().chain([&mut self.host]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A process in a mount namespace where this directory is shared, as on a host with systemd. It ends
/// with the test.
fn with_shared_mounts(folder: &Path) -> Child {
    const SHARE: &str =
        "mount --bind \"$0\" \"$0\" && mount --make-shared \"$0\" && echo ready && exec cat";
    let mut host = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", SHARE])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(host.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    host
}

/// The memory that a daemon has at `/dev/shm`.
pub(crate) fn daemon_shm(status: &DaemonStatus) -> PathBuf {
    seen_by(status.daemon.unwrap(), Path::new("/dev/shm"))
}

/// A path in the mount namespace of a process.
fn seen_by(pid: u32, path: &Path) -> PathBuf {
    let below = path.strip_prefix("/").unwrap();
    Path::new(&format!("/proc/{pid}/root")).join(below)
}

/// A client that runs; it ends with the test.
pub(crate) struct Client {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Client {
    /// Its next answer.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Its answers up to one.
    pub(crate) fn until(&mut self, last: &str) {
        loop {
            let answer = self.answer();
            assert!(!answer.is_empty(), "it ended before {last:?}");
            if answer == last {
                return;
            }
        }
    }

    /// Lets a client that holds memory go on.
    pub(crate) fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
