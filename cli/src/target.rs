//! How kubectl's commands name a pod.

/// The name in `NAME`, `pod/NAME`, `pods/NAME` or `po/NAME`.
pub(crate) fn parse_pod(text: &str) -> Result<String, String> {
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
