//! The processes of a daemon by `/proc`: whether one lives, and which are left of one that does
//! not. Must not: take a process for ours by its name alone, or by what lies in the pipe folder,
//! where clients may write.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// What the programs of MPS have in their command lines.
const NAME: &[u8] = b"nvidia-cuda-mps-";
/// The command line of a daemon has one of these: in the background, in the foreground.
const SERVES: [&[u8]; 2] = [b"-d", b"-f"];

/// The daemon that serves a pipe folder: the one that is known, if it still does.
pub(super) fn daemon(pipe: &Path, known: Option<u32>) -> Option<u32> {
    let known = known.filter(|pid| is_daemon(*pid, pipe));
    known.or_else(|| all().find(|pid| is_daemon(*pid, pipe)))
}

/// A process in a container may call itself what it likes; it sees other mounts than we do.
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

/// This process lives, is a program of MPS and was started for this pipe folder.
fn is_of(pid: u32, pipe: &Path) -> bool {
    // A process that nobody waited for has neither.
    let line = read(pid, "cmdline");
    let named = line.windows(NAME.len()).any(|part| part == NAME);
    let wanted = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
    let environment = read(pid, "environ");
    let mut variables = environment.split(|byte| *byte == 0);
    named && variables.any(|variable| variable == wanted.as_bytes())
}

fn read(pid: u32, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Ends every program of MPS that was started for this pipe folder; tells how many.
pub(super) fn end_all(pipe: &Path) -> usize {
    let ended = all().filter(|pid| is_of(*pid, pipe)).filter(|pid| {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
    });
    ended.count()
}
