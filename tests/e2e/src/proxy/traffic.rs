//! The requests to which a rule applies, by method and path.

use hyper::{Method, Request};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The POST that binds a pod.
    Binding,
    /// A POST that evicts a pod, not only tries to.
    Eviction,
}

impl Traffic {
    /// Whether the request is of this kind.
    pub(super) fn is<T>(self, request: &Request<T>) -> bool {
        let (path, query) = (request.uri().path(), request.uri().query());
        let is_kind = match self {
            Self::Binding => path.ends_with("/binding"),
            Self::Eviction => {
                let tried = query.is_some_and(|query| query.contains("dryRun"));
                path.ends_with("/eviction") && !tried
            }
        };
        request.method() == Method::POST && is_kind
    }
}
