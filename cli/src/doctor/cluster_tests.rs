//! What each check of the cluster finds.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::books::Statement;
use super::cluster::checks;
use super::finding::Grade;
use super::known::{Known, Trial, is_ours, name};

/// A pod of ours, with these flags.
pub(super) fn part(name: &str, component: &str, args: &[&str]) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "s", "labels": {
            "app.kubernetes.io/part-of": "aliquot", "app.kubernetes.io/component": component}},
        "spec": {"containers": [{"name": "c", "args": args}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

/// What the chart installs, with its usual values.
fn config() -> String {
    let file = include_str!("../../../charts/aliquot/files/kube-scheduler.yaml");
    let usual = [
        ("scheduler.kubeScheduler.apiQps", "1"),
        ("scheduler.kubeScheduler.apiBurst", "1"),
        ("scheduler.kubeScheduler.leaderElect", "true"),
        ("scheduler.extender.url", "http://127.0.0.1:1"),
        ("scheduler.wishWeight", "1"),
        ("scheduler.rankWeight", "1"),
        ("schedulerName", "aliquot-scheduler"),
        ("resourceName", "nvidia.com/gpu"),
        ("resourceMem", "nvidia.com/gpumem"),
        ("resourceMemPercentage", "nvidia.com/gpumem-percentage"),
        ("resourceCores", "nvidia.com/gpucores"),
        ("resourcePriority", "nvidia.com/priority"),
    ];
    let filled = usual.iter().fold(file.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{{ .Values.{name} }}}}"), value)
    });
    let filled = filled.replace("{{ .Release.Namespace }}", "s");
    let mut skipped = false;
    let usual = filled.lines().filter(|line| {
        // The lists of further resources are empty.
        skipped = (skipped || line.contains("{{- range")) && !line.contains("{{- end");
        !skipped && !line.contains("{{")
    });
    let usual: Vec<&str> = usual.collect();
    let mut config: Value = serde_saphyr::from_str(&usual.join("\n")).unwrap();
    let extenders = config["extenders"].as_array_mut().unwrap();
    extenders.truncate(1);
    config.to_string()
}

/// A cluster in which all is well.
pub(super) fn well() -> Known {
    let lease = ["--scheduler-lease=s/aliquot-scheduler"];
    let pods = vec![
        part("s-0", "scheduler", &lease),
        part("s-1", "scheduler", &lease),
        part("w-0", "webhook", &[]),
        part("w-1", "webhook", &[]),
        part("d-0", "device-plugin", &[]),
    ];
    let hook = json!({"metadata": {"name": "aliquot-webhook"}, "webhooks": [{
        "name": "pods.aliquot.dev", "failurePolicy": "Fail", "admissionReviewVersions": ["v1"],
        "sideEffects": "None", "clientConfig": {"caBundle": "YQ=="}}]});
    Known {
        namespace: "s".to_owned(),
        nodes: Ok(Vec::new()),
        pods: Ok(pods),
        hook: Ok(Some(serde_json::from_value(hook).unwrap())),
        trial: Ok(Trial::Admitted("aliquot-scheduler".to_owned())),
        classes: Ok([].into()),
        agent_class: Ok(None),
        fences: Ok(vec![
            "aliquot-allocations".to_owned(),
            "aliquot-inventories".to_owned(),
        ]),
        config: Ok(Some(config())),
        leader: Ok(Some("s-1_0a1b".to_owned())),
        books: Ok(Statement::default()),
        differences: Ok(Vec::new()),
        metrics: Ok("aliquot_scheduler_self_check_differences_total 0\n".to_owned()),
        agents: [].into(),
    }
}

fn check(change: impl FnOnce(&mut Known), expected: &[(&str, Grade)]) {
    let mut known = well();
    change(&mut known);
    let found: Vec<_> = checks(&known)
        .iter()
        .filter(|one| one.grade != Grade::Ok)
        .map(|one| (one.check, one.grade))
        .collect();
    assert_eq!(found, expected);
}

fn changed(from: &str, to: &str) -> String {
    let (before, after) = (config(), config().replace(from, to));
    assert_ne!(before, after, "{from}");
    after
}

const BAD: Grade = Grade::Problem;
const WARNS: Grade = Grade::Warning;
const UNMADE: Grade = Grade::NotChecked;

#[test]
fn a_cluster_in_order_has_no_finding() {
    check(|_| (), &[]);
}

