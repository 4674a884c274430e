//! Notes, an upgrade from an older release, and a rollback, by helm and by Helm 4. There is no node, so none
//! of the chart's pods runs.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use aliquot_chart::{HelmOutput, IMAGE, NAMESPACE, chart, helm, helm_4, release, top};
use aliquot_cluster::Cluster;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{ChartCluster, Helm, helm_on, run_on};

/// The version of the older release.
pub(crate) const OLDER: &str = "0.0.1";

const AGENT: &str = "daemonset/aliquot-device-plugin";
const WEBHOOK: &str = "deployment/aliquot-webhook";
const POLICY: &str = "networkpolicy/aliquot-monitor";
const SCALING: &str = "--device-memory-scaling=";

/// An object of the chart, with who has written which of its fields.
async fn object(cluster: &Cluster, name: &str) -> Result<Value> {
    let managers = "--show-managed-fields";
    let get = ["get", name, "-n", NAMESPACE, "-o", "json", managers];
    let object = cluster.kubectl(&get).await?.success()?;
    Ok(serde_json::from_str(&object)?)
}

/// A flag's value in the agent's pods.
async fn argument(cluster: &Cluster, flag: &str) -> Result<String> {
    let agent = object(cluster, AGENT).await?;
    let container = &agent["spec"]["template"]["spec"]["containers"][0];
    let arguments = aliquot_chart::texts(&container["args"]);
    let found = arguments.iter().find_map(|one| one.strip_prefix(flag));
    Ok(found.unwrap_or_default().to_owned())
}

/// A copy of the chart in this directory, of an earlier version and without one of its values, as an older
/// release.
pub(crate) fn older(folder: &Path) -> Result<String> {
    let copied = Command::new("cp")
        .arg("-r")
        .arg(chart())
        .arg(folder)
        .status()?;
    ensure!(copied.success(), "cp: {copied}");
    let older = folder.join("aliquot");
    std::fs::remove_file(older.join("templates/cleanup.yaml"))?;
    let values = std::fs::read_to_string(older.join("values.yaml"))?;
    let (before, rest) = values.split_once("\ncleanup:\n").context("the value")?;
    let (_, after) = rest.split_once("\n\n").context("the value's end")?;
    std::fs::write(older.join("values.yaml"), format!("{before}\n\n{after}"))?;
    let about = std::fs::read_to_string(older.join("Chart.yaml"))?;
    let version = release::version()?;
    ensure!(about.contains(&version), "not of {version}: {about}");
    std::fs::write(older.join("Chart.yaml"), about.replace(&version, OLDER))?;
    Ok(older.to_string_lossy().into_owned())
}

/// The flags with which docs/guides/upgrade.md upgrades.
pub(crate) fn documented() -> Result<Vec<String>> {
    let guide = std::fs::read_to_string(top("docs/guides/upgrade.md"))?;
    let begin = "helm upgrade aliquot charts/aliquot -n aliquot-system ";
    let mut lines = guide.lines();
    let flags = lines.find_map(|line| line.strip_prefix(begin));
    let flags = flags.context("the guide has the command")?.split(' ');
    Ok(flags.map(str::to_owned).collect())
}

/// The webhook writes its CAs: into its Secret, and their certificates into its configuration.
async fn certificates_written(cluster: &Cluster) -> Result<()> {
    let bundle = json!({"caBundle": "UEVN"});
    let webhooks = ["pods.aliquot.dev", "labelled.pods.aliquot.dev"];
    let webhooks = webhooks.map(|name| json!({"name": name, "clientConfig": bundle}));
    let configuration = json!({"webhooks": webhooks}).to_string();
    let secret = json!({"data": {"1.crt": "UEVN", "1.key": "UEVN"}}).to_string();
    let webhook = cluster.kubeconfig_for(NAMESPACE, "aliquot-webhook", None);
    let webhook = format!("--kubeconfig={}", webhook.await?.display());
    for (object, patch) in [
        (
            "mutatingwebhookconfiguration/aliquot-webhook",
            configuration,
        ),
        ("secret/aliquot-webhook-tls", secret),
    ] {
        let request = [&webhook, "patch", object, "-n", NAMESPACE, "-p", &patch];
        cluster.kubectl(&request).await?.success()?;
    }
    Ok(())
}

