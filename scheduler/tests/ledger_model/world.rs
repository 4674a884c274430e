//! The objects in the API server, and the watches' events on their way.

use std::collections::{BTreeMap, VecDeque};

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::{Gpu, Health, INVENTORY, Inventory, OrphanedShare};
use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::preemption::record::{PREEMPTION, PlanState};
use aliquot_core::resize::RESIZE_STATUS;
use aliquot_core::{Allocation, GpuUuid, Mib, NodeName, Percent, PodUid};
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1 as api;
use serde_json::json;

use crate::shapes::Shape;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pod {
    pub(crate) shape: usize,
    pub(crate) node: Option<NodeName>,
    /// The allocation annotation, or an invalid text.
    pub(crate) given: Option<Result<Allocation, &'static str>>,
    pub(crate) ended: bool,
    /// How many resizes were written.
    pub(crate) generation: u64,
    /// What its node shall enforce, where that is less than is allocated.
    pub(crate) to: Option<Allocation>,
    /// The preemption plan in its annotation.
    pub(crate) plan: Option<PreemptionRecord>,
}

impl Pod {
    /// kube-scheduler has it in its queue.
    pub(crate) fn pending(&self) -> bool {
        self.node.is_none() && !self.ended
    }

    pub(crate) fn open_plan(&self) -> Option<&PreemptionRecord> {
        let plan = self.plan.as_ref();
        plan.filter(|plan| plan.state == PlanState::Open)
    }
}

/// `spec.priority`, by the last digit of the pod's number.
pub(crate) fn priority(uid: &PodUid) -> i32 {
    let last = uid.as_str().bytes().next_back();
    i32::from(last.unwrap_or_default() % 4)
}

/// A GPU as its agent published it.
#[derive(Clone, Debug)]
pub(crate) struct ModelGpu {
    pub(crate) uuid: GpuUuid,
    pub(crate) memory: u64,
    pub(crate) replicas: u32,
    pub(crate) healthy: bool,
    pub(crate) cordoned: bool,
}

impl ModelGpu {
    /// It takes new shares.
    pub(crate) fn open(&self) -> bool {
        self.healthy && !self.cordoned
    }
}

/// A node in the API server.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its inventory is valid.
    pub(crate) readable: bool,
    pub(crate) gpus: Vec<ModelGpu>,
    /// Replicas that its kubelet offers; `None` before it has reported any.
    pub(crate) offered: Option<u32>,
    /// Pod, GPU, memory, cores.
    pub(crate) orphaned: Vec<(PodUid, GpuUuid, u64, u32)>,
}

impl Node {
    /// With so many GPUs of 1000 MiB.
    pub(crate) fn new(name: &NodeName, gpus: u8) -> Self {
        let gpu = |n: u8| ModelGpu {
            uuid: format!("GPU-{name}-{n}").into(),
            memory: 1000,
            replicas: 4,
            healthy: true,
            cordoned: false,
        };
        Self {
            readable: true,
            gpus: (0..gpus).map(gpu).collect(),
            offered: Some(4 * u32::from(gpus)),
            orphaned: Vec::new(),
        }
    }
}

/// An event that a watch is about to deliver.
#[derive(Clone, Debug)]
pub(crate) enum Event<T> {
    Applied(T),
    Deleted(T),
}

/// One kind of object, and its watch.
#[derive(Debug)]
pub(crate) struct Store<K, T> {
    pub(crate) objects: BTreeMap<K, T>,
    pub(crate) coming: VecDeque<(K, Event<T>)>,
}

impl<K, T> Default for Store<K, T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            coming: VecDeque::new(),
        }
    }
}

impl<K: Ord + Clone, T: Clone> Store<K, T> {
    pub(crate) fn put(&mut self, key: &K, object: T) {
        self.objects.insert(key.clone(), object.clone());
        self.coming.push_back((key.clone(), Event::Applied(object)));
    }

