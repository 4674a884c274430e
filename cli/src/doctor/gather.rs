//! Asks the cluster for everything that the checks need.
//!
//! Fed by: the API server, and through it the scheduler and the agents. Must not: write anything
//! (the trial is a dry run), wait without a deadline, or hide why something is not known.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use aliquot_core::NodeName;
use aliquot_k8s::pod;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{ListParams, ObjectList, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::books::{self, Statement};
use super::class::handlers;
use super::finding::Fact;
use super::known::{Agent, COMPONENT, Known, PART, Trial, is_ours, names};
use crate::live::{Access, LiveError, all, get};
use crate::measured::Agents;

/// Looks at the books, where they differ, and the time between two of them.
const LOOKS: (u32, Duration) = (3, Duration::from_secs(1));
/// kube-scheduler's lease and configuration, as the chart names them.
const LEASE: &str = "aliquot-scheduler";
const CONFIG: (&str, &str) = ("aliquot-kube-scheduler", "kube-scheduler.yaml");
const HOOK: &str = "aliquot-webhook";

/// Says it in words.
pub fn fact<T, E: Display>(result: Result<T, E>) -> Fact<T> {
    result.map_err(|error| error.to_string())
}

/// The runtime class that pods of these are given.
fn class_of(agents: ObjectList<DaemonSet>) -> Option<String> {
    let mut specs = agents.items.into_iter().filter_map(|one| one.spec);
    specs.find_map(|one| one.template.spec?.runtime_class_name)
}

/// Where to look.
pub struct Ask<'a> {
    /// The cluster.
    pub access: &'a Access,
    /// The agents.
    pub agents: &'a Agents,
    /// Where the trial pod would be.
    pub namespace: &'a str,
    /// Of all nodes this one alone.
    pub node: Option<&'a str>,
}

impl Ask<'_> {
    /// Asks for everything.
    pub async fn known(&self, client: &Client) -> Known {
        let pods: Fact<Vec<Pod>> = fact(all(client, "pods").await);
        let system = match self.access.schedulers(client).await {
            Ok((namespace, _)) => namespace,
            Err(_) => self.access.home().to_owned(),
        };
        let system = &system;
        let nodes = self.nodes(client).await;
        let (books, differences) = self.books(client, &pods).await;
        let hook: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let config: Api<ConfigMap> = Api::namespaced(client.clone(), system);
        let lease: Api<Lease> = Api::namespaced(client.clone(), system);
        let fences: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        let classes: Api<RuntimeClass> = Api::all(client.clone());
        let agents: Api<DaemonSet> = Api::all(client.clone());
        let ours =
            ListParams::default().labels(&format!("{PART}=aliquot,{COMPONENT}=device-plugin"));
        let text = |map: ConfigMap| map.data?.remove(CONFIG.1);
        let holder = |lease: Lease| lease.spec?.holder_identity.filter(|who| !who.is_empty());
        let named = |list: ObjectList<ValidatingAdmissionPolicyBinding>| {
            let names = list.items.into_iter().filter_map(|one| one.metadata.name);
            names.collect()
        };
        Known {
            namespace: system.clone(),
            hook: fact(hook.get_opt(HOOK).await),
            trial: self.trial(client, &pods).await,
            classes: fact(classes.list(&ListParams::default()).await)
                .map(|list| handlers(list.items)),
            agent_class: fact(agents.list(&ours).await).map(class_of),
            fences: fact(fences.list(&ListParams::default()).await.map(named)),
            config: fact(config.get_opt(CONFIG.0).await.map(|map| map.and_then(text))),
            leader: fact(
                lease
                    .get_opt(LEASE)
                    .await
                    .map(|lease| lease.and_then(holder)),
            ),
            metrics: fact(self.access.text("/metrics").await),
            agents: self.agents(client, &nodes).await,
            books,
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

    /// The books between two lists of pods; again where they differ, for a watch may lag.
    async fn books(
        &self,
        client: &Client,
        pods: &Fact<Vec<Pod>>,
    ) -> (Fact<Statement>, Fact<Vec<String>>) {
        let mut before = match pods {
            Ok(pods) => pods.clone(),
            Err(why) => return (Err(why.clone()), Err(why.clone())),
        };
        let settings = pod::Settings {
            names: before
                .iter()
                .find(|pod| is_ours(pod, "scheduler"))
                .map(names)
                .unwrap_or_default(),
            ..pod::Settings::default()
        };
        let mut ticks = tokio::time::interval(LOOKS.1);
        let mut last = (Ok(Statement::default()), Ok(Vec::new()));
        for _ in 0..LOOKS.0 {
            ticks.tick().await;
            let books: Result<Statement, LiveError> = self.access.ask("/books").await;
            let after: Result<Vec<Pod>, LiveError> = all(client, "pods").await;
            last = match (fact(books), fact(after)) {
                (Ok(books), Ok(after)) => {
                    let differences = books::compare(&before, &books, &after, &settings);
                    before = after;
                    (Ok(books), Ok(differences))
                }
                (Err(why), _) | (_, Err(why)) => (Err(why.clone()), Err(why)),
            };
            if last.1.as_ref().map_or(true, Vec::is_empty) {
                break;
            }
        }
        last
    }

    /// A pod that asks for a GPU, created as a trial only.
    async fn trial(&self, client: &Client, pods: &Fact<Vec<Pod>>) -> Fact<Trial> {
        let part = pods.as_ref().ok();
        let part = part.and_then(|pods| pods.iter().find(|pod| is_ours(pod, "scheduler")));
        let gpu = part.map(names).unwrap_or_default();
        let gpu = gpu.of(aliquot_core::request::Resource::Gpu);
        let trial = json!({
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
        let trial: Pod = fact(serde_json::from_value(trial))?;
        let api: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match api.create(&dry, &trial).await {
            Ok(made) => {
                let scheduler = made.spec.and_then(|spec| spec.scheduler_name);
                Ok(Trial::Admitted(scheduler.unwrap_or_default()))
            }
            Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
                Ok(Trial::NoAnswer(status.message.clone()))
            }
            Err(error) => Err(format!(
                "a trial pod in namespace {}: {error}; --namespace names another",
                self.namespace
            )),
        }
    }

    /// What each agent answers.
    async fn agents(&self, client: &Client, nodes: &Fact<Vec<Node>>) -> BTreeMap<NodeName, Agent> {
        let known = nodes.as_deref().unwrap_or_default().iter();
        let named = known.filter_map(|node| Some(node.metadata.name.as_deref()?.into()));
        let named = named.collect();
        let mut found = BTreeMap::new();
        for (node, way) in self.agents.ways(self.access, client, &named).await {
            let (client, path) = match way {
                Ok(way) => way,
                Err(why) => {
                    let (ready, metrics) = (Err(why.clone()), Err(why));
                    found.insert(node, Agent { ready, metrics });
                    continue;
                }
            };
            let at = format!("the agent of {node}");
            let ready = get(&client, &at, &format!("{path}/readyz")).await;
            let metrics = get(&client, &at, &format!("{path}/metrics")).await;
            let agent = Agent {
                ready: fact(ready.map(drop)),
                metrics: fact(metrics),
            };
            found.insert(node, agent);
        }
        found
    }
}
