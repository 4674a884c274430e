//! What a tenant tries with pods that bypass the webhook, as the API server's policies refuse it. No
//! webhook runs here, and its configuration is removed: whoever may create pods could also carry a
//! label that it ignores, or use the time before it is installed.

use aliquot_chart::NAMESPACE;
use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use anyhow::Result;
use serde_json::{Value, json};

use super::{Installed, Who};

/// A pod with the label that bypasses the webhook where `webhook.podsMayIgnore` is true; `spec` and
/// `container` are merged into it.
fn pod(spec: &Value, container: &Value) -> Value {
    let mut main = json!({"name": "main", "image": "none"});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "tried", "labels": {"aliquot.dev/webhook": "ignore"}},
        "spec": {},
    });
    for (into, from) in [(&mut main, container), (&mut pod["spec"], spec)] {
        for (key, value) in from.as_object().into_iter().flatten() {
            into[key] = value.clone();
        }
    }
    pod["spec"]["containers"] = json!([main]);
    pod
}

/// A container with these limits, and more of its fields.
fn asking(limits: &Value, more: &Value) -> Value {
    let mut container = more.clone();
    container["resources"] = json!({ "limits": limits });
    container
}

/// Checks that each pod is refused with its text, or created where that is empty.
async fn check(on: &Installed, cases: &[(&str, Value, &str)]) -> Result<()> {
    for (name, pod, expected) in cases {
        let error = on.posted(Who::Admin, "pods", pod, true).await?;
        super::check(name, error, expected)?;
    }
    Ok(())
}

/// Pods around the scheduler, the webhook and the share.
pub(crate) async fn pods(on: &Installed) -> Result<()> {
    let remove = ["delete", "mutatingwebhookconfiguration", "aliquot-webhook"];
    let remove = [&remove[..], &["--ignore-not-found"]].concat();
    on.cluster.kubectl(&remove).await?.success()?;
    let taken = asking(&json!({"nvidia.com/gpu": "19"}), &json!({}));
    eventually(PATIENCE, "the policy of pods to hold", || async {
        let taken = pod(&json!({}), &taken);
        let refusal = on.posted(Who::Admin, "pods", &taken, true).await?;
        Ok(refusal.filter(|text| text.contains("ValidatingAdmissionPolicy")))
    })
    .await?;
    around_the_scheduler(on).await?;
    around_the_share(on).await?;
    around_the_webhook(on).await?;
    ephemeral_containers(on).await?;
    exempting_namespaces(on).await?;
    exempt_namespaces(on).await
}

async fn around_the_scheduler(on: &Installed) -> Result<()> {
    let gpu = |limits: Value| asking(&limits, &json!({}));
    let none = json!({});
    let ours = json!({"schedulerName": "aliquot-scheduler"});
    let placed = json!({"schedulerName": "aliquot-scheduler", "nodeName": "near"});
    let elsewhere = json!({"schedulerName": "own", "nodeName": "near"});
    let bypasses = "spec.nodeName near bypasses the scheduler";
    let skipped = "container main requests a GPU, but aliquot-webhook did not review the pod";
    check(
        on,
        &[
            (
                "device ids of a node",
                pod(&placed, &gpu(json!({"nvidia.com/gpu": "19"}))),
                bypasses,
            ),
            (
                "memory on a node",
                pod(&elsewhere, &gpu(json!({"nvidia.com/gpumem": "1"}))),
                bypasses,
            ),
            (
                "an instance on a node",
                pod(&elsewhere, &gpu(json!({"nvidia.com/mig-1g.5gb": "1"}))),
                bypasses,
            ),
            (
                "a pod that was not reviewed",
                pod(&none, &gpu(json!({"nvidia.com/gpu": "1"}))),
                skipped,
            ),
            ("no GPU", pod(&json!({"nodeName": "near"}), &none), ""),
            (
                "an amount of 0",
                pod(&elsewhere, &gpu(json!({"nvidia.com/gpu": "0"}))),
                "",
            ),
            (
                "a reviewed pod",
                pod(&ours, &gpu(json!({"nvidia.com/gpu": "1"}))),
                "",
            ),
            (
                "another scheduler's pod",
                pod(
                    &json!({"schedulerName": "volcano"}),
                    &gpu(json!({"nvidia.com/gpu": "1"})),
                ),
                "",
            ),
        ],
    )
    .await
}

