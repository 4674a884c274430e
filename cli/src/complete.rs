//! Shell completion of `kubectl aliquot …`: kubectl runs `kubectl_complete-aliquot` from the path with
//! the words so far and offers what it prints, in every shell that it supports. Names come from the kubeconfig and the
//! cluster that the words name.

use std::fmt::{Debug, Write as _};
use std::iter::once;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory as _, FromArgMatches as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

use crate::access::Access;
use crate::program::Program;

/// The name under which kubectl calls the program for completion.
pub const NAME: &str = "kubectl_complete-aliquot";
/// Directive to the shell: offer no file names (Cobra's number).
const NO_FILES: u32 = 4;
/// Directive to the shell: offer file names.
const FILES: u32 = 0;

/// Longest wait for names from the cluster, for which the user waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// Names that only the kubeconfig or the cluster knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    Contexts,
    Clusters,
    Users,
    Namespaces,
    Nodes,
    Pods,
}

impl Names {
    /// The kind of names that an argument takes.
    fn taken_by(arg: &Arg) -> Option<Self> {
        match arg.get_id().as_str() {
            "context" => Some(Self::Contexts),
            "cluster" => Some(Self::Clusters),
            "user" => Some(Self::Users),
            "namespace" | "scheduler_namespace" => Some(Self::Namespaces),
            "node" => Some(Self::Nodes),
            "pod" => Some(Self::Pods),
            _ => None,
        }
    }

    /// The names, by the kubeconfig, context and namespace in the words so far; `None` where they cannot be read.
    pub async fn read(self, words: &[String]) -> Option<Vec<String>> {
        let words = once("kubectl-aliquot").chain(words.iter().map(String::as_str));
        let program = Program::command().ignore_errors(true);
        let matches = program.try_get_matches_from(words).ok()?;
        let mut leaf = &matches;
        while let Some((_, below)) = leaf.subcommand() {
            leaf = below;
        }
        let mut access = Access::from_arg_matches(leaf).ok()?;
        access.request_timeout = PATIENCE;
        let file = || access.file().ok();
        let client = async || access.client().await.ok();
        Some(match self {
            Self::Contexts => file()?.contexts.into_iter().map(|one| one.name).collect(),
            Self::Clusters => file()?.clusters.into_iter().map(|one| one.name).collect(),
            Self::Users => file()?.auth_infos.into_iter().map(|one| one.name).collect(),
            Self::Namespaces => listed::<Namespace>(&Api::all(client().await?)).await?,
            Self::Nodes => listed::<Node>(&Api::all(client().await?)).await?,
            Self::Pods => {
                let given: Option<&String> = leaf.try_get_one("namespace").ok()?;
                let namespace = access.namespace(given.map(String::as_str)).await.ok()?;
                listed::<Pod>(&Api::namespaced(client().await?, &namespace)).await?
            }
        })
    }
}

async fn listed<K: Clone + Debug + DeserializeOwned>(api: &Api<K>) -> Option<Vec<String>> {
    let list = api.list_metadata(&ListParams::default()).await.ok()?;
    let names = list.items.into_iter().filter_map(|one| one.metadata.name);
    Some(names.collect())
}

/// A line for each word that may replace the last one, and the directive to the shell. `names` gets what to read, and
/// the words before.
pub fn answer(words: &[String], names: impl Fn(Names, &[String]) -> Vec<String>) -> String {
    let root = Program::command();
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", &[][..]),
    };
    let mut command = &root;
    let mut at = 0;
    while let Some(next) = before
        .get(at)
        .and_then(|word| command.find_subcommand(word))
    {
        command = next;
        at += 1;
    }
    let values = |arg: &Arg| -> Vec<String> {
        let known = Names::taken_by(arg).map(|kind| names(kind, before));
        values(arg)
            .into_iter()
            .chain(known.unwrap_or_default())
            .collect()
    };
    let word = before.last().filter(|_| before.len() > at);
    let value_of = word.and_then(|word| flag(command, word));
    let (found, shell) = match value_of {
        Some(arg) => (values(arg), if takes_file(arg) { FILES } else { NO_FILES }),
        None if last.starts_with('-') => (flags(command), NO_FILES),
        None => places(command, values),
    };
    let mut text = String::new();
    for word in found.iter().filter(|word| word.starts_with(last)) {
        let _ = writeln!(text, "{word}");
    }
    let _ = writeln!(text, ":{shell}");
    text
}

/// The flag that this word names, if it takes a value.
fn flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let is = |arg: &&Arg| {
        let long = word
            .strip_prefix("--")
            .is_some_and(|word| arg.get_long() == Some(word));
        let short = word.strip_prefix('-').and_then(|word| word.chars().next());
        long || word.len() == 2 && short.is_some() && arg.get_short() == short
    };
    let takes = |arg: &&Arg| arg.get_action().takes_values();
    command.get_arguments().filter(takes).find(is)
}

fn values(arg: &Arg) -> Vec<String> {
    let all = arg.get_possible_values();
    all.iter()
        .map(|value| value.get_name().to_owned())
        .collect()
}

fn takes_file(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().any(|name| name.as_str() == "FILE")
}

fn flags(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut all: Vec<String> = shown
        .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
        .collect();
    all.sort();
    all
}

/// The subcommands, or the values of positional arguments.
fn places(command: &Command, values: impl Fn(&Arg) -> Vec<String>) -> (Vec<String>, u32) {
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    let mut all: Vec<String> = below.map(|one| one.get_name().to_owned()).collect();
    all.sort();
    let mut shell = NO_FILES;
    for arg in command.get_positionals() {
        all.extend(values(arg));
        if takes_file(arg) {
            shell = FILES;
        }
    }
    (all, shell)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str], expected: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let text = answer(&words, |names, _| vec![format!("{names:?}").to_lowercase()]);
        let found: Vec<&str> = text.lines().collect();
        assert_eq!(found, expected, "{words:?}");
    }

    #[test]
    fn completes_commands_flags_and_values() {
        check(
            &[""],
            &[
                "config",
                "dashboard",
                "doctor",
                "explain",
                "preflight",
                "resize",
                "top",
                ":4",
            ],
        );
        check(&["top", ""], &["nodes", "gpus", "pods", ":4"]);
        check(&["top", "-o", "y"], &["yaml", ":4"]);
        check(&["doctor", ""], &["node", ":4"]);
        check(
            &["top", "pods", "--n"],
            &["--namespace", "--no-usage", ":4"],
        );
        check(&["top", "-A", "p"], &["pods", ":4"]);
        check(&["top", "pods", "-n", ""], &["namespaces", ":4"]);
        check(&["explain", "--context", ""], &["contexts", ":4"]);
        check(&["explain", "po"], &["pods", ":4"]);
        check(&["doctor", "node", ""], &["nodes", ":4"]);
    }

    #[test]
    fn leaves_file_names_to_the_shell() {
        check(&["config", "validate", ""], &[":0"]);
        check(&["top", "--kubeconfig", ""], &[":0"]);
    }
}
