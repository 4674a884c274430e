//! Shell completion of `kubectl aliquot …`: kubectl runs `kubectl_complete-aliquot` from the path with
//! the words so far and offers what it prints, in every shell that it supports.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use crate::program::Program;

/// Under this name, the program completes.
pub const NAME: &str = "kubectl_complete-aliquot";
/// Directive to the shell: offer no file names (Cobra's number).
const NO_FILES: u32 = 4;
/// Directive to the shell: offer file names.
const FILES: u32 = 0;

/// A line for each word that may replace the last one, and the directive to the shell.
pub fn answer(words: &[String]) -> String {
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
    let value_of = before.last().filter(|_| before.len() > at);
    let value_of = value_of.and_then(|word| flag(command, word));
    let (found, shell) = match value_of {
        Some(arg) => (values(arg), if takes_file(arg) { FILES } else { NO_FILES }),
        None if last.starts_with('-') => (flags(command), NO_FILES),
        None => places(command),
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
    names
        .iter()
        .any(|name| ["FILE", "KUBECONFIG", "NODE_CONFIG"].contains(&name.as_str()))
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
fn places(command: &Command) -> (Vec<String>, u32) {
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
        let text = answer(&words);
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
        check(&["top", "pods", "-n", ""], &[":4"]);
    }

    #[test]
    fn leaves_file_names_to_the_shell() {
        check(&["config", "validate", ""], &[":0"]);
        check(&["top", "--kubeconfig", ""], &[":0"]);
    }
}
