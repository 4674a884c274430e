//! The `kubectl aliquot` commands in README.md and docs: each can be parsed, and those that need no
//! cluster run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_cli::program::Program;
use clap::error::ErrorKind;

const NVIDIA: &str = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 4}\n";

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

fn documents() -> Vec<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = vec![top.join("README.md")];
    pages(&top.join("docs"), &mut paths);
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a page");
    paths.iter().map(read).collect()
}

/// Lines of blocks and texts in backticks that begin so; without the comment behind them.
fn commands() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for text in documents() {
        let whole = text
            .lines()
            .filter(|line| line.starts_with("kubectl aliquot "));
        let quoted = text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        let quoted = quoted.filter(|text| text.starts_with("kubectl aliquot "));
        for command in whole.chain(quoted) {
            let command = command.split("  #").next().unwrap_or_default().trim();
            if command.contains('…') {
                continue;
            }
            found.push(words(command));
        }
    }
    found
}

/// Split as a shell does, with double quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in command.chars() {
        match letter {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().expect("a word").push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words.drain(1..2);
    words
}

#[test]
fn parses_every_documented_command() {
    let all = commands();
    assert!(all.len() > 20, "{} commands", all.len());
    for command in all {
        let Err(error) = Program::read(&command) else {
            continue;
        };
        // Mentioned in a sentence without its required arguments.
        let needs = [
            ErrorKind::MissingRequiredArgument,
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
        ];
        let named = command.len() <= 3 && needs.contains(&error.kind());
        assert!(named || !error.use_stderr(), "{command:?}: {error}");
    }
}

#[test]
fn runs_every_documented_config_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides/gpu-profiles.md");
    let guide = fs::read_to_string(guide).expect("the guide");
    let profiles = guide
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let write =
        |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("profiles.yaml", profiles.expect("a configuration"));
    write("config.yaml", NVIDIA);
    let mut count = 0;
    for command in commands() {
        let needs_a_cluster = command.get(2).is_none_or(|word| word == "show");
        if command.get(1).is_none_or(|word| word != "config") || needs_a_cluster {
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-aliquot"))
            .args(&command[1..])
            .current_dir(&folder)
            .output()
            .expect("started");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {error}");
        count += 1;
    }
    assert!(count > 3, "{count} commands of config");
}
