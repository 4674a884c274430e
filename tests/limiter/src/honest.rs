//! Honest programs that fill their shares to the last byte, on a driver as unkind as real ones, beside
//! the monitor's OOM killer.

use std::time::Duration;

use aliquot_gpusim::SimulatedMachine;
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use anyhow::{Result, ensure};

use crate::oom_host::{self, CONTAINER};
use crate::scene::{MIB, wait};
use crate::{InjectionMethod, TalkingProgram, TestContainer, client_file};

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
    programs: Vec<TalkingProgram>,
    host: TalkingProgram,
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
        let host = oom_host::start(&machine, |host| {
            for (at, container) in scene.iter().enumerate() {
                host.arg(name(at)).arg(&uuids[at / CONTAINERS]);
                host.arg(SHARE.to_string()).arg(container.directory());
            }
        })?;
        let mut scene = Self {
            temp,
            machine,
            containers: scene,
            programs: Vec::new(),
            host,
        };
        let started: Result<Vec<TalkingProgram>> =
            (0..programs).map(|number| scene.program(number)).collect();
        scene.programs = started?;
        // All have a context before the first fills a share.
        for program in &mut scene.programs {
            let line = program.read_line()?;
            ensure!(line == "ready", "a program answers {line:?}");
        }
        for program in &mut scene.programs {
            program.write_line("begin")?;
        }
        Ok(scene)
    }

    fn program(&self, number: usize) -> Result<TalkingProgram> {
        let (at, number) = (number / PROGRAMS, number % PROGRAMS);
        let shared = self.temp.path().join(format!("{}.handle", name(at)));
        let shared = shared.display().to_string();
        let (client, number) = (client_file("filler.py"), number.to_string());
        let words = ["python3", &client, &number, &shared];
        let mut command = self.containers[at].command(&words);
        command.env(CONTAINER, name(at)).env(GROUP, name(at));
        TalkingProgram::start(&mut command)
    }

    /// A program of the first container that gets its memory past the limiter, in MiB, and holds it.
    pub fn bypass(&self, mib: u64) -> Result<TalkingProgram> {
        let allocate = format!("alloc,{mib}");
        let commands = [
            "load,/.aliquot/lib/libcuda-real.so.1",
            "init",
            &allocate,
            "ready",
            "hold",
        ];
        let mut command = self.containers[0].client_command(&commands);
        let mut program = TalkingProgram::start(command.env(CONTAINER, name(0)))?;
        let answers: Vec<String> = (0..4).map(|_| program.read_line()).collect::<Result<_>>()?;
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
            let line = program.read_line()?;
            let status = program.child.wait()?;
            match line.strip_prefix("filled ") {
                Some(filled) if status.success() => result.filled += filled.parse::<u64>()?,
                _ => result.killed += 1,
            }
        }
        let text = self.host.end()?;
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

fn name(at: usize) -> String {
    format!("c{at}")
}
