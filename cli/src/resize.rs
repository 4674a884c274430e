//! `resize`: asks for another share of a running pod by its annotation, and shows how far that is. The
//! scheduler and the pod's node decide.

use std::time::Duration;

use aliquot_core::Allocation;
use aliquot_core::allocation::ALLOCATION;
use aliquot_core::resize::{
    RESIZE, RESIZE_STATUS, ResizeError, ResizeRequest, ResizeState, ResizeStatus,
};
use aliquot_k8s::pod;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use thiserror::Error;

use crate::access::{Access, AccessError};
use crate::output::with_causes;
use crate::target::parse_pod;

/// Interval of reading how far it is.
const INTERVAL: Duration = Duration::from_millis(200);
/// How much longer than its deadline a resize may take until it is refused.
const MARGIN: Duration = Duration::from_secs(30);

/// The flags of `resize`.
#[derive(Debug, Args)]
pub struct Resize {
    /// Name of the pod, with or without pod/ before it
    #[arg(value_name = "POD", value_parser = parse_pod)]
    pub pod: String,
    /// Namespace of the pod; defaults to that of the context
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Container; needed where several have a share
    #[arg(short, long)]
    pub container: Option<String>,
    /// GPU memory on each device in MiB, as in nvidia.com/gpumem
    #[arg(long, value_name = "MIB", required_unless_present_any = ["gpumem_percentage", "gpucores"])]
    pub gpumem: Option<String>,
    /// The same in percent of the device
    #[arg(long, value_name = "PERCENT", conflicts_with = "gpumem")]
    pub gpumem_percentage: Option<String>,
    /// Compute of each device in percent, as in nvidia.com/gpucores
    #[arg(long, value_name = "PERCENT")]
    pub gpucores: Option<String>,
    /// Seconds that a smaller share may wait until less is in use; 600 if not set
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<u64>,
    /// Wait until the share is enforced; fail if it is refused
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub access: Access,
}

#[derive(Debug, Error)]
pub enum ResizeFailure {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("cannot resize pod {pod}")]
    Api { pod: String, source: kube::Error },
    #[error(
        "pod {0} has no share of a GPU; expected: a running pod with the annotation {ALLOCATION}"
    )]
    NoShare(String),
    #[error("several containers have a share; expected: --container with one of {0}")]
    WhichContainer(String),
    #[error(transparent)]
    Invalid(#[from] ResizeError),
    #[error("Refused: {0}")]
    Refused(String),
    #[error("another resize of the pod took the place of this one: {0}")]
    Replaced(String),
    #[error(
        "the pod has no annotation {RESIZE} any more: it was removed, or the pod was created again"
    )]
    Removed,
    #[error("no answer in time, last: {0}; check that the scheduler runs")]
    NoAnswer(String),
}

impl Resize {
    pub async fn run(&self) -> Result<String, ResizeFailure> {
        let namespace = self.access.namespace(self.namespace.as_deref()).await?;
        let name = &*self.pod;
        let full_name = format!("{namespace}/{name}");
        let failed = |source| ResizeFailure::Api {
            pod: full_name.clone(),
            source,
        };
        let pods: Api<Pod> = Api::namespaced(self.access.client().await?, &namespace);
        let found = pods.get(name).await.map_err(failed)?;
        let allocation = pod::annotation(&found, ALLOCATION).map(Allocation::decode);
        let Some(Ok(allocation)) = allocation else {
            return Err(ResizeFailure::NoShare(full_name));
        };
        let now = Timestamp::now().as_millisecond().unsigned_abs();
        let text = self.text(&allocation, now)?;
        let request = ResizeRequest::parse(&text)?;
        let patch = json!({"metadata": {"uid": found.metadata.uid, "annotations": {RESIZE: text}}});
        let params = PatchParams::default();
        pods.patch(name, &params, &Patch::Merge(patch))
            .await
            .map_err(failed)?;
        if !self.wait {
            return Ok(format!(
                "Requested for pod {full_name}: {text}\nThe annotation {RESIZE_STATUS} and events of the pod say how far it is.\n"
            ));
        }
        let mut shown = "nothing".to_owned();
        let most = Duration::from_secs(request.deadline) + MARGIN;
        let waiting = async {
            let mut ticks = tokio::time::interval(INTERVAL);
            loop {
                ticks.tick().await;
                let found = match pods.get(name).await {
                    Ok(found) => found,
                    Err(error) if is_final(&error) => return Err(failed(error)),
                    Err(error) => {
                        shown = with_causes(&error);
                        continue;
                    }
                };
                if let Some(outcome) = outcome(&found, &text, &mut shown) {
                    return outcome;
                }
            }
        };
        let ended = tokio::time::timeout(most, waiting).await;
        match ended {
            Ok(outcome) => outcome.map(|()| format!("Resized pod {full_name}: {text}\n")),
            Err(_) => Err(ResizeFailure::NoAnswer(shown)),
        }
    }