    pub(crate) fn change(&mut self, key: &K, change: impl FnOnce(&mut T)) {
        if let Some(object) = self.objects.get_mut(key) {
            change(object);
            self.coming
                .push_back((key.clone(), Event::Applied(object.clone())));
        }
    }

    pub(crate) fn delete(&mut self, key: &K) {
        if let Some(object) = self.objects.remove(key) {
            self.coming.push_back((key.clone(), Event::Deleted(object)));
        }
    }
}

/// The object as the watch hands it out.
pub(crate) fn pod_object(shapes: &[Shape], uid: &PodUid, pod: &Pod) -> PodView {
    let mut object = shapes[pod.shape].pod.clone();
    object.metadata.name = Some(uid.to_string());
    object.metadata.uid = Some(uid.to_string());
    if let Some(spec) = &mut object.spec {
        spec.node_name = pod.node.as_ref().map(ToString::to_string);
        spec.priority = Some(priority(uid));
    }
    if let Some(given) = &pod.given {
        let text = match given {
            Ok(allocation) => allocation.encode().expect("can be written"),
            Err(text) => (*text).to_owned(),
        };
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(ALLOCATION.to_owned(), text);
    }
    if pod.generation > 0 {
        let status = json!({"v": 1, "generation": pod.generation, "state": "waiting",
            "message": "", "request": ""});
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(RESIZE_STATUS.to_owned(), status.to_string());
    }
    if let Some(plan) = &pod.plan {
        let text = plan.encode().expect("can be written");
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(PREEMPTION.to_owned(), text);
    }
    if let (true, Some(status)) = (pod.ended, &mut object.status) {
        status.phase = Some("Succeeded".to_owned());
    }
    PodView::from(&object)
}

/// A quota on memory and on compute.
pub(crate) fn quota_object(limits: [Option<u64>; 2]) -> api::ResourceQuota {
    let names = ["limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"];
    let hard = names.iter().zip(limits);
    let hard: BTreeMap<_, _> = hard
        .filter_map(|(name, most)| Some((*name, most?.to_string())))
        .collect();
    let object = json!({"metadata": {"name": "q", "namespace": "d"}, "spec": {"hard": hard}});
    serde_json::from_value(object).expect("a ResourceQuota")
}

/// The object as the watch hands it out.
pub(crate) fn node_object(name: &NodeName, node: &Node) -> api::Node {
    let mut object = api::Node::default();
    object.metadata.name = Some(name.to_string());
    let annotations = object.metadata.annotations.get_or_insert_default();
    let text = inventory(node).encode().expect("can be written");
    let text = if node.readable { text } else { "{".to_owned() };
    annotations.insert(INVENTORY.to_owned(), text);
    let cordoned = node.gpus.iter().filter(|gpu| gpu.cordoned);
    let cordoned: Vec<_> = cordoned.map(|gpu| gpu.uuid.as_str()).collect();
    annotations.insert("aliquot.dev/device-cordon".to_owned(), cordoned.join(","));
    if let Some(offered) = node.offered {
        let allocatable = json!({"nvidia.com/gpu": offered.to_string()});
        let status = json!({"allocatable": allocatable});
        object.status = Some(serde_json::from_value(status).expect("a status"));
    }
    object
}

fn inventory(node: &Node) -> Inventory {
    let gpu = |(index, model): (u32, &ModelGpu)| Gpu {
        replicas: model.replicas,
        health: if model.healthy {
            Health::Ok
        } else {
            Health::Unhealthy("xid 79".to_owned())
        },
        ..Gpu::vgpu(model.uuid.clone(), index, "m".into(), Mib(model.memory))
    };
    let left = |(pod, gpu, memory, cores): &(PodUid, GpuUuid, u64, u32)| OrphanedShare {
        pod: pod.clone(),
        gpu: gpu.clone(),
        replicas: 1,
        memory: Mib(*memory),
        cores: Percent(*cores),
    };
    Inventory {
        orphaned: node.orphaned.iter().map(left).collect(),
        ..Inventory::new((0..).zip(&node.gpus).map(gpu).collect())
    }
}
