//! Paths compared by component. No file system is read: symbolic links other than
//! `/var/run` are not resolved.

/// The components of an absolute path; `/var/run` is `/run`, as on every node.
pub fn components(path: &str) -> Vec<&str> {
    let mut components = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                components.pop();
            }
            name => components.push(name),
        }
    }
    if components.starts_with(&["var", "run"]) {
        components.remove(0);
    }
    components
}

/// Whether one path equals or contains the other.
pub fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (components(one), components(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// `path` is `top` or below it.
pub fn is_within(path: &str, top: &str) -> bool {
    components(path).starts_with(&components(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_overlap_when_one_contains_the_other() {
        for (one, other, expected) in [
            ("/dev", "/dev", true),
            ("/", "/dev", true),
            ("/dev/nvidia0", "/dev", true),
            ("//dev/./shm/../nvidia0/", "/dev", true),
            ("/developers", "/dev", false),
            ("/var/run/cdi", "/run/cdi", true),
            ("/var", "/var/lib/kubelet", true),
            ("/var/log", "/var/lib/kubelet", false),
            ("/..", "/dev", true),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} {other}");
        }
        assert!(is_within("/dev/shm/x", "/dev/shm"));
        assert!(!is_within("/dev", "/dev/shm"));
    }
}
