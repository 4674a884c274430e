//! What helm renders: flags that the binaries accept, minimal permissions, and the same objects for
//! every supported Kubernetes version.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

#[path = "rendered/dependency.rs"]
mod dependency;
#[path = "rendered/node.rs"]
mod node;
#[path = "rendered/ways.rs"]
mod ways;

use std::collections::BTreeSet;

use aliquot_chart::{IMAGE, Object, chart, container, helm, one, rendered, texts, top};
use aliquot_core::escape::{AGENT_PATHS, CAPABILITIES, HOST_PATHS, PROGRAM_PATHS};
use aliquot_core::hami;
use aliquot_device_plugin::modes::mps::supervisor;
use aliquot_device_plugin::publish::cleanup::cluster;
use aliquot_device_plugin::settings::Settings as Agent;
use aliquot_monitor::settings::Settings as Monitor;
use aliquot_scheduler::settings::Settings as Scheduler;
use aliquot_webhook::args::Args as Webhook;
use clap::Parser;
use serde_json::{Value, json};

/// Everything optional enabled.
const EVERYTHING: &[&str] = &[
    "--set=compat.dashboards=true,extraResources={nvidia.com/gpu.shared}",
    "--set=devicePlugin.mps.enabled=true",
    "--set=devicePlugin.profiles.default=shared,devicePlugin.profiles.profiles.shared.rest=vgpu",
    "--set=devicePlugin.nvidiaDriverRoot=/run/nvidia/driver",
    "--set=devicePlugin.runtimeClassName=nvidia,devicePlugin.createRuntimeClass=true",
    "--set=webhook.runtimeClassName=nvidia,webhook.strictResources={nvidia.com/gpu.shared}",
    "--set=webhook.escapeAllowNamespaces={a,b},global.imagePullSecrets={pull}",
    "--set-json=scheduler.autoscaler.nodeTypes=[{\"name\":\"a\",\"gpus\":8,\"model\":\"NVIDIA A100\",\"gpuMemory\":81920,\"cpu\":96}]",
    "--set=devicePlugin.runtimeConfig=/etc/containerd/config.toml",
    "--set=apiServer.host=10.0.0.1,apiServer.port=6443",
    "--set=monitoring.enabled=true,monitoring.dashboards=true,scheduler.cpuOnly=true",
    "--set=webhook.podsMayIgnore=true,webhook.certManager.enabled=true",
    "--set=devicePlugin.tenantMay.disableControl={lab},devicePlugin.tenantMay.priority={lab}",
    "--set=devicePlugin.pod.securityContext.seLinuxOptions.type=spc_t",
    "--set=devicePlugin.execDir=/opt/aliquot",
    "--set=monitor.burstGraceSeconds.batch=5,monitor.burstGraceSeconds.dev=0",
];

/// The container's command and arguments.
fn command(container: &Value) -> Vec<String> {
    let mut line = texts(&container["command"]);
    line.extend(texts(&container["args"]));
    line
}

/// The binary's error for the container's arguments; `more` replaces its environment.
fn taken<P: Parser>(container: &Value, program: &[&str], more: &[&str]) -> P {
    let line = command(container);
    assert_eq!(line[..program.len()], *program, "{line:?}");
    let rest = line[program.len()..].iter().map(String::as_str);
    let all = ["program"]
        .into_iter()
        .chain(rest)
        .chain(more.iter().copied());
    P::try_parse_from(all).unwrap_or_else(|error| panic!("{error}"))
}

fn webhook_flags(objects: &[Object]) -> Webhook {
    let webhook = one(objects, "Deployment", "aliquot-webhook");
    let webhook = container(webhook, "webhook");
    let namespace = ["--namespace=aliquot-system"];
    taken(webhook, &["aliquot-webhook"], &namespace)
}

