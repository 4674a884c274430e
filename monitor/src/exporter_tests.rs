//! The exported metrics match their declarations, and so does the reference.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_nvml::{DeviceMemory, GpuUtilization};
use aliquot_region::host::LaunchCounters;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::attribution::UnmanagedReason;
use crate::evaluation::UnmanagedProcess;
use crate::metrics::{ALL, reference};
use crate::node_sample::ProcessSample;
use crate::testing::{container, node_sample, page, process, process_sample};

const GIB: u64 = 1 << 30;

fn gpus() -> [GpuSample; 1] {
    let bytes = Some(DeviceMemory {
        total: 80 * GIB,
        used: 3 * GIB,
        reserved: GIB,
    });
    let instances = vec![InstanceSample {
        uuid: "MIG-1".to_owned(),
        profile: "3g.40gb".to_owned(),
        numbers: (2, 0),
        bytes,
    }];
    let some = Some(50);
    [GpuSample {
        uuid: "GPU-a".to_owned(),
        index: 3,
        model: "NVIDIA A100".to_owned(),
        load: GpuUtilization {
            busy: some,
            memory_busy: some,
            temperature: some,
            power: some,
        },
        bytes,
        instances,
    }]
}

fn scrape_with(hami: bool, change: impl FnOnce(&mut NodeSample)) -> String {
    scrape_evaluated(hami, change, |_| ())
}

fn check_lines(text: &str, series: &str, expected: &[&str]) {
    let begin = format!("{series}{{");
    let lines = text.lines().filter(|line| line.starts_with(&begin));
    let values = lines.filter_map(|line| Some(line.rsplit_once(' ')?.1));
    assert_eq!(values.collect::<Vec<_>>(), expected, "{series}");
}

pub(crate) fn snapshot(
    change: impl FnOnce(&mut NodeSample),
    change_evaluation: impl FnOnce(&mut Evaluation),
) -> Snapshot {
    let containers = vec![
        container("s0", "u1", "main", &["GPU-a"]),
        container("s1", "u2", "main", &["MIG-1"]),
    ];
    let mut sample = NodeSample {
        pages: vec![vec![page(4 * GIB)]; 2],
        gpus: [("MIG-1".to_owned(), "GPU-a".to_owned())].into(),
        ..node_sample(containers)
    };
    change(&mut sample);
    let used = ContainerUse {
        limit: 4 * GIB,
        measured: 3 * GIB,
        tracked: 3 * GIB,
        contexts: GIB,
        processes: 1,
        work: LaunchCounters {
            busy: 1_500_000_000,
            last: 1_000_000_000,
            launches: 4,
            waited: 250_000_000,
            ..LaunchCounters::default()
        },
        ..ContainerUse::default()
    };
    let mut evaluation = Evaluation {
        uses: vec![vec![used], vec![used]],
        unmanaged: vec![UnmanagedProcess {
            gpu: "GPU-a".to_owned(),
            pod: None,
            reason: UnmanagedReason::Host,
            bytes: Some(GIB),
        }],
        ..Evaluation::default()
    };
    change_evaluation(&mut evaluation);
    Snapshot {
        node: "n1".to_owned(),
        sample,
        gpus: gpus().to_vec(),
        evaluation,
        enforced_by: vec![vec![vec!["library", "driver"]]],
        driver_limits: [("GPU-a".to_owned(), true)].into(),
        listed: true,
        action_counts: ActionCounts::default(),
        failures: [("processes", 2)].into(),
        dropped: 0,
        took: Duration::from_millis(2),
        now: 3_000_000_000,
        completed_at: UNIX_EPOCH + Duration::from_secs(7),
    }
}

fn scrape_evaluated(
    hami: bool,
    change: impl FnOnce(&mut NodeSample),
    change_evaluation: impl FnOnce(&mut Evaluation),
) -> String {
    let shown = LatestSnapshot::default();
    shown.set(snapshot(change, change_evaluation));
    scrape(shown, hami)
}

fn scrape(shown: LatestSnapshot, hami: bool) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exporter { shown, hami }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("written");
    text
}

#[test]
fn exports_exactly_the_declared_metrics() {
    let text = scrape_with(true, |_| ());
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let found: BTreeMap<_, _> = types.filter_map(|line| line.split_once(' ')).collect();
    let declared = ALL.iter().map(|one| (one.name, one.kind.as_str()));
    let declared: BTreeMap<_, _> = declared.collect();
    assert_eq!(found, declared);
    assert_eq!(declared.len(), ALL.len());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series = samples.filter_map(|line| Some(line.rsplit_once(' ')?.0));
    let series: Vec<&str> = series.collect();
    let distinct: BTreeSet<&str> = series.iter().copied().collect();
    assert_eq!(distinct.len(), series.len());
    assert!(!scrape_with(false, |_| ()).contains("hami_"));
}

