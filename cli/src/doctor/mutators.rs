//! What else changes pods and nodes as they are written: a webhook or a policy that changes a GPU pod
//! after ours, or that changes an object which one of our accounts writes, so that the write is refused.

use std::collections::BTreeMap;

use aliquot_core::Excerpt;
use aliquot_core::request::{DEFAULTED, Resource};
use aliquot_core::request_annotation::REQUEST;
use aliquot_k8s::disruption::not_scheduled;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::DynamicObject;
use serde_json::Value;

use super::admission;
use super::facts::{ClusterFacts, Fact};
use super::finding::{About, Finding};
use crate::components::{name, names, running_pods};

/// The container of the dry-run pod.
pub(super) const TRIAL: &str = "trial";

/// The kinds of objects that say what is changed: group, version, kind, plural.
pub(super) const KINDS: [[&str; 4]; 8] = [
    [
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ],
    [
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
    ],
    [
        "admissionregistration.k8s.io",
        "v1beta1",
        "MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
    ],
    ["kyverno.io", "v1", "ClusterPolicy", "clusterpolicies"],
    ["kyverno.io", "v1", "Policy", "policies"],
    ["mutations.gatekeeper.sh", "v1", "Assign", "assign"],
    [
        "mutations.gatekeeper.sh",
        "v1",
        "AssignMetadata",
        "assignmetadata",
    ],
    ["mutations.gatekeeper.sh", "v1", "ModifySet", "modifyset"],
];

/// A webhook or a policy that changes pods or nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutator {
    /// Its kind and name.
    pub name: String,
    /// Pods and Bindings that are created.
    pub new_pods: bool,
    /// Pods that are updated.
    pub pods: bool,
    /// Nodes that are updated.
    pub nodes: bool,
}

impl Mutator {
    /// What this object changes; `None` for one of ours, and one that changes neither pods nor nodes.
    pub(super) fn of(kind: &str, object: &DynamicObject) -> Option<Self> {
        let name = object.metadata.name.as_deref()?;
        if name.starts_with("aliquot-") {
            return None;
        }
        let rules = rules(kind, &object.data);
        let changes = |resource: &str, operation: &str| {
            let mut rules = rules.iter();
            rules.any(|rule| rule.covers(resource, operation))
        };
        let found = Self {
            name: match &object.metadata.namespace {
                Some(namespace) => format!("{kind} {namespace}/{name}"),
                None => format!("{kind} {name}"),
            },
            new_pods: changes("pod", "CREATE"),
            pods: changes("pod", "UPDATE"),
            nodes: changes("node", "UPDATE"),
        };
        (found.new_pods || found.pods || found.nodes).then_some(found)
    }
}

/// Resources or kinds, as they are written, and operations; without operations, all.
struct Rule {
    resources: Vec<String>,
    operations: Vec<String>,
}

impl Rule {
    /// A rule of the API server's, if it is about the core group.
    fn of_api(rule: &Value) -> Option<Self> {
        let groups = words(&rule["apiGroups"]);
        let is_core = groups.iter().any(|group| group.is_empty() || group == "*");
        is_core.then(|| Self {
            resources: words(&rule["resources"]),
            operations: words(&rule["operations"]),
        })
    }

    fn of_kinds(kinds: Vec<String>) -> Self {
        Self {
            resources: kinds,
            operations: Vec::new(),
        }
    }

    fn covers(&self, resource: &str, operation: &str) -> bool {
        let mut operations = self.operations.iter();
        let is_covered =
            self.operations.is_empty() || operations.any(|one| one == operation || one == "*");
        let mut resources = self.resources.iter();
        is_covered && resources.any(|written| is_named(resource, written))
    }
}

