//! The shapes of pods in the model check: for the scheduler, and for the model.

use aliquot_core::{Demand, Stage};
use aliquot_k8s::pod;
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// What one container requests, on each of its GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) gpus: usize,
    /// MiB, or with `percent` a part of the GPU.
    pub(crate) memory: u64,
    pub(crate) percent: bool,
    pub(crate) cores: u64,
}

pub(crate) struct Shape {
    pub(crate) pod: Pod,
    pub(crate) demand: Demand,
    /// In pod order.
    pub(crate) containers: Vec<Container>,
}

pub(crate) type Container = (String, Stage, Option<Request>);

impl Shape {
    /// How many app containers.
    pub(crate) fn apps(&self) -> u64 {
        let stages = self.containers.iter().map(|(_, stage, _)| *stage);
        stages.map(|stage| u64::from(stage == Stage::App)).sum()
    }

    /// Which containers run at once: each init container with the sidecars before it, and the app
    /// containers with all sidecars.
    pub(crate) fn at_once(&self) -> Vec<Vec<&Container>> {
        let (mut all, mut running) = (Vec::new(), Vec::new());
        for container in &self.containers {
            let mut with = running.clone();
            with.push(container);
            match container.1 {
                Stage::Init => all.push(with),
                Stage::Sidecar | Stage::App => running = with,
            }
        }
        all.push(running);
        all
    }

    /// How many replicas the kubelet counts for a pod: the most that it has at once.
    pub(crate) fn replicas(&self) -> u64 {
        let gpus = |(.., request): &&Container| request.map_or(0, |request| request.gpus);
        let sums = self.at_once();
        let sums = sums.iter().map(|all| all.iter().map(gpus).sum::<usize>());
        u64::try_from(sums.max().unwrap_or(0)).expect("few")
    }
}

const fn mib(gpus: usize, memory: u64, cores: u64) -> Request {
    let percent = false;
    Request {
        gpus,
        memory,
        percent,
        cores,
    }
}

const fn part(gpus: usize, memory: u64, cores: u64) -> Request {
    Request {
        percent: true,
        ..mib(gpus, memory, cores)
    }
}

type Row = (&'static str, &'static [(Stage, Option<Request>)]);

/// Node and GPU policy, then the containers.
const TABLE: &[Row] = &[
    ("", &[(Stage::App, None)]),
    ("", &[(Stage::App, Some(mib(1, 100, 0)))]),
    ("", &[(Stage::App, Some(mib(1, 400, 30)))]),
    ("binpack", &[(Stage::App, Some(mib(1, 250, 25)))]),
    ("spread", &[(Stage::App, Some(mib(2, 300, 10)))]),
    ("", &[(Stage::App, Some(part(1, 50, 50)))]),
    ("", &[(Stage::App, Some(part(1, 100, 100)))]),
    ("", &[(Stage::App, Some(part(3, 10, 5)))]),
    ("", &[(Stage::App, Some(mib(1, 10, 100)))]),
    (
        "",
        &[
            (Stage::Init, Some(mib(1, 700, 60))),
            (Stage::App, Some(mib(1, 300, 20))),
        ],
    ),
    (
        "",
        &[
            (Stage::Sidecar, Some(mib(1, 50, 0))),
            (Stage::Init, Some(mib(2, 200, 0))),
            (Stage::App, None),
            (Stage::App, Some(part(1, 20, 10))),
        ],
    ),
    (
        "binpack",
        &[
            (Stage::App, Some(mib(1, 300, 20))),
            (Stage::App, Some(mib(2, 500, 40))),
        ],
    ),
];

pub(crate) fn all() -> Vec<Shape> {
    TABLE
        .iter()
        .map(|(policy, row)| shape(policy, row))
        .collect()
}

/// Thousandths of a CPU that every app container requests.
pub(crate) const CPU: u64 = 250;

fn shape(policy: &str, row: &[(Stage, Option<Request>)]) -> Shape {
    let numbered = row.iter().enumerate();
    let containers: Vec<_> = numbered
        .map(|(number, (stage, request))| (format!("c{number}"), *stage, *request))
        .collect();
    let of = |app: bool| {
        let some = containers
            .iter()
            .filter(|(_, stage, _)| (*stage == Stage::App) == app);
        some.map(container).collect::<Value>()
    };
    let annotations = if policy.is_empty() {
        json!({})
    } else {
        json!({"hami.io/node-scheduler-policy": policy, "hami.io/gpu-scheduler-policy": policy})
    };
    let pod = json!({
        "metadata": {"namespace": "d", "annotations": annotations},
        "spec": {"schedulerName": "aliquot-scheduler", "initContainers": of(false), "containers": of(true)},
        "status": {"phase": "Pending"},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a Pod");
    let demand = pod::demand(&PodView::from(&pod), &pod::Settings::default()).expect("a demand");
    Shape {
        pod,
        demand,
        containers,
    }
}

fn container((name, stage, request): &Container) -> Value {
    let mut limits = json!({});
    if let Some(request) = request {
        let memory = if request.percent {
            "gpumem-percentage"
        } else {
            "gpumem"
        };
        limits = json!({
            "nvidia.com/gpu": request.gpus.to_string(),
            format!("nvidia.com/{memory}"): request.memory.to_string(),
            "nvidia.com/gpucores": request.cores.to_string(),
        });
    }
    let mut one = json!({"name": name, "resources": {"limits": limits}});
    match stage {
        Stage::Sidecar => one["restartPolicy"] = json!("Always"),
        Stage::App => one["resources"]["requests"] = json!({"cpu": format!("{CPU}m")}),
        Stage::Init => {}
    }
    one
}
