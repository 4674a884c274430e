//! What Allocate says without CDI, read back as from the checkpoint, and whose shares it agrees
//! with.

use aliquot_core::mig::published::Placed;
use serde_json::{Value, json};

use super::*;
use crate::inventory::Published;
use crate::testing::{arrangement, entry, facts, grant, pod};

const SEAT: &str = "GPU-a-0-0000000000000001";

fn node() -> std::sync::Arc<Node> {
    let cards = ["GPU-a", "GPU-b"];
    Published::new(facts(&cards), Vec::new(), arrangement(&cards)).get()
}

fn paths() -> Paths {
    use clap::Parser as _;
    let line = ["agent", "--node-name=n1", "--driver-root=/nonexistent"];
    crate::settings::Settings::parse_from(line).paths()
}

fn told(list: DeviceList, ids: &[&str], limits: bool) -> api::ContainerAllocateResponse {
    let ids: Ids = ids.iter().map(|&id| id.to_owned()).collect();
    let name = Name::parse(SEAT).expect("a name");
    answer(list, &name, &ids, &node(), &paths(), limits)
}

fn shown(answer: &api::ContainerAllocateResponse) -> Value {
    let mounts = answer.mounts.iter().map(|one| {
        let rights = if one.read_only { "ro" } else { "rw" };
        format!("{}:{}:{rights}", one.host_path, one.container_path)
    });
    let envs: std::collections::BTreeMap<_, _> = answer.envs.iter().collect();
    json!({"envs": envs, "mounts": mounts.collect::<Vec<_>>()})
}

