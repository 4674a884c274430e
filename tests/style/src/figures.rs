//! The figures of `make bench`: one JSON line for each, with the verdict on the target that
//! docs/SPECIFICATION.md has for it. The tables there are the only place where targets are written.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::documents::{names, table_rows};
use crate::tree;

/// The section of docs/SPECIFICATION.md whose figures the limiter's bench measures.
pub const LIMITER: &str = "Compute share in a container";

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Its name in docs/SPECIFICATION.md.
    pub name: String,
    /// As measured.
    pub value: f64,
    /// Of value and baseline.
    pub unit: &'static str,
    /// Measured in the same run, or published.
    pub baseline: f64,
    /// What was measured, and what the baseline is.
    pub what: String,
}

/// How a value is compared with its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    AtMost,
    AtLeast,
    Exactly,
}

/// What a cell of the column "target" says of one figure: `≤ 2`, `≥ 98`, `0` (exactly), `≤ 2 × floor`,
/// `≤ floor + 0.1`, `≥ 62 % of plain`. The word stands for the figure's baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    text: String,
    relation: Relation,
    /// Times the baseline.
    factor: f64,
    offset: f64,
}

impl Target {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let relations = [("≤ ", Relation::AtMost), ("≥ ", Relation::AtLeast)];
        let (rest, relation) = relations
            .iter()
            .find_map(|(sign, relation)| Some((text.strip_prefix(sign)?, *relation)))
            .unwrap_or((text, Relation::Exactly));
        let is_word = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase());
        let words: Vec<&str> = rest.split(' ').collect();
        let (factor, offset) = match words[..] {
            [number] => (0.0, number.parse().ok()?),
            [number, "×", word] if is_word(word) => (number.parse().ok()?, 0.0),
            [number, "%", "of", word] if is_word(word) => {
                (number.parse::<f64>().ok()? / 100.0, 0.0)
            }
            [word, "+", number] if is_word(word) => (1.0, number.parse().ok()?),
            _ => return None,
        };
        Some(Self {
            text: text.to_owned(),
            relation,
            factor,
            offset,
        })
    }

    fn bound(&self, baseline: f64) -> f64 {
        self.factor * baseline + self.offset
    }

    fn is_met(&self, value: f64, baseline: f64) -> bool {
        let bound = self.bound(baseline);
        match self.relation {
            Relation::AtMost => value <= bound,
            Relation::AtLeast => value >= bound,
            Relation::Exactly => (value - bound).abs() < 1e-9,
        }
    }
}

/// The names and targets of the rows whose command is `make bench`. A `*` in a name stands for
/// anything; a row with one target has it for all its names.
pub fn targets(specification: &str) -> Result<Vec<(String, Target)>> {
    let mut found = Vec::new();
    for cells in table_rows(specification) {
        let &[promise, name, target, _, "`make bench`"] = cells.as_slice() else {
            continue;
        };
        let names = names(name);
        ensure!(!names.is_empty(), "{promise}: no name of a figure");
        if target == "–" {
            continue;
        }
        let targets: Option<Vec<Target>> = target.split(", ").map(Target::parse).collect();
        let targets = targets.with_context(|| {
            format!("{promise}: target is {target:?}; expected: such as `≤ 2`, `≥ 98`, `0` or `≤ 2 × floor`")
        })?;
        ensure!(
            targets.len() == 1 || targets.len() == names.len(),
            "{promise}: target is {target:?}; expected: one, or one for each of {} names",
            names.len()
        );
        let targets = targets.iter().cycle().cloned();
        found.extend(names.into_iter().map(str::to_owned).zip(targets));
    }
    Ok(found)
}

fn is_named(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => name == pattern,
    }
}

/// What a run of a bench measured.
#[derive(Debug)]
pub struct Report {
    targets: Vec<(String, Target)>,
    measured: BTreeSet<String>,
    missed: Vec<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    figure: &'a Figure,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
}

impl Report {
    /// With the targets of those sections of docs/SPECIFICATION.md whose titles are `chosen`.
    pub fn new(chosen: impl Fn(&str) -> bool) -> Result<Self> {
        let specification = tree::read("docs/SPECIFICATION.md")?;
        let sections = specification.split("\n## ").skip(1);
        let sections = sections.filter(|text| text.lines().next().is_some_and(&chosen));
        let targets: Result<Vec<_>> = sections.map(targets).collect();
        Ok(Self {
            targets: targets?.concat(),
            measured: BTreeSet::new(),
            missed: Vec::new(),
        })
    }