fn all_flags_are_taken(arguments: &[&str]) {
    let objects = rendered(arguments).unwrap();
    let scheduler = one(&objects, "Deployment", "aliquot-scheduler");
    let extender = container(scheduler, "scheduler");
    let flags: Scheduler = taken(
        extender,
        &["aliquot-scheduler"],
        &["--identity=pod", "--namespace=ns"],
    );
    flags.request.settings().unwrap();
    // Whoever can call the verbs can bind pods.
    assert!(flags.listen.ip().is_loopback());
    assert!(
        flags
            .admin_listen
            .is_some_and(|open| !open.ip().is_loopback())
    );
    let agent = one(&objects, "DaemonSet", "aliquot-device-plugin");
    let own = container(agent, "device-plugin");
    let _: Agent = taken(own, &["aliquot-device-plugin"], &["--node-name=n"]);
    let monitor = one(&objects, "DaemonSet", "aliquot-monitor");
    let monitor = container(monitor, "monitor");
    let _: Monitor = taken(monitor, &["aliquot-monitor"], &["--node-name=n"]);
    let is_mps = |one: &&Object| one.kind() == "DaemonSet" && one.name() == "aliquot-mps";
    if let Some(mps) = objects.iter().find(is_mps) {
        let program = ["aliquot-device-plugin", "mps-supervisor"];
        let of_mps = container(mps, "mps-supervisor");
        let _: supervisor::SupervisorSettings = taken(of_mps, &program, &[]);
    }
    let webhook = one(&objects, "Deployment", "aliquot-webhook");
    let webhook = container(webhook, "webhook");
    let flags = webhook_flags(&objects);
    flags.settings().unwrap();
    flags.lifetimes().unwrap();
    flags.names().unwrap();
    let cleanup = one(&objects, "Job", "aliquot-cleanup");
    let cleanup = container(cleanup, "cleanup");
    let program = ["aliquot-device-plugin", "cleanup"];
    let _: cluster::Settings = taken(cleanup, &program, &[]);
    for (container, variable) in [
        (extender, "POD_NAME"),
        (own, "NODE_NAME"),
        (monitor, "NODE_NAME"),
        (webhook, "POD_NAMESPACE"),
    ] {
        let mut env = container["env"].as_array().unwrap().iter();
        assert!(env.any(|one| one["name"] == variable), "{variable}");
    }
}

#[test]
fn passes_only_flags_that_binaries_accept() {
    all_flags_are_taken(&[]);
    all_flags_are_taken(EVERYTHING);
    let hami = top("tests/chart/values/hami.yaml");
    all_flags_are_taken(&["-f", hami.to_str().unwrap()]);
}

/// The flags that `doctor --security` takes for closed: `security_lists_what_is_open_with_its_value`.
#[test]
fn values_of_the_hardening_guide_close_what_values_can() {
    let guide = std::fs::read_to_string(top("docs/guides/hardening.md")).unwrap();
    let (_, rest) = guide.split_once("```yaml\n").unwrap();
    let (values, _) = rest.split_once("```").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values).unwrap();
    let objects = rendered(&["-f", file.path().to_str().unwrap()]).unwrap();
    for (kind, object, name, flags) in [
        (
            "DaemonSet",
            "aliquot-device-plugin",
            "device-plugin",
            &[
                "--may-set-priority=",
                "--may-set-utilization=",
                "--may-set-oom-killer=",
                "--may-disable-control=",
                "--oom-killer=true",
            ][..],
        ),
        (
            "DaemonSet",
            "aliquot-monitor",
            "monitor",
            &["--priority-cap=50"],
        ),
        (
            "Deployment",
            "aliquot-webhook",
            "webhook",
            &["--visible-devices=rewrite"],
        ),
    ] {
        let line = command(container(one(&objects, kind, object), name));
        for flag in flags {
            assert!(line.iter().any(|one| one == flag), "{flag}: {line:?}");
        }
    }
    for kind in ["NetworkPolicy", "ValidatingAdmissionPolicyBinding"] {
        assert!(objects.iter().any(|one| one.kind() == kind), "{kind}");
    }
}