    /// The annotation's text. `now` makes it new, so that the same amounts can be asked for again.
    fn text(&self, allocation: &Allocation, now: u64) -> Result<String, ResizeFailure> {
        let with_share = allocation.all().filter(|(_, grants)| !grants.is_empty());
        let names: Vec<&str> = with_share.map(|(name, _)| name).collect();
        let container = match (&self.container, names.as_slice()) {
            (Some(container), _) => container,
            (None, [only]) => *only,
            (None, several) => return Err(ResizeFailure::WhichContainer(several.join(", "))),
        };
        let amounts: Vec<String> = [
            ("gpumem", &self.gpumem),
            ("gpumem-percentage", &self.gpumem_percentage),
            ("gpucores", &self.gpucores),
        ]
        .into_iter()
        .filter_map(|(name, amount)| Some(format!("{name}={}", amount.as_ref()?)))
        .collect();
        let deadline = self
            .deadline
            .map_or_else(String::new, |seconds| format!(" deadline={seconds}"));
        Ok(format!(
            "{container}:{}{deadline} id={now}",
            amounts.join(",")
        ))
    }
}

/// Whether the API server would answer so again, as for a pod that is gone.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code < 429)
}

/// How a resize by this text has ended; `None` while it has not, and then `shown` says why.
fn outcome(found: &Pod, text: &str, shown: &mut String) -> Option<Result<(), ResizeFailure>> {
    let Some(now) = pod::annotation(found, RESIZE) else {
        return Some(Err(ResizeFailure::Removed));
    };
    if now != text {
        return Some(Err(ResizeFailure::Replaced(now.to_owned())));
    }
    let status = ResizeStatus::decode(pod::annotation(found, RESIZE_STATUS)?).ok()?;
    if status.request != text {
        "the answer to the request before this one; the next follows after a pause"
            .clone_into(shown);
        return None;
    }
    match status.state {
        ResizeState::Applied => Some(Ok(())),
        ResizeState::Refused => Some(Err(ResizeFailure::Refused(status.message))),
        ResizeState::Waiting => {
            *shown = status.message;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::program::{Command, Program};

    fn resize(words: &str) -> Resize {
        let words = ["kubectl-aliquot", "resize"]
            .into_iter()
            .chain(words.split(' '));
        match Program::try_parse_from(words).unwrap().command {
            Command::Resize(resize) => *resize,
            other => panic!("{other:?}"),
        }
    }

    fn allocation(containers: &[&str]) -> Allocation {
        let grants =
            json!([{"resource": "nvidia.com/gpu", "gpu": "GPU-a", "memory": 1, "cores": 1}]);
        let containers = containers
            .iter()
            .map(|name| ((*name).to_owned(), grants.clone()));
        let containers: serde_json::Map<_, _> = containers.collect();
        serde_json::from_value(
            json!({"v": 1, "node": "n", "priority": 1, "containers": containers}),
        )
        .unwrap()
    }

    #[test]
    fn writes_annotation_that_scheduler_reads() {
        let check = |words: &str, containers: &[&str], expected: &str| {
            let text = resize(words).text(&allocation(containers), 7);
            let text = text.unwrap_or_else(|error| error.to_string());
            assert_eq!(text, expected, "{words}");
        };
        check(
            "pod/a --gpumem 6000 --gpucores 40",
            &["main"],
            "main:gpumem=6000,gpucores=40 id=7",
        );
        check(
            "a -c side --gpumem-percentage 5 --deadline 60",
            &["main", "side"],
            "side:gpumem-percentage=5 deadline=60 id=7",
        );
        check(
            "a --gpucores 5",
            &["main", "side"],
            "several containers have a share; expected: --container with one of main, side",
        );
        let text = resize("a --gpumem 6000")
            .text(&allocation(&["main"]), 7)
            .unwrap();
        assert!(ResizeRequest::parse(&text).is_ok());
    }

    #[test]
    fn waits_on_where_the_api_server_is_busy_or_away() {
        let answered = |code: u16| {
            let status = json!({"status": "Failure", "message": "", "reason": "", "code": code});
            kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
        };
        for (code, expected) in [(403, true), (404, true), (429, false), (503, false)] {
            assert_eq!(is_final(&answered(code)), expected, "{code}");
        }
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(!is_final(&kube::Error::Service(reset.into())));
    }

    #[test]
    fn waits_for_answer_to_own_request() {
        let check = |annotations: serde_json::Value, expected: Option<&str>| {
            let found = json!({"metadata": {"annotations": annotations}});
            let found: Pod = serde_json::from_value(found).unwrap();
            let outcome = outcome(&found, "a:gpumem=1", &mut String::new());
            let text =
                outcome.map(|one| one.map_or_else(|why| why.to_string(), |()| "ok".to_owned()));
            assert_eq!(text.as_deref(), expected);
        };
        let status = |state: &str, request: &str| {
            json!({"v": 1, "generation": 1, "state": state, "message": "why", "request": request})
                .to_string()
        };
        check(json!({RESIZE: "a:gpumem=1"}), None);
        for (state, expected) in [
            ("waiting", None),
            ("applied", Some("ok")),
            ("refused", Some("Refused: why")),
        ] {
            let own = json!({RESIZE: "a:gpumem=1", RESIZE_STATUS: status(state, "a:gpumem=1")});
            check(own, expected);
            let older = json!({RESIZE: "a:gpumem=1", RESIZE_STATUS: status(state, "a:gpumem=2")});
            check(older, None);
        }
        let removed = "the pod has no annotation aliquot.dev/resize any more: it was removed, or the pod was created again";
        check(json!({}), Some(removed));
        check(
            json!({RESIZE: "a:gpumem=2"}),
            Some("another resize of the pod took the place of this one: a:gpumem=2"),
        );
    }
}
