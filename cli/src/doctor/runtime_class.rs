//! The runtime classes that the chart's values name: that they exist, that each node has their
//! handlers, and that a pod with a share ran under them.

use k8s_openapi::api::core::v1::Node;

use super::facts::{ClusterFacts, Fact};
use super::finding::{About, Finding};
use crate::components::{flag, running_pods};

const CHECK: &str = "runtime-class";
const CONFIGURE: &str = "run nvidia-ctk runtime configure and restart the container runtime (docs/guides/container-runtime.md), or leave the value empty, because CDI needs no runtime class";

/// Who gets a runtime class, and by which value.
const PODS: (&str, &str) = ("pods with a share", "webhook.runtimeClassName");
const AGENTS: (&str, &str) = ("the agents", "devicePlugin.runtimeClassName");

/// The runtime class that pods with a share get.
pub(super) fn of_shares(facts: &ClusterFacts) -> Option<&str> {
    let pods = facts.pods.as_deref().unwrap_or_default();
    let class = running_pods(pods, "webhook").find_map(|pod| flag(pod, "--runtime-class"));
    class.filter(|class| !class.is_empty())
}

/// Each class in use, with the pods that get it and the value that sets it.
fn in_use(facts: &ClusterFacts) -> Vec<(&str, (&str, &str))> {
    let agents = facts.agent_class.as_ref().ok();
    let agents = agents.and_then(|class| class.as_deref());
    let pods = of_shares(facts).map(|class| (class, PODS));
    pods.into_iter()
        .chain(agents.map(|class| (class, AGENTS)))
        .collect()
}

/// The runtime classes exist.
pub(super) fn exist(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Err(why) = &facts.agent_class {
        found.push(about.unknown(CHECK, why));
    }
    found.extend(in_use(facts).into_iter().map(|(class, (who, value))| {
        match &facts.classes {
            Err(why) => about.unknown(CHECK, why),
            Ok(classes) => match classes.get(class) {
                Some(handler) => about.ok(
                    CHECK,
                    format!("RuntimeClass {class} of {who} exists, its handler is {handler}"),
                ),
                None => about.problem(
                    CHECK,
                    format!("there is no RuntimeClass {class}, which {value} gives {who}: these pods cannot be created"),
                    "create it (devicePlugin.createRuntimeClass=true creates the one of devicePlugin.runtimeClassName), or leave the value empty, because CDI needs no runtime class",
                ),
            },
        }
    }));
    found
}

/// The node's container runtime has their handlers, if the kubelet reports handlers at all.
pub(super) fn on_node(facts: &ClusterFacts, node: &Node, about: &About) -> Vec<Finding> {
    let status = node.status.as_ref();
    let handlers = status.and_then(|status| status.runtime_handlers.as_deref());
    let handlers: Vec<&str> = handlers
        .unwrap_or_default()
        .iter()
        .map(|one| one.name.as_deref().unwrap_or_default())
        .collect();
    let (Ok(classes), false) = (&facts.classes, handlers.is_empty()) else {
        return Vec::new();
    };
    let findings = in_use(facts).into_iter().filter_map(|(class, (who, _))| {
        let handler = classes.get(class)?;
        Some(if handlers.contains(&handler.as_str()) {
            about.ok(CHECK, format!("the container runtime has handler {handler}"))
        } else {
            about.problem(
                CHECK,
                format!("the container runtime has no handler {handler} of RuntimeClass {class}: {who} do not start on this node"),
                CONFIGURE,
            )
        })
    });
    findings.collect()
}

