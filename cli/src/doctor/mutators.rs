//! Webhooks and policies that change pods or nodes as they are written, and writes of Aliquot's accounts
//! that are refused, which is often because one of them adds something.

use std::collections::BTreeMap;

use aliquot_core::Excerpt;
use aliquot_k8s::pod;
use kube::api::DynamicObject;
use serde_json::Value;

use super::facts::{ClusterFacts, Fact, Mutator};
use super::finding::{Checked, ok, problem};
use crate::components::name;

/// The kinds of objects that say what is changed, as `group/version/plural`. Kyverno and Gatekeeper have webhooks.
pub(super) const KINDS: [&str; 3] = [
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies",
];

/// What an object of one of [`KINDS`] changes; `None` for one of ours, and for one that changes neither
/// pods nor nodes.
pub(super) fn mutator(kind: &str, object: &DynamicObject) -> Option<Mutator> {
    let name = object.metadata.name.as_deref()?;
    let (_, plural) = kind.rsplit_once('/')?;
    let webhooks = object.data["webhooks"].as_array().into_iter().flatten();
    let of_policy = &object.data["spec"]["matchConstraints"]["resourceRules"];
    let rules: Vec<&Value> = webhooks
        .map(|webhook| &webhook["rules"])
        .chain([of_policy])
        .filter_map(Value::as_array)
        .flatten()
        .collect();
    let changes = |resource: &str| {
        let mut of_core = rules.iter().filter(|rule| has(&rule["apiGroups"], ""));
        of_core.any(|rule| has(&rule["resources"], resource))
    };
    let found = Mutator {
        name: format!("{plural} {name}"),
        pods: changes("pods"),
        nodes: changes("nodes"),
    };
    (!name.starts_with("aliquot-") && (found.pods || found.nodes)).then_some(found)
}

/// Whether a rule's list has this group or resource, or one of its subresources, or a wildcard.
fn has(list: &Value, name: &str) -> bool {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).any(|text| {
        let (text, _) = text.split_once('/').unwrap_or((text, ""));
        text == "*" || text == name
    })
}

/// Those that change what is asked for, in words.
pub(super) fn listed(mutators: &Fact<Vec<Mutator>>, concerns: impl Fn(&Mutator) -> bool) -> String {
    let all = match mutators {
        Ok(all) => all,
        Err(why) => return format!("whatever changes them, which cannot be listed: {why}"),
    };
    let concerned = all.iter().filter(|one| concerns(one));
    let names: Vec<&str> = concerned.map(|one| one.name.as_str()).collect();
    if names.is_empty() {
        return "whatever changes them: no webhook and no policy of a known kind does".to_owned();
    }
    names.join(", ")
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
pub(super) fn refused(facts: &ClusterFacts) -> Vec<Checked> {
    let pods = match &facts.pods {
        Err(why) => return vec![Err(why.clone())],
        Ok(pods) => pods,
    };
    let agents = facts.unready_agents.iter();
    let agents = agents.map(|(node, why)| ("device-plugin", format!("node {node}"), why.as_str()));
    let bindings = pods.iter().filter_map(|pod| {
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
        // Ours refuse only what somebody else adds to the write.
        let from = if by.starts_with("ValidatingAdmissionPolicy aliquot-") {
            listed(&facts.mutators, |one| match component {
                "device-plugin" => one.nodes,
                _ => one.pods,
            })
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
    use serde_json::json;

    use super::super::cluster_tests::healthy;
    use super::super::finding::Grade;
    use super::*;

    #[test]
    fn reads_what_webhooks_and_policies_change() {
        let rule = |group: &str, resource: &str| {
            json!({"apiGroups": [group], "resources": [resource]})
        };
        let webhook = |group: &str, resource: &str| {
            let rules = [rule("apps", "pods"), rule(group, resource)];
            json!({"webhooks": [{"rules": rules}]})
        };
        let policy = json!({"spec": {"matchConstraints": {"resourceRules": [rule("", "pods")]}}});
        for (object, expected) in [
            (webhook("", "pods"), [true, false]),
            (webhook("", "nodes/*"), [false, true]),
            (webhook("*", "*/*"), [true, true]),
            (webhook("apps", "*"), [false, false]),
            (policy, [true, false]),
        ] {
            let mut named = object.clone();
            named["metadata"] = json!({"name": "theirs"});
            let mut named: DynamicObject = serde_json::from_value(named).unwrap();
            let found = mutator("g/v1/kinds", &named);
            let found = found.map_or([false; 2], |one| [one.pods, one.nodes]);
            assert_eq!(found, expected, "{object}");
            named.metadata.name = Some("aliquot-webhook".to_owned());
            assert_eq!(mutator("g/v1/kinds", &named), None);
        }
    }

    const OURS: &str = "ApiError: nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'aliquot-device-plugin-account' with binding 'b' denied request: only its own annotations";
    const THEIRS: &str = "binding rejected: admission webhook \"validate.kyverno.svc-fail\" denied the request: resource Pod/d/p was blocked";

    #[test]
    fn names_account_and_policy_of_refused_writes() {
        assert_eq!(refused_by("0/3 nodes are available"), None);
        let mut known = healthy();
        let check = |known: &ClusterFacts, expected: &[(Grade, &str)]| {
            let found: Vec<_> = refused(known).into_iter().map(Result::unwrap).collect();
            let found = found.iter().map(|one| {
                let of = one
                    .todo
                    .strip_prefix("exempt system:serviceaccount:s:aliquot-");
                (one.grade, of.unwrap_or_default())
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        };
        check(&known, &[(Grade::Ok, "")]);
        let stamp = Mutator {
            name: "mutatingadmissionpolicies stamp".to_owned(),
            pods: false,
            nodes: true,
        };
        known.mutators = Ok(vec![stamp]);
        for (node, text) in [("n1", OURS), ("n2", OURS), ("n3", "no")] {
            known.unready_agents.insert(node.into(), text.to_owned());
        }
        let condition = json!({"type": "PodScheduled", "status": "False", "message": THEIRS});
        let pod = json!({"metadata": {"name": "p", "namespace": "d"},
            "status": {"conditions": [condition]}});
        let pods = known.pods.as_mut().unwrap();
        pods.push(serde_json::from_value(pod).unwrap());
        let of_agent = "device-plugin from mutatingadmissionpolicies stamp";
        let of_scheduler = "scheduler from webhook validate.kyverno.svc-fail";
        let bad = Grade::Problem;
        check(&known, &[(bad, of_agent), (bad, of_scheduler)]);
    }
}
