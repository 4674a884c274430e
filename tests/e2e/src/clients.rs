//! CUDA programs in pods: the client of tests/limiter, run by the host's Python, with the simulated
//! driver in the place of the real one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use aliquot_gpusim::place;
use anyhow::{Context as _, Result, ensure};
use futures::future::{Either, select};
use serde_json::{Value, json};

use crate::pods::{container, pod};
use crate::stack::{Kind, Stack};

/// The driver itself, as a container has it behind the library.
pub const REAL: &str = "load,/.aliquot/lib/libcuda-real.so.1";

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter/clients");

/// The driver as NVIDIA's toolkit would describe it: its libraries, and where the simulated
/// machine lies.
pub fn nvidia_spec(stack: &Stack) -> Result<Value> {
    let shown = stack.machine().show()?;
    let gpus = shown["gpus"].as_array().context("gpus")?.iter();
    let devices: Vec<Value> = gpus
        .map(|gpu| json!({"name": gpu["uuid"], "containerEdits": {"env": ["GPU=1"]}}))
        .collect();
    let options = ["ro", "nosuid", "nodev", "bind"];
    let mount =
        |from: String, to: &str| json!({"hostPath": from, "containerPath": to, "options": options});
    Ok(json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": {
            "env": ["LD_LIBRARY_PATH=/driver", format!("GPUSIM_STATE={}", stack.machine().state().display())],
            "mounts": [
                mount(place::cuda_library_path()?.display().to_string(), "/driver/libcuda.so.1"),
                mount(place::library_path()?.display().to_string(), "/driver/libnvidia-ml.so.1"),
            ],
        },
    }))
}

/// Has the toolkit print that description, before the agent starts.
pub fn offer_driver(stack: &Stack) -> Result<()> {
    offer(stack, &nvidia_spec(stack)?)
}

/// The same with another description.
pub fn offer(stack: &Stack, spec: &Value) -> Result<()> {
    let path = stack.driver_spec()?;
    std::fs::write(&path, serde_json::to_vec(spec)?).with_context(|| path.display().to_string())
}

/// Has it print the usual description again.
pub fn withdraw(stack: &Stack) -> Result<()> {
    Ok(std::fs::remove_file(stack.driver_spec()?)?)
}

/// Gives every user access to the machine: a device node is every user's, and this one is a
/// directory of files.
pub fn open_machine(stack: &Stack) -> Result<()> {
    let state = stack.machine().state().to_owned();
    let folder = state.parent().context("a directory")?;
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    open(folder, 0o777)?;
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.file_type()?.is_file() {
            open(&file.path(), 0o666)?;
        }
    }
    Ok(())
}

/// A pod with these limits, in which the host's Python runs.
pub fn with_python(
    stack: &Stack,
    namespace: &str,
    name: &str,
    limits: &[(&str, &str)],
) -> Result<Value> {
    let mut pod = pod(namespace, name, &[container("main", limits)]);
    let state = stack
        .machine()
        .state()
        .parent()
        .map(|folder| folder.display().to_string());
    let folders = [
        ("usr", "/usr".to_owned()),
        ("lib", "/lib".to_owned()),
        ("lib64", "/lib64".to_owned()),
        ("clients", clients()?),
        ("machine", state.unwrap_or_default()),
    ];
    pod["spec"]["volumes"] = folders
        .iter()
        .map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}))
        .collect();
    pod["spec"]["containers"][0]["volumeMounts"] = folders
        .iter()
        .map(
            |(name, path)| json!({"name": name, "mountPath": path, "readOnly": *name != "machine"}),
        )
        .collect();
    Ok(pod)
}

/// The directory of the client, as Kubernetes accepts it: without `..`.
fn clients() -> Result<String> {
    Ok(std::fs::canonicalize(CLIENTS)?.display().to_string())
}

/// The command line that has the client of tests/limiter do this in a pod of [`with_python`].
fn program(commands: &[&str]) -> Result<Vec<String>> {
    let client = format!("{}/client.py", clients()?);
    let words = ["/usr/bin/python3", &client];
    let words = words.iter().chain(commands);
    Ok(words.map(|&word| word.to_owned()).collect())
}

