//! `nvidia-cuda-mps-control`: `-d` and `-f` start the daemon; without them the commands on stdin go
//! to the daemon that serves the pipe directory.
#![allow(clippy::print_stdout, reason = "a command that answers on stdout")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use super::{Directories, PRIVILEGED, READY, daemon, status_line};

/// One server for the clients of all users.
const ALL_USERS: &str = "-multiuser-server";

/// Runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let folders = Directories::of_environment();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known = ["-d", "-f", ALL_USERS];
    let has = |option: &str| arguments.iter().any(|one| one == option);
    let unknown = arguments.iter().find(|one| !known.contains(&one.as_str()));
    let ended = match unknown {
        Some(other) => Err(format!("Unknown option {other}")),
        None if has("-d") => start(has(ALL_USERS)),
        None if has("-f") => daemon::run(folders, has(ALL_USERS)),
        None => send_commands(&folders),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a daemon in the background.
fn start(all_users: bool) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut daemon = Command::new(program)
        .arg("-f")
        .args(all_users.then_some(ALL_USERS))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    match status_line(&mut daemon).as_str() {
        READY => Ok(()),
        message => Err(message.to_owned()),
    }
}

fn send_commands(folders: &Directories) -> Result<(), String> {
    let missing = |_| "Cannot find MPS control daemon process".to_owned();
    let stream = UnixStream::connect(folders.pipe.join(PRIVILEGED)).map_err(missing)?;
    let broken = |e: std::io::Error| format!("Failed to talk to the control daemon: {e}");
    for line in std::io::stdin().lines() {
        let line = line.map_err(broken)?;
        writeln!(&stream, "{line}").map_err(broken)?;
        // The answer's length on a line of its own, then the answer.
        let length = unbuffered_line(&stream).map_err(broken)?;
        let length = length.parse().map_err(|_| "Unexpected answer".to_owned())?;
        let mut answer = vec![0; length];
        (&stream).read_exact(&mut answer).map_err(broken)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if !answer.is_empty() {
            println!("{answer}");
        }
        if line.trim_start().starts_with("quit") {
            break;
        }
    }
    Ok(())
}

/// Reads a line, and not one byte beyond it.
fn unbuffered_line(mut stream: &UnixStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}
