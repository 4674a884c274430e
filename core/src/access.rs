//! Whether a request to a program's own port may be answered.

use std::fmt;

/// What Kubernetes answers about a token and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The token's account may get the path.
    Allowed,
    /// The token is not of any account.
    Unauthenticated,
    /// The token's account may not get the path.
    Forbidden(Forbidden),
}

/// An account, and the path that it may not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    pub account: String,
    pub path: String,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, path } = self;
        write!(
            f,
            "{account} may not get {path}; expected: a ClusterRole with the verb get for the nonResourceURL {path}, such as aliquot-metrics-reader or aliquot-viewer"
        )
    }
}
