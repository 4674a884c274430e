//! This node's pods, as far as attribution and events need them: names of containers by the
//! runtime's ids, and whether a pod has a GPU from another device plugin. Nothing that a user may
//! write on a pod makes it replace another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::request;
use aliquot_core::{PodUid, Stage};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1 as api;
use parking_lot::Mutex;

/// The label of the MPS supervisor's pods.
const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "mps");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSource {
    Nothing,
    Allocation,
    /// It requests a device and has no allocation of ours: another device plugin gave it one.
    OtherPlugin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub reference: PodRef,
    pub gpu: GpuSource,
    pub ended: bool,
    /// Its init containers that have succeeded, by name.
    pub ended_containers: BTreeSet<String>,
    /// Names of its containers, by the runtime's ids.
    pub containers: BTreeMap<String, String>,
    /// It has the label of the MPS supervisor's pods, which any user may write on a pod.
    pub has_mps_label: bool,
}

/// All pods, by the kubelet's uids. Clones share the same pods.
#[derive(Clone, Debug, Default)]
pub struct Pods(Arc<Mutex<BTreeMap<PodUid, Arc<Pod>>>>);

impl Pods {
    pub fn all(&self) -> BTreeMap<PodUid, Arc<Pod>> {
        self.0.lock().clone()
    }

    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.0.lock().get(uid).cloned()
    }

    /// The pods of the MPS supervisor, which are in the namespace of this pod: whoever may create pods
    /// there may do all that we may.
    pub fn of_mps_supervisor(&self, own: &PodUid) -> BTreeSet<PodUid> {
        let all = self.0.lock();
        let Some(own) = all.get(own) else {
            return BTreeSet::new();
        };
        let there = all.iter().filter(|(_, pod)| {
            pod.has_mps_label && pod.reference.namespace == own.reference.namespace
        });
        there.map(|(uid, _)| uid.clone()).collect()
    }
}

impl Index<api::Pod> for Pods {
    type Entry = Option<(PodUid, Arc<Pod>)>;

    fn entry(&self, object: api::Pod) -> Self::Entry {
        read(&object).map(|(uid, pod)| (uid, Arc::new(pod)))
    }

    fn apply(&self, object: api::Pod) {
        if let Some((uid, pod)) = self.entry(object) {
            put(&mut self.0.lock(), uid, pod);
        }
    }

    fn delete(&self, object: api::Pod) {
        if let Some((uid, pod)) = read(&object) {
            let mut all = self.0.lock();
            let same = |known: &Arc<Pod>| known.reference.uid == pod.reference.uid;
            if all.get(&uid).is_some_and(same) {
                all.remove(&uid);
            }
        }
    }

    fn replace(&self, listed: Vec<Self::Entry>) {
        let mut all = BTreeMap::new();
        for (uid, pod) in listed.into_iter().flatten() {
            put(&mut all, uid, pod);
        }
        *self.0.lock() = all;
    }
}

/// A pod under its own uid, which the API server assigns, is never replaced by a mirror pod.
fn put(all: &mut BTreeMap<PodUid, Arc<Pod>>, uid: PodUid, pod: Arc<Pod>) {
    let owns = |pod: &Pod| pod.reference.uid == uid.as_str();
    let taken = all.get(&uid).is_some_and(|known| owns(known));
    if owns(&pod) || !taken {
        all.insert(uid, pod);
    }
}

fn read(pod: &api::Pod) -> Option<(PodUid, Pod)> {
    let meta = &pod.metadata;
    let label = |key| meta.labels.as_ref()?.get(key).map(String::as_str);
    let uid = meta.uid.clone()?;
    let reference = PodRef {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone()?,
        uid,
    };
    let gpu = if pod::annotation(pod, ALLOCATION).is_some() {
        GpuSource::Allocation
    } else if requests_gpu(pod) {
        GpuSource::OtherPlugin
    } else {
        GpuSource::Nothing
    };
    let found = Pod {
        reference,
        gpu,
        ended: pod::is_finished(pod),
        ended_containers: ended_containers(pod),
        containers: pod::names_by_id(pod),
        has_mps_label: label(COMPONENT.0) == Some(COMPONENT.1),
    };
    Some((pod::kubelet_uid(pod), found))
}

/// Whether it requests a GPU resource, or has a resource claim. A request for any other resource proves
/// nothing.
fn requests_gpu(pod: &api::Pod) -> bool {
    let spec = pod.spec.as_ref();
    let claims = spec.and_then(|spec| spec.resource_claims.as_ref());
    claims.is_some_and(|all| !all.is_empty())
        || pod::containers(pod).any(|(container, _)| {
            let resources = container.resources.as_ref();
            let listed = resources.and_then(|resources| resources.limits.as_ref());
            let mut limits = listed.into_iter().flatten();
            limits.any(|(name, quantity)| request::is_gpu(name) && is_positive(&quantity.0))
        })
}

/// A quantity of zero may be requested of any resource.
fn is_positive(quantity: &str) -> bool {
    let digits = quantity
        .bytes()
        .take_while(|byte| !byte.is_ascii_alphabetic());
    digits.into_iter().any(|byte| matches!(byte, b'1'..=b'9'))
}

