//! Webhooks and policies that change pods or nodes as they are written, and writes of Aliquot's accounts
//! that are refused, which is often because one of them adds something.

use std::collections::BTreeMap;

use aliquot_core::Excerpt;
use aliquot_k8s::pod;
use kube::api::DynamicObject;
use serde_json::Value;

use super::facts::{ClusterFacts, Fact, Mutator};
use super::finding::{About, Finding};
use crate::components::name;

/// The kinds of objects that say what is changed, as `group/version/plural`.
pub(super) const KINDS: [&str; 8] = [
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies",
    "kyverno.io/v1/clusterpolicies",
    "kyverno.io/v1/policies",
    "mutations.gatekeeper.sh/v1/assign",
    "mutations.gatekeeper.sh/v1/assignmetadata",
    "mutations.gatekeeper.sh/v1/modifyset",
];

/// What an object of one of [`KINDS`] changes; `None` for one of ours, and for one that changes neither
/// pods nor nodes.
pub(super) fn mutator(kind: &str, object: &DynamicObject) -> Option<Mutator> {
    let name = object.metadata.name.as_deref()?;
    let (_, plural) = kind.rsplit_once('/')?;
    let named = named(&object.data);
    let changes = |resource: &str| named.iter().any(|name| means(name, resource));
    let found = Mutator {
        name: match &object.metadata.namespace {
            Some(namespace) => format!("{plural} {namespace}/{name}"),
            None => format!("{plural} {name}"),
        },
        pods: changes("pod"),
        nodes: changes("node"),
    };
    (!name.starts_with("aliquot-") && (found.pods || found.nodes)).then_some(found)
}

/// The resources and kinds that an object applies to, as it writes them.
fn named(object: &Value) -> Vec<&str> {
    let (spec, constraints) = (&object["spec"], &object["spec"]["matchConstraints"]);
    let mut rules = vec![&object["webhooks"], &constraints["resourceRules"]];
    let of_kyverno = spec["rules"].as_array().into_iter().flatten();
    let changing = of_kyverno.filter(|rule| rule["mutate"].is_object());
    rules.extend(changing.map(|rule| &rule["match"]));
    let of_gatekeeper = [&spec["applyTo"], &spec["match"]].into_iter();
    rules.extend(of_gatekeeper.filter(|one| !one.is_null()).take(1));
    let mut found = Vec::new();
    for rule in rules {
        collect(rule, false, &mut found);
    }
    // Gatekeeper's apply to everything without kinds.
    if found.is_empty() && spec["location"].is_string() {
        found.push("*");
    }
    found
}

/// Collects the texts in `resources` and `kinds`, but for rules about other groups than the core.
fn collect<'v>(value: &'v Value, is_name: bool, found: &mut Vec<&'v str>) {
    match value {
        Value::String(name) if is_name => found.push(name),
        Value::Array(items) => {
            for item in items {
                collect(item, is_name, found);
            }
        }
        Value::Object(fields) => {
            let groups = fields.get("apiGroups").and_then(Value::as_array);
            let is_core = |groups: &Vec<Value>| groups.iter().any(|one| one == "" || one == "*");
            if groups.is_none_or(is_core) {
                for (key, value) in fields {
                    collect(value, key == "resources" || key == "kinds", found);
                }
            }
        }
        _ => {}
    }
}

/// Whether something like `pods/*`, `v1/Pod` or `*` means this resource.
fn means(written: &str, resource: &str) -> bool {
    let parts = written.split(['/', '.']);
    let mut parts = parts.filter(|part| *part != "*").peekable();
    let is_it = |part: &str| part.to_ascii_lowercase().trim_end_matches('s') == resource;
    parts.peek().is_none() || parts.any(is_it)
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
pub(super) fn refused(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let check = "refused-writes";
    let pods = match &facts.pods {
        Err(why) => return vec![about.unknown(check, why)],
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
        found.push(about.problem(
            check,
            format!("{by} refuses what {account} writes, as to {object}: {text}"),
            &format!("exempt {account} from {from}"),
        ));
    }
    if found.is_empty() {
        found.push(about.ok(check, "no write of Aliquot's accounts is refused"));
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
        let webhook = |group: &str, resource: &str| json!({"webhooks": [{"rules": [{"apiGroups": [group], "resources": [resource]}]}]});
        let kyverno = |kind: &str, action: &str| {
            let matched = json!({"any": [{"resources": {"kinds": [kind]}}]});
            json!({"spec": {"rules": [{"match": matched, action: {}}]}})
        };
        let policy = json!({"spec": {"matchConstraints": {
            "resourceRules": [{"apiGroups": [""], "resources": ["pods"]}]}}});
        let assign = json!({"spec": {"location": "l", "applyTo": [{"kinds": ["Pod"]}],
            "match": {"kinds": [{"apiGroups": ["*"], "kinds": ["*"]}]}}});
        for (object, expected) in [
            (webhook("", "pods"), [true, false]),
            (webhook("", "nodes/*"), [false, true]),
            (webhook("*", "*/*"), [true, true]),
            (webhook("apps", "*"), [false, false]),
            (policy, [true, false]),
            (kyverno("v1/Node", "mutate"), [false, true]),
            (kyverno("Pod", "validate"), [false, false]),
            (assign, [true, false]),
            (json!({"spec": {"location": "l"}}), [true, true]),
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
            let found = refused(known, &About::cluster());
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
            name: "clusterpolicies stamp".to_owned(),
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
        let of_agent = "device-plugin from clusterpolicies stamp";
        let of_scheduler = "scheduler from webhook validate.kyverno.svc-fail";
        let bad = Grade::Problem;
        check(&known, &[(bad, of_agent), (bad, of_scheduler)]);
    }
}
