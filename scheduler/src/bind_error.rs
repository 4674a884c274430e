//! Why a pod was not bound, as kube-scheduler and the user read it.
//!
//! Fed by: [`crate::bind`]. Must not: stand for an outcome that is not definite.

use aliquot_core::NodeName;
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod::DemandError;
use thiserror::Error;

/// All annotations of an object together (apimachinery `TotalAnnotationSizeLimitB`).
pub(crate) const ANNOTATIONS: usize = 256 << 10;

/// Why a pod was not bound. The text goes to kube-scheduler and into its event.
#[derive(Debug, Error)]
pub enum BindError {
    /// The pod is not in the API server, or another one has its name.
    #[error("pod {namespace}/{name} with uid {uid} is gone", namespace = .0.namespace, name = .0.name, uid = .0.uid)]
    Gone(PodRef),
    /// The pod's resources cannot be read.
    #[error("the pod's GPU request cannot be read: {0}")]
    Demand(#[from] DemandError),
    /// The node no longer has room.
    #[error("node {node} can no longer serve the GPU request: {why}")]
    Refused {
        /// The node.
        node: NodeName,
        /// The reasons, counted.
        why: String,
    },
    /// The pod holds shares on another node.
    #[error("the pod is booked on node {node} already")]
    Booked {
        /// That node.
        node: NodeName,
    },
    /// The allocation would not fit beside the pod's own annotations.
    #[error(
        "the pod's annotations have {used} bytes; its allocation needs {needed} more, {ANNOTATIONS} are allowed"
    )]
    Annotations {
        /// Bytes in use.
        used: usize,
        /// Bytes of the allocation.
        needed: usize,
    },
    /// The allocation cannot be written as text.
    #[error(transparent)]
    Encode(#[from] aliquot_core::allocation::CodecError),
    /// The API server refused the Binding for good.
    #[error("the API server refused the binding: {0}")]
    Rejected(String),
    /// The pod is bound, but not by this Binding.
    #[error("the pod is bound to {0:?} by another binding")]
    Elsewhere(String),
    /// Another replica leads, or this one not yet.
    #[error("this replica may not bind: {0}")]
    NotLeading(String),
    /// The pod cannot be fetched.
    #[error("cannot get the pod: {0}")]
    Get(String),
}

impl BindError {
    /// How the call is counted: `conflict` for a node that was full by then,
    /// `gone` for a pod that was, else `error`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "conflict",
            Self::Gone(_) => "gone",
            _ => "error",
        }
    }
}
