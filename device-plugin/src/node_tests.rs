//! When the node's conditions are written.

use super::*;
use crate::xid::Action;

fn seen(status: Option<&str>) -> Seen {
    Seen {
        lost: status.map(|status| (status.to_owned(), String::new())),
        ..Seen::default()
    }
}

#[test]
fn the_condition_is_written_when_it_becomes_true_and_taken_back_when_healed() {
    let check = |lost: &[&str], status: Option<&str>, expected: Option<&str>| {
        let lost = lost.iter().map(|&uid| uid.into()).collect();
        let wanted = wanted_condition(&lost, &seen(status));
        let status = wanted.as_ref().map(|[status, ..]| status.as_str());
        assert_eq!(status, expected, "{lost:?}");
    };
    check(&[], None, None);
    check(&["u1"], None, Some("True"));
    check(&["u1"], Some("False"), Some("True"));
    check(&[], Some("True"), Some("False"));
}

#[test]
fn a_condition_that_says_it_already_is_not_written_again() {
    let lost = ["u1".into()].into();
    let [status, _, message] = wanted_condition(&lost, &seen(None)).expect("written");
    let right = Seen {
        lost: Some((status, message)),
        ..Seen::default()
    };
    assert_eq!(wanted_condition(&lost, &right), None);
}

#[test]
fn a_sick_card_is_a_condition_until_it_is_well_and_a_node_that_never_had_one_has_none() {
    let sick = |why: &str, action| Sick {
        gpu: "GPU-a".into(),
        why: why.to_owned(),
        action,
    };
    let mut seen = Seen::default();
    let mut check = |cards: &[Sick], expected: Option<[&str; 2]>| {
        let wanted = wanted_sick(cards, &seen);
        let found = wanted.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{cards:?}");
        if let Some([status, _, message]) = wanted {
            seen.sick = Some((status, message));
        }
    };
    let both = [
        sick("XID 48", Action::ResetGpu),
        sick("XID 79", Action::DrainNode),
    ];
    check(&[], None);
    check(&both[..1], Some(["True", "ResetNeeded"]));
    check(&both[..1], None);
    check(&both, Some(["True", "DrainNeeded"]));
    check(&[], Some(["False", "GpusWell"]));
    check(&[], None);
}

#[test]
fn mig_14_what_the_runtime_lacks_is_a_condition_until_it_has_it() {
    let fault = runtime::Fault {
        reason: "CdiOff",
        blocks: true,
        text: "off".to_owned(),
    };
    let mut seen = Seen::default();
    let mut check = |lacks: Option<&[runtime::Fault]>, expected: Option<[&str; 2]>| {
        let wanted = wanted_runtime(lacks, &seen);
        let found = wanted.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{lacks:?}");
        if let Some([status, _, message]) = wanted {
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
fn reads_annotation_and_condition_of_the_node() {
    let node: api::Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": {INVENTORY: "x"}},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": CHECKPOINT_LOST, "status": "True", "message": "m"}]},
    }))
    .expect("a node");
    let found = Seen::read(&node);
    assert_eq!(found.inventory.as_deref(), Some("x"));
    assert_eq!(found.lost, Some(("True".to_owned(), "m".to_owned())));
}

#[tokio::test]
async fn a_taint_was_written_over_the_version_before_our_own_writes() {
    // A node of the API server, which refuses a write over another version than it has.
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
    let published = Published::new(
        crate::testing::facts(&["GPU-a"]),
        Vec::new(),
        crate::testing::arrangement(&["GPU-a"]),
    );
    let drained = sick::Sickness {
        drained: Some("XID 79".to_owned()),
        ..sick::Sickness::default()
    };
    let facts = crate::testing::facts(&["GPU-a"]);
    published.cards(&facts, &[], drained, crate::units::Held::new());
    let known: api::Node = serde_json::from_value(node.lock().clone()).expect("a node");
    let writer = Writer {
        nodes: Api::all(kube::Client::new(service, "default")),
        name: "n1".to_owned(),
        published: published.clone(),
        resource: "nvidia.com/gpu".to_owned(),
        feature_labels: owned::Policy::On,
        capacity: None,
        pods: Pods::default(),
        seen: watch::Sender::new(Some(Seen::read(&known))),
        metrics: Metrics::default(),
        clear: Box::new(|_| Box::pin(async { Ok(()) })),
        taken: Mutex::default(),
    };
    let now = published.get();
    let written = writer.write("{}", &now, None, Seen::read(&known)).await;
    assert_eq!(written, Ok(()));
    let node = node.lock();
    assert_eq!(node["metadata"]["annotations"][INVENTORY], "{}");
    let taints = node["spec"]["taints"].as_array().expect("taints").iter();
    let keys: Vec<_> = taints.map(|taint| taint["key"].as_str()).collect();
    assert_eq!(keys, [Some("other"), Some(drain::TAINT)]);
}

/// As a merge patch is taken over.
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
