//! A container as the limiter meets it: a file system of its own with the seat's directory, a
//! driver, and processes in it.
//!
//! Fed by: tests. Must not: judge; the simulator counts.

pub mod gate;
mod host;
pub mod launch;
pub mod rest;
pub mod scene;
pub mod share;
mod starved;
pub mod tenant;
mod workers;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use aliquot_facade::{FOLDER, LIBRARIES, LIMITER, Library, Machine, stand_in};
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_region::host::{Report, Unreadable};
use aliquot_region::limits::{Container as Rules, Device};
use aliquot_region::{counters, limits};
use anyhow::{Context as _, Result, bail, ensure};

/// How our library gets before the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As the driver's libraries.
    Replacement,
    /// By the loader, before everything else.
    Preload,
    /// Not at all: what the tests compare with.
    Bare,
}

/// Both ways that limit.
pub const WAYS: [Way; 2] = [Way::Replacement, Way::Preload];

/// A container on a simulated machine.
pub struct Container {
    room: tempfile::TempDir,
    way: Way,
    state: PathBuf,
}

/// Starts a command in the file system of the container, as a runtime does: `$1` is its seat, `$2`
/// its root, the rest the command. Libraries of the driver are mounted one by one.
const ENTER: &str = r#"
set -e
seat=$1 root=$2; shift 2
mount -t tmpfs tmpfs "$root"
for entry in /*; do
    name=${entry#/}
    case $name in etc|.aliquot) continue;; esac
    if [ -L "$entry" ]; then cp -P "$entry" "$root/$name"
    elif [ -d "$entry" ]; then mkdir -p "$root/$name"; mount --rbind "$entry" "$root/$name"
    fi
done
cp -a /etc "$root/etc"
mkdir "$root/.aliquot" "$root/driver" "$root/.old"
give() { : >"$2"; mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; }
[ ! -e "$seat/ld.so.preload" ] || give "$seat/ld.so.preload" "$root/etc/ld.so.preload"
for file in "$seat"/driver/*; do give "$file" "$root/driver/${file##*/}"; done
mount --bind "$seat/directory" "$root/.aliquot"
mount -o remount,bind,ro "$root/.aliquot"
mount --bind "$seat/directory/counters/slots" "$root/.aliquot/counters/slots"
[ ! -e "$seat/readonly" ] || mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . .old
umount -l /.old
exec "$@"
"#;

impl Container {
    /// A container with shares of these devices, on the machine.
    pub fn new(
        machine: &SimulatedMachine,
        way: Way,
        rules: Rules,
        devices: &[Device],
    ) -> Result<Self> {
        let room = tempfile::tempdir()?;
        let at = |path: &str| room.path().join(path);
        for folder in ["root", "driver", "directory/lib", "directory/counters"] {
            fs::create_dir_all(at(folder))?;
        }
        fs::write(at("directory/limits"), limits::page(rules, devices)?)?;
        let mut slots = fs::File::create(at("directory/counters/slots"))?;
        slots.write_all(&counters::header())?;
        slots.set_len(counters::SIZE)?;
        slots.set_permissions(fs::Permissions::from_mode(0o666))?;
        let real = [place::cuda_library_path()?, place::library_path()?];
        let lib = at("directory/lib");
        if way != Way::Bare {
            fs::copy(limiter()?, lib.join(LIMITER))?;
        }
        for (library, real) in LIBRARIES.into_iter().zip(real) {
            let shown = at("driver").join(library.name);
            if way == Way::Replacement {
                let machine = Machine::HERE.context("no stand-in for this machine")?;
                fs::write(shown, stand_in(library, FOLDER, machine))?;
                fs::copy(real, lib.join(library.real))?;
            } else {
                fs::copy(real, shown)?;
            }
        }
        if way == Way::Preload {
            fs::write(at("ld.so.preload"), format!("{FOLDER}/{LIMITER}\n"))?;
        }
        let state = machine.state().to_owned();
        Ok(Self { room, way, state })
    }