/// The probe pod with a share ran in the class that such pods get; `ran` is the class that the
/// stored pod had. A runtime starts no pod under a handler that it does not have.
pub(super) fn of_probe(
    facts: &ClusterFacts,
    about: &About,
    ran: &Fact<Option<String>>,
) -> Option<Finding> {
    let class = of_shares(facts)?;
    let handler = facts.classes.as_ref().ok()?.get(class)?;
    Some(match ran {
        Err(why) => about.unknown(CHECK, why),
        Ok(Some(own)) if own == class => {
            about.ok(CHECK, format!("a pod with a share ran under handler {handler}"))
        }
        Ok(other) => about.problem(
            CHECK,
            format!(
                "a pod with a share ran in {}, expected RuntimeClass {class}",
                other.as_deref().map_or_else(|| "no runtime class".to_owned(), |other| format!("RuntimeClass {other}"))
            ),
            "webhook.runtimeClassName applies to pods without a runtime class: check whether another webhook sets one, and the flag --runtime-class of each webhook pod",
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::cluster_tests::{healthy, part};
    use super::super::finding::Grade;
    use super::*;
    use crate::components::is_ours;

    /// Pods with a share get `nvidia`, the agents `gpu`.
    fn known(classes: &[(&str, &str)]) -> ClusterFacts {
        let mut known = healthy();
        let pods = known.pods.as_mut().unwrap();
        pods.retain(|pod| !is_ours(pod, "webhook"));
        pods.push(part("w-0", "webhook", &["--runtime-class=nvidia"]));
        known.agent_class = Ok(Some("gpu".to_owned()));
        let named = |(name, handler): &(&str, &str)| ((*name).to_owned(), (*handler).to_owned());
        known.classes = Ok(classes.iter().map(named).collect());
        known
    }

    fn check(found: &[Finding], expected: &[(Grade, &str)]) {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, (grade, part)) in found.iter().zip(expected) {
            assert_eq!(found.grade, *grade, "{found:?}");
            assert!(found.found.contains(part), "{found:?}");
        }
    }

    const BOTH: [(&str, &str); 2] = [("nvidia", "nvidia"), ("gpu", "nvidia-cdi")];

    #[test]
    fn skips_runtime_classes_not_in_use() {
        let none = healthy();
        let about = About::cluster();
        check(&exist(&none, &about), &[]);
        assert_eq!(of_probe(&none, &about, &Err("no probe".to_owned())), None);
    }

    #[test]
    fn reports_missing_runtime_class() {
        let about = About::cluster();
        let well = [(Grade::Ok, "handler is nvidia"), (Grade::Ok, "nvidia-cdi")];
        check(&exist(&known(&BOTH), &about), &well);
        let agents = (
            Grade::Problem,
            "RuntimeClass gpu, which devicePlugin.runtimeClassName gives the agents",
        );
        check(&exist(&known(&BOTH[..1]), &about), &[well[0], agents]);
        let pods = (
            Grade::Problem,
            "RuntimeClass nvidia, which webhook.runtimeClassName gives pods",
        );
        check(&exist(&known(&[]), &about), &[pods, agents]);
        let mut blind = known(&BOTH);
        blind.classes = Err("no rights".to_owned());
        let unmade = (Grade::NotChecked, "no rights");
        check(&exist(&blind, &about), &[unmade, unmade]);
    }

    #[test]
    fn reports_node_without_runtime_handler() {
        let about = About("n1".to_owned());
        let node = |handlers: Value| -> Node {
            let node = json!({"metadata": {"name": "n1"}, "status": {"runtimeHandlers": handlers}});
            serde_json::from_value(node).unwrap()
        };
        let check = |handlers: Value, expected: &[(Grade, &str)]| {
            check(&on_node(&known(&BOTH), &node(handlers), &about), expected);
        };
        // A kubelet that reports no handlers is not a runtime without handlers.
        check(json!([]), &[]);
        check(
            json!([{"name": ""}, {"name": "nvidia"}, {"name": "nvidia-cdi"}]),
            &[(Grade::Ok, "nvidia"), (Grade::Ok, "nvidia-cdi")],
        );
        check(
            json!([{"name": ""}, {"name": "nvidia"}]),
            &[
                (Grade::Ok, "nvidia"),
                (Grade::Problem, "the agents do not start"),
            ],
        );
    }

    #[test]
    fn compares_probe_runtime_class_with_expected() {
        let about = About("n1".to_owned());
        let check = |own: Fact<Option<&str>>, grade, part| {
            let own = own.map(|own| own.map(str::to_owned));
            let found = of_probe(&known(&BOTH), &about, &own);
            check(&found.into_iter().collect::<Vec<_>>(), &[(grade, part)]);
        };
        check(Ok(Some("nvidia")), Grade::Ok, "ran under handler nvidia");
        check(Ok(Some("kata")), Grade::Problem, "ran in RuntimeClass kata");
        check(Ok(None), Grade::Problem, "no runtime class");
        check(Err("pending".to_owned()), Grade::NotChecked, "pending");
    }
}
