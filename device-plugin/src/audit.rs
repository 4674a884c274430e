//! Compares the kubelet's `PodResources` answer with its checkpoint. A cross-check only: nothing is
//! decided from it, and it is never on the path of a container's start (the API is rate-limited for
//! the whole node).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_core::demand::Stage;

use crate::checkpoint::CheckpointEntry;
use crate::device_id::DeviceIds;
use crate::pod::{Phase, Pod};
use crate::proto::v1::ListPodResourcesResponse;

/// A container for which the two records differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `namespace/name`.
    pub pod: String,
    /// The container.
    pub container: String,
    /// Device ids by `PodResources`.
    pub listed: DeviceIds,
    /// Device ids by the checkpoint.
    pub checkpointed: DeviceIds,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "container {} of pod {}: PodResources lists {:?}, the kubelet's checkpoint {:?}",
            self.container, self.pod, self.listed, self.checkpointed
        )
    }
}

/// Device ids by pod and container, from a `PodResources` answer.
pub fn listed(
    answer: &ListPodResourcesResponse,
    resources: &BTreeSet<String>,
) -> BTreeMap<(String, String), DeviceIds> {
    let mut found: BTreeMap<(String, String), DeviceIds> = BTreeMap::new();
    for pod in &answer.pod_resources {
        for container in &pod.containers {
            let name = format!("{}/{}", pod.namespace, pod.name);
            let ids = container
                .devices
                .iter()
                .filter(|devices| resources.contains(&devices.resource_name))
                .flat_map(|devices| devices.device_ids.iter().cloned());
            let ids: DeviceIds = ids.collect();
            if !ids.is_empty() {
                let listed = found.entry((name, container.name.clone())).or_default();
                listed.extend(ids);
            }
        }
    }
    found
}

/// Where the two records differ, by pod and container. Compares the containers that both must list:
/// those of running pods, without plain init containers (`PodResources` never lists those).
pub fn differences(
    listed: &BTreeMap<(String, String), DeviceIds>,
    entries: &[CheckpointEntry],
    pods: &[Arc<Pod>],
) -> Vec<Difference> {
    let mut checkpointed: BTreeMap<(&PodUid, &str), DeviceIds> = BTreeMap::new();
    for entry in entries {
        let ids = checkpointed.entry((&entry.pod, entry.container.as_str()));
        ids.or_default().extend(entry.ids.iter().cloned());
    }
    let mut found = Vec::new();
    for pod in pods.iter().filter(|pod| pod.phase == Phase::Running) {
        for container in &pod.containers {
            if container.stage == Stage::Init {
                continue;
            }
            let key = (pod.full_name(), container.name.clone());
            let listed = listed.get(&key).cloned().unwrap_or_default();
            let checkpointed = checkpointed.get(&(&pod.kubelet_uid, container.name.as_str()));
            let checkpointed = checkpointed.cloned().unwrap_or_default();
            if listed != checkpointed {
                found.push(Difference {
                    pod: key.0,
                    container: key.1,
                    listed,
                    checkpointed,
                });
            }
        }
    }
    found.sort_by(|a, b| (&a.pod, &a.container).cmp(&(&b.pod, &b.container)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::{ContainerDevices, ContainerResources, PodResources};
    use crate::testing::{RESOURCE, container, pod};

    fn answer(pod: &str, container: &str, ids: &[&str]) -> PodResources {
        PodResources {
            name: pod.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![ContainerResources {
                name: container.to_owned(),
                devices: vec![ContainerDevices {
                    resource_name: RESOURCE.to_owned(),
                    device_ids: ids.iter().map(|&id| id.to_owned()).collect(),
                }],
            }],
        }
    }

    fn entry(pod: &str, container: &str, id: &str) -> CheckpointEntry {
        CheckpointEntry {
            pod: pod.into(),
            container: container.to_owned(),
            resource: RESOURCE.to_owned(),
            ids: [id.to_owned()].into(),
            name: None,
            non_cdi: None,
        }
    }

    fn check(
        answers: &[PodResources],
        entries: &[CheckpointEntry],
        pods: &[Pod],
        expected: &[&str],
    ) {
        let answer = ListPodResourcesResponse {
            pod_resources: answers.to_vec(),
        };
        let pods: Vec<_> = pods.iter().cloned().map(Arc::new).collect();
        let found = differences(
            &listed(&answer, &[RESOURCE.to_owned()].into()),
            entries,
            &pods,
        );
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn finds_no_difference_between_equal_records() {
        let pods = [pod("u1"), pod("no-gpu")];
        let entries = [entry("u1", "main", "GPU-a::0")];
        check(&[answer("u1", "main", &["GPU-a::0"])], &entries, &pods, &[]);
    }

    #[test]
    fn reports_differing_missing_and_unknown_devices() {
        let pods = [pod("u1"), pod("u2"), pod("u3")];
        let entries = [
            entry("u1", "main", "GPU-a::0"),
            entry("u2", "main", "GPU-a::1"),
        ];
        check(
            &[
                answer("u1", "main", &["GPU-b::0"]),
                answer("u3", "main", &["GPU-a::2"]),
            ],
            &entries,
            &pods,
            &[
                r#"container main of pod default/u1: PodResources lists {"GPU-b::0"}, the kubelet's checkpoint {"GPU-a::0"}"#,
                r#"container main of pod default/u2: PodResources lists {}, the kubelet's checkpoint {"GPU-a::1"}"#,
                r#"container main of pod default/u3: PodResources lists {"GPU-a::2"}, the kubelet's checkpoint {}"#,
            ],
        );
    }

    #[test]
    fn skips_init_containers_and_pods_not_running() {
        let mut starting = pod("u2");
        starting.phase = Phase::Starting;
        let mut with_init = pod("u1");
        with_init
            .containers
            .insert(0, container("first", Stage::Init));
        let entries = [
            entry("u1", "first", "GPU-a::0"),
            entry("u2", "main", "GPU-a::1"),
        ];
        check(&[], &entries, &[with_init, starting], &[]);
    }
}
