//! This node's pods, as far as attribution and events need them: names of containers by the
//! runtime's ids, and who has a card by another plugin.
//!
//! Fed by: the watch of this node's pods. Must not: let what a user may write of a pod put it into
//! another's place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_core::allocation::ALLOCATION;
use aliquot_k8s::event::PodRef;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1 as api;
use parking_lot::Mutex;

use crate::attribute::Said;

/// On mirror pods: the uid under which the kubelet runs the static pod. On others anybody may
/// write it.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// On the API server's copies of static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// As events refer to it.
    pub named: PodRef,
    /// What matters of it for its processes.
    pub said: Said,
    /// Names of its containers, by the runtime's ids.
    pub containers: BTreeMap<String, String>,
}

/// All of them, by the kubelet's uids. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pods(Arc<Mutex<BTreeMap<PodUid, Arc<Pod>>>>);

impl Pods {
    /// Those there are now.
    pub fn all(&self) -> BTreeMap<PodUid, Arc<Pod>> {
        self.0.lock().clone()
    }

    /// One of them.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.0.lock().get(uid).cloned()
    }

    /// Those in one of these namespaces.
    pub fn in_namespaces(&self, namespaces: &[String]) -> BTreeSet<PodUid> {
        let all = self.0.lock();
        let there = all
            .iter()
            .filter(|(_, pod)| namespaces.contains(&pod.named.namespace));
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
            let same = |known: &Arc<Pod>| known.named.uid == pod.named.uid;
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

/// A pod's own uid is the API server's word: no copy of a static pod takes its place.
fn put(all: &mut BTreeMap<PodUid, Arc<Pod>>, uid: PodUid, pod: Arc<Pod>) {
    let owns = |pod: &Pod| pod.named.uid == uid.as_str();
    let taken = all.get(&uid).is_some_and(|known| owns(known));
    if owns(&pod) || !taken {
        all.insert(uid, pod);
    }
}

fn read(pod: &api::Pod) -> Option<(PodUid, Pod)> {
    let meta = &pod.metadata;
    let annotations = meta.annotations.as_ref();
    let annotation = |key: &str| annotations.and_then(|all| all.get(key));
    let uid = meta.uid.clone()?;
    let of_static = annotation(CONFIG_HASH).filter(|_| annotation(MIRROR).is_some());
    let kubelets = of_static.unwrap_or(&uid).as_str().into();
    let named = PodRef {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone()?,
        uid,
    };
    let allocated = annotation(ALLOCATION).is_some();
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let said = Said {
        foreign: !allocated && pod.spec.as_ref().is_some_and(asks),
        allocated,
        ended: matches!(phase, Some("Succeeded" | "Failed")),
    };
    let containers = containers(pod);
    let pod = Pod {
        named,
        said,
        containers,
    };
    Some((kubelets, pod))
}

/// For some of what GPUs are offered by, or by a claim.
fn asks(spec: &api::PodSpec) -> bool {
    let init = spec.init_containers.iter().flatten();
    let mut all = init.chain(&spec.containers);
    let claims = spec
        .resource_claims
        .as_ref()
        .is_some_and(|all| !all.is_empty());
    claims
        || all.any(|container| {
            let resources = container.resources.as_ref();
            let limits = resources.and_then(|resources| resources.limits.as_ref());
            let mut limits = limits.into_iter().flatten();
            limits.any(|(name, quantity)| is_gpu(name) && is_some(&quantity.0))
        })
}

/// A resource by which a device plugin may give somebody a GPU. Others, which a user may ask for
/// besides, prove nothing.
fn is_gpu(resource: &str) -> bool {
    let own = resource.split_once('/');
    own.is_some_and(|(domain, name)| domain == "nvidia.com" || name.contains("gpu"))
}

/// Of nothing everybody may ask for everything.
fn is_some(quantity: &str) -> bool {
    let digits = quantity
        .bytes()
        .take_while(|byte| !byte.is_ascii_alphabetic());
    digits.into_iter().any(|byte| matches!(byte, b'1'..=b'9'))
}

/// `containerd://<id>` of each container, without its scheme.
fn containers(pod: &api::Pod) -> BTreeMap<String, String> {
    let statuses = pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        let app = status.container_statuses.iter().flatten();
        let debug = status.ephemeral_container_statuses.iter().flatten();
        init.chain(app).chain(debug)
    });
    let known = statuses.filter_map(|status| {
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some((id.to_owned(), status.name.clone()))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> api::Pod {
        serde_json::from_value(value).expect("a pod")
    }

    #[test]
    fn containers_are_known_by_the_runtimes_ids_and_static_pods_by_the_kubelets_uid() {
        let pods = Pods::default();
        pods.apply(pod(json!({
            "metadata": {"uid": "u", "name": "p", "namespace": "d",
                         "annotations": {"kubernetes.io/config.hash": "h",
                                         "kubernetes.io/config.mirror": "h"}},
            "spec": {"containers": []},
            "status": {
                "containerStatuses": [{"name": "main", "containerID": "containerd://aa",
                    "image": "", "imageID": "", "ready": true, "restartCount": 0}],
                "initContainerStatuses": [{"name": "init", "containerID": "containerd://bb",
                    "image": "", "imageID": "", "ready": true, "restartCount": 0}]},
        })));
        let found = pods.get(&"h".into()).expect("known");
        assert_eq!(
            (found.named.uid.as_str(), found.said),
            ("u", Said::default())
        );
        let names: Vec<_> = found.containers.values().collect();
        assert_eq!(names, ["main", "init"]);
        assert!(pods.in_namespaces(&["d".to_owned()]).contains("h"));
        assert!(pods.in_namespaces(&["e".to_owned()]).is_empty());
        pods.replace(Vec::new());
        assert!(pods.all().is_empty());
    }

    #[test]
    fn a_user_put_its_pod_into_anothers_place_by_an_annotation() {
        let named = |uid: &str, annotations: Value| {
            pod(
                json!({"metadata": {"uid": uid, "name": uid, "annotations": annotations},
                       "spec": {"containers": []}}),
            )
        };
        let hash = json!({"kubernetes.io/config.hash": "victim"});
        let mirror = json!({"kubernetes.io/config.hash": "victim",
                            "kubernetes.io/config.mirror": "victim"});
        let victim = || named("victim", json!({}));
        let check = |pods: &Pods| {
            let found = pods.get(&"victim".into()).expect("known");
            assert_eq!(found.named.uid, "victim");
        };
        for annotations in [hash, mirror] {
            let tenant = || named("tenant", annotations.clone());
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
        pods.apply(named("tenant", json!({"kubernetes.io/config.hash": "x"})));
        assert!(pods.get(&"tenant".into()).is_some(), "it hid itself");
    }

    #[test]
    fn a_pod_with_a_device_that_we_did_not_give_has_it_by_another_plugin() {
        let check = |resource: &str, quantity: &str, annotations: Value, expected| {
            let pod = pod(json!({
                "metadata": {"uid": "u", "name": "p", "annotations": annotations},
                "spec": {"containers": [{"name": "c",
                    "resources": {"limits": {resource: quantity}}}]},
            }));
            let (_, found) = read(&pod).expect("read");
            assert_eq!(found.said.foreign, expected, "{resource}");
        };
        let ours = json!({"aliquot.dev/allocation": "{}"});
        check("cpu", "1", json!({}), false);
        check("nvidia.com/gpu", "1", json!({}), true);
        check("nvidia.com/mig-1g.5gb", "10", json!({}), true);
        check("example.com/gpu-mem", "1Gi", json!({}), true);
        check("nvidia.com/gpu", "1", ours, false);
    }

    #[test]
    fn a_pod_was_never_ended_that_asked_for_nothing_of_something() {
        for (resource, quantity) in [
            ("nvidia.com/gpu", "0"),
            ("nvidia.com/gpu", "0.0e5"),
            ("example.com/x", "1"),
            ("rdma/hca", "1"),
        ] {
            let pod = pod(json!({
                "metadata": {"uid": "u", "name": "p"},
                "spec": {"containers": [{"name": "c",
                    "resources": {"limits": {resource: quantity}}}]},
            }));
            let (_, found) = read(&pod).expect("read");
            assert!(!found.said.foreign, "{resource}: {quantity}");
        }
    }
}
