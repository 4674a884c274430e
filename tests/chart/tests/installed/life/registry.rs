//! A release from a real registry, in the steps of docs/guides/install.md for an air gap: images and chart are
//! pushed, and installed from there.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_chart::release::{REPOSITORY, script, success, version};
use aliquot_chart::simulated_node::{archive, kube_scheduler_archive};
use aliquot_chart::{NAMESPACE, helm, top};
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part};
use aliquot_e2e::figures::report;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::net::TcpStream;

use super::world::{PATIENCE, World};
use super::{Before, container_of, has_its_share, removed};
use crate::ChartCluster;

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

/// Pushes the image of an archive; its digest.
fn pushed(archive: &Path, to: &str) -> Result<String> {
    let digest = archive.with_extension("digest");
    let mut copy = Command::new("skopeo");
    copy.args(["--insecure-policy", "copy", "--dest-tls-verify=false"])
        .arg("--digestfile")
        .arg(&digest)
        .arg(format!("oci-archive:{}", archive.display()))
        .arg(format!("docker://{to}"));
    success(&mut copy)?;
    Ok(std::fs::read_to_string(&digest)?.trim().to_owned())
}

/// Pushes an image, and the chart that names it in the release's own registry, which no node reaches; the
/// digest of the image and the reference of the chart.
async fn published(folder: &Path, address: &str) -> Result<(String, String)> {
    std::fs::create_dir_all(folder)?;
    let image = folder.join("aliquot.tar");
    archive(&image).await?;
    let (_, repository) = REPOSITORY.split_once('/').context("no registry")?;
    let digest = pushed(&image, &format!("{address}/{repository}:{}", version()?))?;

    let mut package = script("release/chart.sh", &[&folder.to_string_lossy()])?;
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

pub(crate) async fn runs_share(on: Arc<ChartCluster>) -> Result<()> {
    let (address, registry) = registry(&on.cluster).await?;
    let folder = on.cluster.state_dir().join("release");
    let (digest, chart) = published(&folder, &address).await?;
    let world = World::released(on.cluster.clone(), chart, &address).await?;
    let version = world.json(&["version"]).await?;
    let version = version["serverVersion"]["gitVersion"].as_str();
    let version = version.and_then(|text| text.split(['-', '+']).next());
    let version = version.context("no version")?;
    let kube_scheduler = format!("{address}/kube-scheduler:{version}");
    pushed(&kube_scheduler_archive(&world.cluster), &kube_scheduler)?;
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
    let pods = pods["items"].as_array().context("no list")?.iter();
    let containers = pods.filter_map(|pod| pod["spec"]["containers"].as_array());
    let images = containers.flatten().map(|one| &one["image"]);
    let images: BTreeSet<&str> = images.filter_map(Value::as_str).collect();
    let own = format!("@{digest}");
    let is_known = |image: &&str| **image == kube_scheduler || image.ends_with(&own);
    ensure!(
        images.len() == 2 && images.iter().all(is_known),
        "{images:?}, expected {kube_scheduler} and one{own}"
    );
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
