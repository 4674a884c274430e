//! Values that reach a node: paths, the driver root, labels, profiles.

use std::path::Path;

use aliquot_chart::{Object, container, one, rendered, texts, top};
use serde_json::{Value, json};

use crate::{Agent, Monitor, supervisor, taken, webhook_flags};

fn agent(objects: &[Object]) -> &Object {
    one(objects, "DaemonSet", "aliquot-device-plugin")
}

fn flags(objects: &[Object]) -> Agent {
    let own = container(agent(objects), "device-plugin");
    taken(own, &["aliquot-device-plugin"], &["--node-name=n"])
}

#[test]
fn forbids_pods_to_mount_agent_paths() {
    let closed = |arguments: &[&str]| {
        let objects = rendered(arguments).unwrap();
        webhook_flags(&objects).settings().unwrap().agent_paths
    };
    let defaults = [
        "/run/aliquot",
        "/var/lib/aliquot",
        "/var/lib/kubelet",
        "/var/run/cdi",
        "/etc/cdi",
    ];
    assert_eq!(closed(&[]), defaults);
    let others = closed(&[
        "--set=devicePlugin.kubeletDir=/srv/kubelet,devicePlugin.cdiDir=/opt/cdi",
        "--set=devicePlugin.stateDir=/srv/aliquot,devicePlugin.execDir=/opt/aliquot",
        "--set=devicePlugin.runtimeConfig=/etc/k0s/containerd.toml",
    ]);
    let expected = [
        "/run/aliquot",
        "/srv/aliquot",
        "/srv/kubelet",
        "/opt/cdi",
        "/etc/cdi",
        "/opt/aliquot",
        "/etc/k0s",
    ];
    assert_eq!(others, expected);
}

#[test]
fn mounts_directory_of_programs_where_the_host_has_it() {
    let programs = |arguments: &[&str]| {
        let objects = rendered(arguments).unwrap();
        let own = container(agent(&objects), "device-plugin");
        let mounts = own["volumeMounts"].as_array().unwrap().iter();
        let mut paths = mounts.filter_map(|one| one["mountPath"].as_str());
        let programs = flags(&objects).paths().programs;
        assert!(paths.any(|path| programs.starts_with(path)));
        programs
    };
    assert_eq!(programs(&[]), Path::new("/var/lib/aliquot/limiter"));
    let other = programs(&["--set=devicePlugin.execDir=/opt/aliquot"]);
    assert_eq!(other, Path::new("/opt/aliquot/limiter"));
}

#[test]
fn mounts_driver_root_where_programs_expect_it() {
    let set =
        "--set=devicePlugin.nvidiaDriverRoot=/run/nvidia/driver,devicePlugin.mps.enabled=true";
    let objects = rendered(&[set]).unwrap();
    let own = flags(&objects);
    let root = own.paths().driver_root.unwrap();
    assert_eq!(root.host, Path::new("/run/nvidia/driver"));
    assert_eq!(root.here, Path::new("/driver-root/driver"));
    let monitor = one(&objects, "DaemonSet", "aliquot-monitor");
    let of_monitor = container(monitor, "monitor");
    let of_monitor: Monitor = taken(of_monitor, &["aliquot-monitor"], &["--node-name=n"]);
    let mps = one(&objects, "DaemonSet", "aliquot-mps");
    let mps_container = container(mps, "mps-supervisor");
    let program = ["aliquot-device-plugin", "mps-supervisor"];
    let of_supervisor: supervisor::SupervisorSettings = taken(mps_container, &program, &[]);
    for (pods, name, seen) in [
        (agent(&objects), "device-plugin", Some(root.here)),
        (monitor, "monitor", of_monitor.driver_root),
        (mps, "mps-supervisor", of_supervisor.driver_root),
    ] {
        let mounts = container(pods, name)["volumeMounts"].as_array();
        let mut mounts = mounts.unwrap().iter();
        let mount = mounts.find(|one| one["name"] == "driver-root").unwrap();
        let parent = seen.as_deref().and_then(Path::parent);
        assert_eq!(mount["mountPath"].as_str().map(Path::new), parent, "{name}");
        assert_eq!(mount["readOnly"], true);
        assert_eq!(mount["mountPropagation"], "HostToContainer");
    }
    let plain = rendered(&[]).unwrap();
    assert_eq!(flags(&plain).paths().driver_root, None);
}