    /// The figure's line of JSON, in thousandths, with the verdict on these.
    pub fn line(&mut self, mut figure: Figure) -> Result<String> {
        figure.value = thousandths(figure.value);
        figure.baseline = thousandths(figure.baseline);
        let of_figure = self.targets.iter();
        let target = { of_figure }.find(|(pattern, _)| is_named(pattern, &figure.name));
        let is_met = target.map(|(_, target)| target.is_met(figure.value, figure.baseline));
        let line = serde_json::to_string(&Line {
            figure: &figure,
            target: target.map(|(_, target)| target.text.as_str()),
            bound: target.map(|(_, target)| thousandths(target.bound(figure.baseline))),
            verdict: is_met.map(|is_met| if is_met { "met" } else { "not met" }),
        })?;
        if is_met == Some(false) {
            self.missed.push(line.clone());
        }
        self.measured.insert(figure.name);
        Ok(line)
    }

    /// An error with every target that was not met, and, if all groups were selected, with those whose
    /// figure was not measured.
    pub fn end(mut self, all: bool) -> Result<()> {
        let is_measured = |pattern: &str| self.measured.iter().any(|name| is_named(pattern, name));
        let absent = self
            .targets
            .iter()
            .filter(|(name, _)| all && !is_measured(name));
        let absent = absent.map(|(name, target)| format!("{name} ({}): not measured", target.text));
        let absent: Vec<String> = absent.collect();
        self.missed.extend(absent);
        let missed = self.missed.join("\n");
        ensure!(missed.is_empty(), "targets that are not met:\n{missed}");
        Ok(())
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &str) -> Report {
        let table = format!(
            "| promise | name | target | measured | command |\n|---|---|---|---|---|\n{rows}"
        );
        Report {
            targets: targets(&table).expect("readable targets"),
            measured: BTreeSet::new(),
            missed: Vec::new(),
        }
    }

    fn figure(name: &str, value: f64, baseline: f64) -> Figure {
        Figure {
            name: name.to_owned(),
            value,
            unit: "ms",
            baseline,
            what: String::new(),
        }
    }

    #[test]
    fn compares_a_figure_with_its_target() {
        let check = |target: &str, value: f64, baseline: f64, verdict: &str| {
            let mut report = report(&format!("| fast | `a` | {target} | | `make bench` |\n"));
            let line = report.line(figure("a", value, baseline)).expect("JSON");
            let expected = format!("\"verdict\":\"{verdict}\"");
            assert!(line.contains(&expected), "{target} of {value}: {line}");
            assert_eq!(
                report.end(true).is_ok(),
                verdict == "met",
                "{target} of {value}"
            );
        };
        check("≤ 2", 2.0, 0.0, "met");
        check("≤ 2", 2.001, 0.0, "not met");
        check("≥ 98", 98.0, 100.0, "met");
        check("≥ 98", 97.9, 100.0, "not met");
        check("0", 0.0, 0.0, "met");
        check("0", 1.0, 0.0, "not met");
        check("≤ 2 × floor", 0.8, 0.4, "met");
        check("≤ 2 × floor", 0.9, 0.4, "not met");
        check("≤ floor + 0.1", 0.12, 0.02, "met");
        check("≤ floor + 0.1", 0.13, 0.02, "not met");
        check("≥ 62 % of plain", 94.3, 152.0, "met");
        check("≥ 62 % of plain", 94.2, 152.0, "not met");
    }

    #[test]
    fn every_target_of_the_specification_is_readable() {
        let limiter = Report::new(|title| title == LIMITER).expect("readable targets");
        assert!(
            limiter
                .targets
                .iter()
                .any(|(name, _)| name == "share_30_error")
        );
        let others = Report::new(|title| title != LIMITER).expect("readable targets");
        assert!(
            others
                .targets
                .iter()
                .any(|(name, _)| name == "start_p99_ms")
        );
        let row = "| a | `a` |\n|---|---|\n| fast | `a` | soon | | `make bench` |\n";
        assert!(targets(row).is_err());
    }
}