fn check(line: &str) {
    let text = scrape_with(true, |_| ());
    assert!(text.lines().any(|found| found == line), "{line}\n{text}");
}

/// A monitor that was restarted because the driver does not answer has no other sample.
#[test]
fn exports_since_when_the_first_sample_does_not_complete() {
    let shown = LatestSnapshot::default();
    let series = "aliquot_monitor_last_sample_timestamp_seconds";
    let overdue = |second| shown.set_overdue("n1", UNIX_EPOCH + Duration::from_secs(second));
    check_lines(&scrape(shown.clone(), false), series, &[]);
    overdue(5);
    overdue(6);
    check_lines(&scrape(shown.clone(), false), series, &["5.0"]);
    shown.set(snapshot(|_| (), |_| ()));
    overdue(9);
    check_lines(&scrape(shown, false), series, &["7.0"]);
}

#[test]
fn exports_share_under_own_and_hami_names() {
    let labels = "node=\"n1\",gpu=\"3\",uuid=\"GPU-a\",mode=\"vgpu\",profile=\"\",namespace=\"default\",pod=\"pod-u1\",container=\"main\",pod_uid=\"u1\"";
    let ours =
        |name: &str, value: &str| check(&format!("aliquot_share_{name}{{{labels}}} {value}"));
    ours("memory_used_bytes", "3221225472");
    ours("memory_limit_bytes", "4294967296");
    ours("memory_request_bytes", "4294967296");
    ours("memory_lent_bytes", "0");
    ours("core_limit_ratio", "0.3");
    ours("compute_seconds_total", "1.5");
    ours("throttled_seconds_total", "0.25");
    ours("last_kernel_seconds", "2.0");
    let theirs = "namespace=\"default\",pod=\"pod-u1\",container=\"main\",vdevice_index=\"0\",device_uuid=\"GPU-a\"";
    check(&format!(
        "hami_vgpu_memory_used_bytes{{{theirs}}} 3221225472"
    ));
    check(&format!(
        "hami_vgpu_memory_buffer_bytes{{{theirs}}} 2147483648"
    ));
    for by in ["library", "driver"] {
        let labels = format!("{labels},by=\"{by}\"");
        check(&format!("aliquot_share_memory_enforced{{{labels}}} 1"));
    }
    check("aliquot_gpu_shares{node=\"n1\",gpu=\"3\",uuid=\"GPU-a\",model=\"NVIDIA A100\"} 2");
    check(
        "aliquot_gpu_unmanaged_memory_bytes{node=\"n1\",gpu=\"3\",uuid=\"GPU-a\",reason=\"host\",namespace=\"\",pod=\"\"} 1073741824",
    );
    check("aliquot_monitor_orphaned_containers{node=\"n1\"} 2");
}

#[test]
fn reports_memory_beyond_the_request() {
    // 0: unknown.
    for (request, lent) in [(GIB, Some("2147483648")), (4 * GIB, Some("0")), (0, None)] {
        let text = scrape_with(false, |sample| {
            sample.pages = vec![vec![page(request)]; 2];
        });
        let lent: Vec<&str> = lent.into_iter().cycle().take(2).collect();
        check_lines(&text, "aliquot_share_memory_lent_bytes", &lent);
        let request = request.to_string();
        let both = [&*request; 2];
        check_lines(&text, "aliquot_share_memory_request_bytes", &both);
    }
}

#[test]
fn container_without_control_has_no_limit_in_metrics() {
    for uncontrolled in [false, true] {
        let text = scrape_with(true, |sample| {
            let containers = Arc::make_mut(&mut sample.containers);
            containers.all[0].effective.uncontrolled = uncontrolled;
        });
        let own = text.lines().filter(|line| line.contains("pod=\"pod-u1\""));
        let own = own.collect::<Vec<_>>().join("\n");
        for limit in [
            "aliquot_share_memory_limit_bytes{",
            "aliquot_share_memory_request_bytes{",
            "aliquot_share_memory_lent_bytes{",
            "aliquot_share_core_limit_ratio{",
            "hami_vgpu_memory_limit_bytes{",
        ] {
            assert_eq!(own.contains(limit), !uncontrolled, "{limit}");
        }
        let flag = u8::from(uncontrolled).to_string();
        check_lines(&own, "aliquot_share_uncontrolled", &[&flag]);
    }
}

