//! What each check finds before an installation.

use aliquot_k8s::pod;
use serde_json::{Value, json};

use super::*;
use crate::doctor::finding::Grade;

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str, labels: &Value, offered: &Value) -> Node {
    from(json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": offered, "nodeInfo": {"architecture": "", "bootID": "",
            "containerRuntimeVersion": "containerd://2.1.4", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "v1.33.4", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": ""}},
    }))
}

fn ours(name: &str) -> Node {
    node(name, &json!({"gpu": "on"}), &json!({}))
}

fn workload(kind: &'static str, namespace: &str, name: &str, pod: Value) -> Workload {
    Workload {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        template: kind != "Pod of a template",
        runs: kind.starts_with("Pod"),
        pod: from(pod),
    }
}

/// A pod of NVIDIA's plugin on this node.
fn plugin(node: &str) -> Workload {
    let spec = json!({"nodeName": node, "containers": [
        {"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17"}]});
    let pod = json!({"metadata": {"name": "p", "namespace": "gpu-operator"}, "spec": spec});
    workload("Pod of a template", "gpu-operator", "p", pod)
}

/// A cluster with one node that is ready for the agent, and nothing in the way.
fn ready() -> PreFacts {
    PreFacts {
        namespace: "aliquot-system".to_owned(),
        version: Ok("v1.33.4+k3s1".to_owned()),
        nodes: Ok(vec![ours("n1"), node("cpu", &json!({}), &json!({}))]),
        workloads: Ok(Vec::new()),
        only: None,
        unlisted: Vec::new(),
        policies: Ok(Vec::new()),
        device_classes: Ok([].into()),
        exempt: Ok(Vec::new()),
        installed: Ok(false),
    }
}

/// The findings that are not ok: grade, check and about.
fn check(change: impl FnOnce(&mut PreFacts), expected: &[(Grade, &str, &str)]) -> Vec<Finding> {
    let mut facts = ready();
    change(&mut facts);
    let settings = Settings {
        from: CurrentSystem::Nvidia,
        pods: pod::Settings::default(),
        replaced: Vec::new(),
    };
    let mut found = checks(&facts);
    found.extend(changes(&facts, &settings));
    found.retain(|one| one.grade != Grade::Ok);
    let short: Vec<_> = found
        .iter()
        .map(|one| (one.grade, one.check, &*one.about))
        .collect();
    assert_eq!(short, expected, "{found:?}");
    found
}

#[test]
fn preflight_names_versions_outside_the_supported_ones() {
    let versions = [
        ("v1.29.9-eks-ce1d5eb", Some(Grade::Problem)),
        ("v1.30.14", None),
        ("v1.37.2-gke.100", None),
        ("v1.38.0", Some(Grade::Warning)),
        ("master", Some(Grade::NotChecked)),
    ];
    for (version, grade) in versions {
        let expected = grade.map(|grade| (grade, "kubernetes", "cluster"));
        let version = Ok(version.to_owned());
        check(|facts| facts.version = version, expected.as_slice());
    }
    let old = |facts: &mut PreFacts| {
        let node = &mut facts.nodes.as_mut().unwrap()[0];
        let info = node.status.as_mut().unwrap().node_info.as_mut().unwrap();
        "v1.28.1".clone_into(&mut info.kubelet_version);
    };
    check(old, &[(Grade::Warning, "kubelet", "n1")]);
    let matrix = include_str!("../../../docs/guides/support-matrix.md");
    assert!(matrix.contains(&format!("| 1.{OLDEST} to 1.{NEWEST} |")));
    let chart = include_str!("../../../charts/aliquot/Chart.yaml");
    assert!(chart.contains(&format!("kubeVersion: \">=1.{OLDEST}.0-0\"")));
}

