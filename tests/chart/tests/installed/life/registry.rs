//! A release from a real registry: image and chart are pushed, and installed from there.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_chart::release::{script, success, version};
use aliquot_chart::simulated_node::archive;
use aliquot_chart::{NAMESPACE, helm, top};
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part};
use aliquot_e2e::figures::report;
use anyhow::{Context as _, Result, ensure};
use tokio::net::TcpStream;

use super::world::{PATIENCE, World};
use super::{Before, container_of, has_its_share, removed};

/// From the command that installs to a running pod with its share.
const WITHIN: Duration = Duration::from_secs(90);

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
    let program = success(&mut script("tests/cluster/registry.sh", &[])?)?;
    let traces = [("OTEL_TRACES_EXPORTER", "none")];
    let part = cluster.start_part("registry", program.trim().as_ref(), &serve, &traces)?;
    eventually(PATIENCE, "the registry to listen", || async {
        TcpStream::connect(address).await.or_not_yet()?;
        Ok(Some(()))
    })
    .await?;
    Ok((address.to_string(), part))
}

/// Pushes an image, as docs/guides/install.md does, and the chart that names it; the digest of the
/// image and the reference of the chart.
async fn published(folder: &Path, address: &str) -> Result<(String, String)> {
    std::fs::create_dir_all(folder)?;
    let (image, digest) = (folder.join("aliquot.tar"), folder.join("digest"));
    archive(&image).await?;
    let repository = format!("{address}/team/aliquot");
    let mut copy = Command::new("skopeo");
    copy.args(["--insecure-policy", "copy", "--dest-tls-verify=false"])
        .arg("--digestfile")
        .arg(&digest)
        .arg(format!("oci-archive:{}", image.display()))
        .arg(format!("docker://{repository}:{}", version()?));
    success(&mut copy)?;
    let digest = std::fs::read_to_string(&digest)?.trim().to_owned();

    let mut package = script("release/chart.sh", &[&folder.to_string_lossy()])?;
    package.env("REPOSITORY", &repository);
    success(package.env("DIGEST", &digest))?;
    let package = folder.join(format!("aliquot-{}.tgz", version()?));
    let charts = format!("oci://{address}/team/charts");
    let package = package.to_string_lossy();
    let pushed = helm(&["push", "--plain-http", &package, &charts])?;
    let said = pushed.out + &pushed.err;
    ensure!(pushed.succeeded, "helm push: {said}");
    let of_chart = said.lines().find_map(|line| line.strip_prefix("Digest: "));
    let of_chart = of_chart.context("helm push printed no digest")?;
    Ok((digest, format!("{charts}/aliquot@{of_chart}")))
}

pub(crate) async fn runs_share(cluster: Arc<Cluster>) -> Result<()> {
    let (address, registry) = registry(&cluster).await?;
    let folder = cluster.state_dir().join("release");
    let (digest, chart) = published(&folder, &address).await?;
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
    ensure!(pods.contains(&digest), "no pod has the image {digest}");
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