#[test]
fn passes_values_to_their_components() {
    let objects = rendered(&[
        "--set=scheduler.defaultMem=0,scheduler.defaultCores=20,scheduler.defaultGPUNum=2",
        "--set=resourceName=a/gpu,resourceMem=a/mem,resourceMemPercentage=a/pct,resourceCores=a/cores,resourcePriority=a/prio",
        "--set=devicePlugin.deviceMemoryScaling=1.5,devicePlugin.deviceSplitCount=4,devicePlugin.hostMemoryReserve=65536,devicePlugin.oomKiller=true",
        "--set-string=devicePlugin.disablecorelimit=true",
        "--set=monitor.priorityCap=60,schedulerName=own",
        "--set-json=monitor.burstGraceSeconds={\"*\":10,\"dev\":0,\"batch\":5}",
        "--set=monitor.withholdUnmanaged=false",
    ])
    .unwrap();
    let agent = one(&objects, "DaemonSet", "aliquot-device-plugin");
    let line = command(container(agent, "device-plugin")).join(" ");
    for flag in [
        "--device-memory-scaling=1.5",
        "--device-split-count=4",
        "--host-memory-reserve=65536",
        "--disable-core-limit=true",
        "--oom-killer=true",
        "--publish-unmanaged=false",
        "--resource-name=a/gpu",
    ] {
        assert!(line.contains(flag), "{flag}: {line}");
    }
    let monitor = one(&objects, "DaemonSet", "aliquot-monitor");
    let line = command(container(monitor, "monitor"));
    for flag in [
        "--priority-cap=60",
        "--burst-grace-seconds=10",
        "--burst-grace-seconds-in=batch=5,dev=0",
    ] {
        assert!(line.contains(&flag.to_owned()), "{flag}: {line:?}");
    }
    let request = "--scheduler-name=own --default-mem=0 --default-cores=20 --default-gpu-num=2 --bare-gpu=defaults \
        --resource-name=a/gpu --resource-mem=a/mem --resource-mem-percentage=a/pct \
        --resource-cores=a/cores --resource-priority=a/prio";
    for part in ["scheduler", "webhook"] {
        let object = one(&objects, "Deployment", &format!("aliquot-{part}"));
        let line = command(container(object, part)).join(" ");
        assert!(line.contains(request), "{part}: {line}");
    }
    let config = one(&objects, "ConfigMap", "aliquot-kube-scheduler");
    let config = config.0["data"]["kube-scheduler.yaml"].as_str().unwrap();
    let config: Value = serde_saphyr::from_str(config).unwrap();
    let managed = &config["extenders"][0]["managedResources"];
    assert_eq!(managed[0]["name"], "a/gpu");
    assert_eq!(managed[4]["name"], "a/prio");
}

/// Removes what depends on the namespace or the version.
#[test]
fn renders_same_objects_for_each_kubernetes_version() {
    let kube_scheduler = |objects: &[Object]| {
        let scheduler = one(objects, "Deployment", "aliquot-scheduler");
        container(scheduler, "kube-scheduler").clone()
    };
    let mut same = BTreeSet::new();
    for minor in 30..=37 {
        let version = format!("1.{minor}.2");
        let objects = rendered(&["--kube-version", &version, "-n", "other"]).unwrap();
        let scheduler = kube_scheduler(&objects);
        let expected = format!("registry.k8s.io/kube-scheduler:v{version}");
        assert_eq!(scheduler["image"], expected);
        let text = format!("{objects:?}").replace(&expected, "");
        assert!(!text.contains("aliquot-system"), "{version}");
        // kube-scheduler has /livez and /readyz since 1.31.
        let old = minor == 30;
        for (probe, since) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
            let path = if old { "/healthz" } else { since };
            assert_eq!(scheduler[probe]["httpGet"]["path"], path, "{version}");
        }
        let without = |mut text: String| {
            for path in ["/healthz", "/livez", "/readyz"] {
                text = text.replace(&format!("\"{path}\""), "");
            }
            text
        };
        same.insert(without(text));
    }
    assert_eq!(same.len(), 1);
    // Argo CD names the minor version alone. A tag that is a version decides about the probes.
    for (tag, version, image, probe) in [
        ("", "v1.33.4-eks-99fe2", "v1.33.4", "/livez"),
        ("", "1.34", "v1.34.0", "/livez"),
        ("own", "1.34", "own", "/livez"),
        ("v1.30.4@sha256:0", "1.37", "v1.30.4@sha256:0", "/healthz"),
    ] {
        let tag = format!("--set=scheduler.kubeScheduler.image.tag={tag}");
        let objects = rendered(&[&tag, "--kube-version", version]).unwrap();
        let scheduler = kube_scheduler(&objects);
        let image = format!("registry.k8s.io/kube-scheduler:{image}");
        assert_eq!(scheduler["image"], image, "{tag} {version}");
        let path = &scheduler["livenessProbe"]["httpGet"]["path"];
        assert_eq!(*path, probe, "{tag} {version}");
    }
    let old = rendered(&["--kube-version", "1.29.9"]).unwrap_err();
    assert!(format!("{old:#}").contains(">=1.30.0-0"), "{old:#}");
}

