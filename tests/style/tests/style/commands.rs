//! Every command of the documents is run by a test, or there is a reason why not.

use aliquot_style::commands::{commands, entry, errors};
use aliquot_style::tree;

#[test]
fn every_documented_command_has_a_test_or_reason() {
    let files = tree::files("md").unwrap();
    let documents: Vec<(&str, &str)> = files
        .iter()
        .filter(|file| file.path == "README.md" || file.path.starts_with("docs/"))
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let sources = tree::files("rs").unwrap();
    let sources: Vec<&str> = sources.iter().map(|file| file.text.as_str()).collect();
    let found = errors(&documents, &sources);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn reads_commands_from_sh_blocks() {
    let text = "```sh\nhelm install a  # remark\n\n```\n```yaml\nkubectl: x\n```\n```\nkubectl get pods\n```\n";
    let (found, hidden) = commands(text);
    let found: Vec<_> = found.iter().map(|one| (one.line, one.text)).collect();
    assert_eq!(found, [(2, "helm install a")]);
    assert_eq!(hidden, [9]);
}

#[test]
fn reports_unknown_command() {
    let check = |command: &str, expected: Option<&str>| {
        let table = [("a b", "long"), ("a", "short")];
        assert_eq!(entry(command, &[&table]).map(|(_, what)| what), expected);
    };
    check("a b c", Some("long"));
    check("a c", Some("short"));
    check("b", None);
    let unknown = "```sh\nrm -r everything\n```\n";
    let found = errors(&[("docs/a.md", unknown)], &[]);
    assert!(found[0].contains("rm -r everything"), "{found:?}");
}
