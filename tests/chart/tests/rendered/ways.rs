//! Kinds of installation: with an external kube-scheduler, with cert-manager, without the webhook.

use aliquot_chart::{Object, container, one, rendered, texts};
use serde_json::{Value, json};

use crate::{Scheduler, command, taken, webhook_flags};

/// The extender for an external kube-scheduler: nothing of the chart's own kube-scheduler is rendered.
#[test]
fn serves_extender_with_client_certificates_only() {
    let objects = rendered(&[
        "--set=scheduler.kubeScheduler.enabled=false,scheduler.replicas=1",
        "--set=scheduler.extender.tlsSecret=pair",
    ])
    .unwrap();
    let scheduler = one(&objects, "Deployment", "aliquot-scheduler");
    assert_eq!(scheduler.containers().len(), 1);
    assert_eq!(scheduler.0["spec"]["strategy"]["type"], "Recreate");
    let extender = container(scheduler, "scheduler");
    let flags: Scheduler = taken(extender, &["aliquot-scheduler"], &["--identity=pod"]);
    assert!(flags.tls_dir.is_some() && flags.scheduler_lease.is_none());
    assert_eq!(flags.listen.to_string(), "0.0.0.0:9397");
    assert_eq!(flags.shortlist, 64);
    let volume = &scheduler.pod().unwrap()["volumes"][0]["secret"]["secretName"];
    assert_eq!(*volume, "pair");
    let service = one(&objects, "Service", "aliquot-extender");
    assert_eq!(service.0["spec"]["ports"][0]["port"], 9397);
    let config = one(&objects, "ConfigMap", "aliquot-kube-scheduler");
    let config = config.0["data"]["kube-scheduler.yaml"].as_str().unwrap();
    let config: Value = serde_saphyr::from_str(config).unwrap();
    let entry = &config["extenders"][0];
    let url = "https://aliquot-extender.aliquot-system.svc:9397";
    assert_eq!(entry["urlPrefix"], url);
    assert_eq!(entry["enableHTTPS"], true);
    assert_eq!(entry["tlsConfig"]["certFile"], "/etc/aliquot/tls.crt");
    let left = |one: &&Object| one.kind() == "Lease" || one.name() == "aliquot-kube-scheduler";
    let left: Vec<&str> = objects.iter().filter(left).map(Object::kind).collect();
    assert_eq!(left, ["ConfigMap"]);
    let role = one(&objects, "ClusterRole", "aliquot-scheduler").0["rules"].to_string();
    assert!(!role.contains("delete"), "{role}");
}

#[test]
fn uses_certificates_of_cert_manager() {
    let plain = rendered(&[]).unwrap();
    assert!(plain.iter().all(|one| one.kind() != "Certificate"));
    let set = "--set=webhook.certManager.enabled=true";
    let objects = rendered(&[set]).unwrap();
    let leaf = &one(&objects, "Certificate", "aliquot-webhook").0["spec"];
    let webhook = one(&objects, "Deployment", "aliquot-webhook");
    let volume = &webhook.pod().unwrap()["volumes"][0]["secret"]["secretName"];
    assert_eq!(*volume, leaf["secretName"]);
    let own = |objects: &[Object]| {
        objects
            .iter()
            .any(|one| one.name() == "aliquot-webhook-tls")
    };
    assert!(own(&plain) && !own(&objects));
    let flags = webhook_flags(&objects);
    let mount = &container(webhook, "webhook")["volumeMounts"][0]["mountPath"];
    let folder = flags.certificates_dir.clone().unwrap();
    assert_eq!(folder.to_str(), mount.as_str());
    assert_eq!(texts(&leaf["dnsNames"]), flags.names().unwrap());
    let authority = one(&objects, "Certificate", "aliquot-webhook-ca");
    let issuer = one(&objects, "Issuer", "aliquot-webhook");
    assert_eq!(
        issuer.0["spec"]["ca"],
        json!({"secretName": authority.0["spec"]["secretName"]})
    );
    assert_eq!(leaf["issuerRef"]["name"], "aliquot-webhook");
    let issuer = "--set=webhook.certManager.issuerRef.name=own,webhook.certManager.issuerRef.kind=ClusterIssuer";
    let objects = rendered(&[set, issuer]).unwrap();
    assert!(objects.iter().all(|one| one.kind() != "Issuer"));
    let leaf = one(&objects, "Certificate", "aliquot-webhook");
    let expected = json!({"name": "own", "kind": "ClusterIssuer"});
    assert_eq!(leaf.0["spec"]["issuerRef"], expected);
}

