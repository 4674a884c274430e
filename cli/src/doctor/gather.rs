//! Reads everything that the checks need from the cluster. Writes nothing: the test pod is a dry run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aliquot_core::NodeName;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectList, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::facts::{AgentFacts, ClusterFacts, DryRun, Fact, LedgerView, fact};
use super::ledger;
use crate::access::{Access, AccessError, all, get};
use crate::agents::Agents;
use crate::components::{COMPONENT, PART, is_ours, names};
use crate::snapshot;

/// How often the ledger is read while it differs from the pods, and the interval.
const LEDGER_SAMPLES: (u32, Duration) = (3, Duration::from_secs(1));
/// kube-scheduler's lease and configuration, as the chart names them.
const LEASE: &str = "aliquot-scheduler";
const CONFIG: (&str, &str) = ("aliquot-kube-scheduler", "kube-scheduler.yaml");
pub(crate) const WEBHOOK: &str = "aliquot-webhook";
/// Namespace and name of cluster-autoscaler's status, also where it runs outside the cluster.
const AUTOSCALER: (&str, &str) = ("kube-system", "cluster-autoscaler-status");

/// The objects' names.
fn names_of<K: ResourceExt + Clone>(list: &ObjectList<K>) -> Vec<String> {
    list.items.iter().map(ResourceExt::name_any).collect()
}

/// The handler of each runtime class, by the class's name.
fn handlers(classes: Vec<RuntimeClass>) -> BTreeMap<String, String> {
    let named = |class: RuntimeClass| Some((class.metadata.name?, class.handler));
    classes.into_iter().filter_map(named).collect()
}

/// The runtime class in these `DaemonSets`' pod templates.
fn class_of(agents: ObjectList<DaemonSet>) -> Option<String> {
    let mut specs = agents.items.into_iter().filter_map(|one| one.spec);
    specs.find_map(|one| one.template.spec?.runtime_class_name)
}

/// The extended resource of each class that names one, by the class's name.
pub(super) fn extended_resources(classes: Vec<DynamicObject>) -> BTreeMap<String, String> {
    let named = |class: DynamicObject| {
        let resource = class.data["spec"]["extendedResourceName"].as_str()?;
        Some((class.metadata.name?, resource.to_owned()))
    };
    classes.into_iter().filter_map(named).collect()
}

/// The `DeviceClasses` that stand for an extended resource. A cluster without this API, which
/// Kubernetes has since 1.34, has none.
pub(crate) async fn device_classes(client: &Client) -> Fact<BTreeMap<String, String>> {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "DeviceClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "deviceclasses");
    let classes: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    match classes.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeMap::new()),
        list => fact(list).map(|list| extended_resources(list.items)),
    }
}

/// The namespaces whose label exempts their pods from admission.
pub(crate) async fn exempt_namespaces(client: &Client) -> Fact<Vec<String>> {
    let mut names = BTreeSet::new();
    for label in ["aliquot.dev/webhook", "hami.io/webhook"] {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let labelled = ListParams::default().labels(&format!("{label}=ignore"));
        let found = fact(namespaces.list_metadata(&labelled).await)?;
        names.extend(found.items.into_iter().filter_map(|one| one.metadata.name));
    }
    Ok(names.into_iter().collect())
}

/// Reads the facts of one cluster.
pub struct ClusterReader<'a> {
    /// The cluster.
    pub access: &'a Access,
    /// The agents.
    pub agents: &'a Agents,
    /// Namespace of the dry-run pod.
    pub namespace: &'a str,
    /// If set, only this node is read.
    pub node: Option<&'a str>,
}

