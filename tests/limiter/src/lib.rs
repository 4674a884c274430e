//! A container as the limiter meets it: a file system of its own with the container directory, a
//! driver, and processes in it. Only the simulator's counts tell whether a limit was kept.

pub mod honest;
pub mod host;
pub mod launch;
pub mod lending;
pub mod oom_host;
pub mod scene;
pub mod share;
pub mod tenant_user;
pub mod throttle;
pub mod workers;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_region::host::{CountersReadError, CountersSnapshot};
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use aliquot_region::{counters, limits};
use aliquot_shim::{Architecture, FOLDER, LIBRARIES, LIMITER, ShimmedLibrary, build_shim};
use anyhow::{Context as _, Result, bail, ensure};

/// How the limiter is loaded before the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionMethod {
    /// By shim libraries in place of the driver's, and by the loader's preload list.
    Replacement,
    /// By the preload list alone.
    Preload,
    /// Not at all, for comparison.
    NoLimiter,
}

/// The two injection methods.
pub const INJECTION_METHODS: [InjectionMethod; 2] =
    [InjectionMethod::Replacement, InjectionMethod::Preload];

/// A container on a simulated machine.
pub struct TestContainer {
    temp: tempfile::TempDir,
    method: InjectionMethod,
    state: PathBuf,
}

/// Starts a command in the file system of the container, as a runtime does: `$1` is its folder on
/// the host, `$2` its root, the rest the command. Libraries of the driver are mounted one by one, and
/// the file of which the simulator's descriptors are is where the driver's node would be.
const ENTER: &str = r#"
set -e
container=$1 root=$2; shift 2
mount -t tmpfs tmpfs "$root"
for entry in /*; do
    name=${entry#/}
    case $name in etc|dev|.aliquot) continue;; esac
    if [ -L "$entry" ]; then cp -P "$entry" "$root/$name"
    elif [ -d "$entry" ]; then mkdir -p "$root/$name"; mount --rbind "$entry" "$root/$name"
    fi
done
cp -a /etc "$root/etc"
mkdir "$root/dev"
mount -t tmpfs tmpfs "$root/dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fd /dev/std* "$root/dev"
mkdir -m 1777 "$root/dev/shm"
: >"$root/dev/nvidiactl"
mount --bind "$GPUSIM_STATE.cuda" "$root/dev/nvidiactl"
mkdir "$root/.aliquot" "$root/driver" "$root/.old"
give() { : >"$2"; mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; }
[ ! -e "$container/ld.so.preload" ] || give "$container/ld.so.preload" "$root/etc/ld.so.preload"
for file in "$container"/driver/*; do give "$file" "$root/driver/${file##*/}"; done
mount --bind "$container/directory" "$root/.aliquot"
mount -o remount,bind,ro "$root/.aliquot"
mount --bind "$container/directory/counters/slots" "$root/.aliquot/counters/slots"
[ ! -e "$container/readonly" ] || mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . .old
umount -l /.old
exec "$@"
"#;

impl TestContainer {
    /// A container with shares of these devices, on the machine.
    pub fn new(
        machine: &SimulatedMachine,
        method: InjectionMethod,
        container_limits: ContainerLimits,
        devices: &[DeviceLimits],
    ) -> Result<Self> {
        let temp = tempfile::tempdir()?;
        let at = |path: &str| temp.path().join(path);
        for folder in ["root", "driver", "directory/lib", "directory/counters"] {
            fs::create_dir_all(at(folder))?;
        }
        let mut slots = fs::File::create(at("directory/counters/slots"))?;
        slots.write_all(&counters::header())?;
        slots.set_len(counters::SIZE)?;
        slots.set_permissions(fs::Permissions::from_mode(0o666))?;
        let mut page = limits::page(container_limits, devices)?;
        limits::set_counters(&mut page, counters::identity(&slots)?);
        fs::write(at("directory/limits"), page)?;
        let real = [place::cuda_library_path()?, place::library_path()?];
        let lib = at("directory/lib");
        if method != InjectionMethod::NoLimiter {
            fs::copy(limiter()?, lib.join(LIMITER))?;
        }
        for (library, real) in LIBRARIES.into_iter().zip(real) {
            let driver_path = at("driver").join(library.name);
            if method == InjectionMethod::Replacement {
                let machine =
                    Architecture::HERE.context("no shim library for this architecture")?;
                fs::write(driver_path, build_shim(library, FOLDER, machine))?;
                fs::copy(real, lib.join(library.real))?;
            } else {
                fs::copy(real, driver_path)?;
            }
        }
        if method != InjectionMethod::NoLimiter {
            fs::write(at("ld.so.preload"), format!("{FOLDER}/{LIMITER}\n"))?;
        }
        let state = machine.state().to_owned();
        Ok(Self {
            temp,
            method,
            state,
        })
    }

    /// The directory that the container sees as `/.aliquot`.
    pub fn directory(&self) -> PathBuf {
        self.temp.path().join("directory")
    }

    /// Replaces the simulated driver's library by another file.
    #[track_caller]
    pub fn replace_driver(&self, library: ShimmedLibrary, file: impl AsRef<Path>) {
        let place = match self.method {
            InjectionMethod::Replacement => self.directory().join("lib").join(library.real),
            InjectionMethod::Preload | InjectionMethod::NoLimiter => {
                self.temp.path().join("driver").join(library.name)
            }
        };
        fs::copy(file, place).expect("copied");
    }

