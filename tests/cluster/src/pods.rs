//! What tests do with pods: create, wait, read, delete. Deadlines come from callers
//! or are [`PATIENCE`].

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::daemons::Daemon;
use crate::wait::{PATIENCE, Unmet, eventually, give_up};
use crate::{not_yet, until};

impl Cluster {
    /// Makes a namespace in which pods can be created at once.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        self.namespace_with(name, &json!({})).await
    }

    /// The same with labels.
    ///
    /// # Errors
    /// See [`Cluster::namespace`].
    pub async fn namespace_with(&self, name: &str, labels: &Value) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.admin()?);
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        let namespace = serde_json::from_value(namespace)?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("create namespace {name}"))?;
        self.default_service_account(name, Daemon::ControllerManager)
            .await
    }

    /// Deletes every pod and every node, and gives the real node a new Node object and a kubelet
    /// that knows no device plugin.
    ///
    /// # Errors
    /// Something is not gone in time, or the node does not come back.
    pub async fn clear(&self) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.admin()?);
        let grace = u32::from(self.options.node.is_some());
        let soon = DeleteParams::default().grace_period(grace);
        for pod in pods.list_metadata(&ListParams::default()).await?.items {
            let (name, namespace) = (pod.metadata.name, pod.metadata.namespace);
            let (name, namespace) = name.zip(namespace).context("a pod without a name")?;
            let pods: Api<Pod> = Api::namespaced(self.admin()?, &namespace);
            match pods.delete(&name, &soon).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other.with_context(|| format!("delete pod {namespace}/{name}"))?),
            }
        }
        eventually(PATIENCE, "all pods to be gone", || async {
            let left = pods.list(&ListParams::default()).await?.items;
            until!(left.is_empty(), "{}", describe(&left[0]));
            Ok(Some(()))
        })
        .await?;
        if self.options.node.is_some() {
            self.stop_kubelet().await?;
        }
        let nodes: Api<Node> = Api::all(self.admin()?);
        nodes
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        self.restart_scheduler_with(&[]).await?;
        let Some(node) = &self.options.node else {
            return Ok(());
        };
        std::fs::remove_dir_all(self.kubelet_dir().join("device-plugins"))?;
        for entry in std::fs::read_dir(self.cdi_dir())? {
            std::fs::remove_file(entry?.path())?;
        }
        self.start_kubelet().await?;
        self.node_ready(node).await
    }

    /// Creates a pod from its JSON form, in `metadata.namespace` or `default`.
    ///
    /// # Errors
    /// It is no pod, or the API server refuses it.
    pub async fn create_pod(&self, pod: Value) -> Result<Pod> {
        let pod: Pod = serde_json::from_value(pod).context("read the pod")?;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let pods: Api<Pod> = Api::namespaced(self.admin()?, namespace);
        let created = pods.create(&PostParams::default(), &pod).await;
        created.with_context(|| {
            format!(
                "create pod {}",
                pod.metadata.name.as_deref().unwrap_or("without a name")
            )
        })
    }

    /// Waits until every container of the pod runs (and is ready).
    ///
    /// # Errors
    /// Not in time (the error names what the pod waits for), or the pod ended.
    pub async fn wait_running(&self, namespace: &str, name: &str) -> Result<Pod> {
        let what = format!("pod {namespace}/{name} to run");
        self.wait_pod(namespace, name, &what, |pod| {
            let status = pod.status.as_ref();
            let ready = status
                .and_then(|s| s.conditions.as_ref())
                .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
            let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
            match phase {
                "Running" if ready => Ok(true),
                "Failed" | "Succeeded" => Err(give_up(describe(pod))),
                _ => Ok(false),
            }
        })
        .await
    }

    /// Waits until the pod is in this phase.
    ///
    /// # Errors
    /// Not in time; the error names what the pod waits for.
    pub async fn wait_phase(&self, namespace: &str, name: &str, phase: &str) -> Result<Pod> {
        let what = format!("pod {namespace}/{name} to be {phase}");
        self.wait_pod(namespace, name, &what, |pod| {
            Ok(pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase))
        })
        .await
    }

    /// Waits until `is_met` is true of the pod; its error counts as an observation
    /// (see [`eventually`]).
    ///
    /// # Errors
    /// Not in time; the error names what the pod waits for.
    pub async fn wait_pod(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        is_met: impl Fn(&Pod) -> Result<bool, Unmet>,
    ) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.admin()?, namespace);
        eventually(PATIENCE, what, || async {
            let pod = pods.get(name).await?;
            if is_met(&pod)? {
                return Ok(Some(pod));
            }
            not_yet!("{}", describe(&pod))
        })
        .await
    }

    /// What a container has printed so far.
    ///
    /// # Errors
    /// It has not started, or the kubelet cannot be reached.
    pub async fn logs(&self, namespace: &str, pod: &str, container: &str) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.admin()?, namespace);
        let which = LogParams {
            container: Some(container.into()),
            ..LogParams::default()
        };
        pods.logs(pod, &which)
            .await
            .with_context(|| format!("logs of {namespace}/{pod}, container {container}"))
    }

    /// The events about an object of this kind and name.
    ///
    /// # Errors
    /// The API server refuses the list.
    pub async fn events(&self, namespace: &str, kind: &str, name: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.admin()?, namespace);
        let fields = format!("involvedObject.kind={kind},involvedObject.name={name}");
        Ok(events
            .list(&ListParams::default().fields(&fields))
            .await?
            .items)
    }

    /// Deletes a pod at once (grace period 0 on a fake node, else 1 s) and waits
    /// until its object is gone.
    ///
    /// # Errors
    /// It does not exist, or is not gone in time.
    pub async fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.admin()?, namespace);
        let grace = u32::from(self.options.node.is_some());
        let uid = pods
            .delete(name, &DeleteParams::default().grace_period(grace))
            .await
            .with_context(|| format!("delete pod {namespace}/{name}"))?
            .left()
            .and_then(|pod| pod.metadata.uid);
        eventually(
            PATIENCE,
            &format!("pod {namespace}/{name} to be gone"),
            || async {
                match pods.get_opt(name).await? {
                    Some(pod) if uid.is_none() || pod.metadata.uid == uid => {
                        not_yet!("{}", describe(&pod))
                    }
                    _ => Ok(Some(())),
                }
            },
        )
        .await
    }
}

/// A pod's state in one line: phase, conditions that are not met, waiting containers.
fn describe(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "no status".into();
    };
    let mut parts = vec![status.phase.clone().unwrap_or_default()];
    parts.extend(status.reason.clone());
    parts.extend(status.message.clone());
    for condition in status
        .conditions
        .iter()
        .flatten()
        .filter(|c| c.status != "True")
    {
        let message = condition.message.as_deref().unwrap_or_default();
        parts.push(format!("not {} ({message})", condition.type_));
    }
    let init = status.init_container_statuses.iter().flatten();
    for container in init.chain(status.container_statuses.iter().flatten()) {
        let state = container.state.clone().unwrap_or_default();
        if let Some(waiting) = state.waiting {
            parts.push(format!(
                "{}: {} {}",
                container.name,
                waiting.reason.unwrap_or_default(),
                waiting.message.unwrap_or_default()
            ));
        }
        if let Some(ended) = state.terminated {
            parts.push(format!("{}: exit code {}", container.name, ended.exit_code));
        }
    }
    parts.join("; ")
}
