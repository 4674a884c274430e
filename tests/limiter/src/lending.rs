//! Ten tenants on one GPU, all of which is requested; each may use more than its request. Rounds of
//! random load, of borrowing all that two idle tenants leave, and of those two getting it back.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_gpusim::SimulatedMachine;
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use anyhow::{Result, ensure};

use crate::oom_host::{self, CGROUPS, CONTAINER, GRACE};
use crate::scene::{FIRST, MIB};
use crate::{InjectionMethod, TalkingProgram, TestContainer, client_file};

const TENANTS: usize = 10;
/// MiB of the GPU, of which the driver reserves a part.
const MEMORY: u64 = 81_920;
const RESERVED: u64 = 634;
/// MiB that each tenant requests: 30 % below its limit.
const REQUEST: u64 = (MEMORY - RESERVED) / TENANTS as u64;
const LIMIT: u64 = REQUEST * 10 / 7;
/// MiB that are charged for a context, at least what it takes.
const CONTEXT: u64 = 480;
/// Tenants that leave their memory to the others, in turns.
const IDLE: usize = 2;
/// Seconds of random load in a round.
const RANDOM: u64 = 15;

/// What limits the tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// The limiter, on a kind driver or with a profile of the simulator.
    Library(Option<&'static str>),
    /// The limiter, and the driver's limits for cgroups.
    Driver,
}

/// What became of the tenants' requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LendingResult {
    /// Rounds.
    pub rounds: u32,
    /// Allocations within a request that were granted.
    pub granted: u64,
    /// Those that were refused.
    pub refused: u64,
    /// The longest of them.
    pub longest: Duration,
    /// Of the memory that was idle in each round, the percentage that others got, at least.
    pub usable: f64,
    /// Borrowers that were ended.
    pub ended: u64,
    /// Of these, those that were not above their request.
    pub wrong: u64,
}

struct Tenant {
    container: TestContainer,
    program: TalkingProgram,
}

struct LendingScene {
    machine: SimulatedMachine,
    cgroups: Option<CgroupFolders>,
    tenants: Vec<Tenant>,
    host: TalkingProgram,
    result: LendingResult,
    _temp: tempfile::TempDir,
}

/// The tenants' cgroups, which are removed at the end.
struct CgroupFolders {
    root: PathBuf,
    prefix: String,
}

impl CgroupFolders {
    fn new() -> Result<Self> {
        let hierarchies = Path::new("/sys/fs/cgroup");
        // With cgroup v1, one of the hierarchies is enough: a process is where its longest path is.
        let memory = hierarchies.join("memory");
        let root = if memory.is_dir() {
            memory
        } else {
            hierarchies.to_owned()
        };
        let prefix = format!(
            "/aliquot-tenants-of-the-lending-test-{}-",
            std::process::id()
        );
        let folders = Self { root, prefix };
        for tenant in 0..TENANTS {
            fs::create_dir(folders.of(tenant))?;
        }
        Ok(folders)
    }

    fn of(&self, tenant: usize) -> String {
        format!("{}{}{}", self.root.display(), self.prefix, name(tenant))
    }
}

impl Drop for CgroupFolders {
    fn drop(&mut self) {
        for tenant in 0..TENANTS {
            // A process of it may still exit.
            let _ = fs::remove_dir(self.of(tenant));
        }
    }
}

fn name(tenant: usize) -> String {
    format!("c{tenant}")
}

/// Runs rounds for at least `time`, with this grace period for borrowers.
pub fn run(limits: Limits, time: Duration, grace: Duration) -> Result<LendingResult> {
    let mut scene = LendingScene::start(limits, grace)?;
    let begun = Instant::now();
    while scene.result.rounds == 0 || begun.elapsed() < time {
        scene.round()?;
    }
    scene.end()
}

impl LendingScene {
    fn start(limits: Limits, grace: Duration) -> Result<Self> {
        let temp = tempfile::tempdir()?;
        let set = match limits {
            Limits::Library(Some(profile)) => format!("profile: {profile}"),
            _ => format!("contextMib: {CONTEXT}"),
        };
        let yaml = format!(
            "gpus: [{{model: NVIDIA A100-SXM4-80GB, uuids: [{FIRST}], memoryMib: {MEMORY}, reservedMib: {RESERVED}, set: {{{set}}}}}]"
        );
        let machine = SimulatedMachine::create(&temp.path().join("state"), &yaml)?;
        let cgroups = if limits == Limits::Driver {
            machine.set_driver("615.10")?;
            Some(CgroupFolders::new()?)
        } else {
            None
        };
        let device = DeviceLimits {
            uuid: FIRST,
            memory: LIMIT * MIB,
            request: REQUEST * MIB,
            context: CONTEXT * MIB,
            ..DeviceLimits::default()
        };
        let method = InjectionMethod::Replacement;
        let containers: Result<Vec<TestContainer>> = (0..TENANTS)
            .map(|_| {
                let devices = std::slice::from_ref(&device);
                TestContainer::new(&machine, method, ContainerLimits::default(), devices)
            })
            .collect();
        let containers = containers?;
        let host = oom_host::start(&machine, |host| {
            host.args([GRACE, &grace.as_secs().to_string()]);
            for (tenant, container) in containers.iter().enumerate() {
                host.arg(name(tenant)).arg(FIRST).arg(REQUEST.to_string());
                host.arg(container.directory());
            }
            if let Some(cgroups) = &cgroups {
                host.env(CGROUPS, &cgroups.prefix);
            }
        })?;
        let mut scene = Self {
            machine,
            cgroups,
            tenants: Vec::new(),
            host,
            result: LendingResult {
                usable: 100.0,
                ..LendingResult::default()
            },
            _temp: temp,
        };
        for (tenant, container) in containers.into_iter().enumerate() {
            let program = start_program(&container, tenant, scene.cgroups.as_ref())?;
            scene.tenants.push(Tenant { container, program });
        }
        for tenant in 0..TENANTS {
            ensure!(
                scene.answer(tenant)? == "ready",
                "tenant {tenant} has no context"
            );
        }
        Ok(scene)
    }

