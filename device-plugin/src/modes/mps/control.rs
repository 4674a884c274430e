//! The command `nvidia-cuda-mps-control`: starts a daemon and sends it commands, each with a
//! deadline.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_core::{Mib, Percent};
use aliquot_node_state::mps::{DaemonSpec, MpsServer};
use thiserror::Error;

use super::directory::DaemonDirectory;
use super::program::{ControlProgram, ProgramError, ProgramSearch};
use super::{plan, processes};

const DEADLINE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// One server for the clients of all users, as pods have them. NVIDIA supports it only for a daemon
/// that runs as root.
const ALL_USERS: &str = "-multiuser-server";
/// The command that every daemon answers with a number.
const THREADS: &str = "get_default_active_thread_percentage";

#[derive(Debug, Error)]
pub enum ControlError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("cannot run {}: {source}", program.display())]
    Run {
        program: PathBuf,
        source: std::io::Error,
    },
    #[error("the MPS daemon exited right after its start: {output:?}; see control.log in {}", log.display())]
    Exited { output: String, log: PathBuf },
    #[error("the MPS daemon did not answer {0:?} within 5 s")]
    Silent(String),
    #[error("the MPS daemon answered {command:?} with {output:?}")]
    Refused { command: String, output: String },
}

#[derive(Clone, Debug)]
pub struct MpsControl {
    pub program: ProgramSearch,
    /// The size of the memory at `/dev/shm` of each daemon; `None`: half of the node's memory.
    pub shm_size: Option<Mib>,
}

impl MpsControl {
    /// Starts a daemon that sees only this device, for the clients of all users, and waits until it
    /// answers. Returns false with it if it does not support that and serves one user at a time.
    pub fn start(
        &self,
        directory: &DaemonDirectory,
        device: &str,
    ) -> Result<(Child, bool), ControlError> {
        match self.start_with(directory, device, &[ALL_USERS]) {
            Err(ControlError::Exited { .. }) => {
                Ok((self.start_with(directory, device, &[])?, false))
            }
            started => Ok((started?, true)),
        }
    }

    fn start_with(
        &self,
        directory: &DaemonDirectory,
        device: &str,
        more: &[&str],
    ) -> Result<Child, ControlError> {
        let program = self.program.find()?;
        self.program.link_libraries(&program)?;
        let failed = |source| ControlError::Run {
            program: program.file.clone(),
            source,
        };
        let output = directory.log().join("start.log");
        let (out, errors) = file_twice(&output).map_err(failed)?;
        let mut command = self.command(&program, directory);
        command
            .arg("-f")
            .args(more)
            .env("CUDA_VISIBLE_DEVICES", device)
            // Our own limits must not limit the daemon.
            .env_remove("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
            .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors);
        let mut daemon = command.spawn().map_err(failed)?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            let answer = self.send(directory, THREADS);
            if daemon.try_wait().map_err(failed)?.is_some() {
                let output = std::fs::read_to_string(&output).unwrap_or_default();
                return Err(ControlError::Exited {
                    output: output.trim().to_owned(),
                    log: directory.log(),
                });
            }
            if answer.is_ok_and(|answer| answer.parse::<f64>().is_ok()) {
                return Ok(daemon);
            }
            if Instant::now() > deadline {
                let _ = daemon.kill();
                let _ = daemon.wait();
                return Err(ControlError::Silent("-f".to_owned()));
            }
            std::thread::park_timeout(POLL);
        }
    }

    /// Sends the daemon one command; returns its answer.
    pub fn send(&self, directory: &DaemonDirectory, command: &str) -> Result<String, ControlError> {
        let mut asked = self.command(&self.program.find()?, directory);
        let asked = asked.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (output, good) = Self::run(asked, command)?;
        if good {
            return Ok(output);
        }
        let command = command.to_owned();
        Err(ControlError::Refused { command, output })
    }

    pub fn apply(
        &self,
        directory: &DaemonDirectory,
        spec: &DaemonSpec,
        servers: &[u32],
    ) -> Result<(), ControlError> {
        for command in plan::commands(spec, servers) {
            let output = self.send(directory, &command)?;
            // It answers nothing, or the number that is now in effect.
            if !output.is_empty() && !output.starts_with(|first: char| first.is_ascii_digit()) {
                return Err(ControlError::Refused { command, output });
            }
        }
        let output = self.send(directory, THREADS)?;
        if matches_percent(&output, spec.threads) {
            return Ok(());
        }
        let command = THREADS.to_owned();
        Err(ControlError::Refused { command, output })
    }

    pub fn servers(
        &self,
        directory: &DaemonDirectory,
        daemon: u32,
    ) -> Result<Vec<MpsServer>, ControlError> {
        let own = own_servers(&self.send(directory, "get_server_list")?, daemon);
        let server = |pid: u32| {
            let clients = self.send(directory, &format!("get_client_list {pid}"))?;
            // Older daemons do not know this command and answer something else.
            let status = self.send(directory, &format!("get_server_status {pid}"));
            Ok(MpsServer {
                pid,
                clients: numbers(&clients),
                fault: status.is_ok_and(|output| output.contains("FAULT")),
            })
        };
        own.into_iter().map(server).collect()
    }

    fn command(&self, program: &ControlProgram, directory: &DaemonDirectory) -> Command {
        let mut command = Command::new(&program.file);
        command
            .envs(self.program.environment(program))
            .env("CUDA_MPS_PIPE_DIRECTORY", directory.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", directory.log())
            // The commands are those of version 2, which is the default.
            .env_remove("CUDA_MPS_PROTOCOL_VERSION");
        command
    }

    /// Runs a command with `input`; returns its output and whether it succeeded.
    fn run(command: &mut Command, input: &str) -> Result<(String, bool), ControlError> {
        let program = PathBuf::from(command.get_program());
        let failed = |source| ControlError::Run {
            program: program.clone(),
            source,
        };
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that finds no daemon exits without reading.
            let _ = writeln!(stdin, "{input}");
        }
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ControlError::Silent(input.to_owned()));
            }
            std::thread::park_timeout(POLL);
        };
        Ok((output(&mut child), status.success()))
    }
}

