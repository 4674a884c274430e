//! The processes of a daemon, by `/proc`: its servers, and what is left of one that has ended. The
//! contents of the pipe directory, where clients may write, say nothing about them.

use std::fs;
use std::path::{Path, PathBuf};

use aliquot_node_state::processes::given_at_start;
use rustix::process::{Pid, Signal, kill_process};

/// A part of the command line of every MPS program.
const NAME: &[u8] = b"nvidia-cuda-mps-";

/// Whether a process has this id, be it an exiting one, which still has its memory of the GPU.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

pub(super) fn is_child(pid: u32, daemon: u32) -> bool {
    let status = fs::read(file(pid, "status")).unwrap_or_default();
    let parent = format!("PPid:\t{daemon}");
    let mut lines = status.split(|byte| *byte == b'\n');
    lines.any(|line| line == parent.as_bytes())
}

/// Whether this process is running, is an MPS program and was started for this pipe directory.
fn is_of(pid: u32, pipe: &Path) -> bool {
    // A zombie has neither.
    let line = given_at_start(&file(pid, "cmdline"));
    if !line.windows(NAME.len()).any(|part| part == NAME) {
        return false;
    }
    let expected = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
    let environment = given_at_start(&file(pid, "environ"));
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable == expected.as_bytes())
}

fn file(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_a_process_that_the_daemon_started() {
        let parent = std::os::unix::process::parent_id();
        let own = std::process::id();
        assert!(is_child(own, parent));
        for (pid, daemon) in [(own, own), (parent, own), (u32::MAX, parent)] {
            assert!(!is_child(pid, daemon), "{pid} {daemon}");
        }
    }
}
