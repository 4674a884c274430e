//! Answers of Allocate without CDI, read back as from the checkpoint, and which allocations they
//! fit.

use aliquot_core::mig::published::MigPlacement;
use serde_json::{Value, json};

use super::*;
use crate::inventory::NodePublisher;
use crate::testing::{entry, facts, grant, layout_of, pod};

const NAME: &str = "GPU-a-0-0000000000000001";

fn node() -> std::sync::Arc<PublishedNode> {
    let gpus = ["GPU-a", "GPU-b"];
    NodePublisher::new(facts(&gpus), Vec::new(), layout_of(&gpus)).get()
}

fn paths() -> Paths {
    use clap::Parser as _;
    let line = ["agent", "--node-name=n1", "--driver-root=/nonexistent"];
    crate::settings::Settings::parse_from(line).paths()
}

fn allocate(
    list: DeviceListStrategy,
    ids: &[&str],
    limits: bool,
) -> api::ContainerAllocateResponse {
    let ids: DeviceIds = ids.iter().map(|&id| id.to_owned()).collect();
    let name = AnswerName::parse(NAME).expect("a name");
    answer(list, &name, &ids, &node(), &paths(), limits)
}

fn as_json(answer: &api::ContainerAllocateResponse) -> Value {
    let mounts = answer.mounts.iter().map(|one| {
        let rights = if one.read_only { "ro" } else { "rw" };
        format!("{}:{}:{rights}", one.host_path, one.container_path)
    });
    let envs: std::collections::BTreeMap<_, _> = answer.envs.iter().collect();
    json!({"envs": envs, "mounts": mounts.collect::<Vec<_>>()})
}

