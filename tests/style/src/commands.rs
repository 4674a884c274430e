//! The commands of the documents: each is run by a test, or stands here with the reason why not.
//!
//! Fed by: the fenced `sh` blocks of README.md and docs. Must not: let a command through that nobody
//! knows, or keep an entry that no document needs.

use crate::documents::is_test;

/// How a command begins, and the test that runs it.
pub const RUN: &[(&str, &str)] = &[
    (
        "kubectl aliquot config",
        "every_documented_command_of_config_runs",
    ),
    (
        "kubectl aliquot explain",
        "a_user_asks_the_scheduler_in_its_pod_through_the_api_server",
    ),
    (
        "kubectl aliquot top",
        "a_user_asks_the_scheduler_in_its_pod_through_the_api_server",
    ),
    (
        "kubectl aliquot doctor",
        "the_doctor_looks_at_a_real_cluster_and_foretells_a_move",
    ),
    (
        "kubectl aliquot doctor node",
        "hami_12_the_packaged_chart_runs_changes_and_goes_and_the_pod_stays",
    ),
    (
        "kubectl proxy",
        "hami_12_the_packaged_chart_runs_changes_and_goes_and_the_pod_stays",
    ),
    (
        "helm install",
        "install_upgrade_rollback_and_uninstall_leave_nothing_behind",
    ),
    (
        "helm upgrade",
        "install_upgrade_rollback_and_uninstall_leave_nothing_behind",
    ),
    (
        "helm rollback",
        "install_upgrade_rollback_and_uninstall_leave_nothing_behind",
    ),
    (
        "helm uninstall",
        "hami_12_the_packaged_chart_runs_changes_and_goes_and_the_pod_stays",
    ),
    (
        "kubectl annotate node NODE aliquot.dev/device-cordon",
        "a_cordoned_card_gets_no_new_pods_until_it_is_let_on_again",
    ),
];

/// How a command begins, and why no test runs it.
pub const NOT_RUN: &[(&str, &str)] = &[
    (
        "kubectl-aliquot simulate",
        "takes minutes and the trace; `make bench` measures the same table",
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

/// The programs that a block without `sh` must not hide.
const PROGRAMS: [&str; 5] = ["kubectl ", "helm ", "make ", "cargo ", "$ "];

/// A command of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// Where.
    pub line: usize,
    /// Without the remark behind it.
    pub text: &'a str,
}

/// The commands of its `sh` blocks; the error names lines that look like commands in a block that
/// is not marked so.
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
            // A drawing of the README begins with one.
            Some("")
                if text != "kubectl apply"
                    && PROGRAMS.iter().any(|program| text.starts_with(program)) =>
            {
                hidden.push(index + 1);
            }
            _ => {}
        }
    }
    (found, hidden)
}

/// The entry that a command begins with: the longest one.
pub fn entry<'a>(command: &str, tables: &[&[(&'a str, &'a str)]]) -> Option<(&'a str, &'a str)> {
    let all = tables.iter().flat_map(|table| table.iter());
    let fits = all.filter(|(start, _)| command.starts_with(start));
    fits.max_by_key(|(start, _)| start.len()).copied()
}

/// Commands that nobody runs and nobody excuses, entries that no document needs, tests that are not
/// there. `documents` are paths and texts.
pub fn faults(documents: &[(&str, &str)], sources: &[&str]) -> Vec<String> {
    let (mut faults, mut used) = (Vec::new(), Vec::new());
    for (path, text) in documents {
        let (found, hidden) = commands(text);
        for line in hidden {
            faults.push(format!(
                "{path}:{line}: a command in a block that is not marked sh"
            ));
        }
        for Command { line, text } in found {
            match entry(text, &[RUN, NOT_RUN]) {
                Some((start, _)) => used.push(start),
                None => faults.push(format!(
                    "{path}:{line}: no test runs `{text}`, and tests/style/src/commands.rs has no reason why"
                )),
            }
        }
    }
    let stale = RUN
        .iter()
        .chain(NOT_RUN)
        .filter(|(start, _)| !used.contains(start));
    faults.extend(stale.map(|(start, _)| format!("no document has `{start}` any more")));
    let gone = RUN.iter().filter(|(_, test)| !is_test(test, sources));
    faults.extend(gone.map(|(start, test)| format!("`{start}`: there is no test {test}")));
    faults
}
