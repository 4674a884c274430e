//! Checks of the documents: promised figures name a command, invariants name a test.

/// Lines with their numbers, without those of code blocks.
pub fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The cells of every table row, without the heading.
pub fn table_rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<(usize, &str)> = outside_fences(text).collect();
    let is_row = |line: &str| line.starts_with('|');
    let is_rule = |line: &str| is_row(line) && line.chars().all(|c| "|-: ".contains(c));
    let is_head = |at: usize| lines.get(at + 1).is_some_and(|(_, next)| is_rule(next));
    lines
        .iter()
        .enumerate()
        .filter(|(at, (_, line))| is_row(line) && !is_rule(line) && !is_head(*at))
        .map(|(_, (_, line))| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Rows of SPECIFICATION.md whose last cell is not an existing `make` command.
pub fn unproved(specification: &str, makefile: &str) -> Vec<String> {
    let exists = |target: &str| {
        makefile
            .lines()
            .any(|line| line.starts_with(&format!("{target}:")))
    };
    table_rows(specification)
        .into_iter()
        .filter(|cells| {
            let command = cells.last().map_or("", |cell| cell.trim_matches('`'));
            !command.strip_prefix("make ").is_some_and(exists)
        })
        .map(|cells| format!("{}: names no command of the Makefile", cells[0]))
        .collect()
}

/// Whether one of the sources has this test function or scenario.
pub fn is_test(name: &str, sources: &[&str]) -> bool {
    let forms = [format!("fn {name}("), format!("\"{name}\",")];
    let has = |source: &&str| forms.iter().any(|form| source.contains(form));
    sources.iter().any(has)
}

/// The names in backticks of a table's cell.
pub fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Rows of a table whose last cell names no test, or one that is not in `sources`.
pub fn unheld(rows: &[Vec<&str>], sources: &[&str]) -> Vec<String> {
    let exists = |name: &str| is_test(name, sources);
    let mut found = Vec::new();
    for cells in rows {
        let names = names(cells.last().map_or("", |cell| cell));
        if names.is_empty() {
            found.push(format!("{}: names no test", cells[0]));
        }
        let missing = names.iter().filter(|name| !exists(name));
        found.extend(missing.map(|name| format!("{}: there is no test {name}", cells[0])));
    }
    found
}

/// The part of a document under the heading `## <title>`.
pub fn section<'a>(text: &'a str, title: &str) -> &'a str {
    let start = format!("## {title}\n");
    let rest = text.split_once(&start).map_or("", |(_, rest)| rest);
    rest.split("\n## ").next().unwrap_or(rest)
}

/// RBAC rules without a comment right above them.
pub fn rights_without_reason(path: &str, yaml: &str) -> Vec<String> {
    let lines: Vec<&str> = yaml.lines().map(str::trim).collect();
    let is_rule = |line: &str| line.starts_with("- apiGroups:");
    let has_reason = |at: usize| at > 0 && lines[at - 1].starts_with('#');
    (0..lines.len())
        .filter(|&at| is_rule(lines[at]) && !has_reason(at))
        .map(|at| {
            format!(
                "{path}:{}: an RBAC rule without a comment with its reason",
                at + 1
            )
        })
        .collect()
}
