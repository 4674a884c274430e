//! `nvidia-cuda-mps-control` as a command: starting a daemon, and what it answers.
//!
//! Fed by: a unit's folder. Must not: wait longer than its deadline; decide.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_core::Percent;
use thiserror::Error;

use super::folder::{Folder, Server, Wish};

/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(5);

/// One server for the clients of all users, as pods have them. NVIDIA has it for a daemon of
/// root's.
const ALL_USERS: &str = "-multiuser-server";

/// Why a daemon does not do as it is told.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The command cannot be run.
    #[error("cannot run {}: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It took too long.
    #[error("the MPS daemon did not answer {0:?} within 5 s")]
    Silent(String),
    /// It refused; its own words.
    #[error("the MPS daemon answered {command:?} with {said:?}")]
    Refused {
        /// What it was told.
        command: String,
        /// What it said.
        said: String,
    },
}

/// The command of NVIDIA's.
#[derive(Clone, Debug)]
pub struct Control {
    /// The program.
    pub program: PathBuf,
    /// What else a daemon is started with.
    pub arguments: Vec<OsString>,
    /// The host's folder that is at `/dev/shm` here.
    pub shm: Option<PathBuf>,
}

impl Control {
    /// Starts a daemon that sees the unit and nothing else, for the clients of all users. True:
    /// it is; one that knows no such thing is for one user at a time.
    pub fn start(&self, folder: &Folder, unit: &str) -> Result<bool, ControlError> {
        match self.start_with(folder, unit, &[ALL_USERS]) {
            Err(ControlError::Refused { .. }) => self.start_with(folder, unit, &[]).map(|()| false),
            done => done.map(|()| true),
        }
    }

    fn start_with(&self, folder: &Folder, unit: &str, more: &[&str]) -> Result<(), ControlError> {
        let mut command = self.command(folder);
        command
            .arg("-d")
            .args(more)
            .args(&self.arguments)
            .env("CUDA_VISIBLE_DEVICES", unit)
            // Limits of ours are no limits of the daemon's.
            .env_remove("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
            .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
        // Not through a pipe, which the daemon might keep open for as long as it lives.
        let said = folder.log().join("start.log");
        let (out, errors) = file_twice(&said).map_err(|source| ControlError::Run {
            program: self.program.clone(),
            source,
        })?;
        let (_, good) = self.run(command.stdout(out).stderr(errors), "-d", "")?;
        if good {
            return Ok(());
        }
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        Err(ControlError::Refused {
            command: "-d".to_owned(),
            said: said.trim().to_owned(),
        })
    }

    /// Tells the daemon one thing; its answer.
    pub fn tell(&self, folder: &Folder, command: &str) -> Result<String, ControlError> {
        let mut asked = self.command(folder);
        let asked = asked.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (said, good) = self.run(asked, command, command)?;
        if good {
            return Ok(said);
        }
        let command = command.to_owned();
        Err(ControlError::Refused { command, said })
    }

    /// Tells the daemon the limits of a wish.
    pub fn apply(&self, folder: &Folder, wish: &Wish, servers: &[u32]) -> Result<(), ControlError> {
        for command in wish.commands(servers) {
            let said = self.tell(folder, &command)?;
            // It says nothing, or the number that holds now.
            if !said.is_empty() && !said.starts_with(|first: char| first.is_ascii_digit()) {
                return Err(ControlError::Refused { command, said });
            }
        }
        let command = "get_default_active_thread_percentage";
        let said = self.tell(folder, command)?;
        if holds(&said, wish.threads) {
            return Ok(());
        }
        let command = command.to_owned();
        Err(ControlError::Refused { command, said })
    }

    /// The daemon's servers with their clients.
    pub fn servers(&self, folder: &Folder) -> Result<Vec<Server>, ControlError> {
        let list = numbers(&self.tell(folder, "get_server_list")?);
        let server = |pid: u32| {
            let clients = self.tell(folder, &format!("get_client_list {pid}"))?;
            // Older daemons do not know this one, and answer something else.
            let status = self.tell(folder, &format!("get_server_status {pid}"));
            Ok(Server {
                pid,
                clients: numbers(&clients),
                fault: status.is_ok_and(|said| said.contains("FAULT")),
            })
        };
        list.into_iter().map(server).collect()
    }

    fn command(&self, folder: &Folder) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", folder.log());
        command
    }

    /// Runs a command with `input`; what it said, and whether it ended well.
    fn run(
        &self,
        command: &mut Command,
        name: &str,
        input: &str,
    ) -> Result<(String, bool), ControlError> {
        let failed = |source| ControlError::Run {
            program: self.program.clone(),
            source,
        };
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that finds no daemon ends without reading.
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
                return Err(ControlError::Silent(name.to_owned()));
            }
            std::thread::park_timeout(LOOK);
        };
        Ok((said(&mut child), status.success()))
    }
}

/// An empty file for stdout and for stderr.
fn file_twice(path: &Path) -> std::io::Result<(File, File)> {
    let file = File::create(path)?;
    Ok((file.try_clone()?, file))
}

/// All that a command said; it has ended.
fn said(child: &mut Child) -> String {
    let (mut out, mut errors) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut o| o.read_to_string(&mut out));
    let _ = child
        .stderr
        .take()
        .map(|mut e| e.read_to_string(&mut errors));
    let said = if out.trim().is_empty() { errors } else { out };
    said.trim().to_owned()
}

fn holds(said: &str, threads: Percent) -> bool {
    let percent = said.parse::<f64>();
    percent.is_ok_and(|percent| (percent - f64::from(threads.0)).abs() < 0.5)
}

/// A list of process ids, one a line; other lines are words of the daemon's.
fn numbers(said: &str) -> Vec<u32> {
    let lines = said.lines().map(str::trim);
    lines.filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A command that is this line of a shell.
    fn command(room: &Path, line: &str) -> (Control, Folder) {
        let program = room.join("control");
        std::fs::write(&program, format!("#!/bin/sh\n{line}\n")).expect("written");
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, runs).expect("made to run");
        let folder = Folder::new(room, "GPU-a");
        folder.make().expect("made");
        let control = Control {
            program,
            arguments: vec!["-x".into()],
            shm: None,
        };
        (control, folder)
    }

    #[test]
    fn mps_16_a_daemon_that_knows_no_users_is_started_without_them_and_said_to_be() {
        let room = tempfile::tempdir().expect("a folder");
        let check = |line: &str, expected: Result<bool, &str>| {
            let (control, folder) = command(room.path(), line);
            let started = control.start(&folder, "GPU-a");
            let started = started.map_err(|error| error.to_string());
            match (&started, expected) {
                (Err(text), Err(part)) => assert!(text.contains(part), "{text}"),
                (found, expected) => assert_eq!(found.as_ref().ok(), expected.ok().as_ref()),
            }
        };
        check(r#"[ "$*" = "-d -multiuser-server -x" ]"#, Ok(true));
        let old = r#"[ "$*" = "-d -x" ] || { echo "no such option"; exit 1; }"#;
        check(old, Ok(false));
        check("echo busy; exit 1", Err("busy"));
    }

    #[test]
    fn answers_are_read_as_the_daemon_writes_them() {
        assert_eq!(numbers("17\n18\n"), [17, 18]);
        assert_eq!(numbers(""), [0_u32; 0]);
        assert_eq!(numbers("Server 3 does not exist"), [0_u32; 0]);
        assert!(holds("25.0", Percent(25)) && holds("100", Percent(100)));
        assert!(!holds("100.0", Percent(25)) && !holds("dance", Percent(25)));
    }
}
