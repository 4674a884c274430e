//! The chart's dashboards and alert rules use only metrics that exist, every metric is used, and every
//! alert is explained.

use std::collections::BTreeSet;
use std::fs;

use aliquot_chart::top;
use aliquot_e2e::prometheus;

/// Suffixes of the metric types.
const ENDS: [&str; 5] = ["", "_total", "_bucket", "_seconds", "_seconds_bucket"];

fn read(path: &str) -> String {
    fs::read_to_string(top(path)).expect(path)
}

/// Every dashboard and the rules, one after another.
fn shown() -> String {
    let folder = top("charts/aliquot/files/dashboards");
    let boards = fs::read_dir(folder).expect("a folder").map(|entry| {
        let path = entry.expect("a file").path();
        fs::read_to_string(path).expect("a dashboard")
    });
    boards.collect::<String>() + &read("charts/aliquot/files/alerts.yaml")
}

/// The names of Aliquot's metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_part(c));
    let ours = words.filter(|word| word.starts_with("aliquot_"));
    ours.map(str::to_owned).collect()
}

/// The metrics in a table of the reference.
fn of_table(path: &str) -> BTreeSet<String> {
    let text = read(path);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let ours = names.filter(|name| name.starts_with("aliquot_"));
    ours.map(str::to_owned).collect()
}

/// The metrics that a component registers under its prefix: the quoted strings after `before`.
fn of_source(path: &str, before: &str, prefix: &str) -> BTreeSet<String> {
    let text = read(path);
    let places = text.split(before).skip(1);
    let names = places.filter_map(|place| place.trim_start().strip_prefix('"')?.split('"').next());
    names.map(|name| format!("{prefix}_{name}")).collect()
}

/// The metrics of agent and webhook.
fn registered() -> BTreeSet<String> {
    let agent = "aliquot_device_plugin";
    let all = [
        of_source("device-plugin/src/metrics.rs", "registry.register(", agent),
        of_source("device-plugin/src/metrics.rs", " = ", agent),
        of_source(
            "device-plugin/src/publish/device_metrics.rs",
            "    (\n",
            agent,
        ),
        of_source(
            "webhook/src/metrics.rs",
            "registry.register(",
            "aliquot_webhook",
        ),
        of_source(
            "webhook/src/metrics.rs",
            "register_with_unit(",
            "aliquot_webhook",
        ),
    ];
    for found in &all {
        assert!(!found.is_empty(), "{all:?}");
    }
    all.into_iter().flatten().collect()
}

fn declared() -> BTreeSet<String> {
    let mut all = registered();
    for page in ["metrics", "monitor-metrics"] {
        let found = of_table(&format!("docs/reference/{page}.md"));
        assert!(!found.is_empty(), "{page}");
        all.extend(found);
    }
    all
}

fn is_same(shown: &str, declared: &str) -> bool {
    let end = shown.strip_prefix(declared);
    end.is_some_and(|end| ENDS.contains(&end))
}

#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    let declared = declared();
    let shown = named(&shown());
    assert!(shown.len() > 50, "{shown:?}");
    let is_known = |name: &&String| declared.iter().any(|one| is_same(name, one));
    let unknown: Vec<&String> = shown.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn reference_has_every_metric_of_agent_and_webhook() {
    let registered = registered();
    let described = of_table("docs/reference/agent-metrics.md");
    let differ = |name: &&String, others: &BTreeSet<String>| {
        !others
            .iter()
            .any(|other| is_same(name, other) || is_same(other, name))
    };
    let missing = registered.iter().filter(|name| differ(name, &described));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new());
    let unknown = described.iter().filter(|name| differ(name, &registered));
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn guide_says_what_each_alert_means() {
    let rules = read("charts/aliquot/files/alerts.yaml");
    let alerts: BTreeSet<&str> = rules
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("- alert: "))
        .collect();
    assert!(!alerts.is_empty());
    let guide = read("docs/guides/alerts.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `"));
    let explained: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    assert_eq!(explained, alerts);
}

#[test]
fn every_metric_has_a_dashboard_or_alert() {
    let shown = named(&shown());
    let is_shown = |name: &&String| shown.iter().any(|one| is_same(one, name));
    let declared = declared();
    let unseen: Vec<&String> = declared.iter().filter(|name| !is_shown(name)).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}

/// Each replica of the scheduler exports the whole ledger, and the chart installs two.
#[test]
fn dashboards_count_each_gpu_once_with_two_schedulers() {
    let is_of_one_replica = |before: &str| {
        let labels = before.strip_suffix(") (");
        let labels = labels.and_then(|before| before.rsplit_once("max by ("));
        labels.is_some_and(|(_, labels)| !labels.contains('('))
    };
    let mut found = 0;
    for (place, query) in prometheus::queries().expect("queries") {
        for ledger in ["aliquot_scheduler_gpu_", "aliquot_scheduler_quota_"] {
            for (at, _) in query.match_indices(ledger) {
                assert!(is_of_one_replica(&query[..at]), "{place}: {query}");
                found += 1;
            }
        }
    }
    assert!(found > 10, "{found}");
}
