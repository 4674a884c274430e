//! A `DeviceClass` of DRA that stands for our resource.

use std::sync::Arc;

use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;

use crate::doctor::{doctor, grades};

/// kube-scheduler looks for DRA devices for pods with such a resource, and refuses those that also
/// ask for one that no node publishes, as shares do. Without the class it places them.
pub(crate) async fn over_our_resource(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 1,
        replicas: 10,
    };
    let nodes = [("class-1".to_owned(), shape)];
    let pool = Pool::open(&stack, "class", &nodes).await?;
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "DeviceClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "deviceclasses");
    let classes: Api<DynamicObject> = Api::all_with(stack.cluster.admin()?, &kind);
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "whole"}, "spec": {
        "extendedResourceName": "nvidia.com/gpu",
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
    }});
    let class = serde_json::from_value(class)?;
    match classes.create(&PostParams::default(), &class).await {
        // Kubernetes has this API since 1.34.
        Err(kube::Error::Api(status)) if status.code == 404 => return pool.close().await,
        created => drop(created?),
    }
    let waits = waits(&stack, &pool).await;
    classes.delete("whole", &DeleteParams::default()).await?;
    waits?;
    // kube-scheduler retries the other within five minutes: the end of a class wakes no pod.
    pool.create("next", &[("gpumem", "1000")]).await?;
    pool.bound("next").await?;
    pool.close().await
}

async fn waits(stack: &Stack, pool: &Pool<'_>) -> Result<()> {
    pool.create("share", &[("gpumem", "1000")]).await?;
    let event = pool.event("share", "FailedScheduling: ").await?;
    ensure!(event.contains("cannot fit resource"), "{event}");
    let (_, answer) = doctor(stack, &["--namespace", "class"]).await?;
    let found = grades(&answer, "device-classes");
    ensure!(found == [("cluster", "problem")], "{found:?} of {answer}");
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    ensure!(node_of(&pods.get("share").await?).is_none());
    Ok(())
}
