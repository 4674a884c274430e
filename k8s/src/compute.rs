//! CPU and memory: what a pod requests and what a node has.
//!
//!
//! kube-scheduler's own rule (component-helpers, `PodRequests`): the larger of (each init
//! container plus the sidecars before it) and (app containers plus sidecars), plus the
//! pod's overhead; requests of the whole pod replace it.

use std::collections::BTreeMap;

use aliquot_core::node::HostResources;
use aliquot_core::{Stage, quantity};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod;

type Amounts = BTreeMap<String, Quantity>;

/// What the pod requests over its life.
pub fn requested(pod: &Pod) -> HostResources {
    let mut sidecars = HostResources::default();
    let mut apps = HostResources::default();
    let mut peak = HostResources::default();
    for (container, stage) in pod::containers(pod) {
        let resources = container.resources.as_ref();
        let requests = amount(resources.and_then(|r| r.requests.as_ref()));
        match stage {
            Stage::Init => peak = larger(peak, sidecars.plus(requests)),
            Stage::Sidecar => sidecars = sidecars.plus(requests),
            Stage::App => apps = apps.plus(requests),
        }
    }
    let mut sum = larger(peak, sidecars.plus(apps));
    let spec = pod.spec.as_ref();
    let whole = spec.and_then(|spec| spec.resources.as_ref());
    if let Some(requests) = whole.and_then(|whole| whole.requests.as_ref()) {
        let whole = amount(Some(requests));
        if requests.contains_key("cpu") {
            sum.cpu = whole.cpu;
        }
        if requests.contains_key("memory") {
            sum.memory = whole.memory;
        }
    }
    sum.plus(amount(spec.and_then(|spec| spec.overhead.as_ref())))
}

/// `status.allocatable` of a node.
pub fn allocatable(node: &Node) -> HostResources {
    let status = node.status.as_ref();
    amount(status.and_then(|status| status.allocatable.as_ref()))
}

/// Missing and invalid quantities count as 0; the API server admits no invalid ones.
fn amount(amounts: Option<&Amounts>) -> HostResources {
    let get = |name| amounts?.get(name).map(|quantity| quantity.0.as_str());
    HostResources {
        cpu: get("cpu").and_then(quantity::milli_cpu).unwrap_or_default(),
        memory: get("memory").and_then(quantity::mib).unwrap_or_default(),
    }
}

fn larger(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.max(b.cpu),
        memory: a.memory.max(b.memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(spec: &Value, cpu: u64, memory: u64) {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let sum = requested(&pod);
        assert_eq!((sum.cpu.0, sum.memory.0), (cpu, memory), "{spec}");
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn requests_follow_kube_scheduler_rule() {
        let (small, large) = (container("250m", "1Gi"), container("2", "64Mi"));
        check(&json!({"containers": [{"name": "c"}]}), 0, 0);
        check(&json!({"containers": [small, small]}), 500, 2048);
        check(
            &json!({"initContainers": [large], "containers": [small]}),
            2000,
            1024,
        );
        let mut sidecar = large.clone();
        sidecar["restartPolicy"] = json!("Always");
        check(
            &json!({"initContainers": [sidecar, large], "containers": [small]}),
            4000,
            1088,
        );
        check(
            &json!({"containers": [small], "overhead": {"cpu": "1"},
                "resources": {"requests": {"memory": "3Gi"}}}),
            1250,
            3072,
        );
    }
}