    /// Replaces libvgpu.so by another build.
    pub fn replace_limiter(&self, file: &Path) -> Result<()> {
        fs::copy(file, self.directory().join("lib").join(LIMITER))?;
        Ok(())
    }

    /// Makes its root read-only.
    pub fn read_only(&self) -> Result<()> {
        Ok(fs::write(self.temp.path().join("readonly"), "")?)
    }

    /// Appends `library` to the preload list, as the hook does with what the image preloads.
    pub fn preload(&self, library: &str) -> Result<()> {
        let list = self.temp.path().join("ld.so.preload");
        let mut list = fs::OpenOptions::new().append(true).open(list)?;
        Ok(writeln!(list, "{library}")?)
    }

    /// What the host reads from its counters file.
    pub fn counters_snapshot(&self) -> Result<CountersSnapshot, CountersReadError> {
        aliquot_region::host::read(&self.directory().join("counters/slots"), 1)
    }

    /// A command in the container, with the machine's state and nothing else in its environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
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
            .arg(self.temp.path())
            .arg(self.temp.path().join("root"))
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LD_LIBRARY_PATH", "/driver")
            .env(STATE_VARIABLE, &self.state);
        command
    }

    /// The client's answers to `commands`, one line each; it must succeed.
    pub fn client(&self, commands: &[&str]) -> Result<Vec<String>> {
        let output = self.client_command(commands).output()?;
        let method = self.method;
        ensure!(
            output.status.success(),
            "{method:?} {commands:?}: {output:?}"
        );
        Ok(lines(&output))
    }

    /// Runs the client with a script (see [`scene::split`]), and checks its answers.
    #[track_caller]
    pub fn check(&self, script: &str) {
        let (commands, expected) = scene::split(script);
        let answers = self.client(&commands).expect("the client");
        assert_eq!(answers, expected, "{:?}", self.method);
    }

    /// The client with `commands`, not started yet.
    pub fn client_command(&self, commands: &[&str]) -> Command {
        let client = client();
        let mut arguments = vec!["python3", client.as_str()];
        arguments.extend(commands);
        self.command(&arguments)
    }

    /// Starts the client with `commands`, after which it waits; the answers so far.
    pub fn start(&self, commands: &[&str]) -> Result<RunningClient> {
        let mut arguments = commands.to_vec();
        arguments.extend(["ready", "hold"]);
        RunningClient::start(&mut self.client_command(&arguments))
    }
}

/// Starts a client with these commands in each container at the same time.
pub fn start_all(containers: &[TestContainer], commands: &[&str]) -> Vec<RunningClient> {
    std::thread::scope(|scope| {
        let started: Vec<_> = containers
            .iter()
            .map(|one| scope.spawn(|| one.start(commands).expect("a client")))
            .collect();
        let all = started.into_iter();
        all.map(|one| one.join().expect("it answers")).collect()
    })
}

/// A program that answers in lines; killed when it is dropped.
pub struct TalkingProgram {
    /// Its process.
    pub child: Child,
    /// Stays open: a program that cannot write fails.
    output: BufReader<ChildStdout>,
}

impl TalkingProgram {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Self { child, output })
    }

    /// Its next line; empty if it has ended.
    pub fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Writes a line to it.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("its input has ended")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Ends its input and waits for its end; what else it printed.
    pub fn end(&mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}: {text}");
        Ok(text)
    }
}

impl Drop for TalkingProgram {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that has answered and waits.
pub struct RunningClient {
    program: TalkingProgram,
    /// Its answers.
    pub answers: Vec<String>,
}

impl RunningClient {
    /// Starts a command that ends in a client with the commands `ready hold`.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut program = TalkingProgram::start(command)?;
        let mut answers = Vec::new();
        loop {
            let line = program.read_line()?;
            if line.starts_with("ready: ") {
                return Ok(Self { program, answers });
            }
            if line.is_empty() {
                bail!("{command:?} ended after {answers:?}");
            }
            answers.push(line);
        }
    }

    /// Lets it run to its end.
    pub fn end(&mut self) -> Result<()> {
        self.program.end().map(drop)
    }

    /// Kills it by SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.kill_process()
    }

    /// Kills it by SIGKILL; what it forked keeps its input until this value is dropped.
    pub fn kill_process(&mut self) -> Result<()> {
        let child = &mut self.program.child;
        child.kill()?;
        // `wait` would end its input.
        let input = child.stdin.take();
        child.wait()?;
        child.stdin = input;
        Ok(())
    }
}

/// Path of the client, the same in every container.
pub fn client() -> String {
    client_file("client.py")
}

/// Path of a file of the clients.
pub(crate) fn client_file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    folder.join(name).display().to_string()
}

/// The lines on a command's stdout.
pub fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The built libvgpu.so.
pub fn limiter() -> Result<PathBuf> {
    built(LIMITER).context("libvgpu.so is not built: cargo build -p aliquot-limiter")
}

/// A built file in or above this program's folder.
pub fn built(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let mut folders = program.ancestors().skip(1).take(2);
    folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))
}
