//! The agent's container edits under NVIDIA's real programs. In every mode of the runtime a client in a
//! real container gets no more than its share, also with a CUDA library of the image's own.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use aliquot_node_state::allocate_answer::NVIDIA_VISIBLE;
use aliquot_toolkit::agent::Agent;
use aliquot_toolkit::bundle::{Bundle, CLIENTS, COMPAT, Container, FILES};
use aliquot_toolkit::node::{FIRST, Installer, Node};
use aliquot_toolkit::programs::{Release, clients, run};
use aliquot_toolkit::runtime::OciRuntime;
use anyhow::{Result, ensure};
use serde_json::Value;

/// The client of the limiter's tests, as it is limited to 3000 MiB of which a context takes 480.
const COMMANDS: [&str; 4] = ["init", "alloc,2521", "alloc,2520", "info"];
const LIMITED: [&str; 4] = [
    "init: 0",
    "alloc,2521: 2",
    "alloc,2520: 0",
    "info: 0 0 3000",
];
/// Runs the client, and prints the CUDA libraries that it has loaded.
const CLIENT: &str = "import os, sys\n\
    client = sys.argv[1]; sys.argv[:2] = [client]\n\
    exec(open(client).read())\n\
    files = {line.split(maxsplit=5)[5].strip() for line in open('/proc/self/maps') if '/' in line}\n\
    print(*sorted(file for file in files if 'libcuda' in os.path.basename(file)))";

/// The words on a program's stderr.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Each item of a list in a configuration.
fn items<'a>(config: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    let list = config.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// runc 1.2 runs a hook of this kind, which has no environment of its own, with that of the container: an
/// image could let the host's program load a library of the image (CVE-2025-23266).
#[test]
fn hooks_do_not_take_the_environment_of_the_image() {
    let node = Node::new(Release::Newest).expect("a node");
    let mut agent = node.agent().expect("an agent");
    let answer = agent.start_container().expect("the files of a container");
    let bundle = Bundle::create(&node, &Container::default()).expect("a bundle");
    bundle.apply(&answer, agent.specs()).expect("applied");
    let config = bundle.config().expect("a configuration");
    let kinds = ["createContainer", "startContainer"];
    let hooks = kinds.map(|kind| format!("/hooks/{kind}"));
    let hooks = hooks.iter().flat_map(|pointer| items(&config, pointer));
    let hooks: Vec<&Value> = hooks.collect();
    assert!(!hooks.is_empty(), "{config:#}");
    for hook in hooks {
        let own = hook["env"].as_array().is_some_and(|env| !env.is_empty());
        assert!(own, "an environment of its own: {hook:#}");
    }
}

/// Runs the client with the edits for this device; returns its answers, and its device nodes.
fn client_on(
    node: &Node,
    agent: &mut Agent,
    device: &str,
) -> Result<(Vec<String>, BTreeSet<String>)> {
    let path = client_path();
    let container = Container {
        command: &client(&path),
        ..Container::default()
    };
    let answer = agent.start_container_on(device)?;
    let bundle = Bundle::create(node, &container)?;
    bundle.apply(&answer, agent.specs())?;
    let mut lines = lines(&OciRuntime::runc(), &bundle)?;
    lines.truncate(COMMANDS.len());
    let config = bundle.config()?;
    let paths = items(&config, "/linux/devices").filter_map(|node| node["path"].as_str());
    Ok((lines, paths.map(str::to_owned).collect()))
}

#[test]
fn starts_container_where_device_nodes_do_not_exist() {
    let expected = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"];
    let expected: BTreeSet<String> = expected.map(|name| format!("/dev/{name}")).into();
    // Before the spec is generated, and after.
    for (before, after) in [("nvidia-uvm", ""), ("", "nvidia-uvm"), ("", "nvidia")] {
        let node = Node::new(Release::Newest).expect("a node");
        let remove = |start: &str| {
            let is_removed = |name: &str| !start.is_empty() && name.starts_with(start);
            node.remove_device_nodes(is_removed).expect("removed");
        };
        remove(before);
        let mut agent = node.agent().expect("an agent");
        remove(after);
        let found = client_on(&node, &mut agent, FIRST);
        let found = found.unwrap_or_else(|error| panic!("{before} {after}: {error:#}"));
        let limited = LIMITED.map(str::to_owned).to_vec();
        assert_eq!(found, (limited, expected.clone()), "{before} {after}");
    }
}