/// On EKS with another network plugin than AWS', the API server cannot reach pods.
#[test]
fn serves_webhook_on_host_network_when_asked() {
    let objects = rendered(&[
        "--set=webhook.hostNetwork=true,webhook.port=10443",
        "--set=devicePlugin.nvidiaDriverRoot=/opt/driver",
    ])
    .unwrap();
    let webhook = one(&objects, "Deployment", "aliquot-webhook");
    let pod = webhook.pod().unwrap();
    let how = (&pod["hostNetwork"], &pod["dnsPolicy"]);
    assert_eq!(how, (&json!(true), &json!("ClusterFirstWithHostNet")));
    // An upgrade must not wait for a node without a replica.
    let unavailable = |webhook: &Object| {
        let update = &webhook.0["spec"]["strategy"]["rollingUpdate"];
        update["maxUnavailable"].clone()
    };
    assert_eq!(unavailable(webhook), 1);
    let main = container(webhook, "webhook");
    let flags = webhook_flags(&objects);
    assert_eq!(flags.listen.port(), 10443);
    assert_eq!(flags.admin_listen.unwrap().port(), 10444);
    let ports = main["ports"].as_array().unwrap().iter();
    let ports: Vec<_> = ports.map(|one| one["containerPort"].clone()).collect();
    assert_eq!(ports, [json!(10443), json!(10444)]);
    // A driver root has libraries for all containers: no pod with a share may write it.
    assert!(flags.agent_path.iter().any(|path| path == "/opt/driver"));
    let plain = rendered(&["--set=devicePlugin.nvidiaDriverRoot=/"]).unwrap();
    let webhook = one(&plain, "Deployment", "aliquot-webhook");
    assert!(webhook.pod().unwrap()["hostNetwork"].is_null());
    assert_eq!(unavailable(webhook), 0);
    let flags = webhook_flags(&plain);
    assert!(flags.agent_path.iter().all(|path| path != "/"));
    assert_eq!(flags.listen.port(), 8443);
}

#[test]
fn takes_user_ids_and_constraints_of_openshift() {
    let set = "--set=platform.openshift=true,devicePlugin.mps.enabled=true";
    let objects = rendered(&[set]).unwrap();
    for (kind, part) in [
        ("Deployment", "scheduler"),
        ("Deployment", "webhook"),
        ("Job", "cleanup"),
    ] {
        let object = one(&objects, kind, &format!("aliquot-{part}"));
        let security = &object.pod().unwrap()["securityContext"];
        let expected = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(*security, expected, "{part}");
    }
    let binding = &one(&objects, "RoleBinding", "aliquot-privileged").0;
    assert_eq!(
        binding["roleRef"]["name"],
        "system:openshift:scc:privileged"
    );
    let names = binding["subjects"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|one| one["name"].clone()).collect();
    assert_eq!(
        names,
        ["aliquot-device-plugin", "aliquot-monitor", "aliquot-mps"]
    );
    let host = "--set=platform.openshift=true,webhook.hostNetwork=true";
    let objects = rendered(&[host]).unwrap();
    one(&objects, "RoleBinding", "aliquot-hostnetwork-v2");
    let plain = rendered(&[]).unwrap();
    let constrained = |one: &Object| one.0["roleRef"]["name"].to_string().contains("openshift");
    assert!(!plain.iter().any(constrained));
}

#[test]
fn renders_no_webhook_objects_when_disabled() {
    let objects = rendered(&["--set=scheduler.admissionWebhook.enabled=false"]).unwrap();
    let of_it = objects
        .iter()
        .filter(|one| one.name().starts_with("aliquot-webhook"));
    let left: Vec<&str> = of_it.map(Object::kind).collect();
    assert_eq!(left, [""; 0]);
    // Lets the doctor tell this from a missing webhook.
    let webhook_annotation = |objects: &[Object]| {
        let scheduler = one(objects, "Deployment", "aliquot-scheduler");
        let pods = &scheduler.0["spec"]["template"]["metadata"];
        pods["annotations"]["aliquot.dev/admission-webhook"].clone()
    };
    assert_eq!(webhook_annotation(&objects), "off");
    assert_eq!(webhook_annotation(&rendered(&[]).unwrap()), Value::Null);
}

/// It may end with a slash.
#[test]
fn takes_kubelet_directory_of_hamis_plugin_path() {
    let set = "--set=devicePlugin.pluginPath=/var/lib/kubelet/device-plugins/";
    let objects = rendered(&[set]).unwrap();
    let agent = one(&objects, "DaemonSet", "aliquot-device-plugin");
    let line = command(container(agent, "device-plugin")).join(" ");
    assert!(line.contains("--kubelet-dir=/var/lib/kubelet "), "{line}");
}
