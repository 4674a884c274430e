//! The processes of a daemon, by `/proc`: whether one is running, and which are left of one that is
//! not. Neither a process's name alone nor the contents of the pipe directory, where clients may
//! write, make it ours.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
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

/// A process in a container may choose its name, but not our root directory. Our daemons have that,
/// each in a mount namespace of its own.
fn is_daemon(pid: u32, pipe: &Path) -> bool {
    let line = read(pid, "cmdline");
    let mut words = line.split(|byte| *byte == 0);
    words.any(|word| SERVES.contains(&word)) && is_of(pid, pipe) && has_our_root(pid)
}

/// Whether a process has this id, be it an exiting one, which still has its memory of the GPU.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

pub(super) fn is_child(pid: u32, daemon: u32) -> bool {
    let status = read(pid, "status");
    let parent = format!("PPid:\t{daemon}");
    let mut lines = status.split(|byte| *byte == b'\n');
    lines.any(|line| line == parent.as_bytes())
}

fn has_our_root(pid: u32) -> bool {
    let root = |process: &str| {
        let root = fs::metadata(format!("/proc/{process}/root")).ok()?;
        Some((root.dev(), root.ino()))
    };
    let ours = root("self");
    ours.is_some() && root(&pid.to_string()) == ours
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell that looks like a daemon of this pipe directory; it ends when this test does.
    struct Process(Child);

    impl Process {
        /// `setup` executes "$@".
        fn start(pipe: &Path, setup: &str, folder: &Path) -> Self {
            let mut process = Command::new("unshare")
                .args(["--mount", "--propagation", "private", "sh", "-c", setup])
                .arg(folder)
                .args(["/bin/sh", "-c", "echo ready; read -r line"])
                .args(["nvidia-cuda-mps-control", "-d"])
                .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            let mut line = String::new();
            let output = process.stdout.take().expect("piped");
            BufReader::new(output).read_line(&mut line).expect("read");
            assert_eq!(line, "ready\n");
            Self(process)
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The rest of a container's root directory.
    const CHROOT: &str = "mkdir \"$0/usr\" && mount --bind /usr \"$0/usr\" && \
        for name in bin lib lib64; do ln -s usr/$name \"$0/$name\"; done && \
        exec chroot \"$0\" \"$@\"";

    #[test]
    fn finds_daemon_in_mount_namespace_of_its_own() {
        let folder = tempfile::tempdir().expect("a directory");
        let pipe = folder.path().join("pipe");
        let own = Process::start(&pipe, "exec \"$@\"", folder.path());
        let pid = own.0.id();
        assert_eq!(daemon(&pipe, None), Some(pid));
        assert_eq!(daemon(&pipe, Some(pid)), Some(pid));
        assert_eq!(daemon(&folder.path().join("other"), Some(pid)), None);
    }

    #[test]
    fn server_is_a_process_that_the_daemon_started() {
        let parent = std::os::unix::process::parent_id();
        let own = std::process::id();
        assert!(is_child(own, parent));
        for (pid, daemon) in [(own, own), (parent, own), (u32::MAX, parent)] {
            assert!(!is_child(pid, daemon), "{pid} {daemon}");
        }
    }

    #[test]
    fn ignores_process_of_container_named_like_daemon() {
        let folder = tempfile::tempdir().expect("a directory");
        let (pipe, root) = (folder.path().join("pipe"), folder.path().join("root"));
        fs::create_dir(&root).expect("made");
        let other = Process::start(&pipe, CHROOT, &root);
        let pid = other.0.id();
        assert!(is_of(pid, &pipe), "it has name and environment");
        assert_eq!(daemon(&pipe, Some(pid)), None);
    }
}
