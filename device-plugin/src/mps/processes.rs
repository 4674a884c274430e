//! The processes of a daemon, by `/proc`: whether one is running, and which are left of one that is
//! not. Neither a process's name alone nor the contents of the pipe directory, where clients may
//! write, make it ours.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A part of the command line of every MPS program.
const NAME: &[u8] = b"nvidia-cuda-mps-";
/// The command line of a daemon has one of these: background, foreground.
const SERVES: [&[u8]; 2] = [b"-d", b"-f"];

/// The daemon that serves a pipe directory: the known one if it still does.
pub(super) fn daemon(pipe: &Path, known: Option<u32>) -> Option<u32> {
    let known = known.filter(|pid| is_daemon(*pid, pipe));
    known.or_else(|| all().find(|pid| is_daemon(*pid, pipe)))
}

/// A process in a container may choose its name, but it sees other mounts than we do.
fn is_daemon(pid: u32, pipe: &Path) -> bool {
    let line = read(pid, "cmdline");
    let mut words = line.split(|byte| *byte == 0);
    words.any(|word| SERVES.contains(&word)) && is_of(pid, pipe) && sees_our_mounts(pid)
}

fn sees_our_mounts(pid: u32) -> bool {
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let ours = mounts("self");
    ours.is_some() && mounts(&pid.to_string()) == ours
}

/// Whether this process is running, is an MPS program and was started for this pipe directory.
fn is_of(pid: u32, pipe: &Path) -> bool {
    // A zombie has neither.
    let line = read(pid, "cmdline");
    let named = line.windows(NAME.len()).any(|part| part == NAME);
    let expected = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
    let environment = read(pid, "environ");
    let mut variables = environment.split(|byte| *byte == 0);
    named && variables.any(|variable| variable == expected.as_bytes())
}

fn read(pid: u32, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills every MPS program that was started for this pipe directory; returns how many.
pub(super) fn kill_all(pipe: &Path) -> usize {
    let ended = all().filter(|pid| is_of(*pid, pipe)).filter(|pid| {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
    });
    ended.count()
}
