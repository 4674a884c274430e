//! The monitor's charges, its OOM killer and its call-backs of lent memory for containers of a
//! simulated machine, by the monitor's own evaluation of what NVML and the counters files report. A
//! variable of a process stands for its cgroup.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use aliquot_core::inventory::Mode;
use aliquot_core::{Mib, Percent, PodUid};
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_monitor::arbiter::runner::Clocks;
use aliquot_monitor::evaluation::{Action, Evaluation, Evaluator, Rules};
use aliquot_monitor::lending::Lending;
use aliquot_monitor::managed_containers::{ContainerDevice, ManagedContainer, ManagedContainers};
use aliquot_monitor::node_sample::{DevicePage, NodeContext, NodeSample, ProcessSample};
use aliquot_monitor::settings::Grace;
use aliquot_node_state::cgroup::ProcessLocation;
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_node_state::processes::Processes;
use aliquot_nvml::{CgroupLimits, MemoryLimits as _, Nvml, Options, Usage as _};
use aliquot_region::host;
use aliquot_region::limits::HostLimitsPage;
use anyhow::{Context as _, Result, bail};

use crate::host::container_record;
use crate::{TalkingProgram, built};

/// The variable of each process with the name of its container.
pub const CONTAINER: &str = "OOM_CONTAINER";
/// The monitor's interval and its default tolerance.
const INTERVAL: Duration = Duration::from_millis(500);
const TOLERANCE: u64 = 512 << 20;
/// The word before the grace period of borrowers, in seconds; without it, nothing is called back.
pub const GRACE: &str = "--grace";
/// The variable with the path of the containers' cgroups below the root of the hierarchy, less their
/// names: the driver limits those.
pub const CGROUPS: &str = "LENDING_CGROUPS";

struct Host {
    driver: Nvml,
    gpus: BTreeSet<String>,
    containers: Arc<ManagedContainers>,
    pages: Vec<HostLimitsPage>,
    evaluator: Evaluator,
    lending: Option<Lending>,
}

/// Watches containers, each given as its name, the UUID of its GPU, its limit in MiB and its
/// directory, until the input ends. Prints a line for each process that it kills or ends, and at the
/// end the number of samples.
pub fn run(words: &[String]) -> Result<()> {
    let (lending, words) = match words {
        [word, seconds, rest @ ..] if word == GRACE => {
            let grace = Grace {
                default: Duration::from_secs(seconds.parse()?),
                by_namespace: BTreeMap::new(),
            };
            (Some(Lending::new(grace)), rest)
        }
        _ => (None, words),
    };
    let containers: Result<Vec<ManagedContainer>> = words.chunks(4).map(container).collect();
    let containers = containers?;
    let pages: Result<Vec<HostLimitsPage>, _> = containers
        .iter()
        .map(|container| HostLimitsPage::open(&container.directory.limits()))
        .collect();
    let devices = containers.iter().flat_map(|container| &container.devices);
    let mut host = Host {
        driver: Nvml::open(Options {
            library: place::library_path()?.into(),
            ..Options::default()
        })?,
        gpus: devices.map(|device| device.uuid.to_string()).collect(),
        pages: pages?,
        containers: Arc::new(ManagedContainers {
            all: containers,
            ..ManagedContainers::default()
        }),
        evaluator: Evaluator::default(),
        lending,
    };
    if let Ok(cgroups) = std::env::var(CGROUPS) {
        host.set_driver_limits(&cgroups)?;
    }
    let (input, ended) = channel::<()>();
    thread::spawn(move || {
        // However it ends.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(input);
    });
    let mut samples = 0_u32;
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        host.sample()?;
        samples += 1;
    }
    writeln!(io::stdout(), "samples {samples}")?;
    Ok(())
}

fn container(words: &[String]) -> Result<ManagedContainer> {
    let [name, uuid, mib, directory] = words else {
        bail!("{words:?}; expected: NAME UUID MIB DIRECTORY of each container");
    };
    Ok(ManagedContainer {
        id: name.clone(),
        pod: name.as_str().into(),
        name: name.clone(),
        devices: vec![ContainerDevice {
            uuid: uuid.as_str().into(),
            memory: Mib(mib.parse().context("MiB")?),
            cores: Percent(0),
            mode: Mode::Vgpu,
            profile: None,
        }],
        effective: EffectiveLimits {
            oom_killer: true,
            ..EffectiveLimits::default()
        },
        ..container_record(PathBuf::from(directory))
    })
}

