//! A release from a real registry: pushed by the scripts that publish a release, installed from there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_chart::release::{programs, script, success};
use aliquot_chart::simulated_node::archive;
use aliquot_chart::{NAMESPACE, top};
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part};
use aliquot_e2e::figures::report;
use anyhow::{Context as _, Result, ensure};
use tokio::net::TcpStream;

use super::world::{PATIENCE, World};
use super::{Before, container_of, has_its_share, removed};

/// From the command that installs to a running pod with its share.
const WITHIN: Duration = Duration::from_secs(90);

/// What a script prints as its only line, such as the path of a program.
fn printed(name: &str) -> Result<PathBuf> {
    let line = success(&mut script(name, &[])?)?;
    Ok(PathBuf::from(line.trim()))
}

/// CNCF's registry on this machine, without TLS; its address.
async fn registry(cluster: &Cluster) -> Result<(String, Part)> {
    let address = cluster.part_address(0);
    let state = cluster.state_dir();
    let config = state.join("registry.yml");
    let text = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n",
        state.join("registry").display()
    );
    std::fs::write(&config, text)?;
    let serve = ["serve", &*config.to_string_lossy()];
    let program = printed("tests/cluster/registry.sh")?;
    let traces = [("OTEL_TRACES_EXPORTER", "none")];
    let part = cluster.start_part("registry", &program, &serve, &traces)?;
    eventually(PATIENCE, "the registry to listen", || async {
        TcpStream::connect(address).await.or_not_yet()?;
        Ok(Some(()))
    })
    .await?;
    Ok((address.to_string(), part))
}

/// Assembles, pushes and signs a release; the references of image and chart, with their digests.
async fn published(folder: &Path, address: &str) -> Result<(String, String)> {
    std::fs::create_dir_all(folder)?;
    archive(&folder.join("image-here.tar")).await?;
    programs(folder)?;
    let path = folder.to_string_lossy();
    let repository = format!("{address}/team/aliquot");
    let mut assemble = script("release/assemble.sh", &[&path])?;
    success(assemble.env("REPOSITORY", &repository))?;
    // In the place of an identity that a workflow has.
    let cosign = printed("release/tools.sh")?.join("cosign");
    let mut key = std::process::Command::new(cosign);
    let key = key.arg("generate-key-pair").current_dir(folder);
    success(key.env("COSIGN_PASSWORD", ""))?;
    let mut publish = script("release/publish.sh", &[&path])?;
    let printed = success(
        publish
            .env("REPOSITORY", &repository)
            .env("COSIGN_KEY", folder.join("cosign.key"))
            .env("COSIGN_PASSWORD", "")
            .env("DOCKER_CONFIG", folder.join("docker"))
            .env("PLAIN_HTTP", "1"),
    )?;
    let mut lines = printed.lines().map(str::to_owned);
    lines.next().zip(lines.next()).context(printed)
}

pub(crate) async fn runs_share(cluster: Arc<Cluster>) -> Result<()> {
    let (address, registry) = registry(&cluster).await?;
    let folder = cluster.state_dir().join("release");
    let (image, chart) = published(&folder, &address).await?;
    let world = World::released(cluster, chart).await?;
    let before = Before::of(&world).await?;

    let began = Instant::now();
    let [package, rest @ ..] = world.chart();
    let mut install = vec!["install", "aliquot", package, "--plain-http"];
    install.extend(rest);
    world.helm(&install)?;
    let example = top("examples/gpu-pod.yaml");
    let apply = ["apply", "-f", &*example.to_string_lossy()];
    eventually(PATIENCE, "the webhook to admit the pod", || async {
        world
            .cluster
            .kubectl(&apply)
            .await?
            .success()
            .or_not_yet()
            .map(Some)
    })
    .await?;
    has_its_share(&world, "gpu-pod", "aliquot-scheduler").await?;
    let took = began.elapsed();
    ensure!(took <= WITHIN, "the pod ran after {took:?}");
    report("a share from the installation of a release on", took);

    world.parts_ready().await?;
    let pods = world.json(&["get", "pods", "-n", NAMESPACE]).await?;
    let pods = pods.to_string();
    let (_, digest) = image.split_once('@').context("no digest")?;
    ensure!(pods.contains(digest), "no pod has the image {image}");
    ensure!(!pods.contains("localhost/aliquot"), "{pods}");
    let running = container_of(&world).await?;
    let mut upgrade = vec!["upgrade", "aliquot", package, "--plain-http"];
    upgrade.extend(["--reset-then-reuse-values", "--set=log.filter=debug"]);
    world.helm(&upgrade)?;
    world.parts_ready().await?;
    ensure!(
        container_of(&world).await? == running,
        "the pod was restarted"
    );

    world.cluster.delete_pod("default", "gpu-pod").await?;
    removed(&world).await?;
    before.again(&world, &[]).await?;
    registry.kill().await
}