#[test]
fn preflight_names_runtimes_without_cdi() {
    for (version, grade) in [
        ("containerd://2.1.4", Grade::Ok),
        ("containerd://2.0.0-rc.1", Grade::Ok),
        ("containerd://1.7.27", Grade::Warning),
        ("containerd://1.6.20", Grade::Problem),
        ("cri-o://1.28.0", Grade::Ok),
        ("cri-o://1.27.8", Grade::Problem),
        ("docker://27.0.1", Grade::NotChecked),
    ] {
        let found = About::cluster().finding("container-runtime", runtime(version));
        assert_eq!(found.grade, grade, "{found:?}");
    }
    // One finding for all nodes with the same runtime, and none for those without GPUs.
    let runtimes = |facts: &mut PreFacts| {
        let mut nodes: Vec<Node> = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"].map(ours).into();
        for node in &mut nodes {
            let info = node.status.as_mut().unwrap().node_info.as_mut().unwrap();
            "containerd://1.7.27".clone_into(&mut info.container_runtime_version);
        }
        facts.nodes = Ok(nodes);
    };
    let nodes = "n1, n2, n3, n4, n5 and 2 more";
    check(runtimes, &[(Grade::Warning, "container-runtime", nodes)]);
}

#[test]
fn preflight_names_other_owners_of_gpus() {
    let gpus = json!({"nvidia.com/gpu": "8"});
    // NVIDIA's plugin where the agent will start.
    let both = |facts: &mut PreFacts| facts.workloads = Ok(vec![plugin("n1")]);
    let found = check(both, &[(Grade::Problem, "other-plugin", "n1")]);
    assert!(found[0].found.contains("gpu-operator/p"), "{found:?}");
    // The same on a node that is not labelled yet.
    let other = |facts: &mut PreFacts| {
        facts.workloads = Ok(vec![plugin("n2")]);
        facts
            .nodes
            .as_mut()
            .unwrap()
            .push(node("n2", &json!({}), &gpus));
    };
    let notes = [
        (Grade::Note, "nodes", "n2"),
        (Grade::Note, "gpu-owner", "n2"),
    ];
    check(other, &notes);
    // A plugin that is a service of the node.
    let hidden = |labels: Value| {
        let gpus = gpus.clone();
        move |facts: &mut PreFacts| facts.nodes = Ok(vec![node("n1", &labels, &gpus)])
    };
    let found = check(
        hidden(json!({"gpu": "on"})),
        &[(Grade::Problem, "gpu-owner", "n1")],
    );
    assert!(found[0].found.contains("8 nvidia.com/gpu"), "{found:?}");
    let notes = [
        (Grade::Note, "nodes", "n1"),
        (Grade::Note, "gpu-owner", "n1"),
    ];
    check(hidden(json!({})), &notes);
    // Network devices, which another operator of NVIDIA's offers.
    let network = |facts: &mut PreFacts| {
        let devices = json!({"nvidia.com/hostdev": "8"});
        let labelled = node("n1", &json!({"gpu": "on"}), &devices);
        facts.nodes = Ok(vec![labelled, node("n2", &json!({}), &devices)]);
    };
    check(network, &[]);
    // What Aliquot's own agent offers.
    let own = |facts: &mut PreFacts| {
        hidden(json!({"gpu": "on"}))(facts);
        let node = &mut facts.nodes.as_mut().unwrap()[0];
        let inventory = (INVENTORY.to_owned(), "{}".to_owned());
        node.metadata.annotations = Some([inventory].into());
        facts.installed = Ok(true);
    };
    check(own, &[(Grade::Note, "installed", "cluster")]);
}

#[test]
fn preflight_names_nodes_without_the_label_of_agents() {
    let present = json!({"nvidia.com/gpu.present": "true"});
    let unlabelled = |facts: &mut PreFacts| {
        facts.nodes = Ok(vec![node("n1", &present, &json!({})), ours("n2")]);
    };
    check(unlabelled, &[(Grade::Note, "nodes", "n1")]);
    // By the labels of Node Feature Discovery's defaults, AKS and Karpenter.
    for (key, value) in [
        ("feature.node.kubernetes.io/pci-0300_10de.present", "true"),
        ("kubernetes.azure.com/accelerator", "nvidia"),
        ("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia"),
    ] {
        let labelled = |facts: &mut PreFacts| {
            let others = node("n2", &json!({MANUFACTURER_LABELS[1]: "amd"}), &json!({}));
            let of_nvidia = node("n1", &json!({key: value}), &json!({}));
            facts.nodes = Ok(vec![of_nvidia, others, ours("n3")]);
        };
        check(labelled, &[(Grade::Note, "nodes", "n1")]);
    }
    let none = |facts: &mut PreFacts| facts.nodes.as_mut().unwrap().truncate(0);
    check(none, &[(Grade::Warning, "nodes", "cluster")]);
}