/// The policy of pods has the same lists as the webhook, whose lists are core's.
#[test]
fn policy_of_pods_has_the_lists_of_the_webhook() {
    let objects = rendered(&[]).unwrap();
    let policy = one(&objects, "ValidatingAdmissionPolicy", "aliquot-pods");
    let variables = policy.0["spec"]["variables"].to_string();
    let validations = policy.0["spec"]["validations"].to_string();
    let folders = |paths: &[&str]| {
        let folders: Vec<String> = paths.iter().map(|path| format!("{path}/")).collect();
        let list = json!(folders).to_string();
        // Inside a JSON string, and without the brackets.
        list[1..list.len() - 1].replace('"', "\\\"")
    };
    let closed = [&HOST_PATHS[..], &AGENT_PATHS].concat();
    let roots: Vec<&str> = closed
        .iter()
        .copied()
        .filter(|path| *path != "/dev")
        .collect();
    assert!(validations.contains(&folders(&closed)), "{validations}");
    assert!(validations.contains(&folders(&PROGRAM_PATHS)));
    assert!(variables.contains(&folders(&roots)), "{variables}");
    let capabilities = json!(CAPABILITIES).to_string().replace('"', "\\\"");
    assert!(validations.contains(&capabilities));
    let policy = one(&objects, "ValidatingAdmissionPolicy", "aliquot-allocations");
    let validations = policy.0["spec"]["validations"].to_string();
    let written = json!(hami::WRITTEN).to_string().replace('"', "\\\"");
    assert!(validations.contains(&written), "{validations}");
}

#[test]
fn no_namespace_may_disable_control_by_default() {
    let objects = rendered(&[]).unwrap();
    let agent = one(&objects, "DaemonSet", "aliquot-device-plugin");
    let line = command(container(agent, "device-plugin")).join(" ");
    assert!(line.contains("--may-disable-control= "), "{line}");
}

#[test]
fn passes_helm_lint() {
    let output = helm(&["lint", "--strict", &chart(), IMAGE]).unwrap();
    output.success().unwrap();
}

/// The requirements of the restricted Pod Security Standard.
fn is_restricted(object: &Object) -> Result<(), String> {
    let pod = object.pod().unwrap();
    for forbidden in ["hostPID", "hostIPC", "hostNetwork"] {
        if pod[forbidden] == json!(true) {
            return Err(forbidden.to_owned());
        }
    }
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    for volume in volumes {
        if !volume["hostPath"].is_null() {
            return Err(format!("{}", volume["name"]));
        }
    }
    let security = &pod["securityContext"];
    if security["runAsNonRoot"] != true || security["seccompProfile"]["type"] != "RuntimeDefault" {
        return Err("the pod's securityContext".to_owned());
    }
    for container in object.containers() {
        let security = &container["securityContext"];
        let expected = json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        });
        if *security != expected {
            return Err(format!("{}", container["name"]));
        }
    }
    Ok(())
}

#[test]
fn pods_meet_restricted_standard_except_agents() {
    let objects = rendered(EVERYTHING).unwrap();
    let with_pods: Vec<&Object> = objects.iter().filter(|one| one.pod().is_some()).collect();
    assert_eq!(with_pods.len(), 6, "with what runs before the removal");
    for object in with_pods {
        let verdict = is_restricted(object);
        assert_eq!(verdict.is_ok(), object.kind() != "DaemonSet", "{verdict:?}");
    }
}

