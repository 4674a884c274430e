//! NVIDIA's MPS as its owner sees it: a control daemon with its pipe directory and commands, and
//! the servers that it starts. The clients' side is in the simulated CUDA driver.

pub mod control;
mod daemon;
pub mod server;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Where CUDA clients ask for a server.
const CONTROL: &str = "control";
/// Where the owner's commands go.
const PRIVILEGED: &str = "control_privileged";
/// Locked for as long as a daemon serves the folder.
const LOCK: &str = "control_lock";
/// The daemon's process id; removed by `quit`.
const PID: &str = "nvidia-cuda-mps-control.pid";

/// What a started daemon prints on its stdout.
const READY: &str = "ready";

/// The daemon's two folders.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    pipe: PathBuf,
    log: PathBuf,
}

impl Directories {
    fn of_environment() -> Self {
        let folder = |name, default: &str| {
            std::env::var_os(name).map_or_else(|| default.into(), PathBuf::from)
        };
        Self {
            pipe: folder("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),
            log: folder("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"),
        }
    }

    /// Where the clients of a server meet it.
    fn server(&self, pid: u32) -> PathBuf {
        self.pipe.join(format!("server_{pid}"))
    }
}

/// Bytes by device ordinal, as a server gets them and its clients: `0=1024,1=512`.
fn limit_list(limits: &BTreeMap<u32, u64>) -> String {
    let pair = |(device, bytes): (&u32, &u64)| format!("{device}={bytes}");
    limits.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// Sends one line to a socket and reads all that comes back.
fn ask(socket: &Path, line: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    writeln!(stream, "{line}")?;
    std::io::read_to_string(stream)
}

/// The process id and user at the other end of a connection, as this process sees them.
fn peer(stream: &UnixStream) -> Option<(u32, u32)> {
    use std::os::fd::AsRawFd as _;
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the descriptor is open for the call, and the length is that of the struct, which
    // lives through it.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    let pid = u32::try_from(found.pid).ok()?;
    (answer == 0).then_some((pid, found.uid))
}

/// What a started program prints first.
fn status_line(program: &mut Child) -> String {
    let mut line = String::new();
    if let Some(stdout) = program.stdout.take() {
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    line.trim().to_owned()
}

fn first_line(stream: &UnixStream) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Exits when the machine's state file is gone, so that no test leaves a process behind.
fn exit_with_machine() {
    let Some(state) = std::env::var_os(crate::STATE_VARIABLE).map(PathBuf::from) else {
        return;
    };
    std::thread::spawn(move || {
        while state.exists() {
            std::thread::park_timeout(std::time::Duration::from_millis(500));
        }
        std::process::exit(0);
    });
}
