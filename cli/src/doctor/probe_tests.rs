//! Findings from what the two probes saw.

use super::super::finding::Grade;
use super::*;

fn view(change: impl FnOnce(&mut ContainerView)) -> ContainerView {
    let mut view = ContainerView {
        loaded: vec!["/.aliquot/libvgpu.so".to_owned()],
        environment: [("ALIQUOT_VISIBLE_DEVICES".to_owned(), "GPU-1".to_owned())].into(),
        has_page: true,
        root: "rw,redirect_dir=off".to_owned(),
        kernel: Some("6.8.0-45-generic".to_owned()),
        ..ContainerView::default()
    };
    change(&mut view);
    view
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "tests read better with values"
)]
fn check(share: Fact<ContainerView>, without_share: Fact<ContainerView>, bad: &[(&str, Grade)]) {
    let found = checks(&About("n".to_owned()), &share, &without_share, Ok(true));
    let found: Vec<_> = found
        .iter()
        .filter(|finding| finding.grade != Grade::Ok)
        .map(|finding| (finding.check, finding.grade))
        .collect();
    assert_eq!(found, bad);
}

#[test]
fn reports_nothing_when_probe_has_limiter_and_share() {
    let none = || Ok(view(|view| view.gpu_nodes.clear()));
    check(Ok(view(|_| ())), none(), &[]);
    // With injection by replacement nothing is loaded in a program that uses no GPU.
    let replaced = view(|view| {
        view.loaded.clear();
        view.shims = vec!["/usr/lib/libcuda.so.1".to_owned()];
    });
    check(Ok(replaced), none(), &[]);
}

#[test]
fn reports_what_each_probe_finds() {
    let none = || Ok(view(|view| view.gpu_nodes.clear()));
    let (bad, warns) = (Grade::Problem, Grade::Warning);
    let bare = view(|view| {
        view.loaded.clear();
        view.environment.clear();
        view.selinux = Some("1".to_owned());
        view.has_page = false;
    });
    check(
        Ok(bare),
        none(),
        &[("library", bad), ("share", bad), ("selinux", bad)],
    );
    let open = view(|view| view.gpu_nodes = vec!["nvidia0".to_owned()]);
    check(Ok(view(|_| ())), Ok(open), &[("gpus-by-environment", bad)]);
    let moves = view(|view| view.root = "rw,redirect_dir=on".to_owned());
    check(Ok(moves), none(), &[("overlay-redirect-dir", warns)]);
    let moves = view(|view| {
        view.root = "rw".to_owned();
        view.redirect_dir = Some("Y".to_owned());
    });
    check(Ok(moves), none(), &[("overlay-redirect-dir", warns)]);
}

#[test]
fn reads_view_beside_what_the_loader_says() {
    let seen = view(|view| view.loaded.clear());
    let json = serde_json::to_string(&seen).unwrap();
    let error = "ERROR: ld.so: object '/.aliquot/lib/libvgpu.so' from /etc/ld.so.preload cannot be preloaded (failed to map segment from shared object): ignored.";
    for log in [format!("{json}\n"), format!("{error}\n{json}\n")] {
        assert_eq!(view_in(&log), Ok(seen.clone()), "{log}");
    }
    assert!(view_in(error).is_err());
}

#[test]
fn recognises_selinux_by_label_where_mode_is_hidden() {
    let found = |label: Option<&str>, has_page: bool| {
        let seen = view(|view| {
            view.label = label.map(str::to_owned);
            view.has_page = has_page;
        });
        selinux(&seen).unwrap()
    };
    let ours = "system_u:system_r:container_t:s0:c1,c2";
    assert_eq!(found(Some(ours), false).grade, Grade::Problem);
    assert_eq!(found(Some(ours), true).grade, Grade::Ok);
    for label in [None, Some("cri-containerd.apparmor.d (enforce)")] {
        assert_eq!(found(label, true).found, "SELinux is off", "{label:?}");
    }
}