/// Of the pods of each part; HAMi's keys for the same are beside this one.
#[test]
fn pods_are_as_the_value_of_their_part_says() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let labelled = json!({"matchExpressions": [{"key": "e", "operator": "Exists"}]});
    let apart = json!({required: [{"topologyKey": "zone"}]});
    let pod = json!({
        "labels": {"team": "a", "app.kubernetes.io/component": "own"},
        "annotations": {"note": "b"},
        "nodeSelector": {"pool": "c"},
        "tolerations": [{"key": "d", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": [labelled]}},
            "podAntiAffinity": apart,
        },
        "priorityClassName": "f",
        "securityContext": {"fsGroup": 7},
    });
    let set = |part: &str| format!("--set-json={part}.pod={pod}");
    let pods = ["scheduler", "webhook", "devicePlugin"].map(set);
    let requests = json!({"cpu": "70m", "memory": "70Mi"});
    let resources = json!({"requests": requests, "limits": {"memory": "700Mi"}});
    let containers = [
        "scheduler.extender",
        "scheduler.kubeScheduler",
        "webhook",
        "devicePlugin",
        "devicePlugin.mps",
        "monitor",
    ];
    let containers = containers.map(|one| format!("--set-json={one}.resources={resources}"));
    let sets = pods.iter().chain(&containers).map(String::as_str);
    let arguments: Vec<&str> = EVERYTHING.iter().copied().chain(sets).collect();
    let objects = rendered(&arguments).unwrap();
    for object in objects.iter().filter(|one| one.pod().is_some()) {
        let name = object.name();
        let metadata = &object.0["spec"]["template"]["metadata"];
        assert_eq!(metadata["labels"]["team"], "a", "{name}");
        assert_ne!(metadata["labels"]["app.kubernetes.io/component"], "own");
        assert_eq!(metadata["annotations"]["note"], "b", "{name}");
        let found = object.pod().unwrap();
        assert_eq!(found["nodeSelector"]["pool"], "c", "{name}");
        assert_eq!(found["priorityClassName"], "f", "{name}");
        assert_eq!(found["securityContext"]["fsGroup"], 7, "{name}");
        let seccomp = &found["securityContext"]["seccompProfile"]["type"];
        assert_eq!(*seccomp, "RuntimeDefault", "{name}");
        let tolerations = found["tolerations"].as_array().unwrap();
        assert!(tolerations.contains(&pod["tolerations"][0]), "{name}");
        assert_eq!(found["affinity"]["podAntiAffinity"], apart, "{name}");
        let terms = &found["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
        let expressions = terms[0]["matchExpressions"].as_array().unwrap();
        assert_eq!(expressions[0]["key"], "e", "{name}");
        // Those of the driver's own work are beside it.
        let drivers = if object.kind() == "DaemonSet" { 3 } else { 0 };
        assert_eq!(expressions.len(), 1 + drivers, "{name}");
        // The job of an uninstallation has its own.
        if object.kind() != "Job" {
            for container in object.containers() {
                assert_eq!(container["resources"], resources, "{name}");
            }
        }
    }
    let hamis = [
        "--set=scheduler.podAnnotations.note=b,scheduler.nodeSelector.pool=c",
        "--set-json=devicePlugin.tolerations=[{\"key\":\"d\"}]",
    ];
    let objects = rendered(&hamis).unwrap();
    let scheduler = one(&objects, "Deployment", "aliquot-scheduler");
    assert_eq!(scheduler.pod().unwrap()["nodeSelector"]["pool"], "c");
    let metadata = &scheduler.0["spec"]["template"]["metadata"];
    assert_eq!(metadata["annotations"]["note"], "b");
    let agent = one(&objects, "DaemonSet", "aliquot-device-plugin");
    let tolerations = agent.pod().unwrap()["tolerations"].as_array().unwrap();
    assert!(tolerations.contains(&json!({"key": "d"})));
}

/// GPU Operator's managers wait for the pods of such `DaemonSets`.
#[test]
fn daemonsets_have_the_selector_of_the_guide() {
    let guide = std::fs::read_to_string(top("docs/guides/nodes.md")).unwrap();
    let start = "set `devicePlugin.nvidiaNodeSelector` to `";
    let (_, rest) = guide.split_once(start).unwrap();
    let (selector, _) = rest.split_once('`').unwrap();
    let selector: Value = serde_saphyr::from_str(selector).unwrap();
    assert_eq!(selector["nvidia.com/gpu.deploy.client"], "true");
    let set = format!("--set-json=devicePlugin.nvidiaNodeSelector={selector}");
    let objects = rendered(&[EVERYTHING, &[set.as_str()]].concat()).unwrap();
    for object in objects.iter().filter(|one| one.kind() == "DaemonSet") {
        let pod = object.pod().unwrap();
        assert_eq!(pod["nodeSelector"], selector, "{}", object.name());
    }
}

/// Except that of the MPS daemons: what clients share at /dev/shm counts there.
#[test]
fn every_container_has_a_memory_limit() {
    let objects = rendered(EVERYTHING).unwrap();
    let containers = objects.iter().flat_map(Object::containers);
    for container in containers.filter(|one| one["name"] != "mps-supervisor") {
        let limit = &container["resources"]["limits"]["memory"];
        assert!(limit.is_string(), "{}", container["name"]);
    }
}

/// Each setting of the agent, of the monitor and of the MPS supervisor that the restricted Pod Security
/// Standard would reject, and each host path, has a comment right above it in the template.
#[test]
fn every_host_path_and_capability_has_a_reason() {
    let guide = std::fs::read_to_string(top("docs/guides/install.md")).unwrap();
    let objects = rendered(EVERYTHING).unwrap();
    for (file, name, paths_and_rights) in [
        ("agent.yaml", "aliquot-device-plugin", 5 + 2),
        ("monitor.yaml", "aliquot-monitor", 2 + 2),
        ("mps.yaml", "aliquot-mps", 2 + 2),
    ] {
        let template = top("charts/aliquot/templates").join(file);
        let text = std::fs::read_to_string(template).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let mut found = 0;
        for (at, line) in lines.iter().enumerate() {
            let paths = line.starts_with("hostPath:");
            let rights = ["privileged: true", "hostPID: true"].contains(line);
            if paths || rights {
                // A path is one line below its volume's name.
                let above = lines[at - usize::from(paths) - 1];
                assert!(above.starts_with('#'), "{file} {}: {line}", at + 1);
                found += 1;
            }
        }
        assert_eq!(found, paths_and_rights, "{file}");
        let pods = one(&objects, "DaemonSet", name);
        let volumes = pods.pod().unwrap()["volumes"].as_array().unwrap();
        for path in volumes
            .iter()
            .filter_map(|one| one["hostPath"]["path"].as_str())
        {
            assert!(guide.contains(&format!("`{path}`")), "{path}");
        }
    }
}

/// The permissions of each account, resource by resource. A new permission is a new line here.
#[test]
fn service_accounts_have_only_listed_permissions() {
    let objects = rendered(&[]).unwrap();
    let mut rights = BTreeSet::new();
    for object in objects.iter().filter(|one| one.kind().ends_with("Role")) {
        for rule in object.0["rules"].as_array().unwrap() {
            let names = texts(&rule["resourceNames"]).join(",");
            for resource in texts(&rule["resources"]) {
                let verbs = texts(&rule["verbs"]).join(",");
                let kind = object.kind();
                let name = object.name().trim_start_matches("aliquot-");
                rights.insert(format!("{kind} {name}: {resource} {names}: {verbs}"));
            }
        }
    }
    let rights: Vec<String> = rights.into_iter().collect();
    let expected = [
        "ClusterRole access-reviews: subjectaccessreviews : create",
        "ClusterRole access-reviews: tokenreviews : create",
        "ClusterRole cleanup: nodes : list,patch",
        "ClusterRole device-plugin: events : create,patch",
        "ClusterRole device-plugin: nodes : get,list,watch,patch",
        "ClusterRole device-plugin: nodes/status : patch",
        "ClusterRole device-plugin: pods : get,list,watch",
        "ClusterRole monitor: events : create,patch",
        "ClusterRole monitor: pods : list,watch",
        "ClusterRole scheduler: * : get,list,watch",
        "ClusterRole scheduler: compositepodgroups/status : patch",
        "ClusterRole scheduler: events : create,patch",
        "ClusterRole scheduler: namespaces : get,list,watch",
        "ClusterRole scheduler: nodes : get,list,watch",
        "ClusterRole scheduler: persistentvolumeclaims : get,list,watch,update",
        "ClusterRole scheduler: persistentvolumes : get,list,watch,update",
        "ClusterRole scheduler: poddisruptionbudgets : list,watch",
        "ClusterRole scheduler: podgroups/status : patch",
        "ClusterRole scheduler: pods : delete",
        "ClusterRole scheduler: pods : get,list,watch,patch",
        "ClusterRole scheduler: pods/binding : create",
        "ClusterRole scheduler: pods/eviction : create",
        "ClusterRole scheduler: pods/finalizers : update",
        "ClusterRole scheduler: pods/status : patch",
        "ClusterRole scheduler: resourceclaims : create,update,patch,delete",
        "ClusterRole scheduler: resourceclaims/binding : update,patch",
        "ClusterRole scheduler: resourceclaims/status : update,patch",
        "ClusterRole scheduler: resourcequotas : list,watch",
        "ClusterRole scheduler: validatingadmissionpolicies : list",
        "ClusterRole scheduler: validatingadmissionpolicybindings : list",
        "ClusterRole webhook: mutatingwebhookconfigurations aliquot-webhook: get,list,watch,patch",
        "Role scheduler: leases : create",
        "Role scheduler: leases aliquot-scheduler: get,list,watch,update",
        "Role scheduler: pods/proxy : get",
        "Role tenant: pods : get,list",
        "Role tenant: pods/proxy : get",
        "Role user: pods : get,list",
        "Role user: pods/proxy : get",
        "Role user: serviceaccounts/token aliquot-viewer: create",
        "Role webhook: secrets aliquot-webhook-tls: get,list,watch,patch",
    ];
    assert_eq!(rights, expected);
}

/// The webhooks of the configuration: for pods, and for those of namespaces with a label.
fn webhooks(arguments: &[&str]) -> [Value; 2] {
    let objects = rendered(arguments).unwrap();
    let found = one(&objects, "MutatingWebhookConfiguration", "aliquot-webhook");
    let all = found.0["webhooks"].as_array().unwrap().clone();
    all.try_into().unwrap()
}

#[test]
fn pods_may_ignore_controls_object_selector() {
    for (value, expected) in [("true", 2), ("false", 0)] {
        for webhook in webhooks(&[&format!("--set=webhook.podsMayIgnore={value}")]) {
            let labels = webhook["objectSelector"]["matchExpressions"].as_array();
            assert_eq!(labels.map_or(0, Vec::len), expected);
            let namespaces = webhook["namespaceSelector"]["matchExpressions"].as_array();
            assert_eq!(
                namespaces.map(Vec::len),
                Some(4),
                "a namespace's label always exempts"
            );
        }
    }
}

#[test]
fn each_namespace_is_reviewed_in_one_form() {
    for (form, other) in [("resources", "annotation"), ("annotation", "resources")] {
        let [default, labelled] = webhooks(&[&format!("--set=webhook.requestAs={form}")]);
        let own = format!("/mutate/{other}");
        for (webhook, operator, path) in [
            (default, "NotIn", "/mutate"),
            (labelled, "In", own.as_str()),
        ] {
            assert_eq!(webhook["clientConfig"]["service"]["path"], path);
            let label = &webhook["namespaceSelector"]["matchExpressions"][3];
            let key = "aliquot.dev/request-as";
            let expected = json!({"key": key, "operator": operator, "values": [other]});
            assert_eq!(*label, expected);
        }
    }
}

#[test]
fn match_conditions_name_resources_and_classes() {
    let names = "--set=resourceName=a/gpu,resourceMem=a/mem,extraResources={a/shared}";
    let classes = "--set=webhook.nvidiaRuntimeClasses={own}";
    for webhook in webhooks(&[names, classes]) {
        let expression = webhook["matchConditions"][0]["expression"].as_str();
        for part in [
            r#"["a/gpu","a/mem","nvidia.com/gpumem-percentage","nvidia.com/gpucores","nvidia.com/priority","a/shared"].exists(r, r in c.resources.limits)"#,
            r#"object.spec.runtimeClassName in ["own"]"#,
            r#"== "aliquot-scheduler" && "#,
            r#"["a/mem","nvidia.com/gpumem-percentage","nvidia.com/gpucores"].exists(r, c.?resources"#,
        ] {
            assert!(expression.unwrap().contains(part), "{expression:?}");
        }
    }
}

#[test]
fn narrows_ports_to_peers_that_values_name() {
    let plain = rendered(&[]).unwrap();
    let check = |object: &Object, name: &str| {
        let container = container(object, name);
        let line = command(container).join(" ");
        assert!(line.contains("--authenticate=true"), "{line}");
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["scheme"], "HTTPS", "{name}");
        }
    };
    for name in ["scheduler", "webhook"] {
        let object = one(&plain, "Deployment", &format!("aliquot-{name}"));
        check(object, name);
    }
    let agent = one(&plain, "DaemonSet", "aliquot-device-plugin");
    check(agent, "device-plugin");
    check(one(&plain, "DaemonSet", "aliquot-monitor"), "monitor");
    let ingress = |objects: &[Object], part: &str| {
        let policy = one(objects, "NetworkPolicy", &format!("aliquot-{part}"));
        policy.0["spec"]["ingress"].clone()
    };
    let called = json!({"ports": [{"port": 8443}]});
    let ports = |ports: &[u16], from: &Value| -> Value {
        let ports: Vec<Value> = ports.iter().map(|port| json!({"port": port})).collect();
        let mut rule = json!({ "ports": ports });
        if !from.is_null() {
            rule["from"] = from.clone();
        }
        rule
    };
    let opened = |objects: &[Object], from: &Value| {
        let scheduler = json!([ports(&[9395], from)]);
        assert_eq!(ingress(objects, "scheduler"), scheduler);
        for (part, port) in [("device-plugin", 9394), ("monitor", 9396)] {
            assert_eq!(ingress(objects, part), json!([ports(&[port], from)]));
        }
        let webhook = json!([called, ports(&[8444], from)]);
        assert_eq!(ingress(objects, "webhook"), webhook);
    };
    opened(&plain, &Value::Null);
    let bound = |one: &&Object| {
        one.kind() == "ClusterRoleBinding" && one.name() == "aliquot-metrics-reader"
    };
    assert!(plain.iter().find(bound).is_none());

    let named = rendered(&[
        "--set=networkPolicy.scrapers[0].namespaceSelector.matchLabels.a=b",
        "--set=monitoring.readers[0].name=prometheus-k8s,monitoring.readers[0].namespace=monitoring",
    ])
    .unwrap();
    let scrapers = json!([{"namespaceSelector": {"matchLabels": {"a": "b"}}}]);
    opened(&named, &scrapers);
    let binding = named.iter().find(bound).unwrap();
    let reader =
        json!({"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "monitoring"});
    assert_eq!(binding.0["subjects"], json!([reader]));

    // Prometheus may be forbidden to read files for a ServiceMonitor.
    let monitored = rendered(&["--set=monitoring.enabled=true"]).unwrap();
    let binding = monitored.iter().find(bound).unwrap();
    assert_eq!(binding.0["subjects"][0]["name"], "aliquot-metrics");
    let secret = &one(&monitored, "Secret", "aliquot-metrics").0;
    let account = &secret["metadata"]["annotations"]["kubernetes.io/service-account.name"];
    assert_eq!(*account, "aliquot-metrics");
    let token = json!({"credentials": {"name": "aliquot-metrics", "key": "token"}});
    let monitors = monitored
        .iter()
        .filter(|one| one.kind() == "ServiceMonitor");
    for endpoint in monitors.flat_map(|one| one.0["spec"]["endpoints"].as_array().unwrap()) {
        assert_eq!(endpoint["authorization"], token);
        // Otherwise alerts and dashboards by namespace would name ours.
        assert_eq!(endpoint["honorLabels"], true);
    }
}
