//! CUDA programs in pods: the client of tests/limiter, run by the host's Python, with the simulated
//! driver in the place of the real one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use aliquot_gpusim::place;
use anyhow::{Context as _, Result, ensure};
use futures::future::{Either, select};
use serde_json::{Value, json};

use crate::pods::{container, pod};
use crate::stack::{Kind, Stack};

/// The driver itself, as a container has it behind the library.
pub const REAL: &str = "load,/.aliquot/lib/libcuda-real.so.1";

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter/clients");
const GPUSIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpusim");

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

/// One more directory of the host in a pod's first container, read-only.
pub fn give(pod: &mut Value, name: &str, from: &str, to: &str) -> Result<()> {
    let spec = &mut pod["spec"];
    let volume = json!({"name": name, "hostPath": {"path": from}});
    let mount = json!({"name": name, "mountPath": to, "readOnly": true});
    let volumes = spec["volumes"].as_array_mut().context("volumes")?;
    volumes.push(volume);
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut();
    mounts.context("mounts")?.push(mount);
    Ok(())
}

/// A Python with independent clients of NVML (nvitop, nvidia-ml-py).
pub struct IndependentClients {
    python: String,
    /// Of the Python that it was made of.
    base: String,
}

impl IndependentClients {
    /// Makes it where this machine has none.
    pub async fn python() -> Result<Self> {
        let script = format!("{GPUSIM}/clients.sh");
        let mut command = tokio::process::Command::new(script);
        let output = command.arg("python").stderr(Stdio::inherit()).output();
        let output = output.await?;
        ensure!(output.status.success(), "clients.sh: {}", output.status);
        let text = String::from_utf8(output.stdout)?;
        let (python, base) = text.trim().split_once('\n').context("two lines")?;
        Ok(Self {
            python: python.to_owned(),
            base: base.to_owned(),
        })
    }

    /// Lets a pod of [`with_python`] run it.
    pub fn give_to(&self, pod: &mut Value) -> Result<()> {
        let environment = self.python.trim_end_matches("/bin/python");
        give(pod, "environment", environment, environment)?;
        if !self.base.starts_with("/usr") {
            give(pod, "python", &self.base, &self.base)?;
        }
        let clients = std::fs::canonicalize(format!("{GPUSIM}/clients"))?;
        let clients = clients.display().to_string();
        give(pod, "foreign", &clients, "/foreign")
    }

    /// What `words` (a script below `/foreign`, or `-m` and a module) print in a pod.
    pub async fn output(&self, stack: &Stack, pod: [&str; 2], words: &[&str]) -> Result<String> {
        let mut all = vec!["env", "TERM=xterm", "LC_ALL=C.UTF-8", self.python.as_str()];
        all.extend(words);
        let [namespace, name] = pod;
        stack
            .cluster
            .exec(namespace, name, "main", &all)
            .await?
            .success()
    }
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
pub fn program(commands: &[&str]) -> Result<Vec<String>> {
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

/// The same, with a standard input that stays open for minutes: a client that holds memory does so
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
    give(pod, "programs", &folder.display().to_string(), "/programs")
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
