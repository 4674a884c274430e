//! The result of a check: what it found and what to do.

use std::fmt::Write as _;

use serde::Serialize;

use crate::table::{aligned, counted};

/// Severity, from the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// Pods stay pending, fail, or get what they should not.
    Problem,
    /// Something is degraded, or will become a problem.
    Warning,
    NotChecked,
    /// Nothing is wrong, but the reader should know it.
    Note,
    Ok,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Self::Problem => "PROBLEM",
            Self::Warning => "WARNING",
            Self::NotChecked => "not checked",
            Self::Note => "note",
            Self::Ok => "ok",
        }
    }
}

/// What a check found and what to do, or why it could not be made.
pub type Checked = Result<Verdict, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub grade: Grade,
    pub found: String,
    /// Empty where nothing is to be done.
    pub todo: String,
}

impl Verdict {
    fn new(grade: Grade, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self {
            grade,
            found: found.into(),
            todo: todo.into(),
        }
    }
}

pub fn ok(found: impl Into<String>) -> Checked {
    Ok(Verdict::new(Grade::Ok, found, ""))
}

pub fn note(found: impl Into<String>, todo: impl Into<String>) -> Checked {
    Ok(Verdict::new(Grade::Note, found, todo))
}

pub fn warning(found: impl Into<String>, todo: impl Into<String>) -> Checked {
    Ok(Verdict::new(Grade::Warning, found, todo))
}

pub fn problem(found: impl Into<String>, todo: impl Into<String>) -> Checked {
    Ok(Verdict::new(Grade::Problem, found, todo))
}

/// The result of one check of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub grade: Grade,
    pub check: &'static str,
    /// What was checked: `cluster`, a node or a workload.
    pub about: String,
    /// What was found; for [`Grade::NotChecked`], why the check was not made.
    pub found: String,
    /// What to do; empty where nothing is to be done.
    #[serde(rename = "do", skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

/// What findings are about.
#[derive(Clone, Debug)]
pub struct About(pub String);

impl About {
    pub fn cluster() -> Self {
        Self("cluster".to_owned())
    }

    pub fn finding(&self, check: &'static str, checked: Checked) -> Finding {
        let unmade = |why: String| Verdict::new(Grade::NotChecked, why, "");
        let verdict = checked.unwrap_or_else(unmade);
        Finding {
            grade: verdict.grade,
            check,
            about: self.0.clone(),
            found: verdict.found,
            todo: verdict.todo,
        }
    }

    /// The findings of several checks.
    pub fn each<const N: usize>(&self, all: [(&'static str, Checked); N]) -> Vec<Finding> {
        all.map(|(check, checked)| self.finding(check, checked))
            .into()
    }
}

/// All findings, the worst first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub problems: usize,
    pub warnings: usize,
    pub not_checked: usize,
    /// One for each check and object.
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.grade);
        let count = |grade| findings.iter().filter(|one| one.grade == grade).count();
        Self {
            problems: count(Grade::Problem),
            warnings: count(Grade::Warning),
            not_checked: count(Grade::NotChecked),
            findings,
        }
    }

    /// Whether there were checks, and none could be made, as where the API server does not answer.
    pub fn checked_nothing(&self) -> bool {
        !self.findings.is_empty() && self.not_checked == self.findings.len()
    }

    /// The exit code: 0 if every check was made and found neither problem nor warning, otherwise 1.
    pub fn code(&self) -> u8 {
        u8::from(self.problems + self.warnings + self.not_checked > 0)
    }

    /// For a terminal. Checks that passed are only counted, unless `all` is set.
    pub fn table(&self, all: bool) -> String {
        let shown = |finding: &&Finding| all || finding.grade != Grade::Ok;
        let rows: Vec<&Finding> = self.findings.iter().filter(shown).collect();
        let cells = |finding: &&Finding| {
            let (grade, check) = (finding.grade.word(), finding.check);
            let cells = [grade, check, &finding.about, &finding.found];
            Vec::from(cells.map(str::to_owned))
        };
        let mut text = String::new();
        if !rows.is_empty() {
            let cells: Vec<_> = rows.iter().map(cells).collect();
            let table = aligned("|CHECK|ABOUT|FOUND", &cells);
            let mut lines = table.lines();
            let _ = writeln!(text, "{}", lines.next().unwrap_or_default());
            for (line, finding) in lines.zip(&rows) {
                let _ = writeln!(text, "{line}");
                if !finding.todo.is_empty() {
                    let _ = writeln!(text, "    -> {}", finding.todo);
                }
            }
            text.push('\n');
        }
        let is_ok = |one: &&Finding| one.grade == Grade::Ok;
        let well = self.findings.iter().filter(is_ok).count();
        let _ = writeln!(
            text,
            "{}, {}, {} not checked, {well} ok",
            counted(self.problems, "problem", "problems"),
            counted(self.warnings, "warning", "warnings"),
            self.not_checked
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(findings: Vec<Finding>, code: u8, table: &str) {
        let report = Report::new(findings);
        assert_eq!(report.code(), code);
        assert_eq!(report.table(false), table);
    }

    #[test]
    fn sorts_by_severity_and_sets_exit_code() {
        let about = About::cluster();
        check(vec![], 0, "0 problems, 0 warnings, 0 not checked, 0 ok\n");
        check(
            about.each([("a", ok("fine"))]),
            0,
            "0 problems, 0 warnings, 0 not checked, 1 ok\n",
        );
        check(
            about.each([
                ("a", problem("denied:\n\nrule", "exempt it")),
                ("b", problem("gone", "make it")),
            ]),
            1,
            "         CHECK  ABOUT    FOUND\nPROBLEM  a      cluster  denied: rule\n    -> exempt it\n\
             PROBLEM  b      cluster  gone\n    -> make it\n\n\
             2 problems, 0 warnings, 0 not checked, 0 ok\n",
        );
        check(
            about.each([("a", ok("fine")), ("b", Err("no rights".to_owned()))]),
            1,
            "             CHECK  ABOUT    FOUND\nnot checked  b      cluster  no rights\n\n\
             0 problems, 0 warnings, 1 not checked, 1 ok\n",
        );
        check(
            about.each([
                ("a", warning("old", "renew it")),
                ("b", problem("gone", "make it")),
            ]),
            1,
            "         CHECK  ABOUT    FOUND\nPROBLEM  b      cluster  gone\n    -> make it\n\
             WARNING  a      cluster  old\n    -> renew it\n\n\
             1 problem, 1 warning, 0 not checked, 0 ok\n",
        );
    }
}
