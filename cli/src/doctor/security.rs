//! What is open to tenants in this cluster, with the value of the chart that closes it. Read from the
//! flags of Aliquot's running pods, and from the objects that the chart installs.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;

use super::admission;
use super::facts::ClusterFacts;
use super::finding::{About, Checked, Finding, ok, warning};
use crate::components::{flag, running_pods};
use crate::snapshot::without_control;
use crate::table::counted;

/// Agents' flags, what the pods of their namespaces may do, the last part of the value's name, and the
/// flag's default.
const RIGHTS: [(&str, &str, &str, &str); 4] = [
    (
        "--may-set-priority",
        "have priority 0, for which the other pods on a GPU wait",
        "priority",
        "*",
    ),
    (
        "--may-set-utilization",
        "set GPU_CORE_UTILIZATION_POLICY, which lifts the limit of compute",
        "utilizationPolicy",
        "*",
    ),
    (
        "--may-set-oom-killer",
        "set ACTIVE_OOM_KILLER, so that no process above its memory limit is killed",
        "oomKiller",
        "*",
    ),
    (
        "--may-disable-control",
        "set CUDA_DISABLE_CONTROL, which lifts every limit",
        "disableControl",
        "",
    ),
];

/// A finding for everything that is open, and for what could not be read.
pub(super) fn checks(facts: &ClusterFacts) -> Vec<Finding> {
    let about = About::cluster();
    let mut found = about.each([
        ("admission-policies", admission::policies(facts)),
        ("exempt-namespaces", exempt_namespaces(facts)),
        ("limits", limits(facts)),
        ("network-policies", reachable_ports(facts)),
    ]);
    let (of_webhook, of_agents) = match &facts.pods {
        Err(why) => (vec![Err(why.clone())], Vec::new()),
        Ok(pods) => (of_webhook(facts, pods), of_agents(pods)),
    };
    found.extend(
        of_webhook
            .into_iter()
            .map(|checked| about.finding("webhook", checked)),
    );
    found.extend(
        of_agents
            .into_iter()
            .map(|(check, checked)| about.finding(check, checked)),
    );
    found
}

/// Every container with a share has its limits.
pub(super) fn limits(facts: &ClusterFacts) -> Checked {
    let pods = facts.pods.as_deref()?;
    let free = without_control(pods);
    if free.is_empty() {
        return ok("no container has set CUDA_DISABLE_CONTROL and may");
    }
    warning(
        format!(
            "{} without limits, because of CUDA_DISABLE_CONTROL: {}",
            counted(free.len(), "container is", "containers are"),
            free.join(", ")
        ),
        "remove the namespace from devicePlugin.tenantMay.disableControl, and create the pods again",
    )
}

/// The namespaces that an administrator exempted by a label.
fn exempt_namespaces(facts: &ClusterFacts) -> Checked {
    let names = facts.exempt.as_ref()?;
    if names.is_empty() {
        return ok("no namespace is exempt from admission");
    }
    warning(
        format!(
            "pods in {} are not reviewed and may take every GPU of a node",
            names.join(", ")
        ),
        "kubectl label namespace NAME aliquot.dev/webhook- hami.io/webhook-, unless only administrators create pods there",
    )
}

/// What the webhook lets through.
fn of_webhook(facts: &ClusterFacts, pods: &[Pod]) -> Vec<Checked> {
    if admission::is_off(pods) {
        return vec![admission::off(facts)];
    }
    let Some(webhook) = running_pods(pods, "webhook").next() else {
        return vec![Err(
            "no webhook pod runs, so its flags are unknown".to_owned()
        )];
    };
    let mut found = Vec::new();
    match &facts.webhook {
        Err(why) => found.push(Err(why.clone())),
        Ok(hooks) if hooks.iter().any(exempts_pods_by_label) => found.push(warning(
            "a label on a pod excludes it from admission: every tenant may name GPUs in NVIDIA_VISIBLE_DEVICES",
            "set webhook.podsMayIgnore=false",
        )),
        Ok(_) => {}
    }
    if flag(webhook, "--visible-devices") == Some("allow") {
        found.push(warning(
            "NVIDIA_VISIBLE_DEVICES is left in pods: every tenant may name GPUs in it",
            "set webhook.visibleDevices=rewrite",
        ));
    }
    if let Some(names) = flag(webhook, "--escape-allow-namespace").filter(|all| !all.is_empty()) {
        found.push(warning(
            format!("pods with a share may be privileged and mount host paths in {names}"),
            "remove the namespaces from webhook.escapeAllowNamespaces",
        ));
    }
    if found.is_empty() {
        found.push(ok("the webhook exempts no pod"));
    }
    found
}