#[test]
fn a_scheduler_that_is_away_or_alone_or_does_not_lead_is_found() {
    let keep = |known: &mut Known, wanted: fn(&Pod) -> bool| {
        known.pods.as_mut().unwrap().retain(wanted);
    };
    check(
        |known| keep(known, |pod| !is_ours(pod, "scheduler")),
        &[("scheduler", BAD)],
    );
    check(
        |known| keep(known, |pod| name(pod) != "s-0"),
        &[("scheduler", WARNS)],
    );
    let alone = |known: &mut Known| {
        keep(known, |pod| !is_ours(pod, "scheduler"));
        let pods = known.pods.as_mut().unwrap();
        pods.push(part("s-0", "scheduler", &[]));
    };
    check(alone, &[]);
    check(|known| known.leader = Ok(None), &[("leader", BAD)]);
    check(
        |known| known.leader = Ok(Some("other_1".to_owned())),
        &[("leader", BAD)],
    );
}

#[test]
fn each_part_of_the_extenders_registration_is_looked_at() {
    for (from, to, check_name, grade) in [
        ("\"bindVerb\":\"bind\"", "\"x\":1", "scheduler-config", BAD),
        (
            "\"filterVerb\":\"filter\"",
            "\"x\":1",
            "scheduler-config",
            BAD,
        ),
        (
            "\"ignorable\":false",
            "\"ignorable\":true",
            "scheduler-config",
            BAD,
        ),
        (
            "nvidia.com/gpucores",
            "nvidia.com/other",
            "managed-resources",
            BAD,
        ),
        (
            "nvidia.com/mig-",
            "nvidia.com/other-",
            "managed-resources",
            WARNS,
        ),
        (
            "{\"ignoredByScheduler\":true,\"name\":\"nvidia.com/gpu\"}",
            "{\"name\":\"nvidia.com/gpu\"}",
            "managed-resources",
            BAD,
        ),
    ] {
        check(
            |known| known.config = Ok(Some(changed(from, to))),
            &[(check_name, grade)],
        );
    }
    check(
        |known| known.config = Ok(None),
        &[("scheduler-config", UNMADE)],
    );
    check(
        |known| known.config = Ok(Some("{".to_owned())),
        &[("scheduler-config", BAD)],
    );
}

#[test]
fn a_webhook_that_is_missing_or_silent_or_passed_by_is_found() {
    check(|known| known.hook = Ok(None), &[("webhook", BAD)]);
    check(
        |known| known.trial = Ok(Trial::NoAnswer("failed calling webhook".to_owned())),
        &[("webhook-answers", BAD)],
    );
    check(
        |known| known.trial = Ok(Trial::Admitted("default-scheduler".to_owned())),
        &[("webhook-answers", BAD)],
    );
    check(
        |known| known.trial = Err("no rights".to_owned()),
        &[("webhook-answers", UNMADE)],
    );
    check(
        |known| known.fences = Ok(vec!["aliquot-allocations".to_owned()]),
        &[("admission-policies", WARNS)],
    );
}

#[test]
fn a_webhook_that_was_switched_off_was_called_a_problem() {
    let off = |known: &mut Known| {
        let pods = known.pods.as_mut().unwrap();
        pods.retain(|pod| !is_ours(pod, "webhook"));
        for pod in pods.iter_mut().filter(|pod| is_ours(pod, "scheduler")) {
            let told = ("aliquot.dev/admission-webhook", "off");
            let told = (told.0.to_owned(), told.1.to_owned());
            pod.metadata.annotations = Some([told].into());
        }
        known.trial = Ok(Trial::Admitted("default-scheduler".to_owned()));
    };
    let gone = |known: &mut Known| {
        off(known);
        known.hook = Ok(None);
    };
    check(gone, &[("webhook", WARNS)]);
    // It says who is not asked any more, and what is then to be written by hand.
    let mut known = well();
    gone(&mut known);
    let found = checks(&known);
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
    // Not there, and nobody said that it is not to be.
    let lost = |known: &mut Known| {
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
fn names_that_differ_between_parts_are_found() {
    check(
        |known| {
            let pods = known.pods.as_mut().unwrap();
            pods.retain(|pod| !is_ours(pod, "webhook"));
            for name in ["w-0", "w-1"] {
                pods.push(part(name, "webhook", &["--resource-mem=a/b"]));
            }
        },
        &[("resource-names", BAD)],
    );
}

#[test]
fn books_that_differ_are_found_and_books_that_cannot_be_asked_are_not_well() {
    check(
        |known| known.differences = Ok(vec!["d/p: holds a share, not booked".to_owned()]),
        &[("books", BAD)],
    );
    check(
        |known| known.metrics = Ok("aliquot_scheduler_self_check_differences_total 2\n".to_owned()),
        &[("books-self-check", WARNS)],
    );
    check(
        |known| {
            known.differences = Err("no way".to_owned());
            known.metrics = Err("no way".to_owned());
        },
        &[("books", UNMADE), ("books-self-check", UNMADE)],
    );
}