/// As nvidia-modprobe in a chroot of the host, or an agent in its own container, does it.
#[test]
fn gives_mig_instance_created_in_other_mount_namespace() {
    let node = Node::new(Release::Newest).expect("a node");
    let mut agent = node.agent().expect("an agent");
    let instance = node.create_instance().expect("an instance");
    assert_eq!(instance.nodes.len(), 2, "{instance:?}");
    let folder = node.device_nodes().join("nvidia-caps");
    let on_host = fs::read_dir(folder).expect("read").count();
    assert_eq!(on_host, 0, "capability nodes are on the host too");
    agent.set_instance(&instance).expect("published");
    let (lines, found) = client_on(&node, &mut agent, &instance.uuid).expect("a client");
    // It sees the memory of the instance.
    let sees = lines[0] == "init: 0" && lines[3].ends_with(" 9856");
    assert!(sees, "{lines:?}");
    let capabilities = instance
        .nodes
        .iter()
        .map(|name| format!("nvidia-caps/{name}"));
    let others = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"];
    let names = others.map(str::to_owned).into_iter().chain(capabilities);
    assert_eq!(found, names.map(|name| format!("/dev/{name}")).collect());
}

/// The command in a container that runs the client and ends in a minute.
fn client(path: &str) -> Vec<&str> {
    let mut command = vec!["timeout", "60", "python3", "-c", CLIENT, path];
    command.extend(COMMANDS);
    command
}

fn client_path() -> String {
    format!("{CLIENTS}/client.py")
}

/// Runs a bundle, and returns the lines that its container printed.
fn lines(runtime: &OciRuntime, bundle: &Bundle) -> Result<Vec<String>> {
    let output = runtime.run(bundle)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = || format!("{text}\n{}\n{}", words(&output), runtime.log());
    ensure!(
        output.status.success(),
        "it ended with {}: {}",
        output.status,
        failed()
    );
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure!(
        !lines.is_empty(),
        "the container printed nothing: {}",
        failed()
    );
    Ok(lines)
}

/// Expects the client's answers within its share; returns the CUDA libraries that it has loaded.
fn limited_client(runtime: &OciRuntime, bundle: &Bundle) -> Result<String> {
    let mut lines = lines(runtime, bundle)?;
    let loaded = lines.pop().unwrap_or_default();
    ensure!(lines == LIMITED, "{lines:?} with {loaded}");
    Ok(loaded)
}

/// Runs the client under NVIDIA's runtime in this mode, with an image that asks for all GPUs.
fn run_client(node: &Node, agent: &mut Agent, mode: &str, installer: Installer) -> Result<()> {
    let path = client_path();
    let container = Container {
        command: &client(&path),
        variables: &[(NVIDIA_VISIBLE, "all")],
    };
    let answer = agent.start_container()?;
    let bundle = Bundle::create(node, &container)?;
    bundle.apply(&answer, agent.specs())?;
    let runtime = OciRuntime::nvidia(node, &bundle.folder, mode, installer)?;
    limited_client(&runtime, &bundle).map(drop)
}

