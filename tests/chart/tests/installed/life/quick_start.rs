//! The quick start, command by command as it stands in the guide, on a node with simulated GPUs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use aliquot_chart::{NAMESPACE, helm_program, top};
use aliquot_cluster::Cluster;
use aliquot_e2e::figures::report;
use aliquot_e2e::limits_program;
use anyhow::{Context as _, Result, ensure};

use super::made::{built, open_machine};
use super::world::{NODE, World};
use super::{Before, removed};

/// What the guide's reader puts in place of its words.
const REPOSITORY: &str = "localhost/aliquot";
/// The image of a distribution that the guide names.
const DISTRIBUTION: &str = "docker.io/library/debian:12";

/// The commands of the first block under a heading of the guide.
fn commands(heading: &str) -> Result<Vec<String>> {
    let guide = std::fs::read_to_string(top("docs/guides/quick-start.md"))?;
    let (_, section) = guide.split_once(heading).context(heading.to_owned())?;
    let (_, block) = section.split_once("```sh\n").context("no commands")?;
    let (block, _) = block.split_once("```").context("no end")?;
    let lines = block.lines().map(|line| {
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
struct Reader {
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Reader {
    /// `helm install` gets the values that only the simulated node needs.
    fn new(world: &World) -> Result<Self> {
        let folder = world.cluster.state_dir().join("reader");
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
        let plugin = built()?.join("kubectl-aliquot");
        std::os::unix::fs::symlink(plugin, programs.join("kubectl-aliquot"))?;
        let kubeconfig = world.cluster.kubeconfig();
        Ok(Self { folder, kubeconfig })
    }

    /// Runs a command as a reader's shell does, and reports how long it took; what it printed.
    fn sh(&self, line: &str) -> Result<String> {
        let path = std::env::var("PATH")?;
        let path = format!("{}:{path}", self.folder.join("bin").display());
        let began = Instant::now();
        let output = Command::new("bash")
            .args(["-o", "pipefail", "-c", line])
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("KUBECONFIG", &self.kubeconfig)
            .output()?;
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

pub(crate) async fn runs(cluster: Arc<Cluster>) -> Result<()> {
    let world = World::on(cluster).await?;
    if let Err(error) = walk(&world).await {
        anyhow::bail!("{}\n{error:#}", world.report().await);
    }
    Ok(())
}

async fn walk(world: &World) -> Result<()> {
    limits_program::import_image(&world.cluster, DISTRIBUTION).await?;
    open_machine(&world.cluster)?;
    let before = Before::of(world).await?;
    // The reader creates it.
    let delete = ["delete", "namespace", NAMESPACE, "--wait"];
    world.cluster.kubectl(&delete).await?.success()?;
    let reader = Reader::new(world)?;
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
        "limit 30 %",
        "gpu-pod",
    ] {
        ensure!(printed.contains(expected), "no {expected:?} in {printed}");
    }
    world.cluster.delete_pod("default", "gpu-pod").await?;
    removed(world).await?;
    before.again(world, &[]).await
}