/// Which of their own limits pods may set, and what enforces them, by check.
fn of_agents(pods: &[Pod]) -> Vec<(&'static str, Checked)> {
    let check = "tenant-rights";
    let Some(agent) = running_pods(pods, "device-plugin").next() else {
        return vec![(
            check,
            Err("no agent pod runs, so its flags are unknown".to_owned()),
        )];
    };
    let kills = flag(agent, "--oom-killer") == Some("true");
    let mut found = Vec::new();
    for (name, may, value, default) in RIGHTS {
        // Without the killer, there is nothing to turn off.
        if name == "--may-set-oom-killer" && !kills {
            continue;
        }
        let whose = match flag(agent, name).unwrap_or(default) {
            "" => {
                found.push((check, ok(format!("no pod may {may}"))));
                continue;
            }
            "*" => "all namespaces",
            names => names,
        };
        let open = warning(
            format!("pods in {whose} may {may}"),
            format!(
                "set devicePlugin.tenantMay.{value} to the namespaces that need it, or to [] for none"
            ),
        );
        found.push((check, open));
    }
    let monitor = running_pods(pods, "monitor").next();
    found.push(("priority-cap", of_priority(agent, monitor)));
    if !kills {
        let open = warning(
            "what a container uses beyond its memory limit, by getting around the library, is reported, and nobody is killed for it",
            "set devicePlugin.oomKiller=true",
        );
        found.push(("oom-killer", open));
    }
    found
}

/// How much of a GPU's time pods of priority 0 may take from the others.
fn of_priority(agent: &Pod, monitor: Option<&Pod>) -> Checked {
    let [(may_set, _, _, everybody), ..] = RIGHTS;
    if flag(agent, may_set).unwrap_or(everybody).is_empty() {
        return ok("no pod may have priority 0");
    }
    let Some(monitor) = monitor else {
        return ok("no monitor runs, so no pod waits for priority 0");
    };
    match flag(monitor, "--priority-cap").unwrap_or("100") {
        "100" => warning(
            "while pods of priority 0 compute, the other pods on their GPU get none of its time",
            "set monitor.priorityCap to the percent of the time for which they may have to wait, such as 50",
        ),
        cap => ok(format!(
            "pods wait for priority 0 for at most {cap} % of any ten seconds"
        )),
    }
}

fn exempts_pods_by_label(hooks: &MutatingWebhookConfiguration) -> bool {
    let hooks = hooks.webhooks.iter().flatten();
    let mut selectors = hooks.filter_map(|hook| hook.object_selector.as_ref());
    selectors.any(|pods| {
        let labels = pods.match_expressions.as_ref();
        labels.is_some_and(|labels| !labels.is_empty())
    })
}

/// The components with ports for metrics and queries.
const SERVERS: [&str; 4] = ["scheduler", "webhook", "device-plugin", "monitor"];

