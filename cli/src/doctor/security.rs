//! What is open to tenants in this cluster, with the value of the chart that closes it. Read from the
//! flags of Aliquot's running pods, and from the objects that the chart installs.

use k8s_openapi::api::core::v1::Pod;

use super::admission;
use super::cluster::{limits, running_pods};
use super::facts::{ClusterFacts, arguments, flag};
use super::finding::{About, Finding};

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
    let mut found = vec![
        admission::policy_bindings(facts, &about),
        exempt_namespaces(facts, &about),
        limits(facts, &about),
    ];
    match &facts.pods {
        Err(why) => found.push(about.unknown("tenants", why)),
        Ok(pods) => {
            found.extend(of_webhook(facts, pods, &about));
            found.extend(of_agents(pods, &about));
            found.extend(of_scheduler(pods, &about));
        }
    }
    found
}

/// The namespaces that an administrator exempted by a label.
fn exempt_namespaces(facts: &ClusterFacts, about: &About) -> Finding {
    let check = "exempt-namespaces";
    match &facts.exempt {
        Err(why) => about.unknown(check, why),
        Ok(names) if names.is_empty() => about.ok(check, "no namespace is exempt from admission"),
        Ok(names) => about.warning(
            check,
            format!(
                "pods in {} are not reviewed and may take every GPU of a node",
                names.join(", ")
            ),
            "kubectl label namespace NAME aliquot.dev/webhook- hami.io/webhook-, unless only administrators create pods there",
        ),
    }
}

/// What the webhook lets through.
fn of_webhook(facts: &ClusterFacts, pods: &[Pod], about: &About) -> Vec<Finding> {
    let check = "webhook";
    if admission::is_off(pods) {
        return vec![admission::off(facts, about)];
    }
    let Some(webhook) = running_pods(pods, "webhook").next() else {
        return vec![about.unknown(check, "no webhook pod runs, so its flags are unknown")];
    };
    let mut found = Vec::new();
    if flag(webhook, "--pods-may-ignore") == Some("true") {
        found.push(about.warning(
            check,
            "a label on a pod excludes it from admission: every tenant may name GPUs in NVIDIA_VISIBLE_DEVICES",
            "set webhook.podsMayIgnore=false",
        ));
    }
    if flag(webhook, "--visible-devices") == Some("allow") {
        found.push(about.warning(
            check,
            "NVIDIA_VISIBLE_DEVICES is left in pods: every tenant may name GPUs in it",
            "set webhook.visibleDevices=rewrite",
        ));
    }
    if let Some(names) = flag(webhook, "--escape-allow-namespace").filter(|all| !all.is_empty()) {
        found.push(about.warning(
            check,
            format!("pods with a share may be privileged and mount host paths in {names}"),
            "remove the namespaces from webhook.escapeAllowNamespaces",
        ));
    }
    if found.is_empty() {
        found.push(about.ok(check, "the webhook exempts no pod"));
    }
    found
}

/// Which of their own limits pods may set.
fn of_agents(pods: &[Pod], about: &About) -> Vec<Finding> {
    let check = "tenant-rights";
    let Some(agent) = running_pods(pods, "device-plugin").next() else {
        return vec![about.unknown(check, "no agent pod runs, so its flags are unknown")];
    };
    let finding = |(name, may, value, default): (&str, &str, &str, &str)| {
        let value = format!("devicePlugin.tenantMay.{value}");
        match flag(agent, name).unwrap_or(default) {
            "" => about.ok(check, format!("no pod may {may}")),
            names => {
                let whose = match names {
                    "*" => "all namespaces".to_owned(),
                    some => some.to_owned(),
                };
                about.warning(
                    check,
                    format!("pods in {whose} may {may}"),
                    &format!("set {value} to the namespaces that need it, or to [] for none"),
                )
            }
        }
    };
    RIGHTS.into_iter().map(finding).collect()
}

/// Whether HAMi's annotations count.
fn of_scheduler(pods: &[Pod], about: &About) -> Option<Finding> {
    let check = "compat-hami";
    let scheduler = running_pods(pods, "scheduler").next()?;
    let reads = arguments(scheduler).any(|one| one == "--compat-hami");
    Some(if reads {
        about.warning(
            check,
            "HAMi's annotations count as allocations of pods that have device ids of HAMi's plugin",
            "set compat.hami=false when no pod of HAMi runs any more",
        )
    } else {
        about.ok(check, "HAMi's annotations do not count")
    })
}

#[cfg(test)]
mod tests {
    use super::super::cluster_tests::{healthy, part};
    use super::super::finding::Grade;
    use super::*;

    /// The findings that are not ok, of a cluster with these flags.
    fn open(component: &str, flags: &[&str]) -> Vec<(&'static str, String)> {
        let mut facts = healthy();
        let pods = facts.pods.as_mut().unwrap();
        pods.retain(|pod| !super::super::facts::is_ours(pod, component));
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
        let usual = open("device-plugin", &[]);
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
        ];
        assert_eq!(open("device-plugin", &closed), []);
        let free = open("device-plugin", &["--may-disable-control=*"]);
        assert!(has(&free, "tenant-rights", "tenantMay.disableControl"));
        for (flag, value) in [
            ("--pods-may-ignore=true", "webhook.podsMayIgnore=false"),
            ("--visible-devices=allow", "webhook.visibleDevices=rewrite"),
            (
                "--escape-allow-namespace=lab",
                "webhook.escapeAllowNamespaces",
            ),
        ] {
            assert!(has(&open("webhook", &[flag]), "webhook", value), "{flag}");
        }
        let hami = open("scheduler", &["--compat-hami"]);
        assert!(has(&hami, "compat-hami", "compat.hami=false"));
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
