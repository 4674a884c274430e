//! Limits logs of conditions that recur in every sample: each is logged when it starts or changes, and
//! again after it was over for a while.

use std::collections::BTreeMap;

/// A condition that did not recur in so many samples is over.
const FORGET_AFTER: u64 = 120;

/// The conditions that were logged.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    /// By subject: the text, and the last sample in which it occurred.
    logged: BTreeMap<String, (String, u64)>,
    samples: u64,
}

impl LogRateLimit {
    /// Begins a sample.
    pub fn begin_sample(&mut self) {
        self.samples += 1;
        let samples = self.samples;
        self.logged
            .retain(|_, (_, last)| *last + FORGET_AFTER >= samples);
    }

    /// Whether to log this now.
    pub fn should_log(&mut self, of: &str, problem: &str) -> bool {
        let logged = self
            .logged
            .insert(of.to_owned(), (problem.to_owned(), self.samples));
        logged.is_none_or(|(before, _)| before != problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_recurring_problem_only_when_it_changes() {
        let mut limit = LogRateLimit::default();
        let logged = |limit: &mut LogRateLimit, of: &str, problem: &str| {
            limit.begin_sample();
            limit.should_log(of, problem)
        };
        assert!(logged(&mut limit, "evict.json", "no space left"));
        for _ in 0..1_000 {
            assert!(!logged(&mut limit, "evict.json", "no space left"));
        }
        assert!(
            logged(&mut limit, "processes", "no space left"),
            "of another"
        );
        assert!(logged(&mut limit, "evict.json", "read-only"), "another");
        assert!(logged(&mut limit, "evict.json", "no space left"), "changed");
        for _ in 0..=FORGET_AFTER {
            limit.begin_sample();
        }
        assert!(limit.logged.is_empty(), "{limit:?}");
        assert!(logged(&mut limit, "evict.json", "no space left"), "again");
    }
}
