//! When the node's conditions are written.

use super::*;
use crate::device_failures::Recovery;

fn seen(status: Option<&str>) -> NodeView {
    NodeView {
        lost: status.map(|status| (status.to_owned(), String::new())),
        ..NodeView::default()
    }
}

#[test]
fn sets_and_clears_checkpoint_lost_condition() {
    let check = |lost: &[&str], status: Option<&str>, expected: Option<&str>| {
        let lost = lost.iter().map(|&uid| uid.into()).collect();
        let desired = checkpoint_condition(&lost, &seen(status));
        let status = desired.as_ref().map(|[status, ..]| status.as_str());
        assert_eq!(status, expected, "{lost:?}");
    };
    check(&[], None, None);
    check(&["u1"], None, Some("True"));
    check(&["u1"], Some("False"), Some("True"));
    check(&[], Some("True"), Some("False"));
}

#[test]
fn does_not_rewrite_current_condition() {
    let lost = ["u1".into()].into();
    let [status, _, message] = checkpoint_condition(&lost, &seen(None)).expect("written");
    let right = NodeView {
        lost: Some((status, message)),
        ..NodeView::default()
    };
    assert_eq!(checkpoint_condition(&lost, &right), None);
}

#[test]
fn sets_gpu_sick_condition_until_gpu_recovers() {
    let sick = |why: &str, recovery| DeviceFailure {
        gpu: "GPU-a".into(),
        cause: why.to_owned(),
        recovery,
    };
    let mut seen = NodeView::default();
    let mut check = |gpus: &[DeviceFailure], expected: Option<[&str; 2]>| {
        let desired = sick_condition(gpus, &seen);
        let found = desired.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{gpus:?}");
        if let Some([status, _, message]) = desired {
            seen.sick = Some((status, message));
        }
    };
    let both = [
        sick("XID 48", Recovery::ResetGpu),
        sick("XID 79", Recovery::DrainNode),
    ];
    let waiting = sick("registration in progress", Recovery::FabricRegistration);
    check(&[], None);
    check(&[waiting], Some(["True", "FabricNotReady"]));
    check(&both[..1], Some(["True", "ResetNeeded"]));
    check(&both[..1], None);
    check(&both, Some(["True", "DrainNeeded"]));
    check(&[], Some(["False", "GpusWell"]));
    check(&[], None);
}

#[test]
fn mig_14_sets_condition_while_runtime_lacks_feature() {
    let fault = runtime::RuntimeProblem {
        reason: "CdiOff",
        blocks: true,
        text: "off".to_owned(),
    };
    let mut seen = NodeView::default();
    let mut check = |lacks: Option<&[runtime::RuntimeProblem]>, expected: Option<[&str; 2]>| {
        let desired = runtime_condition(lacks, &seen);
        let found = desired.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{lacks:?}");
        if let Some([status, _, message]) = desired {
            seen.lacks = Some((status, message));
        }
    };
    check(None, None);
    check(Some(&[]), None);
    check(Some(std::slice::from_ref(&fault)), Some(["True", "CdiOff"]));
    check(Some(std::slice::from_ref(&fault)), None);
    check(None, None);
    check(Some(&[]), Some(["False", "RuntimeComplete"]));
}

#[test]
fn sets_condition_while_other_plugin_serves_resource() {
    let taken = TakenResource {
        resource: "nvidia.com/gpu".to_owned(),
        ids: ["nvidia0".to_owned(), "nvidia1".to_owned()].into(),
    };
    let mut seen = NodeView::default();
    let mut check = |taken: Option<&[TakenResource]>, expected: Option<[&str; 2]>| {
        let desired = taken_condition(taken, &seen);
        let found = desired.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{taken:?}");
        if let Some([status, _, message]) = desired {
            let example = "nvidia.com/gpu (2 device ids, such as nvidia0)";
            assert_eq!(message.contains(example), status == "True", "{message}");
            seen.taken = Some((status, message));
        }
    };
    let one = std::slice::from_ref(&taken);
    check(None, None);
    check(Some(&[]), None);
    check(Some(one), Some(["True", "OtherDevicePlugin"]));
    check(Some(one), None);
    check(None, None);
    check(Some(&[]), Some(["False", "Registered"]));
}

#[test]
fn sets_condition_for_gpus_whose_compute_is_not_corrected() {
    let mut gpus = crate::testing::facts(&["GPU-a", "GPU-b"]).gpus;
    gpus[1].mig.enabled = true;
    let mut seen = NodeView::default();
    let mut check = |uncorrected: Option<&[&str]>, expected: Option<[&str; 2]>| {
        let owned = |all: &[&str]| all.iter().map(|&gpu| gpu.to_owned()).collect();
        let uncorrected: Option<BTreeSet<String>> = uncorrected.map(owned);
        let desired = uncorrected_condition(uncorrected.as_ref(), &gpus, &seen);
        let found = desired.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{uncorrected:?}");
        if let Some([status, _, message]) = desired {
            assert_eq!(message.contains("not corrected"), status == "True");
            assert_eq!(message.contains("GPU-b"), status == "True", "{message}");
            seen.uncorrected = Some((status, message));
        }
    };
    check(None, None);
    check(Some(&[]), None);
    check(Some(&["GPU-gone"]), None);
    check(Some(&["GPU-b"]), Some(["True", "PartitionedGpus"]));
    let both = Some(["True", "UtilizationNotReported"]);
    check(Some(&["GPU-a", "GPU-b"]), both);
    check(Some(&["GPU-a", "GPU-b"]), None);
    check(None, None);
    check(Some(&[]), Some(["False", "UtilizationReported"]));
}

