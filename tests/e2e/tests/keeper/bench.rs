//! A machine, a keeper and clients, each a process. Holds no test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::Mib;
use aliquot_device_plugin::mps::folder::{Folder, Phase, Status, Wish};
use aliquot_device_plugin::mps::{keeper, plan};
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_profiles::mode::Mps;

const MACHINE: &str =
    "gpus: [{count: 2, model: NVIDIA A100-SXM4-40GB, memoryMib: 40960, uuids: [GPU-a, GPU-b]}]";

pub(crate) struct Bench {
    folder: tempfile::TempDir,
    pub(crate) machine: SimulatedMachine,
    keeper: Option<Child>,
}

/// A built program of the workspace, beside this one.
fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    let mut found = folders.map(|folder| folder.join(name));
    let missing = || panic!("no {name}: cargo build --workspace");
    found.find(|file| file.is_file()).unwrap_or_else(missing)
}

impl Bench {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = SimulatedMachine::create(&folder.path().join("state"), MACHINE).unwrap();
        place::link_into(folder.path()).unwrap();
        place::link_cuda_into(folder.path()).unwrap();
        let mut bench = Self {
            folder,
            machine,
            keeper: None,
        };
        bench.start_keeper();
        bench
    }

    pub(crate) fn start_keeper(&mut self) {
        let keeper = Command::new(program("aliquot-device-plugin"))
            .arg("mps-keeper")
            .args([Path::new("--state-dir"), self.folder.path()])
            .arg("--nvml-library")
            .arg(self.folder.path().join(place::LIBRARY_NAME))
            .arg("--mps-control")
            .arg(program("nvidia-cuda-mps-control"))
            .env(STATE_VARIABLE, self.machine.state())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.keeper = Some(keeper);
    }

    /// The keeper's process id.
    pub(crate) fn keeper(&self) -> u32 {
        self.keeper.as_ref().unwrap().id()
    }

    pub(crate) fn kill_keeper(&mut self) {
        let mut keeper = self.keeper.take().unwrap();
        keeper.kill().unwrap();
        keeper.wait().unwrap();
    }

    pub(crate) fn unit(&self, unit: &str) -> Folder {
        Folder::new(&keeper::root(self.folder.path()), unit)
    }

    pub(crate) fn wish(&self, unit: &str, replicas: u32) -> Wish {
        let wish = plan::wish(unit, Mib(40_960), &Mps::new(replicas), Some(unit));
        self.unit(unit).put_wish(&wish).unwrap();
        wish
    }

    /// Waits until the unit's status says that its wish is served.
    pub(crate) async fn served(&self, unit: &str) -> Status {
        self.status(unit, |status| {
            let wish = self.unit(unit).wish().unwrap();
            status.phase == Phase::Running && status.wish == wish
        })
        .await
    }

    pub(crate) async fn status(&self, unit: &str, holds: impl Fn(&Status) -> bool) -> Status {
        let folder = self.unit(unit);
        eventually(PATIENCE, "a status", || async {
            let status = folder.status()?;
            let seen = format!("{status:?}");
            let found = status.filter(|status| holds(status));
            found.map(Some).ok_or_else(|| anyhow::anyhow!(seen))
        })
        .await
        .unwrap()
    }

    pub(crate) async fn gone(&self, unit: &str) {
        let folder = self.unit(unit);
        let gone = || async { Ok(folder.is_gone().then_some(())) };
        eventually(PATIENCE, "the unit's folder to go", gone)
            .await
            .unwrap();
    }

    /// Waits until a file of the unit is there, or is not.
    pub(crate) async fn until_exists(&self, unit: &str, file: &str, there: bool) {
        let file = self.unit(unit).path().join(file);
        let looked = || async { Ok((file.exists() == there).then_some(())) };
        eventually(PATIENCE, "a file", looked).await.unwrap();
    }

    /// Turns a unit's daemon off and waits for that.
    pub(crate) async fn turn_off(&self, unit: &str) {
        self.unit(unit).drop_wish().unwrap();
        self.gone(unit).await;
    }

    pub(crate) fn compute_mode(&self, card: usize) -> String {
        let shown = self.machine.show().unwrap();
        shown["gpus"][card]["computeMode"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// What the unit's daemon answers.
    pub(crate) fn tell(&self, unit: &str, command: &str) -> String {
        let mut control = Command::new(program("nvidia-cuda-mps-control"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.unit(unit).pipe())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(control.stdin.take().unwrap(), "{command}").unwrap();
        let output = control.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A CUDA program that carries out its commands (tests/limiter/clients), on the cards that
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

    /// The environment of a client of a unit's daemon.
    pub(crate) fn pipe(&self, unit: &str) -> String {
        self.unit(unit).pipe().display().to_string()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
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

    /// Lets one that holds go on.
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
