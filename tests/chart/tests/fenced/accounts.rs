//! Every account of ours, and a node's kubelet, on every route by which an allocation or an
//! inventory could be written; asked by one request each, so that what is refused is the writing.
//!
//! Fed by: `main`. Must not: read before it writes, as kubectl does.

use aliquot_chart::rendered;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{Installed, Who};

const SCHEDULER: Who = Who::Account("aliquot-scheduler");
const AGENT: Who = Who::Account("aliquot-device-plugin");
/// It is there while the chart is removed.
const LEAVE: Who = Who::Account("aliquot-leave");
/// Who may write no allocation.
const NOT_THE_SCHEDULER: [Who; 4] = [
    AGENT,
    Who::Account("aliquot-webhook"),
    LEAVE,
    Who::Kubelet("near"),
];
const ALLOCATION: &str = "aliquot.dev/allocation";
const INVENTORY: &str = "aliquot.dev/inventory";
/// Set or changed, and removed.
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

/// What the API server says to this change; nothing where it was granted.
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

fn refused(what: &str, said: Option<String>) -> Result<()> {
    let said = said.with_context(|| format!("{what} was granted"))?;
    // RBAC's and the policies' word for it.
    ensure!(said.contains("orbidden"), "{what}: {said}");
    Ok(())
}

/// The account that a removal makes, with its rights.
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
                let said = of_pod(on, who, ("on-near", route), change(ALLOCATION, value)).await?;
                refused(&format!("{who:?} {route:?} {value:?}"), said)?;
            }
            let said = of_pod(on, who, ("without", route), change(ALLOCATION, Some("own"))).await?;
            refused(&format!("{who:?} {route:?} where there was none"), said)?;
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
    // What the kubelet has to write it may write.
    let message = json!({"status": {"message": "x"}});
    let kubelet = Who::Kubelet("near");
    let said = of_pod(on, kubelet, ("on-near", Route::Status), message).await?;
    ensure!(said.is_none(), "{said:?}");
    let pod: Api<Pod> = Api::namespaced(on.cluster.admin()?, "default");
    let annotations = pod.get("on-near").await?.metadata.annotations;
    let kept = annotations.and_then(|all| all.get(ALLOCATION).cloned());
    ensure!(kept.as_deref() == Some("the scheduler's"), "{kept:?}");
    Ok(())
}

/// An inventory by nodes and nodes/status, of another node too.
pub(crate) async fn inventories(on: &Installed) -> Result<()> {
    for route in ROUTES {
        let agents = change(INVENTORY, Some("the agent's"));
        let said = of_node(on, AGENT, ("near", route), agents).await?;
        ensure!(said.is_none(), "{route:?}: {said:?}");
        for value in VALUES {
            let own = || change(INVENTORY, value);
            let said = of_node(on, AGENT, ("far", route), own()).await?;
            refused(&format!("the agent on another node, {route:?}"), said)?;
            for who in [
                SCHEDULER,
                Who::Account("aliquot-webhook"),
                LEAVE,
                Who::Kubelet("near"),
            ] {
                let said = of_node(on, who, ("near", route), own()).await?;
                refused(&format!("{who:?} {route:?} {value:?}"), said)?;
            }
        }
    }
    // What it is there for.
    let leave = change("aliquot.dev/leave", Some("x"));
    let said = of_node(on, LEAVE, ("near", Route::Object), leave).await?;
    ensure!(said.is_none(), "{said:?}");
    Ok(())
}