/// A driver container may start after the agent, which waits for it. NVIDIA's runtime, where it is the
/// default one and asked for GPUs, creates no container before.
#[test]
fn asks_nvidias_runtime_for_gpus_only_without_driver_root() {
    let mps = "devicePlugin.mps.enabled=true";
    for (set, expected) in [
        ("", "all"),
        (",devicePlugin.nvidiaDriverRoot=/run/nvidia/driver", "void"),
        (
            ",devicePlugin.nvidiaDriverRoot=/,devicePlugin.runtimeClassName=nvidia",
            "all",
        ),
    ] {
        let objects = rendered(&["--set", &format!("{mps}{set}")]).unwrap();
        for (pods, name) in [
            ("aliquot-device-plugin", "device-plugin"),
            ("aliquot-monitor", "monitor"),
            ("aliquot-mps", "mps-supervisor"),
        ] {
            let pods = one(&objects, "DaemonSet", pods);
            let mut env = container(pods, name)["env"].as_array().unwrap().iter();
            let visible = env.find(|one| one["name"] == "NVIDIA_VISIBLE_DEVICES");
            assert_eq!(visible.unwrap()["value"], expected, "{name} {set}");
        }
    }
}

/// A driver container that restarts mounts its root again: only a mount of the parent receives that.
#[test]
fn mounts_parent_of_driver_root() {
    for (value, path, kind, here) in [
        (
            "/run/nvidia/driver",
            "/run/nvidia",
            "DirectoryOrCreate",
            "/driver-root/driver",
        ),
        (
            "/home/kubernetes/bin/nvidia/",
            "/home/kubernetes/bin",
            "DirectoryOrCreate",
            "/driver-root/nvidia",
        ),
        ("/driver", "/driver", "Directory", "/driver-root"),
        ("/", "/", "Directory", "/driver-root"),
    ] {
        let set = format!("--set=devicePlugin.nvidiaDriverRoot={value}");
        let objects = rendered(&[&set]).unwrap();
        let volumes = agent(&objects).pod().unwrap()["volumes"].as_array();
        let mut volumes = volumes.unwrap().iter();
        let root = volumes.find(|one| one["name"] == "driver-root").unwrap();
        assert_eq!(root["hostPath"], json!({"path": path, "type": kind}));
        let root = flags(&objects).paths().driver_root.unwrap();
        assert_eq!(
            (&*root.here, &*root.host),
            (Path::new(here), Path::new(value))
        );
    }
}