    /// The directory that the container sees as `/.aliquot`.
    pub fn directory(&self) -> PathBuf {
        self.room.path().join("directory")
    }

    /// Puts another driver's library in the place of the simulated one.
    pub fn replace_driver(&self, library: Library, file: &Path) -> Result<()> {
        let place = match self.way {
            Way::Replacement => self.directory().join("lib").join(library.real),
            Way::Preload | Way::Bare => self.room.path().join("driver").join(library.name),
        };
        fs::copy(file, place)?;
        Ok(())
    }

    /// Puts another build of libvgpu.so in the place of this one.
    pub fn replace_limiter(&self, file: &Path) -> Result<()> {
        fs::copy(file, self.directory().join("lib").join(LIMITER))?;
        Ok(())
    }

    /// From now on its root can only be read.
    pub fn read_only(&self) -> Result<()> {
        Ok(fs::write(self.room.path().join("readonly"), "")?)
    }

    /// The image brings a list of preloads that names `library`.
    pub fn preload(&self, library: &str) -> Result<()> {
        let list = self.room.path().join("ld.so.preload");
        Ok(fs::write(list, format!("{library}\n"))?)
    }

    /// What the host reads of its counters.
    pub fn report(&self) -> Result<Report, Unreadable> {
        aliquot_region::host::read(&self.directory().join("counters/slots"), 1)
    }

    /// A command in the container, with the machine's state and nothing else in its environment.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                ENTER,
                "enter",
            ])
            .arg(self.room.path())
            .arg(self.room.path().join("root"))
            .args(words)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LD_LIBRARY_PATH", "/driver")
            .env(STATE_VARIABLE, &self.state);
        command
    }

    /// What the client answers to `commands`, one line each; it must end well.
    pub fn client(&self, commands: &[&str]) -> Result<Vec<String>> {
        let output = self.client_command(commands).output()?;
        let way = self.way;
        ensure!(output.status.success(), "{way:?} {commands:?}: {output:?}");
        Ok(lines(&output))
    }

    /// The client that will run `commands`.
    pub fn client_command(&self, commands: &[&str]) -> Command {
        let client = client();
        let mut words = vec!["python3", client.as_str()];
        words.extend(commands);
        self.command(&words)
    }

    /// Starts the client with `commands`, which are followed by waiting; the answers so far.
    pub fn start(&self, commands: &[&str]) -> Result<Running> {
        let mut words = commands.to_vec();
        words.extend(["ready", "hold"]);
        let mut client = self.client_command(&words);
        Running::start(client.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }
}

/// A client that has answered and waits.
pub struct Running {
    child: Child,
    /// What it said.
    pub answers: Vec<String>,
    input: Option<ChildStdin>,
    /// Kept open: a client that cannot write ends badly.
    _output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a command, whose end is a client with the commands `ready hold`.
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.spawn()?;
        let mut answers = Vec::new();
        let mut output = BufReader::new(child.stdout.take().context("piped")?);
        let mut line = String::new();
        while output.read_line(&mut line)? > 0 {
            if line.starts_with("ready: ") {
                let input = child.stdin.take();
                return Ok(Self {
                    child,
                    answers,
                    input,
                    _output: output,
                });
            }
            answers.push(line.trim_end().to_owned());
            line.clear();
        }
        bail!("{command:?} ended after {answers:?}: {:?}", child.wait()?)
    }

    /// Lets it come to its end.
    pub fn end(&mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the client ended with {status}");
        Ok(())
    }

    /// Ends it by SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.strike()
    }

    /// Ends it by SIGKILL; what it forked has its input until this value goes.
    pub fn strike(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The client, which every container sees at the same path.
pub fn client() -> String {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/client.py");
    client.display().to_string()
}

/// The lines on a command's stdout.
pub fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The built libvgpu.so, which lies beside this program's folder.
pub fn limiter() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let mut folders = program.ancestors().skip(1).take(2);
    let found = folders.find_map(|folder| Some(folder.join(LIMITER)).filter(|file| file.is_file()));
    found.context("libvgpu.so is not built: cargo build -p aliquot-limiter")
}
