//! A daemon of one machine with directories of its own, and commands to it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine};

pub(crate) struct Daemon {
    machine: SimulatedMachine,
    pub(crate) pipe: PathBuf,
    pub(crate) log: PathBuf,
    devices: String,
}

impl Daemon {
    /// A daemon's directories; it is not started.
    pub(crate) fn new(machine: &SimulatedMachine, name: &str, devices: &str) -> Self {
        let folder = machine.state().parent().unwrap().join(name);
        Self {
            machine: machine.clone(),
            pipe: folder.join("pipe"),
            log: folder.join("log"),
            devices: devices.to_owned(),
        }
    }

    /// Starts it as its owner does; returns its output and whether it succeeded.
    pub(crate) fn start(&self) -> (String, bool) {
        self.start_with(&[])
    }

    /// The same with more arguments.
    pub(crate) fn start_with(&self, more: &[&str]) -> (String, bool) {
        let output = self.command().arg("-d").args(more).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        (printed.trim().to_owned(), output.status.success())
    }

    pub(crate) fn started(machine: &SimulatedMachine, name: &str, devices: &str) -> Self {
        let daemon = Self::new(machine, name, devices);
        assert_eq!(daemon.start(), (String::new(), true));
        daemon
    }

    fn command(&self) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
        let mut command = Command::new(program);
        command
            .env("PATH", program.parent().unwrap())
            .env(STATE_VARIABLE, self.machine.state())
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.log)
            .env("CUDA_VISIBLE_DEVICES", &self.devices);
        command
    }

    pub(crate) fn command_output(&self, commands: &str) -> (String, bool) {
        let mut control = self.command();
        let control = control.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut control = control.spawn().unwrap();
        let mut stdin = control.stdin.take().unwrap();
        // One that cannot find its daemon does not read.
        let _ = writeln!(stdin, "{commands}");
        drop(stdin);
        let output = control.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        (printed.trim().to_owned(), output.status.success())
    }

    pub(crate) fn answer(&self, commands: &str) -> String {
        let (printed, good) = self.command_output(commands);
        assert!(good, "{commands}: {printed}");
        printed
    }

    pub(crate) fn pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.pipe.join("nvidia-cuda-mps-control.pid"));
        text.unwrap().trim().parse().unwrap()
    }
}

pub(crate) fn runs(pid: u32) -> bool {
    // The sockets stay open until the last thread has ended, and the main thread may be the first.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.is_ok_and(|threads| {
        threads.flatten().any(|thread| {
            let status = std::fs::read_to_string(thread.path().join("stat"));
            status.is_ok_and(|text| !text.contains(") Z "))
        })
    })
}
