//! Values that reach a node: paths, the driver root, labels, profiles.

use std::path::Path;

use aliquot_chart::{Object, container, one, rendered, texts, top};
use aliquot_device_plugin::non_cdi::DeviceListStrategy;
use aliquot_device_plugin::selinux::Label;
use serde_json::{Value, json};

use crate::{Agent, Monitor, Webhook, command, supervisor, taken};

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
        let webhook = one(&objects, "Deployment", "aliquot-webhook");
        let webhook = container(webhook, "webhook");
        let flags: Webhook = taken(webhook, &["aliquot-webhook"], &["--namespace=ns"]);
        flags.settings().unwrap().agent_paths
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
        "--set=devicePlugin.kubeletDir=/var/lib/k0s/kubelet,devicePlugin.cdiDir=/opt/cdi",
        "--set=devicePlugin.nvidiaCdiDir=/opt/cdi,devicePlugin.stateDir=/srv/aliquot",
        "--set=devicePlugin.runtimeConfig=/var/lib/k0s/containerd/config.toml",
    ]);
    let expected = [
        "/run/aliquot",
        "/srv/aliquot",
        "/var/lib/k0s/kubelet",
        "/opt/cdi",
        "/var/lib/k0s/containerd",
    ];
    assert_eq!(others, expected);
}

#[test]
fn mounts_driver_root_where_programs_expect_it() {
    let set =
        "--set=devicePlugin.nvidiaDriverRoot=/run/nvidia/driver,devicePlugin.mps.enabled=true";
    let objects = rendered(&[set]).unwrap();
    let own = flags(&objects);
    let root = own.paths().driver_root.unwrap();
    assert_eq!(root.host, Path::new("/run/nvidia/driver"));
    let monitor = container(agent(&objects), "monitor");
    let of_monitor: Monitor = taken(monitor, &["aliquot-monitor"], &["--node-name=n"]);
    let keeper = container(agent(&objects), "mps-keeper");
    let program = ["aliquot-device-plugin", "mps-keeper"];
    let of_keeper: supervisor::SupervisorSettings = taken(keeper, &program, &[]);
    for (name, seen) in [
        ("device-plugin", Some(root.here)),
        ("monitor", of_monitor.driver_root),
        ("mps-keeper", of_keeper.driver_root),
    ] {
        let mounts = container(agent(&objects), name)["volumeMounts"].as_array();
        let mut mounts = mounts.unwrap().iter();
        let mount = mounts.find(|one| one["name"] == "driver-root").unwrap();
        assert_eq!(
            mount["mountPath"].as_str(),
            seen.unwrap().to_str(),
            "{name}"
        );
        assert_eq!(mount["readOnly"], true);
        // A driver container can be restarted.
        assert_eq!(mount["mountPropagation"], "HostToContainer");
    }
    let volumes = agent(&objects).pod().unwrap()["volumes"].as_array();
    let mut volumes = volumes.unwrap().iter();
    let root = volumes.find(|one| one["name"] == "driver-root").unwrap();
    assert_eq!(root["hostPath"]["path"], "/run/nvidia/driver");
    let plain = rendered(&[]).unwrap();
    assert_eq!(flags(&plain).paths().driver_root, None);
}

#[test]
fn passes_labels_and_device_list_strategy_to_agent() {
    let plain = rendered(&[]).unwrap();
    let own = flags(&plain);
    assert_eq!(
        (own.device_list, own.selinux_label),
        (DeviceListStrategy::Auto, Label::Auto)
    );
    let security = &agent(&plain).pod().unwrap()["securityContext"];
    assert_eq!(security["seLinuxOptions"], Value::Null);
    let label = "system_u:object_r:own_file_t:s0";
    let set =
        format!("--set=devicePlugin.seLinuxLabel={label},devicePlugin.deviceList=volume-mounts");
    let options = "--set=devicePlugin.seLinuxOptions.type=spc_t";
    let objects = rendered(&[&set, options]).unwrap();
    let own = flags(&objects);
    assert_eq!(own.device_list, DeviceListStrategy::VolumeMounts);
    assert_eq!(own.selinux_label, Label::Fixed(label.to_owned()));
    let security = &agent(&objects).pod().unwrap()["securityContext"];
    assert_eq!(security["seLinuxOptions"], json!({"type": "spc_t"}));
}

/// Only kubeadm has the file; on other clusters a mount of it blocks the agent's pod.
#[test]
fn starts_agent_without_kubelet_configuration_file() {
    let objects = rendered(&[]).unwrap();
    let volumes = agent(&objects).pod().unwrap()["volumes"].as_array();
    let mut volumes = volumes.unwrap().iter();
    assert!(volumes.all(|one| one["hostPath"]["type"] != "File"));
    let set = "--set=devicePlugin.kubeletConfig=/etc/kubelet.yaml";
    let objects = rendered(&[set]).unwrap();
    let file = flags(&objects).kubelet_config();
    assert_eq!(file, Path::new("/etc/kubelet.yaml"));
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
    let text = "devicePlugin:\n  featureLabels: off\n  profiles:\n    apiVersion: aliquot.dev/v1alpha1\n    default: cut\n    profiles:\n      cut:\n        gpus:\n        - select: {index: 0}\n          mode: mig\n          layout: [{profile: 3g.20gb, on: vgpu}]\n        rest: {mode: mig, layout: [{profile: 1g.5gb, on: {mode: mps, replicas: 3}}]}\n";
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
    let line = command(container(agent(&objects), "device-plugin"));
    assert!(
        line.iter().any(|one| one == "--feature-labels=off"),
        "{line:?}"
    );
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
    assert_eq!(classes.len(), 4);
    for class in classes {
        assert!(allowed.iter().any(|one| one == class), "{class}");
    }
    let set = "--set=scheduler.priorityClassName=,webhook.priorityClassName=,devicePlugin.priorityClassName=";
    let objects = rendered(&[set]).unwrap();
    assert!(objects.iter().all(|one| one.kind() != "ResourceQuota"));
}
