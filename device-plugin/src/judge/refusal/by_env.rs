//! Why a pod may not start on a node that hands GPUs over without CDI.
//!
//! Fed by: [`crate::by_env`]. Must not: decide.

use std::fmt;

/// What was told to the container before its pod was known is not what it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByEnv {
    /// The container was given what needs CDI.
    NeedsCdi(String, &'static str),
    /// It was told other GPUs than it was given.
    Other {
        /// The container.
        container: String,
        /// What it was told.
        named: Vec<String>,
        /// What it was given.
        given: Vec<String>,
    },
    /// It was told nothing of limits when it was admitted.
    Unlimited(String),
    /// Part of its environment is known to the kubelet alone, and could name other GPUs.
    FromElsewhere(String),
    /// The pod's own environment asks for more of the driver than is allowed.
    Capability {
        /// The container.
        container: String,
        /// What it asks for.
        word: String,
        /// What it may.
        accepted: String,
    },
}

impl fmt::Display for ByEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeedsCdi(container, what) => write!(
                f,
                "container {container} was given {what}, which reaches a container by CDI only, and this node hands GPUs over without it: ask your administrator for a node with CDI (devicePlugin.deviceList)"
            ),
            Self::Other {
                container,
                named,
                given,
            } => write!(
                f,
                "container {container} was told {} by the kubelet and was given {} by the scheduler (this node hands GPUs over without CDI, before the pod is known): delete the pod and create it again",
                named.join(","),
                given.join(",")
            ),
            Self::Unlimited(container) => write!(
                f,
                "container {container} was admitted when its GPU had no limits, and has some now: delete the pod and create it again"
            ),
            Self::FromElsewhere(container) => write!(
                f,
                "container {container} takes its environment from another object (envFrom), which could name GPUs past its share where a node hands them over by environment: write its variables one by one (env, valueFrom), or ask your administrator for a node with CDI or devicePlugin.deviceList=volume-mounts"
            ),
            Self::Capability {
                container,
                word,
                accepted,
            } => write!(
                f,
                "container {container} sets NVIDIA_DRIVER_CAPABILITIES with {word:?}, and a share of its GPU comes with {accepted}: leave the variable out, or ask your administrator for a profile that allows it"
            ),
        }
    }
}
