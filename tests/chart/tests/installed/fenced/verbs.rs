//! What each account may not do, by requests to the API server with its own token.

use anyhow::Result;
use serde_json::json;

use super::{Installed, Who};

pub(crate) async fn refused(on: &Installed) -> Result<()> {
    on.pod("victim").await?;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "victim", "namespace": "default"},
    });
    let path = "/api/v1/namespaces/default/pods/victim/eviction";
    let eviction = on.posted(path, &eviction)?;
    let eviction: Vec<&str> = eviction.iter().map(String::as_str).collect();
    let everywhere: [&[&str]; 10] = [
        &["get", "secrets", "-A"],
        &["get", "configmaps", "-n", "kube-system"],
        &["delete", "node", "near"],
        &["create", "token", "default"],
        &["create", "namespace", "own"],
        &[
            "create",
            "clusterrolebinding",
            "own",
            "--clusterrole=cluster-admin",
            "--user=x",
        ],
        &["delete", "validatingadmissionpolicy", "aliquot-allocations"],
        &["run", "own", "--image=none"],
        &["get", "--raw", "/api/v1/nodes/near/proxy/pods"],
        &["get", "clusterroles"],
    ];
    let agent: [&[&str]; 5] = [
        &eviction,
        &["delete", "pod", "victim"],
        &["label", "pod", "victim", "a=b"],
        &[
            "get",
            "secret",
            "aliquot-webhook-tls",
            "-n",
            "aliquot-system",
        ],
        &["get", "leases", "-A"],
    ];
    let scheduler: [&[&str]; 3] = [
        &["label", "node", "near", "c=d"],
        &["create", "quota", "own", "--hard=pods=1"],
        &[
            "get",
            "secret",
            "aliquot-webhook-tls",
            "-n",
            "aliquot-system",
        ],
    ];
    let webhook: [&[&str]; 9] = [
        &eviction,
        &["create", "secret", "generic", "own", "-n", "aliquot-system"],
        &[
            "create",
            "--raw",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            "-f",
            "/dev/null",
        ],
        &["delete", "pod", "victim"],
        &["get", "pods"],
        &["get", "nodes"],
        &["get", "secrets", "-n", "aliquot-system"],
        &["delete", "mutatingwebhookconfiguration", "aliquot-webhook"],
        &["get", "mutatingwebhookconfigurations"],
    ];
    let leave: [&[&str]; 5] = [
        &eviction,
        &["delete", "pod", "victim"],
        &["get", "pods"],
        &["get", "node", "near"],
        &["get", "secrets", "-n", "aliquot-system"],
    ];
    let own: [(&str, &[&[&str]]); 4] = [
        ("aliquot-leave", &leave),
        ("aliquot-device-plugin", &agent),
        ("aliquot-scheduler", &scheduler),
        ("aliquot-webhook", &webhook),
    ];
    for (account, requests) in own {
        let who = Who::Account(account);
        for request in everywhere.iter().chain(requests) {
            on.refused(who, request, "orbidden").await?;
        }
    }
    // Only the scheduler evicts pods.
    on.granted(Who::Account("aliquot-scheduler"), &eviction)
        .await
}
