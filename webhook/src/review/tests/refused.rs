//! Who is refused and where.

use serde_json::{Value, json};

use super::*;

#[test]
fn ignores_preferences_of_pods_without_a_request() {
    let mut free = pod(&json!([container("main", &json!({}))]));
    free["metadata"]["annotations"] = json!({"aliquot.dev/numa-bind": "1"});
    admit(&free, &Settings::default());
}

#[test]
fn reviews_init_containers_like_app_containers() {
    let mut both = asking(&json!({GPU: "1"}));
    both["spec"]["initContainers"] = json!([
        {"name": "plain", "resources": {}},
        {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpumem": "1Gi"}}},
    ]);
    let refusals = refusals(&both, &Settings::default());
    let field = "spec.initContainers[1].resources.limits[\"nvidia.com/gpumem\"]: \"1Gi\"";
    assert!(
        refusals.len() == 1 && refusals[0].starts_with(field),
        "{refusals:?}"
    );
}

#[test]
fn reports_all_errors_of_a_pod_at_once() {
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
    let expected = [
        r#"spec.containers[0].resources.requests["nvidia.com/gpu"]"#,
        r#"spec.containers[0].resources.limits["nvidia.com/gpu"]"#,
        r#"spec.containers[0].resources.limits["nvidia.com/gpucores"]"#,
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
    let request = PodReview {
        operation: &Operation::Update,
        sub_resource: "ephemeralcontainers",
        namespace,
        pod: &new,
        old_pod: &old,
    };
    let mut settings = Settings::default();
    settings.escape_allowed.insert("trusted".to_owned());
    review(&request, &settings)
}

#[test]
fn rejects_requests_and_escapes_of_ephemeral_containers() {
    let check = |pod: &Value, namespace: &str, added: &Value, expected: &[&str]| {
        let texts: Vec<String> = match debug(pod, namespace, added.clone()) {
            Verdict::Deny(refusals) => refusals.iter().map(Refusal::to_string).collect(),
            Verdict::Allow { .. } => Vec::new(),
        };
        assert_eq!(texts, expected);
    };
    let shared = asking(&json!({GPU: "1"}));
    let plain = asking(&json!({"cpu": "1"}));
    let ptrace = json!({"name": "d", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}});
    let escapes = r#"spec.ephemeralContainers[1].securityContext.capabilities.add[0]: "SYS_PTRACE" would let the pod bypass its GPU share; expected: none of ALL, SYS_ADMIN, SYS_PTRACE, SYS_RAWIO, SYS_MODULE, DAC_READ_SEARCH, BPF (use kubectl debug --profile=baseline), or a namespace where the administrator allows it"#;
    check(&shared, "default", &json!({"name": "d"}), &[]);
    check(&shared, "default", &ptrace, &[escapes]);
    check(&shared, "trusted", &ptrace, &[]);
    check(&plain, "default", &ptrace, &[]);
    let mut reading = shared.clone();
    reading["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/usr/lib"}}]);
    let mounts = |read_only: bool| {
        let mount = json!({"name": "v", "mountPath": "/v", "readOnly": read_only});
        json!({"name": "d", "volumeMounts": [mount]})
    };
    let written = r#"spec.volumes[0].hostPath.path: "/usr/lib" would let the pod bypass its GPU share; expected: a path that is neither inside /usr nor one of its parents, or readOnly: true on each of its mounts, or a namespace where the administrator allows it"#;
    check(&reading, "default", &mounts(true), &[]);
    check(&reading, "default", &mounts(false), &[written]);
    let mut foreign = shared;
    foreign["spec"]["schedulerName"] = json!("volcano");
    check(&foreign, "default", &ptrace, &[]);
    let greedy = json!({"name": "d", "resources": {"limits": {GPU: "1"}}});
    let requests = r#"spec.ephemeralContainers[1].resources.limits["nvidia.com/gpu"]: "1" in an ephemeral container, which cannot get GPUs; expected: no nvidia.com/gpu"#;
    check(&plain, "trusted", &greedy, &[requests]);
}

#[test]
fn refuses_resize_of_a_share_with_the_command_that_does_it() {
    let check = |before: &Value, limits: &str, expected: &[&str]| {
        let resized = asking(&amounts(limits));
        let request = PodReview {
            operation: &Operation::Update,
            sub_resource: "resize",
            old_pod: before,
            ..create(&resized, "default")
        };
        let texts: Vec<String> = match review(&request, &Settings::default()) {
            Verdict::Deny(refusals) => refusals.iter().map(Refusal::to_string).collect(),
            Verdict::Allow { .. } => Vec::new(),
        };
        assert_eq!(texts, expected);
    };
    let mut before = asking(&amounts("gpu=1 gpumem=3k"));
    before["spec"]["schedulerName"] = json!(Settings::default().scheduler_name);
    let command = r#"spec.containers[0].resources.limits["nvidia.com/gpumem"]: "6k" differs from "3k", and Kubernetes resizes only cpu and memory; expected: kubectl aliquot resize pod/p -n default -c main --gpumem 6k"#;
    let new = r#"spec.containers[0].resources.limits["nvidia.com/gpucores"]: "40" differs from "", and Kubernetes resizes only cpu and memory; expected: kubectl aliquot resize pod/p -n default -c main --gpucores 40"#;
    check(&before, "gpu=1 gpumem=6k", &[command]);
    check(&before, "gpu=1 gpumem=6k gpucores=40", &[command, new]);
    check(&before, "gpu=1 gpumem=3000", &[]);
    // No command changes these.
    check(&before, "gpu=2 gpumem=3k priority=1", &[]);
    for other in ["default-scheduler", "volcano"] {
        before["spec"]["schedulerName"] = json!(other);
        check(&before, "gpu=1 gpumem=6k", &[]);
    }
}
