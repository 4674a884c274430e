//! What each check of the cluster finds.

use aliquot_core::request::DEFAULTED;
use aliquot_core::request_annotation::REQUEST;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::cluster_checks;
use super::facts::{ClusterFacts, DryRun};
use super::finding::Grade;
use crate::components::{is_ours, name};

/// A pod of Aliquot with these flags.
pub(super) fn part(name: &str, component: &str, args: &[&str]) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "s", "labels": {
            "app.kubernetes.io/part-of": "aliquot", "app.kubernetes.io/component": component}},
        "spec": {"containers": [{"name": "c", "args": args}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

/// The scheduler's metrics.
fn metrics(leads: u32, differences: u32) -> String {
    let leads = format!("aliquot_scheduler_leads {leads}\n");
    let policies = "aliquot_scheduler_admission_policy_changed{object=\"K/aliquot-pods\"} 0\n";
    leads + policies + &format!("aliquot_scheduler_self_check_differences_total {differences}\n")
}

/// The pod of the dry run, with this schedulerName.
fn admitted(scheduler: &str) -> DryRun {
    let pod = json!({"spec": {"schedulerName": scheduler, "containers": []}});
    DryRun::Admitted(serde_json::from_value(pod).unwrap())
}

/// A cluster without a finding.
pub(super) fn healthy() -> ClusterFacts {
    let scheduler = ["--scheduler-lease=s/aliquot-scheduler"];
    let pods = vec![
        part("s-0", "scheduler", &scheduler),
        part("s-1", "scheduler", &scheduler),
        part("w-0", "webhook", &[]),
        part("w-1", "webhook", &[]),
        part("d-0", "device-plugin", &[]),
        part("m-0", "monitor", &["--priority-cap=50"]),
    ];
    let hook = json!({"metadata": {"name": "aliquot-webhook"}, "webhooks": [{
        "name": "pods.aliquot.dev", "failurePolicy": "Fail", "admissionReviewVersions": ["v1"],
        "sideEffects": "None", "clientConfig": {"caBundle": "YQ=="}}]});
    ClusterFacts {
        namespace: "s".to_owned(),
        trial_namespace: "team".to_owned(),
        version: Ok("v1.37.2".to_owned()),
        nodes: Ok(Vec::new()),
        pods: Ok(pods),
        webhook: Ok(Some(serde_json::from_value(hook).unwrap())),
        dry_run: Ok(admitted("aliquot-scheduler")),
        mutators: Ok(Vec::new()),
        quotas: Ok(Vec::new()),
        device_classes: Ok([].into()),
        exempt: Ok(Vec::new()),
        network_policies: Ok(vec![
            "aliquot-device-plugin".to_owned(),
            "aliquot-monitor".to_owned(),
            "aliquot-scheduler".to_owned(),
            "aliquot-webhook".to_owned(),
        ]),
        autoscaler_status: Ok(false),
        metrics: Ok(metrics(1, 0)),
        unready_agents: [].into(),
    }
}

fn check(change: impl FnOnce(&mut ClusterFacts), expected: &[(&str, Grade)]) {
    let mut known = healthy();
    change(&mut known);
    let found: Vec<_> = cluster_checks(&known)
        .iter()
        .filter(|one| one.grade != Grade::Ok)
        .map(|one| (one.check, one.grade))
        .collect();
    assert_eq!(found, expected);
}

const BAD: Grade = Grade::Problem;
const WARNS: Grade = Grade::Warning;
const UNMADE: Grade = Grade::NotChecked;

#[test]
fn recommends_annotation_where_resources_cost_most() {
    let node = |version: &str, labels: Value| -> k8s_openapi::api::core::v1::Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": labels},
            "status": {"nodeInfo": {"architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": version,
                "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}},
        }))
        .unwrap()
    };
    let current = || node("v1.37.2", json!({}));
    let image = |image: &str| -> Pod {
        let spec = json!({"containers": [{"name": "c", "image": image}]});
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    };
    let found: &[(&str, Grade)] = &[("request-form", WARNS)];
    check(|known| known.nodes = Ok(vec![current(); 1_000]), &[]);
    check(|known| known.nodes = Ok(vec![current(); 1_001]), found);
    let old = |known: &mut ClusterFacts| known.nodes = Ok(vec![node("v1.30.14", json!({}))]);
    check(old, found);
    let made = json!({"karpenter.sh/nodepool": "gpus"});
    check(|known| known.nodes = Ok(vec![node("v1.31.0", made)]), found);
    check(|known| known.autoscaler_status = Ok(true), found);
    for name in ["r/karpenter/controller:1.14.1", "r/cluster-autoscaler:v1"] {
        check(
            |known| known.pods.as_mut().unwrap().push(image(name)),
            found,
        );
    }
    let stated = |known: &mut ClusterFacts| {
        known.autoscaler_status = Ok(true);
        let stating = part("s-2", "scheduler", &["--node-types=[]"]);
        known.pods.as_mut().unwrap().push(stating);
    };
    check(stated, &[]);
    let moved = |known: &mut ClusterFacts| {
        old(known);
        let moved = part("w-2", "webhook", &["--request-as=annotation"]);
        known.pods.as_mut().unwrap().push(moved);
    };
    check(moved, &[]);
    let unread = |known: &mut ClusterFacts| known.autoscaler_status = Err("forbidden".to_owned());
    check(unread, &[("request-form", UNMADE)]);
}