/// Both still have what the webhook wrote.
async fn certificates_stay(cluster: &Cluster, after: &str) -> Result<()> {
    for (object, path, expected) in [
        (
            "mutatingwebhookconfiguration/aliquot-webhook",
            "jsonpath={.webhooks[*].clientConfig.caBundle}",
            "UEVN UEVN",
        ),
        (
            "secret/aliquot-webhook-tls",
            "jsonpath={.data.1\\.crt} {.data.1\\.key}",
            "UEVN UEVN",
        ),
    ] {
        let get = ["get", object, "-n", NAMESPACE, "-o", path];
        let found = cluster.kubectl(&get).await?.success()?;
        ensure!(found == expected, "{object} after {after}: {found:?}");
    }
    Ok(())
}

/// The release on a cluster, by one version of helm.
struct Release<'a> {
    cluster: &'a Cluster,
    helm: Helm,
}

impl Release<'_> {
    fn run(&self, arguments: &[&str]) -> Result<HelmOutput> {
        run_on(self.cluster, self.helm, arguments)
    }

    /// Installs an older one with a value that the user set, and lets the webhook write its certificates.
    async fn install_older(&self, folder: &Path) -> Result<HelmOutput> {
        let older = older(folder)?;
        let own = "--set=devicePlugin.deviceSplitCount=7";
        let installed = self.run(&["install", "aliquot", &older, IMAGE, own])?;
        installed.clone().success()?;
        ensure!(argument(self.cluster, SCALING).await? == "1");
        certificates_written(self.cluster).await?;
        Ok(installed)
    }

    /// Upgrades it to the checkout's, with the guide's flags and these.
    fn upgrade(&self, more: &[&str]) -> Result<HelmOutput> {
        let (chart, documented) = (chart(), documented()?);
        let mut all = vec!["upgrade", "aliquot", &chart];
        all.extend(documented.iter().map(String::as_str));
        all.extend_from_slice(more);
        self.run(&all)
    }

    /// Upgrades it with one more value: the user's and the certificates stay.
    async fn upgrade_keeps_values(&self) -> Result<()> {
        let more = "--set=devicePlugin.deviceMemoryScaling=5";
        self.upgrade(&[more])?.success()?;
        ensure!(argument(self.cluster, SCALING).await? == "5");
        ensure!(argument(self.cluster, "--device-split-count=").await? == "7");
        certificates_stay(self.cluster, "an upgrade").await
    }

    /// Rolls it back to the older one with these flags.
    async fn roll_back(&self, flags: &[&str]) -> Result<()> {
        let back = [&["rollback", "aliquot", "1"][..], flags].concat();
        self.run(&back)?.success()?;
        ensure!(argument(self.cluster, SCALING).await? == "1");
        certificates_stay(self.cluster, "a rollback").await
    }

    /// There is no node for the job of the uninstallation; the scenario with a node runs it.
    fn uninstall(&self) -> Result<()> {
        let uninstall = ["uninstall", "aliquot", "--no-hooks"];
        self.run(&uninstall)?.success()?;
        Ok(())
    }
}

pub(crate) async fn upgrades(on: Arc<ChartCluster>) -> Result<()> {
    let cluster = &on.cluster;
    let (chart, hami) = (chart(), top("tests/chart/values/hami.yaml"));
    // The administrator creates the namespace, with its Pod Security label.
    cluster.namespace(NAMESPACE).await?;
    let label = "pod-security.kubernetes.io/warn=restricted";
    let labelled = ["label", "namespace", NAMESPACE, label];
    cluster.kubectl(&labelled).await?.success()?;

    let dry = ["install", "aliquot", &chart, IMAGE, "--dry-run=server"];
    let dry = helm_on(cluster, &dry)?.success()?;
    let notes = format!(
        "Aliquot {} is installed in namespace {NAMESPACE}",
        release::version()?
    );
    ensure!(dry.contains(&notes), "no {notes:?}");
    ensure!(!dry.contains("HAMi's chart"), "nothing of HAMi's was set");
    // kube-scheduler is of the cluster's version.
    let version = ["version", "-o", "json"];
    let version = cluster.kubectl(&version).await?.success()?;
    let version: Value = serde_json::from_str(&version)?;
    let version = version["serverVersion"]["gitVersion"].as_str();
    let version = version.and_then(|text| text.split(['-', '+']).next());
    let image = format!("kube-scheduler:{}", version.context("no version")?);
    ensure!(dry.contains(&image), "no {image}");
    let other = "kube-scheduler's image has the tag";
    ensure!(!dry.contains(other), "it is of the cluster's version");
    let hami = hami.to_string_lossy();
    let with_hami = [
        "install",
        "aliquot",
        &chart,
        IMAGE,
        "--dry-run=server",
        "-f",
        &hami,
        "--set=scheduler.kubeScheduler.image.tag=v1.2.3",
    ];
    let notes = helm_on(cluster, &with_hami)?.success()?;
    for line in [
        "  devicePlugin.pluginPath: used as devicePlugin.kubeletDir",
        "  devicePlugin.nodeConfiguration: set devicePlugin.profiles",
        "  scheduler.nodeLockExpire: nodes are not locked",
        "  mluResourceName: only NVIDIA GPUs are supported",
        "kube-scheduler's image has the tag v1.2.3. If its registry does not have that, set",
    ] {
        ensure!(notes.contains(line), "{line}: {notes}");
    }

    let release = Release { cluster, helm };
    let folder = tempfile::tempdir()?;
    let installed = release.install_older(folder.path()).await?;
    let warned = installed.err.matches("would violate PodSecurity").count();
    ensure!(
        warned == 2,
        "all but agent and monitor are restricted: {}",
        installed.err
    );
    release.upgrade_keeps_values().await?;
    // As tools apply the chart that do not upgrade with helm.
    let template = [
        "template",
        "aliquot",
        &chart,
        IMAGE,
        "-s",
        "templates/webhook-configuration.yaml",
    ];
    let objects = helm_on(cluster, &template)?.success()?;
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, objects)?;
    let file = file.to_string_lossy();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", &*file];
    cluster.kubectl(&apply).await?.success()?;
    certificates_stay(cluster, "a server-side apply").await?;
    release.roll_back(&[]).await?;
    release.uninstall()
}

