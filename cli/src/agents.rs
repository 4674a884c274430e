//! What the parts on nodes answer, their agents and monitors: through the API server's proxy, or at URLs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::NodeName;
use aliquot_k8s::pod;
use http::Uri;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::{Access, AccessError, PodRoute, get};
use crate::components::{COMPONENT, PART};
use crate::output::with_causes;

/// Nodes asked at once.
const AT_ONCE: usize = 16;
/// How long one may take to answer: the API server's proxy waits longer for a node that is gone.
const ANSWER: Duration = Duration::from_secs(10);

/// A part of Aliquot that runs on each node.
pub(crate) struct NodePart {
    component: &'static str,
    port: u16,
    /// How messages name it.
    who: &'static str,
}

pub(crate) static AGENT: NodePart = NodePart {
    component: "device-plugin",
    port: 9394,
    who: "the agent",
};
pub(crate) static MONITOR: NodePart = NodePart {
    component: "monitor",
    port: 9396,
    who: "the monitor",
};

#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) texts: Vec<(NodeName, String)>,
    /// Why a node did not answer.
    pub(crate) missing: BTreeMap<NodeName, String>,
}

/// A node, and where its part answers.
pub(crate) fn parse_address(text: &str) -> Result<(NodeName, Uri), String> {
    let parts = text.split_once('=');
    let (node, url) = parts.ok_or_else(|| format!("{text:?}; expected: NODE=URL"))?;
    let url = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    Ok((node.into(), url))
}

/// What these return, [`AT_ONCE`] of them at a time: a node that is gone delays none but itself.
async fn all_of<T: Send + 'static>(
    asked: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut answers = JoinSet::new();
    for one in asked {
        let permits = Arc::clone(&permits);
        answers.spawn(async move {
            let _permit = permits.acquire().await;
            one.await
        });
    }
    answers.join_all().await
}

impl NodePart {
    /// The labels that the chart gives its pods.
    fn labels(&self) -> String {
        format!("{PART}=aliquot,{COMPONENT}={}", self.component)
    }

    /// Gets this path of each of these nodes, at `addresses` where they have one.
    pub(crate) async fn ask(
        &self,
        access: &Access,
        addresses: &[(NodeName, Uri)],
        nodes: &BTreeSet<NodeName>,
        path: &'static str,
    ) -> Answers {
        let mut found = Answers::default();
        let routes = self.routes(access, addresses, nodes, &mut found.missing);
        let (routes, who) = (routes.await, self.who);
        let answers = routes.into_iter().map(|(node, route)| async move {
            let at = format!("{who} of {node}");
            let path = format!("{}{path}", route.path);
            let text = timeout(ANSWER, get(&route.client, &at, &path)).await;
            (node, text)
        });
        for (node, text) in all_of(answers).await {
            match text {
                Ok(Ok(text)) => found.texts.push((node, text)),
                Ok(Err(error)) => drop(found.missing.insert(node, with_causes(&error))),
                Err(_) => drop(found.missing.insert(node, format!("{who} does not answer"))),
            }
        }
        found
    }

    /// The routes to these nodes; for one without a route, `missing` gets the reason.
    async fn routes(
        &self,
        access: &Access,
        addresses: &[(NodeName, Uri)],
        nodes: &BTreeSet<NodeName>,
        missing: &mut BTreeMap<NodeName, String>,
    ) -> Vec<(NodeName, PodRoute)> {
        let mut routes = Vec::new();
        let mut others = nodes.clone();
        for (node, url) in addresses.iter().filter(|(node, _)| nodes.contains(node)) {
            others.remove(node);
            match PodRoute::at(url) {
                Ok(route) => routes.push((node.clone(), route)),
                Err(error) => drop(missing.insert(node.clone(), with_causes(&error))),
            }
        }
        if others.is_empty() {
            return routes;
        }
        let why = match self.proxies(access, &others).await {
            Ok(found) => {
                for (node, _) in &found {
                    others.remove(node);
                }
                routes.extend(found);
                let labels = self.labels();
                format!("no running pod on the node has the labels {labels}")
            }
            Err(error) => with_causes(&error),
        };
        missing.extend(others.into_iter().map(|node| (node, why.clone())));
        routes
    }

    /// The routes to its pods on these nodes, in the scheduler's namespace, through the API
    /// server's proxy.
    async fn proxies(
        &self,
        access: &Access,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<Vec<(NodeName, PodRoute)>, AccessError> {
        let client = access.client().await?;
        let (namespace, _) = access.schedulers(&client).await?;
        let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let labelled = ListParams::default().labels(&self.labels());
        let list = api.list(&labelled).await;
        let all = list.map_err(|source| AccessError::List {
            what: "the pods of nodes",
            source,
        })?;
        let alive = all.items.iter().filter(|object| !pod::is_finished(object));
        let node_of = |object: &Pod| pod::node(object).filter(|node| nodes.contains(node));
        let (names, pods): (Vec<NodeName>, Vec<&Pod>) = alive
            .filter_map(|object| Some((node_of(object)?, object)))
            .unzip();
        let routes = access.routes(&client, &namespace, &pods, self.port);
        Ok(names.into_iter().zip(routes.await?).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_that_is_gone_delays_no_other() {
        let begin = Instant::now();
        let nodes = (0..AT_ONCE * AT_ONCE).map(|node| async move {
            if node % AT_ONCE == 0 {
                drop(timeout(ANSWER, pending::<()>()).await);
            }
        });
        all_of(nodes).await;
        assert!(begin.elapsed() < 2 * ANSWER, "{:?}", begin.elapsed());
    }
}
