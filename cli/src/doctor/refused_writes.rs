//! Writes of Aliquot's accounts that are refused, which is often because another webhook or policy adds something.

use std::collections::BTreeMap;

use aliquot_core::Excerpt;
use aliquot_k8s::pod;

use super::facts::ClusterFacts;
use super::finding::{Checked, ok, problem};
use crate::components::name;

/// How to name what changes objects as they are written.
pub(super) const MUTATORS: &str =
    "what changes them: see kubectl get mutatingwebhookconfigurations and mutatingadmissionpolicies";

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
        let from: &str = if by.starts_with("ValidatingAdmissionPolicy aliquot-") {
            MUTATORS
        } else {
            &by
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
        let pod = json!({"metadata": {"name": "p", "namespace": "d"},
            "status": {"conditions": [condition]}});
        let pods = known.pods.as_mut().unwrap();
        pods.push(serde_json::from_value(pod).unwrap());
        let of_agent = format!("device-plugin from {MUTATORS}");
        let of_scheduler = "scheduler from webhook validate.kyverno.svc-fail";
        let bad = Grade::Problem;
        check(&known, &[(bad, of_agent.as_str()), (bad, of_scheduler)]);
    }
}
