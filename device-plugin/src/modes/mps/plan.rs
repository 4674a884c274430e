//! The arithmetic of MPS: even shares, the number of clients, and the commands for a daemon.

use aliquot_core::{Mib, Percent};
use aliquot_node_state::mps::{DaemonSpec, VERSION};
use aliquot_profiles::mode::{ComputeMode, Mps};

pub use aliquot_profiles::mps::{even_share, max_clients};

/// Why so many replicas are impossible; the text is for the administrator.
pub fn refusal(
    replicas: u32,
    capability: Option<(u32, u32)>,
    part: Option<(u32, u32)>,
) -> Option<String> {
    let most = max_clients(capability, part);
    (u64::from(replicas) > most).then(|| {
        format!(
            "replicas: {replicas} exceeds what one MPS daemon can serve on this device, expected 1 to {most}"
        )
    })
}

/// The spec of the daemon that a device needs. `gpu` is the GPU whose compute mode is set, `None`
/// for an instance.
pub fn daemon_spec(device: &str, memory: Mib, settings: &Mps, gpu: Option<&str>) -> DaemonSpec {
    let part = even_share(memory, settings);
    DaemonSpec {
        v: VERSION,
        device: device.to_owned(),
        exclusive: gpu
            .filter(|_| settings.compute_mode == ComputeMode::ExclusiveProcess)
            .map(str::to_owned),
        memory: if part.memory == Mib(0) {
            memory
        } else {
            part.memory
        },
        threads: if part.cores == Percent(0) {
            Percent::WHOLE
        } else {
            part.cores
        },
    }
}

/// The commands for a new daemon, and for its running servers.
pub fn commands(spec: &DaemonSpec, servers: &[u32]) -> Vec<String> {
    let (memory, threads) = (spec.memory.0, spec.threads.0);
    // By index: a daemon ignores UUIDs, and its only device is device 0.
    let mut commands = vec![
        format!("set_default_device_pinned_mem_limit 0 {memory}M"),
        format!("set_default_active_thread_percentage {threads}"),
    ];
    for server in servers {
        commands.push(format!("set_device_pinned_mem_limit {server} 0 {memory}M"));
        commands.push(format!("set_active_thread_percentage {server} {threads}"));
    }
    commands
}

#[cfg(test)]
mod tests {
    use aliquot_profiles::mode::DefaultShare;

    use super::*;

    #[test]
    fn mps_3_limits_daemon_to_even_memory_and_threads() {
        for (memory, replicas, limit, threads) in [
            (40_960, 4, "10240M", 25),
            (40_537, 3, "13512M", 33),
            (40_960, 1, "40960M", 100),
        ] {
            let spec = daemon_spec("GPU-a", Mib(memory), &Mps::new(replicas), Some("GPU-a"));
            let expected = [
                format!("set_default_device_pinned_mem_limit 0 {limit}"),
                format!("set_default_active_thread_percentage {threads}"),
            ];
            assert_eq!(commands(&spec, &[]), expected, "{memory} MiB by {replicas}");
        }
    }

    #[test]
    fn larger_share_raises_daemon_and_server_limits() {
        let spec = daemon_spec("GPU-a", Mib(40_960), &Mps::new(4), None);
        assert_eq!(spec.with_at_least(Mib(5000), Percent(10)), spec);
        assert_eq!(
            commands(&spec.with_at_least(Mib(20_000), Percent(50)), &[7]),
            [
                "set_default_device_pinned_mem_limit 0 20000M",
                "set_default_active_thread_percentage 50",
                "set_device_pinned_mem_limit 7 0 20000M",
                "set_active_thread_percentage 7 50",
            ]
        );
    }

    #[test]
    fn full_parts_set_no_limits() {
        let full = Mps {
            memory: DefaultShare::Full,
            threads: DefaultShare::Full,
            ..Mps::new(4)
        };
        let part = even_share(Mib(40_960), &full);
        assert_eq!((part.memory, part.cores), (Mib(0), Percent(0)));
        let spec = daemon_spec("GPU-a", Mib(40_960), &full, Some("GPU-a"));
        assert_eq!((spec.memory, spec.threads), (Mib(40_960), Percent(100)));
    }

    #[test]
    fn accepts_daemon_with_higher_limits_than_needed() {
        let spec = daemon_spec("GPU-a", Mib(40_960), &Mps::new(4), Some("GPU-a"));
        let check = |expected: bool, change: &dyn Fn(&mut DaemonSpec)| {
            let mut served = spec.clone();
            change(&mut served);
            assert_eq!(served.satisfies(&spec), expected, "{served:?}");
        };
        check(true, &|_| ());
        check(true, &|one| {
            *one = one.with_at_least(Mib(20_000), Percent(50));
        });
        check(false, &|one| one.memory = Mib(10_239));
        check(false, &|one| one.threads = Percent(24));
        check(false, &|one| one.device = "GPU-b".to_owned());
        check(false, &|one| one.exclusive = None);
    }

    #[test]
    fn mps_15_limits_clients_by_architecture_and_instance() {
        for (capability, part, most) in [
            (None, None, 48),
            (Some((9, 0)), None, 48),
            // V100, which NVIDIA's plugin treats as an older GPU.
            (Some((7, 0)), None, 48),
            (Some((6, 1)), None, 16),
            (Some((8, 0)), Some((3, 7)), 20),
            (Some((8, 0)), Some((1, 7)), 6),
            // An A30 has four slices.
            (Some((8, 0)), Some((1, 4)), 12),
            (Some((8, 0)), Some((2, 4)), 24),
            (Some((8, 0)), Some((4, 4)), 48),
        ] {
            let found = max_clients(capability, part);
            assert_eq!(found, most, "{capability:?} {part:?}");
        }
        assert_eq!(refusal(48, None, None), None);
        let text = refusal(17, Some((6, 0)), None).expect("refused");
        assert!(text.contains("17") && text.contains("1 to 16"), "{text}");
    }
}
