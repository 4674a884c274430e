//! The commands in the `sh` blocks of README.md and docs: each is run by a test, or listed here with the
//! reason why not.

use crate::documents::is_test;

/// How a command begins, and the test that runs it.
pub const RUN: &[(&str, &str)] = &[
    (
        "kubectl aliquot config",
        "runs_every_documented_config_command",
    ),
    (
        "kubectl aliquot explain",
        "user_queries_the_scheduler_through_the_api_server",
    ),
    (
        "kubectl aliquot top",
        "user_queries_the_scheduler_through_the_api_server",
    ),
    (
        "kubectl aliquot dashboard",
        "user_queries_the_scheduler_through_the_api_server",
    ),
    (
        "kubectl aliquot doctor",
        "doctor_checks_a_real_cluster_and_predicts_a_migration",
    ),
    (
        "kubectl aliquot doctor node",
        "hami_12_pod_survives_chart_upgrade_and_uninstall",
    ),
    (
        "kubectl create token",
        "hami_12_pod_survives_chart_upgrade_and_uninstall",
    ),
    (
        "kubectl proxy",
        "hami_12_pod_survives_chart_upgrade_and_uninstall",
    ),
    ("k3s ctr images import", "quick_start_runs_as_written"),
    (
        "kubectl set image --local -f examples/gpu-pod.yaml",
        "quick_start_runs_as_written",
    ),
    ("kubectl exec -i gpu-pod", "quick_start_runs_as_written"),
    (
        "images/build.sh",
        "hami_12_pod_survives_chart_upgrade_and_uninstall",
    ),
    ("helm install", "helm_lifecycle_leaves_nothing_behind"),
    ("helm upgrade", "helm_lifecycle_leaves_nothing_behind"),
    ("helm rollback", "helm_lifecycle_leaves_nothing_behind"),
    (
        "helm uninstall",
        "hami_12_pod_survives_chart_upgrade_and_uninstall",
    ),
    (
        "kubectl annotate node NODE aliquot.dev/device-cordon",
        "cordoned_gpu_gets_no_new_pods_until_uncordoned",
    ),
];

/// How a command begins, and why no test runs it.
pub const NOT_RUN: &[(&str, &str)] = &[
    (
        "kubectl-aliquot simulate",
        "takes minutes and the trace; `make bench` measures the same table",
    ),
    ("make bench", "measures for an hour, in release builds"),
    ("kubectl wait", "Kubernetes' own"),
    (
        "cargo build --release",
        "takes minutes; tests build the image from debug builds",
    ),
    (
        "kubectl patch clusterpolicies.nvidia.com",
        "GPU Operator's own, which no test has",
    ),
    (
        "make demo",
        "starts a cluster that stays; it is started by hand before a release",
    ),
    (
        "kubectl create namespace",
        "Kubernetes' own; tests make the namespace by the API",
    ),
    (
        "kubectl label",
        "Kubernetes' own; tests set the same labels by the API",
    ),
    (
        "kubectl drain",
        "Kubernetes' own: the test cluster's nodes have no second one to go to",
    ),
    (
        "kubectl delete pod",
        "Kubernetes' own; tests delete pods by the API",
    ),
    ("kubectl cordon", "Kubernetes' own"),
    ("kubectl uncordon", "Kubernetes' own"),
    ("kubectl delete node", "Kubernetes' own"),
    (
        "kubectl delete mutatingwebhookconfiguration",
        "after a crash in the middle of an uninstallation, which no test makes",
    ),
    ("kubectl delete secret/aliquot-webhook-tls", "the same"),
    ("kubectl delete clusterrole/aliquot-leave", "the same"),
    ("kubectl annotate nodes --all", "the same"),
    ("kubectl patch node NODE --subresource=status", "the same"),
    ("umount /var/lib/aliquot", "the same"),
    ("rm -rf /var/lib/aliquot", "the same"),
    ("semanage", "the test machine has no SELinux"),
    ("oc adm", "OpenShift's own, which no test has"),
    (
        "aliquot-device-plugin mps-keeper",
        "started with the test's own folders by the scenarios of MPS",
    ),
];

/// Programs that must not be in a block without `sh`.
const PROGRAMS: [&str; 5] = ["kubectl ", "helm ", "make ", "cargo ", "$ "];

/// A command of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// Its line number.
    pub line: usize,
    /// Without the comment after it.
    pub text: &'a str,
}

/// The commands of the `sh` blocks, and the lines in other blocks that look like commands.
pub fn commands(text: &str) -> (Vec<Command<'_>>, Vec<usize>) {
    let (mut found, mut hidden) = (Vec::new(), Vec::new());
    let mut block: Option<&str> = None;
    // The line before ends with a backslash.
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            block = match block {
                Some(_) => None,
                None => Some(language),
            };
            continue;
        }
        let text = line.split("  #").next().unwrap_or(line).trim();
        let goes_on = std::mem::replace(&mut open, text.ends_with('\\'));
        match block {
            Some("sh") if !text.is_empty() && !goes_on => found.push(Command {
                line: index + 1,
                text,
            }),
            Some("") if PROGRAMS.iter().any(|program| text.starts_with(program)) => {
                hidden.push(index + 1);
            }
            _ => {}
        }
    }
    (found, hidden)
}

/// The longest entry that a command begins with.
pub fn entry<'a>(command: &str, tables: &[&[(&'a str, &'a str)]]) -> Option<(&'a str, &'a str)> {
    let all = tables.iter().flat_map(|table| table.iter());
    let fits = all.filter(|(start, _)| command.starts_with(start));
    fits.max_by_key(|(start, _)| start.len()).copied()
}

/// Commands without an entry, entries that no document needs, and entries whose test does not exist.
/// `documents` are paths and texts.
pub fn errors(documents: &[(&str, &str)], sources: &[&str]) -> Vec<String> {
    let (mut errors, mut used) = (Vec::new(), Vec::new());
    for (path, text) in documents {
        let (found, hidden) = commands(text);
        for line in hidden {
            errors.push(format!(
                "{path}:{line}: a command in a block that is not marked sh"
            ));
        }
        for Command { line, text } in found {
            match entry(text, &[RUN, NOT_RUN]) {
                Some((start, _)) => used.push(start),
                None => errors.push(format!(
                    "{path}:{line}: no test runs `{text}`, and tests/style/src/commands.rs has no reason why"
                )),
            }
        }
    }
    let stale = RUN
        .iter()
        .chain(NOT_RUN)
        .filter(|(start, _)| !used.contains(start));
    errors.extend(stale.map(|(start, _)| format!("no document has `{start}`; remove its entry")));
    let gone = RUN.iter().filter(|(_, test)| !is_test(test, sources));
    errors.extend(gone.map(|(start, test)| format!("`{start}`: there is no test {test}")));
    errors
}