#[test]
fn preflight_names_taints_that_the_agent_does_not_tolerate() {
    let tainted = |facts: &mut PreFacts| {
        let taint =
            |key: &str, value: &str| json!({"key": key, "value": value, "effect": "NoSchedule"});
        let taints = [
            taint("sku", "gpu"),
            taint("nvidia.com/gpu", "present"),
            taint("node.kubernetes.io/unschedulable", ""),
        ];
        let node = &mut facts.nodes.as_mut().unwrap()[0];
        node.spec = from(json!({"taints": taints}));
    };
    let found = check(tainted, &[(Grade::Warning, "taints", "n1")]);
    assert!(found[0].found.contains("sku=gpu:NoSchedule"), "{found:?}");
    let values = include_str!("../../../charts/aliquot/values.yaml");
    let toleration =
        "- key: nvidia.com/gpu\n        operator: Exists\n        effect: NoSchedule\n";
    assert!(values.contains(toleration));
}

/// The findings about a policy that are not ok: their grades and texts.
fn policy(spec: &Value, labels: &Value) -> Vec<(Grade, String)> {
    policy_with(spec, &[node("n1", labels, &json!({}))], &[])
}

fn policy_with(spec: &Value, nodes: &[Node], workloads: &[Workload]) -> Vec<(Grade, String)> {
    let object = json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"}, "spec": spec});
    let found = gpu_operator::checks(&Ok(vec![from(object)]), nodes, workloads);
    assert!(
        found
            .iter()
            .all(|one| one.about == "ClusterPolicy cluster-policy"),
        "{found:?}"
    );
    let bad = found.into_iter().filter(|one| one.grade != Grade::Ok);
    bad.map(|one| (one.grade, format!("{} -> {}", one.found, one.todo)))
        .collect()
}

