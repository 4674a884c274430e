//! The processes of a daemon by `/proc`: whether one lives, and which are left of one that does
//! not. Must not: take a process for ours by its name alone.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// What the programs of MPS have in their command lines.
const NAME: &[u8] = b"nvidia-cuda-mps-";

/// The daemon that serves a pipe folder, by the file it leaves there.
pub(super) fn daemon(pipe: &Path) -> Option<u32> {
    let text = fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).ok()?;
    let pid = text.trim().parse().ok()?;
    serves(pid, pipe).then_some(pid)
}

/// This process lives, is a program of MPS and was started for this pipe folder.
fn serves(pid: u32, pipe: &Path) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    // A process that nobody waited for has neither.
    let named = read("cmdline").windows(NAME.len()).any(|part| part == NAME);
    let wanted = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
    let environment = read("environ");
    let mut variables = environment.split(|byte| *byte == 0);
    named && variables.any(|variable| variable == wanted.as_bytes())
}

/// Ends every program of MPS that was started for this pipe folder; tells how many.
pub(super) fn end_all(pipe: &Path) -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter(|pid| serves(*pid, pipe));
    let ended = ours.filter(|pid| {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
    });
    ended.count()
}