async fn around_the_share(on: &Installed) -> Result<()> {
    let share = |spec: Value, container: &Value| {
        let mut spec = spec;
        spec["schedulerName"] = json!("aliquot-scheduler");
        pod(&spec, &asking(&json!({"nvidia.com/gpu": "1"}), container))
    };
    let secured = |security: Value| share(json!({}), &json!({"securityContext": security}));
    let mounted = |source: Value, at: &str, read_only: bool| {
        share(
            json!({"volumes": [{"name": "v", "hostPath": source}]}),
            &json!({"volumeMounts": [{"name": "v", "mountPath": at, "readOnly": read_only}]}),
        )
    };
    let path = |path: &str| mounted(json!({ "path": path }), "/x", false);
    let (host_path, hides) = ("hostPath would let the pod", "a mount would hide the files");
    let capable = |name: &str| secured(json!({"capabilities": {"add": [name]}}));
    check(
        on,
        &[
            (
                "privileged",
                secured(json!({"privileged": true})),
                "privileged true or procMount",
            ),
            ("SYS_ADMIN", capable("SYS_ADMIN"), "a capability would let"),
            ("CAP_BPF", capable("CAP_BPF"), "a capability would let"),
            ("all", capable("all"), "a capability would let"),
            ("NET_ADMIN", capable("NET_ADMIN"), ""),
            (
                "hostPID",
                share(json!({"hostPID": true}), &json!({})),
                "spec.hostPID true would let",
            ),
            ("the agent's state", path("/var/lib/aliquot"), host_path),
            ("a parent of it", path("/var/lib"), host_path),
            ("the root", path("/"), host_path),
            ("a link", path("/var/run/cdi"), host_path),
            ("other spellings", path("//var/./lib//kubelet"), host_path),
            ("a device", path("/dev/nvidia0"), host_path),
            (
                "a device by its type",
                mounted(json!({"path": "/data", "type": "CharDevice"}), "/x", false),
                host_path,
            ),
            ("programs", path("/usr/lib"), host_path),
            (
                "programs to read",
                mounted(json!({"path": "/usr/lib"}), "/x", true),
                "",
            ),
            ("shared memory", path("/dev/shm"), ""),
            ("data", path("/data"), ""),
            (
                "the preload list",
                mounted(json!({"path": "/data"}), "/etc/ld.so.preload", false),
                hides,
            ),
            (
                "its folder, by a detour",
                mounted(json!({"path": "/data"}), "/x/../etc", false),
                hides,
            ),
        ],
    )
    .await
}

async fn around_the_webhook(on: &Installed) -> Result<()> {
    let none = json!({});
    let env = |value: &str| json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]});
    let class = json!({"runtimeClassName": "nvidia"});
    let runtime_class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"}, "handler": "nvidia",
    });
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    on.post(Who::Admin, classes, runtime_class, "").await?;
    let mut privileged = env("all");
    privileged["securityContext"] = json!({"privileged": true});
    let mut admin = env("all");
    admin["securityContext"] = json!({"capabilities": {"add": ["SYS_ADMIN"]}});
    let mut device = pod(&none, &none);
    device["metadata"]["annotations"] = json!({"cdi.k8s.io/x": "nvidia.com/gpu=all"});
    let mut nic = device.clone();
    nic["metadata"]["annotations"] = json!({"cdi.k8s.io/x": "vendor.com/nic=a"});
    let of_plugin = |resource: &str| pod(&class, &asking(&json!({resource: "1"}), &none));
    let mount = pod(
        &json!({"volumes": [{"name": "n", "hostPath": {"path": "/dev/null"}}]}),
        &json!({"volumeMounts": [
            {"name": "n", "mountPath": "/var/run/nvidia-container-devices/all"},
        ]}),
    );
    check(
        on,
        &[
            (
                "the variable",
                pod(&none, &env("all")),
                "NVIDIA_VISIBLE_DEVICES in a container's environment",
            ),
            ("void", pod(&none, &env("void")), ""),
            ("a device plugin", pod(&none, &privileged), ""),
            ("SYS_ADMIN", pod(&none, &admin), ""),
            (
                "the image's variable in NVIDIA's runtime",
                pod(&class, &none),
                "runtime class nvidia could open every GPU",
            ),
            ("void in NVIDIA's runtime", pod(&class, &env("void")), ""),
            (
                "another plugin's GPU in NVIDIA's runtime",
                of_plugin("nvidia.com/gpu.shared"),
                "",
            ),
            (
                "a network device in NVIDIA's runtime",
                of_plugin("nvidia.com/hostdev"),
                "runtime class nvidia could open every GPU",
            ),
            ("a CDI device", device, "an annotation names a CDI device"),
            ("another vendor's CDI device", nic, ""),
            ("a mount", mount, "nvidia-container-devices would inject"),
        ],
    )
    .await
}