#[test]
fn a_runtime_without_cdi_is_told_by_environment_and_mounts() {
    let seat = format!("/var/lib/aliquot/seats/{SEAT}");
    let common = [
        format!("{seat}:/.aliquot:ro"),
        format!("{seat}/counters/slots:/.aliquot/counters/slots:rw"),
    ];
    let list = format!("{seat}/ld.so.preload:/etc/ld.so.preload:ro");
    let by_envvar = told(DeviceList::Envvar, &["GPU-b::1", "GPU-a::0"], true);
    assert_eq!(
        shown(&by_envvar),
        json!({
            "envs": {
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/.aliquot/counters/slots",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            },
            "mounts": [common[0], common[1], list],
        })
    );
    let folder = "/var/run/nvidia-container-devices";
    let by_mounts = told(DeviceList::VolumeMounts, &["GPU-a::0"], false);
    assert_eq!(
        shown(&by_mounts),
        json!({
            "envs": {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "NVIDIA_VISIBLE_DEVICES": folder},
            "mounts": [common[0], common[1], format!("/dev/null:{folder}/GPU-a:rw")],
        })
    );
    // A card that is gone opens none.
    let gone = told(DeviceList::Envvar, &["GPU-z::0"], true);
    assert_eq!(gone.envs["NVIDIA_VISIBLE_DEVICES"], "void");
}

#[test]
fn what_was_told_is_read_back_from_the_checkpoint_and_nobody_elses() {
    for (list, ids, visible) in [
        (
            DeviceList::Envvar,
            vec!["GPU-b::1", "GPU-a::0"],
            vec!["GPU-a", "GPU-b"],
        ),
        (DeviceList::VolumeMounts, vec!["GPU-b::1"], vec!["GPU-b"]),
    ] {
        let (name, named) = read(&told(list, &ids, true)).expect("ours");
        assert_eq!(name.as_str(), SEAT);
        let visible = visible.into_iter().map(str::to_owned).collect();
        let wanted = Named {
            visible,
            mounted: list == DeviceList::VolumeMounts,
            preloads: true,
        };
        assert_eq!(named, wanted);
    }
    let mut other = told(DeviceList::Envvar, &["GPU-a::0"], true);
    other.mounts.remove(0);
    assert_eq!(read(&other), None, "such as HAMi's");
    let mut bad = told(DeviceList::Envvar, &["GPU-a::0"], true);
    bad.mounts[0].host_path = "/var/lib/aliquot/seats/..".to_owned();
    assert_eq!(read(&bad), None);
}

/// `expected` empty: the container may start. Else: refused with a text that has all parts.
fn check(named: &[&str], grants: &[Grant], mode: Mode, env: &str, expected: &[&str]) {
    let visible = named.iter().map(|&one| one.to_owned()).collect();
    let mut holder = entry("u1", Some(SEAT), &["GPU-a::0"]);
    holder.by_env = Some(Named {
        visible,
        mounted: false,
        preloads: true,
    });
    let mut pod = pod("u1");
    if !env.is_empty() {
        let own = (capabilities::VARIABLE.to_owned(), env.to_owned());
        pod.containers[0].env = [own].into();
    }
    let found = named_rightly(&[&holder], grants, |_| mode, &node(), true, Some(&pod));
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
fn a_container_starts_only_with_the_gpus_that_it_was_told() {
    let one = [grant("GPU-a", 3000, 30)];
    let two = [grant("GPU-b", 3000, 30), grant("GPU-a", 1, 1)];
    check(&["GPU-a"], &one, Mode::Vgpu, "", &[]);
    check(&["GPU-a", "GPU-b"], &two, Mode::Vgpu, "", &[]);
    let other = ["told GPU-b", "given GPU-a", "create it again"];
    check(&["GPU-b"], &one, Mode::Vgpu, "", &other);
    check(
        &["GPU-a"],
        &two,
        Mode::Vgpu,
        "",
        &["told GPU-a", "given GPU-a,GPU-b"],
    );
    check(&["GPU-a"], &one, Mode::Mps, "", &["through MPS", "CDI"]);
    let mut made = grant("GPU-a", 0, 0);
    made.mig = Some(Placed {
        profile: "1g.5gb".to_owned(),
        start: 0,
    });
    check(&["GPU-a"], &[made], Mode::Mig, "", &["MIG instance", "CDI"]);
    check(&["GPU-a"], &one, Mode::Exclusive, "", &[]);
}

#[test]
fn a_pods_own_environment_opens_no_more_of_the_driver() {
    let one = [grant("GPU-a", 3000, 30)];
    check(&["GPU-a"], &one, Mode::Vgpu, "utility,compute", &[]);
    let parts = ["\"all\"", "compute,utility", "profile that allows it"];
    check(&["GPU-a"], &one, Mode::Vgpu, "all", &parts);
    let parts = ["\"graphics\""];
    check(&["GPU-a"], &one, Mode::Vgpu, "compute,graphics", &parts);
}

#[test]
fn an_env_from_in_a_container_with_a_share_named_gpus_past_it() {
    let one = [grant("GPU-a", 3000, 30)];
    for (mounted, refused) in [(false, true), (true, false)] {
        let mut holder = entry("u1", Some(SEAT), &["GPU-a::0"]);
        holder.by_env = Some(Named {
            visible: ["GPU-a".to_owned()].into(),
            mounted,
            preloads: true,
        });
        let mut pod = pod("u1");
        pod.containers[0].env_from = true;
        let found = named_rightly(&[&holder], &one, |_| Mode::Vgpu, &node(), true, Some(&pod));
        let refusal = refused.then(|| ByEnv::FromElsewhere("main".to_owned()));
        assert_eq!(found.err(), refusal, "by mounts: {mounted}");
        // By CDI the spec has the last word.
        let by_cdi = entry("u1", Some(SEAT), &["GPU-a::0"]);
        let found = named_rightly(&[&by_cdi], &one, |_| Mode::Vgpu, &node(), true, Some(&pod));
        assert_eq!(found, Ok(()));
    }
}

#[test]
fn limits_that_came_after_the_pod_was_admitted_keep_it_from_starting() {
    let mut holder = entry("u1", Some(SEAT), &["GPU-a::0"]);
    let visible: BTreeSet<String> = ["GPU-a".to_owned()].into();
    let one = [grant("GPU-a", 3000, 30)];
    holder.by_env = Some(Named {
        visible,
        mounted: false,
        preloads: false,
    });
    let judge = |holders: &[&Entry], limits| {
        named_rightly(holders, &one, |_| Mode::Vgpu, &node(), limits, None)
    };
    let refusal = ByEnv::Unlimited("main".to_owned());
    assert_eq!(judge(&[&holder], true), Err(refusal));
    assert_eq!(judge(&[&holder], false), Ok(()));
    // A second resource would mount the seat's folder twice.
    let refused = judge(&[&holder, &holder], false).expect_err("refused");
    assert!(refused.to_string().contains("two resources"), "{refused}");
    // Under CDI the spec says it all later.
    let by_cdi = entry("u1", Some(SEAT), &["GPU-b::0"]);
    assert_eq!(judge(&[&by_cdi], true), Ok(()));
}

#[test]
fn a_list_to_preload_is_there_before_the_container_and_left_as_it_is() {
    let seat = tempfile::tempdir().expect("tempdir");
    let list = seat.path().join(PRELOAD_FILE);
    let named = |preloads| Named {
        visible: BTreeSet::new(),
        mounted: false,
        preloads,
    };
    settle(seat.path(), &named(false)).expect("nothing to do");
    assert!(!list.exists());
    settle(seat.path(), &named(true)).expect("made");
    assert_eq!(std::fs::read(&list).expect("there"), b"");
    std::fs::write(&list, "ours").expect("written");
    settle(seat.path(), &named(true)).expect("left");
    assert_eq!(std::fs::read(&list).expect("there"), b"ours");
}