#[test]
fn preflight_names_settings_of_gpu_operator() {
    let check = |found: &[(Grade, String)], expected: &[(Grade, &str)]| {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((grade, text), (expected, part)) in found.iter().zip(expected) {
            assert!(grade == expected && text.contains(part), "{found:?}");
        }
    };
    let root = (
        Grade::Note,
        "devicePlugin.nvidiaDriverRoot=/run/nvidia/driver",
    );
    let usual = json!({});
    let deployed = json!({"gpu": "on", "nvidia.com/gpu.deploy.device-plugin": "true",
        "nvidia.com/gpu.deploy.mig-manager": "true"});
    let runs = [
        (
            Grade::Problem,
            "devicePlugin.enabled: NVIDIA's device plugin also runs on nodes that have the label gpu=on: n1",
        ),
        (Grade::Problem, "migManager.enabled"),
        (Grade::Warning, "WITH_WORKLOAD"),
        root,
    ];
    check(&policy(&usual, &deployed), &runs);
    // Kept off the node by labels, without operands, or not labelled as ours yet.
    let kept = json!({"gpu": "on", "nvidia.com/gpu.deploy.device-plugin": "false",
        "nvidia.com/gpu.deploy.mig-manager": "false"});
    let without = json!({"gpu": "on", "nvidia.com/gpu.deploy.operands": "false"});
    for labels in [kept, without, json!({})] {
        let notes = [
            (
                Grade::Note,
                "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false",
            ),
            (
                Grade::Note,
                "kubectl label node NODE nvidia.com/gpu.deploy.mig-manager=false",
            ),
            runs[2],
            root,
        ];
        check(&policy(&usual, &labels), &notes);
    }
    let closed = json!({
        "devicePlugin": {"enabled": false},
        "migManager": {"enabled": false},
        "validator": {"plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "false"}]}},
        "driver": {"enabled": false},
        "cdi": {"enabled": false},
    });
    let found = [
        (Grade::Note, "nvidiaDriverRoot=/"),
        (Grade::Warning, "cdi.enabled is false"),
    ];
    check(&policy(&closed, &json!({"gpu": "on"})), &found);
    // The operator's own default, in what it made of the policy.
    let warns_of_validator = |value: &str| {
        let env = json!([{"name": "WITH_WORKLOAD", "value": value}]);
        let container = json!({"name": "plugin-validation", "env": env});
        let pod = json!({"spec": {"initContainers": [container], "containers": []}});
        let made = workload("DaemonSet", "nvidia", "nvidia-operator-validator", pod);
        let found = policy_with(&usual, &[], &[made]);
        found.iter().any(|(_, text)| text.contains("WITH_WORKLOAD"))
    };
    assert_eq!(["true", "false"].map(warns_of_validator), [true, false]);
    let elsewhere = json!({"hostPaths": {"driverInstallDir": "/opt/driver"}});
    let found = policy(&elsewhere, &json!({}));
    assert!(
        found[3].1.ends_with("nvidiaDriverRoot=/opt/driver"),
        "{found:?}"
    );
    // GKE's driver, which is not the operator's.
    let install = json!({"driverInstallDir": "/home/kubernetes/bin/nvidia"});
    let gke = json!({"driver": {"enabled": false}, "hostPaths": install});
    let found = policy(&gke, &json!({}));
    assert!(
        found[3]
            .1
            .ends_with("nvidiaDriverRoot=/home/kubernetes/bin/nvidia"),
        "{found:?}"
    );
    // The operator starts no driver container where it finds a driver.
    let deploy = |name: &str, value: &str| {
        let labels = json!({"nvidia.com/gpu.deploy.driver": value});
        node(name, &labels, &json!({}))
    };
    let own = deploy("n1", "pre-installed");
    let found = policy_with(&usual, std::slice::from_ref(&own), &[]);
    assert!(found[3].1.ends_with("nvidiaDriverRoot=/"), "{found:?}");
    let found = policy_with(&usual, &[own, deploy("n2", "true")], &[]);
    let (grade, text) = &found[3];
    let part = "before the operator: n1; it is /run/nvidia/driver on the others";
    assert!(*grade == Grade::Warning && text.contains(part), "{found:?}");
}

#[test]
fn preflight_judges_workloads_that_the_webhook_would_review() {
    let asks = || {
        json!({"spec": {"containers": [{"name": "c",
            "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}})
    };
    let mut facts = ready();
    facts.workloads = Ok(vec![
        workload("Deployment", "lab", "web", asks()),
        workload("Pod of a template", "lab", "web-0", asks()),
        workload("Pod", "other", "notebook", asks()),
        workload("Job", "left", "train", asks()),
        workload("Job", "aliquot-system", "own", asks()),
        plugin("n1"),
    ]);
    facts.exempt = Ok(vec!["left".to_owned()]);
    let check = |facts: &PreFacts, expected: &[&str]| {
        let settings = Settings {
            from: current(facts),
            pods: pod::Settings::default(),
            replaced: Vec::new(),
        };
        assert_eq!(settings.from, CurrentSystem::Nvidia);
        let found = changes(facts, &settings);
        let found: Vec<&str> = found.iter().map(|one| &*one.about).collect();
        assert_eq!(found, expected);
    };
    check(&facts, &["Deployment lab/web", "Pod other/notebook"]);
    // Who owns the GPUs is shown by the pods of all namespaces.
    facts.only = Some("lab".to_owned());
    check(&facts, &["Deployment lab/web"]);
    let owners = checks(&facts);
    assert!(owners.iter().any(|one| one.check == "other-plugin"));
}

#[test]
fn preflight_reports_what_it_could_not_read() {
    let why = || "no rights".to_owned();
    let blind = |facts: &mut PreFacts| {
        *facts = PreFacts {
            namespace: why(),
            version: Err(why()),
            nodes: Err(why()),
            workloads: Err(why()),
            only: None,
            unlisted: vec![("jobs", why())],
            policies: Err(why()),
            device_classes: Err(why()),
            exempt: Err(why()),
            installed: Err(why()),
        };
    };
    let unmade = |check, about| (Grade::NotChecked, check, about);
    check(
        blind,
        &[
            unmade("installed", "cluster"),
            unmade("kubernetes", "cluster"),
            unmade("nodes", "cluster"),
            unmade("gpu-operator", "cluster"),
            unmade("device-classes", "cluster"),
            unmade("workloads", "jobs"),
            unmade("workloads", "cluster"),
        ],
    );
    let pods = |facts: &mut PreFacts| facts.workloads = Err(why());
    check(
        pods,
        &[
            unmade("gpu-owner", "cluster"),
            unmade("workloads", "cluster"),
        ],
    );
}
