//! The pod that a command is about, named as kubectl's commands name it.

use clap::Args;

use crate::access::{Access, AccessError};

/// A pod and its namespace.
#[derive(Clone, Debug, Args)]
pub struct TargetPod {
    /// Name of the pod, with or without pod/ before it
    #[arg(value_name = "POD", value_parser = parse_pod)]
    pub pod: String,
    /// Namespace of the pod; defaults to that of the context
    #[arg(short, long)]
    pub namespace: Option<String>,
}

impl TargetPod {
    /// The namespace in which the pod is.
    pub async fn namespace(&self, access: &Access) -> Result<String, AccessError> {
        access.namespace(self.namespace.as_deref()).await
    }
}

/// The name in `NAME`, `pod/NAME`, `pods/NAME` or `po/NAME`.
fn parse_pod(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        None => text,
        Some(("pod" | "pods" | "po", name)) => name,
        Some(_) => "",
    };
    if name.is_empty() || name.contains('/') {
        return Err("expected: NAME or pod/NAME, and the namespace in --namespace".to_owned());
    }
    Ok(name.to_owned())
}
