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
        )?;
        match explained_pod(path) {
            Some((namespace, pod)) => write!(f, ", or the right to get pod {namespace}/{pod}"),
            None => Ok(()),
        }
    }
}

/// The namespace and the name of the pod that this path explains: whoever may get the pod may read why it waits.
pub fn explained_pod(path: &str) -> Option<(&str, &str)> {
    let (namespace, pod) = path.strip_prefix("/explain/")?.split_once('/')?;
    (is_name(namespace) && is_name(pod)).then_some((namespace, pod))
}

/// Whether the text is written as names of Kubernetes are, so that no server decodes it to another name.
fn is_name(text: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    text.bytes().all(is_part) && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_whose_explanation_a_path_is() {
        assert_eq!(
            explained_pod("/explain/team/p-1.x"),
            Some(("team", "p-1.x"))
        );
        for path in [
            "/explain/team/%2e%2e",
            "/explain/team/..",
            "/explain/team/p/q",
            "/explain/team/",
            "/explain//p",
            "/explain/team",
            "/top",
        ] {
            assert_eq!(explained_pod(path), None, "{path}");
        }
    }
}
