//! When the node's conditions are written.

use super::*;
use crate::gpus::allocatable::AllocatedIds;
use crate::gpus::device_failures::NodeFailures;
use crate::gpus::inventory::{
    MonitorReports, NodePublisher, RuntimeProblem, RuntimeStatus, TakenResource,
};
use crate::testing::{facts, layout_of, readings};

fn published() -> NodePublisher {
    crate::testing::published(&["GPU-a", "GPU-b"])
}

/// The condition that is written, which the node shows then.
fn written(
    kind: &str,
    node: &PublishedNode,
    pods: &[Arc<Pod>],
    lost: Option<&BTreeSet<PodUid>>,
    view: &mut NodeView,
) -> Option<NodeCondition> {
    let mut all = outdated(node, pods, lost, view).into_iter();
    let (_, condition) = all.find(|(other, _)| *other == kind)?;
    let shown = (condition.status().to_owned(), condition.message.clone());
    view.conditions.insert(kind.to_owned(), shown);
    Some(condition)
}

/// Its status and reason.
fn words(condition: Option<&NodeCondition>) -> Option<[&str; 2]> {
    condition.map(|condition| [condition.status(), condition.reason])
}

#[test]
fn sets_and_clears_checkpoint_lost_condition() {
    let node = published().get();
    let mut view = NodeView::default();
    for (lost, expected) in [
        (&[][..], None),
        (&["u1"], Some("True")),
        // It is not written again.
        (&["u1"], None),
        (&[], Some("False")),
        (&["u1"], Some("True")),
    ] {
        let pods = lost.iter().map(|&uid| uid.into()).collect();
        let found = written(CHECKPOINT_LOST, &node, &[], Some(&pods), &mut view);
        let status = found.as_ref().map(NodeCondition::status);
        assert_eq!(status, expected, "{lost:?}");
    }
}

#[test]
fn sets_gpu_sick_condition_until_gpu_recovers() {
    let sick = |why: &str, recovery| DeviceFailure {
        gpu: "GPU-a".into(),
        cause: why.to_owned(),
        recovery,
    };
    let published = published();
    let mut view = NodeView::default();
    let mut check = |devices: &[DeviceFailure], expected: Option<[&str; 2]>| {
        let failures = NodeFailures {
            devices: devices.to_vec(),
            ..NodeFailures::default()
        };
        published.set_readings(readings(&["GPU-a"], failures), AllocatedIds::new());
        let found = written(GPU_SICK, &published.get(), &[], None, &mut view);
        assert_eq!(words(found.as_ref()), expected, "{devices:?}");
    };
    let both = [
        sick("XID 48", Recovery::ResetGpu),
        sick("XID 79", Recovery::DrainNode),
    ];
    let waiting = sick("registration in progress", Recovery::FabricRegistration);
    check(&[], None);
    let unreadable = sick("cannot be shared", Recovery::OtherDriver);
    check(&[unreadable], Some(["True", "GpuUnreadable"]));
    check(&[waiting], Some(["True", "FabricNotReady"]));
    check(&both[..1], Some(["True", "ResetNeeded"]));
    check(&both[..1], None);
    check(&both, Some(["True", "DrainNeeded"]));
    check(&[], Some(["False", "GpusWell"]));
    check(&[], None);
}

#[test]
fn mig_14_sets_condition_while_runtime_lacks_feature() {
    let fault = RuntimeProblem {
        reason: "CdiOff",
        blocks: true,
        text: "off".to_owned(),
    };
    let mut view = NodeView::default();
    let mut check = |problems: Option<&[RuntimeProblem]>, expected: Option<[&str; 2]>| {
        let published = published();
        if let Some(problems) = problems {
            published.set_runtime(RuntimeStatus {
                problems: problems.to_vec(),
                ..RuntimeStatus::default()
            });
        }
        let found = written(RUNTIME, &published.get(), &[], None, &mut view);
        assert_eq!(words(found.as_ref()), expected, "{problems:?}");
    };
    let one = std::slice::from_ref(&fault);
    check(None, None);
    check(Some(&[]), None);
    check(Some(one), Some(["True", "CdiOff"]));
    check(Some(one), None);
    check(None, None);
    check(Some(&[]), Some(["False", "RuntimeComplete"]));
}

