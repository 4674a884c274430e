//! The requests to which a rule applies, by method and path.

use hyper::{Method, Request};

/// A kind of request. The names are those of whole collections: `pods`, `nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The POST that binds a pod.
    Binding,
    /// A POST that evicts a pod, not only tries to.
    Eviction,
    /// A list of all objects of this kind.
    List(&'static str),
    /// A watch of all objects of this kind.
    Watch(&'static str),
}

impl Traffic {
    /// Whether the request is of this kind.
    pub(super) fn is<T>(self, request: &Request<T>) -> bool {
        let (method, uri) = (request.method(), request.uri());
        let watched = uri.query().is_some_and(|query| {
            let mut pairs = query.split('&');
            pairs.any(|pair| pair == "watch=true")
        });
        let all = |kind| method == Method::GET && uri.path() == format!("/api/v1/{kind}");
        match self {
            Self::Binding => method == Method::POST && uri.path().ends_with("/binding"),
            Self::Eviction => {
                let tried = uri.query().is_some_and(|query| query.contains("dryRun"));
                method == Method::POST && uri.path().ends_with("/eviction") && !tried
            }
            Self::List(kind) => all(kind) && !watched,
            Self::Watch(kind) => all(kind) && watched,
        }
    }
}

/// Whether the answer is a watch of a whole collection.
pub(super) fn is_watch<T>(request: &Request<T>) -> bool {
    ["pods", "nodes"]
        .into_iter()
        .any(|kind| Traffic::Watch(kind).is(request))
}
