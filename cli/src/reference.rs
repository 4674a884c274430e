//! Generates docs/reference/cli.md from the command line's help texts.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use crate::program::{CODES, Program};

const HEAD: &str = "# kubectl aliquot

Generated from the program's help by `make reference`.

Put `kubectl-aliquot` into the path, and kubectl runs it as `kubectl aliquot`.
For shell completion, in every shell that kubectl supports, link it under the name that kubectl looks for:
`ln -s kubectl-aliquot /usr/local/bin/kubectl_complete-aliquot`

As for kubectl, the namespace is that of the kubeconfig's context where `--namespace` names none.
In a pod without a kubeconfig, a command uses the pod's service account and its namespace.

";

/// The page.
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(text, "{CODES}");
    let mut root = Program::command();
    root.build();
    for command in root.get_subcommands() {
        section(&mut text, command, "kubectl aliquot");
    }
    text
}

fn section(text: &mut String, command: &Command, above: &str) {
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string);
    let _ = write!(text, "\n## {name}\n\n{}.\n", about.unwrap_or_default());
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if !arguments.is_empty() {
        text.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
        for arg in arguments {
            row(text, arg);
        }
    }
    for below in command.get_subcommands() {
        section(text, below, &name);
    }
}

fn row(text: &mut String, arg: &Arg) {
    let values = arg.get_possible_values();
    let values: Vec<&str> = values
        .iter()
        .map(clap::builder::PossibleValue::get_name)
        .collect();
    let names = arg.get_value_names().unwrap_or_default();
    let value = match values[..] {
        [] => names
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        _ => values.join("\\|"),
    };
    let takes = arg.get_action().takes_values();
    let mut name = String::new();
    if let Some(short) = arg.get_short() {
        let _ = write!(name, "-{short}, ");
    }
    match arg.get_long() {
        Some(long) if takes => drop(write!(name, "--{long} {value}")),
        Some(long) => drop(write!(name, "--{long}")),
        None => name.push_str(&value),
    }
    let defaults = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy());
    let default = defaults.collect::<Vec<_>>().join(",");
    let default = match default.as_str() {
        _ if !takes => String::new(),
        "" if arg.is_required_set() => "required".to_owned(),
        "" => String::new(),
        some => format!("`{some}`"),
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(
        text,
        "| `{name}` | {default} | {} |",
        help.replace('|', "\\|")
    );
}
