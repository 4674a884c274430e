//! A running Aliquot: the cluster, and the parts as processes with the identities and rights that
//! the chart gives them.
//!
//! The binaries are those beside this program (`cargo build --workspace`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_cluster::starvation::Measurement;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part};
use aliquot_webhook::args::Args;
use aliquot_webhook::configuration::NAME;
use aliquot_webhook::reconciler::SECRET;
use anyhow::{Context as _, Result};
use clap::Parser as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::Mutex;

pub use crate::agent::NodeOptions;
use crate::http;

pub use aliquot_cluster::NODE;
pub(crate) use aliquot_cluster::wait::PATIENCE;

/// The product's namespace.
pub const NAMESPACE: &str = "aliquot-system";
const STOPPING: Duration = Duration::from_mins(1);
/// What the chart renders by default, without its labels (`make reference`).
const WEBHOOK_CONFIGURATION: &str = include_str!("../webhook-configuration.json");
/// The end of the list of resources in its match conditions.
const LAST_RESOURCE: &str = r#""nvidia.com/priority"]"#;

/// The parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `aliquot-scheduler`.
    Scheduler,
    /// `aliquot-webhook`.
    Webhook,
    /// `aliquot-device-plugin`.
    DevicePlugin,
    /// `aliquot-monitor`.
    Monitor,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Scheduler,
        Self::Webhook,
        Self::DevicePlugin,
        Self::Monitor,
    ];

    /// The binary, the part's name and its service account.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "aliquot-scheduler",
            Self::Webhook => "aliquot-webhook",
            Self::DevicePlugin => "aliquot-device-plugin",
            Self::Monitor => "aliquot-monitor",
        }
    }
}

/// Cluster and parts.
pub struct Stack {
    /// The cluster.
    pub cluster: Cluster,
    parts: Mutex<BTreeMap<Kind, Part>>,
    pub(crate) mps_supervisor: Mutex<Option<Part>>,
    /// Made once: a part can start again while the API server is away.
    kubeconfigs: Mutex<BTreeMap<Kind, PathBuf>>,
    binaries: PathBuf,
}

impl Stack {
    /// A control plane with scheduler and webhook; nodes are made up.
    pub async fn control_plane() -> Result<Self> {
        let stack = Self::on(Box::pin(Cluster::control_plane().extender().start()).await?).await?;
        stack.start_scheduler(&[]).await?;
        stack.start_webhook(&[]).await?;
        Ok(stack)
    }

    /// The chart's rights on a running cluster; no part yet.
    pub async fn on(cluster: Cluster) -> Result<Self> {
        cluster.install_rights().await?;
        let program = std::env::current_exe()?;
        let binaries = program
            .ancestors()
            .find(|folder| folder.join(Kind::Scheduler.name()).is_file());
        let binaries = binaries
            .with_context(|| {
                format!(
                    "no {} beside {}: cargo build --workspace",
                    Kind::Scheduler.name(),
                    program.display()
                )
            })?
            .to_owned();
        Ok(Self {
            cluster,
            parts: Mutex::default(),
            mps_supervisor: Mutex::default(),
            kubeconfigs: Mutex::default(),
            binaries,
        })
    }

    /// Ends the parts and the cluster; removes everything.
    pub async fn stop(self) -> Result<()> {
        if let Some(supervisor) = self.mps_supervisor.lock().await.take() {
            supervisor.terminate(STOPPING).await?;
        }
        for (_, part) in std::mem::take(&mut *self.parts.lock().await) {
            part.terminate(STOPPING).await?;
        }
        self.cluster.stop().await
    }