/// Whether something like `pods/*`, `v1/Pod` or `*` means this resource.
fn is_named(resource: &str, written: &str) -> bool {
    let parts = written.split(['/', '.']).filter(|part| *part != "*");
    let parts: Vec<String> = parts.map(str::to_ascii_lowercase).collect();
    let is_it = |part: &String| part.trim_end_matches('s') == resource;
    parts.is_empty() || parts.iter().any(is_it)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn words(list: &Value) -> Vec<String> {
    let words = items(list).filter_map(Value::as_str);
    words.map(str::to_owned).collect()
}

/// What an object of one of [`KINDS`] applies to.
fn rules(kind: &str, object: &Value) -> Vec<Rule> {
    let spec = &object["spec"];
    match kind {
        "MutatingWebhookConfiguration" => items(&object["webhooks"])
            .flat_map(|webhook| items(&webhook["rules"]))
            .filter_map(Rule::of_api)
            .collect(),
        "MutatingAdmissionPolicy" => items(&spec["matchConstraints"]["resourceRules"])
            .filter_map(Rule::of_api)
            .collect(),
        "ClusterPolicy" | "Policy" => items(&spec["rules"])
            .filter(|rule| rule["mutate"].is_object())
            .flat_map(kyverno)
            .collect(),
        "AssignMetadata" => gatekeeper(&spec["match"]["kinds"]),
        _ => gatekeeper(&spec["applyTo"]),
    }
}

/// What a rule of Kyverno matches.
fn kyverno(rule: &Value) -> Vec<Rule> {
    let matched = &rule["match"];
    let filters = items(&matched["any"]).chain(items(&matched["all"]));
    let resources = filters.chain([matched]).map(|filter| &filter["resources"]);
    let rules = resources.map(|resources| Rule {
        resources: words(&resources["kinds"]),
        operations: words(&resources["operations"]),
    });
    rules.collect()
}

/// The kinds that a mutation of Gatekeeper's names; without them, everything.
fn gatekeeper(kinds: &Value) -> Vec<Rule> {
    if kinds.is_null() {
        return vec![Rule::of_kinds(vec!["*".to_owned()])];
    }
    let kinds = items(kinds).map(|one| Rule::of_kinds(words(&one["kinds"])));
    kinds.collect()
}

/// The findings of both checks.
pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let mut found = refused(facts, about);
    found.extend(changed(facts, about));
    found
}

/// Those that change what is asked for, in words.
fn listed(mutators: &Fact<Vec<Mutator>>, concerns: impl Fn(&Mutator) -> bool) -> String {
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

/// Nothing changes a GPU pod after our webhook.
fn changed(facts: &ClusterFacts, about: &About) -> Option<Finding> {
    let check = "changes-after-review";
    let pod = facts.trial.as_ref()?;
    let expected = admission::scheduler(facts);
    let found = changes(pod, facts.pods.as_deref().unwrap_or_default(), &expected)?;
    if found.is_empty() {
        return Some(about.ok(check, "nothing changes a pod after the webhook"));
    }
    let what = format!(
        "something changes a GPU pod after the webhook has reviewed it: {}",
        found.join("; ")
    );
    let todo = format!(
        "exempt pods whose schedulerName is {expected} (by a matchCondition, an exclude or a precondition) from {}",
        listed(&facts.mutators, |one| one.new_pods)
    );
    let is_lost = scheduler_name(pod) != Some(expected.as_str());
    Some(if is_lost {
        about.problem(check, what, &todo)
    } else {
        about.warning(check, what, &todo)
    })
}

fn scheduler_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.scheduler_name.as_deref()
}