/// What the client of tests/limiter answers to these commands in a pod.
pub async fn answers(
    stack: &Stack,
    namespace: &str,
    pod: &str,
    commands: &[&str],
) -> Result<Vec<String>> {
    let words = program(commands)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = stack.cluster.exec(namespace, pod, "main", &words).await?;
    Ok(output.success()?.lines().map(str::to_owned).collect())
}

/// Checks these answers to commands, written like `init: 0; info: 0 2488 3000`, in a pod.
pub async fn check(stack: &Stack, namespace: &str, pod: &str, script: &str) -> Result<()> {
    let expected: Vec<&str> = script.split("; ").collect();
    let commands = expected.iter().filter_map(|line| line.split(": ").next());
    let commands: Vec<&str> = commands.collect();
    let found = answers(stack, namespace, pod, &commands).await?;
    ensure!(found == expected, "{pod}: {found:?}, not {expected:?}");
    Ok(())
}

/// As [`answers`], with a standard input that stays open for minutes: a client that holds memory does so
/// until [`release`], also when this gave up waiting for it.
pub async fn answers_until_released(
    stack: &Stack,
    namespace: &str,
    pod: &str,
    commands: &[&str],
) -> Result<Vec<String>> {
    let (client, commands) = (clients()?, commands.join(" "));
    let line = format!("sleep 200 | /usr/bin/python3 {client}/client.py {commands}");
    let words = ["sh", "-c", line.as_str()];
    let output = stack.cluster.exec(namespace, pod, "main", &words).await?;
    Ok(output.success()?.lines().map(str::to_owned).collect())
}

/// Ends the clients that hold memory in a pod.
pub async fn release(stack: &Stack, namespace: &str, pod: &str) -> Result<()> {
    let script = "export PATH=/usr/bin:/bin\n\
        for one in /proc/[0-9]*; do\n\
        [ \"$(tr '\\0' ' ' < $one/cmdline)\" = 'sleep 200 ' ] && kill ${one#/proc/}\n\
        done; true";
    let words = ["sh", "-c", script];
    let output = stack.cluster.exec(namespace, pod, "main", &words).await?;
    output.success().map(drop)
}

/// Runs a shell script in a pod in which `$client` is the client, with a standard input that stays
/// open longer than any scenario: a client that holds memory does so until [`release`]. Its output
/// is lost.
pub async fn script_until_released(
    stack: &Stack,
    namespace: &str,
    pod: &str,
    script: &str,
) -> Result<()> {
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    let script = format!(
        "mkdir -p /tmp\nexport PATH={path}\nclient={}/client.py\n{script}",
        clients()?
    );
    let words = ["sh", "-c", "sleep 200 | sh -c \"$0\"", script.as_str()];
    let output = stack.cluster.exec(namespace, pod, "main", &words).await?;
    output.success().map(drop)
}

/// Gives a pod a built program of ours as `/programs/<name>`.
pub fn with_program(pod: &mut Value, stack: &Stack, name: &str) -> Result<()> {
    let folder = stack.files().join("programs");
    let (built, copy) = (
        stack.program(Kind::Scheduler).with_file_name(name),
        folder.join(name),
    );
    if !copy.exists() {
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        std::fs::copy(&built, &copy)
            .with_context(|| format!("{}: cargo build --workspace", built.display()))?;
    }
    let spec = &mut pod["spec"];
    let volume = json!({"name": "programs", "hostPath": {"path": folder.display().to_string()}});
    let mount = json!({"name": "programs", "mountPath": "/programs", "readOnly": true});
    let volumes = spec["volumes"].as_array_mut().context("volumes")?;
    volumes.push(volume);
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut();
    mounts.context("mounts")?.push(mount);
    Ok(())
}

/// Runs a program in a pod, which holds its memory while `then` checks. It may end before.
pub async fn beside<T>(
    stack: &Stack,
    (namespace, pod): (&str, &str),
    commands: &[&str],
    then: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut all = commands.to_vec();
    all.push("hold");
    let program = Box::pin(answers_until_released(stack, namespace, pod, &all));
    match select(program, Box::pin(then)).await {
        Either::Left((_, then)) => then.await,
        Either::Right((found, _)) => found,
    }
}