    /// Random load; then all but two borrow what those leave, and the two get it back.
    fn round(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..TENANTS).collect();
        self.order(&all, &format!("random {RANDOM}"))?;
        let first = usize::try_from(self.result.rounds)? * IDLE;
        let (idle, busy): (Vec<usize>, Vec<usize>) = all
            .iter()
            .partition(|tenant| (0..IDLE).any(|i| (first + i) % TENANTS == **tenant));
        self.order(&idle, "idle")?;
        self.order(&busy, "request")?;
        self.order(&busy, "fill")?;
        let allocated: u64 = self
            .machine
            .process_usage(FIRST)?
            .iter()
            .map(|one| one.used / MIB)
            .sum();
        let contexts = CONTEXT * u64::try_from(IDLE)?;
        let requested = REQUEST * u64::try_from(TENANTS - IDLE)?;
        let of_idle = MEMORY - RESERVED - contexts - requested;
        let lent = allocated.saturating_sub(contexts + requested);
        let usable = 100.0 * f64::from(u32::try_from(lent)?) / f64::from(u32::try_from(of_idle)?);
        self.result.usable = self.result.usable.min(usable);
        self.order(&idle, "request")?;
        self.result.rounds += 1;
        Ok(())
    }

    /// Gives an order to some tenants and waits until each has carried it out. A tenant that was ended
    /// starts again.
    fn order(&mut self, tenants: &[usize], order: &str) -> Result<()> {
        for tenant in tenants {
            // One that was ended is found when its answer is read.
            let _ = self.tenants[*tenant].program.write_line(order);
        }
        for tenant in tenants {
            let answer = self.answer(*tenant)?;
            if answer.is_empty() {
                self.restart(*tenant)?;
                continue;
            }
            let numbers: Option<Vec<u64>> = answer
                .split(' ')
                .skip(1)
                .map(|word| word.parse().ok())
                .collect();
            let Some([_, granted, refused, longest]) = numbers.as_deref() else {
                anyhow::bail!("tenant {tenant} answers {answer:?} to {order:?}");
            };
            self.result.granted += granted;
            self.result.refused += refused;
            self.result.longest = self.result.longest.max(Duration::from_millis(*longest));
        }
        Ok(())
    }

    /// The next answer of a tenant; empty if it was ended.
    fn answer(&mut self, tenant: usize) -> Result<String> {
        loop {
            let line = self.tenants[tenant].program.read_line()?;
            if !line.starts_with("refused ") {
                return Ok(line);
            }
            writeln!(std::io::stderr(), "tenant {tenant}: {line}")?;
        }
    }

    /// Starts a tenant again that was ended, as the kubelet restarts a container.
    fn restart(&mut self, tenant: usize) -> Result<()> {
        let ended = &mut self.tenants[tenant];
        let status = ended.program.child.wait()?;
        ensure!(
            status.code().is_none_or(|code| code == 137),
            "tenant {tenant}: {status}"
        );
        let cgroups = self.cgroups.as_ref();
        ended.program = start_program(&ended.container, tenant, cgroups)?;
        let answer = self.answer(tenant)?;
        ensure!(
            answer == "ready",
            "tenant {tenant} has no context: {answer:?}"
        );
        Ok(())
    }

    fn end(mut self) -> Result<LendingResult> {
        let text = self.host.end()?;
        for line in text.lines() {
            if let Some(ended) = line.strip_prefix("ended ") {
                self.result.ended += 1;
                self.result.wrong += u64::from(ended.ends_with(" 0"));
            }
            ensure!(!line.starts_with("killed "), "{line}");
        }
        Ok(self.result)
    }
}

fn start_program(
    container: &TestContainer,
    tenant: usize,
    cgroups: Option<&CgroupFolders>,
) -> Result<TalkingProgram> {
    let client = client_file("borrower.py");
    let numbers =
        [REQUEST, LIMIT, CONTEXT, u64::try_from(tenant)?].map(|number| number.to_string());
    let enter = cgroups.map_or_else(String::new, |cgroups| {
        format!("echo $$ >{}/cgroup.procs; ", cgroups.of(tenant))
    });
    let enter = format!("{enter}exec \"$@\"");
    let mut words = vec!["sh", "-c", &enter, "sh", "python3", &client];
    words.extend(numbers.iter().map(String::as_str));
    let mut command = container.command(&words);
    TalkingProgram::start(command.env(CONTAINER, name(tenant)))
}