/// A sidecar that has ended is started again.
fn ended_containers(pod: &api::Pod) -> BTreeSet<String> {
    let is_sidecar = |name: &str| {
        pod::containers(pod).any(|(one, stage)| stage == Stage::Sidecar && one.name == name)
    };
    let status = pod.status.iter();
    let statuses = status.flat_map(|status| status.init_container_statuses.iter().flatten());
    let succeeded = statuses.filter(|status| {
        let state = status.state.as_ref();
        let ended = state.and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0) && !is_sidecar(&status.name)
    });
    succeeded.map(|status| status.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> api::Pod {
        serde_json::from_value(value).expect("a pod")
    }

    /// That of a mirror pod on node `n`.
    fn owner() -> Value {
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}])
    }

    #[test]
    fn indexes_static_pods_by_kubelet_uid() {
        let pods = Pods::default();
        pods.apply(pod(json!({
            "metadata": {"uid": "u", "name": "p", "namespace": "d",
                         "ownerReferences": owner(),
                         "annotations": {"kubernetes.io/config.hash": "h",
                                         "kubernetes.io/config.mirror": "h"}},
            "spec": {"nodeName": "n", "containers": []},
            "status": {
                "containerStatuses": [{"name": "main", "containerID": "containerd://aa",
                    "image": "", "imageID": "", "ready": true, "restartCount": 0}],
                "initContainerStatuses": [{"name": "init", "containerID": "containerd://bb",
                    "image": "", "imageID": "", "ready": true, "restartCount": 0}]},
        })));
        let found = pods.get(&"h".into()).expect("known");
        assert_eq!(found.reference.uid, "u");
        let names: Vec<_> = found.containers.values().collect();
        assert_eq!(names, ["main", "init"]);
        pods.replace(Vec::new());
        assert!(pods.all().is_empty());
    }

    #[test]
    fn finds_mps_supervisor_only_in_own_namespace() {
        let pods = Pods::default();
        let put = |uid: &str, namespace: &str, component: &str| {
            let labels = json!({"app.kubernetes.io/component": component});
            pods.apply(pod(json!({
                "metadata": {"uid": uid, "name": uid, "namespace": namespace, "labels": labels},
                "spec": {"containers": []},
            })));
        };
        put("agent", "aliquot-system", "device-plugin");
        put("supervisor", "aliquot-system", "mps");
        put("tenant", "default", "mps");
        let of = |own: &str| pods.of_mps_supervisor(&own.into());
        assert_eq!(of("agent"), ["supervisor".into()].into());
        assert!(of("unknown").is_empty());
    }

    #[test]
    fn keeps_pod_despite_forged_annotation_of_another() {
        let reference = |uid: &str, annotations: Value| {
            let metadata = json!({"uid": uid, "name": uid, "annotations": annotations,
                                  "ownerReferences": owner()});
            pod(json!({"metadata": metadata, "spec": {"nodeName": "n", "containers": []}}))
        };
        let hash = json!({"kubernetes.io/config.hash": "victim"});
        let mirror = json!({"kubernetes.io/config.hash": "victim",
                            "kubernetes.io/config.mirror": "victim"});
        let victim = || reference("victim", json!({}));
        let check = |pods: &Pods| {
            let found = pods.get(&"victim".into()).expect("known");
            assert_eq!(found.reference.uid, "victim");
        };
        for annotations in [hash, mirror] {
            let tenant = || reference("tenant", annotations.clone());
            let pods = Pods::default();
            pods.apply(victim());
            pods.apply(tenant());
            check(&pods);
            pods.delete(tenant());
            check(&pods);
            let listed = [tenant(), victim()].map(|one| pods.entry(one));
            pods.replace(listed.into());
            check(&pods);
        }
        let pods = Pods::default();
        let hash = json!({"kubernetes.io/config.hash": "x"});
        pods.apply(reference("tenant", hash));
        assert!(pods.get(&"tenant".into()).is_some(), "under its own uid");
        let mut unowned = reference(
            "other",
            json!({"kubernetes.io/config.hash": "y", "kubernetes.io/config.mirror": "y"}),
        );
        unowned.metadata.owner_references = None;
        pods.apply(unowned);
        assert!(pods.get(&"other".into()).is_some(), "not owned");
    }

    #[test]
    fn detects_gpu_of_other_device_plugin() {
        let (none, ours) = (json!({}), json!({"aliquot.dev/allocation": "{}"}));
        for (resource, quantity, annotations, expected) in [
            ("cpu", "1", &none, false),
            ("nvidia.com/gpu", "1", &none, true),
            ("nvidia.com/mig-1g.5gb", "10", &none, true),
            ("example.com/gpu-mem", "1Gi", &none, true),
            ("nvidia.com/gpu", "1", &ours, false),
            ("nvidia.com/gpu", "0", &none, false),
            ("nvidia.com/gpu", "0.0e5", &none, false),
            ("example.com/x", "1", &none, false),
            ("rdma/hca", "1", &none, false),
            ("nvidia.com/hostdev", "1", &none, false),
        ] {
            let pod = pod(json!({
                "metadata": {"uid": "u", "name": "p", "annotations": annotations},
                "spec": {"containers": [{"name": "c",
                    "resources": {"limits": {resource: quantity}}}]},
            }));
            let (_, found) = read(&pod).expect("read");
            let is_foreign = found.gpu == GpuSource::OtherPlugin;
            assert_eq!(is_foreign, expected, "{resource}: {quantity}");
        }
    }
}
