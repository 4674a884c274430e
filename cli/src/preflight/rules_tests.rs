//! What each rule finds in a workload, and what it ignores.

use serde_json::{Value, json};

use super::super::systems::NVIDIA_CLASSES;
use super::*;
use crate::doctor::finding::Grade;

fn settings(from: CurrentSystem) -> Settings {
    Settings {
        from,
        pods: pod::Settings::default(),
        replaced: vec!["default-scheduler".to_owned(), "hami-scheduler".to_owned()],
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "tests read better with values"
)]
fn limits(limits: Value) -> Value {
    json!({"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}})
}

fn share() -> Value {
    limits(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}))
}

fn workload(pod: Value) -> Workload {
    Workload {
        kind: "Deployment",
        namespace: "d".to_owned(),
        name: "w".to_owned(),
        template: true,
        runs: false,
        pod: serde_json::from_value(pod).unwrap(),
    }
}

fn found(from: CurrentSystem, pod: Value) -> Vec<(&'static str, Grade)> {
    let found = findings(&workload(pod), &settings(from));
    found.iter().map(|one| (one.check, one.grade)).collect()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "tests read better with values"
)]
fn check(pod: Value, expected: &[(&str, Grade)]) {
    for from in [CurrentSystem::Hami, CurrentSystem::Nvidia] {
        assert_eq!(found(from, pod.clone()), expected, "{from:?}: {pod}");
    }
}

const BAD: Grade = Grade::Problem;
const WARNS: Grade = Grade::Warning;

#[test]
fn reports_unchanged_workloads_and_ignores_others() {
    check(share(), &[("unchanged", Grade::Ok)]);
    check(limits(json!({"cpu": "1"})), &[]);
    let mut typed = share();
    typed["metadata"] = json!({"annotations": {"nvidia.com/use-gputype": "A100"}});
    check(typed, &[("unchanged", Grade::Ok)]);
    let mut annotated = limits(json!({"nvidia.com/gpu": "1"}));
    let request = json!({"v": 1, "containers": {"main": {"memory": 3000, "cores": 0}}});
    annotated["metadata"] = json!({"annotations": {"aliquot.dev/request": request.to_string()}});
    check(annotated, &[("unchanged", Grade::Ok)]);
}

#[test]
fn warns_that_bare_count_becomes_a_share() {
    let pod = limits(json!({"nvidia.com/gpu": "1"}));
    check(pod.clone(), &[("bare-count", WARNS)]);
    let mut whole = settings(CurrentSystem::Nvidia);
    whole.pods.defaults.bare_gpu = BareGpu::Whole;
    let unchanged = findings(&workload(pod), &whole);
    assert_eq!(unchanged[0].check, "unchanged");
    let cores = limits(json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}));
    check(cores.clone(), &[("bare-count", WARNS)]);
    whole.from = CurrentSystem::Hami;
    let advice = findings(&workload(cores), &whole);
    assert!(
        advice[0].todo.contains("scheduler.defaultMem=0"),
        "{advice:?}"
    );
    let alone = limits(json!({"nvidia.com/gpucores": "30"}));
    assert_eq!(found(CurrentSystem::Hami, alone), [("bare-count", WARNS)]);
}

#[test]
fn warns_that_percentage_of_100_takes_no_compute() {
    let all = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"});
    let with = |more: Value| {
        let mut amounts = all.clone();
        let amounts = amounts.as_object_mut().unwrap();
        amounts.extend(more.as_object().unwrap().clone());
        found(CurrentSystem::Hami, limits(json!(amounts)))
    };
    assert_eq!(with(json!({})), [("percentage-100", WARNS)]);
    for other in [
        json!({"nvidia.com/gpucores": "20"}),
        json!({"nvidia.com/gpumem-percentage": "50"}),
    ] {
        assert_eq!(with(other), [("unchanged", Grade::Ok)]);
    }
    assert_eq!(
        found(CurrentSystem::Nvidia, limits(all)),
        [("unchanged", Grade::Ok)]
    );
}

