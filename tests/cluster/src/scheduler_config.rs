//! The configuration of kube-scheduler: that of the product's chart, and beside its profile the
//! default one for other pods.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::chart;

/// Has it in a `ConfigMap`.
const TEMPLATE: &str = "templates/scheduler.yaml";
/// Where it has the extender.
const EXTENDER: &str = "http://127.0.0.1:9397";

/// What a [`crate::Builder`] wants of kube-scheduler.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchedulerOptions {
    /// Where the extender is, if there is one.
    pub(crate) extender: Option<String>,
    /// Values of the chart that shall be others.
    pub(crate) values: Vec<(String, Value)>,
    /// Requests per second to the API server and the burst, where not the chart's.
    pub(crate) rate: Option<(u32, u32)>,
    pub(crate) args: Vec<String>,
}

/// `KubeSchedulerConfiguration`.
pub(crate) fn configuration(kubeconfig: &str, options: &SchedulerOptions) -> Result<Value> {
    let url = options.extender.as_deref().unwrap_or(EXTENDER);
    let text = chart_configuration(&options.values)?.replace(EXTENDER, url);
    let mut config: Value = serde_saphyr::from_str(&text).context(TEMPLATE)?;
    // One kube-scheduler, here at once, unless a test asks for more.
    config["leaderElection"]["leaderElect"] = json!(false);
    config["clientConnection"]["kubeconfig"] = json!(kubeconfig);
    if let Some((rate, burst)) = options.rate {
        config["clientConnection"]["qps"] = json!(rate);
        config["clientConnection"]["burst"] = json!(burst);
    }
    let profiles = config["profiles"].as_array_mut().context("no profiles")?;
    // Default constraints would list Services and ReplicaSets, which the chart's account may not.
    let plugins = profiles[0]["pluginConfig"].clone();
    profiles.push(json!({"schedulerName": "default-scheduler", "pluginConfig": plugins}));
    if options.extender.is_none() {
        config["extenders"] = json!([]);
    }
    Ok(config)
}

/// The chart's, where some of its values are others.
fn chart_configuration(values: &[(String, Value)]) -> Result<String> {
    for object in chart::rendered(TEMPLATE, values)?.split("\n---\n") {
        let object = object.trim_start_matches("---\n");
        let object: Value = serde_saphyr::from_str(object).context(TEMPLATE)?;
        if let Some(text) = object["data"]["kube-scheduler.yaml"].as_str() {
            return Ok(text.to_owned());
        }
    }
    bail!("{TEMPLATE} has no kube-scheduler.yaml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_core::mig;

    fn with(values: &[(&str, Value)]) -> Value {
        let own = |(path, value): &(&str, Value)| ((*path).to_owned(), value.clone());
        let options = SchedulerOptions {
            extender: Some("http://x:1".to_owned()),
            values: values.iter().map(own).collect(),
            ..SchedulerOptions::default()
        };
        configuration("/k", &options).unwrap()
    }

    fn number(value: &Value) -> u64 {
        value.as_u64().unwrap_or_else(|| panic!("{value}"))
    }

    /// What docs/guides/scheduling-policies.md specifies, as sums.
    #[test]
    fn rank_beats_defaults_and_a_full_preference_beats_all_ranks() {
        const TAINTS: u64 = 3 * 100; // weight and most points of TaintToleration
        let config = with(&[]);
        let rank = 10 * number(&config["extenders"][0]["weight"]);
        assert!(rank > TAINTS);
        let enabled = config["profiles"][0]["plugins"]["score"]["enabled"].as_array();
        let preferences = enabled.unwrap();
        assert_eq!(preferences.len(), 3);
        for preference in preferences {
            assert!(
                100 * number(&preference["weight"]) > 10 * rank + TAINTS,
                "{preference}"
            );
        }
    }

    #[test]
    fn extender_manages_pods_that_request_our_resources() {
        let shared = ["nvidia.com/gpu.shared"];
        let config = with(&[("extraResources", json!(shared))]);
        let extenders = config["extenders"].as_array().unwrap();
        assert_eq!(extenders.len(), 1);
        assert_eq!(extenders[0]["urlPrefix"], "http://x:1");
        let resources = extenders[0]["managedResources"].as_array().unwrap();
        let of = |r: &Value| (r["name"].clone(), r["ignoredByScheduler"].clone());
        let managed: Vec<_> = resources.iter().map(of).collect();
        let expected = [
            ("nvidia.com/gpu", true),
            ("nvidia.com/gpumem", true),
            ("nvidia.com/gpumem-percentage", true),
            ("nvidia.com/gpucores", true),
            ("nvidia.com/priority", true),
            ("nvidia.com/gpu.shared", true),
        ];
        let expected = expected.map(|(name, ignored)| (json!(name), json!(ignored)));
        let instances = mig::table::names().into_iter();
        let instances = instances.map(|name| (json!(mig::resource(&name)), json!(true)));
        let expected: Vec<_> = expected.into_iter().chain(instances).collect();
        assert_eq!(managed, expected);
    }

    #[test]
    fn entry_for_pods_without_a_gpu_is_off_by_default() {
        let config = with(&[("scheduler.cpuOnly", json!(true))]);
        let extenders = config["extenders"].as_array().unwrap();
        assert_eq!(extenders.len(), 2);
        assert_eq!(extenders[1]["urlPrefix"], "http://x:1/cpu-only");
        for verb in ["filterVerb", "bindVerb", "preemptVerb", "managedResources"] {
            assert!(extenders[1][verb].is_null(), "{verb}");
        }
    }
}