impl Host {
    /// Takes a sample as the monitor does, and acts on it.
    fn sample(&mut self) -> Result<()> {
        let containers = Arc::clone(&self.containers);
        let all = containers.all.iter();
        let counters = || {
            all.clone()
                .map(|one| host::read(&one.directory.counters(), 1))
        };
        let before: Vec<_> = counters().collect();
        let pages = self.pages.iter().map(|page| {
            vec![DevicePage {
                limit: page.page().memory(0),
                request: page.page().request(0),
                overhead: page.page().overhead(0),
                ..DevicePage::default()
            }]
        });
        let mut sample = NodeSample {
            pages: pages.collect(),
            context: NodeContext {
                container_names: all.clone().map(named).collect(),
                ..NodeContext::default()
            },
            ..NodeSample::default()
        };
        for gpu in &self.gpus {
            for one in self.driver.processes(gpu)? {
                let Some(mut process) = Processes::default().info(one.pid) else {
                    continue;
                };
                process.location = location(one.pid);
                sample.processes.push(ProcessSample {
                    gpu: gpu.clone(),
                    instance: one.instance,
                    bytes: one.bytes,
                    process,
                });
            }
            let memory = self.driver.memory(gpu)?;
            sample.in_use.insert(gpu.clone(), memory.used);
        }
        // The monotonic clock, by which the limiter reports what calls wait for.
        sample.taken_at = Duration::from_nanos(Clocks::read().monotonic);
        let both = before.into_iter().zip(counters());
        let both = both.map(|(before, after)| Some(before.and_then(|before| Ok((before, after?)))));
        sample.counters = both.collect();
        sample.containers = containers;
        let rules = Rules {
            tolerance: TOLERANCE,
            fresh: true,
        };
        let evaluation = self.evaluator.evaluate(&sample, &rules);
        self.act(&evaluation)?;
        self.lend(&sample, &evaluation)
    }

    /// Calls back what is lent, as the monitor does.
    fn lend(&mut self, sample: &NodeSample, evaluation: &Evaluation) -> Result<()> {
        let Some(lending) = &mut self.lending else {
            return Ok(());
        };
        let free = |gpu: &str| {
            let memory = self.driver.memory(gpu).ok()?;
            let available = memory.total.saturating_sub(memory.reserved);
            Some(available.saturating_sub(memory.used))
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        for page in &self.pages {
            page.set_heartbeat(u64::try_from(now.as_nanos())?);
        }
        for (shares, decision) in lending.evaluate(sample, evaluation, TOLERANCE, free) {
            for share in &shares {
                let page = &self.pages[share.at.0];
                page.set_called_back(0, decision.called_back);
                page.set_max_wait_ms(0, decision.max_wait_ms);
            }
            for share in decision.end.iter().map(|index| &shares[*index]) {
                let processes = sample.processes.iter().zip(&evaluation.shares);
                let own = processes.filter(|(_, of)| **of == Some(share.at));
                for (one, _) in own {
                    let pid = one.process.identity.pid.to_string();
                    // It may have ended by itself.
                    let _ = Command::new("kill").args(["-9", &pid]).status();
                }
                let (name, excess) = (&share.container, share.excess() >> 20);
                writeln!(io::stdout(), "ended {name} {excess}")?;
            }
        }
        Ok(())
    }

    /// Sets the driver's limits for the containers' cgroups.
    fn set_driver_limits(&self, cgroups: &str) -> Result<()> {
        for (container, page) in self.containers.all.iter().zip(&self.pages) {
            let cgroup = format!("/sys/fs/cgroup{cgroups}{}", container.name);
            let limits = CgroupLimits {
                soft: page.page().request(0),
                hard: page.page().memory(0),
            };
            let gpu = &container.devices[0].uuid;
            self.driver
                .limit_memory(gpu.as_str(), Path::new(&cgroup), limits)?;
        }
        Ok(())
    }

    fn act(&self, evaluation: &Evaluation) -> Result<()> {
        for (page, charges) in self.pages.iter().zip(&evaluation.charges) {
            if let Some(bytes) = charges.first().copied().flatten() {
                page.set_overhead(0, bytes);
            }
        }
        for action in &evaluation.actions {
            if let Action::AboveLimit {
                at,
                used,
                kill: Some(process),
                ..
            } = action
            {
                let (pid, name) = (process.identity.pid, &self.containers.all[*at].name);
                // It may have ended by itself.
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
                writeln!(io::stdout(), "killed {pid} {name} {}", used >> 20)?;
            }
        }
        Ok(())
    }
}

/// Starts `limiter-bench` as the host of a machine.
pub(crate) fn start(
    machine: &SimulatedMachine,
    arguments: impl FnOnce(&mut Command),
) -> Result<TalkingProgram> {
    let program = built("limiter-bench");
    let program =
        program.context("limiter-bench is not built: cargo build -p aliquot-limiter-tests")?;
    let mut host = Command::new(program);
    host.arg("host").env_clear().env("PATH", "/usr/bin:/bin");
    host.env(STATE_VARIABLE, machine.state());
    arguments(&mut host);
    TalkingProgram::start(&mut host)
}

/// Its pod and the runtime's id, and its name.
fn named(container: &ManagedContainer) -> ((PodUid, String), String) {
    let id = container.name.clone();
    ((container.pod.clone(), id.clone()), id)
}

/// The container in a process's environment.
fn location(pid: u32) -> ProcessLocation {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let variables: BTreeMap<&str, &str> = environment
        .split('\0')
        .filter_map(|variable| variable.split_once('='))
        .collect();
    let name = variables.get(CONTAINER).copied();
    ProcessLocation {
        pod: name.map(PodUid::from),
        container: name.map(str::to_owned),
        path: String::new(),
    }
}