#[test]
fn reports_missing_single_or_leaderless_scheduler() {
    let retain = |known: &mut ClusterFacts, condition: fn(&Pod) -> bool| {
        known.pods.as_mut().unwrap().retain(condition);
    };
    let missing = |known: &mut ClusterFacts| {
        retain(known, |pod| !is_ours(pod, "scheduler"));
        known.metrics = Err("no scheduler pod".to_owned());
    };
    let missed = [
        ("scheduler", BAD),
        ("leader", UNMADE),
        ("ledger", UNMADE),
        ("admission-policies", UNMADE),
    ];
    check(missing, &missed);
    check(
        |known| retain(known, |pod| name(pod) != "s-0"),
        &[("scheduler", WARNS)],
    );
    // Where no setting is to blame.
    let starts = |known: &mut ClusterFacts| {
        for pod in known.pods.as_mut().unwrap() {
            if ["s-0", "w-0"].contains(&name(pod)) {
                pod.status.as_mut().unwrap().conditions = None;
            }
        }
    };
    check(starts, &[("scheduler", BAD), ("webhook-pods", BAD)]);
    // With the reason of a container that cannot start.
    let mut known = healthy();
    let waiting = json!({"name": "kube-scheduler", "image": "i", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull"}}});
    let status = known.pods.as_mut().unwrap()[0].status.as_mut().unwrap();
    status.conditions = None;
    status.container_statuses = Some(vec![serde_json::from_value(waiting).unwrap()]);
    let found = &cluster_checks(&known)[0];
    let expected = "1 of 2 scheduler pods are ready; not ready: kube-scheduler (ErrImagePull)";
    assert_eq!((found.grade, &*found.found), (BAD, expected));
    let unplaced = json!([{"type": "PodScheduled", "status": "False", "message": "0/9 nodes"}]);
    let status = known.pods.as_mut().unwrap()[0].status.as_mut().unwrap();
    status.conditions = serde_json::from_value(unplaced).unwrap();
    status.container_statuses = None;
    let found = &cluster_checks(&known)[0];
    let expected = "1 of 2 scheduler pods are ready; not ready: 0/9 nodes";
    assert_eq!(&*found.found, expected);
    missing(&mut known);
    let found = &cluster_checks(&known)[0];
    assert!(
        found.todo.contains("describe replicasets -n s"),
        "{found:?}"
    );
    let alone = |known: &mut ClusterFacts| {
        retain(known, |pod| !is_ours(pod, "scheduler"));
        let pods = known.pods.as_mut().unwrap();
        pods.push(part("s-0", "scheduler", &[]));
    };
    check(alone, &[]);
    let nobody = |known: &mut ClusterFacts| known.metrics = Ok(metrics(0, 0));
    check(nobody, &[("leader", BAD)]);
}

#[test]
fn compares_version_of_kube_scheduler_with_api_server() {
    let beside = |known: &mut ClusterFacts, image: &str| {
        let container = json!({"name": "kube-scheduler", "image": image});
        let spec = known.pods.as_mut().unwrap()[0].spec.as_mut().unwrap();
        spec.containers
            .push(serde_json::from_value(container).unwrap());
    };
    for (image, expected) in [
        ("r/kube-scheduler:v1.36.9", &[("kube-scheduler", WARNS)][..]),
        ("r:5000/kube-scheduler:v1.37.0@sha256:0a", &[]),
        ("r/kube-scheduler:test", &[]),
        ("r:5000/kube-scheduler", &[]),
        ("r/kube-scheduler:v1.35.1", &[("kube-scheduler", BAD)]),
        ("r/kube-scheduler:v1.38.0", &[("kube-scheduler", BAD)]),
    ] {
        check(|known| beside(known, image), expected);
    }
    let unread = |known: &mut ClusterFacts| {
        beside(known, "r/kube-scheduler:v1.37.2");
        known.version = Err("no way".to_owned());
    };
    check(unread, &[("kube-scheduler", UNMADE)]);
}

#[test]
fn reports_missing_silent_or_bypassed_webhook() {
    check(|known| known.webhook = Ok(None), &[("webhook", BAD)]);
    check(
        |known| known.dry_run = Ok(DryRun::NoAnswer("failed calling webhook".to_owned())),
        &[("webhook-answers", BAD)],
    );
    check(
        |known| known.dry_run = Ok(admitted("default-scheduler")),
        &[("webhook-answers", BAD)],
    );
    check(
        |known| {
            known.dry_run = Ok(admitted("default-scheduler"));
            known.trial_namespace = known.namespace.clone();
        },
        &[("webhook-answers", UNMADE)],
    );
    check(
        |known| known.dry_run = Err("no rights".to_owned()),
        &[("webhook-answers", UNMADE)],
    );
}

#[test]
fn checks_nothing_by_flags_of_pods_that_it_cannot_read() {
    let mut known = healthy();
    known.pods = Err("no rights".to_owned());
    // As the scheduler of these pods is named.
    known.dry_run = Ok(admitted("gpus"));
    let mut all = cluster_checks(&known);
    known.webhook = Ok(None);
    let without = cluster_checks(&known).into_iter();
    all.extend(without.filter(|one| one.check == "webhook"));
    for check in ["webhook-answers", "quotas", "device-classes", "webhook"] {
        let found = all.iter().rfind(|one| one.check == check);
        let found = found.map(|one| (one.grade, &*one.found));
        assert_eq!(found, Some((UNMADE, "no rights")), "{check}");
    }
}

#[test]
fn names_webhook_that_does_not_answer() {
    for (webhook, todo) in [
        ("pods.aliquot.dev", "the Service aliquot-webhook"),
        ("validate.kyverno.svc-fail", "is not Aliquot's"),
    ] {
        let mut known = healthy();
        let message = format!("failed calling webhook {webhook:?}: no endpoints available");
        known.dry_run = Ok(DryRun::NoAnswer(message));
        let all = cluster_checks(&known);
        let found = all.iter().find(|one| one.check == "webhook-answers");
        assert!(found.unwrap().todo.contains(todo), "{found:?}");
    }
}

#[test]
fn names_policies_that_are_not_installed_or_changed() {
    let of_policies = |change: fn(String) -> String, grade: Grade, part: &str| {
        let mut known = healthy();
        known.metrics = known.metrics.map(change);
        let all = cluster_checks(&known);
        let mut policies = all.iter().filter(|one| one.check == "admission-policies");
        let found = policies.next().unwrap();
        let is_named = found.found.contains(part);
        assert!(found.grade == grade && is_named, "{found:?}");
    };
    let changed = |page: String| page.replace("\"} 0", "\"} 1");
    of_policies(changed, BAD, "K/aliquot-pods");
    let unknown = |page: String| page.replace("policy_changed", "other");
    of_policies(unknown, WARNS, "knows no ValidatingAdmissionPolicies");
}

#[test]
fn reports_changes_of_a_pod_after_the_webhook() {
    let check = |annotation: &str, change: fn(&mut Value), grade: Grade, part: &str| {
        let mut pod = json!({"metadata": {"annotations": {annotation: "{}"}}, "spec": {
            "schedulerName": "aliquot-scheduler", "containers": [{"name": "trial"}]}});
        change(&mut pod["spec"]);
        let mut known = healthy();
        known.dry_run = Ok(DryRun::Admitted(serde_json::from_value(pod).unwrap()));
        known.mutators = Ok(vec!["MutatingAdmissionPolicy mesh".to_owned()]);
        let all = cluster_checks(&known);
        let mut answers = all.iter().filter(|one| one.check == "webhook-answers");
        let found = answers.next().unwrap();
        assert!(
            found.grade == grade && found.found.contains(part),
            "{found:?}"
        );
        let names_it = found.todo.contains("MutatingAdmissionPolicy mesh");
        assert_eq!(names_it, grade != Grade::Ok, "{found:?}");
    };
    let other = |spec: &mut Value| spec["schedulerName"] = json!("default-scheduler");
    let sidecar = |spec: &mut Value| {
        let containers = spec["containers"].as_array_mut().unwrap();
        containers.insert(0, json!({"name": "proxy"}));
    };
    let amounts = |spec: &mut Value| {
        spec["containers"][0]["resources"] = json!({"requests": {"nvidia.com/gpumem": "3000"}});
    };
    check(DEFAULTED, other, BAD, "schedulerName is default-scheduler");
    check(REQUEST, sidecar, WARNS, "container proxy stands before");
    check(REQUEST, amounts, WARNS, "resources have nvidia.com/gpumem");
    check(DEFAULTED, amounts, Grade::Ok, "gets schedulerName");
}

#[test]
fn reports_quota_of_a_count_that_nobody_counts() {
    for (key, expected) in [
        ("limits.nvidia.com/gpu", &[("quotas", WARNS)][..]),
        ("requests.nvidia.com/gpu", &[]),
    ] {
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {key: "4"}}});
        let quotas = vec![serde_json::from_value(quota).unwrap()];
        check(|known| known.quotas = Ok(quotas), expected);
    }
    let quota = |name: &str| {
        let hard = json!({"limits.nvidia.com/gpu": "4"});
        let quota = json!({"metadata": {"namespace": "d", "name": name}, "spec": {"hard": hard}});
        serde_json::from_value(quota).unwrap()
    };
    let mut known = healthy();
    known.quotas = Ok(vec![quota("q"), quota("r")]);
    let all = cluster_checks(&known);
    let found = all.iter().find(|one| one.check == "quotas").unwrap();
    let expected = "ResourceQuota d/q, d/r has limits.nvidia.com/gpu, which nobody counts";
    assert_eq!(&*found.found, expected);
}