    /// Ends the parts, every pod and every node, and registers the real node again, so that only
    /// namespaces are left of what ran before.
    pub(crate) async fn clear(&self) -> Result<()> {
        let supervisor = self.mps_supervisor.lock().await.take();
        let mut parts = std::mem::take(&mut *self.parts.lock().await);
        for kind in [
            Kind::Monitor,
            Kind::DevicePlugin,
            Kind::Webhook,
            Kind::Scheduler,
        ] {
            if let Some(part) = parts.remove(&kind) {
                part.terminate(STOPPING).await?;
            }
        }
        if let Some(supervisor) = supervisor {
            supervisor.terminate(STOPPING).await?;
        }
        self.cluster.clear().await?;
        // Tokens are bound to the node that was.
        self.kubeconfigs.lock().await.clear();
        match std::fs::remove_dir_all(self.files()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("remove the parts' files")
            }
            _ => Ok(()),
        }
    }

    /// Where a part serves health and metrics; the scheduler its verbs too.
    pub fn address(&self, kind: Kind) -> SocketAddr {
        match kind {
            Kind::Scheduler => self.cluster.extender_address(),
            Kind::Webhook => self.cluster.part_address(1),
            Kind::DevicePlugin => self.cluster.part_address(2),
            Kind::Monitor => self.cluster.part_address(7),
        }
    }

    /// The built binary of a part.
    pub fn program(&self, kind: Kind) -> PathBuf {
        self.binaries.join(kind.name())
    }

    /// The parts' own files; they go with the cluster.
    pub(crate) fn files(&self) -> PathBuf {
        self.cluster.state_dir().join("parts")
    }

    /// The directory of the node agent's accepted allocations and container directories.
    pub fn agent_state(&self) -> PathBuf {
        self.files().join("aliquot")
    }

    /// The kubeconfig of a part's service account.
    pub async fn kubeconfig(&self, kind: Kind) -> Result<PathBuf> {
        let mut made = self.kubeconfigs.lock().await;
        if let Some(path) = made.get(&kind) {
            return Ok(path.clone());
        }
        let node = (kind == Kind::DevicePlugin).then_some(NODE);
        let path = self
            .cluster
            .kubeconfig_for(NAMESPACE, kind.name(), node)
            .await?;
        made.insert(kind, path.clone());
        Ok(path)
    }

    /// Starts the scheduler and waits until its ledger are listed.
    pub async fn start_scheduler(&self, more: &[&str]) -> Result<()> {
        let kubeconfig = self.kubeconfig(Kind::Scheduler).await?;
        self.start_scheduler_with(&kubeconfig, more).await
    }

    /// The same with another kubeconfig.
    pub async fn start_scheduler_with(&self, kubeconfig: &Path, more: &[&str]) -> Result<()> {
        self.launch_scheduler(kubeconfig, more).await?;
        self.wait_ready(Kind::Scheduler).await
    }

    /// Ends the scheduler, and starts it with these flags.
    pub async fn restart_scheduler(&self, more: &[&str]) -> Result<()> {
        self.terminate(Kind::Scheduler).await?;
        self.start_scheduler(more).await
    }

    pub(crate) async fn launch_scheduler(&self, kubeconfig: &Path, more: &[&str]) -> Result<()> {
        let listen = self.address(Kind::Scheduler).to_string();
        let mut args = vec!["--listen", &listen];
        args.extend_from_slice(more);
        self.start(Kind::Scheduler, kubeconfig, &args).await
    }

    /// Starts the webhook and waits until its certificates are in its configuration.
    pub async fn start_webhook(&self, more: &[&str]) -> Result<()> {
        self.create_webhook_objects(more).await?;
        self.launch_webhook(more).await?;
        self.wait_ready(Kind::Webhook).await
    }

    pub(crate) async fn launch_webhook(&self, more: &[&str]) -> Result<()> {
        let listen = self.cluster.part_address(3).to_string();
        let url = self.webhook_url();
        let admin = self.address(Kind::Webhook).to_string();
        let mut args = vec!["--listen", &listen, "--admin-listen", &admin, "--url", &url];
        args.extend_from_slice(more);
        let kubeconfig = self.kubeconfig(Kind::Webhook).await?;
        self.start(Kind::Webhook, &kubeconfig, &args).await
    }

    /// Where the API server reaches the webhook.
    pub fn webhook_url(&self) -> String {
        format!("https://{}/mutate", self.cluster.part_address(3))
    }

    /// What the chart creates for a webhook with these flags, and `helm upgrade` updates: its
    /// configuration and its Secret.
    pub async fn create_webhook_objects(&self, more: &[&str]) -> Result<()> {
        let program = ["aliquot-webhook"];
        let flags = program.iter().chain(more);
        let mut resources = Args::try_parse_from(flags)?.settings()?.extra;
        resources.insert(0, "nvidia.com/priority".to_owned());
        let resources = json!(resources).to_string();
        let mut configuration: Value = serde_json::from_str(WEBHOOK_CONFIGURATION)?;
        let webhooks = configuration["webhooks"].as_array_mut();
        for webhook in webhooks.context("webhooks")? {
            let path = webhook["clientConfig"]["service"]["path"].as_str();
            let address = self.cluster.part_address(3);
            let url = format!("https://{address}{}", path.context("a path")?);
            webhook["clientConfig"] = json!({"url": url});
            let condition = &mut webhook["matchConditions"][0]["expression"];
            let usual = condition.as_str().context("a condition")?;
            *condition = json!(usual.replace(LAST_RESOURCE, &resources[1..]));
        }
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": SECRET, "namespace": NAMESPACE},
        });
        let params = PatchParams::apply("chart").force();
        let client = self.cluster.admin()?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        secrets
            .patch(SECRET, &params, &Patch::Apply(secret))
            .await
            .context("apply the webhook's Secret")?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client);
        configurations
            .patch(NAME, &params, &Patch::Apply(configuration))
            .await
            .context("apply the webhook's configuration")?;
        Ok(())
    }

    pub(crate) async fn runs(&self, kind: Kind) -> bool {
        let parts = self.parts.lock().await;
        parts.get(&kind).is_some_and(|part| part.check().is_ok())
    }

    async fn start(&self, kind: Kind, kubeconfig: &Path, args: &[&str]) -> Result<()> {
        let kubeconfig = kubeconfig.to_string_lossy();
        let mut all = vec!["--kubeconfig", &*kubeconfig];
        all.extend_from_slice(args);
        let program = self.program(kind);
        let part = self.cluster.start_part(kind.name(), &program, &all, &[])?;
        self.parts.lock().await.insert(kind, part);
        Ok(())
    }

    /// Starts this build of a part in the node's mount namespace.
    pub(crate) async fn start_on_node(
        &self,
        kind: Kind,
        program: &Path,
        kubeconfig: &Path,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<()> {
        let kubeconfig = kubeconfig.to_string_lossy();
        let mut all = vec!["--kubeconfig", &*kubeconfig];
        all.extend_from_slice(args);
        let part = self
            .cluster
            .start_part_on_node(kind.name(), program, &all, env)?;
        self.parts.lock().await.insert(kind, part);
        Ok(())
    }

    /// Begins to measure for how long the machine gives no processor to these parts and these
    /// processes of the cluster.
    pub async fn measure_starvation(
        &self,
        parts: &[Kind],
        cluster: &[&str],
    ) -> Result<Measurement> {
        let mut pids = Vec::new();
        for kind in parts {
            pids.push(self.pid(*kind).await?);
        }
        for name in cluster {
            pids.push(self.cluster.pid(name)?);
        }
        Ok(Measurement::of(pids))
    }

    pub(crate) async fn pid(&self, kind: Kind) -> Result<u32> {
        let parts = self.parts.lock().await;
        Ok(parts.get(&kind).context("it runs")?.pid())
    }

    /// What is mounted where a part runs.
    pub async fn mounts(&self, kind: Kind) -> Result<String> {
        let pid = self.pid(kind).await?;
        Ok(std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))?)
    }

    /// Waits until `/readyz` is 200.
    pub async fn wait_ready(&self, kind: Kind) -> Result<()> {
        let what = format!("{} to be ready", kind.name());
        let ready = eventually(PATIENCE, &what, || async {
            if let Some(part) = self.parts.lock().await.get(&kind) {
                part.check()?;
            }
            http::get(self.address(kind), "/readyz")
                .await
                .or_not_yet()
                .map(Some)
        });
        ready.await.map(drop)
    }

    async fn take(&self, kind: Kind) -> Result<Part> {
        let mut parts = self.parts.lock().await;
        parts.remove(&kind).context("the part does not run")
    }

    /// Kills a part with -9.
    pub async fn kill(&self, kind: Kind) -> Result<()> {
        self.take(kind).await?.kill().await
    }

    /// Terminates a part, and waits for its end.
    pub async fn terminate(&self, kind: Kind) -> Result<()> {
        let code = self.take(kind).await?.terminate(STOPPING).await?;
        anyhow::ensure!(code == Some(0), "{} ended with {code:?}", kind.name());
        Ok(())
    }
}
