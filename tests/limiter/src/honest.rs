//! Honest programs that fill their shares to the last byte, on a driver as unkind as real ones, beside
//! the monitor's OOM killer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine};
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use anyhow::{Context as _, Result, ensure};

use crate::oom_host::{self, CONTAINER};
use crate::scene::{MIB, wait};
use crate::{InjectionMethod, TestContainer};

/// The variable with the container's name in the simulator.
const GROUP: &str = "GPUSIM_GROUP";
/// Programs of one container.
const PROGRAMS: usize = 4;
/// Containers on one GPU.
const CONTAINERS: usize = 10;
/// MiB of a container's share.
pub const SHARE: u64 = 6000;
/// MiB that are charged for a context: what it takes before its first launch under the profile
/// `harsh`, so that all by which it grows is beyond the count.
const CONTEXT: u64 = 300;

/// Containers whose programs fill their shares, and the host.
pub struct HonestScene {
    temp: tempfile::TempDir,
    machine: SimulatedMachine,
    containers: Vec<TestContainer>,
    programs: Vec<HonestProgram>,
    host: Child,
    output: BufReader<ChildStdout>,
}

struct HonestProgram {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What became of the programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HonestResult {
    /// Programs that did not end by themselves.
    pub killed: usize,
    /// How often the others filled their shares.
    pub filled: u64,
    /// The host's samples.
    pub samples: u64,
    /// What the host killed: pid, container and MiB in use.
    pub kills: Vec<String>,
}

fn uuid(gpu: usize) -> String {
    format!("GPU-{gpu:08}-1111-1111-1111-111111111111")
}

/// The client that fills its share, the same in every container.
fn filler() -> String {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/filler.py");
    client.display().to_string()
}

/// The program `limiter-bench`, in or above this program's folder.
pub(crate) fn host_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let mut folders = program.ancestors().skip(1).take(2);
    let found = folders.find_map(|folder| {
        let file = folder.join("limiter-bench");
        Some(file).filter(|file| file.is_file())
    });
    found.context("limiter-bench is not built: cargo build -p aliquot-limiter-tests")
}

fn next_line(output: &mut impl std::io::BufRead) -> Result<String> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

impl HonestScene {
    /// Starts so many programs, four in each container, on GPUs of this profile, and the host.
    pub fn start(programs: usize, profile: &str) -> Result<Self> {
        let temp = tempfile::tempdir()?;
        let containers = programs.div_ceil(PROGRAMS);
        let gpus = containers.div_ceil(CONTAINERS);
        let uuids: Vec<String> = (0..gpus).map(uuid).collect();
        let yaml = format!(
            "gpus:\n- count: {gpus}\n  model: NVIDIA A100-SXM4-80GB\n  uuids: [{}]\n  set: {{profile: {profile}}}\n",
            uuids.join(", ")
        );
        let machine = SimulatedMachine::create(&temp.path().join("state"), &yaml)?;
        let mut scene = Vec::new();
        for at in 0..containers {
            let devices = [DeviceLimits {
                uuid: &uuids[at / CONTAINERS],
                memory: SHARE * MIB,
                context: CONTEXT * MIB,
                ..DeviceLimits::default()
            }];
            let method = InjectionMethod::Replacement;
            let limits = ContainerLimits::default();
            scene.push(TestContainer::new(&machine, method, limits, &devices)?);
        }
        let mut host = Command::new(host_program()?);
        host.arg("host");
        for (at, container) in scene.iter().enumerate() {
            host.arg(name(at)).arg(&uuids[at / CONTAINERS]);
            host.arg(SHARE.to_string()).arg(container.directory());
        }
        host.env_clear().env("PATH", "/usr/bin:/bin");
        host.env(STATE_VARIABLE, machine.state());
        host.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut host = host.spawn()?;
        let output = BufReader::new(host.stdout.take().context("piped")?);
        let mut scene = Self {
            temp,
            machine,
            containers: scene,
            programs: Vec::new(),
            host,
            output,
        };
        let started: Result<Vec<HonestProgram>> =
            (0..programs).map(|number| scene.program(number)).collect();
        scene.programs = started?;
        // All have a context before the first fills a share.
        for program in &mut scene.programs {
            let line = next_line(&mut program.output)?;
            ensure!(line == "ready", "a program answers {line:?}");
        }
        for program in &mut scene.programs {
            let input = program.child.stdin.as_mut().context("piped")?;
            input.write_all(b"begin\n")?;
        }
        Ok(scene)
    }

    fn program(&self, number: usize) -> Result<HonestProgram> {
        let (at, number) = (number / PROGRAMS, number % PROGRAMS);
        let shared = self.temp.path().join(format!("{}.handle", name(at)));
        let shared = shared.display().to_string();
        let (client, number) = (filler(), number.to_string());
        let words = ["python3", &client, &number, &shared];
        let mut command = self.containers[at].command(&words);
        command.env(CONTAINER, name(at)).env(GROUP, name(at));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(HonestProgram { child, output })
    }

    /// A program of the first container that gets its memory past the limiter, in MiB, and holds it.
    pub fn bypass(&self, mib: u64) -> Result<BypassingProgram> {
        let allocate = format!("alloc,{mib}");
        let commands = [
            "load,/.aliquot/lib/libcuda-real.so.1",
            "init",
            &allocate,
            "ready",
            "hold",
        ];
        let mut command = self.containers[0].client_command(&commands);
        command.env(CONTAINER, name(0));
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut program = BypassingProgram(child);
        let output = program.0.stdout.take().context("piped")?;
        let answers = BufReader::new(output).lines().take(4);
        let answers: Vec<String> = answers.collect::<Result<_, _>>()?;
        let allocated = format!("{allocate}: 0");
        ensure!(answers.contains(&allocated), "{answers:?}");
        Ok(program)
    }

    /// MiB of the GPU that the programs of each container had together at most, by the simulator's
    /// own count.
    pub fn peaks(&self) -> Result<Vec<u64>> {
        let containers = 0..self.containers.len();
        let peaks = containers.map(|at| {
            let bytes = self.machine.group_peak(&uuid(at / CONTAINERS), &name(at))?;
            Ok(bytes / MIB)
        });
        peaks.collect()
    }

    /// Lets the programs work for some time, and ends them and the host.
    pub fn end_after(mut self, time: Duration) -> Result<HonestResult> {
        wait(time)?;
        let mut result = HonestResult::default();
        for program in &mut self.programs {
            drop(program.child.stdin.take());
        }
        for program in &mut self.programs {
            let line = next_line(&mut program.output)?;
            let status = program.child.wait()?;
            match line.strip_prefix("filled ") {
                Some(filled) if status.success() => result.filled += filled.parse::<u64>()?,
                _ => result.killed += 1,
            }
        }
        let text = oom_host::end(&mut self.host, &mut self.output)?;
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("samples", samples)) => result.samples = samples.parse()?,
                Some(("killed", kill)) => result.kills.push(kill.to_owned()),
                _ => {}
            }
        }
        Ok(result)
    }
}

impl Drop for HonestScene {
    fn drop(&mut self) {
        let children = self.programs.iter_mut().map(|program| &mut program.child);
        for child in children.chain([&mut self.host]) {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that bypasses the limiter.
pub struct BypassingProgram(Child);

impl BypassingProgram {
    /// Whether it has been killed.
    pub fn is_killed(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }
}

impl Drop for BypassingProgram {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn name(at: usize) -> String {
    format!("c{at}")
}