/// Runs the client in each of these modes, as each installer configures the runtime.
fn check_live(release: Release, modes: &[&str]) {
    let node = Node::new(release).expect("a node");
    let mut agent = node.agent().expect("an agent");
    let mut failed = String::new();
    for mode in modes {
        for installer in [Installer::Package, Installer::Operator] {
            if let Err(error) = run_client(&node, &mut agent, mode, installer) {
                let _ = writeln!(failed, "{release:?} {mode} {installer:?}: {error:#}");
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn limits_client_in_each_mode_of_the_newest_toolkit() {
    check_live(Release::Newest, &["auto", "cdi", "jit-cdi", "legacy"]);
}

#[test]
fn limits_client_in_each_mode_of_the_oldest_toolkit() {
    check_live(Release::Oldest, &["auto", "cdi", "legacy"]);
}

/// How a program finds the image's own CUDA library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// By NVIDIA's hook enable-cuda-compat, which is in its CDI spec.
    Hook,
    /// By the loader's configuration in the image.
    List,
    /// By `LD_LIBRARY_PATH`.
    Path,
}

/// Versions of the image's CUDA library: a newer major than the driver's, the same, an older one.
const VERSIONS: [&str; 3] = ["590.44.01", "580.95.05", "570.172.08"];

/// A bundle with the agent's edits, whose image has a CUDA library that is found in this way.
fn compat_bundle(
    node: &Node,
    agent: &mut Agent,
    version: &str,
    found: Found,
    command: &[&str],
) -> Result<Bundle> {
    let answer = agent.start_container()?;
    let path = [("LD_LIBRARY_PATH", COMPAT)];
    let container = Container {
        command,
        variables: if found == Found::Path { &path } else { &[] },
    };
    let bundle = Bundle::create(node, &container)?;
    bundle.add_compat_library(node, version)?;
    if found == Found::List {
        bundle.list_compat_library()?;
    }
    bundle.apply(&answer, agent.specs())?;
    Ok(bundle)
}

/// Runs the client with each version; those in `used` are the libraries behind the shim.
fn check_compat(found: Found, used: &[&str]) {
    let node = Node::new(Release::Newest).expect("a node");
    let mut agent = node.agent().expect("an agent");
    let path = client_path();
    for version in VERSIONS {
        let bundle = compat_bundle(&node, &mut agent, version, found, &client(&path));
        let bundle = bundle.expect("a bundle");
        let loaded = limited_client(&OciRuntime::runc(), &bundle);
        let loaded = loaded.unwrap_or_else(|error| panic!("{version} {found:?}: {error:#}"));
        let is_used = loaded.contains("/.aliquot/lib/compat-");
        assert_eq!(
            is_used,
            used.contains(&version),
            "{version} {found:?}: {loaded}"
        );
    }
}

#[test]
fn limits_compat_library_that_nvidias_hook_enables() {
    check_compat(Found::Hook, &VERSIONS[..1]);
}

#[test]
fn limits_compat_library_in_the_image_loader_configuration() {
    check_compat(Found::List, &VERSIONS);
}

#[test]
fn limits_compat_library_in_ld_library_path() {
    check_compat(Found::Path, &VERSIONS);
}

#[test]
fn limits_compat_library_opened_with_rtld_deepbind() {
    let node = Node::new(Release::Newest).expect("a node");
    let mut agent = node.agent().expect("an agent");
    let source = clients().join("ways.c");
    let programs = tempfile::tempdir().expect("a folder");
    let (program, plugin) = (
        programs.path().join("ways"),
        programs.path().join("plugin.so"),
    );
    let compile = |made: &Path, arguments: &[&str]| {
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O1", "-o"])
            .arg(made)
            .arg(&source)
            .args(arguments);
        run(&mut compiler).expect("compiled");
    };
    compile(&program, &["-ldl"]);
    let library = node.cuda_library().display().to_string();
    compile(&plugin, &["-DLINKED", "-shared", "-fPIC", &library]);
    // Each in a process of its own: a library that is loaded is not searched again.
    let script =
        format!("{FILES}/ways deep; {FILES}/ways namespace; {FILES}/ways plugin {FILES}/plugin.so");
    let command = ["timeout", "60", "sh", "-c", &script];
    for version in VERSIONS {
        let bundle = compat_bundle(&node, &mut agent, version, Found::Path, &command);
        let bundle = bundle.expect("a bundle");
        fs::copy(&program, bundle.files().join("ways")).expect("copied");
        fs::copy(&plugin, bundle.files().join("plugin.so")).expect("copied");
        let lines = lines(&OciRuntime::runc(), &bundle);
        let lines = lines.unwrap_or_else(|error| panic!("{version}: {error:#}"));
        assert_eq!(lines, ["deep: 2", "namespace: 2", "plugin: 2"], "{version}");
    }
}
