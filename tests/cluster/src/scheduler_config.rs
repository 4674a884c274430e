//! The configuration of kube-scheduler, as the product's chart will ship it.
//! Pure: a value from the extender's URL.

use serde_json::{Value, json};

/// The extender's weight: a unique best rank adds 10 × 40 = 400 points more than
/// the next, above the 300 that an ordinary pod (no affinity, no spread
/// constraint) can still collect from `TaintToleration`.
const WEIGHT: u32 = 40;

/// Scores that would spread or fill by CPU and memory, against our choice.
const SCORES_OFF: [&str; 3] = [
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];

/// `KubeSchedulerConfiguration` with both scheduler names and, when there is a
/// URL, the extender behind it.
pub(crate) fn configuration(kubeconfig: &str, extender: Option<&str>) -> Value {
    let off: Vec<Value> = SCORES_OFF
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    let profile = |name: &str| {
        json!({
            "schedulerName": name,
            "percentageOfNodesToScore": 100,
            "plugins": {"score": {"disabled": off}},
            "pluginConfig": [{"name": "PodTopologySpread", "args": {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "PodTopologySpreadArgs",
                "defaultConstraints": [],
                "defaultingType": "List",
            }}],
        })
    };
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": false},
        "profiles": [profile("default-scheduler"), profile("aliquot-scheduler")],
        "extenders": extender.map(entry).into_iter().collect::<Vec<_>>(),
    })
}

fn entry(url: &str) -> Value {
    let resource = |name: &str, ignored: bool| json!({"name": name, "ignoredByScheduler": ignored});
    json!({
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "nodeCacheCapable": true,
        "enableHTTPS": url.starts_with("https:"),
        "weight": WEIGHT,
        "httpTimeout": "15s",
        "managedResources": [
            resource("nvidia.com/gpu", false),
            resource("nvidia.com/gpumem", true),
            resource("nvidia.com/gpumem-percentage", true),
            resource("nvidia.com/gpucores", true),
            resource("nvidia.com/priority", true),
        ],
    })
}