/// An empty file, opened for stdout and for stderr.
fn file_twice(path: &Path) -> std::io::Result<(File, File)> {
    let file = File::create(path)?;
    Ok((file.try_clone()?, file))
}

/// The output of a command that has exited.
fn output(child: &mut Child) -> String {
    let (mut out, mut errors) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut o| o.read_to_string(&mut out));
    let _ = child
        .stderr
        .take()
        .map(|mut e| e.read_to_string(&mut errors));
    let output = if out.trim().is_empty() { errors } else { out };
    output.trim().to_owned()
}

fn matches_percent(output: &str, threads: Percent) -> bool {
    let percent = output.parse::<f64>();
    percent.is_ok_and(|percent| (percent - f64::from(threads.0)).abs() < 0.5)
}

/// The processes of a list that this daemon started. Root in a container can answer in the daemon's
/// place, and each process that is asked about takes two programs.
fn own_servers(list: &str, daemon: u32) -> BTreeSet<u32> {
    let mut own: BTreeSet<u32> = numbers(list).into_iter().collect();
    own.retain(|pid| processes::is_child(*pid, daemon));
    own
}

/// Process ids, one a line; other lines are messages of the daemon.
fn numbers(output: &str) -> Vec<u32> {
    let lines = output.lines().map(str::trim);
    lines.filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A command that runs this shell line.
    fn command(dir: &Path, line: &str) -> (MpsControl, DaemonDirectory) {
        let program = dir.join("control");
        std::fs::write(&program, format!("#!/bin/sh\n{line}\n")).expect("written");
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, runs).expect("made to run");
        let directory = DaemonDirectory::new(dir, "GPU-a");
        directory.make().expect("made");
        let program = ProgramSearch {
            program,
            path: vec!["/usr/bin".into(), "/bin".into()],
            roots: Vec::new(),
            libraries: dir.join("driver"),
        };
        let control = MpsControl {
            program,
            shm_size: None,
        };
        (control, directory)
    }

    #[test]
    fn mps_16_falls_back_to_single_user_daemon() {
        let dir = tempfile::tempdir().expect("a directory");
        let check = |line: &str, expected: Result<bool, &str>| {
            let (control, directory) = command(dir.path(), line);
            match (control.start(&directory, "GPU-a"), expected) {
                (Ok((mut daemon, all_users)), Ok(expected)) => {
                    daemon.kill().expect("it runs");
                    daemon.wait().expect("it ended");
                    assert_eq!(all_users, expected, "{line}");
                }
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{error}");
                }
                (started, _) => panic!("{line}: {started:?}"),
            }
        };
        // Called without an argument, it answers for the daemon.
        let serves = |arguments: &str| {
            format!(
                "up=$CUDA_MPS_PIPE_DIRECTORY/up\ncase \"$*\" in\n\
                 '{arguments}') touch \"$up\"; exec sleep 60;;\n\
                 '') test -e \"$up\" && echo 100.0;;\n\
                 *) echo no such option; exit 1;;\nesac"
            )
        };
        check(&serves("-f -multiuser-server"), Ok(true));
        check(&serves("-f"), Ok(false));
        check("echo busy; exit 1", Err("busy"));
    }

    #[test]
    fn asks_once_about_each_server_and_about_no_other_process() {
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        let forged = format!("{parent}\n{own}\n{}\n{own}\n", u32::MAX);
        assert_eq!(own_servers(&forged, parent), BTreeSet::from([own]));
        assert_eq!(own_servers(&forged, own), BTreeSet::new());
    }

    #[test]
    fn parses_daemon_answers() {
        assert_eq!(numbers("17\n18\n"), [17, 18]);
        assert_eq!(numbers("Server 3 does not exist"), [0_u32; 0]);
        assert!(matches_percent("25.0", Percent(25)) && matches_percent("100", Percent(100)));
        assert!(!matches_percent("100.0", Percent(25)) && !matches_percent("dance", Percent(25)));
    }
}