/// An upgrade replaces the agents of a tenth of the nodes at a time, and no supervisor, whose end would end
/// all clients of MPS. What both mount in their state reaches the container runtime.
#[test]
fn upgrades_agents_on_a_tenth_of_nodes_and_no_mps_supervisor() {
    let objects = rendered(&["--set=devicePlugin.mps.enabled=true"]).unwrap();
    let (agent, mps) = (agent(&objects), one(&objects, "DaemonSet", "aliquot-mps"));
    let update = &agent.0["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(update["maxUnavailable"], "10%");
    assert_eq!(mps.0["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    let mps_container = container(mps, "mps-supervisor");
    for container in [container(agent, "device-plugin"), mps_container] {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let state = mounts.iter().find(|one| one["name"] == "state").unwrap();
        assert_eq!(state["mountPropagation"], "Bidirectional");
    }
    assert_eq!(mps.pod().unwrap()["automountServiceAccountToken"], false);
}

/// A file that a node lacks, or a directory that cannot be created, blocks the agent's pod: Talos'
/// `/etc` is read only, and each distribution has its files elsewhere.
#[test]
fn mounts_only_host_paths_that_can_be_created() {
    let set = "--set=devicePlugin.runtimeConfig=/etc/k0s/containerd.toml,devicePlugin.nvidiaDriverRoot=/run/nvidia/driver";
    let objects = rendered(&[set]).unwrap();
    let volumes = agent(&objects).pod().unwrap()["volumes"].as_array();
    let paths = volumes
        .unwrap()
        .iter()
        .filter_map(|one| one.get("hostPath"));
    for path in paths {
        let (kind, path) = (&path["type"], path["path"].as_str().unwrap());
        // The kubelet makes this one.
        if path == "/var/lib/kubelet/device-plugins" {
            continue;
        }
        assert_eq!(kind, "DirectoryOrCreate", "{path}");
        assert!(
            path.starts_with("/var/") || path.starts_with("/run/"),
            "{path}"
        );
    }
    let runtime = Path::new("/etc/k0s/containerd.toml");
    assert_eq!(flags(&objects).runtime_config.as_deref(), Some(runtime));
}

/// `sickPods: drain` taints the node; a new agent must still run there.
#[test]
fn agent_tolerates_its_own_taint() {
    let hami = top("tests/chart/values/hami.yaml");
    let hami = hami.to_str().unwrap();
    for arguments in [
        &[][..],
        &["-f", hami],
        &["--set-json=devicePlugin.tolerations=[]"],
    ] {
        let objects = rendered(arguments).unwrap();
        let all = agent(&objects).pod().unwrap()["tolerations"].as_array();
        let own = json!({"key": "aliquot.dev/gpu-drain", "operator": "Exists"});
        assert!(all.unwrap().contains(&own), "{arguments:?}");
    }
}

/// helm parses `on` as a boolean, so that a layout's key would become "true".
#[test]
fn keeps_nested_profiles_of_values_file() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("values.yaml");
    let text = "devicePlugin:\n  profiles:\n    apiVersion: aliquot.dev/v1alpha1\n    default: cut\n    profiles:\n      cut:\n        gpus:\n        - select: {index: 0}\n          mode: mig\n          layout: [{profile: 3g.20gb, on: vgpu}]\n        rest: {mode: mig, layout: [{profile: 1g.5gb, on: {mode: mps, replicas: 3}}]}\n";
    std::fs::write(&file, text).unwrap();
    let objects = rendered(&["-f", file.to_str().unwrap()]).unwrap();
    let map = one(&objects, "ConfigMap", "aliquot-profiles");
    let config = map.0["data"]["profiles.yaml"].as_str().unwrap();
    let config: Value = serde_saphyr::from_str(config).unwrap();
    let cut = &config["profiles"]["cut"];
    assert_eq!(
        cut["gpus"][0]["layout"][0],
        json!({"profile": "3g.20gb", "on": "vgpu"})
    );
    let rest = json!({"profile": "1g.5gb", "on": {"mode": "mps", "replicas": 3}});
    assert_eq!(cut["rest"]["layout"][0], rest);
}

#[test]
fn takes_profiles_of_a_config_map_that_is_there() {
    let objects = rendered(&["--set=devicePlugin.profiles.configMap=own"]).unwrap();
    let volumes = agent(&objects).pod().unwrap()["volumes"].as_array();
    let named = |one: &&Value| one["name"] == "profiles";
    let profiles = volumes.unwrap().iter().find(named).unwrap();
    assert_eq!(profiles["configMap"]["name"], "own");
    assert!(objects.iter().all(|one| one.name() != "aliquot-profiles"));
}

/// GKE creates no pod of a critical class in a namespace without a quota for it.
#[test]
fn allows_critical_pods_in_release_namespace() {
    let objects = rendered(&[]).unwrap();
    let quota = one(&objects, "ResourceQuota", "aliquot-critical-pods");
    let scope = &quota.0["spec"]["scopeSelector"]["matchExpressions"][0];
    let allowed = texts(&scope["values"]);
    let classes = objects.iter().filter_map(Object::pod);
    let classes = classes.filter_map(|pod| pod["priorityClassName"].as_str());
    let classes: Vec<&str> = classes.collect();
    assert_eq!(classes.len(), 5);
    for class in classes {
        assert!(allowed.iter().any(|one| one == class), "{class}");
    }
    let parts = ["scheduler", "webhook", "devicePlugin"];
    let sets = parts.map(|part| format!("--set={part}.pod.priorityClassName="));
    let objects = rendered(&sets.each_ref().map(String::as_str)).unwrap();
    assert!(objects.iter().all(|one| one.kind() != "ResourceQuota"));
}
