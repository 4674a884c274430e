//! What is declared is what is scraped, and what the reference says.

use std::collections::{BTreeMap, BTreeSet};

use std::time::UNIX_EPOCH;

use aliquot_nvml::{Bytes, Load};
use aliquot_region::host::Work;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::attribute::Reason;
use crate::judge::Unmanaged;
use crate::metrics::{ALL, Kind, reference};
use crate::seats::Seats;
use crate::testing::seat;

const GIB: u64 = 1 << 30;

fn cards() -> [CardNow; 1] {
    let bytes = Some(Bytes {
        total: 80 * GIB,
        used: 3 * GIB,
        reserved: GIB,
    });
    let instances = vec![InstanceNow {
        uuid: "MIG-1".to_owned(),
        profile: "3g.40gb".to_owned(),
        numbers: (2, 0),
        bytes,
    }];
    let some = Some(50);
    [CardNow {
        uuid: "GPU-a".to_owned(),
        index: 3,
        model: "NVIDIA A100".to_owned(),
        bus: "00000000:07:00.0".to_owned(),
        load: Load {
            busy: some,
            memory_busy: some,
            encoder: some,
            decoder: some,
            temperature: some,
            power: some,
            energy: Some(7),
            sm_clock: some,
            memory_clock: some,
        },
        bytes,
        instances,
    }]
}

fn scrape(families: &[Family]) -> String {
    let seats = vec![
        seat("s0", "u1", "main", &["GPU-a"]),
        seat("s1", "u2", "main", &["MIG-1"]),
    ];
    let look = Look {
        seats: Arc::new(Seats {
            all: seats,
            ..Seats::default()
        }),
        cards: [("MIG-1".to_owned(), "GPU-a".to_owned())].into(),
        ..Look::default()
    };
    let used = Use {
        limit: 4 * GIB,
        measured: 3 * GIB,
        tracked: 3 * GIB,
        contexts: GIB,
        processes: 1,
        work: Work {
            busy: 1_500_000_000,
            last: 1_000_000_000,
            launches: 4,
            waited: 250_000_000,
        },
        ..Use::default()
    };
    let outcome = Outcome {
        uses: vec![vec![used], vec![used]],
        strays: vec![Unmanaged {
            card: "GPU-a".to_owned(),
            pod: None,
            reason: Reason::Host,
            bytes: GIB,
        }],
        ..Outcome::default()
    };
    let shown = Shown::default();
    shown.set(Told {
        node: "n1".to_owned(),
        look,
        cards: cards().to_vec(),
        outcome,
        held: vec![vec![vec!["library", "driver"]]],
        driver_limits: [("GPU-a".to_owned(), true)].into(),
        pods: BTreeMap::new(),
        listed: true,
        done: Done::default(),
        failures: [("processes", 2)].into(),
        dropped: 0,
        took: Duration::from_millis(2),
        now: 3_000_000_000,
        ended: UNIX_EPOCH + Duration::from_secs(7),
    });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exporter {
        shown,
        families: families.to_vec(),
    }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("written");
    text
}

#[test]
fn every_declared_figure_is_scraped_and_no_other() {
    let families = [Family::Own, Family::Hami, Family::Dcgm];
    let text = scrape(&families);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let found: BTreeMap<_, _> = types.filter_map(|line| line.split_once(' ')).collect();
    let kind = |kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let declared: BTreeMap<_, _> = ALL.iter().map(|one| (one.name, kind(one.kind))).collect();
    assert_eq!(found, declared);
    assert_eq!(declared.len(), ALL.len());
    let lines: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|both| both.0)
        .collect();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(
        lines.iter().filter(|line| !line.starts_with('#')).count(),
        samples.count()
    );
    let own = scrape(&[Family::Own]);
    assert!(!own.contains("hami_") && !own.contains("DCGM_"));
}

fn check(line: &str) {
    let text = scrape(&[Family::Own, Family::Hami, Family::Dcgm]);
    assert!(text.lines().any(|found| found == line), "{line}\n{text}");
}

#[test]
fn a_share_has_its_figures_under_our_names_and_hamis() {
    let labels = "node=\"n1\",gpu=\"3\",uuid=\"GPU-a\",mode=\"vgpu\",profile=\"\",namespace=\"default\",pod=\"pod-u1\",container=\"main\",pod_uid=\"u1\"";
    let ours =
        |name: &str, value: &str| check(&format!("aliquot_share_{name}{{{labels}}} {value}"));
    ours("memory_used_bytes", "3221225472");
    ours("memory_limit_bytes", "4294967296");
    ours("core_limit_ratio", "0.3");
    ours("compute_seconds_total", "1.5");
    ours("throttled_seconds_total", "0.25");
    ours("last_kernel_seconds", "2.0");
    check(
        "hami_vgpu_memory_used_bytes{namespace=\"default\",pod=\"pod-u1\",container=\"main\",vdevice_index=\"0\",device_uuid=\"GPU-a\"} 3221225472",
    );
    for by in ["library", "driver"] {
        check(&format!(
            "aliquot_share_memory_enforced{{{labels},by=\"{by}\"}} 1"
        ));
    }
    check(
        "hami_vgpu_memory_buffer_bytes{namespace=\"default\",pod=\"pod-u1\",container=\"main\",vdevice_index=\"0\",device_uuid=\"GPU-a\"} 2147483648",
    );
    check(
        "DCGM_FI_DEV_FB_FREE{gpu=\"3\",UUID=\"GPU-a\",pci_bus_id=\"00000000:07:00.0\",device=\"nvidia3\",modelName=\"NVIDIA A100\",hostname=\"n1\"} 77824",
    );
    check("aliquot_gpu_shares{node=\"n1\",gpu=\"3\",uuid=\"GPU-a\",model=\"NVIDIA A100\"} 2");
    check(
        "aliquot_gpu_unmanaged_memory_bytes{node=\"n1\",gpu=\"3\",uuid=\"GPU-a\",reason=\"host\",namespace=\"\",pod=\"\"} 1073741824",
    );
    check("aliquot_monitor_lingering_seats{node=\"n1\"} 2");
}

#[test]
fn mig_11_each_instance_has_its_own_series() {
    let labels = "node=\"n1\",gpu=\"3\",uuid=\"MIG-1\",mode=\"vgpu\",profile=\"3g.40gb\",namespace=\"default\",pod=\"pod-u2\",container=\"main\",pod_uid=\"u2\"";
    check(&format!(
        "aliquot_share_memory_used_bytes{{{labels}}} 3221225472"
    ));
    let instance = "node=\"n1\",gpu=\"3\",uuid=\"MIG-1\",profile=\"3g.40gb\",gi=\"2\",ci=\"0\"";
    check(&format!(
        "aliquot_instance_memory_used_bytes{{{instance}}} 3221225472"
    ));
    check(&format!(
        "aliquot_instance_memory_total_bytes{{{instance}}} 85899345920"
    ));
}

#[test]
fn the_reference_of_the_monitors_metrics_is_made_from_the_table() {
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
