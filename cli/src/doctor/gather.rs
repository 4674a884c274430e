//! Reads everything that the checks need from the cluster. Writes nothing: the test pod is a dry run.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::NodeName;
use aliquot_core::request::Resource;
use aliquot_k8s::bare::Bare;
use aliquot_k8s::pod;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::admission::TRIAL;
use super::facts::{ClusterFacts, DryRun, Fact, fact};
use super::refused_writes::is_mutator;
use crate::access::{Access, AccessError, all, all_pods};
use crate::agents::AGENT;
use crate::components::{IGNORE_LABELS, distrust_others, is_ready, running_pods};
use crate::output::with_causes;
use crate::snapshot;

pub(crate) const WEBHOOK: &str = "aliquot-webhook";
/// Namespace and name of cluster-autoscaler's status, also where it runs outside the cluster.
const AUTOSCALER: (&str, &str) = ("kube-system", "cluster-autoscaler-status");

/// The extended resource of each class that names one, by the class's name.
pub(super) fn extended_resources(classes: Vec<DynamicObject>) -> BTreeMap<String, String> {
    let named = |class: DynamicObject| {
        let resource = class.data["spec"]["extendedResourceName"].as_str()?;
        Some((class.metadata.name?, resource.to_owned()))
    };
    classes.into_iter().filter_map(named).collect()
}

/// The `DeviceClasses` that stand for an extended resource, an API that Kubernetes has since 1.34.
pub(crate) async fn device_classes(client: &Client) -> Fact<BTreeMap<String, String>> {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "DeviceClass");
    let classes = all_of_kind(client, &kind, "deviceclasses").await;
    classes.map(extended_resources)
}

/// All objects of a kind; none where the cluster does not have it.
pub(crate) async fn all_of_kind(
    client: &Client,
    kind: &GroupVersionKind,
    plural: &str,
) -> Fact<Vec<DynamicObject>> {
    let resource = ApiResource::from_gvk_with_plural(kind, plural);
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match objects.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        list => fact(list).map(|list| list.items),
    }
}

/// What else changes pods or nodes as they are written, by kind and name.
async fn mutators(client: &Client) -> Fact<Vec<String>> {
    const POLICIES: (&str, &str) = ("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
    const WEBHOOKS: (&str, &str) = (
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    );
    let mut found = BTreeSet::new();
    for (version, (kind, plural)) in [("v1", WEBHOOKS), ("v1", POLICIES), ("v1beta1", POLICIES)] {
        let group = "admissionregistration.k8s.io";
        let group_kind = GroupVersionKind::gvk(group, version, kind);
        let objects = all_of_kind(client, &group_kind, plural).await?;
        let others = objects.iter().filter(|one| is_mutator(one));
        found.extend(others.map(|one| format!("{kind} {}", one.name_any())));
    }
    Ok(found.into_iter().collect())
}

/// The namespaces whose label exempts their pods from admission.
pub(crate) async fn exempt_namespaces(client: &Client) -> Fact<Vec<String>> {
    let mut names = BTreeSet::new();
    for label in IGNORE_LABELS {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let labelled = ListParams::default().labels(&format!("{label}=ignore"));
        let found = fact(namespaces.list_metadata(&labelled).await)?;
        names.extend(found.items.into_iter().filter_map(|one| one.metadata.name));
    }
    Ok(names.into_iter().collect())
}

/// Reads everything, or only this node; what fails is an error in its field. `namespace` is that of the dry-run pod.
pub(super) async fn facts(
    access: &Access,
    namespace: &str,
    node: Option<&str>,
) -> Result<ClusterFacts, AccessError> {
    let client = access.client().await?;
    let mut pods: Fact<Vec<Pod>> = fact(all_pods(&client).await);
    let system = access.system_namespace(&client).await;
    if let Ok(pods) = &mut pods {
        distrust_others(pods, &system);
    }
    let nodes = match node {
        None => fact(all(&client, "nodes").await),
        Some(name) => {
            let nodes: Api<Node> = Api::all(client.clone());
            fact(nodes.get(name).await.map(|node| vec![node]))
        }
    };
    let webhook: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let status: Api<ConfigMap> = Api::namespaced(client.clone(), AUTOSCALER.0);
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), &system);
    let version = client.apiserver_version().await;
    let quotas = async {
        let quotas: Vec<Bare<ResourceQuota>> = all(&client, "quotas").await?;
        Ok::<_, AccessError>(quotas.into_iter().map(ResourceQuota::from).collect())
    };
    Ok(ClusterFacts {
        namespace: system,
        trial_namespace: namespace.to_owned(),
        version: fact(version.map(|info| info.git_version)),
        webhook: fact(webhook.get_opt(WEBHOOK).await),
        dry_run: dry_run(&client, namespace, &pods).await,
        mutators: mutators(&client).await,
        quotas: fact(quotas.await),
        device_classes: device_classes(&client).await,
        exempt: exempt_namespaces(&client).await,
        network_policies: fact(policies.list(&ListParams::default()).await)
            .map(|list| list.items.iter().map(ResourceExt::name_any).collect()),
        autoscaler_status: fact(status.get_opt(AUTOSCALER.1).await.map(|map| map.is_some())),
        metrics: fact(access.text("/metrics").await),
        unready_agents: unready_agents(access, node, &pods).await,
        nodes,
        pods,
    })
}

/// Creates a pod that requests a GPU, with `dryRun`.
async fn dry_run(client: &Client, namespace: &str, pods: &Fact<Vec<Pod>>) -> Fact<DryRun> {
    let pods = pods.as_deref().unwrap_or_default();
    let names = snapshot::settings(pods).names;
    let gpu = names.of(Resource::Gpu);
    let dry_run = json!({
        "metadata": {"generateName": "aliquot-doctor-"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": TRIAL, "image": "aliquot-doctor",
                "resources": {"limits": {gpu: "1"}},
                "securityContext": {"allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let dry_run: Pod = fact(serde_json::from_value(dry_run))?;
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&params, &dry_run).await {
        Ok(made) => Ok(DryRun::Admitted(Box::new(made))),
        Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
            Ok(DryRun::NoAnswer(status.message.clone()))
        }
        Err(error) => Err(format!(
            "cannot create a dry-run pod in namespace {namespace}: {}; --namespace chooses another namespace",
            with_causes(&error)
        )),
    }
}

/// What the agents whose pods are not ready say about it, by node.
async fn unready_agents(
    access: &Access,
    node: Option<&str>,
    pods: &Fact<Vec<Pod>>,
) -> BTreeMap<NodeName, String> {
    let pods = pods.as_deref().unwrap_or_default();
    let unready = running_pods(pods, "device-plugin").filter(|pod| !is_ready(pod));
    let nodes: BTreeSet<NodeName> = unready
        .filter_map(pod::node)
        .filter(|on| node.is_none_or(|node| node == on.as_str()))
        .collect();
    let answers = AGENT.ask(access, &[], &nodes, "/readyz");
    answers.await.missing
}