#[test]
fn reports_processes_whose_memory_is_not_available() {
    for (first, unavailable, used) in [(Some(1), 0, [2, 2, 1]), (None, 1, [1, 1, 0])] {
        let on = |bytes| ProcessSample {
            bytes,
            ..process_sample("GPU-a", process(7, Some("u1"), "main"), 0)
        };
        let text = scrape_evaluated(
            true,
            |sample| sample.processes = vec![on(first), on(Some(2))],
            |evaluation| {
                evaluation.uses[0][0].unavailable = unavailable;
                evaluation.unmanaged[0].bytes = first;
            },
        );
        let shown = unavailable.to_string();
        check_lines(&text, "aliquot_gpu_unavailable_processes", &[&shown]);
        let series = [
            "\naliquot_share_memory_used_bytes{",
            "\nhami_vgpu_memory_used_bytes{",
            "\naliquot_gpu_unmanaged_memory_bytes{",
        ];
        assert_eq!(series.map(|name| text.matches(name).count()), used);
        assert_eq!(text.matches("\naliquot_share_clients{").count(), 2);
    }
}

#[test]
fn reports_where_compute_is_not_corrected() {
    let gpu = |is: bool| -> BTreeSet<String> {
        let gpu = is.then(|| "GPU-a".to_owned());
        gpu.into_iter().collect()
    };
    // Of a GPU and of a MIG instance.
    for (uncorrected, unsampled, expected, used) in [
        (false, false, Some("1"), 2),
        (true, false, Some("0"), 0),
        (false, true, None, 0),
    ] {
        let text = scrape_with(true, |sample| {
            (sample.uncorrected, sample.unsampled) = (gpu(uncorrected), gpu(unsampled));
        });
        let expected: Vec<&str> = expected.into_iter().collect();
        check_lines(&text, "aliquot_gpu_compute_corrected", &expected);
        for series in [
            "\naliquot_share_core_used_ratio{",
            "\nhami_container_device_utilization_ratio{",
        ] {
            assert_eq!(text.matches(series).count(), used, "{series}");
        }
    }
}

#[test]
fn unreadable_gpu_has_no_number_of_processes() {
    let series = "aliquot_gpu_processes";
    check_lines(&scrape_with(false, |_| ()), series, &["0"]);
    let blind = scrape_with(false, |sample| {
        sample.blind.insert("GPU-a".to_owned());
    });
    check_lines(&blind, series, &[]);
}

#[test]
fn unread_counters_reset_no_counter() {
    let text = scrape_evaluated(
        true,
        |_| (),
        |evaluation| {
            let used = &mut evaluation.uses[0][0];
            *used = ContainerUse {
                unread: true,
                measured: used.measured,
                processes: used.processes,
                ..ContainerUse::default()
            };
        },
    );
    for (series, expected) in [
        ("aliquot_share_memory_used_bytes", 2),
        ("aliquot_share_memory_tracked_bytes", 1),
        ("aliquot_share_memory_stale_bytes", 1),
        ("aliquot_share_compute_seconds_total", 1),
        ("aliquot_share_throttled_seconds_total", 1),
        ("aliquot_share_launches_total", 1),
        ("aliquot_share_denied_allocations_total", 1),
        ("hami_vgpu_memory_buffer_bytes", 1),
    ] {
        let found = text.matches(&format!("\n{series}{{")).count();
        assert_eq!(found, expected, "{series}");
    }
}

#[test]
fn mig_11_exports_series_for_each_instance() {
    let labels = "node=\"n1\",gpu=\"3\",uuid=\"MIG-1\",mode=\"vgpu\",profile=\"3g.40gb\",namespace=\"default\",pod=\"pod-u2\",container=\"main\",pod_uid=\"u2\"";
    let used = "aliquot_share_memory_used_bytes";
    check(&format!("{used}{{{labels}}} 3221225472"));
    let instance = "node=\"n1\",gpu=\"3\",uuid=\"MIG-1\",profile=\"3g.40gb\",gi=\"2\",ci=\"0\"";
    for (name, value) in [("used", "3221225472"), ("total", "85899345920")] {
        check(&format!(
            "aliquot_instance_memory_{name}_bytes{{{instance}}} {value}"
        ));
    }
}

#[test]
fn metrics_reference_matches_declarations() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/reference/monitor-metrics.md"
    );
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, reference()).expect("written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/monitor-metrics.md");
    assert_eq!(written, reference(), "run: make reference");
}