impl ClusterReader<'_> {
    /// Reads everything; what fails is an error in its field.
    pub async fn facts(&self, client: &Client) -> ClusterFacts {
        let pods: Fact<Vec<Pod>> = fact(all(client, "pods").await);
        let system = match self.access.schedulers(client).await {
            Ok((namespace, _)) => namespace,
            Err(_) => self.access.usual_namespace().to_owned(),
        };
        let system = &system;
        let nodes = self.nodes(client).await;
        let (ledger, differences) = self.ledger(client, &pods).await;
        let webhook: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let config: Api<ConfigMap> = Api::namespaced(client.clone(), system);
        let status: Api<ConfigMap> = Api::namespaced(client.clone(), AUTOSCALER.0);
        let lease: Api<Lease> = Api::namespaced(client.clone(), system);
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), system);
        let classes: Api<RuntimeClass> = Api::all(client.clone());
        let agents: Api<DaemonSet> = Api::all(client.clone());
        let ours =
            ListParams::default().labels(&format!("{PART}=aliquot,{COMPONENT}=device-plugin"));
        let text = |map: ConfigMap| map.data?.remove(CONFIG.1);
        let holder = |lease: Lease| lease.spec?.holder_identity.filter(|who| !who.is_empty());
        ClusterFacts {
            namespace: system.clone(),
            trial_namespace: self.namespace.to_owned(),
            webhook: fact(webhook.get_opt(WEBHOOK).await),
            dry_run: self.dry_run(client, &pods).await,
            classes: fact(classes.list(&ListParams::default()).await)
                .map(|list| handlers(list.items)),
            agent_class: fact(agents.list(&ours).await).map(class_of),
            device_classes: device_classes(client).await,
            exempt: exempt_namespaces(client).await,
            policy_bindings: fact(bindings.list(&ListParams::default()).await)
                .map(|list| names_of(&list)),
            network_policies: fact(policies.list(&ListParams::default()).await)
                .map(|list| names_of(&list)),
            config: fact(config.get_opt(CONFIG.0).await.map(|map| map.and_then(text))),
            autoscaler_status: fact(status.get_opt(AUTOSCALER.1).await.map(|map| map.is_some())),
            leader: fact(
                lease
                    .get_opt(LEASE)
                    .await
                    .map(|lease| lease.and_then(holder)),
            ),
            metrics: fact(self.access.text("/metrics").await),
            agents: self.agents(client, &nodes).await,
            ledger,
            differences,
            nodes,
            pods,
        }
    }

    async fn nodes(&self, client: &Client) -> Fact<Vec<Node>> {
        match self.node {
            None => fact(all(client, "nodes").await),
            Some(name) => {
                let nodes: Api<Node> = Api::all(client.clone());
                fact(nodes.get(name).await.map(|node| vec![node]))
            }
        }
    }

    /// The ledger, read between two lists of pods; again while it differs, because a watch may lag.
    async fn ledger(
        &self,
        client: &Client,
        pods: &Fact<Vec<Pod>>,
    ) -> (Fact<LedgerView>, Fact<Vec<String>>) {
        let mut before = match pods {
            Ok(pods) => pods.clone(),
            Err(why) => return (Err(why.clone()), Err(why.clone())),
        };
        let settings = snapshot::settings(&before);
        let mut ticks = tokio::time::interval(LEDGER_SAMPLES.1);
        let mut last = (Ok(LedgerView::default()), Ok(Vec::new()));
        for _ in 0..LEDGER_SAMPLES.0 {
            ticks.tick().await;
            let view: Result<LedgerView, AccessError> = self.access.ask("/books").await;
            let after: Result<Vec<Pod>, AccessError> = all(client, "pods").await;
            last = match (fact(view), fact(after)) {
                (Ok(view), Ok(after)) => {
                    let differences = ledger::compare(&before, &view, &after, &settings);
                    before = after;
                    (Ok(view), Ok(differences))
                }
                (Err(why), _) | (_, Err(why)) => (Err(why.clone()), Err(why)),
            };
            if last.1.as_ref().map_or(true, Vec::is_empty) {
                break;
            }
        }
        last
    }

    /// Creates a pod that requests a GPU, with `dryRun`.
    async fn dry_run(&self, client: &Client, pods: &Fact<Vec<Pod>>) -> Fact<DryRun> {
        let part = pods.as_ref().ok();
        let part = part.and_then(|pods| pods.iter().find(|pod| is_ours(pod, "scheduler")));
        let gpu = part.map(names).unwrap_or_default();
        let gpu = gpu.of(aliquot_core::request::Resource::Gpu);
        let dry_run = json!({
            "metadata": {"generateName": "aliquot-doctor-"},
            "spec": {
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "trial", "image": "aliquot-doctor",
                    "resources": {"limits": {gpu: "1"}},
                    "securityContext": {"allowPrivilegeEscalation": false,
                        "capabilities": {"drop": ["ALL"]}},
                }],
            },
        });
        let dry_run: Pod = fact(serde_json::from_value(dry_run))?;
        let api: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match api.create(&params, &dry_run).await {
            Ok(made) => {
                let scheduler = made.spec.and_then(|spec| spec.scheduler_name);
                Ok(DryRun::Admitted(scheduler.unwrap_or_default()))
            }
            Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
                Ok(DryRun::NoAnswer(status.message.clone()))
            }
            Err(error) => Err(format!(
                "cannot create a dry-run pod in namespace {}: {error}; --namespace chooses another namespace",
                self.namespace
            )),
        }
    }

    /// What each agent answers to `/readyz` and `/metrics`.
    async fn agents(
        &self,
        client: &Client,
        nodes: &Fact<Vec<Node>>,
    ) -> BTreeMap<NodeName, AgentFacts> {
        let known = nodes.as_deref().unwrap_or_default().iter();
        let named = known.filter_map(|node| Some(node.metadata.name.as_deref()?.into()));
        let named = named.collect();
        let mut found = BTreeMap::new();
        for (node, route) in self.agents.routes(self.access, client, &named).await {
            let route = match route {
                Ok(route) => route,
                Err(why) => {
                    let (ready, metrics) = (Err(why.clone()), Err(why));
                    found.insert(node, AgentFacts { ready, metrics });
                    continue;
                }
            };
            let at = format!("the agent of {node}");
            let ready = get(&route.client, &at, &format!("{}/readyz", route.path)).await;
            let metrics = get(&route.client, &at, &format!("{}/metrics", route.path)).await;
            let agent = AgentFacts {
                ready: fact(ready.map(drop)),
                metrics: fact(metrics),
            };
            found.insert(node, agent);
        }
        found
    }
}
