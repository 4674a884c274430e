//! Why a container may not start, in words for its user.
//!
//! Fed by: [`super`]. Must not: decide.

use aliquot_core::{GpuUuid, PodUid};
use thiserror::Error;

use crate::accepted::StoreError;
use crate::checkpoint::CheckpointError;
use crate::files::FileError;
use crate::judge::Refusal;
use crate::modes::ModeError;
use crate::seat::{Ids, Name};

/// Why a container may not start.
#[derive(Debug, Error)]
pub enum PreStartError {
    /// The pod may not have it. The text is for the user.
    #[error("{0}")]
    Refused(Refusal),
    /// The container would start without its GPU.
    #[error(
        "the container would start without its GPU and without limits: {0}; the kubelet will try again"
    )]
    Runtime(String),
    /// Whether it would is not known yet.
    #[error(
        "the agent has not looked at the container runtime yet, which it does once the API server shows it this node; the kubelet will try again"
    )]
    NotLooked,
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nobody holds these seats.
    #[error(
        "the kubelet's device checkpoint names no container with exactly the seats {0:?}; it will try again"
    )]
    NoHolder(Ids),
    /// The pod is not known yet and the API server cannot be asked.
    #[error(
        "cannot ask the API server for pod {pod}, which starts here for the first time: {source}; the kubelet will try again"
    )]
    Lookup {
        /// The pod.
        pod: PodUid,
        /// What kube found.
        source: kube::Error,
    },
    /// The API server does not answer.
    #[error(
        "cannot ask the API server for pod {0}, which starts here for the first time: no answer within 5 s; the kubelet will try again"
    )]
    LookupTimeout(PodUid),
    /// The accepted share cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The accepted share names a card that is not here any more.
    #[error(
        "pod {pod} holds a share of {gpu}, which is not on this node any more: delete the pod and create it again"
    )]
    CardGone {
        /// The pod.
        pod: PodUid,
        /// The card.
        gpu: GpuUuid,
    },
    /// What the mode of a unit needs is not there.
    #[error(transparent)]
    Equip(#[from] ModeError),
    /// More devices than a limits page holds.
    #[error("container {container}: {source}")]
    Page {
        /// The container.
        container: String,
        /// What does not fit.
        source: aliquot_region::limits::PageError,
    },
    /// A CDI spec cannot be written as JSON.
    #[error("cannot encode the CDI spec {name}: {source}")]
    Encode {
        /// Its name.
        name: Name,
        /// What serde found.
        source: serde_json::Error,
    },
    /// The work ended early.
    #[error("the agent is stopping")]
    Stopped,
}
