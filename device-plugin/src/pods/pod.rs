//! A pod as this agent needs it, read from the API object.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::RefusedPod;
use aliquot_core::resize::RESIZE_STATUS;
use aliquot_core::usage::{self, DeviceUses, Stage};
use aliquot_core::{Allocation, NodeName, PodUid, quantity};
use aliquot_k8s::pod::{containers, is_mirror, kubelet_uid, names_by_id};
use k8s_openapi::api::core::v1 as api;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub stage: Stage,
    /// Its literal environment, without references to other objects.
    pub env: BTreeMap<String, String>,
    /// It mounts a volume at `/dev/shm`.
    pub mounts_shm: bool,
    pub requested: BTreeMap<String, u64>,
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No container has run yet.
    Starting,
    /// At least one container runs or has run: all have had their devices.
    Running,
    /// Being deleted.
    Terminating,
    /// Succeeded or failed: it uses nothing any more.
    Ended,
}

/// A pod bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its uid at the API server.
    pub uid: PodUid,
    /// The uid under which the kubelet runs it: another one for static pods.
    pub kubelet_uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub node: NodeName,
    pub phase: Phase,
    /// Creation in seconds since the epoch.
    pub created: i64,
    /// The API server's copy of a static pod.
    pub mirror: bool,
    /// Text of the allocation annotation.
    pub allocation: Option<String>,
    /// Text of the annotation that says how it is resized.
    pub resize: Option<String>,
    /// The name of each started container, by the runtime's container id.
    pub ids: BTreeMap<String, String>,
    /// Init containers and sidecars in spec order, then app containers.
    pub containers: Vec<Container>,
}

impl Pod {
    /// Reads the API object; `None` without uid, name or node.
    pub fn read(pod: &api::Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref()?;
        let annotations = meta.annotations.as_ref();
        let annotation = |key: &str| annotations.and_then(|all| all.get(key)).cloned();
        let uid = PodUid::from(meta.uid.as_deref()?);
        let containers = containers(pod).map(|(container, stage)| read_container(container, stage));
        Some(Self {
            kubelet_uid: kubelet_uid(pod),
            uid,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone()?,
            node: spec.node_name.as_deref()?.into(),
            phase: phase(pod),
            created: meta
                .creation_timestamp
                .as_ref()
                .map_or(0, |time| time.0.as_second()),
            mirror: is_mirror(pod),
            allocation: annotation(ALLOCATION),
            resize: annotation(RESIZE_STATUS),
            ids: names_by_id(pod),
            containers: containers.collect(),
        })
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Its entry in the inventory that has the scheduler evict it.
    pub fn refused(&self, reason: String) -> RefusedPod {
        RefusedPod {
            pod: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            reason,
        }
    }

    /// What its annotation has of each device; `None` where that cannot be read.
    pub fn uses(&self) -> Option<DeviceUses> {
        let allocation = Allocation::decode(self.allocation.as_deref()?).ok()?;
        Some(usage::effective(&allocation, self.stages()))
    }

    /// It has an allocation annotation that cannot be read, or one of another node.
    pub fn has_unreadable_allocation(&self) -> bool {
        let allocation = self.allocation.as_deref().map(Allocation::decode);
        allocation.is_some_and(|found| found.map_or(true, |found| found.node != self.node))
    }

    pub fn requests_any(&self, resources: &BTreeSet<String>) -> bool {
        let mut requested = self.containers.iter().flat_map(|one| one.requested.keys());
        requested.any(|resource| resources.contains(resource))
    }

    pub fn stages(&self) -> impl Iterator<Item = (&str, Stage)> {
        self.containers.iter().map(|c| (c.name.as_str(), c.stage))
    }
}

fn phase(pod: &api::Pod) -> Phase {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let started = || {
        let statuses = status.into_iter().flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        let mut seen = statuses.flat_map(|status| [&status.state, &status.last_state]);
        seen.any(|state| {
            let state = state.as_ref();
            state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
        })
    };
    if matches!(phase, Some("Succeeded" | "Failed")) {
        Phase::Ended
    } else if pod.metadata.deletion_timestamp.is_some() {
        Phase::Terminating
    } else if started() {
        Phase::Running
    } else {
        Phase::Starting
    }
}

fn read_container(container: &api::Container, stage: Stage) -> Container {
    let literal = |var: &api::EnvVar| Some((var.name.clone(), var.value.clone()?));
    Container {
        name: container.name.clone(),
        stage,
        env: container.env.iter().flatten().filter_map(literal).collect(),
        mounts_shm: mounts_shm(container),
        requested: requested(container),
    }
}

fn mounts_shm(container: &api::Container) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| {
        let parts = mount.mount_path.split('/');
        let parts = parts.filter(|part| !matches!(*part, "" | "."));
        parts.eq(["dev", "shm"])
    })
}

