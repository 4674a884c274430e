//! The setup of most tests: two GPUs, contexts of a known size, and a container with a share.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use aliquot_gpusim::{PROFILE_VARIABLE, SimulatedMachine};
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use anyhow::{Result, ensure};

use crate::{INJECTION_METHODS, InjectionMethod, TestContainer, client, lines};

/// The first GPU.
pub const FIRST: &str = "GPU-11111111-1111-1111-1111-111111111111";
/// The second GPU.
pub const SECOND: &str = "GPU-22222222-2222-2222-2222-222222222222";
/// Bytes.
pub const MIB: u64 = 1 << 20;
/// Size of a context in MiB on these machines, once something was launched in it, and on the limits
/// page.
pub const CONTEXT: u64 = 480;

/// MiB by which a context grows at its first launch, where a profile of the simulator is chosen.
const GROWTH: u64 = 200;

/// Size of a context in MiB in which nothing was launched.
pub fn new_context() -> u64 {
    match std::env::var_os(PROFILE_VARIABLE) {
        Some(_) => CONTEXT - GROWTH,
        None => CONTEXT,
    }
}

/// One MiB more than a share of 3000 MiB, and then all of it, beside a context.
pub const OVER_LIMIT: [&str; 4] = ["init", "alloc,2521", "alloc,2520", "info"];
/// What a limited client answers to that.
pub const LIMITED: [&str; 4] = [
    "init: 0",
    "alloc,2521: 2",
    "alloc,2520: 0",
    "info: 0 0 3000",
];

/// A machine with two GPUs; it exists as long as its folder.
pub fn machine() -> (tempfile::TempDir, SimulatedMachine) {
    let temp = tempfile::tempdir().expect("a folder");
    let context = new_context();
    let yaml = format!(
        "gpus:\n- count: 2\n  model: NVIDIA A100-SXM4-80GB\n  uuids: [{FIRST}, {SECOND}]\n  set: {{contextMib: {context}}}\n"
    );
    let state = temp.path().join("state");
    let machine = SimulatedMachine::create(&state, &yaml).expect("a machine");
    make_world_accessible(temp.path());
    (temp, machine)
}

/// Every user may open a device node; the simulated machine is a folder of files.
fn make_world_accessible(folder: &Path) {
    let open = |path: &Path, mode| {
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("a mode");
    };
    open(folder, 0o777);
    for file in std::fs::read_dir(folder).expect("a folder") {
        open(&file.expect("a file").path(), 0o666);
    }
}

/// A share of a GPU, in MiB.
pub fn device(uuid: &str, mib: u64) -> DeviceLimits<'_> {
    DeviceLimits {
        uuid,
        memory: mib * MIB,
        context: CONTEXT * MIB,
        ..DeviceLimits::default()
    }
}

/// A share of a GPU: MiB, and percent of its time.
pub fn share_of(uuid: &str, mib: u64, cores: u32) -> DeviceLimits<'_> {
    DeviceLimits {
        cores,
        ..device(uuid, mib)
    }
}

/// A container with a share of the first GPU.
pub fn container(machine: &SimulatedMachine, method: InjectionMethod, mib: u64) -> TestContainer {
    container_of(machine, method, &[device(FIRST, mib)])
}

/// A container with these shares.
pub fn container_of(
    machine: &SimulatedMachine,
    method: InjectionMethod,
    devices: &[DeviceLimits],
) -> TestContainer {
    TestContainer::new(machine, method, ContainerLimits::default(), devices).expect("a container")
}

/// A difference between a container's counters file and the driver, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// The driver allocated so much more than the slots say.
    Uncounted(u64),
    /// The container uses so much more than its limit.
    AboveLimit(u64),
    /// The total is less than the sum of the slots, which the library never causes.
    TotalTooLow,
}

/// What the host can find in a container with `mib` of the first GPU, which nobody else uses: the
/// simulator reports what its processes use, as the driver would.
pub fn inconsistencies(
    machine: &SimulatedMachine,
    container: &TestContainer,
    mib: u64,
) -> Vec<Inconsistency> {
    let holders = machine.process_usage(FIRST).expect("a GPU");
    let measured: u64 = holders.iter().map(|holder| holder.used).sum();
    let snapshot = container.counters_snapshot().expect("a counters file");
    let held = snapshot.held(0);
    let mut found = Vec::new();
    if measured > snapshot.used(0) {
        found.push(Inconsistency::Uncounted(measured - snapshot.used(0)));
    }
    if measured.max(held) > mib * MIB {
        found.push(Inconsistency::AboveLimit(measured.max(held) - mib * MIB));
    }
    if snapshot.device(0).total < held {
        found.push(Inconsistency::TotalTooLow);
    }
    found
}