#[test]
fn passes_gpus_by_environment_or_mounts_without_cdi() {
    let directory = format!("/var/lib/aliquot/seats/{NAME}");
    let common = [
        format!("{directory}:/.aliquot:ro"),
        format!("{directory}/counters/slots:/.aliquot/counters/slots:rw"),
    ];
    let list = format!("{directory}/ld.so.preload:/etc/ld.so.preload:ro");
    let by_envvar = allocate(DeviceListStrategy::Envvar, &["GPU-b::1", "GPU-a::0"], true);
    assert_eq!(
        as_json(&by_envvar),
        json!({
            "envs": {
                "ALIQUOT_VISIBLE_DEVICES": "GPU-a,GPU-b",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/.aliquot/counters/slots",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            },
            "mounts": [common[0], common[1], list],
        })
    );
    let folder = "/var/run/nvidia-container-devices";
    let by_mounts = allocate(DeviceListStrategy::VolumeMounts, &["GPU-a::0"], false);
    assert_eq!(
        as_json(&by_mounts),
        json!({
            "envs": {
                "ALIQUOT_VISIBLE_DEVICES": "GPU-a",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                "NVIDIA_VISIBLE_DEVICES": folder,
            },
            "mounts": [common[0], common[1], format!("/dev/null:{folder}/GPU-a:rw")],
        })
    );
    // A GPU that is gone makes none visible.
    let gone = allocate(DeviceListStrategy::Envvar, &["GPU-z::0"], true);
    assert_eq!(gone.envs["NVIDIA_VISIBLE_DEVICES"], "void");
}

#[test]
fn reads_back_own_answers_from_checkpoint() {
    for (list, ids, visible) in [
        (
            DeviceListStrategy::Envvar,
            vec!["GPU-b::1", "GPU-a::0"],
            vec!["GPU-a", "GPU-b"],
        ),
        (
            DeviceListStrategy::VolumeMounts,
            vec!["GPU-b::1"],
            vec!["GPU-b"],
        ),
    ] {
        let (name, named) = read(&allocate(list, &ids, true)).expect("ours");
        assert_eq!(name.as_str(), NAME);
        let visible = visible.into_iter().map(str::to_owned).collect();
        let expected = NonCdiAnswer {
            visible,
            mounted: list == DeviceListStrategy::VolumeMounts,
            preloads: true,
        };
        assert_eq!(named, expected);
    }
    let mut other = allocate(DeviceListStrategy::Envvar, &["GPU-a::0"], true);
    other.mounts.remove(0);
    assert_eq!(read(&other), None, "such as HAMi's");
    let mut bad = allocate(DeviceListStrategy::Envvar, &["GPU-a::0"], true);
    bad.mounts[0].host_path = "/var/lib/aliquot/seats/..".to_owned();
    assert_eq!(read(&bad), None);
}

/// `expected` empty: the container may start. Else: refused with a text that has all parts.
fn check(named: &[&str], grants: &[Grant], mode: Mode, env: &str, expected: &[&str]) {
    let visible = named.iter().map(|&one| one.to_owned()).collect();
    let mut holder = entry("u1", Some(NAME), &["GPU-a::0"]);
    holder.non_cdi = Some(NonCdiAnswer {
        visible,
        mounted: false,
        preloads: true,
    });
    let mut pod = pod("u1");
    if !env.is_empty() {
        let own = (capabilities::VARIABLE.to_owned(), env.to_owned());
        pod.containers[0].env = [own].into();
    }
    let found = check_non_cdi_answer(&[&holder], grants, |_| mode, &node(), true, Some(&pod));
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
    check(&["GPU-a"], &one, Mode::Vgpu, "", &[]);
    check(&["GPU-a", "GPU-b"], &two, Mode::Vgpu, "", &[]);
    let other = [
        "Allocate named GPU-b",
        "allocation has GPU-a",
        "create it again",
    ];
    check(&["GPU-b"], &one, Mode::Vgpu, "", &other);
    check(
        &["GPU-a"],
        &two,
        Mode::Vgpu,
        "",
        &["Allocate named GPU-a", "allocation has GPU-a,GPU-b"],
    );
    check(&["GPU-a"], &one, Mode::Mps, "", &["mode mps", "CDI"]);
    let mut made = grant("GPU-a", 0, 0);
    made.mig = Some(MigPlacement {
        profile: "1g.5gb".to_owned(),
        start: 0,
    });
    check(&["GPU-a"], &[made], Mode::Mig, "", &["MIG instance", "CDI"]);
    check(&["GPU-a"], &one, Mode::Exclusive, "", &[]);
}

#[test]
fn rejects_capabilities_beyond_profile_in_pod_env() {
    let one = [grant("GPU-a", 3000, 30)];
    check(&["GPU-a"], &one, Mode::Vgpu, "utility,compute", &[]);
    let parts = ["\"all\"", "compute,utility", "profile that allows it"];
    check(&["GPU-a"], &one, Mode::Vgpu, "all", &parts);
    let parts = ["\"graphics\""];
    check(&["GPU-a"], &one, Mode::Vgpu, "compute,graphics", &parts);
}

#[test]
fn rejects_env_from_unless_gpus_are_mounts() {
    let one = [grant("GPU-a", 3000, 30)];
    for (mounted, refused) in [(false, true), (true, false)] {
        let mut holder = entry("u1", Some(NAME), &["GPU-a::0"]);
        holder.non_cdi = Some(NonCdiAnswer {
            visible: ["GPU-a".to_owned()].into(),
            mounted,
            preloads: true,
        });
        let mut pod = pod("u1");
        pod.containers[0].env_from = true;
        let found =
            check_non_cdi_answer(&[&holder], &one, |_| Mode::Vgpu, &node(), true, Some(&pod));
        let refusal = refused.then(|| NonCdiRefusal::EnvFrom("main".to_owned()));
        assert_eq!(found.err(), refusal, "by mounts: {mounted}");
        // With CDI the spec overrides the environment.
        let by_cdi = entry("u1", Some(NAME), &["GPU-a::0"]);
        let found =
            check_non_cdi_answer(&[&by_cdi], &one, |_| Mode::Vgpu, &node(), true, Some(&pod));
        assert_eq!(found, Ok(()));
    }
}

#[test]
fn rejects_pod_admitted_before_limits_were_on() {
    let mut holder = entry("u1", Some(NAME), &["GPU-a::0"]);
    let visible: BTreeSet<String> = ["GPU-a".to_owned()].into();
    let one = [grant("GPU-a", 3000, 30)];
    holder.non_cdi = Some(NonCdiAnswer {
        visible,
        mounted: false,
        preloads: false,
    });
    let check = |holders: &[&CheckpointEntry], limits| {
        check_non_cdi_answer(holders, &one, |_| Mode::Vgpu, &node(), limits, None)
    };
    let refusal = NonCdiRefusal::Unlimited("main".to_owned());
    assert_eq!(check(&[&holder], true), Err(refusal));
    assert_eq!(check(&[&holder], false), Ok(()));
    // A second resource would mount the container directory twice.
    let refused = check(&[&holder, &holder], false).expect_err("refused");
    assert!(refused.to_string().contains("two resources"), "{refused}");
    // Under CDI the spec is written later.
    let by_cdi = entry("u1", Some(NAME), &["GPU-b::0"]);
    assert_eq!(check(&[&by_cdi], true), Ok(()));
}

#[test]
fn creates_preload_list_once_before_container() {
    let directory = tempfile::tempdir().expect("tempdir");
    let list = directory.path().join(PRELOAD_FILE);
    let named = |preloads| NonCdiAnswer {
        visible: BTreeSet::new(),
        mounted: false,
        preloads,
    };
    create_preload_list(directory.path(), &named(false)).expect("nothing to do");
    assert!(!list.exists());
    create_preload_list(directory.path(), &named(true)).expect("made");
    assert_eq!(std::fs::read(&list).expect("there"), b"");
    std::fs::write(&list, "ours").expect("written");
    create_preload_list(directory.path(), &named(true)).expect("left");
    assert_eq!(std::fs::read(&list).expect("there"), b"ours");
}
