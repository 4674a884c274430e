//! Creates and reads the pods of scenarios.

use std::collections::BTreeMap;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::Allocation;
use aliquot_core::allocation::ALLOCATION;
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Map, Value, json};

use crate::stack::Stack;

/// Runs until SIGTERM, and ends at once then.
pub const WAIT: &str = "trap 'exit 0' TERM; while true; do sleep 3600 & wait $!; done";

/// A container that runs until the pod ends, with these limits.
pub fn container(name: &str, limits: &[(&str, &str)]) -> Value {
    with_command(name, limits, WAIT)
}

/// A container that runs this shell script.
pub fn with_command(name: &str, limits: &[(&str, &str)], script: &str) -> Value {
    let limits: Map<String, Value> = limits
        .iter()
        .map(|(resource, amount)| (format!("nvidia.com/{resource}"), json!(amount)))
        .collect();
    json!({
        "name": name,
        "image": "localhost/busybox:1",
        "command": ["sh", "-c", script],
        "resources": {"limits": limits},
    })
}

/// A pod of these app containers.
pub fn pod(namespace: &str, name: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 1},
    })
}

/// A pod with one container and these limits.
pub fn simple(namespace: &str, name: &str, limits: &[(&str, &str)]) -> Value {
    pod(namespace, name, &[container("main", limits)])
}

/// Makes the priority classes where they are missing: `batch` 1, `normal` 10, `urgent` 1000.
pub async fn classes(stack: &Stack) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(stack.cluster.admin()?);
    for (name, value) in [("batch", 1), ("normal", 10), ("urgent", 1000)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        let class = serde_json::from_value(class)?;
        match classes.create(&PostParams::default(), &class).await {
            // Another scenario made it.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created?),
        }
    }
    Ok(())
}

/// The pod's allocation annotation.
pub fn allocation(pod: &Pod) -> Result<Allocation> {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(ALLOCATION));
    let text = text.with_context(|| format!("pod {:?} has no allocation", pod.metadata.name))?;
    Ok(Allocation::decode(text)?)
}

impl Stack {
    /// The environment of a running container.
    pub async fn environment(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<BTreeMap<String, String>> {
        let output = self
            .cluster
            .exec(namespace, pod, container, &["env"])
            .await?;
        Ok(parse_environment(&output.success()?))
    }

    /// The pod, which was created, once it runs. A kubelet that admits it before a plugin is registered
    /// rejects it for good: then it is made again.
    pub async fn runs_or_is_made_again(&self, pod: Value) -> Result<Pod> {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        match self.cluster.wait_running(namespace, name).await {
            Err(error) if format!("{error:#}").contains("UnexpectedAdmissionError") => {
                self.cluster.delete_pod(namespace, name).await?;
                self.cluster.create_pod(pod.clone()).await?;
                self.cluster.wait_running(namespace, name).await
            }
            outcome => outcome,
        }
    }

    /// The text of every event about a pod, as `reason: message`.
    pub async fn event_texts(&self, namespace: &str, pod: &str) -> Result<Vec<String>> {
        let events = self.cluster.events(namespace, "Pod", pod).await?;
        let text = |e: k8s_openapi::api::core::v1::Event| {
            format!(
                "{}: {}",
                e.reason.unwrap_or_default(),
                e.message.unwrap_or_default()
            )
        };
        Ok(events.into_iter().map(text).collect())
    }

    /// Waits until one event about a pod, as [`Stack::event_texts`] has it, contains all of these, and
    /// returns it.
    pub async fn wait_event(&self, namespace: &str, pod: &str, parts: &[&str]) -> Result<String> {
        let what = format!("an event about {namespace}/{pod} with {parts:?}");
        eventually(PATIENCE, &what, || async {
            let events = self.event_texts(namespace, pod).await?;
            let has_all = |event: &&String| parts.iter().all(|part| event.contains(part));
            let found = events.iter().find(has_all).cloned();
            until!(found.is_some(), "{events:?}");
            Ok(found)
        })
        .await
    }
}

/// `KEY=value` lines.
pub fn parse_environment(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}