/// `kubectl debug` of a pod with a share.
async fn ephemeral_containers(on: &Installed) -> Result<()> {
    let mounts = |read_only: bool| {
        let mount = json!({"name": "v", "mountPath": "/v", "readOnly": read_only});
        json!({"volumeMounts": [mount]})
    };
    let programs = json!([{"name": "v", "hostPath": {"path": "/usr/lib"}}]);
    let mut share = pod(
        &json!({"schedulerName": "aliquot-scheduler", "volumes": programs}),
        &asking(&json!({"nvidia.com/gpu": "1"}), &mounts(true)),
    );
    share["metadata"]["name"] = json!("debugged");
    share["metadata"]["namespace"] = json!("default");
    on.cluster.create_pod(share).await?;
    for (fields, expected) in [
        (json!({}), ""),
        (
            json!({"securityContext": {"privileged": true}}),
            "privileged true or procMount",
        ),
        (
            json!({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}),
            "a capability would let",
        ),
        (
            json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
            "NVIDIA_VISIBLE_DEVICES in a container's environment",
        ),
        (mounts(true), ""),
        (mounts(false), "hostPath would let the pod"),
    ] {
        let mut container = json!({"name": "debug", "image": "none"});
        for (key, value) in fields.as_object().into_iter().flatten() {
            container[key] = value.clone();
        }
        let patch = json!({"spec": {"ephemeralContainers": [container]}});
        let debugged = "pods/debugged/ephemeralcontainers";
        let error = on.patched(Who::Admin, debugged, &patch, true).await?;
        super::check(&fields, error, expected)?;
    }
    Ok(())
}

/// Who may change namespaces exempts one only if he may also change the webhook's configuration.
async fn exempting_namespaces(on: &Installed) -> Result<()> {
    let cluster = &on.cluster;
    cluster.namespace("labelled").await?;
    let label = async |text: &str| {
        let words = ["label", "namespace", "labelled", text, "--dry-run=server"];
        let labelled = [&words[..], &["--as=namespacer"]].concat();
        cluster.kubectl(&labelled).await
    };
    let grant = async |name: &str, rule: &[&str]| -> Result<()> {
        let role = [&["create", "clusterrole", name][..], rule].concat();
        cluster.kubectl(&role).await?.success()?;
        let role = format!("--clusterrole={name}");
        let bind = ["create", "clusterrolebinding", name, &role];
        let bind = [&bind[..], &["--user=namespacer"]].concat();
        cluster.kubectl(&bind).await?.success()?;
        Ok(())
    };
    let namespaces = ["--verb=get,patch,create", "--resource=namespaces"];
    grant("labels-namespaces", &namespaces).await?;
    let reason = "may not exempt namespace labelled from admission";
    for text in ["aliquot.dev/webhook=ignore", "hami.io/webhook=ignore"] {
        eventually(PATIENCE, "the label to be refused", || async {
            let refused = label(text).await?.stderr;
            until!(refused.contains(reason), "{refused}");
            Ok(Some(()))
        })
        .await?;
    }
    for text in ["own=1", "aliquot.dev/webhook=yes"] {
        label(text).await?.success()?;
    }
    let labels = json!({"aliquot.dev/webhook": "ignore"});
    let metadata = json!({"name": "created", "labels": labels});
    let created = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    let file = cluster.state_dir().join("namespace.json");
    std::fs::write(&file, created.to_string())?;
    let file = file.to_string_lossy();
    let create = ["create", "-f", &*file, "--as=namespacer"];
    let refused = cluster.kubectl(&create).await?.stderr;
    let reason = "may not exempt namespace created from admission";
    super::check(&"a new namespace", Some(refused), reason)?;
    let hooks = [
        "--verb=update",
        "--resource=mutatingwebhookconfigurations",
        "--resource-name=aliquot-webhook",
    ];
    grant("changes-admission", &hooks).await?;
    eventually(PATIENCE, "the label to be accepted", || async {
        let labelled = label("aliquot.dev/webhook=ignore").await?;
        until!(labelled.code == Some(0), "{labelled:?}");
        Ok(Some(()))
    })
    .await
}

/// An administrator's label on the namespace, and Aliquot's own namespace.
async fn exempt_namespaces(on: &Installed) -> Result<()> {
    on.cluster.namespace("exempt").await?;
    let label = ["label", "namespace", "exempt", "aliquot.dev/webhook=ignore"];
    on.cluster.kubectl(&label).await?.success()?;
    let gpu = asking(&json!({"nvidia.com/gpu": "1"}), &json!({}));
    let pod = pod(&json!({"nodeName": "near"}), &gpu);
    for namespace in ["exempt", NAMESPACE] {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        // The policies of namespaces reach the API server's cache a little later.
        eventually(PATIENCE, "the namespace to be exempt", || async {
            let error = on.posted(Who::Admin, &path, &pod, true).await?;
            Ok(error.is_none().then_some(()))
        })
        .await?;
    }
    Ok(())
}
