//! Writes of Aliquot's accounts that are refused, which is often because another webhook or policy adds something.

use std::collections::BTreeMap;

use aliquot_core::Excerpt;
use aliquot_k8s::pod;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::facts::{ClusterFacts, Fact};
use super::finding::{Checked, ok, problem};
use crate::components::name;

/// Whether a mutating webhook configuration or policy is not ours and changes pods or nodes.
pub(super) fn is_mutator(object: &DynamicObject) -> bool {
    let webhooks = object.data["webhooks"].as_array().into_iter().flatten();
    let of_policy = &object.data["spec"]["matchConstraints"]["resourceRules"];
    let lists = webhooks.map(|webhook| &webhook["rules"]).chain([of_policy]);
    let mut rules = lists.filter_map(Value::as_array).flatten();
    let is_ours = object.name_any().starts_with("aliquot-");
    !is_ours
        && rules.any(|rule| {
            has(&rule["apiGroups"], &[""]) && has(&rule["resources"], &["pods", "nodes"])
        })
}

/// Whether a rule's list has one of these, a subresource of one, or a wildcard.
fn has(list: &Value, names: &[&str]) -> bool {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).any(|text| {
        let (text, _) = text.split_once('/').unwrap_or((text, ""));
        text == "*" || names.contains(&text)
    })
}

/// What changes pods or nodes as they are written, in words.
pub(super) fn listed(mutators: &Fact<Vec<String>>) -> String {
    match mutators {
        Ok(names) if names.is_empty() => {
            "whatever changes them: no mutating webhook and no policy does".to_owned()
        }
        Ok(names) => names.join(", "),
        Err(why) => format!("whatever changes them, which cannot be listed: {why}"),
    }
}

/// Who refused a write, by the API server's message.
fn refused_by(text: &str) -> Option<String> {
    let (text, _) = text.split_once(" denied ")?;
    let quoted = |kind: &str, quote: char| {
        let (_, rest) = text.split_once(&format!("{kind} {quote}"))?;
        let (name, _) = rest.split_once(quote)?;
        Some(format!("{kind} {name}"))
    };
    quoted("ValidatingAdmissionPolicy", '\'').or_else(|| quoted("webhook", '"'))
}

/// No write of Aliquot's accounts is refused, as far as the agents report it of their nodes, and
/// kube-scheduler of pods.
pub(super) fn checks(facts: &ClusterFacts) -> Vec<Checked> {
    let pods = match &facts.pods {
        Err(why) => return vec![Err(why.clone())],
        Ok(pods) => pods,
    };
    let nodes = facts.unready_agents.iter();
    let agents = nodes.map(|(node, why)| ("device-plugin", format!("node {node}"), why.as_str()));
    let scheduler = facts.settings().scheduler_name;
    let ours = pods.iter().filter(|pod| {
        let spec = pod.spec.as_ref();
        spec.is_some_and(|spec| spec.scheduler_name.as_ref() == Some(&scheduler))
    });
    let bindings = ours.filter_map(|pod| {
        let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
        let refused =
            conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
        let text = refused.message.as_deref()?;
        let object = format!("pod {}/{}", pod::namespace(pod), name(pod));
        Some(("scheduler", object, text))
    });
    // One finding for whoever refuses writes of a component.
    let mut writes: BTreeMap<(&str, String), (String, Excerpt)> = BTreeMap::new();
    for (component, object, text) in agents.chain(bindings) {
        if let Some(by) = refused_by(text) {
            let first = writes.entry((component, by));
            first.or_insert_with(|| (object, text.into()));
        }
    }
    let (namespace, mut found) = (&facts.namespace, Vec::new());
    for ((component, by), (object, text)) in writes {
        let account = format!("system:serviceaccount:{namespace}:aliquot-{component}");
        // Aliquot's own policies refuse such a write only for what somebody else added to it.
        let from = if by.starts_with("ValidatingAdmissionPolicy aliquot-") {
            listed(&facts.mutators)
        } else {
            by.clone()
        };
        found.push(problem(
            format!("{by} refuses what {account} writes, as to {object}: {text}"),
            format!("exempt {account} from {from}"),
        ));
    }
    if found.is_empty() {
        found.push(ok("no write of Aliquot's accounts is refused"));
    }
    found
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::ApiResource;
    use serde_json::json;

    use super::super::cluster_tests::healthy;
    use super::super::finding::Grade;
    use super::*;

    const OURS: &str = "ApiError: nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'aliquot-device-plugin-account' with binding 'b' denied request: only its own annotations";
    const THEIRS: &str = "binding rejected: admission webhook \"validate.kyverno.svc-fail\" denied the request: resource Pod/d/p was blocked";

    #[test]
    fn names_account_and_policy_of_refused_writes() {
        assert_eq!(refused_by("0/3 nodes are available"), None);
        let mut known = healthy();
        let check = |known: &ClusterFacts, expected: &[(Grade, &str)]| {
            let found: Vec<_> = checks(known).into_iter().map(Result::unwrap).collect();
            let found = found.iter().map(|one| {
                let of = one
                    .todo
                    .strip_prefix("exempt system:serviceaccount:s:aliquot-");
                (one.grade, of.unwrap_or_default())
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        };
        check(&known, &[(Grade::Ok, "")]);
        for (node, text) in [("n1", OURS), ("n2", OURS), ("n3", "no")] {
            known.unready_agents.insert(node.into(), text.to_owned());
        }
        let condition = json!({"type": "PodScheduled", "status": "False", "message": THEIRS});
        let pod = |scheduler: &str| {
            let pod = json!({"metadata": {"name": "p", "namespace": "d"},
                "spec": {"schedulerName": scheduler, "containers": []},
                "status": {"conditions": [condition]}});
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let placed_by = |known: &mut ClusterFacts, scheduler: &str| {
            known.pods.as_mut().unwrap().push(pod(scheduler));
        };
        let policy = "MutatingAdmissionPolicy mesh";
        known.mutators = Ok(vec![policy.to_owned()]);
        let of_agent = format!("device-plugin from {policy}");
        let of_scheduler = "scheduler from webhook validate.kyverno.svc-fail";
        let bad = Grade::Problem;
        placed_by(&mut known, "default-scheduler");
        check(&known, &[(bad, of_agent.as_str())]);
        placed_by(&mut known, "aliquot-scheduler");
        check(&known, &[(bad, of_agent.as_str()), (bad, of_scheduler)]);
    }

    #[test]
    fn mutators_are_those_of_others_that_change_pods_or_nodes() {
        let check = |name: &str, group: &str, resource: &str, expected: bool| {
            let rules = json!([{"apiGroups": [group], "resources": [resource]}]);
            for data in [
                json!({"webhooks": [{"rules": rules}]}),
                json!({"spec": {"matchConstraints": {"resourceRules": rules}}}),
            ] {
                let mut object = DynamicObject::new(name, &ApiResource::erase::<Pod>(&()));
                object.data = data;
                assert_eq!(is_mutator(&object), expected, "{name} {group} {resource}");
            }
        };
        check("mesh", "", "pods", true);
        check("mesh", "*", "*/*", true);
        check("mesh", "", "nodes/status", true);
        check("mesh", "apps", "pods", false);
        check("mesh", "", "secrets", false);
        check("aliquot-webhook", "", "pods", false);
    }
}
