//! Only the replica whose kube-scheduler has the lease binds.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, NAMESPACE, Stack};
use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

const NAME: &str = "aliquot-scheduler";
/// The longest that an old leader's last POST can take.
const SETTLING: Duration = Duration::from_secs(3);
/// The lease's times are what we write into it: it is never renewed.
const HOUR: Duration = Duration::from_hours(1);

/// Binds with the lease only.
pub(crate) async fn lease(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 1,
        replicas: 10,
    };
    let pool = Pool::open(&stack, "leader", &[("leader-1".to_owned(), shape)]).await?;
    let now = SystemTime::now();
    hold(&stack, "pod-b_1", now - HOUR, now + HOUR).await?;
    stack.terminate(Kind::Scheduler).await?;
    let lease = format!("{NAMESPACE}/{NAME}");
    let flags = ["--scheduler-lease", &lease, "--identity", "pod-a"];
    stack.start_scheduler(&flags).await?;

    pool.create("first", &[("gpu", "1")]).await?;
    pool.event("first", "pod-b_1 holds the lease, this is pod-a")
        .await?;

    let taken = SystemTime::now();
    hold(&stack, "pod-a_2", taken, taken + HOUR).await?;
    let pod = pool.bound("first").await?;
    let conditions = pod
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let scheduled = conditions.into_iter().find(|c| c.type_ == "PodScheduled");
    let bound: Option<SystemTime> = scheduled
        .and_then(|c| c.last_transition_time)
        .map(|time| time.0.into());
    // The condition's time has whole seconds.
    let earliest = taken + SETTLING - Duration::from_secs(1);
    ensure!(
        bound.is_some_and(|bound| bound >= earliest),
        "bound at {bound:?}, leader since {taken:?}"
    );

    hold(&stack, "pod-a_2", taken, SystemTime::now() - HOUR).await?;
    pool.create("second", &[("gpu", "1")]).await?;
    pool.event("second", "not renewed within its deadline")
        .await?;

    stack.terminate(Kind::Scheduler).await?;
    stack.start_scheduler(&[]).await?;
    pool.bound("second").await?;
    let leases: Api<Lease> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    leases.delete(NAME, &DeleteParams::default()).await?;
    pool.close().await
}

/// Writes the lease as kube-scheduler would.
async fn hold(
    stack: &Stack,
    holder: &str,
    acquired: SystemTime,
    renewed: SystemTime,
) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME},
        "spec": {
            "holderIdentity": holder,
            "acquireTime": MicroTime(acquired.try_into()?),
            "renewTime": MicroTime(renewed.try_into()?),
        },
    });
    let params = PatchParams::apply("e2e").force();
    leases.patch(NAME, &params, &Patch::Apply(lease)).await?;
    Ok(())
}
