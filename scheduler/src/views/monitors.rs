//! What the nodes' monitors measure, for the page: asked through the API server's proxy with the
//! viewer's token, and only while somebody looks. Viewers share the answers that the monitors would
//! give each of them, and at most ten monitors are asked each second, so that ten viewers cost
//! about what one does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::access::Access;
use aliquot_core::measured::GpuUsage;
use aliquot_core::top::DeviceAmount;
use aliquot_core::{Cluster, Excerpt, NodeName};
use aliquot_serve::access_control::{AccessControl, TOKEN_HEADER};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::{Mutex as Turn, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// The labels that the chart gives the monitors' pods.
const LABELS: &str = "app.kubernetes.io/part-of=aliquot,app.kubernetes.io/component=monitor";
const PORT: u16 = 9396;
/// How long a monitor may take.
const DEADLINE: Duration = Duration::from_secs(4);
/// An answer is given again for this long, and longer while many nodes are looked at.
const FRESH: Duration = Duration::from_secs(4);
/// How often a monitor is asked on average, whichever.
const PACE: Duration = Duration::from_millis(100);
/// After this, an answer that nobody asked for is forgotten, and later where there are many: see [`retention`].
const FORGOTTEN: Duration = Duration::from_mins(1);
/// Most nodes in one request: more than are in view.
const MOST: usize = 64;
/// Monitors asked at the same time.
const AT_ONCE: usize = 8;
/// Largest answer in bytes.
const LARGEST: usize = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measured {
    /// What is used now.
    Now,
    /// What was used in the last hour.
    LastHour,
}

impl Measured {
    /// The monitor's path.
    fn path(self) -> &'static str {
        match self {
            Self::Now => "/usage",
            Self::LastHour => "/usage/history",
        }
    }
}

/// Asks monitors. Clones share the answers.
#[derive(Clone)]
pub struct Monitors(Arc<State>);

struct State {
    client: Client,
    /// Who may know what a monitor answers; everybody without it.
    control: Option<AccessControl>,
    /// Where the monitors are: in the scheduler's namespace.
    namespace: Option<String>,
    answers: Mutex<HashMap<(NodeName, Measured), Known>>,
    pods: Mutex<HashMap<NodeName, String>>,
    turns: Semaphore,
}

/// Why a monitor gave none.
enum NoAnswer {
    /// Who asks may not know it; others may.
    Denied(String),
    Failed(String),
}

/// Of a monitor's answer, what all processes use of each GPU.
#[derive(Deserialize)]
struct Sample {
    gpus: Vec<GpuUsage>,
}

/// What a monitor answered last and when, locked while it is asked.
type Answer = Arc<Turn<Option<(Instant, Arc<str>)>>>;

/// The last answer of a monitor.
struct Known {
    /// When somebody last wanted it.
    wanted: Instant,
    answer: Answer,
}

impl Monitors {
    /// Asks the monitors in this namespace, for those whom `control` permits.
    pub fn new(client: Client, namespace: Option<String>, control: Option<AccessControl>) -> Self {
        Self(Arc::new(State {
            client,
            control,
            namespace,
            answers: Mutex::default(),
            pods: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
        }))
    }

    /// A JSON object with the answer of each node's monitor, or `{"error": "..."}`.
    pub(super) async fn ask(
        &self,
        nodes: Vec<NodeName>,
        what: Measured,
        token: Option<&str>,
    ) -> String {
        let mut asked = JoinSet::new();
        for node in nodes.into_iter().take(MOST) {
            let (all, token) = (self.clone(), token.map(str::to_owned));
            asked.spawn(async move {
                let answer = all.answer(&node, what, token.as_deref()).await;
                format!("{}:{answer}", json!(node))
            });
        }
        let answers = asked.join_all().await;
        format!("{{{}}}", answers.join(","))
    }

    /// The monitor's answer, which others may have got before.
    async fn answer(&self, node: &NodeName, what: Measured, token: Option<&str>) -> Arc<str> {
        if let Err(why) = self.permit(what.path(), token).await {
            return error(&why);
        }
        let (answer, fresh) = {
            let now = Instant::now();
            let mut all = self.0.answers.lock();
            let retention = retention(all.len());
            all.retain(|_, known| known.wanted + retention > now);
            let known = all.entry((node.clone(), what)).or_insert_with(|| Known {
                wanted: now,
                answer: Arc::default(),
            });
            known.wanted = now;
            let answer = Arc::clone(&known.answer);
            let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
            (answer, FRESH.max(PACE * count))
        };
        let mut answer = answer.lock().await;
        if let Some((then, text)) = &*answer
            && then.elapsed() < fresh
        {
            return Arc::clone(text);
        }
        let turn = self.0.turns.acquire().await;
        let fetched = timeout(DEADLINE, self.fetch(node, what, token)).await;
        drop(turn);
        let text: Arc<str> = match fetched {
            Ok(Ok(text)) => text.into(),
            Ok(Err(NoAnswer::Denied(why))) => return error(&why),
            Ok(Err(NoAnswer::Failed(why))) => {
                // Its pod may be another one now.
                self.0.pods.lock().remove(node);
                error(&why)
            }
            Err(_) => {
                let seconds = DEADLINE.as_secs();
                error(&format!("its monitor does not answer within {seconds} s"))
            }
        };
        *answer = Some((Instant::now(), Arc::clone(&text)));
        text
    }

