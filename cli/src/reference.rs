//! Generates docs/reference/cli.md from the command line's help texts.

use std::fmt::Write as _;

use clap::{Arg, Args as _, Command, CommandFactory as _};

use crate::access::Access;
use crate::program::{CODES, Program};

const HEAD: &str = "# kubectl aliquot

Generated from the program's help by `make reference`.

Put `kubectl-aliquot` into the path, and kubectl runs it as `kubectl aliquot`.
For shell completion, in every shell that kubectl supports, link it under the name that kubectl looks for:
`ln -s kubectl-aliquot /usr/local/bin/kubectl_complete-aliquot`
It also completes the names of contexts, clusters, users, namespaces, nodes and pods.

As for kubectl, the namespace is that of the kubeconfig's context where `--namespace` names none.
In a pod without a kubeconfig, a command uses the pod's service account and its namespace.

";

/// The heading of what all commands with a cluster share, and its anchor.
const SHARED: &str = "Flags of every command that reads a cluster";
const ANCHOR: &str = "#flags-of-every-command-that-reads-a-cluster";

pub fn page() -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(text, "{CODES}\n\n## {SHARED}");
    let mut access = Access::augment_args(Command::new("access"));
    access.build();
    table(&mut text, &shown(&access));
    let mut root = Program::command();
    root.build();
    for command in root.get_subcommands() {
        section(&mut text, command, "kubectl aliquot", &shown(&access));
    }
    text
}

fn section(text: &mut String, command: &Command, above: &str, access: &[&Arg]) {
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string);
    let _ = write!(text, "\n## {name}\n\n{}.\n", about.unwrap_or_default());
    let is_shared = |arg: &&Arg| access.iter().any(|one| one.get_id() == arg.get_id());
    let (shared, own): (Vec<&Arg>, Vec<&Arg>) = shown(command).into_iter().partition(is_shared);
    table(text, &own);
    if !shared.is_empty() {
        let _ = writeln!(text, "\nAnd the [{}]({ANCHOR}).", SHARED.to_lowercase());
    }
    for below in command.get_subcommands() {
        section(text, below, &name, access);
    }
}

fn shown(command: &Command) -> Vec<&Arg> {
    let arguments = command.get_arguments();
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    arguments.filter(shown).collect()
}

fn table(text: &mut String, arguments: &[&Arg]) {
    if !arguments.is_empty() {
        text.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
    }
    for arg in arguments {
        row(text, arg);
    }
}

fn row(text: &mut String, arg: &Arg) {
    let possible = arg.get_possible_values();
    let values: Vec<&str> = possible
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
    let joined = defaults.collect::<Vec<_>>().join(",");
    let default = match joined.as_str() {
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