/// Tests a container with `mib` of the first GPU under each injection method.
pub fn each_method(mib: u64, test: impl Fn(&TestContainer, InjectionMethod)) {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        test(&container(&machine, method, mib), method);
    }
}

/// The commands of a script such as `init: 0; info: 0 2520 3000`, and the lines that the client
/// answers.
pub fn split(script: &str) -> (Vec<&str>, Vec<&str>) {
    let lines = script.split("; ");
    let each = lines.map(|line| (line.split_once(": ").expect("an answer").0, line));
    each.unzip()
}

/// Runs the client to its end under each injection method, with these variables, and checks its
/// answers.
pub fn check_in(variables: &[(&str, &str)], mib: u64, script: &str) {
    let (commands, expected) = split(script);
    each_method(mib, |container, method| {
        let mut client = container.client_command(&commands);
        let output = client.envs(variables.iter().copied()).output();
        let answers = lines(&output.expect("the client"));
        assert_eq!(answers, expected, "{method:?}");
    });
}

/// Runs the client in a container with `mib` of the first GPU under each injection method. Checks
/// its answers, that nothing stays allocated after it, and that the share was never exceeded.
pub fn check(mib: u64, script: &str) {
    let (commands, expected) = split(script);
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let container = container(&machine, method, mib);
        let mut running = container.start(&commands).expect("the client");
        assert_eq!(running.answers, expected, "{method:?}");
        let holders = machine.process_usage(FIRST).expect("a GPU");
        let most = holders.iter().map(|holder| holder.peak).max();
        assert!(most.unwrap_or(0) <= mib * MIB, "{method:?}: {most:?}");
        running.end().expect("it ends well");
        let holders = machine.process_usage(FIRST).expect("a GPU");
        assert_eq!(holders, [], "{method:?}");
        let after = container.client(&["init", "info"]).expect("a client");
        if let Some(free) = mib.checked_sub(CONTEXT) {
            let whole = format!("info: 0 {} {mib}", free / 2 * 2);
            assert_eq!(after[1], whole, "{method:?}: memory is still charged");
        }
    }
}

/// Lets real time pass; the tenants work meanwhile.
pub(crate) fn wait(time: Duration) -> Result<()> {
    let (_sender, receiver) = channel::<()>();
    let ended = receiver.recv_timeout(time);
    ensure!(ended == Err(RecvTimeoutError::Timeout), "{ended:?}");
    Ok(())
}

/// The lines that a script of this folder prints.
pub fn script(name: &str, arguments: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let mut command = Command::new(script);
    let command = command.args(arguments).stderr(Stdio::inherit());
    let output = command.output().expect(name);
    assert!(output.status.success(), "{name} {arguments:?}");
    lines(&output)
}

/// Compiles `work.c` into a folder; its path.
pub(crate) fn compile_work(folder: &Path) -> Result<String> {
    compile(folder, "work.c", "work", &["-ldl", "-lpthread"])
}

/// Compiles a driver that has these calls, each with its number of arguments, into a folder; its
/// path.
pub fn compile_driver(
    folder: &Path,
    source: &str,
    calls: &[(&str, u32)],
    arguments: &[&str],
) -> String {
    let rows: Vec<String> = (1..)
        .zip(calls)
        .map(|(number, (name, count))| format!(" X({number}, {name}, {count})"))
        .collect();
    let header = format!("#define CALLS(X){}\n", rows.concat());
    std::fs::write(folder.join("calls.h"), header).expect("written");
    let include = format!("-I{}", folder.display());
    let all = [&["-shared", "-fPIC", &include][..], arguments].concat();
    compile(folder, source, "driver.so", &all).expect("a driver")
}

/// Compiles a client with these arguments into a folder under this name; its path.
pub fn compile(folder: &Path, source: &str, name: &str, arguments: &[&str]) -> Result<String> {
    let source = client().replace("client.py", source);
    let made = folder.join(name).display().to_string();
    let status = Command::new("cc")
        .args(["-O1", "-o", &made, &source])
        .args(arguments)
        .status()?;
    ensure!(status.success(), "cc {source} {arguments:?}");
    Ok(made)
}
