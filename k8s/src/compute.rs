//! CPU and memory: what a pod requests and what a node has.
//!
//! Rule: kube-scheduler's own (component-helpers, `PodRequests`): the larger of
//! (each init container plus the sidecars before it) and (app containers plus
//! sidecars), plus the pod's overhead; requests for the whole pod replace it.
//! Fed by: watches and extender calls. Must not: know GPUs.

use std::collections::BTreeMap;

use aliquot_core::node::Compute;
use aliquot_core::{Stage, quantity};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod;

type Amounts = BTreeMap<String, Quantity>;

/// What the pod requests, from its start to its end.
pub fn requested(pod: &Pod) -> Compute {
    let mut sidecars = Compute::default();
    let mut apps = Compute::default();
    let mut peak = Compute::default();
    for (container, stage) in pod::containers(pod) {
        let resources = container.resources.as_ref();
        let wanted = amount(resources.and_then(|r| r.requests.as_ref()));
        match stage {
            Stage::Init => peak = larger(peak, sidecars.plus(wanted)),
            Stage::Sidecar => sidecars = sidecars.plus(wanted),
            Stage::App => apps = apps.plus(wanted),
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
pub fn allocatable(node: &Node) -> Compute {
    let status = node.status.as_ref();
    amount(status.and_then(|status| status.allocatable.as_ref()))
}

/// What is missing is 0, and so is what is no quantity: the API server lets
/// none pass.
fn amount(amounts: Option<&Amounts>) -> Compute {
    let get = |name| amounts?.get(name).map(|quantity| quantity.0.as_str());
    Compute {
        cpu: get("cpu").and_then(quantity::milli_cpu).unwrap_or_default(),
        memory: get("memory").and_then(quantity::mib).unwrap_or_default(),
    }
}

fn larger(a: Compute, b: Compute) -> Compute {
    Compute {
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
    fn requests_follow_kube_schedulers_rule() {
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
