//! Every kind of bad input, refused with the field, the value and what is accepted.

use serde_json::{Value, json};

use super::*;

const GPU: &str = "nvidia.com/gpu";

/// Exactly one refusal: this field, this text.
pub(super) fn check(pod: &Value, field: &str, message: &str) {
    check_with(&Settings::default(), pod, field, message);
}

fn check_with(settings: &Settings, pod: &Value, field: &str, message: &str) {
    match review(&create(pod, "default"), settings) {
        Verdict::Deny(refusals) => {
            let texts: Vec<_> = refusals.iter().map(|r| (&*r.field, &*r.message)).collect();
            assert_eq!(texts, [(field, message)]);
        }
        Verdict::Allow { .. } => panic!("admitted, expected {field}: {message}"),
    }
}

fn limit(name: &str) -> String {
    format!("spec.containers[0].resources.limits[{name:?}]")
}

#[test]
fn quantities_that_cannot_be_meant() {
    let mib = "a whole number of MiB, 1 to 1048576";
    let cards = "a whole number of cards, 0 to 64";
    let percent = "a whole percentage of the card's memory, 1 to 100";
    let cores = "a whole percentage of the card's compute, 0 to 100";
    let level = "0 (high) or 1 (low)";
    for (resource, value, problem, accepted) in [
        (
            "gpumem",
            "16Gi",
            "has a binary suffix",
            "a whole number of MiB, 1 to 1048576 (write 16384, the unit is MiB)",
        ),
        (
            "gpumem",
            "512Mi",
            "has a binary suffix",
            "a whole number of MiB, 1 to 1048576 (write 512, the unit is MiB)",
        ),
        (
            "gpumem",
            "2048Ki",
            "has a binary suffix",
            "a whole number of MiB, 1 to 1048576 (write 2, the unit is MiB)",
        ),
        ("gpumem", "1Ki", "has a binary suffix", mib),
        ("gpumem", "-1", "is negative", mib),
        ("gpumem", "-3k", "is negative", mib),
        ("gpumem", "1500m", "is not a whole number", mib),
        ("gpumem", "0", "is out of range", mib),
        ("gpumem", "1048577", "is out of range", mib),
        ("gpumem", "2M", "is out of range", mib),
        ("gpumem", "1e30", "is too large", mib),
        ("gpumem", "5GB", "is not a number", mib),
        ("gpumem-percentage", "0", "is out of range", percent),
        ("gpumem-percentage", "101", "is out of range", percent),
        ("gpumem-percentage", "1k", "is out of range", percent),
        (
            "gpumem-percentage",
            "500m",
            "is not a whole number",
            percent,
        ),
        ("gpumem-percentage", "-5", "is negative", percent),
        ("gpucores", "101", "is out of range", cores),
        ("gpucores", "-1", "is negative", cores),
        ("gpucores", "2500m", "is not a whole number", cores),
        ("gpucores", "1Ki", "has a binary suffix", cores),
        ("priority", "2", "is out of range", level),
        ("priority", "-1", "is negative", level),
        ("priority", "500m", "is not a whole number", level),
    ] {
        let name = format!("nvidia.com/{resource}");
        let message = format!("{value:?} {problem}; accepted: {accepted}");
        check(
            &asking(&json!({GPU: "1", &name: value})),
            &limit(&name),
            &message,
        );
    }
    for (value, problem) in [
        ("65", "is out of range"),
        ("1M", "is out of range"),
        ("-1", "is negative"),
        ("500m", "is not a whole number"),
        ("", "is not a number"),
    ] {
        let message = format!("{value:?} {problem}; accepted: {cards}");
        check(&asking(&json!({GPU: value})), &limit(GPU), &message);
    }
}

#[test]
fn annotations_that_the_scheduler_would_not_understand() {
    let with = |key: &str, value: &str| {
        let mut pod = asking(&json!({GPU: "1"}));
        pod["metadata"]["annotations"] = json!({ key: value });
        pod
    };
    for (key, value, message) in [
        (
            "aliquot.dev/numa-bind",
            "1",
            "\"1\" is not a truth value; accepted: true, false",
        ),
        (
            "nvidia.com/vgpu-mode",
            "whole",
            "\"whole\" names no mode; accepted: hami-core, mig, mps",
        ),
    ] {
        let field = format!("metadata.annotations[{key:?}]");
        check(&with(key, value), &field, message);
    }
    // Only of pods that ask for a share.
    let mut free = pod(&json!([container("main", &json!({}))]));
    free["metadata"]["annotations"] = json!({"aliquot.dev/numa-bind": "1"});
    admit(&free, &Settings::default());
}

#[test]
fn resources_that_contradict_each_other() {
    check(
        &asking(
            &json!({GPU: "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpumem-percentage": "50"}),
        ),
        &limit("nvidia.com/gpumem-percentage"),
        "\"50\" percent beside nvidia.com/gpumem; accepted: one of the two",
    );
    check(
        &asking(&json!({GPU: "0", "nvidia.com/gpumem": "3k"})),
        &limit(GPU),
        "\"0\" cards but memory or compute of them; accepted: 1 to 64 cards, or no other GPU resource",
    );
    for limits in [
        json!({"nvidia.com/priority": "0"}),
        json!({GPU: "0", "nvidia.com/priority": "0"}),
    ] {
        check(
            &asking(&limits),
            &limit("nvidia.com/priority"),
            "\"0\" of no GPU; accepted: with nvidia.com/gpu: 1 or more beside it",
        );
    }
    let mut no_count = Settings::default();
    no_count.defaults.count = 0;
    check_with(
        &no_count,
        &asking(&json!({"nvidia.com/gpumem": "3k"})),
        &limit("nvidia.com/gpumem"),
        "\"3k\" of no GPU; accepted: with nvidia.com/gpu: 1 or more beside it",
    );
}