    /// What the cluster's GPUs use together, by answers that viewers have got; `None` where the monitor of a node
    /// was not asked in the last minutes. A node whose monitor gave none counts nothing.
    pub(super) async fn used(&self, cluster: &Cluster) -> Option<DeviceAmount> {
        let retention = retention(self.0.answers.lock().len());
        let mut sum = None;
        for (_, name, node) in cluster.iter() {
            let Some(inventory) = &node.inventory else {
                continue;
            };
            let key = (name.clone(), Measured::Now);
            let answer = Arc::clone(&self.0.answers.lock().get(&key)?.answer);
            let answer = answer.lock().await;
            let (then, text) = answer.as_ref()?;
            if then.elapsed() > retention + FORGOTTEN {
                return None;
            }
            let Ok(sample) = serde_json::from_str::<Sample>(text) else {
                continue;
            };
            let sum = sum.get_or_insert_with(DeviceAmount::default);
            for gpu in sample.gpus {
                if inventory.gpus.iter().any(|known| known.uuid == gpu.gpu) {
                    sum.memory += gpu.memory.unwrap_or_default();
                    sum.cores += gpu.sm.unwrap_or_default();
                }
            }
        }
        sum
    }

    /// Why who asks may not get the path, here or on a monitor, as the monitor itself would say.
    pub(super) async fn permit(&self, path: &str, token: Option<&str>) -> Result<(), String> {
        let Some(control) = &self.0.control else {
            return Ok(());
        };
        let token = token.ok_or("a token is required")?;
        match control.access(token, path).await? {
            Access::Allowed => Ok(()),
            Access::Unauthenticated => Err("the token is not of any account".to_owned()),
            Access::Forbidden(why) => Err(why.to_string()),
        }
    }

    async fn fetch(
        &self,
        node: &NodeName,
        what: Measured,
        token: Option<&str>,
    ) -> Result<String, NoAnswer> {
        let namespace = self.0.namespace.as_deref();
        let namespace = namespace.ok_or_else(|| failed("the scheduler has no --namespace"))?;
        let pod = self.pod(namespace, node).await?;
        let path = what.path();
        let mut request = Request::get(format!(
            "/api/v1/namespaces/{namespace}/pods/https:{pod}:{PORT}/proxy{path}"
        ));
        if let Some(token) = token {
            request = request.header(TOKEN_HEADER, token);
        }
        let request = request.body(kube::client::Body::empty()).map_err(failed)?;
        let answer = self.0.client.send(request).await.map_err(failed)?;
        let (head, body) = answer.into_parts();
        let bytes = to_bytes(Body::new(body), LARGEST).await.map_err(failed)?;
        let text = String::from_utf8(bytes.to_vec()).map_err(failed)?;
        let why = || format!("{}: {}", head.status, reason(&text));
        match head.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(NoAnswer::Denied(why())),
            status if !status.is_success() => Err(NoAnswer::Failed(why())),
            _ => match serde_json::from_str::<IgnoredAny>(&text) {
                Ok(_) => Ok(text),
                Err(error) => Err(failed(format!("its monitor's answer is not JSON: {error}"))),
            },
        }
    }

    async fn pod(&self, namespace: &str, node: &NodeName) -> Result<String, NoAnswer> {
        if let Some(known) = self.0.pods.lock().get(node) {
            return Ok(known.clone());
        }
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), namespace);
        let on_node = format!("spec.nodeName={node},status.phase=Running");
        let params = ListParams::default().labels(LABELS).fields(&on_node);
        let found = pods.list_metadata(&params).await.map_err(failed)?;
        let pod = found
            .items
            .into_iter()
            .find(|pod| pod.metadata.deletion_timestamp.is_none())
            .and_then(|pod| pod.metadata.name)
            .ok_or_else(|| failed("no monitor of Aliquot runs on the node"))?;
        self.0.pods.lock().insert(node.clone(), pod.clone());
        Ok(pod)
    }
}

/// How long an answer that nobody asked for is known, of so many: longer than a page takes to ask for all
/// of them, 32 in five seconds.
fn retention(answers: usize) -> Duration {
    let answers = u32::try_from(answers).unwrap_or(u32::MAX);
    FORGOTTEN.max(PACE.saturating_mul(answers).saturating_mul(4))
}

#[expect(clippy::needless_pass_by_value, reason = "given to map_err")]
fn failed(why: impl ToString) -> NoAnswer {
    NoAnswer::Failed(why.to_string())
}

fn error(why: &str) -> Arc<str> {
    json!({ "error": why }).to_string().into()
}

/// The message of a `Status` of Kubernetes, or the beginning of the text.
fn reason(text: &str) -> String {
    let status: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let message = status
        .as_ref()
        .and_then(|status| status["message"].as_str());
    Excerpt::from(message.unwrap_or(text)).to_string()
}

#[cfg(test)]
#[path = "monitors_tests.rs"]
mod tests;