/// Whether every pod reaches all ports.
fn reachable_ports(facts: &ClusterFacts) -> Checked {
    let (all, pods) = (facts.network_policies.as_ref()?, facts.pods.as_deref()?);
    let missing: Vec<String> = SERVERS
        .into_iter()
        .filter(|part| running_pods(pods, part).next().is_some())
        .map(|part| format!("aliquot-{part}"))
        .filter(|name| !all.contains(name))
        .collect();
    if missing.is_empty() {
        return ok("NetworkPolicies close all ports of Aliquot's pods that it does not serve");
    }
    warning(
        format!(
            "there is no NetworkPolicy {}: every pod may connect to all ports of these pods",
            missing.join(", ")
        ),
        "set networkPolicy.enabled=true",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cluster_tests::{healthy, part};
    use super::super::finding::Grade;
    use super::*;
    use crate::components::is_ours;

    /// The findings that are not ok, of a cluster with these flags.
    fn open(component: &str, flags: &[&str]) -> Vec<(&'static str, String)> {
        let mut facts = healthy();
        let pods = facts.pods.as_mut().unwrap();
        pods.retain(|pod| !is_ours(pod, component));
        pods.push(part("p", component, flags));
        let found = checks(&facts).into_iter();
        let open = found.filter(|one| one.grade != Grade::Ok);
        open.map(|one| (one.check, one.todo)).collect()
    }

    fn has(found: &[(&str, String)], check: &str, value: &str) -> bool {
        found
            .iter()
            .any(|(name, todo)| *name == check && todo.contains(value))
    }

    #[test]
    fn security_lists_what_is_open_with_its_value() {
        let usual = open("device-plugin", &["--oom-killer=true"]);
        let rights = ["priority", "utilizationPolicy", "oomKiller"];
        assert_eq!(usual.len(), rights.len(), "{usual:?}");
        for right in rights {
            let value = format!("devicePlugin.tenantMay.{right} ");
            assert!(has(&usual, "tenant-rights", &value), "{usual:?}");
        }
        let closed = [
            "--may-set-priority=",
            "--may-set-utilization=",
            "--may-set-oom-killer=",
            "--oom-killer=true",
        ];
        assert_eq!(open("device-plugin", &closed), []);
        let reports = open("device-plugin", &closed[..3]);
        assert!(has(&reports, "oom-killer", "devicePlugin.oomKiller=true"));
        assert_eq!(reports.len(), 1, "{reports:?}");
        let free = open("device-plugin", &["--may-disable-control=*"]);
        assert!(has(&free, "tenant-rights", "tenantMay.disableControl"));
        for (flag, value) in [
            ("--visible-devices=allow", "webhook.visibleDevices=rewrite"),
            (
                "--escape-allow-namespace=lab",
                "webhook.escapeAllowNamespaces",
            ),
        ] {
            assert!(has(&open("webhook", &[flag]), "webhook", value), "{flag}");
        }
    }

    #[test]
    fn security_names_labels_that_exempt_pods() {
        let mut facts = healthy();
        let hook = facts.webhook.as_mut().unwrap().as_mut().unwrap();
        let selector = json!({"matchExpressions": [
            {"key": "aliquot.dev/webhook", "operator": "NotIn", "values": ["ignore"]}]});
        let hooks = hook.webhooks.iter_mut().flatten();
        for hook in hooks {
            hook.object_selector = serde_json::from_value(selector.clone()).unwrap();
        }
        let found = checks(&facts);
        let todo = "set webhook.podsMayIgnore=false";
        assert!(found.iter().any(|one| one.todo == todo));
    }

    #[test]
    fn security_lists_missing_network_policies() {
        let mut facts = healthy();
        let policies = facts.network_policies.as_mut().unwrap();
        policies.retain(|name| name != "aliquot-scheduler");
        let found = checks(&facts);
        let one = found.iter().find(|one| one.check == "network-policies");
        let one = one.unwrap();
        assert_eq!(one.todo, "set networkPolicy.enabled=true");
        assert!(one.found.contains("NetworkPolicy aliquot-scheduler:"));
    }

    #[test]
    fn security_names_uncapped_priority() {
        let names_cap = |agent: &[&str], monitor: Option<&[&str]>| {
            let mut facts = healthy();
            let pods = facts.pods.as_mut().unwrap();
            pods.retain(|pod| !is_ours(pod, "device-plugin") && !is_ours(pod, "monitor"));
            pods.push(part("a", "device-plugin", agent));
            pods.extend(monitor.map(|flags| part("m", "monitor", flags)));
            let found = checks(&facts);
            let cap = found.iter().find(|one| one.check == "priority-cap");
            cap.unwrap().todo.contains("monitor.priorityCap")
        };
        assert!(names_cap(&[], Some(&[])));
        assert!(names_cap(&[], Some(&["--priority-cap=100"])));
        assert!(!names_cap(&[], Some(&["--priority-cap=99"])));
        assert!(!names_cap(&["--may-set-priority="], Some(&[])));
        assert!(!names_cap(&[], None), "nobody throttles without a monitor");
    }

    #[test]
    fn security_names_exempt_namespaces() {
        let mut facts = healthy();
        facts.exempt = Ok(vec!["gpu-operator".to_owned()]);
        let found = checks(&facts);
        let one = found.iter().find(|one| one.check == "exempt-namespaces");
        let one = one.map(|one| (one.grade, one.found.contains("gpu-operator")));
        assert_eq!(one, Some((Grade::Warning, true)));
    }
}