/// How a pod that would be stored differs from what our webhook left; `None` if that has not reviewed
/// it.
fn changes(pod: &Pod, all: &[Pod], scheduler: &str) -> Option<Vec<String>> {
    let has = |key: &str| {
        let annotations = pod.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(key))
    };
    if !has(REQUEST) && !has(DEFAULTED) {
        return None;
    }
    let mut found = Vec::new();
    let named = scheduler_name(pod).unwrap_or_default();
    if named != scheduler {
        found.push(format!(
            "its schedulerName is {named}, expected {scheduler}"
        ));
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let containers: Vec<&Container> = containers.collect();
    if let Some(first) = containers.first().filter(|first| first.name != TRIAL) {
        found.push(format!("container {} stands before its own", first.name));
    }
    let trial = containers.iter().find(|container| container.name == TRIAL);
    let resources = trial.and_then(|trial| trial.resources.as_ref());
    let component = running_pods(all, "scheduler").next();
    let known = component.map(names).unwrap_or_default();
    for resource in [
        Resource::Memory,
        Resource::MemoryPercentage,
        Resource::Cores,
    ] {
        let key = known.of(resource);
        let lists = resources.map(|resources| [&resources.limits, &resources.requests]);
        let mut lists = lists.into_iter().flatten().flatten();
        if has(REQUEST) && lists.any(|list| list.contains_key(key)) {
            found.push(format!(
                "its resources have {key}, which counts before its annotation {REQUEST}"
            ));
        }
    }
    Some(found)
}

/// Who denied a write, by the API server's message.
fn denied_by(text: &str) -> Option<String> {
    let quoted = |before: &str, quote: char| {
        let (_, rest) = text.split_once(before)?;
        let (name, rest) = rest.split_once(quote)?;
        (rest.contains("denied request") || rest.contains("denied the request")).then_some(name)
    };
    let policy = quoted("ValidatingAdmissionPolicy '", '\'')
        .map(|name| format!("ValidatingAdmissionPolicy {name}"));
    let webhook = || quoted("admission webhook \"", '"').map(|name| format!("webhook {name}"));
    policy.or_else(webhook)
}

/// A write of ours that was refused, as the one who made it reports it.
struct RefusedWrite<'a> {
    /// The component, as in the name of its account.
    component: &'static str,
    /// What it wants to write.
    object: String,
    text: &'a str,
}

/// What the agents report of their nodes, and kube-scheduler of pods.
fn refused_writes(facts: &ClusterFacts) -> Vec<RefusedWrite<'_>> {
    let agents = facts.agents.iter().filter_map(|(node, agent)| {
        let text = agent.ready.as_ref().err()?;
        Some(RefusedWrite {
            component: "device-plugin",
            object: format!("node {node}"),
            text,
        })
    });
    let pods = facts.pods.iter().flatten().filter_map(|pod| {
        let text = not_scheduled(pod)?.message.as_deref()?;
        let namespace = aliquot_k8s::pod::namespace(pod);
        Some(RefusedWrite {
            component: "scheduler",
            object: format!("pod {namespace}/{}", name(pod)),
            text,
        })
    });
    agents.chain(pods).collect()
}

