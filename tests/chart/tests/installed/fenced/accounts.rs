//! Every account of Aliquot, and a node's kubelet, on every route by which an allocation or an
//! inventory could be written; one request each, so that it is the write that is refused.

use aliquot_chart::rendered;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Installed, Who};

const SCHEDULER: Who = Who::Account("aliquot-scheduler");
const AGENT: Who = Who::Account("aliquot-device-plugin");
/// It exists while the chart is removed.
const LEAVE: Who = Who::Account("aliquot-leave");
/// Accounts that may not write allocations.
const NOT_THE_SCHEDULER: [Who; 4] = [
    AGENT,
    Who::Account("aliquot-webhook"),
    LEAVE,
    Who::Kubelet("near"),
];
const ALLOCATION: &str = "aliquot.dev/allocation";
const INVENTORY: &str = "aliquot.dev/inventory";
/// Set, changed and removed.
const VALUES: [Option<&str>; 2] = [Some("own"), None];

/// Where an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Object,
    Status,
}
const ROUTES: [Route; 2] = [Route::Object, Route::Status];

fn change(key: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

/// The API server's error for this change; `None` if it was accepted.
async fn of_pod(
    on: &Installed,
    who: Who,
    (name, route): (&str, Route),
    change: Value,
) -> Result<Option<String>> {
    let pods: Api<Pod> = Api::namespaced(on.client(who).await?, "default");
    let (params, change) = (PatchParams::default(), Patch::Merge(change));
    let done = match route {
        Route::Object => pods.patch(name, &params, &change).await,
        Route::Status => pods.patch_status(name, &params, &change).await,
    };
    Ok(done.err().map(|error| error.to_string()))
}

/// The same of a node.
async fn of_node(
    on: &Installed,
    who: Who,
    (name, route): (&str, Route),
    change: Value,
) -> Result<Option<String>> {
    let nodes: Api<Node> = Api::all(on.client(who).await?);
    let (params, change) = (PatchParams::default(), Patch::Merge(change));
    let done = match route {
        Route::Object => nodes.patch(name, &params, &change).await,
        Route::Status => nodes.patch_status(name, &params, &change).await,
    };
    Ok(done.err().map(|error| error.to_string()))
}

fn refused(what: &str, error: Option<String>) -> Result<()> {
    let error = error.with_context(|| format!("{what} was granted"))?;
    // The word of RBAC and of the policies.
    ensure!(error.contains("orbidden"), "{what}: {error}");
    Ok(())
}

/// The account that the uninstallation creates, with its permissions.
pub(crate) async fn leaving(on: &Installed) -> Result<()> {
    for object in rendered(&[])? {
        let of_it = object.name() == "aliquot-leave" && object.kind() != "Job";
        if of_it && object.kind() != "NetworkPolicy" {
            let file = on.cluster.state_dir().join("leave.json");
            std::fs::write(&file, object.0.to_string())?;
            let apply = ["apply", "-f", &*file.to_string_lossy()];
            on.cluster.kubectl(&apply).await?.success()?;
        }
    }
    Ok(())
}

/// An allocation set, changed and removed by pods, pods/status, pods/binding and bindings.
pub(crate) async fn allocations(on: &Installed) -> Result<()> {
    for name in ["on-near", "without", "to-bind"] {
        on.pod(name).await?;
    }
    let binding = |name: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
        })
    };
    for (name, annotations) in [
        ("on-near", json!({ALLOCATION: "the scheduler's"})),
        ("without", json!({})),
    ] {
        let path = format!("/api/v1/namespaces/default/pods/{name}/binding");
        let request = on.posted(&path, &binding(name, annotations))?;
        let request: Vec<&str> = request.iter().map(String::as_str).collect();
        on.granted(SCHEDULER, &request).await?;
    }
    for who in NOT_THE_SCHEDULER {
        for route in ROUTES {
            for value in VALUES {
                let error = of_pod(on, who, ("on-near", route), change(ALLOCATION, value)).await?;
                refused(&format!("{who:?} {route:?} {value:?}"), error)?;
            }
            let error =
                of_pod(on, who, ("without", route), change(ALLOCATION, Some("own"))).await?;
            refused(&format!("{who:?} {route:?} where there was none"), error)?;
        }
        if matches!(who, Who::Kubelet(_)) {
            continue;
        }
        for path in ["pods/to-bind/binding", "bindings"] {
            let path = format!("/api/v1/namespaces/default/{path}");
            let request = on.posted(&path, &binding("to-bind", json!({ALLOCATION: "{}"})))?;
            let request: Vec<&str> = request.iter().map(String::as_str).collect();
            on.refused(who, &request, "orbidden").await?;
        }
    }
    // The kubelet may write what it has to.
    let message = json!({"status": {"message": "x"}});
    let kubelet = Who::Kubelet("near");
    let error = of_pod(on, kubelet, ("on-near", Route::Status), message).await?;
    ensure!(error.is_none(), "{error:?}");
    let pod: Api<Pod> = Api::namespaced(on.cluster.admin()?, "default");
    let annotations = pod.get("on-near").await?.metadata.annotations;
    let current = annotations.and_then(|all| all.get(ALLOCATION).cloned());
    ensure!(current.as_deref() == Some("the scheduler's"), "{current:?}");
    Ok(())
}

/// An inventory through nodes and nodes/status, also of another node.
pub(crate) async fn inventories(on: &Installed) -> Result<()> {
    for route in ROUTES {
        let agents = change(INVENTORY, Some("the agent's"));
        let error = of_node(on, AGENT, ("near", route), agents).await?;
        ensure!(error.is_none(), "{route:?}: {error:?}");
        for value in VALUES {
            let own = || change(INVENTORY, value);
            let error = of_node(on, AGENT, ("far", route), own()).await?;
            refused(&format!("the agent on another node, {route:?}"), error)?;
            for who in [
                SCHEDULER,
                Who::Account("aliquot-webhook"),
                LEAVE,
                Who::Kubelet("near"),
            ] {
                let error = of_node(on, who, ("near", route), own()).await?;
                refused(&format!("{who:?} {route:?} {value:?}"), error)?;
            }
        }
    }
    // What it is meant for.
    let leave = change("aliquot.dev/leave", Some("x"));
    let error = of_node(on, LEAVE, ("near", Route::Object), leave).await?;
    ensure!(error.is_none(), "{error:?}");
    Ok(())
}
