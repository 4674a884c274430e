//! Which allocations fit what Allocate answered without CDI.

use super::*;
use crate::testing::{entry, grant, instance_grant, pod, published};
use aliquot_node_state::allocate_answer::NonCdiAnswer;

fn node() -> std::sync::Arc<PublishedNode> {
    published(&["GPU-a", "GPU-b"]).get()
}

/// A checkpoint entry whose answer named these GPUs, with a preload list or without; `None`: a CDI
/// device.
fn answered(non_cdi: Option<(&[&str], bool)>) -> CheckpointEntry {
    let mut entry = entry("u1", Some("GPU-a-0-0000000000000001"), &["GPU-a::0"]);
    entry.non_cdi = non_cdi.map(|(gpus, preloads)| NonCdiAnswer {
        visible: gpus.iter().map(|&gpu| gpu.to_owned()).collect(),
        preloads,
    });
    entry
}

/// `expected` empty: the container may start. Else: refused with a text that has all parts.
fn check(gpus: &[&str], grants: &[Grant], mode: Mode, env: &str, expected: &[&str]) {
    let holder = answered(Some((gpus, true)));
    let mut pod = pod("u1");
    if !env.is_empty() {
        let own = (capabilities::VARIABLE.to_owned(), env.to_owned());
        pod.containers[0].env = [own].into();
    }
    let found = check_answer(&[&holder], grants, |_| mode, &node(), true, Some(&pod));
    let text = found.err().map(|refusal| refusal.to_string());
    assert_eq!(text.is_none(), expected.is_empty(), "{text:?}");
    for part in expected {
        assert!(
            text.as_ref().is_some_and(|text| text.contains(part)),
            "{part}: {text:?}"
        );
    }
}

#[test]
fn starts_only_with_gpus_named_at_allocate() {
    let one = [grant("GPU-a", 3000, 30)];
    let two = [grant("GPU-b", 3000, 30), grant("GPU-a", 1, 1)];
    let made = [instance_grant("GPU-a", "1g.5gb", 0)];
    let other = [
        "Allocate named GPU-b",
        "allocation has GPU-a",
        "create it again",
    ];
    let more = ["Allocate named GPU-a", "allocation has GPU-a,GPU-b"];
    check(&["GPU-a"], &one, Mode::Vgpu, "", &[]);
    check(&["GPU-a", "GPU-b"], &two, Mode::Vgpu, "", &[]);
    check(&["GPU-b"], &one, Mode::Vgpu, "", &other);
    check(&["GPU-a"], &two, Mode::Vgpu, "", &more);
    check(&["GPU-a"], &one, Mode::Mps, "", &["mode mps", "CDI"]);
    check(&["GPU-a"], &made, Mode::Mig, "", &["MIG instance", "CDI"]);
    check(&["GPU-a"], &one, Mode::Exclusive, "", &[]);
}

#[test]
fn rejects_capabilities_beyond_profile_in_pod_env() {
    let one = [grant("GPU-a", 3000, 30)];
    check(&["GPU-a"], &one, Mode::Vgpu, "utility,compute", &[]);
    let parts = ["\"all\"", "compute,utility", "profile that allows it"];
    check(&["GPU-a"], &one, Mode::Vgpu, "all", &parts);
    let parts = &parts[1..];
    check(&["GPU-a"], &one, Mode::Vgpu, "compute,graphics", parts);
}

#[test]
fn rejects_env_from_without_cdi() {
    let one = [grant("GPU-a", 3000, 30)];
    let mut pod = pod("u1");
    pod.containers[0].env_from = true;
    let check = |holder: &CheckpointEntry| {
        check_answer(&[holder], &one, |_| Mode::Vgpu, &node(), true, Some(&pod))
    };
    let refusal = NonCdiRefusal::EnvFrom("main".to_owned());
    assert_eq!(check(&answered(Some((&["GPU-a"], true)))), Err(refusal));
    // With CDI the spec overrides the environment.
    assert_eq!(check(&answered(None)), Ok(()));
}

#[test]
fn rejects_pod_admitted_before_limits_were_on() {
    let holder = answered(Some((&["GPU-a"], false)));
    let one = [grant("GPU-a", 3000, 30)];
    let check = |holders: &[&CheckpointEntry], limits| {
        check_answer(holders, &one, |_| Mode::Vgpu, &node(), limits, None)
    };
    let refusal = NonCdiRefusal::Unlimited("main".to_owned());
    assert_eq!(check(&[&holder], true), Err(refusal));
    assert_eq!(check(&[&holder], false), Ok(()));
    // A second resource would mount the container directory twice.
    let refused = check(&[&holder, &holder], false).expect_err("refused");
    assert!(refused.to_string().contains("two resources"), "{refused}");
    // Under CDI the spec is written later.
    assert_eq!(check(&[&answered(None)], true), Ok(()));
}