#[test]
fn predicts_refusals_with_their_messages() {
    let suffix = limits(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"}));
    check(suffix.clone(), &[("refused", BAD)]);
    let words = findings(&workload(suffix), &settings(CurrentSystem::Hami));
    assert!(words[0].found.contains("write 16384"), "{words:?}");
    let mut preference = share();
    preference["metadata"] = json!({"annotations": {"nvidia.com/numa-bind": "perhaps"}});
    check(preference, &[("refused", BAD)]);
    let mut escapes = share();
    escapes["spec"]["hostPID"] = json!(true);
    check(escapes, &[("refused", BAD)]);
}

#[test]
fn reports_environment_schedulers_and_unknown_names() {
    let mut pod = limits(json!({"cpu": "1"}));
    pod["spec"]["containers"][0]["env"] = json!([{"name": VISIBLE, "value": "all"}]);
    check(pod, &[("gpus-by-environment", WARNS)]);
    let mut pod = limits(json!({"cpu": "1"}));
    pod["spec"]["runtimeClassName"] = json!("nvidia-cdi");
    check(pod, &[("gpus-by-environment", WARNS)]);
    let mut pod = share();
    pod["spec"]["containers"][0]["env"] = json!([{"name": VISIBLE, "value": "void"}]);
    check(pod, &[("unchanged", Grade::Ok)]);
    let mut pod = share();
    pod["spec"]["schedulerName"] = json!("volcano");
    check(pod, &[("scheduler", BAD)]);
    let mut pod = share();
    pod["spec"]["schedulerName"] = json!("hami-scheduler");
    check(pod, &[("unchanged", Grade::Ok)]);
    let mut renamed = settings(CurrentSystem::Nvidia);
    renamed.pods.scheduler_name = "gpus".to_owned();
    for (scheduler, expected) in [("gpus", "unchanged"), ("aliquot-scheduler", "scheduler")] {
        let mut pod = share();
        pod["spec"]["schedulerName"] = json!(scheduler);
        let found = findings(&workload(pod), &renamed);
        assert_eq!(found[0].check, expected, "{scheduler}");
    }
    check(
        limits(json!({"nvidia.com/gpu.shared": "1"})),
        &[("unknown-resource", BAD)],
    );
    // A network device of NVIDIA's network operator.
    check(
        limits(json!({"nvidia.com/mig-1g.5gb": "1", "nvidia.com/hostdev": "1"})),
        &[("unchanged", Grade::Ok)],
    );
    let mut pod = share();
    pod["metadata"] = json!({"labels": {"hami.io/webhook": "ignore"}});
    check(pod, &[("left-alone", BAD)]);
}

#[test]
fn reports_hami_differences_only_from_hami() {
    let mut mig = share();
    mig["metadata"] = json!({"annotations": {MODE: "mig"}});
    assert_eq!(
        found(CurrentSystem::Hami, mig.clone()),
        [("mig-by-memory", BAD)]
    );
    assert_eq!(
        found(CurrentSystem::Nvidia, mig),
        [("unchanged", Grade::Ok)]
    );
    let mut pod = share();
    let mut sidecar = pod["spec"]["containers"][0].clone();
    sidecar["name"] = json!("side");
    sidecar["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([sidecar]);
    assert_eq!(
        found(CurrentSystem::Hami, pod.clone()),
        [("sidecar", WARNS)]
    );
    assert_eq!(
        found(CurrentSystem::Nvidia, pod),
        [("unchanged", Grade::Ok)]
    );
}

#[test]
fn runtime_classes_are_those_of_the_chart() {
    let values = include_str!("../../../charts/aliquot/values.yaml");
    let classes = NVIDIA_CLASSES.join(", ");
    assert!(values.contains(&format!("nvidiaRuntimeClasses: [{classes}]\n")));
}

#[test]
fn names_node_that_running_hami_pod_closes() {
    let mut pod = share();
    pod["metadata"] = json!({"annotations": {hami::ALLOCATED: "GPU-a,NVIDIA,3000,30:;"}});
    pod["spec"]["nodeName"] = json!("n1");
    let one = Workload {
        template: false,
        runs: true,
        ..workload(pod)
    };
    let found = |from| findings(&one, &settings(from));
    let closed = found(CurrentSystem::Hami);
    let [closed] = &closed[..] else {
        panic!("{closed:?}");
    };
    assert_eq!((closed.check, closed.grade), ("running", Grade::Note));
    assert!(closed.found.contains("node n1"), "{closed:?}");
    assert!(found(CurrentSystem::Nvidia).is_empty());
}