/// Requests and limits of extended resources. Ignores quantities that are not whole numbers.
fn requested(container: &api::Container) -> BTreeMap<String, u64> {
    let resources = container.resources.as_ref();
    let all = resources.into_iter().flat_map(|resources| {
        let limits = resources.limits.iter().flatten();
        limits.chain(resources.requests.iter().flatten())
    });
    let extended = all.filter(|(name, _)| name.contains('/'));
    extended
        .filter_map(|(name, number)| Some((name.clone(), quantity::whole(&number.0).ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &serde_json::Value) -> Option<Pod> {
        Pod::read(&serde_json::from_value(value.clone()).expect("a pod"))
    }

    #[test]
    fn reads_containers_with_stage_and_literal_env() {
        let pod = read(&json!({
            "metadata": {"uid": "u", "name": "p", "namespace": "d",
                         "annotations": {"aliquot.dev/allocation": "{}"}},
            "spec": {"nodeName": "n1",
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
                "containers": [{"name": "c", "resources": {
                    "limits": {"cpu": "1", "nvidia.com/gpumem": "3k"}}, "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ]}]},
        }))
        .expect("bound");
        let stages: Vec<_> = pod.stages().collect();
        assert_eq!(
            stages,
            [("i", Stage::Init), ("s", Stage::Sidecar), ("c", Stage::App)]
        );
        for (path, expected) in [
            ("/dev/shm", true),
            ("/dev//shm/", true),
            ("/dev/shm/x", false),
        ] {
            let container = json!({"name": "c",
                "volumeMounts": [{"name": "v", "mountPath": path}]});
            let container = serde_json::from_value(container).expect("one");
            let found = read_container(&container, Stage::App).mounts_shm;
            assert_eq!(found, expected, "{path}");
        }
        let env: Vec<_> = pod.containers[2].env.iter().collect();
        assert_eq!(env, [(&"A".to_owned(), &"1".to_owned())]);
        let asked = [("nvidia.com/gpumem".to_owned(), 3000)];
        assert_eq!(pod.containers[2].requested, asked.into());
        assert_eq!(pod.allocation.as_deref(), Some("{}"));
        assert_eq!(pod.full_name(), "d/p");
    }

    #[test]
    fn identifies_static_pod_by_kubelet_uid() {
        let pod = read(&json!({
            "metadata": {"uid": "api", "name": "p",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n"}],
                "annotations": {
                    "kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "static"}},
            "spec": {"nodeName": "n1", "containers": []},
        }))
        .expect("bound");
        assert!(pod.mirror);
        assert_eq!(
            (pod.uid.as_str(), pod.kubelet_uid.as_str()),
            ("api", "static")
        );
    }

    #[test]
    fn derives_phase_from_status_and_deletion() {
        let read = |status: &serde_json::Value, deleted: Option<&str>| {
            let pod = read(&json!({
                "metadata": {"uid": "u", "name": "p", "deletionTimestamp": deleted},
                "spec": {"nodeName": "n1", "containers": []},
                "status": status,
            }));
            pod.expect("bound").phase
        };
        let container = |state: serde_json::Value, last: serde_json::Value| {
            json!({"phase": "Running", "containerStatuses": [
                {"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                 "state": state, "lastState": last}]})
        };
        let running = container(json!({"running": {}}), json!({}));
        let waiting = json!({"waiting": {"reason": "CreateContainerConfigError"}});
        let ended = json!({"terminated": {"exitCode": 0}});
        let now = Some("2026-11-21T10:00:00Z");
        for (status, deleted, expected) in [
            (json!({"phase": "Pending"}), None, Phase::Starting),
            (running.clone(), None, Phase::Running),
            (running, now, Phase::Terminating),
            (json!({"phase": "Failed"}), now, Phase::Ended),
            (container(waiting.clone(), json!({})), None, Phase::Starting),
            // A failed restart.
            (container(waiting, ended), None, Phase::Running),
        ] {
            assert_eq!(read(&status, deleted), expected, "{status}");
        }
        let unbound = json!({"metadata": {"uid": "u", "name": "p"}, "spec": {"containers": []}});
        assert_eq!(self::read(&unbound), None);
    }
}