/// Helm 4 applies on the API server, where each field belongs to whoever wrote it.
pub(crate) async fn applies_on_the_server(on: Arc<ChartCluster>) -> Result<()> {
    let cluster = &on.cluster;
    cluster.namespace(NAMESPACE).await?;
    let release = Release {
        cluster,
        helm: helm_4,
    };
    let folder = tempfile::tempdir()?;
    release.install_older(folder.path()).await?;
    let agent = object(cluster, AGENT).await?;
    let managers = &agent["metadata"]["managedFields"];
    let mut all = managers.as_array().into_iter().flatten();
    let applied = |one: &Value| one["manager"] == "helm" && one["operation"] == "Apply";
    ensure!(all.any(applied), "{managers}");
    release.upgrade_keeps_values().await?;
    release.roll_back(&[]).await?;
    changed_by_others(&release).await?;
    release.uninstall()
}

/// A field that somebody else has changed stops an upgrade and a rollback, unless they have the flag that
/// docs/guides/upgrade.md names.
async fn changed_by_others(release: &Release<'_>) -> Result<()> {
    let force = "--force-conflicts";
    let guide = std::fs::read_to_string(top("docs/guides/upgrade.md"))?;
    ensure!(guide.contains(force), "the guide does not name {force}");
    let cluster = release.cluster;
    let scale = ["scale", WEBHOOK, "-n", NAMESPACE, "--replicas=3"];
    cluster.kubectl(&scale).await?.success()?;
    is_refused(&release.upgrade(&[])?, ".spec.replicas")?;
    let ports = json!({"spec": {"ingress": [{"ports": [{"port": 1}]}]}}).to_string();
    let patch = ["patch", POLICY, "-n", NAMESPACE, "-p", &ports];
    cluster.kubectl(&patch).await?.success()?;
    let back = release.run(&["rollback", "aliquot", "1"])?;
    is_refused(&back, ".spec.ingress")?;

    release.upgrade(&[force])?.success()?;
    ensure!(replicas(cluster).await? == 2);
    let policy = object(cluster, POLICY).await?;
    let ingress = &policy["spec"]["ingress"];
    ensure!(ingress[0]["ports"][0]["port"] == 9396, "{ingress}");
    certificates_stay(cluster, "an upgrade by force").await?;

    cluster.kubectl(&scale).await?.success()?;
    let same = "--set=webhook.replicas=3";
    release.upgrade(&[force, same])?.success()?;
    ensure!(replicas(cluster).await? == 3);
    release.roll_back(&[force]).await?;
    ensure!(replicas(cluster).await? == 2);
    Ok(())
}

/// The webhook's.
async fn replicas(cluster: &Cluster) -> Result<Value> {
    let webhook = object(cluster, WEBHOOK).await?;
    Ok(webhook["spec"]["replicas"].clone())
}

/// helm stopped with a conflict over this field.
fn is_refused(output: &HelmOutput, field: &str) -> Result<()> {
    let is_named = output.err.contains("conflict") && output.err.contains(field);
    ensure!(!output.succeeded && is_named, "{field}: {output:?}");
    Ok(())
}
