//! The driver's memory limits for the cgroup of a container, set before its first program runs
//! (docs/guides/monitor.md). Where that fails, the container starts nevertheless: the monitor sets
//! the limits at its next sample, and reports what started without them.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use aliquot_node_state::cgroup;
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_nvml::{
    CgroupLimits, DriverAccess, LimitError, MemoryLimits as _, Nvml, NvmlError, Options,
};
use aliquot_region::limits::{HostLimitsPage, LimitsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use thiserror::Error;

const CGROUPS: &str = "/sys/fs/cgroup";
/// What calls [`limit`], beside the program that calls [`run`].
const PROGRAM: &str = "aliquot-hook-limit";
/// The longest wait for the driver: the runtime gives a container up whose hook takes ten seconds.
const LONGEST: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Why a container starts without the driver's limits.
#[derive(Debug, Error)]
pub enum LimitFailure {
    #[error("cannot read the container state from standard input: {0}")]
    State(#[from] serde_json::Error),
    #[error("the container state has no pid")]
    NoProcess,
    #[error("cannot read {}: {source}", path.display())]
    Process { path: PathBuf, source: io::Error },
    /// A limit of any other cgroup would be that of several containers.
    #[error("process {0} is in no cgroup of a container")]
    NoCgroup(u64),
    #[error("cannot register as a user of the driver: {0}")]
    Access(#[source] io::Error),
    /// The node agent needs the driver for itself.
    #[error("the node agent changes the MIG mode of a GPU")]
    Busy,
    #[error("cannot run {PROGRAM}, which needs glibc 2.17 or newer on the host: {0}")]
    Program(#[source] io::Error),
    #[error("the driver did not answer within {} s", LONGEST.tv_sec)]
    Slow,
    #[error("{words} ({PROGRAM}: {status})")]
    Failed { words: String, status: ExitStatus },
    #[error(transparent)]
    Page(#[from] LimitsError),
    #[error(transparent)]
    Driver(#[from] NvmlError),
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Reads the container state from `state`, and has `aliquot-hook-limit` limit the cgroup of its
/// process; `arguments` are the library, the directory and the GPUs of [`limit`].
pub fn run(state: impl Read, arguments: &[&str]) -> Result<(), LimitFailure> {
    let state: Value = serde_json::from_reader(state)?;
    let pid = state["pid"].as_u64().ok_or(LimitFailure::NoProcess)?;
    let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let cgroups =
        fs::read_to_string(&path).map_err(|source| LimitFailure::Process { path, source })?;
    let location = cgroup::location(&cgroups);
    if location.container.is_none() {
        return Err(LimitFailure::NoCgroup(pid));
    }
    let own = std::env::current_exe().map_err(LimitFailure::Program)?;
    let mut program = Command::new(own.with_file_name(PROGRAM));
    program.arg(format!("{CGROUPS}{}", location.path));
    finish(program.args(arguments), LONGEST)
}

/// Runs a program to its end, or kills it if that takes longer.
fn finish(program: &mut Command, longest: Timespec) -> Result<(), LimitFailure> {
    // The runtime reads our output until nobody has it open. A program that hangs in the driver may
    // outlive its kill, so it has an output of its own.
    program.stdin(Stdio::null()).stdout(Stdio::null());
    let child = program.stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(LimitFailure::Program)?;
    if !ends_within(&child, longest).map_err(LimitFailure::Program)? {
        // If that fails, it has ended.
        let _ = child.kill();
        return Err(LimitFailure::Slow);
    }
    let output = child.wait_with_output().map_err(LimitFailure::Program)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(LimitFailure::Failed {
        words: words.trim().to_owned(),
        status: output.status,
    })
}

fn ends_within(child: &Child, longest: Timespec) -> io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    Ok(poll(&mut ended, Some(&longest))? > 0)
}

/// Limits a cgroup on these GPUs as the limits page in this container directory says; `library` is
/// the driver's NVML.
pub fn limit(
    cgroup: &Path,
    library: &Path,
    directory: &Path,
    gpus: &[&str],
) -> Result<(), LimitFailure> {
    // The container directories are in a folder of the state directory.
    let state = directory.ancestors().nth(2).unwrap_or(directory);
    let registered = DriverAccess::new(state).join();
    let _registered = registered
        .map_err(LimitFailure::Access)?
        .ok_or(LimitFailure::Busy)?;
    let page = HostLimitsPage::open(&ContainerDirectory::new(directory).limits())?;
    let nvml = Nvml::open(Options {
        library: library.into(),
        ..Options::default()
    })?;
    for (i, uuid) in page.uuids().enumerate() {
        // On the page 0 means no limit; to the driver it would mean not a byte.
        if gpus.contains(&uuid.as_str()) && page.page().memory(i) > 0 {
            let limits = CgroupLimits {
                soft: page.page().guaranteed(i),
                hard: page.page().memory(i),
            };
            nvml.limit_memory(&uuid, cgroup, limits)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_why_program_set_no_limit() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            finish(command.args(["-c", script]), LONGEST)
        };
        assert!(shell("exit 0").is_ok());
        let failed = shell("echo 'no such GPU' >&2; exit 1").expect_err("a failure");
        let expected = "no such GPU (aliquot-hook-limit: exit status: 1)";
        assert_eq!(failed.to_string(), expected);
        let missing = finish(&mut Command::new("/no/glibc"), LONGEST).expect_err("a failure");
        let expected = "cannot run aliquot-hook-limit, which needs glibc 2.17 or newer on the host: No such file or directory (os error 2)";
        assert_eq!(missing.to_string(), expected);
    }

    #[test]
    fn container_starts_while_driver_hangs() {
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let hangs = finish(Command::new("sleep").arg("600"), soon);
        assert!(matches!(hangs, Err(LimitFailure::Slow)), "{hangs:?}");
    }
}
