//! The arguments of etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler. Pure: text from layout, ports and options.

use std::path::Path;

use crate::layout::Layout;
use crate::ports::{Ports, Role};

/// What a control plane with fake nodes needs, without the controllers that would mark nodes
/// without heartbeats as unreachable.
const CONTROLLERS_FOR_FAKE_NODES: [&str; 10] = [
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "job-controller",
    "replicaset-controller",
    "deployment-controller",
    "daemonset-controller",
    "pod-garbage-collector-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "disruption-controller",
];

fn url(scheme: &str, port: u16) -> String {
    format!("{scheme}://127.0.0.1:{port}")
}

/// Where the API server listens: where pods look for it, or else on loopback.
pub(crate) fn api_address(ports: Ports, for_pods: bool) -> (String, u16) {
    if for_pods {
        (ports.service(), 443)
    } else {
        ("127.0.0.1".to_owned(), ports.port(Role::ApiServer))
    }
}

pub(crate) fn api_url(ports: Ports, for_pods: bool) -> String {
    let (host, port) = api_address(ports, for_pods);
    format!("https://{host}:{port}")
}

pub(crate) fn etcd(layout: &Layout, ports: Ports) -> Vec<String> {
    let client = url("http", ports.port(Role::Etcd));
    let peer = url("http", ports.port(Role::EtcdPeer));
    vec![
        "etcd".into(),
        "--name=local".into(),
        format!("--data-dir={}", layout.text("etcd")),
        "--unsafe-no-fsync".into(), // the data is thrown away with the cluster
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=local={peer}"),
        "--log-level=warn".into(),
    ]
}

/// `node`: a real kubelet will come; without one the admission plugin that taints new nodes is off,
/// so that fake nodes can be scheduled to at once.
pub(crate) fn apiserver(
    layout: &Layout,
    ports: Ports,
    node: bool,
    for_pods: bool,
    extra: &[String],
) -> Vec<String> {
    let pki = layout.text("pki");
    let (host, port) = api_address(ports, for_pods);
    let mut args = vec![
        "apiserver".into(),
        format!("--etcd-servers={}", url("http", ports.port(Role::Etcd))),
        format!("--bind-address={host}"),
        format!("--secure-port={port}"),
        // A loopback address may not stand in an Endpoints object.
        "--endpoint-reconciler-type=none".into(),
        format!("--tls-cert-file={pki}/apiserver.crt"),
        format!("--tls-private-key-file={pki}/apiserver.key"),
        format!("--client-ca-file={pki}/ca.crt"),
        format!("--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt"),
        format!("--kubelet-client-key={pki}/apiserver-kubelet-client.key"),
        "--kubelet-preferred-address-types=Hostname".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={pki}/sa.pub"),
        format!("--service-account-signing-key-file={pki}/sa.key"),
        format!("--requestheader-client-ca-file={pki}/front-proxy-ca.crt"),
        "--requestheader-allowed-names=front-proxy-client".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        format!("--proxy-client-cert-file={pki}/front-proxy-client.crt"),
        format!("--proxy-client-key-file={pki}/front-proxy-client.key"),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        format!("--service-cluster-ip-range={}/24", ports.service()),
        "--allow-privileged=true".into(),
        "--enable-priority-and-fairness=false".into(), // no throttling of a load test
    ];
    if !node {
        args.push("--disable-admission-plugins=TaintNodesByCondition".into());
    }
    args.extend_from_slice(extra);
    args
}

pub(crate) fn controller_manager(
    layout: &Layout,
    ports: Ports,
    node: bool,
    extra: &[String],
) -> Vec<String> {
    let pki = layout.text("pki");
    let controllers = if node {
        "*".into()
    } else {
        CONTROLLERS_FOR_FAKE_NODES.join(",")
    };
    let mut args = vec![
        "controller-manager".into(),
        format!("--controllers={controllers}"),
        // One identity for all controllers: making one each costs 5 s at the start.
        format!("--kubeconfig={pki}/admin.kubeconfig"),
        "--use-service-account-credentials=false".into(),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={}", ports.port(Role::ControllerManager)),
        format!("--authentication-kubeconfig={pki}/controller-manager.kubeconfig"),
        format!("--authorization-kubeconfig={pki}/controller-manager.kubeconfig"),
        format!("--service-account-private-key-file={pki}/sa.key"),
        format!("--root-ca-file={pki}/ca.crt"),
        format!("--cluster-signing-cert-file={pki}/ca.crt"),
        format!("--cluster-signing-key-file={pki}/ca.key"),
        "--leader-elect=false".into(),
        "--kube-api-qps=500".into(),
        "--kube-api-burst=1000".into(),
    ];
    args.extend_from_slice(extra);
    args
}

/// kube-scheduler as one of several: it has no server, so it needs no port.
pub(crate) fn replica(config: &Path, extra: &[String]) -> Vec<String> {
    let mut args = vec![
        "scheduler".into(),
        format!("--config={}", config.display()),
        "--secure-port=0".into(),
    ];
    args.extend_from_slice(extra);
    args
}

pub(crate) fn scheduler(layout: &Layout, ports: Ports, extra: &[String]) -> Vec<String> {
    let kubeconfig = layout.text("pki/scheduler.kubeconfig");
    let mut args = vec![
        "scheduler".into(),
        format!("--config={}", layout.text("scheduler.yaml")),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={}", ports.port(Role::Scheduler)),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
    ];
    args.extend_from_slice(extra);
    args
}