#[test]
fn requests_that_differ_from_limits() {
    let resources =
        json!({"limits": {"nvidia.com/gpumem": "3k"}, "requests": {"nvidia.com/gpumem": "2k"}});
    check(
        &pod(&json!([{"name": "main", "resources": resources}])),
        "spec.containers[0].resources.requests[\"nvidia.com/gpumem\"]",
        "\"2k\" differs from the limit; accepted: \"3k\", or no request",
    );
}

#[test]
fn init_and_restartable_init_containers_are_held_to_the_same() {
    let mut both = asking(&json!({GPU: "1"}));
    both["spec"]["initContainers"] = json!([
        {"name": "plain", "resources": {}},
        {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpumem": "1Gi"}}},
    ]);
    check(
        &both,
        "spec.initContainers[1].resources.limits[\"nvidia.com/gpumem\"]",
        "\"1Gi\" has a binary suffix; accepted: a whole number of MiB, 1 to 1048576 (write 1024, the unit is MiB)",
    );
}

#[test]
fn a_preset_node() {
    check(
        &with("spec.nodeName", &json!("n1")),
        "spec.nodeName",
        "\"n1\" places the pod past aliquot-scheduler, which books its share; accepted: no \
         nodeName (choose nodes by nodeSelector or affinity)",
    );
}

#[test]
fn annotations_without_room_for_the_allocation() {
    let padded = |bytes: usize| {
        let mut pod = asking(
            &json!({GPU: "1", "nvidia.com/gpumem": "1k", "nvidia.com/gpucores": "0", "nvidia.com/priority": "1"}),
        );
        pod["metadata"]["annotations"] = json!({"notes": "x".repeat(bytes - "notes".len())});
        pod
    };
    check(
        &padded(245_761),
        "metadata.annotations",
        "245761 bytes leave no room for the allocation; accepted: at most 245760 bytes",
    );
    admit(&padded(245_760), &Settings::default());
}

#[test]
fn all_faults_of_a_pod_are_reported_at_once() {
    let mut bad = with("spec.nodeName", &json!("n1"));
    bad["spec"]["hostPID"] = json!(true);
    bad["spec"]["containers"][0]["resources"]["limits"] =
        json!({GPU: "-1", "nvidia.com/gpucores": "200"});
    let Verdict::Deny(refusals) = review(&create(&bad, "default"), &Settings::default()) else {
        panic!("admitted")
    };
    let fields: Vec<_> = refusals
        .iter()
        .map(|refusal| refusal.field.as_str())
        .collect();
    let requests = format!("spec.containers[0].resources.requests[{GPU:?}]");
    let expected = [
        &*requests,
        &*limit(GPU),
        &*limit("nvidia.com/gpucores"),
        "spec.nodeName",
        "spec.hostPID",
    ];
    assert_eq!(fields, expected);
}

/// Adds one ephemeral container to a pod that has one already.
pub(super) fn debug(pod: &Value, namespace: &str, added: Value) -> Verdict {
    let mut old = pod.clone();
    let earlier = json!({"name": "earlier", "securityContext": {"privileged": true}});
    old["spec"]["ephemeralContainers"] = json!([earlier]);
    let mut new = old.clone();
    new["spec"]["ephemeralContainers"]
        .as_array_mut()
        .unwrap()
        .push(added);
    let question = Question {
        operation: "UPDATE",
        sub_resource: "ephemeralcontainers",
        namespace,
        pod: &new,
        old_pod: &old,
    };
    let mut settings = Settings::default();
    settings.escape_allowed.insert("trusted".to_owned());
    review(&question, &settings)
}

#[test]
fn ephemeral_containers_neither_ask_nor_escape() {
    let check = |pod: &Value, namespace: &str, added: Value, expected: &[&str]| {
        let fields: Vec<String> = match debug(pod, namespace, added) {
            Verdict::Deny(refusals) => refusals.into_iter().map(|refusal| refusal.field).collect(),
            Verdict::Allow { .. } => Vec::new(),
        };
        assert_eq!(fields, expected);
    };
    let shared = asking(&json!({GPU: "1"}));
    let plain = asking(&json!({"cpu": "1"}));
    let ptrace = json!({"name": "d", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}});
    let added = "spec.ephemeralContainers[1].securityContext.capabilities.add[0]";
    check(&shared, "default", json!({"name": "d"}), &[]);
    check(&shared, "default", ptrace.clone(), &[added]);
    check(&shared, "trusted", ptrace.clone(), &[]);
    check(&plain, "default", ptrace.clone(), &[]);
    let mut foreign = shared;
    foreign["spec"]["schedulerName"] = json!("volcano");
    check(&foreign, "default", ptrace, &[]);
    let greedy = json!({"name": "d", "resources": {"limits": {GPU: "1"}}});
    let limits = "spec.ephemeralContainers[1].resources.limits[\"nvidia.com/gpu\"]";
    check(&plain, "trusted", greedy, &[limits]);
}
