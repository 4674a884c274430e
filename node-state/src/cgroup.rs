//! The pod and container of a process, from `/proc/<pid>/cgroup` (v1 and v2, the kubelet's systemd
//! and cgroupfs drivers, also where the runtime's is another), which no tenant can forge. Only the
//! first pod in a path counts: below its own cgroup a tenant may create others, under any name.

use aliquot_core::PodUid;

/// Part of the name of every slice with pods.
const SLICES: &str = "kubepods-";

/// The pod, container and cgroup of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProcessLocation {
    /// The pod's uid, as the kubelet knows it; `None`: in no pod.
    pub pod: Option<PodUid>,
    /// The runtime's id of its container, if it is in one.
    pub container: Option<String>,
    /// The cgroup of the container, or else of the pod.
    pub path: String,
}

/// Parses the content of `/proc/<pid>/cgroup`.
pub fn location(cgroups: &str) -> ProcessLocation {
    // `<number>:<controllers>:<path>`; a path may contain colons.
    let paths = cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    let mut found = paths.filter_map(in_pod);
    found.next().unwrap_or_default()
}

fn in_pod(path: &str) -> Option<ProcessLocation> {
    let mut end = 0;
    let mut below = false;
    let mut parts = path.split('/').map(|part| {
        end += part.len() + 1;
        (part, end - 1)
    });
    let (pod, name, at) = parts.find_map(|(part, end)| {
        let pod = below.then(|| pod_of(part)).flatten();
        below |= part == "kubepods";
        // The systemd driver prefixes each slice with its parents' names. A runtime with the other
        // driver below such a kubelet makes one name of slice and container.
        let slice = part.split(':').next().filter(|one| one.contains(SLICES));
        Some((pod.or_else(|| pod_of(slice?))?, part, end))
    })?;
    let (container, at) = match name.rsplit_once(':') {
        Some((_, id)) => (container_of(id), at),
        None => match parts.next() {
            Some((part, end)) if container_of(part).is_some() => (container_of(part), end),
            _ => (None, at),
        },
    };
    Some(ProcessLocation {
        pod: Some(pod),
        container: container.map(str::to_owned),
        path: path.get(..at)?.to_owned(),
    })
}

/// `pod<uid>`, or `kubepods-burstable-pod<uid with underscores>.slice`.
fn pod_of(part: &str) -> Option<PodUid> {
    let (slice, is_slice) = match part.strip_suffix(".slice") {
        Some(slice) => (slice, true),
        None => (part, false),
    };
    let named = if is_slice {
        let (_, own) = slice.split_once(SLICES)?;
        let classes = ["burstable-", "besteffort-"];
        let class = classes.iter().find_map(|class| own.strip_prefix(class));
        class.unwrap_or(own)
    } else {
        slice
    };
    let uid = named.strip_prefix("pod")?;
    let plain = |c: char| c.is_ascii_hexdigit() || matches!(c, '-' | '_');
    let is_uid = uid.len() >= 32 && uid.chars().all(plain);
    is_uid.then(|| PodUid::from(uid.replace('_', "-")))
}

/// `<64 hexadecimal digits>`, or `cri-containerd-<them>.scope`, `crio-<them>.scope`.
fn container_of(part: &str) -> Option<&str> {
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    let id = scope.rsplit('-').next()?;
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0b7a6b5c-1f2e-4d3c-8b9a-0123456789ab";

    fn id(digit: &str) -> String {
        digit.repeat(64)
    }

    #[test]
    fn parses_paths_of_every_cgroup_driver_and_version() {
        let (a, node, static_pod) = (id("a"), id("b"), &id("c")[..32]);
        let pod = format!("pod{}", UID.replace('-', "_"));
        let guaranteed = format!("kubepods.slice/kubepods-{pod}.slice");
        let slice =
            format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{pod}.slice");
        // containerd's default below a kubelet with the systemd driver.
        let one_name = format!("kubepods-burstable-{pod}.slice:cri-containerd:{a}");
        let own = format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-{pod}.slice");
        for cgroups in [
            format!("0::/kubepods/burstable/pod{UID}/{a}\n"),
            format!("0::/kubepods/pod{UID}/{a}"),
            format!("0::/{slice}/cri-containerd-{a}.scope"),
            format!("0::/{slice}/crio-{a}.scope"),
            format!("0::/{slice}/docker-{a}.scope"),
            format!("0::/{guaranteed}/cri-containerd-{a}.scope"),
            format!("0::/system.slice/containerd.service/{one_name}"),
            format!("12:pids:/user.slice\n3:memory:/kubepods/pod{UID}/{a}\n1:name=systemd:/x"),
            // A node in a container, and a reader in a namespace of cgroups.
            format!("0::/docker/{node}/kubelet/kubepods/pod{UID}/{a}"),
            format!("0::/../../kubepods/pod{UID}/{a}"),
            format!("0::/{node}/{own}/cri-containerd-{a}.scope/init"),
        ] {
            let found = location(&cgroups);
            assert_eq!(found.pod, Some(UID.into()), "{cgroups}");
            assert_eq!(found.container.as_ref(), Some(&a), "{cgroups}");
            assert!(cgroups.contains(&found.path) && found.path.starts_with('/'));
        }
        let found = location(&format!("0::/kubepods/besteffort/pod{UID}"));
        assert_eq!((found.pod, found.container), (Some(UID.into()), None));
        // The UID of a static pod has no dashes.
        let found = location(&format!("0::/kubepods/pod{static_pod}/{a}"));
        assert_eq!(found.pod, Some(static_pod.into()));
    }

    #[test]
    fn ignores_cgroups_below_that_of_container() {
        let (own, other) = (id("a"), id("b"));
        let victim = "11111111-1111-4111-8111-111111111111";
        let own_path = format!("/kubepods/burstable/pod{UID}/{own}");
        for below in [
            format!("kubepods/pod{victim}/{other}"),
            format!("pod{victim}/{other}"),
            other.clone(),
            format!("cri-containerd-{other}.scope"),
        ] {
            let found = location(&format!("0::{own_path}/{below}"));
            assert_eq!(found.pod, Some(UID.into()), "{below}");
            assert_eq!(found.container, Some(own.clone()), "{below}");
            assert_eq!(found.path, own_path, "{below}");
        }
    }

    #[test]
    fn returns_no_pod_for_process_outside_pods() {
        for cgroups in [
            "",
            "0::/",
            "0::/system.slice/sshd.service",
            "0::/user.slice/pod0b7a6b5c",
            "0::/kubepods/burstable",
            "0::/kubepods/podless/x",
            "nonsense",
        ] {
            assert_eq!(location(cgroups), ProcessLocation::default(), "{cgroups}");
        }
    }

    proptest! {
        #[test]
        fn parses_any_text(text in "[0-9a-f:/\\-_.podkubes\n]{0,200}") {
            let found = location(&text);
            prop_assert!(text.contains(&found.path));
        }
    }
}
