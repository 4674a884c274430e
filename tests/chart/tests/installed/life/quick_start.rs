//! The quick start, command by command as it stands in the guide, on a node with simulated GPUs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use aliquot_chart::simulated_node::{built, open_machine};
use aliquot_chart::{NAMESPACE, helm_program, top};
use aliquot_cluster::Cluster;
use aliquot_e2e::figures::report;
use aliquot_e2e::limits_program;
use anyhow::{Context as _, Result, ensure};

use super::world::{NODE, World};
use super::{Before, kubectl, removed};
use crate::ChartCluster;

/// What the guide's reader puts in place of its words.
const REPOSITORY: &str = "localhost/aliquot";
/// The image with a compiler that the guide names.
const COMPILER: &str = "docker.io/library/gcc:15";
/// Prints the files that this machine's compiler needs for the program $1: its parts, headers and libraries.
const COMPILER_FILES: &str = r#"
set -eo pipefail
programs=$(for name in cc1 collect2 as ld lto-wrapper; do command -v "$(cc -print-prog-name=$name)"; done)
{
  echo "$programs"
  ldd /usr/bin/cc $programs | grep -o '/[^ :]*'
  for name in liblto_plugin.so libc.so libgcc_s.so; do cc -print-file-name=$name; done
  cc -O1 -M "$1" | tr ' \\' '\n\n'
  cc -O1 -c -o "$2.o" "$1"
  cc -o "$2" "$2.o" -ldl -Wl,--trace
} | grep '^/' | xargs realpath -ms | sort -u
"#;

/// The commands of all blocks under a heading of the guide.
pub(super) fn commands(heading: &str) -> Result<Vec<String>> {
    let guide = std::fs::read_to_string(top("docs/guides/quick-start.md"))?;
    let (_, section) = guide.split_once(heading).context(heading.to_owned())?;
    let section = section.split("\n## ").next().unwrap_or(section);
    let blocks = section.split("```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or(rest));
    let lines = blocks.flat_map(str::lines).map(|line| {
        let words = line.split(' ').map(|word| match word {
            "NODE" => NODE.to_owned(),
            word => word.replace("REPOSITORY", REPOSITORY),
        });
        words.collect::<Vec<_>>().join(" ")
    });
    let commands: Vec<String> = lines.collect();
    ensure!(!commands.is_empty(), "{heading}: no command");
    Ok(commands)
}

/// A folder like a clone of the repository, with the programs that the guide requires.
pub(super) struct Reader {
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Reader {
    /// `helm install` gets the values that only the simulated node needs.
    pub(super) fn new(world: &World, kubeconfig: &Path) -> Result<Self> {
        let folder = world.cluster.state_dir().join("reader");
        // Another reader's, on the same cluster.
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let programs = folder.join("bin");
        std::fs::create_dir_all(&programs)?;
        for name in ["charts", "examples"] {
            std::os::unix::fs::symlink(top(name), folder.join(name))?;
        }
        let [_, _, values] = world.chart();
        let helm = helm_program()?;
        let helm =
            format!("case $1 in install) set -- \"$@\" -f {values} ;; esac\nexec {helm} \"$@\"\n");
        write_program(&programs.join("helm"), &helm)?;
        let kubectl = world.cluster.binaries().join("kubebox");
        let kubectl = format!("exec {} kubectl \"$@\"\n", kubectl.display());
        write_program(&programs.join("kubectl"), &kubectl)?;
        // k3s has a containerd of its own, as the test's node has.
        let ctr = world.cluster.binaries().join("ctr");
        let socket = world.cluster.state_dir().join("containerd/c.sock");
        let (ctr, socket) = (ctr.display(), socket.display());
        let k3s = format!("shift\nexec {ctr} -a {socket} -n k8s.io \"$@\"\n");
        write_program(&programs.join("k3s"), &k3s)?;
        // Tests are root already.
        write_program(&programs.join("sudo"), "exec \"$@\"\n")?;
        let archive = world.cluster.state_dir().join("aliquot.tar");
        std::os::unix::fs::symlink(archive, folder.join("aliquot.tar"))?;
        let plugin = built()?.join("kubectl-aliquot");
        std::os::unix::fs::symlink(plugin, programs.join("kubectl-aliquot"))?;
        let kubeconfig = kubeconfig.to_owned();
        Ok(Self { folder, kubeconfig })
    }

    /// A command in a reader's shell.
    pub(super) fn command(&self, line: &str) -> Result<Command> {
        let path = std::env::var("PATH")?;
        let path = format!("{}:{path}", self.folder.join("bin").display());
        let mut command = Command::new("bash");
        command
            .args(["-o", "pipefail", "-c", line])
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("KUBECONFIG", &self.kubeconfig);
        Ok(command)
    }

    /// Runs it, and reports how long it took; what it printed.
    pub(super) fn sh(&self, line: &str) -> Result<String> {
        let began = Instant::now();
        let output = self.command(line)?.output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}: {printed}{errors}");
        report(&format!("quick start: {line}"), began.elapsed());
        Ok(printed)
    }
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, format!("#!/bin/sh\n{text}"))?;
    let mode = std::fs::Permissions::from_mode(0o755);
    Ok(std::fs::set_permissions(path, mode)?)
}

/// Hands the node an image of a shell and this machine's compiler.
async fn import_compiler(cluster: &Cluster) -> Result<()> {
    let folder = cluster.state_dir();
    let output = Command::new("bash")
        .args(["-c", COMPILER_FILES, "bash", limits_program::SOURCE])
        .arg(folder.join("compiled"))
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "files of cc: {listed}{errors}");
    // It finds its other programs from its own place, which is not in the image's PATH.
    let cc = folder.join("cc");
    write_program(&cc, "PATH=$PATH:/usr/bin exec /usr/bin/cc \"$@\"\n")?;
    let beside = [
        (Path::new("/bin/busybox"), "/bin/sh"),
        (&cc, "/bin/cc"),
        (Path::new("/usr/bin/cc"), "/usr/bin/cc"),
    ];
    let listed = listed.lines().map(|path| (Path::new(path), path));
    let files: Vec<_> = listed.chain(beside).collect();
    cluster.import_image(COMPILER, "/bin/sh", &files).await
}

pub(crate) async fn runs(chart: Arc<ChartCluster>) -> Result<()> {
    let world = World::on(chart.cluster.clone()).await?;
    let walked = walk(&world).await;
    world.reported(walked).await
}

async fn walk(world: &World) -> Result<()> {
    import_compiler(&world.cluster).await?;
    open_machine(&world.cluster)?;
    let before = Before::of(world).await?;
    // The reader creates it.
    kubectl(world, &format!("delete namespace {NAMESPACE} --wait")).await?;
    let reader = Reader::new(world, &world.cluster.kubeconfig())?;
    for line in commands("## On k3s")? {
        reader.sh(&line)?;
    }
    let mut printed = Vec::new();
    for line in commands("## The first share")? {
        printed.push(reader.sh(&line)?);
    }
    let printed = printed.concat();
    for expected in [
        "limit 3000 MiB",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "share 30 %",
        "gpu-pod",
    ] {
        ensure!(printed.contains(expected), "no {expected:?} in {printed}");
    }
    world.cluster.delete_pod("default", "gpu-pod").await?;
    removed(world).await?;
    before.again(world, &[]).await
}