#[test]
fn condition_names_pods_with_unreadable_allocation() {
    let pod = |uid: &str, change: &dyn Fn(&mut Pod)| {
        let mut pod = crate::testing::pod(uid);
        change(&mut pod);
        Arc::new(pod)
    };
    let spoilt = |pod: &mut Pod| pod.allocation = Some("{".to_owned());
    let of_hami = |pod: &mut Pod| pod.hami_allocation = Some("?".to_owned());
    let foreign = [ForeignAllocation {
        gpu: "GPU-a".into(),
        pod: "default/hami".to_owned(),
        hami: Some("hami".into()),
    }];
    let mut seen = NodeView::default();
    let mut check = |pods: &[Arc<Pod>], expected: Option<[&str; 2]>| {
        let desired = allocation_condition(pods, &foreign, &seen);
        let found = desired.as_ref().map(|[status, _, message]| {
            let names = message.rsplit(": ").next().unwrap_or_default();
            [status.as_str(), names]
        });
        assert_eq!(found, expected);
        if let Some([status, _, message]) = desired {
            seen.unreadable = Some((status, message));
        }
    };
    check(&[pod("forger", &of_hami)], None);
    let pods = [pod("a", &spoilt), pod("hami", &of_hami)];
    check(&pods, Some(["True", "default/a, default/hami"]));
    check(&pods, None);
    let readable = "the allocations of all pods on this node can be read";
    check(&[], Some(["False", readable]));
}

#[test]
fn reads_annotation_and_condition_of_the_node() {
    let node: api::Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": {INVENTORY: "x"}},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": CHECKPOINT_LOST, "status": "True", "message": "m"}]},
    }))
    .expect("a node");
    let found = NodeView::read(&node);
    assert_eq!(found.inventory.as_deref(), Some("x"));
    assert_eq!(found.lost, Some(("True".to_owned(), "m".to_owned())));
}

#[tokio::test]
async fn patches_taint_over_latest_resource_version() {
    // A node of an API server that refuses a write over an older version.
    let node = std::sync::Arc::new(Mutex::new(json!({
        "metadata": {"name": "n1", "resourceVersion": "1"},
        "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
    })));
    let served = std::sync::Arc::clone(&node);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let served = std::sync::Arc::clone(&served);
        async move {
            let body = request.into_body().collect_bytes().await?;
            let patch: Value = serde_json::from_slice(&body)?;
            let mut node = served.lock();
            let version = node["metadata"]["resourceVersion"].clone();
            let over = &patch["metadata"]["resourceVersion"];
            let (code, answer) = if over.is_null() || *over == version {
                merge(&mut node, &patch);
                let next: u64 = version.as_str().and_then(|v| v.parse().ok()).unwrap_or(0) + 1;
                node["metadata"]["resourceVersion"] = json!(next.to_string());
                (200, node.clone())
            } else {
                (
                    409,
                    json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "old"}),
                )
            };
            let answer = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, tower::BoxError>(http::Response::builder().status(code).body(answer)?)
        }
    });
    let published = NodePublisher::new(
        crate::testing::facts(&["GPU-a"]),
        Vec::new(),
        crate::testing::layout_of(&["GPU-a"]),
    );
    let drained = device_failures::NodeFailures {
        drain_reason: Some("XID 79".to_owned()),
        ..device_failures::NodeFailures::default()
    };
    let facts = crate::testing::facts(&["GPU-a"]);
    published.set_devices(
        &facts,
        &[],
        drained,
        crate::allocatable::AllocatedIds::new(),
    );
    let known: api::Node = serde_json::from_value(node.lock().clone()).expect("a node");
    let writer = NodeWriter {
        nodes: Api::all(kube::Client::new(service, "default")),
        name: "n1".to_owned(),
        published: published.clone(),
        resource: "nvidia.com/gpu".to_owned(),
        feature_labels: ownership::LabelPolicy::On,
        capacity: None,
        pods: Pods::default(),
        view: watch::Sender::new(Some(NodeView::read(&known))),
        metrics: Metrics::default(),
        clear: Box::new(|_| Box::pin(async { Ok(()) })),
        taken: Mutex::default(),
    };
    let now = published.get();
    let written = writer.write("{}", &now, None, NodeView::read(&known)).await;
    assert_eq!(written, Ok(()));
    let node = node.lock();
    assert_eq!(node["metadata"]["annotations"][INVENTORY], "{}");
    let taints = node["spec"]["taints"].as_array().expect("taints").iter();
    let keys: Vec<_> = taints.map(|taint| taint["key"].as_str()).collect();
    assert_eq!(keys, [Some("other"), Some(drain::TAINT)]);
}

/// Applies a merge patch.
fn merge(node: &mut Value, patch: &Value) {
    match (node, patch) {
        (Value::Object(node), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(node.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (node @ Value::Null, Value::Object(_)) => {
            *node = json!({});
            merge(node, patch);
        }
        (node, value) => *node = value.clone(),
    }
}