#[test]
fn sets_condition_while_other_plugin_serves_resource() {
    let taken = TakenResource {
        resource: "nvidia.com/gpu".to_owned(),
        ids: ["nvidia0".to_owned(), "nvidia1".to_owned()].into(),
    };
    let mut view = NodeView::default();
    let mut check = |taken: Option<&[TakenResource]>, expected: Option<[&str; 2]>| {
        let published = published();
        if let Some(taken) = taken {
            published.set_taken_resources(taken.to_vec());
        }
        let found = written(RESOURCE_TAKEN, &published.get(), &[], None, &mut view);
        assert_eq!(words(found.as_ref()), expected, "{taken:?}");
        if let Some(found) = found {
            let example = "nvidia.com/gpu (2 device ids, such as nvidia0)";
            assert_eq!(found.message.contains(example), found.holds, "{found:?}");
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
    let gpus = ["GPU-a", "GPU-b"];
    let mut facts = facts(&gpus);
    facts.gpus[1].mig.enabled = true;
    let mut view = NodeView::default();
    let mut check = |uncorrected: Option<&[&str]>, expected: Option<[&str; 2]>| {
        let published = NodePublisher::new(facts.clone(), Vec::new(), layout_of(&gpus));
        let owned = |all: &[&str]| all.iter().map(|&gpu| gpu.to_owned()).collect();
        published.set_monitor_reports(MonitorReports {
            uncorrected: uncorrected.map(owned),
            ..MonitorReports::default()
        });
        let found = written(UNCORRECTED, &published.get(), &[], None, &mut view);
        assert_eq!(words(found.as_ref()), expected, "{uncorrected:?}");
        if let Some(found) = found {
            assert_eq!(found.message.contains("not corrected"), found.holds);
            assert_eq!(found.message.contains("GPU-b"), found.holds, "{found:?}");
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
    let forged = |pod: &mut Pod| pod.allocation = Some("{".to_owned());
    let spoilt = |pod: &mut Pod| {
        forged(pod);
        let requested = &mut pod.containers[0].requested;
        requested.insert(crate::testing::RESOURCE.to_owned(), 1);
    };
    let node = published().get();
    let mut view = NodeView::default();
    let mut check = |pods: &[Arc<Pod>], expected: Option<[&str; 2]>| {
        let found = written(ALLOCATION_UNREADABLE, &node, pods, None, &mut view);
        let found = found.as_ref().map(|found| {
            let names = found.message.rsplit(": ").next().unwrap_or_default();
            [found.status(), names]
        });
        assert_eq!(found, expected);
    };
    check(&[pod("other", &forged)], None);
    let pods = [pod("a", &spoilt), pod("b", &spoilt)];
    check(&pods, Some(["True", "default/a, default/b"]));
    check(&pods, None);
    let readable = "the allocations of all pods on this node can be read";
    check(&[], Some(["False", readable]));
}

#[test]
fn names_each_housekeeping_problem_once_and_not_too_many() {
    let published = published();
    let mut view = NodeView::default();
    let mut check = |problems: BTreeSet<String>, expected: Option<[&str; 3]>| {
        published.set_housekeeping_problems(problems);
        let found = written(HOUSEKEEPING, &published.get(), &[], None, &mut view);
        let found = found.as_ref();
        let found = found.map(|found| [found.status(), found.reason, found.message.as_str()]);
        assert_eq!(found, expected);
    };
    check(BTreeSet::new(), None);
    let (status, reason) = ("True", "HousekeepingFailed");
    let two = || ["cannot read a".to_owned(), "cannot read b".to_owned()].into();
    let message = "cannot read a; cannot read b";
    check(two(), Some([status, reason, message]));
    check(two(), None);
    let many = |number: usize| format!("{number:02}{}", "€".repeat(300));
    let named: Vec<String> = (0..8)
        .map(|number| format!("{number:02}{}… (302 characters)", "€".repeat(254)))
        .collect();
    let message = format!("{}; and 12 more", named.join("; "));
    check(
        (0..20).map(many).collect(),
        Some([status, reason, &message]),
    );
    let message = "the files of all containers are up to date";
    check(
        BTreeSet::new(),
        Some(["False", "HousekeepingDone", message]),
    );
}
