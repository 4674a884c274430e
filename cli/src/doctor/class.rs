//! The runtime classes that the chart's values ask for: are they there, does each node know what
//! they name, and is that what a pod with a share ran under.
//!
//! Fed by: [`Known`], and the share's probe pod. Must not: ask anybody.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::node::v1::RuntimeClass;

use super::cluster::of;
use super::finding::{About, Fact, Finding};
use super::known::{Known, flag};

const CHECK: &str = "runtime-class";
const CONFIGURE: &str = "nvidia-ctk runtime configure, and restart the container runtime: docs/guides/container-runtime.md; or leave the class out, for CDI needs none";

/// Who is given a class, and what makes it so.
const PODS: (&str, &str) = ("pods with a share", "webhook.runtimeClassName");
const AGENTS: (&str, &str) = ("our agents", "devicePlugin.runtimeClassName");

/// The handler of each class, by the class's name.
pub(super) fn handlers(classes: Vec<RuntimeClass>) -> BTreeMap<String, String> {
    let named = |class: RuntimeClass| Some((class.metadata.name?, class.handler));
    classes.into_iter().filter_map(named).collect()
}

/// The class that pods with a share are given.
pub(super) fn of_shares(known: &Known) -> Option<&str> {
    let pods = known.pods.as_deref().unwrap_or_default();
    let class = of(pods, "webhook").find_map(|pod| flag(pod, "--runtime-class"));
    class.filter(|class| !class.is_empty())
}

/// Each class that somebody is given, with whom and why.
fn wanted(known: &Known) -> Vec<(&str, (&str, &str))> {
    let agents = known.agent_class.as_ref().ok();
    let agents = agents.and_then(|class| class.as_deref());
    let pods = of_shares(known).map(|class| (class, PODS));
    pods.into_iter()
        .chain(agents.map(|class| (class, AGENTS)))
        .collect()
}

/// The classes are there.
pub(super) fn there(known: &Known, about: &About) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Err(why) = &known.agent_class {
        found.push(about.unknown(CHECK, why));
    }
    found.extend(wanted(known).into_iter().map(|(class, (who, value))| {
        match &known.classes {
            Err(why) => about.unknown(CHECK, why),
            Ok(classes) => match classes.get(class) {
                Some(handler) => about.ok(
                    CHECK,
                    format!("{who} run in {class}, whose handler is {handler}"),
                ),
                None => about.problem(
                    CHECK,
                    format!("there is no RuntimeClass {class}, which {who} are given by {value}: none of them can be created"),
                    "devicePlugin.createRuntimeClass=true makes that of devicePlugin.runtimeClassName; make it, or leave the value empty, for CDI needs none",
                ),
            },
        }
    }));
    found
}

/// The node's container runtime has their handlers, as far as the kubelet tells.
pub(super) fn on(known: &Known, node: &Node, about: &About) -> Vec<Finding> {
    let status = node.status.as_ref();
    let told = status.and_then(|status| status.runtime_handlers.as_deref());
    let told: Vec<&str> = told
        .unwrap_or_default()
        .iter()
        .map(|one| one.name.as_deref().unwrap_or_default())
        .collect();
    let (Ok(classes), false) = (&known.classes, told.is_empty()) else {
        return Vec::new();
    };
    let judged = wanted(known).into_iter().filter_map(|(class, (who, _))| {
        let handler = classes.get(class)?;
        Some(if told.contains(&handler.as_str()) {
            about.ok(CHECK, format!("the container runtime has the handler {handler}"))
        } else {
            about.problem(
                CHECK,
                format!("the container runtime has no handler {handler}, which RuntimeClass {class} names: {who} do not start here"),
                CONFIGURE,
            )
        })
    });
    judged.collect()
}

/// The share's probe ran in the class that pods with a share are given; `ran` is the class that
/// its pod was stored with. A runtime starts no pod under a handler that it does not have.
pub(super) fn ran(known: &Known, about: &About, ran: &Fact<Option<String>>) -> Option<Finding> {
    let class = of_shares(known)?;
    let handler = known.classes.as_ref().ok()?.get(class)?;
    Some(match ran {
        Err(why) => about.unknown(CHECK, why),
        Ok(Some(own)) if own == class => {
            about.ok(CHECK, format!("a pod with a share ran under {handler}"))
        }
        Ok(other) => about.problem(
            CHECK,
            format!(
                "a pod with a share ran in {}, and the webhook is to give it RuntimeClass {class}",
                other.as_deref().unwrap_or("no runtime class")
            ),
            "webhook.runtimeClassName holds for pods that name none: look whether another webhook sets it, and at the flags of each webhook pod",
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::cluster_tests::{part, well};
    use super::super::finding::Grade;
    use super::super::known::is_ours;
    use super::*;

    /// Pods with a share are given `nvidia`, and our agents `gpu`.
    fn known(classes: &[(&str, &str)]) -> Known {
        let mut known = well();
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
    fn classes_that_nobody_is_given_are_not_looked_for() {
        let none = well();
        let about = About::cluster();
        check(&there(&none, &about), &[]);
        assert_eq!(ran(&none, &about, &Err("no probe".to_owned())), None);
    }

    #[test]
    fn a_class_that_the_values_ask_for_and_that_is_not_there_was_not_told() {
        let about = About::cluster();
        let well = [(Grade::Ok, "handler is nvidia"), (Grade::Ok, "nvidia-cdi")];
        check(&there(&known(&BOTH), &about), &well);
        let agents = (Grade::Problem, "RuntimeClass gpu, which our agents");
        check(&there(&known(&BOTH[..1]), &about), &[well[0], agents]);
        let pods = (
            Grade::Problem,
            "RuntimeClass nvidia, which pods with a share",
        );
        check(&there(&known(&[]), &about), &[pods, agents]);
        let mut blind = known(&BOTH);
        blind.classes = Err("no rights".to_owned());
        let unmade = (Grade::NotChecked, "no rights");
        check(&there(&blind, &about), &[unmade, unmade]);
    }

    #[test]
    fn a_node_without_the_handler_is_named() {
        let about = About("n1".to_owned());
        let node = |handlers: Value| -> Node {
            let node = json!({"metadata": {"name": "n1"}, "status": {"runtimeHandlers": handlers}});
            serde_json::from_value(node).unwrap()
        };
        let check = |handlers: Value, expected: &[(Grade, &str)]| {
            check(&on(&known(&BOTH), &node(handlers), &about), expected);
        };
        // A kubelet that tells none is not called one whose runtime has none.
        check(json!([]), &[]);
        check(
            json!([{"name": ""}, {"name": "nvidia"}, {"name": "nvidia-cdi"}]),
            &[(Grade::Ok, "nvidia"), (Grade::Ok, "nvidia-cdi")],
        );
        check(
            json!([{"name": ""}, {"name": "nvidia"}]),
            &[(Grade::Ok, "nvidia"), (Grade::Problem, "our agents")],
        );
    }

    #[test]
    fn what_the_probe_ran_under_is_what_was_asked_for() {
        let about = About("n1".to_owned());
        let check = |own: Fact<Option<&str>>, grade, part| {
            let own = own.map(|own| own.map(str::to_owned));
            let found = ran(&known(&BOTH), &about, &own);
            check(&found.into_iter().collect::<Vec<_>>(), &[(grade, part)]);
        };
        check(Ok(Some("nvidia")), Grade::Ok, "ran under nvidia");
        check(Ok(Some("kata")), Grade::Problem, "ran in kata");
        check(Ok(None), Grade::Problem, "no runtime class");
        check(Err("pending".to_owned()), Grade::NotChecked, "pending");
    }
}