/// No write of our accounts is refused.
fn refused(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let check = "refused-writes";
    if let Err(why) = &facts.pods {
        return vec![about.unknown(check, why)];
    }
    let mut all: BTreeMap<(&str, String), Vec<RefusedWrite<'_>>> = BTreeMap::new();
    for write in refused_writes(facts) {
        if let Some(by) = denied_by(write.text) {
            let writes = all.entry((write.component, by)).or_default();
            writes.push(write);
        }
    }
    let finding = |((component, by), writes): (&(&str, String), &Vec<RefusedWrite<'_>>)| {
        let namespace = &facts.namespace;
        let account = format!("system:serviceaccount:{namespace}:aliquot-{component}");
        let first = &writes[0];
        let more = match writes.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let what = format!(
            "{by} refuses what {account} writes to {}{more}: {}",
            first.object,
            Excerpt::from(first.text)
        );
        // Ours refuse only what somebody else adds to the write.
        let is_ours = by.starts_with("ValidatingAdmissionPolicy aliquot-");
        let concerns = |one: &Mutator| match *component {
            "device-plugin" => one.nodes,
            _ => one.pods || one.new_pods,
        };
        let from = if is_ours {
            listed(&facts.mutators, concerns)
        } else {
            by.clone()
        };
        about.problem(check, what, &format!("exempt {account} from {from}"))
    };
    let mut found: Vec<Finding> = all.iter().map(finding).collect();
    if found.is_empty() {
        found.push(about.ok(check, "no write of Aliquot's accounts is refused"));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cluster_tests::healthy;
    use super::super::facts::AgentFacts;
    use super::super::finding::Grade;
    use super::*;

    /// What an object with this content changes: new pods, pods, nodes.
    fn check(kind: &str, mut object: Value, expected: [bool; 3]) {
        object["metadata"] = json!({"name": "theirs"});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let found = Mutator::of(kind, &object);
        let found = found.map_or([false; 3], |one| [one.new_pods, one.pods, one.nodes]);
        assert_eq!(found, expected, "{kind}: {:?}", object.data);
    }

    #[test]
    fn reads_what_webhooks_and_policies_change() {
        let webhook = |group: &str, operations: &[&str], resources: &[&str]| {
            let rule = json!({
                "apiGroups": [group], "operations": operations, "resources": resources});
            json!({"webhooks": [{"name": "a", "rules": [rule]}]})
        };
        let kind = "MutatingWebhookConfiguration";
        let created = [true, false, false];
        check(kind, webhook("", &["CREATE"], &["pods"]), created);
        let on_nodes = [false, false, true];
        check(kind, webhook("", &["UPDATE"], &["nodes/*"]), on_nodes);
        check(kind, webhook("*", &["*"], &["*/*"]), [true; 3]);
        check(kind, webhook("apps", &["*"], &["*"]), [false; 3]);
        check(kind, webhook("", &["*"], &["configmaps"]), [false; 3]);
        let rules = json!([{"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"]}]);
        let policy = json!({"spec": {"matchConstraints": {"resourceRules": rules}}});
        check("MutatingAdmissionPolicy", policy, created);
        let kyverno = |rule: Value| json!({"spec": {"rules": [rule]}});
        let kinds = |kinds: &[&str]| json!({"any": [{"resources": {"kinds": kinds}}]});
        let stamps = json!({"match": kinds(&["v1/Node", "Deployment"]), "mutate": {}});
        check("ClusterPolicy", kyverno(stamps), on_nodes);
        let all = json!({"match": {"resources": {"kinds": ["*"]}}, "mutate": {}});
        check("ClusterPolicy", kyverno(all), [true; 3]);
        let validates = json!({"match": kinds(&["Pod"]), "validate": {}});
        check("Policy", kyverno(validates), [false; 3]);
        let pods = json!({"spec": {"applyTo": [{"groups": [""], "kinds": ["Pod"]}]}});
        check("Assign", pods, [true, true, false]);
        check("AssignMetadata", json!({"spec": {}}), [true; 3]);
        let ours = json!({"metadata": {"name": "aliquot-webhook"}, "webhooks": [{"rules": rules}]});
        let ours: DynamicObject = serde_json::from_value(ours).unwrap();
        assert_eq!(Mutator::of(kind, &ours), None);
    }

    fn mutators() -> Fact<Vec<Mutator>> {
        let one = |name: &str, new_pods: bool, nodes: bool| Mutator {
            name: name.to_owned(),
            new_pods,
            pods: false,
            nodes,
        };
        Ok(vec![
            one("ClusterPolicy stamp", false, true),
            one("MutatingWebhookConfiguration mesh", true, false),
        ])
    }

    /// What is found of the dry-run pod with this annotation of the webhook's, changed like this.
    fn check_changed(
        annotation: &str,
        change: impl Fn(&mut Value),
        expected: Option<(Grade, &str)>,
    ) {
        let mut pod = json!({
            "metadata": {"annotations": {annotation: "{}"}},
            "spec": {"schedulerName": "aliquot-scheduler", "containers": [
                {"name": TRIAL, "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        });
        change(&mut pod);
        let known = ClusterFacts {
            trial: Some(serde_json::from_value(pod).unwrap()),
            mutators: mutators(),
            ..healthy()
        };
        let found = changed(&known, &About::cluster());
        let found = found.as_ref().filter(|one| one.grade != Grade::Ok);
        assert_eq!(found.map(|one| one.grade), expected.map(|(grade, _)| grade));
        if let Some((found, (_, part))) = found.zip(expected) {
            assert!(found.found.contains(part), "{}", found.found);
            let theirs = "from MutatingWebhookConfiguration mesh";
            assert!(found.todo.ends_with(theirs), "{}", found.todo);
        }
    }

    #[test]
    fn names_who_changes_a_pod_after_the_webhook() {
        let other = |pod: &mut Value| pod["spec"]["schedulerName"] = json!("default-scheduler");
        let bad = (Grade::Problem, "schedulerName is default-scheduler, expected");
        check_changed(REQUEST, |_| (), None);
        check_changed(DEFAULTED, other, Some(bad));
        // The webhook has not reviewed it, which another check reports.
        check_changed("other", other, None);
        let sidecar = |pod: &mut Value| {
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            containers.insert(0, json!({"name": "proxy"}));
        };
        let warns = (Grade::Warning, "container proxy stands before its own");
        check_changed(REQUEST, sidecar, Some(warns));
        let amounts = |pod: &mut Value| {
            let both = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"});
            pod["spec"]["containers"][0]["resources"] = json!({"limits": both, "requests": both});
        };
        let warns = (Grade::Warning, "its resources have nvidia.com/gpumem");
        check_changed(REQUEST, amounts, Some(warns));
        check_changed(DEFAULTED, amounts, None);
    }

    const OURS: &str = "INVENTORY: ApiError: nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'aliquot-device-plugin-account' with binding 'aliquot-device-plugin-account' denied request: aliquot-device-plugin may change only its own annotations";
    const THEIRS: &str = "binding rejected: admission webhook \"validate.kyverno.svc-fail\" denied the request: resource Pod/d/p was blocked";

    #[test]
    fn names_account_and_policy_of_refused_writes() {
        assert_eq!(denied_by("0/3 nodes are available"), None);
        let mut known = ClusterFacts {
            mutators: mutators(),
            ..healthy()
        };
        let found = refused(&known, &About::cluster());
        let grades: Vec<Grade> = found.iter().map(|one| one.grade).collect();
        assert_eq!(grades, [Grade::Ok]);
        let agent = |text: &str| AgentFacts {
            ready: Err(text.to_owned()),
            metrics: Ok(String::new()),
        };
        let agents = [("n1", OURS), ("n2", OURS), ("n3", "no driver")];
        known.agents = agents.map(|(node, text)| (node.into(), agent(text))).into();
        let condition = json!({"type": "PodScheduled", "status": "False", "message": THEIRS});
        let pod = json!({
            "metadata": {"name": "p", "namespace": "d"}, "status": {"conditions": [condition]}});
        let pods = known.pods.as_mut().unwrap();
        pods.push(serde_json::from_value(pod).unwrap());
        let found = refused(&known, &About::cluster());
        let found: Vec<_> = found
            .iter()
            .map(|one| {
                let found = one.found.split(": ").next().unwrap();
                (one.grade, found, &*one.todo)
            })
            .collect();
        let expected = [
            (
                Grade::Problem,
                "ValidatingAdmissionPolicy aliquot-device-plugin-account refuses what system:serviceaccount:s:aliquot-device-plugin writes to node n1 and 1 more",
                "exempt system:serviceaccount:s:aliquot-device-plugin from ClusterPolicy stamp",
            ),
            (
                Grade::Problem,
                "webhook validate.kyverno.svc-fail refuses what system:serviceaccount:s:aliquot-scheduler writes to pod d/p",
                "exempt system:serviceaccount:s:aliquot-scheduler from webhook validate.kyverno.svc-fail",
            ),
        ];
        assert_eq!(found, expected);
    }
}