#[test]
fn warns_when_webhook_is_disabled_by_values() {
    let off = |known: &mut ClusterFacts| {
        let pods = known.pods.as_mut().unwrap();
        pods.retain(|pod| !is_ours(pod, "webhook"));
        for pod in pods.iter_mut().filter(|pod| is_ours(pod, "scheduler")) {
            let (key, value) = ("aliquot.dev/admission-webhook", "off");
            pod.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        }
        known.dry_run = Ok(admitted("default-scheduler"));
    };
    let gone = |known: &mut ClusterFacts| {
        off(known);
        known.webhook = Ok(None);
    };
    check(gone, &[("webhook", WARNS)]);
    // The finding says what no longer happens and what users must then write themselves.
    let mut known = healthy();
    gone(&mut known);
    let found = cluster_checks(&known);
    let webhook = found.iter().find(|one| one.check == "webhook").unwrap();
    assert!(
        webhook.found.contains("NVIDIA_VISIBLE_DEVICES"),
        "{webhook:?}"
    );
    assert!(
        webhook.todo.contains("schedulerName: aliquot-scheduler"),
        "{webhook:?}"
    );
    check(off, &[("webhook", BAD)]);
    // Missing, although the values do not disable it.
    let lost = |known: &mut ClusterFacts| {
        gone(known);
        for pod in known.pods.as_mut().unwrap() {
            pod.metadata.annotations = None;
        }
    };
    check(
        lost,
        &[
            ("webhook", BAD),
            ("webhook-pods", BAD),
            ("webhook-answers", BAD),
        ],
    );
}

#[test]
fn reports_ledger_that_differed_and_unreachable_scheduler() {
    let differed = |known: &mut ClusterFacts| known.metrics = Ok(metrics(1, 2));
    check(differed, &[("ledger", WARNS)]);
    let silent = |known: &mut ClusterFacts| known.metrics = Err("no way".to_owned());
    let unmade = ["leader", "ledger", "admission-policies"];
    check(silent, &unmade.map(|check| (check, UNMADE)));
}
