//! What the webhook fills in, as the API server stores it and kubectl prints it.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_e2e::pods::allocation;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

const NO_GPU: &str = "nvidia.com/gpu not set, defaulting to 1";
const NO_MEMORY: &str = "nvidia.com/gpumem not set, defaulting to 5000 MiB \
                         (set nvidia.com/gpumem-percentage: 100 for a whole GPU)";
const NO_CORES: &str =
    "nvidia.com/gpucores not set, defaulting to 0 (compute is neither reserved nor limited)";

/// One pod: what it writes, and what must come of it.
struct Case {
    name: &'static str,
    written: Value,
    /// Limits and requests as the API server stores them.
    stored: Value,
    warnings: &'static [&'static str],
    defaulted: Value,
    /// Memory and cores on each GPU.
    grants: &'static [(u64, u32)],
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "only-memory",
            written: json!({"nvidia.com/gpumem": 3000}),
            stored: json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k",
                "nvidia.com/gpucores": "0", "nvidia.com/priority": "1"}),
            warnings: &[NO_GPU, NO_CORES],
            defaulted: json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "0",
                "nvidia.com/priority": "1"}),
            grants: &[(3000, 0)],
        },
        Case {
            name: "two-gpus",
            written: json!({"nvidia.com/gpu": 2}),
            stored: json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "5k",
                "nvidia.com/gpucores": "0", "nvidia.com/priority": "1"}),
            warnings: &[NO_MEMORY, NO_CORES],
            defaulted: json!({"nvidia.com/gpumem": "5000", "nvidia.com/gpucores": "0",
                "nvidia.com/priority": "1"}),
            grants: &[(5000, 0), (5000, 0)],
        },
    ]
}

pub(crate) async fn defaults(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 2,
        replicas: 10,
    };
    let pool = Pool::open(&stack, "filled", &[("filled-1".to_owned(), shape)]).await?;
    for case in cases() {
        check(&stack, &pool, &case).await.context(case.name)?;
    }
    pool.close().await
}

async fn check(stack: &Stack, pool: &Pool<'_>, case: &Case) -> Result<()> {
    let mut pod = pool.pod(case.name, &[]);
    pod["spec"]["containers"][0]["resources"]["limits"] = case.written.clone();
    let warnings = apply(stack, &pod).await?;
    ensure!(
        warnings == [case.warnings.join("; ")],
        "warnings {warnings:#?}"
    );

    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let created = pods.get(case.name).await?;
    let stored = serde_json::to_value(&created)?;
    let spec = &stored["spec"];
    for list in ["limits", "requests"] {
        let found = &spec["containers"][0]["resources"][list];
        ensure!(*found == case.stored, "{list} {found}");
    }
    ensure!(spec["schedulerName"] == "aliquot-scheduler", "{spec}");
    let annotation = &stored["metadata"]["annotations"]["aliquot.dev/defaulted"];
    let defaulted: Value = serde_json::from_str(annotation.as_str().context("a list")?)?;
    ensure!(defaulted == json!({"main": case.defaulted}), "{defaulted}");

    let allocation = allocation(&pool.bound(case.name).await?)?;
    let node = format!("{}-1", pool.name);
    ensure!(allocation.node.as_str() == node, "{allocation:?}");
    ensure!(allocation.priority == 1, "{allocation:?}");
    let grants = allocation.grants("main").context("main has a share")?;
    let shares: Vec<_> = grants.iter().map(|g| (g.memory.0, g.cores.0)).collect();
    ensure!(shares == case.grants, "{grants:?}");
    let by_gpu: BTreeMap<_, _> = grants.iter().map(|g| (&g.gpu, g)).collect();
    ensure!(by_gpu.len() == grants.len(), "one GPU twice: {grants:?}");
    stack.cluster.delete_pod(pool.name, case.name).await
}

/// `kubectl apply`; the admission warnings that it prints.
async fn apply(stack: &Stack, pod: &Value) -> Result<Vec<String>> {
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let file = stack.write(&format!("applied-{name}.json"), &pod.to_string())?;
    let output = stack
        .cluster
        .kubectl(&["apply", "-f", &file.to_string_lossy()])
        .await?;
    let lines = output.stderr.lines();
    let warnings = lines
        .map(|line| Some(line.strip_prefix("Warning: ")?.to_owned()))
        .collect::<Option<_>>();
    let warnings = warnings.with_context(|| format!("more than warnings: {}", output.stderr))?;
    output.success()?;
    Ok(warnings)
}
