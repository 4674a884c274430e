//! `doctor --wait`: asks again until GPU pods can run, or the time is up.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::finding::{Finding, Grade, Report};

/// Between two reports.
const EVERY: Duration = Duration::from_secs(2);

/// The first report in which nothing is missing, with exit code 0, or the last one before the deadline, with its
/// own. `note` gets a line when what is missing changes, and one at the deadline.
pub async fn until_well<E>(
    deadline: Duration,
    mut ask: impl AsyncFnMut() -> Result<Report, E>,
    note: impl Fn(&str),
) -> Result<(Report, u8), E> {
    // None of a wait that no clock can end.
    let end = Instant::now().checked_add(deadline);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = String::new();
    loop {
        ticks.tick().await;
        let report = ask().await?;
        let missing = missing(&report);
        if missing.is_empty() {
            return Ok((report, 0));
        }
        if end.is_some_and(|end| Instant::now() + EVERY > end) {
            let seconds = deadline.as_secs();
            note(&format!(
                "not well after {seconds} s; still missing: {missing}"
            ));
            let code = report.code();
            return Ok((report, code));
        }
        if missing != last {
            note(&format!("waiting: {missing}"));
            last = missing;
        }
    }
}

/// Whether to wait until the finding is gone. A warning is about a setting, which does not change
/// by itself; only the one about nodes goes away, when the first agent has started.
fn is_missing(finding: &Finding) -> bool {
    match finding.grade {
        Grade::Problem | Grade::NotChecked => true,
        Grade::Warning => finding.check == "nodes",
        Grade::Note | Grade::Ok => false,
    }
}

/// Checks that are not passed, each with what they are about: `agent (n1, n2), webhook (cluster)`.
fn missing(report: &Report) -> String {
    let mut checks: Vec<(&str, Vec<&str>)> = Vec::new();
    for finding in report.findings.iter().filter(|one| is_missing(one)) {
        match checks.iter_mut().find(|(check, _)| *check == finding.check) {
            Some((_, about)) => about.push(&finding.about),
            None => checks.push((finding.check, vec![&finding.about])),
        }
    }
    let texts = checks.into_iter().map(|(check, mut about)| {
        about.dedup();
        format!("{check} ({})", about.join(", "))
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::super::finding::{About, problem, warning};
    use super::*;

    type Problems = &'static [(&'static str, &'static str)];

    fn report(problems: Problems) -> Report {
        let missing = |(check, about): &(&'static str, &str)| {
            About((*about).to_owned()).finding(check, problem("missing", "make it"))
        };
        let single = warning("1 of 1", "set scheduler.replicas=2");
        let single = About::cluster().finding("scheduler", single);
        Report::new(problems.iter().map(missing).chain([single]).collect())
    }

    /// The exit code and the notes, where each report has these problems.
    async fn wait(deadline: u64, reports: &[Problems]) -> (u8, Vec<String>) {
        let notes = RefCell::new(Vec::new());
        let mut next = reports.iter().copied();
        let ask = async || Ok::<_, Infallible>(report(next.next().expect("no more reports")));
        let note = |text: &str| notes.borrow_mut().push(text.to_owned());
        let Ok((_, code)) = until_well(Duration::from_secs(deadline), ask, note).await;
        (code, notes.into_inner())
    }

    const ALL: Problems = &[("agent", "n1"), ("agent", "n2"), ("webhook", "cluster")];
    const ONE: Problems = &[("agent", "n1")];

    #[tokio::test(start_paused = true)]
    async fn doctor_waits_until_nothing_is_missing() {
        let (code, notes) = wait(60, &[ALL, ALL, ONE, &[]]).await;
        assert_eq!(code, 0);
        let expected = [
            "waiting: agent (n1, n2), webhook (cluster)",
            "waiting: agent (n1)",
        ];
        assert_eq!(notes, expected);
        assert_eq!(wait(60, &[&[]]).await, (0, Vec::new()));
        assert_eq!(wait(u64::MAX, &[ONE, &[]]).await.0, 0);
    }

    #[test]
    fn doctor_waits_for_agents_but_not_for_settings() {
        let about = About::cluster();
        let unmade = Err("no rights".to_owned());
        for (check, checked, expected) in [
            ("nodes", warning("no inventory", ""), true),
            ("leader", unmade, true),
            ("webhook-pods", warning("1 of 1", ""), false),
        ] {
            assert_eq!(
                is_missing(&about.finding(check, checked)),
                expected,
                "{check}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn doctor_stops_waiting_at_deadline() {
        let (code, notes) = wait(3, &[ONE, ONE]).await;
        assert_eq!(code, 1);
        let expected = [
            "waiting: agent (n1)",
            "not well after 3 s; still missing: agent (n1)",
        ];
        assert_eq!(notes, expected);
    }
}