#[test]
fn probe_ends_beside_a_sidecar_that_runs_on() {
    let check = |phase: &str, own: Value, expected: Option<bool>| {
        let container = |name: &str, state: Value| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state})
        };
        let sidecar = container("proxy", json!({"running": {}}));
        let statuses = [sidecar, container("container-view", own)];
        let status = json!({"phase": phase, "containerStatuses": statuses});
        let pod = serde_json::from_value(json!({"status": status})).unwrap();
        assert_eq!(end(&pod), expected);
    };
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    check("Running", json!({"running": {}}), None);
    check("Running", ended(0), Some(true));
    check("Running", ended(127), Some(false));
    check("Succeeded", ended(0), Some(true));
    check("Failed", json!({}), Some(false));
}

#[test]
fn says_why_a_probe_failed() {
    let check = |status: Value, expected: &str| {
        let pod: Pod = serde_json::from_value(json!({"status": status})).unwrap();
        let why = why_not_ended(&pod);
        assert_eq!(why, format!("the probe pod is in phase {expected}"));
    };
    let ended = json!({"exitCode": 128, "reason": "StartError", "message": "no such device"});
    let container = json!({"name": "container-view", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"terminated": ended}});
    check(
        json!({"phase": "Failed", "containerStatuses": [container]}),
        "Failed: container-view (StartError: no such device)",
    );
    check(
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed"}),
        "Failed: Allocate failed",
    );
    let unplaced = json!({"type": "PodScheduled", "status": "False", "message": "0/1 nodes"});
    check(
        json!({"phase": "Pending", "conditions": [unplaced]}),
        "Pending: 0/1 nodes",
    );
}

#[test]
fn skips_check_when_webhook_changes_probe() {
    let closed = view(|view| {
        let void = ("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
        view.environment = [void].into();
    });
    let unmade = ("gpus-by-environment", Grade::NotChecked);
    check(Ok(view(|_| ())), Ok(closed), &[unmade]);
}

#[test]
fn skips_checks_of_probe_that_does_not_run() {
    let not = |why: &str| Err::<ContainerView, _>(why.to_owned());
    let unmade = Grade::NotChecked;
    check(
        not("pending"),
        not("pending"),
        &[
            ("library", unmade),
            ("share", unmade),
            ("gpus-by-environment", unmade),
            ("selinux", unmade),
            ("overlay-redirect-dir", unmade),
            ("fork-detection", unmade),
        ],
    );
}

#[test]
fn names_kernel_that_does_not_wipe_forked_children() {
    let none = || Ok(view(|view| view.gpu_nodes.clear()));
    let on = |release: Option<&str>| Ok(view(|view| view.kernel = release.map(str::to_owned)));
    for release in ["4.14.0", "5.15.0-1053-aws", "6.12.9+", "10.0"] {
        check(on(Some(release)), none(), &[]);
    }
    for release in ["4.4.0", "3.10.0-1160.el7.x86_64", "4.19.0-gvisor"] {
        check(
            on(Some(release)),
            none(),
            &[("fork-detection", Grade::Warning)],
        );
    }
    for release in [None, Some("unknown")] {
        check(
            on(release),
            none(),
            &[("fork-detection", Grade::NotChecked)],
        );
    }
}

#[test]
fn probes_request_a_share_and_none() {
    let names = ResourceNames::default();
    let secrets = [LocalObjectReference {
        name: "registry".to_owned(),
    }];
    let share = Probe::Share.pod("n1", "i", &secrets, &names, None);
    assert!(share["spec"].get("schedulerName").is_none());
    let own = Probe::Share.pod("n1", "i", &secrets, &names, Some("s"));
    assert_eq!(own["spec"]["schedulerName"], "s");
    let limits = &share["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["nvidia.com/gpu"], "1");
    let without_share = Probe::WithoutShare.pod("n1", "i", &secrets, &names, Some("s"));
    assert!(without_share["spec"].get("schedulerName").is_none());
    assert!(
        without_share["spec"]["containers"][0]
            .get("resources")
            .is_none()
    );
    for pod in [share, without_share] {
        // Who pulls an image with a Secret may be the only one who may use it.
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let spec = pod.spec.expect("a spec");
        assert_eq!(spec.image_pull_secrets.as_deref(), Some(&secrets[..]));
    }
}
